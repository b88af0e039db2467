/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs and user space share: for each map, who writes, who reads, how long it lives. */
#pragma once

#include "window_maps.h"

#define SCRATCH_BYTES 512

/* Written by user space on each change and heartbeat; lives as long as the program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* Written here for each packet, read by user space each tick; never reset. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Up to which counter TCP passes without a class: written by user space each tick while any does, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct allowances);
} allowances SEC(".maps");

/* Classes whose allowance is used up on some CPU: the other CPUs stop, too, so that no packet overtakes
 * those waiting in the class. Written here and, with each new allowance, by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spent);
} spent SEC(".maps");

/* Rules by port: a table for each transport and side, indexed by the port. User space writes this
 * and the following three maps when the policy changes; they are read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_TABLES);
	__type(key, __u32);
	__type(value, struct port_table);
} port_rules SEC(".maps");

/* Rules by owner: executable, user, cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name);
	__type(value, __u32);
} app_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} user_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} cgroup_rules SEC(".maps");

/* The owner of each socket: written when the socket is made or connected, or by the scan; read for
 * each packet; freed with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct owner);
} owners SEC(".maps");

/* Cgroups that have made sockets, so that user space looks for units only when a new one comes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} known_cgroups SEC(".maps");

/* Bytes received per talker; written only during a census, read at its end. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct talker);
	__type(value, struct counter);
} census SEC(".maps");

/* The record of each connection: written by the iterators, when it opens, and (its transit) by the
 * classifier; freed with the socket. */
struct connection {
	__u64 received; /* this and the next three: as told last */
	__u32 segs_in;
	__u32 segs_out;
	__u32 holes;
	__u32 observed; /* user space was told of it */
	__u32 slot;
	__u32 generation; /* of the rules under which the slot was found */
	__u32 is_held; /* bounded: see expire.h */
	__u32 owns_callback; /* the callback for header options was asked for here */
	__u32 window; /* the bound as it was set last, or 0 */
	__u32 behind; /* what was added to it, see behind_hole */
	__u64 number; /* of the evidence that decided the slot */
	struct transit transit;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

/* Part of a packet for computing the checksum; written and read here within one run. */
struct scratch {
	__u8 bytes[SCRATCH_BYTES + 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");
