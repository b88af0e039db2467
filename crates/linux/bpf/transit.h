/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long packets took from the server, by their TCP timestamps.
 *
 * A sender stamps each packet with a clock of its own (RFC 7323), in most stacks of 1 ms. Where it
 * started nobody knows, so only changes of arrival − timestamp mean something: those of the queues
 * on the way. All sums are relative to an anchor, which is a packet of the connection, so that they
 * are small and a sum that is read while it is written is wrong by one packet at most.
 *
 * The clock's period is found by comparing it to ours for a second; until then, and if it is none
 * of those that stacks use, nothing is told.
 */
#pragma once

#define TCP_OPTIONS_EMPTY 0x0101
#define TCP_TIMESTAMP 0x080a
#define TCP_HEADER 20
/* One packet in so many is timed. */
#define TRANSIT_EVERY 4
#define PERIOD_FOUND_AFTER_NS 1000000000ull
#define PERIOD_CHECKED_AFTER_NS 10000000000ull
/* Of the two clocks' difference: queues change less, clocks of other periods differ more. */
#define PERIOD_TOLERANCE 50

/*
 * Reads the timestamp of a TCP packet with payload whose TCP header is at `offset`; returns not 0
 * if there is none. It is looked for where stacks put it: first, with two empty options in front
 * (RFC 7323, appendix A) or without.
 */
static __always_inline int read_timestamp(struct __sk_buff *skb, __u32 offset, __u32 *tsval)
{
	__u8 words = 0;
	struct {
		__be16 first;
		__be16 second;
		__be32 aligned;
	} options;

	if (load(skb, offset + 12, &words) || words >> 4 < 8 || offset + (words >> 4) * 4 >= skb->len ||
	    load(skb, offset + TCP_HEADER, &options))
		return 1;
	if (options.first == bpf_htons(TCP_OPTIONS_EMPTY) && options.second == bpf_htons(TCP_TIMESTAMP)) {
		*tsval = bpf_ntohl(options.aligned);
		return 0;
	}
	if (options.first != bpf_htons(TCP_TIMESTAMP))
		return 1;
	*tsval = (__u32)bpf_ntohs(options.second) << 16 | bpf_ntohl(options.aligned) >> 16;
	return 0;
}

static __always_inline void anchor(struct connection *c, __u64 now, __u32 tsval)
{
	c->anchor_ns = now;
	c->ticks = 0;
	c->tsval = tsval;
	c->period_ns = 0;
	c->samples = 0;
	c->sum = 0;
}

static __always_inline int fits(__u64 elapsed, __u64 ticks, __u64 period)
{
	__s64 off = ticks * period - elapsed;

	return (__u64)(off < 0 ? -off : off) * PERIOD_TOLERANCE <= elapsed;
}

/* The period of a clock that has ticked so often in `elapsed`; 0 is none that stacks use. */
static __always_inline __u32 find_period(__u64 elapsed, __u64 ticks)
{
	if (fits(elapsed, ticks, 1000000))
		return 1000000;
	if (fits(elapsed, ticks, 4000000))
		return 4000000;
	if (fits(elapsed, ticks, 10000000))
		return 10000000;
	if (fits(elapsed, ticks, 100000000))
		return 100000000;
	return 0;
}

/* Takes in a packet that was stamped `tsval` and arrived `now`. */
static __always_inline void time_packet(struct connection *c, __u64 now, __u32 tsval)
{
	__u64 elapsed;
	__s64 delay;

	if (!c->anchor_ns) {
		anchor(c, now, tsval);
		return;
	}
	elapsed = now - c->anchor_ns;
	/* Its 32 bits wrap, and packets overtake each other. */
	c->ticks += (__s32)(tsval - c->tsval);
	c->tsval = tsval;
	if (!c->period_ns) {
		if (elapsed < PERIOD_FOUND_AFTER_NS)
			return;
		c->period_ns = find_period(elapsed, c->ticks);
		if (!c->period_ns)
			anchor(c, now, tsval);
		return;
	}
	if (elapsed > PERIOD_CHECKED_AFTER_NS && !fits(elapsed, c->ticks, c->period_ns)) {
		anchor(c, now, tsval);
		return;
	}
	delay = elapsed - c->ticks * c->period_ns;
	if (!c->samples || delay < c->min)
		c->min = delay;
	c->sum += delay;
	c->samples++;
}
