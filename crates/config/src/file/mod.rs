//! Reading input files without trusting what is at their path.
//!
//! The daemons run as root. A user who can write one of their input files decides part of what they
//! do; a user who can name one decides which file root opens. This module is the only place that
//! opens input files.
//!
//! | input | who can write it | what they gain | rule |
//! |---|---|---|---|
//! | main file of `host`, `isp.toml` | its owner, and who its mode allows | groups, weights, which interface is shaped, plans, who may use the socket | as root: [`Trust::OWNER`] |
//! | `conf.d` and its entries | owner and mode of the directory and of each entry | the same; the directory is read without being named on the command line | always [`Trust::OWNER`]; no symbolic links |
//! | table of subscribers (CSV) | often a billing system with its own user | any address in any plan of `isp.toml` | as root: [`Trust::NOT_OTHERS`] |
//! | state files, the journal of `isp` | the daemon alone | the capacity that control begins with, plans and subscribers | always [`Trust::OWNER`]; no symbolic links ([`read_own`]) |
//! | plan files, `import` files, scenarios, traces | the user who runs the command | what that user can do anyway | [`Trust::ANYBODY`] |
//!
//! For all of them:
//! - Only a regular file is read. The file is opened with `O_NONBLOCK`, so a FIFO cannot block the
//!   caller, and its type is checked on the open descriptor, so it cannot be exchanged in between.
//! - At most [`Rules::bytes_max`] bytes are read, also of a file that grows meanwhile.
//! - Entries of `conf.d` are opened relative to the directory that was checked, with `O_NOFOLLOW`:
//!   a symbolic link to `/etc/shadow` is refused before it is opened.
//! - If the program has more rights than the user who started it (`sudo`, `pkexec`, `doas`, or a
//!   set-user-ID copy) and that user may not read the file, messages contain line numbers only and
//!   nothing of its text. A syntax error never quotes the text.
//!
//! Not covered: a directory above the main file that others may write to. They can put another file
//! there, but it is refused unless root or the calling user owns it.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Uid, User, geteuid, getuid};

use crate::error::{ConfigError, Origin};
use crate::overrides::Override;
use crate::table::{HIDDEN, Source};

/// The text of a file, and what messages may show of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    file: String,
    text: String,
    is_shown: bool,
}

/// The requirements for a file.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The largest size, in bytes.
    pub bytes_max: u64,
    /// The users who may be able to write to it.
    pub trust: Trust,
    /// What to do if it does not exist; appended to the message.
    pub if_missing: &'static str,
}

/// The users who may be able to write to an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Whether users other than root and the calling user may own it.
    other_owner: bool,
    /// Whether its group may write to it.
    group: bool,
    /// Whether others may write to it.
    others: bool,
    /// Whether the rule holds even if the caller is not root.
    always: bool,
}

impl Trust {
    /// Any user.
    pub const ANYBODY: Trust =
        Trust { other_owner: true, group: true, others: true, always: false };
    /// Any owner and the file's group.
    pub const NOT_OTHERS: Trust =
        Trust { other_owner: true, group: true, others: false, always: false };
    /// Root and the calling user.
    pub const OWNER: Trust =
        Trust { other_owner: false, group: false, others: false, always: false };
    const OWNER_ALWAYS: Trust = Trust { always: true, ..Trust::OWNER };
}

/// The main file of a daemon other than `isp`. Larger files are refused.
pub const DAEMON: Rules = Rules { bytes_max: 1 << 20, trust: Trust::OWNER, if_missing: "" };

/// A scenario file. 4,096 flows of 1 kB each fit.
pub const SCENARIO: Rules = Rules { bytes_max: 16 << 20, trust: Trust::ANYBODY, if_missing: "" };

/// A trace of a link. 10 million lines fit.
pub const TRACE: Rules = Rules { bytes_max: 128 << 20, trust: Trust::ANYBODY, if_missing: "" };

/// The most files of a directory of configuration files.
const FILES_MAX: usize = 1_000;

/// Reads a file that only this program writes; `None` if it does not exist.
///
/// # Errors
/// [`ConfigError`] if it cannot be read, is a symbolic link or no regular file, is larger than
/// `bytes_max`, or if other users than root and the calling user may write to it.
pub fn read_own(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, ConfigError> {
    let fd = match open(path, FLAGS | OFlag::O_NOFOLLOW, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::ELOOP) => {
            return Err(ConfigError::whole_file(path, "a symbolic link; expected a regular file"));
        }
        Err(e) => return Err(ConfigError::unreadable(path, &e.into())),
    };
    let rules = Rules { bytes_max, trust: Trust::OWNER_ALWAYS, if_missing: "" };
    let file = check_open(fd, path, &rules)?;
    read_bounded(&file, path, bytes_max).map(Some)
}

