//! What one tick of the daemon costs at the kernel boundary (needs root): checking the devices, the
//! counters, the classes and the heartbeat. There are five ticks a second.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::time::Instant;

use fairweir_core::policy::{Group, Policy};
use fairweir_core::receiver::{Allocation, ClassRate, Excess};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;
use fairweir_linux::netns::Netns;
use fairweir_linux::{Attached, Host, HostSpec, Mode, link};

const TICKS: u32 = 500;

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    println!("| groups | all rates change, µs per tick | none changes | cores at 5 ticks/s |");
    println!("|---:|---:|---:|---:|");
    for groups in [3, 24, 256] {
        let (busy, idle) = Netns::new().unwrap().run(|| measure(groups));
        println!("| {groups} | {busy:.0} | {idle:.0} | {:.4} |", busy * 5e-6);
    }
}

/// Microseconds per tick, with all rates changing and with none.
fn measure(groups: usize) -> (f64, f64) {
    link::create_ifb("wan", "").unwrap();
    link::set_up("wan").unwrap();
    let group = |i: usize| {
        Group::new(format!("g{i}"), Weight::ONE, vec![format!("app:g{i}").parse().unwrap()])
    };
    let policy = Policy::new((1..groups).map(group).collect()).unwrap();
    let spec =
        HostSpec { dev: "wan".into(), policy, mode: Mode::Shape, census: false, marks: false };
    let mut host = Host::attach(&spec).unwrap();
    let mut time = |rates: &dyn Fn(u32) -> Rate| {
        let start = Instant::now();
        for tick in 0..TICKS {
            host.health();
            assert_eq!(host.take_samples().unwrap().len(), groups);
            let rate = rates(tick);
            let class = ClassRate {
                rate,
                ceil: rate,
                priority: 0,
                weight: Weight::ONE,
                excess: Excess::Drop,
            };
            host.apply(&Allocation { total: None, classes: vec![class; groups] }).unwrap();
            host.beat().unwrap();
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(TICKS)
    };
    (time(&|tick| Rate::kbit(1_000 + u64::from(tick))), time(&|_| Rate::mbit(1)))
}
