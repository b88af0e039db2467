/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The one parser of frames, for the classifier (tcx ingress) and the policer (XDP, tcx ingress and
 * egress).
 *
 * It reads Ethernet with up to two VLAN tags and PPPoE, or no Ethernet header at all; IPv4 with
 * options; IPv6 with extension headers; ports of TCP and UDP. A frame that is truncated or unknown
 * in front of the addresses counts as not IP; one that is so behind them has no ports.
 */
#pragma once

#include "protocols.h"

/* The part of a frame that can be read at once. */
struct frame {
	void *data;
	void *end;
	int is_cut; /* something behind the end was looked for */
};

/* The contents of a packet's headers. Addresses and ports are in network order. */
struct packet {
	__u16 family; /* AF_*; 0 is not IP */
	__u8 transport; /* the protocol of the last header that was reached; equal in all fragments */
	__u8 has_ports; /* TCP or UDP, and no later fragment */
	__u8 is_fragment;
	__u8 tos; /* DSCP and ECN */
	__u8 is_discovery;
	__be16 port_source;
	__be16 port_destination;
	__u32 ip_at; /* where the IP header begins */
	__u32 transport_at; /* where the header of `transport` begins */
	__u32 end; /* where the IP packet ends by its header; 0 if that is not given, or a fragment */
	__be32 source[4]; /* of IPv4 only the first */
	__be32 destination[4];
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
/* The IP header is behind Ethernet, two tags and PPPoE at most. */
#define IP_AT_MASK 63
/* All headers that are read lie within this many bytes, except with many extension headers. */
#define HEADERS_MAX 256
#define ND_FIRST 133
#define ND_LAST 137
#define ND_HOPS 255

/*
 * Copies `*to` from `offset` of the packet and returns 0, or not 0 if the packet is shorter. Nearly
 * all headers can be read directly, which costs a third of the helper's call.
 */
#define load(skb, offset, to)                                                                  \
	({                                                                                     \
		void *data = (void *)(long)(skb)->data;                                        \
		void *end = (void *)(long)(skb)->data_end;                                     \
		void *from = data + ((offset) & OFFSET_MAX);                                   \
		int missing = 0;                                                               \
                                                                                               \
		if ((offset) <= OFFSET_MAX && from + sizeof(*(to)) <= end)                     \
			*(to) = *(typeof(*(to)) *)from;                                        \
		else                                                                           \
			missing = bpf_skb_load_bytes(skb, offset, to, sizeof(*(to)));          \
		missing;                                                                       \
	})

/* The `size` bytes at `offset`, or 0 if the frame ends before they do. */
static __always_inline void *frame_at(struct frame *frame, __u32 offset, __u32 size)
{
	void *at;

	if (offset > OFFSET_MAX)
		return 0;
	/* The same number, in a form in which the verifier sees its bounds. */
	asm volatile("" : "+r"(offset));
	at = frame->data + (offset & OFFSET_MAX);
	if (at + size <= frame->end)
		return at;
	frame->is_cut = 1;
	return 0;
}

static __always_inline void read_ports(struct frame *frame, struct packet *p)
{
	__be16 *ports;

	if (p->transport != IPPROTO_TCP && p->transport != IPPROTO_UDP)
		return;
	ports = frame_at(frame, p->transport_at, 4);
	if (!ports)
		return;
	p->port_source = ports[0];
	p->port_destination = ports[1];
	p->has_ports = 1;
}

static __always_inline void read_ip4(struct frame *frame, struct packet *p)
{
	struct ip4_header *ip = frame_at(frame, p->ip_at, sizeof(*ip));

	if (!ip || ip->version_words >> 4 != 4 || (ip->version_words & 15) < 5)
		return;
	p->family = AF_INET;
	p->tos = ip->tos;
	p->transport = ip->protocol;
	p->source[0] = ip->source;
	p->destination[0] = ip->destination;
	p->transport_at = p->ip_at + (ip->version_words & 15) * 4;
	p->is_fragment = !!(ip->fragment & bpf_htons(0x3fff));
	if (!p->is_fragment)
		p->end = p->ip_at + bpf_ntohs(ip->length);
	/* Only the first fragment has ports. */
	if (!(ip->fragment & bpf_htons(0x1fff)))
		read_ports(frame, p);
}

/*
 * Gives the verifier an unknown number of the same value; it must know nothing of `anything`
 * either. Many paths lead through the headers: the verifier would look at the following code once
 * per path, with other numbers, and Linux 6.1 would give up.
 */
#define hide(number, anything)                                                                 \
	({                                                                                     \
		__u64 known_to_none = (anything), hidden = (number) ^ known_to_none;           \
                                                                                               \
		asm volatile("" : "+r"(hidden));                                               \
		(number) = hidden ^ known_to_none;                                             \
	})

/* Walks the extension headers. Returns whether the transport's header follows in this packet. */
static __always_inline int find_transport(struct frame *frame, struct packet *p)
{
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 *extension, header = p->transport;

		if (header != IPPROTO_HOPOPTS && header != IPPROTO_ROUTING && header != IPPROTO_DSTOPTS &&
		    header != IPPROTO_FRAGMENT && header != IPPROTO_AH)
			return 1;
		extension = frame_at(frame, p->transport_at, 8);
		if (!extension)
			return 0;
		p->transport = extension[0];
		if (header == IPPROTO_FRAGMENT) {
			/* What follows is not in later fragments, so no more headers are walked. */
			p->is_fragment = 1;
			p->end = 0;
			p->transport_at += 8;
			return !extension[2] && !(extension[3] & 0xf8);
		}
		if (header == IPPROTO_AH)
			p->transport_at += (extension[1] + 2) * 4;
		else
			p->transport_at += (extension[1] + 1) * 8;
		hide(p->transport_at, frame->end - frame->data);
	}
	return 1;
}

