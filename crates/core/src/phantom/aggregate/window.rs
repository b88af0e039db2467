//! The windows of burst control: a leaf slower than its share gives its magic back; a leaf that
//! stays faster than its share is filled.
//!
//! A subscriber has one window. Its first packet after the last window's end begins the next, so
//! that no timer is needed and a leaf needs no time of its own. A sender that does not pace, whose
//! packets come in one clump per round trip, thus makes windows of whole round trips. What a leaf
//! may accept is judged by the length of the window before, up to three times the shortest, so that
//! a sender that comes back from a retransmission timeout may catch up.
//!
//! A sender that ended leaves its queue behind, full of bytes that were accepted and not yet served. For seconds, they
//! would take the share of that leaf from the others. So a leaf that was silent for a window is forgiven what it owes,
//! but no more than the *spare*: the part of its rate that the subscriber as a whole did not use, up to `D`. `D` is
//! what fills a queue, at least half a second; idleness counts for at most half a second, so that little is lent in
//! advance. A sender that is on and off by turns gains nothing in the long run, as is shown below. Magic is served like
//! other bytes, at the subscriber's cost: senders whose round trips begin at different times make windows in which one
//! of them has three round trips and then two, and are filled again and again just above their shares. So while the
//! spare says that the subscriber has had half a second of its rate less than it was allowed, no leaf is filled.
//!
//! A subscriber that was silent for a second *starts*: its senders do not know the rate yet, and slow start or BBR's
//! STARTUP would find it by sending twice or three times the rate. Until they have heard of it, a tighter gate passes
//! less than 1.6 times the rate in a quarter of a second, and a packet that it refuses fills the leaf. They have heard
//! if a window without a refusal follows one with a refusal. A subscriber that is never refused anything, or always,
//! ends its start after some windows of traffic.
//!
//! **Bound.** In any time `t` no more is accepted than `r t + D`, plus, for each leaf, a queue's limit and twice its
//! share of a window (a window at most), plus the packets of starved classes. Let `S` be the spare and `L` the bytes in
//! all leaves that are not magic. (1) `S + L >= 0` always: a packet takes its size from `S` and adds it to `L`; time
//! adds `r t` to `S` and takes no more from `L`; bytes are forgiven from `L` only while `S` is at least as large; and
//! where `S` is cut at `D`, it is positive. (2) The bytes accepted in `t` are `r t` plus the decrease of `S`, less what
//! was cut. `S` began at `D` at most and is `-L` at least.

use super::{IS_OPEN, PAUSE_MAX, State};
use crate::phantom::UNIT_BITS;
use crate::phantom::plan::{MSS, Plan, SPARE_IDLE, SPARE_SHIFT};
use crate::units::Part;

/// Flag of [`super::Head::window_at`], in its lowest bits: the gate refused a packet in this window.
pub(super) const REFUSED: u64 = 1;
/// Flag: the gate refused a packet in the window before, which belonged to a start.
const WAS_REFUSED: u64 = 2;
/// Progress of a start: 1 for each window that used half of the rate, 2 for a window with a refusal.
const COUNT: u64 = 15 << COUNT_SHIFT;
const COUNT_SHIFT: u32 = 2;
/// A start is over at this count.
const COUNT_MAX: u64 = 16;
pub(super) const WINDOW_FLAGS: u64 = REFUSED | WAS_REFUSED | COUNT;

/// A leaf is filled after this number of windows in a row in which it accepts [`TOO_FAST`] of its
/// service. Burst control alone lets a sender at 1.4 times its share pass until the queue is full,
/// which may take seconds. Reno's sawtooth peaks at 4/3 and does not stay there.
const STREAK: u32 = 3;
/// Between Reno's 4/3 (BC-PQP §4) and 1.4.
const TOO_FAST: Part = Part::of(11, 8);

/// Bytes offered to a leaf before it can count as slow: after fewer, the sender's next packet may
/// simply not be due yet.
const TELLING: u64 = MSS;

/// A span in the unit of the spare, to the nearest; spans longer than hours are cut to hours.
fn ticks(ns: u64) -> i64 {
    ((ns.min(1 << 43) + (1 << (SPARE_SHIFT - 1))) >> SPARE_SHIFT) as i64
}

