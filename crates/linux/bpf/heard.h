/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The beginnings of flows, for user space, which reads names in them and binds the flows to classes.
 *
 * A flow is known from the packet with which this side opens it: a SYN, a QUIC Initial packet or a
 * DNS query. Until user space has enough (`wanted` is 0), what this side sends first is copied to
 * the ring `heard_ring`; for UDP only QUIC Initial packets, and DNS messages in both directions.
 * All names are read in user space. What does not fit into a full ring is counted and lost: the
 * flow then stays in the default group, or in the group that DNS gives.
 *
 * Flows that are watched are reported when they send what may be a request (`HEARD_SENT`).
 *
 * The includer defines the types `hearing_config`, with `heartbeat_ns`, and `hearing_counters`,
 * with `unheard`; and HEARING, the specifiers of functions that the verifier should look at only
 * once, where BPF-to-BPF calls exist.
 */
#pragma once

#include "flow_key.h"
#include "recent.h"

#define QUIC_LONG 0x80
#define QUIC_TYPE 0x30
#define QUIC_VERSION_1 0x00000001u
#define QUIC_VERSION_2 0x6b3343cfu
#define QUIC_INITIAL_1 0x00
#define QUIC_INITIAL_2 0x10
#define PORT_DNS 53
#define UDP_HEADER 8
#define TLS_HANDSHAKE 22
/* Maximum number of chunks of a stream, or datagrams of a super-packet, that are copied per packet. */
#define PARTS_MAX 8

/* Flows that are bound to classes one by one: made here when they open, bound by user space, read
 * here; the oldest make room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* The beginnings of flows: written here, taken out by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} heard_ring SEC(".maps");

/* The next record for the ring; written and read here within one run. */
struct heard {
	struct flow_key key;
	__u32 kind;
	__u32 opened;
	__u32 offset;
	__u32 length;
	__u64 at_ns;
	__u32 user;
	__u32 pad;
	__u8 bytes[HEARD_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct heard);
} heard_scratch SEC(".maps");

/* Time is that of user space's heartbeat, so that no clock is read: it lags 200 ms at most. */
static __always_inline int is_idle(const struct flow *flow, const hearing_config *cfg)
{
	return (__s64)(cfg->heartbeat_ns - flow->seen_ns) > FLOW_IDLE_NS;
}

/* The entry of a flow in use. UDP has no end, so after a long silence the same ports are another flow. */
static __always_inline struct flow *find_flow(const struct flow_key *key, const hearing_config *cfg)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);

	if (!flow || key->transport != IPPROTO_UDP)
		return flow;
	if (is_idle(flow, cfg))
		return 0;
	if (flow->seen_ns != cfg->heartbeat_ns)
		flow->seen_ns = cfg->heartbeat_ns;
	return flow;
}

/* Whether user space has bound the flow and no further payload can bind it anew at once. */
static __always_inline int is_decided(const struct flow *flow, const struct packet *p)
{
	return flow->number && (p->transport == IPPROTO_UDP || !flow->wanted);
}

/* The rule of the packet's flow, which has ports; 0 is none. */
static __always_inline __u32 bound_rule(const struct packet *p, const hearing_config *cfg, int arrives)
{
	struct flow_key key = {};
	struct recent recent;
	struct flow *flow;
	__u64 word;
	__u32 rule;

	if (!find_recent(&recent, p, cfg, arrives))
		return 0;
	word = recall(&recent);
	if (word)
		return recalled_rule(word);
	flow_key(&key, p, arrives);
	flow = find_flow(&key, cfg);
	if (!flow) {
		/* A flood of packets of unknown flows displaces no known flow. */
		remember_recent(&recent, 0, 1, 0);
		return 0;
	}
	rule = flow->rule;
	if (is_decided(flow, p))
		remember_recent(&recent, rule, !flow->watched, 1);
	return rule;
}

/*
 * Copies `size` bytes at `at` of the packet to the ring, behind the header in `heard_scratch`. The
 * verifier looks at a global function once, not once for each path that leads to it: there are too
 * many paths.
 */
