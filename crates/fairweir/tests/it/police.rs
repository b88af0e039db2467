//! BC-PQP limits real TCP to its rate and shares that rate, in the emulated home's relay and in
//! the real daemon, as in the simulator. Needs root.

use fairweir_testing::{privileged, two_of_three};
use serde_json::Value;

use crate::common::{fairweir, played};

/// The results of a scenario's only policing point.
fn policed(world: &str, set: &[&str]) -> Value {
    let file = played::file("bcpqp-mix");
    let mut args = vec![world, "run", &file, "--control", "none"];
    for change in set {
        args.extend(["--set", change]);
    }
    played::report(&args)["summary"]["policed"][0].take()
}

/// The rate is kept, without bursts.
fn assert_kept(policed: &Value) {
    let ratio = policed["rate_ratio"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() <= 0.02, "{policed:#}");
    assert!(policed["steady"]["p99"].as_f64().unwrap() <= 1.5, "{policed:#}");
    assert!(policed["start_up"]["max"].as_f64().unwrap() <= 3.0, "{policed:#}");
}

/// Losses differ by at most half. The last drop at a start may be counted in one world only.
fn assert_lose_alike(lab: &Value, sim: &Value) {
    let [lab, sim] = [lab, sim].map(|p| p["loss_steady"].as_f64().unwrap());
    assert!(lab <= sim * 1.5 + 0.002 && sim <= lab * 1.5 + 0.002, "lab {lab}, sim {sim}");
}

#[test]
fn real_tcp_of_mixed_kinds_shares_a_policed_rate_as_in_the_simulator() {
    if !privileged() {
        return;
    }
    let sim = policed("sim", &[]);
    two_of_three(|| {
        let lab = policed("lab", &[]);
        for world in [&lab, &sim] {
            assert_kept(world);
            assert!(world["jain"].as_f64().unwrap() >= 0.97, "{world:#}");
        }
        assert_lose_alike(&lab, &sim);
    });
}

#[test]
fn the_real_daemon_polices_real_tcp_as_the_simulator_does() {
    if !privileged() {
        return;
    }
    let set = ["police.home.by=daemon", "police.home.queue_by=hash"];
    let sim = policed("sim", &set);
    two_of_three(|| {
        let lab = policed("lab", &set);
        assert_kept(&lab);
        assert_lose_alike(&lab, &sim);
        assert!(lab["passed"].as_u64().unwrap() > 10_000, "{lab:#}");
        assert!(lab["jain"].is_null(), "the daemon counts subscribers: {lab:#}");
    });
}

#[test]
fn the_daemon_is_for_all_flows_or_none() {
    let file = played::file("bcpqp-mix");
    let changes = ["--set", "police.home.by=daemon", "--set", "police.home.flows=[0]"];
    let output = fairweir(&[&["sim", "check", &file], &changes[..]].concat());
    let error = crate::common::only_error_line(&output);
    assert!(!output.status.success() && error.contains("all flows or none"), "{error}");
}
