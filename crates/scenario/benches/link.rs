//! Cost of a packet on its way through the link, for each discipline and kind of capacity, compared
//! with pushing it into a queue and popping it. Prints a Markdown table: `cargo bench -p
//! fairweir-scenario --bench link`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::{
    Buffer, Capacity, Departure, Discipline, Link, LinkSpec, Packet, RateStep, Red, Trace,
};

const PACKETS: u64 = 1_000_000;
/// Packets that wait all the time, or two per class if that is more.
const STANDING: usize = 100;
/// Every fourth packet is small.
const SIZES: [u64; 4] = [66, 1_514, 1_514, 1_514];
const RATE: Rate = Rate::mbit(100);

fn main() {
    let bare = fastest_ns(bare_queue);
    println!("\n### `Link`: a packet in and out\n");
    println!("| what | classes | drops | ns per packet | ratio |");
    println!("|---|---:|---:|---:|---:|");
    println!("| a bare `VecDeque`, push and pop | 1 | 0 % | {bare:.1} | 1.0 |");
    for (name, classes, spec) in specs() {
        for overload in [false, true] {
            let mut dropped = 0;
            let ns = fastest_ns(|| dropped = through(spec.clone(), classes, overload));
            let percent = dropped as f64 / PACKETS as f64 * 100.0;
            let ratio = ns / bare;
            println!("| {name} | {classes} | {percent:.0} % | {ns:.1} | {ratio:.1} |");
        }
    }
}

fn specs() -> Vec<(&'static str, usize, LinkSpec)> {
    let fifo = LinkSpec::fifo(Capacity::constant(RATE), Buffer::Packets(2 * STANDING as u32));
    let weighted = |queue, classes: usize| {
        let weight = |i: usize| Weight::new(i as u32 % 10 + 1).expect("invariant: from 1 to 10");
        let buffer = Buffer::Packets(2 * standing(classes) as u32);
        LinkSpec { queue, buffer, weights: (0..classes).map(weight).collect(), ..fifo.clone() }
    };
    let shaped = Capacity::Shaped {
        steps: vec![RateStep { at: Time::ZERO, rate: RATE }],
        burst: Bytes::kb(150),
        line_rate: RATE * 10,
    };
    let red = Discipline::Red(Red::default());
    vec![
        ("fifo", 1, fifo.clone()),
        ("red", 1, LinkSpec { queue: red, ..fifo.clone() }),
        ("fifo, shaped", 1, LinkSpec { capacity: shaped, ..fifo.clone() }),
        ("fifo, trace", 1, LinkSpec { capacity: Capacity::Trace(trace()), ..fifo.clone() }),
        ("wfq", 24, weighted(Discipline::Wfq, 24)),
        ("wfq", 1_000, weighted(Discipline::Wfq, 1_000)),
        ("drr", 24, weighted(Discipline::Drr, 24)),
        ("drr", 1_000, weighted(Discipline::Drr, 1_000)),
    ]
}

/// A trace of one second at about the same rate.
fn trace() -> Trace {
    let lines: String = (1..=8_256).map(|i| format!("{}\n", i * 1_000 / 8_256)).collect();
    lines.parse().expect("invariant: whole numbers in order")
}

/// Sends every packet through a link with a standing queue, or one that is offered twice its
/// capacity; returns how many were dropped.
fn through(spec: LinkSpec, classes: usize, overload: bool) -> u64 {
    let mut link = Link::new(spec);
    let mean = Bytes::new(SIZES.iter().sum::<u64>() / SIZES.len() as u64);
    let gap = RATE.time_to_send(mean) / if overload { 2 } else { 1 };
    let (mut now, mut dropped) = (Time::ZERO, 0);
    for i in 0..PACKETS {
        // After the standing queue is filled, packets come one at a time, as the link sends them.
        if i >= standing(classes) as u64 {
            now = now + gap;
        }
        link.enqueue(now, packet(i, classes));
        while link.poll_drop().is_some() {
            dropped += 1;
        }
        while let Some(departure) = link.poll_departure(now) {
            black_box::<Departure<u64>>(departure);
        }
        black_box(link.next_departure());
    }
    dropped
}

fn standing(classes: usize) -> usize {
    STANDING.max(2 * classes)
}

fn packet(i: u64, classes: usize) -> Packet<u64> {
    let size = SIZES[i as usize % SIZES.len()];
    // A stride that visits the classes out of order.
    let class = (i.wrapping_mul(7_919) % classes as u64) as usize;
    Packet { class, size: Bytes::new(size), body: i }
}

fn bare_queue() {
    let mut queue: VecDeque<(Time, Packet<u64>)> = VecDeque::new();
    let mut now = Time::ZERO;
    for i in 0..PACKETS {
        now = now + Span::nanos(1);
        queue.push_back((now, black_box(packet(i, 1))));
        if i >= STANDING as u64 {
            black_box(queue.pop_front());
        }
    }
}

/// Nanoseconds per packet in the fastest of several rounds: the cost when the code is undisturbed.
fn fastest_ns(mut work: impl FnMut()) -> f64 {
    let rounds = (0..9).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64 / PACKETS as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}
