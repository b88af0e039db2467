//! What each group received.

use std::collections::BTreeMap;

use fairweir_core::receiver::GroupSample;
use fairweir_core::units::{Bytes, Time};

use super::Host;
use crate::bpf::abi::{Counter, Counters, SLOTS_MAX};
use crate::shape::htb::ClassCount;
use crate::{Error, monotonic_now};

/// Where the counters of groups stood when they were last read, by slot.
pub(crate) struct SeenGroups {
    pub(crate) slots: Box<[Counter; SLOTS_MAX]>,
    pub(crate) drops: BTreeMap<u16, u32>,
}

impl SeenGroups {
    pub(crate) fn nothing() -> SeenGroups {
        SeenGroups { slots: Box::new([Counter::default(); SLOTS_MAX]), drops: BTreeMap::new() }
    }

    /// What the group with `slot` received since the last call.
    pub(crate) fn take(&mut self, slot: u16, now: Counter, class: ClassCount) -> GroupSample {
        let before = std::mem::replace(&mut self.slots[usize::from(slot)], now);
        let drops_before = self.drops.insert(slot, class.drops).unwrap_or(0);
        GroupSample {
            received: Bytes::new(now.bytes - before.bytes),
            packets: now.packets - before.packets,
            // A class that was made anew starts at zero.
            drops: class.drops.checked_sub(drops_before).unwrap_or(class.drops).into(),
            backlog: class.backlog,
        }
    }
}

/// Where all counters stood when they were last read.
pub(crate) struct Seen {
    pub(super) groups: SeenGroups,
    timeable: u64,
    read_at: Time,
    pub(super) new_cgroups: u64,
    pub(crate) unheard: u64,
    pub(super) cgroups_read: Time,
}

impl Seen {
    pub(super) fn nothing() -> Seen {
        Seen {
            groups: SeenGroups::nothing(),
            timeable: 0,
            read_at: monotonic_now(),
            new_cgroups: 0,
            unheard: 0,
            cgroups_read: monotonic_now(),
        }
    }
}

impl Host {
    /// What each group received since the last call, in the policy's order.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        let by_cpu = self.programs.counters_by_cpu()?;
        let counters = Counters::sum(&by_cpu);
        self.seen.unheard = counters.unheard;
        if counters.new_cgroups != self.seen.new_cgroups {
            self.look_for_cgroups(counters.new_cgroups)?;
        }
        let classes = match &self.ifb {
            Some(ifb) => self.classes.counts(&mut self.netlink, ifb.at())?,
            None => BTreeMap::new(),
        };
        let seen = &mut self.seen;
        let now = monotonic_now();
        let interval = now.since(std::mem::replace(&mut seen.read_at, now));
        let timeable = counters.timeable - std::mem::replace(&mut seen.timeable, counters.timeable);
        self.config.time_every = (timeable / TIMED_PER_TICK).clamp(1, TIME_EVERY_MAX) as u32;
        let sample = |&slot: &u16| {
            let class = classes.get(&slot).copied().unwrap_or_default();
            seen.groups.take(slot, counters.slots[usize::from(slot)], class)
        };
        let samples: Vec<GroupSample> = self.slots.iter().map(sample).collect();
        let groups = self.slots.iter().copied().zip(samples.iter().copied());
        self.bypass.handle_groups(interval, groups, &by_cpu);
        Ok(samples)
    }
}

/// Of more packets in a tick not every one is timed: enough for dozens of connections, at a cost of
/// a part in a thousand of a core.
const TIMED_PER_TICK: u64 = 1_600;
/// A change of rate by this factor within a tick still leaves some.
const TIME_EVERY_MAX: u64 = 256;
