//! BC-PQP keeps real TCP to its rate and shares it, in the emulated home's relay and by the real
//! daemon, as the simulator says. Needs root.

use fairweir_testing::{note, privileged, two_of_three};
use serde_json::Value;

use crate::common::fairweir;

/// What became of the one policing point of a scenario; nothing if the machine was too busy.
fn policed(world: &str, set: &[&str]) -> Option<Value> {
    let file = format!("{}/../../scenarios/bcpqp-mix.toml", env!("CARGO_MANIFEST_DIR"));
    let mut args = vec![world, "run", &file, "--control", "none", "--json"];
    for change in set {
        args.extend(["--set", change]);
    }
    let output = fairweir(&args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{world} {set:?}: {errors}");
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    if report["valid"] == false {
        note(&format!("NOT JUDGED: {world} {set:?}: the machine is too busy for the lab"));
        return None;
    }
    Some(report["summary"]["policed"][0].take())
}

/// The rate is kept, without bursts.
fn assert_kept(policed: &Value) {
    let ratio = policed["rate_ratio"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() <= 0.02, "{policed:#}");
    assert!(policed["steady"]["p99"].as_f64().unwrap() <= 1.5, "{policed:#}");
    assert!(policed["start_up"]["max"].as_f64().unwrap() <= 3.0, "{policed:#}");
}

/// The worlds lose alike: by half at most. The last drop of a start may count for one of them.
fn assert_lose_alike(lab: &Value, sim: &Value) {
    let [lab, sim] = [lab, sim].map(|p| p["loss_steady"].as_f64().unwrap());
    assert!(lab <= sim * 1.5 + 0.002 && sim <= lab * 1.5 + 0.002, "lab {lab}, sim {sim}");
}

#[test]
fn real_tcp_of_mixed_kinds_shares_a_policed_rate_as_in_the_simulator() {
    if !privileged() {
        return;
    }
    let sim = policed("sim", &[]).unwrap();
    two_of_three(|| {
        let Some(lab) = policed("lab", &[]) else { return };
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
    let sim = policed("sim", &set).unwrap();
    two_of_three(|| {
        let Some(lab) = policed("lab", &set) else { return };
        assert_kept(&lab);
        assert_lose_alike(&lab, &sim);
        assert!(lab["passed"].as_u64().unwrap() > 10_000, "{lab:#}");
        assert!(lab["jain"].is_null(), "the daemon counts subscribers: {lab:#}");
    });
}

#[test]
fn the_daemon_is_for_all_flows_or_none() {
    let file = format!("{}/../../scenarios/bcpqp-mix.toml", env!("CARGO_MANIFEST_DIR"));
    let changes = ["--set", "police.home.by=daemon", "--set", "police.home.flows=[0]"];
    let output = fairweir(&[&["sim", "check", &file], &changes[..]].concat());
    let error = crate::common::only_error_line(&output);
    assert!(!output.status.success() && error.contains("all flows or none"), "{error}");
}
