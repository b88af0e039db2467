/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs and user space say to each other. Rust's side is made from it (build/structs.rs),
 * from the structures that abi.bpf.c names.
 *
 * A rule is one number: the rank of its group in the upper half (the first group of the policy has
 * the highest) and the slot of its class in the lower. Among rules the greatest wins; 0 is none.
 */
#pragma once

#include <linux/types.h>

#define SLOTS_MAX 256
#define NAME_BYTES 64
#define CGROUP_LEVELS_MAX 10
#define PORTS 65536

/* Which kinds of rule the policy has, so that no packet pays for the others. */
#define FEATURE_PREFIX4 (1u << 0)
#define FEATURE_PREFIX6 (1u << 1)
#define FEATURE_REMOTE_PORTS (1u << 2)
#define FEATURE_LOCAL_PORTS (1u << 3)
#define FEATURE_OWNERS (1u << 4)
#define FEATURE_CENSUS (1u << 5)
/* Whether receive windows are bounded, and whether the transit of packets is measured. */
#define FEATURE_WINDOWS (1u << 6)
#define FEATURE_TRANSIT (1u << 7)
/* Whether flows are bound one by one, so that their beginnings have to be heard. */
#define FEATURE_SITES (1u << 8)
/* Whether what leaves is given a class. */
#define FEATURE_UPLOAD (1u << 9)
/* Whether flows that leave are marked. */
#define FEATURE_CLASS_MARKS (1u << 10)

/* The tables of `port_rules`. */
#define PORT_TABLE_TCP_REMOTE 0
#define PORT_TABLE_UDP_REMOTE 1
#define PORT_TABLE_TCP_LOCAL 2
#define PORT_TABLE_UDP_LOCAL 3
#define PORT_TABLES 4

/* Sets of flows whose rules are remembered, a power of two, and flows of a set: see recent.h. */
#define RECENT_SETS_MAX 16384
#define RECENT_WAYS 8
#define RECENT_KEYS 24

struct recent_control {
	__u32 changes; /* how often user space changed what may be remembered */
	__u32 sets; /* in use; a power of two */
	__u64 keys[RECENT_KEYS]; /* random */
};
_Static_assert(sizeof(struct recent_control) == 200, "abi");

struct config {
	__u64 heartbeat_ns; /* CLOCK_MONOTONIC, when user space was last alive */
	__u32 enforce; /* whether to redirect to the ifb */
	__u32 ifb; /* its index */
	__u32 generation; /* of the owner rules; what was resolved under another is stale */
	__u32 features; /* FEATURE_* */
	__u32 default_slot; /* the class of what no rule names */
	__u32 l2_header; /* bytes in front of the IP header: 14, or 0 on tun and the like */
	__u32 device; /* its index; connections through other devices are not counted */
	__u32 baseline; /* what a connection that is seen for the first time has received is history */
	__u64 netns; /* cookie of the device's network namespace */
	__u32 time_every; /* of this many packets that could be timed, one is */
	__u32 pad;
	struct recent_control recent;
};
_Static_assert(sizeof(struct config) == 256, "abi");

struct counter {
	__u64 bytes; /* L2 bytes as on the wire */
	__u64 packets; /* as on the wire */
};
_Static_assert(sizeof(struct counter) == 16, "abi");

struct counters {
	struct counter slots[SLOTS_MAX];
	__u64 new_cgroups; /* cgroups that were seen making sockets for the first time */
	/* The classifier's own memory: when it last looked whether this heartbeat is too old. */
	__u64 jiffy;
	__u64 heartbeat_ns;
	__u64 stale;
	__u64 due; /* the count of the next packet that is timed */
	__u64 timeable; /* packets that could have been timed */
	__u64 unheard; /* what the ring of beginnings had no room for */
};
_Static_assert(sizeof(struct counters) == 4152, "abi");

/* What left by the device, before the classes. */
struct upload_counters {
	struct counter slots[SLOTS_MAX];
	struct counter first; /* of these, what goes first */
};
_Static_assert(sizeof(struct upload_counters) == 4112, "abi");

/* The classes of small ICMP and of acknowledgements; those of the slots are from 1 on. */
#define ICMP_MINOR 0xfffe
#define ACKS_MINOR 0xfffd
/* ICMP up to this length of the IP packet goes first. */
#define FIRST_BYTES_MAX 128

/* TCP passes without its class until this many bytes of the slot have been counted on this CPU. */
struct allowances {
	__u64 until[SLOTS_MAX];
};
_Static_assert(sizeof(struct allowances) == 8 * SLOTS_MAX, "abi");

struct marks {
	__u8 slots[SLOTS_MAX];
};
_Static_assert(sizeof(struct marks) == SLOTS_MAX, "abi");

struct spent {
	__u8 slots[SLOTS_MAX];
};
_Static_assert(sizeof(struct spent) == SLOTS_MAX, "abi");

struct prefix4 {
	__u32 length;
	__u8 address[4];
};
_Static_assert(sizeof(struct prefix4) == 8, "abi");

struct prefix6 {
	__u32 length;
	__u8 address[16];
};
_Static_assert(sizeof(struct prefix6) == 20, "abi");

struct port_table {
	__u32 rules[PORTS];
};
_Static_assert(sizeof(struct port_table) == 4 * PORTS, "abi");

