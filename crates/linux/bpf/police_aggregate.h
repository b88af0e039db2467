/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BC-PQP: the policer of one subscriber. crates/core/src/phantom/aggregate/mod.rs with window.rs
 * and soft.rs is the specification; this code does the same steps and gives the same verdicts.
 */
#pragma once

/* Bytes that a flow may send before it is judged. */
#define ALLOWANCE_MIN 3000u
#define ALLOWANCE_MAX 15000u
/* The rest of a window is counted in units of 2^-10 window. */
#define REST_SHIFT 10
/* A smaller offer than this says nothing about a sender, bytes. */
#define TELLING 1500
#define GATE_SHIFT 16
/* Where less than this passes in a window, starved classes send nothing, bytes. */
#define TRICKLE_WINDOW (8 * 1500)
/* Pause after which a sender starts anew, ns. */
#define PAUSE_MAX 1000000000ull
/* Flags of gate_at: the gate was moved back, so that a sender may catch up; the start is over. */
#define GATE_CATCHES_UP 1ull
#define GATE_OPEN 2ull
#define GATE_FLAGS 3ull
/* Flags of window_at: the gate refused a packet in this window; in the window before; how much of a
 * start is over. */
#define WINDOW_REFUSED 1ull
#define WINDOW_WAS_REFUSED 2ull
#define WINDOW_COUNT_SHIFT 2
#define WINDOW_FLAGS 63ull
#define START_COUNT_MAX 16
/* How far a subscriber in its start may be ahead, beyond the allowance, ns. */
#define START_SLACK 70000000ull
/* Unit of the spare, the unused part of the rate: 2^10 ns. */
#define SPARE_SHIFT 10
/* Spare that is available while the counter is 0, as after idleness; the least value of the counter. */
#define SPARE_IDLE (500000000 >> SPARE_SHIFT)
#define SPARE_LEAST (-(1ll << 31))
/* Packets count as at most this many bytes. */
#define SIZE_MAX (1u << 20)

/* A leaf's mark: which signals its sender got, and for how long it has been too fast. */
#define MARK_DISARMED (1u << 31)
#define MARK_FILLED (1u << 30)
#define MARK_RISING (1u << 29)
#define MARK_COUNT_SHIFT 26
#define MARK_COUNT_MAX 7u
#define MARK_COUNT (MARK_COUNT_MAX << MARK_COUNT_SHIFT)
#define MARK_STREAK_SHIFT 24
#define MARK_STREAK_MAX 3u
#define MARK_STREAK (MARK_STREAK_MAX << MARK_STREAK_SHIFT)
#define MARK_SILENCE_SHIFT 20
#define MARK_SILENCE_MAX 15u
#define MARK_SILENCE (MARK_SILENCE_MAX << MARK_SILENCE_SHIFT)
#define MARK_AT ((1u << 20) - 1)
#define TICK_SHIFT 20
#define REARM_WINDOWS 10
/* Consecutive windows in which a leaf is too fast before it is filled. */
#define STREAK 3

static __always_inline __u32 tick_at(__u64 now)
{
	return now >> TICK_SHIFT & MARK_AT;
}

static __always_inline __u32 mark_count(__u32 mark)
{
	return mark >> MARK_COUNT_SHIFT & MARK_COUNT_MAX;
}

/* Whether the last signal is at least `parts` 64ths of a window ago. */
static __always_inline int is_older(__u32 mark, const struct police_plan *plan, __u64 now, __u64 parts)
{
	__u64 age = (tick_at(now) - (mark & MARK_AT)) & MARK_AT;

	return age << (TICK_SHIFT + 6) >= plan->window * parts;
}

/* The time from the n-th signal to the next, three windows / sqrt(n), in 64ths of a window: one
 * byte for each n. */
static __always_inline __u64 interval(__u32 mark)
{
	return 0x494e56606f88c0c0ull >> mark_count(mark) * 8 & 0xff;
}

static __always_inline __u32 mark_armed(__u32 mark)
{
	return mark & ~(MARK_DISARMED | MARK_COUNT);
}

