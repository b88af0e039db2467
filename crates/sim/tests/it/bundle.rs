//! A bundle on a bottleneck: the target is held, and connections outside the bundle pay nothing.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use fairweir_config::{Override, Text};
use fairweir_scenario::report::Report;
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

/// Plays `fs-bundle` with overrides of its file.
fn play(set: &[&str]) -> Report {
    play_file(include_str!("../../../../scenarios/fs-bundle.toml"), set, 1)
}

fn play_file(text: &str, set: &[&str], seed: u64) -> Report {
    let set: Vec<Override> = set.iter().map(|set| set.parse().unwrap()).collect();
    let refuse = |_: &Path| panic!("no other file");
    let text = Text::new(text, "bundle.toml");
    let scenario = Scenario::parse_with(&text, &set, &refuse).unwrap();
    engine::play(&scenario, Control::None, seed, &|_| {}, &AtomicBool::new(false)).unwrap()
}

fn rate(report: &Report, group: usize) -> f64 {
    report.summary.groups[group].rate.as_mbit_f64()
}

#[test]
fn twice_the_fair_share_is_held_by_stunts_alone() {
    let plain = play(&["bundle.0.controller=none"]);
    let without = &plain.summary.bundled[0].free[0];
    assert_eq!((without.signals.signals, without.gain), (0, None));
    assert!(rate(&plain, 0) < 1.8, "it has its fair share of 1.43 Mbit/s: {}", rate(&plain, 0));
    for controller in ["track", "pi"] {
        let report = play(&[&format!("bundle.0.controller={controller}")]);
        let free = &report.summary.bundled[0].free[0];
        let by_target = free.rate.as_mbit_f64() / 2.8;
        assert!((0.93..1.02).contains(&by_target), "{controller} {by_target}");
        let others = rate(&report, 2) / rate(&plain, 2);
        assert!(others > 0.97, "{controller}: the others have {others} of what they had");
        assert!(rate(&report, 1) < rate(&plain, 1) - 0.9, "the stunts pay");
        assert_eq!(free.signals.signals, free.signals.delegated + free.signals.taken);
        assert!(free.signals.delegated > 20, "{:?}", free.signals);
        assert!(report.summary.isp_loss < plain.summary.isp_loss.map(|loss| loss * 1.05));
    }
}

#[test]
fn less_than_the_fair_share_is_held_and_the_stunts_have_the_rest() {
    let plain = play(&["bundle.0.controller=none"]);
    let report = play(&["bundle.0.free.0.target=0.7mbit"]);
    let by_target = rate(&report, 0) / 0.7;
    assert!((0.95..1.05).contains(&by_target), "{by_target}");
    assert!(rate(&report, 1) > rate(&plain, 1), "{}", rate(&report, 1));
    assert!(report.summary.bundled[0].stunts.signals > 100);
}

#[test]
fn a_target_of_so_many_connections_follows_the_bundle() {
    let set = "bundle.0.free=[{ group = \"free\", connections = 2 }]";
    let report = play(&[set, "flow.0.congestion_control=cubic"]);
    let free = &report.summary.bundled[0].free[0];
    let target = free.target.unwrap().as_mbit_f64();
    // Twice the mean of all eight connections, its own rate included.
    let wanted = (rate(&report, 0) + rate(&report, 1)) / 8.0 * 2.0;
    assert!((target / wanted - 1.0).abs() < 0.05, "{target} {wanted}");
    assert!((rate(&report, 0) / target - 1.0).abs() < 0.05);
}

#[test]
fn stunts_at_their_floors_make_a_target_unreachable() {
    // Their floor is the most they can have, so that nothing is left to give up.
    let report = play(&["bundle.0.min_rate=5mbit", "duration=60s", "settle=20s"]);
    let free = &report.summary.bundled[0].free[0];
    assert_eq!((free.verdict, free.reason.is_some()), ("unreachable", true));
    assert_eq!(free.signals.delegated, 0);
}

/// The rate of the free connection divided by its target, and the rate of the others with the
/// bundle divided by that without, beside a drop-tail queue: means over the seeds.
fn at_drop_tail(sender: &str, mbit: u64, rtt: &str, seeds: u64) -> (f64, f64) {
    let mut set = vec![
        format!("link.rate={mbit}mbit"),
        format!("link.up_rate={mbit}mbit"),
        format!("bundle.0.free.0.target={}kbit", mbit * 125),
        "duration=130s".to_owned(),
    ];
    for flow in 0..3 {
        set.push(format!("flow.{flow}.rtt={rtt}"));
        set.push(format!("flow.{flow}.congestion_control={sender}"));
    }
    let text = include_str!("../../../../scenarios/fs-kernel.toml");
    let mean = |controller: &str, group: usize| {
        let set: Vec<&str> = set.iter().map(String::as_str).chain([controller]).collect();
        let rates = (1..=seeds).map(|seed| rate(&play_file(text, &set, seed), group));
        rates.sum::<f64>() / seeds as f64
    };
    let (with, without) = ("bundle.0.controller=track", "bundle.0.controller=none");
    (mean(with, 0) / (mbit as f64 * 0.125), mean(with, 2) / mean(without, 2))
}

/// All connections lose packets at the same time, so stunts have signals of their own in addition
/// to those that they answer for others.
#[test]
fn at_a_full_queue_others_have_what_they_have_beside_plain_connections() {
    let (by_target, others) = at_drop_tail("reno", 10, "20ms", 5);
    assert!((0.97..1.03).contains(&by_target), "{by_target}");
    assert!(others > 0.97, "{others}");
}

