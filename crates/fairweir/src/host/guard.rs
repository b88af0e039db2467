//! Somebody who opens the receive windows should the daemon be killed or hang.
//!
//! A bound of a window belongs to the socket and outlives whoever set it, so a second process waits
//! at the end of a pipe. The daemon writes a byte into it at every tick. If none comes for
//! [`PATIENCE`], the guard lifts all bounds of the network namespace – should the daemon only have
//! been slow, its next pass sets them again – and at the end of the pipe it does so once more and
//! ends. What kills both at once leaves the bounds to `fairweir off` and to the next start.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};

use fairweir_core::units::{Span, Time};
use fairweir_linux::{lift, monotonic_now};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use tracing::{info, warn};

/// The first argument by which the guard is started; people never type it.
const NAME: &str = "window-guard";

/// As long as the classifier waits for a heartbeat.
const PATIENCE_MS: u16 = 2_000;

/// One that cannot be started, or ends, is started again after this time.
const RETRY_PAUSE: Span = Span::secs(10);

/// The guard as the daemon sees it.
#[derive(Debug, Default)]
pub(super) struct Guard {
    running: Option<(Child, ChildStdin)>,
    retry_at: Time,
}

impl Guard {
    /// Tells the guard that the daemon lives, and starts it if there is none.
    pub(super) fn stand_by(&mut self) {
        if let Some((child, pipe)) = &mut self.running {
            if pipe.write_all(&[0]).is_ok() {
                return;
            }
            let ended = child.wait();
            warn!(?ended, "the guard of the windows has ended");
            self.running = None;
        }
        let now = monotonic_now();
        if now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_PAUSE;
        match start() {
            Ok(running) => self.running = Some(running),
            Err(e) => warn!("nobody would open the windows if this process were killed: {e}"),
        }
    }

    /// Nothing is bounded: nobody needs to wait.
    pub(super) fn stand_down(&mut self) {
        let Some((mut child, pipe)) = self.running.take() else { return };
        drop(pipe);
        let _ = child.wait();
        self.retry_at = Time::ZERO;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stand_down();
    }
}

/// Whether the process was started to be a guard.
pub(crate) fn is_guard(argument: &str) -> bool {
    argument == NAME
}

/// The guard's whole life.
pub(crate) fn main() -> io::Result<()> {
    // It ends when the daemon has, however many processes a signal goes to.
    let mut ignored = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        ignored.add(signal);
    }
    ignored.thread_block()?;
    let mut pipe = io::stdin().lock();
    let mut beats = [0; 64];
    let mut patience = PollTimeout::from(PATIENCE_MS);
    loop {
        let mut entries = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        if poll(&mut entries, patience)? == 0 {
            open("the daemon hangs");
            patience = PollTimeout::NONE;
            continue;
        }
        if pipe.read(&mut beats)? == 0 {
            open("the daemon has ended");
            return Ok(());
        }
        patience = PollTimeout::from(PATIENCE_MS);
    }
}

fn open(why: &str) {
    match lift() {
        Ok(0) => {}
        Ok(count) => info!(count, "{why}: the bounds of receive windows were lifted"),
        Err(e) => warn!("{why}, and the bounds of receive windows cannot be lifted: {e}"),
    }
}

fn start() -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(NAME).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn()?;
    let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, pipe))
}
