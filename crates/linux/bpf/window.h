/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The bound of a socket's receive window. */
#pragma once

#define SOL_TCP 6
#define TCP_WINDOW_CLAMP 10
#define STATE_ESTABLISHED 1
#define STATE_FIN_WAIT1 4
#define STATE_FIN_WAIT2 5
/* The kernel takes no bound below half of the smallest buffer, which is about this. */
#define CLAMP_MIN 1280u
#define CLAMP_MAX (1u << 30)

/* Whether a socket in this state may still receive. */
static __always_inline int receives(__u8 state)
{
	return state == STATE_ESTABLISHED || state == STATE_FIN_WAIT1 || state == STATE_FIN_WAIT2;
}

static __always_inline int is_marked(__u32 clamp)
{
	return (clamp & CLAMP_MARK_MASK) == CLAMP_MARK;
}

static __always_inline int marked(__u32 window)
{
	if (window < CLAMP_MIN)
		window = CLAMP_MIN;
	if (window > CLAMP_MAX)
		window = CLAMP_MAX;
	return (window & ~CLAMP_MARK_MASK) | CLAMP_MARK;
}

/*
 * What an unbounded socket may have: all that its window scale can tell. The bound before
 * the first of ours would be too little, since the buffer may have grown meanwhile, and the kernel
 * raises a bound only when the buffer grows.
 */
static __always_inline int open_clamp(struct tcp_sock *tp)
{
	return 65535 << BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale);
}