static __always_inline __u32 mark_signalled(__u32 mark, __u64 now)
{
	__u32 count = mark_count(mark) + 1;

	if (count > MARK_COUNT_MAX)
		count = MARK_COUNT_MAX;
	return (mark & ~(MARK_COUNT | MARK_AT)) | MARK_DISARMED | count << MARK_COUNT_SHIFT | tick_at(now);
}

/* Magic bytes of a settled leaf that have not been served. */
static __always_inline __u64 magic_left(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	const struct police_leaf *state = leaf_of(s, leaf);
	__u64 left;

	if (!state->magic)
		return 0;
	left = less(backlog_of(s, plan, leaf), state->after);
	return left < state->magic ? left : state->magic;
}

/* Fills a settled leaf to its limit with magic, unless the subscriber has spare. */
static __always_inline void fill(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	__u64 room = less(s->pace->limit, backlog_of(s, plan, leaf)), left;
	struct police_leaf *state = leaf_of(s, leaf);

	if (!room || s->head->spare > 0)
		return;
	left = magic_left(s, plan, leaf);
	put(s, plan, leaf, room);
	if (!left)
		state->after = 0;
	state->magic = left + room;
	state->mark |= MARK_FILLED;
}

/* The part of `share` that a child of a weighted node gets, with the child counted as busy. */
static __always_inline __u64 part_of(const struct state *s, __u32 node, __u32 child, __u32 weight,
				     __u64 share)
{
	const struct police_inner *inner = inner_of(s, node);
	__u64 weights = inner->weight;

	if (!(inner->busy & bit(child)))
		weights += weight;
	return share * weight / weights;
}

/* The part of its parent's `share` that an inner node gets. */
static __always_inline __u64 part_of_inner(const struct state *s, const struct police_plan *plan,
					   __u32 index, __u64 share)
{
	const struct police_plan_inner *spec = plan_inner(plan, index);
	__u32 first;

	if (!plan_inner(plan, spec->parent)->is_priority)
		return part_of(s, spec->parent, spec->child, spec->weight, share);
	first = plan_inner(plan, spec->parent)->inner_first;
	for (__u32 i = 0; i < POLICE_INNERS_MAX - 1; i++) {
		if (first + i >= index)
			break;
		share = less(share, inner_of(s, first + i)->used_last);
	}
	return share;
}

/* Bytes that the rate carries in a window as long as the last one, at least in a usual one. */
static __always_inline __u64 window_bytes(const struct state *s)
{
	__u64 usual = s->pace->window_bytes, last = s->head->window_bytes;

	return usual > last ? usual : last;
}

/* The leaf's share of window_bytes, bytes. */
static __always_inline __u64 share_of_window(const struct state *s, const struct police_plan *plan,
					     __u32 leaf)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	__u32 lower = parent_of(s, spec), upper;
	__u64 share = window_bytes(s);

	if (s->inner_max && lower) {
		upper = plan_inner(plan, lower)->parent;
		if (upper)
			share = part_of_inner(s, plan, upper, share);
		share = part_of_inner(s, plan, lower, share);
	}
	return part_of(s, lower, spec->child, weight_of(s, plan, leaf), share);
}

/* What this window offers a leaf that is always busy: what was served per weight until now, and its
 * share of the rest; at least its share. The path is settled. */
static __always_inline __u64 offered_in_window(const struct state *s, const struct police_plan *plan,
					       __u64 now, __u32 leaf)
{
	const struct police_inner *parent = inner_of(s, parent_of(s, plan_leaf(plan, leaf)));
	__u64 share = share_of_window(s, plan, leaf);
	__u32 served = (__u32)(parent->v >> UNIT_BITS) - parent->v_window;
	__u64 left = less(plan->window, less(now, s->head->window_at));
	__u64 rest = share * (left / (plan->window >> REST_SHIFT)) >> REST_SHIFT;
	__u64 offered = weight_of(s, plan, leaf) * (__u64)served + rest;

	return share > offered ? share : offered;
}

