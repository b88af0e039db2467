/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Service and backlog of the tree's nodes: crates/core/src/phantom/aggregate/node.rs, step by step.
 *
 * Indices come from the plan and are valid; the masks tell the verifier so. A tree has at most
 * three levels of inner nodes, so above a leaf's parent there are the root and one more.
 */
#pragma once

#define UNIT_BITS 24
/* Half a byte, in units. */
#define HALF (1ull << (UNIT_BITS - 1))

/* The state of a subscriber, independent of its slot's size, and its pace. */
struct state {
	const struct police_pace *pace;
	struct police_head *head;
	struct police_inner *inners;
	struct police_leaf *leaves;
	__u32 inner_max; /* all bits of an index that may be set */
	__u32 leaf_max;
};

static __always_inline struct police_inner *inner_of(const struct state *s, __u32 index)
{
	return s->inners + (index & s->inner_max);
}

static __always_inline struct police_leaf *leaf_of(const struct state *s, __u32 index)
{
	return s->leaves + (index & s->leaf_max);
}

/* A plan has five inner nodes, which the plan's leaves follow. */
static __always_inline const struct police_plan_inner *plan_inner(const struct police_plan *plan,
								   __u32 index)
{
	return plan->inners + (index & 7);
}

static __always_inline const struct police_plan_leaf *plan_leaf(const struct police_plan *plan,
								 __u32 index)
{
	return plan->leaves + (index & (POLICE_LEAVES_MAX - 1));
}

/* For loops over inner nodes: the verifier must not know the first index, so that it is done after
 * two turns. */
static __always_inline __u32 first_inner(const struct police_plan *plan)
{
	return plan->zero & 7;
}

static __always_inline __u32 next_inner(__u32 index)
{
	return (index + 1) & 7;
}

static __always_inline __u64 bit(__u32 child)
{
	return 1ull << (child & 63);
}

static __always_inline __u64 less(__u64 from, __u64 what)
{
	return from > what ? from - what : 0;
}

/* The larger and the smaller of two numbers below 2^63. Without branches, like the code below. */
static __always_inline __u64 larger(__u64 one, __u64 other)
{
	__u64 more = one - other;

	return other + (more & ((more >> 63) - 1));
}

static __always_inline __u64 smaller(__u64 one, __u64 other)
{
	return one + other - larger(one, other);
}

static __always_inline __u32 add_capped(__u32 to, __u32 more)
{
	__u32 sum = to + more;

	return sum < to ? ~0u : sum;
}

static __always_inline __u64 per_weight(__u64 bytes, __u64 inverse)
{
	return bytes * inverse >> (32 - UNIT_BITS);
}

/* The number of the lowest set bit, for which BPF has no instruction. Source: Leiserson et al.,
 * Using de Bruijn sequences to index a 1 in a computer word. */
static __always_inline __u32 lowest(__u64 word)
{
	static const __u8 numbers[64] = {
		0,  1,	2,  53, 3,  7,	54, 27, 4,  38, 41, 8,	34, 55, 48, 28, 62, 5,	39, 46, 44, 42,
		22, 9,	24, 35, 59, 56, 49, 18, 29, 11, 63, 52, 6,  26, 37, 40, 33, 47, 61, 45, 43, 21,
		23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12,
	};

	return numbers[(word & -word) * 0x022fdd63cc95386dull >> 58];
}

/* A leaf's flows: three lanes of 21 bits, each with 12 bits of a flow's hash, 7 bits of the sent
 * volume and 2 bits of age; see core::phantom::aggregate::flows. */
#define LANES 3
#define LANE_BITS 21
#define LANE_MASK ((1ull << LANE_BITS) - 1)
#define AGE_MASK 3ull
#define LANES_LOW (1 | 1ull << LANE_BITS | 1ull << 2 * LANE_BITS)

/* How many of the lanes' lowest bits are set. */
static __always_inline __u32 lanes_set(__u64 lanes)
{
	return (lanes + (lanes >> LANE_BITS) + (lanes >> 2 * LANE_BITS)) & AGE_MASK;
}

/* The lowest bits of the taken lanes. */
static __always_inline __u64 flows_taken(__u64 flows)
{
	return (flows | flows >> 1) & LANES_LOW;
}

/* The weight of a leaf: its number of flows, at least one. Without branches, here and below: the
 * verifier looks at all paths. */
static __always_inline __u64 flows_weight(__u64 flows)
{
	__u64 count = lanes_set(flows_taken(flows));

	return count + ((count - 1) >> 63);
}

/* The weight of a leaf at its parent: its plan weight times its flows. The leaves of a class with
 * several have plan weight 1; a leaf alone in its class has no flows. */
static __always_inline __u64 weight_of(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	if (!s->leaf_max)
		return plan_leaf(plan, leaf)->weight;
	return plan_leaf(plan, leaf)->weight * flows_weight(leaf_of(s, leaf)->flows);
}

