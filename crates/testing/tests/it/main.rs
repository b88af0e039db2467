//! A claim that is forced to be void: the suite fails under FAIRWEIR_STRICT=1, and names it.
#![allow(clippy::unwrap_used, reason = "it is a test")]

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use fairweir_testing::once;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn a_sleep_is_not_too_short() {
    once(|| {
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));
    });
}

/// Plays the claim above as a separate suite, with these switches on. Returns its output, and its
/// line of the record.
fn play(void: &str, switches: &[&str]) -> (Output, Value) {
    let dir = TempDir::new().unwrap();
    let record = dir.path().join("judge.jsonl");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_sleep_is_not_too_short"]);
    command.env_remove("FAIRWEIR_STRICT").env_remove("FAIRWEIR_PASS");
    command.env("FAIRWEIR_JUDGE", &record).env("FAIRWEIR_VOID", void);
    command.envs(switches.iter().map(|name| (name, "1")));
    let output = command.output().unwrap();
    let record = fs::read_to_string(record).unwrap();
    assert_eq!(record.lines().count(), 1, "{record}");
    (output, serde_json::from_str(&record).unwrap())
}

#[test]
fn a_claim_that_is_void_by_force_fails_the_strict_suite_and_is_named() {
    let (output, line) = play("a_sleep_is", &["FAIRWEIR_STRICT"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{output:?}");
    assert!(said.contains("NOT JUDGED: fairweir-testing a_sleep_is_not_too_short: void"), "{said}");
    assert_eq!(line["verdict"], "not judged");
    assert_eq!(line["runs"][0]["why"], "forced by FAIRWEIR_VOID");
}

#[test]
fn in_the_first_of_several_passes_a_claim_makes_way_and_is_recorded() {
    let (output, line) = play("a_sleep_is", &["FAIRWEIR_STRICT", "FAIRWEIR_PASS"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(line["verdict"], "not judged");
    assert_eq!(line["runs"].as_array().unwrap().len(), 2);
    assert_eq!(line["pass"], 1);
}

#[test]
fn without_strict_it_is_a_loud_note() {
    let (output, line) = play("a_sleep_is", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("NOT JUDGED: fairweir-testing a_sleep_is_not_too_short"), "{said}");
    assert_eq!(line["verdict"], "not judged");
}

#[test]
fn another_claim_is_not_touched() {
    let (output, line) = play("another", &["FAIRWEIR_STRICT"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        (&line["verdict"], &line["claim"]),
        (&"held".into(), &"fairweir-testing a_sleep_is_not_too_short".into())
    );
}
