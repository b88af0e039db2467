//! Nanoseconds per packet of the classifier, by test runs in the real kernel (needs root).
//!
//! Prints a Markdown table. Each figure is the minimum of several rounds, since a disturbance only
//! adds to a round. It contains the cost of a test run itself (about 50 ns). The ratio is to a
//! policy that matches nothing, in the same run. Each case repeats one packet, so its caches are
//! warm; a first packet costs more. One packet in four is timed. A test run has no network device
//! that has checked the TCP checksum, so the program computes it; most devices deliver packets with
//! a checked one.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::Duration;

use fairweir_core::packet::Transport;
use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::sites::Flow;
use fairweir_core::units::Span;
use fairweir_linux::netns::Netns;
use fairweir_linux::trial::{Packet, Trial};
use fairweir_linux::{link, monotonic_now};

const ROUNDS: usize = 9;
/// All rounds take less than 10 s: when the clock stops for longer, packets are not timed.
const RUNS_PER_ROUND: u32 = 100_000;
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

/// Runs in a fresh namespace, so that this process owns all its sockets. Returns the first figure.
fn table() -> u64 {
    link::add_address("lo", format!("{REMOTE}/32").parse().unwrap()).unwrap();
    let executable = std::env::current_exe().unwrap();
    let executable = executable.file_name().unwrap().to_str().unwrap();
    let app = [format!("app:{}", &executable[..executable.len().min(63)])];
    let many: Vec<String> = (0..20_000_u32)
        .map(|i| format!("ip:{}.{}.{}.0/24", 11 + i / 8_192, (i / 32) % 256, (i % 32) * 8))
        .chain(["ip:203.0.113.0/24".to_owned()])
        .collect();
    let cases: [(&str, &[String]); 9] = [
        ("nothing", &[]),
        ("address", &["ip:203.0.113.0/24".to_owned()]),
        ("20,000 prefixes", &many),
        ("port", &["port:tcp/443".to_owned()]),
        ("application", &app),
        ("site", &["web:example.com".to_owned()]),
        ("all of these", &[&many[..], &["local-port:1".to_owned()], &app].concat()),
        ("nothing, and packets are timed", &[]),
        ("application, and packets are timed", &app),
    ];
    let mut trials: Vec<Trial> = cases.iter().map(|(_, matches)| trial(matches)).collect();
    // The trials are attached when the socket is made, so they know its owner.
    let listener = TcpListener::bind((REMOTE, 443)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    server.write_all(b"a").unwrap();
    while stream.peek(&mut [0]).unwrap() == 0 {}
    for ((name, _), trial) in cases.iter().zip(&mut trials) {
        if name.ends_with("timed") {
            trial.time_packets().unwrap();
        }
    }
    let (local, remote) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let flow = Flow { transport: Transport::Tcp, local, remote };
    for trial in &trials {
        trial.bind(&flow, 0).unwrap();
    }
    let mut next = Segment::next(&stream, &server);
    // The program finds the period of the server's clock from two packets more than a second apart.
    for apart_ms in [0, 1_100] {
        sleep(Duration::from_millis(apart_ms));
        next.stamp += apart_ms as u32;
        let bytes = next.packet();
        for ((name, _), trial) in cases.iter().zip(&trials) {
            if name.ends_with("timed") {
                trial.run(&Packet { bytes: &bytes, ..Packet::default() }, 8).unwrap();
            }
        }
    }
    let bytes = next.packet();
    let packet = Packet { bytes: &bytes, ..Packet::default() };
    for ((name, matches), trial) in cases.iter().zip(&trials) {
        let verdict = trial.run(&packet, 1).unwrap();
        let wanted = usize::from(matches.is_empty());
        assert!(verdict.redirected && verdict.group == Some(wanted), "{name}: {verdict:?}");
    }
    // The rounds of the cases alternate, so that a disturbance affects all cases alike.
    let mut least = [u64::MAX; 9];
    for _ in 0..ROUNDS {
        for (trial, least) in trials.iter().zip(&mut least) {
            let span = trial.run(&packet, RUNS_PER_ROUND).unwrap().span.as_nanos();
            *least = span.min(*least);
        }
    }
    for ((name, _), trial) in cases.iter().zip(&trials) {
        let timed = trial.timed().unwrap();
        let runs = RUNS_PER_ROUND * ROUNDS as u32;
        assert!(!name.ends_with("timed") || timed > runs / 8, "{name}: {timed} of {runs} timed");
    }
    for ((name, _), &span) in cases.iter().zip(&least) {
        println!("| {name} | {span} | {:.2} |", span as f64 / least[0] as f64);
    }
    least[0]
}

fn trial(matches: &[String]) -> Trial {
    let matches = matches.iter().map(|m| m.parse().unwrap()).collect();
    let group = Group::new("a", Weight::ONE, matches);
    let mut trial = Trial::new(&Policy::new(vec![group]).unwrap(), false).unwrap();
    // All rounds together last longer than a heartbeat is valid.
    trial.enforce(monotonic_now() + Span::secs(60)).unwrap();
    trial
}

/// A segment of a download with 1448 bytes of payload, from [`REMOTE`] port 443.
struct Segment {
    to: SocketAddr,
    seq: u32,
    ack: u32,
    stamp: u32,
}

impl Segment {
    /// The segment that `client` expects next from `server`.
    fn next(client: &TcpStream, server: &TcpStream) -> Segment {
        set(client, libc::TCP_REPAIR, TCP_REPAIR_ON);
        let of_queue = |queue| {
            set(client, libc::TCP_REPAIR_QUEUE, queue);
            number(client, libc::TCP_QUEUE_SEQ)
        };
        let (ack, seq) = (of_queue(TCP_SEND_QUEUE), of_queue(TCP_RECV_QUEUE));
        set(client, libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
        let stamp = number(server, libc::TCP_TIMESTAMP);
        Segment { to: client.local_addr().unwrap(), seq, ack, stamp }
    }

    fn packet(&self) -> Vec<u8> {
        let IpAddr::V4(address) = self.to.ip() else { panic!("an IPv4 connection") };
        let mut packet = vec![0; 12];
        packet.extend([0x08, 0, 0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(REMOTE.octets());
        packet.extend(address.octets());
        packet.extend(443_u16.to_be_bytes());
        packet.extend(self.to.port().to_be_bytes());
        packet.extend(self.seq.to_be_bytes());
        packet.extend(self.ack.to_be_bytes());
        packet.extend([0x80, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10]);
        packet.extend(self.stamp.to_be_bytes());
        packet.resize(1_514, 0);
        let length = (packet.len() - TCP_AT) as u16;
        let pseudo = [&packet[TCP_AT - 8..TCP_AT], &[0, 6], &length.to_be_bytes()].concat();
        let summed = [pseudo.as_slice(), &packet[TCP_AT..]].concat();
        packet[TCP_AT + 16..][..2].copy_from_slice(&checksum(&summed).to_be_bytes());
        packet
    }
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

fn set(stream: &TcpStream, option: i32, value: i32) {
    // SAFETY: the socket is open, and the kernel reads an int.
    let answer = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, option, value, 4)
    };
    assert_eq!(answer, 0, "option {option}: {}", std::io::Error::last_os_error());
}

fn number(stream: &TcpStream, option: i32) -> u32 {
    let (mut value, mut length) = (0_u32, 4);
    // SAFETY: the socket is open, and the kernel writes at most `length` bytes to `value`.
    let answer = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, option, value, &raw mut length)
    };
    assert_eq!(answer, 0, "option {option}: {}", std::io::Error::last_os_error());
    value
}

/// Offset behind the Ethernet and IPv4 headers.
const TCP_AT: usize = 34;
/// Source: include/uapi/linux/tcp.h.
const TCP_REPAIR_ON: i32 = 1;
const TCP_REPAIR_OFF_NO_WP: i32 = -1;
const TCP_RECV_QUEUE: i32 = 1;
const TCP_SEND_QUEUE: i32 = 2;
