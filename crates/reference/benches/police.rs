//! Cost of a decision: cycles per packet of a token bucket, FairPolicer, plain phantom queues,
//! BC-PQP and a DRR shaper with real packets, for 1 to 64 queues and 1 to 100,000 aggregates in
//! random order. Prints Markdown tables: `cargo bench -p fairweir-reference --bench police`.
//!
//! Packets arrive in virtual time, at 3/4 and at 5/4 of every aggregate's rate, and all arrivals
//! are drawn beforehand. The work that every caller has to do anyway, receiving and classifying a
//! packet, is left out in all cases. The shaper's packets lie in buffers 512 bytes apart, a quarter
//! of a driver's spacing, so that enough of them fit: enqueuing stores a number as a driver stores
//! a pointer, and sending writes to the packet's first line, as setting new addresses would.
//! Packets come in bursts of 32, as a driver hands them over, and the memory that the decisions
//! will read is touched for all packets of a burst first. A cycle is one of the clock given in
//! /proc/cpuinfo.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::any::Any;
use std::hint::black_box;
use std::time::Instant;

use fairweir_core::phantom::aggregate::{Slot, decide};
use fairweir_core::phantom::{Arrival, Plan, PlanSpec, Police, Share, Signal, Verdict};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_reference::phantom::{FairPolicer, Pqp, ShaperSpec, Shapers, TokenBucket};

const RATE: Rate = Rate::mbit(10);
const RTT_MAX: Span = Span::millis(20);
/// Size of every queue: about that of BC-PQP's plan at this rate and RTT, the same for all subjects.
const QUEUE: Bytes = Bytes::new(46_000);
/// Size of the shaper's queues: the bandwidth-delay product (BC-PQP §6.1).
const SHAPER_QUEUE: Bytes = Bytes::new(25_000);

