//! Namespaces and devices on the real kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use fairweir_linux::{link, netns::Netns};
use fairweir_testing::privileged;

#[test]
fn a_veth_pair_carries_tcp_between_two_namespaces() {
    if !privileged() {
        return;
    }
    let (here, there) = (Netns::new().unwrap(), Netns::new().unwrap());
    here.run(|| {
        link::create_veth("left", &there, "right").unwrap();
        link::add_address("left", "192.0.2.1/24".parse().unwrap()).unwrap();
        link::add_address("left", "2001:db8::1/64".parse().unwrap()).unwrap();
        link::set_mtu("left", 1400).unwrap();
        link::set_txqueuelen("left", 77).unwrap();
        link::offloads("left", false).unwrap();
        link::set_up("left").unwrap();
        link::add_route(
            "198.51.100.0/24".parse().unwrap(),
            Some("192.0.2.2".parse().unwrap()),
            "left",
        )
        .unwrap();
    });
    let (v4, v6) = there.run(|| {
        link::add_address("right", "192.0.2.2/24".parse().unwrap()).unwrap();
        link::add_address("right", "2001:db8::2/64".parse().unwrap()).unwrap();
        link::add_address("lo", "198.51.100.7/32".parse().unwrap()).unwrap();
        link::set_up("right").unwrap();
        let v4 = TcpListener::bind("198.51.100.7:0").unwrap();
        (v4, TcpListener::bind("[2001:db8::2]:0").unwrap())
    });
    for listener in [v4, v6] {
        let address = listener.local_addr().unwrap();
        let mut near = here.run(|| TcpStream::connect(address).unwrap());
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        near.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
    let left = here.run(|| link::find("left").unwrap().unwrap());
    assert_eq!((left.mtu, left.kind.as_str(), left.is_up()), (1400, "veth", true));
}

#[test]
fn children_are_born_inside_and_the_namespace_goes_with_its_last_user() {
    if !privileged() {
        return;
    }
    let netns = Netns::new().unwrap();
    let inside = netns.run(|| {
        link::create_ifb("ifb4x", "ours").unwrap();
        let list = Command::new("cat").arg("/proc/self/net/dev").output().unwrap();
        String::from_utf8(list.stdout).unwrap()
    });
    assert!(inside.contains("ifb4x"), "{inside}");
    assert_eq!(netns.run(|| link::alias("ifb4x")).as_deref(), Some("ours"));
    assert_eq!(netns.run(|| link::all().unwrap().len()), 2);
    assert_eq!(link::index("ifb4x"), None, "the caller's namespace is untouched");
    netns.run(|| link::delete("ifb4x").unwrap());
    assert_eq!(netns.run(|| link::index("ifb4x")), None);
}

#[test]
fn an_ifb_has_no_address_of_its_own() {
    if !privileged() {
        return;
    }
    let addresses = Netns::new().unwrap().run(|| {
        link::create_ifb("ifb4x", "").unwrap();
        link::set_up("ifb4x").unwrap();
        std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap()
    });
    assert!(!addresses.contains("ifb4x"), "{addresses}");
}

#[test]
fn a_tun_device_lives_as_long_as_its_descriptor() {
    if !privileged() {
        return;
    }
    let netns = Netns::new().unwrap();
    let tun = netns.run(|| link::tun("tun7").unwrap());
    assert!(netns.run(|| link::index("tun7")).is_some());
    assert!(netns.run(|| link::tun("tun7")).is_err(), "the name is taken");
    drop(tun);
    assert_eq!(netns.run(|| link::index("tun7")), None);
}

#[test]
fn refusals_say_what_was_attempted() {
    let missing = link::set_up("nope").unwrap_err().to_string();
    assert_eq!(missing, "no interface `nope`");
    assert_eq!(link::index("a-name-that-is-far-too-long-for-a-device"), None);
    if !privileged() {
        return;
    }
    let netns = Netns::new().unwrap();
    let twice = netns.run(|| {
        link::create_ifb("ifb4x", "").unwrap();
        link::create_ifb("ifb4x", "").unwrap_err().to_string()
    });
    assert!(twice.starts_with("cannot make the ifb ifb4x: File exists"), "{twice}");
}
