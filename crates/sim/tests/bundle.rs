//! A bundle on a bottleneck: the target is held, and who is not in the bundle pays nothing.

#![allow(clippy::unwrap_used, reason = "it is a test")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use fairweir_config::{Override, Text};
use fairweir_core::receiver::Control;
use fairweir_scenario::Scenario;
use fairweir_scenario::report::Report;
use fairweir_sim::engine;

/// Plays `fs-bundle` with something else than its file says.
fn play(set: &[&str]) -> Report {
    play_file(include_str!("../../../scenarios/fs-bundle.toml"), set, 1)
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
        assert!((0.95..1.02).contains(&by_target), "{controller} {by_target}");
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
    // Of the mean of all eight, its own rate included.
    let wanted = (rate(&report, 0) + rate(&report, 1)) / 8.0 * 2.0;
    assert!((target / wanted - 1.0).abs() < 0.05, "{target} {wanted}");
    assert!((rate(&report, 0) / target - 1.0).abs() < 0.05);
}

#[test]
fn stunts_at_their_floors_make_a_target_unreachable() {
    // What they have at most, so that nothing is left to give up.
    let report = play(&["bundle.0.min_rate=5mbit", "duration=60s", "settle=20s"]);
    let free = &report.summary.bundled[0].free[0];
    assert_eq!((free.verdict, free.reason.is_some()), ("unreachable", true));
    assert_eq!(free.signals.delegated, 0);
}

#[test]
#[ignore = "exploration"]
fn cells() {
    let text = include_str!("../../../scenarios/fs-kernel.toml");
    for cc in ["reno", "cubic"] {
        for (rate, target) in [("10mbit", "1.25mbit"), ("40mbit", "5mbit")] {
            for rtt in ["20ms", "80ms"] {
                let mut set = vec![
                    format!("link.rate={rate}"),
                    format!("link.up_rate={rate}"),
                    format!("bundle.0.free.0.target={target}"),
                    "duration=130s".to_owned(),
                ];
                for flow in 0..3 {
                    set.push(format!("flow.{flow}.rtt={rtt}"));
                    set.push(format!("flow.{flow}.congestion_control={cc}"));
                }
                let all = |more: &str| {
                    let mut set: Vec<&str> = set.iter().map(String::as_str).collect();
                    set.push(more);
                    let reports: Vec<Report> = (1..=10).map(|s| play_file(text, &set, s)).collect();
                    let mean = |of: &dyn Fn(&Report) -> f64| {
                        reports.iter().map(of).sum::<f64>() / reports.len() as f64
                    };
                    let by = mean(&|r| {
                        let free = &r.summary.bundled[0].free[0];
                        free.rate.as_mbit_f64() / free.target.unwrap().as_mbit_f64()
                    });
                    let signals = reports[0].summary.bundled[0].clone();
                    (by, mean(&|r| rate_of(r, 2)), mean(&|r| rate_of(r, 0) + rate_of(r, 1)),
                     mean(&|r| r.summary.isp_drops as f64), signals)
                };
                let (with, without) = (all("bundle.0.controller=track"), all("bundle.0.controller=none"));
                println!("{cc} {rate} {rtt}: by {:.3} others {:.3} bundle {:.3} drops {:.3} {:?} {:?}",
                    with.0, with.1 / without.1, with.2 / without.2, with.3 / without.3,
                    with.4.free[0].signals, with.4.stunts);
            }
        }
    }
}
fn rate_of(report: &Report, group: usize) -> f64 {
    report.summary.groups[group].rate.as_mbit_f64()
}
