/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The TCP timestamps of arriving packets, and the transit times that they show.
 *
 * The clock's period is found by comparison with ours: 1 ms, which nearly all stacks use, within a
 * quarter of a second, others within a second. Before that, and with periods that no stack uses, no
 * transit time is reported. Opening connections fill the queue meanwhile, so stamps advance more
 * slowly than time; but the periods of clocks differ by more than that.
 */
#pragma once

#define TCP_OPTIONS_EMPTY 0x0101
#define TCP_TIMESTAMP 0x080a
#define PERIOD_FOUND_AFTER_NS 250000000ull
#define OTHERS_FOUND_AFTER_NS 1000000000ull
#define PERIOD_SOUGHT_NS 4000000000ull
#define PERIOD_CHECKED_AFTER_NS 10000000000ull

/* The TCP header from the sequence number on, with the options in which stacks put timestamps. */
struct segment {
	__be32 seq;
	__be32 ack;
	__u8 words;
	__u8 flags;
	__be16 window;
	__be16 checksum;
	__be16 urgent;
	__be16 first;
	__be16 second;
	__be32 aligned;
};

/*
 * Reads a TCP segment with payload, and its timestamp, which must be where stacks put it: as the
 * first option, with or without two empty options before it (RFC 7323, appendix A). Returns not 0
 * if there is none.
 */
static __always_inline int read_segment(struct __sk_buff *skb, struct packet *p, struct segment *s,
					__u32 *tsval)
{
	if (load(skb, p->transport_at + 4, s) || s->words >> 4 < 8 ||
	    p->transport_at + (s->words >> 4) * 4 >= skb->len)
		return 1;
	if (s->first == bpf_htons(TCP_OPTIONS_EMPTY) && s->second == bpf_htons(TCP_TIMESTAMP)) {
		*tsval = bpf_ntohl(s->aligned);
		return 0;
	}
	if (s->first != bpf_htons(TCP_TIMESTAMP))
		return 1;
	*tsval = (__u32)bpf_ntohs(s->second) << 16 | bpf_ntohl(s->aligned) >> 16;
	return 0;
}

static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline void anchor(struct transit *t, __u64 now, __u32 tsval)
{
	t->anchor_ns = now;
	t->ticks = 0;
	t->tsval = tsval;
	t->period_ns = 0;
	t->samples = 0;
	t->sum = 0;
}

/* Whether the clock's time differs from `elapsed` by no more than `part` / 16 of it. */
static __always_inline int fits(__u64 elapsed, __s64 ticks, __u64 period, __u64 part)
{
	__s64 off = ticks * period - elapsed;

	return (__u64)(off < 0 ? -off : off) * 16 <= elapsed * part;
}

/* The period of a clock with this many ticks in `elapsed`; 0 if no stack uses it, or if it is not known yet. */
static __always_inline __u32 find_period(__u64 elapsed, __s64 ticks)
{
	if (fits(elapsed, ticks, 1000000, 6))
		return 1000000;
	if (elapsed < OTHERS_FOUND_AFTER_NS)
		return 0;
	if (fits(elapsed, ticks, 4000000, 6))
		return 4000000;
	if (fits(elapsed, ticks, 10000000, 6))
		return 10000000;
	if (fits(elapsed, ticks, 100000000, 6))
		return 100000000;
	return 0;
}

/* Handles a packet with the timestamp `tsval` that arrived `now`. */
static __always_inline void time_packet(struct transit *t, __u64 now, __u32 tsval)
{
	__u64 elapsed;
	__s64 delay;

	if (!t->anchor_ns) {
		anchor(t, now, tsval);
		return;
	}
	elapsed = now - t->anchor_ns;
	/* Timestamps have 32 bits, which wrap, and packets overtake each other. */
	t->ticks += (__s32)(tsval - t->tsval);
	t->tsval = tsval;
	if (!t->period_ns) {
		if (elapsed < PERIOD_FOUND_AFTER_NS)
			return;
		t->period_ns = find_period(elapsed, t->ticks);
		if (!t->period_ns && elapsed > PERIOD_SOUGHT_NS)
			anchor(t, now, tsval);
		return;
	}
	if (elapsed > PERIOD_CHECKED_AFTER_NS && !fits(elapsed, t->ticks, t->period_ns, 1)) {
		anchor(t, now, tsval);
		return;
	}
	delay = elapsed - t->ticks * t->period_ns;
	if (!t->samples || delay < t->min)
		t->min = delay;
	t->sum += delay;
	t->samples++;
}