/* Counts consecutive windows: one more, or back to 0. */
static __always_inline __u32 in_a_row(__u32 before, int is_so, __u32 most)
{
	if (!is_so)
		return 0;
	return before < most ? before + 1 : most;
}

/* A span in units of the spare, rounded; capped at 2^43 ns (2.4 hours). */
static __always_inline __s64 ticks(__u64 ns)
{
	if (ns > 1ull << 43)
		ns = 1ull << 43;
	return (ns + (1 << (SPARE_SHIFT - 1))) >> SPARE_SHIFT;
}

/* Adds to the spare what the rate carried in a window of `length` ns beyond what was accepted; all
 * nodes are settled. Returns 1 if at least half of the rate was accepted, else 0. */
static __always_inline __u64 count_spare(const struct state *s, const struct police_plan *plan, __u64 length)
{
	__s64 spare = s->head->spare, most = s->pace->spare_max, came = ticks(length), used;
	__u64 accepted = 0;

	for (__u32 leaf = plan->zero & 127; leaf < plan->leaf_count && can_loop; leaf = (leaf + 1) & 127)
		accepted += leaf_of(s, leaf)->accepted;
	if (!inner_of(s, 0)->busy)
		most = spare > 0 ? spare : 0;
	used = ticks((accepted << UNIT_BITS) / s->pace->rate);
	spare += came - used;
	if (spare > most)
		spare = most;
	if (spare < SPARE_LEAST)
		spare = SPARE_LEAST;
	s->head->spare = spare;
	return (__u64)(came - 2 * used - 1) >> 63;
}

/* Bytes that the rate carries in the spare time; 0 if there is none to spare. */
static __always_inline __u64 spare_bytes(const struct state *s)
{
	__s64 spare = (__s64)s->head->spare + SPARE_IDLE;

	return spare > 0 ? s->pace->rate * ((__u64)spare << SPARE_SHIFT) >> UNIT_BITS : 0;
}

/* Judges what a settled leaf accepted in the window by what its parent served per weight. */
static __always_inline void judge(const struct state *s, const struct police_plan *plan, __u32 leaf,
				  __u64 served)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	struct police_leaf *state = leaf_of(s, leaf);
	int is_busy = !!(inner_of(s, parent_of(s, spec))->busy & bit(spec->child)), is_slow;
	__u64 accepted = state->accepted, offered = weight_of(s, plan, leaf) * served, left, waiting;
	__u32 streak = state->mark >> MARK_STREAK_SHIFT & MARK_STREAK_MAX;
	__u32 silence = state->mark >> MARK_SILENCE_SHIFT & MARK_SILENCE_MAX;
	__u32 mark = state->mark & ~(MARK_FILLED | MARK_RISING | MARK_STREAK | MARK_SILENCE);

	state->accepted = 0;
	state->flows = flows_halve(state->flows);
	silence = in_a_row(silence, !accepted, MARK_SILENCE_MAX);
	/* The threshold is 11/8: more than Reno's sawtooth. */
	streak = in_a_row(streak, is_busy && accepted * 8 > offered * 11, MARK_STREAK_MAX);
	if (accepted * 20 > offered * 21)
		mark |= MARK_RISING;
	state->mark = mark | streak << MARK_STREAK_SHIFT | silence << MARK_SILENCE_SHIFT;
	if (!is_busy)
		return;
	left = magic_left(s, plan, leaf);
	is_slow = 2 * accepted < offered && (silence ? silence : 1) * offered >= TELLING;
	if (!left || is_slow) {
		if (is_slow && !accepted) {
			left += spare_bytes(s);
			waiting = backlog_of(s, plan, leaf);
			if (left > waiting)
				left = waiting;
		}
		take(s, plan, leaf, left);
		state->magic = 0;
		state->after = 0;
	}
	if (streak >= STREAK)
		fill(s, plan, leaf);
	/* If the rate has fallen, the backlog may be too large. */
	waiting = backlog_of(s, plan, leaf);
	if (waiting > s->pace->limit + window_bytes(s))
		take(s, plan, leaf, waiting - s->pace->limit);
}

