//! Soft signalling: one drop, or mark, when a queue is full, then grace until its sender can have
//! answered.
//!
//! A drop-tail queue drops a whole round trip's excess at each cut, because the sender hears of the
//! first drop only a round trip later: p = 1 / (2 · BDP). One drop says the same. So a full queue
//! drops one packet and is then *disarmed*: it accepts up to the grace, what its share carries in a
//! window, beyond its limit. It is armed again when the backlog has fallen clearly, which shows that
//! the sender has slowed down, or after a second. If the backlog stays above the limit, others share
//! the queue or the sender has not understood: the next signal comes sooner each time, as in CoDel.
//! Beyond the grace everything is dropped.

use super::State;
use crate::phantom::plan::{Plan, Signal};
use crate::phantom::{Arrival, Verdict};

/// What a leaf's sender has been told, and how long it has been too fast, in one word: from the top
/// one bit *disarmed*, one bit *filled in this window*, four bits of signals since it was disarmed,
/// two bits of windows in a row too fast, and 24 bits of the time of the last signal in 2²⁰ ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Mark(pub u32);

const DISARMED: u32 = 1 << 31;
const FILLED: u32 = 1 << 30;
const COUNT_SHIFT: u32 = 26;
const COUNT_MASK: u32 = 15 << COUNT_SHIFT;
const STREAK_SHIFT: u32 = 24;
const STREAK_MASK: u32 = 3 << STREAK_SHIFT;
const AT_MASK: u32 = (1 << 24) - 1;
const TICK_SHIFT: u32 = 20;

/// The time to the next signal after the n-th, 200 ms / √n, in 2²⁰ ns; index 0 is not used.
/// Source: CoDel's control law (RFC 8289 §4.3).
const GRACE_TICKS: [u32; 16] = [191, 191, 135, 110, 95, 85, 78, 72, 67, 64, 60, 58, 55, 53, 51, 49];
/// After a second without another signal a queue is armed again, in 2²⁰ ns.
const REARM_TICKS: u32 = 954;

impl Mark {
    pub(super) fn is_disarmed(self) -> bool {
        self.0 & DISARMED != 0
    }

    pub(super) fn is_filled(self) -> bool {
        self.0 & FILLED != 0
    }

    pub(super) fn set_filled(&mut self, is_filled: bool) {
        self.0 = if is_filled { self.0 | FILLED } else { self.0 & !FILLED };
    }

    /// Counts a window in which the leaf was too fast, or not. Returns how many in a row, at most 3.
    pub(super) fn count_window(&mut self, is_too_fast: bool) -> u32 {
        let streak = (self.0 & STREAK_MASK) >> STREAK_SHIFT;
        let streak = if is_too_fast { (streak + 1).min(3) } else { 0 };
        self.0 = (self.0 & !STREAK_MASK) | streak << STREAK_SHIFT;
        streak
    }

    fn count(self) -> u32 {
        (self.0 & COUNT_MASK) >> COUNT_SHIFT
    }

    /// Ticks since the last signal, modulo 2²⁴: 4.9 hours.
    fn age(self, now: u64) -> u32 {
        tick(now).wrapping_sub(self.0 & AT_MASK) & AT_MASK
    }

    fn arm(&mut self) {
        self.0 &= FILLED | STREAK_MASK;
    }

    fn signal(&mut self, now: u64) {
        let count = (self.count() + 1).min(15);
        self.arm();
        self.0 |= DISARMED | count << COUNT_SHIFT | tick(now);
    }
}

fn tick(now: u64) -> u32 {
    (now >> TICK_SHIFT) as u32 & AT_MASK
}

impl State<'_> {
    /// Decides about a packet with which the backlog of its settled leaf would be `backlog` bytes.
    pub(super) fn signal(
        &mut self,
        plan: &Plan,
        now: u64,
        arrival: Arrival,
        backlog: u64,
    ) -> Verdict {
        debug_assert_eq!(plan.signal, Signal::Soft);
        let leaf = arrival.leaf;
        let limit = u64::from(plan.limit);
        let mark = self.leaves[leaf].mark;
        if backlog <= limit {
            if mark.is_disarmed() {
                let relief = 3 * self.share_of_window(plan, leaf) / 10;
                if backlog + relief <= limit || mark.age(now) >= REARM_TICKS {
                    self.leaves[leaf].mark.arm();
                }
            }
            return Verdict::Pass;
        }
        if backlog > limit + self.share_of_window(plan, leaf) {
            return Verdict::Drop;
        }
        let is_due = mark.age(now) >= GRACE_TICKS[mark.count() as usize];
        if mark.is_disarmed() && !is_due {
            return Verdict::Pass;
        }
        self.leaves[leaf].mark.signal(now);
        if arrival.can_be_marked { Verdict::Mark } else { Verdict::Drop }
    }
}
