/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The size of a packet on the wire. */
#pragma once

/* A super-packet of GRO is many packets on the wire, each with headers of its own. */
static __always_inline void measure(const struct __sk_buff *skb, struct frame *frame,
				    const struct packet *p, __u32 l2_header, struct counter *amount)
{
	__u32 header;

	amount->bytes = skb->len + (ETH_HLEN - l2_header);
	amount->packets = 1;
	if (!skb->gso_size)
		return;
	amount->packets = count_segments(skb, frame, p, &header);
	amount->bytes += (amount->packets - 1) * (header + ETH_HLEN - l2_header);
}