/* Begins a start after a pause. Ends it if the gate refused nothing in this window but did in the
 * one before, or after sixteen windows with at least half of the rate, or eight with a refusal.
 * Returns the flags of the next window. */
static __always_inline __u64 count_start(const struct state *s, __u64 now, __u64 is_used)
{
	__u64 flags = s->head->window_at & WINDOW_FLAGS, refused = flags & WINDOW_REFUSED;
	__u64 count = (flags >> WINDOW_COUNT_SHIFT) + (refused ? 2 : is_used);

	if (less(now, s->head->gate_at) >= PAUSE_MAX) {
		s->head->gate_at &= ~GATE_OPEN;
		return 0;
	}
	if (s->head->gate_at & GATE_OPEN || (flags & WINDOW_WAS_REFUSED && !refused) || count >= START_COUNT_MAX) {
		s->head->gate_at |= GATE_OPEN;
		return 0;
	}
	return count << WINDOW_COUNT_SHIFT | refused * WINDOW_WAS_REFUSED;
}

/* Ends the window, judges its leaves, and begins the next. */
static __always_inline void begin_window(const struct state *s, const struct police_plan *plan, __u64 now)
{
	__u64 length = now - s->head->window_at, is_used;
	const struct police_plan_inner *spec;
	struct police_inner *inner;
	__u32 v, served, end;

	settle(s, plan, now, ~0ull);
	is_used = count_spare(s, plan, length);
	for (__u32 index = first_inner(plan); index < plan->inner_count && can_loop;
	     index = next_inner(index)) {
		spec = plan_inner(plan, index);
		inner = inner_of(s, index);
		v = inner->v >> UNIT_BITS;
		served = v - inner->v_window;
		end = spec->leaf_first + spec->leaf_count;
		for (__u32 leaf = spec->leaf_first & 127; leaf < end && can_loop; leaf = (leaf + 1) & 127)
			judge(s, plan, leaf, served);
		inner->v_window = v;
		inner->used_last = inner->used * plan->window / length;
		inner->used = 0;
	}
	age_flows(s, plan, s->head->window_at, now);
	if (!inner_of(s, 0)->busy)
		length = plan->window;
	else if (length > 3 * plan->window)
		length = 3 * plan->window;
	s->head->window_bytes = s->pace->rate * length >> UNIT_BITS;
	s->head->window_at = (now & ~WINDOW_FLAGS) | count_start(s, now, is_used);
}

static __always_inline int is_window_over(const struct police_head *head, const struct police_plan *plan,
					  __u64 now)
{
	return less(now, head->window_at) >= plan->window;
}

/* 1 if the gate refused packets of a start in this window, else 0. */
static __always_inline __u32 is_start_refused(const struct state *s)
{
	return s->head->window_at & ~(s->head->gate_at >> 1) & 1;
}

/* Accepts the packet without settling anything, if the result is exact. */
static __always_inline int surely_fits(const struct state *s, const struct police_plan *plan, __u64 now,
				       __u32 leaf, __u64 size)
{
	const struct police_plan_leaf *spec = plan_leaf(plan, leaf);
	struct police_leaf *state = leaf_of(s, leaf);
	const struct police_inner *root = s->inners;
	__u64 elapsed = less(now, s->head->at), backlog, accepted = state->accepted + size;
	__u64 weight = weight_of(s, plan, leaf);

	if (parent_of(s, spec) || !(root->busy & bit(spec->child)) ||
	    (state->mark & MARK_DISARMED) | is_start_refused(s))
		return 0;
	if (elapsed >= s->pace->idle_after)
		return 0;
	backlog = weight * (state->finish - root->v);
	if (backlog <= s->pace->rate * elapsed + root->carry ||
	    backlog + (size << UNIT_BITS) > (__u64)s->pace->limit << UNIT_BITS)
		return 0;
	/* What the leaf may accept before it is filled: 7/5 of its part of the window. */
	if (backlog + (size << UNIT_BITS) > (__u64)ALLOWANCE_MIN << UNIT_BITS &&
	    !(state->mark & MARK_FILLED) &&
	    5 * accepted * root->weight > 7 * window_bytes(s) * weight)
		return 0;
	state->finish += per_weight(size, inverse_of(s, plan, leaf));
	state->accepted = accepted;
	state->after = add_capped(state->after, size);
	return 1;
}

