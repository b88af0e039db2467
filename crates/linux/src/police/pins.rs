//! What of the policer outlives its process: pins in the kernel's BPF file system.
//!
//! Problem: a daemon that ends, however it does, must not leave its subscribers unpoliced until the next one
//! is there. Method: the links are pinned; a link keeps its program, and a program its maps. The next daemon
//! fills tables of its own by its own configuration, and then replaces the programs through the links, so each
//! packet meets one or the other. The slots, which hold the subscribers' state, are pinned too, with the tables of
//! addresses that lead to them: the next daemon gives a subscriber the slot that its address had. Both programs
//! use the slot under its lock, so nothing of the state is lost or old.
//!
//! Properties: slots of another layout, which is the hash of the compiled programs, are not used; then the state
//! begins empty, and policing goes on. What is pinned is policed until the time in the map `deadline`. One process at
//! a time has a device's directory.
//!
//! Below [`ROOT`]: `fairweir-isp/NETNS/DEVICE/`, with a link for each hook, and `state-LAYOUT/` with the rest.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::abi::{CLASSES, Entry, OBJECT, key_of};
use super::slots::{SlotKind, class_of, index_of, kind_of};
use super::{Direction, Hook, is_whole};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::bpf_error;

/// The directory of a device, for one process.
#[derive(Debug)]
pub(super) struct Pins {
    dir: PathBuf,
    /// With the slots of this layout.
    pub(super) state: PathBuf,
    _lock: Flock<File>,
}

/// The tables of a process before, until what it attached is replaced.
pub(super) struct Old {
    /// For each direction, as [`TABLES`].
    tables: [[Option<MapHandle>; 4]; 2],
    /// Slots that there are of each class, and those that subscribers have now.
    counts: [u32; CLASSES],
    claimed: [BTreeSet<u32>; CLASSES],
}

impl Pins {
    /// Takes the directory of a device, which is made if it is missing.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if others may write there; if another process has it; without a BPF file system.
    pub(super) fn open(device: &str) -> Result<Pins, Error> {
        mount()?;
        let mut dir = PathBuf::from(ROOT);
        check(&dir)?;
        for part in [OURS, &namespace()?, &escaped(device)] {
            dir.push(part);
            make(&dir)?;
        }
        let lock = lock(&dir, LOCK_TRIES)?.ok_or_else(|| {
            let source = io::Error::other("another process polices there");
            Error::refused(format!("use {}", dir.display()), source)
        })?;
        let state = dir.join(state_name());
        make(&state)?;
        Ok(Pins { dir, state, _lock: lock })
    }

    /// Where the link of a hook is.
    pub(super) fn link(&self, device: &str, hook: Hook, direction: Direction) -> PathBuf {
        self.dir.join(format!("{LINK}{hook:?}-{direction:?}-{}", escaped(device)))
    }

