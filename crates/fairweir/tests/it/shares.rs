//! The main claim with real packets: the daemon in an emulated home makes downloads follow weights that only the
//! daemon knows. The same files and bounds apply if `scenarios/` is played by hand; here, some are played for a
//! shorter time than their files say.

use fairweir_testing::{privileged, two_of_three};
use serde_json::Value;

use crate::common::played::{file, reports};

/// Plays a scenario of the project under these controls at the same time, for `duration` if given.
fn play<const N: usize>(scenario: &str, duration: Option<&str>, controls: [&str; N]) -> [Value; N] {
    let file = file(scenario);
    let mut args = vec!["lab", "run", &file];
    for control in controls {
        args.extend(["--control", control]);
    }
    let change = duration.map(|duration| format!("duration={duration}"));
    args.extend(change.iter().flat_map(|change| ["--set", change]));
    reports(&args).try_into().unwrap()
}

/// The first group's rate divided by the second group's rate.
fn ratio(report: &Value) -> f64 {
    let rate = |i: usize| report["summary"]["groups"][i]["rate_bps"].as_f64().unwrap();
    rate(0) / rate(1)
}

fn assert_ratio(scenario: &str, wanted: f64, within: f64) {
    let [none, report] = play(scenario, Some("27s"), ["none", "crab"]);
    let (none, crab) = (ratio(&none), ratio(&report));
    let is_near = |ratio: f64| (ratio / wanted - 1.0).abs() <= within;
    assert!(is_near(crab), "{scenario}: {crab:.2} under crab\n{report}");
    assert!(!is_near(none), "{scenario}: {none:.2} without control, so this proves nothing");
}

fn assert_shared() {
    let [report] = play("mix-cubic-bbr", None, ["fairweir"]);
    let error = report["summary"]["allocation_error"].as_f64().unwrap();
    let utilization = report["summary"]["utilization"].as_f64().unwrap();
    let fine = error <= 0.04 && utilization >= 0.96;
    assert!(fine, "error {error:.3}, utilisation {utilization:.3}\n{report}");
}

#[test]
fn crab_makes_cubic_obey_its_weight_beside_bbr_over_ipv6() {
    if privileged() {
        two_of_three(|| assert_ratio("weights-5-1-mixed-ipv6", 5.0, 0.15));
    }
}

#[test]
fn crab_tells_two_applications_of_one_server_apart() {
    if privileged() {
        two_of_three(|| assert_ratio("by-app", 5.0, 0.08));
    }
}

#[test]
fn the_default_control_shares_between_cubic_and_bbr() {
    if privileged() {
        two_of_three(assert_shared);
    }
}

#[test]
fn the_default_control_leaves_no_queue_at_the_isp_after_a_fall() {
    if privileged() {
        two_of_three(assert_no_queue_after_a_fall);
    }
}

fn assert_no_queue_after_a_fall() {
    let [report] = play("step-27", Some("50s"), ["fairweir"]);
    let summary = &report["summary"];
    let number = |name: &str| summary[name].as_f64().unwrap();
    let queue = |name: &str| summary["isp_queue_ms"][name].as_f64().unwrap();
    assert!(number("allocation_error") <= 0.02, "{summary}");
    assert!(number("utilization") >= 0.975, "{summary}");
    assert!(queue("mean") <= 8.0 && queue("p99") <= 25.0, "{summary}");
}

#[test]
fn quic_keeps_to_its_share_beside_tcp() {
    if privileged() {
        two_of_three(assert_quic_keeps_to_its_share);
    }
}

fn assert_quic_keeps_to_its_share() {
    let [report] = play("quic-vs-tcp", Some("24s"), ["fairweir"]);
    let summary = &report["summary"];
    let groups = summary["groups"].as_array().unwrap();
    let quic = groups.iter().find(|group| group["name"] == "quic").unwrap();
    let [rate, fair] = ["rate_bps", "fair_bps"].map(|key| quic[key].as_f64().unwrap());
    assert!((rate / fair - 1.0).abs() <= 0.1, "{rate} instead of {fair}\n{summary}");
}
