//! The doctor's findings about the kernel and the network.

use std::net::UdpSocket;

use fairweir_linux::{doctor, link, netns::Netns, network};
use fairweir_testing::privileged;

use crate::common::Pair;

#[test]
fn the_doctor_finds_all_of_this_kernel_and_names_what_is_in_the_way() {
    if !privileged() {
        return;
    }
    let netns = Netns::new().unwrap();
    let (good, missing, occupied) = netns.run(|| {
        link::create_ifb("wan", "").unwrap();
        let good = doctor::findings(Some("wan"));
        link::create_ifb("ifb4wan", "somebody").unwrap();
        (good, doctor::findings(Some("nope")), doctor::findings(Some("wan")))
    });
    for finding in &good {
        assert!(finding.found, "{finding:?}");
    }
    assert!(good.len() >= 13, "{good:#?}");
    assert!(good.iter().any(|f| f.feature.contains("probe")), "{good:#?}");
    let last = missing.last().unwrap();
    assert!(!last.found && last.detail.contains("no interface `nope`"), "{last:?}");
    let last = occupied.last().unwrap();
    assert!(!last.found && last.detail.contains("ip link del ifb4wan"), "{last:?}");
}

#[test]
fn a_network_is_known_by_its_gateway() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let identity = || pair.home.run(|| network::identity("wan"));
    assert_eq!(identity(), None, "no default route");
    pair.home.run(|| {
        let hop = Some("192.0.2.2".parse().unwrap());
        link::add_route("0.0.0.0/0".parse().unwrap(), hop, "wan").unwrap();
    });
    assert_eq!(identity(), None, "the gateway has not been spoken to");
    pair.home.run(|| {
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.send_to(b"hello", "192.0.2.2:9").unwrap();
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    let known = identity().expect("the gateway is known");
    assert!(known.starts_with("gateway ") && known.matches(':').count() == 5, "{known}");
}
