/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The rules of decided flows with recent packets, and the recent flows that are unknown, for all
 * CPUs. A lookup reads one cache line; that of the flow itself reads several and hashes 40 bytes.
 *
 * A flow is one word of 8 bytes, which is read and written as a whole: 38 bits of a hash, the rule,
 * whether the flow's payload is ignored (`silent`), and the epoch of the lookup. An epoch ends at
 * every change of a flow that may be in this table (`changes`), so that the change counts from the
 * next packet on; and every 4.3 s, so that flows in use are looked up now and then: from that the
 * kernel's table knows the least recently used flows, and which UDP flows have ended. 8 bits of the
 * epoch's number are in the word, the others in the hash.
 *
 * The word does not identify a flow uniquely. Its hash is Multilinear-HM (Lemire and Kaser,
 * "Strongly universal string hashing is fast", 2014), twice, with random keys that senders do not
 * know. The upper 33 bits of each are pairwise independent, so two flows have the same set and hash
 * with a probability of 1 / (sets * 2^38), also if an attacker chose them without seeing the
 * hashes. Then one flow gets the other's rule, for 256 epochs at most.
 */
#pragma once

/* The bits of the word: the hash, the rule, `silent`, the epoch. */
#define RECENT_HASH (~0ull << 26)
#define RECENT_RULE_AT 9
#define RECENT_RULE_BITS 17
#define RECENT_SILENT 0x100ull
#define RECENT_EPOCH 0xffull
/* The upper bits of the first hash, which select the set, and the lowest bit that is kept in the word. */
#define RECENT_SET_AT 50
#define RECENT_HASH_AT 31

/* Positions of the keys of the two hashes: the addends for all, those for IPv4 and IPv6 with the
 * first two pairs of words, and for IPv6 three more pairs. */
#define RECENT_ADDED 0
#define RECENT_FIRST 2
#define RECENT_ADDED_6 10
#define RECENT_FIRST_6 12

/* One cache line. */
struct recent_set {
	__u64 words[RECENT_WAYS];
};

/* Written and read here. It can be mapped so that its sets are aligned to cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, RECENT_SETS_MAX);
	__type(key, __u32);
	__type(value, struct recent_set);
} recent_sets SEC(".maps");

/* The set of a flow, and the flow's word without a rule. */
struct recent {
	volatile __u64 *words;
	__u64 word;
};

static __always_inline __u64 hash_pair(const __u64 *keys, __u32 first, __u32 second)
{
	return (keys[0] + first) * (keys[1] + second);
}

/* Finds the place of the packet's flow in `*recent`. Returns whether there is one. */
static __always_inline int find_recent(struct recent *recent, const struct packet *p,
				       const hearing_config *cfg, int arrives)
{
	const __be32 *remote = arrives ? p->source : p->destination;
	const __be32 *local = arrives ? p->destination : p->source;
	__u32 remote_port = arrives ? p->port_source : p->port_destination;
	__u32 local_port = arrives ? p->port_destination : p->port_source;
	__u32 epoch = cfg->recent.changes + (__u32)(cfg->heartbeat_ns >> 32);
	__u32 ports = remote_port << 16 | local_port, kind, set;
	const __u64 *keys = cfg->recent.keys;
	struct recent_set *found;
	__u64 first, second;

	kind = (epoch & ~(__u32)RECENT_EPOCH) | (p->family != AF_INET) << 1 |
	       (p->transport != IPPROTO_TCP);
	first = keys[RECENT_ADDED] + hash_pair(keys + RECENT_FIRST, remote[0], local[0]) +
		hash_pair(keys + RECENT_FIRST + 2, ports, kind);
	second = keys[RECENT_ADDED + 1] + hash_pair(keys + RECENT_FIRST + 4, remote[0], local[0]) +
		 hash_pair(keys + RECENT_FIRST + 6, ports, kind);
	if (p->family != AF_INET) {
		first += keys[RECENT_ADDED_6];
		second += keys[RECENT_ADDED_6 + 1];
#pragma unroll
		for (int i = 0; i < 3; i++) {
			const __u64 *mine = keys + RECENT_FIRST_6 + 4 * i;

			first += hash_pair(mine, remote[i + 1], local[i + 1]);
			second += hash_pair(mine + 2, remote[i + 1], local[i + 1]);
		}
	}
	set = (first >> RECENT_SET_AT) & (cfg->recent.sets - 1);
	recent->word = (second & ~0ull << RECENT_HASH_AT) |
		       ((first >> RECENT_HASH_AT) << 26 & RECENT_HASH & ~(~0ull << RECENT_HASH_AT)) |
		       (epoch & RECENT_EPOCH);
	found = bpf_map_lookup_elem(&recent_sets, &set);
	if (!found)
		return 0;
	recent->words = found->words;
	return 1;
}

/* The word that is remembered of the flow; 0 if there is none. */
static __always_inline __u64 recall(const struct recent *recent)
{
#pragma unroll
	for (int i = 0; i < RECENT_WAYS; i++) {
		__u64 word = recent->words[i];

		if (!((word ^ recent->word) & (RECENT_HASH | RECENT_EPOCH)))
			return word;
	}
	return 0;
}

/* The rank of a rule has 9 bits, its slot 8: see abi.h. */
static __always_inline __u32 packed_rule(__u32 rule)
{
	return rule >> 16 << 8 | (rule & 0xff);
}

static __always_inline __u32 recalled_rule(__u64 word)
{
	__u32 packed = word >> RECENT_RULE_AT & ((1 << RECENT_RULE_BITS) - 1);

	return packed >> 8 << 16 | (packed & 0xff);
}

/* Remembers the flow, in place of a flow of another epoch; without such a place, of any flow if it `displaces`. */
static __always_inline void remember_recent(const struct recent *recent, __u32 rule, int silent,
					    int displaces)
{
	__u64 word = recent->word | (__u64)packed_rule(rule) << RECENT_RULE_AT;
	__u32 way = displaces ? bpf_get_prandom_u32() & (RECENT_WAYS - 1) : RECENT_WAYS;

	/* The labels of a router may be too large; such a flow is looked up for each packet. */
	if (recalled_rule(word) != rule)
		return;
#pragma unroll
	for (int i = RECENT_WAYS - 1; i >= 0; i--) {
		__u64 old = recent->words[i];

		if (!(old & RECENT_HASH) || (old ^ recent->word) & RECENT_EPOCH)
			way = i;
	}
	if (way < RECENT_WAYS)
		recent->words[way & (RECENT_WAYS - 1)] = silent ? word | RECENT_SILENT : word;
}

/* Whether the packet, which leaves, belongs to a flow whose payload is ignored. */
static __always_inline int is_silent(const struct packet *p, const hearing_config *cfg)
{
	struct recent recent;

	return find_recent(&recent, p, cfg, 0) && recall(&recent) & RECENT_SILENT;
}

/* A flow begins: forgets the word of an earlier flow with the same ports. */
static __always_inline void forget_recent(const struct packet *p, const hearing_config *cfg)
{
	struct recent recent;

	if (!find_recent(&recent, p, cfg, 0))
		return;
#pragma unroll
	for (int i = 0; i < RECENT_WAYS; i++)
		if (!((recent.words[i] ^ recent.word) & RECENT_HASH))
			recent.words[i] = 0;
}
