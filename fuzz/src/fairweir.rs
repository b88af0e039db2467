//! Fuzzes the readers of `fairweir`.
#![no_main]

#[path = "one.rs"]
mod one;

libfuzzer_sys::fuzz_target!(|data: &[u8]| one::of(fairweir::fuzz::TARGETS)(data));
