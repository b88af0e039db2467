//! The classifier by test runs in the real kernel: packets in, group, count and verdict out.

use std::net::SocketAddr;

use fairweir_core::packet::Transport;
use fairweir_core::policy::Policy;
use fairweir_core::sites::Flow;
use fairweir_core::units::{Bytes, Span};
use fairweir_linux::monotonic_now;
use fairweir_linux::trial::{Packet, Trial, Verdict};
use fairweir_testing::privileged;

use crate::common::policy;

const TCP: u8 = 6;
const UDP: u8 = 17;

fn ethernet(protocol: u16, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 12];
    packet.extend(protocol.to_be_bytes());
    packet.extend(rest);
    packet
}

fn ip4(source: [u8; 4], transport: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let length = (20 + rest.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, transport, 0, 0]);
    packet.extend(source);
    packet.extend([192, 0, 2, 1]);
    packet.extend(rest);
    packet
}

/// Each of `extensions` is a type, and the content without its first byte.
fn ip6(extensions: &[(u8, &[u8])], transport: u8, rest: &[u8]) -> Vec<u8> {
    let mut chain = Vec::new();
    for (i, (_, content)) in extensions.iter().enumerate() {
        chain.push(extensions.get(i + 1).map_or(transport, |next| next.0));
        chain.extend(*content);
    }
    let first = extensions.first().map_or(transport, |first| first.0);
    let length = (chain.len() + rest.len()) as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([first, 64]);
    packet.extend([0x20, 1, 0x0d, 0xb8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    packet.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend(chain);
    packet.extend(rest);
    packet
}

/// An ICMPv6 message.
fn discovery(kind: u8, hops: u8) -> Vec<u8> {
    let mut packet = ethernet(0x86dd, &ip6(&[], 58, &[kind, 0, 0, 0, 0, 0, 0, 0]));
    packet[14 + 7] = hops;
    packet
}

fn segment(transport: u8, source: u16, destination: u16) -> Vec<u8> {
    let mut segment = source.to_be_bytes().to_vec();
    segment.extend(destination.to_be_bytes());
    match transport {
        TCP => segment.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 1, 0, 0, 0, 0, 0]),
        _ => segment.extend([0, 108, 0, 0]),
    }
    segment.resize(if transport == TCP { 32 } else { 8 } + 100, 0);
    segment
}

fn tcp4(source: [u8; 4], port_remote: u16, port_local: u16) -> Vec<u8> {
    ethernet(0x0800, &ip4(source, TCP, 0, &segment(TCP, port_remote, port_local)))
}

fn udp4(source: [u8; 4], port_remote: u16, port_local: u16) -> Vec<u8> {
    ethernet(0x0800, &ip4(source, UDP, 0, &segment(UDP, port_remote, port_local)))
}

fn run(trial: &Trial, bytes: &[u8]) -> Verdict {
    trial.run(&Packet { bytes, ..Packet::default() }, 1).unwrap()
}

fn trial(policy: &Policy) -> Trial {
    Trial::new(policy, false).unwrap()
}

fn name<'p>(policy: &'p Policy, verdict: &Verdict) -> Option<&'p str> {
    verdict.group.map(|group| policy.groups()[group].name.as_str())
}

const REMOTE: [u8; 4] = [203, 0, 113, 7];
const ELSEWHERE: [u8; 4] = [198, 51, 100, 1];

