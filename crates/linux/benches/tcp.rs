//! What the classifier costs a bulk TCP download between two network namespaces (needs root).
//!
//! Prints a Markdown table: rates and their ratios to the rate without fairweir, and the CPU time of
//! and sender and receiver together. The cases of a round run one after the other, each with its
//! own connection. The medians over the rounds are printed.
//!
//! Sender and receiver have one core each, with priority over other processes. The receiving stack
//! mostly runs on the sender's core.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::receiver::{ConnectionWindow, Windows};
use fairweir_core::units::{Bytes, Rate};
use fairweir_linux::{Attached, Host, Mode};
use nix::time::{ClockId, clock_gettime};

#[path = "../tests/it/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the bench uses a part")]
mod common;
use common::{Pair, allocation, policy, read_for};

const ROUNDS: usize = 5;
/// Time before the measurement: for slow start, and until the host knows a connection's clock.
const SETTLE: Duration = Duration::from_millis(2_000);
const MEASURE: Duration = Duration::from_millis(1_500);
/// Payload of a packet of 1514 bytes.
const PAYLOAD: f64 = 1_448.0;
const TICK: Duration = Duration::from_millis(200);

/// What is attached to the receiver's device.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Without,
    /// Groups are counted and packets timed, as while the capacity is unknown.
    Counting,
    /// As `Counting`, with a group that is known by its application.
    Application,
    /// Windows are bounded, and the classes are faster than the traffic.
    Loose,
    /// The classes are faster than the traffic, but the windows are free.
    Unbounded,
}

const CASES: [(Case, &str); 5] = [
    (Case::Without, "without fairweir"),
    (Case::Counting, "counting, nothing enforced"),
    (Case::Application, "the same, with `app:` rules"),
    (Case::Loose, "windows bounded, classes above the rate"),
    (Case::Unbounded, "windows free, classes above the rate"),
];

fn main() {
    if !fairweir_testing::privileged() {
        return;
    }
    println!("| packets | case | Gbit/s | ratio | CPU ns per 1448 bytes | more |");
    println!("|---|---|---:|---:|---:|---:|");
    for (offloads, packets) in [(false, "1514 bytes"), (true, "with offloads")] {
        let pair = Pair::new(offloads);
        let mut rates = [(); CASES.len()].map(|()| Vec::new());
        for _ in 0..ROUNDS {
            for ((case, _), rates) in CASES.iter().zip(&mut rates) {
                rates.push(measure(&pair, *case));
            }
        }
        for ((_, name), case) in CASES.iter().zip(&rates) {
            let ratios = case.iter().zip(&rates[0]).map(|(run, without)| run.gbit / without.gbit);
            let more = case.iter().zip(&rates[0]).map(|(run, without)| run.cpu_ns - without.cpu_ns);
            let (gbit, ratio) = (median(case.iter().map(|run| run.gbit)), median(ratios));
            let (cpu, more) = (median(case.iter().map(|run| run.cpu_ns)), median(more));
            println!("| {packets} | {name} | {gbit:.2} | {ratio:.3} | {cpu:.0} | {more:.0} |");
        }
    }
}

/// One download.
struct Run {
    gbit: f64,
    /// CPU time of sender and receiver per [`PAYLOAD`] bytes.
    cpu_ns: f64,
}

fn measure(pair: &Pair, case: Case) -> Run {
    let matches: &[&str] = if case == Case::Application { &["app:steam"] } else { &[] };
    let policy = policy(&[("group", matches)]);
    let mut host = (case != Case::Without).then(|| pair.host(&policy, Mode::Shape));
    let server = pair.internet.run(|| std::net::TcpListener::bind("192.0.2.2:0").unwrap());
    let address = server.local_addr().unwrap();
    let mut stream = pair.home.run(|| std::net::TcpStream::connect(address).unwrap());
    let (settled, end) = (Instant::now() + SETTLE, Instant::now() + SETTLE + MEASURE);
    let sender = thread::spawn(move || {
        pin(0);
        let mut stream = server.accept().unwrap().0;
        common::set_congestion_control(&stream, "cubic");
        let mut send = || stream.write_all(&[7; 1 << 17]).is_ok();
        while Instant::now() < settled && send() {}
        let begin = cpu_time();
        while Instant::now() < end && send() {}
        let spent = cpu_time() - begin;
        while send() {}
        spent
    });
    let reader = thread::spawn(move || {
        pin(1);
        read_for(&mut stream, settled - Instant::now());
        let (begin, begin_cpu) = (Instant::now(), cpu_time());
        let received = read_for(&mut stream, end - begin) as f64;
        (received, begin.elapsed(), cpu_time() - begin_cpu)
    });
    while !reader.is_finished() {
        thread::sleep(TICK);
        host.iter_mut().for_each(|host| tick(host, case));
    }
    let (received, span, spent) = reader.join().unwrap();
    let cpu_ns = (spent + sender.join().unwrap()).as_nanos() as f64 / (received / PAYLOAD);
    Run { gbit: received * 8e-9 / span.as_secs_f64(), cpu_ns }
}

/// What a daemon does five times a second.
fn tick(host: &mut Host, case: Case) {
    host.take_samples().unwrap();
    let connections = host.take_connections().unwrap();
    if matches!(case, Case::Loose | Case::Unbounded) {
        host.apply(&allocation(&[Rate::mbit(34_000); 2])).unwrap();
    }
    if case == Case::Loose {
        let bound = |id| ConnectionWindow { id, window: Bytes::new(1 << 23) };
        let connections = connections.iter().map(|c| bound(c.id)).collect();
        host.apply_windows(&Windows { connections, initial: vec![None; 2] }).unwrap();
    }
    host.beat().unwrap();
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Binds the calling thread to a core, with priority over other processes.
fn pin(core: usize) {
    // SAFETY: the set outlives the call, and the length is the set's.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
    }
}

/// CPU time of the calling thread, including the packets that the kernel handled in its context.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
