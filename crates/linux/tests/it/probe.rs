//! The probe on the real kernel: what it measures, and attempts to deceive it.

use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fairweir_core::probe::Intervals;
use fairweir_core::receiver::ProbeSample;
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_linux::link;
use fairweir_linux::netns::Netns;
use fairweir_linux::probe::{Probe, ProbeSpec, ProbeState, Reflector};
use fairweir_linux::{Attached, Mode};
use fairweir_testing::{judged, once, privileged};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recvfrom, sendto, socket,
};

use crate::common::{Pair, allocation, policy, read_for};

fn probe(pair: &Pair, address: &str) -> Probe {
    let spec = ProbeSpec {
        dev: "wan".to_owned(),
        reflector: Reflector::Address(address.parse().unwrap()),
        intervals: Intervals { in_use: Span::millis(20), idle: Span::millis(500) },
    };
    let mut probe = pair.home.run(|| Probe::start(&spec).unwrap());
    probe.set_in_use(true);
    probe
}

/// The sample of a probe after `ms` milliseconds.
fn sample(probe: &mut Probe, ms: u64) -> ProbeSample {
    probe.take_sample();
    thread::sleep(Duration::from_millis(ms));
    probe.take_sample()
}

fn tc(netns: &Netns, command: &str) {
    let args = command.split(' ');
    netns.run(|| assert!(Command::new("tc").args(args).status().unwrap().success()));
}

/// Whether the kernel of the internet answers echo requests.
fn answers(pair: &Pair, on: bool) {
    let path = "/proc/sys/net/ipv4/icmp_echo_ignore_all";
    pair.internet.run(|| std::fs::write(path, if on { "0" } else { "1" }).unwrap());
}

#[test]
fn an_idle_link_answers_at_once_by_ipv4_and_ipv6() {
    judged(|| {
        let pair = Pair::new(false);
        for address in ["192.0.2.2", "2001:db8::2"] {
            let mut probe = probe(&pair, address);
            let sample = sample(&mut probe, 1_000);
            assert!((40..=51).contains(&sample.answered), "{sample:?}");
            assert_eq!(sample.sent, sample.answered);
            assert!(sample.rtt_min < Span::millis(1), "{sample:?}");
            assert!(sample.rtt_mean < Span::millis(5), "{sample:?}");
            let ProbeState { reflector, rtt_last, error, .. } = probe.state();
            assert_eq!(reflector, Some(address.parse::<IpAddr>().unwrap()));
            assert!(rtt_last.is_some() && error.is_none());
            probe.set_in_use(false);
            let idle = self::sample(&mut probe, 1_000);
            assert!((1..=4).contains(&idle.sent), "{idle:?}");
        }
    });
}

#[test]
fn it_measures_the_queue_in_front_of_the_device_and_not_the_one_behind_it() {
    judged(|| {
        let pair = Pair::new(false);
        tc(&pair.internet, "qdisc add dev far root tbf rate 20mbit burst 16k limit 150k");
        let mut probe = probe(&pair, "192.0.2.3");
        let idle = sample(&mut probe, 1_000);
        let mut stream = pair.download("192.0.2.2");
        read_for(&mut stream, Duration::from_secs(1));
        probe.take_sample();
        read_for(&mut stream, Duration::from_secs(1));
        let loaded = probe.take_sample();
        assert!(idle.answered > 0 && loaded.answered > 0, "{idle:?} {loaded:?}");
        // 150 kB at 20 Mbit/s are 60 ms; one cubic flow keeps this queue more than half full.
        assert!(loaded.rtt_mean > idle.rtt_mean + Span::millis(25), "{idle:?} {loaded:?}");
        assert!(loaded.rtt_mean < Span::millis(75), "{loaded:?}");
        // A class of half the link: the queue moves behind the device. The probe's thread waits
        // there too, but its measurement does not.
        let mut host = pair.host(&policy(&[]), Mode::Shape);
        host.apply(&allocation(&[Rate::mbit(10)])).unwrap();
        host.beat().unwrap();
        let mut behind = ProbeSample::default();
        for _ in 0..2 {
            probe.take_sample();
            for _ in 0..4 {
                host.beat().unwrap();
                read_for(&mut stream, Duration::from_millis(500));
            }
            behind = probe.take_sample();
        }
        let backlog = host.take_samples().unwrap()[0].backlog;
        assert!(backlog > Bytes::kb(15), "the class has a queue: {backlog}");
        assert!(behind.answered > 0);
        assert!(behind.rtt_mean < idle.rtt_mean + Span::millis(10), "{idle:?} {behind:?}");
    });
}