/*
 * Whether this is neighbour discovery, without which the link does not work. A packet with a hop
 * limit other than 255 may come from beyond the link, so it is not discovery (RFC 4861, section
 * 7.1); nor is a fragment (RFC 6980).
 */
static __always_inline int is_discovery(struct frame *frame, const struct packet *p, __u8 hops)
{
	__u8 *type;

	if (p->transport != IPPROTO_ICMPV6 || hops != ND_HOPS || p->is_fragment)
		return 0;
	type = frame_at(frame, p->transport_at, 1);
	return type && *type >= ND_FIRST && *type <= ND_LAST;
}

static __always_inline void read_ip6(struct frame *frame, struct packet *p)
{
	struct ip6_header *ip = frame_at(frame, p->ip_at, sizeof(*ip));
	__u32 first;
	__u8 hops;

	if (!ip)
		return;
	first = bpf_ntohl(ip->version_class_flow);
	if (first >> 28 != 6)
		return;
	hops = ip->hops;
	p->family = AF_INET6;
	p->tos = first >> 20;
	p->transport = ip->next;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		p->source[i] = ip->source[i];
		p->destination[i] = ip->destination[i];
	}
	p->transport_at = p->ip_at + sizeof(*ip);
	p->end = p->transport_at + bpf_ntohs(ip->length);
	if (!find_transport(frame, p))
		return;
	p->is_discovery = is_discovery(frame, p, hops);
	read_ports(frame, p);
}

/* Finds the IP header behind Ethernet, tags and PPPoE: its protocol, or 0 if there is none. */
static __always_inline __u32 find_ip(struct frame *frame, struct packet *p, int has_ethernet)
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
		/* Version 1, type 1, and the code for session data. */
		if (!at || at[0] != bpf_htons(0x1100))
			return 0;
		protocol = at[3] == bpf_htons(PPP_IP)	  ? bpf_htons(ETH_P_IP) :
			   at[3] == bpf_htons(PPP_IPV6) ? bpf_htons(ETH_P_IPV6) :
							    0;
		offset += 8;
	}
	hide(offset, frame->end - frame->data);
	p->ip_at = offset & IP_AT_MASK;
	return bpf_ntohs(protocol);
}

/* Reads a frame into `*p`, which is zero. Returns whether the frame is IP and not needed by the link itself. */
static __always_inline int read_frame(struct frame *frame, struct packet *p, int has_ethernet)
{
	__u32 protocol = find_ip(frame, p, has_ethernet);

	if (protocol == ETH_P_IP)
		read_ip4(frame, p);
	else if (protocol == ETH_P_IPV6)
		read_ip6(frame, p);
	return p->family && !p->is_discovery;
}

/*
 * As read_frame, for a packet of which `*frame` is the directly readable part. Only headers behind
 * that part are moved into it, no payload: with payload beside the headers the stack cannot
 * coalesce packets, and a TCP download costs half as much again.
 */
static __always_inline int read_skb(struct __sk_buff *skb, struct frame *frame, struct packet *p,
				    int has_ethernet)
{
	int is_ip = 0;

	for (int moved = 0; moved < 2; moved++) {
		if (moved)
			bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX);
		*frame = (struct frame){ (void *)(long)skb->data, (void *)(long)skb->data_end, 0 };
		__builtin_memset(p, 0, sizeof(*p));
		is_ip = read_frame(frame, p, has_ethernet);
		if (!frame->is_cut || frame->data + HEADERS_MAX <= frame->end ||
		    frame->end - frame->data >= skb->len)
			break;
	}
	return is_ip;
}

/*
 * The number of packets on the wire in a super-packet of GRO or GSO. Each has the first `*header`
 * bytes of the super-packet in front; `*header` is set.
 */
static __always_inline __u32 count_segments(const struct __sk_buff *skb, struct frame *frame,
					    const struct packet *p, __u32 *header)
{
	__u32 segments = skb->gso_segs;
	__u8 *words;

	*header = p->transport_at;
	if (p->transport == IPPROTO_UDP) {
		*header += 8;
	} else if (p->transport == IPPROTO_TCP) {
		words = frame_at(frame, p->transport_at + 12, 1);
		if (words)
			*header += (*words >> 4) * 4;
	}
	if (!segments && skb->len > *header)
		segments = (skb->len - *header + skb->gso_size - 1) / skb->gso_size;
	return segments ? segments : 1;
}
