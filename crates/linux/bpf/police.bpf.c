// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Polices subscribers: finds the subscriber of each frame, and decides at once, by the subscriber's
 * plan and state, whether the frame passes, is marked or is dropped. A frame passes untouched if it
 * is not understood, has no subscriber, or meets an incomplete table.
 *
 * The same decision runs at XDP and at tcx ingress and egress. The programs are loaded once per
 * hook, with its settings as constants, and share the maps.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "police_abi.h"
#include "police_maps.h"

/* Constants of the hook, set before loading. */
const volatile struct police_settings settings SEC(".rodata.settings") = {};

#include "packet.h"
#include "tos.h"
#include "police_flow.h"
#include "police_arrival.h"
#include "police_lookup.h"
#include "police_node.h"
#include "police_leaf.h"
#include "police_aggregate.h"
#include "police_bundle.h"
#include "police_decide.h"
#include "police_client.h"
#include "police_segment.h"

#define TC_ACT_SHOT 2
#define VLAN_HLEN 4
#define ECN_NOT_ECT 0

static __always_inline __u64 read_clock(void)
{
	__u32 zero = 0;
	__u64 *clock;

	if (!settings.is_trial)
		return bpf_ktime_get_ns();
	clock = bpf_map_lookup_elem(&trial_clock, &zero);
	return clock ? *clock : 0;
}

/* Whether the deadline that user space must keep extending has passed. A deadline of 0 never
 * passes, since 0 - 1 is the largest number. */
static __always_inline int is_abandoned(__u64 now)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&deadline, &zero);

	return until && *(volatile __u64 *)until - 1 < now - 1;
}

/* A packet's size on the wire; at least one byte. */
static __always_inline __u32 wire_size(__u32 length)
{
	__s32 size = length + settings.overhead;

	if (!settings.has_ethernet)
		size += ETH_HLEN;
	return size > 0 ? size : 1;
}

/* Handles a packet of `size` bytes that stands for `packets`. Changes of its traffic class are
 * written to `*tos`. */
static __always_inline enum verdict police(const struct flow *flow, __u32 size, __u32 packets,
					   struct tos_change *tos)
{
	struct arrival arrival = { .size = size, .can_be_marked = flow->ecn != ECN_NOT_ECT };
	struct police_entry *entry = find_entry(flow);
	enum verdict verdict = VERDICT_PASS;
	struct police_member *member = 0;
	struct police_plan *plan;
	__u32 number = 0, seat, choice;

	if (entry) {
		number = entry->plan & (POLICE_PLANS - 1);
		seat = entry->plan >> POLICE_PLAN_BITS;
		plan = find_plan(number);
		arrival.now = read_clock();
		if (plan && plan->kind != POLICE_KIND_NONE && !is_abandoned(arrival.now)) {
			choice = find_choice(plan, flow);
			if (has_clients() && plan->is_client) {
				if (!settings.is_upload)
					plan = as_agreed(plan, flow, entry->slot, &arrival, &choice);
				else if (take_mark(flow, entry->slot, &arrival))
					tos->clear = TOS_DSCP;
			}
			arrival.leaf = find_leaf(plan, flow, choice, &arrival);
			if (seat)
				member = bpf_map_lookup_elem(&members, &seat);
			verdict = member ? decide_in_segment(member, entry->slot, plan, &arrival) :
					   decide(entry->slot, plan, &plan->pace, &arrival);
		}
	}
	count(number, verdict, arrival.payer, arrival.size, packets);
	if (verdict == VERDICT_MARK)
		tos->set = ECN_CE;
	return verdict;
}

static __always_inline int police_frame(struct xdp_md *xdp)
{
	struct frame frame = { (void *)(long)xdp->data, (void *)(long)xdp->data_end, 0 };
	struct tos_change tos = {};
	struct packet p = {};
	struct flow flow = {};

	if (!read_frame(&frame, &p, settings.has_ethernet))
		return XDP_PASS;
	describe_flow(&frame, &p, &flow, settings.is_upload);
	if (police(&flow, wire_size(bpf_xdp_get_buff_len(xdp)), 1, &tos) == VERDICT_DROP)
		return XDP_DROP;
	if (tos.clear | tos.set)
		change_tos_xdp(&frame, &p, tos);
	return XDP_PASS;
}

SEC("xdp.frags")
int police_xdp(struct xdp_md *xdp)
{
	return police_frame(xdp);
}

SEC("tc")
int police_skb(struct __sk_buff *skb)
{
	__u32 tag = skb->vlan_present ? VLAN_HLEN : 0, size, header, segments = 1;
	struct tos_change tos = {};
	struct flow flow = {};
	struct frame frame;
	struct packet p;

	if (!read_skb(skb, &frame, &p, settings.has_ethernet))
		return TC_ACT_UNSPEC;
	describe_flow(&frame, &p, &flow, settings.is_upload);
	size = wire_size(skb->len + tag);
	if (skb->gso_size) {
		segments = count_segments(skb, &frame, &p, &header);
		size += (segments - 1) * wire_size(header + tag);
	}
	if (police(&flow, size, segments, &tos) == VERDICT_DROP)
		return TC_ACT_SHOT;
	if (tos.clear | tos.set)
		change_tos_skb(skb, &p, tos);
	return TC_ACT_UNSPEC;
}

#include "police_bench.h"

char _license[] SEC("license") = "Dual BSD/GPL";
