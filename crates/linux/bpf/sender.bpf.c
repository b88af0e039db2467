// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Congestion controls whose connections answer each other's congestion signals.
 *
 * `fw_reno` and `fw_cubic` call the kernel's own reno and cubic, with three additions: other
 * connections may answer a signal (this window then stays, and theirs are reduced); the reduction
 * that a connection owes to others is applied at its next ACK; and user space is told the window
 * and round-trip time. A program cannot write to another socket, so what a connection owes is kept
 * in its place in `members` until its next ACK.
 *
 * Without user space no signal is delegated, and each connection returns at its next ACK to its
 * previous congestion control.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "abi.h"
#include "protocols.h"
#include "kernel.h"
#include "maps.h"
#include "heartbeat.h"
#include "owner.h"
#include "packet.h"
#include "rules.h"
#include "slot.h"
#include "sender_abi.h"
#include "sender_decide.h"

#define SOL_TCP 6
#define TCP_CONGESTION 13
#define CA_RECOVERY 3
#define CA_LOSS 4
#define CA_CWR 2
#define STATE_ESTABLISHED 1
#define STATE_FIN_WAIT1 4
#define STATE_CLOSE_WAIT 8
#define STATE_LAST_ACK 9
#define STATE_CLOSING 11
#define ETHERNET_HEADER 14

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
} __attribute__((preserve_access_index));
enum tcp_ca_event { CA_EVENT_TX_START };

/* The kernel's own functions. */
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern void cubictcp_init(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;

/* Which place each connection is to have, by the socket's cookie: written by user space, read by
 * fairweir_enlist. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MEMBERS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct place);
} places SEC(".maps");

/* The place that a connection has, and its previous congestion control; written by fairweir_enlist,
 * removed when the connection leaves the congestion control. */
struct enlisted {
	__u64 cookie;
	__u32 member;
	__u32 is_spared; /* its last signal was answered by others */
	char had[CC_NAME_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct enlisted);
} enlisted SEC(".maps");

static __always_inline struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline __u8 ca_state(struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
}

/* The connection's member, if user space is alive and wants the connection to be a member. */
static __always_inline struct member *member_of(struct sock *sk, struct enlisted **e)
{
	__u32 index;

	*e = bpf_sk_storage_get(&enlisted, sk, 0, 0);
	if (!*e)
		return 0;
	index = (*e)->member;
	return bpf_map_lookup_elem(&members, &index);
}

static __always_inline int is_in_force(void)
{
	__u32 key = 0;
	struct config *cfg = bpf_map_lookup_elem(&config, &key);

	return cfg && cfg->enforce && is_alive(cfg);
}

/* Samples the values for user space and for judging signals. */
static __always_inline void sample(struct tcp_sock *tp, struct member *m, __u32 cwnd_cut, __u8 state)
{
	__u32 rtt_us = tp->srtt_us >> 3, delivered = tp->delivered, cwnd = tp->snd_cwnd;
	__u32 ip_header = tp->inet_conn.icsk_inet.sk.__sk_common.skc_family == AF_INET ? 20 : 40;
	__u32 packet = tp->mss_cache + tp->tcp_header_len + ip_header + ETHERNET_HEADER;

	m->cwnd = cwnd < CWND_MAX ? cwnd : CWND_MAX;
	m->cwnd_cut = cwnd_cut < m->cwnd ? cwnd_cut : m->cwnd;
	m->packet = packet & 0x1ffff;
	m->rtt_us = rtt_us < RTT_US_MAX ? rtt_us : RTT_US_MAX;
	m->delivered += (__u64)(delivered - m->delivered_seen) * m->packet;
	m->delivered_seen = delivered;
	if (state >= CA_CWR)
		m->phase = PHASE_RECOVERY;
	else
		m->phase = cwnd < tp->snd_ssthresh ? PHASE_SLOW_START : PHASE_AVOIDANCE;
}

/* Handles an ACK: records its time, and the round-trip time of its newest packet. */
static __always_inline void hear(struct tcp_sock *tp, struct member *m,
				 const struct ack_sample *sample)
{
	__s32 rtt_us = sample->rtt_us;

	m->heard_us = tp->tcp_mstamp;
	if (rtt_us <= 0)
		return;
	m->rtts_us += rtt_us;
	m->rtt_count++;
}

/* The window after the reduction that the connection owes to others; 0 if it owes nothing. */
static __always_inline __u32 owed(struct tcp_sock *tp, struct member *m, const struct enlisted *e)
{
	__u32 index = e->member;
	struct order *o;

	if (!m->debt || ca_state(tp) >= CA_CWR)
		return 0;
	o = bpf_map_lookup_elem(&orders, &index);
	return o ? take_cut(m, o, bpf_ktime_get_ns()) : 0;
}

static __always_inline void cut_to(struct tcp_sock *tp, __u32 cwnd)
{
	/* Since the last ACK the kernel may have reduced the window. */
	if (cwnd > tp->snd_cwnd)
		cwnd = tp->snd_cwnd;
	tp->snd_cwnd = cwnd;
	tp->snd_ssthresh = cwnd;
	tp->snd_cwnd_cnt = 0;
}

/* Restores the previous congestion control; if that no longer exists, reno, which every kernel has. */
static __always_inline void return_to(void *sk, const struct enlisted *e)
{
	char had[CC_NAME_BYTES], reno[CC_NAME_BYTES] = "reno";

	__builtin_memcpy(had, e->had, sizeof(had));
	if (bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, had, sizeof(had)))
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
}

