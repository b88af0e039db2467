//! The program that lifts bounds of windows when the processes that set them are gone
//! (`bpf/expire.h`).
//!
//! It is attached to the root cgroup without a link, so it outlives the process that attached it. It is
//! attached while bounds are in force, and detached with the last bound. If the process is killed, the
//! guard detaches it by its descriptor ([`detach_expiry`]). If both are killed it stays until [`sweep`]
//! finds it by its name and by the configuration that it reads, which distinguishes it from programs of
//! other daemons. Opening a program that another process loaded requires CAP_SYS_ADMIN.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fairweir_core::units::{Span, Time};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Program, ProgramHandle, ProgramMut};

use crate::bpf::abi::{Config, Plain};
use crate::bpf::{BTF, KEY, bpf_error, program_info};
use crate::classify::cgroup;
use crate::net::netns::Netns;
use crate::{Error, monotonic_now};

/// The attached program; dropping it detaches.
pub(crate) struct Expiry {
    cgroup: File,
    program: OwnedFd,
}

impl Expiry {
    /// Attaches the program [`NAME`].
    ///
    /// # Errors
    /// If there is no cgroup hierarchy, or the kernel refuses.
    pub(crate) fn attach(program: &ProgramMut<'_>) -> Result<Expiry, Error> {
        let attempted = "attach the program that lifts windows of a killed daemon";
        let program = program.as_fd().try_clone_to_owned();
        let program = program.map_err(|e| Error::refused(attempted, e))?;
        let cgroup = cgroup::open_root()?;
        // SAFETY: both descriptors are open.
        let attached = unsafe {
            libbpf_sys::bpf_prog_attach(
                program.as_raw_fd(),
                cgroup.as_raw_fd(),
                libbpf_sys::BPF_CGROUP_SOCK_OPS,
                libbpf_sys::BPF_F_ALLOW_MULTI,
            )
        };
        if attached < 0 {
            return Err(Error::last_os(attempted));
        }
        Ok(Expiry { cgroup, program })
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        if let Err(e) = detach(&self.cgroup, &self.program) {
            tracing::warn!(error = %e, "a program stays attached to the root cgroup");
        }
    }
}

/// The program of a [`crate::Host`]; a process that outlives the host can detach it by this.
#[derive(Debug)]
pub struct ExpiryProgram {
    /// The kernel's number for it.
    pub id: u32,
    /// The descriptor for [`detach_expiry`].
    pub descriptor: OwnedFd,
}

impl ExpiryProgram {
    /// `None` if the kernel does not tell its number.
    pub(crate) fn of(program: &ProgramMut<'_>) -> Option<ExpiryProgram> {
        let id = Program::id_from_fd(program.as_fd()).ok()?;
        Some(ExpiryProgram { id, descriptor: program.as_fd().try_clone_to_owned().ok()? })
    }
}

/// Whether the program also lifts the bounds of connections that are already open: this requires an
/// iterator that can set a socket's callbacks (`hold` in `bpf/expire.h`).
pub(crate) fn reaches_open_connections() -> bool {
    // Only the kernel's type information shows whether it has the option: it contains the name.
    let types = std::fs::read(BTF).unwrap_or_default();
    types.windows(CALLBACKS_OPTION.len()).any(|part| part == CALLBACKS_OPTION)
}

/// Detaches the program behind `descriptor` after its host was killed. Does nothing if it is not
/// attached.
///
/// # Errors
/// If the descriptor does not belong to a program, or the kernel refuses.
pub fn detach_expiry(descriptor: &impl AsFd) -> Result<(), Error> {
    detach(&cgroup::open_root()?, descriptor)
}

/// Detaches the programs that killed daemons left for the device number `device` in the calling
/// thread's network namespace, and programs without a heartbeat for [`ABANDONED_AFTER`]. Returns
/// the number of these programs. No daemon of this device may be running.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn sweep(device: Option<u32>) -> Result<usize, Error> {
    let cgroup = cgroup::open_root()?;
    let netns = Netns::current_cookie().unwrap_or(0);
    let mut swept = 0;
    for id in attached(&cgroup)? {
        // A program that another process has detached meanwhile is skipped.
        let Ok(program) = ProgramHandle::from_prog_id(id) else { continue };
        if program.name() != NAME {
            continue;
        }
        let Some(config) = config_of(&program)? else { continue };
        let is_of_device = config.netns == netns && device == Some(config.device);
        let silent = monotonic_now().since(Time::from_nanos(config.heartbeat_ns));
        if is_of_device || silent > ABANDONED_AFTER {
            detach(&cgroup, &program)?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Numbers of the sock_ops programs of a cgroup.
fn attached(cgroup: &File) -> Result<Vec<u32>, Error> {
    let mut ids = [0; PROGRAMS_MAX];
    let mut count = ids.len() as u32;
    // SAFETY: the cgroup is open, and the kernel writes at most `count` numbers.
    let answer = unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            0,
            std::ptr::null_mut(),
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    if answer < 0 {
        return Err(Error::last_os("list the programs of the root cgroup"));
    }
    Ok(ids[..count as usize].to_vec())
}

/// The configuration that a program reads, if there is one.
fn config_of(program: &ProgramHandle) -> Result<Option<Config>, Error> {
    let attempted = "read what a program uses";
    let mut maps = [0_u32; MAPS_MAX];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: maps.len() as u32,
        map_ids: maps.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: `maps` is the only array, and its length is given.
    let answer = unsafe { program_info(program.as_fd(), &mut info) };
    answer.map_err(|e| Error::refused(attempted, e))?;
    for &id in maps.iter().take(info.nr_map_ids as usize) {
        let map = MapHandle::from_map_id(id).map_err(|e| bpf_error(attempted, &e))?;
        if map.name() == "config" {
            let value = map.lookup(&KEY, MapFlags::ANY).map_err(|e| bpf_error(attempted, &e))?;
            return Ok(value.and_then(|value| Config::from_bytes(&value)));
        }
    }
    Ok(None)
}

/// Detaches a program; does nothing if it is not attached.
fn detach(cgroup: &File, program: &impl AsFd) -> Result<(), Error> {
    let program = program.as_fd().as_raw_fd();
    let kind = libbpf_sys::BPF_CGROUP_SOCK_OPS;
    // SAFETY: both descriptors are open.
    let answer = unsafe { libbpf_sys::bpf_prog_detach2(program, cgroup.as_raw_fd(), kind) };
    match std::io::Error::last_os_error() {
        _ if answer >= 0 => Ok(()),
        e if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        e => Err(Error::refused("detach a program from the root cgroup", e)),
    }
}

/// An option of bpf_setsockopt since Linux 6.12.
const CALLBACKS_OPTION: &[u8] = b"\0TCP_BPF_SOCK_OPS_CB_FLAGS\0";
/// The program's name in `bpf/expire.h`.
pub(crate) const NAME: &str = "fairweir_expire";
/// The maximum number of programs of one kind in a cgroup. Source: BPF_CGROUP_MAX_PROGS of Linux.
const PROGRAMS_MAX: usize = 64;
/// Maximum number of a program's maps that are examined; [`NAME`] has two.
const MAPS_MAX: usize = 8;
/// The silence after which a program is abandoned: a daemon writes several times a second. A daemon that
/// a debugger stopped for longer continues without this program, and its guard still lifts the bounds.
const ABANDONED_AFTER: Span = Span::secs(60);