/* Bytes that a leaf with `share` of the window may hold beyond its limit. After a silence, which
 * makes a window longer than clumps of packets do, the grace does not grow. */
static __always_inline __u64 grace_of(const struct state *s, __u64 share)
{
	__u64 window_bytes = s->head->window_bytes;

	if (window_bytes <= 2 * s->pace->window_bytes)
		return share;
	return share * s->pace->window_bytes / window_bytes;
}

/* One drop or mark when a queue is full, then a grace period until its sender can have answered. */
static __always_inline enum verdict signal_softly(const struct state *s, const struct police_plan *plan,
						  struct arrival *arrival, __u32 leaf, __u64 backlog,
						  __u64 share)
{
	struct police_leaf *state = leaf_of(s, leaf);
	__u64 now = arrival->now;
	__u32 mark = state->mark;

	if (backlog <= s->pace->limit) {
		if (mark & MARK_DISARMED &&
		    (backlog + 3 * share / 10 <= s->pace->limit ||
		     is_older(mark, plan, now, 64 * REARM_WINDOWS)))
			state->mark = mark_armed(mark);
		return VERDICT_PASS;
	}
	if (backlog > s->pace->limit + (mark & MARK_FILLED ? 0 : grace_of(s, share)))
		return VERDICT_DROP;
	if (!is_older(mark, plan, now, interval(mark)) || !(mark & (MARK_RISING | MARK_FILLED)))
		return VERDICT_PASS;
	state->mark = mark_signalled(mark, now);
	return arrival->can_be_marked ? VERDICT_MARK : VERDICT_DROP;
}

/* Fills the leaf's queue with magic if it accepted more in this window than its share explains, and
 * its backlog is larger than a flow may send before it is judged. */
static __always_inline void control_burst(const struct state *s, const struct police_plan *plan, __u32 leaf,
					  __u64 share)
{
	__u64 backlog = backlog_of(s, plan, leaf), allowance = 4 * share, is_start = is_start_refused(s);
	struct police_leaf *state = leaf_of(s, leaf);

	if (backlog <= ALLOWANCE_MIN || state->mark & MARK_FILLED)
		return;
	if (allowance < ALLOWANCE_MIN)
		allowance = ALLOWANCE_MIN;
	if (allowance > ALLOWANCE_MAX)
		allowance = ALLOWANCE_MAX;
	if (allowance < 2 * share)
		allowance = 2 * share;
	/* In a start with refusals at the gate, a leaf is filled as soon as it exceeds its share. */
	if (is_start ? state->accepted > share : backlog > allowance && 5ull * state->accepted > 7 * share)
		fill(s, plan, leaf);
}

/* The time from which the gate counts the next packet. */
static __always_inline __u64 gate_from(const struct state *s, __u64 gate_at, __u64 now)
{
	__u64 empty = now - gate_at, is_open = gate_at & GATE_OPEN;

	if (gate_at > now)
		return gate_at & ~GATE_CATCHES_UP;
	if (gate_at & GATE_CATCHES_UP && empty <= s->pace->gate_more)
		return gate_at;
	if (is_open && empty >= s->pace->gate_pause && empty < PAUSE_MAX)
		return ((now - s->pace->gate_more) & ~GATE_FLAGS) | is_open | GATE_CATCHES_UP;
	return (now & ~GATE_FLAGS) | is_open;
}

/* The gate's new time after a packet; 0 if the gate refuses the packet, which the window records. */
static __always_inline __u64 pass_gate(const struct state *s, const struct police_plan *plan, __u64 now,
				       __u64 size)
{
	__u64 gate_at = gate_from(s, s->head->gate_at, now);
	__u64 cost = s->pace->gate_cost, slack = s->pace->gate_slack;
	__u64 is_start = (gate_at >> 1 & 1) ^ 1;

	if (is_start) {
		cost += cost / 4;
		slack = START_SLACK + (slack - plan->window) / 4 * 5;
	}
	gate_at += size * cost >> GATE_SHIFT & ~GATE_FLAGS;
	if (gate_at > now + slack) {
		s->head->window_at |= WINDOW_REFUSED;
		return 0;
	}
	return gate_at;
}

