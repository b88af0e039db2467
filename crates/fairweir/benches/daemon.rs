//! What the daemon costs, in a home behind a slow link: its CPU time with 24 groups, and what it
//! does to a flow that is alone on the link. Prints Markdown tables.
#![allow(clippy::unwrap_used)]

use std::thread::sleep;
use std::time::{Duration, Instant};

#[path = "../tests/it/common/mod.rs"]
#[allow(dead_code, reason = "the bench uses a part")]
mod common;
use common::stage::{SERVERS, Stage};
use fairweir_testing::privileged;

/// Rates of the link in Mbit/s.
const LINKS: [f64; 2] = [30.0, 200.0];
const GROUPS: usize = 24;
const SETTLE: Duration = Duration::from_secs(8);
const MEASURE: Duration = Duration::from_secs(20);
const PING_PERIOD: Duration = Duration::from_millis(10);

fn main() {
    if !privileged() {
        return;
    }
    println!("## Daemon: CPU time with {GROUPS} groups, three downloads\n");
    println!("| link | cores | goal |\n|---|---|---|");
    for (mbit, goal) in LINKS.into_iter().zip(["0.005", "0.010"]) {
        println!("| {mbit} Mbit/s | {:.4} | {goal} |", cores(mbit));
    }
    println!("\n## A lone flow: one cubic download, and pings of the same group\n");
    println!(
        "| link | control | throughput, Mbit/s | ping p50, ms | ping p99, ms | idle p50, ms | idle p99, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for mbit in LINKS {
        for control in ["none", "crab"] {
            println!("| {mbit} Mbit/s | {control} | {} |", lone_flow(mbit, control).join(" | "));
        }
    }
}

/// Cores that the daemon needs outside the packets' path.
fn cores(mbit: f64) -> f64 {
    let stage = Stage::with_link(mbit);
    stage.configure(&groups("crab"));
    let daemon = stage.start(&[]);
    let _downloads = [SERVERS[0], SERVERS[0], SERVERS[1]].map(|server| stage.download(server));
    sleep(SETTLE);
    let (begin, before) = (Instant::now(), daemon.cpu_time());
    sleep(MEASURE);
    (daemon.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64()
}

/// Throughput, and round-trip times beside the download and without it.
fn lone_flow(mbit: f64, control: &str) -> Vec<String> {
    let stage = Stage::with_link(mbit);
    stage.configure(&groups(control));
    let _daemon = stage.start(&[]);
    let download = stage.download(SERVERS[0]);
    sleep(SETTLE);
    let (begin, before) = (Instant::now(), download.received());
    let busy = stage.ping(SERVERS[0], PING_PERIOD, MEASURE);
    let volume = (download.received() - before) as f64;
    let throughput = volume * 8e-6 / begin.elapsed().as_secs_f64();
    drop(download);
    sleep(Duration::from_secs(2));
    let idle = stage.ping(SERVERS[0], PING_PERIOD, MEASURE / 4);
    let at = |times: &[Duration], part: usize| {
        times.get(times.len() * part / 100).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3)
    };
    let times = [at(&busy, 50), at(&busy, 99), at(&idle, 50), at(&idle, 99)];
    let times = times.map(|ms| format!("{ms:.2}"));
    [format!("{throughput:.2}")].into_iter().chain(times).collect()
}

/// [`GROUPS`] groups with a match of each common kind, the default group included.
fn groups(control: &str) -> String {
    let mut text = format!("version = 1\n[host]\ncontrol = \"{control}\"\n");
    for i in 1..GROUPS {
        let address = if i == 1 { SERVERS[0].to_owned() } else { format!("198.51.100.{i}") };
        text.push_str(&format!(
            "[[group]]\nname = \"g{i}\"\nweight = {i}\n\
             match = [\"ip:{address}\", \"app:app-{i}\", \"port:{}\"]\n",
            5_000 + i
        ));
    }
    text
}
