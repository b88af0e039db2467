/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Changes of the traffic class of a packet: the DSCP in its upper six bits, ECN in the lower two. */
#pragma once

#define TOS_DSCP 0xfc
#define ECN_CE 3

/* Bits to clear, and then bits to set. */
struct tos_change {
	__u32 clear;
	__u32 set;
};

/* The checksum of an IPv4 header after its first word changed. Source: RFC 1624, equation 3. */
static __always_inline __be16 checksum_after(__be16 checksum, __be16 before, __be16 after)
{
	__u32 sum = (__u16)~checksum + (__u16)~before + after;

	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline __be16 tos_in_ip4(__be16 word, struct tos_change tos)
{
	return (word & ~bpf_htons(tos.clear)) | bpf_htons(tos.set);
}

static __always_inline __be32 tos_in_ip6(__be32 word, struct tos_change tos)
{
	return (word & ~bpf_htonl(tos.clear << 20)) | bpf_htonl(tos.set << 20);
}

static __always_inline void change_tos_xdp(struct frame *frame, const struct packet *p,
					   struct tos_change tos)
{
	struct ip4_header *ip4;
	struct ip6_header *ip6;
	__be16 *word, before;

	if (p->family == AF_INET6) {
		ip6 = frame_at(frame, p->ip_at, sizeof(*ip6));
		if (ip6)
			ip6->version_class_flow = tos_in_ip6(ip6->version_class_flow, tos);
		return;
	}
	ip4 = frame_at(frame, p->ip_at, sizeof(*ip4));
	if (!ip4)
		return;
	word = (__be16 *)ip4;
	before = *word;
	*word = tos_in_ip4(before, tos);
	ip4->checksum = checksum_after(ip4->checksum, before, *word);
}

/* As above. The sum of an IPv4 header does not change, so neither does the frame's; with IPv6 it does. */
static __always_inline void change_tos_skb(struct __sk_buff *skb, const struct packet *p,
					   struct tos_change tos)
{
	__u32 at = p->ip_at + __builtin_offsetof(struct ip4_header, checksum);
	__be16 before, after, checksum;
	__be32 first;

	if (p->family == AF_INET6) {
		if (bpf_skb_load_bytes(skb, p->ip_at, &first, sizeof(first)))
			return;
		first = tos_in_ip6(first, tos);
		bpf_skb_store_bytes(skb, p->ip_at, &first, sizeof(first), BPF_F_RECOMPUTE_CSUM);
		return;
	}
	if (bpf_skb_load_bytes(skb, p->ip_at, &before, sizeof(before)) ||
	    bpf_skb_load_bytes(skb, at, &checksum, sizeof(checksum)))
		return;
	after = tos_in_ip4(before, tos);
	checksum = checksum_after(checksum, before, after);
	if (!bpf_skb_store_bytes(skb, p->ip_at, &after, sizeof(after), 0))
		bpf_skb_store_bytes(skb, at, &checksum, sizeof(checksum), 0);
}
