/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rules that the addresses and ports of a packet or a connection give. */
#pragma once

#include "prefix.h"

static __always_inline __u32 port_rule(__u32 table, __be16 port)
{
	struct port_table *rules = bpf_map_lookup_elem(&port_rules, &table);

	return rules ? rules->rules[bpf_ntohs(port)] : 0;
}

static __always_inline __u32 port_rules_of(struct packet *p, __u32 features)
{
	int udp = p->transport == IPPROTO_UDP;
	__u32 best = 0, rule;

	if (!p->has_ports)
		return 0;
	if (features & FEATURE_REMOTE_PORTS)
		best = port_rule(udp ? PORT_TABLE_UDP_REMOTE : PORT_TABLE_TCP_REMOTE, p->port_source);
	if (features & FEATURE_LOCAL_PORTS) {
		rule = port_rule(udp ? PORT_TABLE_UDP_LOCAL : PORT_TABLE_TCP_LOCAL, p->port_destination);
		if (rule > best)
			best = rule;
	}
	return best;
}

/* The greatest of the rules that do not depend on a socket. */
static __always_inline __u32 address_rule(struct packet *p, __u32 features)
{
	__u32 best = prefix_rule(p->family, p->source, features);
	__u32 rule = port_rules_of(p, features);

	return rule > best ? rule : best;
}