    /// Removes the links that are not among these; what they attached is detached.
    pub(super) fn retain_links(&self, links: &[&Path]) -> Result<(), Error> {
        for (name, path) in entries(&self.dir)? {
            if name.starts_with(LINK) && !links.contains(&&*path) {
                tracing::info!(link = name, "detaches what another process had attached");
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes slots of other layouts.
    pub(super) fn retain_state(&self) -> Result<(), Error> {
        for (name, path) in entries(&self.dir)? {
            if name.starts_with(STATE) && path != self.state {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the slots that are there.
    pub(super) fn forget_state(&self) -> Result<(), Error> {
        remove(&self.state)?;
        make(&self.state)
    }

    /// Removes everything.
    pub(super) fn remove(self) -> Result<(), Error> {
        remove_all(&self.dir)
    }
}

impl Old {
    /// What a process before has pinned; `counts` slots are there.
    pub(super) fn open(pins: &Pins, counts: [u32; CLASSES]) -> Old {
        let table = |direction, name| open(&pins.state.join(table_name(direction, name))).ok();
        let tables = Direction::ALL.map(|direction| TABLES.map(|name| table(direction, name)));
        Old { tables, counts, claimed: Default::default() }
    }

    /// The slot of this kind that one of these addresses had, if no subscriber has it now.
    pub(super) fn slot(&self, direction: Direction, nets: &[IpNet], kind: SlotKind) -> Option<u32> {
        let entries = nets.iter().filter_map(|net| {
            let at = usize::from(matches!(net, IpNet::V6(_))) + if is_whole(net) { 0 } else { 2 };
            let table = self.tables[direction.index()][at].as_ref()?;
            let value = table.lookup(&key_of(net), MapFlags::ANY).ok()??;
            Entry::from_bytes(&value).map(|entry| entry.slot)
        });
        let is_vacant = |slot: &u32| {
            let (class, index) = (class_of(*slot), index_of(*slot));
            kind_of(*slot) == kind
                && index < self.counts[class]
                && !self.claimed[class].contains(&index)
        };
        entries.into_iter().find(is_vacant)
    }

    /// The same, which a subscriber has from now on.
    pub(super) fn claim(
        &mut self,
        direction: Direction,
        nets: &[IpNet],
        kind: SlotKind,
    ) -> Option<u32> {
        let slot = self.slot(direction, nets, kind)?;
        self.claimed[class_of(slot)].insert(index_of(slot));
        Some(slot)
    }

    /// The slots of a class that no subscriber has.
    pub(super) fn vacant(&self, class: usize) -> impl Iterator<Item = u32> {
        (0..self.counts[class]).filter(move |index| !self.claimed[class].contains(index))
    }
}

/// Pins in `dir` what leads from addresses to slots; names as [`TABLES`].
pub(super) fn pin_tables(
    dir: &Path,
    direction: Direction,
    maps: [&MapHandle; 4],
) -> Result<(), Error> {
    for (name, map) in TABLES.into_iter().zip(maps) {
        pin(map.as_fd(), &dir.join(table_name(direction, name)))?;
    }
    Ok(())
}

/// Pins a map or a link, in place of what is pinned there.
pub(super) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    let mut new = path.as_os_str().to_owned();
    new.push(NEW);
    let new = PathBuf::from(new);
    remove(&new)?;
    let name = c_path(&new);
    // SAFETY: the descriptor is open, and the path is a string that outlives the call.
    let answer = unsafe { libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), name.as_ptr()) };
    if answer < 0 {
        let attempted = format!("pin {}", path.display());
        return Err(Error::refused(attempted, io::Error::from_raw_os_error(-answer)));
    }
    fs::rename(&new, path).map_err(|e| Error::refused(format!("pin {}", path.display()), e))
}

/// What is pinned there.
pub(super) fn open_link(path: &Path) -> Option<OwnedFd> {
    // SAFETY: the path is a string that outlives the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(c_path(path).as_ptr()) };
    // SAFETY: the descriptor is new and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The map that is pinned there.
pub(super) fn open(path: &Path) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(path).map_err(|e| bpf_error(format!("open {}", path.display()), &e))
}

/// Removes a pin, or a directory of pins; it may be gone.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::refused(format!("remove {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

/// The devices of this network namespace for which something is pinned, also by a process that runs.
///
/// # Errors
/// If the directory cannot be read.
pub fn devices() -> Result<Vec<String>, Error> {
    let found = match entries(&of_namespace()?) {
        // Only root sees them, and only root removes them.
        Err(e) if e.errno() == Some(libc::EACCES) => Vec::new(),
        found => found?,
    };
    Ok(found.into_iter().filter_map(|(name, _)| unescaped(&name)).collect())
}

/// Removes what a process that is gone has pinned for a device, which opens it; whether there was something.
///
/// # Errors
/// If it cannot be removed.
pub fn sweep(device: &str) -> Result<bool, Error> {
    let dir = of_namespace()?.join(escaped(device));
    if !dir.is_dir() {
        return Ok(false);
    }
    let Some(_lock) = lock(&dir, SWEEP_TRIES)? else { return Ok(false) };
    remove_all(&dir).map(|()| true)
}

/// Removes a device's directory, the links first, and those above it if they are empty.
fn remove_all(dir: &Path) -> Result<(), Error> {
    for (name, path) in entries(dir)? {
        if name.starts_with(LINK) {
            remove(&path)?;
        }
    }
    remove(dir)?;
    for above in dir.ancestors().skip(1).take(2) {
        let _ = fs::remove_dir(above);
    }
    Ok(())
}

fn lock(dir: &Path, tries: u32) -> Result<Option<Flock<File>>, Error> {
    let attempted = || format!("lock {}", dir.display());
    for _ in 0..tries {
        let file = File::open(dir).map_err(|e| Error::refused(attempted(), e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => sleep(LOCK_PAUSE),
            Err((_, e)) => return Err(Error::refused(attempted(), e)),
        }
    }
    Ok(None)
}

/// Makes sure that there is a BPF file system. One that is mounted in a mount namespace of this process alone would
/// be gone with it.
fn mount() -> Result<(), Error> {
    let is_bpf = || statfs(ROOT).is_ok_and(|there| there.filesystem_type() == BPF_FS_MAGIC);
    if is_bpf() {
        return Ok(());
    }
    let attempted = format!("mount a BPF file system at {ROOT} (`mount -t bpf bpf {ROOT}`)");
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    // Where the first process cannot be looked at, a mount does no harm.
    if of("1").is_some_and(|init| of("self") != Some(init)) {
        let source = io::Error::other("this process has a mount namespace of its own");
        return Err(Error::refused(attempted, source));
    }
    // SAFETY: all are strings that outlive the call.
    let answer = unsafe {
        let root = c_path(Path::new(ROOT));
        libc::mount(
            c"bpf".as_ptr(),
            root.as_ptr(),
            c"bpf".as_ptr(),
            0,
            c"mode=0700".as_ptr().cast(),
        )
    };
    if answer < 0 { Err(Error::last_os(attempted)) } else { Ok(()) }
}

fn make(dir: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::refused(format!("make {}", dir.display()), e))
        }
        _ => check(dir),
    }
}

/// Refuses a directory where others could put a map or a link of theirs.
fn check(dir: &Path) -> Result<(), Error> {
    let found = fs::symlink_metadata(dir)
        .map_err(|e| Error::refused(format!("look at {}", dir.display()), e))?;
    let mode = found.mode() & 0o7777;
    // In a sticky directory others cannot replace what is ours.
    let is_closed = mode & 0o022 == 0 || (mode & 0o1000 != 0 && dir == Path::new(ROOT));
    if found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw() && is_closed {
        return Ok(());
    }
    Err(Error::Untrusted { dir: dir.to_owned(), owner: found.uid(), mode })
}

fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let attempted = || format!("read {}", dir.display());
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::refused(attempted(), e)),
    };
    let mut entries = Vec::new();
    for entry in found {
        let entry = entry.map_err(|e| Error::refused(attempted(), e))?;
        entries.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(entries)
}

