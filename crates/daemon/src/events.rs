//! What wakes a daemon between two deadlines: signals, changed files, requests, the end of stdin.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use fairweir_core::units::Span;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

/// The files of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Single files. They may not exist yet.
    pub files: Vec<PathBuf>,
    /// Directories whose `*.toml` are included. They need not exist if their parent does.
    pub dirs: Vec<PathBuf>,
}

/// What happened during a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Happened {
    /// SIGTERM or SIGINT arrived, or stdin ended if that is to be observed.
    pub(crate) stop: bool,
    /// SIGHUP arrived.
    pub(crate) reload: bool,
    /// A file of the configuration may have changed.
    pub(crate) files: bool,
}

/// All event sources except the clock.
pub(crate) struct Events {
    signals: SignalFd,
    watch: Option<Watch>,
    until_stdin_closes: bool,
}

/// Watches directories, not files, because editors replace files.
struct Watch {
    inotify: Inotify,
    watched: Watched,
    /// The watched directories, each with its path as in events.
    dirs: Vec<(WatchDescriptor, PathBuf)>,
}

impl Events {
    /// Blocks the signals in this thread and in threads that it starts later, and receives them here.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn new(until_stdin_closes: bool) -> io::Result<Events> {
        let mut heard = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            heard.add(signal);
        }
        heard.thread_block()?;
        let signals = SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Events { signals, watch: None, until_stdin_closes })
    }

    /// Watches these files from now on, and no others. If the kernel refuses, this is logged;
    /// SIGHUP still works.
    pub(crate) fn watch(&mut self, watched: Watched) {
        if self.watch.as_ref().is_some_and(|watch| watch.watched == watched) {
            return;
        }
        self.watch = match Watch::new(watched) {
            Ok(watch) => Some(watch),
            Err(e) => {
                tracing::warn!("cannot watch the configuration, send SIGHUP to reload: {e}");
                None
            }
        };
    }

    /// Waits until something happens, at most for `span`. The events of `others` (readable or, if
    /// true, writable) end the wait and are handled by the caller.
    pub(crate) fn wait<'f>(
        &mut self,
        span: Span,
        others: impl Iterator<Item = (BorrowedFd<'f>, bool)>,
    ) -> io::Result<Happened> {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.watch.iter().map(|w| PollFd::new(w.inotify.as_fd(), PollFlags::POLLIN)));
        fds.extend(others.map(|(fd, has_output)| {
            let flags = if has_output { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            PollFd::new(fd, flags)
        }));
        if self.until_stdin_closes {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match ppoll(&mut fds, Some(TimeSpec::from_duration(span.into())), None) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Happened::default()),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let stdin_ready =
            self.until_stdin_closes && fds.last().is_some_and(|f| f.any() == Some(true));
        drop(fds);
        let mut happened = self.take_signals()?;
        happened.stop |= stdin_ready && is_at_end(stdin.as_fd());
        happened.files = self.watch.as_mut().is_some_and(Watch::take_changes);
        Ok(happened)
    }

    fn take_signals(&mut self) -> io::Result<Happened> {
        let mut happened = Happened::default();
        while let Some(signal) = self.signals.read_signal()? {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGHUP) => happened.reload = true,
                _ => happened.stop = true,
            }
        }
        Ok(happened)
    }
}

impl Watch {
    fn new(watched: Watched) -> io::Result<Watch> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let mut watch = Watch { inotify, watched, dirs: Vec::new() };
        let parents = watch.watched.files.iter().map(|file| parent(file)).collect::<Vec<_>>();
        for dir in parents {
            watch.add(dir)?;
        }
        watch.add_dirs();
        Ok(watch)
    }

    /// The directories may not exist yet; the watch of their parents then reports their creation.
    fn add_dirs(&mut self) {
        for dir in self.watched.dirs.clone() {
            let _ = self.add(dir);
        }
    }

    fn add(&mut self, dir: PathBuf) -> io::Result<()> {
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        let descriptor = self.inotify.add_watch(&dir, events)?;
        self.dirs.retain(|(_, known)| *known != dir);
        self.dirs.push((descriptor, dir));
        Ok(())
    }

    /// Whether an event may mean that the configuration has changed.
    fn take_changes(&mut self) -> bool {
        let mut changed = false;
        // An error means that the queue is empty.
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                let Some(name) = event.name else {
                    // The queue overflowed, or a directory is gone: the configuration may have changed.
                    changed = true;
                    continue;
                };
                let dirs = self.dirs.iter().filter(|(descriptor, _)| *descriptor == event.wd);
                changed |=
                    dirs.into_iter().any(|(_, dir)| self.watched.contains(dir, Path::new(&name)));
            }
        }
        if changed {
            self.add_dirs();
        }
        changed
    }
}

impl Watched {
    fn contains(&self, dir: &Path, name: &Path) -> bool {
        let is = |path: &PathBuf| parent(path) == dir && path.file_name() == Some(name.as_os_str());
        let is_toml = name.extension().is_some_and(|e| e == "toml");
        self.files.iter().any(is)
            || self.dirs.iter().any(is)
            || (is_toml && self.dirs.iter().any(|d| d == dir))
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn is_at_end(stdin: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 256];
    !matches!(nix::unistd::read(stdin, &mut buffer), Ok(1..) | Err(Errno::EINTR | Errno::EAGAIN))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_files_of_the_configuration_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let watched = Watched { files: vec![path("a.toml")], dirs: vec![path("conf.d")] };
        let mut watch = Watch::new(watched).unwrap();
        let mut changes = |what: &str, wanted: bool| {
            assert_eq!(watch.take_changes(), wanted, "{what}");
        };
        changes("nothing", false);
        fs::write(path("b.toml"), "").unwrap();
        changes("another file", false);
        fs::write(path("new"), "").unwrap();
        fs::rename(path("new"), path("a.toml")).unwrap();
        changes("the file is replaced", true);
        fs::create_dir(path("conf.d")).unwrap();
        changes("the directory is made", true);
        fs::write(path("conf.d/x.toml"), "").unwrap();
        changes("a file in it", true);
        fs::write(path("conf.d/x.toml~"), "").unwrap();
        changes("no configuration", false);
        fs::remove_file(path("conf.d/x.toml")).unwrap();
        changes("a file less", true);
    }
}
