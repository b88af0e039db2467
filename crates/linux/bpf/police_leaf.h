/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which leaf a flow has: crates/core/src/phantom/aggregate/flows.rs, step by step. */
#pragma once

/* How many leaves a flow may choose from. */
#define WAYS 8
/* An epoch is 2^30 ns. */
#define EPOCH_SHIFT 30
#define TAG_BITS (LANE_BITS - 2)
#define TAG_MASK ((1ull << TAG_BITS) - 1)

/* The lowest bit of the lane that has a flow. */
static __always_inline __u64 flows_find(__u64 flows, __u64 tag)
{
	__u64 others = (flows ^ (tag << 2) * LANES_LOW) >> 2 & TAG_MASK * LANES_LOW;

	return flows_taken(flows) & ~((others + TAG_MASK * LANES_LOW) >> TAG_BITS);
}

/* Puts a flow into a vacant lane. */
static __always_inline __u64 flows_insert(__u64 flows, __u64 tag)
{
	__u64 vacant = ~flows_taken(flows) & LANES_LOW, lane = vacant & -vacant;

	return (flows & ~(lane * LANE_MASK)) | lane * (tag << 2 | AGE_MASK);
}

/* All flows are older by an epoch. */
static __always_inline __u64 flows_age(__u64 flows)
{
	__u64 high = flows >> 1 & LANES_LOW, low = flows & LANES_LOW;

	return (flows & ~(LANES_LOW * AGE_MASK)) | (high & low) << 1 | (high & ~low);
}

/* Changes the flows of a settled leaf, which keeps its backlog. */
static __always_inline void reweigh(const struct state *s, const struct police_plan *plan, __u32 leaf,
				    __u64 flows)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	struct police_inner *parent = inner_of(s, parent_of(s, spec));
	struct police_leaf *state = leaf_of(s, leaf);
	__u32 before = flows_weight(state->flows), after = flows_weight(flows);
	__u64 ahead;

	state->flows = flows;
	if (before == after || !(parent->busy & bit(spec->child)))
		return;
	ahead = (state->finish - parent->v) * before / after;
	state->finish = parent->v + ahead;
	parent->weight += after - before;
	if (ahead < parent->nearest - parent->v)
		parent->nearest = state->finish;
}

/* Writes to arrival->leaf which leaf a flow has or is to have, and to arrival->place 0 if it has it, else
 * one more than there are flows in that leaf. To memory, so that the verifier forgets on which ways that
 * was found out. */
static __always_inline void find_place(const struct state *s, const struct police_plan *plan,
					struct arrival *arrival)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, arrival->leaf);
	__u64 tag = arrival->flow & TAG_MASK, lane, at = arrival->leaf, count, best = 1ull << 32, key, more;
	struct police_leaf *state = leaf_of(s, at);

	count = spec->class_count;
	if (!s->leaf_max || count == 1)
		return;
	lane = flows_find(state->flows, tag);
	if (lane) {
		state->flows |= lane * AGE_MASK;
		return;
	}
	for (__u64 nth = 0; nth < WAYS; nth++) {
		state = leaf_of(s, at);
		lane = flows_find(state->flows, tag);
		/* 0 with the flow, else one more than there are. */
		key = (1 - lanes_set(lane)) * (1 + lanes_set(flows_taken(state->flows)));
		key = key << 16 | nth << 8 | at;
		more = key - best;
		best += more & -(more >> 63);
		at++;
		at -= count & -(1 - ((at - (spec->class_first + count)) >> 63));
	}
	state = leaf_of(s, best & 0xff);
	state->flows |= flows_find(state->flows, tag) * AGE_MASK;
	arrival->leaf = best & 0xff;
	arrival->place = best >> 16;
}

/* Makes the flows of all leaves older by the epochs between two times; all nodes are settled. */
static __always_inline void age_flows(const struct state *s, const struct police_plan *plan, __u64 before,
				      __u64 now)
{
	__u64 epochs = less(now >> EPOCH_SHIFT, before >> EPOCH_SHIFT), flows, old;

	if (!s->leaf_max || !epochs)
		return;
	for (__u32 leaf = plan->zero & 127; leaf < plan->leaf_count && can_loop; leaf = (leaf + 1) & 127) {
		old = leaf_of(s, leaf)->flows;
		if (!old)
			continue;
		flows = flows_age(old);
		if (epochs > 1)
			flows = flows_age(flows);
		if (epochs > 2)
			flows = flows_age(flows);
		reweigh(s, plan, leaf, flows);
	}
}
