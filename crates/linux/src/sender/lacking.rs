//! What a kernel lacks if it cannot run the congestion controls.
//!
//! The kernel's answer is the authority: this module is used after a refusal, and only explains it. The loader finds
//! types and functions of the kernel by their names in its type information, so a missing name is the reason.

use std::path::Path;

use crate::bpf::BTF;

/// What is missing and what would help; `None` if no known cause is found: then the loader's message is shown.
pub(super) fn lacking() -> Option<String> {
    let Ok(mut names) = std::fs::read(BTF) else {
        return Some(format!("{BTF} is missing; it needs a kernel with CONFIG_DEBUG_INFO_BTF"));
    };
    // The type information of modules is in the same directory.
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

/// Names that a capable kernel has, and the version or option that provides them: congestion controls in
/// BPF (net/ipv4/bpf_tcp_ca.c), their registration by a link (kernel/bpf/bpf_struct_ops.c), and the
/// kernel's own control that `bpf/sender.bpf.c` calls and that can be left out.
const NEEDED: [(&str, &str); 3] = [
    ("bpf_struct_ops_tcp_congestion_ops", "kernel 6.4 with CONFIG_BPF_JIT"),
    ("bpf_struct_ops_link", "kernel 6.4"),
    ("cubictcp_cong_avoid", "CONFIG_TCP_CONG_CUBIC; if that is a module, load it"),
];
