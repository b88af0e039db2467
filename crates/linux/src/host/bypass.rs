//! Which groups' TCP passes without a class.
//!
//! Problem: the path through the intermediate device costs a bulk download a third of its rate, and
//! a class that carries everything that arrives has no effect. Method: a group's TCP passes beside
//! its class while the receive windows of its connections are bounded and its class was *calm* for
//! [`CALM_TICKS`]:
//!
//! - at most nine tenths of what the class may carry arrived, no packet was dropped, and there is
//!   almost no backlog;
//! - at most a tenth of it came from other sources than connections with bounded windows.
//!
//! Everything but TCP always goes through the class. In each tick at most what the class carries in
//! a tick passes on each CPU. When one CPU has used up this allowance, the classifier sends the
//! packets of all CPUs through the class, without waiting for this process.
//!
//! Order is kept: when TCP begins to pass, no packet waits in the class; when it stops, the packets
//! through the class come after those that have passed.

use std::collections::BTreeMap;

use fairweir_core::receiver::{ConnectionSample, GroupSample, TICK};
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_core::window::Framing;

use crate::bpf::abi::{Allowances, Counters, SLOTS_MAX};

/// What the groups received in the last tick, and which of them pass.
#[derive(Default)]
pub(crate) struct Bypass {
    /// Values of the last tick by slot; replaced each tick.
    seen: BTreeMap<u16, Seen>,
    interval: Span,
    /// The counts of each CPU, by slot.
    counted: Vec<[u64; SLOTS_MAX]>,
    calm_ticks: BTreeMap<u16, u32>,
    /// Whether the BPF program has allowances above 0.
    is_told: bool,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    group: GroupSample,
    /// Bytes on the wire received by connections whose windows are bounded.
    bounded: Bytes,
}

impl Bypass {
    /// Takes in what the groups received in a tick, and what each CPU has counted so far.
    pub(crate) fn handle_groups(
        &mut self,
        interval: Span,
        groups: impl Iterator<Item = (u16, GroupSample)>,
        cpus: &[Counters],
    ) {
        self.interval = interval;
        self.seen =
            groups.map(|(slot, group)| (slot, Seen { group, bounded: Bytes::ZERO })).collect();
        let bytes = |cpu: &Counters| cpu.slots.map(|slot| slot.bytes);
        self.counted = cpus.iter().map(bytes).collect();
    }

    /// Takes in what a connection of `slot` with a bounded window received.
    pub(crate) fn handle_bounded(&mut self, slot: u16, sample: &ConnectionSample) {
        if let Some(seen) = self.seen.get_mut(&slot) {
            seen.bounded += Framing::ipv4(sample.segment).wire(sample.received);
        }
    }

    /// No group passes until its class has been calm again for the whole time.
    pub(crate) fn restart(&mut self) {
        self.calm_ticks.clear();
        self.seen.clear();
    }

    /// For each CPU and group, the byte counter up to which TCP may bypass the group's class; `None` if no
    /// allowance has changed. `ceil` gives the rate that the class of a slot may carry.
    pub(crate) fn take_allowances(
        &mut self,
        ceil: impl Fn(u16) -> Option<Rate>,
    ) -> Option<Vec<Allowances>> {
        let mut passing = Vec::new();
        let mut calm_ticks = BTreeMap::new();
        for (&slot, seen) in &self.seen {
            let Some(ceil) = ceil(slot) else { continue };
            if !is_calm(seen, ceil, self.interval) {
                continue;
            }
            let calm = self.calm_ticks.get(&slot).map_or(1, |ticks| ticks + 1).min(CALM_TICKS + 1);
            // A group with a backlog counts as calm, but does not begin to pass.
            let may_pass = calm > CALM_TICKS || seen.group.backlog == Bytes::ZERO;
            calm_ticks.insert(slot, if may_pass { calm } else { CALM_TICKS - 1 });
            if may_pass && calm >= CALM_TICKS {
                passing.push((slot, ceil * TICK));
            }
        }
        self.calm_ticks = calm_ticks;
        self.seen.clear();
        if passing.is_empty() && !self.is_told {
            return None;
        }
        self.is_told = !passing.is_empty();
        let of_cpu = |counted: &[u64; SLOTS_MAX]| {
            let mut allowances = Allowances { until: [0; SLOTS_MAX] };
            for (slot, volume) in &passing {
                let slot = usize::from(*slot);
                allowances.until[slot] = counted[slot].saturating_add(volume.as_u64());
            }
            allowances
        };
        Some(self.counted.iter().map(of_cpu).collect())
    }
}

