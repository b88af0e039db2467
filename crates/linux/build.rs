//! Compiles the BPF programs; needs clang, but neither the build machine's BTF nor its headers
//! beyond linux-libc-dev.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets the architecture")?;
    // Debian keeps asm/types.h in a folder per architecture, where clang does not look for bpf.
    let multiarch = format!("-I/usr/include/{arch}-linux-gnu");
    for name in ["classify", "lift", "police"] {
        let source = format!("bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args([
                multiarch.as_str(),
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