impl State<'_> {
    /// Ends the window, with its consequences, and begins the next.
    #[cold]
    pub(super) fn begin_window(&mut self, plan: &Plan, now: u64) {
        self.settle_all(plan, now);
        let length = now - self.head.window_at;
        let is_used = self.count_spare(plan, length);
        for index in 0..plan.inners.len() {
            let spec = &plan.inners[index];
            let state = &self.inners[index];
            let v = (state.v >> UNIT_BITS) as u32;
            let served = u64::from(v.wrapping_sub(state.v_window));
            for leaf in spec.leaf_first..spec.leaf_first + spec.leaf_count {
                self.judge(plan, usize::from(leaf), served);
            }
            let state = &mut self.inners[index];
            state.v_window = v;
            let used = u64::from(state.used) * plan.window / length;
            state.used_last = used as u32;
            state.used = 0;
        }
        self.age_flows(plan, self.head.window_at, now);
        let is_idle = self.inners[0].busy == 0;
        let length = if is_idle { plan.window } else { length.min(3 * plan.window) };
        self.head.window_bytes = ((plan.pace.rate * length) >> UNIT_BITS) as u32;
        self.head.window_at = now & !WINDOW_FLAGS | self.count_start(now, is_used);
    }

    /// Begins a start after a pause. Ends a start if the gate refused nothing in this window but
    /// did in the one before, or after sixteen windows with at least half of the rate, or eight
    /// with a refusal. Returns the flags of the next window.
    fn count_start(&mut self, now: u64, is_used: bool) -> u64 {
        if now.saturating_sub(self.head.gate_at) >= PAUSE_MAX {
            self.head.gate_at &= !IS_OPEN;
            return 0;
        }
        let flags = self.head.window_at & WINDOW_FLAGS;
        let refused = flags & REFUSED;
        let count = (flags >> COUNT_SHIFT) + (2 * refused).max(is_used.into());
        let has_heard = flags & WAS_REFUSED != 0 && refused == 0;
        if self.head.gate_at & IS_OPEN != 0 || has_heard || count >= COUNT_MAX {
            self.head.gate_at |= IS_OPEN;
            return 0;
        }
        (count << COUNT_SHIFT) | (refused * WAS_REFUSED)
    }

    /// Adds to the spare what the rate carried in a window of `length` ns and was not accepted; all
    /// nodes are settled. Returns whether at least half of the rate was accepted.
    fn count_spare(&mut self, plan: &Plan, length: u64) -> bool {
        let accepted: u64 = self.leaves.iter().map(|leaf| u64::from(leaf.accepted)).sum();
        let before = i64::from(self.head.spare);
        let most = match self.inners[0].busy {
            0 => before.max(0),
            _ => plan.pace.spare_max.into(),
        };
        let (came, used) = (ticks(length), ticks((accepted << UNIT_BITS) / plan.pace.rate));
        self.head.spare = (before + came - used).clamp(i32::MIN.into(), most) as i32;
        2 * used >= came
    }

    /// Bytes that the rate carries in the spare time; 0 if more than the rate was accepted.
    fn spare_bytes(&self, plan: &Plan) -> u64 {
        let spare = i64::from(self.head.spare) + SPARE_IDLE as i64;
        (plan.pace.rate * ((spare.max(0) as u64) << SPARE_SHIFT)) >> UNIT_BITS
    }

    /// Compares the bytes that a settled leaf accepted in the window with `served`, its parent's
    /// service per weight in bytes.
    fn judge(&mut self, plan: &Plan, leaf: usize, served: u64) {
        let spec = &plan.leaves[leaf];
        let is_busy = self.inners[usize::from(spec.parent)].is_busy(spec.child);
        let accepted = u64::from(std::mem::take(&mut self.leaves[leaf].accepted));
        self.leaves[leaf].flows.halve();
        let offered = u64::from(self.weight(plan, leaf)) * served;
        let is_rising = accepted * 20 > offered * 21;
        let is_too_fast = is_busy && TOO_FAST.is_exceeded(accepted, offered);
        let streak = self.leaves[leaf].mark.begin_window(accepted == 0, is_rising, is_too_fast);
        if !is_busy {
            return;
        }
        let left = self.magic_left(plan, leaf);
        let silence = u64::from(self.leaves[leaf].mark.silence()).max(1);
        let is_slow = 2 * accepted < offered && silence * offered >= TELLING;
        if left == 0 || is_slow {
            let owed = match is_slow && accepted == 0 {
                true => self.backlog(plan, leaf).min(left + self.spare_bytes(plan)),
                false => left,
            };
            self.take(plan, leaf, owed);
            self.leaves[leaf].magic = 0;
            self.leaves[leaf].after = 0;
        }
        if streak >= STREAK {
            self.fill(plan, leaf);
        }
        self.shorten(plan, leaf);
    }

    /// Shortens a settled queue that is longer than this rate allows, because the rate has fallen:
    /// a backlog from a high rate may take minutes at a low one.
    fn shorten(&mut self, plan: &Plan, leaf: usize) {
        let (backlog, limit) = (self.backlog(plan, leaf), u64::from(plan.pace.limit));
        if backlog > limit + self.longest_window(plan) {
            self.take(plan, leaf, backlog - limit);
        }
    }
}
