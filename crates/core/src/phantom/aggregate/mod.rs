//! The policer of one subscriber: phantom queues under a tree of weights and priorities, with burst
//! control.
//!
//! Everything is an integer and this text is the specification: the kernel program
//! (`crates/linux/bpf/police_aggregate.h`) does the same steps and gives the same verdicts.
//!
//! Terms. A *unit* is 2⁻²⁴ bytes, so that rate · time is exact. The *virtual time* `v` of a
//! weighted node is the service that one unit of weight has received since the beginning. A child
//! with a backlog has a *finish*, the virtual time at which it will be empty, so its backlog is
//! weight · (finish − v) and one addition serves all children. For a child of a priority node the
//! backlog itself is stored. A child with a backlog is *busy*. A node is *settled* when it has been
//! given the service of the time that has passed.
//!
//! Laziness. Nothing happens between packets, so the service of the time between them can be given
//! later: at a packet only the nodes from the root to its leaf are settled, and not even these when
//! the leaf is surely busy and the packet surely fits. Both are exact.
//!
//! Properties, all tested: the drain is fluid GPS within an MSS; in any time no leaf accepts more
//! than its limit (and the grace) beyond its service, and all together no more than the gate
//! allows; magic bytes never replace real bytes that were not served yet; a leaf whose queue is
//! never full loses nothing; a packet costs O(1), a queue that empties O(children).
//!
//! Source: BC-PQP §3-4, with the resolutions of docs/research/papers/bcpqp.md.

use super::plan::{GATE_SHIFT, Inner, MSS, Plan, Signal};
use super::{Arrival, Police, UNIT_BITS, Verdict};
use crate::units::{Part, Time};

mod bundle;
mod flows;
#[cfg(test)]
pub(super) mod inspect;
mod node;
mod soft;
mod window;

pub use bundle::{Bundle, BundleError, BundleSpec, BundleState, Bundled, Counts, decide_in_bundle};
pub use flows::Flows;
use node::per_weight;
pub use soft::Mark;
use window::REFUSED;

/// State of a subscriber as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// Time up to which the root is settled, ns.
    pub at: u64,
    /// When the window of burst control began, ns; the lowest bits are flags of the subscriber's
    /// start ([`window`]).
    pub window_at: u64,
    /// When all accepted packets would have passed at the gate's rate, ns. After a pause it is
    /// moved back, so that a sender may catch up. The lowest bits are flags.
    pub gate_at: u64,
    /// What the rate carries in a window as long as the last one was, bytes; at first 0.
    pub window_bytes: u32,
    /// Spare at the start of the window beyond the spare after idleness, in 2¹⁰ ns of the rate.
    pub spare: i32,
}

/// State of an inner node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InnerState {
    /// Virtual time, units per weight; wraps.
    pub v: u64,
    /// Which children are busy.
    pub busy: u64,
    /// Virtual time before which no busy child finishes.
    pub nearest: u64,
    /// Its own finish under a weighted parent, its backlog in units under a priority parent.
    pub finish: u64,
    /// Under a weighted parent: the parent's virtual time up to which this node is settled. Under a
    /// priority parent: the service it was given and has not passed on yet, in units.
    pub seen: u64,
    /// Virtual time when the window began, bytes per weight; wraps.
    pub v_window: u32,
    /// Service left over, too little to give one unit per weight; less than `weight`.
    pub carry: u16,
    /// Sum of the weights of its busy children.
    pub weight: u16,
    /// Under a priority parent: served in this window, bytes.
    pub used: u32,
    /// The same, in the window before.
    pub used_last: u32,
}

/// State of a leaf. While it is not busy, only `accepted`, `mark` and `flows` have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LeafState {
    /// Its parent's virtual time at which it will be empty; wraps.
    pub finish: u64,
    /// Accepted in this window, bytes, busy or not.
    pub accepted: u32,
    /// Magic bytes put in before the last `after` bytes; some of them may have been served.
    pub magic: u32,
    /// Bytes accepted since then.
    pub after: u32,
    /// The signals that its sender got, and how long it has been too fast; see [`Mark`].
    pub mark: Mark,
    /// The flows that are in it, busy or not.
    pub flows: Flows,
}

/// The state of one subscriber, wherever it is stored.
#[derive(Debug)]
pub struct State<'a> {
    /// State of the whole.
    pub head: &'a mut Head,
    /// State of the plan's inner nodes.
    pub inners: &'a mut [InnerState],
    /// State of the plan's leaves.
    pub leaves: &'a mut [LeafState],
}

