/* The parser of the BPF programs, built for this machine; returns its result for a frame as numbers. */
#include <linux/types.h>
#include <stdlib.h>
#include <string.h>

#define bpf_htons __builtin_bswap16
#define bpf_ntohs __builtin_bswap16
#define bpf_ntohl __builtin_bswap32

/* The fuzzer calls only functions that read the directly accessible part of a packet. */
struct __sk_buff {
	__u32 len, gso_segs, gso_size;
	__u64 data, data_end;
};

static long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length)
{
	abort();
}

#include "../../crates/linux/bpf/packet.h"

void read_packet(const __u8 *bytes, __u32 length, int has_ethernet, __u32 *out)
{
	struct frame frame = { (void *)bytes, (void *)(bytes + length), 0 };
	struct packet p;

	memset(&p, 0, sizeof(p));
	out[0] = read_frame(&frame, &p, has_ethernet);
	out[1] = p.family;
	out[2] = p.transport;
	out[3] = p.has_ports;
	out[4] = p.is_fragment;
	out[5] = p.tos;
	out[6] = p.is_discovery;
	out[7] = bpf_ntohs(p.port_source);
	out[8] = bpf_ntohs(p.port_destination);
	out[9] = p.ip_at;
	out[10] = p.transport_at;
	out[11] = p.end;
	for (int i = 0; i < 4; i++) {
		out[12 + i] = bpf_ntohl(p.source[i]);
		out[16 + i] = bpf_ntohl(p.destination[i]);
	}
}
