//! The run directory, which contains the sockets and locks of a machine's daemons.
//!
//! | path below the run directory | what it is | who may use it |
//! |---|---|---|
//! | `NAME.sock` | requests that may change something | root, and a group that the service names |
//! | `status/NAME.sock` | requests that only read | the group of `--user-group` |
//! | `metrics/NAME.sock` | OpenMetrics over HTTP | the group of `--user-group` |
//! | `web/NAME.sock` | requests of browsers' extensions, if the service takes them | every local user |
//! | `lock/NETNS-NAME.lock` | held by the daemon (see [`crate::Lock`]) | root |
//!
//! `NAME` is the instance: `isp`, or a service and its device as in `host-eth0`. All of these
//! directories belong to the daemon's user, and no other user may write to them. So no other local
//! user can take a name, connect a daemon to a socket of their own, or hold a lock.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, chown, geteuid};

use crate::Error;

/// The socket of a daemon for requests that may change something.
pub fn control_socket(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.sock"))
}

/// The socket for requests that only read.
pub fn status_socket(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join("status").join(format!("{name}.sock"))
}

/// The Unix socket for metrics.
pub fn metrics_socket(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join("metrics").join(format!("{name}.sock"))
}

/// The socket for requests that every local user may send.
pub fn web_socket(run_dir: &Path, name: &str) -> PathBuf {
    web_dir(run_dir).join(format!("{name}.sock"))
}

/// The directory of these sockets; [`instances`] lists them.
pub fn web_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("web")
}

/// The instances that have a socket in `run_dir`, sorted by name.
///
/// # Errors
/// If the directory cannot be read; one that does not exist has no instances.
pub fn instances(run_dir: &Path) -> Result<Vec<String>, Error> {
    let attempted = || format!("read the directory {}", run_dir.display());
    let entries = match fs::read_dir(run_dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(attempted(), e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(attempted(), e))?.file_name();
        names.extend(name.to_str().and_then(|n| n.strip_suffix(".sock")).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Users who may connect to a socket, besides its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenTo {
    /// No one but the owner.
    Owner,
    /// The members of a group.
    Group(Gid),
    /// Every local user.
    Everybody,
}

impl OpenTo {
    /// Open to the group, if there is one.
    pub fn group(group: Option<Gid>) -> OpenTo {
        group.map_or(OpenTo::Owner, OpenTo::Group)
    }
}

/// Listens at a socket in the run directory, and replaces one that a killed daemon left.
///
/// # Errors
/// [`Error::SocketInUse`], [`Error::UnsafeDirectory`], or the kernel's error.
pub fn listen(path: &Path, open_to: OpenTo) -> Result<UnixListener, Error> {
    ensure(path.parent().unwrap_or(Path::new("/")), 0o755)?;
    if UnixStream::connect(path).is_ok() {
        return Err(Error::SocketInUse { path: path.to_owned() });
    }
    let bind = || -> io::Result<UnixListener> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        // The umask keeps other users from connecting before the mode is set.
        let mask = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(path);
        umask(mask);
        let listener = bound?;
        listener.set_nonblocking(true)?;
        let mode = match open_to {
            OpenTo::Owner => 0o660,
            OpenTo::Group(group) => {
                chown(path, None, Some(group))?;
                0o660
            }
            OpenTo::Everybody => 0o666,
        };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(listener)
    };
    bind().map_err(|e| Error::io(format!("listen at {}", path.display()), e))
}

/// Creates the directory and its parents with this mode if it does not exist.
///
/// # Errors
/// [`Error::UnsafeDirectory`] if others could replace its contents.
pub(crate) fn ensure(dir: &Path, mode: u32) -> Result<(), Error> {
    if fs::symlink_metadata(dir).is_err() {
        let create = || {
            DirBuilder::new().recursive(true).mode(mode).create(dir)?;
            // The umask may have removed some bits of the mode.
            fs::set_permissions(dir, Permissions::from_mode(mode))
        };
        create().map_err(|e| Error::io(format!("create the directory {}", dir.display()), e))?;
    }
    check(dir)
}

/// Checks that only root or the caller may change the contents of `dir`.
///
/// # Errors
/// [`Error::UnsafeDirectory`] if others may.
pub(crate) fn check(dir: &Path) -> Result<(), Error> {
    let metadata = fs::symlink_metadata(dir)
        .map_err(|e| Error::io(format!("look at the directory {}", dir.display()), e))?;
    let owned = metadata.uid() == 0 || metadata.uid() == geteuid().as_raw();
    if !metadata.is_dir() || !owned || metadata.mode() & 0o022 != 0 {
        return Err(Error::UnsafeDirectory {
            path: dir.to_owned(),
            uid: metadata.uid(),
            mode: metadata.mode() & 0o7777,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        ensure(&run, 0o755).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o755);
        ensure(&run, 0o755).unwrap();
        fs::set_permissions(&run, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(ensure(&run, 0o755), Err(Error::UnsafeDirectory { mode: 0o777, .. })));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(check(&link), Err(Error::UnsafeDirectory { .. })));
    }

    #[test]
    fn instances_are_the_sockets() {
        let dir = tempfile::tempdir().unwrap();
        assert!(instances(&dir.path().join("none")).unwrap().is_empty());
        for name in ["isp.sock", "host-eth0.sock", "isp.lock"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(instances(dir.path()).unwrap(), ["host-eth0", "isp"]);
    }
}
