//! BPF by libbpf: maps, attaching, errors, and the structures that programs and user space share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Once;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, Object, PrintLevel, ProgramMut};

use crate::Error;
use crate::bpf::abi::Plain;

pub(crate) mod abi;
pub(crate) mod pinned;
pub(crate) mod trial;

/// The numbers of the headers that programs and user space share.
#[allow(dead_code, unused_parens, reason = "written for C")]
pub(crate) mod header {
    include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
}

/// The entries of one map, as bytes.
pub(crate) type Table = BTreeMap<Vec<u8>, u32>;

/// Attaches by tcx. `None` if the kernel refuses; `errno` says why.
pub(crate) fn attach_tcx(program: &ProgramMut<'_>, index: u32) -> Option<Link> {
    let program = program.as_libbpf_object().as_ptr();
    // SAFETY: the program is loaded and outlives the call; no options are given.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(program, index as i32, ptr::null()) };
    // SAFETY: the pointer is a new link that nothing else owns.
    NonNull::new(link).map(|link| unsafe { Link::from_ptr(link) })
}

pub(crate) fn is_at_a_device(link: &Link) -> bool {
    let info = link.info();
    info.is_ok_and(|info| matches!(info.info, LinkTypeInfo::Tcx(tcx) if tcx.ifindex != 0))
}

pub(crate) fn replace(map: &MapHandle, old: &Table, new: &Table) -> Result<(), Error> {
    for (key, value) in new {
        if old.get(key) != Some(value) {
            update(map, key, &value.to_ne_bytes())?;
        }
    }
    for key in old.keys().filter(|&key| !new.contains_key(key)) {
        match map.delete(key) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                return Err(bpf_error(format!("delete from {:?}", map.name()), &e));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn update(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY)
        .map_err(|e| bpf_error(format!("write to {:?}", map.name()), &e))
}

/// Passes on all entries of a hash table, in small batches.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn each_entry<K: Plain + Default, V: Plain + Default>(
    map: &MapHandle,
    mut each: impl FnMut(K, V),
) -> Result<(), Error> {
    assert!(
        map.key_size() as usize == size_of::<K>() && map.value_size() as usize == size_of::<V>()
    );
    let (mut keys, mut values) = (vec![K::default(); BATCH], vec![V::default(); BATCH]);
    // Where the kernel continues: for hash tables a number of 4 bytes.
    let (mut next, mut is_first) = (0u64, true);
    loop {
        let mut count = BATCH as u32;
        let from = if is_first { ptr::null_mut() } else { (&raw mut next).cast() };
        // SAFETY: the keys and values are of the table's sizes and as many as `count` says, all bit
        // patterns of them are valid, and the kernel reads and writes 4 bytes of `next`.
        let refused = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from,
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let is_last = refused == -libc::ENOENT;
        if refused < 0 && !is_last {
            let source = std::io::Error::from_raw_os_error(-refused);
            return Err(Error::refused("read a table", source));
        }
        let read = keys.iter().zip(&values).take(count as usize);
        read.for_each(|(&key, &value)| each(key, value));
        if is_last {
            return Ok(());
        }
        is_first = false;
    }
}

/// An error with the loader's messages of this thread since the last error.
pub(crate) fn bpf_error(attempted: impl Into<String>, error: &libbpf_rs::Error) -> Error {
    let log = LOG.with_borrow_mut(std::mem::take);
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut number = None;
    while let Some(e) = source {
        number = number.or(e.downcast_ref::<std::io::Error>().and_then(|e| e.raw_os_error()));
        source = e.source();
    }
    let source = number.map_or_else(
        || std::io::Error::other(error.to_string()),
        std::io::Error::from_raw_os_error,
    );
    Error::Bpf { attempted: attempted.into(), source, log }
}

pub(crate) fn not_found() -> std::io::Error {
    std::io::ErrorKind::NotFound.into()
}

/// The program of this name.
///
/// # Errors
/// If the object has none.
pub(crate) fn program<'o>(object: &'o Object, name: &str) -> Result<ProgramMut<'o>, Error> {
    let missing = || Error::refused(format!("find the program {name}"), not_found());
    object.progs_mut().find(|p| p.name() == name).ok_or_else(missing)
}

/// The kernel's information about a program.
///
/// # Errors
/// If the kernel does not answer.
///
/// # Safety
/// Where a length in `info` is not 0, the pointer beside it must lead to an array of that length,
/// which is written.
pub(crate) unsafe fn program_info(
    program: BorrowedFd<'_>,
    info: &mut libbpf_sys::bpf_prog_info,
) -> std::io::Result<()> {
    let mut length = size_of_val(info) as u32;
    // SAFETY: the program is open; the kernel writes at most `length` bytes to `info`, and to arrays as the
    // caller promises.
    let answer =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), info, &raw mut length) };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the loader's warnings, the verifier's log among them, for the error that follows.
pub(crate) fn listen_to_the_loader() {
    LOG.with_borrow_mut(String::clear);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |level, text| match level {
            PrintLevel::Warn => LOG.with_borrow_mut(|log| log.push_str(&text)),
            _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
        })));
    });
}

thread_local! {
    static LOG: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Entries of a table that are read at once: far more than one bucket contains.
const BATCH: usize = 1_024;
/// The only key of maps with one entry.
pub(crate) const KEY: [u8; 4] = 0u32.to_ne_bytes();
/// Type information of the running kernel.
pub(crate) const BTF: &str = "/sys/kernel/btf/vmlinux";

#[cfg(test)]
pub(crate) mod tests {
    /// Whether a test may use the kernel; a skip prints a message, and is a failure under FAIRWEIR_STRICT=1.
    pub(crate) fn is_root() -> bool {
        let is_root = nix::unistd::geteuid().is_root();
        if !is_root {
            eprintln!("SKIPPED: needs root");
            assert!(std::env::var_os("FAIRWEIR_STRICT").is_none(), "skipped under FAIRWEIR_STRICT");
        }
        is_root
    }
}
