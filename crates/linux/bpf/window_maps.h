/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Bounds of receive windows, as a host and a router have them: written by user space when they
 * change, read by the programs; they live as long as the programs. */
#pragma once

/* Bounds by connection: by a socket's cookie, or on a router by the flow's id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} windows SEC(".maps");

/* The initial bound of a connection, by class. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct initial_windows);
} initial_windows SEC(".maps");
