//! Service and backlog of the tree's nodes: fluid weighted fair queueing and priority, exactly.

use super::State;
use crate::phantom::UNIT_BITS;
use crate::phantom::plan::Plan;

/// Bytes as units per weight, where `inverse` is 2³² / weight. Rounded down, so that no child owes
/// more than was accepted; the result is low by at most a unit and 2⁻³² of the bytes, per weight.
pub(super) fn per_weight(bytes: u64, inverse: u64) -> u64 {
    (bytes * inverse) >> (32 - UNIT_BITS)
}

/// Half a byte, in units: service is counted in bytes, rounded to the nearest.
const HALF: u64 = 1 << (UNIT_BITS - 1);

impl State<'_> {
    /// Settles the nodes from the root to a leaf's parent.
    #[inline(always)]
    pub(super) fn settle_path(&mut self, plan: &Plan, now: u64, leaf: usize) {
        self.settle_root(plan, now);
        if plan.leaves[leaf].parent != 0 {
            self.again().settle_below(plan, leaf);
        }
    }

    /// Settles the nodes from below the root to a leaf's parent.
    #[inline(never)]
    fn settle_below(&mut self, plan: &Plan, leaf: usize) {
        for index in plan.path_to(plan.leaves[leaf].parent.into()) {
            self.settle(plan, index);
        }
    }

    /// Settles all nodes.
    pub(super) fn settle_all(&mut self, plan: &Plan, now: u64) {
        self.settle_root(plan, now);
        for index in 1..plan.inners.len() {
            self.settle(plan, index);
        }
    }

    #[inline(always)]
    fn settle_root(&mut self, plan: &Plan, now: u64) {
        let elapsed = now.saturating_sub(self.head.at);
        if elapsed >= plan.pace.idle_after {
            self.again().exhaust(plan, 0);
        } else {
            self.serve(plan, 0, plan.pace.rate * elapsed);
        }
        self.head.at = self.head.at.max(now);
    }

    /// Settles an inner node whose parent is settled.
    fn settle(&mut self, plan: &Plan, index: usize) {
        let spec = &plan.inners[index];
        let parent = &self.inners[usize::from(spec.parent)];
        if !parent.is_busy(spec.child) {
            return self.exhaust(plan, index);
        }
        let (v, is_priority) = (parent.v, plan.inners[usize::from(spec.parent)].is_priority);
        let state = &mut self.inners[index];
        let given = if is_priority {
            std::mem::take(&mut state.seen)
        } else {
            let given = u64::from(spec.weight) * v.wrapping_sub(state.seen);
            state.seen = v;
            given
        };
        self.serve(plan, index, given);
    }

    /// Gives a node all the service that it can use, so that nothing is left below it: its children
    /// empty when they are settled. Burst control has to see that service too.
    #[inline(never)]
    fn exhaust(&mut self, plan: &Plan, index: usize) {
        if self.inners[index].busy == 0 {
            return;
        }
        if plan.inners[index].is_priority {
            self.serve_in_order(plan, index, u64::MAX);
        } else {
            let (_, longest) = self.dismiss(plan, index, u64::MAX);
            let state = &mut self.inners[index];
            state.v = state.v.wrapping_add(longest);
            state.carry = 0;
        }
    }

    /// Gives a node `units` of service.
    #[inline(always)]
    fn serve(&mut self, plan: &Plan, index: usize, units: u64) {
        if self.inners[index].busy == 0 {
            return;
        }
        if plan.inners[index].is_priority {
            self.again().serve_in_order(plan, index, units);
        } else {
            self.serve_by_weight(plan, index, units);
        }
    }

    /// The first busy child takes what it can use, the next what is left.
    #[inline(never)]
    fn serve_in_order(&mut self, plan: &Plan, index: usize, mut units: u64) {
        let spec = plan.inners[index];
        for child in 0..spec.inner_count {
            if units == 0 {
                return;
            }
            if !self.inners[index].is_busy(child) {
                continue;
            }
            let state = &mut self.inners[usize::from(spec.inner_first + child)];
            let given = state.finish.min(units);
            state.finish -= given;
            state.seen += given;
            state.used = state.used.saturating_add(((given + HALF) >> UNIT_BITS) as u32);
            units -= given;
            if state.finish == 0 {
                self.inners[index].busy &= !(1 << child);
            }
        }
    }

    /// Serves all busy children by weight; service that a child no longer needs goes to the others.
    ///
    /// A child that is empty at the virtual time which all of them would reach together is surely
    /// empty: it is served and leaves, and the others share the rest, until no child leaves.
    #[inline(always)]
    fn serve_by_weight(&mut self, plan: &Plan, index: usize, units: u64) {
        let mut units = units + u64::from(self.inners[index].carry);
        loop {
            let state = &mut self.inners[index];
            let step = units / u64::from(state.weight);
            if step < state.nearest.wrapping_sub(state.v) {
                state.v = state.v.wrapping_add(step);
                state.carry = (units - step * u64::from(state.weight)) as u16;
                return;
            }
            let (served, longest) = self.again().dismiss(plan, index, step);
            let state = &mut self.inners[index];
            if state.busy == 0 {
                state.v = state.v.wrapping_add(longest);
                state.carry = 0;
                return;
            }
            units -= served;
        }
    }

    /// Removes the children that finish within `step` of virtual time. Returns the units of service
    /// that they got and the longest distance to a finish among them.
    #[inline(never)]
    fn dismiss(&mut self, plan: &Plan, index: usize, step: u64) -> (u64, u64) {
        let spec = &plan.inners[index];
        let mut round = Round::new(&self.inners[index], step);
        let leaves = range(spec.leaf_first, spec.leaf_count);
        for child in ones(round.busy & low_bits(spec.leaf_count)) {
            let leaf = leaves.start + child;
            round.judge(child, self.leaves[leaf].finish, self.weight(plan, leaf));
        }
        let inners = range(spec.inner_first, spec.inner_count);
        for nth in ones(round.busy.checked_shr(spec.leaf_count.into()).unwrap_or(0)) {
            let inner = inners.start + nth;
            let child = usize::from(spec.leaf_count) + nth;
            round.judge(child, self.inners[inner].finish, plan.inners[inner].weight);
        }
        let state = &mut self.inners[index];
        state.busy = round.busy;
        state.weight = round.weight as u16;
        state.nearest = round.v.wrapping_add(round.nearest);
        (round.served, round.longest)
    }

    /// The backlog of a leaf with a settled parent, in bytes, rounded down.
    #[inline(always)]
    pub(super) fn backlog(&self, plan: &Plan, leaf: usize) -> u64 {
        let spec = &plan.leaves[leaf];
        let parent = &self.inners[usize::from(spec.parent)];
        if !parent.is_busy(spec.child) {
            return 0;
        }
        let ahead = self.leaves[leaf].finish.wrapping_sub(parent.v);
        (u64::from(self.weight(plan, leaf)) * ahead) >> UNIT_BITS
    }

    /// Puts bytes into a leaf; the path is settled.
    #[inline(always)]
    pub(super) fn put(&mut self, plan: &Plan, leaf: usize, bytes: u64) {
        let spec = &plan.leaves[leaf];
        let weight = self.weight(plan, leaf);
        let more = per_weight(bytes, self.inverse(plan, leaf));
        let parent = &mut self.inners[usize::from(spec.parent)];
        let state = &mut self.leaves[leaf];
        if !parent.is_busy(spec.child) {
            state.finish = parent.v.wrapping_add(more);
            state.magic = 0;
            state.after = 0;
            parent.welcome(spec.child, weight, state.finish);
        } else {
            state.finish = state.finish.wrapping_add(more);
        }
        let mut index = usize::from(spec.parent);
        while index != 0 {
            index = self.again().put_inner(plan, index, bytes);
        }
    }

    /// Adds bytes to an inner node's `finish`; marks it busy. Returns its parent.
    #[inline(never)]
    fn put_inner(&mut self, plan: &Plan, index: usize, bytes: u64) -> usize {
        let spec = &plan.inners[index];
        let parent = usize::from(spec.parent);
        let is_busy = self.inners[parent].is_busy(spec.child);
        if plan.inners[parent].is_priority {
            let state = &mut self.inners[index];
            if !is_busy {
                state.finish = 0;
                state.seen = 0;
            }
            state.finish += bytes << UNIT_BITS;
            self.inners[parent].busy |= 1 << spec.child;
        } else {
            let more = per_weight(bytes, spec.inverse);
            if is_busy {
                let state = &mut self.inners[index];
                state.finish = state.finish.wrapping_add(more);
            } else {
                let v = self.inners[parent].v;
                let state = &mut self.inners[index];
                state.finish = v.wrapping_add(more);
                state.seen = v;
                let finish = state.finish;
                self.inners[parent].welcome(spec.child, spec.weight, finish);
            }
        }
        parent
    }

    /// Takes bytes out of a leaf that has at least that number; all nodes are settled.
    pub(super) fn take(&mut self, plan: &Plan, leaf: usize, bytes: u64) {
        let spec = &plan.leaves[leaf];
        let weight = self.weight(plan, leaf);
        let less = per_weight(bytes, self.inverse(plan, leaf));
        let parent = &mut self.inners[usize::from(spec.parent)];
        let state = &mut self.leaves[leaf];
        state.finish = state.finish.wrapping_sub(less);
        parent.hasten(spec.child, weight, state.finish);
        let mut index = usize::from(spec.parent);
        while index != 0 {
            let spec = &plan.inners[index];
            let parent = usize::from(spec.parent);
            let state = &mut self.inners[index];
            if plan.inners[parent].is_priority {
                state.finish = state.finish.saturating_sub(bytes << UNIT_BITS);
                if state.finish == 0 {
                    self.inners[parent].busy &= !(1 << spec.child);
                }
            } else {
                state.finish = state.finish.wrapping_sub(per_weight(bytes, spec.inverse));
                let finish = state.finish;
                self.inners[parent].hasten(spec.child, spec.weight, finish);
            }
            index = parent;
        }
    }
}

