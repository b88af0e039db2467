// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The download of a home router, by device.
 *
 * The LAN side sees every packet with the device's own MAC and IP address, before and after NAT, so
 * devices are told apart there:
 *
 * - LAN egress: finds the device of each packet that came from the WAN, counts it, follows its TCP
 *   connection, and sets the class (HTB, the root qdisc of the LAN device).
 * - LAN ingress: removes the marks of a device with an agreement, follows what the device sends,
 *   and lowers the receive window of its acknowledgements.
 * - LAN ingress and egress, if groups of devices are sites: copies the beginnings of connections to user
 *   space, which binds them (router_site.h).
 * - LAN ingress, while another host divides for this router: removes other marks, and marks flows
 *   with their classes there (mark.h). WAN egress: removes marks of other origin.
 * - WAN ingress: counts all that arrives, also for the router itself.
 * - WAN egress, if the upload is shared: counts leaving packets for the device that the mark names,
 *   and sets their class (HTB, the root qdisc of the WAN device).
 *
 * There may be several LANs, each with such classes. Tunnels through the WAN are distinguished only at LAN egress.
 *
 * No packet is dropped, held or redirected here. Packets change only in their marks, and in windows
 * that become smaller; a right edge that the server was told is never taken back (RFC 9293, section
 * 3.8.6). If the heartbeat is too old, no class is set and no window rewritten.
 *
 * For kernels without BTF, like OpenWrt's: no CO-RE, no kfuncs, no BPF-to-BPF calls.
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
#include "mark.h"
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

/* The rule for all devices of the LAN with this interface index. */
static __always_inline __u32 lan_rule(const struct router_config *cfg, __u32 index)
{
	__u32 rule = 0;

	if (!(cfg->features & FEATURE_LANS))
		return 0;
#pragma unroll
	for (int i = 0; i < LANS_MAX; i++)
		if (cfg->lans[i].index == index)
			rule = cfg->lans[i].rule;
	hide(rule, index);
	return rule;
}

static __always_inline int is_lan(const struct router_config *cfg, __u32 index)
{
	int found = 0;

#pragma unroll
	for (int i = 0; i < LANS_MAX; i++)
		found |= cfg->lans[i].index == index;
	return found;
}

static __always_inline int is_wan(const struct router_config *cfg, __u32 index)
{
	int found = 0;

#pragma unroll
	for (int i = 0; i < WANS_MAX; i++)
		found |= cfg->wans[i] == index;
	return found;
}

/* The rule of the device that a packet goes to, or comes from if it `leaves`. */
static __always_inline __u32 find_device(struct __sk_buff *skb, const struct packet *p,
					 const struct router_config *cfg, int leaves)
{
	__u32 best = mac_rule(skb, cfg, leaves ? sizeof(struct mac) : 0);
	__u32 rule = prefix_rule(p->family, leaves ? p->source : p->destination, cfg->features);
	__u32 of_lan = lan_rule(cfg, skb->ifindex);

	if (rule > best)
		best = rule;
	if (of_lan > best)
		best = of_lan;
	return best ? best : cfg->default_slot;
}

/* The class of the device, or of the device's group. */
static __always_inline __u32 find_class(struct __sk_buff *skb, const struct packet *p,
					 const struct router_config *cfg, int leaves)
{
	return find_leaf(p, cfg, find_device(skb, p, cfg, leaves), leaves);
}

/* As find_class, for a packet to a device; `f` is the connection's entry, or 0. The rules are
 * evaluated once per interval of user space, which begins a new interval when it changes them. */
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
	if (!cfg || !mine || (skb->ingress_ifindex && !is_wan(cfg, skb->ingress_ifindex)) ||
	    !read_skb(skb, &frame, &p, cfg->lan_header))
		return TC_ACT_UNSPEC;
	/* Packets of the router itself and from another LAN are not downloads; those that its proxy
	 * sends in a server's place are. */
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

/* The kernel allows only whole words of a mark; clang would write the changed byte. */
static __always_inline void set_mark(struct __sk_buff *skb, __u32 mark)
{
	asm volatile("" : "+r"(mark));
	skb->mark = mark;
}

