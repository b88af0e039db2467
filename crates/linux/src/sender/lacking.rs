//! What a kernel lacks that cannot run the congestion controls.
//!
//! The kernel's answer is the authority: this is asked after a refusal, and only explains it. The loader finds types
//! and functions of the kernel by their names in its type information, so a name that is not there is the reason.

use std::path::Path;

use crate::bpf::BTF;

/// What is missing and what would be right; `None` if nothing that is known, so that the loader's own words count.
pub(super) fn lacking() -> Option<String> {
    let Ok(mut names) = std::fs::read(BTF) else {
        return Some(format!("{BTF} is missing; it needs a kernel with CONFIG_DEBUG_INFO_BTF"));
    };
    // Those of modules are beside it.
    let beside = Path::new(BTF).parent().and_then(|dir| std::fs::read_dir(dir).ok());
    for file in beside.into_iter().flatten().flatten() {
        if file.file_name() != "vmlinux" {
            names.extend(std::fs::read(file.path()).unwrap_or_default());
        }
    }
    let (name, needed) = NEEDED.iter().find(|(name, _)| !has(&names, name))?;
    Some(format!("this kernel has no {name} (by {BTF}); it needs {needed}"))
}

/// Whether type information has a name: strings in it begin after a zero and end with one.
fn has(names: &[u8], name: &str) -> bool {
    let ended = [b"\0", name.as_bytes(), b"\0"].concat();
    names.windows(ended.len()).any(|part| part == ended)
}

/// Names that the kernel has if it can, and what makes it have them: congestion controls in BPF
/// (net/ipv4/bpf_tcp_ca.c), their registration by a link (kernel/bpf/bpf_struct_ops.c), and the kernel's own that
/// `bpf/sender.bpf.c` calls and that can be left out.
const NEEDED: [(&str, &str); 3] = [
    ("bpf_struct_ops_tcp_congestion_ops", "kernel 6.4 with CONFIG_BPF_JIT"),
    ("bpf_struct_ops_link", "kernel 6.4"),
    ("cubictcp_cong_avoid", "CONFIG_TCP_CONG_CUBIC; if that is a module, load it"),
];
