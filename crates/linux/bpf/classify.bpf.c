// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Finds the class of each packet that arrives at a device, counts it, and sends it through the
 * class (HTB on an ifb) while user space is alive and wants that; otherwise the packet passes.
 * No packet is ever dropped or held here.
 *
 * Who a packet is for is known from the sockets: when a process makes or connects one, its
 * executable, cgroups and user are stored with the socket; accepted sockets inherit them. A
 * packet's socket is looked up as the stack will do it a moment later. All policy is in the maps.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "kernel.h"

#define AF_INET 2
#define AF_INET6 10
#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define IPPROTO_HOPOPTS 0
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_ICMPV6 58
#define IPPROTO_DSTOPTS 60
#define PACKET_OTHERHOST 3
#define TC_ACT_UNSPEC (-1)
#define HEARTBEAT_MAX_NS 2000000000ll
#define VLANS_MAX 2
#define EXTENSIONS_MAX 8
#define HTB_MAJOR 0x10000u

/* Set before loading: whether this kernel lets the program look at sockets and their owners. */
const volatile __u32 with_owners = 1;

/* Written by user space on each change and heartbeat; lives as long as the program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* Written here for each packet, read by user space each tick; never reset. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Rules by source prefix. This and the following four are written by user space when the policy
 * changes, and read here. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, __u32);
} prefix4_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u32);
} prefix6_rules SEC(".maps");

/* Rules by port: a table for each transport and side, indexed by the port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_TABLES);
	__type(key, __u32);
	__type(value, struct port_table);
} port_rules SEC(".maps");

/* Rules by owner: executable, user, cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name);
	__type(value, __u32);
} app_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} user_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} cgroup_rules SEC(".maps");

/* Who made each socket: written when it is made or connected, or by the scan; read for each
 * packet; goes with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct owner);
} owners SEC(".maps");

/* Cgroups that have made sockets, so that user space looks for units only when a new one comes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} known_cgroups SEC(".maps");

/* Who received how much; written only during a census, read at its end. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct talker);
	__type(value, struct counter);
} census SEC(".maps");

/* What the headers of a packet say. */
struct packet {
	__u16 family; /* AF_*; 0 is not IP */
	__u8 transport; /* IPPROTO_*, meaningful if has_ports */
	__u8 has_ports;
	__be16 port_remote;
	__be16 port_local;
	__u32 header; /* bytes in front of the payload */
	__u8 source[16];
	__u8 destination[16];
};

/* --------------------------------------------------------------------------------------------
 * Owners of sockets
 */

static __always_inline __u64 cgroup_id(struct cgroup *cgroup)
{
	return BPF_CORE_READ(cgroup, kn, id);
}

/* Records `task` as the owner of a socket; what was resolved before is forgotten. */
static __always_inline void describe(struct owner *owner, struct task_struct *task)
{
	struct cgroup *cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	const unsigned char *name = BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name);

	/* Names are keys of a map: what stands behind the end must be zero. */
	__builtin_memset(&owner->app, 0, sizeof(owner->app));
	bpf_probe_read_kernel_str(owner->app.bytes, sizeof(owner->app.bytes), name);
	owner->uid = BPF_CORE_READ(task, cred, uid.val);
#pragma unroll
	for (int level = 0; level < CGROUP_LEVELS_MAX; level++) {
		owner->cgroups[level] = cgroup ? cgroup_id(cgroup) : 0;
		if (cgroup)
			cgroup = (struct cgroup *)BPF_CORE_READ(cgroup, self.parent);
	}
	owner->resolved = 0;
}

static __always_inline void greet_cgroup(__u64 id)
{
	struct counters *mine;
	__u32 key = 0;
	__u8 known = 1;

	if (bpf_map_lookup_elem(&known_cgroups, &id))
		return;
	bpf_map_update_elem(&known_cgroups, &id, &known, BPF_ANY);
	mine = bpf_map_lookup_elem(&counters, &key);
	if (mine)
		__sync_fetch_and_add(&mine->new_cgroups, 1);
}

/* The process that runs is the one that makes, connects or sends. */
static __always_inline void remember(struct bpf_sock *sk, int again)
{
	struct task_struct *task;
	struct owner *owner;

	if (!sk)
		return;
	owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	if (owner && !again)
		return;
	if (!owner)
		owner = bpf_sk_storage_get(&owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!owner)
		return;
	task = (struct task_struct *)bpf_get_current_task();
	describe(owner, task);
	greet_cgroup(owner->cgroups[0]);
}

SEC("cgroup/sock_create")
int fairweir_create(struct bpf_sock *sk)
{
	remember(sk, 1);
	return 1;
}