/// One pass over all busy children of a node: which of them finish within `step`?
struct Round {
    v: u64,
    step: u64,
    busy: u64,
    weight: u64,
    served: u64,
    longest: u64,
    nearest: u64,
}

impl Round {
    fn new(state: &super::InnerState, step: u64) -> Round {
        let super::InnerState { v, busy, weight, .. } = *state;
        Round { v, step, busy, weight: weight.into(), served: 0, longest: 0, nearest: u64::MAX }
    }

    /// Without a branch, as the set of children that finish is as good as random.
    #[inline(always)]
    fn judge(&mut self, child: usize, finish: u64, weight: u16) {
        let ahead = finish.wrapping_sub(self.v);
        let done = u64::from(ahead <= self.step);
        let mask = done.wrapping_neg();
        let weight = u64::from(weight);
        self.served += (weight * ahead) & mask;
        self.longest = self.longest.max(ahead & mask);
        self.nearest = self.nearest.min(ahead | mask);
        self.busy &= !(done << child);
        self.weight -= weight & mask;
    }
}

fn range(first: u8, count: u8) -> std::ops::Range<usize> {
    usize::from(first)..usize::from(first) + usize::from(count)
}

/// The lowest `count` bits.
fn low_bits(count: u8) -> u64 {
    match count {
        64.. => u64::MAX,
        _ => (1 << count) - 1,
    }
}

/// The indices of the bits that are set.
fn ones(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then_some(set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}

impl super::InnerState {
    /// Whether a child has a backlog.
    #[inline(always)]
    pub(super) fn is_busy(&self, child: u8) -> bool {
        self.busy & (1 << child) != 0
    }

    /// Makes a child of this weighted node busy.
    #[inline(always)]
    fn welcome(&mut self, child: u8, weight: u16, finish: u64) {
        let ahead = finish.wrapping_sub(self.v);
        if self.busy == 0 || ahead < self.nearest.wrapping_sub(self.v) {
            self.nearest = finish;
        }
        self.busy |= 1 << child;
        self.weight += weight;
    }

    /// Lets a busy child of this weighted node finish earlier than it would have.
    fn hasten(&mut self, child: u8, weight: u16, finish: u64) {
        if !self.is_busy(child) {
            return;
        }
        let ahead = finish.wrapping_sub(self.v) as i64;
        if ahead <= 0 {
            self.busy &= !(1 << child);
            self.weight -= weight;
        } else if (ahead as u64) < self.nearest.wrapping_sub(self.v) {
            self.nearest = finish;
        }
    }
}
