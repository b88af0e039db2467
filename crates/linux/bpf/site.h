/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that are bound to classes one by one: see heard.h. This side is this host.
 *
 * Cost (benches/sites.rs): for each packet that arrives while the policy has sites a comparison with a
 * flow that came lately, which is mostly the packet's own, or else one look-up; the same for what is
 * sent if it has payload, and a look-up if it may be a request or opens a connection.
 */
#pragma once

typedef struct config hearing_config;
typedef struct counters hearing_counters;
#define HEARING __noinline

/* Where this CPU remembers the packet's flow; ports of connections are mostly even. */
static __always_inline struct recent *recent_place(const struct packet *p, int arrives)
{
	__u32 port = bpf_ntohs(arrives ? p->port_destination : p->port_source), zero = 0;
	struct recent_flows *last = bpf_map_lookup_elem(&recent_flows, &zero);

	return last ? &last->flows[(port ^ port >> 1) & (RECENT_MAX - 1)] : 0;
}

/* Whether the packet is of this flow. */
static __always_inline int is_of(const struct recent *recent, const struct packet *p, int arrives)
{
	const __be32 *remote = arrives ? p->source : p->destination;
	const __be32 *local = arrives ? p->destination : p->source;
	const struct flow_key *key = &recent->key;
	__u32 differ = key->remote[0] ^ remote[0];

	differ |= key->local[0] ^ local[0];
	differ |= key->port_remote ^ (arrives ? p->port_source : p->port_destination);
	differ |= key->port_local ^ (arrives ? p->port_destination : p->port_source);
	differ |= (key->family ^ p->family) | (key->transport ^ p->transport);
	if (p->family == AF_INET)
		return !differ;
#pragma unroll
	for (int i = 1; i < 4; i++)
		differ |= (key->remote[i] ^ remote[i]) | (key->local[i] ^ local[i]);
	return !differ;
}

/* Whether what is remembered is of the packet's flow, and still holds. */
static __always_inline int holds(const struct recent *recent, const struct packet *p,
				 const struct config *cfg, int arrives)
{
	return is_of(recent, p, arrives) && recent->heartbeat_ns == cfg->heartbeat_ns &&
	       recent->generation == cfg->generation;
}

/* Whether the packet, which leaves, is of a flow of which nothing is heard. */
static __always_inline int is_silent(const struct packet *p, const struct config *cfg)
{
	const struct recent *recent = recent_place(p, 0);

	return recent && recent->silent && holds(recent, p, cfg, 0);
}

/* What this CPU remembers of a flow that begins is of another use of its ports. */
static __always_inline void forget_recent(const struct packet *p)
{
	struct recent *recent = recent_place(p, 0);

	if (recent)
		recent->key.family = 0;
}

#include "heard.h"

/* The rule and number of the flow to which the packet or connection belongs. */
static __always_inline __u32 flow_rule(const struct packet *p, const struct config *cfg,
				       __u64 *number)
{
	struct flow_key key = {};
	struct flow *flow;

	flow_key(&key, p, 1);
	flow = find_flow(&key, cfg);
	if (!flow)
		return 0;
	*number = flow->number;
	return flow->rule;
}

/* Whether user space has bound the flow, and hears no more of it that may bind it anew at once. */
static __always_inline int is_decided(const struct flow *flow, const struct packet *p)
{
	return flow->number && (p->transport == IPPROTO_UDP || !flow->wanted);
}

/* As flow_rule, of a packet that arrives. */
static __always_inline __u32 site_rule(struct __sk_buff *skb, struct packet *p,
				       const struct config *cfg)
{
	struct flow_key key = {};
	struct recent *recent;
	struct flow *flow;
	__u32 rule;

	if (!p->has_ports)
		return 0;
	recent = recent_place(p, 1);
	if (!recent)
		return 0;
	if (holds(recent, p, cfg, 1))
		return recent->rule;
	flow_key(&key, p, 1);
	flow = find_flow(&key, cfg);
	if (!flow)
		return 0;
	rule = flow->rule;
	if (is_decided(flow, p)) {
		recent->key = key;
		recent->rule = rule;
		recent->silent = !flow->watched;
		recent->generation = cfg->generation;
		recent->heartbeat_ns = cfg->heartbeat_ns;
	}
	hear_packet_back(skb, p);
	return rule;
}

SEC("tcx/egress")
int fairweir_hear(struct __sk_buff *skb)
{
	struct config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || !(cfg->features & FEATURE_SITES))
		return TC_ACT_UNSPEC;
	if (read_skb(skb, &frame, &p, cfg->l2_header))
		hear_packet(skb, &p, cfg);
	return TC_ACT_UNSPEC;
}
