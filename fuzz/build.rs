//! Builds the parser of the BPF programs for this machine, with the coverage that the fuzzer sees.

fn main() {
    println!("cargo:rerun-if-changed=src/packet.c");
    println!("cargo:rerun-if-changed=../crates/linux/bpf/packet.h");
    println!("cargo:rerun-if-changed=../crates/linux/bpf/protocols.h");
    if std::env::var_os("CARGO_FEATURE_LINUX").is_none() {
        return;
    }
    cc::Build::new()
        .compiler("clang")
        .file("src/packet.c")
        .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp")
        .flag("-Wno-unused-function")
        .flag("-Wno-unused-parameter")
        .opt_level(1)
        .compile("packet");
}