/// Whether a class of `ceil` has no effect on its group.
fn is_calm(seen: &Seen, ceil: Rate, interval: Span) -> bool {
    let Seen { group, bounded } = *seen;
    let carries = ceil * interval;
    group.received <= carries * BINDING.0 / BINDING.1
        && group.drops == 0
        && group.backlog <= ceil * SOJOURN_MAX
        && group.received.saturating_sub(bounded) <= carries / UNBOUNDED_DIVISOR
}

/// Calm ticks (1 s) before a group passes: its class has time to drain, and a group does not switch
/// in every tick.
const CALM_TICKS: u32 = 5;
/// A class that carries more than this part of its ceil may be what limits its group.
const BINDING: (u64, u64) = (9, 10);
/// The fraction of the ceil, 1/10, that may arrive outside of bounded connections:
/// acknowledgements, and the end of connections that have closed.
const UNBOUNDED_DIVISOR: u64 = 10;
/// The most time that packets take through a class that delays nothing.
const SOJOURN_MAX: Span = Span::millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const CEIL: Rate = Rate::mbit(100);

    /// A tick in which one group received `received` bytes, `bounded` of them by bounded connections.
    fn tick(
        bypass: &mut Bypass,
        received: u64,
        bounded: u64,
        backlog: u64,
        drops: u64,
    ) -> Vec<u64> {
        let group = GroupSample {
            received: Bytes::new(received),
            packets: received / 1_514,
            drops,
            backlog: Bytes::new(backlog),
        };
        let mut counted = Counters::default();
        counted.slots[3].bytes = 7;
        bypass.handle_groups(TICK, [(3, group)].into_iter(), &[counted, Counters::default()]);
        let (received, segment) = (Bytes::new(bounded * 1_448 / 1_514), Bytes::new(1_448));
        let sample = ConnectionSample { received, segment, ..ConnectionSample::default() };
        bypass.handle_bounded(3, &sample);
        let allowances = bypass.take_allowances(|slot| (slot == 3).then_some(CEIL));
        allowances.unwrap_or_default().iter().map(|cpu| cpu.until[3]).collect()
    }

    /// A class that has just begun to let its group pass.
    fn passing() -> Bypass {
        let mut bypass = Bypass::default();
        for _ in 1..CALM_TICKS {
            assert_eq!(tick(&mut bypass, 2_000_000, 2_000_000, 0, 0), [0; 0]);
        }
        assert_eq!(tick(&mut bypass, 2_000_000, 2_000_000, 0, 0), [2_500_007, 2_500_000]);
        bypass
    }

    #[test]
    fn a_class_that_is_calm_for_a_second_lets_its_group_pass_a_tick_at_its_ceil() {
        let mut bypass = passing();
        assert_eq!(tick(&mut bypass, 2_000_000, 1_800_000, 2_000, 0), [2_500_007, 2_500_000]);
    }

    #[test]
    fn what_makes_a_class_matter_ends_it_at_once() {
        for (received, bounded, backlog, drops) in [
            (2_300_000, 2_300_000, 0, 0),
            (2_000_000, 2_000_000, 0, 1),
            (2_000_000, 2_000_000, 20_000, 0),
            (2_000_000, 1_700_000, 0, 0),
        ] {
            let mut bypass = passing();
            assert_eq!(tick(&mut bypass, received, bounded, backlog, drops), [0, 0]);
            assert_eq!(tick(&mut bypass, 0, 0, 0, 0), [0; 0], "it is told once, and waits again");
        }
        let mut bypass = passing();
        bypass.restart();
        assert_eq!(tick(&mut bypass, 0, 0, 0, 0), [0, 0]);
    }

    #[test]
    fn a_group_begins_to_pass_only_when_nothing_waits() {
        let mut bypass = Bypass::default();
        for _ in 0..20 {
            assert_eq!(tick(&mut bypass, 2_000_000, 2_000_000, 1_514, 0), [0; 0]);
        }
        assert_eq!(tick(&mut bypass, 2_000_000, 2_000_000, 0, 0), [2_500_007, 2_500_000]);
    }
}
