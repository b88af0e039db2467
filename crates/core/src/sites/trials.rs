//! Many beginnings of connections at once: how many are read correctly.

use super::dns::written::service;
use super::quic::written::{crypto, sent};
use super::resolver::tests::{AT, SALT, connection, sites, tell};
use super::tls::written::{browser_hello, records};
use super::{Command, Connection, Heard, Resolver};
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

/// A beginning in pieces, sent in any order and again while some are lost: up to three times, cut
/// differently each time. Losing all four copies is as rare as a server that does not answer.
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

/// Ten percent of the pieces are lost, and a third arrives out of order.
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

/// Every hello has the same outer name, that of a site with a rule. Of 50 addresses, one is shared by
/// sites of both groups; each site is resolved by DNS.
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