#[test]
fn the_group_that_stands_first_wins_and_among_prefixes_the_longest() {
    if !privileged() {
        return;
    }
    let policy = policy(&[
        ("quic", &["port:udp/443"]),
        ("wide", &["ip:203.0.113.0/24"]),
        ("narrow", &["ip:203.0.113.7"]),
        ("again", &["ip:203.0.113.7", "ip:198.51.100.0/24"]),
        ("server", &["local-port:8000-8002", "ip:0.0.0.0/0"]),
        ("late", &["port:tcp/443"]),
    ]);
    let trial = trial(&policy);
    let group = |bytes: Vec<u8>| name(&policy, &run(&trial, &bytes)).unwrap();
    assert_eq!(group(tcp4(REMOTE, 80, 5000)), "narrow");
    assert_eq!(group(tcp4([203, 0, 113, 8], 80, 5000)), "wide");
    assert_eq!(group(udp4(REMOTE, 443, 5000)), "quic");
    assert_eq!(group(udp4(REMOTE, 5000, 443)), "narrow", "the other side's port");
    assert_eq!(group(tcp4(ELSEWHERE, 80, 5000)), "again");
    assert_eq!(group(tcp4(ELSEWHERE, 443, 8001)), "again", "it is before server and late");
    assert_eq!(group(tcp4([1, 1, 1, 1], 443, 8001)), "server", "it is before late");
    assert_eq!(group(tcp4([1, 1, 1, 1], 443, 1)), "server", "the prefix of length 0");
    let six = ethernet(0x86dd, &ip6(&[], TCP, &segment(TCP, 443, 1)));
    assert_eq!(group(six), "late");
    let six = ethernet(0x86dd, &ip6(&[], TCP, &segment(TCP, 80, 1)));
    assert_eq!(group(six), "default");
}

#[test]
fn a_flow_that_is_bound_has_its_group_until_udp_is_silent() {
    if !privileged() {
        return;
    }
    let policy = policy(&[
        ("first", &["port:5000"]),
        ("site", &["web:example.com"]),
        ("rest", &["ip:203.0.113.0/24"]),
    ]);
    let mut trial = trial(&policy);
    let begin = monotonic_now();
    trial.enforce(begin).unwrap();
    let flow = |transport, remote: &str| {
        let local = "192.0.2.1:9".parse().unwrap();
        Flow { transport, local, remote: remote.parse().unwrap() }
    };
    for flow in [
        flow(Transport::Tcp, "203.0.113.7:443"),
        flow(Transport::Udp, "203.0.113.7:443"),
        flow(Transport::Tcp, "203.0.113.7:5000"),
    ] {
        trial.bind(&flow, 1).unwrap();
    }
    let six = Flow {
        local: "[2001:db8::1]:9".parse().unwrap(),
        ..flow(Transport::Tcp, "[2001:db8:7::7]:443")
    };
    trial.bind(&six, 1).unwrap();
    let group = |trial: &Trial, bytes: Vec<u8>| name(&policy, &run(trial, &bytes)).unwrap();
    assert_eq!(group(&trial, tcp4(REMOTE, 443, 9)), "site", "it stands before the address");
    assert_eq!(group(&trial, tcp4(REMOTE, 443, 8)), "rest", "another port of this host");
    assert_eq!(group(&trial, tcp4(REMOTE, 5000, 9)), "first");
    assert_eq!(group(&trial, ethernet(0x86dd, &ip6(&[], TCP, &segment(TCP, 443, 9)))), "site");
    // What is remembered of a flow applies only to that flow, and only until it is bound anew.
    let other =
        Flow { local: "192.0.2.1:73".parse().unwrap(), ..flow(Transport::Tcp, "203.0.113.7:443") };
    trial.bind(&other, 2).unwrap();
    for _ in 0..3 {
        assert_eq!(group(&trial, tcp4(REMOTE, 443, 9)), "site");
        assert_eq!(group(&trial, tcp4(REMOTE, 443, 73)), "rest");
        assert_eq!(group(&trial, tcp4(REMOTE, 80, 73)), "rest");
        assert_eq!(group(&trial, tcp4([192, 0, 2, 99], 443, 9)), "default");
        assert_eq!(group(&trial, ethernet(0x86dd, &ip6(&[], TCP, &segment(TCP, 443, 9)))), "site");
        assert_eq!(
            group(&trial, ethernet(0x86dd, &ip6(&[], TCP, &segment(TCP, 443, 73)))),
            "default"
        );
    }
    trial.bind_anew(&other, 1).unwrap();
    assert_eq!(group(&trial, tcp4(REMOTE, 443, 73)), "site");
    // Each packet extends the life of a UDP flow.
    for seconds in [0, 119, 238] {
        trial.enforce(begin + Span::secs(seconds)).unwrap();
        assert_eq!(group(&trial, udp4(REMOTE, 443, 9)), "site", "after {seconds} s");
    }
    trial.enforce(begin + Span::secs(359)).unwrap();
    assert_eq!(group(&trial, udp4(REMOTE, 443, 9)), "rest");
    assert_eq!(group(&trial, tcp4(REMOTE, 443, 9)), "site");
}

