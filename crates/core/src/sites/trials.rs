//! Many beginnings at once: how many are read right, and that none makes a parser panic.
//!
//! `cargo test --release -p fairweir-core --lib sites -- --ignored ten_million`

use super::dns::tests::{OWNER, answer, labels, query, record, service};
use super::quic::Initials;
use super::quic::tests::{crypto, sent};
use super::resolver::tests::{AT, SALT, connection, sites, tell};
use super::tls::tests::{browser_hello, hello_with, names, records};
use super::{Command, Connection, Heard, Resolver, dns, http, tls};
use crate::packet::Transport;

/// Numbers that look random. Source: Vigna, splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }
}

/// One of the right inputs with some changes, or bytes that are no such input at all.
fn changed(numbers: &mut Numbers, right: &[Vec<u8>]) -> Vec<u8> {
    const ODD: [u8; 8] = [0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff];
    if numbers.below(16) == 0 {
        return (0..numbers.below(300)).map(|_| numbers.next() as u8).collect();
    }
    let mut bytes = right[numbers.below(right.len())].clone();
    for _ in 0..=numbers.below(6) {
        if bytes.is_empty() {
            break;
        }
        // Most of what is read is in front.
        let end = if numbers.below(2) == 0 { bytes.len().min(80) } else { bytes.len() };
        let at = numbers.below(end);
        match numbers.below(7) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes[at] = ODD[numbers.below(ODD.len())],
            2 => bytes[at] = numbers.next() as u8,
            3 => bytes.truncate(at),
            4 => {
                let length = numbers.below(bytes.len() - at) / 4;
                bytes.drain(at..at + length);
            }
            5 => {
                let length = numbers.below(bytes.len() - at).min(40);
                let copy = bytes[at..at + length].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let other = &right[numbers.below(right.len())];
                let from = numbers.below(other.len());
                let part = &other[from..other.len().min(from + 40)];
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
    bytes
}

/// Gives `count` inputs to a parser, which tells whether it took one for a whole one. Some are, or
/// the inputs were too wrong to meet much of the parser.
fn ten_million(right: &[Vec<u8>], mut read: impl FnMut(&mut Numbers, &[u8]) -> bool) {
    let (mut numbers, mut whole) = (Numbers(1), 0_u64);
    for _ in 0..INPUTS {
        let bytes = changed(&mut numbers, right);
        whole += u64::from(read(&mut numbers, &bytes));
    }
    println!("{INPUTS} inputs, {whole} of them read to the end");
    assert!(whole > INPUTS / 50, "{whole}");
}

const INPUTS: u64 = 10_000_000;

fn hellos() -> Vec<Vec<u8>> {
    vec![
        browser_hello("www.video.com"),
        hello_with(&[names("video.com"), (43, vec![2, 3, 4])]),
        hello_with(&[]),
    ]
}

#[test]
#[ignore = "long: some minutes"]
fn ten_million_hellos_are_read_without_a_panic() {
    let whole = hellos().into_iter().flat_map(|hello| [900, 9_000].map(|n| records(&hello, n)));
    ten_million(&whole.collect::<Vec<_>>(), |_, bytes| {
        matches!(tls::hello_of_records(bytes), tls::Read::Whole(_))
    });
}

/// Half of them are changed before they are encrypted, so that what is inside is met too.
#[test]
#[ignore = "long: some minutes"]
fn ten_million_initial_packets_are_read_without_a_panic() {
    let frames = |hello: &Vec<u8>| crypto(0, &hello[..hello.len().min(1_000)]);
    let frames: Vec<_> = hellos().iter().map(frames).collect();
    let acknowledged = vec![3, 9, 0, 2, 1, 0, 1, 0, 1, 1, 2, 3, 2, 1, 0, 0, 0];
    let frames = [frames, vec![acknowledged]].concat();
    let packets: Vec<_> = frames.iter().map(|f| sent(&[7; 8], 0, f.clone()).packet()).collect();
    let mut initials = Initials::default();
    ten_million(&frames, |numbers, bytes| {
        if numbers.below(8) == 0 {
            initials = Initials::default();
        }
        let read = match numbers.below(2) {
            0 => initials.handle_datagram(&changed(numbers, &packets)),
            _ => initials.handle_datagram(&sent(&[7; 8], 0, bytes.to_vec()).packet()),
        };
        matches!(read, tls::Read::Whole(_))
    });
}

#[test]
#[ignore = "long: some minutes"]
fn ten_million_dns_messages_are_read_without_a_panic() {
    let cdn = labels("a.cdn.net");
    let aliases = [record(&OWNER, 5, 300, &cdn), record(&cdn, 1, 20, &[192, 0, 2, 7])];
    let right = [
        query(1, "www.video.com", 1),
        answer(1, "www.video.com", 1, &aliases),
        answer(1, "video.com", 28, &[record(&OWNER, 28, 60, &[9; 16])]),
        answer(1, "video.com", 65, &[record(&OWNER, 65, 60, &service("ech.cdn.net"))]),
    ];
    ten_million(&right, |_, bytes| dns::message(bytes).is_some());
}

#[test]
#[ignore = "long: some minutes"]
fn ten_million_http_requests_are_read_without_a_panic() {
    let right = [
        &b"GET / HTTP/1.1\r\nHost: www.video.com:80\r\nAccept: */*\r\n\r\n"[..],
        b"POST /a?b HTTP/1.1\r\naccept: x\r\nhOST:  [2001:db8::1]\t\r\n\r\nbody",
        b"GET http://video.com/ HTTP/1.0\r\n\r\n",
    ];
    let right = right.map(<[u8]>::to_vec);
    ten_million(&right, |_, bytes| matches!(http::host(bytes), tls::Read::Whole(_)));
}

const MANY: u16 = 2_000;

fn two_sites() -> Resolver {
    Resolver::new(sites(&[&["web:video.com"], &["web:bulk.net"]]), SALT.to_owned())
}

/// The last group of each local port.
fn groups(resolver: &mut Resolver) -> Vec<Option<usize>> {
    let mut groups = vec![None; usize::from(MANY)];
    while let Some(command) = resolver.poll_command() {
        if let Command::Bind { connection, group, .. } = command {
            groups[usize::from(connection.flow.local.port())] = group;
        }
    }
    groups
}

/// A beginning in pieces, sent in any order, again and again while some are lost: up to three times,
/// cut differently each time. The last of four times is as rare as a server that does not answer.
fn pieces(numbers: &mut Numbers, length: usize, longest: usize) -> Vec<(usize, usize)> {
    let mut heard = Vec::new();
    for _ in 0..4 {
        let (mut cuts, mut at) = (Vec::new(), 0);
        while at < length {
            let end = length.min(at + 1 + numbers.below(longest));
            cuts.push((at, end));
            at = end;
        }
        if numbers.below(3) == 0 {
            numbers.shuffle(&mut cuts);
        }
        heard.extend(cuts.into_iter().filter(|_| numbers.below(10) > 0));
    }
    heard
}

/// Ten percent of what is sent is not heard, and a third comes out of order.
#[test]
fn names_are_found_in_99_of_100_beginnings_of_any_order_and_size() {
    let mut numbers = Numbers(7);
    for transport in [Transport::Tcp, Transport::Udp] {
        let mut resolver = two_sites();
        for port in 0..MANY {
            let at = connection(transport, port, [198, 51, 100, 1]);
            let name = ["www.video.com", "bulk.net"][usize::from(port % 2)];
            let hello = browser_hello(name);
            let stream = records(&hello, 400 + numbers.below(3_000));
            // An Initial packet has 1,200 bytes.
            let (whole, longest) = match transport {
                Transport::Tcp => (&stream, 1_400),
                Transport::Udp => (&hello, 1_100),
            };
            let all = pieces(&mut numbers, whole.len(), longest);
            for (i, (from, to)) in all.into_iter().enumerate() {
                let packet;
                let heard = match transport {
                    Transport::Tcp => {
                        Heard::Stream { offset: from as u32, bytes: &stream[from..to] }
                    }
                    Transport::Udp => {
                        let frames = crypto(from, &hello[from..to]);
                        packet = sent(&port.to_be_bytes().repeat(4), i as u32, frames).packet();
                        Heard::Datagram(&packet)
                    }
                };
                resolver.handle_heard(at, heard, AT);
            }
        }
        let got = groups(&mut resolver);
        let right =
            got.iter().enumerate().filter(|(port, group)| **group == Some(port % 2)).count();
        println!("{transport:?}: {right} of {MANY}");
        assert!(right * 100 >= usize::from(MANY) * 99, "{transport:?}: {right}");
        assert_eq!(resolver.counts().mixed, 0);
    }
}

/// Every hello has the same outer name, that of a site with a rule. Of 50 addresses one is shared by
/// sites of both groups; each site is asked for in DNS.
#[test]
fn encrypted_names_are_those_of_plain_dns_and_never_the_outer_ones() {
    let (mut resolver, mut numbers) = (two_sites(), Numbers(9));
    let outer = records(&browser_hello("ech.bulk.net"), 9_000);
    tell(&mut resolver, 65, "hint.other.org", &service("ech.bulk.net"));
    let shared = 50;
    for i in 0..100_u8 {
        let name = format!("s{i}.{}", ["video.com", "bulk.net"][usize::from(i % 2)]);
        let address = if i / 2 + 1 == shared { shared } else { 100 + i };
        tell(&mut resolver, 1, &name, &[198, 51, 100, address]);
    }
    let mut expected = Vec::new();
    for port in 0..MANY {
        let i = numbers.below(100) as u8;
        let is_shared = i / 2 + 1 == shared;
        let address = if is_shared { shared } else { 100 + i };
        let at: Connection = connection(Transport::Tcp, port, [198, 51, 100, address]);
        resolver.handle_heard(at, Heard::Stream { offset: 0, bytes: &outer }, AT);
        expected.push((!is_shared).then_some(usize::from(i % 2)));
    }
    let got = groups(&mut resolver);
    assert_eq!(
        got, expected,
        "none is wrong, and where sites of two groups share, none is guessed"
    );
    let decided = got.iter().flatten().count();
    println!("{decided} of {MANY}");
    assert!(decided * 100 >= usize::from(MANY) * 95, "{decided}");
    assert_eq!(resolver.counts().ech, u64::from(MANY));
    assert_eq!(resolver.counts().by_sni, 0);
}