SEC("cgroup/connect4")
int fairweir_conn4(struct bpf_sock_addr *ctx)
{
	remember(ctx->sk, 1);
	return 1;
}

SEC("cgroup/connect6")
int fairweir_conn6(struct bpf_sock_addr *ctx)
{
	remember(ctx->sk, 1);
	return 1;
}

/* Unconnected UDP: only sockets that are older than this program have no owner yet. */
SEC("cgroup/sendmsg4")
int fairweir_send4(struct bpf_sock_addr *ctx)
{
	remember(ctx->sk, 0);
	return 1;
}

SEC("cgroup/sendmsg6")
int fairweir_send6(struct bpf_sock_addr *ctx)
{
	remember(ctx->sk, 0);
	return 1;
}

/* One pass over all open files at the start finds the sockets that are older than this program. */
SEC("iter/task_file")
int fairweir_scan(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;
	struct owner *owner;
	struct sock *sk;
	__u16 family;

	/* init holds sockets only on behalf of the services to which it hands them. */
	if (!task || !file || task->tgid == 1)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk)
		return 0;
	family = sk->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	if (bpf_sk_storage_get(&owners, sk, 0, 0))
		return 0;
	owner = bpf_sk_storage_get(&owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (owner) {
		describe(owner, task);
		greet_cgroup(owner->cgroups[0]);
	}
	return 0;
}

/* The greatest of the rules for an owner, from memory if the rules are still the same. */
static __always_inline __u32 resolve(struct owner *owner, __u32 generation)
{
	__u64 resolved = owner->resolved;
	__u32 best = 0, *rule;

	if (resolved >> 32 == generation)
		return resolved;
	rule = bpf_map_lookup_elem(&app_rules, &owner->app);
	if (rule)
		best = *rule;
	rule = bpf_map_lookup_elem(&user_rules, &owner->uid);
	if (rule && *rule > best)
		best = *rule;
#pragma unroll
	for (int level = 0; level < CGROUP_LEVELS_MAX; level++) {
		if (!owner->cgroups[level])
			break;
		rule = bpf_map_lookup_elem(&cgroup_rules, &owner->cgroups[level]);
		if (rule && *rule > best)
			best = *rule;
	}
	/* One store: another CPU sees the generation and the rule together. */
	owner->resolved = (__u64)generation << 32 | best;
	return best;
}

/* --------------------------------------------------------------------------------------------
 * Packets
 */

/*
 * Copies `*to` from `offset` of the packet and returns 0, or not 0 if the packet is shorter. Nearly
 * all headers lie where they can be read at once, which costs a third of the helper's call.
 */
#define load(skb, offset, to)                                                                  \
	({                                                                                     \
		void *data = (void *)(long)(skb)->data;                                        \
		void *end = (void *)(long)(skb)->data_end;                                     \
		void *from = data + ((offset) & 0x3fff);                                       \
		int missing = 0;                                                               \
                                                                                               \
		if ((offset) <= 0x3fff && from + sizeof(*(to)) <= end)                         \
			*(to) = *(typeof(*(to)) *)from;                                        \
		else                                                                           \
			missing = bpf_skb_load_bytes(skb, offset, to, sizeof(*(to)));          \
		missing;                                                                       \
	})

/* Reads the ports, and what GRO needs of the transport's header. */
static __always_inline void read_transport(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__be16 source;
		__be16 destination;
	} ports;
	__u8 words = 0;

	p->header = offset;
	if (p->transport != IPPROTO_TCP && p->transport != IPPROTO_UDP)
		return;
	if (load(skb, offset, &ports))
		return;
	p->port_remote = ports.source;
	p->port_local = ports.destination;
	p->has_ports = 1;
	if (p->transport == IPPROTO_UDP) {
		p->header = offset + 8;
	} else if (skb->gso_size) {
		load(skb, offset + 12, &words);
		p->header = offset + (words >> 4) * 4;
	}
}

static __always_inline void read_ip4(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__u8 version_words;
		__u8 tos;
		__be16 length;
		__be16 id;
		__be16 fragment;
		__u8 ttl;
		__u8 protocol;
		__be16 checksum;
		__u8 source[4];
		__u8 destination[4];
	} ip;

	if (load(skb, offset, &ip) || ip.version_words >> 4 != 4)
		return;
	p->family = AF_INET;
	p->transport = ip.protocol;
	__builtin_memcpy(p->source, ip.source, 4);
	__builtin_memcpy(p->destination, ip.destination, 4);
	p->header = offset + (ip.version_words & 15) * 4;
	/* Only the first fragment has ports. */
	if (!(ip.fragment & bpf_htons(0x1fff)))
		read_transport(skb, p, p->header);
}

