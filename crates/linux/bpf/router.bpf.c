// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The download of a home router, by device.
 *
 * The LAN side sees every packet with the device's own MAC and IP address, before and after NAT, so
 * devices are told apart there:
 *
 * - LAN egress: finds the device of each packet that came from the WAN, counts it, follows its TCP
 *   connection, and stamps the class (HTB, the root qdisc of the LAN device).
 * - LAN ingress: takes the marks of a device with an agreement, follows what the device sends, and lowers the
 *   receive window of its acknowledgements.
 * - LAN ingress and egress, if groups of devices are sites: copies the beginnings of connections to user
 *   space, which binds them (router_site.h).
 * - WAN ingress: counts all that arrives, also for the router itself.
 * - WAN egress, if the upload is shared: counts what leaves by the device that the mark names, and
 *   stamps its class (HTB, the root qdisc of the WAN device).
 *
 * No packet is dropped, held or redirected here. Only marks are taken off, and windows rewritten to smaller ones; a
 * right edge that the server was told is never taken back (RFC 9293, section 3.8.6). If the heartbeat is too old,
 * nothing is stamped and no window rewritten.
 *
 * For kernels without BTF, as OpenWrt's: no CO-RE, no kfuncs, no BPF-to-BPF calls.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "router_abi.h"
#include "protocols.h"
#include "heartbeat.h"
#include "packet.h"
#include "measure.h"
#include "prefix.h"
#include "stamp.h"
#include "router_flow.h"
#include "router_site.h"
#include "tos.h"
#include "router_client.h"
#include "leaf.h"
#include "dhcp.h"
#include "upload.h"

/* The rule of the MAC address at `at` in the frame. */
static __always_inline __u32 mac_rule(struct __sk_buff *skb, const struct router_config *cfg,
				      __u32 at)
{
	struct mac mac;
	__u32 *rule;

	if (!(cfg->features & FEATURE_MACS) || !cfg->lan_header || load(skb, at, &mac))
		return 0;
	rule = bpf_map_lookup_elem(&mac_rules, &mac);
	return rule ? *rule : 0;
}

/* The rule of the device that a packet goes to, or comes from if it `leaves`. */
static __always_inline __u32 find_device(struct __sk_buff *skb, const struct packet *p,
					 const struct router_config *cfg, int leaves)
{
	__u32 best = mac_rule(skb, cfg, leaves ? sizeof(struct mac) : 0);
	__u32 rule = prefix_rule(p->family, leaves ? p->source : p->destination, cfg->features);

	if (rule > best)
		best = rule;
	return best ? best : cfg->default_slot;
}

/* The class of the device, or of its group there. */
static __always_inline __u32 find_class(struct __sk_buff *skb, const struct packet *p,
					 const struct router_config *cfg, int leaves)
{
	return find_leaf(p, cfg, find_device(skb, p, cfg, leaves), leaves);
}

/* The same for a packet to a device, of whose connection `f` is known if it is not 0: the rules are
 * looked at once in an interval of user space, which begins another one when it changes them. */
static __always_inline __u32 find_class_once(struct __sk_buff *skb, const struct packet *p,
					      const struct router_config *cfg, struct router_flow *f)
{
	__u32 slot;

	if (f) {
		begin_interval(f, cfg);
		if (f->flags & FLOW_CLASSED)
			return f->slot;
	}
	slot = find_class(skb, p, cfg, 0);
	if (f) {
		f->slot = slot;
		f->flags |= FLOW_CLASSED;
	}
	return slot;
}

