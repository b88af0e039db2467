/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP connections through a router: the received volume, round-trip time, and receive window of each.
 *
 * A connection is known from the SYN or SYN-ACK of the device, which tells its window scale. A
 * connection older than the daemon is not followed: only its class limits it. Only packets of
 * devices create entries, since anyone can send packets from the WAN.
 *
 * The round trip has two halves, each from a packet to the first one that answers it: WAN (a
 * device's timestamp and its echo, or SYN and SYN-ACK) and LAN (the server's timestamp and its
 * echo, or SYN-ACK and ACK). The LAN half contains the queue of the device's class, and devices
 * delay acknowledgements, so it is a minimum, which rises slowly.
 */
#pragma once

#include "flow_key.h"
#include "window_maps.h"

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define TCP_HEADER 20
#define OPTIONS_MAX 40
#define OPTIONS_ROOM 64
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_WSCALE 3
/* The largest window scale: RFC 7323, section 2.3. */
#define WSCALE_MAX 14
#define OPTION_SACK 5
/* Room of timestamps with the two empty options before them. */
#define STAMPS_ROOM 12
/* TCP options of signed segments, MD5 and AO (RFC 2385, RFC 5925): the signature covers the window. */
#define OPTION_MD5 19
#define OPTION_AO 29
/* Time after the first payload in which user space gets to know a connection; then it alone decides. */
#define INITIAL_NS 1000000000ll
#define ASKED_MAX_NS 10000000000ull
/* The fastest clock that is timed ticks a thousand times a second: see transit.h. */
#define TICKS_AHEAD 4096
/* Up to this many packets of a connection are all timed in an interval; of more, only some. */
#define TIMED_ALL 32
#define NO_WSCALE (-1)
#define SIGNED (-2)
#define WINDOW_AT 14
#define CHECKSUM_AT 16

/* Written by user space on each change and heartbeat; lives as long as the programs, as all maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct router_config);
} config SEC(".maps");

/* Written here for each packet, read by user space each tick; never reset. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct router_counters);
} counters SEC(".maps");

/* Rules by the MAC address of a device: written by user space when the policy changes, read here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct mac);
	__type(value, __u32);
} mac_rules SEC(".maps");

/* Connections, `local` is the device: written here, read by user space each tick; the oldest make
 * room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ROUTER_FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct router_flow);
} router_flows SEC(".maps");

/* A TCP header, with the options in which stacks put timestamps. */
struct tcp {
	struct segment s;
	__u32 tsval;
	__u32 tsecr;
	__u32 payload;
	__u32 header;
	int has_stamps;
};

/* Reads the TCP header of a packet. Returns not 0 if there is none. */
static __always_inline int read_tcp(struct __sk_buff *skb, struct packet *p, struct tcp *t)
{
	struct {
		__be32 seq, ack;
		__u8 words, flags;
		__be16 window;
	} fixed;
	__be32 tsecr;

	if (load(skb, p->transport_at + 4, &fixed))
		return 1;
	__builtin_memset(t, 0, sizeof(*t));
	t->s.seq = fixed.seq;
	t->s.ack = fixed.ack;
	t->s.flags = fixed.flags;
	t->s.window = fixed.window;
	t->header = (fixed.words >> 4) * 4;
	if (t->header < TCP_HEADER || p->transport_at + t->header > skb->len)
		return 1;
	/* Short frames have padding after the IP packet. */
	t->payload = p->end && p->end < skb->len && !skb->gso_size ? p->end : skb->len;
	t->payload = t->payload > p->transport_at + t->header ?
			     t->payload - p->transport_at - t->header :
			     0;
	if (t->header < 32 || load(skb, p->transport_at + 4, &t->s))
		return 0;
	if (t->s.first == bpf_htons(TCP_OPTIONS_EMPTY) && t->s.second == bpf_htons(TCP_TIMESTAMP)) {
		if (load(skb, p->transport_at + 28, &tsecr))
			return 0;
		t->tsval = bpf_ntohl(t->s.aligned);
		t->tsecr = bpf_ntohl(tsecr);
		t->has_stamps = 1;
	}
	return 0;
}

