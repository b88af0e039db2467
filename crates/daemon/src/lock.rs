//! Locks: an exclusive `flock` on a file in the run directory.
//!
//! The directory of the locks has mode 0700, so that no other user can open a file there and lock
//! it. Locks are separate for each network namespace, as device names are. A lock ends with the
//! process that holds it, even after SIGKILL.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::{Error, run_dir};

/// The exclusive right to control something; released on drop.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
    path: PathBuf,
}

impl Lock {
    /// Acquires the lock of the instance `name`, such as `host-eth0`.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] if another process has it.
    pub fn acquire(run_dir: &Path, name: &str) -> Result<Lock, Error> {
        run_dir::ensure(run_dir, 0o755)?;
        run_dir::ensure(&directory(run_dir), 0o700)?;
        let path = path_of(run_dir, name)?;
        let attempted = || format!("lock {}", path.display());
        let mut tries = 0;
        loop {
            let file = open(&path, true).map_err(|e| Error::io(attempted(), e))?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                // The holder may be a process that only checks whether the lock is held ([`Lock::held`]).
                Err((_, Errno::EWOULDBLOCK)) if tries < TRIES_MAX => {
                    tries += 1;
                    sleep(TRY_PAUSE);
                    continue;
                }
                Err((file, Errno::EWOULDBLOCK)) => {
                    let name = name.trim_start_matches(DEVICE).to_owned();
                    return Err(Error::AlreadyRunning { name, pid: pid_in(&file) });
                }
                Err((_, e)) => return Err(Error::io(attempted(), e.into())),
            };
            // The previous holder may have removed the file after it was opened here.
            if !is_at(&file, &path) {
                continue;
            }
            let write = |file: &mut File| {
                file.set_len(0)?;
                file.write_all(format!("{}\n", std::process::id()).as_bytes())
            };
            write(&mut file).map_err(|e| Error::io(attempted(), e))?;
            return Ok(Lock { file, path });
        }
    }

    /// Acquires the lock of a device, which is the same for all services.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] if another process has it.
    pub fn device(run_dir: &Path, device: &str) -> Result<Lock, Error> {
        Lock::acquire(run_dir, &format!("{DEVICE}{device}"))
    }

    /// Whether a name belongs to a device's lock rather than to an instance's.
    pub fn is_device(name: &str) -> bool {
        name.starts_with(DEVICE)
    }

    /// The names of the locks that processes of this network namespace hold, sorted, each with the process id.
    ///
    /// # Errors
    /// If the directory cannot be read, or /proc is not mounted.
    pub fn held(run_dir: &Path) -> Result<Vec<(String, i32)>, Error> {
        let prefix = format!("{}-", namespace()?);
        let dir = directory(run_dir);
        let attempted = || format!("read the directory {}", dir.display());
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(attempted(), e)),
        };
        let mut held = Vec::new();
        for entry in entries {
            let file_name = entry.map_err(|e| Error::io(attempted(), e))?.file_name();
            let name = file_name.to_str().and_then(|n| n.strip_prefix(&prefix));
            let Some(name) = name.and_then(|n| n.strip_suffix(".lock")) else { continue };
            let Ok(file) = open(&dir.join(&file_name), false) else { continue };
            if let Err((file, Errno::EWOULDBLOCK)) = Flock::lock(file, FlockArg::LockSharedNonblock)
            {
                held.push((name.to_owned(), pid_in(&file)));
            }
        }
        held.sort();
        Ok(held)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While the lock is held: a process that opened the old file then finds another or no file there.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn directory(run_dir: &Path) -> PathBuf {
    run_dir.join("lock")
}

fn path_of(run_dir: &Path, name: &str) -> Result<PathBuf, Error> {
    Ok(directory(run_dir).join(format!("{}-{name}.lock", namespace()?)))
}

/// The id of this process's network namespace.
pub(crate) fn namespace() -> Result<u64, Error> {
    let attempted = "find its own network namespace below /proc (mounted?)";
    namespace_of("self").map_err(|e| Error::io(attempted, e))
}

/// The id of the network namespace of a process, given by its process id or `self`.
///
/// # Errors
/// If there is no such process, or /proc is not mounted.
pub(crate) fn namespace_of(process: &str) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/{process}/ns/net"))?.ino())
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).mode(0o600).custom_flags(flags.bits());
    options.open(path)
}

pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (opened.dev(), opened.ino()) == (there.dev(), there.ino())
}

/// The process id that the holder wrote; 0 if it has not written it yet.
fn pid_in(mut file: &File) -> i32 {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(16).read_to_string(&mut text));
    read.ok().and_then(|_| text.trim().parse().ok()).unwrap_or(0)
}

/// The prefix of names of device locks.
const DEVICE: &str = "dev:";
pub(crate) const TRIES_MAX: u32 = 5;
pub(crate) const TRY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let first = Lock::acquire(&run, "host-eth0").unwrap();
        let other = Lock::acquire(&run, "host-eth1").unwrap();
        let Err(Error::AlreadyRunning { name, pid }) = Lock::acquire(&run, "host-eth0") else {
            panic!("it is held")
        };
        assert_eq!((name.as_str(), pid), ("host-eth0", std::process::id() as i32));
        let pid = std::process::id() as i32;
        let held = Lock::held(&run).unwrap();
        assert_eq!(held, [("host-eth0".to_owned(), pid), ("host-eth1".to_owned(), pid)]);
        drop(first);
        assert_eq!(Lock::held(&run).unwrap(), [("host-eth1".to_owned(), pid)]);
        drop(Lock::acquire(&run, "host-eth0").unwrap());
        drop(other);
        assert_eq!(fs::read_dir(run.join("lock")).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_a_killed_process_left_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        drop(Lock::acquire(&run, "isp").unwrap());
        fs::write(path_of(&run, "isp").unwrap(), "99999999 garbage").unwrap();
        assert!(Lock::held(&run).unwrap().is_empty());
        assert!(Lock::acquire(&run, "isp").is_ok());
    }

    #[test]
    fn a_link_in_place_of_the_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        drop(Lock::acquire(&run, "isp").unwrap());
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, path_of(&run, "isp").unwrap()).unwrap();
        assert!(matches!(Lock::acquire(&run, "isp"), Err(Error::Io { .. })));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}
