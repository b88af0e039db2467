//! The daemon's side of enforcement: the connections it watches, and the kernel as the enforcer.

use fairweir_config::host::Config;
use fairweir_core::receiver::{Allocation, ConnectionSample, Enforcer, Windows};
use fairweir_core::units::Span;
use fairweir_linux::Error;

use super::guard::Guard;
use super::point::Point;
use super::settings::Settings;
use super::via;

/// The connections as last seen, and the guard of their windows.
#[derive(Debug, Default)]
pub(super) struct WindowControl {
    /// The counts of the last tick, in the policy's order.
    pub(super) counts: Vec<Count>,
    /// The connections of the last tick; at most `CONNECTIONS_MAX`.
    pub(super) seen: Vec<Seen>,
    /// The groups whose connections the proxy relays; the proxy bounds their windows itself.
    relayed: Vec<usize>,
    /// The length of the last tick.
    pub(super) interval: Span,
    guard: Guard,
}

/// A connection as seen in the last tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) sample: ConnectionSample,
    /// Whether its window has a bound.
    pub(super) is_bounded: bool,
}

/// The connections of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// The number of connections that received something in the last tick, or have a bound.
    pub(super) connections: u64,
    /// How many of them have a bound.
    pub(super) bounded: u64,
}

impl WindowControl {
    /// What each connection received, if the control needs that.
    pub(super) fn observe(
        &mut self,
        host: &mut Point,
        settings: &Settings,
        interval: Span,
    ) -> Result<Vec<ConnectionSample>, Error> {
        self.guard.beat();
        self.counts = vec![Count::default(); settings.policy().groups().len()];
        self.seen.clear();
        self.interval = interval;
        if !settings.watches_connections() {
            return Ok(Vec::new());
        }
        let mut samples = host.take_connections()?;
        for sample in &samples {
            let is_bounded = host.is_bounded(sample.id);
            let count = &mut self.counts[sample.group];
            count.connections += 1;
            count.bounded += u64::from(is_bounded);
            self.seen.push(Seen { sample: *sample, is_bounded });
        }
        // Relayed traffic counts as traffic without a receive window: only its rate bounds it.
        samples.retain(|sample| !self.relayed.contains(&sample.group));
        Ok(samples)
    }

    /// Sets the interfaces that are swept if the daemon is killed.
    pub(super) fn set_swept(&mut self, devs: Vec<String>) {
        self.guard.set_swept(devs);
    }

    /// Sets which connections the proxy relays.
    pub(super) fn set_relayed(&mut self, config: &Config) {
        let leaves = config.relayed.iter().flat_map(|name| via::leaves(&config.policy, name));
        self.relayed = leaves.collect();
    }

    /// Makes the guard stand by, since classes would remain if the daemon were killed.
    pub(super) fn stand_by(&mut self) {
        if !self.guard.is_running() {
            self.guard.stand_by(None);
        }
    }

    /// The enforcer of decisions on `host`.
    pub(super) fn enforcer<'h>(&'h mut self, host: &'h mut Point) -> KernelEnforcer<'h> {
        KernelEnforcer { host, guard: &mut self.guard, relayed: &self.relayed }
    }
}

/// The kernel's classes and windows. While windows are bounded, the guard stands by; it removes the
/// bounds if this process ends or hangs.
pub(super) struct KernelEnforcer<'h> {
    host: &'h mut Point,
    guard: &'h mut Guard,
    relayed: &'h [usize],
}

impl KernelEnforcer<'_> {
    /// The windows without those of relayed connections, whose first windows the proxy sets.
    fn without_relayed(&self, windows: &Windows) -> Windows {
        let mut windows = windows.clone();
        for &group in self.relayed {
            if let Some(initial) = windows.initial.get_mut(group) {
                *initial = None;
            }
        }
        windows
    }
}

impl Enforcer for KernelEnforcer<'_> {
    type Error = Error;

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        if self.host.leaves_classes() {
            self.guard.stand_by(None);
        }
        self.host.apply(allocation)
    }

    fn release(&mut self) -> Result<(), Error> {
        self.host.release()
    }

    fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        self.guard.stand_by(self.host.expiry_program());
        match self.relayed {
            [] => self.host.apply_windows(windows),
            _ => {
                let windows = self.without_relayed(windows);
                self.host.apply_windows(&windows)
            }
        }
    }

    fn release_windows(&mut self) -> Result<(), Error> {
        let released = self.host.release_windows();
        self.guard.stand_down();
        released
    }
}