/// A subscriber's state with a plan's number of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    head: Head,
    inners: Vec<InnerState>,
    leaves: Vec<LeafState>,
}

/// A subscriber's state in one block, as in the kernel, for up to `INNERS` and `LEAVES` nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Slot<const INNERS: usize, const LEAVES: usize> {
    /// State of the whole.
    pub head: Head,
    /// State of the plan's inner nodes.
    pub inners: [InnerState; INNERS],
    /// State of the plan's leaves.
    pub leaves: [LeafState; LEAVES],
}

/// A subscriber with a plan of its own.
#[derive(Clone, Debug)]
pub struct BcPqp {
    plan: Plan,
    aggregate: Aggregate,
}

impl Aggregate {
    /// The state before anything has arrived.
    pub fn new(plan: &Plan) -> Aggregate {
        Aggregate {
            head: Head::default(),
            inners: vec![InnerState::default(); plan.inners.len()],
            leaves: vec![LeafState::default(); plan.leaves.len()],
        }
    }

    /// The state as mutable slices.
    pub fn state(&mut self) -> State<'_> {
        let Aggregate { head, inners, leaves } = self;
        State { head, inners, leaves }
    }
}

impl<const INNERS: usize, const LEAVES: usize> Slot<INNERS, LEAVES> {
    /// The state before anything has arrived.
    pub fn new() -> Self {
        Slot {
            head: Head::default(),
            inners: [InnerState::default(); INNERS],
            leaves: [LeafState::default(); LEAVES],
        }
    }

    /// The state as mutable slices.
    pub fn state(&mut self) -> State<'_> {
        let Slot { head, inners, leaves } = self;
        State { head, inners, leaves }
    }

    /// Reads a part of the cache lines that the decision about a packet of this leaf may need. A
    /// caller that has several packets at hand thus loads the slots of all of them from memory at
    /// the same time; in the decision itself the branches wait for memory line by line. Use the
    /// returned value ([`std::hint::black_box`]), or the compiler removes the reads.
    #[inline]
    pub fn touch(&self, leaf: usize) -> u64 {
        let InnerState { v, busy, .. } = self.inners[0];
        let finish = |leaf: usize| self.leaves[leaf % LEAVES].finish;
        let near = self.head.at ^ v ^ finish(leaf);
        if LEAVES <= 16 {
            return (0..LEAVES).step_by(2).fold(near, |sum, leaf| sum ^ finish(leaf));
        }
        // Of many leaves, touches only some that are likely to be read, without a branch that stalls.
        near ^ finish(busy.trailing_zeros() as usize) ^ finish(63 ^ busy.leading_zeros() as usize)
    }
}

impl<const INNERS: usize, const LEAVES: usize> Default for Slot<INNERS, LEAVES> {
    fn default() -> Self {
        Self::new()
    }
}

impl BcPqp {
    /// A subscriber of `plan` from whom nothing has arrived yet.
    pub fn new(plan: Plan) -> BcPqp {
        BcPqp { aggregate: Aggregate::new(&plan), plan }
    }
}

impl Police for BcPqp {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        decide(&self.plan, &mut self.aggregate.state(), now, arrival)
    }
}