static __always_inline void begin(struct sock *sk)
{
	struct enlisted *e;
	struct member *m = member_of(sk, &e);
	struct tcp_sock *tp = tcp_sk(sk);

	if (!m || !e)
		return;
	__builtin_memset(m, 0, sizeof(*m));
	m->delivered_seen = tp->delivered;
	m->cookie = e->cookie;
}

static __always_inline void end(struct sock *sk)
{
	struct enlisted *e;
	struct member *m = member_of(sk, &e);

	if (m)
		m->cookie = 0;
	if (e)
		bpf_sk_storage_delete(&enlisted, sk);
}

/* No timer is pending in the retransmission timer's function; during an ACK for data in flight, one is. */
static __always_inline int is_timeout(struct tcp_sock *tp)
{
	return !tp->inet_conn.icsk_pending;
}

/* Handles a signal: returns the remaining window, or 0 if the connection cuts as it would without the bundle. */
static __always_inline __u32 signal(struct sock *sk, __u32 cwnd_cut)
{
	struct enlisted *e;
	struct member *m = member_of(sk, &e);
	__u32 left;

	if (!m || !e || !is_in_force())
		return 0;
	sample(tcp_sk(sk), m, cwnd_cut, 0);
	left = handle_signal(e->member, bpf_ktime_get_ns(), is_timeout(tcp_sk(sk)));
	e->is_spared = left && left == m->cwnd;
	return left;
}

static __always_inline __u32 reno_cut(__u32 cwnd)
{
	return cwnd / 2 > WINDOW_MIN ? cwnd / 2 : WINDOW_MIN;
}

/* Uses the kernel's default β; on a host with another β the reported cuts are slightly wrong. */
static __always_inline __u32 cubic_cut(__u32 cwnd)
{
	__u32 cut = cwnd * 717 / 1024;

	return cut > WINDOW_MIN ? cut : WINDOW_MIN;
}

/*
 * Corrects the window after a signal, before the kernel uses it: it is at most the connection's
 * previous window, and an undone reduction restores at most that. On Linux 6.18 the kernel now and
 * then uses the low half of an address instead of the program's result, so the window has no bound.
 * The connection then answers such a signal itself.
 */
static __always_inline void mend(struct tcp_sock *tp, struct member *m, __u32 cut)
{
	__u32 had = tp->prior_cwnd > m->cwnd ? tp->prior_cwnd : m->cwnd;

	if (ca_state(tp) >= CA_CWR && tp->snd_ssthresh > tp->prior_cwnd &&
	    tp->snd_ssthresh > WINDOW_MIN) {
		tp->snd_ssthresh = cut;
		m->signals++;
		m->taken++;
		m->mended++;
	}
	if (m->rtt_us && tp->snd_cwnd > 2 * had)
		tp->snd_cwnd = m->cwnd;
}

/*
 * The common code of the congestion controls. CUT is the window that the connection's own control
 * would leave; the others are calls of the kernel's functions: INIT at the beginning, PAY before a
 * cut for others, AVOID at every other ACK, STATE and ACKED after the bundle's own work.
 */
