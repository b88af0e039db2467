//! The state directory: what a daemon remembers over restarts, in files that are replaced whole.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::sleep;

use fairweir_config::{file, output};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid, chown};

use crate::lock::{TRIES_MAX, TRY_PAUSE, is_at};
use crate::{Error, run_dir};

/// A directory of files that only this user may change.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// The exclusive right to change a state directory, in all run directories and network namespaces;
/// released on drop, and when the process is killed.
#[derive(Debug)]
pub struct StateLock {
    _held: Flock<File>,
}

impl StateDir {
    /// The directory at `path`, which is created with the first file.
    pub fn new(path: &Path) -> StateDir {
        StateDir { path: path.to_owned() }
    }

    /// The path of a file in the directory.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file's contents; `None` if there is no such file.
    ///
    /// # Errors
    /// See [`file::read_own`].
    pub fn read(&self, name: &str, size_max: u64) -> Result<Option<Vec<u8>>, Error> {
        Ok(file::read_own(&self.path_of(name), size_max)?)
    }

    /// Replaces the file: readers see the old or the new contents, even after a crash.
    ///
    /// # Errors
    /// If others may write to the directory, or the kernel refuses; the old file then stays.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), Error> {
        run_dir::ensure(&self.path, 0o700)?;
        let path = self.path_of(name);
        let written = output::write_private(&path, contents);
        written.map_err(|e| Error::io(format!("write {}", path.display()), e))
    }

    /// Removes the file if it exists.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.path_of(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", path.display()), e))
            }
            _ => Ok(()),
        }
    }

    /// Opens the file to append to it; it is created if it does not exist.
    ///
    /// # Errors
    /// If others may write to the directory or to the file, or the kernel refuses.
    pub fn append(&self, name: &str) -> Result<File, Error> {
        run_dir::ensure(&self.path, 0o700)?;
        let path = self.path_of(name);
        let opened = output::append_private(&path);
        opened.map_err(|e| Error::io(format!("write {}", path.display()), e))
    }
}

impl StateDir {
    /// Creates the directory for the user that the caller will become; keeps an existing one as is.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_to(&self, user: Uid, group: Gid) -> Result<(), Error> {
        if std::fs::symlink_metadata(&self.path).is_ok() {
            return Ok(());
        }
        run_dir::ensure(&self.path, 0o700)?;
        let given = chown(&self.path, Some(user), Some(group));
        given.map_err(|e| Error::io(format!("give {} away", self.path.display()), e.into()))
    }

    /// Acquires the right to change the directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::StateInUse`] if another process has it.
    pub fn lock(&self) -> Result<StateLock, Error> {
        run_dir::ensure(&self.path, 0o700)?;
        let attempted = || format!("lock {}", self.path.display());
        let mut dir = File::open(&self.path).map_err(|e| Error::io(attempted(), e))?;
        // The kernel may not have released the lock of a process that was just killed.
        for _ in 0..TRIES_MAX {
            match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(StateLock { _held: locked }),
                Err((again, Errno::EWOULDBLOCK)) => dir = again,
                Err((_, e)) => return Err(Error::io(attempted(), e.into())),
            }
            sleep(TRY_PAUSE);
        }
        Err(Error::StateInUse { path: self.path.clone() })
    }

    /// Syncs the directory's entries, and the directory's own entry, to the disk.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn sync(&self) -> Result<(), Error> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        for dir in [self.path.as_path(), parent.unwrap_or(Path::new("."))] {
            let synced = File::open(dir).and_then(|dir| dir.sync_all());
            synced.map_err(|e| Error::io(format!("sync {}", dir.display()), e))?;
        }
        Ok(())
    }

    /// Whether an open file is still the one with this name, and was not removed or replaced.
    pub fn holds(&self, name: &str, file: &File) -> bool {
        is_at(file, &self.path_of(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("deeper"));
        assert!(state.read("x.json", 10).unwrap().is_none());
        state.write("x.json", b"one").unwrap();
        state.write("x.json", b"two").unwrap();
        assert_eq!(state.read("x.json", 10).unwrap().unwrap(), b"two");
        assert!(state.read("x.json", 2).is_err());
        state.append("x.json").unwrap().write_all(b"+").unwrap();
        assert_eq!(state.read("x.json", 10).unwrap().unwrap(), b"two+");
        let mode = fs::metadata(state.path_of("x.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("deeper")).unwrap().count(), 1);
    }

    #[test]
    fn one_process_at_a_time_may_change_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("state"));
        let lock = state.lock().unwrap();
        assert!(matches!(state.lock(), Err(Error::StateInUse { .. })));
        drop(lock);
        state.lock().unwrap();
        state.sync().unwrap();
        let file = state.append("x.json").unwrap();
        assert!(state.holds("x.json", &file));
        state.write("x.json", b"new").unwrap();
        assert!(!state.holds("x.json", &file));
    }

    #[test]
    fn links_and_devices_are_not_read_and_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("state"));
        state.write("y.json", b"ours").unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, state.path_of("x.json")).unwrap();
        assert!(state.read("x.json", 100).is_err() && state.append("x.json").is_err());
        state.write("x.json", b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(state.read("x.json", 100).unwrap().unwrap(), b"new");
        nix::unistd::mkfifo(&state.path_of("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(state.read("fifo", 100).is_err() && state.append("fifo").is_err());
    }

    #[test]
    fn a_file_that_others_may_write_to_is_neither_read_nor_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("state"));
        state.write("x.json", b"ours").unwrap();
        fs::set_permissions(state.path_of("x.json"), fs::Permissions::from_mode(0o666)).unwrap();
        let error = state.read("x.json", 100).unwrap_err().to_string();
        assert!(error.contains("may write to it"), "{error}");
        let error = state.append("x.json").unwrap_err().to_string();
        assert!(error.contains("may write to it"), "{error}");
    }
}
