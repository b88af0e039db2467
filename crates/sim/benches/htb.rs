//! Time of a packet through the model of HTB, compared with a bare queue in the same run. Prints a
//! Markdown table: `cargo bench -p fairweir-sim --bench htb`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use fairweir_core::receiver::{Allocation, ClassRate, Excess};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::Packet;
use fairweir_sim::htb::{Htb, Verdict};

const PACKETS: u64 = 1_000_000;
const PACKET: Bytes = Bytes::new(1_514);
/// Rate of each class.
const RATE: Rate = Rate::mbit(10);

fn main() {
    println!("\n### HTB in virtual time: ns per packet\n");
    println!("| classes | bare queue | passes | waits | waits and borrows |");
    println!("|---:|---:|---:|---:|---:|");
    for classes in [1, 3, 24, 256] {
        let queue = fastest_ns(|| bare(classes));
        let passes = fastest_ns(|| load(classes, 90, false));
        let waits = fastest_ns(|| load(classes, 110, false));
        let borrows = fastest_ns(|| load(classes, 110, true));
        println!("| {classes} | {queue:.0} | {passes:.0} | {waits:.0} | {borrows:.0} |");
    }
}

/// Pushes packets into one queue per class and pops them.
fn bare(classes: usize) -> u64 {
    let mut queues = vec![VecDeque::from(vec![(PACKET, 0u64); 64]); classes];
    let mut sum = 0;
    for i in 0..PACKETS {
        let queue = &mut queues[i as usize % classes];
        queue.push_back((PACKET, i));
        sum += queue.pop_front().map_or(0, |(_, body)| body);
    }
    sum
}

/// Sends packets to each class in turn, at a load in percent of all rates; every packet is taken
/// out in time. With borrowing the first class owns nearly the whole rate and is idle.
fn load(classes: usize, percent: u64, borrows: bool) -> u64 {
    let total = RATE * classes as u64;
    let class = |i| {
        let own = if i == 0 { total } else { Rate::kbit(100) };
        let (rate, ceil) = if borrows { (own, total) } else { (RATE, RATE) };
        ClassRate { rate, ceil, priority: 0, weight: Weight::ONE, excess: Excess::Drop }
    };
    let rates = (0..classes).map(class).collect();
    let allocation = Allocation { total: borrows.then_some(total), classes: rates };
    let mut htb = Htb::new(classes, PACKET);
    htb.apply(Time::ZERO, &allocation);
    let first = usize::from(borrows && classes > 1);
    let gap = total.scale(percent, 100).time_to_send(PACKET);
    let (mut now, mut out) = (Time::ZERO, 0);
    for i in 0..PACKETS {
        now = now + gap + Span::nanos(i % 3);
        while let Some(at) = htb.next_departure().filter(|&at| at <= now) {
            out += u64::from(htb.poll_departure(at).is_some());
        }
        let class = first + i as usize % (classes - first);
        let verdict = htb.enqueue(now, Packet { class, size: PACKET, body: i });
        out += u64::from(matches!(verdict, Verdict::Pass(_)));
    }
    out
}

/// Nanoseconds per packet in the fastest of several runs: the cost when the code is undisturbed.
fn fastest_ns(work: impl Fn() -> u64) -> f64 {
    let run_ns = (0..7).map(|_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed().as_nanos() as f64 / PACKETS as f64
    });
    run_ns.fold(f64::INFINITY, f64::min)
}
