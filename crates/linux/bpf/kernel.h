/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few fields of the kernel's own structures that the programs read. The loader finds their
 * true offsets in the running kernel's BTF (CO-RE), so that neither the order nor the missing
 * fields matter, and the build needs nothing of the machine on which it runs.
 */
#pragma once

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	const unsigned char *name;
};
struct dentry {
	struct qstr d_name;
};
struct path {
	struct dentry *dentry;
};
struct file {
	struct path f_path;
};
struct mm_struct {
	struct file *exe_file;
};
struct kernfs_node {
	__u64 id;
};
struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
};
struct cgroup {
	struct cgroup_subsys_state self; /* the first member: a css of the default hierarchy is a cgroup */
	struct kernfs_node *kn;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
typedef struct {
	__u32 val;
} kuid_t;
struct cred {
	kuid_t uid;
};
struct task_struct {
	int tgid;
	struct mm_struct *mm;
	struct css_set *cgroups;
	const struct cred *cred;
};
struct net {
	__u64 net_cookie;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};
struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct net_device {
	int ifindex;
};
struct dst_entry {
	struct net_device *dev;
};
struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	int sk_rx_dst_ifindex;
	int sk_rcvbuf;
};
struct inet_sock {
	struct sock sk;
};
struct tcp_congestion_ops___kernel {
	char name[16];
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops___kernel *icsk_ca_ops;
	__u8 icsk_ca_state : 5;
	__u8 icsk_pending; /* which timer will pass; 0 is none */
	struct {
		__u16 rcv_mss;
	} icsk_ack;
};
struct tcp_options_received {
	int ts_recent_stamp; /* seconds of CLOCK_MONOTONIC; 0 is none */
	__u32 ts_recent;
	__u16 snd_wscale : 4, rcv_wscale : 4;
};
struct minmax_sample {
	__u32 t;
	__u32 v;
};
struct minmax {
	struct minmax_sample s[3];
};
struct rb_node;
struct rb_root {
	struct rb_node *rb_node;
};
struct sk_buff;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 window_clamp;
	__u16 advmss;
	__u8 scaling_ratio; /* since Linux 6.6 */
	__u8 bpf_sock_ops_cb_flags;
	__u32 rcv_wnd;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_cwnd;
	__u32 snd_cwnd_cnt;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u64 tcp_mstamp; /* of its newest packet, in µs of a clock that all have */
	__u32 srtt_us; /* in 1/8 µs */
	struct minmax rtt_min; /* in µs, of the last minutes; all ones before the first */
	__u32 mss_cache;
	__u16 tcp_header_len;
	__u32 delivered; /* packets */
	__u32 max_window;
	__u64 bytes_received;
	__u32 data_segs_in;
	__u32 data_segs_out;
	__u32 rcv_ooopack; /* since Linux 5.4 */
	struct {
		__u32 rtt_us;
	} rcv_rtt_est;
	struct tcp_options_received rx_opt;
	struct rb_root out_of_order_queue;
	struct sk_buff *ooo_last_skb; /* the last of the queue, unless that is empty */
};
struct sk_buff {
	__u8 ip_summed : 2;
	char cb[48];
};
struct tcp_skb_cb {
	__u32 end_seq;
};
struct socket {
	struct sock *sk;
};
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};
struct bpf_map;
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop
