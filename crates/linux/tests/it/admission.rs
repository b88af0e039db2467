//! What a divider's socket receives: in a flood, and from hosts without global addresses.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use fairweir_core::agreement::PEERS;
use fairweir_linux::admission::{Admission, STRANGERS_MAX};
use fairweir_linux::netns::Netns;
use fairweir_linux::{datagram, network};
use fairweir_testing::privileged;

use crate::common::Pair;

/// Number of datagrams that a socket has received.
fn read_all(socket: &UdpSocket) -> u32 {
    let mut bytes = [0; 16];
    std::iter::from_fn(|| datagram::receive(socket, &mut bytes).ok()).count() as u32
}

fn ip(netns: &Netns, command: &str) {
    netns.run(|| assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success()));
}

#[test]
fn a_flood_of_strangers_is_bounded_and_displaces_no_client() {
    if !privileged() {
        return;
    }
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let socket = datagram::listen_at("lo", 0).unwrap();
        let admission = Admission::bound(&socket, 64).unwrap();
        let port = socket.local_addr().unwrap().port();
        let at = |port| SocketAddr::new(ip, port);
        let [stranger, client] = [0, 0].map(|port| UdpSocket::bind(at(port)).unwrap());
        admission.know(client.local_addr().unwrap()).unwrap();
        let (mut of_strangers, mut of_client) = (0, 0);
        // Reads in between, since the socket queues only few datagrams.
        for _ in 0..300 {
            for _ in 0..100 {
                stranger.send_to(&[1], at(port)).unwrap();
            }
            of_strangers += read_all(&socket);
        }
        client.send_to(&[1], at(port)).unwrap();
        of_client += read_all(&socket);
        // The flood takes much less than a second, but may span two seconds of the clock.
        assert!((1..=2 * STRANGERS_MAX).contains(&of_strangers), "{of_strangers} by {ip}");
        assert_eq!(of_client, 1, "by {ip}");
        for _ in 0..1_000 {
            client.send_to(&[1], at(port)).unwrap();
            of_client += read_all(&socket);
        }
        assert!((2..=10).contains(&of_client), "{of_client} by {ip}");
    }
}

#[test]
fn a_gateway_with_a_link_local_address_is_found_and_answers() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    ip(&pair.internet, "addr add fe80::1/64 dev far nodad");
    ip(&pair.home, "addr add fe80::2/64 dev wan nodad");
    ip(&pair.home, "-6 route add default via fe80::1 dev wan");
    let gateway = pair.home.run(|| network::gateway("wan")).unwrap().unwrap();
    let listener = pair.internet.run(|| datagram::listen_at("far", 7_425)).unwrap();
    let asked =
        pair.home.run(|| datagram::connect_over("wan", SocketAddr::new(gateway, 7_425))).unwrap();
    asked.send(&[1]).unwrap();
    let mut bytes = [0; 16];
    let deadline = Instant::now() + Duration::from_secs(5);
    let wait = |what: &str| {
        assert!(Instant::now() < deadline, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let question = loop {
        match datagram::receive(&listener, &mut bytes) {
            Ok(question) => break question,
            Err(_) => wait("question"),
        }
    };
    assert!(matches!(question.from.ip(), std::net::IpAddr::V6(v6) if v6.is_unicast_link_local()));
    datagram::answer(&listener, &question, &[2]).unwrap();
    while asked.recv(&mut bytes).is_err() {
        wait("answer");
    }
    assert_eq!(bytes[0], 2);
}

#[test]
fn what_is_said_on_a_link_is_heard_as_such_alone() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    ip(&pair.internet, "addr add fe80::1/64 dev far nodad");
    ip(&pair.internet, "addr add 2001:db8:7::1/64 dev far nodad");
    ip(&pair.home, "addr add fe80::2/64 dev wan nodad");
    ip(&pair.home, "addr add 2001:db8:7::2/64 dev wan nodad");
    let (group, port) = PEERS;
    let (hears, _) = pair.home.run(|| datagram::join_at("wan", group, port)).unwrap();
    // In this order: as a router sends, as a host sends to a known one, from far away, and from a global address.
    let near = |to: SocketAddr| pair.internet.run(|| datagram::connect_over("far", to)).unwrap();
    near(SocketAddr::from(PEERS)).send(&[1]).unwrap();
    let (says, all) = pair.internet.run(|| datagram::join_at("far", group, port)).unwrap();
    let host = |ip: Ipv6Addr| SocketAddrV6::new(ip, port, 0, all.scope_id());
    says.send_to(&[2], host("fe80::2".parse().unwrap())).unwrap();
    says.send_to(&[3], host("2001:db8:7::2".parse().unwrap())).unwrap();
    let far = near(SocketAddr::new("fe80::2".parse().unwrap(), port));
    far.send(&[4]).unwrap();
    says.send_to(&[5], all).unwrap();
    let (mut heard, mut bytes) = (Vec::new(), [0; 8]);
    let deadline = Instant::now() + Duration::from_secs(5);
    while heard.last() != Some(&5) {
        assert!(Instant::now() < deadline, "heard {heard:?}");
        match datagram::receive_on_link(&hears, &mut bytes) {
            Ok(Some((1, from))) => {
                assert!(from.is_unicast_link_local(), "{from}");
                heard.push(bytes[0]);
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert_eq!(heard, [1, 2, 5]);
}