#define CONTROL(NAME, CUT, INIT, PAY, AVOID, STATE, ACKED)                                     \
	SEC("struct_ops")                                                                      \
	void BPF_PROG(NAME##_init, struct sock *sk)                                            \
	{                                                                                      \
		begin(sk);                                                                     \
		INIT;                                                                          \
	}                                                                                      \
                                                                                               \
	SEC("struct_ops")                                                                      \
	void BPF_PROG(NAME##_release, struct sock *sk)                                         \
	{                                                                                      \
		end(sk);                                                                       \
	}                                                                                      \
                                                                                               \
	SEC("struct_ops")                                                                      \
	__u32 BPF_PROG(NAME##_undo, struct sock *sk)                                           \
	{                                                                                      \
		return tcp_reno_undo_cwnd(sk);                                                 \
	}                                                                                      \
                                                                                               \
	SEC("struct_ops")                                                                      \
	void BPF_PROG(NAME##_avoid, struct sock *sk, __u32 ack, __u32 acked)                   \
	{                                                                                      \
		struct tcp_sock *tp = tcp_sk(sk);                                              \
		struct enlisted *e;                                                            \
		struct member *m = member_of(sk, &e);                                          \
		__u32 cut = m && e ? owed(tp, m, e) : 0;                                       \
                                                                                               \
		if (cut) {                                                                     \
			PAY;                                                                   \
			cut_to(tp, cut);                                                       \
		} else {                                                                       \
			AVOID;                                                                 \
		}                                                                              \
		if (!m || !e)                                                                  \
			return;                                                                \
		sample(tp, m, CUT(tp->snd_cwnd), ca_state(tp));                                \
		if (!is_in_force())                                                            \
			return_to(sk, e);                                                      \
	}                                                                                      \
                                                                                               \
	SEC("struct_ops")                                                                      \
	void BPF_PROG(NAME##_state, struct sock *sk, __u8 state)                               \
	{                                                                                      \
		struct enlisted *e;                                                            \
		struct member *m = member_of(sk, &e);                                          \
                                                                                               \
		if (m)                                                                         \
			sample(tcp_sk(sk), m, CUT(tcp_sk(sk)->snd_cwnd), state);               \
		STATE;                                                                         \
	}                                                                                      \
                                                                                               \
	SEC("struct_ops")                                                                      \
	void BPF_PROG(NAME##_acked, struct sock *sk, const struct ack_sample *sample)          \
	{                                                                                      \
		struct enlisted *e;                                                            \
		struct member *m = member_of(sk, &e);                                          \
                                                                                               \
		if (m) {                                                                       \
			hear(tcp_sk(sk), m, sample);                                           \
			mend(tcp_sk(sk), m, CUT(tcp_sk(sk)->prior_cwnd));                      \
		}                                                                              \
		ACKED;                                                                         \
	}

/* After a timeout cubic resets its state, unless other connections answer for it. */
static __always_inline void tell_cubic(struct sock *sk, const struct enlisted *e, __u8 state)
{
	if (!e || !e->is_spared || state != CA_LOSS)
		cubictcp_state(sk, state);
}

CONTROL(reno, reno_cut, , , tcp_reno_cong_avoid(sk, ack, acked), , )
CONTROL(cubic, cubic_cut, cubictcp_init(sk), cubictcp_recalc_ssthresh(sk),
	cubictcp_cong_avoid(sk, ack, acked), tell_cubic(sk, e, state), cubictcp_acked(sk, sample))

SEC("struct_ops")
__u32 BPF_PROG(reno_ssthresh, struct sock *sk)
{
	__u32 left = signal(sk, reno_cut(tcp_sk(sk)->snd_cwnd));

	return left ? left : tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(cubic_ssthresh, struct sock *sk)
{
	__u32 cwnd = tcp_sk(sk)->snd_cwnd, left = signal(sk, cubic_cut(cwnd)), own;

	/* A signal that others answer begins no epoch. */
	if (left && left >= cwnd)
		return left;
	own = cubictcp_recalc_ssthresh(sk);
	return left ? left : own;
}

SEC("struct_ops")
void BPF_PROG(cubic_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

/* A copy of the kernel's structure; the loader finds the true offsets by the names. */
struct tcp_congestion_ops {
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[CC_NAME_BYTES];
};

/* User space chooses other names if these are taken. */
SEC(".struct_ops.link")
struct tcp_congestion_ops fw_reno = {
	.init = (void *)reno_init,
	.release = (void *)reno_release,
	.ssthresh = (void *)reno_ssthresh,
	.cong_avoid = (void *)reno_avoid,
	.set_state = (void *)reno_state,
	.pkts_acked = (void *)reno_acked,
	.undo_cwnd = (void *)reno_undo,
	.name = "fw_reno",
};

SEC(".struct_ops.link")
struct tcp_congestion_ops fw_cubic = {
	.init = (void *)cubic_init,
	.release = (void *)cubic_release,
	.ssthresh = (void *)cubic_ssthresh,
	.cong_avoid = (void *)cubic_avoid,
	.set_state = (void *)cubic_state,
	.cwnd_event = (void *)cubic_event,
	.pkts_acked = (void *)cubic_acked,
	.undo_cwnd = (void *)cubic_undo,
	.name = "fw_cubic",
};

/* Whether a socket in this state may still send. */
static __always_inline int sends(__u8 state)
{
	return state == STATE_ESTABLISHED || state == STATE_FIN_WAIT1 || state == STATE_CLOSE_WAIT ||
	       state == STATE_LAST_ACK || state == STATE_CLOSING;
}

/* Reports each connection that a rule names to user space. */
SEC("iter/tcp")
int fairweir_roles(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct role_record record = {};
	struct packet p = {};
	struct config *cfg;
	struct tcp_sock *tp;
	__u32 key = 0, rule, slot;

	if (!sk || !sends(sk->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	cfg = bpf_map_lookup_elem(&config, &key);
	if (!tp || !cfg)
		return 0;
	rule = rule_of(tp, cfg, &p);
	slot = rule & 0xffff;
	if (!rule || slot == cfg->default_slot)
		return 0;
	record.cookie = bpf_get_socket_cookie(tp);
	__builtin_memcpy(record.remote, p.source, sizeof(record.remote));
	BPF_CORE_READ_STR_INTO(&record.name, tp, inet_conn.icsk_ca_ops, name);
	record.slot = slot;
	record.is_ipv6 = p.family == AF_INET6;
	record.port_remote = bpf_ntohs(p.port_source);
	record.port_local = bpf_ntohs(p.port_destination);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

/* Gives the congestion controls to the connections that have a place, and takes them from all
 * others; writes a byte for each. */
SEC("iter/tcp")
int fairweir_enlist(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	__u8 switched = 1;
	struct enlisted *e, fresh = {};
	struct place *place;
	struct config *cfg;
	struct tcp_sock *tp;
	__u32 key = 0;
	__u64 cookie;
	char name[CC_NAME_BYTES];

	if (!sk || !sends(sk->skc_state))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	cfg = bpf_map_lookup_elem(&config, &key);
	if (!tp || !cfg)
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	place = cfg->enforce ? bpf_map_lookup_elem(&places, &cookie) : 0;
	e = bpf_sk_storage_get(&enlisted, tp, 0, 0);
	if (e && !place) {
		return_to(tp, e);
		bpf_seq_write(ctx->meta->seq, &switched, sizeof(switched));
		return 0;
	}
	if (e || !place)
		return 0;
	fresh.cookie = cookie;
	fresh.member = place->member;
	BPF_CORE_READ_STR_INTO(&fresh.had, tp, inet_conn.icsk_ca_ops, name);
	if (!bpf_sk_storage_get(&enlisted, tp, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	__builtin_memcpy(name, place->name, sizeof(name));
	if (bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name))) {
		bpf_sk_storage_delete(&enlisted, tp);
		return 0;
	}
	bpf_seq_write(ctx->meta->seq, &switched, sizeof(switched));
	return 0;
}

/* For tests: what the programs decide on an event given by a test. */
SEC("syscall")
int fairweir_replay(struct replay *event)
{
	__u32 index = event->member;
	struct member *m = bpf_map_lookup_elem(&members, &index);
	struct order *o = bpf_map_lookup_elem(&orders, &index);

	if (!m || !o)
		return 1;
	if (event->event == EVENT_SAMPLE) {
		m->cookie = 1;
		m->cwnd = event->cwnd & (CWND_MAX - 1);
		m->cwnd_cut = event->cwnd_cut;
		m->packet = event->packet & 0xffff;
		m->rtt_us = event->rtt_us & (RTT_US_MAX - 1);
		m->phase = event->phase;
		if (m->delivered < event->delivered)
			m->heard_us = event->now_ns / 1000;
		m->delivered = event->delivered;
		return 0;
	}
	if (event->event == EVENT_SIGNAL || event->event == EVENT_TIMEOUT)
		event->answer = handle_signal(index, event->now_ns, event->event == EVENT_TIMEOUT);
	else
		event->answer = take_cut(m, o, event->now_ns);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
