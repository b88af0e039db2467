/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The classes to which the flows of a client are bound, for the policer and the router.
 * crates/core/src/agreement/bindings.rs is the specification.
 */
#pragma once

/* Places that a flow's binding may take within a set. */
#define BINDING_WAYS 8
#define BINDING_SETS (BINDINGS / BINDING_WAYS)
/* A binding: the flow's hash, its class, and when it was last marked. */
#define BINDING_HASH_SHIFT 32
#define BINDING_CLASS_SHIFT 28
#define BINDING_CLASS (BINDING_CLASSES - 1)
/* Times are in 2^26 ns. */
#define BINDING_TICK_SHIFT 26
#define BINDING_TICKS ((1u << BINDING_CLASS_SHIFT) - 1)
/* With the time of a class's last binding. */
#define BINDING_WAS_MARKED (BINDING_TICKS + 1)
/* Ticks without a mark, 10 s, after which another flow may take the place of a binding. */
#define BINDING_IDLE 150

/* The last two bits of a mark, which is a DSCP of pool 2: RFC 2474, section 6. */
#define MARK_POOL 3
#define MARK_CLASS_SHIFT 2

/* Takes another word into a hash; as core::phantom::flow. */
static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1u;
	return hash ^ (hash >> 15);
}

static __always_inline int is_mark(__u32 dscp)
{
	return (dscp & MARK_POOL) == MARK_POOL;
}

/* The `nth` place that the binding of a flow may have: first those of its first set, then of its second. */
static __always_inline __u32 binding_at(__u32 hash, __u32 nth)
{
	__u32 factor = nth < BINDING_WAYS ? 0x9e3779b1u : 0x85ebca6bu;

	return ((hash * factor >> 24) * BINDING_WAYS + nth % BINDING_WAYS) % BINDINGS;
}

/* The class to which the flow with this hash is bound, plus one; 0 if it is not bound. */
static __always_inline __u32 bound_class(const struct bindings *bindings, __u32 hash)
{
	__u64 word;

	for (__u32 nth = 0; nth < 2 * BINDING_WAYS; nth++) {
		word = bindings->of[binding_at(hash, nth)];
		if (word && word >> BINDING_HASH_SHIFT == hash)
			return (word >> BINDING_CLASS_SHIFT & BINDING_CLASS) + 1;
	}
	return 0;
}

/* Binds the flow, in place of the least recently marked one; counts it if there is no place. */
static __always_inline void bind_to_class(struct bindings *bindings, __u32 hash, __u32 class, __u64 now)
{
	__u32 tick, age, oldest = BINDING_IDLE, at, found = BINDINGS;
	__u64 word = now, bound;

	tick = now >> BINDING_TICK_SHIFT & BINDING_TICKS;
	bound = (__u64)hash << BINDING_HASH_SHIFT | (class & BINDING_CLASS) << BINDING_CLASS_SHIFT | tick;
	for (__u32 nth = 0; nth < 2 * BINDING_WAYS; nth++) {
		/* The verifier must not follow the values found so far. */
		hide(oldest, word);
		hide(found, word);
		at = binding_at(hash, nth);
		word = bindings->of[at];
		if (word && word >> BINDING_HASH_SHIFT == hash) {
			found = at;
			break;
		}
		age = (tick - (word & BINDING_TICKS)) & BINDING_TICKS;
		/* Another CPU may have read the clock later. */
		if (age > BINDING_TICKS / 2)
			age = 0;
		if (!word)
			age = ~0u;
		if (age > oldest) {
			oldest = age;
			found = at;
		}
	}
	if (found < BINDINGS) {
		bindings->of[found] = bound;
		bindings->marked[class & BINDING_CLASS] = BINDING_WAS_MARKED | tick;
	} else {
		__sync_fetch_and_add(&bindings->refused, 1);
	}
}
