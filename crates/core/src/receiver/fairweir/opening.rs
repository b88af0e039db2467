//! The factor on all windows that brings the queue to its target.

use super::super::delay::RTT_GUESS;
use super::super::{Observation, TICK};
use super::group::Connection;
use super::lost::Lost;
use super::{Fairweir, NO_CORRECTION};
use crate::units::{Rate, Span};

impl Fairweir {
    /// Opens all windows a little further if the queue is shorter than its target while a group would
    /// take more, and narrows them if it is longer.
    pub(super) fn open(&mut self, queue: Span, loses_many: bool) {
        if !self.is_wanted() && !self.link.is_used() {
            return;
        }
        let target = self.queue_target().as_nanos() as i64;
        let base = self.delay.rtt_base_max().unwrap_or(RTT_GUESS).as_nanos() as i64;
        // Half of what the queue lacks, relative to what is in flight, per round trip or tick if that is longer.
        let ticks = (base / TICK.as_nanos() as i64).max(1);
        let lacking = (target - queue.as_nanos() as i64) * 1_000 / (base + target) / 2 / ticks;
        // While wanted capacity stays unused, windows open further, whatever the path's noise says of the queue.
        let is_short = queue < self.queue_target() && self.opening < OPENING_UNUSED_MAX;
        let lacking = match is_short && self.is_wanted() {
            true => lacking.max(self.link.unused(self.awaited()) as i64 / 2 / ticks),
            false => lacking,
        };
        // A full link whose buffer overflows has no room for a longer queue.
        let is_full = loses_many && self.link.is_used() && queue.as_nanos() as i64 * 2 > target;
        let lacking =
            if is_full && self.opening > NO_CORRECTION { lacking.min(-FULL_STEP) } else { lacking };
        // The windows of a group above its share are not opened further at the cost of a group below its share.
        let lacking = match self.squeezed() {
            None => lacking,
            Some(Lost::Own) if self.opening > NO_CORRECTION => lacking.min(-FULL_STEP),
            Some(_) => lacking.min(0),
        };
        self.step_opening(lacking);
    }

    /// Changes the opening of all windows by `by`, in thousandths.
    pub(super) fn step_opening(&mut self, by: i64) {
        let step = (1_000 + by.clamp(-OPENING_STEP_MAX, OPENING_STEP_MAX)) as u64;
        self.opening = (self.opening * step / 1_000).clamp(OPENING_MIN, OPENING_MAX);
    }

    /// The unused shares of groups that recently lost packets in queues of their own.
    fn awaited(&self) -> Rate {
        let recovering = self.groups.iter().filter(|g| g.lost == Some(Lost::Own));
        recovering.map(|g| g.share.saturating_sub(g.rate_smoothed)).sum()
    }

    /// Whether losses are so frequent that a buffer overflows; noise of the path causes fewer.
    pub(super) fn loses_many(&self, observation: &Observation) -> bool {
        let clean = || observation.connections.iter().filter(|c| self.groups[c.group].is_clean());
        let holes = clean().map(|c| c.holes).fold(0, u64::saturating_add);
        let segments = clean().map(|c| c.segments).fold(0, u64::saturating_add);
        holes.saturating_mul(OVERFLOW_PART) > segments
    }

    /// The mean RTT without the queue, weighted by the connections' rates.
    pub(super) fn mean_base(&self) -> Option<Span> {
        let based = |(id, c): (&u64, &Connection)| {
            let base = self.delay.rtt_base(*id)?;
            let weight = u128::from(c.rate.as_bps());
            Some((weight, weight * u128::from(base.as_nanos())))
        };
        let based = self.connections.iter().filter_map(based);
        let (weights, sum) = based.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        (weights > 0).then(|| Span::nanos((sum / weights) as u64))
    }

    /// When base RTTs change, takes back the part of the opening that compensated for their error.
    pub(super) fn follow_bases(&mut self, before: Option<Span>, after: Option<Span>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let target = self.queue_target();
        let (before, after) = ((before + target).as_nanos(), (after + target).as_nanos());
        if before.abs_diff(after) * BASES_NOISE < before {
            return;
        }
        let opening = self.opening * before / after.max(1);
        let (least, most) = (self.opening.min(NO_CORRECTION), self.opening.max(NO_CORRECTION));
        self.opening = opening.clamp(least, most);
    }
}

/// Largest step of the opening in a tick, in thousandths.
const OPENING_STEP_MAX: i64 = 100;
/// Range of the opening, in thousandths.
const OPENING_MIN: u64 = 700;
const OPENING_MAX: u64 = 3_000;
/// The opening up to which unused capacity opens the windows further, in thousandths.
const OPENING_UNUSED_MAX: u64 = 1_500;
/// A change of the mean base by less than one part in this many is noise.
const BASES_NOISE: u64 = 20;
/// Thousandths by which the opening is reduced each tick while packets are lost.
const FULL_STEP: i64 = 30;
/// A buffer overflows if more than one packet in this many is missing or out of order.
const OVERFLOW_PART: u64 = 20;
