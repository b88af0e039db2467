//! Nanoseconds that `web:` rules add to a packet of a decided flow, by test runs in the real kernel
//! (needs root).
//!
//! Prints a Markdown table. *without*: a policy that matches nothing; for packets that leave, the
//! hearing program (which only `web:` rules attach) while it is switched off, so the difference leaves
//! out the cost of calling a program. *by turns*: each of [`FLOWS`] decided flows has one packet,
//! repeatedly; each packet is a test run of its own, so the caches are as the previous system call left
//! them. *eight at once*: one test run has eight packets, like a burst of a download. These figures are
//! the mean of the middle half of all packets, and contain two reads of a clock. *none remembered*:
//! another flow was bound before each packet, so each is the first of its flow since. In the other rows
//! one packet repeats, and the figure is the minimum of several rounds, since a disturbance only adds.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::net::{Ipv4Addr, SocketAddr};

use fairweir_core::packet::Transport;
use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::sites::Flow;
use fairweir_core::units::Span;
use fairweir_linux::netns::Netns;
use fairweir_linux::trial::{Packet, Trial};

/// The capacity of the kernel's table.
const FLOWS: u32 = 65_536;
const ROUNDS: usize = 9;
const RUNS_PER_ROUND: u32 = 100_000;
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    println!("| packets | without, ns | with, ns | more |\n|---|---:|---:|---:|");
    Netns::new().unwrap().run(table);
}

fn table() {
    let without = trial(&[]);
    let mut with = trial(&["web:example.com"]);
    for number in 0..FLOWS {
        for trial in [&without, &with] {
            trial.bind(&flow(number), 0).unwrap();
        }
    }
    // The table holds all flows, since it has no other entries.
    let bound = (0..FLOWS).filter(|number| {
        let bytes = arriving(*number);
        with.run(&Packet { bytes: &bytes, ..Packet::default() }, 1).unwrap().group == Some(0)
    });
    assert_eq!(bound.count(), FLOWS as usize);
    let unknown = FLOWS;
    for (number, what) in
        [(0, "flow 0"), (FLOWS - 1, "the last flow"), (unknown, "an unknown flow")]
    {
        let bytes = arriving(number);
        let run = |trial: &Trial| {
            trial.run(&Packet { bytes: &bytes, ..Packet::default() }, RUNS_PER_ROUND).unwrap().span
        };
        row(&format!("arrive, all of {what}"), least([&without, &with], run));
    }
    for (what, payload) in [("acknowledgements", 0), ("segments with 1,400 bytes", 1_400)] {
        let bytes = leaving(FLOWS - 1, payload);
        let run = |trial: &Trial| trial.run_sent(&bytes, RUNS_PER_ROUND).unwrap();
        row(&format!("leave, {what}"), least([&without, &with], run));
    }
    for flows in [32, 64, 256, 1_024, 4_096, 16_384, FLOWS] {
        let run = |packets| {
            move |trial: &Trial, number| {
                let bytes = arriving(number % flows);
                trial.run(&Packet { bytes: &bytes, ..Packet::default() }, packets).unwrap().span
            }
        };
        row(&format!("arrive, {flows} flows by turns"), means([&without, &with], run(1)));
        row("the same, eight packets at once", means([&without, &with], run(8)));
        let run = |trial: &Trial, number| trial.run_sent(&leaving(number % flows, 0), 1).unwrap();
        row("leave, acknowledgements of them by turns", means([&without, &with], run));
    }
    let run = |trial: &Trial, number| {
        let bytes = arriving(unknown + number % 1_024);
        trial.run(&Packet { bytes: &bytes, ..Packet::default() }, 1).unwrap().span
    };
    row("arrive, 1024 unknown flows by turns", means([&without, &with], run));
    with.bind_anew(&flow(0), 1).unwrap();
    let run = |trial: &Trial, number| {
        let bytes = arriving(number);
        trial.run(&Packet { bytes: &bytes, ..Packet::default() }, 1).unwrap().span
    };
    row(&format!("arrive, {FLOWS} flows by turns, none remembered"), means([&without, &with], run));
}

fn row(what: &str, [without, with]: [u64; 2]) {
    println!("| {what} | {without} | {with} | {} |", with as i64 - without as i64);
}

/// The rounds of both alternate, so that a disturbance affects both alike.
fn least(trials: [&Trial; 2], run: impl Fn(&Trial) -> Span) -> [u64; 2] {
    let mut least = [u64::MAX; 2];
    for _ in 0..ROUNDS {
        for (trial, least) in trials.iter().zip(&mut least) {
            *least = run(trial).as_nanos().min(*least);
        }
    }
    least
}

fn means(trials: [&Trial; 2], run: impl Fn(&Trial, u32) -> Span) -> [u64; 2] {
    let mut spans = [Vec::new(), Vec::new()];
    for number in 0..FLOWS {
        for (trial, spans) in trials.iter().zip(&mut spans) {
            spans.push(run(trial, number).as_nanos());
        }
    }
    spans.map(|mut spans| {
        spans.sort_unstable();
        let middle = &spans[spans.len() / 4..][..spans.len() / 2];
        middle.iter().sum::<u64>() / middle.len() as u64
    })
}

fn trial(matches: &[&str]) -> Trial {
    let matches = matches.iter().map(|m| m.parse().unwrap()).collect();
    let group = Group::new("a", Weight::ONE, matches);
    Trial::new(&Policy::new(vec![group]).unwrap(), false).unwrap()
}

/// Ports as the kernel assigns them to connections: even numbers.
fn flow(number: u32) -> Flow {
    let [_, a, b, _] = (number << 4).to_be_bytes();
    Flow {
        transport: Transport::Tcp,
        local: SocketAddr::new(HOST.into(), 32_768 + 2 * (number % 16_384) as u16),
        remote: SocketAddr::new([198, 18 + (a & 1), b, (number / 16_384) as u8].into(), 443),
    }
}

/// A segment of a download with 1,448 bytes of payload.
fn arriving(number: u32) -> Vec<u8> {
    let Flow { remote, local, .. } = flow(number);
    segment(remote, local, 1_448)
}

fn leaving(number: u32, payload: usize) -> Vec<u8> {
    let Flow { remote, local, .. } = flow(number);
    segment(local, remote, payload)
}

fn segment(from: SocketAddr, to: SocketAddr, payload: usize) -> Vec<u8> {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => v4.ip().octets(),
        SocketAddr::V6(_) => unreachable!("flows are IPv4"),
    };
    let length = (20 + 32 + payload) as u16;
    let mut packet = vec![0; 12];
    packet.extend([0x08, 0, 0x45, 0]);
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(octets(from));
    packet.extend(octets(to));
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
    packet.resize(14 + usize::from(length), 0);
    packet
}
