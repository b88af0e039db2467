/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP connections: what each received, and how far its receive window may open.
 *
 * A connection is known from its opening, or from the first pass of `fairweir_bound` that meets it.
 * `fairweir_bound` walks all connections of the network namespace in which it was opened, each
 * under its lock; only there may a bound be set. It takes some milliseconds even for few
 * connections: the kernel's table is large. `fairweir_watch` walks only known connections, so it
 * costs little; `fairweir_watch_all` walks all, where the kernel refuses to walk only those.
 *
 * A bounded window is never shrunk from the right: the kernel keeps the right edge, so the window
 * shrinks as packets arrive. The kernel raises a bound when the buffer grows. `fairweir_open` sets it
 * again with the next packet that the connection sends. Where the kernel does not call `fairweir_open`,
 * the record for user space shows the raised bound, and the next pass sets it again.
 */
#pragma once

#include "slot.h"
#include "window.h"
#include "expire.h"

/* Whether the connection receives through the device or, before anything has arrived, sends through it. */
static __always_inline int is_through(struct tcp_sock *tp, const struct config *cfg)
{
	struct sock *sk = (struct sock *)tp;
	int device = sk->sk_rx_dst_ifindex;

	if (!device)
		device = BPF_CORE_READ(sk, sk_dst_cache, dev, ifindex);
	return device == (int)cfg->device;
}

/* Bounds what is under way to the socket; 0 lifts a bound that fairweir set. */
static __always_inline void bound_under_way(void *ctx_or_sk, struct tcp_sock *tp, struct connection *c,
					    __u32 window)
{
	c->behind = window ? behind_hole(tp) : 0;
	bound(ctx_or_sk, tp, window + c->behind);
}

/* The class of the connection, the same as of its packets. `*number` is the number of the flow's
 * evidence if that decides, else 0. */
static __always_inline __u32 find_slot(struct tcp_sock *tp, const struct config *cfg, __u64 *number)
{
	struct packet p = {};
	__u64 of_flow = 0;
	__u32 best = rule_of(tp, cfg, &p), rule;

	*number = 0;
	if (cfg->features & FEATURE_SITES) {
		rule = flow_rule(&p, cfg, &of_flow);
		if (rule >= best) {
			best = rule;
			*number = of_flow;
		}
	}
	return best ? best & 0xffff : cfg->default_slot;
}

/* The bound for a connection that user space has not seen yet; 0 is free. */
static __always_inline __u32 initial_window(__u32 slot)
{
	struct initial_windows *initial;
	__u32 key = 0;

	initial = bpf_map_lookup_elem(&initial_windows, &key);
	/* Slots are below this anyway; the verifier does not know. */
	return initial ? initial->slots[slot & (SLOTS_MAX - 1)] : 0;
}

/* Segments with payload that arrived behind a hole; 0 where the kernel does not count them. */
static __always_inline __u32 holes_of(struct tcp_sock *tp)
{
	return bpf_core_field_exists(tp->rcv_ooopack) ? tp->rcv_ooopack : 0;
}

/* The least round-trip time of what this end sent, its opening among it, in us; 0 if there is none yet. */
static __always_inline __u32 rtt_sent_of(struct tcp_sock *tp)
{
	__u32 us = tp->rtt_min.s[0].v;

	return us == ~0u ? 0 : us;
}

/* The record of the connection, which is created if there is none. */
static __always_inline struct connection *know(struct tcp_sock *tp, __u32 baseline)
{
	struct connection *c = bpf_sk_storage_get(&connections, tp, 0, 0);

	if (c)
		return c;
	c = bpf_sk_storage_get(&connections, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (c && baseline) {
		c->received = tp->bytes_received;
		c->segs_in = tp->data_segs_in;
		c->segs_out = tp->data_segs_out;
		c->holes = holes_of(tp);
	}
	return c;
}

/* Reports the connection to user space; if there is no room the kernel calls again. */
static __always_inline void tell(struct seq_file *seq, struct tcp_sock *tp, struct connection *c,
				 __u64 cookie)
{
	struct sock_common *sk = (struct sock_common *)tp;
	/* What was added to a bound that is lifted meanwhile does not count. */
	__u32 behind = is_bounded(tp) ? c->behind : 0;
	struct connection_record record = {
		.cookie = cookie,
		.received = tp->bytes_received - c->received,
		.transit_min = c->transit.min,
		.transit_sum = c->transit.sum,
		.transit_samples = c->transit.samples,
		.segs_in = tp->data_segs_in - c->segs_in,
		.segs_out = tp->data_segs_out - c->segs_out,
		.rtt_us = tp->rcv_rtt_est.rtt_us >> 3,
		.rcv_wnd = tp->rcv_wnd > behind ? tp->rcv_wnd - behind : 0,
		.window_clamp = told_clamp(tp) - behind,
		.rcv_mss = tp->inet_conn.icsk_ack.rcv_mss,
		.slot = c->slot,
		.port_remote = bpf_ntohs(sk->skc_dport),
		.rcv_wscale = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale),
		.state = sk->skc_state,
		.holes = holes_of(tp) - c->holes,
		.rtt_sent_us = rtt_sent_of(tp),
		.number = c->number,
	};

	if (bpf_seq_write(seq, &record, sizeof(record)))
		return;
	c->received += record.received;
	c->segs_in += record.segs_in;
	c->segs_out += record.segs_out;
	c->holes += record.holes;
	c->observed = 1;
	/* A packet that the classifier times meanwhile may be lost or counted twice; both are harmless. */
	c->transit.samples = 0;
	c->transit.sum = 0;
}

