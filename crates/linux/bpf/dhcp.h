/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DHCP messages that pass the LAN, for user space, which reads names and leases from them.
 *
 * A message that does not fit into the ring is lost; the name is then known after the next renewal.
 */
#pragma once

#define DHCP_SERVER 67
#define DHCP_CLIENT 68
#define DHCP_UDP_HEADER 8
#define ETH_SOURCE_AT 6

/* Written here, taken out by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} dhcp_ring SEC(".maps");

/* Copies the packet to user space if it is a DHCP message. */
static __always_inline void hear_dhcp(struct __sk_buff *skb, const struct packet *p,
				      const struct router_config *cfg, __u8 is_own)
{
	__u16 from = is_own ? DHCP_SERVER : DHCP_CLIENT, to = is_own ? DHCP_CLIENT : DHCP_SERVER;
	__u32 at = p->transport_at + DHCP_UDP_HEADER, length = skb->len - at - 1;
	struct dhcp_heard *heard;

	if (p->family != AF_INET || p->transport != IPPROTO_UDP || !p->has_ports ||
	    p->port_source != bpf_htons(from) || p->port_destination != bpf_htons(to))
		return;
	if (!cfg->lan_header || skb->len <= at)
		return;
	if (length >= DHCP_HEARD_MAX)
		length = DHCP_HEARD_MAX - 1;
	heard = bpf_ringbuf_reserve(&dhcp_ring, sizeof(*heard), 0);
	if (!heard)
		return;
	/* The same number, in a form in which the verifier sees its bounds. */
	asm volatile("" : "+r"(length));
	length = (length & (DHCP_HEARD_MAX - 1)) + 1;
	heard->is_own = is_own;
	heard->pad = 0;
	heard->length = length;
	if (bpf_skb_load_bytes(skb, ETH_SOURCE_AT, &heard->source, sizeof(heard->source)) ||
	    bpf_skb_load_bytes(skb, at, heard->bytes, length)) {
		bpf_ringbuf_discard(heard, 0);
		return;
	}
	bpf_ringbuf_submit(heard, 0);
}