/* Writes the device into the mark, which stays with the packet through NAT until it leaves. The
 * default device is 0, so that most packets of a router without devices stay unmarked. */
static __always_inline void mark_device(struct __sk_buff *skb, const struct packet *p,
					const struct router_config *cfg)
{
	__u32 slot = find_class(skb, p, cfg, 1);

	slot ^= cfg->default_slot & RULE_SLOT;
	set_mark(skb, (skb->mark & ~MARK_MASK) | slot << MARK_SHIFT);
}

/* Whether the mark of a packet at the WAN names its device. A packet that a tunnel has built has no
 * ingress interface, and the mark of its inner packet. */
static __always_inline int has_mark(struct __sk_buff *skb, const struct router_config *cfg)
{
	if (!(cfg->features & FEATURE_MARKS))
		return 0;
	return skb->ingress_ifindex ? is_lan(cfg, skb->ingress_ifindex) : !!cfg->wans[1];
}

/* Replaces a tunnel's packet by its inner packet. */
static __always_inline void look_within(struct frame *frame, struct packet *p, const struct router_config *cfg)
{
	__u8 outer = p->transport;

	if (!cfg->wans[1] || p->is_fragment || (outer != IPPROTO_IPIP && outer != IPPROTO_IPV6))
		return;
	p->ip_at = p->transport_at;
	p->has_ports = 0;
	if (outer == IPPROTO_IPIP)
		read_ip4(frame, p);
	else
		read_ip6(frame, p);
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
	look_within(&frame, &p, cfg);
	first = goes_first(skb, &p);
	slot = cfg->default_slot & RULE_SLOT;
	if (has_mark(skb, cfg)) {
		slot ^= skb->mark >> MARK_SHIFT;
		set_mark(skb, skb->mark & ~MARK_MASK);
	}
	leave(skb, &amount, first, slot,
	      cfg->features & FEATURE_UPLOAD && is_recent(cfg->heartbeat_ns));
	return TC_ACT_UNSPEC;
}

/* Runs before fairweir_lan_ingress. */
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

/*
 * Runs after the programs above: while another host divides for this router, only this router's marks leave. Packets
 * with another DSCP are marked too: an unmarked flow would stay bound to a class that now belongs to another device.
 */
SEC("tcx/ingress")
int fairweir_own_marks(struct __sk_buff *skb)
{
	struct tos_change tos = { .clear = TOS_DSCP };
	struct router_config *cfg;
	struct frame frame;
	struct packet p;
	struct marks *of;
	__u32 key = 0, slot;

	cfg = bpf_map_lookup_elem(&config, &key);
	of = bpf_map_lookup_elem(&marks, &key);
	if (!cfg || !of || skb->pkt_type == PACKET_OTHERHOST ||
	    !read_skb(skb, &frame, &p, cfg->lan_header))
		return TC_ACT_UNSPEC;
	if (is_recent(cfg->heartbeat_ns)) {
		slot = find_class(skb, &p, cfg, 1);
		/* The same number, in a form in which the verifier sees its bounds. */
		asm volatile("" : "+r"(slot));
		tos.set = of->slots[slot & (SLOTS_MAX - 1)] << 2;
	}
	if (tos.set && !takes_mark(skb, &p, tos.set))
		tos.set = 0;
	if (tos.set || is_mark(p.tos >> 2))
		change_tos_skb(skb, &p, tos);
	return TC_ACT_UNSPEC;
}

SEC("tcx/egress")
int fairweir_foreign_marks(struct __sk_buff *skb)
{
	struct tos_change unmarked = { .clear = TOS_DSCP };
	struct router_config *cfg;
	struct frame frame;
	struct packet p;
	__u32 key = 0;

	cfg = bpf_map_lookup_elem(&config, &key);
	if (cfg && !is_lan(cfg, skb->ingress_ifindex) && read_skb(skb, &frame, &p, cfg->wan_header) &&
	    is_mark(p.tos >> 2))
		change_tos_skb(skb, &p, unmarked);
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
