//! Which queue a flow has, as long as it lasts: set-associative hashing.
//!
//! Problem: if a hash alone puts sixteen flows into sixteen queues, most share a queue with another
//! flow and get a half or a third of what the others get. Method: each leaf of a class with several
//! leaves remembers up to three flows. A new flow looks at eight leaves, starting with the one that
//! its hash selects, takes the first with the fewest flows, and is found there again later. A
//! leaf's weight is the number of its flows. A flow that was silent for 2.1 to 3.2 s is forgotten:
//! that is longer than the first three retransmission timeouts.
//!
//! A flow is *thin* while it sends less than its part of the leaf's share. With many flows, a call
//! gets a leaf that other flows fill. So a full leaf lets a thin flow pass, up to twice the leaf's
//! share beyond the limit; these bytes are counted like all others.
//!
//! Properties, tested: a flow that sends stays in its leaf, except a flow that finds three flows in
//! each of its leaves: it uses the leaf that its hash selects and, when it is refused a packet,
//! takes the place of a flow that is not thin. A sender that splits into many flows takes no more
//! from the others by that. A change of a leaf's weight changes its backlog by less than a byte.
//!
//! Source: CAKE's eight ways (Høiland-Jørgensen et al., Piece of CAKE, §III.B).

use super::State;
use crate::phantom::plan::{Leaf, Plan};

/// What a leaf remembers of its flows: three lanes of 21 bits. Each has 12 bits of a flow's hash, 7 bits of the volume
/// it sent, in 2^[`Plan::sent_shift`] bytes and halved at the end of each window, and two bits of age: 3 is seen in
/// this epoch, 1 is forgotten with the next epoch, 0 is vacant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flows(pub u64);

const LANES: u16 = 3;
const LANE_BITS: u32 = 21;
const LANE_MASK: u64 = (1 << LANE_BITS) - 1;
const SENT_SHIFT: u32 = 2;
const SENT_MAX: u64 = 127;
const TAG_SHIFT: u32 = 9;
const TAG_BITS: u32 = LANE_BITS - TAG_SHIFT;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const AGE_MASK: u64 = 3;
/// The lowest bit of each lane.
const LOW: u64 = 1 | 1 << LANE_BITS | 1 << (2 * LANE_BITS);
/// How many leaves a flow may choose from. Source: CAKE.
const WAYS: usize = 8;
/// An epoch is 2³⁰ ns.
const EPOCH_SHIFT: u32 = 30;
impl Flows {
    /// Weight of the leaf: the number of its flows, but at least one.
    #[inline(always)]
    fn weight(self) -> u16 {
        self.count().max(1)
    }

    /// How many lanes are taken.
    #[inline(always)]
    fn count(self) -> u16 {
        ones(self.taken())
    }

    /// The lowest bit of each lane that is taken.
    #[inline(always)]
    fn taken(self) -> u64 {
        (self.0 | self.0 >> 1) & LOW
    }

    /// The lowest bit of the lane that holds the flow, or 0. Without a branch, as the lane is as good as random.
    #[inline(always)]
    fn find(self, tag: u64) -> u64 {
        let others = ((self.0 ^ ((tag << TAG_SHIFT) * LOW)) >> TAG_SHIFT) & (TAG_MASK * LOW);
        self.taken() & !((others + TAG_MASK * LOW) >> TAG_BITS)
    }

    /// What the flow of a lane sent.
    #[inline(always)]
    fn sent(self, lane: u64) -> u64 {
        (self.0 >> (lane.trailing_zeros() + SENT_SHIFT)) & SENT_MAX
    }

    /// The flow of a lane sends more.
    #[inline(always)]
    fn see(&mut self, lane: u64, more: u64) {
        let more = more.min(SENT_MAX - self.sent(lane));
        self.0 = (self.0 + more * (lane << SENT_SHIFT)) | (lane * AGE_MASK);
    }