SEC("tcx/egress")
int fairweir_lan_egress(struct __sk_buff *skb)
{
	struct router_counters *mine;
	struct router_config *cfg;
	struct counter amount = {};
	struct router_flow *flow;
	struct frame frame;
	struct packet p;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	mine = bpf_map_lookup_elem(&counters, &key);
	if (!cfg || !mine || (skb->ingress_ifindex && skb->ingress_ifindex != cfg->wan) ||
	    !read_skb(skb, &frame, &p, cfg->lan_header))
		return TC_ACT_UNSPEC;
	/* What the router itself sends to a device, or what comes from another LAN, is no download; what its
	 * proxy sends in a server's place is one. */
	if (!skb->ingress_ifindex && !(skb->mark & RELAYED_MARK)) {
		hear_dhcp(skb, &p, cfg, 1);
		return TC_ACT_UNSPEC;
	}
	measure(skb, &frame, &p, cfg->lan_header, &amount);
	flow = find_download(&p);
	slot = find_class_once(skb, &p, cfg, flow);
	if (slot >= SLOTS_MAX)
		return TC_ACT_UNSPEC;
	mine->slots[slot].bytes += amount.bytes;
	mine->slots[slot].packets += amount.packets;
	if (flow)
		follow_download(skb, &p, flow, amount.packets);
	if (cfg->enforce && is_recent(cfg->heartbeat_ns))
		skb->priority = HTB_MAJOR | (slot + 1);
	return TC_ACT_UNSPEC;
}

/* The kernel takes whole words of a mark only; clang would write the byte that changes. */
static __always_inline void set_mark(struct __sk_buff *skb, __u32 mark)
{
	asm volatile("" : "+r"(mark));
	skb->mark = mark;
}

/* Writes the device into the mark, which stays with the packet through NAT until it leaves. Nothing is
 * written for the default device, so that most packets of a router without devices stay unmarked. */
static __always_inline void mark_device(struct __sk_buff *skb, const struct packet *p,
					const struct router_config *cfg)
{
	__u32 slot = find_class(skb, p, cfg, 1);

	slot ^= cfg->default_slot & RULE_SLOT;
	set_mark(skb, (skb->mark & ~MARK_MASK) | slot << MARK_SHIFT);
}

SEC("tcx/egress")
int fairweir_wan_egress(struct __sk_buff *skb)
{
	struct counter amount = {};
	__u32 first;
	struct router_config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || !read_skb(skb, &frame, &p, cfg->wan_header))
		return TC_ACT_UNSPEC;
	measure(skb, &frame, &p, cfg->wan_header, &amount);
	first = goes_first(skb, &p);
	slot = cfg->default_slot & RULE_SLOT;
	if (skb->ingress_ifindex == cfg->lan && cfg->features & FEATURE_MARKS) {
		slot ^= skb->mark >> MARK_SHIFT;
		set_mark(skb, skb->mark & ~MARK_MASK);
	}
	leave(skb, &amount, first, slot,
	      cfg->features & FEATURE_UPLOAD && is_recent(cfg->heartbeat_ns));
	return TC_ACT_UNSPEC;
}

/* Before the next program. */
SEC("tcx/ingress")
int fairweir_lan_marks(struct __sk_buff *skb)
{
	struct router_config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || !(cfg->features & FEATURE_CLIENTS) || skb->pkt_type == PACKET_OTHERHOST ||
	    !read_skb(skb, &frame, &p, cfg->lan_header) || !is_mark(p.tos >> 2))
		return TC_ACT_UNSPEC;
	take_mark(skb, &p, cfg, find_device(skb, &p, cfg, 1));
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int fairweir_lan_ingress(struct __sk_buff *skb)
{
	struct router_config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (!cfg || skb->pkt_type == PACKET_OTHERHOST || !read_skb(skb, &frame, &p, cfg->lan_header))
		return TC_ACT_UNSPEC;
	if (cfg->features & FEATURE_MARKS)
		mark_device(skb, &p, cfg);
	if (p.transport == IPPROTO_TCP && p.has_ports)
		follow_upload(skb, &p, cfg);
	else
		hear_dhcp(skb, &p, cfg, 0);
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int fairweir_wan_ingress(struct __sk_buff *skb)
{
	struct router_counters *mine;
	struct router_config *cfg;
	struct counter amount = {};
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	mine = bpf_map_lookup_elem(&counters, &key);
	if (!cfg || !mine)
		return TC_ACT_UNSPEC;
	mine->frames.packets++;
	if (!read_skb(skb, &frame, &p, cfg->wan_header)) {
		mine->frames.bytes += skb->len;
		return TC_ACT_UNSPEC;
	}
	measure(skb, &frame, &p, cfg->wan_header, &amount);
	mine->frames.bytes += amount.bytes;
	if (skb->pkt_type == PACKET_OTHERHOST)
		return TC_ACT_UNSPEC;
	mine->total.bytes += amount.bytes;
	mine->total.packets += amount.packets;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
