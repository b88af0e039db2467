//! The state directory: what a daemon remembers over restarts, in files that are replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::{Error, run_dir};

/// A directory of files that only this user may change.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// The directory at `path`, which is created with the first file.
    pub fn new(path: &Path) -> StateDir {
        StateDir { path: path.to_owned() }
    }

    /// Where a file of the directory lies.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file's contents; `None` if there is no such file.
    ///
    /// # Errors
    /// If the kernel refuses, if it is not a regular file, or if it is longer than `size_max`.
    pub fn read(&self, name: &str, size_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path_of(name);
        let read = || -> io::Result<Vec<u8>> {
            let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
            let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            let mut bytes = Vec::new();
            file.take(size_max + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > size_max {
                return Err(io::Error::other(format!("longer than {size_max} bytes")));
            }
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format!("read {}", path.display()), e)),
        }
    }

    /// Replaces the file: readers see the old or the new contents, also after a crash.
    ///
    /// # Errors
    /// If others may write to the directory, or the kernel refuses; then the old file stays.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), Error> {
        run_dir::ensure(&self.path, 0o700)?;
        let path = self.path_of(name);
        let new = self.path.join(format!(".{name}.{}", std::process::id()));
        let write = || -> io::Result<()> {
            let _ = fs::remove_file(&new);
            let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).custom_flags(flags.bits());
            let mut file = options.open(&new)?;
            file.write_all(contents)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|e| {
            let _ = fs::remove_file(&new);
            Error::io(format!("write {}", path.display()), e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("deeper"));
        assert!(state.read("x.json", 10).unwrap().is_none());
        state.write("x.json", b"one").unwrap();
        state.write("x.json", b"two").unwrap();
        assert_eq!(state.read("x.json", 10).unwrap().unwrap(), b"two");
        assert!(state.read("x.json", 2).is_err());
        assert_eq!(fs::read_dir(dir.path().join("deeper")).unwrap().count(), 1);
    }

    #[test]
    fn links_and_devices_are_not_read_and_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("state"));
        state.write("y.json", b"ours").unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, state.path_of("x.json")).unwrap();
        assert!(state.read("x.json", 100).is_err());
        state.write("x.json", b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(state.read("x.json", 100).unwrap().unwrap(), b"new");
        nix::unistd::mkfifo(&state.path_of("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(state.read("fifo", 100).is_err());
    }
}
