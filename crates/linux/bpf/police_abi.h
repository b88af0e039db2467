/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the policer and user space share. The build makes the Rust structures from it (build/structs.rs).
 *
 * A subscriber's address leads to an entry: the number of the plan, and the slot with the state.
 * Slots lie in chunks, arrays of POLICE_CHUNK slots of one size class, which user space creates on
 * demand.
 *
 * Unless stated otherwise, volumes are in 2^-24 bytes and rates in 2^-24 bytes per nanosecond.
 */
#pragma once

#include "binding_abi.h"

#include <linux/types.h>

/* Numbers of plans; 0 is none. Each has three places: one for the plan, one for a bundle's aim, and
 * one unused, so that a plan is replaced at once: it is written to the unused place, and then its
 * number points there. */
#define POLICE_PLANS 1024
#define POLICE_PLACES (3 * POLICE_PLANS)
#define POLICE_PLAN_BITS 10
_Static_assert(POLICE_PLANS == 1 << POLICE_PLAN_BITS, "abi");

/* Segments, and members of all segments together; a subscriber is one member per direction. */
#define POLICE_SEGMENTS 256
#define POLICE_MEMBERS 16384

/* A slot's number: its class in the three upper bits, then one bit for tallies, then its index. The
 * last class is that of plans with a bundle. */
#define POLICE_CLASSES 5
#define POLICE_CLASS_SHIFT 29
#define POLICE_TALLIED (1u << 28)
#define POLICE_INDEX_MASK (POLICE_TALLIED - 1)
#define POLICE_CHUNK_SHIFT 10
#define POLICE_CHUNK (1u << POLICE_CHUNK_SHIFT)
#define POLICE_CHUNKS 4096

/* Size of the chunks in which the plans of clients' classes and the bindings of their flows lie. */
#define POLICE_CLIENT_CHUNK 64

#define POLICE_LEAVES_MAX 64
#define POLICE_INNERS_MAX 5
#define POLICE_CRITERIA_MAX 32

struct police_entry {
	__u32 plan; /* the plan's number, and above POLICE_PLAN_BITS the member's; 0 is none */
	__u32 slot;
};
_Static_assert(sizeof(struct police_entry) == 8, "abi");

/* Numbers of shorter prefixes: where there are none, no packet is looked up in vain. */
struct police_prefixes {
	__u32 count4;
	__u32 count6;
};
_Static_assert(sizeof(struct police_prefixes) == 8, "abi");

struct police_key4 {
	__u32 length;
	__u32 address; /* as in the packet */
};
_Static_assert(sizeof(struct police_key4) == 8, "abi");

struct police_key6 {
	__u32 length;
	__u32 address[4]; /* as in the packet */
};
_Static_assert(sizeof(struct police_key6) == 20, "abi");

/* Values of `police_plan.kind`. */
#define POLICE_KIND_NONE 0 /* all passes */
#define POLICE_KIND_BUCKET 1
#define POLICE_KIND_PHANTOM 2

/* Values of `police_criterion.kind`. */
#define POLICE_MATCH_DSCP 0 /* first is the DSCP */
#define POLICE_MATCH_PORT_REMOTE 1
#define POLICE_MATCH_PORT_LOCAL 2
#define POLICE_MATCH_IP 3

/* One criterion for belonging to a class. */
struct police_criterion {
	__u8 kind; /* POLICE_MATCH_* */
	__u8 choice; /* the class */
	__u8 protocol; /* of ports: IPPROTO_TCP, IPPROTO_UDP or 0 for both */
	__u8 is_ip6; /* of the address */
	__u16 first; /* of ports, */
	__u16 last; /* both of them included */
	__u32 mask[4]; /* of the address; of IPv4 only the first is used */
	__u32 address[4];
};
_Static_assert(sizeof(struct police_criterion) == 40, "abi");

/* The leaves of a class. */
struct police_choice {
	__u8 first;
	__u8 count;
};

/* A plan's settings for an inner node, and for a leaf: as in core::phantom::plan. */
struct police_plan_inner {
	__u64 inverse; /* 2^32 / weight */
	__u16 weight;
	__u8 is_priority;
	__u8 parent;
	__u8 child;
	__u8 leaf_first;
	__u8 leaf_count;
	__u8 inner_first;
	__u8 inner_count;
	__u8 pad[7];
};
_Static_assert(sizeof(struct police_plan_inner) == 24, "abi");

