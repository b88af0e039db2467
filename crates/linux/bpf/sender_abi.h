/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the congestion controls of a sender's bundles and user space share. The build makes the Rust
 * structures from it (build/structs.rs).
 *
 * A member is a connection of a bundle, and has a place in two tables: `orders`, which only user
 * space writes, and `members`, which only the programs write.
 */
#pragma once

#include <linux/types.h>

#define MEMBERS_MAX 16384
#define BUNDLES_MAX 16
/* Maximum number of connections of a bundle that have a target. */
#define FREE_MAX 16
/* The most stunts that answer one signal. */
#define PICKS_MAX 64
#define CC_NAME_BYTES 16

#define ROLE_NONE 0
#define ROLE_FREE 1
#define ROLE_STUNT 2

#define PHASE_SLOW_START 0
#define PHASE_AVOIDANCE 1
#define PHASE_RECOVERY 2

/* The role and limits that user space wants for a member. */
struct order {
	__u64 aim_bps; /* where reductions of a free connection end; only if has_aim */
	__u64 min_rate_bps; /* what a stunt keeps */
	__s32 gain; /* which part of the signals is delegated, in 2^-16; only if not has_aim */
	__u32 has_aim;
	__u32 bundle;
	__u32 role; /* ROLE_* */
	__u32 weight; /* of a stunt */
	__u32 apart; /* of a free connection: its bit; of a stunt: the bits of those it does not answer for */
};
_Static_assert(sizeof(struct order) == 40, "abi");

/* The places of a bundle's members. */
struct bundle_order {
	__u32 stunts_from; /* places of the stunts: from this one */
	__u32 stunts_to; /* to the one before this */
	__u32 free_count;
	__u32 reverse_own; /* a free connection answers a stunt's signal as it would its own */
	__u32 free[FREE_MAX];
};
_Static_assert(sizeof(struct bundle_order) == 80, "abi");

/* The programs' state of a bundle. */
struct bundle_state {
	__u64 turn; /* of the stunt that was asked last */
	__u32 busy; /* a signal is being answered */
	__u32 pad;
};
_Static_assert(sizeof(struct bundle_state) == 16, "abi");

/* The programs' state of a member. */
struct member {
	__u64 cookie; /* of its socket; 0 if it has left */
	__u64 cut_ns; /* when its window was last cut; 0 is never */
	__u64 turn; /* of a stunt */
	__u64 delivered; /* L2 bytes */
	__u64 signals; /* delegated + taken */
	__u64 delegated;
	__u64 taken;
	__u64 refused;
	__u64 cuts; /* for signals of others */
	__u64 rtts_us; /* round-trip times of the newest packets of all ACKs together */
	__u64 rtt_count; /* how many these are */
	__u64 heard_us; /* when it last delivered something, by the clock of the kernel's TCP */
	__u32 cwnd; /* packets, as the next two */
	__u32 cwnd_cut; /* what its own congestion control would leave */
	__u32 debt; /* packets by which it has to reduce its window for others */
	__u32 packet; /* L2 bytes of a full one */
	__u32 rtt_us; /* smoothed; 0 is unknown */
	__u32 phase; /* PHASE_* */
	__u32 forward; /* signals that should have been delegated and were not, in 2^-16 */
	__u32 reverse;
	__u32 delivered_seen; /* packets, as the kernel counts them */
	__u32 mended; /* signals whose answer did not reach the kernel: see mend */
	__u32 gave; /* packets of its last cut, if that was for others */
	__u32 pad;
};
_Static_assert(sizeof(struct member) == 144, "abi");

/* Which place a connection is to have. */
struct place {
	__u32 member;
	char name[CC_NAME_BYTES]; /* of the congestion control */
};
_Static_assert(sizeof(struct place) == 20, "abi");

/* A connection that a rule names. */
struct role_record {
	__u64 cookie;
	__u8 remote[16]; /* IPv4 in the first four bytes */
	char name[CC_NAME_BYTES]; /* of its congestion control */
	__u16 slot; /* of the rule */
	__u16 is_ipv6;
	__u16 port_remote;
	__u16 port_local;
};
_Static_assert(sizeof(struct role_record) == 48, "abi");

#define EVENT_SAMPLE 0
#define EVENT_SIGNAL 1
#define EVENT_CUT 2
#define EVENT_TIMEOUT 3

/* An event of a member in a replay, and the resulting decision. */
struct replay {
	__u64 now_ns;
	__u64 delivered;
	__u32 event; /* EVENT_* */
	__u32 member;
	__u32 cwnd;
	__u32 cwnd_cut;
	__u32 packet;
	__u32 rtt_us;
	__u32 phase;
	__u32 answer; /* out: the window that is left; 0 is its own cut, or no cut for others */
};
_Static_assert(sizeof(struct replay) == 48, "abi");