/* The window scale option of a SYN; NO_WSCALE if there is none, SIGNED if segments are signed. */
static __always_inline int read_wscale(struct __sk_buff *skb, struct packet *p, const struct tcp *t)
{
	__u32 next = 0, length = t->header - TCP_HEADER - 1;
	__u8 options[OPTIONS_ROOM] = {};
	int found = NO_WSCALE;

	if (t->header <= TCP_HEADER)
		return found;
	/* The same number, in a form in which the verifier sees its bounds. */
	asm volatile("" : "+r"(length));
	length = (length & (OPTIONS_ROOM - 1)) + 1;
	if (bpf_skb_load_bytes(skb, p->transport_at + TCP_HEADER, options, length))
		return found;
#pragma unroll
	for (__u32 i = 0; i < OPTIONS_MAX - 2; i++) {
		__u8 kind = options[i], size = options[i + 1];

		if (i < next)
			continue;
		if (kind == OPTION_NOP)
			continue;
		if (kind == OPTION_MD5 || kind == OPTION_AO)
			return SIGNED;
		if (kind == OPTION_END || size < 2)
			return found;
		if (kind == OPTION_WSCALE && size == 3)
			found = options[i + 2] < WSCALE_MAX ? options[i + 2] : WSCALE_MAX;
		next = i + size;
	}
	return found;
}

static __always_inline void smooth(__u32 *rtt_us, __u64 ns)
{
	__u32 seen = ns / 1000 ? ns / 1000 : 1;

	*rtt_us = *rtt_us ? *rtt_us - *rtt_us / 8 + seen / 8 : seen;
	if (!*rtt_us)
		*rtt_us = 1;
}

static __always_inline void least(__u32 *rtt_us, __u64 ns)
{
	__u32 seen = ns / 1000 ? ns / 1000 : 1;

	if (!*rtt_us || seen < *rtt_us)
		*rtt_us = seen;
	else
		*rtt_us += (seen - *rtt_us) / 32;
}

/*
 * Whether the device will accept the segment by its numbers: new data within the window that the
 * device has told, and a timestamp that is neither much older nor newer than time allows. The
 * checksum is not checked: a sender of forged segments can compute it.
 */
static __always_inline int is_plausible(const struct router_flow *f, const struct tcp *t, __u64 now)
{
	__u32 end = bpf_ntohl(t->s.seq) + t->payload;
	__u64 elapsed = now - f->transit.anchor_ns;

	if ((t->s.flags & (ACK | SYN | RST)) != ACK || !(f->flags & FLOW_EDGE))
		return 0;
	if (!before(f->ack, end) || before(f->edge_own, end))
		return 0;
	if (!f->transit.anchor_ns)
		return 1;
	/* Elapsed time in units of 2^20 ns, as if the clock ticked at most once in each. */
	return t->tsval - f->transit.tsval + TICKS_AHEAD <= (__u32)(elapsed >> 20) + 2 * TICKS_AHEAD;
}

/* Resets the values that user space reads once per interval, when a new interval has begun. */
static __always_inline void begin_interval(struct router_flow *f, const struct router_config *cfg)
{
	if (f->interval == cfg->interval)
		return;
	f->interval = cfg->interval;
	f->transit.samples = 0;
	f->transit.sum = 0;
	f->asked = 0;
	f->flags &= ~FLOW_CLASSED;
}

/*
 * Whether to time a packet from the WAN. The clock costs half as much as all else, so only one
 * packet in four is timed when a connection receives many packets in an interval.
 */
static __always_inline int is_timed(const struct router_flow *f, const struct tcp *t)
{
	return f->transit.samples < TIMED_ALL || !(f->segs_in & 3) ||
	       (f->wan_asked_ns && !before(t->tsecr, f->wan_asked));
}

static __always_inline void time_download(struct router_flow *f, const struct tcp *t, __u64 now)
{
	if (!is_plausible(f, t, now))
		return;
	time_packet(&f->transit, now, t->tsval);
	if (f->wan_asked_ns && !before(t->tsecr, f->wan_asked)) {
		if (now - f->wan_asked_ns < ASKED_MAX_NS)
			smooth(&f->wan_rtt_us, now - f->wan_asked_ns);
		f->wan_asked_ns = 0;
	}
	if (!f->lan_asked_ns) {
		f->lan_asked = t->tsval;
		f->lan_asked_ns = now;
	}
}