HEARING int hear(struct __sk_buff *skb, __u32 kind, __u32 offset, __u32 at, __u32 size)
{
	hearing_counters *mine;
	struct heard *heard;
	__u32 zero = 0;

	heard = bpf_map_lookup_elem(&heard_scratch, &zero);
	if (!heard)
		return 0;
	if (size > HEARD_BYTES)
		size = HEARD_BYTES;
	heard->kind = kind;
	heard->offset = offset;
	heard->length = size;
	heard->at_ns = bpf_ktime_get_ns();
	heard->user = kind == HEARD_OPENING ? bpf_get_socket_uid(skb) : 0;
	if (size) {
		/* The same number, in a form in which the verifier sees its bounds. */
		size--;
		asm volatile("" : "+r"(size));
		size = (size & (HEARD_BYTES - 1)) + 1;
		if (bpf_skb_load_bytes(skb, at, heard->bytes, size))
			return 0;
	}
	if (!bpf_ringbuf_output(&heard_ring, heard, HEARD_HEADER + size, 0))
		return 0;
	mine = bpf_map_lookup_elem(&counters, &zero);
	if (mine)
		mine->unheard++;
	return 0;
}

/* The scratch record in which the next report is built, with the key of the packet's flow. */
static __always_inline struct heard *begin(const struct packet *p, int arrives)
{
	struct heard *heard;
	__u32 zero = 0;

	heard = bpf_map_lookup_elem(&heard_scratch, &zero);
	if (heard)
		flow_key(&heard->key, p, arrives);
	return heard;
}

static __always_inline struct flow *open_flow(const struct packet *p, const struct flow_key *key,
					      const hearing_config *cfg, __u32 opened, __u32 wanted)
{
	struct flow flow = { .seen_ns = cfg->heartbeat_ns, .opened = opened, .wanted = wanted };

	forget_recent(p, cfg);
	bpf_map_update_elem(&flows, key, &flow, BPF_ANY);
	return bpf_map_lookup_elem(&flows, key);
}

/* Whether a TCP stream that begins with this byte may name a host. */
static __always_inline int may_name(__u8 first)
{
	return first == TLS_HANDSHAKE || (first >= 'A' && first <= 'Z');
}

/* Reports that a watched flow sent payload, at `at`. */
static __always_inline void hear_sent(struct __sk_buff *skb, struct heard *heard, struct flow *flow,
				      __u32 at)
{
	if (!flow->watched || skb->len < at + REQUEST_BYTES)
		return;
	flow->watched--;
	heard->opened = flow->opened;
	hear(skb, HEARD_SENT, 0, at, 0);
}

static __always_inline void hear_tcp(struct __sk_buff *skb, struct packet *p,
				     const hearing_config *cfg)
{
	struct {
		__be32 seq;
		__be32 ack;
		__u8 words;
		__u8 flags;
	} __attribute__((packed)) tcp;
	__u32 at, offset, size;
	struct heard *heard;
	struct flow *flow;
	__u8 first;
	int opens;

	if (load(skb, p->transport_at + 4, &tcp))
		return;
	at = p->transport_at + (tcp.words >> 4) * 4;
	opens = (tcp.flags & (TCP_FLAG_SYN | TCP_FLAG_ACK)) == TCP_FLAG_SYN;
	if (!opens && (skb->len <= at || is_silent(p, cfg)))
		return;
	heard = begin(p, 0);
	if (!heard)
		return;
	if (opens) {
		heard->opened = bpf_ntohl(tcp.seq) + 1;
		open_flow(p, &heard->key, cfg, heard->opened, 2 * STREAM_BYTES);
		hear(skb, HEARD_OPENING, 0, at, 0);
		return;
	}
	flow = find_flow(&heard->key, cfg);
	if (!flow)
		return;
	if (!flow->wanted) {
		hear_sent(skb, heard, flow, at);
		return;
	}
	heard->opened = flow->opened;
	offset = bpf_ntohl(tcp.seq) - flow->opened;
	if (offset >= STREAM_BYTES)
		return;
	if (!offset && (bpf_skb_load_bytes(skb, at, &first, 1) || !may_name(first))) {
		flow->wanted = 0;
		hear(skb, HEARD_STREAM, 0, at, 1);
		return;
	}
	for (int i = 0; i < PARTS_MAX; i++) {
		if (at >= skb->len || offset >= STREAM_BYTES || !flow->wanted)
			break;
		size = skb->len - at < HEARD_BYTES ? skb->len - at : HEARD_BYTES;
		hear(skb, HEARD_STREAM, offset, at, size);
		/* A retransmitted stream is not copied for ever. */
		flow->wanted -= flow->wanted < size ? flow->wanted : size;
		at += size;
		offset += size;
	}
}

/* Whether a datagram begins with a QUIC Initial packet. */
static __always_inline int is_initial(const __u8 *first, __u32 version)
{
	__u8 type = *first & QUIC_TYPE;

	if (!(*first & QUIC_LONG))
		return 0;
	return (version == QUIC_VERSION_1 && type == QUIC_INITIAL_1) ||
	       (version == QUIC_VERSION_2 && type == QUIC_INITIAL_2);
}

