/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet as seen by a subscriber: with the local and the remote side, as in core::phantom::Flow. */
#pragma once

/* The words of an address are in host order. */
struct flow {
	__u32 remote[4]; /* of IPv4 only the first */
	__u32 local[4];
	__u32 is_ip6;
	__u32 protocol;
	__u32 port_remote; /* 0 in every fragment, since later ones have no ports */
	__u32 port_local;
	__u32 dscp;
	__u32 ecn;
};

/* Addresses are read from the frame again, which costs less than carrying copies along. */
static __always_inline void describe_flow(struct frame *frame, const struct packet *p,
					  struct flow *flow, int is_upload)
{
	struct ip4_header *ip4;
	struct ip6_header *ip6;

	if (p->family == AF_INET) {
		ip4 = frame_at(frame, p->ip_at, sizeof(*ip4));
		if (ip4) {
			flow->remote[0] = bpf_ntohl(is_upload ? ip4->destination : ip4->source);
			flow->local[0] = bpf_ntohl(is_upload ? ip4->source : ip4->destination);
		}
	} else {
		flow->is_ip6 = 1;
		ip6 = frame_at(frame, p->ip_at, sizeof(*ip6));
#pragma unroll
		for (int i = 0; i < 4 && ip6; i++) {
			flow->remote[i] = bpf_ntohl(is_upload ? ip6->destination[i] : ip6->source[i]);
			flow->local[i] = bpf_ntohl(is_upload ? ip6->source[i] : ip6->destination[i]);
		}
	}
	flow->protocol = p->transport;
	flow->dscp = p->tos >> 2;
	flow->ecn = p->tos & 3;
	if (p->is_fragment)
		return;
	flow->port_remote = bpf_ntohs(is_upload ? p->port_destination : p->port_source);
	flow->port_local = bpf_ntohs(is_upload ? p->port_source : p->port_destination);
}
