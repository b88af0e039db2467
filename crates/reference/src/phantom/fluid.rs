//! Backlogs that drain as a fluid by weight (GPS), exactly: the common part of plain phantom queues
//! and FairPolicer.
//!
//! Method: a virtual time runs as fast as the busy queues' weights allow; a queue is empty when
//! virtual time reaches the queue's finish. Nothing arrives between two packets, so all service
//! between them can be given at the second packet. Cost: a division; if a queue may have become
//! empty, also a pass over all busy queues.
//!
//! Source: Parekh and Gallager, A generalized processor sharing approach, ToN 1993.

use super::{ones, per_nano};
use fairweir_core::phantom::UNIT_BITS;
use fairweir_core::phantom::plan;
use fairweir_core::units::{Rate, Time};

/// Weighted backlogs. Invariant: `busy` has the queues whose finish is after `virtual_now`;
/// `soonest` is not after any of their finishes; `total` is the sum of their backlogs.
#[derive(Clone, Debug)]
pub(super) struct Fluid {
    /// 2⁻²⁴ bytes per nanosecond.
    rate: u64,
    latest: u64,
    /// Service that was too small for a step of virtual time.
    rest: u64,
    /// Service of each busy queue since the beginning, in 2⁻²⁴ bytes per weight; wraps.
    virtual_now: u64,
    soonest: u64,
    busy: u64,
    busy_weight: u64,
    /// Sum of all backlogs, 2⁻²⁴ bytes.
    total: u64,
    queues: Vec<Queue>,
}

#[derive(Clone, Debug)]
struct Queue {
    /// The virtual time when it will be empty.
    finish: u64,
    weight: u64,
}

impl Fluid {
    /// Empty queues of these weights.
    ///
    /// # Panics
    /// If there are no weights or more than [`plan::LEAVES_MAX`], or one is out of a plan's range.
    pub(super) fn new(rate: Rate, weights: &[u16]) -> Fluid {
        assert!((1..=plan::LEAVES_MAX).contains(&weights.len()), "a bit for each queue");
        assert!(weights.iter().all(|w| (1..=plan::WEIGHT_MAX).contains(w)), "weights are a plan's");
        let queue = |&weight| Queue { finish: 0, weight: u64::from(weight) };
        Fluid {
            rate: per_nano(rate),
            latest: 0,
            rest: 0,
            virtual_now: 0,
            soonest: 0,
            busy: 0,
            busy_weight: 0,
            total: 0,
            queues: weights.iter().map(queue).collect(),
        }
    }

    /// Serves the busy queues by weight until now, or until all are empty. A time in the past counts
    /// as the latest one.
    pub(super) fn drain(&mut self, now: Time) {
        let passed = now.as_nanos().saturating_sub(self.latest);
        self.latest += passed;
        let mut service = self.rate.saturating_mul(passed).saturating_add(self.rest);
        while self.busy != 0 {
            let step = service / self.busy_weight;
            if step < self.soonest.wrapping_sub(self.virtual_now) {
                self.virtual_now = self.virtual_now.wrapping_add(step);
                self.rest = service - step * self.busy_weight;
                self.total -= step * self.busy_weight;
                return;
            }
            let until = self.until_empty();
            self.soonest = self.virtual_now.wrapping_add(until);
            if step < until {
                continue;
            }
            service -= until * self.busy_weight;
            self.total -= until * self.busy_weight;
            self.virtual_now = self.soonest;
            self.retire();
        }
        self.rest = 0;
    }

    /// Backlog of a queue, in 2⁻²⁴ bytes.
    pub(super) fn backlog(&self, leaf: usize) -> u64 {
        match self.busy & (1 << leaf) {
            0 => 0,
            _ => {
                let queue = &self.queues[leaf];
                queue.finish.wrapping_sub(self.virtual_now) * queue.weight
            }
        }
    }

    /// Backlog of all queues, in 2⁻²⁴ bytes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Reads a part of each cache line, so that they are loaded from memory early.
    #[inline]
    pub(super) fn touch(&self, leaf: usize) -> u64 {
        let near = self.queues.iter().take(16).step_by(4);
        near.fold(self.queues[leaf].finish, |sum, queue| sum ^ queue.finish)
    }

    /// Puts a volume into a queue, rounded down to a multiple of its weight.
    pub(super) fn add(&mut self, leaf: usize, volume: u64) {
        let bit = 1 << leaf;
        let queue = &mut self.queues[leaf];
        let more = volume / queue.weight;
        if more == 0 {
            return;
        }
        self.total += more * queue.weight;
        if self.busy & bit != 0 {
            queue.finish = queue.finish.wrapping_add(more);
            return;
        }
        queue.finish = self.virtual_now.wrapping_add(more);
        if self.busy == 0 || more < self.soonest.wrapping_sub(self.virtual_now) {
            self.soonest = queue.finish;
        }
        self.busy |= bit;
        self.busy_weight += queue.weight;
    }

    /// Service of a queue in a time if it is busy and no other queue becomes busy, in 2⁻²⁴ bytes.
    pub(super) fn service(&self, leaf: usize, nanos: u64) -> u64 {
        let weight = self.queues[leaf].weight;
        let more = if self.busy & (1 << leaf) == 0 { weight } else { 0 };
        let all = u128::from(self.rate) * u128::from(nanos);
        (all * u128::from(weight) / u128::from(self.busy_weight + more)) as u64
    }

