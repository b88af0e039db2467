//! Which of a crate's targets is fuzzed.

use std::sync::OnceLock;

/// The target whose name is in `FUZZ_TARGET`.
pub fn of(targets: &[(&'static str, fn(&[u8]))]) -> fn(&[u8]) {
    static ONE: OnceLock<fn(&[u8])> = OnceLock::new();
    *ONE.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is set");
        let found = targets.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no target {name}")).1
    })
}
