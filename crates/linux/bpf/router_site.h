/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections of devices to sites, while the policy has such groups: see heard.h. "This side" is the devices'
 * side. The rule of a flow is a label, which each device may map to another group (`leaf_rules`).
 *
 * With other policies, the programs are not loaded and the tables have no room.
 */
#pragma once

typedef struct router_config hearing_config;
typedef struct router_counters hearing_counters;
/* BPF-to-BPF calls are not available. */
#define HEARING static __always_inline

#include "heard.h"

/* The label of the packet's flow; 0 is none. */
static __always_inline __u32 site_label(const struct packet *p, const struct router_config *cfg,
					int leaves)
{
	return cfg->features & FEATURE_SITES && p->has_ports ? bound_rule(p, cfg, !leaves) : 0;
}

HEAR_PROGRAM("tcx/ingress", fairweir_hear, lan_header, skb->pkt_type != PACKET_OTHERHOST,
	     hear_packet(skb, &p, cfg))
/* Hears answers to any address, since many devices ask the router. */
HEAR_PROGRAM("tcx/egress", fairweir_hear_answers, lan_header, 1, hear_packet_back(skb, &p))
