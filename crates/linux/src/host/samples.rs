//! What each group received.

use fairweir_core::receiver::GroupSample;
use fairweir_core::units::Time;

use super::Host;
use crate::bpf::abi::Counters;
use crate::shape::ifb::Ifb;
use crate::{Error, monotonic_now};

/// The counters at the last read.
pub(super) struct Seen {
    timeable: u64,
    read_at: Time,
    pub(super) new_cgroups: u64,
    pub(super) unheard: u64,
    pub(super) cgroups_read: Time,
}

impl Seen {
    pub(super) fn nothing() -> Seen {
        let now = monotonic_now();
        Seen { timeable: 0, read_at: now, new_cgroups: 0, unheard: 0, cgroups_read: now }
    }
}

impl Host {
    /// What each group received since the last call, in the policy's order.
    pub(super) fn read_counters(&mut self) -> Result<Vec<GroupSample>, Error> {
        let by_cpu = self.programs.counters_by_cpu()?;
        let counters = Counters::sum(&by_cpu);
        self.seen.unheard = counters.unheard;
        if counters.new_cgroups != self.seen.new_cgroups {
            self.look_for_cgroups(counters.new_cgroups)?;
        }
        let at = self.ifb.as_ref().map(Ifb::at);
        let samples = self.shaper.take_samples(&counters.slots, at.as_slice())?;
        let seen = &mut self.seen;
        let now = monotonic_now();
        let interval = now.since(std::mem::replace(&mut seen.read_at, now));
        let timeable = counters.timeable - std::mem::replace(&mut seen.timeable, counters.timeable);
        self.config.time_every = (timeable / TIMED_PER_TICK).clamp(1, TIME_EVERY_MAX) as u32;
        let groups = self.shaper.slots.iter().copied().zip(samples.iter().copied());
        self.bypass.handle_groups(interval, groups, &by_cpu);
        Ok(samples)
    }
}

/// About this many packets are timed in a tick: enough for dozens of connections, at 0.1 % of a core.
const TIMED_PER_TICK: u64 = 1_600;
/// At least one packet of this many is timed, in case the rate drops.
const TIME_EVERY_MAX: u64 = 256;