#[test]
#[ignore = "long: 640 runs"]
fn at_full_queues_of_all_kinds_others_have_what_they_have_beside_plain_connections() {
    for sender in ["reno", "cubic"] {
        for mbit in [10, 40] {
            for rtt in ["20ms", "80ms"] {
                let (by_target, others) = at_drop_tail(sender, mbit, rtt, 20);
                println!(
                    "{sender} {mbit} Mbit/s {rtt}: {by_target:.3} of the target, others {others:.3}"
                );
                assert!((0.97..1.03).contains(&by_target), "{by_target}");
                assert!(others > 0.97, "{others}");
            }
        }
    }
}

/// Plays `fs-apart` or another file with CUBIC or Reno; returns the most stunts apart, and since when.
fn apart(file: &str, sender: &str, set: &[&str], seed: u64) -> (u64, Option<f64>) {
    let text = match file {
        "fs-apart" => include_str!("../../../../scenarios/fs-apart.toml"),
        "fs-bundle" => include_str!("../../../../scenarios/fs-bundle.toml"),
        _ => include_str!("../../../../scenarios/fs-kernel.toml"),
    };
    let flows = if file == "fs-apart" { 5 } else { 3 };
    let senders = (0..flows).map(|flow| format!("flow.{flow}.congestion_control={sender}"));
    let senders: Vec<String> = senders.collect();
    let set: Vec<&str> = senders.iter().map(String::as_str).chain(set.iter().copied()).collect();
    let report = play_file(text, &set, seed);
    let free = &report.summary.bundled[0].free[0];
    (free.apart as u64, free.apart_from_s)
}

#[test]
fn stunts_behind_another_bottleneck_are_no_longer_asked_and_the_others_hold_the_target() {
    let text = include_str!("../../../../scenarios/fs-apart.toml");
    let report = play_file(text, &[], 1);
    let free = &report.summary.bundled[0].free[0];
    assert_eq!(free.apart, 4, "those behind the other queue");
    assert!(free.apart_from_s.unwrap() < 90.0, "{:?}", free.apart_from_s);
    let by_target = free.rate.as_mbit_f64() / 1.8;
    assert!((0.95..1.05).contains(&by_target), "{by_target}");
    // Once they were found out, they give up nothing.
    let plain = play_file(text, &["bundle.0.controller=none"], 1);
    let far = rate(&report, 2) / rate(&plain, 2);
    assert!(far > 0.97, "those behind the other queue have {far} of what they have without");
}

#[test]
fn stunts_at_the_same_bottleneck_are_not_said_to_be_behind_another() {
    for sender in ["reno", "cubic"] {
        for file in ["fs-bundle", "fs-kernel"] {
            assert_eq!(apart(file, sender, &["duration=150s"], 1).0, 0, "{file} {sender}");
        }
    }
}

/// Shared bottlenecks of several kinds.
const SHARED: [(&str, &str, &[&str]); 7] = [
    ("RED, 28 connections at 40 Mbit/s", "fs-bundle", &[]),
    ("drop-tail, 16 at 10 Mbit/s", "fs-kernel", &[]),
    (
        "drop-tail, 16 at 40 Mbit/s, 80 ms",
        "fs-kernel",
        &[
            "link.rate=40mbit",
            "link.up_rate=40mbit",
            "bundle.0.free.0.target=5mbit",
            "flow.0.rtt=80ms",
            "flow.1.rtt=80ms",
            "flow.2.rtt=80ms",
        ],
    ),
    ("drop-tail, RTTs of 20, 90 and 40 ms", "fs-kernel", &["flow.1.rtt=90ms", "flow.2.rtt=40ms"]),
    ("drop-tail of 15 ms", "fs-kernel", &["link.buffer=15ms"]),
    ("drop-tail of 500 ms", "fs-kernel", &["link.buffer=500ms"]),
    (
        "drop-tail, 4 connections",
        "fs-kernel",
        &["flow.1.connections=2", "flow.2.connections=1", "bundle.0.free.0.target=3mbit"],
    ),
];
/// Bottlenecks that are not shared.
const SEPARATE: [(&str, &[&str]); 4] = [
    ("two of 10 Mbit/s, 100 ms", &[]),
    ("10 and 30 Mbit/s", &["police.1.rate=30mbit"]),
    ("two of 20 ms", &["police.0.queue=25kB", "police.1.queue=25kB"]),
    ("100 and 20 ms", &["police.1.queue=25kB"]),
];

#[test]
#[ignore = "long: 440 runs of 300 s"]
fn how_often_a_bottleneck_is_judged_wrongly_and_how_soon_rightly() {
    let seeds = 20;
    for sender in ["reno", "cubic"] {
        for (name, file, set) in SHARED {
            let set: Vec<&str> = set.iter().copied().chain(["duration=300s"]).collect();
            let wrong: u64 = (1..=seeds).map(|seed| apart(file, sender, &set, seed).0).sum();
            println!("shared, {sender}, {name}: {wrong} stunts wrongly apart in {seeds} runs");
        }
        for (name, set) in SEPARATE {
            let set: Vec<&str> = set.iter().copied().chain(["duration=300s"]).collect();
            let runs: Vec<_> =
                (1..=seeds).map(|seed| apart("fs-apart", sender, &set, seed)).collect();
            let all = runs.iter().filter(|(apart, _)| *apart == 4).count();
            let wrong = runs.iter().filter(|(apart, _)| *apart > 4).count();
            let mut since: Vec<f64> = runs.iter().filter_map(|(_, since)| *since).collect();
            since.sort_by(f64::total_cmp);
            let (median, last) = (since.get(since.len() / 2), since.last());
            println!(
                "separate, {sender}, {name}: all four found in {all} of {seeds} runs, more in {wrong}; \
                 the first after {median:?} s, at the latest {last:?} s"
            );
        }
    }
}
