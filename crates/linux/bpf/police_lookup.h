/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The subscriber of a packet, and the leaf of the plan that it goes to. */
#pragma once

#include "binding.h"

static __always_inline struct police_entry *find_prefix4(const struct flow *flow)
{
	struct police_key4 key = { .length = 32, .address = bpf_htonl(flow->local[0]) };

	return bpf_map_lookup_elem(&prefixes4, &key);
}

static __always_inline struct police_entry *find_prefix6(const __u32 *address)
{
	struct police_key6 key = { .length = 128 };

	__builtin_memcpy(key.address, address, sizeof(key.address));
	return bpf_map_lookup_elem(&prefixes6, &key);
}

/* The subscriber's entry, or 0 if the address belongs to no subscriber. */
static __always_inline struct police_entry *find_entry(const struct flow *flow)
{
	__u32 address[4], zero = 0;
	struct police_entry *entry = 0;
	struct police_prefixes *shorter;
	void *room;

	if (flow->is_ip6) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			address[i] = bpf_htonl(flow->local[i]);
		room = bpf_map_lookup_elem(&addresses6, &zero);
		if (room)
			entry = bpf_map_lookup_elem(room, address);
	} else {
		address[0] = bpf_htonl(flow->local[0]);
		room = bpf_map_lookup_elem(&addresses4, &zero);
		if (room)
			entry = bpf_map_lookup_elem(room, address);
	}
	if (entry)
		return entry;
	shorter = bpf_map_lookup_elem(&prefixes, &zero);
	if (!shorter)
		return 0;
	if (flow->is_ip6)
		return shorter->count6 ? find_prefix6(address) : 0;
	return shorter->count4 ? find_prefix4(flow) : 0;
}

static __always_inline struct police_plan *find_plan(__u32 number)
{
	__u64 *place = bpf_map_lookup_elem(&places, &number);
	__u32 at;

	if (!place)
		return 0;
	at = *(volatile __u64 *)place;
	return bpf_map_lookup_elem(&plans, &at);
}

/* As core::phantom::flow, like all functions below. */
static __always_inline __u32 flow_hash(const struct flow *flow)
{
	__u32 hash = mix(0x66616972u, flow->protocol);

	hash = mix(hash, flow->port_remote << 16 | flow->port_local);
	if (flow->is_ip6) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			hash = mix(hash, flow->remote[i]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			hash = mix(hash, flow->local[i]);
	} else {
		hash = mix(mix(hash, flow->remote[0]), flow->local[0]);
	}
	return hash ^ (hash >> 16);
}

static __always_inline int fits(const struct police_criterion *one, const struct flow *flow)
{
	__u32 port = one->kind == POLICE_MATCH_PORT_REMOTE ? flow->port_remote : flow->port_local;
	__u32 differ = 0;

	if (one->kind == POLICE_MATCH_DSCP)
		return one->first == flow->dscp;
	if (one->kind == POLICE_MATCH_IP) {
		if (one->is_ip6 != flow->is_ip6)
			return 0;
#pragma unroll
		for (int i = 0; i < 4; i++)
			differ |= (flow->remote[i] ^ one->address[i]) & one->mask[i];
		return !differ;
	}
	/* Packets of a protocol without ports have port 0. */
	if (one->protocol && one->protocol != flow->protocol)
		return 0;
	return port && port >= one->first && port <= one->last;
}

/* The class of a packet by the criteria of its plan. */
static __always_inline __u32 find_choice(const struct police_plan *plan, const struct flow *flow)
{
	__u32 count = plan->criterion_count, choice = plan->choice_default;

	for (__u32 i = 0; i < POLICE_CRITERIA_MAX; i++) {
		if (i >= count)
			break;
		if (fits(&plan->criteria[i], flow)) {
			choice = plan->criteria[i].choice;
			break;
		}
	}
	return choice;
}

/* The leaf of a packet of this class. Writes to `arrival` the class and, if it has several leaves,
 * the flow's hash. */
static __always_inline __u32 find_leaf(const struct police_plan *plan, const struct flow *flow,
				       __u32 choice, struct arrival *arrival)
{
	if (choice >= POLICE_LEAVES_MAX)
		return 0;
	arrival->choice = choice;
	if (plan->choices[choice].count == 1)
		return plan->choices[choice].first;
	arrival->flow = flow_hash(flow);
	return plan->choices[choice].first + ((__u64)arrival->flow * plan->choices[choice].count >> 32);
}
