/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Transit times of packets from the server, by their TCP timestamps.
 *
 * A sender stamps each packet by a clock of its own (RFC 7323), in most stacks of 1 ms. Its offset is unknown, so
 * only changes of arrival − timestamp mean something: queues on the way. All sums are relative to an anchor, a
 * packet of the connection: they are small, and a read during a write is wrong by one packet at most.
 *
 * Any host can send a segment with the server's address, so a packet is timed only if the stack
 * will accept it: in the receive window, with a plausible timestamp and a correct checksum. An
 * attacker who knows only addresses and ports hits the window with one segment in (2^32 / window)
 * and the timestamp with one in about 10^6 of these. An attacker who sees the packets can forge
 * segments that the stack accepts, but could as well insert data.
 */
#pragma once

#include "stamp.h"

#define TCP_HEADER 20
/* The checked flags, with SYN and RST, which must be clear. */
#define TCP_FLAGS_CHECKED (TCP_FLAG_ACK | 0x02 | 0x04)
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_PARTIAL 3
/* Larger packets without a checked checksum are not timed. */
#define CHECKED_MAX 2048
/*
 * The fastest clock that is timed ticks a thousand times a second. When a queue empties, stamps may
 * advance faster than time.
 */
#define TICKS_MAX_PER_S 1024
#define AHEAD_S 4
/* Stamps are not compared beyond half of their range (PAWS: 24 days). */
#define ELAPSED_MAX_S 1000000

/*
 * Whether the stack would accept the segment by its numbers: new data within the receive window, an
 * acknowledgement of sent data (RFC 5961, section 5), and a timestamp that is neither older than
 * the newest accepted one (PAWS, RFC 7323) nor newer than the fastest clock can be.
 */
static __always_inline int is_expected(struct tcp_sock *tp, struct segment *s, __u32 payload,
				       __u32 tsval, __u64 now)
{
	__u32 seq = bpf_ntohl(s->seq), ack = bpf_ntohl(s->ack), stamped = tp->rx_opt.ts_recent_stamp;
	__u32 elapsed_s = (__u32)(now / 1000000000ull) - stamped;

	if ((s->flags & TCP_FLAGS_CHECKED) != TCP_FLAG_ACK || !stamped)
		return 0;
	if (!before(tp->rcv_nxt, seq + payload) || before(tp->rcv_wup + tp->rcv_wnd, seq + payload))
		return 0;
	if (before(tp->snd_nxt, ack) || before(ack, tp->snd_una - tp->max_window))
		return 0;
	if (elapsed_s > ELAPSED_MAX_S)
		elapsed_s = ELAPSED_MAX_S;
	return tsval - tp->rx_opt.ts_recent <= (elapsed_s + AHEAD_S) * TICKS_MAX_PER_S;
}

/* Adds `size` bytes at `offset` of the packet to the sum; returns a negative number on failure. */
static __always_inline __s64 add_to_sum(struct __sk_buff *skb, __u32 offset, __u32 size, __s64 sum)
{
	struct scratch *part;
	__u32 key = 0;

	part = bpf_map_lookup_elem(&scratch, &key);
	if (!part || !size || size > SCRATCH_BYTES)
		return -1;
	/* The same number, in a form in which the verifier sees its bounds. */
	size--;
	asm volatile("" : "+r"(size));
	size = (size & (SCRATCH_BYTES - 1)) + 1;
	if (bpf_skb_load_bytes(skb, offset, part->bytes, size))
		return -1;
	/* The helper reads whole words. */
	*(__u8 *)(part->bytes + size) = 0;
	*(__u8 *)(part->bytes + size + 1) = 0;
	*(__u8 *)(part->bytes + size + 2) = 0;
	return bpf_csum_diff(0, 0, (__be32 *)part->bytes, (size + 3) & ~3u, sum);
}

/*
 * Whether the checksum is correct. Devices, GRO and local senders nearly always tell; otherwise it
 * is computed, as the stack will do.
 */
static __always_inline int is_intact(struct __sk_buff *skb, struct packet *p)
{
	__u32 at = p->transport_at, left = skb->len - at;
	struct {
		__u8 source[16];
		__u8 destination[16];
		__be32 length;
		__be32 protocol;
	} pseudo;
	__u8 summed = BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff *)skb, ip_summed);
	__s64 sum;

	/* GRO checks the packets that it merges. */
	if (skb->gso_size || summed == CHECKSUM_UNNECESSARY || summed == CHECKSUM_PARTIAL)
		return 1;
	if (p->end != skb->len || left > CHECKED_MAX)
		return 0;
	__builtin_memcpy(pseudo.source, p->source, 16);
	__builtin_memcpy(pseudo.destination, p->destination, 16);
	pseudo.length = bpf_htonl(left);
	pseudo.protocol = bpf_htonl(IPPROTO_TCP);
	sum = bpf_csum_diff(0, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
#pragma unroll
	for (int i = 0; i < CHECKED_MAX / SCRATCH_BYTES; i++) {
		__u32 size = left < SCRATCH_BYTES ? left : SCRATCH_BYTES;

		if (sum < 0)
			return 0;
		if (!size)
			break;
		sum = add_to_sum(skb, at, size, sum);
		at += size;
		left -= size;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}
