//! CRAB's loop over many seeds: faults that a few runs on real packets may miss.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

/// Plays a scenario of the project under `crab` with six seeds and checks the shares.
fn assert_shares(name: &str, error_max: f64, utilization_min: f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let scenario = Scenario::parse(&fs::read_to_string(path).unwrap(), name).unwrap();
    for seed in 1..=6 {
        let cancel = AtomicBool::new(false);
        let report = engine::play(&scenario, Control::Crab, seed, &|_| {}, &cancel).unwrap();
        let error = report.summary.allocation_error.unwrap();
        let utilization = report.summary.utilization.unwrap();
        let fine = error <= error_max && utilization >= utilization_min;
        assert!(fine, "{name}, seed {seed}: error {error}, utilisation {utilization}");
    }
}

#[test]
fn a_group_that_wants_little_more_than_its_share_does_not_hide_the_capacity() {
    assert_shares("crab-fig8", 0.02, 0.95);
}

#[test]
fn a_capacity_that_falls_to_a_third_and_comes_back_is_followed() {
    assert_shares("step-10", 0.02, 0.97);
}

#[test]
fn groups_that_join_leave_and_want_less_are_followed() {
    assert_shares("crab-fig7-short", 0.03, 0.96);
}

#[test]
fn a_slow_first_flow_does_not_end_at_the_floor() {
    assert_shares("rtts-first-200", 0.03, 0.95);
}

#[test]
fn a_capacity_remembered_too_high_is_corrected() {
    assert_shares("remembered-high", 0.02, 0.97);
}

#[test]
fn silence_is_no_lack_of_capacity() {
    assert_shares("idle-then-load", 0.02, 0.97);
}
