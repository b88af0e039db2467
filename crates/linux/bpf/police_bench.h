/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For benchmarks only: runs all of police_xdp repeatedly, each time for another subscriber and
 * flow, since a test run repeats one packet, whose memory is warm.
 */
#pragma once

/* Offsets of the destination and the ports in an Ethernet frame with plain IPv4 and UDP. */
#define BENCH_DESTINATION 30
#define BENCH_PORTS 34
#define BENCH_FIRST 0x0a000000u

/* Written by user space before each run, and here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench);
} benches SEC(".maps");

struct turn {
	struct xdp_md *xdp;
	struct bench *bench;
};

/* Source of the generator: Steele, Lea and Flood, Fast splittable pseudorandom number generators. */
static int police_turn(__u32 nth, struct turn *turn)
{
	void *data = (void *)(long)turn->xdp->data, *end = (void *)(long)turn->xdp->data_end;
	struct bench *bench = turn->bench;
	__u64 mixed;

	if (data + BENCH_PORTS + 4 > end)
		return 1;
	bench->random += 0x9e3779b97f4a7c15ull;
	mixed = (bench->random ^ bench->random >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed ^= mixed >> 27;
	*(__be32 *)(data + BENCH_DESTINATION) =
		bpf_htonl(BENCH_FIRST + ((mixed & 0xffffffff) * bench->subscribers >> 32));
	*(__be16 *)(data + BENCH_PORTS) = bpf_htons(mixed >> 32 & bench->ports);
	police_frame(turn->xdp);
	return 0;
}

SEC("?xdp.frags")
int police_bench(struct xdp_md *xdp)
{
	struct turn turn = { .xdp = xdp };
	__u32 zero = 0;

	turn.bench = bpf_map_lookup_elem(&benches, &zero);
	if (turn.bench)
		bpf_loop(turn.bench->turns, police_turn, &turn, 0);
	return XDP_PASS;
}