/* Whether an inner node below a priority node got nothing in this window and the last. */
static __always_inline int is_starved(const struct state *s, const struct police_plan *plan, __u32 index)
{
	const struct police_inner *inner = inner_of(s, index);

	return plan_inner(plan, plan_inner(plan, index)->parent)->is_priority && !inner->used &&
	       !inner->used_last;
}

/* The class of a settled leaf if it is starved: it may send a packet past its full queue; else 0. */
static __always_inline __u32 starved(const struct state *s, const struct police_plan *plan, __u32 leaf)
{
	__u32 lower = parent_of(s, plan_leaf(plan, leaf)), upper;

	if (!s->inner_max || !lower || s->pace->window_bytes < TRICKLE_WINDOW)
		return 0;
	upper = plan_inner(plan, lower)->parent;
	if (upper && is_starved(s, plan, upper))
		return upper;
	return is_starved(s, plan, lower) ? lower : 0;
}

/* Decides about a packet in a window that is not over, in O(1) except for queues that become empty. */
static __always_inline enum verdict ask_phantoms(const struct state *s, const struct police_plan *plan,
						 struct arrival *arrival)
{
	__u64 size = arrival->size < SIZE_MAX ? arrival->size : SIZE_MAX, backlog, gate_at, share = 0;
	enum verdict verdict = VERDICT_PASS;
	struct police_leaf *state;
	__u32 leaf, class, place;

	/* Rounded randomly, by the lowest bits of the time. */
	backlog = size + (arrival->now & ((1ull << plan->sent_shift) - 1));
	arrival->sent = smaller(backlog >> plan->sent_shift, SENT_MAX);
	find_place(s, plan, arrival);
	leaf = *(volatile __u32 *)&arrival->leaf;
	place = *(volatile __u32 *)&arrival->place;
	state = leaf_of(s, leaf);
	gate_at = pass_gate(s, plan, arrival->now, size);
	if (!gate_at)
		return VERDICT_DROP;
	if (!place && surely_fits(s, plan, arrival->now, leaf, size)) {
		s->head->gate_at = gate_at;
		return VERDICT_PASS;
	}
	settle(s, plan, arrival->now, path_to(s, plan, leaf));
	if (place && place <= LANES)
		remember(s, plan, leaf, arrival);
	backlog = backlog_of(s, plan, leaf) + size;
	/* The share counts the leaf as busy already; it is not needed when the backlog is small. */
	if (backlog > ALLOWANCE_MIN || state->mark & MARK_DISARMED)
		share = offered_in_window(s, plan, arrival->now, leaf);
	if (s->leaf_max && backlog > s->pace->limit) {
		remember_instead(s, plan, leaf, arrival, place, share);
		arrival->is_spared = is_thin(s, plan, leaf, arrival, share,
					     s->pace->limit + smaller(2 * share, s->pace->window_bytes) - backlog);
	}
	/* Read from memory, so that the verifier forgets the paths that led to the value. */
	if (*(volatile __u8 *)&arrival->is_spared)
		verdict = VERDICT_PASS;
	else if (plan->is_soft)
		verdict = signal_softly(s, plan, arrival, leaf, backlog, share);
	else if (backlog > s->pace->limit)
		verdict = VERDICT_DROP;
	if (verdict == VERDICT_DROP) {
		class = starved(s, plan, leaf);
		if (!class)
			return verdict;
		s->head->gate_at = gate_at;
		state->accepted += size;
		inner_of(s, class)->used = size;
		return VERDICT_PASS;
	}
	s->head->gate_at = gate_at;
	put(s, plan, leaf, size);
	state->accepted += size;
	state->after = add_capped(state->after, size);
	control_burst(s, plan, leaf, share);
	return verdict;
}
