//! What every test of the binary uses.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

pub mod access;
pub mod far;
pub mod forger;
pub mod stage;

/// The binary under test.
pub const FAIRWEIR: &str = env!("CARGO_BIN_EXE_fairweir");

/// Runs the binary and waits for its end.
pub fn fairweir(args: &[&str]) -> Output {
    Command::new(FAIRWEIR).args(args).env_remove("RUST_LOG").output().unwrap()
}

/// Does `job` while no other test of this process does one: emulated links disturb each other.
pub fn one_at_a_time<R>(job: impl FnOnce() -> R) -> R {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    job()
}

/// Judges a claim about real packets on a machine that others use too: one run that fails it is told
/// and forgiven if the next two hold it.
///
/// # Panics
/// With the claim's own words, if two runs of three fail.
pub fn two_of_three(claim: impl Fn()) {
    if catch_unwind(AssertUnwindSafe(&claim)).is_err() {
        eprintln!("FAILED ONCE: played twice more, and both must hold");
        claim();
        claim();
    }
}

/// Its only line on stderr, without the line break.
///
/// # Panics
/// If there is not exactly one.
pub fn only_error_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line on stderr, not: {text}");
    assert!(text.ends_with('\n'), "a whole line: {text}");
    text.trim_end().to_owned()
}

/// `fairweir check` of a file.
pub fn check(file: &Path) -> Output {
    fairweir(&["check", file.to_str().unwrap()])
}