/* The bound that user space wants for the connection; null if there is none. */
static __always_inline __u32 *find_window(const struct config *cfg, __u64 cookie)
{
	return cfg->features & FEATURE_WINDOWS ? bpf_map_lookup_elem(&windows, &cookie) : 0;
}

static __always_inline void update_slot(struct connection *c, struct tcp_sock *tp,
					const struct config *cfg)
{
	c->slot = find_slot(tp, cfg, &c->number);
	c->generation = cfg->generation;
}

/* Reports what a known connection received. */
static __always_inline int watch(struct seq_file *seq, struct tcp_sock *tp, struct connection *c)
{
	struct config *cfg;
	__u64 cookie;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || !is_through(tp, cfg))
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	if (c->received == tp->bytes_received && !find_window(cfg, cookie))
		return 0;
	update_slot(c, tp, cfg);
	tell(seq, tp, c, cookie);
	return 0;
}

/* Reports what each known connection received. */
SEC("iter/bpf_sk_storage_map")
int fairweir_watch(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct connection *c = ctx->value;
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;

	if (!sk || !c || !receives(sk->__sk_common.skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	return tp ? watch(ctx->meta->seq, tp, c) : 0;
}

/* As fairweir_watch, by a walk over all connections of the namespace, where the kernel refuses to walk a map. */
SEC("iter/tcp")
int fairweir_watch_all(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct connection *c;
	struct tcp_sock *tp;

	if (!sk || !receives(sk->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	c = bpf_sk_storage_get(&connections, tp, 0, 0);
	return c ? watch(ctx->meta->seq, tp, c) : 0;
}

/* Creates records of connections, and sets the bounds of their windows as user space wants them. */
SEC("iter/tcp")
int fairweir_bound(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct connection *c;
	struct config *cfg;
	struct tcp_sock *tp;
	__u32 key = 0, window = 0, *wanted;

	if (!sk || !receives(sk->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	cfg = bpf_map_lookup_elem(&config, &key);
	if (!tp || !cfg || !is_through(tp, cfg))
		return 0;
	c = know(tp, cfg->baseline);
	if (!c)
		return 0;
	wanted = find_window(cfg, bpf_get_socket_cookie(tp));
	if (wanted) {
		window = *wanted;
	} else if (cfg->features & FEATURE_WINDOWS && !c->observed) {
		if (c->generation != cfg->generation)
			update_slot(c, tp, cfg);
		window = initial_window(c->slot);
	}
	bound_under_way(tp, tp, c, window);
	c->window = window;
	if (window)
		hold(tp, c);
	else
		let_go(tp, c);
	return 0;
}

/* The connection's bound while user space is alive; 0 is free. The initial bound lasts until the
 * first pass after user space has seen the connection. */
static __always_inline __u32 window_of(const struct config *cfg, struct connection *c)
{
	if (!(cfg->features & FEATURE_WINDOWS) || !is_alive(cfg))
		return 0;
	if (!c->observed)
		c->window = initial_window(c->slot);
	return c->window;
}

/* A connection opens through the device: creates its record, and bounds it. */
static __always_inline void open_connection(struct bpf_sock_ops *ctx, struct tcp_sock *tp,
					    const struct config *cfg)
{
	struct connection *c;
	__u32 window;

	if (!is_through(tp, cfg) || ((struct sock_common *)tp)->skc_net.net->net_cookie != cfg->netns)
		return;
	c = know(tp, 0);
	if (!c)
		return;
	update_slot(c, tp, cfg);
	window = window_of(cfg, c);
	if (!window)
		return;
	bound(ctx, tp, window);
	hold_opening(ctx, c);
}

/*
 * A connection opens: its window must not fill the access link before user space has seen it. The
 * kernel raises a bound with the first data and later, so the callback for header options sets it
 * again with each sent packet: between two ticks slow start would fill a queue.
 */
SEC("sockops")
int fairweir_open(struct bpf_sock_ops *ctx)
{
	int opens = ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
		    ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
	struct connection *c;
	struct config *cfg;
	struct tcp_sock *tp;
	__u32 window;

	if (!opens && ctx->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		return 1;
	tp = socket_of(ctx, &cfg);
	if (!tp)
		return 1;
	if (opens) {
		open_connection(ctx, tp, cfg);
		return 1;
	}
	c = bpf_sk_storage_get(&connections, tp, 0, 0);
	if (!c)
		return 1;
	if (!c->is_held) {
		end_callbacks(ctx, c);
		return 1;
	}
	window = window_of(cfg, c);
	if (window)
		bound_under_way(ctx, tp, c, window);
	return 1;
}
