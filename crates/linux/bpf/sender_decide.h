/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decides who answers a congestion signal: core::delegate decides the same, and a test plays events
 * to both. Rates are in bit/s, and rounded as in core::delegate.
 *
 * Two signals of one bundle that arrive on two CPUs at once are not both delegated: a connection
 * that finds the bundle busy answers its signal itself, as it would without the bundle.
 */
#pragma once

#define WINDOW_MIN 2u
/* Bytes that a stunt must have delivered before it is asked: short transfers are not delayed. */
#define ELEPHANT_BYTES 1000000ull
/* Limits of a window in packets and of a round-trip time, so that no product overflows. */
#define CWND_MAX (1u << 20)
#define RTT_US_MAX (1u << 23)
#define RATE_MAX (1ull << 40)
#define GAIN_ONE 65536u

/* Written by user space when roles, targets or gains change; read here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BUNDLES_MAX);
	__type(key, __u32);
	__type(value, struct bundle_order);
} bundle_orders SEC(".maps");

/* Written here with each ACK and signal, read by user space each tick; live as long as a socket
 * uses one of the congestion controls. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MEMBERS_MAX);
	__type(key, __u32);
	__type(value, struct member);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BUNDLES_MAX);
	__type(key, __u32);
	__type(value, struct bundle_state);
} bundle_states SEC(".maps");

static __always_inline __u64 rate_floor(const struct member *m, __u32 packets)
{
	/* Below 2^20 * 2^17 * 2^23. */
	return m->rtt_us ? (__u64)packets * m->packet * 8000000ull / m->rtt_us : 0;
}

/* Rate that a member would give up if it answered its own signal. */
static __always_inline __u64 own_cut(const struct member *m)
{
	return rate_floor(m, m->cwnd > m->cwnd_cut ? m->cwnd - m->cwnd_cut : 0) + 1;
}

/* A rate in packets per round-trip time, rounded up unless only one bit/s is missing. */
static __always_inline __u32 packets_ceil(const struct member *m, __u64 rate)
{
	__u32 packet = m->packet ? m->packet : 1;
	__u64 packets;

	if (rate > RATE_MAX)
		rate = RATE_MAX;
	packets = (rate * m->rtt_us / 8000000 + packet) / packet;
	if (packets > CWND_MAX)
		packets = CWND_MAX;
	if (packets && rate_floor(m, packets - 1) + 1 >= rate)
		packets--;
	return packets;
}

/* Whether the member's window was cut less than one round-trip time ago. */
static __always_inline int is_fresh(const struct member *m, __u64 now)
{
	return m->cut_ns && now - m->cut_ns < m->rtt_us * 1000ull;
}

static __always_inline int may_be_cut(const struct member *m, __u64 now)
{
	return m->rtt_us && !m->debt && !is_fresh(m, now) && m->phase != PHASE_RECOVERY;
}

/* The largest reduction, in packets, that a cut for others may take. */
static __always_inline __u32 packets_most(const struct member *m, const struct order *o)
{
	__u32 least = o->role == ROLE_STUNT ? packets_ceil(m, o->min_rate_bps) : 0;

	if (least < m->cwnd_cut)
		least = m->cwnd_cut;
	if (least < WINDOW_MIN)
		least = WINDOW_MIN;
	return m->cwnd > least ? m->cwnd - least : 0;
}

/* How many packets a stunt can give up now. */
static __always_inline __u32 offer_of(const struct member *m, const struct order *o, __u64 now)
{
	if (!m->cookie || !may_be_cut(m, now) || m->phase == PHASE_SLOW_START ||
	    m->delivered < ELEPHANT_BYTES)
		return 0;
	return packets_most(m, o);
}

/* One pass over all stunts of a bundle: what they can give up, and whose turn it is. */
struct scan {
	__u64 now;
	__u64 sum;
	__u64 turn; /* of the one whose turn it is */
	__u64 rate; /* what that one can give up; 0 if there is none */
	__u64 since_us; /* only who was heard after that is asked */
	__u32 bundle;
	__u32 from;
	__u32 index;
	__u32 packets; /* the same in packets of its own */
	__u32 free; /* the bit of the connection that they are asked for */
	__u32 pad;
};

static long scan_stunt(__u32 nth, struct scan *scan)
{
	__u32 index = scan->from + nth, packets;
	struct order *o = bpf_map_lookup_elem(&orders, &index);
	struct member *m;
	__u64 rate;

	if (!o || o->role != ROLE_STUNT || o->bundle != scan->bundle ||
	    (o->apart & scan->free))
		return 0;
	m = bpf_map_lookup_elem(&members, &index);
	if (!m)
		return 0;
	packets = m->heard_us > scan->since_us ? offer_of(m, o, scan->now) : 0;
	rate = rate_floor(m, packets);
	scan->sum += rate;
	if (rate && (!scan->rate || m->turn < scan->turn)) {
		scan->turn = m->turn;
		scan->rate = rate;
		scan->index = index;
		scan->packets = packets;
	}
	return 0;
}