/// Connections of 192.0.2.1, each with an arriving packet, alternating between IPv4 and IPv6, TCP and UDP.
fn flows(count: u16) -> Vec<(Flow, Vec<u8>)> {
    let flow = |number: u16| {
        let (local, remote) = match number % 2 {
            0 => ("192.0.2.1:9", "203.0.113.7:0"),
            _ => ("[2001:db8::1]:9", "[2001:db8:7::7]:0"),
        };
        let (local, mut remote): (_, SocketAddr) =
            (local.parse().unwrap(), remote.parse().unwrap());
        remote.set_port(1_000 + number);
        let (transport, protocol) =
            [(Transport::Tcp, TCP), (Transport::Udp, UDP)][usize::from(number / 2 % 2)];
        let rest = segment(protocol, remote.port(), 9);
        let bytes = match number % 2 {
            0 => ethernet(0x0800, &ip4(REMOTE, protocol, 0, &rest)),
            _ => ethernet(0x86dd, &ip6(&[], protocol, &rest)),
        };
        (Flow { transport, local, remote }, bytes)
    };
    (0..count).map(flow).collect()
}

#[test]
fn flows_for_which_there_is_no_place_have_their_groups_too() {
    if !privileged() {
        return;
    }
    let policy =
        policy(&[("a", &["web:a.example"]), ("b", &["web:b.example"]), ("c", &["web:c.example"])]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    trial.remember_little().unwrap();
    let flows = flows(60);
    for (number, (flow, _)) in flows.iter().enumerate() {
        trial.bind(flow, number % 3).unwrap();
    }
    for round in 0..4 {
        for (number, (flow, bytes)) in flows.iter().enumerate() {
            for _ in 0..2 {
                assert_eq!(
                    run(&trial, bytes).group,
                    Some((number + round) % 3),
                    "{round} {flow:?}"
                );
            }
        }
        assert_eq!(trial.remembered().unwrap().len(), 8, "a set is full");
        // The next packet has the new group, whether its flow is remembered or not.
        for (number, (flow, bytes)) in flows.iter().enumerate() {
            run(&trial, bytes);
            trial.bind_anew(flow, (number + round + 1) % 3).unwrap();
            assert_eq!(
                run(&trial, bytes).group,
                Some((number + round + 1) % 3),
                "{round} {flow:?}"
            );
        }
    }
}

#[test]
fn a_connection_that_opens_on_the_ports_of_a_remembered_one_has_no_group_yet() {
    if !privileged() {
        return;
    }
    let policy = policy(&[("site", &["web:example.com"])]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    let bytes = tcp4(REMOTE, 443, 9);
    let (local, remote) = ("192.0.2.1:9".parse().unwrap(), "203.0.113.7:443".parse().unwrap());
    trial.bind(&Flow { transport: Transport::Tcp, local, remote }, 0).unwrap();
    for _ in 0..2 {
        assert_eq!(name(&policy, &run(&trial, &bytes)), Some("site"));
    }
    assert_eq!(trial.remembered().unwrap().len(), 1);
    let mut leaves = tcp4(REMOTE, 9, 443);
    leaves[26..30].copy_from_slice(&[192, 0, 2, 1]);
    leaves[30..34].copy_from_slice(&REMOTE);
    trial.run_sent(&leaves, 1).unwrap();
    assert_eq!(name(&policy, &run(&trial, &bytes)), Some("site"), "it goes on");
    // A SYN.
    leaves[47] = 2;
    trial.run_sent(&leaves, 1).unwrap();
    assert_eq!(trial.remembered().unwrap(), [0_u64; 0]);
    assert_eq!(name(&policy, &run(&trial, &bytes)), Some("default"));
    // When a flow opens, it is also forgotten that the flow was unknown.
    assert_eq!(name(&policy, &run(&trial, &tcp4(REMOTE, 444, 9))), Some("default"));
    assert_eq!(trial.remembered().unwrap().len(), 1);
    leaves[36..38].copy_from_slice(&444_u16.to_be_bytes());
    trial.run_sent(&leaves, 1).unwrap();
    assert_eq!(trial.remembered().unwrap(), [0_u64; 0]);
}

/// Two flows have the same set and the same 38 bits with a probability of 2^-52, and of 2^-38 if
/// there is only one set: see `bpf/recent.h`.
#[test]
fn a_packet_is_hardly_ever_taken_for_that_of_another_flow() {
    if !privileged() {
        return;
    }
    let policy = policy(&[("site", &["web:example.com"])]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    // Consecutive flows would have hashes that are more even than random ones.
    let mut random = 1_u64;
    for _ in 0..8_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let [a, b, c, d, e, f, ..] = random.to_be_bytes();
        let remote = SocketAddr::new([a, b, c, d].into(), u16::from_be_bytes([e, f]));
        let local = "192.0.2.1:9".parse().unwrap();
        trial.bind(&Flow { transport: Transport::Tcp, local, remote }, 0).unwrap();
        let bytes = tcp4([a, b, c, d], remote.port(), 9);
        assert_eq!(name(&policy, &run(&trial, &bytes)), Some("site"));
    }
    let words = trial.remembered().unwrap();
    assert!(words.len() > 7_900, "{} of 8,000", words.len());
    // For each 19 of the 38 bits, 61 pairs of equal values are expected.
    for at in [26, 45] {
        let mut parts: Vec<u64> = words.iter().map(|word| word >> at & 0x7_ffff).collect();
        parts.sort_unstable();
        let equal = parts.windows(2).filter(|two| two[0] == two[1]).count();
        assert!((15..240).contains(&equal), "{equal} from bit {at} on");
    }
    // Every bit of the addresses and ports, and the transport, distinguishes flows.
    trial.remember_little().unwrap();
    for (flow, bytes) in flows(4) {
        trial.bind(&flow, 0).unwrap();
        assert_eq!(name(&policy, &run(&trial, &bytes)), Some("site"));
        let length = if bytes[12] == 8 { 8 } else { 32 };
        let addresses = if length == 8 { 26 } else { 22 };
        for bit in 0..8 * (length + 4) {
            let mut other = bytes.clone();
            other[addresses + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(name(&policy, &run(&trial, &other)), Some("default"), "bit {bit}");
        }
        let mut other = bytes.clone();
        other[addresses - if length == 8 { 3 } else { 2 }] ^= TCP ^ UDP;
        assert_eq!(name(&policy, &run(&trial, &other)), Some("default"), "the transport");
    }
    trial.enforce(monotonic_now() + Span::secs(10)).unwrap();
    for (flow, bytes) in flows(60) {
        trial.bind(&flow, 0).unwrap();
        assert_eq!(name(&policy, &run(&trial, &bytes)), Some("site"));
    }
    assert_eq!(trial.remembered().unwrap().len(), 8, "the set is full");
    for number in 0..20_000_u16 {
        let bytes = tcp4([198, 51, 100, (number >> 8) as u8], 443, number);
        assert_eq!(name(&policy, &run(&trial, &bytes)), Some("default"), "{number}");
    }
}

#[test]
fn tags_extension_headers_and_fragments_are_read() {
    if !privileged() {
        return;
    }
    let policy = policy(&[
        ("port", &["port:udp/53"]),
        ("address", &["ip:203.0.113.0/24", "ip:2001:db8:7::/48"]),
    ]);
    let trial = trial(&policy);
    let group = |bytes: Vec<u8>| name(&policy, &run(&trial, &bytes)).unwrap();
    let dns = segment(UDP, 53, 9);
    let inner = [&[0, 5, 8, 0][..], &ip4(REMOTE, UDP, 0, &dns)].concat();
    assert_eq!(group(ethernet(0x8100, &inner)), "port", "802.1Q");
    let double = [&[0, 9, 0x81, 0][..], &inner].concat();
    assert_eq!(group(ethernet(0x88a8, &double)), "port", "802.1ad around 802.1Q");

    assert_eq!(group(ethernet(0x0800, &ip4(REMOTE, UDP, 0x2000, &dns))), "port", "first fragment");
    assert_eq!(group(ethernet(0x0800, &ip4(REMOTE, UDP, 0x2003, &dns))), "address", "later one");
    let mut options = ip4(REMOTE, UDP, 0, &[&[0; 8][..], &dns].concat());
    options[0] = 0x47;
    assert_eq!(group(ethernet(0x0800, &options)), "port", "IPv4 options");

    let six = |extensions: &[(u8, &[u8])]| ethernet(0x86dd, &ip6(extensions, UDP, &dns));
    let (hop, long, first) = (&[0; 7], &[&[1][..], &[0; 14]].concat(), &[0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(group(six(&[])), "port");
    assert_eq!(group(six(&[(0, hop), (60, long), (43, hop)])), "port", "options, routing");
    assert_eq!(group(six(&[(44, first)])), "port", "first fragment");
    assert_eq!(group(six(&[(44, &[0, 0, 9, 0, 0, 0, 1])])), "address", "later fragment");
    let authentication = &[&[4][..], &[0; 22]].concat();
    assert_eq!(group(six(&[(51, authentication)])), "port", "AH");
    let nine: Vec<(u8, &[u8])> = vec![(60, hop); 9];
    assert_eq!(group(six(&nine)), "address", "more extension headers than any host sends");
}

#[test]
fn what_the_link_itself_needs_passes_uncounted() {
    if !privileged() {
        return;
    }
    let policy = policy(&[("all", &["ip:0.0.0.0/0", "ip:::/0"])]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    let untouched = |bytes: &[u8]| {
        let verdict = run(&trial, bytes);
        assert!(!verdict.redirected && verdict.group.is_none(), "{verdict:?}");
    };
    untouched(&ethernet(0x0806, &[0; 28]));
    untouched(&ethernet(0x888e, &[0; 60]));
    for kind in 133..=137 {
        untouched(&discovery(kind, 255));
    }
    let mut others = tcp4(REMOTE, 80, 1);
    others[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    untouched(&others);
    assert!(run(&trial, &discovery(128, 255)).redirected, "a ping is traffic");
}

/// A sender beyond the link cannot give its packets a hop limit of 255 on arrival.
#[test]
fn neighbour_discovery_from_beyond_the_link_is_classified() {
    if !privileged() {
        return;
    }
    let policy = policy(&[("all", &["ip:::/0"])]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    for kind in 133..=137 {
        for hops in [0, 64, 254] {
            let verdict = run(&trial, &discovery(kind, hops));
            assert!(verdict.redirected && verdict.group == Some(0), "{kind} {hops}: {verdict:?}");
        }
    }
}

#[test]
fn a_packet_goes_to_its_class_only_while_a_daemon_is_in_control() {
    if !privileged() {
        return;
    }
    let policy = policy(&[("a", &["ip:203.0.113.0/24"]), ("b", &["ip:198.51.100.0/24"])]);
    let mut trial = trial(&policy);
    let packet = tcp4(ELSEWHERE, 80, 1);
    assert!(!run(&trial, &packet).redirected, "it was not asked for");
    trial.enforce(monotonic_now()).unwrap();
    let verdict = run(&trial, &packet);
    assert_eq!((verdict.redirected, verdict.class, verdict.group), (true, 2, Some(1)));
    trial.enforce(monotonic_now() - Span::millis(1_900)).unwrap();
    assert!(run(&trial, &packet).redirected);
    trial.enforce(monotonic_now() - Span::millis(2_100)).unwrap();
    let verdict = run(&trial, &packet);
    assert_eq!((verdict.redirected, verdict.group), (false, Some(1)), "still counted");
}

#[test]
fn a_super_packet_counts_as_on_the_wire() {
    if !privileged() {
        return;
    }
    let policy = policy(&[]);
    let trial = trial(&policy);
    let count = |bytes: &[u8], segments, segment_size| {
        let verdict = trial.run(&Packet { bytes, segments, segment_size }, 1).unwrap();
        (verdict.received, verdict.packets)
    };
    let tcp = tcp4(REMOTE, 80, 1);
    let length = tcp.len() as u64;
    assert_eq!(count(&tcp, 0, 0), (Bytes::new(length), 1));
    // Headers of 14 + 20 + 32 bytes, and 100 bytes of payload in 4 segments.
    assert_eq!(count(&tcp, 4, 25), (Bytes::new(length + 3 * 66), 4));
    assert_eq!(count(&tcp, 0, 25), (Bytes::new(length + 3 * 66), 4), "segments left out");
    assert_eq!(count(&tcp, 0, 30), (Bytes::new(length + 3 * 66), 4), "rounded up");
    let udp = udp4(REMOTE, 80, 1);
    assert_eq!(count(&udp, 2, 50), (Bytes::new(udp.len() as u64 + 42), 2));
    let six = ethernet(0x86dd, &ip6(&[(0, &[0; 7])], TCP, &segment(TCP, 1, 2)));
    assert_eq!(count(&six, 2, 50), (Bytes::new(six.len() as u64 + 14 + 40 + 8 + 32), 2));
}

#[test]
fn no_packet_whatever_is_dropped() {
    if !privileged() {
        return;
    }
    let policy = policy(&[
        ("a", &["port:1-65535", "app:nobody"]),
        ("b", &["ip:0.0.0.0/0", "ip:::/0", "local-port:1-65535"]),
    ]);
    let mut trial = trial(&policy);
    trial.enforce(monotonic_now()).unwrap();
    let dns = segment(UDP, 53, 9);
    let tagged = |protocol: u16, inner: &[u8]| {
        let tag = [&[0, 5][..], &protocol.to_be_bytes(), inner].concat();
        ethernet(0x8100, &tag)
    };
    let six = ip6(&[(0, &[0; 7]), (44, &[0, 0, 1, 0, 0, 0, 1])], UDP, &dns);
    let whole = [
        tcp4(REMOTE, 80, 1),
        ethernet(0x86dd, &six),
        tagged(0x0800, &ip4(REMOTE, UDP, 0, &dns)),
        tagged(0x86dd, &six),
    ];
    let run = |packet: Packet, what: &dyn Fn() -> String| {
        // The kernel's test runner itself refuses truncated untagged IP headers.
        let least = match packet.bytes[12..14] {
            [0x08, 0] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        if packet.bytes.len() >= least {
            // `run` itself asserts that the verdict is to pass or to redirect.
            let result = trial.run(&packet, 1);
            assert!(result.is_ok(), "{}: {result:?} {packet:02x?}", what());
        }
    };
    for packet in &whole {
        for length in 14..packet.len() {
            let bytes = &packet[..length];
            run(Packet { bytes, ..Packet::default() }, &|| format!("cut to {length}"));
        }
    }
    let seed = 0x5eed_u64;
    let mut state = seed;
    let mut random = move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for round in 0..5_000 {
        let mut packet = whole[random() as usize % whole.len()].clone();
        packet.truncate(14 + random() as usize % (packet.len() - 13));
        for _ in 0..random() % 8 {
            let at = random() as usize % packet.len();
            packet[at] = random() as u8;
        }
        let (segments, segment_size) = match random() % 4 {
            0 => (random() as u32 % 100, random() as u32 % 2_000),
            _ => (0, 0),
        };
        run(Packet { bytes: &packet, segments, segment_size }, &|| {
            format!("seed {seed:#x} round {round}")
        });
    }
}
