//! What wakes the daemon between two ticks: signals, changed files, requests, the end of stdin.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use fairweir_core::units::Span;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

use fairweir_config::host::conf_d;

/// What happened while the daemon waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Happened {
    /// SIGTERM, SIGINT, or the end of stdin if that is asked for.
    pub(crate) stop: bool,
    /// SIGHUP.
    pub(crate) reload: bool,
    /// Something happened to the files of the configuration.
    pub(crate) files: bool,
}

/// Everything that the daemon waits for but the clock.
pub(crate) struct Events {
    signals: SignalFd,
    watch: Option<Watch>,
    until_stdin_closes: bool,
}

/// The directories of the configuration. Not its files: editors replace them.
struct Watch {
    inotify: Inotify,
    main: PathBuf,
}

impl Events {
    /// Blocks the signals in this thread (and those that it starts later) and hears them here, and
    /// what happens to the configuration `main` if that is to be watched.
    ///
    /// # Errors
    /// If the kernel refuses; a watch of the files that it refuses is only logged.
    pub(crate) fn new(main: Option<&Path>, until_stdin_closes: bool) -> io::Result<Events> {
        let mut heard = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            heard.add(signal);
        }
        heard.thread_block()?;
        let signals = SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let watch = main.map(Watch::new);
        if let Some(Err(e)) = &watch {
            tracing::warn!("changes of the configuration are not noticed, send SIGHUP: {e}");
        }
        Ok(Events { signals, watch: watch.and_then(Result::ok), until_stdin_closes })
    }

    /// Waits for `span` at most, or until something happens; what `others` wait for (to read, or,
    /// if true, to write) is left to them.
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
    fn new(main: &Path) -> io::Result<Watch> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let watch = Watch { inotify, main: main.to_owned() };
        watch.add(watch.dir())?;
        // It may not be there yet; if it comes, the watch of its parent says so.
        let _ = watch.add(&conf_d(main));
        Ok(watch)
    }

    fn dir(&self) -> &Path {
        match self.main.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        }
    }

    fn add(&self, dir: &Path) -> io::Result<()> {
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        self.inotify.add_watch(dir, events)?;
        Ok(())
    }

    /// Whether anything happened that may change the configuration.
    fn take_changes(&mut self) -> bool {
        let mut changed = false;
        let mut conf_d_changed = false;
        // An error is an empty queue.
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                let name = event.name.as_deref().map(Path::new);
                let Some(name) = name else {
                    // The queue overflowed, or a directory is gone: look, to be sure.
                    changed = true;
                    continue;
                };
                conf_d_changed |= name == Path::new("conf.d");
                changed |= Some(name.as_os_str()) == self.main.file_name()
                    || name.extension().is_some_and(|e| e == "toml");
            }
        }
        if conf_d_changed {
            let _ = self.add(&conf_d(&self.main));
        }
        changed || conf_d_changed
    }
}

fn is_at_end(stdin: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 256];
    !matches!(nix::unistd::read(stdin, &mut buffer), Ok(1..) | Err(Errno::EINTR | Errno::EAGAIN))
}
