//! Fuzzes the parsers of `fairweir-config`.
#![no_main]

#[path = "one.rs"]
mod one;

libfuzzer_sys::fuzz_target!(|data: &[u8]| one::of(fairweir_config::fuzz::TARGETS)(data));
