/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the filter of a divider's socket and user space share. */
#pragma once

#include <linux/types.h>

/* Datagrams per second: of a client, which renews every second; of all unknown senders. */
#define ADMIT_CLIENT_MAX 4
#define ADMIT_STRANGERS_MAX 500

/* A client's socket, as in the packet. */
struct admit_client {
	__u32 address[4]; /* IPv4 as an IPv6 address */
	__u16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct admit_client) == 20, "abi");
