//! Compiles the BPF programs, and makes Rust's side of what they share with user space: structures
//! and numbers. Needs clang, but neither the build machine's BTF nor its headers beyond
//! linux-libc-dev.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

mod numbers;
mod structs;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets the architecture")?;
    // Debian keeps asm/types.h in a folder per architecture, where clang does not look for bpf.
    let multiarch = format!("-I/usr/include/{arch}-linux-gnu");
    for name in ["abi", "admit", "classify", "lift", "police", "router", "sender"] {
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
    let numbers = HEADERS.iter().map(|path| numbers::of(path)).collect::<Result<String>>()?;
    fs::write(out.join("numbers.rs"), numbers).context("write numbers.rs")?;
    let structs = structs::of(&out.join("abi.bpf.o"))?;
    fs::write(out.join("structs.rs"), structs).context("write structs.rs")?;
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build");
    Ok(())
}

/// What the BPF programs and user space share.
const HEADERS: [&str; 6] = [
    "bpf/abi.h",
    "bpf/admit_abi.h",
    "bpf/binding_abi.h",
    "bpf/police_abi.h",
    "bpf/router_abi.h",
    "bpf/sender_abi.h",
];
