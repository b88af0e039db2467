/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Marks: while a divider divides, the first packet of a flow that leaves, and then one per second, gets the DSCP of the
 * flow's class. Packets that already have a DSCP keep it. crates/core/src/agreement says what marks are for.
 */
#pragma once

#define MARK_EACH_NS 1000000000ull
#define TCP_FLAGS_AT 13

/* The DSCP of each class; 0 is none. Written by user space with an agreement, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct marks);
} marks SEC(".maps");

struct marked {
	__u64 at; /* ns */
	__u64 mark;
};

/* When a flow was last marked, and with what. Written and read here. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct marked);
} marked_flows SEC(".maps");

/* Whether a packet opens a connection. */
static __always_inline int is_opening(struct __sk_buff *skb, const struct packet *p)
{
	__u8 flags;

	return p->transport == IPPROTO_TCP && p->has_ports &&
	       !load(skb, p->transport_at + TCP_FLAGS_AT, &flags) && flags & TCP_FLAG_SYN;
}

/* Whether this packet gets a mark; if so, that is recorded. */
static __always_inline int takes_mark(struct __sk_buff *skb, const struct packet *p, __u64 mark)
{
	struct marked now = { .at = bpf_ktime_get_coarse_ns(), .mark = mark }, *last;
	struct flow_key key = {};

	flow_key(&key, p, 0);
	last = bpf_map_lookup_elem(&marked_flows, &key);
	if (last && last->mark == mark && now.at - last->at < MARK_EACH_NS && !is_opening(skb, p))
		return 0;
	bpf_map_update_elem(&marked_flows, &key, &now, BPF_ANY);
	return 1;
}
