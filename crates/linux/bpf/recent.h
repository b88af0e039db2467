/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows whose packets came last.
 *
 * Problem: a look-up of a decided flow in `flows` costs hundreds of nanoseconds, since the table is larger than
 * the caches of a CPU and the place of a flow takes several steps to find.
 *
 * Method: a table with one place for each hash of a flow, a cache line, which has the whole key and the rule. One
 * table for all CPUs, so that its size does not depend on their number, what leaves by one CPU is known by what
 * arrived at another, and a flow that begins is forgotten at once by all.
 *
 * Properties: what is found is of the packet's flow, since the whole key is compared. CPUs write without a lock.
 * A place that two write at once, or that is read while it is written, may have the key of one flow and the rule
 * of another, but then `check` is not that of both. Source: R. Hyatt, T. Mann, A lock-less transposition table
 * implementation for parallel search chess engines, ICGA Journal 25 (2002). An entry holds until the next
 * heartbeat, so that what user space binds anew is seen within a tick, and `flows` sees which flows are in use.
 */
#pragma once

#include "flow_key.h"

/* A cache line. */
struct recent {
	struct flow_key key;
	__u64 heartbeat_ns;
	__u64 decision; /* generation of the rules, RECENT_SILENT, and the rule */
	__u64 check; /* decision ^ hash of the key */
};
_Static_assert(sizeof(struct recent) == 64, "a cache line");

/* Nothing that the flow sends is heard. Rules have fewer bits. */
#define RECENT_SILENT (1u << 31)

/* Written and read here. Memory that could be mapped begins at a page, so that no entry is in two lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct recent);
} recent_flows SEC(".maps");

/* The hash of a packet's flow: odd numbers as factors, and the bits of the product that depend on all. */
static __always_inline __u64 recent_hash(const struct packet *p, int arrives)
{
	const __be32 *remote = arrives ? p->source : p->destination;
	const __be32 *local = arrives ? p->destination : p->source;
	__u64 port_remote = arrives ? p->port_source : p->port_destination;
	__u64 port_local = arrives ? p->port_destination : p->port_source;
	__u64 hash;

	hash = ((__u64)local[0] << 32 | remote[0]) * 0x9e3779b97f4a7c15ull;
	hash ^= hash >> 32;
	if (p->family != AF_INET) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			hash += (__u64)local[i] << 32 | remote[i];
			hash *= 0xd6e8feb86659fd93ull;
			hash ^= hash >> 32;
		}
	}
	hash += port_remote | port_local << 16 | (__u64)p->transport << 32;
	hash *= 0xd6e8feb86659fd93ull;
	return hash ^ hash >> 32;
}

static __always_inline struct recent *recent_place(__u64 hash)
{
	__u32 place = hash & (RECENT_MAX - 1);

	return bpf_map_lookup_elem(&recent_flows, &place);
}

/* Whether the entry is of the packet's flow. */
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

/* The rule of the packet's flow, and perhaps RECENT_SILENT, if it is remembered and still holds; else -1. */
static __always_inline __s64 recall_flow(const struct recent *recent, const struct packet *p,
					 const struct config *cfg, __u64 hash, int arrives)
{
	/* Once, so that what is checked is what is returned. */
	__u64 decision = *(const volatile __u64 *)&recent->decision;

	if (!is_of(recent, p, arrives) || recent->heartbeat_ns != cfg->heartbeat_ns ||
	    decision >> 32 != cfg->generation || (decision ^ recent->check) != hash)
		return -1;
	return (__u32)decision;
}

/* The first flow of a heartbeat keeps its place, so that flows that take turns do not drive each other out. */
static __always_inline void remember_flow(struct recent *recent, const struct flow_key *key, __u32 rule,
					  const struct config *cfg, __u64 hash)
{
	__u64 decision = (__u64)cfg->generation << 32 | rule;

	if (recent->key.family && recent->heartbeat_ns == cfg->heartbeat_ns &&
	    recent->decision >> 32 == cfg->generation)
		return;
	recent->key = *key;
	recent->heartbeat_ns = cfg->heartbeat_ns;
	recent->decision = decision;
	recent->check = decision ^ hash;
}

/* Whether the packet, which leaves, is of a flow of which nothing is heard. */
static __always_inline int is_silent(const struct packet *p, const struct config *cfg)
{
	__u64 hash = recent_hash(p, 0);
	const struct recent *recent = recent_place(hash);
	__s64 known = recent ? recall_flow(recent, p, cfg, hash, 0) : -1;

	return known >= 0 && known & RECENT_SILENT;
}

/* What is remembered of a flow that begins is of another use of its ports. */
static __always_inline void forget_recent(const struct packet *p)
{
	struct recent *recent = recent_place(recent_hash(p, 0));

	if (recent)
		recent->key.family = 0;
}
