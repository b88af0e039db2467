//! A second process that cleans up in the kernel what a daemon that was killed or hangs cannot.
//!
//! It waits at the end of a pipe into which the daemon writes a byte at every tick. If no byte
//! arrives for [`PATIENCE_MS`], the daemon hangs. If the pipe ends, the daemon has ended.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use fairweir_core::units::{Span, Time};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use tracing::warn;

/// Written by the daemon before it closes the pipe itself; a heartbeat is 0.
const STOOD_DOWN: u8 = 1;

/// How long to wait before a guard that ended or could not be started is started again.
const RETRY_PAUSE: Span = Span::secs(10);

/// The same time, in milliseconds, as BPF programs wait for a heartbeat.
const PATIENCE_MS: u16 = 2_000;

/// The guard's process.
#[derive(Debug)]
struct Guard {
    child: Child,
    pipe: ChildStdin,
}

/// A condition that the guard has detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The daemon has not written for too long; it may write again later.
    Hangs,
    /// The daemon was killed.
    Killed,
    /// The daemon has ended by itself, or continues without a guard.
    StoodDown,
}

impl Guard {
    /// Starts the process, which must call [`stand_guard`].
    ///
    /// # Errors
    /// If it cannot be started.
    fn start(command: &mut Command) -> io::Result<Guard> {
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guard { child, pipe })
    }

    /// Tells the guard that the daemon is alive.
    ///
    /// # Errors
    /// If the guard has ended: its exit status.
    fn beat(&mut self) -> Result<(), io::Result<ExitStatus>> {
        self.pipe.write_all(&[0]).map_err(|_| self.child.wait())
    }

    /// Ends the guard, and waits until it has cleaned up.
    fn stand_down(mut self) {
        let _ = self.pipe.write_all(&[STOOD_DOWN]);
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The daemon's handle of its guard. A guard that has ended or could not be started is started again.
#[derive(Debug)]
pub struct StandingGuard {
    /// The first argument of the guard's process, which runs this program.
    name: &'static str,
    /// What is guarded, for the log.
    of: &'static str,
    running: Option<Guard>,
    retry_at: Time,
}

impl StandingGuard {
    /// A guard that is not running yet. `name` is the first argument of its process; `of` is what
    /// is guarded, such as "the diversion".
    pub const fn new(name: &'static str, of: &'static str) -> StandingGuard {
        StandingGuard { name, of, running: None, retry_at: Time::ZERO }
    }

    /// Whether the guard is running, as far as is known.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Tells the guard, if it is running, that the daemon is alive.
    pub fn beat(&mut self) {
        if let Some(running) = &mut self.running
            && let Err(ended) = running.beat()
        {
            warn!(?ended, "the guard of {} has ended", self.of);
            self.running = None;
        }
    }

    /// Ensures that the guard is running; `add` completes the command that starts it.
    pub fn stand_by(&mut self, now: Time, add: impl FnOnce(&mut Command)) {
        self.beat();
        if self.running.is_some() || now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_PAUSE;
        let mut command = Command::new("/proc/self/exe");
        command.arg(self.name).stdout(Stdio::null());
        add(&mut command);
        match Guard::start(&mut command) {
            Ok(running) => self.running = Some(running),
            Err(e) => warn!("cannot start the guard of {}: {e}", self.of),
        }
    }

    /// Ends the guard, and waits until it has cleaned up.
    pub fn stand_down(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.stand_down();
        self.retry_at = Time::ZERO;
    }
}

/// Runs the guard until it ends; `act` cleans up.
///
/// # Errors
/// If it cannot wait for the daemon.
pub fn stand_guard(mut act: impl FnMut(Alarm)) -> io::Result<()> {
    // The guard ends when the daemon has ended, even if a signal is sent to the whole process group.
    let mut ignored = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        ignored.add(signal);
    }
    ignored.thread_block()?;
    let mut pipe = io::stdin().lock();
    let mut beats = [0; 64];
    let mut patience = PollTimeout::from(PATIENCE_MS);
    let mut last = 0;
    loop {
        let mut entries = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        if poll(&mut entries, patience)? == 0 {
            act(Alarm::Hangs);
            patience = PollTimeout::NONE;
            continue;
        }
        let read = pipe.read(&mut beats)?;
        match beats[..read].last() {
            Some(beat) => last = *beat,
            None => {
                act(if last == STOOD_DOWN { Alarm::StoodDown } else { Alarm::Killed });
                return Ok(());
            }
        }
        patience = PollTimeout::from(PATIENCE_MS);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_guard_that_ends_is_started_again_after_a_pause() {
        // The process runs the tests with this name and ends at once, because there are no such tests.
        let mut guard = StandingGuard::new("no-test-has-this-name", "a test");
        let at = |s| Time::ZERO + Span::secs(s);
        guard.stand_by(at(1), |_| ());
        assert!(guard.is_running());
        for _ in 0..1_000 {
            guard.beat();
            if !guard.is_running() {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        assert!(!guard.is_running(), "it has ended");
        guard.stand_by(at(10), |_| ());
        assert!(!guard.is_running(), "too soon");
        guard.stand_by(at(11), |_| ());
        assert!(guard.is_running());
        guard.stand_down();
        assert!(!guard.is_running());
    }
}