impl Text {
    /// A text that was not read from a file; `file` is its name in errors.
    pub fn new(text: impl Into<String>, file: impl Into<String>) -> Text {
        Text { file: file.into(), text: text.into(), is_shown: true }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`] if it cannot be read, is not a regular file, is too large, is not UTF-8, or
    /// others may write to it than `rules` allow.
    pub fn read(path: &Path, rules: &Rules) -> Result<Text, ConfigError> {
        let fd = open(path, FLAGS, Mode::empty()).map_err(|e| {
            let error = ConfigError::unreadable(path, &e.into());
            if e == Errno::ENOENT { error.with(rules.if_missing) } else { error }
        })?;
        read_open(fd, path, rules)
    }

    /// Reads standard input.
    ///
    /// # Errors
    /// [`ConfigError`] if it cannot be read, is longer than `bytes_max`, or is not UTF-8.
    pub fn read_stdin(bytes_max: u64) -> Result<Text, ConfigError> {
        let path = Path::new("stdin");
        let bytes = read_bounded(io::stdin().lock(), path, bytes_max)?;
        Text::from_bytes(bytes, path, true)
    }

    /// Reads the files of the directory `dir` whose names end in `.toml`, in byte order of their
    /// names; none if the directory does not exist.
    ///
    /// # Errors
    /// As of [`Text::read`], also for the directory. Neither the directory nor an entry may be a
    /// symbolic link, and only root or the calling user may be able to write to them.
    pub fn read_dir(dir: &Path, bytes_max: u64) -> Result<Vec<(PathBuf, Text)>, ConfigError> {
        let flags = FLAGS | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let mut opened = match Dir::open(dir, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let what = "not a directory; a symbolic link to one is not followed";
                return Err(ConfigError::whole_file(dir, what));
            }
            Err(e) => return Err(ConfigError::unreadable(dir, &e.into())),
        };
        check_writers(opened.as_fd(), dir, Trust::OWNER_ALWAYS)?;
        let mut names = Vec::new();
        for entry in opened.iter() {
            let entry = entry.map_err(|e| ConfigError::unreadable(dir, &e.into()))?;
            if is_toml(entry.file_name()) {
                names.push(entry.file_name().to_owned());
            }
            if names.len() > FILES_MAX {
                let what = format_args!("more than {FILES_MAX} files; allowed are {FILES_MAX}");
                return Err(ConfigError::whole_file(dir, what));
            }
        }
        names.sort();
        let rules = Rules { bytes_max, trust: Trust::OWNER_ALWAYS, if_missing: "" };
        let read = |name: &CStr| {
            let path = dir.join(OsStr::from_bytes(name.to_bytes()));
            let fd = openat(opened.as_fd(), name, FLAGS | OFlag::O_NOFOLLOW, Mode::empty());
            let fd = fd.map_err(|e| match e {
                Errno::ELOOP => {
                    let what = "a symbolic link; expected a regular file in this directory";
                    ConfigError::whole_file(&path, what)
                }
                e => ConfigError::unreadable(&path, &e.into()),
            })?;
            let text = read_open(fd, &path, &rules)?;
            Ok((path, text))
        };
        names.iter().map(|name| read(name)).collect()
    }

    fn from_bytes(bytes: Vec<u8>, path: &Path, is_shown: bool) -> Result<Text, ConfigError> {
        let file = path.display().to_string();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Text { file, text, is_shown }),
            Err(e) => {
                let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
                let line = 1 + good.iter().filter(|&&b| b == b'\n').count();
                let what = "a byte that is not UTF-8";
                Err(ConfigError::new(Origin::Line { file, line }, "text", what))
            }
        }
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path as the caller gave it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The text as a TOML document.
    pub fn source<'t>(&'t self, overrides: &'t [Override]) -> Source<'t> {
        let source = Source::new(&self.text, &self.file, overrides);
        if self.is_shown { source } else { source.hidden() }
    }

    /// An error on a line of the text, counted from 1. `column`, also counted from 1, is the
    /// position of a field of a table.
    pub fn error(
        &self,
        line: usize,
        column: Option<usize>,
        key: &str,
        what: impl std::fmt::Display,
    ) -> ConfigError {
        let file = self.file.clone();
        let origin = match column {
            Some(column) => Origin::Field { file, line, column },
            None => Origin::Line { file, line },
        };
        if !self.is_shown {
            return ConfigError::new(origin, "", HIDDEN);
        }
        ConfigError::new(origin, key, what)
    }

    /// The same file without its text, for making errors when the text is no longer needed.
    pub fn cleared(&self) -> Text {
        Text { file: self.file.clone(), text: String::new(), is_shown: self.is_shown }
    }

    /// The line of a byte of the text, counted from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }
}

/// `O_NONBLOCK` for FIFOs, `O_NOCTTY` for terminals.
const FLAGS: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC).union(OFlag::O_NOCTTY);

fn is_toml(name: &CStr) -> bool {
    Path::new(OsStr::from_bytes(name.to_bytes())).extension().is_some_and(|e| e == "toml")
}

fn read_open(fd: OwnedFd, path: &Path, rules: &Rules) -> Result<Text, ConfigError> {
    let file = check_open(fd, path, rules)?;
    let is_shown = is_shown(&file);
    let bytes = read_bounded(&file, path, rules.bytes_max)?;
    Text::from_bytes(bytes, path, is_shown)
}

fn check_open(fd: OwnedFd, path: &Path, rules: &Rules) -> Result<File, ConfigError> {
    let found = fstat(&fd).map_err(|e| ConfigError::unreadable(path, &e.into()))?;
    let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG {
        let what = format_args!("{}; expected a regular file", kind_name(kind));
        return Err(ConfigError::whole_file(path, what));
    }
    check_writers(fd.as_fd(), path, rules.trust)?;
    if u64::try_from(found.st_size).unwrap_or(0) > rules.bytes_max {
        return Err(too_large(path, rules.bytes_max));
    }
    Ok(File::from(fd))
}

/// The whole contents, if they are at most `bytes_max`; the size that the file claims is not used.
fn read_bounded(from: impl Read, path: &Path, bytes_max: u64) -> Result<Vec<u8>, ConfigError> {
    let mut bytes = Vec::new();
    let read = from.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|e| ConfigError::unreadable(path, &e))?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(path, bytes_max));
    }
    Ok(bytes)
}

fn too_large(path: &Path, bytes_max: u64) -> ConfigError {
    ConfigError::whole_file(path, format_args!("too large; allowed are {bytes_max} bytes"))
}

fn kind_name(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFCHR | SFlag::S_IFBLK => "a device",
        _ => "not a file",
    }
}

fn check_writers(fd: BorrowedFd<'_>, path: &Path, trust: Trust) -> Result<(), ConfigError> {
    if !trust.always && !geteuid().is_root() {
        return Ok(());
    }
    let found = fstat(fd).map_err(|e| ConfigError::unreadable(path, &e.into()))?;
    let callers = [geteuid(), getuid(), caller_uid().unwrap_or(getuid())];
    let (owner, mode) = (Uid::from_raw(found.st_uid), found.st_mode & 0o7777);
    match writers_fault(owner, mode, trust, &callers, path) {
        Some(what) => Err(ConfigError::whole_file(path, what)),
        None => Ok(()),
    }
}

/// Describes who else may write, and the command that would change this.
fn writers_fault(
    owner: Uid,
    mode: u32,
    trust: Trust,
    callers: &[Uid],
    path: &Path,
) -> Option<String> {
    let shown = path.display();
    if !trust.other_owner && !owner.is_root() && !callers.contains(&owner) {
        return Some(format!(
            "owned by {}, who can change it; expected root or the calling user: if its content is \
             right, run `chown root {shown}`",
            user_name(owner)
        ));
    }
    let (group, others) = (mode & 0o020 != 0, mode & 0o002 != 0);
    let (who, change) = match (group && !trust.group, others && !trust.others) {
        (true, true) => ("its group and all users", "go-w"),
        (true, false) => ("its group", "g-w"),
        (false, true) => ("all users", "o-w"),
        (false, false) => return None,
    };
    Some(format!(
        "{who} may write to it (mode {mode:04o}); if its content is right, run `chmod {change} \
         {shown}`"
    ))
}

fn user_name(uid: Uid) -> String {
    match User::from_uid(uid) {
        Ok(Some(user)) => format!("user {} (uid {uid})", user.name),
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

/// The user who started this program with the rights of another user, if there is one.
fn caller_uid() -> Option<Uid> {
    if getuid() != geteuid() {
        return Some(getuid());
    }
    if !geteuid().is_root() {
        return None;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse().ok().map(Uid::from_raw);
    let named = || {
        let name = std::env::var("DOAS_USER").ok()?;
        User::from_name(&name).ok().flatten().map(|user| user.uid)
    };
    number("SUDO_UID").or_else(|| number("PKEXEC_UID")).or_else(named).filter(|uid| !uid.is_root())
}

/// Whether messages may contain text of the open file: only if the user who started this program
/// may read it. Rights of groups are not considered, which can only hide more.
fn is_shown(file: &File) -> bool {
    let Some(caller) = caller_uid() else { return true };
    let may = |path_owner: u32, mode: u32, bit: u32| {
        mode & bit != 0 || (path_owner == caller.as_raw() && mode & (bit << 6) != 0)
    };
    let Ok(found) = file.metadata() else { return false };
    if !may(found.uid(), found.mode(), 0o004) {
        return false;
    }
    // The path that was opened, with all links resolved.
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
        return false;
    };
    path.ancestors()
        .skip(1)
        .all(|dir| fs::metadata(dir).is_ok_and(|found| may(found.uid(), found.mode(), 0o001)))
}

#[cfg(test)]
mod tests;
