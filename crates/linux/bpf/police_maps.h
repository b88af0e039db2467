/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the policer and user space share. Each direction has its own addresses, prefixes and totals;
 * plans and slots are common. All maps live as long as the process that loaded them, or an attached
 * program; a pinned link keeps its program. Slots and tallies may come from a previous process.
 */
#pragma once

/* Whole addresses, in the one map that the array holds. User space writes it when subscribers come,
 * change and go; it is read for each packet. When the map is full, user space copies it into a
 * larger one and replaces it, so that each packet finds one of the two. Preallocated: an element
 * then takes 64 bytes instead of 96. */
#define POLICE_ADDRESSES(NAME, KEY_BYTES)                                                      \
	struct NAME##_room {                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                               \
		__uint(max_entries, 1);                                                        \
		__uint(key_size, KEY_BYTES);                                                   \
		__uint(value_size, sizeof(struct police_entry));                               \
	};                                                                                     \
	struct {                                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                      \
		__uint(max_entries, 1);                                                        \
		__type(key, __u32);                                                            \
		__array(values, struct NAME##_room);                                           \
	} NAME SEC(".maps")
POLICE_ADDRESSES(addresses4, 4);
POLICE_ADDRESSES(addresses6, 16);

/* Shorter prefixes, as above. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 24);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct police_key4);
	__type(value, struct police_entry);
} prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 24);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct police_key6);
	__type(value, struct police_entry);
} prefixes6 SEC(".maps");

/* Written by user space with the prefixes; read for packets whose whole address is not in the table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct police_prefixes);
} prefixes SEC(".maps");

/* Plans. Written by user space, each before its place is pointed to; read for each packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, POLICE_PLACES);
	__type(key, __u32);
	__type(value, struct police_plan);
} plans SEC(".maps");

/* The place of each plan. Written by user space through a mapping, by one store. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, POLICE_PLANS);
	__type(key, __u32);
	__type(value, __u64);
} places SEC(".maps");

/* Segments and their members, mapped by user space, which writes the fields marked so in
 * police_abi.h; the other fields are written here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, POLICE_SEGMENTS);
	__type(key, __u32);
	__type(value, struct police_segment);
} segments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, POLICE_MEMBERS);
	__type(key, __u32);
	__type(value, struct police_member);
} members SEC(".maps");

/* Counters for the packets of each plan, and under number 0 for packets of no subscriber. Written
 * here, read by user space; never reset. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, POLICE_PLANS);
	__type(key, __u32);
	__type(value, struct police_totals);
} totals SEC(".maps");

/* The slots of each size class, in chunks. User space creates and empties chunks after the pattern
 * NAME_chunk, which is not created itself. Slots are read and written here; user space reads their
 * counters. */
#define POLICE_SLOTS(NAME, SLOT)                                                               \
	struct NAME##_chunk {                                                                  \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                              \
		__uint(max_entries, POLICE_CHUNK);                                             \
		__type(key, __u32);                                                            \
		__type(value, struct SLOT);                                                    \
	} NAME##_chunk SEC(".maps");                                                           \
	struct {                                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                      \
		__uint(max_entries, POLICE_CHUNKS);                                            \
		__type(key, __u32);                                                            \
		__array(values, struct NAME##_chunk);                                          \
	} NAME SEC(".maps")
POLICE_SLOTS(slots1, police_slot_1);
POLICE_SLOTS(slots4, police_slot_4);
POLICE_SLOTS(slots16, police_slot_16);
POLICE_SLOTS(slots64, police_slot_64);
POLICE_SLOTS(slotsb, police_slot_bundle);

/* The tallies of slots, at the slots' indices and in chunks as above; only the needed chunks are created. */
POLICE_SLOTS(tallies4, police_tallies_4);
POLICE_SLOTS(tallies16, police_tallies_16);
POLICE_SLOTS(tallies64, police_tallies_64);
POLICE_SLOTS(talliesb, police_tallies_64);

/* The requests of clients, at the indices of the third class's slots and in chunks as above. */
POLICE_SLOTS(clients, police_client);

/* The plans of clients' classes and the bindings of their flows, in chunks that user space creates on demand.
 * A plan is written to an unused place before the client points there; bindings are written here. */
#define POLICE_CLIENTS(NAME, ELEMENT, FLAGS)                                                   \
	struct NAME##_chunk {                                                                  \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                              \
		__uint(map_flags, FLAGS);                                                      \
		__uint(max_entries, POLICE_CLIENT_CHUNK);                                      \
		__type(key, __u32);                                                            \
		__type(value, struct ELEMENT);                                                 \
	} NAME##_chunk SEC(".maps");                                                           \
	struct {                                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                      \
		__uint(max_entries, POLICE_CHUNKS);                                            \
		__type(key, __u32);                                                            \
		__array(values, struct NAME##_chunk);                                          \
	} NAME SEC(".maps")
POLICE_CLIENTS(client_plans, police_plan, 0);
POLICE_CLIENTS(client_bindings, bindings, BPF_F_MMAPABLE);

/* Never loaded: tells clang that the chunks' types are needed in full. */
SEC("?xdp")
int police_types(struct xdp_md *xdp)
{
	return bpf_core_type_id_local(struct police_slot_1) + bpf_core_type_id_local(struct police_slot_4) +
	       bpf_core_type_id_local(struct police_slot_16) + bpf_core_type_id_local(struct police_slot_64) +
	       bpf_core_type_id_local(struct police_slot_bundle) + bpf_core_type_id_local(struct police_tallies_4) +
	       bpf_core_type_id_local(struct police_tallies_16) + bpf_core_type_id_local(struct police_tallies_64) +
	       bpf_core_type_id_local(struct police_client) + bpf_core_type_id_local(struct bindings);
}

/* The time until which packets are policed, ns of CLOCK_MONOTONIC; 0 is for ever. User space writes it once per second
 * through a mapping; it is read for each packet of a subscriber. It stops programs that outlive their process. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} deadline SEC(".maps");

/* The time of test runs, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} trial_clock SEC(".maps");
