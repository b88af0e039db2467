//! The daemon's side of receive windows: who is watched, and what is wanted.

use fairweir_core::receiver::{ConnectionSample, Windows};
use fairweir_linux::{Error, Host};

use super::guard::Guard;
use super::settings::Settings;

/// What is wanted of the windows, and what was last seen of the connections.
#[derive(Debug, Default)]
pub(super) struct WindowControl {
    wanted: Option<Windows>,
    /// Of the last tick, in the policy's order.
    pub(super) counts: Vec<Count>,
    guard: Guard,
}

/// The connections of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// That received something in the last tick, or have a bound.
    pub(super) connections: u64,
    /// How many of them have a bound.
    pub(super) bounded: u64,
}

impl WindowControl {
    /// What the connections received, if the control asks for it.
    pub(super) fn observe(
        &mut self,
        host: &mut Host,
        settings: &Settings,
    ) -> Result<Vec<ConnectionSample>, Error> {
        self.guard.beat();
        self.counts = vec![Count::default(); settings.policy().groups().len()];
        if !settings.watches_connections() {
            return Ok(Vec::new());
        }
        let samples = host.take_connections()?;
        for sample in &samples {
            let count = &mut self.counts[sample.group];
            count.connections += 1;
            count.bounded += u64::from(host.is_bounded(sample.id));
        }
        Ok(samples)
    }

    /// From the next [`WindowControl::enforce`] on.
    pub(super) fn want(&mut self, windows: Windows) {
        self.wanted = Some(windows);
    }

    /// Nothing is wanted any more; also when the groups change.
    pub(super) fn forget(&mut self) {
        self.wanted = None;
    }

    pub(super) fn are_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Sets the windows, and makes sure that a guard lifts them if this process ends or hangs.
    pub(super) fn enforce(&mut self, host: &mut Host) -> Result<(), Error> {
        match &self.wanted {
            Some(windows) => {
                self.guard.stand_by(host.expiry_program());
                host.apply_windows(windows)
            }
            None => {
                let released = host.release_windows();
                self.guard.stand_down();
                released
            }
        }
    }
}