/* 2^32 / 3 minus 2^32 / 4. */
#define THIRD_MORE (0x55555555ull - 0x40000000ull)

/* 2^32 / weight_of, rounded down. */
static __always_inline __u64 inverse_of(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	__u64 inverse = plan_leaf(plan, leaf)->inverse, flows;

	if (!s->leaf_max)
		return inverse;
	flows = flows_weight(leaf_of(s, leaf)->flows);
	return (inverse >> ((flows - 1) & 3)) + (flows >> 1 & flows & 1) * THIRD_MORE;
}

/* The parent of a leaf or an inner node; where there is room for one inner node only, it is the root. */
#define parent_of(s, spec) ((s)->inner_max ? (spec)->parent : 0)

/* The amount of service that serves a node completely. */
#define ALL (~0ull)

/* The first busy child takes all that it can use, the next child takes of the rest, and so on. */
static __always_inline void serve_in_order(const struct state *s, const struct police_plan *plan,
					   __u32 index, __u64 units)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	struct police_inner *inner = inner_of(s, index), *child;
	__u64 busy = inner->busy, given;
	__u32 nth;

	while (busy && units && can_loop) {
		nth = lowest(busy);
		busy &= busy - 1;
		child = inner_of(s, spec->inner_first + nth);
		given = child->finish < units ? child->finish : units;
		child->finish -= given;
		child->seen += given;
		child->used = add_capped(child->used, (given + HALF) >> UNIT_BITS);
		units -= given;
		if (!child->finish)
			inner->busy &= ~bit(nth);
	}
}

/* The result of dismissing children: the service that they got, and the longest distance to a finish. */
struct dismissal {
	__u64 served;
	__u64 longest;
};

/* Removes the children that finish within `step` of virtual time. */
static __always_inline struct dismissal dismiss(const struct state *s, const struct police_plan *plan,
						__u32 index, __u64 step)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	struct police_inner *inner = inner_of(s, index);
	__u64 v = inner->v, busy = inner->busy, nearest = ~0ull, finish, ahead;
	struct dismissal all = {};
	__u32 child, at, weight;

	while (busy && can_loop) {
		child = lowest(busy);
		busy &= busy - 1;
		if (!s->inner_max || child < spec->leaf_count) {
			at = spec->leaf_first + child;
			finish = leaf_of(s, at)->finish;
			weight = weight_of(s, plan, at);
		} else {
			at = spec->inner_first + child - spec->leaf_count;
			finish = inner_of(s, at)->finish;
			weight = plan_inner(plan, at)->weight;
		}
		ahead = finish - v;
		if (ahead <= step) {
			all.served += weight * ahead;
			if (ahead > all.longest)
				all.longest = ahead;
			inner->busy &= ~bit(child);
			inner->weight -= weight;
		} else if (ahead < nearest) {
			nearest = ahead;
		}
	}
	inner->nearest = v + nearest;
	return all;
}

/* All busy children get service by weight; what a child no longer needs goes to the others. */
static __always_inline void serve_by_weight(const struct state *s, const struct police_plan *plan,
					    __u32 index, __u64 units)
{
	struct police_inner *inner = inner_of(s, index);
	int is_all = units == ALL;
	struct dismissal all;
	__u64 step;

	units += inner->carry;
	while (can_loop) {
		step = is_all ? ALL : units / inner->weight;
		if (step < inner->nearest - inner->v) {
			inner->v += step;
			inner->carry = units - step * inner->weight;
			return;
		}
		all = dismiss(s, plan, index, step);
		if (!inner->busy) {
			inner->v += all.longest;
			inner->carry = 0;
			return;
		}
		units -= all.served;
	}
}

/* Gives a node this many units of service, or ALL. */
static __always_inline void serve(const struct state *s, const struct police_plan *plan, __u32 index,
				  __u64 units)
{
	if (!inner_of(s, index)->busy)
		return;
	if (s->inner_max && plan_inner(plan, index)->is_priority)
		serve_in_order(s, plan, index, units);
	else
		serve_by_weight(s, plan, index, units);
}

/* The service that a node is given: to the root for the elapsed time, to others by their settled parent. */
static __always_inline __u64 given_to(const struct state *s, const struct police_plan *plan, __u64 now,
				      __u32 index)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	struct police_inner *parent = inner_of(s, spec->parent), *inner = inner_of(s, index);
	__u64 given;

	if (!s->inner_max || !index) {
		given = less(now, s->head->at);
		if (given)
			s->head->at = now;
		return given >= s->pace->idle_after ? ALL : s->pace->rate * given;
	}
	if (!(parent->busy & bit(spec->child)))
		return ALL;
	if (plan_inner(plan, spec->parent)->is_priority) {
		given = inner->seen;
		inner->seen = 0;
	} else {
		given = spec->weight * (parent->v - inner->seen);
		inner->seen = parent->v;
	}
	return given;
}