/// With the directories of this network namespace's devices.
fn of_namespace() -> Result<PathBuf, Error> {
    Ok(Path::new(ROOT).join(OURS).join(namespace()?))
}

/// Names of devices are those of one network namespace.
fn namespace() -> Result<String, Error> {
    let found = fs::metadata("/proc/thread-self/ns/net");
    let found =
        found.map_err(|e| Error::refused("find the own network namespace below /proc", e))?;
    Ok(found.ino().to_string())
}

fn state_name() -> String {
    let mut hasher = DefaultHasher::new();
    OBJECT.hash(&mut hasher);
    format!("{STATE}{:016x}", hasher.finish())
}

fn table_name(direction: Direction, name: &str) -> String {
    format!("{direction:?}-{name}")
}

/// The BPF file system takes no dots, which a device's name may have.
fn escaped(device: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    device.bytes().map(escape).collect()
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut device = parts.next()?.to_owned();
    for part in parts {
        device.push(u8::from_str_radix(part.get(..2)?, 16).ok()?.into());
        device.push_str(part.get(2..)?);
    }
    Some(device)
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("invariant: paths here have no zero byte")
}

/// Where systemd, and people, mount the BPF file system.
const ROOT: &str = "/sys/fs/bpf";
const OURS: &str = "fairweir-isp";
/// What the names of links and of directories with slots begin with.
const LINK: &str = "link-";
const STATE: &str = "state-";
/// What the name of a pin ends in until it replaces the one before.
const NEW: &str = "-new";
/// Whole addresses of IPv4 and IPv6, then shorter prefixes.
const TABLES: [&str; 4] = ["whole4", "whole6", "prefixes4", "prefixes6"];
/// A process that was killed holds its lock for a moment.
const LOCK_TRIES: u32 = 100;
const SWEEP_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_have_no_dots_and_come_back() {
        for device in ["eth0", "eth0.100", "br-lan%2e", "a~b", "wan_1"] {
            let name = escaped(device);
            assert!(!name.contains('.'), "{name}");
            assert_eq!(unescaped(&name).as_deref(), Some(device));
        }
    }
}
