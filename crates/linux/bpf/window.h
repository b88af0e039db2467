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

/* Whether the kernel has set the socket's bound by its buffer; one in 128 such bounds has the mark
 * by chance. A connection begins with room for one segment less. Source: tcp_win_from_space and
 * tcp_init_buffer_space of Linux. */
static __always_inline int is_by_buffer(struct tcp_sock *tp)
{
	__u32 full;

	if (!bpf_core_field_exists(tp->scaling_ratio))
		return 0;
	full = (__s64)((struct sock *)tp)->sk_rcvbuf * tp->scaling_ratio >> 8;
	return tp->window_clamp == full || tp->window_clamp == full - tp->advmss;
}

/* Whether fairweir has set the socket's bound. */
static __always_inline int is_bounded(struct tcp_sock *tp)
{
	return is_marked(tp->window_clamp) && !is_by_buffer(tp);
}

/* The socket's bound as it is reported: it has the mark only if fairweir has set it. */
static __always_inline __u32 told_clamp(struct tcp_sock *tp)
{
	__u32 clamp = tp->window_clamp;

	return is_marked(clamp) && !is_bounded(tp) ? clamp - 1 : clamp;
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
 * The sequence numbers from a hole to the newest segment; 0 if there is no hole. A window counts
 * from the first missing byte, so with a bound of one round trip's data each lost packet would stop
 * the sender until it is repaired. A bound that is larger by this limits what is under way, and a
 * sender that leaves a hole open gains nothing. A multiple of the mark's range.
 */
static __always_inline __u32 behind_hole(struct tcp_sock *tp)
{
	struct tcp_skb_cb *last;
	__u32 behind;

	if (!tp->out_of_order_queue.rb_node)
		return 0;
	last = (struct tcp_skb_cb *)tp->ooo_last_skb->cb;
	behind = BPF_CORE_READ(last, end_seq) - tp->rcv_nxt;
	return behind < CLAMP_MAX / 2 ? (behind + CLAMP_MARK_MASK) & ~CLAMP_MARK_MASK : 0;
}

/*
 * The bound of a socket without a limit: the largest window that its scale can express. The bound
 * before fairweir's first one would be too small, since the buffer may have grown meanwhile, and
 * the kernel raises a bound only when the buffer grows.
 */
static __always_inline int open_clamp(struct tcp_sock *tp)
{
	return 65535 << BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale);
}
