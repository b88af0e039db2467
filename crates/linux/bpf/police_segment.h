/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A segment's gate and its members' guarantees: core::phantom::segment. Programs on several CPUs
 * add to the same schedules. When they collide at a schedule that is behind the clock, a packet may
 * not be counted; at a full schedule every packet is counted.
 */
#pragma once

/* Whether a packet may pass now if the schedule is taken up to `at`. */
static __always_inline int has_room(__u64 cost, __u64 slack, __u64 at, __u64 now)
{
	return cost && at <= now + slack;
}

/* Adds a packet to the schedule that is taken up to `at`. */
static __always_inline void charge(__u64 *at, __u64 cost, __u64 now, __u64 size)
{
	if (*(volatile __u64 *)at < now)
		*(volatile __u64 *)at = now;
	__sync_fetch_and_add(at, size * cost >> GATE_SHIFT);
}

/* Decides about a packet of a member: a packet that finds the gate full passes only within the member's
 * guarantee. */
static __always_inline enum verdict decide_in_segment(struct police_member *member, __u32 slot,
						      const struct police_plan *plan,
						      struct arrival *arrival)
{
	const struct police_pace *pace = &member->pace;
	struct police_segment *segment;
	enum verdict verdict;
	int is_guaranteed;
	__u32 number = member->segment;

	segment = bpf_map_lookup_elem(&segments, &number);
	if (!segment)
		return VERDICT_PASS;
	is_guaranteed = has_room(member->cost, member->slack, member->at, arrival->now);
	if (!is_guaranteed && !has_room(segment->cost, segment->slack, segment->at, arrival->now)) {
		__sync_fetch_and_add(&member->refused, 1);
		return VERDICT_DROP;
	}
	if (arrival->now >= segment->until)
		pace = &plan->pace;
	verdict = decide(slot, plan, pace, arrival);
	if (verdict == VERDICT_DROP)
		return verdict;
	if (is_guaranteed)
		charge(&member->at, member->cost, arrival->now, arrival->size);
	charge(&segment->at, segment->cost, arrival->now, arrival->size);
	__sync_fetch_and_add(&member->passed, arrival->size);
	return verdict;
}
