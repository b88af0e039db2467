/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Decides about a packet, by the subscriber's state under its lock. */
#pragma once

/* A token bucket, stored as the missing amount, so that the zero state is the full bucket. */
static __always_inline enum verdict fill_bucket(const struct police_pace *pace,
						struct police_bucket *bucket, struct arrival *arrival)
{
	__u64 missing = bucket->missing, came = 0;
	__s64 elapsed = arrival->now - bucket->latest;

	if (elapsed > 0) {
		bucket->latest = arrival->now;
		came = (__u64)elapsed < pace->idle_after ? elapsed * pace->rate : missing;
	}
	missing = came < missing ? missing - came : 0;
	if (missing + ((__u64)arrival->size << 24) <= (__u64)pace->limit << 24) {
		bucket->missing = missing + ((__u64)arrival->size << 24);
		return VERDICT_PASS;
	}
	bucket->missing = missing;
	return VERDICT_DROP;
}

#define CACHE_LINE 64
/* Bytes of a slot that are touched at most: most leaves of the largest slots are not used. */
#define TOUCH_MAX 832

/* Zeroes state; the barrier keeps clang from calling memset, which BPF does not have. */
static __always_inline void forget(__u64 *words, __u32 count)
{
	for (__u32 i = 0; i < count; i++) {
		words[i] = 0;
		asm volatile("" ::: "memory");
	}
}

/* The slot `index` of a class, or 0 if its chunk does not exist. */
#define find_slot(SLOTS, index)                                                                \
	({                                                                                     \
		__u32 chunk_at = (index) >> POLICE_CHUNK_SHIFT, slot_at = (index) & (POLICE_CHUNK - 1); \
		void *chunk = bpf_map_lookup_elem(SLOTS, &chunk_at);                           \
		chunk ? bpf_map_lookup_elem(chunk, &slot_at) : 0;                              \
	})

/* Reads a word of each cache line of a slot, so that missing lines are fetched in parallel, not one
 * by one under the lock. */
static __always_inline void touch(const void *slot, __u32 bytes)
{
#pragma unroll
	for (__u32 at = 0; at < TOUCH_MAX; at += CACHE_LINE) {
		if (at < bytes)
			asm volatile("" : : "r"(*(const volatile __u32 *)(slot + at)));
	}
}

/* Forgets the state of another tree shape, which is meaningless. */
#define understand(slot, plan)                                                                 \
	do {                                                                                   \
		if ((slot)->shape != (plan)->shape) {                                          \
			forget((__u64 *)&(slot)->head,                                         \
			       (sizeof(*(slot)) - __builtin_offsetof(typeof(*(slot)), head)) / 8); \
			(slot)->shape = (plan)->shape;                                         \
		}                                                                              \
	} while (0)

/*
 * Ends the window of a slot if it is over. A separate function, which takes the lock itself: otherwise the
 * verifier would look at all following code on each path through it, and calls under a lock are not allowed.
 */
#define POLICE_ROLL(NAME, SLOTS, SLOT, LEAF_MAX, INNER_MAX)                                    \
	__noinline int NAME(const struct police_plan *plan, const struct police_pace *pace,    \
			    const struct arrival *arrival, __u32 index)                        \
	{                                                                                      \
		struct state state;                                                            \
		struct SLOT *slot;                                                             \
                                                                                               \
		slot = find_slot(&SLOTS, index);                                               \
		if (!plan || !pace || !arrival || !slot)                                       \
			return 0;                                                              \
		state = (struct state){ pace, &slot->head, slot->inners, slot->leaves, INNER_MAX, LEAF_MAX }; \
		touch((const void *)slot + 8, sizeof(*slot) - 8);                              \
		bpf_spin_lock(&slot->lock);                                                    \
		understand(slot, plan);                                                        \
		if (is_window_over(state.head, plan, arrival->now))                            \
			begin_window(&state, plan, arrival->now);                              \
		bpf_spin_unlock(&slot->lock);                                                  \
		return 0;                                                                      \
	}
POLICE_ROLL(roll1, slots1, police_slot_1, 0, 0)
POLICE_ROLL(roll4, slots4, police_slot_4, 3, 3)
POLICE_ROLL(roll16, slots16, police_slot_16, 15, 3)
POLICE_ROLL(roll64, slots64, police_slot_64, 63, 7)
POLICE_ROLL(roll_bundle, slotsb, police_slot_bundle, 63, 7)

/* Whether a slot's window is over, before its lock is taken. */
#define is_slot_over(slot, plan, arrival)                                                      \
	((plan)->kind != POLICE_KIND_BUCKET && ((slot)->shape != (plan)->shape ||              \
						is_window_over(&(slot)->head, plan, (arrival)->now)))

/*
 * Decides by a slot. There is one function per class, so that the verifier looks at each only once.
 */
