/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Classes that a subscriber's own host asked for: which class a flow is in, and what a mark of the host
 * says. crates/core/src/agreement/bindings.rs is the specification of the bindings.
 */
#pragma once

/* Bindings that a flow may take. */
#define BINDING_WAYS 8
#define BINDING_SETS (POLICE_BINDINGS / BINDING_WAYS)
/* A binding: the flow's hash, its class, and when it was last marked. */
#define BINDING_HASH_SHIFT 32
#define BINDING_CLASS_SHIFT 28
#define BINDING_CLASS 15
/* Times are in 2^26 ns. */
#define BINDING_TICK_SHIFT 26
#define BINDING_TICKS ((1u << BINDING_CLASS_SHIFT) - 1)
/* Ticks without a mark, 10 s, after which another flow may take the place. */
#define BINDING_IDLE 150

/* The last two bits of a mark, which is a DSCP of pool 2: RFC 2474, section 6. */
#define MARK_POOL 3
#define MARK_CLASS_SHIFT 2

/* Whether plans have classes of clients; known when the program is loaded. */
static __always_inline int has_clients(void)
{
	return settings.classes >> POLICE_CLASSES & 1;
}

/* The element `index` of a map in chunks of POLICE_CLIENT_CHUNK, or 0. */
#define find_of_client(MAP, index)                                                             \
	({                                                                                     \
		__u32 chunk_at = (index) / POLICE_CLIENT_CHUNK, at = (index) % POLICE_CLIENT_CHUNK; \
		void *chunk = bpf_map_lookup_elem(MAP, &chunk_at);                             \
		chunk ? bpf_map_lookup_elem(chunk, &at) : 0;                                   \
	})

/* Where the bindings begin among which a flow's may be: the first and the second set. */
static __always_inline __u32 binding_at(__u32 hash, __u32 nth)
{
	__u32 factor = nth < BINDING_WAYS ? 0x9e3779b1u : 0x85ebca6bu;

	return ((hash * factor >> 24) * BINDING_WAYS + nth % BINDING_WAYS) % POLICE_BINDINGS;
}

/* The class to which a flow is bound, and one more; 0 if it is not. */
__noinline int find_binding(const struct arrival *arrival, __u32 number)
{
	struct police_bindings *bindings = find_of_client(&client_bindings, number);
	__u64 word;

	if (!arrival || !bindings)
		return 0;
	for (__u32 nth = 0; nth < 2 * BINDING_WAYS; nth++) {
		word = bindings->of[binding_at(arrival->flow, nth)];
		if (word && word >> BINDING_HASH_SHIFT == arrival->flow)
			return (word >> BINDING_CLASS_SHIFT & BINDING_CLASS) + 1;
	}
	return 0;
}

/* Binds a flow to a class, in place of the one that was marked least recently; counts it if there is no
 * place. */
__noinline int bind_flow(const struct arrival *arrival, __u32 number, __u32 class)
{
	struct police_bindings *bindings = find_of_client(&client_bindings, number);
	__u32 tick, age, oldest = BINDING_IDLE, at, found = POLICE_BINDINGS;
	__u64 word, bound;

	if (!arrival || !bindings)
		return 0;
	tick = arrival->now >> BINDING_TICK_SHIFT & BINDING_TICKS;
	bound = (__u64)arrival->flow << BINDING_HASH_SHIFT | (class & BINDING_CLASS) << BINDING_CLASS_SHIFT | tick;
	for (__u32 nth = 0; nth < 2 * BINDING_WAYS; nth++) {
		at = binding_at(arrival->flow, nth);
		word = bindings->of[at];
		if (word && word >> BINDING_HASH_SHIFT == arrival->flow) {
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
	if (found < POLICE_BINDINGS)
		bindings->of[found] = bound;
	else
		__sync_fetch_and_add(&bindings->refused, 1);
	return 0;
}

/* What a client asked for, or 0: of a slot of a plan that clients may divide. */
static __always_inline struct police_client *find_client(__u32 slot)
{
	__u32 index = slot & POLICE_INDEX_MASK;

	return find_slot(&clients, index);
}

/* The plan as the subscriber's client divides it, and in `*choice` the class of the packet; the plan itself
 * without an agreement. */
static __always_inline struct police_plan *as_agreed(struct police_plan *plan, const struct flow *flow,
						     __u32 slot, struct arrival *arrival, __u32 *choice)
{
	struct police_client *client = find_client(slot);
	struct police_plan *agreed;
	__u32 place, bound;

	place = client ? *(volatile __u32 *)&client->place : 0;
	if (!place)
		return plan;
	agreed = find_of_client(&client_plans, place);
	if (!agreed)
		return plan;
	arrival->flow = flow_hash(flow);
	bound = find_binding(arrival, client->number);
	*choice = agreed->choice_default;
	/* A class that the client has no more has no leaves. */
	if (bound && agreed->choices[(bound - 1) & BINDING_CLASS].count)
		*choice = bound - 1;
	return agreed;
}

/* Whether a packet of a subscriber has a mark of its client; then its flow is bound. */
static __always_inline int take_mark(const struct flow *flow, __u32 slot, struct arrival *arrival)
{
	struct police_client *client;

	if ((flow->dscp & MARK_POOL) != MARK_POOL)
		return 0;
	client = find_client(slot);
	if (!client || !client->number)
		return 0;
	arrival->flow = flow_hash(flow);
	bind_flow(arrival, client->number, flow->dscp >> MARK_CLASS_SHIFT);
	return 1;
}
