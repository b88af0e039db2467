/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Bounds of receive windows that expire.
 *
 * Problem: a bound is a property of the socket, so it outlives the process that set it. A second
 * process lifts the bounds if the first is killed, but both can be killed together.
 *
 * Method: `fairweir_expire` is attached to the root cgroup without a link, so it stays attached
 * when the process that loaded it ends. The kernel calls it for each packet that a bounded
 * connection sends (the callback for TCP header options). When the heartbeat is stale, it lifts the
 * bound and ends the callbacks. A receiver sends an ACK for every other packet, so a bound expires
 * within HEARTBEAT_MAX_NS and one round trip.
 *
 * Properties: a program lifts only bounds of the process that loaded it, since `connections` is
 * that process's own, and each only once. So a program that a dead process left behind does not
 * disturb a daemon that starts later.
 *
 * fairweir_open sets the callback for a connection that opens; the iterator, which needs Linux
 * 6.12, for one that is open already.
 */
#pragma once

#include "window.h"

/* bpf_setsockopt of Linux 6.12. Source: include/uapi/linux/bpf.h. */
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008

/* Sets the socket's bound to `window`; 0 lifts a bound that fairweir set. */
static __always_inline void bound(void *ctx_or_sk, struct tcp_sock *tp, __u32 window)
{
	__u32 clamp = tp->window_clamp;
	int wanted;

	if (!window && !is_bounded(tp))
		return;
	wanted = window ? marked(window) : open_clamp(tp);
	if ((__u32)wanted != clamp)
		bpf_setsockopt(ctx_or_sk, SOL_TCP, TCP_WINDOW_CLAMP, &wanted, sizeof(wanted));
}

/* Makes the bound of a connection expire. For iterators. */
static __always_inline void hold(struct tcp_sock *tp, struct connection *c)
{
	int flags = tp->bpf_sock_ops_cb_flags;

	c->is_held = 1;
	if (flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		return;
	flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (!bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		c->owns_callback = 1;
}

/* As hold, for a connection that opens. */
static __always_inline void hold_opening(struct bpf_sock_ops *ctx, struct connection *c)
{
	int flags = ctx->bpf_sock_ops_cb_flags;

	c->is_held = 1;
	if (flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		return;
	if (!bpf_sock_ops_cb_flags_set(ctx, flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		c->owns_callback = 1;
}

/* Ends the callbacks of a connection that is no longer bounded. For iterators; where the kernel is
 * too old for that, end_callbacks does it with the next packet. */
static __always_inline void let_go(struct tcp_sock *tp, struct connection *c)
{
	int flags = tp->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;

	c->is_held = 0;
	if (!c->owns_callback)
		return;
	if (!bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		c->owns_callback = 0;
}

static __always_inline void end_callbacks(struct bpf_sock_ops *ctx, struct connection *c)
{
	if (!c->owns_callback)
		return;
	c->owns_callback = 0;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* The socket of a sock_ops program and its configuration; null if one of them is missing. */
static __always_inline struct tcp_sock *socket_of(struct bpf_sock_ops *ctx, struct config **cfg)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 key = 0;

	*cfg = bpf_map_lookup_elem(&config, &key);
	if (!sk || !*cfg)
		return 0;
	return bpf_skc_to_tcp_sock(sk);
}

/* Uses only the maps `config` and `connections`, since the maps that it uses live as long as it does. */
SEC("sockops")
int fairweir_expire(struct bpf_sock_ops *ctx)
{
	struct connection *c;
	struct config *cfg;
	struct tcp_sock *tp;

	if (ctx->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		return 1;
	tp = socket_of(ctx, &cfg);
	if (!tp)
		return 1;
	c = bpf_sk_storage_get(&connections, tp, 0, 0);
	if (!c || (c->is_held && is_alive(cfg)))
		return 1;
	if (c->is_held)
		bound(ctx, tp, 0);
	c->is_held = 0;
	end_callbacks(ctx, c);
	return 1;
}
