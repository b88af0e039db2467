//! Tests that every scenario file of the project can be read and is what its name says.

use std::fs;
use std::path::{Path, PathBuf};

use fairweir_config::Text;
use fairweir_config::file::{SCENARIO, TRACE};
use fairweir_core::units::{Span, Time};
use fairweir_scenario::{Ip, Scenario};

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Scenario {
    let load = |path: &Path| Text::read(path, &TRACE);
    let text = Text::read(path, &SCENARIO);
    let scenario = text.and_then(|text| Scenario::parse_with(&text, &[], &load));
    scenario.unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_file_is_valid_named_after_itself_and_says_what_it_shows() {
    let files = files();
    assert!(files.len() >= 20, "{files:?}");
    for path in files {
        let scenario = read(&path);
        assert_eq!(Some(scenario.name.as_str()), path.file_stem().and_then(|s| s.to_str()));
        assert!(fs::read_to_string(&path).unwrap().starts_with("# "), "{path:?} has no comment");
        let ipv6 = scenario.flows.iter().any(|f| f.ip == Ip::V6);
        assert_eq!(ipv6, scenario.name.ends_with("-ipv6"));
    }
}

/// Fair shares in kbit/s just after each event.
fn shares(name: &str) -> Vec<(u64, Vec<u64>)> {
    let path = files().into_iter().find(|p| p.file_stem().is_some_and(|s| s == name)).unwrap();
    let scenario = read(&path);
    let at = |t: Time| {
        let shares = scenario.fair_shares_at(t).unwrap();
        shares.iter().map(|r| r.as_bps() / 1_000).collect()
    };
    let seconds = |t: Time| t.as_nanos() / Span::secs(1).as_nanos();
    scenario.events().iter().map(|e| (seconds(e.at), at(e.at))).collect()
}

#[test]
fn a_chain_divides_its_plan_among_devices_and_then_among_groups() {
    assert_eq!(
        shares("chain"),
        [
            (0, vec![11_428, 5_714, 2_857, 0, 0]),
            (6, vec![7_619, 3_809, 1_904, 6_666, 0]),
            (12, vec![0, 8_888, 4_444, 6_666, 0]),
            (18, vec![0, 6_666, 3_333, 5_000, 5_000]),
        ]
    );
}

#[test]
fn figure_7_shortened_has_the_shares_that_all_comparisons_assume() {
    assert_eq!(
        shares("crab-fig7-short"),
        [
            (0, vec![30_000, 0, 0, 0]),
            (15, vec![10_000, 20_000, 0, 0]),
            (30, vec![5_000, 10_000, 15_000, 0]),
            (45, vec![3_000, 6_000, 9_000, 12_000]),
            (62, vec![5_000, 10_000, 15_000, 0]),
            (77, vec![6_500, 13_000, 10_500, 0]),
            (92, vec![9_000, 10_500, 10_500, 0]),
        ]
    );
}

#[test]
fn figure_8_shortened_has_the_shares_that_all_comparisons_assume() {
    assert_eq!(
        shares("crab-fig8-short"),
        [
            (0, vec![10_000, 0]),
            (15, vec![10_000, 20_000]),
            (30, vec![20_000, 10_000]),
            (45, vec![6_666, 3_333]),
            (62, vec![20_000, 10_000]),
            (77, vec![0, 30_000]),
        ]
    );
}

/// The rule behind `lte-60s.trace`: a random walk of the number of opportunities in each 100 ms, by
/// at most six up or down between 2 and 100, evenly spread; now and then 300 ms have none, as when
/// a phone changes its cell. The last line is the length of the trace.
fn lte_60s() -> String {
    let mut state = 1u64;
    let mut random = move || {
        // Knuth's MMIX generator.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let (mut opportunities, mut outage) = (50, 0);
    let mut text = String::new();
    for bin in 0..600 {
        opportunities = (opportunities + random() % 13).clamp(8, 106) - 6;
        if random() % 150 == 0 {
            outage = 3;
        }
        if outage > 0 {
            outage -= 1;
            continue;
        }
        for i in 0..opportunities {
            text += &format!("{}\n", bin * 100 + (2 * i + 1) * 50 / opportunities);
        }
    }
    text + "60000\n"
}

#[test]
fn the_lte_trace_is_what_its_rule_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/traces/lte-60s.trace");
    assert!(fs::read_to_string(path).unwrap() == lte_60s(), "its rule is in this file");
}

#[test]
fn the_lte_scenario_has_fair_shares_in_each_second() {
    let path = files().into_iter().find(|p| p.ends_with("lte-trace.toml")).unwrap();
    let scenario = read(&path);
    let capacities: Vec<u64> = (0..60)
        .map(|t| scenario.capacity_at(Time::ZERO + Span::secs(t)).as_bps() / 1_000)
        .collect();
    let (least, most) = (capacities.iter().min().unwrap(), capacities.iter().max().unwrap());
    assert!(*least < 4_000 && *most > 8_000, "{capacities:?}");
    let shares = scenario.fair_shares_at(Time::ZERO + Span::secs(30));
    let capacity = scenario.capacity_at(Time::ZERO + Span::secs(30));
    assert_eq!(shares.iter().flatten().copied().sum::<fairweir_core::units::Rate>(), capacity);
}
