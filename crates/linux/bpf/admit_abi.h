/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the filter of a divider's socket and user space share. */
#pragma once

#include <linux/types.h>

/* Datagrams per second: of a client, which renews every second; of all unknown senders, once for short and once for
 * longer datagrams. So who got a cookie is not displaced by those who begin. */
#define ADMIT_CLIENT_MAX 4
#define ADMIT_STRANGERS_MAX 500
/* A short datagram: a hello of agreement::message, and its UDP header. */
#define ADMIT_SHORT_BYTES 40

/* A client's socket, as in the packet. */
struct admit_client {
	__u32 address[4]; /* IPv4 as an IPv6 address */
	__u16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct admit_client) == 20, "abi");