#define POLICE_DECIDE(NAME, SLOTS, SLOT, LEAF_MAX, INNER_MAX, IS_BUNDLE)                       \
	__noinline int NAME(const struct police_plan *plan, const struct police_pace *pace,    \
			    struct arrival *arrival, __u32 index)                              \
	{                                                                                      \
		enum verdict verdict;                                                          \
		struct state state;                                                            \
		struct SLOT *slot;                                                             \
                                                                                               \
		slot = find_slot(&SLOTS, index);                                               \
		if (!plan || !pace || !arrival || !slot)                                       \
			return VERDICT_ROLL;                                                   \
		state = (struct state){ pace, &slot->head, slot->inners, slot->leaves, INNER_MAX, LEAF_MAX }; \
		touch((const void *)slot + 8, sizeof(*slot) - 8);                              \
		if (is_slot_over(slot, plan, arrival))                                         \
			return VERDICT_ROLL;                                                   \
		bpf_spin_lock(&slot->lock);                                                    \
		understand(slot, plan);                                                        \
		if (plan->kind == POLICE_KIND_BUCKET)                                          \
			verdict = fill_bucket(pace, &slot->head.bucket, arrival);              \
		else                                                                           \
			verdict = ask_phantoms(&state, plan, arrival);                         \
		if (IS_BUNDLE && verdict == VERDICT_PASS)                                      \
			verdict = arrival->aimed;                                              \
		if (verdict == VERDICT_DROP) {                                                 \
			slot->dropped++;                                                       \
		} else {                                                                       \
			slot->passed += arrival->size;                                         \
			slot->marked += verdict == VERDICT_MARK;                               \
		}                                                                              \
		bpf_spin_unlock(&slot->lock);                                                  \
		return verdict;                                                                \
	}
POLICE_DECIDE(decide1, slots1, police_slot_1, 0, 0, 0)
POLICE_DECIDE(decide4, slots4, police_slot_4, 3, 3, 0)
POLICE_DECIDE(decide16, slots16, police_slot_16, 15, 3, 0)
POLICE_DECIDE(decide64, slots64, police_slot_64, 63, 7, 0)
POLICE_DECIDE(decide_bundle, slotsb, police_slot_bundle, 63, 7, 1)

/* Decides about a packet of the free class, by the bundle's target. */
__noinline int aim(const struct police_plan *plan, struct arrival *arrival, __u32 index)
{
	struct police_slot_bundle *slot = find_slot(&slotsb, index);
	struct police_plan *aim;
	enum verdict verdict;
	struct state state;
	__u32 place;

	if (!plan || !arrival || !slot)
		return VERDICT_PASS;
	place = plan->aim;
	aim = bpf_map_lookup_elem(&plans, &place);
	if (!aim)
		return VERDICT_PASS;
	state = (struct state){ &aim->pace, &slot->lending.aim_head, &slot->lending.aim_inner,
				&slot->lending.aim_leaf, 0, 0 };
	bpf_spin_lock(&slot->lock);
	understand(slot, plan);
	if (is_window_over(state.head, aim, arrival->now))
		begin_window(&state, aim, arrival->now);
	verdict = ask_phantoms(&state, aim, arrival);
	if (verdict == VERDICT_DROP)
		slot->dropped++;
	bpf_spin_unlock(&slot->lock);
	return verdict;
}

/* Charges a packet of the free class to itself or a stunt, and writes the payer to arrival->payer.
 * Returns the verdict if there is a payer or the gate refuses. */
__noinline int pay(const struct police_plan *plan, const struct police_pace *pace, struct arrival *arrival,
		   __u32 index)
{
	struct police_slot_bundle *slot = find_slot(&slotsb, index);
	enum verdict verdict = VERDICT_PASS;
	struct state state;

	if (!plan || !pace || !arrival || !slot)
		return VERDICT_ROLL;
	state = (struct state){ pace, &slot->head, slot->inners, slot->leaves, 7, 63 };
	if (is_slot_over(slot, plan, arrival))
		return VERDICT_ROLL;
	bpf_spin_lock(&slot->lock);
	understand(slot, plan);
	verdict = charge_bundle(&state, plan, &slot->lending, arrival);
	if (verdict == VERDICT_DROP)
		slot->dropped++;
	if (verdict != VERDICT_DROP && arrival->payer != PAYER_NONE) {
		slot->passed += arrival->size;
		slot->marked += verdict == VERDICT_MARK;
	}
	bpf_spin_unlock(&slot->lock);
	return verdict;
}

/* Decides, after beginning the next window if the last one is over. If another CPU changes the
 * slot's plan in between, one packet passes. */
#define in_window(DECIDE, ROLL, plan, pace, arrival, index)                                    \
	({                                                                                     \
		enum verdict decided = DECIDE(plan, pace, arrival, index);                     \
                                                                                               \
		if (decided == VERDICT_ROLL) {                                                 \
			ROLL(plan, pace, arrival, index);                                      \
			decided = DECIDE(plan, pace, arrival, index);                          \
		}                                                                              \
		decided;                                                                       \
	})

