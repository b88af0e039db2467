/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows of devices with an agreement: the device's own fairweir marks them with its classes, which are groups
 * of the device here. Frames identify the device, so a mark changes only the device's own bindings.
 */
#pragma once

#include "binding.h"

/* Bindings, by the device's class: user space creates and deletes them with the agreement; written here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CLIENTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct bindings);
} client_bindings SEC(".maps");

/* The bindings of the device to which `rule` leads, or 0. */
static __always_inline struct bindings *find_client(const struct router_config *cfg, __u32 rule)
{
	__u32 slot = rule & RULE_SLOT;

	if (!(cfg->features & FEATURE_CLIENTS) || !(rule & RULE_HAS_GROUPS))
		return 0;
	return bpf_map_lookup_elem(&client_bindings, &slot);
}

/* The same hash in both directions: of a packet to the device, or from it if it `leaves`. */
static __always_inline __u32 device_flow_hash(const struct packet *p, int leaves)
{
	const __be32 *remote = leaves ? p->destination : p->source;
	const __be32 *local = leaves ? p->source : p->destination;
	__u32 hash = mix(p->transport, p->family), ports = 0;

	/* Later fragments have no ports. */
	if (!p->is_fragment)
		ports = leaves ? p->port_destination << 16 | p->port_source :
				 p->port_source << 16 | p->port_destination;
	hash = mix(hash, ports);
#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = mix(mix(hash, remote[i]), local[i]);
	return hash ^ (hash >> 16);
}

/* The class of a packet in the device's own fairweir, plus one; 0 is none. */
static __always_inline __u32 client_class(const struct packet *p, const struct router_config *cfg,
					  __u32 rule, int leaves)
{
	struct bindings *bindings = find_client(cfg, rule);

	return bindings ? bound_class(bindings, device_flow_hash(p, leaves)) : 0;
}

/* Removes the mark from a packet of a device, to which `rule` leads, and binds its flow. */
static __always_inline void take_mark(struct __sk_buff *skb, const struct packet *p,
				      const struct router_config *cfg, __u32 rule)
{
	struct bindings *bindings = find_client(cfg, rule);
	struct tos_change unmarked = { .clear = TOS_DSCP };
	__u32 dscp = p->tos >> 2;

	if (!bindings)
		return;
	bind_to_class(bindings, device_flow_hash(p, 1), dscp >> MARK_CLASS_SHIFT, bpf_ktime_get_ns());
	change_tos_skb(skb, p, unmarked);
}
