/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a packet: the subscriber's state under its lock. */
#pragma once

/* A token bucket; kept as what is missing in it, so that the empty state is the full bucket. */
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
/* Of the largest slots the rest is left out: most of their leaves are not looked at. */
#define TOUCH_MAX 832

/* Zeroes state; the barrier keeps clang from calling memset, which BPF does not have. */
static __always_inline void forget(__u64 *words, __u32 count)
{
	for (__u32 i = 0; i < count; i++) {
		words[i] = 0;
		asm volatile("" ::: "memory");
	}
}

/* The slot `index` of a class, or 0 if its chunk was never made. */
#define find_slot(SLOTS, index)                                                                \
	({                                                                                     \
		__u32 chunk_at = (index) >> POLICE_CHUNK_SHIFT, slot_at = (index) & (POLICE_CHUNK - 1); \
		void *chunk = bpf_map_lookup_elem(SLOTS, &chunk_at);                           \
		chunk ? bpf_map_lookup_elem(chunk, &slot_at) : 0;                              \
	})

/* Reads a word of each cache line of a slot, so that those that are not there come all at the same
 * time, and not line by line under the lock, which waits for each. */
static __always_inline void touch(const void *slot, __u32 bytes)
{
#pragma unroll
	for (__u32 at = 0; at < TOUCH_MAX; at += CACHE_LINE) {
		if (at < bytes)
			asm volatile("" : : "r"(*(const volatile __u32 *)(slot + at)));
	}
}

/*
 * Decides by a slot; the state of another tree is worth nothing. A function for each class, since the
 * verifier then looks at each once, whatever led there.
 */
#define POLICE_DECIDE(NAME, SLOTS, SLOT, LEAF_MAX, INNER_MAX)                                  \
	__noinline int NAME(const struct police_plan *plan, const struct police_pace *pace,    \
			    struct arrival *arrival, __u32 index)                              \
	{                                                                                      \
		enum verdict verdict;                                                          \
		struct state state;                                                            \
		struct SLOT *slot;                                                             \
                                                                                               \
		slot = find_slot(&SLOTS, index);                                               \
		if (!plan || !pace || !arrival || !slot)                                       \
			return VERDICT_PASS;                                                   \
		state = (struct state){ pace, &slot->head, slot->inners, slot->leaves, INNER_MAX, LEAF_MAX }; \
		touch((const void *)slot + 8, sizeof(*slot) - 8);                              \
		bpf_spin_lock(&slot->lock);                                                    \
		if (slot->shape != plan->shape) {                                              \
			forget((__u64 *)&slot->head,                                           \
			       (sizeof(*slot) - __builtin_offsetof(struct SLOT, head)) / 8);   \
			slot->shape = plan->shape;                                             \
		}                                                                              \
		if (plan->kind == POLICE_KIND_BUCKET)                                          \
			verdict = fill_bucket(pace, &slot->head.bucket, arrival);              \
		else                                                                           \
			verdict = ask_phantoms(&state, plan, arrival);                         \
		if (verdict == VERDICT_DROP) {                                                 \
			slot->dropped++;                                                       \
		} else {                                                                       \
			slot->passed += arrival->size;                                         \
			slot->marked += verdict == VERDICT_MARK;                               \
		}                                                                              \
		bpf_spin_unlock(&slot->lock);                                                  \
		return verdict;                                                                \
	}
POLICE_DECIDE(decide1, slots1, police_slot_1, 0, 0)
POLICE_DECIDE(decide4, slots4, police_slot_4, 3, 3)
POLICE_DECIDE(decide16, slots16, police_slot_16, 15, 3)
POLICE_DECIDE(decide64, slots64, police_slot_64, 63, 7)

static __always_inline enum verdict decide(__u32 slot, const struct police_plan *plan,
					   const struct police_pace *pace, struct arrival *arrival)
{
	__u32 index = slot & POLICE_INDEX_MASK;

	switch (slot >> POLICE_CLASS_SHIFT) {
	case 0:
		return decide1(plan, pace, arrival, index);
	case 1:
		return decide4(plan, pace, arrival, index);
	case 2:
		return decide16(plan, pace, arrival, index);
	default:
		return decide64(plan, pace, arrival, index);
	}
}

static __always_inline void count(__u32 plan, enum verdict verdict, __u32 size, __u32 packets)
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
}
