//! Writes the files that a command was asked to write, safely also as root.
//!
//! A directory of another user is theirs to change at any moment: a symbolic link in it could make
//! root overwrite a file elsewhere. So a path is walked component by component with `O_NOFOLLOW`,
//! and everything after that is done relative to the directory that was found. As root, a symbolic
//! link on the way is followed only if it belongs to root or to the user who called `sudo`, and the
//! directory itself must belong to one of them. The file is written under a temporary name and then
//! renamed, so that a link of the file's name is replaced and never followed, and no reader sees
//! half a file.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, open, openat, readlinkat, renameat, renameat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Uid, UnlinkatFlags, geteuid, unlinkat};

/// The most symbolic links on a path, as in the kernel. Source: path_resolution(7).
const LINKS_MAX: usize = 40;

/// The most temporary names that are tried: another process may have taken some.
const NAMES_MAX: u32 = 100;

/// The mode of files that only their owner may read.
const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Flags for a place in the directory tree. Nothing is read from it, so search permission is enough.
const PLACE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Creates the directory `path` and all missing directories above it.
///
/// # Errors
/// If it cannot be created, or, as root, if files in it would not be safe from another user.
pub fn make_dir(path: &Path) -> io::Result<()> {
    find_dir(path, true).map(drop)
}

/// Writes `contents` to the file `path`, replacing an existing one.
///
/// # Errors
/// If it cannot be written, is not a regular file, or, as root, if another user owns its directory.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    write_as(path, contents.as_ref(), Kind::Replace)
}

/// Writes `contents` to the file `path`, which must not exist.
///
/// # Errors
/// As [`write`], and if it exists.
pub fn write_new(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    write_as(path, contents.as_ref(), Kind::New)
}

/// Writes `contents` to the file `path`, replacing an existing one; only the caller may read it.
/// After a crash it has the old or the new contents.
///
/// # Errors
/// As [`write()`].
pub fn write_private(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    write_as(path, contents.as_ref(), Kind::Private)
}

