/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that are bound to classes one by one: see heard.h. This side is this host.
 *
 * Cost (benches/sites.rs): while the policy has sites, each arriving packet costs a look at the
 * recent flows (recent.h), which mostly include its own, or else one lookup. A sent packet with
 * payload costs the same, and one lookup more if it may be a request or opens a connection.
 */
#pragma once

typedef struct config hearing_config;
typedef struct counters hearing_counters;
#define HEARING __noinline

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

/* As flow_rule, for an arriving packet. */
static __always_inline __u32 site_rule(struct __sk_buff *skb, struct packet *p,
				       const struct config *cfg)
{
	__u32 rule;

	if (!p->has_ports)
		return 0;
	rule = bound_rule(p, cfg, 1);
	hear_packet_back(skb, p);
	return rule;
}

HEAR_PROGRAM("tcx/egress", fairweir_hear, l2_header, 1, hear_packet(skb, &p, cfg))
