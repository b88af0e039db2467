/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rule of a connection, by its addresses and its owner. */
#pragma once

/* Extracts the IPv4 address from the IPv6 address that a socket has in its place. */
static __always_inline void as_ip4(__be32 *words)
{
	words[0] = words[3];
	words[2] = 0;
	words[3] = 0;
}

/* Fills in what a packet of the connection would say. */
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
		p->destination[0] = sk->skc_rcv_saddr;
	} else {
		bpf_probe_read_kernel(p->source, 16, &sk->skc_v6_daddr);
		bpf_probe_read_kernel(p->destination, 16, &sk->skc_v6_rcv_saddr);
		if (!p->source[0] && !p->source[1] && p->source[2] == bpf_htonl(0xffff)) {
			p->family = AF_INET;
			as_ip4(p->source);
			as_ip4(p->destination);
		}
	}
}

/* The greatest of the connection's rules; `p` is left as a description of its packets. */
static __always_inline __u32 rule_of(struct tcp_sock *tp, const struct config *cfg, struct packet *p)
{
	struct owner *owner;
	__u32 best, rule;

	describe_connection(tp, p);
	best = address_rule(p, cfg->features);
	if (cfg->features & FEATURE_OWNERS) {
		owner = bpf_sk_storage_get(&owners, tp, 0, 0);
		rule = owner ? resolve(owner, cfg->generation) : 0;
		if (rule > best)
			best = rule;
	}
	return best;
}
