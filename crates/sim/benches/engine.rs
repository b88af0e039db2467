//! How much faster than real time the simulator is, and how its cost grows. Prints Markdown tables:
//! `cargo bench -p fairweir-sim --bench engine`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

const RUNS: u32 = 7;

fn main() {
    println!("\n### The simulator against real time, on one core\n");
    println!("| scenario | control | virtual, s | real, s | times real time | ns per packet |");
    println!("|---|---|---:|---:|---:|---:|");
    let figure_7 = include_str!("../../../scenarios/crab-fig7.toml");
    // The paper's figure ends at 190 s.
    let figure_7 = figure_7.replace("duration = \"215s\"", "duration = \"190s\"");
    for control in [Control::None, Control::Wfq, Control::Static, Control::Crab] {
        row("figure 7, 30 Mbit/s, 4 connections", &scenario(&figure_7), control);
    }
    for (mbit, connections, seconds) in
        [(30, 4, 60), (100, 4, 60), (300, 4, 30), (1000, 4, 10), (1000, 100, 10), (1000, 1000, 10)]
    {
        let name = format!("bulk, {mbit} Mbit/s, {connections} connections");
        row(&name, &scenario(&bulk(mbit, connections, seconds)), Control::Crab);
    }
    println!("\nLargest resident size of all these runs: {:.0} MB", resident_mb());
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "bench").expect("invariant: the bench writes good scenarios")
}

/// Four groups with weights 1:2:3:4 and the same number of cubic connections each.
fn bulk(mbit: u32, connections: u32, seconds: u32) -> String {
    let mut text = format!(
        "version = 1\nname = \"bulk\"\nduration = \"{seconds}s\"\n[link]\nrate = \"{mbit}mbit\"\n"
    );
    for group in 1..=4 {
        text += &format!(
            "[[group]]\nname = \"g{group}\"\nweight = {group}\n\
             [[flow]]\ngroup = \"g{group}\"\nkind = \"bulk\"\nrtt = \"30ms\"\nconnections = {}\n",
            connections / 4
        );
    }
    text
}

fn row(name: &str, scenario: &Scenario, control: Control) {
    let cancel = AtomicBool::new(false);
    let mut fastest = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..RUNS {
        let start = Instant::now();
        let report = engine::play(scenario, control, 1, &|_| {}, &cancel);
        fastest = fastest.min(start.elapsed().as_secs_f64());
        let report = report.expect("invariant: nobody cancels");
        bytes = report.summary.groups.iter().map(|g| g.delivered.as_u64()).sum();
    }
    let seconds = scenario.duration.as_secs_f64();
    println!(
        "| {name} | {control} | {seconds:.0} | {fastest:.3} | {:.0} | {:.0} |",
        seconds / fastest,
        fastest * 1e9 / (bytes as f64 / 1514.0)
    );
}

/// Peak memory of this process in MB; zero where the system does not tell.
fn resident_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
