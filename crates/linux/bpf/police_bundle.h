/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A bundle: a packet of the free class that finds its queue full is put into the queue of a stunt.
 * crates/core/src/phantom/aggregate/bundle/mod.rs is the specification; this code does the same steps.
 */
#pragma once

/* A stunt pays at most 1/LENT_PART of its share in a window. */
#define LENT_PART 2
/* A stunt is asked while at least 1/LENT_FULL of its queue is full. */
#define LENT_FULL 4

/* Whether a child of a node has a backlog. No branches here and below: the verifier looks at all paths. */
static __always_inline __u64 is_busy(const struct police_inner *node, __u32 child)
{
	return node->busy >> (child & 63) & 1;
}

/* The part of `share` that a child gets, itself counted as busy. */
static __always_inline __u64 evenly(const struct police_inner *node, __u32 child, __u64 weight, __u64 share)
{
	return share * weight / (node->weight + weight * (1 - is_busy(node, child)));
}

/* The part of the rate in a window that a leaf's parent gets; above the leaf are weighted nodes only. */
static __always_inline __u64 share_of_parent(const struct state *s, const struct police_plan *plan,
					     __u32 leaf)
{
	__u32 lower = plan_leaf(plan, leaf)->parent, upper = plan_inner(plan, lower)->parent;
	__u64 share = larger(s->pace->window_bytes, s->head->window_bytes);
	const struct police_plan_inner *spec;

	/* The root has no parent: it gets the whole share. */
	spec = plan_inner(plan, upper);
	if (upper)
		share = evenly(inner_of(s, 0), spec->child, spec->weight, share);
	spec = plan_inner(plan, lower);
	if (lower)
		share = evenly(inner_of(s, upper), spec->child, spec->weight, share);
	return share;
}

/* The part of its parent's `share` that a leaf gets. */
static __always_inline __u64 share_of_leaf(const struct state *s, const struct police_plan *plan, __u32 leaf,
					   __u64 share)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);

	return evenly(inner_of(s, spec->parent), spec->child, weight_of(s, plan, leaf), share);
}

/* The backlog of a leaf, in bytes. */
static __always_inline __u64 waiting_of(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	const struct police_inner *parent = inner_of(s, spec->parent);

	return is_busy(parent, spec->child) * weight_of(s, plan, leaf) *
		       (leaf_of(s, leaf)->finish - parent->v) >> UNIT_BITS;
}

/* Whether a packet fits in the free class's own queue; its path is settled. */
static __always_inline int is_own(const struct state *s, const struct police_plan *plan, __u64 size)
{
	__u64 share = share_of_leaf(s, plan, plan->free, share_of_parent(s, plan, plan->free));

	share = smaller(larger(share, ALLOWANCE_MAX), s->pace->limit);
	return waiting_of(s, plan, plan->free) + size <= share;
}

/* Whether a stunt can pay; its path is settled, and it has paid `lent` in this window. */
static __always_inline int can_pay(const struct state *s, const struct police_plan *plan, __u32 leaf,
				   __u64 above, __u64 lent, __u64 size)
{
	__u64 share = share_of_leaf(s, plan, leaf, above), waiting = waiting_of(s, plan, leaf);
	__u64 limit = s->pace->limit;

	/* A difference is negative if its condition fails. */
	return !(((waiting - larger(limit / LENT_FULL, ALLOWANCE_MIN)) | (limit + share - waiting - size) |
		  (share / LENT_PART - lent - size)) >> 63);
}

/* Writes to arrival->payer and arrival->leaf whose queue takes a packet of the free class. Paths
 * are settled. The values go to memory, so that the verifier forgets the paths that led to them. */
static __always_inline void find_payer(const struct state *s, const struct police_plan *plan,
				       struct police_lending *lending, struct arrival *arrival, __u64 size)
{
	__u32 count = plan->stunt_count, at = lending->turn, lent;
	__u64 above;

	if (is_own(s, plan, size))
		return;
	if (lending->window_at != (s->head->window_at & ~WINDOW_FLAGS)) {
		lending->window_at = s->head->window_at & ~WINDOW_FLAGS;
		for (__u32 i = plan->zero & 127; i < count && can_loop; i = (i + 1) & 127)
			lending->lent[i & (POLICE_LEAVES_MAX - 1)] = 0;
	}
	arrival->payer = PAYER_NONE;
	above = share_of_parent(s, plan, plan->stunt_first);
	for (__u32 nth = plan->zero & 127; nth < count && can_loop; nth = (nth + 1) & 127) {
		if (at >= count)
			at = 0;
		lent = lending->lent[at & (POLICE_LEAVES_MAX - 1)];
		if (can_pay(s, plan, plan->stunt_first + at, above, lent, size)) {
			lending->lent[at & (POLICE_LEAVES_MAX - 1)] = lent + size;
			arrival->leaf = plan->stunt_first + at;
			arrival->payer = PAYER_STUNT;
			break;
		}
		at = (at + 1) & 127;
	}
	if (arrival->payer == PAYER_STUNT)
		lending->turn = at + 1;
}

/* Charges a packet of the free class that its target lets pass, to its own queue or a stunt's. */
static __always_inline enum verdict charge_bundle(const struct state *s, const struct police_plan *plan,
						  struct police_lending *lending, struct arrival *arrival)
{
	__u64 size = arrival->size < SIZE_MAX ? arrival->size : SIZE_MAX, gate_at;
	struct police_leaf *state;
	__u32 leaf;

	gate_at = pass_gate(s, plan, arrival->now, size);
	if (!gate_at)
		return VERDICT_DROP;
	settle(s, plan, arrival->now, path_to(s, plan, plan->free) | path_to(s, plan, plan->stunt_first));
	find_payer(s, plan, lending, arrival, size);
	leaf = *(volatile __u32 *)&arrival->leaf;
	if (*(volatile __u8 *)&arrival->payer == PAYER_NONE)
		return VERDICT_PASS;
	state = leaf_of(s, leaf);
	s->head->gate_at = gate_at;
	put(s, plan, leaf, size);
	state->accepted += size;
	state->after = add_capped(state->after, size);
	return *(volatile __u8 *)&arrival->aimed;
}
