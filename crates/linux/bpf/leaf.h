/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The group of a packet within its device: by the server's address, ports, site, and the device's own marks. */
#pragma once

/* Rules of groups within devices: written by user space when the policy changes, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct leaf_key);
	__type(value, __u32);
} leaf_rules SEC(".maps");

/* The greater of `best` and the rule of `key` for this kind of match, with `bits` bits compared. */
static __always_inline __u32 leaf_rule(struct leaf_key *key, __u8 kind, __u32 bits, __u32 best)
{
	__u32 *rule;

	key->kind = kind;
	key->length = LEAF_HEADER_BITS + bits;
	rule = bpf_map_lookup_elem(&leaf_rules, key);
	return rule && *rule > best ? *rule : best;
}

static __always_inline __u32 port_leaf(struct leaf_key *key, __u8 kind, __be16 port, __u32 best)
{
	__builtin_memcpy(key->value, &port, sizeof(port));
	return leaf_rule(key, kind, 16, best);
}

/* The rule of the class in which a device's own fairweir has put the flow; else `rule`, which leads to the device. */
static __always_inline __u32 client_leaf(const struct packet *p, const struct router_config *cfg, __u32 rule,
					 int leaves)
{
	struct leaf_key key = { .slot = bpf_htons(rule & RULE_SLOT) };
	__u32 best;

	key.value[0] = client_class(p, cfg, rule, leaves);
	if (!key.value[0])
		return rule;
	best = leaf_rule(&key, LEAF_CLASSES, 8, 0);
	return best ? best : rule;
}

/* The class to which `rule` leads, for a packet to a device, or from the device if it `leaves`. */
static __always_inline __u32 find_leaf(const struct packet *p, const struct router_config *cfg,
				       __u32 rule, int leaves)
{
	__be16 local = leaves ? p->port_source : p->port_destination;
	__be16 remote = leaves ? p->port_destination : p->port_source;
	__u32 label = rule & RULE_HAS_GROUPS ? site_label(p, cfg, leaves) : 0;
	__u8 udp = p->transport == IPPROTO_UDP;

	/* A device with an agreement has no other groups. */
	rule = client_leaf(p, cfg, rule, leaves);
	for (int level = 0; level < LEVELS_BENEATH; level++) {
		struct leaf_key key = { .slot = bpf_htons(rule & RULE_SLOT) };
		__u32 best = 0;

		if (!(rule & RULE_HAS_GROUPS))
			break;
		__builtin_memcpy(key.value, leaves ? p->destination : p->source, 16);
		if (p->family == AF_INET)
			best = leaf_rule(&key, LEAF_IP4, 32, best);
		else
			best = leaf_rule(&key, LEAF_IP6, 128, best);
		if (p->has_ports) {
			best = port_leaf(&key, LEAF_PORTS + (udp ? PORT_TABLE_UDP_REMOTE : PORT_TABLE_TCP_REMOTE),
					 remote, best);
			best = port_leaf(&key, LEAF_PORTS + (udp ? PORT_TABLE_UDP_LOCAL : PORT_TABLE_TCP_LOCAL),
					 local, best);
		}
		if (label) {
			__builtin_memcpy(key.value, &label, sizeof(label));
			best = leaf_rule(&key, LEAF_SITES, 32, best);
		}
		if (!best)
			break;
		rule = best;
	}
	return rule & RULE_SLOT;
}
