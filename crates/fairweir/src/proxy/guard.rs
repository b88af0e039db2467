//! A process that removes the diversion if the daemon is killed or hangs, so that new connections pass directly.

use std::io;

use fairweir_daemon::{Alarm, StandingGuard, stand_guard};
use fairweir_linux::divert::Divert;
use tracing::{info, warn};

/// The first argument with which the daemon starts the guard.
const NAME: &str = "proxy-guard";

/// The daemon's handle of its guard.
pub(super) fn guard() -> StandingGuard {
    StandingGuard::new(NAME, "the diversion")
}

/// Whether the process was started as a guard.
pub(crate) fn is_guard(argument: &str) -> bool {
    argument == NAME
}

/// Runs the guard until it ends.
pub(crate) fn main() -> io::Result<()> {
    stand_guard(|alarm| {
        let why = match alarm {
            Alarm::Hangs => "the daemon hangs",
            Alarm::Killed => "the daemon was killed",
            Alarm::StoodDown => return,
        };
        match Divert::sweep() {
            Ok(removed) => removed.iter().for_each(|what| info!("{why}: removed {what}")),
            Err(e) => warn!("{why}, and the diversion of connections cannot be removed: {e}"),
        }
    })
}
