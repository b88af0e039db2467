// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Limits the datagrams that a socket gets, before a process is woken: of all unknown senders together (short
 * and longer datagrams apart), and of each client that user space knows. A flood of unknown senders neither costs much nor displaces a client.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "admit_abi.h"

#define SECOND 1000000000ull
#define IP4_SOURCE 12
#define IP6_SOURCE 8

/* Counts of the present second; CPUs that count at the same time may admit a little more. */
struct portion {
	__u64 second;
	__u64 count;
};

/* Written by user space, which sets the number of entries; the least recently heard client makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct admit_client);
	__type(value, struct portion);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct portion);
} strangers SEC(".maps");

static __always_inline int admits(struct portion *portion, __u64 most)
{
	__u64 second = bpf_ktime_get_ns() / SECOND;

	if (portion->second != second) {
		portion->second = second;
		portion->count = 0;
	}
	return portion->count++ < most;
}

/* Reads the sender; an IPv4 address becomes an IPv6 address. */
static __always_inline int read_client(struct __sk_buff *skb, struct admit_client *client)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		client->address[2] = bpf_htonl(0xffff);
		if (bpf_skb_load_bytes_relative(skb, IP4_SOURCE, &client->address[3], 4, BPF_HDR_START_NET))
			return 0;
	} else if (bpf_skb_load_bytes_relative(skb, IP6_SOURCE, client->address, 16, BPF_HDR_START_NET)) {
		return 0;
	}
	/* The filter of a UDP socket sees a packet from the UDP header on. */
	return !bpf_skb_load_bytes(skb, 0, &client->port, sizeof(client->port));
}

/* How many bytes of a datagram the socket gets. */
SEC("socket")
int fairweir_admit(struct __sk_buff *skb)
{
	struct admit_client client = {};
	struct portion *portion;
	__u32 is_long = skb->len > ADMIT_SHORT_BYTES;

	if (!read_client(skb, &client))
		return 0;
	portion = bpf_map_lookup_elem(&clients, &client);
	if (portion)
		return admits(portion, ADMIT_CLIENT_MAX) ? skb->len : 0;
	portion = bpf_map_lookup_elem(&strangers, &is_long);
	return portion && admits(portion, ADMIT_STRANGERS_MAX) ? skb->len : 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
