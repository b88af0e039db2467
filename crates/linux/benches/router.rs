//! Nanoseconds per packet of the router's programs, by test runs in the real kernel, and the memory of
//! their tables (needs root).
//!
//! Prints a Markdown table, for 200 devices with groups by MAC address and 20,000 connections. Each
//! figure of "one" is the minimum of several rounds that repeat one packet, so its caches are warm.
//! "eight" is the mean of eight packets of each connection in turn, like a burst of a download; "all" of
//! one packet of each connection. A system call precedes each burst, so its caches are cold. All figures
//! contain the cost of a test run itself, which is nearly the whole cost of a frame that is not IP.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::thread::sleep;
use std::time::Duration;

use fairweir_core::policy::{Branch, Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::units::Span;
use fairweir_linux::router_trial::{Hook, Trial};

const ROUNDS: usize = 9;
const RUNS_PER_ROUND: u32 = 100_000;
const DEVICES: u16 = 200;
const CONNECTIONS: u16 = 20_000;

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let rows: [Row; 5] = [
        (Hook::WanIngress, "not IP", Segment::arp),
        (Hook::WanIngress, "data", Segment::data),
        (Hook::LanEgress, "not followed", Segment::other),
        (Hook::LanEgress, "data", Segment::data),
        (Hook::LanIngress, "ack", Segment::ack),
    ];
    measure(&[], &rows);
    println!("\nWith a group of a site in each of half as many devices:\n");
    let rows: [Row; 3] = [
        (Hook::LanEgress, "data", Segment::data),
        (Hook::Hear, "ack", Segment::ack),
        (Hook::Hear, "request", Segment::request),
    ];
    measure(&["web:example.com"], &rows);
}

