/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

/* The key of a packet's flow; `arrives` says which end is this host, or on a router the device. */
static __always_inline void flow_key(struct flow_key *key, const struct packet *p, int arrives)
{
	const __be32 *remote = arrives ? p->source : p->destination;
	const __be32 *local = arrives ? p->destination : p->source;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		key->remote[i] = remote[i];
		key->local[i] = local[i];
	}
	key->port_remote = arrives ? p->port_source : p->port_destination;
	key->port_local = arrives ? p->port_destination : p->port_source;
	key->family = p->family;
	key->transport = p->transport;
}
