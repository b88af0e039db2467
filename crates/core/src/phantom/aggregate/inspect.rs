//! Lets the tests against the oracles read and set up a subscriber's state.

use super::window::WINDOW_FLAGS;
use super::{Aggregate, State};
use crate::phantom::UNIT_BITS;
use crate::phantom::plan::Plan;
use crate::units::Time;

/// State of a leaf while all nodes are settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::phantom) struct LeafSeen {
    /// In 2⁻²⁴ bytes.
    pub backlog: u64,
    /// In bytes.
    pub magic: u64,
    /// Its parent's virtual time, in 2⁻²⁴ bytes per weight; wraps.
    pub v: u64,
    /// Accepted in this window, bytes.
    pub accepted: u64,
}

/// Puts bytes into a leaf's queue, whatever the limits say.
pub(in crate::phantom) fn put(aggregate: &mut Aggregate, plan: &Plan, leaf: usize, bytes: u64) {
    aggregate.state().put(plan, leaf, bytes);
}

/// Lets all virtual times begin elsewhere. Nothing has arrived yet.
pub(in crate::phantom) fn begin_virtual_time(aggregate: &mut Aggregate, v: u64) {
    for inner in &mut aggregate.inners {
        inner.v = v;
        inner.v_window = (v >> UNIT_BITS) as u32;
    }
}

/// When the window of burst control began.
pub(in crate::phantom) fn window_at(aggregate: &Aggregate) -> Time {
    Time::from_nanos(aggregate.head.window_at & !WINDOW_FLAGS)
}

/// Gives all nodes their service up to `now`, which is otherwise deferred.
pub(in crate::phantom) fn settle(aggregate: &mut Aggregate, plan: &Plan, now: Time) {
    aggregate.state().settle_all(plan, now.as_nanos());
}

/// All leaves as they are at a time. The aggregate itself is left as it was.
pub(in crate::phantom) fn leaves(aggregate: &Aggregate, plan: &Plan, now: Time) -> Vec<LeafSeen> {
    let mut settled = aggregate.clone();
    let mut state = settled.state();
    state.settle_all(plan, now.as_nanos());
    (0..plan.leaves.len()).map(|leaf| look(&state, plan, leaf)).collect()
}

fn look(state: &State<'_>, plan: &Plan, leaf: usize) -> LeafSeen {
    let spec = &plan.leaves[leaf];
    let parent = &state.inners[usize::from(spec.parent)];
    let is_busy = parent.is_busy(spec.child);
    let ahead = state.leaves[leaf].finish.wrapping_sub(parent.v);
    LeafSeen {
        backlog: if is_busy { u64::from(state.weight(plan, leaf)) * ahead } else { 0 },
        magic: if is_busy { state.magic_left(plan, leaf) } else { 0 },
        v: parent.v,
        accepted: state.leaves[leaf].accepted.into(),
    }
}

/// A weighted node whose weight is not the sum of its busy children's weights, if there is one.
pub(in crate::phantom) fn wrong_weight(aggregate: &mut Aggregate, plan: &Plan) -> Option<usize> {
    let state = aggregate.state();
    let sum = |node: usize| {
        let inner = &state.inners[node];
        let leaves = plan.leaves.iter().enumerate();
        let leaves = leaves.filter(|(_, spec)| usize::from(spec.parent) == node);
        let leaves = leaves.filter(|(_, spec)| inner.is_busy(spec.child));
        let leaves: u16 = leaves.map(|(leaf, _)| state.weight(plan, leaf)).sum();
        let inners = plan.inners.iter().skip(1).filter(|spec| usize::from(spec.parent) == node);
        let inners = inners.filter(|spec| inner.is_busy(spec.child));
        leaves + inners.map(|spec| spec.weight).sum::<u16>()
    };
    let is_wrong = |&node: &usize| {
        !plan.inners[node].is_priority
            && state.inners[node].busy != 0
            && state.inners[node].weight != sum(node)
    };
    (0..plan.inners.len()).find(is_wrong)
}