/* Decides by the slot of a plan with a bundle. */
static __always_inline enum verdict decide_in_bundle(const struct police_plan *plan,
						     const struct police_pace *pace,
						     struct arrival *arrival, __u32 index)
{
	__u32 leaf = arrival->leaf;
	enum verdict verdict;

	if (plan->aim && leaf == plan->free) {
		arrival->leaf = 0;
		arrival->aimed = aim(plan, arrival, index);
		arrival->leaf = leaf;
		if (arrival->aimed == VERDICT_DROP)
			return VERDICT_DROP;
		verdict = in_window(pay, roll_bundle, plan, pace, arrival, index);
		if (arrival->payer != PAYER_NONE)
			return verdict;
	}
	return in_window(decide_bundle, roll_bundle, plan, pace, arrival, index);
}

/* Whether plans have slots of a class; a constant that is set before loading. */
static __always_inline int has_class(__u32 class)
{
	return settings.classes >> class & 1;
}

/* Decides by a slot of any class. */
static __always_inline enum verdict decide_by(__u32 slot, const struct police_plan *plan,
					      const struct police_pace *pace, struct arrival *arrival)
{
	__u32 index = slot & POLICE_INDEX_MASK, class = slot >> POLICE_CLASS_SHIFT;

	if (class == 0 && has_class(0))
		return in_window(decide1, roll1, plan, pace, arrival, index);
	if (class == 1 && has_class(1))
		return in_window(decide4, roll4, plan, pace, arrival, index);
	if (class == 2 && has_class(2))
		return in_window(decide16, roll16, plan, pace, arrival, index);
	if (class == 3 && has_class(3))
		return in_window(decide64, roll64, plan, pace, arrival, index);
	if (class == 4 && has_class(4))
		return decide_in_bundle(plan, pace, arrival, index);
	return VERDICT_ROLL;
}

/*
 * Counts for the class of a packet. It runs after the slot, which counts for all classes, and without
 * the lock, so that the verifier need not look at this code on each path through a decision.
 */
#define POLICE_TALLY(NAME, MAP, TALLIES, LEAF_MAX)                                             \
	__noinline int NAME(const struct arrival *arrival, __u32 index, __u32 verdict)         \
	{                                                                                      \
		struct TALLIES *tallies = find_slot(&MAP, index);                              \
		struct police_tally *mine;                                                     \
                                                                                               \
		if (!arrival || !tallies)                                                      \
			return 0;                                                              \
		mine = &tallies->of[arrival->choice & LEAF_MAX];                               \
		if (verdict == VERDICT_DROP) {                                                 \
			__sync_fetch_and_add(&mine->dropped, 1);                               \
			return 0;                                                              \
		}                                                                              \
		__sync_fetch_and_add(&mine->passed, arrival->size);                            \
		if (verdict == VERDICT_MARK)                                                   \
			__sync_fetch_and_add(&mine->marked, 1);                                \
		return 0;                                                                      \
	}
POLICE_TALLY(tally4, tallies4, police_tallies_4, 3)
POLICE_TALLY(tally16, tallies16, police_tallies_16, 15)
POLICE_TALLY(tally64, tallies64, police_tallies_64, 63)
POLICE_TALLY(tally_bundle, talliesb, police_tallies_64, 63)

static __always_inline void count_apart(__u32 slot, const struct arrival *arrival, enum verdict verdict)
{
	__u32 index = slot & POLICE_INDEX_MASK, class = slot >> POLICE_CLASS_SHIFT;

	if (class == 1 && has_class(1))
		tally4(arrival, index, verdict);
	else if (class == 2 && has_class(2))
		tally16(arrival, index, verdict);
	else if (class == 3 && has_class(3))
		tally64(arrival, index, verdict);
	else if (class == 4 && has_class(4))
		tally_bundle(arrival, index, verdict);
}

static __always_inline enum verdict decide(__u32 slot, const struct police_plan *plan,
					   const struct police_pace *pace, struct arrival *arrival)
{
	enum verdict verdict = decide_by(slot, plan, pace, arrival);

	if (slot & POLICE_TALLIED && verdict != VERDICT_ROLL)
		count_apart(slot, arrival, verdict);
	return verdict;
}

static __always_inline void count(__u32 plan, enum verdict verdict, enum payer payer, __u32 size,
				  __u32 packets)
{
	struct police_totals *mine = bpf_map_lookup_elem(&totals, &plan);

	if (!mine)
		return;
	if (verdict == VERDICT_DROP) {
		mine->dropped_bytes += size;
		mine->dropped_packets += packets;
	} else {
		mine->passed_bytes += size;
		mine->passed_packets += packets;
		if (verdict == VERDICT_MARK)
			mine->marked_packets += packets;
	}
	if (payer == PAYER_STUNT) {
		mine->delegated_bytes += size;
		mine->delegated_packets += packets;
	} else if (payer == PAYER_NONE) {
		mine->refused_packets += packets;
	}
}
