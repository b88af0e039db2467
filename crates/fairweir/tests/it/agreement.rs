//! Compares the simulator with real TCP: the same scenarios are played in both worlds and must agree, and
//! where shares are set they must be right in both.

use fairweir_testing::{one_at_a_time, one_of_four, privileged, two_of_three, void};
use serde_json::Value;

use crate::common::played::{file, reports};

/// BBR uses the best rate of ten rounds, so each pause of a busy machine lengthens its queue, which is only a
/// few ms. Source: docs/results/validation.md, which has the numbers of a quiet machine.
const NOISE_MS: f64 = 3.0;

/// BBR mistakes a late link for a longer path: above this lateness (p99), a play says nothing about the simulator.
const LATE_MS_MAX: f64 = 0.6;

/// Plays a scenario in both worlds.
fn play(scenario: &str, controls: &[&str], set: &[&str]) -> Vec<Value> {
    let file = file(scenario);
    let mut args = vec!["compare", &file];
    for control in controls {
        args.extend(["--control", control]);
    }
    for change in set {
        args.extend(["--set", change]);
    }
    let compared = reports(&args);
    assert_eq!(compared.len(), controls.len());
    compared
}

fn assert_agrees(compared: &[Value]) {
    for c in compared {
        let what = format!("{} {}", c["scenario"], c["control"]);
        assert_eq!(c["agrees"], true, "{what}\n{:#}", c["measures"]);
    }
}

/// Plays a scenario with these changes in both worlds and checks that they agree.
fn compare(scenario: &str, controls: &[&str], set: &[&str]) -> Vec<Value> {
    let compared = play(scenario, controls, set);
    assert_agrees(&compared);
    compared
}

/// The values of a measure in the lab and in the simulator.
fn measure(compared: &Value, name: &str) -> (f64, f64) {
    let of = compared["measures"].as_array().unwrap().iter().find(|m| m["name"] == name).unwrap();
    (of["lab"].as_f64().unwrap(), of["sim"].as_f64().unwrap())
}

/// The longest test comes first: tests begin in the order of their names.
#[test]
fn a_change_of_groups_and_demands_is_followed_by_crab_alike_in_both_worlds() {
    if privileged() {
        two_of_three(compare_figure_7);
    }
}

fn compare_figure_7() {
    // The same changes as in the file, but earlier; each is measured for at least 4 s after it has settled.
    let sooner = [
        "duration=76s",
        "flow.1.start=11s",
        "flow.2.start=22s",
        "flow.3.start=33s",
        "flow.3.stop=44s",
        "flow.2.steps.0.at=55s",
        "flow.1.steps.0.at=65s",
    ];
    for c in compare("crab-fig7-short", &["wfq", "crab"], &sooner) {
        let (lab, _) = measure(&c, "allocation error");
        assert!(lab <= 0.06, "error {lab:.3}");
        let (lab, _) = measure(&c, "utilisation");
        assert!(lab >= 0.94, "utilisation {lab:.3}");
    }
}

/// Plays one flow alone: both worlds agree on how its congestion control uses the link.
fn compare_alone(congestion_control: &str) {
    let change = format!("flow.0.congestion_control={congestion_control}");
    let compared = play("single", &["none"], &[&change, "duration=24s"]);
    let late = compared[0]["lab"]["lateness"]["p99_ms"].as_f64().unwrap();
    if congestion_control == "bbr" && late > LATE_MS_MAX {
        void(&format!("the link was late by {late:.2} ms, which BBR takes for a longer path"));
    }
    assert_agrees(&compared);
    let (lab, sim) = measure(&compared[0], "utilisation");
    assert!((sim / lab - 1.0).abs() <= 0.1, "utilisation: lab {lab:.3}, sim {sim:.3}");
    let (lab, sim) = measure(&compared[0], "ISP queue mean, ms");
    let told = format!("queue: lab {lab:.1} ms, sim {sim:.1} ms; link late p99 {late:.2} ms");
    assert!((sim - lab).abs() <= (lab * 0.15).max(NOISE_MS), "{told}");
}

#[test]
fn a_lone_reno_flow_fills_link_and_queue_alike_in_both_worlds() {
    if privileged() {
        two_of_three(|| compare_alone("reno"));
    }
}

#[test]
fn a_lone_cubic_flow_fills_link_and_queue_alike_in_both_worlds() {
    if privileged() {
        two_of_three(|| compare_alone("cubic"));
    }
}

#[test]
fn a_lone_bbr_flow_fills_link_and_queue_alike_in_both_worlds() {
    if privileged() {
        // Another test delays the link more than BBR tolerates. Any disturbance of the machine lengthens BBR's queue.
        one_at_a_time(|| one_of_four(|| compare_alone("bbr")));
    }
}

/// Not without a control: there, BBR's share grows with the load of the machine (docs/results/validation.md).
#[test]
fn cubic_beside_bbr_fares_alike_in_both_worlds() {
    if privileged() {
        two_of_three(|| {
            compare("mix-cubic-bbr", &["wfq", "crab"], &[]);
        });
    }
}

#[test]
fn crab_follows_a_capacity_that_falls_and_rises_alike_in_both_worlds() {
    if privileged() {
        two_of_three(|| {
            compare("step-10", &["wfq", "crab"], &[]);
        });
    }
}
