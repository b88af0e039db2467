/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The owner of each socket, and the rule for that owner. */
#pragma once

static __always_inline __u64 cgroup_id(struct cgroup *cgroup)
{
	return BPF_CORE_READ(cgroup, kn, id);
}

/* Records `task` as the owner of a socket; a rule that was resolved before is forgotten. */
static __always_inline void describe(struct owner *owner, struct task_struct *task)
{
	struct cgroup *cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	const unsigned char *name = BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name);

	/* Names are keys of a map: the bytes after the end must be zero. */
	__builtin_memset(&owner->app, 0, sizeof(owner->app));
	bpf_probe_read_kernel_str(owner->app.bytes, sizeof(owner->app.bytes), name);
	owner->uid = BPF_CORE_READ(task, cred, uid.val);
#pragma unroll
	for (int level = 0; level < CGROUP_LEVELS_MAX; level++) {
		owner->cgroups[level] = cgroup ? cgroup_id(cgroup) : 0;
		if (cgroup)
			cgroup = (struct cgroup *)BPF_CORE_READ(cgroup, self.parent);
	}
	owner->mm = (__u64)BPF_CORE_READ(task, mm);
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

/*
 * The running process is the one that makes, connects or sends. What is known of it already is not
 * written again, so that a packet that arrives meanwhile never sees a half-written owner.
 */
static __always_inline void remember(struct bpf_sock *sk, int again)
{
	struct task_struct *task;
	struct owner *owner;

	if (!sk)
		return;
	task = (struct task_struct *)bpf_get_current_task();
	owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	if (owner && (!again || owner->mm == (__u64)BPF_CORE_READ(task, mm)))
		return;
	if (!owner)
		owner = bpf_sk_storage_get(&owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!owner)
		return;
	describe(owner, task);
	greet_cgroup(owner->cgroups[0]);
}

/* A program that learns who makes, connects or uses a socket. */
#define REMEMBER(SECTION, NAME, CONTEXT, SOCKET, AGAIN)                                        \
	SEC(SECTION)                                                                           \
	int NAME(struct CONTEXT *ctx)                                                          \
	{                                                                                      \
		remember(SOCKET, AGAIN);                                                       \
		return 1;                                                                      \
	}
REMEMBER("cgroup/sock_create", fairweir_create, bpf_sock, ctx, 1)
REMEMBER("cgroup/connect4", fairweir_conn4, bpf_sock_addr, ctx->sk, 1)
REMEMBER("cgroup/connect6", fairweir_conn6, bpf_sock_addr, ctx->sk, 1)
/* Unconnected UDP: only sockets older than this program have no owner yet. */
REMEMBER("cgroup/sendmsg4", fairweir_send4, bpf_sock_addr, ctx->sk, 0)
REMEMBER("cgroup/sendmsg6", fairweir_send6, bpf_sock_addr, ctx->sk, 0)

/* One pass over all open files at the start finds the sockets older than this program. */
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

/* The greatest of the rules for an owner; the remembered result if the rules are unchanged. */
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