    /// Takes a volume out of a queue, or all that it holds if that is less.
    pub(super) fn remove(&mut self, leaf: usize, volume: u64) {
        let bit = 1 << leaf;
        if self.busy & bit == 0 {
            return;
        }
        let queue = &mut self.queues[leaf];
        let left = queue.finish.wrapping_sub(self.virtual_now);
        let less = (volume / queue.weight).min(left);
        self.total -= less * queue.weight;
        queue.finish = queue.finish.wrapping_sub(less);
        if less == left {
            self.busy &= !bit;
            self.busy_weight -= queue.weight;
        } else if left - less < self.soonest.wrapping_sub(self.virtual_now) {
            self.soonest = queue.finish;
        }
    }

    /// The virtual time until the first busy queue is empty.
    fn until_empty(&self) -> u64 {
        let left = |index: usize| self.queues[index].finish.wrapping_sub(self.virtual_now);
        ones(self.busy).map(left).min().unwrap_or(0)
    }

    fn retire(&mut self) {
        for index in ones(self.busy) {
            let queue = &self.queues[index];
            if queue.finish == self.virtual_now {
                self.busy &= !(1 << index);
                self.busy_weight -= queue.weight;
            }
        }
    }

    /// Backlog of each queue, in bytes, rounded to the nearest.
    #[cfg(test)]
    fn backlogs(&self) -> Vec<u64> {
        let bytes = |leaf| (self.backlog(leaf) + (1 << (UNIT_BITS - 1))) >> UNIT_BITS;
        (0..self.queues.len()).map(bytes).collect()
    }
}

/// The most that a queue may hold: differences of virtual time must fit.
pub(super) const QUEUE_MAX: u64 = u32::MAX as u64;

/// [`QUEUE_MAX`] in 2⁻²⁴ bytes uses at most a 256th of the range of 64 bits.
const _: () = assert!(QUEUE_MAX << UNIT_BITS < 1 << 56);

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u64) -> u64 {
        bytes << UNIT_BITS
    }

    /// From (3000, 5000, 1000) with weights (1, 2, 3), a service of 6000 leaves (1333, 1667, 0).
    #[test]
    fn what_a_queue_does_not_need_goes_to_the_others_by_weight() {
        // The rate is 64 bytes per microsecond.
        let mut fluid = Fluid::new(Rate::mbit(512), &[1, 2, 3]);
        for (leaf, bytes) in [(0, 3_000), (1, 5_000), (2, 1_000)] {
            fluid.add(leaf, of(bytes));
        }
        fluid.drain(Time::from_nanos(6_000 * 1_000 / 64));
        assert_eq!(fluid.backlogs(), [1_333, 1_667, 0]);
        assert_eq!(fluid.total() >> UNIT_BITS, 3_000);
        fluid.drain(Time::from_nanos(9_001 * 1_000 / 64));
        assert_eq!((fluid.backlogs(), fluid.busy, fluid.total()), (vec![0, 0, 0], 0, 0));
    }

    #[test]
    fn what_is_removed_is_not_served_and_the_rest_is_as_if_it_had_never_been_there() {
        let at = |ns| Time::from_nanos(ns);
        let mut fluid = Fluid::new(Rate::mbit(512), &[1, 2, 3]);
        for (leaf, bytes) in [(0, 3_000), (1, 9_000), (2, 1_000)] {
            fluid.add(leaf, of(bytes));
        }
        let served = |fluid: &Fluid, leaf, ns| (fluid.service(leaf, ns) + of(1) / 2) >> UNIT_BITS;
        assert_eq!(served(&fluid, 1, 1_500), 32, "a third of 96 bytes");
        fluid.remove(1, of(4_000));
        fluid.drain(at(6_000 * 1_000 / 64));
        assert_eq!(fluid.backlogs(), [1_333, 1_667, 0], "as with 5,000");
        assert_eq!(served(&fluid, 2, 1_000), 32, "half, though it is empty");
        fluid.remove(0, of(9_999));
        assert_eq!((fluid.backlogs(), fluid.total()), (vec![0, 1_667, 0], fluid.backlog(1)));
        // A single queue gets everything.
        fluid.drain(at(7_000 * 1_000 / 64));
        assert_eq!(fluid.backlogs(), [0, 667, 0]);
    }

    #[test]
    fn virtual_time_wraps_unnoticed() {
        let mut fresh = Fluid::new(Rate::mbit(10), &[1, 3, 7]);
        let mut old = fresh.clone();
        old.virtual_now = u64::MAX - of(5_000);
        for i in 0..20_000u64 {
            for fluid in [&mut fresh, &mut old] {
                fluid.drain(Time::from_nanos(i * 500_000));
                fluid.add((i * i % 7 % 3) as usize, of(40 + i * 131 % 1_100));
            }
            assert_eq!((fresh.backlogs(), fresh.total), (old.backlogs(), old.total));
        }
        assert!(old.virtual_now < u64::MAX / 2, "it has wrapped");
    }
}
