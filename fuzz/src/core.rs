//! Fuzzes the parsers of `fairweir-core`.
#![no_main]

#[path = "one.rs"]
mod one;

libfuzzer_sys::fuzz_target!(|data: &[u8]| one::of(fairweir_core::fuzz::TARGETS)(data));
