/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the headers of a packet say. */
#pragma once

#include "protocols.h"

#define PACKET_OTHERHOST 3

/* What the headers of a packet say. */
struct packet {
	__u16 family; /* AF_*; 0 is not IP */
	__u8 transport; /* IPPROTO_*, meaningful if has_ports */
	__u8 has_ports;
	__be16 port_remote;
	__be16 port_local;
	__u32 header; /* bytes in front of the payload */
	__u32 transport_at; /* where the transport's header begins, if has_ports */
	__u32 end; /* where the IP packet ends by its header; 0 is not told, or a fragment */
	__u8 source[16];
	__u8 destination[16];
};

/*
 * Copies `*to` from `offset` of the packet and returns 0, or not 0 if the packet is shorter. Nearly
 * all headers lie where they can be read at once, which costs a third of the helper's call.
 */
#define load(skb, offset, to)                                                                  \
	({                                                                                     \
		void *data = (void *)(long)(skb)->data;                                        \
		void *end = (void *)(long)(skb)->data_end;                                     \
		void *from = data + ((offset) & 0x3fff);                                       \
		int missing = 0;                                                               \
                                                                                               \
		if ((offset) <= 0x3fff && from + sizeof(*(to)) <= end)                         \
			*(to) = *(typeof(*(to)) *)from;                                        \
		else                                                                           \
			missing = bpf_skb_load_bytes(skb, offset, to, sizeof(*(to)));          \
		missing;                                                                       \
	})

/* Reads the ports, and what GRO needs of the transport's header. */
static __always_inline void read_transport(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__be16 source;
		__be16 destination;
	} ports;
	__u8 words = 0;

	p->header = offset;
	if (p->transport != IPPROTO_TCP && p->transport != IPPROTO_UDP)
		return;
	if (load(skb, offset, &ports))
		return;
	p->port_remote = ports.source;
	p->port_local = ports.destination;
	p->has_ports = 1;
	p->transport_at = offset;
	if (p->transport == IPPROTO_UDP) {
		p->header = offset + 8;
	} else if (skb->gso_size) {
		load(skb, offset + 12, &words);
		p->header = offset + (words >> 4) * 4;
	}
}

static __always_inline void read_ip4(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__u8 version_words;
		__u8 tos;
		__be16 length;
		__be16 id;
		__be16 fragment;
		__u8 ttl;
		__u8 protocol;
		__be16 checksum;
		__u8 source[4];
		__u8 destination[4];
	} ip;

	if (load(skb, offset, &ip) || ip.version_words >> 4 != 4)
		return;
	p->family = AF_INET;
	p->transport = ip.protocol;
	__builtin_memcpy(p->source, ip.source, 4);
	__builtin_memcpy(p->destination, ip.destination, 4);
	p->header = offset + (ip.version_words & 15) * 4;
	if (!(ip.fragment & bpf_htons(0x3fff)))
		p->end = offset + bpf_ntohs(ip.length);
	/* Only the first fragment has ports. */
	if (!(ip.fragment & bpf_htons(0x1fff)))
		read_transport(skb, p, p->header);
}

/* Returns whether this is neighbour discovery, without which the link does not work. A packet with
 * another hop limit than 255 may come from beyond the link, and is none (RFC 4861, section 7.1). */
static __always_inline int read_ip6(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__u8 version;
		__u8 flow[3];
		__be16 length;
		__u8 next;
		__u8 hops;
		__u8 source[16];
		__u8 destination[16];
	} ip;
	struct {
		__u8 next;
		__u8 length;
		__be16 fragment;
	} extension;
	__u8 type;

	if (load(skb, offset, &ip) || ip.version >> 4 != 6)
		return 0;
	p->family = AF_INET6;
	__builtin_memcpy(p->source, ip.source, 16);
	__builtin_memcpy(p->destination, ip.destination, 16);
	offset += sizeof(ip);
	p->end = offset + bpf_ntohs(ip.length);
	p->header = offset;
	p->transport = ip.next;
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 header = p->transport;

		if (header != IPPROTO_HOPOPTS && header != IPPROTO_ROUTING && header != IPPROTO_DSTOPTS &&
		    header != IPPROTO_FRAGMENT && header != IPPROTO_AH)
			break;
		if (load(skb, offset, &extension))
			return 0;
		p->transport = extension.next;
		if (header == IPPROTO_FRAGMENT) {
			offset += 8;
			p->end = 0;
			if (extension.fragment & bpf_htons(0xfff8))
				return 0;
		} else if (header == IPPROTO_AH) {
			offset += (extension.length + 2) * 4;
		} else {
			offset += (extension.length + 1) * 8;
		}
	}
	if (p->transport == IPPROTO_ICMPV6)
		return ip.hops == 255 && !load(skb, offset, &type) && type >= 133 && type <= 137;
	read_transport(skb, p, offset);
	return 0;
}

/* Returns whether the packet belongs to a class at all. */
static __always_inline int read_packet(struct __sk_buff *skb, struct packet *p, __u32 l2_header)
{
	__be16 protocol = skb->protocol;
	__u32 offset = l2_header;
	struct {
		__be16 tag;
		__be16 protocol;
	} vlan;

	if (skb->pkt_type == PACKET_OTHERHOST)
		return 0;
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		if (load(skb, offset, &vlan))
			return 0;
		protocol = vlan.protocol;
		offset += sizeof(vlan);
	}
	if (protocol == bpf_htons(ETH_P_IP))
		read_ip4(skb, p, offset);
	else if (protocol == bpf_htons(ETH_P_IPV6) && read_ip6(skb, p, offset))
		return 0;
	return p->family != 0;
}
