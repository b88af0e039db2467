// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lifts the bounds of receive windows that a killed process left, in the network namespace in which
 * the iterator is opened. Writes a byte for each lifted bound.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "kernel.h"
#include "window.h"

SEC("iter/tcp")
int fairweir_lift(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;
	__u8 lifted = 1;
	int open;

	if (!common || !receives(common->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp || !is_bounded(tp))
		return 0;
	open = open_clamp(tp);
	if (!bpf_setsockopt(tp, SOL_TCP, TCP_WINDOW_CLAMP, &open, sizeof(open)))
		bpf_seq_write(ctx->meta->seq, &lifted, sizeof(lifted));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
