//! Which queue a flow has, as long as it lasts: set-associative hashing.
//!
//! Problem: of sixteen flows in sixteen queues that a hash chooses, most share a queue with another
//! and get a half or a third of what the others get. Method: each leaf of a class with several
//! remembers up to three flows. A flow that is new gets, of the eight leaves from the one that its
//! hash says, the first with the fewest flows, and then finds itself there again; a leaf weighs as
//! much as it has flows. A flow that was silent for 2.1 to 3.2 s is forgotten: that is longer than the
//! first three retransmission timeouts.
//!
//! Properties, tested: a flow that sends stays where it is, but for one that finds three flows in all
//! its leaves, which goes where its hash says and is not remembered. While a leaf's weight changes, its backlog does not, but
//! for less than a byte.
//!
//! Source: CAKE's eight ways (Høiland-Jørgensen et al., Piece of CAKE, §III.B).

use super::State;
use crate::phantom::plan::{Leaf, Plan};

/// What a leaf remembers of its flows: three lanes of 21 bits, each with 19 bits of a flow's hash and
/// two bits of age: 3 is seen in this epoch, 1 is forgotten with the next, 0 is vacant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flows(pub u64);

const LANES: u16 = 3;
const LANE_BITS: u32 = 21;
const LANE_MASK: u64 = (1 << LANE_BITS) - 1;
const TAG_BITS: u32 = LANE_BITS - 2;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const AGE_MASK: u64 = 3;
/// The lowest bit of each lane.
const LOW: u64 = 1 | 1 << LANE_BITS | 1 << (2 * LANE_BITS);
/// How many leaves a flow may choose from. Source: CAKE.
const WAYS: usize = 8;
/// An epoch is 2³⁰ ns.
const EPOCH_SHIFT: u32 = 30;
impl Flows {
    /// What the leaf weighs: its flows, but one at least.
    #[inline(always)]
    fn weight(self) -> u16 {
        self.count().max(1)
    }

    /// How many lanes are taken.
    #[inline(always)]
    fn count(self) -> u16 {
        ones(self.taken())
    }

    /// The lowest bits of lanes that are taken.
    #[inline(always)]
    fn taken(self) -> u64 {
        (self.0 | self.0 >> 1) & LOW
    }

    /// Sees a flow again, if it is there. Without a branch: which lane has it is as good as random.
    #[inline(always)]
    fn find(&mut self, tag: u64) -> bool {
        let others = ((self.0 ^ ((tag << 2) * LOW)) >> 2) & (TAG_MASK * LOW);
        let lane = self.taken() & !((others + TAG_MASK * LOW) >> TAG_BITS);
        self.0 |= lane * AGE_MASK;
        lane != 0
    }

    /// Puts a flow into a vacant lane.
    fn insert(&mut self, tag: u64) {
        let vacant = !self.taken() & LOW;
        let lane = vacant & vacant.wrapping_neg();
        self.0 = self.0 & !(lane * LANE_MASK) | (lane * (tag << 2 | AGE_MASK));
    }

    /// All flows are older by an epoch.
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

/// The way `nth` of a flow whose hash says `leaf`.
fn way(spec: &Leaf, leaf: usize, nth: usize) -> usize {
    let (first, count) = (usize::from(spec.class_first), usize::from(spec.class_count));
    let at = leaf - first + nth;
    first + if at >= count { at - count } else { at }
}

/// A leaf, and whether it does not know the flow yet.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) leaf: usize,
    pub(super) is_new: bool,
}

impl State<'_> {
    /// The weight of a leaf at its parent. Of a class with several leaves each has the weight 1, and one
    /// alone has no flows.
    #[inline(always)]
    pub(super) fn weight(&self, plan: &Plan, leaf: usize) -> u16 {
        plan.leaves[leaf].weight * self.leaves[leaf].flows.weight()
    }

    /// 2³² divided by it, rounded down.
    #[inline(always)]
    pub(super) fn inverse(&self, plan: &Plan, leaf: usize) -> u64 {
        match self.leaves[leaf].flows.weight() {
            3 => (1 << 32) / 3,
            flows => plan.leaves[leaf].inverse >> (flows - 1),
        }
    }

    /// Where a flow is whose hash says `leaf`, or is to be.
    #[inline(always)]
    pub(super) fn find_place(&mut self, plan: &Plan, leaf: usize, flow: u32) -> Place {
        let spec = &plan.leaves[leaf];
        let tag = u64::from(flow) & TAG_MASK;
        if spec.class_count == 1 || self.leaves[leaf].flows.find(tag) {
            return Place { leaf, is_new: false };
        }
        self.again().find_place_elsewhere(plan, leaf, tag)
    }

    #[inline(never)]
    fn find_place_elsewhere(&mut self, plan: &Plan, leaf: usize, tag: u64) -> Place {
        let spec = &plan.leaves[leaf];
        let mut best = (self.leaves[leaf].flows.count(), leaf);
        for nth in 1..WAYS.min(spec.class_count.into()) {
            let leaf = way(spec, leaf, nth);
            let flows = &mut self.leaves[leaf].flows;
            if flows.find(tag) {
                return Place { leaf, is_new: false };
            }
            if flows.count() < best.0 {
                best = (flows.count(), leaf);
            }
        }
        Place { leaf: best.1, is_new: true }
    }

    /// A leaf that is settled remembers a new flow, if it has room for it.
    #[inline(never)]
    pub(super) fn remember(&mut self, plan: &Plan, leaf: usize, flow: u32) {
        if self.leaves[leaf].flows.count() < LANES {
            self.reweigh(plan, leaf, |flows| flows.insert(u64::from(flow) & TAG_MASK));
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

    /// Changes the flows of a settled leaf. It keeps its backlog.
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
