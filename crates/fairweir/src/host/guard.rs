//! A process that lifts the bounds of receive windows if the daemon is killed or hangs.
//!
//! A bound is a property of the socket and outlives the process that set it, so a second process
//! waits at the end of a pipe. The daemon writes a byte into the pipe at every tick. If no byte
//! arrives for [`PATIENCE_MS`], the guard lifts all bounds of the network namespace; a daemon that
//! was only slow sets them again at its next pass. At the end of the pipe the guard lifts them once
//! more, detaches the program that lets bounds expire, and exits.
//!
//! A router's windows and classes need no lifting: they are in force only while its programs are
//! attached, which are gone with the process. There the guard removes the HTB qdisc, unless the daemon
//! has said that it goes on or has removed it itself ([`STOOD_DOWN`]).
//!
//! If the guard is killed too, that program lifts the bounds (`crates/linux/bpf/expire.h`), and
//! stays attached until `fairweir off` or the next start.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};

use fairweir_core::units::{Span, Time};
use fairweir_linux::{ExpiryProgram, detach_expiry, lift, monotonic_now, sweep};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use tracing::{debug, info, warn};

/// The first argument by which the daemon starts the guard.
const NAME: &str = "window-guard";

/// What the daemon writes before it closes the pipe by itself; a beat is 0.
const STOOD_DOWN: u8 = 1;

/// As long as the BPF programs wait for a heartbeat.
const PATIENCE_MS: u16 = 2_000;

/// A guard that cannot be started, or ends, is started again after this time.
const RETRY_PAUSE: Span = Span::secs(10);

#[derive(Debug)]
struct Running {
    child: Child,
    pipe: ChildStdin,
    /// The number of the program that it detaches.
    program: Option<u32>,
}

/// The guard as the daemon sees it.
#[derive(Debug, Default)]
pub(super) struct Guard {
    running: Option<Running>,
    /// Interfaces that are swept if the daemon is killed.
    swept: Vec<String>,
    retry_at: Time,
}

impl Guard {
    /// Tells the guard, if there is one, that the daemon lives.
    pub(super) fn beat(&mut self) {
        if let Some(running) = &mut self.running
            && running.pipe.write_all(&[0]).is_err()
        {
            let ended = running.child.wait();
            warn!(?ended, "the guard of the windows has ended");
            self.running = None;
        }
    }

    /// From the next [`Guard::stand_by`] on these interfaces are swept if the daemon is killed.
    pub(super) fn set_swept(&mut self, devs: Vec<String>) {
        self.swept = devs;
    }

    /// Makes sure that a guard runs that detaches `program`.
    pub(super) fn stand_by(&mut self, program: Option<ExpiryProgram>) {
        self.beat();
        let id = program.as_ref().map(|program| program.id);
        if self.running.as_ref().is_some_and(|running| running.program != id) {
            self.stand_down();
        }
        let now = monotonic_now();
        if self.running.is_some() || now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_PAUSE;
        match start(program, &self.swept) {
            Ok(running) => self.running = Some(running),
            Err(e) => warn!("cannot start the guard of the windows: {e}"),
        }
    }

    /// Ends the guard. It lifts what is still bounded.
    pub(super) fn stand_down(&mut self) {
        let Some(Running { mut child, mut pipe, .. }) = self.running.take() else { return };
        let _ = pipe.write_all(&[STOOD_DOWN]);
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

/// The guard's whole life; `devs` are swept at its end.
pub(crate) fn main(devs: &[String]) -> io::Result<()> {
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
            open("the daemon hangs");
            patience = PollTimeout::NONE;
            continue;
        }
        let read = pipe.read(&mut beats)?;
        if let Some(beat) = beats[..read].last() {
            last = *beat;
        } else {
            open("the daemon has ended");
            if last != STOOD_DOWN {
                devs.iter().for_each(|dev| sweep_dev(dev));
            }
            // Its standard output is the program, or /dev/null.
            if let Err(e) = detach_expiry(&io::stdout()) {
                debug!("no program was detached: {e}");
            }
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

fn sweep_dev(dev: &str) {
    match sweep(dev) {
        Ok(removed) => removed.iter().for_each(|what| info!(dev, "removed {what}")),
        Err(e) => warn!(dev, "what the daemon left cannot be removed: {e}"),
    }
}

fn start(program: Option<ExpiryProgram>, devs: &[String]) -> io::Result<Running> {
    let id = program.as_ref().map(|program| program.id);
    let mut command = Command::new("/proc/self/exe");
    let output = program.map_or_else(Stdio::null, |program| Stdio::from(program.descriptor));
    command.arg(NAME).args(devs).stdin(Stdio::piped()).stdout(output);
    let mut child = command.spawn()?;
    let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(Running { child, pipe, program: id })
}
