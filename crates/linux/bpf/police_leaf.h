/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The leaf of a flow: crates/core/src/phantom/aggregate/flows.rs, step by step. */
#pragma once

/* Number of leaves that a flow may choose from. */
#define WAYS 8
/* An epoch is 2^30 ns. */
#define EPOCH_SHIFT 30
/* The sent volume is in the bits above the age, and the tag in those above the sent volume. */
#define SENT_SHIFT 2
#define SENT_MAX 127ull
#define TAG_SHIFT 9
#define TAG_BITS (LANE_BITS - TAG_SHIFT)
#define TAG_MASK ((1ull << TAG_BITS) - 1)

/* The lowest bit of the lane with this flow's tag, or 0. */
static __always_inline __u64 flows_find(__u64 flows, __u64 tag)
{
	__u64 others = (flows ^ (tag << TAG_SHIFT) * LANES_LOW) >> TAG_SHIFT & TAG_MASK * LANES_LOW;

	return flows_taken(flows) & ~((others + TAG_MASK * LANES_LOW) >> TAG_BITS);
}

/* The lowest bit of the first vacant lane, or 0. */
static __always_inline __u64 flows_vacant(__u64 flows)
{
	__u64 vacant = ~flows_taken(flows) & LANES_LOW;

	return vacant & -vacant;
}

/* Puts a flow that has sent `sent` into a lane. */
static __always_inline __u64 flows_put(__u64 flows, __u64 lane, __u64 tag, __u64 sent)
{
	return (flows & ~(lane * LANE_MASK)) | lane * (tag << TAG_SHIFT | sent << SENT_SHIFT | AGE_MASK);
}

/* The number of a lane, from 1 on; 0 for none. */
static __always_inline __u64 lane_number(__u64 lane)
{
	return (lane & 1) + (lane >> LANE_BITS & 1) * 2 + (lane >> 2 * LANE_BITS) * 3;
}

/* The volume that the flow of a lane has sent. */
static __always_inline __u64 flows_sent(__u64 flows, __u64 lane)
{
	__u64 shift = (lane >> LANE_BITS & 1) * LANE_BITS + (lane >> 2 * LANE_BITS) * 2 * LANE_BITS;

	return flows >> (shift + SENT_SHIFT) & SENT_MAX;
}

/* Adds `more` to what the flow of a lane has sent, and makes the flow young. */
static __always_inline __u64 flows_see(__u64 flows, __u64 lane, __u64 more)
{
	more = smaller(more, SENT_MAX - flows_sent(flows, lane));
	return (flows + more * (lane << SENT_SHIFT)) | lane * AGE_MASK;
}

/* Halves what all flows have sent. */
static __always_inline __u64 flows_halve(__u64 flows)
{
	__u64 all = LANES_LOW * (SENT_MAX << SENT_SHIFT);

	return (flows & ~all) | ((flows & all) >> 1 & LANES_LOW * (SENT_MAX >> 1 << SENT_SHIFT));
}

/* The first lane whose flow has sent most; no lane is vacant. */
static __always_inline __u64 flows_fattest(__u64 flows)
{
	__u64 first = flows_sent(flows, 1) << 2 | 2, second = flows_sent(flows, 1ull << LANE_BITS) << 2 | 1;
	__u64 best = larger(larger(first, second), flows_sent(flows, 1ull << 2 * LANE_BITS) << 2);

	return 1ull << (2 - (best & 3)) * LANE_BITS;
}

/* Makes all flows older by one epoch. */
static __always_inline __u64 flows_age(__u64 flows)
{
	__u64 high = flows >> 1 & LANES_LOW, low = flows & LANES_LOW;

	return (flows & ~(LANES_LOW * AGE_MASK)) | (high & low) << 1 | (high & ~low);
}

/* Changes the flows, and so the weight, of a settled leaf, which keeps its backlog. */
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

/* Writes to arrival->leaf the leaf that has the flow or is to have it. arrival->place becomes 0 if
 * the leaf has the flow (with its lane), else one more than the number of flows in that leaf. The
 * values go to memory, so that the verifier forgets the paths. */
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
		state->flows = flows_see(state->flows, lane, arrival->sent);
		arrival->lane = lane_number(lane);
		return;
	}
	for (__u64 nth = 0; nth < WAYS; nth++) {
		state = leaf_of(s, at);
		lane = flows_find(state->flows, tag);
		/* 0 if the leaf has the flow, else one more than its number of flows. */
		key = (1 - lanes_set(lane)) * (1 + lanes_set(flows_taken(state->flows)));
		key = key << 16 | nth << 8 | at;
		more = key - best;
		best += more & -(more >> 63);
		at++;
		at -= count & -(1 - ((at - (spec->class_first + count)) >> 63));
	}
	state = leaf_of(s, best & 0xff);
	lane = flows_find(state->flows, tag);
	state->flows = flows_see(state->flows, lane, arrival->sent);
	arrival->lane = lane_number(lane);
	arrival->leaf = best & 0xff;
	arrival->place = best >> 16;
}

/* Adds a new flow to a settled leaf with fewer flows than lanes. */
static __always_inline void remember(const struct state *s, const struct police_plan *plan, __u32 leaf,
				     struct arrival *arrival)
{
	__u64 flows = leaf_of(s, leaf)->flows, lane = flows_vacant(flows);

	reweigh(s, plan, leaf, flows_put(flows, lane, arrival->flow & TAG_MASK, arrival->sent));
	arrival->lane = lane_number(lane);
}

/* A leaf without a vacant lane replaces the flow that sent most by the new one, unless that fattest flow is
 * thin. The new flow counts as if it had sent just too much. Without branches, like the code below. */
static __always_inline void remember_instead(const struct state *s, const struct police_plan *plan, __u32 leaf,
					     struct arrival *arrival, __u64 place, __u64 share)
{
	struct police_leaf *state = leaf_of(s, leaf);
	__u64 lane = flows_fattest(state->flows), sent = share / ((__u64)LANES << plan->sent_shift) + 1;
	__u64 is_new = (LANES - place) >> 63, is_thin = (flows_sent(state->flows, lane) - smaller(sent, SENT_MAX)) >> 63;

	lane *= is_new & ~is_thin;
	sent = smaller(sent + arrival->sent, SENT_MAX);
	state->flows = flows_put(state->flows, lane, arrival->flow & TAG_MASK, sent);
	arrival->lane |= lane_number(lane);
}

/* Whether the flow shares its leaf and has sent at most its part of the leaf's share of a window
 * (bytes in this window, plus halved sums of earlier ones), and `room`, bytes, is not negative. */
static __always_inline int is_thin(const struct state *s, const struct police_plan *plan, __u32 leaf,
				   const struct arrival *arrival, __u64 share, __u64 room)
{
	__u64 flows = leaf_of(s, leaf)->flows, lane = *(volatile __u8 *)&arrival->lane;
	__u64 sent = flows >> (lane * LANE_BITS - LANE_BITS + SENT_SHIFT) & SENT_MAX;
	__u64 count = lanes_set(flows_taken(flows)), all = (sent << plan->sent_shift) * count;

	/* A difference is negative if its condition fails. */
	return !(((lane - 1) | (count - 2) | (SENT_MAX - 1 - sent) | (share - all) | room) >> 63);
}

/* Ages the flows of all leaves by the epochs between two times; all nodes are settled. */
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
