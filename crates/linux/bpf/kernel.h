/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few fields of the kernel's own structures that the programs read. The loader finds their
 * true offsets in the running kernel's BTF (CO-RE), so that neither the order nor the missing
 * fields matter, and the build needs nothing of the machine on which it runs.
 */
#pragma once

#define AF_INET 2
#define AF_INET6 10

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	const unsigned char *name;
};
struct dentry {
	struct qstr d_name;
};
struct path {
	struct dentry *dentry;
};
struct file {
	struct path f_path;
};
struct mm_struct {
	struct file *exe_file;
};
struct kernfs_node {
	__u64 id;
};
struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
};
struct cgroup {
	struct cgroup_subsys_state self; /* the first member: a css of the default hierarchy is a cgroup */
	struct kernfs_node *kn;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
typedef struct {
	__u32 val;
} kuid_t;
struct cred {
	kuid_t uid;
};
struct task_struct {
	int tgid;
	struct mm_struct *mm;
	struct css_set *cgroups;
	const struct cred *cred;
};
struct sock_common {
	unsigned short skc_family;
};
struct sock {
	struct sock_common __sk_common;
};
struct socket {
	struct sock *sk;
};
struct bpf_iter_meta;
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

#pragma clang attribute pop