/* Returns whether this is neighbour discovery, without which the link does not work. */
static __always_inline int read_ip6(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct {
		__u8 version;
		__u8 flow[3];
		__be16 length;
		__u8 next;
		__u8 hops;
		__u8 source[16];
		__u8 destination[16];
	} ip;
	struct {
		__u8 next;
		__u8 length;
		__be16 fragment;
	} extension;
	__u8 type;

	if (load(skb, offset, &ip) || ip.version >> 4 != 6)
		return 0;
	p->family = AF_INET6;
	__builtin_memcpy(p->source, ip.source, 16);
	__builtin_memcpy(p->destination, ip.destination, 16);
	offset += sizeof(ip);
	p->header = offset;
	p->transport = ip.next;
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 header = p->transport;

		if (header != IPPROTO_HOPOPTS && header != IPPROTO_ROUTING && header != IPPROTO_DSTOPTS &&
		    header != IPPROTO_FRAGMENT && header != IPPROTO_AH)
			break;
		if (load(skb, offset, &extension))
			return 0;
		p->transport = extension.next;
		if (header == IPPROTO_FRAGMENT) {
			offset += 8;
			if (extension.fragment & bpf_htons(0xfff8))
				return 0;
		} else if (header == IPPROTO_AH) {
			offset += (extension.length + 2) * 4;
		} else {
			offset += (extension.length + 1) * 8;
		}
	}
	if (p->transport == IPPROTO_ICMPV6)
		return !load(skb, offset, &type) && type >= 133 && type <= 137;
	read_transport(skb, p, offset);
	return 0;
}

/* Returns whether the packet belongs to a class at all. */
static __always_inline int read_packet(struct __sk_buff *skb, struct packet *p, __u32 l2_header)
{
	__be16 protocol = skb->protocol;
	__u32 offset = l2_header;
	struct {
		__be16 tag;
		__be16 protocol;
	} vlan;

	if (skb->pkt_type == PACKET_OTHERHOST)
		return 0;
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		if (load(skb, offset, &vlan))
			return 0;
		protocol = vlan.protocol;
		offset += sizeof(vlan);
	}
	if (protocol == bpf_htons(ETH_P_IP))
		read_ip4(skb, p, offset);
	else if (protocol == bpf_htons(ETH_P_IPV6) && read_ip6(skb, p, offset))
		return 0;
	return p->family != 0;
}

static __always_inline __u32 prefix_rule(struct packet *p, __u32 features)
{
	__u32 *rule = 0;

	if (p->family == AF_INET && features & FEATURE_PREFIX4) {
		struct prefix4 key = { .length = 32 };

		__builtin_memcpy(key.address, p->source, 4);
		rule = bpf_map_lookup_elem(&prefix4_rules, &key);
	} else if (p->family == AF_INET6 && features & FEATURE_PREFIX6) {
		struct prefix6 key = { .length = 128 };

		__builtin_memcpy(key.address, p->source, 16);
		rule = bpf_map_lookup_elem(&prefix6_rules, &key);
	}
	return rule ? *rule : 0;
}

static __always_inline __u32 port_rule(__u32 table, __be16 port)
{
	struct port_table *rules = bpf_map_lookup_elem(&port_rules, &table);

	return rules ? rules->rules[bpf_ntohs(port)] : 0;
}

static __always_inline __u32 port_rules_of(struct packet *p, __u32 features)
{
	int udp = p->transport == IPPROTO_UDP;
	__u32 best = 0, rule;

	if (!p->has_ports)
		return 0;
	if (features & FEATURE_REMOTE_PORTS)
		best = port_rule(udp ? PORT_TABLE_UDP_REMOTE : PORT_TABLE_TCP_REMOTE, p->port_remote);
	if (features & FEATURE_LOCAL_PORTS) {
		rule = port_rule(udp ? PORT_TABLE_UDP_LOCAL : PORT_TABLE_TCP_LOCAL, p->port_local);
		if (rule > best)
			best = rule;
	}
	return best;
}

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (!p->has_ports)
		return 0;
	if (p->family == AF_INET) {
		__builtin_memcpy(&tuple.ipv4.saddr, p->source, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, p->destination, 4);
		tuple.ipv4.sport = p->port_remote;
		tuple.ipv4.dport = p->port_local;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(&tuple.ipv6.saddr, p->source, 16);
		__builtin_memcpy(&tuple.ipv6.daddr, p->destination, 16);
		tuple.ipv6.sport = p->port_remote;
		tuple.ipv6.dport = p->port_local;
		size = sizeof(tuple.ipv6);
	}
	if (p->transport == IPPROTO_TCP)
		return bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

static __always_inline void account(struct talker *talker, const struct counter *amount)
{
	struct counter *total = bpf_map_lookup_elem(&census, talker);

	if (total) {
		__sync_fetch_and_add(&total->bytes, amount->bytes);
		__sync_fetch_and_add(&total->packets, amount->packets);
	} else {
		bpf_map_update_elem(&census, talker, amount, BPF_ANY);
	}
}

