//! Fuzzes the readers of `fairweir-market`.
#![no_main]

#[path = "one.rs"]
mod one;

libfuzzer_sys::fuzz_target!(|data: &[u8]| one::of(fairweir_market::fuzz::TARGETS)(data));
