//! A second process that undoes in the kernel what a daemon cannot that was killed or hangs.
//!
//! It waits at the end of a pipe, into which the daemon writes a byte at every tick. If no byte arrives
//! for [`PATIENCE_MS`], the daemon hangs; the end of the pipe is the end of the daemon.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

/// What the daemon writes before it closes the pipe by itself; a beat is 0.
const STOOD_DOWN: u8 = 1;

/// As long as the BPF programs wait for a heartbeat.
const PATIENCE_MS: u16 = 2_000;

/// The guard as the daemon sees it.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: ChildStdin,
}

/// What the guard has noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The daemon has not written for too long; it may do so again.
    Hangs,
    /// It was killed.
    Killed,
    /// It has ended, or goes on without a guard.
    StoodDown,
}

impl Guard {
    /// Starts the process, which is to call [`stand_guard`].
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Guard> {
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guard { child, pipe })
    }

    /// Tells the guard that the daemon lives.
    ///
    /// # Errors
    /// If the guard does not: how it ended.
    pub fn beat(&mut self) -> Result<(), io::Result<ExitStatus>> {
        self.pipe.write_all(&[0]).map_err(|_| self.child.wait())
    }

    /// Ends the guard, and waits until it has done what it does then.
    pub fn stand_down(mut self) {
        let _ = self.pipe.write_all(&[STOOD_DOWN]);
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// The guard's whole life; `act` undoes what is to be undone.
///
/// # Errors
/// If it cannot wait for the daemon.
pub fn stand_guard(mut act: impl FnMut(Alarm)) -> io::Result<()> {
    // It ends when the daemon has, however many processes a signal goes to.
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