#[test]
fn answers_that_are_lost_are_counted() {
    if !privileged() {
        return;
    }
    once(|| {
        let pair = Pair::new(false);
        let mut probe = probe(&pair, "192.0.2.2");
        thread::sleep(Duration::from_millis(300));
        answers(&pair, false);
        thread::sleep(Duration::from_millis(1_200));
        let lost = sample(&mut probe, 500);
        assert!(lost.sent >= 20 && lost.answered == 0, "{lost:?}");
        assert_eq!((lost.rtt_min, lost.rtt_mean), (Span::ZERO, Span::ZERO));
        answers(&pair, true);
        let back = sample(&mut probe, 500);
        assert!(back.answered >= 20, "{back:?}");
    });
}

#[test]
fn an_answer_without_the_token_is_ignored() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    answers(&pair, false);
    // The forger sees requests, and answers with a wrong token, or with the right one.
    let forger = |flip: u8| {
        let icmp = pair.internet.run(|| {
            let raw = (AddressFamily::Inet, SockType::Raw, SockFlag::empty());
            socket(raw.0, raw.1, raw.2, SockProtocol::Icmp).unwrap()
        });
        thread::spawn(move || {
            let home: SockaddrIn = "192.0.2.1:0".parse().unwrap();
            let mut buffer = [0; 128];
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_secs(1) {
                let (length, _) = recvfrom::<SockaddrIn>(icmp.as_raw_fd(), &mut buffer).unwrap();
                let message = &mut buffer[20..length];
                if message[0] != 8 {
                    continue;
                }
                message[0] = 0;
                message[8] ^= flip;
                message[2..4].fill(0);
                let checksum = !sum(message);
                message[2..4].copy_from_slice(&checksum.to_be_bytes());
                sendto(icmp.as_raw_fd(), message, &home, MsgFlags::empty()).unwrap();
            }
        })
    };
    let mut probe = probe(&pair, "192.0.2.2");
    let forging = forger(0x40);
    thread::sleep(Duration::from_millis(2_300));
    let forged = probe.take_sample();
    assert!(forged.sent >= 40 && forged.answered == 0, "{forged:?}");
    forging.join().unwrap();
    let honest = forger(0);
    let answered = sample(&mut probe, 900);
    honest.join().unwrap();
    assert!(answered.answered >= 30, "{answered:?}");
}

/// Source: RFC 1071.
fn sum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|w| u16::from_be_bytes([w[0], w[1]]));
    words.fold(0, |sum, word| {
        let (sum, carry) = u16::overflowing_add(sum, word);
        sum + u16::from(carry)
    })
}

/// A home, two routers and a server in a row; the server sends datagrams to the home until the flag
/// is set.
struct Row {
    home: Netns,
    routers: [Netns; 2],
    server: Netns,
}

impl Row {
    /// `prefixes` are those of the three cables; the addresses of a cable end in .1 towards the
    /// home, and in .2 at the other end.
    fn new(prefixes: [&str; 3], server: &str) -> Row {
        let new = || Netns::new().unwrap();
        let row = Row { home: new(), routers: [new(), new()], server: new() };
        let [first, second] = &row.routers;
        let places = [&row.home, first, second, &row.server];
        for (i, prefix) in prefixes.iter().enumerate() {
            let (near, far) = (places[i], places[i + 1]);
            let address = |end: u8| format!("{prefix}.{end}/24").parse().unwrap();
            near.run(|| {
                link::create_veth("wan", far, "lan").unwrap();
                link::add_address("wan", address(1)).unwrap();
                link::set_up("wan").unwrap();
                let gateway = format!("{prefix}.2").parse().unwrap();
                let all = "0.0.0.0/0".parse().unwrap();
                link::add_route(all, Some(gateway), "wan").unwrap();
            });
            far.run(|| {
                link::add_address("lan", address(2)).unwrap();
                link::set_up("lan").unwrap();
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
                let home = format!("{}.0/24", prefixes[0]).parse().unwrap();
                let gateway = format!("{prefix}.1").parse().unwrap();
                if i > 0 {
                    link::add_route(home, Some(gateway), "lan").unwrap();
                }
            });
        }
        row.server.run(|| link::add_address("lo", server.parse().unwrap()).unwrap());
        row
    }

    /// Makes the server send for this time.
    fn send(&self, server: &str, home: &str, span: Duration) -> thread::JoinHandle<()> {
        let socket = self.server.run(|| std::net::UdpSocket::bind((server, 0)).unwrap());
        let to = (home.to_owned(), 9);
        thread::spawn(move || {
            let begin = std::time::Instant::now();
            while begin.elapsed() < span {
                let _ = socket.send_to(&[7; 1_000], &to);
                thread::sleep(Duration::from_millis(1));
            }
        })
    }
}

fn auto(row: &Row) -> Probe {
    let spec = ProbeSpec {
        dev: "wan".to_owned(),
        reflector: Reflector::Auto,
        intervals: Intervals { in_use: Span::millis(50), idle: Span::secs(1) },
    };
    row.home.run(|| Probe::start(&spec).unwrap())
}