type Row = (Hook, &'static str, fn(&Segment) -> Vec<u8>);

/// A device, with a group for each match in `within`.
fn device(number: u16, within: &[&str]) -> Branch {
    let group =
        |name: String, matched: &str| Group::new(name, Weight::ONE, vec![matched.parse().unwrap()]);
    let mac = format!("mac:02:00:5e:00:{:02x}:{:02x}", number >> 8, number & 255);
    let inner = within.iter().enumerate().map(|(i, &m)| group(format!("g{i}"), m).into());
    Branch { group: group(format!("device-{number}"), &mac), beneath: inner.collect() }
}

fn measure(within: &[&str], rows: &[Row]) {
    let devices = DEVICES / (1 + within.len() as u16);
    let devices = (0..devices).map(|number| device(number, within));
    let mut trial = Trial::new(&Policy::nested(devices.collect()).unwrap()).unwrap();
    for number in 0..CONNECTIONS {
        let segment = Segment { number, stamp: 1_000, asked: 800 };
        trial.run(Hook::LanIngress, &segment.syn(), 1).unwrap();
        if !within.is_empty() {
            trial.run(Hook::Hear, &segment.syn(), 1).unwrap();
        }
        trial.run(Hook::LanEgress, &segment.syn_ack(), 1).unwrap();
        trial.run(Hook::LanIngress, &segment.ack(), 1).unwrap();
        trial.run(Hook::LanEgress, &segment.data(), 1).unwrap();
    }
    assert_eq!(trial.connections().unwrap(), usize::from(CONNECTIONS));
    // The program finds the period of the server's clock from two packets more than a second apart.
    sleep(Duration::from_millis(1_100));
    let segment = Segment { number: 7, stamp: 2_100, asked: 800 };
    trial.run(Hook::LanEgress, &segment.data(), 8).unwrap();
    println!("| program | packet | one (ns) | eight (ns) | all (ns) |\n|---|---|---:|---:|---:|");
    for (hook, what, frame) in rows {
        trial.begin_interval().unwrap();
        let one = (0..ROUNDS).map(|_| trial.run(*hook, &frame(&segment), RUNS_PER_ROUND).unwrap());
        let one = one.min().unwrap().as_nanos();
        let mut each = |packets| {
            trial.begin_interval().unwrap();
            let of = |number| frame(&Segment { number, ..segment });
            let spans = (0..CONNECTIONS).map(|n| trial.run(*hook, &of(n), packets).unwrap());
            spans.map(Span::as_nanos).sum::<u64>() / u64::from(CONNECTIONS)
        };
        let (eight, all) = (each(8), each(1));
        println!("| {hook:?} | {what} | {one} | {eight} | {all} |");
    }
    let begin = std::time::Instant::now();
    trial.connections().unwrap();
    println!("\nAll connections are read in {:.1} ms.", begin.elapsed().as_secs_f64() * 1e3);
    println!("Tables: {:.1} MB", trial.memory().unwrap().as_u64() as f64 / 1e6);
}

/// A segment of a connection between a device and 203.0.113.7 port 443.
#[derive(Clone, Copy)]
struct Segment {
    number: u16,
    /// The server's timestamp, and the device's.
    stamp: u32,
    asked: u32,
}

impl Segment {
    fn syn(&self) -> Vec<u8> {
        let stamps = [self.asked.to_be_bytes(), [0; 4]].concat();
        self.packet(
            true,
            0x02,
            &[&[2, 4, 5, 180, 4, 2, 8, 10], &stamps[..], &[1, 3, 3, 7]].concat(),
            0,
        )
    }

    fn syn_ack(&self) -> Vec<u8> {
        let stamps = [self.stamp.to_be_bytes(), self.asked.to_be_bytes()].concat();
        self.packet(
            false,
            0x12,
            &[&[2, 4, 5, 180, 4, 2, 8, 10], &stamps[..], &[1, 3, 3, 7]].concat(),
            0,
        )
    }

    fn ack(&self) -> Vec<u8> {
        let stamps = [self.asked.to_be_bytes(), self.stamp.to_be_bytes()].concat();
        self.packet(true, 0x10, &[&[1, 1, 8, 10], &stamps[..]].concat(), 0)
    }

    fn data(&self) -> Vec<u8> {
        let stamps = [self.stamp.to_be_bytes(), self.asked.to_be_bytes()].concat();
        self.packet(false, 0x10, &[&[1, 1, 8, 10], &stamps[..]].concat(), 1_448)
    }

    /// Payload at the beginning of the connection, from the device, without the name of a host.
    fn request(&self) -> Vec<u8> {
        let stamps = [self.asked.to_be_bytes(), self.stamp.to_be_bytes()].concat();
        self.packet(true, 0x10, &[&[1, 1, 8, 10], &stamps[..]].concat(), 100)
    }

    fn arp(&self) -> Vec<u8> {
        let mut frame = self.data();
        frame[13] = 6;
        frame
    }

    /// A segment of a connection that is not followed, to a device that has no rule.
    fn other(&self) -> Vec<u8> {
        let mut frame = self.data();
        frame[5] = 255;
        frame[4] = 255;
        frame[TCP_AT + 1] = 1;
        frame
    }

    fn packet(&self, leaves: bool, flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
        let device = self.number % DEVICES;
        let mac = [2, 0, 0x5e, 0, (device >> 8) as u8, device as u8];
        let host = [192, 168, 7, device as u8];
        let port = (20_000 + self.number).to_be_bytes();
        let (server, https) = ([203, 0, 113, 7], 443_u16.to_be_bytes());
        // The loopback device accepts only frames with its own destination address.
        let macs = if leaves { [[0; 6], mac] } else { [mac, [0; 6]] };
        let addresses = if leaves { [host, server] } else { [server, host] };
        let ports = if leaves { [port, https] } else { [https, port] };
        let (own, other) = if leaves { (100_u32, 500_u32) } else { (500, 100) };
        let is_syn = flags & 2 != 0;
        let seq = own - u32::from(is_syn);
        let ack = if flags & 0x10 != 0 { other } else { 0 };
        let words = ((20 + options.len()) / 4) as u8;
        let length = (40 + options.len() + payload) as u16;
        let mut frame = macs.concat();
        frame.extend([8, 0, 0x45, 0, length.to_be_bytes()[0], length.to_be_bytes()[1]]);
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(addresses.concat());
        frame.extend(ports.concat());
        frame.extend(seq.to_be_bytes());
        frame.extend(ack.to_be_bytes());
        frame.extend([words << 4, flags, 1, 0, 0, 0, 0, 0]);
        frame.extend(options);
        frame.resize(frame.len() + payload, 0);
        frame
    }
}

/// Offset behind the Ethernet and IPv4 headers.
const TCP_AT: usize = 34;