struct name {
	char bytes[NAME_BYTES]; /* zero-padded */
};
_Static_assert(sizeof(struct name) == 64, "abi");

/* Who made a socket. */
struct owner {
	struct name app; /* base name of the executable file */
	__u64 cgroups[CGROUP_LEVELS_MAX]; /* the process's cgroup, its parent, ...; then 0 */
	__u64 resolved; /* generation << 32 | rule; 0 is not resolved yet */
	__u64 mm; /* what the process ran; another after it has started another executable */
	__u32 uid;
	__u32 pad;
};
_Static_assert(sizeof(struct owner) == 168, "abi");

#define TALKER_APP 1
#define TALKER_USER 2
#define TALKER_CGROUP 3
#define TALKER_PREFIX4 4
#define TALKER_PREFIX6 5

/* Of whom the census keeps account. */
struct talker {
	__u64 kind; /* TALKER_* */
	union {
		struct name app;
		__u64 number; /* of the user or the cgroup */
		__u8 address[16]; /* of a /24 or a /48 */
	} value;
};
_Static_assert(sizeof(struct talker) == 72, "abi");

/*
 * Every bound that is set ends in these bits, so that a process that lifts what a killed one left
 * knows it from windows that applications have chosen.
 */
#define CLAMP_MARK 0x5bu
#define CLAMP_MARK_MASK 0x7fu

/* With which bound a connection of each class begins; 0 is free. */
struct initial_windows {
	__u32 slots[SLOTS_MAX];
};
_Static_assert(sizeof(struct initial_windows) == 4 * SLOTS_MAX, "abi");

/* What one connection received since it was last told of. */
struct connection_record {
	__u64 cookie;
	__u64 received; /* payload */
	__s64 transit_min; /* ns, up to a constant of the connection */
	__s64 transit_sum;
	__u32 transit_samples;
	__u32 segs_in; /* with payload */
	__u32 segs_out; /* with payload */
	__u32 rtt_us; /* the kernel's estimate; 0 is none */
	__u32 rcv_wnd; /* what was last advertised */
	__u32 window_clamp; /* the most that may be advertised */
	__u16 rcv_mss;
	__u16 slot;
	__u16 port_remote;
	__u8 rcv_wscale;
	__u8 state;
	__u32 holes; /* segments with payload that arrived out of order */
	__u32 rtt_sent_us; /* the least of what this end sent, the opening among it; 0 is none */
	__u64 number; /* of the evidence that decided its class; 0 is none */
};
_Static_assert(sizeof(struct connection_record) == 80, "abi");

#define FLOWS_MAX 65536
/* The silence after which a UDP flow has ended; up to an epoch of recent.h less. */
#define FLOW_IDLE_NS 120000000000ll
/* Bytes of the beginning of a stream that are heard. */
#define STREAM_BYTES 16384
/* Datagrams with QUIC Initial packets that are heard of a flow before it is bound, and after. */
#define INITIALS_MAX 16
/* Open DNS queries of a flow. */
#define QUERIES_MAX 64

/* One flow; of IPv4 addresses only the first word is used. In network order. */
struct flow_key {
	__be32 remote[4];
	__be32 local[4];
	__be16 port_remote;
	__be16 port_local;
	__u16 family; /* AF_* */
	__u16 transport; /* IPPROTO_* */
};
_Static_assert(sizeof(struct flow_key) == 40, "abi");

/* What is known of a flow. */
struct flow {
	__u64 seen_ns; /* the heartbeat at its last packet; of UDP only */
	__u64 number; /* of the evidence in user space; 0 is none */
	__u32 rule; /* 0 is none */
	__u32 opened; /* tells one use of the addresses and ports from the next; of TCP the first number */
	__u32 wanted; /* what is still heard: bytes of TCP, datagrams of UDP */
	__u32 watched; /* how many sends are still told of */
};
_Static_assert(sizeof(struct flow) == 32, "abi");

/* The user that the kernel reports for packets without a socket: the overflow user. */
#define USER_NONE 65534
#define HEARD_OPENING 1
#define HEARD_STREAM 2
#define HEARD_DATAGRAM 3
#define HEARD_DNS 4
#define HEARD_SENT 5
#define HEARD_BYTES 2048
#define HEARD_HEADER 72
/* Requests are longer; acknowledgements of QUIC and window updates of HTTP/2 are shorter. */
#define REQUEST_BYTES 64
/* Sends that are told of one flow each time it is bound. */
#define SENDS_MAX 1024

/* What was heard; `length` bytes follow. */
struct heard_header {
	struct flow_key key;
	__u32 kind; /* HEARD_* */
	__u32 opened;
	__u32 offset; /* in the stream */
	__u32 length;
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u32 user; /* the socket's owner, of an opening; that of what has none is USER_NONE */
	__u32 pad;
};
_Static_assert(sizeof(struct heard_header) == 72, "abi");

/* How long the packets of a flow took from the server, up to a constant: see stamp.h. */
struct transit {
	__u32 tsval; /* of the newest packet */
	__u32 period_ns; /* of the sender's clock; 0 is unknown yet */
	__u32 samples;
	__u32 pad;
	__u64 anchor_ns;
	__s64 ticks; /* of the sender's clock since the anchor */
	__s64 sum; /* ns; of the samples */
	__s64 min;
};
_Static_assert(sizeof(struct transit) == 48, "abi");
