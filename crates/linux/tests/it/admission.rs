//! What a divider's socket gets in a flood.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use fairweir_linux::admission::{Admission, STRANGERS_MAX};
use fairweir_linux::datagram;
use fairweir_testing::privileged;

/// How many datagrams a socket has got.
fn read_all(socket: &UdpSocket) -> u32 {
    let mut bytes = [0; 16];
    std::iter::from_fn(|| datagram::receive(socket, &mut bytes).ok()).count() as u32
}

#[test]
fn a_flood_of_strangers_is_bounded_and_displaces_no_client() {
    if !privileged() {
        return;
    }
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let socket = datagram::listen_at("lo", 0).unwrap();
        let admission = Admission::bound(&socket).unwrap();
        let port = socket.local_addr().unwrap().port();
        let at = |port| SocketAddr::new(ip, port);
        let [stranger, client] = [0, 0].map(|port| UdpSocket::bind(at(port)).unwrap());
        admission.know(client.local_addr().unwrap()).unwrap();
        let (mut of_strangers, mut of_client) = (0, 0);
        // Read between, since few wait at a time.
        for _ in 0..300 {
            for _ in 0..100 {
                stranger.send_to(&[1], at(port)).unwrap();
            }
            of_strangers += read_all(&socket);
        }
        client.send_to(&[1], at(port)).unwrap();
        of_client += read_all(&socket);
        // The flood takes well less than a second, which may be a part of two.
        assert!((1..=2 * STRANGERS_MAX).contains(&of_strangers), "{of_strangers} by {ip}");
        assert_eq!(of_client, 1, "by {ip}");
        for _ in 0..1_000 {
            client.send_to(&[1], at(port)).unwrap();
            of_client += read_all(&socket);
        }
        assert!((2..=10).contains(&of_client), "{of_client} by {ip}");
    }
}