/* The server's SYN or SYN-ACK. The SYN-ACK tells whether the scale of the device's window is in force. */
static __always_inline void open_download(struct __sk_buff *skb, struct packet *p,
					  struct router_flow *f, const struct tcp *t, __u64 now)
{
	/* Only once, and only for the answer to the SYN: a wrong scale would make windows tiny. */
	if (!(t->s.flags & ACK) || f->flags & (FLOW_OPEN | FLOW_ACCEPTED) ||
	    bpf_ntohl(t->s.ack) != f->ack)
		return;
	if (read_wscale(skb, p, t) < 0)
		f->wscale = 0;
	f->flags |= FLOW_OPEN;
	if (f->wan_asked_ns && now - f->wan_asked_ns < ASKED_MAX_NS)
		smooth(&f->wan_rtt_us, now - f->wan_asked_ns);
	f->wan_asked_ns = 0;
	f->flags |= FLOW_SHAKES;
	f->lan_asked_ns = now;
}

/* The entry of the connection of a packet from the WAN, or 0. */
static __always_inline struct router_flow *find_download(const struct packet *p)
{
	struct flow_key key;

	if (p->transport != IPPROTO_TCP || !p->has_ports)
		return 0;
	flow_key(&key, p, 1);
	return bpf_map_lookup_elem(&router_flows, &key);
}

/* Handles a packet from the WAN to the device. */
static __always_inline void follow_download(struct __sk_buff *skb, struct packet *p,
					    struct router_flow *f, __u32 packets)
{
	__u32 seq, segment;
	struct tcp t;

	if (read_tcp(skb, p, &t))
		return;
	if (t.s.flags & SYN) {
		open_download(skb, p, f, &t, bpf_ktime_get_ns());
		return;
	}
	if (t.s.flags & FIN)
		f->flags |= FLOW_ENDED;
	if (!t.payload)
		return;
	/* Only payload shows that a connection which the device has accepted goes through the WAN. For
	 * others without FLOW_OPEN the SYN-ACK, and so whether windows are scaled, was missed. */
	if (f->flags & FLOW_ACCEPTED)
		f->flags |= FLOW_OPEN;
	if (!(f->flags & FLOW_OPEN))
		return;
	if (t.has_stamps && is_timed(f, &t))
		time_download(f, &t, bpf_ktime_get_ns());
	seq = bpf_ntohl(t.s.seq);
	/* Data beyond the window that the device announced is not the server's. */
	if (f->flags & FLOW_EDGE && before(f->edge_own, seq + t.payload))
		return;
	segment = skb->gso_size ? skb->gso_size : t.payload;
	if (segment > f->segment)
		f->segment = segment;
	f->received += t.payload;
	f->segs_in += packets;
	if (!f->begun_ns) {
		f->begun_ns = bpf_ktime_get_ns();
		f->seq_next = seq + t.payload;
		return;
	}
	if (before(f->seq_next, seq))
		f->holes++;
	if (before(f->seq_next, seq + t.payload))
		f->seq_next = seq + t.payload;
}

/* The bound for a connection's window; 0 is none. */
static __always_inline __u32 find_window(const struct router_config *cfg, const struct router_flow *f)
{
	struct initial_windows *initial;
	__u32 *wanted, key = 0;
	__u64 id = f->id;

	if (!(cfg->features & FEATURE_WINDOWS) || !is_recent(cfg->heartbeat_ns))
		return 0;
	wanted = bpf_map_lookup_elem(&windows, &id);
	if (wanted)
		return *wanted;
	if (f->begun_ns && (__s64)(bpf_ktime_get_coarse_ns() - f->begun_ns) > INITIAL_NS)
		return 0;
	initial = bpf_map_lookup_elem(&initial_windows, &key);
	return initial ? initial->slots[f->slot & (SLOTS_MAX - 1)] : 0;
}

/*
 * The sequence numbers from a hole to the end of the newest segment, which the device's first SACK
 * block contains (RFC 2018, section 4); 0 if there is no hole. See behind_hole of a host. What did
 * not go to the device yet does not count.
 */
static __always_inline __u32 behind_hole(struct __sk_buff *skb, struct packet *p,
					 const struct router_flow *f, const struct tcp *t)
{
	__u32 at = TCP_HEADER + (t->has_stamps ? STAMPS_ROOM : 0), ack = bpf_ntohl(t->s.ack), end;
	struct {
		__be16 empty;
		__u8 kind, size;
		__be32 begin, end;
	} sack;

	if (t->header < at + sizeof(sack) || load(skb, p->transport_at + at, &sack))
		return 0;
	if (sack.empty != bpf_htons(TCP_OPTIONS_EMPTY) || sack.kind != OPTION_SACK)
		return 0;
	end = bpf_ntohl(sack.end);
	return before(ack, end) && !before(f->seq_next, end) ? end - ack : 0;
}

