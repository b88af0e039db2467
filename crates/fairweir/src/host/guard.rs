//! A process that removes the bounds of receive windows if the daemon is killed or hangs.
//!
//! A bound is a property of the socket and outlives the process that set it. So a second process
//! ([`fairweir_daemon::StandingGuard`]) removes all bounds of the network namespace if the daemon
//! hangs. A daemon that was only slow sets them again at its next pass. When the daemon has ended,
//! the guard removes them once more, detaches the program that lets bounds expire, and exits.
//!
//! A router's windows and classes need not be removed: they are in force only while its programs
//! are attached, and these end with the process. There the guard removes the HTB qdisc, unless the
//! daemon has reported that it continues or has removed the qdisc itself.
//!
//! If the guard is killed too, that program removes the bounds (`crates/linux/bpf/expire.h`). It
//! stays attached until `fairweir off` or the next start.

use std::io;
use std::process::Stdio;

use fairweir_daemon::{Alarm, StandingGuard, stand_guard};
use fairweir_linux::{ExpiryProgram, detach_expiry, lift, monotonic_now, sweep};
use tracing::{debug, info, warn};

/// The first argument with which the daemon starts the guard.
const NAME: &str = "window-guard";

/// The daemon's handle of its guard.
#[derive(Debug)]
pub(super) struct Guard {
    standing: StandingGuard,
    /// The number of the program that the guard detaches.
    program: Option<u32>,
    /// The interfaces from which qdiscs are removed if the daemon is killed.
    swept: Vec<String>,
}

impl Default for Guard {
    fn default() -> Guard {
        let standing = StandingGuard::new(NAME, "the windows");
        Guard { standing, program: None, swept: Vec::new() }
    }
}

impl Guard {
    /// Tells the guard, if there is one, that the daemon is alive.
    pub(super) fn beat(&mut self) {
        self.standing.beat();
    }

    /// Sets the interfaces that are swept if the daemon is killed, from the next [`Guard::stand_by`] on.
    pub(super) fn set_swept(&mut self, devs: Vec<String>) {
        self.swept = devs;
    }

    /// Whether a guard was started.
    pub(super) fn is_running(&self) -> bool {
        self.standing.is_running()
    }

    /// Ensures that a guard runs that detaches `program`.
    pub(super) fn stand_by(&mut self, program: Option<ExpiryProgram>) {
        let id = program.as_ref().map(|program| program.id);
        if self.program != id {
            self.stand_down();
            self.program = id;
        }
        self.standing.stand_by(monotonic_now(), |command| {
            command.args(&self.swept);
            if let Some(program) = program {
                command.stdout(Stdio::from(program.descriptor));
            }
        });
    }

    /// Ends the guard, which removes the remaining bounds.
    pub(super) fn stand_down(&mut self) {
        self.standing.stand_down();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stand_down();
    }
}

/// Whether the process was started as a guard.
pub(crate) fn is_guard(argument: &str) -> bool {
    argument == NAME
}

/// Runs the guard until it ends; `devs` are swept at its end.
pub(crate) fn main(devs: &[String]) -> io::Result<()> {
    stand_guard(|alarm| {
        if alarm == Alarm::Hangs {
            return open("the daemon hangs");
        }
        open("the daemon has ended");
        if alarm == Alarm::Killed {
            devs.iter().for_each(|dev| sweep_dev(dev));
        }
        // Its standard output is a descriptor of the program, or /dev/null.
        if let Err(e) = detach_expiry(&io::stdout()) {
            debug!("no program was detached: {e}");
        }
    })
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
