// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Finds the class of each arriving packet, counts it, and sends it through the class (HTB on an
 * ifb) while user space is alive and enforces. Otherwise the packet passes, and so does TCP while
 * its class does not limit it.
 * No packet is ever dropped or held here.
 *
 * The sockets tell which process a packet is for: when a process makes or connects a socket, its
 * executable, cgroups and user are stored with it; accepted sockets inherit them. A packet's socket
 * is looked up as the stack will do it a moment later. All policy is in the maps.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "protocols.h"
#include "kernel.h"
#include "maps.h"
#include "heartbeat.h"
#include "owner.h"
#include "packet.h"
#include "measure.h"
#include "rules.h"
#include "transit.h"
#include "site.h"
#include "connection.h"
#include "upload.h"
#include "tos.h"
#include "mark.h"


/* Set before loading: whether this kernel lets the program look at sockets and their owners. */
const volatile __u32 with_owners = 1;

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (!p->has_ports)
		return 0;
	if (p->family == AF_INET) {
		__builtin_memcpy(&tuple.ipv4.saddr, p->source, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, p->destination, 4);
		tuple.ipv4.sport = p->port_source;
		tuple.ipv4.dport = p->port_destination;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(&tuple.ipv6.saddr, p->source, 16);
		__builtin_memcpy(&tuple.ipv6.daddr, p->destination, 16);
		tuple.ipv6.sport = p->port_source;
		tuple.ipv6.dport = p->port_destination;
		size = sizeof(tuple.ipv6);
	}
	if (p->transport == IPPROTO_TCP)
		return bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

static __always_inline void account(struct talker *talker, const struct counter *amount)
{
	struct counter *total = bpf_map_lookup_elem(&census, talker);

	if (total) {
		__sync_fetch_and_add(&total->bytes, amount->bytes);
		__sync_fetch_and_add(&total->packets, amount->packets);
	} else {
		bpf_map_update_elem(&census, talker, amount, BPF_ANY);
	}
}

static __always_inline void count_owner(struct owner *owner, const struct counter *amount)
{
	struct talker talker = { .kind = TALKER_APP };

	__builtin_memcpy(&talker.value.app, &owner->app, sizeof(talker.value.app));
	account(&talker, amount);
	__builtin_memset(&talker, 0, sizeof(talker));
	talker.kind = TALKER_USER;
	talker.value.number = owner->uid;
	account(&talker, amount);
	talker.kind = TALKER_CGROUP;
	talker.value.number = owner->cgroups[0];
	account(&talker, amount);
}

static __always_inline void count_source(struct packet *p, const struct counter *amount)
{
	struct talker talker = {};

	if (p->family == AF_INET) {
		talker.kind = TALKER_PREFIX4;
		__builtin_memcpy(talker.value.address, p->source, 3);
	} else {
		talker.kind = TALKER_PREFIX6;
		__builtin_memcpy(talker.value.address, p->source, 6);
	}
	account(&talker, amount);
}

/* Whether this packet is to be timed, if it can be. */
static __always_inline int is_timed(struct packet *p, const struct config *cfg, struct counters *mine)
{
	if (p->transport != IPPROTO_TCP || !p->has_ports || ++mine->timeable < mine->due)
		return 0;
	mine->due = mine->timeable + cfg->time_every;
	return 1;
}

/* Times a packet of a connection that the iterator knows, if the stack will accept it. */
static __always_inline void time_socket(struct __sk_buff *skb, struct packet *p,
					struct bpf_sock *sk, struct counters *mine)
{
	struct connection *c;
	struct tcp_sock *tp;
	struct segment s;
	__u32 tsval, payload;
	__u64 now;

	if (read_segment(skb, p, &s, &tsval))
		return;
	c = bpf_sk_storage_get(&connections, sk, 0, 0);
	tp = c ? bpf_skc_to_tcp_sock(sk) : 0;
	if (!tp)
		return;
	now = bpf_ktime_get_ns();
	payload = skb->len - p->transport_at - (s.words >> 4) * 4;
	if (is_expected(tp, &s, payload, tsval, now) && is_intact(skb, p))
		time_packet(&c->transit, now, tsval);
	else
		/* The next packet is timed instead, so that a flood does not displace genuine packets. */
		mine->due = mine->timeable + 1;
}

/* What the packet's socket tells: the rule of its owner, and the transit time of the packet. */
static __always_inline __u32 socket_rule(struct __sk_buff *skb, struct packet *p,
					 const struct config *cfg, const struct counter *amount,
					 int timed, struct counters *mine)
{
	struct bpf_sock *sk = find_socket(skb, p);
	struct owner *owner = 0;
	__u32 rule = 0;

	if (!sk)
		return 0;
	if (timed)
		time_socket(skb, p, sk, mine);
	if (cfg->features & (FEATURE_OWNERS | FEATURE_CENSUS))
		owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	if (owner) {
		rule = resolve(owner, cfg->generation);
		if (cfg->features & FEATURE_CENSUS)
			count_owner(owner, amount);
	}
	bpf_sk_release(sk);
	return rule;
}

static __always_inline __u32 classify(struct __sk_buff *skb, struct packet *p,
				      const struct config *cfg, const struct counter *amount,
				      struct counters *mine)
{
	__u32 best = address_rule(p, cfg->features), rule;
	int timed = with_owners && cfg->features & FEATURE_TRANSIT && is_timed(p, cfg, mine);

