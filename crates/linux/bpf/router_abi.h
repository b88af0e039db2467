/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the router's programs and user space share, beyond abi.h. */
#pragma once

#include "abi.h"
#include "binding_abi.h"

#define ROUTER_FLOWS_MAX 32768
/* Whether the policy has rules by MAC address. The lower bits are those of abi.h. */
#define FEATURE_MACS (1u << 16)
/* Whether the mark of a device's packets names the device, so that it is known behind NAT. */
#define FEATURE_MARKS (1u << 17)
/* Whether a device's own fairweir may choose the classes of its flows; the maximum number of such devices. */
#define FEATURE_CLIENTS (1u << 18)
#define CLIENTS_MAX 16
/* Whether a rule applies to all devices of a LAN. */
#define FEATURE_LANS (1u << 19)
/* The maximum number of LANs, and of interfaces from which downloads come. */
#define LANS_MAX 8
#define WANS_MAX 4
/* A rule's lower half, and the default slot: the class, and whether the device has groups, which decide further. */
#define RULE_SLOT 0x7fffu
#define RULE_HAS_GROUPS 0x8000u
#define MARK_SHIFT 24
#define MARK_MASK 0xff000000u
/* The mark of what this router's proxy sends, also to devices in a server's place. */
#define RELAYED_MARK 0x00800000u

/* An interface with devices. */
struct lan {
	__u32 index; /* 0 is none */
	__u32 rule; /* of all devices there; 0 is none */
};
_Static_assert(sizeof(struct lan) == 8, "abi");

struct router_config {
	__u64 heartbeat_ns; /* CLOCK_MONOTONIC, when user space was last alive */
	__u32 enforce; /* whether to stamp classes */
	__u32 features; /* FEATURE_* */
	__u32 default_slot; /* the class of devices that no rule names; RULE_HAS_GROUPS as in a rule */
	__u32 lan_header; /* bytes in front of the IP header at the LANs: 14, or 0 */
	__u32 wan_header; /* the same at the first WAN */
	__u32 interval; /* number of the interval; samples of transit begin anew with each */
	/* Indexes of the interfaces from which downloads come: the link's, and of tunnels through it; 0 is none. */
	__u32 wans[WANS_MAX];
	struct lan lans[LANS_MAX];
	struct recent_control recent;
};
_Static_assert(sizeof(struct router_config) == 312, "abi");

struct router_counters {
	struct counter slots[SLOTS_MAX]; /* towards the devices, before the classes */
	struct counter total; /* IP that arrived at the WAN */
	struct counter frames; /* all frames that arrived there */
	__u64 unheard; /* what the ring of beginnings had no room for */
};
_Static_assert(sizeof(struct router_counters) == 4136, "abi");

struct mac {
	__u8 bytes[6];
};
_Static_assert(sizeof(struct mac) == 6, "abi");

/* The criterion of a group within a device: a prefix of an address, or of a port, of packets of a
 * class. */
struct leaf_key {
	__u32 length; /* in bits, of what follows */
	__be16 slot; /* the class of the device, or of the group, without these groups */
	__u8 kind; /* LEAF_* */
	__u8 pad;
	__u8 value[16];
};
_Static_assert(sizeof(struct leaf_key) == 24, "abi");

/* Kinds of keys. The server's address: */
#define LEAF_IP4 0
#define LEAF_IP6 1
/* Plus PORT_TABLE_*; the remote port is the server's. */
#define LEAF_PORTS 2
/* Plus PORT_TABLES: the label of sites to which user space has bound the packet's flow. */
#define LEAF_SITES 6
/* The class in the device's own fairweir, plus one. */
#define LEAF_CLASSES 7
#define LEAF_HEADER_BITS 32
/* Levels: groups of a device, and groups within these. */
#define LEVELS_BENEATH 2

/* Maximum bytes of a DHCP message that are copied to user space; few clients send options beyond. */
#define DHCP_HEARD_MAX 1024

/* A DHCP message of IPv4 that passed the LAN. */
struct dhcp_heard {
	struct mac source; /* the frame's */
	__u8 is_own; /* whether the router sent it */
	__u8 pad;
	__u32 length; /* of what follows, in use */
	__u8 bytes[DHCP_HEARD_MAX]; /* behind the UDP header */
};
_Static_assert(sizeof(struct dhcp_heard) == 1036, "abi");

/*
 * The state of a TCP connection that a device has opened or accepted since the daemon started.
 *
 * In the kernel's table 88 bytes precede it, so it begins 24 bytes into a cache line (64 bytes),
 * and with its padding each entry begins at a cache line. The fields for a packet to the device are
 * in the first two of three lines: with many connections, cache misses are most of the cost.
 */
struct router_flow {
	__u64 received; /* payload that went to the device */
	__u64 begun_ns; /* when the first of it did; 0 is not yet */
	__u32 slot; /* valid with FLOW_CLASSED */
	__u32 interval;
	__u32 segs_in; /* with payload, to the device */
	__u32 seq_next; /* the end of what went to the device; valid once `begun_ns` is */
	__u32 edge_own; /* the right edge that the device wanted to tell */
	__u16 syn_window; /* of the device's SYN, whose sequence number had no acknowledgement yet */
	__u8 wscale; /* of the device's window */
	__u8 flags; /* FLOW_* */
	/* Here the second line begins. */
	__u64 wan_asked_ns; /* when `wan_asked` left; 0 is nothing to wait for */
	__u64 lan_asked_ns;
	__u32 wan_asked; /* the device's timestamp whose echo is awaited */
	__u32 segment; /* payload of the largest packet to the device */
	struct transit transit; /* its `min` is in the third line */
	__u64 id; /* random */
	__u32 segs_out; /* with payload, from the device */
	__u32 holes; /* gaps in what went to the device */
	__u32 ack; /* until FLOW_EDGE what acknowledges the SYN, then the newest acknowledgement of the device */
	__u32 edge; /* the right edge that the server was told last; valid with FLOW_EDGE */
	__u32 bound; /* the bound that its window was brought to last; 0 is none */
	__u32 window; /* the largest window that it has told by itself */
	__u32 asked; /* the same in the interval; 0 is none */
	__u32 lan_asked; /* the server's timestamp whose echo is awaited */
	__u32 wan_rtt_us; /* smoothed; 0 is unknown */
	__u32 lan_rtt_us; /* the least lately; 0 is unknown */
	__u64 pad;
};
_Static_assert(sizeof(struct router_flow) == 168, "abi");

/* The window scale is known, and the flow goes through the WAN: its window can be bounded. */
#define FLOW_OPEN 1
#define FLOW_EDGE 2
/* The next packet of the device answers the SYN-ACK. */
#define FLOW_SHAKES 4
/* One end has sent FIN or RST. */
#define FLOW_ENDED 8
/* The device has accepted it, with a SYN-ACK that settles the window scale (RFC 7323, section 2.2). */
#define FLOW_ACCEPTED 16
/* The rules were evaluated in this interval. */
#define FLOW_CLASSED 32