struct picks {
	struct scan scan;
	struct bundle_state *state;
	__u64 need;
	__u64 given;
	__u32 count;
	__u32 pad;
};

/* Makes the stunt whose turn it is give up its part. */
static long pick_stunt(__u32 nth, struct picks *picks)
{
	struct scan *scan = &picks->scan;
	__u32 index, missing;
	struct member *m;
	struct order *o;
	__u64 rest;

	if (picks->given >= picks->need)
		return 1;
	if (nth) {
		scan->rate = 0;
		bpf_loop(picks->count, scan_stunt, scan, 0);
	}
	index = scan->index;
	m = bpf_map_lookup_elem(&members, &index);
	o = bpf_map_lookup_elem(&orders, &index);
	if (!scan->rate || !m || !o)
		return 1;
	rest = picks->need - picks->given;
	picks->given += scan->rate;
	/* A stunt that could not be asked for some time does not make up for its missed turns. */
	if (picks->state->turn < scan->turn)
		picks->state->turn = scan->turn;
	/* The last one gives up only what is missing. */
	missing = packets_ceil(m, rest);
	m->turn = picks->state->turn + o->weight;
	m->debt = missing < scan->packets ? missing : scan->packets;
	return 0;
}

/* The time of a request, and the time since which a member must have been heard to be asked. */
struct when {
	__u64 now;
	__u64 since_us;
};

/* Makes stunts give up at least `need`, in turns; returns whether they do. */
static __noinline int delegate(struct bundle_state *state, struct member *m, const struct order *o,
			       __u64 need, const struct when *when)
{
	__u32 bundle = o ? o->bundle : BUNDLES_MAX;
	struct bundle_order *where = bpf_map_lookup_elem(&bundle_orders, &bundle);
	struct picks picks = {};

	if (!where || !state || !m || !o || !when || where->stunts_to < where->stunts_from)
		return 0;
	picks.scan.now = when->now;
	picks.scan.since_us = when->since_us;
	picks.scan.bundle = bundle;
	picks.scan.free = o->apart;
	picks.scan.from = where->stunts_from;
	picks.state = state;
	/* One bit/s of the need is an allowance for rounding. */
	need -= need ? 1 : 0;
	picks.need = need;
	picks.count = where->stunts_to - where->stunts_from;
	bpf_loop(picks.count, scan_stunt, &picks.scan, 0);
	if (picks.scan.sum < need) {
		m->refused++;
		return 0;
	}
	bpf_loop(PICKS_MAX, pick_stunt, &picks, 0);
	/* If too many small stunts are needed, both sides give up something. */
	return picks.given >= need;
}

/* Adds a part of a signal; returns whether the parts make a whole signal, which is then subtracted. */
static __always_inline int advance(__u32 *signals, __u32 part)
{
	*signals += part;
	if (*signals < GAIN_ONE)
		return 0;
	*signals -= GAIN_ONE;
	return 1;
}

/* Reduces a free connection to its aim, and makes stunts give up the rest. */
static __always_inline __u32 answer_in_part(struct bundle_state *state, struct member *m,
					    const struct order *o, const struct when *when)
{
	__u32 aim = packets_ceil(m, o->aim_bps);
	__u64 own = own_cut(m), given;

	if (aim < m->cwnd_cut)
		aim = m->cwnd_cut;
	if (aim > m->cwnd)
		aim = m->cwnd;
	if (aim == m->cwnd_cut)
		return 0;
	given = rate_floor(m, m->cwnd - aim);
	return delegate(state, m, o, own > given ? own - given : 0, when) ? aim : 0;
}

static __always_inline __u32 answer_free(struct bundle_state *state, struct member *m,
					 const struct order *o, const struct when *when)
{
	if (o->has_aim)
		return answer_in_part(state, m, o, when);
	if (!advance(&m->forward, o->gain > 0 ? o->gain : 0))
		return 0;
	return delegate(state, m, o, own_cut(m), when) ? m->cwnd : 0;
}

/* The place of the free connection that is furthest above its target and may answer for a stunt; MEMBERS_MAX
 * if there is none. Skips connections that are `apart` from the stunt, or not heard after `since_us`. */
static __always_inline __u32 furthest_above(const struct bundle_order *where, __u32 apart,
					    __u64 since_us)
{
	__u32 found = MEMBERS_MAX;
	__u64 excess_most = 0;
	__s32 gain_least = 0;

	for (__u32 nth = 0; nth < FREE_MAX && nth < where->free_count; nth++) {
		__u32 index = where->free[nth];
		struct order *o = bpf_map_lookup_elem(&orders, &index);
		struct member *m = bpf_map_lookup_elem(&members, &index);
		__u64 excess = 0, rate;

		if (!o || !m || !m->cookie || !m->rtt_us || o->role != ROLE_FREE ||
		    (o->apart & apart) || m->heard_us <= since_us)
			continue;
		if (o->has_aim) {
			rate = rate_floor(m, m->cwnd);
			excess = rate > o->aim_bps ? rate - o->aim_bps : 0;
		}
		if (o->has_aim ? !excess : o->gain >= 0)
			continue;
		if (found == MEMBERS_MAX || o->gain < gain_least ||
		    (o->gain == gain_least && excess > excess_most)) {
			found = index;
			gain_least = o->gain;
			excess_most = excess;
		}
	}
	return found;
}