    /// Halves the volume that each flow sent.
    #[inline(always)]
    pub(super) fn halve(&mut self) {
        let all = LOW * (SENT_MAX << SENT_SHIFT);
        self.0 = self.0 & !all | ((self.0 & all) >> 1) & (LOW * ((SENT_MAX >> 1) << SENT_SHIFT));
    }

    /// The first lane that is vacant, or 0.
    fn vacant(self) -> u64 {
        let vacant = !self.taken() & LOW;
        vacant & vacant.wrapping_neg()
    }

    /// Puts a flow that sent this much into a lane.
    fn put(&mut self, lane: u64, tag: u64, sent: u64) {
        let flow = tag << TAG_SHIFT | sent << SENT_SHIFT | AGE_MASK;
        self.0 = self.0 & !(lane * LANE_MASK) | (lane * flow);
    }

    /// The lane whose flow sent most, the first of them at a tie; no lane is vacant.
    fn fattest(self) -> u64 {
        let lanes = (0..LANES).map(|nth| 1 << (u32::from(nth) * LANE_BITS));
        lanes.rev().max_by_key(|lane| self.sent(*lane)).expect("invariant: there are lanes")
    }

    /// Makes all flows older by one epoch.
    fn age(&mut self) {
        // 3, 2, 1, 0 become 2, 1, 0, 0.
        let (high, low) = ((self.0 >> 1) & LOW, self.0 & LOW);
        self.0 = self.0 & !(LOW * AGE_MASK) | (high & low) << 1 | high & !low;
    }
}

/// How many of the lanes' lowest bits are set.
#[inline(always)]
fn ones(lanes: u64) -> u16 {
    ((lanes + (lanes >> LANE_BITS) + (lanes >> (2 * LANE_BITS))) & AGE_MASK) as u16
}

/// The leaf that is choice `nth` of a flow whose hash selects `leaf`.
fn way(spec: &Leaf, leaf: usize, nth: usize) -> usize {
    let (first, count) = (usize::from(spec.class_first), usize::from(spec.class_count));
    let at = leaf - first + nth;
    first + if at >= count { at - count } else { at }
}

/// A leaf and the lowest bit of the flow's lane; the bit is 0 if the flow is new or the class has one leaf.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) leaf: usize,
    pub(super) lane: u64,
    pub(super) is_new: bool,
}

