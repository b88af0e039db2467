/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether user space is alive. */
#pragma once

/* Ten ticks of user space, in ns. */
#define HEARTBEAT_MAX_NS 2000000000ll

static __always_inline int is_recent(__u64 heartbeat_ns)
{
	return (__s64)(bpf_ktime_get_coarse_ns() - heartbeat_ns) <= HEARTBEAT_MAX_NS;
}

static __always_inline int is_alive(const struct config *cfg)
{
	return is_recent(cfg->heartbeat_ns);
}
