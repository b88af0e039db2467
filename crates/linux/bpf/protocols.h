/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Numbers of protocols, and the most headers that are read of a packet. */
#pragma once

#define AF_INET 2
#define AF_INET6 10
#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define ETH_P_PPP_SES 0x8864
#define PPP_IP 0x0021
#define PPP_IPV6 0x0057
#define IPPROTO_HOPOPTS 0
#define IPPROTO_IPIP 4
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_IPV6 41
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
#define IPPROTO_DSTOPTS 60
#define VLANS_MAX 2
#define EXTENSIONS_MAX 8
#define TC_ACT_UNSPEC (-1)
#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_ACK 0x10
#define PACKET_OTHERHOST 3
/* A forwarded packet keeps its priority, which must not name a class of another HTB at egress. */
#define HTB_MAJOR 0xfa170000u
