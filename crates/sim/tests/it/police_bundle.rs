//! A bundle at a policer: a free class holds its target, unmodified stunts pay, and no other class pays.

use std::sync::atomic::AtomicBool;

use fairweir_config::{Override, Text};
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

const FILE: &str = include_str!("../../../../scenarios/fs-policer.toml");
const BUNDLE: &str = "bundle = { free = \"stream\", target = \"5mbit\", stunts = \"backup\" }\n";
/// The stream's rate in the plan without a bundle.
const SHARE_BPS: f64 = 2_500_000.0;

/// Rates of stream, backup and others in bit/s, and the total rate divided by the plan's rate.
type Had = [f64; 4];

/// Plays the scenario with `times` the fair share as the target, or without a bundle.
fn play(times: Option<f64>, overrides: &[&str], seed: u64) -> Had {
    let file = FILE.replace(BUNDLE, "");
    let file = match times {
        None => file,
        Some(times) => {
            let target = format!("\"{}bit\"", (times * SHARE_BPS) as u64);
            FILE.replace("\"5mbit\"", &target)
        }
    };
    let overrides: Vec<Override> = overrides.iter().map(|o| o.parse().unwrap()).collect();
    let text = Text::new(file, "fs-policer");
    let no_files = |_: &std::path::Path| unreachable!("the scenario names no file");
    let scenario = Scenario::parse_with(&text, &overrides, &no_files).unwrap();
    let cancel = AtomicBool::new(false);
    let report = engine::play(&scenario, Control::None, seed, &|_| {}, &cancel).unwrap();
    let policed = &report.summary.policed[0];
    let rate = |flow: usize| policed.flows[flow].rate.unwrap().as_bps() as f64;
    [rate(0), rate(1), rate(2), policed.rate_ratio.unwrap()]
}

fn mean(all: &[Had]) -> Had {
    std::array::from_fn(|i| all.iter().map(|had| had[i]).sum::<f64>() / all.len() as f64)
}

/// Prints a row. Returns free by target, and others and total divided by their rates without a bundle.
fn row(what: &str, times: f64, with: Had, without: Had) -> [f64; 3] {
    let free = with[0] / (times * SHARE_BPS);
    let (others, total) = (with[2] / without[2], with[3] / without[3]);
    println!(
        "| {what} | {times} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.1} % |",
        100.0 * free,
        100.0 * with[1] / without[1],
        100.0 * others,
        100.0 * with[3],
        100.0 * without[3],
    );
    [free, others, total]
}

#[test]
fn a_free_class_holds_its_target_beside_unmodified_senders() {
    let short = ["duration=40s", "settle=10s"];
    let without = play(None, &short, 1);
    for times in [0.5, 2.5] {
        let [free, others, total] = row("reno", times, play(Some(times), &short, 1), without);
        assert!((0.93..=1.05).contains(&free), "{times}: {free:.3} of the target");
        assert!(others >= 0.97 && (0.98..=1.02).contains(&total), "{others:.3}, {total:.3}");
    }
}

#[test]
fn a_bundle_that_cannot_be_played_is_refused() {
    let refused = |from: &str, to: &str| {
        let file = FILE.replace(from, to);
        Scenario::parse(&file, "x").unwrap_err().to_string()
    };
    let target = refused("\"5mbit\"", "\"50mbit\"");
    assert!(target.contains("target 50mbit is out of range (64kbit to 40mbit"), "{target}");
    let class = refused("stunts = \"backup\"", "stunts = \"backups\"");
    assert!(class.contains("no class `backups`"), "{class}");
    let key = refused(", stunts = \"backup\"", "");
    assert!(key.contains("stunts"), "{key}");
    let other = refused("rate = \"40mbit\"", "rate = \"40mbit\"\nalgorithm = \"token-bucket\"");
    assert!(other.contains("by `bc-pqp`"), "{other}");
}

/// `cargo test -p fairweir-sim --test it ten_seeds -- --ignored --nocapture`: the table in
/// docs/research/papers/free-and-stunts.md.
#[test]
#[ignore = "long: some minutes"]
fn ten_seeds_of_each_target() {
    println!(
        "| senders | target by share | free by target | stunts | others | all by the plan | without a bundle |"
    );
    let mut missed = Vec::new();
    for (name, overrides) in VARIANTS {
        let all =
            |times| mean(&(1..=10).map(|seed| play(times, overrides, seed)).collect::<Vec<_>>());
        let without = all(None);
        for times in [0.5, 1.0, 1.5, 2.0, 2.5] {
            let with = all(Some(times));
            let [free, others, total] = row(name, times, with, without);
            if (free - 1.0).abs() > 0.05 || others < 0.97 || total < 0.99 || with[3] > 1.01 {
                missed.push(format!("{name} at {times}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

const CUBIC: [&str; 3] = [
    "flow.0.congestion_control=cubic",
    "flow.1.congestion_control=cubic",
    "flow.2.congestion_control=cubic",
];
const VARIANTS: [(&str, &[&str]); 4] = [
    ("reno, 20 ms", &[]),
    ("cubic, 20 ms", &CUBIC),
    ("reno, 80 ms", &["flow.0.rtt=80ms", "flow.1.rtt=80ms", "flow.2.rtt=80ms"]),
    (
        "reno and cubic, 20 to 80 ms",
        &["flow.0.rtt=40ms", "flow.1.rtt=80ms", "flow.2.congestion_control=cubic"],
    ),
];
