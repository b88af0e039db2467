//! A process that removes the diversion if the daemon is killed or hangs, so that new connections pass.

use std::io;
use std::process::{Command, Stdio};

use fairweir_core::units::{Span, Time};
use fairweir_daemon::{Alarm, Guard as Process, stand_guard};
use fairweir_linux::divert::Divert;
use tracing::{info, warn};

/// The first argument by which the daemon starts the guard.
const NAME: &str = "proxy-guard";

/// A guard that cannot be started, or ends, is started again after this time.
const RETRY_PAUSE: Span = Span::secs(10);

/// The guard as the daemon sees it.
#[derive(Debug, Default)]
pub(super) struct Guard {
    running: Option<Process>,
    retry_at: Time,
}

impl Guard {
    /// Tells the guard that the daemon lives, and makes sure that there is one.
    pub(super) fn beat(&mut self, now: Time) {
        if let Some(running) = &mut self.running
            && let Err(ended) = running.beat()
        {
            warn!(?ended, "the guard of the diversion has ended");
            self.running = None;
        }
        if self.running.is_some() || now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_PAUSE;
        let mut command = Command::new("/proc/self/exe");
        command.arg(NAME).stdout(Stdio::null());
        match Process::start(&mut command) {
            Ok(running) => self.running = Some(running),
            Err(e) => warn!("cannot start the guard of the diversion: {e}"),
        }
    }

    /// Ends the guard.
    pub(super) fn stand_down(&mut self) {
        if let Some(running) = self.running.take() {
            running.stand_down();
        }
    }
}

/// Whether the process was started to be a guard.
pub(crate) fn is_guard(argument: &str) -> bool {
    argument == NAME
}

/// The guard's whole life.
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
