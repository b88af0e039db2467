//! Makes Rust constants of the headers that BPF programs and user space share, and compiles the BPF
//! programs; needs clang, but neither the build machine's BTF nor its headers
//! beyond linux-libc-dev.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets the architecture")?;
    // Debian keeps asm/types.h in a folder per architecture, where clang does not look for bpf.
    let multiarch = format!("-I/usr/include/{arch}-linux-gnu");
    let header = HEADERS.iter().map(|path| constants(path)).collect::<Result<String>>()?;
    fs::write(out.join("header.rs"), header).context("write header.rs")?;
    for name in ["classify", "lift", "police", "router", "sender"] {
        let source = format!("bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args([
                multiarch.as_str(),
                // Atomics that return what was there; a kernel with struct_ops has them.
                if name == "sender" { "-mcpu=v3" } else { "-mcpu=generic" },
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-parameter",
                "-Wno-unused-function",
            ])
            .build()
            .with_context(|| format!("compile {source}"))?;
    }
    println!("cargo:rerun-if-changed=bpf");
    Ok(())
}

/// What the BPF programs and user space share.
const HEADERS: [&str; 4] =
    ["bpf/abi.h", "bpf/police_abi.h", "bpf/router_abi.h", "bpf/sender_abi.h"];

/// The numbers that a header defines, and the sizes that it asserts, as constants of Rust:
/// `#define NAME 4` and `_Static_assert(sizeof(struct x) == 8, "abi")` become `NAME` and `SIZE_OF_X`.
fn constants(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let mut constants = String::new();
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim();
        let size = line.strip_prefix("_Static_assert(sizeof(struct ").and_then(|rest| {
            let (name, rest) = rest.split_once(") == ")?;
            Some((format!("SIZE_OF_{}", name.to_uppercase()), rest.split_once(',')?.0))
        });
        let define = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '));
        let define = define.filter(|(name, _)| !name.contains('('));
        if let Some((name, value)) = size.or(define.map(|(name, value)| (name.to_owned(), value))) {
            writeln!(constants, "pub(crate) const {name}: u64 = {};", without_suffixes(value))?;
        }
    }
    Ok(constants)
}

/// C writes `1u` where Rust writes `1`.
fn without_suffixes(expression: &str) -> String {
    let mut kept = String::new();
    let mut is_number = false;
    for c in expression.trim().chars() {
        let is_word = c.is_ascii_alphanumeric() || c == '_';
        let begins = is_word && !kept.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        is_number = if begins { c.is_ascii_digit() } else { is_number && is_word };
        if !(is_number && matches!(c, 'u' | 'l')) {
            kept.push(c);
        }
    }
    kept
}
