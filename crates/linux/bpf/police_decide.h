/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a packet: the subscriber's state under its lock. */
#pragma once

enum verdict { VERDICT_PASS, VERDICT_MARK, VERDICT_DROP };

/* A packet before the policer. */
struct arrival {
	__u64 now; /* ns */
	__u32 size; /* bytes */
	__u32 leaf;
	__u32 can_be_marked;
};

/* A token bucket; kept as what is missing in it, so that the empty state is the full bucket. */
static __always_inline enum verdict fill_bucket(const struct police_plan *plan,
						struct police_bucket *bucket, const struct arrival *arrival)
{
	__u64 missing = bucket->missing, came = 0;
	__s64 elapsed = arrival->now - bucket->latest;

	if (elapsed > 0) {
		bucket->latest = arrival->now;
		came = (__u64)elapsed < plan->idle_after ? elapsed * plan->rate : missing;
	}
	missing = came < missing ? missing - came : 0;
	if (missing + ((__u64)arrival->size << 24) <= (__u64)plan->limit << 24) {
		bucket->missing = missing + ((__u64)arrival->size << 24);
		return VERDICT_PASS;
	}
	bucket->missing = missing;
	return VERDICT_DROP;
}

/* Zeroes state; the barrier keeps clang from calling memset, which BPF does not have. */
static __always_inline void forget(__u64 *words, __u32 count)
{
	for (__u32 i = 0; i < count; i++) {
		words[i] = 0;
		asm volatile("" ::: "memory");
	}
}

/* Decides by a slot; the state of another tree is worth nothing. */
#define POLICE_DECIDE(NAME, SLOT, LEAVES, INNERS)                                              \
	static __always_inline enum verdict NAME(struct SLOT *slot, const struct police_plan *plan, \
						 const struct arrival *arrival)                \
	{                                                                                      \
		enum verdict verdict = VERDICT_PASS;                                           \
                                                                                               \
		bpf_spin_lock(&slot->lock);                                                    \
		if (slot->shape != plan->shape) {                                              \
			forget((__u64 *)&slot->head,                                           \
			       (sizeof(*slot) - __builtin_offsetof(struct SLOT, head)) / 8);   \
			slot->shape = plan->shape;                                             \
		}                                                                              \
		if (plan->kind == POLICE_KIND_BUCKET)                                          \
			verdict = fill_bucket(plan, &slot->head.bucket, arrival);              \
		if (verdict == VERDICT_DROP) {                                                 \
			slot->dropped++;                                                       \
		} else {                                                                       \
			slot->passed += arrival->size;                                         \
			slot->marked += verdict == VERDICT_MARK;                               \
		}                                                                              \
		bpf_spin_unlock(&slot->lock);                                                  \
		return verdict;                                                                \
	}
POLICE_DECIDE(decide1, police_slot_1, 1, 1)
POLICE_DECIDE(decide4, police_slot_4, 4, 4)
POLICE_DECIDE(decide16, police_slot_16, 16, 4)
POLICE_DECIDE(decide64, police_slot_64, 64, 5)

/* The slot `index` of a class, or 0 if its chunk was never made. */
#define find_slot(SLOTS, index)                                                                \
	({                                                                                     \
		__u32 chunk_at = (index) >> POLICE_CHUNK_SHIFT, slot_at = (index) & (POLICE_CHUNK - 1); \
		void *chunk = bpf_map_lookup_elem(SLOTS, &chunk_at);                           \
		chunk ? bpf_map_lookup_elem(chunk, &slot_at) : 0;                              \
	})

static __always_inline enum verdict decide(const struct police_entry *entry,
					   const struct police_plan *plan, const struct arrival *arrival)
{
	__u32 number = entry->slot, index = number & POLICE_INDEX_MASK;
	struct police_slot_64 *slot64;
	struct police_slot_16 *slot16;
	struct police_slot_4 *slot4;
	struct police_slot_1 *slot1;

	switch (number >> POLICE_CLASS_SHIFT) {
	case 0:
		slot1 = find_slot(&slots1, index);
		return slot1 ? decide1(slot1, plan, arrival) : VERDICT_PASS;
	case 1:
		slot4 = find_slot(&slots4, index);
		return slot4 ? decide4(slot4, plan, arrival) : VERDICT_PASS;
	case 2:
		slot16 = find_slot(&slots16, index);
		return slot16 ? decide16(slot16, plan, arrival) : VERDICT_PASS;
	default:
		slot64 = find_slot(&slots64, index);
		return slot64 ? decide64(slot64, plan, arrival) : VERDICT_PASS;
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
