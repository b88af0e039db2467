/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What user space tells the programs that bound receive windows. */
#pragma once

/* The bounds by connection: the socket's cookie, or at a router the flow's id. Written by user space when
 * they change, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} windows SEC(".maps");

/* With which bound a connection of each class begins: written by user space, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct initial_windows);
} initial_windows SEC(".maps");