impl State<'_> {
    /// The weight of a leaf at its parent. The leaves of a class with several all have a plan
    /// weight of 1 and weigh as much as they have flows; the only leaf of a class has no flows.
    #[inline(always)]
    pub(super) fn weight(&self, plan: &Plan, leaf: usize) -> u16 {
        plan.leaves[leaf].weight * self.leaves[leaf].flows.weight()
    }

    /// 2³² divided by the leaf's weight, rounded down.
    #[inline(always)]
    pub(super) fn inverse(&self, plan: &Plan, leaf: usize) -> u64 {
        match self.leaves[leaf].flows.weight() {
            3 => (1 << 32) / 3,
            flows => plan.leaves[leaf].inverse >> (flows - 1),
        }
    }

    /// Place of a flow whose hash selects `leaf`, known or new. It sends `more`, in 2^[`Plan::sent_shift`] bytes.
    #[inline(always)]
    pub(super) fn find_place(&mut self, plan: &Plan, leaf: usize, flow: u32, more: u64) -> Place {
        let spec = &plan.leaves[leaf];
        if spec.class_count == 1 {
            return Place { leaf, lane: 0, is_new: false };
        }
        let tag = u64::from(flow) & TAG_MASK;
        let lane = self.leaves[leaf].flows.find(tag);
        let place = match lane {
            0 => self.again().find_place_elsewhere(plan, leaf, tag),
            _ => Place { leaf, lane, is_new: false },
        };
        if !place.is_new {
            self.leaves[place.leaf].flows.see(place.lane, more);
        }
        place
    }

    #[inline(never)]
    fn find_place_elsewhere(&mut self, plan: &Plan, leaf: usize, tag: u64) -> Place {
        let spec = &plan.leaves[leaf];
        let mut best = (self.leaves[leaf].flows.count(), leaf);
        for nth in 1..WAYS.min(spec.class_count.into()) {
            let leaf = way(spec, leaf, nth);
            let flows = self.leaves[leaf].flows;
            let lane = flows.find(tag);
            if lane != 0 {
                return Place { leaf, lane, is_new: false };
            }
            if flows.count() < best.0 {
                best = (flows.count(), leaf);
            }
        }
        Place { leaf: best.1, lane: 0, is_new: true }
    }

    /// Whether a leaf whose backlog would exceed its limit by `beyond` bytes lets the flow at a place pass. It does if
    /// other flows share the leaf and the flow sent, in this window plus the halved volume of earlier ones, no more
    /// than its part of the leaf's `share` of a window, bytes.
    pub(super) fn is_spared(&self, plan: &Plan, place: Place, beyond: u64, share: u64) -> bool {
        // A backlog beyond the limit by more than a window means that the rate has fallen.
        if place.lane == 0 || beyond > (2 * share).min(plan.pace.window_bytes) {
            return false;
        }
        let flows = self.leaves[place.leaf].flows;
        let (count, sent) = (u64::from(flows.count()), flows.sent(place.lane));
        count > 1 && sent < SENT_MAX && (sent << plan.sent_shift) * count <= share
    }

    /// Makes a settled leaf remember a new flow, if it has room for it.
    #[inline(never)]
    pub(super) fn remember(&mut self, plan: &Plan, place: &mut Place, flow: u32, more: u64) {
        place.lane = self.leaves[place.leaf].flows.vacant();
        if place.lane != 0 {
            let (lane, tag) = (place.lane, u64::from(flow) & TAG_MASK);
            self.reweigh(plan, place.leaf, |flows| flows.put(lane, tag, more.min(SENT_MAX)));
        }
    }

    /// Makes a leaf without room remember a new flow in place of the one that sent most, unless that one is thin. The
    /// new flow is entered as if it had sent just too much to be thin, so that its real volume is soon known.
    #[inline(never)]
    pub(super) fn remember_instead(
        &mut self,
        plan: &Plan,
        place: &mut Place,
        flow: u32,
        (more, share): (u64, u64),
    ) {
        let flows = &mut self.leaves[place.leaf].flows;
        let lane = flows.fattest();
        let sent = share / (u64::from(LANES) << plan.sent_shift) + 1;
        if flows.sent(lane) >= sent.min(SENT_MAX) {
            place.lane = lane;
            flows.put(lane, u64::from(flow) & TAG_MASK, (sent + more).min(SENT_MAX));
        }
    }

    /// Makes the flows of all leaves older by the epochs between two times; all nodes are settled.
    pub(super) fn age_flows(&mut self, plan: &Plan, before: u64, now: u64) {
        let epochs = (now >> EPOCH_SHIFT).saturating_sub(before >> EPOCH_SHIFT).min(3);
        if epochs == 0 {
            return;
        }
        for leaf in 0..plan.leaves.len() {
            if self.leaves[leaf].flows.0 != 0 {
                self.reweigh(plan, leaf, |flows| (0..epochs).for_each(|_| flows.age()));
            }
        }
    }

    /// Changes the flows of a settled leaf; its backlog stays the same.
    fn reweigh(&mut self, plan: &Plan, leaf: usize, change: impl Fn(&mut Flows)) {
        let state = &mut self.leaves[leaf];
        let before = state.flows.weight();
        change(&mut state.flows);
        let after = state.flows.weight();
        let spec = &plan.leaves[leaf];
        let parent = &mut self.inners[usize::from(spec.parent)];
        if before == after || !parent.is_busy(spec.child) {
            return;
        }
        let ahead = state.finish.wrapping_sub(parent.v) * u64::from(before) / u64::from(after);
        state.finish = parent.v.wrapping_add(ahead);
        parent.weight = parent.weight + after - before;
        if ahead < parent.nearest.wrapping_sub(parent.v) {
            parent.nearest = state.finish;
        }
    }
}