static __always_inline void count_owner(struct owner *owner, const struct counter *amount)
{
	struct talker talker = { .kind = TALKER_APP };

	__builtin_memcpy(&talker.app, &owner->app, sizeof(talker.app));
	account(&talker, amount);
	__builtin_memset(&talker, 0, sizeof(talker));
	talker.kind = TALKER_USER;
	talker.number = owner->uid;
	account(&talker, amount);
	talker.kind = TALKER_CGROUP;
	talker.number = owner->cgroups[0];
	account(&talker, amount);
}

static __always_inline void count_source(struct packet *p, const struct counter *amount)
{
	struct talker talker = {};

	if (p->family == AF_INET) {
		talker.kind = TALKER_PREFIX4;
		__builtin_memcpy(talker.address, p->source, 3);
	} else {
		talker.kind = TALKER_PREFIX6;
		__builtin_memcpy(talker.address, p->source, 6);
	}
	account(&talker, amount);
}

static __always_inline __u32 owner_rule(struct __sk_buff *skb, struct packet *p,
					const struct config *cfg, const struct counter *amount)
{
	struct bpf_sock *sk = find_socket(skb, p);
	struct owner *owner;
	__u32 rule = 0;

	if (!sk)
		return 0;
	owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	if (owner) {
		rule = resolve(owner, cfg->generation);
		if (cfg->features & FEATURE_CENSUS)
			count_owner(owner, amount);
	}
	bpf_sk_release(sk);
	return rule;
}

/* A super-packet of GRO is many packets on the wire, each with headers of its own. */
static __always_inline void measure(struct __sk_buff *skb, struct packet *p, __u32 l2_header,
				    struct counter *amount)
{
	__u32 segments = skb->gso_segs;

	amount->bytes = skb->len + (ETH_HLEN - l2_header);
	amount->packets = 1;
	if (!skb->gso_size)
		return;
	if (!segments && skb->len > p->header)
		segments = (skb->len - p->header + skb->gso_size - 1) / skb->gso_size;
	if (segments > 1) {
		amount->bytes += (__u64)(segments - 1) * (p->header + ETH_HLEN - l2_header);
		amount->packets = segments;
	}
}

static __always_inline __u32 classify(struct __sk_buff *skb, struct packet *p,
				      const struct config *cfg, const struct counter *amount)
{
	__u32 best = prefix_rule(p, cfg->features);
	__u32 rule = port_rules_of(p, cfg->features);

	if (rule > best)
		best = rule;
	if (with_owners && cfg->features & (FEATURE_OWNERS | FEATURE_CENSUS)) {
		rule = owner_rule(skb, p, cfg, amount);
		if (rule > best)
			best = rule;
	}
	if (cfg->features & FEATURE_CENSUS)
		count_source(p, amount);
	return best ? best & 0xffff : cfg->default_slot;
}

/* The clock is read once in a jiffy: reading it costs more than all the rest of a packet's way. */
static __always_inline int in_control(const struct config *cfg, struct counters *mine)
{
	__u64 jiffy = bpf_jiffies64();

	if (mine->jiffy != jiffy || mine->heartbeat_ns != cfg->heartbeat_ns) {
		mine->stale = (__s64)(bpf_ktime_get_coarse_ns() - cfg->heartbeat_ns) > HEARTBEAT_MAX_NS;
		mine->jiffy = jiffy;
		mine->heartbeat_ns = cfg->heartbeat_ns;
	}
	return !mine->stale;
}

SEC("tcx/ingress")
int fairweir_ingress(struct __sk_buff *skb)
{
	struct counter amount = {};
	struct packet p = {};
	struct counters *mine;
	struct config *cfg;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	mine = bpf_map_lookup_elem(&counters, &key);
	if (!cfg || !mine || !read_packet(skb, &p, cfg->l2_header))
		return TC_ACT_UNSPEC;
	measure(skb, &p, cfg->l2_header, &amount);
	slot = classify(skb, &p, cfg, &amount);
	if (slot >= SLOTS_MAX)
		return TC_ACT_UNSPEC;
	mine->slots[slot].bytes += amount.bytes;
	mine->slots[slot].packets += amount.packets;
	if (!cfg->enforce || !in_control(cfg, mine))
		return TC_ACT_UNSPEC;
	/* The ifb takes only packets with an L2 header, and takes it off before it gives them back. */
	if (!cfg->l2_header && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return TC_ACT_UNSPEC;
	skb->priority = HTB_MAJOR | (slot + 1);
	return bpf_redirect(cfg->ifb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