fn main() {
    let clock = Clock::read();
    println!("\n### `police`: a decision, in cycles of {:.2} GHz\n", clock.ghz);
    println!("(By a chain of additions the core runs at {:.2} GHz.)\n", core_ghz());
    let only = std::env::var("POLICE_ONLY").unwrap_or_default();
    if let Some((queues, aggregates)) = only.split_once('x') {
        // Runs BC-PQP alone, for a profiler.
        let count = |text: &str| text.parse().expect("POLICE_ONLY=16x1");
        let load = if std::env::var_os("POLICE_UNDER").is_some() { UNDER } else { OVER };
        let ns = phantom(&Load::new(count(queues), count(aggregates), load));
        println!("{:.1} cycles", ns * clock.ghz);
        return;
    }
    memory();
    let mut bench = Bench { clock, buffers: Buffers::new() };
    println!();
    println!(
        "| load | queues | aggregates | loop alone | token bucket | FairPolicer | PQP | BC-PQP | shaper | BC-PQP / token bucket | BC-PQP / shaper |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (name, load) in [("overloaded", OVER), ("underloaded", UNDER)] {
        for queues in [1, 4, 16, 64] {
            for aggregates in [1, 1_000, 100_000] {
                bench.row(name, Load::new(queues, aggregates, load));
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------
// What arrives

/// Arrivals relative to the rate, in percent.
const OVER: u64 = 125;
const UNDER: u64 = 75;

/// Packets of a burst, as a driver hands them over.
const BURST: usize = 32;

/// Number of arrivals that are drawn; after that they repeat.
const DRAWN: usize = 1 << 20;

struct Load {
    queues: usize,
    aggregates: usize,
    percent: u64,
    arrivals: Vec<Draw>,
}

#[derive(Clone, Copy)]
struct Draw {
    aggregate: u32,
    leaf: u8,
    /// Time since the arrival before, in 128ths of the mean: 0 to 255.
    pause: u8,
    size: u16,
}

impl Load {
    /// Three of four packets are full; aggregates and leaves are drawn evenly.
    fn new(queues: usize, aggregates: usize, percent: u64) -> Load {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (((state >> 32) * below as u64) >> 32) as usize
        };
        let arrivals = (0..DRAWN)
            .map(|_| Draw {
                aggregate: random(aggregates) as u32,
                leaf: random(queues) as u8,
                pause: random(256) as u8,
                size: if random(4) == 0 { 100 } else { 1_500 },
            })
            .collect();
        Load { queues, aggregates, percent, arrivals }
    }

    /// The time of one unit of pause, in 2⁻²⁰ ns: the mean size is 1,150 bytes, the mean pause 127.5 units.
    fn gap(&self, percent: u64) -> u64 {
        let total = u128::from(RATE.as_bps()) * self.aggregates as u128 * u128::from(percent);
        (((1_150 * 8 * 100 * 1_000_000_000u128) << 20) * 2 / 255 / total) as u64
    }
}

/// A system that decides about packets of many aggregates.
trait Subject {
    /// Reads the memory that a decision about a packet of this aggregate will read first.
    fn touch(&mut self, aggregate: usize, leaf: usize);

    fn offer(&mut self, now: Time, aggregate: usize, arrival: Arrival) -> bool;
}

/// The position of a run in virtual time, in 2⁻²⁰ ns.
struct Run {
    at: u64,
}

impl Run {
    /// Offers packets; returns how many passed.
    fn go<S: Subject>(&mut self, subject: &mut S, load: &Load, percent: u64, count: usize) -> u64 {
        let gap = load.gap(percent);
        let mut passed = 0;
        for draws in load.arrivals.chunks(BURST).cycle().take(count / BURST) {
            draws.iter().for_each(|draw| subject.touch(draw.aggregate as usize, draw.leaf.into()));
            passed += self.burst(subject, draws, gap);
        }
        passed
    }

    fn burst<S: Subject>(&mut self, subject: &mut S, draws: &[Draw], gap: u64) -> u64 {
        let mut passed = 0;
        for draw in draws {
            self.at += gap * u64::from(draw.pause);
            let arrival = Arrival {
                leaf: draw.leaf.into(),
                flow: draw.leaf.into(),
                size: Bytes::new(draw.size.into()),
                can_be_marked: false,
            };
            let now = Time::from_nanos(self.at >> 20);
            passed += u64::from(subject.offer(now, draw.aggregate as usize, arrival));
        }
        passed
    }

    /// Nanoseconds per packet in the fastest of several batches, which was undisturbed.
    fn measure<S: Subject>(&mut self, subject: &mut S, load: &Load) -> f64 {
        let batch = DRAWN;
        self.go(subject, load, load.percent, batch);
        let batches = (0..5).map(|_| {
            let start = Instant::now();
            let passed = self.go(subject, load, load.percent, batch);
            black_box(passed);
            start.elapsed().as_nanos() as f64 / batch as f64
        });
        batches.fold(f64::INFINITY, f64::min)
    }
}

/// Fills every queue before an overload is measured: 20 kB at a time in each leaf in turn, at more
/// than any gate lets through, for as many windows as needed.
fn fill<S: Subject>(subject: &mut S, load: &Load, run: &mut Run) {
    const WINDOW: u64 = 100_000_001;
    let rounds = 6 + load.queues * 46_000 / 70_000;
    let begin = run.at >> 20;
    for aggregate in 0..load.aggregates {
        for i in 0..rounds * 12 {
            let now = Time::from_nanos(begin + (i / 12) as u64 * WINDOW);
            let arrival = Arrival {
                leaf: i % load.queues,
                flow: (i % load.queues) as u32,
                size: Bytes::new(if i % 12 == 11 { 1_500 } else { 20_000 }),
                can_be_marked: false,
            };
            subject.offer(now, aggregate, arrival);
        }
    }
    run.at = (begin + rounds as u64 * WINDOW) << 20;
}

// ------------------------------------------------------------------------------------------------
// Who decides

/// Decides nothing: measures the loop itself.
struct Nothing;

impl Subject for Nothing {
    fn touch(&mut self, aggregate: usize, leaf: usize) {
        black_box(aggregate ^ leaf);
    }

    #[inline]
    fn offer(&mut self, now: Time, aggregate: usize, arrival: Arrival) -> bool {
        black_box(now.as_nanos() as usize ^ aggregate ^ arrival.leaf) != 0
    }
}

struct Policers<P>(Vec<P>);

/// Reads the parts of a policer that lie in memory of their own.
trait Touch: Police {
    fn touch(&self, leaf: usize) -> u64;
}

impl Touch for TokenBucket {
    #[inline]
    fn touch(&self, _leaf: usize) -> u64 {
        self.touch()
    }
}

impl Touch for FairPolicer {
    #[inline]
    fn touch(&self, leaf: usize) -> u64 {
        self.touch(leaf)
    }
}

impl Touch for Pqp {
    #[inline]
    fn touch(&self, leaf: usize) -> u64 {
        self.touch(leaf)
    }
}

impl<P: Touch> Subject for Policers<P> {
    #[inline]
    fn touch(&mut self, aggregate: usize, leaf: usize) {
        black_box(self.0[aggregate].touch(leaf));
    }

    #[inline]
    fn offer(&mut self, now: Time, aggregate: usize, arrival: Arrival) -> bool {
        self.0[aggregate].handle_packet(now, arrival) != Verdict::Drop
    }
}

/// BC-PQP with its state in slots, as in the kernel program.
struct Phantom<const INNERS: usize, const LEAVES: usize> {
    plan: Plan,
    slots: Vec<Slot<INNERS, LEAVES>>,
}

impl<const INNERS: usize, const LEAVES: usize> Phantom<INNERS, LEAVES> {
    fn new(load: &Load) -> Self {
        let share = Share::Flows(load.queues as u8);
        let spec = PlanSpec { rate: RATE, rtt_max: RTT_MAX, signal: Signal::Soft, share };
        let plan = Plan::new(&spec).expect("invariant: a plan within its bounds");
        Phantom { plan, slots: vec![Slot::new(); load.aggregates] }
    }
}

impl<const INNERS: usize, const LEAVES: usize> Subject for Phantom<INNERS, LEAVES> {
    #[inline]
    fn touch(&mut self, aggregate: usize, leaf: usize) {
        black_box(self.slots[aggregate].touch(leaf));
    }

    #[inline]
    fn offer(&mut self, now: Time, aggregate: usize, arrival: Arrival) -> bool {
        let mut state = self.slots[aggregate].state();
        decide(&self.plan, &mut state, now, arrival) != Verdict::Drop
    }
}

/// A shaper whose packets lie in buffers: those that wait, and a stack of free ones.
struct Shaper<'a> {
    shapers: Shapers<u32>,
    buffers: &'a mut Buffers,
    sent: u64,
}

/// Memory for real packets.
struct Buffers {
    memory: Vec<[u64; 64]>,
    free: Vec<u32>,
}

/// 2 GiB, for 40 packets of each of 100,000 aggregates. When they are overloaded with many queues,
/// an arriving packet may find no free buffer, as in a driver.
const BUFFERS: u32 = 1 << 22;

impl Buffers {
    fn new() -> Buffers {
        let mut memory = vec![[0; 64]; BUFFERS as usize];
        // Writes to each buffer, so that each has memory of its own and not the kernel's shared page of zeros.
        memory.iter_mut().enumerate().for_each(|(at, buffer)| buffer[0] = at as u64);
        Buffers { memory, free: Vec::new() }
    }

    /// Makes all buffers free, in random order, as after some minutes of use.
    fn reset(&mut self, most: usize) {
        let count = most.min(BUFFERS as usize) as u64;
        self.free = (0..count as u32).collect();
        for at in (1..count).rev() {
            let other = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % (at + 1);
            self.free.swap(at as usize, other as usize);
        }
    }
}

impl<'a> Shaper<'a> {
    fn new(load: &Load, buffers: &'a mut Buffers) -> Shaper<'a> {
        let weights = vec![1; load.queues];
        let spec = ShaperSpec { rate: RATE, queue: SHAPER_QUEUE, weights };
        // As many buffers as can be in use, so that few aggregates remain in the cache.
        buffers.reset(load.aggregates * load.queues * 128);
        Shaper { shapers: Shapers::new(&vec![spec; load.aggregates]), buffers, sent: 0 }
    }
}

impl Subject for Shaper<'_> {
    #[inline]
    fn touch(&mut self, aggregate: usize, leaf: usize) {
        black_box(self.shapers.touch(aggregate, leaf));
    }

    #[inline]
    fn offer(&mut self, now: Time, aggregate: usize, arrival: Arrival) -> bool {
        let Arrival { leaf, size, .. } = arrival;
        let dropped = match self.buffers.free.pop() {
            None => true,
            Some(buffer) => match self.shapers.enqueue(now, aggregate, leaf, size, buffer) {
                None => false,
                Some(buffer) => {
                    self.buffers.free.push(buffer);
                    true
                }
            },
        };
        while let Some(departure) = self.shapers.poll_departure(now) {
            let header = &mut self.buffers.memory[departure.packet as usize][0];
            *header = header.wrapping_add(departure.size.as_u64());
            self.buffers.free.push(departure.packet);
            self.sent += 1;
        }
        !dropped
    }
}

// ------------------------------------------------------------------------------------------------
// Tables

struct Bench {
    clock: Clock,
    buffers: Buffers,
}

impl Bench {
    fn row(&mut self, name: &str, load: Load) {
        let weights = vec![1; load.queues];
        let all = |n| n * load.queues as u64;
        let bucket = || TokenBucket::new(RATE, QUEUE);
        // For each flow alone a queue; for all together the sum that they share.
        let fair = || FairPolicer::new(RATE, Bytes::new(all(QUEUE.as_u64())), &weights);
        let pqp = || Pqp::new(RATE, QUEUE, &weights);
        let ns = [
            police(&mut Nothing, &load),
            police(&mut Policers(many(&load, bucket)), &load),
            police(&mut Policers(many(&load, fair)), &load),
            police(&mut Policers(many(&load, pqp)), &load),
            phantom(&load),
            self.shaper(&load),
        ];
        let [empty, bucket, fair, pqp, phantom, shaper] = ns.map(|ns| ns * self.clock.ghz);
        println!(
            "| {name} | {} | {} | {empty:.1} | {bucket:.1} | {fair:.1} | {pqp:.1} | {phantom:.1} | {shaper:.1} | {:.2} | 1 / {:.1} |",
            load.queues,
            load.aggregates,
            phantom / bucket,
            shaper / phantom
        );
    }

    fn shaper(&mut self, load: &Load) -> f64 {
        let mut shaper = Shaper::new(load, &mut self.buffers);
        let mut run = Run { at: 0 };
        if load.percent > 100 {
            run.go(&mut shaper, load, 1_000, 5 * DRAWN);
        }
        let ns = run.measure(&mut shaper, load);
        let (sent, before) = (shaper.sent, run.at);
        run.go(&mut shaper, load, load.percent, DRAWN);
        let bytes = (shaper.sent - sent) as f64 * 1_150.0;
        let rate = bytes * 8e9 / ((run.at - before) >> 20) as f64 / load.aggregates as f64;
        let wanted = RATE.as_bps() as f64 * load.percent.min(100) as f64 / 100.0;
        // With 100,000 aggregates, 10 % is one packet in a hundred.
        let is_right = (rate / wanted - 1.0).abs() < 0.1;
        assert!(is_right, "the shaper sends {rate:.0} bit/s, not {wanted:.0}: no shaper");
        ns
    }
}

/// Measures BC-PQP in the smallest of the kernel's slots that fits.
fn phantom(load: &Load) -> f64 {
    match load.queues {
        1 => police(&mut Phantom::<1, 1>::new(load), load),
        2..=4 => police(&mut Phantom::<4, 4>::new(load), load),
        5..=16 => police(&mut Phantom::<4, 16>::new(load), load),
        _ => police(&mut Phantom::<5, 64>::new(load), load),
    }
}

fn many<P>(load: &Load, new: impl Fn() -> P) -> Vec<P> {
    (0..load.aggregates).map(|_| new()).collect()
}

fn police<S: Subject>(subject: &mut S, load: &Load) -> f64 {
    let mut run = Run { at: 1 << 20 };
    if load.percent > 100 {
        fill(subject, load, &mut run);
    }
    let ns = run.measure(subject, load);
    black_box(subject);
    ns
}

/// Measures the resident memory of 100,000 aggregates, without packets.
fn memory() {
    const COUNT: usize = 100_000;
    println!("Bytes of state per aggregate, measured as resident memory of {COUNT}:\n");
    // Objects are kept: memory that is freed would be used again, and nothing would grow.
    let mut kept = Vec::new();
    println!(
        "| queues | token bucket | FairPolicer | PQP | BC-PQP | shaper, without its packets |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for queues in [1, 4, 16, 64] {
        let weights = vec![1; queues];
        let load = Load { queues, aggregates: COUNT, percent: UNDER, arrivals: Vec::new() };
        let phantom = match queues {
            1 => resident(&mut kept, || Phantom::<1, 1>::new(&load)),
            4 => resident(&mut kept, || Phantom::<4, 4>::new(&load)),
            16 => resident(&mut kept, || Phantom::<4, 16>::new(&load)),
            _ => resident(&mut kept, || Phantom::<5, 64>::new(&load)),
        };
        let spec = ShaperSpec { rate: RATE, queue: SHAPER_QUEUE, weights: weights.clone() };
        let specs = vec![spec; COUNT];
        println!(
            "| {queues} | {} | {} | {} | {phantom} | {} |",
            resident(&mut kept, || many(&load, || TokenBucket::new(RATE, QUEUE))),
            resident(&mut kept, || many(&load, || FairPolicer::new(RATE, QUEUE, &weights))),
            resident(&mut kept, || many(&load, || Pqp::new(RATE, QUEUE, &weights))),
            resident(&mut kept, || Shapers::<u32>::new(&specs)),
        );
    }
}

/// Growth of resident memory per aggregate of 100,000, in bytes.
fn resident<T: Any>(kept: &mut Vec<Box<dyn Any>>, make: impl FnOnce() -> T) -> u64 {
    let pages = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = pages();
    kept.push(Box::new(make()));
    pages().saturating_sub(before) * 4_096 / 100_000
}

// ------------------------------------------------------------------------------------------------
// Clock

#[derive(Clone, Copy)]
struct Clock {
    ghz: f64,
}

impl Clock {
    fn read() -> Clock {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("cpu MHz"));
        let mhz = line.and_then(|line| line.split(": ").nth(1)?.trim().parse::<f64>().ok());
        Clock { ghz: mhz.map_or(1.0, |mhz| mhz / 1e3) }
    }
}

/// Two operations of which one needs the other's result take two cycles.
fn core_ghz() -> f64 {
    const STEPS: u64 = 20_000_000;
    let runs = (0..5).map(|_| {
        let mut x = black_box(1u64);
        let start = Instant::now();
        for i in 0..STEPS {
            x = (x ^ i).rotate_left(9);
        }
        black_box(x);
        2.0 * STEPS as f64 / start.elapsed().as_nanos() as f64
    });
    runs.fold(0.0, f64::max)
}