/* Lowers the window of an acknowledgement to the connection's bound, if the window is larger. */
static __always_inline void bound_window(struct __sk_buff *skb, struct packet *p,
					 const struct router_config *cfg, struct router_flow *f,
					 const struct tcp *t)
{
	__u32 scale = f->wscale & 15, ack = bpf_ntohl(t->s.ack);
	__u32 field = bpf_ntohs(t->s.window), own = field << scale;
	__u32 wanted, edge;
	__be16 lowered;

	/* Acknowledges more than the server sent, or less than already seen: no progress of the connection. */
	if (f->begun_ns && before(f->seq_next, ack))
		return;
	if (f->flags & FLOW_EDGE && before(ack, f->ack))
		return;
	if (!(f->flags & FLOW_EDGE)) {
		f->edge = f->edge_own = ack + f->syn_window;
		f->flags |= FLOW_EDGE;
	}
	f->ack = ack;
	if (before(f->edge_own, ack + own))
		f->edge_own = ack + own;
	if (own > f->window)
		f->window = own;
	begin_interval(f, cfg);
	if (own > f->asked)
		f->asked = own;
	wanted = find_window(cfg, f);
	f->bound = wanted;
	edge = ack + wanted + behind_hole(skb, p, f, t);
	if (wanted && before(edge, f->edge))
		edge = f->edge;
	if (!wanted || !before(edge, ack + own)) {
		if (before(f->edge, ack + own))
			f->edge = ack + own;
		return;
	}
	/* Rounded up, so that the edge that the server was told stays. */
	field = (edge - ack + (1u << scale) - 1) >> scale;
	lowered = bpf_htons(field);
	if (field >= bpf_ntohs(t->s.window) ||
	    bpf_l4_csum_replace(skb, p->transport_at + CHECKSUM_AT, t->s.window, lowered, 2) ||
	    bpf_skb_store_bytes(skb, p->transport_at + WINDOW_AT, &lowered, 2, 0)) {
		if (before(f->edge, ack + own))
			f->edge = ack + own;
		return;
	}
	f->edge = ack + (field << scale);
}

/* A SYN or SYN-ACK of the device begins a connection. */
static __always_inline void open_upload(struct __sk_buff *skb, struct packet *p,
					const struct flow_key *key, const struct tcp *t, __u64 now)
{
	int scale = read_wscale(skb, p, t);
	struct router_flow f = {
		.id = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32(),
		.ack = bpf_ntohl(t->s.seq) + 1 + t->payload,
		.syn_window = bpf_ntohs(t->s.window),
		.wscale = scale < 0 ? 0 : scale,
	};

	if (scale == SIGNED)
		return;
	if (t->s.flags & ACK)
		f.flags = FLOW_ACCEPTED;
	else
		f.wan_asked_ns = now;
	bpf_map_update_elem(&router_flows, key, &f, BPF_ANY);
}

/* Handles a packet from the device. */
static __always_inline void follow_upload(struct __sk_buff *skb, struct packet *p,
					  const struct router_config *cfg)
{
	struct router_flow *f;
	struct flow_key key;
	struct tcp t;
	__u64 now;

	if (read_tcp(skb, p, &t))
		return;
	flow_key(&key, p, 0);
	if (t.s.flags & SYN) {
		open_upload(skb, p, &key, &t, bpf_ktime_get_ns());
		return;
	}
	f = bpf_map_lookup_elem(&router_flows, &key);
	/* Connections to the router itself, or to another LAN, never become FLOW_OPEN. */
	if (!f || !(f->flags & FLOW_OPEN) || !(t.s.flags & ACK))
		return;
	if (t.payload)
		f->segs_out++;
	if (f->lan_asked_ns && (f->flags & FLOW_SHAKES || !before(t.tsecr, f->lan_asked))) {
		now = bpf_ktime_get_ns();
		if (now - f->lan_asked_ns < ASKED_MAX_NS)
			least(&f->lan_rtt_us, now - f->lan_asked_ns);
		f->lan_asked_ns = 0;
	}
	f->flags &= ~FLOW_SHAKES;
	if (t.s.flags & (FIN | RST))
		f->flags |= FLOW_ENDED;
	if (t.has_stamps && !f->wan_asked_ns) {
		f->wan_asked = t.tsval;
		f->wan_asked_ns = bpf_ktime_get_ns();
	}
	if (!(t.s.flags & RST))
		bound_window(skb, p, cfg, f, &t);
}
