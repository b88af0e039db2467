//! Nanoseconds per packet of the classifier, by test runs in the real kernel (needs root).
//!
//! Prints a Markdown table; each figure is the least of several rounds, since whatever disturbs a
//! round only adds to it, and contains what a test run itself costs (some 50 ns). The ratio is
//! against a policy that matches nothing, in the same run. Each case sees one packet again and again,
//! so its caches are warm; a first packet costs more.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::units::Span;
use fairweir_linux::netns::Netns;
use fairweir_linux::trial::{Packet, Trial};
use fairweir_linux::{link, monotonic_now};

const ROUNDS: usize = 9;
const RUNS_PER_ROUND: u32 = 300_000;
const REMOTE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    println!("| look-up | ns per packet | ratio |\n|---|---:|---:|");
    let base = Netns::new().unwrap().run(table);
    assert!(base > 0, "the kernel measures test runs");
}

/// Runs in a fresh namespace, whose sockets are all ours; returns the first figure.
fn table() -> u64 {
    link::add_address("lo", format!("{REMOTE}/32").parse().unwrap()).unwrap();
    let executable = std::env::current_exe().unwrap();
    let executable = executable.file_name().unwrap().to_str().unwrap();
    let app = [format!("app:{}", &executable[..executable.len().min(63)])];
    let many: Vec<String> = (0..20_000_u32)
        .map(|i| format!("ip:{}.{}.{}.0/24", 11 + i / 8_192, (i / 32) % 256, (i % 32) * 8))
        .chain(["ip:203.0.113.0/24".to_owned()])
        .collect();
    let cases: [(&str, &[String]); 8] = [
        ("nothing", &[]),
        ("address", &["ip:203.0.113.0/24".to_owned()]),
        ("20,000 prefixes", &many),
        ("port", &["port:tcp/443".to_owned()]),
        ("application", &app),
        ("all of these", &[&many[..], &["local-port:1".to_owned()], &app].concat()),
        ("nothing, and packets are timed", &[]),
        ("application, and packets are timed", &app),
    ];
    let mut trials: Vec<Trial> = cases.iter().map(|(_, matches)| trial(matches)).collect();
    // The socket is made under the eyes of the trials, which so know its owner.
    let listener = TcpListener::bind((REMOTE, 443)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for ((name, _), trial) in cases.iter().zip(&mut trials) {
        if name.ends_with("timed") {
            trial.time_packets().unwrap();
        }
    }
    let bytes = packet(stream.local_addr().unwrap());
    let packet = Packet { bytes: &bytes, ..Packet::default() };
    for ((name, matches), trial) in cases.iter().zip(&trials) {
        let verdict = trial.run(&packet, 1).unwrap();
        let wanted = usize::from(matches.is_empty());
        assert!(verdict.redirected && verdict.group == Some(wanted), "{name}: {verdict:?}");
    }
    // The rounds of all cases alternate, so that a disturbance hits none more than the others.
    let mut least = [u64::MAX; 8];
    for _ in 0..ROUNDS {
        for (trial, least) in trials.iter().zip(&mut least) {
            let span = trial.run(&packet, RUNS_PER_ROUND).unwrap().span.as_nanos();
            *least = span.min(*least);
        }
    }
    for ((name, _), &span) in cases.iter().zip(&least) {
        println!("| {name} | {span} | {:.2} |", span as f64 / least[0] as f64);
    }
    least[0]
}

fn trial(matches: &[String]) -> Trial {
    let matches = matches.iter().map(|m| m.parse().unwrap()).collect();
    let group = Group { name: "a".to_owned(), weight: Weight::ONE, matches };
    let mut trial = Trial::new(&Policy::new(vec![group]).unwrap(), false).unwrap();
    // All rounds together last longer than a heartbeat counts.
    trial.enforce(monotonic_now() + Span::secs(60)).unwrap();
    trial
}

/// A segment of a download with 1448 bytes of payload, from [`REMOTE`] port 443 to `local`.
fn packet(local: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(address) = local.ip() else { panic!("an IPv4 connection") };
    let mut packet = vec![0; 12];
    packet.extend([0x08, 0, 0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(REMOTE.octets());
    packet.extend(address.octets());
    packet.extend(443_u16.to_be_bytes());
    packet.extend(local.port().to_be_bytes());
    packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
    packet.extend([1, 1, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0]);
    packet.resize(1_514, 0);
    packet
}
