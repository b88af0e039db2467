/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Classes that a subscriber's own host asked for: the class of a flow, and the marks of the host.
 */
#pragma once

/* Whether plans have classes of clients; a constant that is set before loading. */
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

/* The class to which a flow is bound, plus one; 0 if it is not bound. */
__noinline int find_binding(const struct arrival *arrival, __u32 number)
{
	struct bindings *bindings = find_of_client(&client_bindings, number);

	return arrival && bindings ? bound_class(bindings, arrival->flow) : 0;
}

/* Binds a flow to a class. */
__noinline int bind_flow(const struct arrival *arrival, __u32 number, __u32 class)
{
	struct bindings *bindings = find_of_client(&client_bindings, number);

	if (arrival && bindings)
		bind_to_class(bindings, arrival->flow, class, arrival->now);
	return 0;
}

/* The request of a client, or 0: for a slot of a plan that clients may divide. */
static __always_inline struct police_client *find_client(__u32 slot)
{
	__u32 index = slot & POLICE_INDEX_MASK;

	return find_slot(&clients, index);
}

/* The plan as the subscriber's client divides it, and in `*choice` the class of the packet; without
 * an agreement, the plan itself. */
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
	/* A class that the client has given up has no leaves. */
	if (bound && agreed->choices[(bound - 1) & BINDING_CLASS].count)
		*choice = bound - 1;
	return agreed;
}

/* Whether a subscriber's packet has a mark of its client; if so, its flow is bound. */
static __always_inline int take_mark(const struct flow *flow, __u32 slot, struct arrival *arrival)
{
	struct police_client *client;

	if (!is_mark(flow->dscp))
		return 0;
	client = find_client(slot);
	if (!client || !client->number)
		return 0;
	arrival->flow = flow_hash(flow);
	bind_flow(arrival, client->number, flow->dscp >> MARK_CLASS_SHIFT);
	return 1;
}