static __always_inline void hear_quic(struct __sk_buff *skb, struct packet *p,
				      const hearing_config *cfg)
{
	__u32 at = p->transport_at + UDP_HEADER, size = skb->gso_size;
	struct heard *heard;
	struct flow *flow;
	int initial;
	struct {
		__u8 first;
		__be32 version;
	} __attribute__((packed)) quic;

	if (load(skb, at, &quic))
		return;
	initial = is_initial(&quic.first, bpf_ntohl(quic.version));
	if (!initial && (skb->len < at + REQUEST_BYTES || is_silent(p, cfg)))
		return;
	heard = begin(p, 0);
	if (!heard)
		return;
	flow = find_flow(&heard->key, cfg);
	if (!initial) {
		if (flow)
			hear_sent(skb, heard, flow, at);
		return;
	}
	if (!flow) {
		heard->opened = bpf_ktime_get_ns();
		flow = open_flow(p, &heard->key, cfg, heard->opened, INITIALS_MAX);
		hear(skb, HEARD_OPENING, 0, at, 0);
	}
	if (!flow)
		return;
	heard->opened = flow->opened;
	if (!size)
		size = skb->len - at;
	for (int i = 0; i < PARTS_MAX; i++) {
		if (at >= skb->len || !flow->wanted)
			break;
		if (size > skb->len - at)
			size = skb->len - at;
		hear(skb, HEARD_DATAGRAM, 0, at, size);
		flow->wanted--;
		at += size;
	}
}

/* A DNS answer is heard only if its query was. */
static __always_inline void hear_query(struct __sk_buff *skb, struct packet *p,
				       const hearing_config *cfg)
{
	__u32 at = p->transport_at + UDP_HEADER;
	struct heard *heard;
	struct flow *flow;

	heard = skb->len > at ? begin(p, 0) : 0;
	if (!heard)
		return;
	flow = find_flow(&heard->key, cfg);
	if (!flow)
		flow = open_flow(p, &heard->key, cfg, 0, 0);
	if (!flow || flow->wanted >= QUERIES_MAX)
		return;
	flow->wanted++;
	heard->opened = flow->opened;
	hear(skb, HEARD_DNS, 0, at, skb->len - at);
}

/* Copies a DNS answer, if there is a query for it. See `hear`. */
HEARING int hear_answer(struct __sk_buff *skb, __u32 at)
{
	struct heard *heard;
	struct flow *flow;
	__u32 zero = 0;

	heard = bpf_map_lookup_elem(&heard_scratch, &zero);
	flow = heard ? bpf_map_lookup_elem(&flows, &heard->key) : 0;
	if (!flow || !flow->wanted || skb->len <= at)
		return 0;
	flow->wanted--;
	heard->opened = flow->opened;
	return hear(skb, HEARD_DNS, 0, at, skb->len - at);
}

/* Copies what a packet from this side says. */
static __always_inline void hear_packet(struct __sk_buff *skb, struct packet *p,
					const hearing_config *cfg)
{
	if (!p->has_ports || p->is_fragment)
		return;
	if (p->transport == IPPROTO_TCP)
		hear_tcp(skb, p, cfg);
	else if (p->port_destination == bpf_htons(PORT_DNS))
		hear_query(skb, p, cfg);
	else
		hear_quic(skb, p, cfg);
}

/* Copies a packet to this side, if it is a DNS answer. */
static __always_inline void hear_packet_back(struct __sk_buff *skb, const struct packet *p)
{
	if (p->transport == IPPROTO_UDP && p->has_ports && p->port_source == bpf_htons(PORT_DNS) &&
	    begin(p, 1))
		hear_answer(skb, p->transport_at + UDP_HEADER);
}

/*
 * A program that hears beginnings of flows. HEADER is the configuration's field with the length of
 * the device's header, IS_HEARD is a condition for the packet, and HEAR is the action on it.
 */
#define HEAR_PROGRAM(SECTION, NAME, HEADER, IS_HEARD, HEAR)                                    \
	SEC(SECTION)                                                                           \
	int NAME(struct __sk_buff *skb)                                                        \
	{                                                                                      \
		hearing_config *cfg;                                                           \
		struct frame frame;                                                            \
		struct packet p;                                                               \
		__u32 key = 0;                                                                 \
                                                                                               \
		cfg = bpf_map_lookup_elem(&config, &key);                                      \
		if (!cfg || !(cfg->features & FEATURE_SITES) || !(IS_HEARD))                   \
			return TC_ACT_UNSPEC;                                                  \
		if (read_skb(skb, &frame, &p, cfg->HEADER))                                    \
			HEAR;                                                                  \
		return TC_ACT_UNSPEC;                                                          \
	}