/// Decides about a packet of a subscriber of `plan`, in O(1) except for queues that become empty.
///
/// # Panics
/// If `state` has fewer nodes than the plan, or the plan does not have the packet's leaf.
pub fn decide(plan: &Plan, state: &mut State<'_>, now: Time, arrival: Arrival) -> Verdict {
    let now = now.as_nanos();
    let size = arrival.size.as_u64().min(SIZE_MAX);
    let mut state = state.again();
    state.roll_window(plan, now);
    // Rounded up or down depending on the time's lowest bits, so that it is right on average.
    let sent = (size + (now & ((1 << plan.sent_shift) - 1))) >> plan.sent_shift;
    let mut place = state.find_place(plan, arrival.leaf, arrival.flow, sent);
    let arrival = Arrival { leaf: place.leaf, ..arrival };
    let Some(gate_at) = state.pass_gate(plan, now, size) else { return Verdict::Drop };
    if !place.is_new && state.surely_fits(plan, now, arrival.leaf, size) {
        state.head.gate_at = gate_at;
        return Verdict::Pass;
    }
    state.settle_path(plan, now, arrival.leaf);
    if place.is_new {
        state.remember(plan, &mut place, arrival.flow, sent);
    }
    let backlog = state.backlog(plan, arrival.leaf) + size;
    let limit = u64::from(plan.pace.limit);
    // This share already counts the leaf as busy. It is not needed when the backlog is small.
    let share = match backlog > ALLOWANCE.0 || state.leaves[arrival.leaf].mark.is_disarmed() {
        true => state.offered_in_window(plan, now, arrival.leaf),
        false => 0,
    };
    if backlog > limit && place.is_new && place.lane == 0 {
        state.remember_instead(plan, &mut place, arrival.flow, (sent, share));
    }
    let is_spared = backlog > limit && state.is_spared(plan, place, backlog - limit, share);
    let verdict = match plan.signal {
        _ if is_spared => Verdict::Pass,
        Signal::Hard if backlog > limit => Verdict::Drop,
        Signal::Hard => Verdict::Pass,
        Signal::Soft => state.signal(plan, now, arrival, backlog, share),
    };
    if verdict != Verdict::Drop {
        state.head.gate_at = gate_at;
        state.accept(plan, arrival.leaf, size);
        state.control_burst(plan, arrival.leaf, share);
        return verdict;
    }
    match state.starved(plan, arrival.leaf) {
        Some(class) => {
            state.head.gate_at = gate_at;
            state.leaves[arrival.leaf].accepted += size as u32;
            state.inners[class].used = size as u32;
            Verdict::Pass
        }
        None => Verdict::Drop,
    }
}

/// Bytes a flow may send before anything is known of it: what its share carries in four windows,
/// but at least two segments and at most ten, TCP's initial window (RFC 6928); and always what its
/// share carries in two windows. So flows that begin together cannot all send ten segments where
/// these take seconds at the rate, and a flow that comes back from a retransmission timeout of 200
/// ms may catch up.
const ALLOWANCE: (u64, u64) = (2 * MSS, 10 * MSS);
/// A leaf is filled when it accepts more than this multiple of its share in a window. Reno's
/// sawtooth needs 4/3 (BC-PQP §4, which takes 3/2). The smaller the multiple, the smaller the
/// bursts of BBR, which reacts to nothing else.
const BURST: Part = Part::of(7, 5);

/// The rest of a window is counted in parts of 2⁻¹⁰, so that no product exceeds 64 bits.
const REST_SHIFT: u32 = 10;

/// Where a window carries fewer bytes than this, starved classes may send nothing.
const TRICKLE_WINDOW: u64 = 8 * MSS;

/// Pause in ns after which a returning sender counts as one that starts, not as one that returns
/// from its first or second retransmission timeout.
const PAUSE_MAX: u64 = 1_000_000_000;

/// No packet is larger, super-packets before segmentation included; the kernel says 512 KiB.
const SIZE_MAX: u64 = 1 << 20;

/// Flag of [`Head::gate_at`], in its lowest bits: it was moved back, so that a sender may catch up.
const CATCHES_UP: u64 = 1;
/// Flag: the start is over, as the sender has seen the rate.
const IS_OPEN: u64 = 2;
const GATE_FLAGS: u64 = 3;

/// Time from which the gate counts the next packet. The gate passes at its own rate what has been
/// accepted up to `gate_at`; see [`Head::gate_at`].
#[inline(always)]
fn gate_from(plan: &Plan, gate_at: u64, now: u64) -> u64 {
    if gate_at > now {
        return gate_at & !CATCHES_UP;
    }
    let (is_open, empty) = (gate_at & IS_OPEN, now - gate_at);
    if gate_at & CATCHES_UP != 0 && empty <= plan.pace.gate_more {
        gate_at
    } else if is_open != 0 && empty >= plan.pace.gate_pause && empty < PAUSE_MAX {
        (now - plan.pace.gate_more) & !GATE_FLAGS | is_open | CATCHES_UP
    } else {
        now & !GATE_FLAGS | is_open
    }
}

