//! Pins in the kernel's BPF file system: pinned maps and links outlive the process.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use libbpf_rs::MapHandle;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::bpf_error;
use crate::Error;

/// Pins a map or a link, in place of an earlier pin at `path`.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
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

/// The link that is pinned at `path`.
pub(crate) fn open_link(path: &Path) -> Option<OwnedFd> {
    // SAFETY: the path is a string that outlives the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(c_path(path).as_ptr()) };
    // SAFETY: the descriptor is new and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The map that is pinned at `path`.
pub(crate) fn open(path: &Path) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(path).map_err(|e| bpf_error(format!("open {}", path.display()), &e))
}

/// Removes a pin, or a directory of pins, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
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

/// Makes sure that there is a BPF file system. A file system mounted in this process's own mount
/// namespace would disappear with the process, so that is refused.
fn mount() -> Result<(), Error> {
    let is_bpf = || statfs(ROOT).is_ok_and(|there| there.filesystem_type() == BPF_FS_MAGIC);
    if is_bpf() {
        return Ok(());
    }
    let attempted = format!("mount a BPF file system at {ROOT} (`mount -t bpf bpf {ROOT}`)");
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    // If the first process's namespace cannot be read, a mount does no harm.
    if of("1").is_some_and(|init| of("self") != Some(init)) {
        let source = io::Error::other("this process has a mount namespace of its own");
        return Err(Error::refused(attempted, source));
    }
    // SAFETY: all arguments are strings that outlive the call.
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

/// The nested directory of these names below [`ROOT`]; missing parts are created.
///
/// # Errors
/// [`Error::Untrusted`] if others may write there; or if there is no BPF file system.
pub(crate) fn directory(names: &[&str]) -> Result<PathBuf, Error> {
    mount()?;
    let mut dir = PathBuf::from(ROOT);
    check(&dir)?;
    for name in names {
        dir.push(name);
        make(&dir)?;
    }
    Ok(dir)
}

pub(crate) fn make(dir: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::refused(format!("make {}", dir.display()), e))
        }
        _ => check(dir),
    }
}

/// Refuses a directory where other users could put a map or a link.
fn check(dir: &Path) -> Result<(), Error> {
    let found = fs::symlink_metadata(dir)
        .map_err(|e| Error::refused(format!("look at {}", dir.display()), e))?;
    let mode = found.mode() & 0o7777;
    // In a sticky directory other users cannot replace our entries.
    let is_closed = mode & 0o022 == 0 || (mode & 0o1000 != 0 && dir == Path::new(ROOT));
    if found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw() && is_closed {
        return Ok(());
    }
    Err(Error::Untrusted { dir: dir.to_owned(), owner: found.uid(), mode })
}

pub(crate) fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
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

/// A name for the layout of the maps of a compiled object.
pub(crate) fn layout(object: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Escapes dots, which a device's name may have but the BPF file system does not allow.
pub(crate) fn escaped(device: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    device.bytes().map(escape).collect()
}

pub(crate) fn unescaped(name: &str) -> Option<String> {
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

/// Where systemd and administrators mount the BPF file system.
pub(crate) const ROOT: &str = "/sys/fs/bpf";
/// Suffix of the name of a pin until it replaces the previous pin.
const NEW: &str = "-new";

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