/* Makes a free connection give up what the stunt would have, or as much of it as it can. */
static __always_inline __u32 give_back(struct member *stunt, const struct order *of_stunt,
				       const struct when *when, int *is_whole)
{
	__u32 bundle = of_stunt->bundle;
	struct bundle_order *where = bpf_map_lookup_elem(&bundle_orders, &bundle);
	__u32 index, least, fewer, left;
	__u64 need = own_cut(stunt), given;
	struct member *m;
	struct order *o;

	if (!where)
		return 0;
	index = furthest_above(where, of_stunt->apart, when->since_us);
	o = bpf_map_lookup_elem(&orders, &index);
	m = bpf_map_lookup_elem(&members, &index);
	if (!o || !m)
		return 0;
	if (!o->has_aim && !advance(&m->reverse, o->gain < 0 ? -o->gain : 0))
		return 0;
	if (!may_be_cut(m, when->now))
		return 0;
	least = o->has_aim ? packets_ceil(m, o->aim_bps) : 0;
	if (least < m->cwnd_cut)
		least = m->cwnd_cut;
	if (least < WINDOW_MIN)
		least = WINDOW_MIN;
	if (m->cwnd <= least)
		return 0;
	given = rate_floor(m, m->cwnd - least);
	fewer = packets_ceil(m, need);
	if (fewer > m->cwnd - least || (where->reverse_own && !o->has_aim))
		fewer = m->cwnd - least;
	m->debt = fewer;
	*is_whole = given + 1 >= need;
	if (*is_whole)
		return stunt->cwnd;
	/* The stunt gives up what the free connection cannot. */
	fewer = packets_ceil(stunt, need - given);
	left = stunt->cwnd > fewer ? stunt->cwnd - fewer : 0;
	return left > stunt->cwnd_cut ? left : stunt->cwnd_cut;
}

/*
 * A member's own signal within a round-trip time of a cut for others concerns the window before
 * that cut: at a full queue all connections lose packets at once. The member's own cut is therefore
 * smaller; it owes the difference.
 */
static __always_inline void owe_for(struct member *m, __u64 now)
{
	__u32 gave = m->gave, kept;

	m->gave = 0;
	if (!gave || !is_fresh(m, now))
		return;
	kept = (__u64)gave * m->cwnd_cut / (m->cwnd ? m->cwnd : 1);
	if (kept < gave)
		__sync_fetch_and_add(&m->debt, gave - kept);
}

/*
 * A member must cut its window, for the first time in its round-trip time. Returns the remaining
 * window, or 0 if the member cuts as it would without the bundle. A timeout is answered only by
 * connections that have delivered something since this one did: for them the path works.
 */
static __noinline __u32 handle_signal(__u32 index, __u64 now, int is_timeout)
{
	struct member *m = bpf_map_lookup_elem(&members, &index);
	struct order *o = bpf_map_lookup_elem(&orders, &index);
	struct bundle_state *state;
	struct when when = { .now = now };
	__u32 bundle, left = 0;
	int is_whole = 0;

	if (!m || !o)
		return 0;
	bundle = o->bundle;
	state = bpf_map_lookup_elem(&bundle_states, &bundle);
	m->signals++;
	if (is_timeout)
		when.since_us = m->heard_us;
	if (m->rtt_us)
		owe_for(m, now);
	if (state && m->rtt_us && !__sync_lock_test_and_set(&state->busy, 1)) {
		if (o->role == ROLE_FREE) {
			left = answer_free(state, m, o, &when);
			is_whole = left && left == m->cwnd;
		} else if (o->role == ROLE_STUNT) {
			left = give_back(m, o, &when, &is_whole);
		}
		__sync_lock_test_and_set(&state->busy, 0);
	}
	if (is_whole) {
		m->delegated++;
	} else {
		m->taken++;
		m->cut_ns = now;
	}
	return left;
}

/* The window to which a member must go down for signals of others, or 0. */
static __always_inline __u32 take_cut(struct member *m, const struct order *o, __u64 now)
{
	__u32 cut = m->debt, most;

	/* The member has just answered its own signal: the cut for others waits for the next round-trip time. */
	if (!cut || !m->rtt_us || is_fresh(m, now))
		return 0;
	most = packets_most(m, o);
	if (cut > most)
		cut = most;
	if (!cut)
		return 0;
	m->cut_ns = now;
	m->gave = cut;
	m->cuts++;
	/* Only its own ACKs reduce a debt. What its floor keeps now is given up when the window has grown. */
	__sync_fetch_and_add(&m->debt, -cut);
	return m->cwnd - cut;
}
