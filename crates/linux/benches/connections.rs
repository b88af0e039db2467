//! What watching connections and bounding their windows costs (needs root): CPU time of a pass over
//! the connections of a namespace, and of the daemon's part of a tick (five ticks a second).
//!
//! A pass looks at every bucket of the kernel's table of connections. The table grows with the
//! machine's memory, so even a pass without connections costs something.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use fairweir_core::policy::{Group, Policy};
use fairweir_core::receiver::{ConnectionSample, ConnectionWindow, Windows};
use fairweir_core::share::Weight;
use fairweir_core::units::Bytes;
use fairweir_linux::netns::Netns;
use fairweir_linux::{Attached, Host, HostSpec, Mode, link};
use nix::time::{ClockId, clock_gettime};

const GROUPS: usize = 24;
const TICKS: u32 = 25;
/// 50 changes per second.
const CHANGED_PER_TICK: usize = 10;

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let buckets = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ehash_entries").unwrap();
    println!(
        "{} buckets, {GROUPS} groups, 50 connections open and close a second\n",
        buckets.trim()
    );
    println!("| connections | receiving | samples, µs | windows, µs | cores at 5 ticks/s |");
    println!("|---:|---:|---:|---:|---:|");
    for (connections, receiving) in
        [(0, 0), (100, 0), (100, 100), (1_000, 0), (1_000, 100), (1_000, 1_000)]
    {
        let (samples, windows) = measure(connections, receiving);
        let cores = (samples + windows) * 5e-6;
        println!("| {connections} | {receiving} | {samples:.0} | {windows:.0} | {cores:.4} |");
    }
}

/// Microseconds of CPU per tick for reading samples and for applying windows.
fn measure(connections: usize, receiving: usize) -> (f64, f64) {
    let (home, internet) = (Netns::new().unwrap(), Netns::new().unwrap());
    home.run(|| {
        link::create_veth("wan", &internet, "far").unwrap();
        link::add_address("wan", "192.0.2.1/24".parse().unwrap()).unwrap();
        link::set_up("wan").unwrap();
    });
    let listener = internet.run(|| {
        link::add_address("far", "192.0.2.2/24".parse().unwrap()).unwrap();
        link::set_up("far").unwrap();
        TcpListener::bind("192.0.2.2:0").unwrap()
    });
    home.run(|| {
        let mut host = host();
        host.take_connections().unwrap();
        let mut pairs: Vec<_> = (0..connections).map(|_| connect(&listener)).collect();
        let (mut sampling, mut applying) = (0.0, 0.0);
        for tick in 0..TICKS {
            for pair in pairs.iter_mut().take(CHANGED_PER_TICK) {
                *pair = connect(&listener);
            }
            for (_, server) in pairs.iter_mut().take(receiving) {
                server.write_all(&[7; 1_000]).unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
            let start = cpu();
            let samples = host.take_connections().unwrap();
            let read = cpu();
            assert!(samples.len() >= receiving, "{} of {receiving}", samples.len());
            host.apply_windows(&windows(&samples, tick)).unwrap();
            host.beat().unwrap();
            sampling += read - start;
            applying += cpu() - read;
        }
        (sampling / f64::from(TICKS), applying / f64::from(TICKS))
    })
}

fn host() -> Host {
    let group = |i: usize| {
        Group::new(format!("g{i}"), Weight::ONE, vec![format!("port:{}", i + 1).parse().unwrap()])
    };
    let policy = Policy::new((1..GROUPS).map(group).collect()).unwrap();
    let spec =
        HostSpec { dev: "wan".into(), policy, mode: Mode::Count, census: false, marks: false };
    Host::attach(&spec).unwrap()
}

fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let server: SocketAddr = listener.local_addr().unwrap();
    let client = TcpStream::connect(server).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Windows that differ at every tick.
fn windows(samples: &[ConnectionSample], tick: u32) -> Windows {
    let window = Bytes::new(20_000 + u64::from(tick) * 1_000);
    let bound = |s: &ConnectionSample| ConnectionWindow { id: s.id, window };
    Windows {
        connections: samples.iter().map(bound).collect(),
        initial: vec![Some(window); GROUPS],
    }
}

/// CPU time of this thread, in microseconds.
fn cpu() -> f64 {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    used.tv_sec() as f64 * 1e6 + used.tv_nsec() as f64 * 1e-3
}