/* Settles the nodes whose bits are set; parents precede their children. */
static __always_inline void settle(const struct state *s, const struct police_plan *plan, __u64 now,
				   __u64 nodes)
{
	if (!s->inner_max) {
		serve(s, plan, 0, given_to(s, plan, now, 0));
		return;
	}
	for (__u32 index = first_inner(plan); index < plan->inner_count && can_loop;
	     index = next_inner(index)) {
		if (nodes & bit(index))
			serve(s, plan, index, given_to(s, plan, now, index));
	}
}

/* The nodes from the root to a leaf's parent. */
static __always_inline __u64 path_to(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	__u32 lower = parent_of(s, plan_leaf(plan, leaf));

	return bit(0) | bit(lower) | bit(plan_inner(plan, lower)->parent);
}

/* The backlog of a leaf with a settled parent, in bytes, rounded down. */
static __always_inline __u64 backlog_of(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	const struct police_inner *parent = inner_of(s, parent_of(s, spec));

	if (!(parent->busy & bit(spec->child)))
		return 0;
	return weight_of(s, plan, leaf) * (leaf_of(s, leaf)->finish - parent->v) >> UNIT_BITS;
}

/* A child of this weighted node becomes busy. */
static __always_inline void welcome(struct police_inner *node, __u32 child, __u32 weight, __u64 finish)
{
	if (!node->busy || finish - node->v < node->nearest - node->v)
		node->nearest = finish;
	node->busy |= bit(child);
	node->weight += weight;
}

/* A busy child of this weighted node finishes earlier than it would have. */
static __always_inline void hasten(struct police_inner *node, __u32 child, __u32 weight, __u64 finish)
{
	__s64 ahead = finish - node->v;

	if (!(node->busy & bit(child)))
		return;
	if (ahead <= 0) {
		node->busy &= ~bit(child);
		node->weight -= weight;
	} else if ((__u64)ahead < node->nearest - node->v) {
		node->nearest = finish;
	}
}

/* Adds bytes to the parent's record of an inner node. Returns the parent. */
static __always_inline __u32 put_inner(const struct state *s, const struct police_plan *plan, __u32 index,
				       __u64 bytes)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	struct police_inner *parent = inner_of(s, spec->parent), *inner = inner_of(s, index);
	int is_busy = !!(parent->busy & bit(spec->child));

	if (plan_inner(plan, spec->parent)->is_priority) {
		if (!is_busy) {
			inner->finish = 0;
			inner->seen = 0;
		}
		inner->finish += bytes << UNIT_BITS;
		parent->busy |= bit(spec->child);
	} else if (is_busy) {
		inner->finish += per_weight(bytes, spec->inverse);
	} else {
		inner->finish = parent->v + per_weight(bytes, spec->inverse);
		inner->seen = parent->v;
		welcome(parent, spec->child, spec->weight, inner->finish);
	}
	return spec->parent;
}

/* Puts bytes into a leaf; the path is settled. */
static __always_inline void put(const struct state *s, const struct police_plan *plan, __u32 leaf,
				__u64 bytes)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	__u32 index = parent_of(s, spec);
	struct police_inner *parent = inner_of(s, index);
	struct police_leaf *state = leaf_of(s, leaf);
	__u64 more = per_weight(bytes, inverse_of(s, plan, leaf));

	if (!(parent->busy & bit(spec->child))) {
		state->finish = parent->v + more;
		state->magic = 0;
		state->after = 0;
		welcome(parent, spec->child, weight_of(s, plan, leaf), state->finish);
	} else {
		state->finish += more;
	}
	while (s->inner_max && index && can_loop)
		index = put_inner(s, plan, index, bytes);
}

/* Takes bytes out of the parent's record of an inner node. Returns the parent. */
static __always_inline __u32 take_inner(const struct state *s, const struct police_plan *plan, __u32 index,
					__u64 bytes)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	struct police_inner *parent = inner_of(s, spec->parent), *inner = inner_of(s, index);

	if (plan_inner(plan, spec->parent)->is_priority) {
		inner->finish = less(inner->finish, bytes << UNIT_BITS);
		if (!inner->finish)
			parent->busy &= ~bit(spec->child);
	} else {
		inner->finish -= per_weight(bytes, spec->inverse);
		hasten(parent, spec->child, spec->weight, inner->finish);
	}
	return spec->parent;
}

/* Takes bytes out of a leaf that has at least as many; all nodes are settled. */
static __always_inline void take(const struct state *s, const struct police_plan *plan, __u32 leaf,
				 __u64 bytes)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	struct police_leaf *state = leaf_of(s, leaf);
	__u32 index = parent_of(s, spec);

	state->finish -= per_weight(bytes, inverse_of(s, plan, leaf));
	hasten(inner_of(s, index), spec->child, weight_of(s, plan, leaf), state->finish);
	while (s->inner_max && index && can_loop)
		index = take_inner(s, plan, index, bytes);
}
