/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What leaves by the device that faces the Internet: packets are counted by class, and get their class
 * (HTB, the root qdisc of the device) while user space is alive and enforces. See src/shape/uplink.rs.
 *
 * Acknowledgements without payload and small ICMP have classes of their own, which go first: they
 * carry the clock of downloads and the probe.
 */
#pragma once

/* Written here for each packet, read by user space each tick; never reset. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct upload_counters);
} upload_counters SEC(".maps");

/* The class of a packet that goes first; 0 for all other packets. */
static __always_inline __u32 goes_first(struct __sk_buff *skb, const struct packet *p)
{
	__u32 end = p->end && p->end < skb->len ? p->end : skb->len;
	__u8 words;

	if (skb->gso_size || p->is_fragment)
		return 0;
	if (p->transport == IPPROTO_ICMP || p->transport == IPPROTO_ICMPV6)
		return end - p->ip_at <= FIRST_BYTES_MAX ? ICMP_MINOR : 0;
	if (p->transport != IPPROTO_TCP || !p->has_ports || load(skb, p->transport_at + 12, &words))
		return 0;
	return p->transport_at + (words >> 4) * 4 >= end ? ACKS_MINOR : 0;
}

/* Counts the packet for `slot` and, if wanted, gives it a class. Callers find `amount` and `first`
 * before `slot`: each rule would double the code that the verifier has to look at after it. */
static __always_inline void leave(struct __sk_buff *skb, const struct counter *amount, __u32 first,
				  __u32 slot, int enforce)
{
	struct upload_counters *mine;
	__u32 key = 0;

	mine = bpf_map_lookup_elem(&upload_counters, &key);
	if (!mine || slot >= SLOTS_MAX)
		return;
	/* The same number, in a form in which the verifier sees its bounds. */
	asm volatile("" : "+r"(slot));
	slot &= SLOTS_MAX - 1;
	mine->slots[slot].bytes += amount->bytes;
	mine->slots[slot].packets += amount->packets;
	if (first) {
		mine->first.bytes += amount->bytes;
		mine->first.packets += amount->packets;
	}
	if (enforce)
		skb->priority = HTB_MAJOR | (first ? first : slot + 1);
}
