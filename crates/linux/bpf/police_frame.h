/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What of a frame's headers says whose it is and where it belongs. Whatever is truncated or unknown
 * before the addresses is no one's; what is so behind them has no ports.
 */
#pragma once

/* As core::phantom::Flow, with words of addresses as numbers. */
struct flow {
	__u32 remote[4]; /* of IPv4 only the first */
	__u32 local[4];
	__u32 is_ip6;
	__u32 protocol;
	__u32 port_remote;
	__u32 port_local;
	__u32 dscp;
	__u32 ecn;
	__u32 ip_at; /* where the IP header begins */
	__u32 transport_at; /* where the next header begins */
};

struct frame {
	void *data;
	void *end;
};

struct ip4_header {
	__u8 version_words;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__be32 source;
	__be32 destination;
};

struct ip6_header {
	__be32 version_class_flow;
	__be16 length;
	__u8 next;
	__u8 hops;
	__be32 source[4];
	__be32 destination[4];
};

#define OFFSET_MAX 0x3fff

/* The `size` bytes at `offset`, or 0 if the frame ends before. */
static __always_inline void *frame_at(const struct frame *frame, __u32 offset, __u32 size)
{
	void *at;

	if (offset > OFFSET_MAX)
		return 0;
	at = frame->data + offset;
	return at + size <= frame->end ? at : 0;
}

static __always_inline void read_ports(const struct frame *frame, struct flow *flow, int is_upload)
{
	__be16 *ports;

	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return;
	ports = frame_at(frame, flow->transport_at, 4);
	if (!ports)
		return;
	flow->port_remote = bpf_ntohs(ports[is_upload ? 1 : 0]);
	flow->port_local = bpf_ntohs(ports[is_upload ? 0 : 1]);
}

static __always_inline int read_ip4(const struct frame *frame, struct flow *flow, int is_upload)
{
	struct ip4_header *ip = frame_at(frame, flow->ip_at, sizeof(*ip));

	if (!ip || ip->version_words >> 4 != 4 || (ip->version_words & 15) < 5)
		return 0;
	flow->dscp = ip->tos >> 2;
	flow->ecn = ip->tos & 3;
	flow->protocol = ip->protocol;
	flow->remote[0] = bpf_ntohl(is_upload ? ip->destination : ip->source);
	flow->local[0] = bpf_ntohl(is_upload ? ip->source : ip->destination);
	flow->transport_at = flow->ip_at + (ip->version_words & 15) * 4;
	if (!(ip->fragment & bpf_htons(0x3fff)))
		read_ports(frame, flow, is_upload);
	return 1;
}

/* Walks the extension headers; a fragment's own stay unread, since its later parts have none. */
static __always_inline int find_transport(const struct frame *frame, struct flow *flow)
{
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u32 header = flow->protocol;
		__u8 *extension;

		if (header != IPPROTO_HOPOPTS && header != IPPROTO_ROUTING && header != IPPROTO_DSTOPTS &&
		    header != IPPROTO_FRAGMENT && header != IPPROTO_AH)
			return 1;
		extension = frame_at(frame, flow->transport_at, 8);
		if (!extension)
			return 0;
		flow->protocol = extension[0];
		if (header == IPPROTO_FRAGMENT)
			return 0;
		if (header == IPPROTO_AH)
			flow->transport_at += (extension[1] + 2) * 4;
		else
			flow->transport_at += (extension[1] + 1) * 8;
	}
	return 0;
}

/* Whether this is neighbour discovery, without which the link does not work. */
static __always_inline int is_discovery(const struct frame *frame, const struct flow *flow, __u32 hops)
{
	__u8 *type = frame_at(frame, flow->transport_at, 1);

	return hops == 255 && type && *type >= 133 && *type <= 137;
}

static __always_inline int read_ip6(const struct frame *frame, struct flow *flow, int is_upload)
{
	struct ip6_header *ip = frame_at(frame, flow->ip_at, sizeof(*ip));
	__u32 first, hops;

	if (!ip)
		return 0;
	first = bpf_ntohl(ip->version_class_flow);
	if (first >> 28 != 6)
		return 0;
	hops = ip->hops;
	flow->is_ip6 = 1;
	flow->dscp = first >> 22 & 63;
	flow->ecn = first >> 20 & 3;
	flow->protocol = ip->next;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		flow->remote[i] = bpf_ntohl(is_upload ? ip->destination[i] : ip->source[i]);
		flow->local[i] = bpf_ntohl(is_upload ? ip->source[i] : ip->destination[i]);
	}
	flow->transport_at = flow->ip_at + sizeof(*ip);
	if (!find_transport(frame, flow))
		return 1;
	if (flow->protocol == IPPROTO_ICMPV6 && is_discovery(frame, flow, hops))
		return 0;
	read_ports(frame, flow, is_upload);
	return 1;
}

/* Finds the IP header behind Ethernet, tags and PPPoE: its protocol, or 0 if there is none. */
static __always_inline __u32 find_ip(const struct frame *frame, struct flow *flow, int has_ethernet)
{
	__u32 offset = ETH_HLEN;
	__be16 protocol, *at;
	__u8 *version;

	if (!has_ethernet) {
		version = frame_at(frame, 0, 1);
		if (!version)
			return 0;
		return *version >> 4 == 4 ? ETH_P_IP : *version >> 4 == 6 ? ETH_P_IPV6 : 0;
	}
	at = frame_at(frame, ETH_HLEN - 2, 2);
	if (!at)
		return 0;
	protocol = *at;
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		at = frame_at(frame, offset, 4);
		if (!at)
			return 0;
		protocol = at[1];
		offset += 4;
	}
	if (protocol == bpf_htons(ETH_P_PPP_SES)) {
		at = frame_at(frame, offset, 8);
		/* Version 1, type 1, and the code of a session's data. */
		if (!at || at[0] != bpf_htons(0x1100))
			return 0;
		protocol = at[3] == bpf_htons(PPP_IP)	  ? bpf_htons(ETH_P_IP) :
			   at[3] == bpf_htons(PPP_IPV6) ? bpf_htons(ETH_P_IPV6) :
							    0;
		offset += 8;
	}
	flow->ip_at = offset;
	return bpf_ntohs(protocol);
}

/* Returns whether the frame is anybody's at all. */
static __always_inline int read_frame(const struct frame *frame, struct flow *flow, int has_ethernet,
				      int is_upload)
{
	__u32 protocol = find_ip(frame, flow, has_ethernet);

	if (protocol == ETH_P_IP)
		return read_ip4(frame, flow, is_upload);
	return protocol == ETH_P_IPV6 && read_ip6(frame, flow, is_upload);
}