	if (with_owners && (timed || cfg->features & (FEATURE_OWNERS | FEATURE_CENSUS))) {
		rule = socket_rule(skb, p, cfg, amount, timed, mine);
		if (rule > best)
			best = rule;
	}
	if (cfg->features & FEATURE_SITES) {
		rule = site_rule(skb, p, cfg);
		if (rule > best)
			best = rule;
	}
	if (cfg->features & FEATURE_CENSUS)
		count_source(p, amount);
	return best ? best & 0xffff : cfg->default_slot;
}

/* Whether the packet may pass without its class: see src/host/bypass.rs. */
static __always_inline int may_pass(const struct packet *p, __u32 slot, const struct counters *mine)
{
	struct allowances *allowed;
	struct spent *all;
	__u32 key = 0;

	if (p->transport != IPPROTO_TCP)
		return 0;
	allowed = bpf_map_lookup_elem(&allowances, &key);
	all = bpf_map_lookup_elem(&spent, &key);
	if (!allowed || !all || !allowed->until[slot] || all->slots[slot])
		return 0;
	if (mine->slots[slot].bytes <= allowed->until[slot])
		return 1;
	all->slots[slot] = 1;
	return 0;
}

/* The clock is read once per jiffy: reading it costs more than all other work for a packet. */
static __always_inline int in_control(const struct config *cfg, struct counters *mine)
{
	__u64 jiffy = bpf_jiffies64();

	if (mine->jiffy != jiffy || mine->heartbeat_ns != cfg->heartbeat_ns) {
		mine->stale = !is_alive(cfg);
		mine->jiffy = jiffy;
		mine->heartbeat_ns = cfg->heartbeat_ns;
	}
	return !mine->stale;
}

SEC("tcx/ingress")
int fairweir_ingress(struct __sk_buff *skb)
{
	struct frame frame;
	struct counter amount = {};
	struct counters *mine;
	struct packet p;
	struct config *cfg;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	mine = bpf_map_lookup_elem(&counters, &key);
	if (!cfg || !mine || skb->pkt_type == PACKET_OTHERHOST)
		return TC_ACT_UNSPEC;
	if (!read_skb(skb, &frame, &p, cfg->l2_header))
		return TC_ACT_UNSPEC;
	measure(skb, &frame, &p, cfg->l2_header, &amount);
	slot = classify(skb, &p, cfg, &amount, mine);
	if (slot >= SLOTS_MAX)
		return TC_ACT_UNSPEC;
	mine->slots[slot].bytes += amount.bytes;
	mine->slots[slot].packets += amount.packets;
	if (!cfg->enforce || may_pass(&p, slot, mine) || !in_control(cfg, mine))
		return TC_ACT_UNSPEC;
	/* The ifb takes only packets with an L2 header, which it removes before it returns them. */
	if (!cfg->l2_header && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return TC_ACT_UNSPEC;
	skb->priority = HTB_MAJOR | (slot + 1);
	return bpf_redirect(cfg->ifb, 0);
}

/* The class of a packet that leaves: by the rules for arriving packets, seen from the other end. */
static __always_inline __u32 classify_upload(struct __sk_buff *skb, const struct packet *p,
					     const struct config *cfg)
{
	struct packet answer = *p;
	struct owner *owner = 0;
	__u32 best, rule;

	__builtin_memcpy(answer.source, p->destination, 16);
	__builtin_memcpy(answer.destination, p->source, 16);
	answer.port_source = p->port_destination;
	answer.port_destination = p->port_source;
	best = address_rule(&answer, cfg->features);
	if (with_owners && cfg->features & FEATURE_OWNERS && skb->sk)
		owner = bpf_sk_storage_get(&owners, skb->sk, 0, 0);
	if (owner) {
		rule = resolve(owner, cfg->generation);
		if (rule > best)
			best = rule;
	}
	if (cfg->features & FEATURE_SITES && p->has_ports) {
		rule = bound_rule(p, cfg, 0);
		if (rule > best)
			best = rule;
	}
	return best ? best & 0xffff : cfg->default_slot;
}

SEC("tcx/egress")
int fairweir_upload(struct __sk_buff *skb)
{
	struct counter amount = {};
	__u32 first;
	struct config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || !read_skb(skb, &frame, &p, cfg->l2_header))
		return TC_ACT_UNSPEC;
	measure(skb, &frame, &p, cfg->l2_header, &amount);
	first = goes_first(skb, &p);
	leave(skb, &amount, first, classify_upload(skb, &p, cfg),
	      cfg->features & FEATURE_UPLOAD && is_alive(cfg));
	return TC_ACT_UNSPEC;
}

SEC("tcx/egress")
int fairweir_mark(struct __sk_buff *skb)
{
	struct tos_change tos = {};
	struct config *cfg;
	struct marks *of;
	struct frame frame;
	struct packet p;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	of = bpf_map_lookup_elem(&marks, &key);
	if (!cfg || !of || !(cfg->features & FEATURE_CLASS_MARKS) || !is_alive(cfg))
		return TC_ACT_UNSPEC;
	if (!read_skb(skb, &frame, &p, cfg->l2_header) || p.tos & TOS_DSCP)
		return TC_ACT_UNSPEC;
	slot = classify_upload(skb, &p, cfg);
	if (slot >= SLOTS_MAX)
		return TC_ACT_UNSPEC;
	/* The same number, in a form in which the verifier sees its bounds. */
	asm volatile("" : "+r"(slot));
	tos.set = of->slots[slot & (SLOTS_MAX - 1)] << 2;
	if (tos.set && takes_mark(skb, &p, tos.set))
		change_tos_skb(skb, &p, tos);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