struct police_plan_leaf {
	__u64 inverse;
	__u16 weight;
	__u8 parent;
	__u8 child;
	__u8 class_first; /* the leaves of its class */
	__u8 class_count;
	__u8 pad[2];
};
_Static_assert(sizeof(struct police_plan_leaf) == 16, "abi");

/* The part of a plan that depends on its rate: core::phantom::plan::Pace. */
struct police_pace {
	__u64 rate;
	__u64 idle_after; /* ns without a packet after which the state is as at the beginning */
	__u64 window_bytes;
	__u64 gate_cost; /* 2^-16 ns per byte */
	__u64 gate_slack; /* ns */
	__u64 gate_more; /* ns, after a pause */
	__u64 gate_pause; /* ns */
	__u32 limit; /* of each queue, or the burst of a bucket; bytes */
	__s32 spare_max; /* 2^10 ns of the rate */
};
_Static_assert(sizeof(struct police_pace) == 64, "abi");

/* A member of a segment: the fields that user space writes, then those of the programs, a cache line each. */
struct police_member {
	struct police_pace pace;
	__u64 segment;
	__u64 cost; /* of its guarantee, 2^-16 ns per byte; 0 has none */
	__u64 slack; /* ns */
	__u64 pad[5];
	__u64 at; /* until when the guarantee is taken, ns */
	__u64 passed; /* bytes */
	__u64 refused; /* packets that found the gate full */
	__u64 pad2[5];
};
_Static_assert(sizeof(struct police_member) == 192, "abi");

/* A segment's gate, as above. */
struct police_segment {
	__u64 cost;
	__u64 slack;
	__u64 until; /* when the members' paces end, ns */
	__u64 pad[5];
	__u64 at;
	__u64 pad2[7];
};
_Static_assert(sizeof(struct police_segment) == 128, "abi");

struct police_plan {
	struct police_pace pace; /* of all that have no other */
	__u32 kind; /* POLICE_KIND_* */
	__u32 shape; /* equal for plans whose states are understood alike; 0 is none's */
	__u64 window; /* ns */
	__u16 is_soft;
	__u16 sent_shift;
	__u16 inner_count;
	__u16 leaf_count;
	__u16 criterion_count;
	__u16 choice_default;
	__u32 zero; /* is 0, which the verifier must not know */
	__u32 aim; /* of a bundle: the place of the plan with one queue that drains at the target; 0 has none */
	__u8 free; /* the leaf of the free class, */
	__u8 stunt_first; /* and the leaves that pay */
	__u8 stunt_count;
	__u8 is_client; /* whether a subscriber's client may divide it; its slots are in the third class */
	struct police_plan_inner inners[POLICE_INNERS_MAX];
	struct police_plan_leaf leaves[POLICE_LEAVES_MAX];
	struct police_choice choices[POLICE_LEAVES_MAX];
	struct police_criterion criteria[POLICE_CRITERIA_MAX];
};
_Static_assert(sizeof(struct police_plan) == 2656, "abi");

/* The state of a token bucket. */
struct police_bucket {
	__u64 latest; /* ns */
	__u64 missing; /* what has been taken out of the full bucket */
	__u64 pad[2];
};

/* The state of phantom queues: of the whole, an inner node, a leaf. core::phantom::aggregate, whose
 * structures these are, describes the fields. */
struct police_head {
	union {
		struct {
			__u64 at;
			__u64 window_at;
			__u64 gate_at;
			__u32 window_bytes;
			__s32 spare;
		};
		struct police_bucket bucket;
	};
};
_Static_assert(sizeof(struct police_head) == 32, "abi");

struct police_inner {
	__u64 v;
	__u64 busy;
	__u64 nearest;
	__u64 finish;
	__u64 seen;
	__u32 v_window;
	__u16 carry;
	__u16 weight;
	__u32 used;
	__u32 used_last;
};
_Static_assert(sizeof(struct police_inner) == 56, "abi");