impl State<'_> {
    /// Reborrows the same state for a call off the common path, so that the compiler keeps the
    /// slices in registers.
    #[inline(always)]
    fn again(&mut self) -> State<'_> {
        State { head: &mut *self.head, inners: &mut *self.inners, leaves: &mut *self.leaves }
    }

    /// Begins a window if the last one is over.
    #[inline(always)]
    fn roll_window(&mut self, plan: &Plan, now: u64) {
        if now.saturating_sub(self.head.window_at) >= plan.window {
            self.again().begin_window(plan, now);
        }
    }

    /// Time up to which the gate is taken after this packet, ns; `None` if it does not let the
    /// packet through, and then the window remembers the refusal.
    #[inline(always)]
    fn pass_gate(&mut self, plan: &Plan, now: u64, size: u64) -> Option<u64> {
        let from = gate_from(plan, self.head.gate_at, now);
        let (cost, slack) = plan.gate(from & IS_OPEN == 0);
        let gate_at = from + (((size * cost) >> GATE_SHIFT) & !GATE_FLAGS);
        if gate_at > now + slack {
            self.head.window_at |= REFUSED;
            return None;
        }
        Some(gate_at)
    }

    /// Whether the gate refused a packet of a subscriber at its start in this window.
    #[inline(always)]
    fn is_start_refused(&self) -> bool {
        self.head.window_at & REFUSED != 0 && self.head.gate_at & IS_OPEN == 0
    }

    /// Accepts the packet without settling anything where that is exact and burst control would not
    /// act: its leaf hangs directly at the root, stays busy even if it got all the service, and
    /// would have room even if it got none.
    #[inline(always)]
    fn surely_fits(&mut self, plan: &Plan, now: u64, leaf: usize, size: u64) -> bool {
        let spec = &plan.leaves[leaf];
        let window_bytes = self.longest_window(plan);
        let (weight, inverse) = (u64::from(self.weight(plan, leaf)), self.inverse(plan, leaf));
        let is_refused = self.is_start_refused();
        let (root, state) = (&self.inners[0], &mut self.leaves[leaf]);
        if spec.parent != 0 || !root.is_busy(spec.child) || state.mark.is_disarmed() || is_refused {
            return false;
        }
        let elapsed = now.saturating_sub(self.head.at);
        if elapsed >= plan.pace.idle_after {
            return false;
        }
        let backlog = weight * state.finish.wrapping_sub(root.v);
        let units = size << UNIT_BITS;
        let served_most = plan.pace.rate * elapsed + u64::from(root.carry);
        if backlog <= served_most || backlog + units > u64::from(plan.pace.limit) << UNIT_BITS {
            return false;
        }
        let accepted = u64::from(state.accepted) + size;
        let is_calm = backlog + units <= ALLOWANCE.0 << UNIT_BITS
            || state.mark.is_filled()
            || !BURST.is_exceeded(accepted * u64::from(root.weight), window_bytes * weight);
        if !is_calm {
            return false;
        }
        state.finish = state.finish.wrapping_add(per_weight(size, inverse));
        state.accepted = accepted as u32;
        state.after = state.after.saturating_add(size as u32);
        true
    }

    /// Takes an accepted packet into its leaf; the path is settled.
    #[inline(always)]
    fn accept(&mut self, plan: &Plan, leaf: usize, size: u64) {
        self.put(plan, leaf, size);
        let state = &mut self.leaves[leaf];
        state.accepted += size as u32;
        state.after = state.after.saturating_add(size as u32);
    }

    /// The class of a settled leaf that got nothing in this window and the last, because of
    /// higher-priority classes. It may send one packet past its full queue: a sender that gets
    /// nothing for seconds tries again only after seconds more. This does not apply where these
    /// packets, one per class in two windows, are more than a sixteenth of the rate.
    #[inline(never)]
    fn starved(&self, plan: &Plan, leaf: usize) -> Option<usize> {
        if plan.pace.window_bytes < TRICKLE_WINDOW {
            return None;
        }
        let is_starved = |&index: &usize| {
            let parent = usize::from(plan.inners[index].parent);
            let InnerState { used, used_last, .. } = self.inners[index];
            plan.inners[parent].is_priority && used == 0 && used_last == 0
        };
        plan.path_to(plan.leaves[leaf].parent.into()).find(is_starved)
    }

    /// Fills the leaf's queue with magic if it accepted more in this window than its share explains
    /// and its backlog exceeds what a flow may send before anything is known of it. While the gate
    /// refuses packets of a subscriber at its start, anything above the share is enough: senders
    /// then learn their rate now, and not when the queue is full of what they sent too fast.
    fn control_burst(&mut self, plan: &Plan, leaf: usize, share: u64) {
        let backlog = self.backlog(plan, leaf);
        let LeafState { accepted, mark, .. } = self.leaves[leaf];
        if backlog <= ALLOWANCE.0 || mark.is_filled() {
            return;
        }
        if self.is_start_refused() && u64::from(accepted) > share {
            return self.again().fill(plan, leaf);
        }
        let allowance = (4 * share).clamp(ALLOWANCE.0, ALLOWANCE.1).max(2 * share);
        if backlog > allowance && BURST.is_exceeded(accepted.into(), share) {
            self.again().fill(plan, leaf);
        }
    }

    /// Puts magic into a settled leaf until it is full. Magic that is still there counts as
    /// inserted before all bytes after the first magic: it is served earlier than in truth, and
    /// never counted as more.
    ///
    /// Does nothing while the spare exceeds that after idleness, see [`window`]: magic costs rate.
    fn fill(&mut self, plan: &Plan, leaf: usize) {
        let room = u64::from(plan.pace.limit).saturating_sub(self.backlog(plan, leaf));
        if room == 0 || self.head.spare > 0 {
            return;
        }
        let left = self.magic_left(plan, leaf);
        self.put(plan, leaf, room);
        let state = &mut self.leaves[leaf];
        if left == 0 {
            state.after = 0;
        }
        state.magic = (left + room) as u32;
        state.mark.set_filled();
    }

    /// Magic bytes of a settled leaf that have not been served.
    fn magic_left(&self, plan: &Plan, leaf: usize) -> u64 {
        let state = &self.leaves[leaf];
        if state.magic == 0 {
            return 0;
        }
        let behind = u64::from(state.after);
        self.backlog(plan, leaf).saturating_sub(behind).min(state.magic.into())
    }

    /// Bytes that this window offers to the leaf if it is always busy: the service per weight until
    /// now, plus its share of the rest. So queues that are busy only for moments, such as those of
    /// calls and films, take no more from its share than they use. The path is settled.
    #[inline(always)]
    fn offered_in_window(&self, plan: &Plan, now: u64, leaf: usize) -> u64 {
        let share = self.share_of_window(plan, leaf);
        let parent = &self.inners[usize::from(plan.leaves[leaf].parent)];
        let served = ((parent.v >> UNIT_BITS) as u32).wrapping_sub(parent.v_window);
        let left = plan.window.saturating_sub(now.saturating_sub(self.head.window_at));
        let rest = (share * (left / (plan.window >> REST_SHIFT))) >> REST_SHIFT;
        share.max(u64::from(self.weight(plan, leaf)) * u64::from(served) + rest)
    }

    /// Bytes that the leaf's share of the rate carries in a window, with the nodes that are busy
    /// now. Under priority, what the higher classes used in the window before is subtracted.
    #[inline(always)]
    fn share_of_window(&self, plan: &Plan, leaf: usize) -> u64 {
        let weight = self.weight(plan, leaf);
        let leaf = &plan.leaves[leaf];
        let parent = usize::from(leaf.parent);
        let above = match parent {
            0 => self.longest_window(plan),
            _ => self.share_of_inner(plan, parent),
        };
        self.part(parent, leaf.child, weight, above)
    }

    /// Bytes that the rate carries in a window, or in the last window if that was longer.
    #[inline(always)]
    fn longest_window(&self, plan: &Plan) -> u64 {
        plan.pace.window_bytes.max(self.head.window_bytes.into())
    }

    #[inline(never)]
    fn share_of_inner(&self, plan: &Plan, index: usize) -> u64 {
        let mut share = self.longest_window(plan);
        for index in plan.path_to(index) {
            let Inner { parent, child, weight, .. } = plan.inners[index];
            let parent = usize::from(parent);
            if plan.inners[parent].is_priority {
                let first = usize::from(plan.inners[parent].inner_first);
                for sibling in &self.inners[first..index] {
                    share = share.saturating_sub(sibling.used_last.into());
                }
            } else {
                share = self.part(parent, child, weight, share);
            }
        }
        share
    }

    /// The part of `share` that a child gets at a weighted node, with the child itself counted as busy.
    #[inline(always)]
    fn part(&self, node: usize, child: u8, weight: u16, share: u64) -> u64 {
        let node = &self.inners[node];
        let idle = if node.is_busy(child) { 0 } else { u64::from(weight) };
        share * u64::from(weight) / (u64::from(node.weight) + idle)
    }
}

#[cfg(test)]
mod tests;