#[test]
fn the_second_hop_is_found_without_a_word_to_the_server() {
    if !privileged() {
        return;
    }
    let row = Row::new(["192.168.7", "203.0.113", "198.51.100"], "198.18.0.1/32");
    let second = Some("203.0.113.2".parse().unwrap());
    let idle = auto(&row);
    thread::sleep(Duration::from_secs(4));
    let state = idle.state();
    assert_eq!(state.reflector, second, "found while the link is idle");
    assert!((1..6).contains(&state.sent), "an idle link is asked rarely: {state:?}");
    drop(idle);
    // Where there is no route, requests go towards the host from which most is received.
    row.home.run(|| {
        let route = "route add blackhole 198.41.0.4".split(' ');
        assert!(Command::new("ip").args(route).status().unwrap().success());
    });
    let mut probe = auto(&row);
    let sending = row.send("198.18.0.1", "192.168.7.1", Duration::from_secs(8));
    probe.set_in_use(true);
    let begin = std::time::Instant::now();
    while probe.state().answered < 8 {
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", probe.state());
        thread::sleep(Duration::from_millis(50));
    }
    let state = probe.state();
    assert_eq!(state.reflector, second, "the second router");
    assert!(state.rtt_last.unwrap() < Span::millis(5), "{state:?}");
    let received =
        row.server.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    assert!(!received.contains("InType8"), "no request reached the server: {received}");
    sending.join().unwrap();
}

#[test]
fn a_router_that_reports_once_a_second_is_asked_itself() {
    if !privileged() {
        return;
    }
    let after = |ignores: &str, ms: u64| {
        let row = Row::new(["192.168.7", "203.0.113", "198.51.100"], "198.18.0.1/32");
        let path = "/proc/sys/net/ipv4/icmp_echo_ignore_all";
        row.routers[1].run(|| std::fs::write(path, ignores).unwrap());
        let mut probe = auto(&row);
        let sending = row.send("198.18.0.1", "192.168.7.1", Duration::from_millis(ms));
        probe.set_in_use(true);
        thread::sleep(Duration::from_millis(ms - 2_000));
        let sample = sample(&mut probe, 1_900);
        sending.join().unwrap();
        (probe.state().reflector.unwrap().to_string(), sample)
    };
    // Linux limits its reports, by default to one a second.
    let (router, sample) = after("0", 9_000);
    assert_eq!(router, "203.0.113.2");
    assert!(sample.answered > 30, "{sample:?}");
    let (router, sample) = after("1", 11_000);
    assert_eq!(router, "203.0.113.2", "its reports are better than nothing");
    assert!(sample.answered > 0, "{sample:?}");
}

#[test]
fn a_router_behind_a_router_at_home_is_passed_over_and_an_isp_s_gateway_is_the_last_resort() {
    if !privileged() {
        return;
    }
    let found = |row: &Row, home: &str| {
        let mut probe = auto(row);
        let sending = row.send("198.18.0.1", home, Duration::from_secs(9));
        probe.set_in_use(true);
        sending.join().unwrap();
        probe.state().reflector
    };
    let row = Row::new(["192.168.7", "192.168.8", "198.51.100"], "198.18.0.1/32");
    assert_eq!(found(&row, "192.168.7.1"), Some("198.18.0.1".parse().unwrap()));
    // The second router forwards but sends nothing itself, and the server answers nothing.
    let row = Row::new(["203.0.113", "198.51.100", "198.51.101"], "198.18.0.1/32");
    row.server.run(|| {
        std::fs::write("/proc/sys/net/ipv4/icmp_echo_ignore_all", "1").unwrap();
    });
    row.routers[1].run(|| {
        let rule = "rule add iif lo to 203.0.113.1 blackhole".split(' ');
        assert!(Command::new("ip").args(rule).status().unwrap().success());
    });
    assert_eq!(found(&row, "203.0.113.1"), Some("203.0.113.2".parse().unwrap()));
}

#[test]
fn a_device_that_is_not_there_is_an_error_and_one_that_goes_is_told() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut probe = probe(&pair, "192.0.2.2");
    assert!(sample(&mut probe, 300).answered > 0);
    pair.home.run(|| fairweir_linux::link::delete("wan").unwrap());
    thread::sleep(Duration::from_millis(300));
    let error = probe.state().error.unwrap();
    assert!(error.contains("192.0.2.2"), "{error}");
    let spec = ProbeSpec {
        dev: "wan".to_owned(),
        reflector: Reflector::Address("192.0.2.2".parse().unwrap()),
        intervals: Intervals { in_use: Span::millis(50), idle: Span::secs(1) },
    };
    let error = pair.home.run(|| Probe::start(&spec).map(drop)).unwrap_err();
    assert!(error.to_string().contains("`wan`"), "{error}");
}