struct police_leaf {
	__u64 finish;
	__u32 accepted;
	__u32 magic;
	__u32 after;
	__u32 mark;
	__u64 flows;
};
_Static_assert(sizeof(struct police_leaf) == 32, "abi");

/* The state of a bundle, as core::phantom::aggregate::BundleState. */
struct police_lending {
	__u64 window_at;
	__u32 turn;
	__u32 pad;
	__u32 lent[POLICE_LEAVES_MAX];
	struct police_head aim_head;
	struct police_inner aim_inner;
	struct police_leaf aim_leaf;
};
_Static_assert(sizeof(struct police_lending) == 392, "abi");

/* The state of one subscriber in one direction. Everything is read and written under the lock. */
#define POLICE_SLOT(NAME, LEAVES, INNERS, MORE)                                                \
	struct NAME {                                                                          \
		struct bpf_spin_lock lock;                                                     \
		__u32 shape; /* of the plan to which the state belongs; 0 before the first packet */ \
		__u64 passed; /* bytes */                                                      \
		__u32 dropped; /* packets */                                                   \
		__u32 marked; /* packets */                                                    \
		struct police_head head;                                                       \
		struct police_inner inners[INNERS];                                            \
		struct police_leaf leaves[LEAVES];                                             \
		MORE                                                                           \
	}
POLICE_SLOT(police_slot_1, 1, 1, );
POLICE_SLOT(police_slot_4, 4, 4, );
POLICE_SLOT(police_slot_16, 16, 4, );
POLICE_SLOT(police_slot_64, 64, 5, );
POLICE_SLOT(police_slot_bundle, 64, 5, struct police_lending lending;);
_Static_assert(sizeof(struct police_slot_1) == 144, "abi");
_Static_assert(sizeof(struct police_slot_4) == 408, "abi");
_Static_assert(sizeof(struct police_slot_16) == 792, "abi");
_Static_assert(sizeof(struct police_slot_64) == 2384, "abi");
_Static_assert(sizeof(struct police_slot_bundle) == 2776, "abi");

/* Verdicts on a subscriber's packets, for one class of its plan. The slots of plans with several classes
 * have tallies, one for each leaf that the slot has room for, since a class has one leaf or more. */
struct police_tally {
	__u64 passed; /* bytes */
	__u32 dropped; /* packets */
	__u32 marked; /* packets */
};
_Static_assert(sizeof(struct police_tally) == 16, "abi");

#define POLICE_TALLIES(NAME, LEAVES)                                                           \
	struct NAME {                                                                          \
		struct police_tally of[LEAVES];                                                \
	}
POLICE_TALLIES(police_tallies_4, 4);
POLICE_TALLIES(police_tallies_16, 16);
POLICE_TALLIES(police_tallies_64, 64);

/* A client's request, at the index of its subscriber's slot. */
struct police_client {
	__u32 place; /* of the plan of its classes; 0 is none, as for uploads */
	__u32 number; /* of its bindings; 0 is none */
};
_Static_assert(sizeof(struct police_client) == 8, "abi");

/* Counters of packets and bytes by verdict. */
struct police_totals {
	__u64 passed_bytes;
	__u64 passed_packets;
	__u64 dropped_bytes;
	__u64 dropped_packets;
	__u64 marked_packets;
	__u64 delegated_bytes; /* of a free class, for which a stunt paid */
	__u64 delegated_packets;
	__u64 refused_packets; /* for which no stunt could */
};
_Static_assert(sizeof(struct police_totals) == 64, "abi");

/* A hook's constants. */
struct police_settings {
	__u32 is_upload; /* subscribers are the senders */
	__u32 has_ethernet; /* else frames begin with the IP header */
	__s32 overhead; /* bytes of each packet beyond the Ethernet frame */
	__u32 is_trial; /* the clock is trial_clock */
	__u32 classes; /* of slots, by bits, and behind them clients: the verifier does not look at functions that
			* no constant leads to */
};

/* The input and result of a benchmark. */
struct bench {
	__u32 turns;
	__u32 subscribers; /* their addresses begin with 10.0.0.0 */
	__u32 ports; /* which bits of the remote port are random: how many flows each has */
	__u32 pad;
	__u64 random;
};
