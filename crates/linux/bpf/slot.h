/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which class a connection has, by the rules for its packets and its owner. */
#pragma once

/* What a packet of the connection would say. */
static __always_inline void describe_connection(struct tcp_sock *tp, struct packet *p)
{
	struct sock_common *sk = (struct sock_common *)tp;

	p->transport = IPPROTO_TCP;
	p->has_ports = 1;
	p->port_source = sk->skc_dport;
	p->port_destination = bpf_htons(sk->skc_num);
	p->family = sk->skc_family;
	if (p->family == AF_INET) {
		p->source[0] = sk->skc_daddr;
	} else {
		__be32 *words = p->source;

		bpf_probe_read_kernel(p->source, 16, &sk->skc_v6_daddr);
		if (!words[0] && !words[1] && words[2] == bpf_htonl(0xffff)) {
			p->family = AF_INET;
			words[0] = words[3];
		}
	}
}

/* The class of the connection, as its packets have it. */
static __always_inline __u32 find_slot(struct tcp_sock *tp, const struct config *cfg)
{
	struct packet p = {};
	struct owner *owner;
	__u32 best, rule;

	describe_connection(tp, &p);
	best = address_rule(&p, cfg->features);
	if (cfg->features & FEATURE_OWNERS) {
		owner = bpf_sk_storage_get(&owners, tp, 0, 0);
		rule = owner ? resolve(owner, cfg->generation) : 0;
		if (rule > best)
			best = rule;
	}
	return best ? best & 0xffff : cfg->default_slot;
}