/// Opens the file `path` for appending. A missing file is created so that only the caller may read
/// it.
///
/// # Errors
/// If it cannot be opened, is a symbolic link or no regular file, if others may write to it, or, as
/// root, if another user owns it or its directory.
pub fn append_private(path: &Path) -> io::Result<File> {
    let (dir, name) = dir_and_name(path)?;
    let flags = OFlag::O_WRONLY
        | OFlag::O_APPEND
        | OFlag::O_CREAT
        | OFlag::O_NOFOLLOW
        | OFlag::O_NONBLOCK
        | OFlag::O_CLOEXEC;
    let fd = openat(&dir, name, flags, PRIVATE).map_err(|e| match e {
        Errno::ELOOP => io::Error::other("a symbolic link; expected a regular file"),
        e => e.into(),
    })?;
    let stat = fstat(&fd)?;
    if !is(&stat, SFlag::S_IFREG) {
        return Err(io::Error::other("not a regular file"));
    }
    check_owner(&stat, "the file")?;
    if stat.st_mode & 0o022 != 0 {
        let what = format!("others may write to it (mode {:04o})", stat.st_mode & 0o7777);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(File::from(fd))
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Replaces an existing file and keeps its mode.
    Replace,
    /// Only if the file does not exist.
    New,
    /// Replaces an existing file; only its owner may read it, and it is synced to the disk.
    Private,
}

fn dir_and_name(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    Ok((find_dir(parent.unwrap_or(Path::new(".")), false)?, name))
}

fn write_as(path: &Path, contents: &[u8], kind: Kind) -> io::Result<()> {
    let (dir, name) = dir_and_name(path)?;
    let old = match fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(old) => Some(old),
        Err(Errno::ENOENT) => None,
        Err(e) => return Err(e.into()),
    };
    if let Some(old) = &old {
        if kind == Kind::New {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Renaming over a device such as /dev/null would destroy it.
        if !is(old, SFlag::S_IFREG) && !is(old, SFlag::S_IFLNK) {
            return Err(io::Error::other("not a regular file"));
        }
    }
    let mode = if kind == Kind::Private { PRIVATE } else { Mode::from_bits_truncate(0o666) };
    let (mut file, temporary) = make_temporary(&dir, name, mode)?;
    let done = (|| {
        if let Some(old) = old.filter(|old| is(old, SFlag::S_IFREG) && kind != Kind::Private) {
            file.set_permissions(Permissions::from_mode(old.st_mode & 0o777))?;
        }
        file.write_all(contents)?;
        match kind {
            Kind::Replace => renameat(&dir, temporary.as_os_str(), &dir, name)?,
            Kind::New => {
                let flags = RenameFlags::RENAME_NOREPLACE;
                renameat2(&dir, temporary.as_os_str(), &dir, name, flags)?;
            }
            Kind::Private => {
                file.sync_all()?;
                renameat(&dir, temporary.as_os_str(), &dir, name)?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                File::from(openat(&dir, ".", flags, Mode::empty())?).sync_all()?;
            }
        }
        Ok(())
    })();
    if done.is_err() {
        // An error is ignored: the earlier error is reported.
        let _ = unlinkat(&dir, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }
    done
}

fn make_temporary(dir: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<(File, OsString)> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    for attempt in 0..NAMES_MAX {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.{attempt}", std::process::id()));
        match openat(dir, temporary.as_os_str(), flags, mode) {
            Ok(fd) => return Ok((File::from(fd), temporary)),
            Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Opens the directory `path`; if `make` is set, creates missing directories.
fn find_dir(path: &Path, make: bool) -> io::Result<OwnedFd> {
    let mut left: VecDeque<OsString> = parts(path);
    let mut dir = open(if path.is_absolute() { "/" } else { "." }, PLACE, Mode::empty())?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let look = || openat(&dir, name.as_os_str(), PLACE, Mode::empty());
        let found = match look() {
            Err(Errno::ENOENT) if make => {
                match mkdirat(&dir, name.as_os_str(), Mode::from_bits_truncate(0o777)) {
                    Ok(()) | Err(Errno::EEXIST) => look()?,
                    Err(e) => return Err(e.into()),
                }
            }
            found => found?,
        };
        let stat = fstat(&found)?;
        if is(&stat, SFlag::S_IFDIR) {
            dir = found;
            continue;
        }
        if !is(&stat, SFlag::S_IFLNK) {
            return Err(Errno::ENOTDIR.into());
        }
        check_owner(&stat, "a symbolic link")?;
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let target = readlinkat(&dir, name.as_os_str())?;
        let target = Path::new(&target);
        if target.is_absolute() {
            dir = open("/", PLACE, Mode::empty())?;
        }
        for part in parts(target).into_iter().rev() {
            left.push_front(part);
        }
    }
    check_owner(&fstat(dir.as_fd())?, "the directory")?;
    Ok(dir)
}

/// The components that are looked up one by one.
fn parts(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// Whether root may rely on the owner of `stat`. For other users there is no restriction.
fn check_owner(stat: &FileStat, what: &str) -> io::Result<()> {
    let owner = stat.st_uid;
    if !geteuid().is_root() || owner == Uid::from_raw(0).as_raw() || sudo_uid() == Some(owner) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{what} belongs to user {owner}, not to root; choose another directory"),
    ))
}

/// The user who called `sudo`, whose files root writes on their behalf.
fn sudo_uid() -> Option<u32> {
    env::var("SUDO_UID").ok()?.parse().ok()
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    const OTHER: u32 = 65_534;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_of_the_files_name_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, out) = (dir.path().join("victim"), dir.path().join("out"));
        fs::write(&victim, "precious").unwrap();
        make_dir(&out.join("deeper/.././deeper")).unwrap();
        let file = out.join("deeper/a.svg");
        symlink(&victim, &file).unwrap();
        write(&file, "picture").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&file).unwrap(), "picture");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        // The name of the temporary file does not remain either.
        let temporary = out.join(format!("deeper/.a.svg.{}.0", std::process::id()));
        symlink(&victim, &temporary).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        write(&file, "newer").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        fs::remove_file(temporary).unwrap();
        assert_eq!(names(&out.join("deeper")), ["a.svg"]);
    }

    #[test]
    fn only_regular_files_are_replaced_and_new_ones_replace_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new");
        write_new(&file, "one").unwrap();
        assert_eq!(write_new(&file, "two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        let below = dir.path().join("dir");
        make_dir(&below).unwrap();
        assert!(write(&below, "x").unwrap_err().to_string().contains("not a regular file"));
        assert!(make_dir(&file.join("x")).is_err());
        assert_eq!(names(dir.path()), ["dir", "new"]);
    }

    #[test]
    fn root_neither_writes_to_directories_of_others_nor_follows_their_links() {
        if !geteuid().is_root() || sudo_uid() == Some(OTHER) {
            eprintln!("SKIPPED: needs root");
            assert!(env::var_os("FAIRWEIR_STRICT").is_none(), "a skip under FAIRWEIR_STRICT");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (foreign, own) = (dir.path().join("foreign"), dir.path().join("own"));
        make_dir(&own).unwrap();
        make_dir(&foreign).unwrap();
        symlink(&own, foreign.join("trap")).unwrap();
        symlink(&own, foreign.join("roots")).unwrap();
        std::os::unix::fs::lchown(foreign.join("trap"), Some(OTHER), None).unwrap();
        chown(&foreign, Some(OTHER), None).unwrap();
        for refused in [foreign.join("a"), foreign.join("trap/a")] {
            let error = write(&refused, "x").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{refused:?}: {error}");
            assert!(error.to_string().contains("belongs to user 65534"), "{error}");
        }
        assert!(make_dir(&foreign.join("trap/deeper")).is_err());
        assert_eq!(names(&own), [] as [&str; 0]);
        // A link that belongs to root and leads to a directory of root is followed.
        write(&foreign.join("roots/a"), "x").unwrap();
        assert_eq!(names(&own), ["a"]);
    }
}
