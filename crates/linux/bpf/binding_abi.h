/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the policer, the router and user space share about agreements with clients. */
#pragma once

#include <linux/types.h>

/* Bindings of a client: a power of two, in 256 sets. */
#define BINDINGS 2048
#define BINDING_CLASSES 16

/* The classes to which a client's flows are bound: see binding.h. */
struct bindings {
	__u64 of[BINDINGS];
	__u32 marked[BINDING_CLASSES]; /* the time of the last binding to each class; 0 is none */
	__u32 refused; /* marks that found no place; wraps */
	__u32 pad;
};
_Static_assert(sizeof(struct bindings) == 16456, "abi");
