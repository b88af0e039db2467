//! What the kernel's policer costs: nanoseconds per packet, time to load, memory (needs root).
//!
//! Prints Markdown tables. A packet's whole way is measured, from the Ethernet header to the verdict,
//! by the kernel's own program in a loop, inside one test run, over subscribers and flows in random
//! order; the loop itself, a few nanoseconds, is contained. The policers are offered about twice
//! their rate, by the real clock. Each figure is the least of several rounds, which alternate between
//! the algorithms, since whatever disturbs a round only adds to it.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::net::Ipv4Addr;
use std::time::Instant;

use fairweir_core::phantom::{Plan, PlanSpec, Share, Signal};
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_linux::police::{
    Algorithm, Bench, Direction, PlanId, Police, PoliceSpec, SubscriberSpec,
};
use ipnet::IpNet;

const FRAME_BYTES: u64 = 1_514;
/// What a core's worth of packets comes to, roughly; the plans have half.
const OFFERED: Rate = Rate::mbit(100_000);
const TURNS: u32 = 1 << 15;
const ROUNDS: u64 = 25;
const PLAN: PlanId = PlanId(1);
const COUNTS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];

#[derive(Clone, Copy)]
enum Kind {
    Nobody,
    Bucket,
    Phantom(u8, Signal),
}

struct Case {
    name: String,
    police: Police,
    bench: Bench,
    count: u32,
    least: u64,
}

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    println!("| subscribers | policer | ns per packet | ratio to token bucket | dropped |");
    println!("|---:|---|---:|---:|---:|");
    for count in COUNTS {
        let mut kinds = vec![Kind::Nobody, Kind::Bucket, Kind::Phantom(16, Signal::Soft)];
        if count == 1_000 {
            kinds.push(Kind::Phantom(16, Signal::Hard));
            kinds.extend([1, 4, 64].map(|queues| Kind::Phantom(queues, Signal::Soft)));
        }
        compare(kinds.into_iter().map(|kind| Case::new(kind, count)).collect());
    }
    println!(
        "\n| queues | subscribers | loaded in | bytes per subscriber |\n|---:|---:|---:|---:|"
    );
    for (queues, count) in [(1, 1_000_000), (4, 1_000_000), (16, 1_000_000), (64, 1_000_000)] {
        weigh(queues, count);
    }
}

impl Case {
    fn new(kind: Kind, count: u32) -> Case {
        let rate = OFFERED.scale(1, 2 * u64::from(count));
        let (name, mut police) = match kind {
            Kind::Nobody => ("address of nobody".to_owned(), empty(1)),
            Kind::Bucket => {
                let mut police = empty(count);
                let burst = Bytes::new(15_000 + (rate * Span::millis(100)).as_u64());
                police.set_plan(PLAN, &Algorithm::TokenBucket { rate, burst }).unwrap();
                ("token bucket".to_owned(), police)
            }
            Kind::Phantom(queues, signal) => {
                let mut police = empty(count);
                let plan = plan(rate, queues, signal);
                police.set_plan(PLAN, &Algorithm::Phantom(&plan)).unwrap();
                (format!("BC-PQP, {queues} queues, {signal}"), police)
            }
        };
        if !matches!(kind, Kind::Nobody) {
            police.add_all(&subscribers(count), &mut |_| ()).unwrap();
        }
        let bench = police.bench().unwrap();
        Case { name, police, bench, count, least: u64::MAX }
    }

    fn round(&mut self, seed: u64) {
        let span = self.bench.run(&frame(), self.count, TURNS, seed).unwrap();
        self.least = self.least.min(span.as_nanos());
    }

    /// Bytes dropped and passed until now.
    fn fate(&self) -> (f64, f64) {
        let totals = self.police.totals(PLAN, Direction::Download).unwrap_or_default();
        (totals.dropped.as_u64() as f64, totals.passed.as_u64() as f64)
    }
}

/// Measures policers side by side and prints a row for each.
fn compare(mut cases: Vec<Case>) {
    // First until queues are full and windows go on.
    let start = Instant::now();
    let mut seed = 0;
    while start.elapsed().as_secs_f64() < 1.5 * cases.len() as f64 {
        seed += 1;
        cases.iter_mut().for_each(|case| case.round(seed));
    }
    cases.iter_mut().for_each(|case| case.least = u64::MAX);
    let before: Vec<(f64, f64)> = cases.iter().map(Case::fate).collect();
    for _ in 0..ROUNDS {
        seed += 1;
        cases.iter_mut().for_each(|case| case.round(seed));
    }
    let base = cases[1].least;
    for (case, before) in cases.iter().zip(before) {
        let per_packet = case.least as f64 / f64::from(TURNS);
        let ratio = case.least as f64 / base as f64;
        let after = case.fate();
        let (dropped, passed) = (after.0 - before.0, after.1 - before.1);
        let dropped =
            if dropped + passed > 0.0 { 100.0 * dropped / (dropped + passed) } else { 0.0 };
        let Case { name, count, .. } = case;
        println!("| {count} | {name} | {per_packet:.1} | {ratio:.2} | {dropped:.0} % |");
    }
}

/// Loads so many subscribers and prints how long that took and what they take.
fn weigh(queues: u8, count: u32) {
    let specs = subscribers(count);
    let start = Instant::now();
    let mut police = empty(count);
    let plan = plan(Rate::mbit(50), queues, Signal::Soft);
    police.set_plan(PLAN, &Algorithm::Phantom(&plan)).unwrap();
    police.add_all(&specs, &mut |_| ()).unwrap();
    let took = start.elapsed().as_secs_f64();
    let bytes = police.memory().unwrap().as_u64() as f64 / f64::from(count);
    println!("| {queues} | {count} | {took:.1} s | {bytes:.0} |");
}

fn empty(count: u32) -> Police {
    let spec = PoliceSpec { addresses4_max: count, addresses6_max: 1, prefixes_max: 1 };
    Police::load(&spec).unwrap()
}

fn plan(rate: Rate, queues: u8, signal: Signal) -> Plan {
    let rtt_max = Span::millis(50);
    Plan::new(&PlanSpec { rate, rtt_max, signal, share: Share::Flows(queues) }).unwrap()
}

fn subscribers(count: u32) -> Vec<SubscriberSpec> {
    let address = |at: u32| IpNet::from(std::net::IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at)));
    let spec =
        |at| SubscriberSpec { addresses: vec![address(at)], download: Some(PLAN), upload: None };
    (0..count).map(spec).collect()
}

/// Ethernet, IPv4 and UDP, to 10.0.0.0.
fn frame() -> Vec<u8> {
    let length = FRAME_BYTES as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((length - 14).to_be_bytes());
    frame
        .extend([0, 1, 0x40, 0, 64, 17, 0, 0, 203, 0, 113, 7, 10, 0, 0, 0, 0x1f, 0x90, 0x1f, 0x90]);
    frame.extend((length - 34).to_be_bytes());
    frame.resize(usize::from(length), 0);
    frame
}
