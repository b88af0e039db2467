//! Soft signalling: one drop, or mark, when a queue is full, then grace until its sender can have
//! reacted.
//!
//! A drop-tail queue drops a whole round trip's excess at each cut, because the sender hears of the
//! first drop only a round trip later: p = 1 / (2 · BDP). One drop says the same. So a full queue
//! drops one packet and is then *disarmed*: beyond its limit it accepts up to the *grace*, which its
//! share carries in a window. It is armed again when the backlog has clearly fallen, or after a
//! second. If the backlog stays above the limit, others share the queue or its sender did not react:
//! each signal comes sooner than the last, as in CoDel. There is no signal while the leaf accepts
//! hardly more than it is served: a sender has then slowed down already. Beyond the grace everything
//! is dropped; there is no grace in a window in which burst control had to fill the queue.

use super::State;
use crate::phantom::plan::{Plan, Signal};
use crate::phantom::{Arrival, Verdict};

/// The signals that a leaf's sender got, and how fast it has been, in one word: from the top one bit
/// *disarmed*, one bit *filled in this window*, one bit *rising* (clearly more was accepted in the
/// last window than served), three bits of signals since it was disarmed, two bits of windows in a
/// row too fast, four bits of windows in a row without a packet, and 20 bits of the time of the last
/// signal in 2²⁰ ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Mark(pub u32);

const DISARMED: u32 = 1 << 31;
const FILLED: u32 = 1 << 30;
const RISING: u32 = 1 << 29;
const COUNT_SHIFT: u32 = 26;
const COUNT_MASK: u32 = 7 << COUNT_SHIFT;
const STREAK_SHIFT: u32 = 24;
const STREAK_MASK: u32 = 3 << STREAK_SHIFT;
const SILENCE_SHIFT: u32 = 20;
const SILENCE_MASK: u32 = 15 << SILENCE_SHIFT;
const AT_MASK: u32 = (1 << 20) - 1;
const TICK_SHIFT: u32 = 20;

/// The time to the next signal after the n-th, three windows / √n, in 64ths of a window. Three
/// windows: a round trip until the sender hears, one until its lower rate is noticed here, and the
/// window that shows it. Source: CoDel's control law (RFC 8289 §4.3).
const INTERVAL: [u64; 8] = [192, 192, 136, 111, 96, 86, 78, 73];
/// Windows without another signal after which a queue is armed again.
const REARM_WINDOWS: u64 = 10;

impl Mark {
    pub(super) fn is_disarmed(self) -> bool {
        self.0 & DISARMED != 0
    }

    pub(super) fn is_filled(self) -> bool {
        self.0 & FILLED != 0
    }

    pub(super) fn set_filled(&mut self) {
        self.0 |= FILLED;
    }

    fn is_rising(self) -> bool {
        self.0 & RISING != 0
    }

    /// Begins a window. Did the leaf in the last one accept nothing, clearly more than was served,
    /// or was it too fast? Returns how many windows in a row were too fast, at most 3.
    pub(super) fn begin_window(
        &mut self,
        is_silent: bool,
        is_rising: bool,
        is_too_fast: bool,
    ) -> u32 {
        let streak = (self.0 & STREAK_MASK) >> STREAK_SHIFT;
        let streak = if is_too_fast { (streak + 1).min(3) } else { 0 };
        let silence = if is_silent { (self.silence() + 1).min(15) } else { 0 };
        self.0 &= !(FILLED | RISING | STREAK_MASK | SILENCE_MASK);
        self.0 |= silence << SILENCE_SHIFT;
        self.0 |= if is_rising { RISING } else { 0 } | streak << STREAK_SHIFT;
        streak
    }

    /// Windows in a row in which the leaf accepted nothing, at most 15.
    pub(super) fn silence(self) -> u32 {
        (self.0 & SILENCE_MASK) >> SILENCE_SHIFT
    }

    fn count(self) -> u32 {
        (self.0 & COUNT_MASK) >> COUNT_SHIFT
    }

    /// Ticks since the last signal, modulo 2²⁰: 18 minutes.
    fn age(self, now: u64) -> u32 {
        tick(now).wrapping_sub(self.0 & AT_MASK) & AT_MASK
    }

    /// Whether the last signal is at least `parts` 64ths of a window ago.
    fn is_older(self, now: u64, window: u64, parts: u64) -> bool {
        u64::from(self.age(now)) << (TICK_SHIFT + 6) >= window * parts
    }

    fn arm(&mut self) {
        self.0 &= !(DISARMED | COUNT_MASK);
    }

    fn signal(&mut self, now: u64) {
        let count = (self.count() + 1).min(7);
        self.0 = self.0 & !(COUNT_MASK | AT_MASK) | DISARMED | count << COUNT_SHIFT | tick(now);
    }
}

fn tick(now: u64) -> u32 {
    (now >> TICK_SHIFT) as u32 & AT_MASK
}

impl State<'_> {
    /// Decides about a packet that would raise the backlog of its settled leaf, which has `share`
    /// of a window, to `backlog` bytes.
    #[inline(always)]
    pub(super) fn signal(
        &mut self,
        plan: &Plan,
        now: u64,
        arrival: Arrival,
        backlog: u64,
        share: u64,
    ) -> Verdict {
        debug_assert_eq!(plan.signal, Signal::Soft);
        let leaf = arrival.leaf;
        let limit = u64::from(plan.pace.limit);
        let mark = self.leaves[leaf].mark;
        if backlog <= limit {
            if mark.is_disarmed() {
                let relief = 3 * share / 10;
                if backlog + relief <= limit || mark.is_older(now, plan.window, 64 * REARM_WINDOWS)
                {
                    self.leaves[leaf].mark.arm();
                }
            }
            return Verdict::Pass;
        }
        let grace = if mark.is_filled() { 0 } else { self.grace(plan, share) };
        if backlog > limit + grace {
            return Verdict::Drop;
        }
        let is_due = mark.is_older(now, plan.window, INTERVAL[mark.count() as usize]);
        if !is_due || !(mark.is_rising() || mark.is_filled()) {
            return Verdict::Pass;
        }
        self.leaves[leaf].mark.signal(now);
        if arrival.can_be_marked { Verdict::Mark } else { Verdict::Drop }
    }

    /// Bytes that a leaf with `share` of the window may hold beyond its limit. A silence does not
    /// raise it, although it makes a window longer than clumps of packets do.
    fn grace(&self, plan: &Plan, share: u64) -> u64 {
        let window_bytes = u64::from(self.head.window_bytes);
        if window_bytes > 2 * plan.pace.window_bytes {
            share * plan.pace.window_bytes / window_bytes
        } else {
            share
        }
    }
}
