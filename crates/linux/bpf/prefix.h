/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rule that the prefixes of an address give: of a source on a host, of a device on a router. */
#pragma once

/* Rules by prefix: written by user space when the policy changes, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, __u32);
} prefix4_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u32);
} prefix6_rules SEC(".maps");

static __always_inline __u32 prefix_rule(__u16 family, const __be32 *address, __u32 features)
{
	__u32 *rule = 0;

	if (family == AF_INET && features & FEATURE_PREFIX4) {
		struct prefix4 key = { .length = 32 };

		__builtin_memcpy(key.address, address, 4);
		rule = bpf_map_lookup_elem(&prefix4_rules, &key);
	} else if (family == AF_INET6 && features & FEATURE_PREFIX6) {
		struct prefix6 key = { .length = 128 };

		__builtin_memcpy(key.address, address, 16);
		rule = bpf_map_lookup_elem(&prefix6_rules, &key);
	}
	return rule ? *rule : 0;
}
