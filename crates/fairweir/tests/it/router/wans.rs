//! Routers with devices in several networks, and with a link that appears at several interfaces.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairweir_linux::link;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::*;

/// IPv4 in IPv6 with the true headers, between the home and its provider; this kernel has no driver for it.
struct DsLite<'s> {
    stage: &'s Stage,
    name: &'static str,
    ends: Arc<AtomicBool>,
}

impl DsLite<'_> {
    /// Creates the device `name` at both ends.
    fn new<'s>(stage: &'s Stage, name: &'static str) -> DsLite<'s> {
        let ends = Arc::<AtomicBool>::default();
        for (netns, own, peer) in [
            (stage.home(), "2001:db8:9::2", "2001:db8:9::1"),
            (stage.internet(), "2001:db8:9::1", "2001:db8:9::2"),
        ] {
            let (tun, socket) = netns.run(|| {
                let tun = link::tun(name).unwrap();
                link::set_txqueuelen(name, 5_000).unwrap();
                ip(&format!("link set {name} mtu 1460 up"));
                (tun, tunnel_socket(own, peer))
            });
            relay(tun.try_clone().unwrap(), socket.try_clone().unwrap(), Arc::clone(&ends));
            relay(socket, tun, Arc::clone(&ends));
        }
        DsLite { stage, name, ends }
    }
}

impl Drop for DsLite<'_> {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for netns in [self.stage.home(), self.stage.internet()] {
            let _ = netns.run(|| link::delete(self.name));
        }
    }
}

/// A socket that sends written data in IPv6 packets, and returns the payload of such packets.
fn tunnel_socket(own: &str, peer: &str) -> OwnedFd {
    let address = |text: &str| SocketAddrV6::new(text.parse::<Ipv6Addr>().unwrap(), 0, 0, 0).into();
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(4))).unwrap();
    setsockopt(&socket, sockopt::SndBufForce, &(8 << 20)).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket.bind(&address(own)).unwrap();
    socket.connect(&address(peer)).unwrap();
    socket.into()
}

fn relay(from: OwnedFd, to: OwnedFd, ends: Arc<AtomicBool>) {
    let (mut from, mut to) = (fs::File::from(from), fs::File::from(to));
    thread::spawn(move || {
        let mut packet = [0; 2_048];
        while !ends.load(Ordering::Relaxed) {
            // A socket that timed out, or learns that the other one is not open yet, reads again.
            let Ok(n) = from.read(&mut packet) else { continue };
            // Packets that the other side does not take are lost.
            let _ = to.write(&packet[..n]);
        }
    });
}

/// The second device moves to a guest network, which the device `guest` represents as a whole.
fn with_guests(home: &Home) -> String {
    home.stage.at_home(|| {
        ip("link add br-guest type bridge");
        ip("link set br-guest up");
        link::add_address("br-guest", "192.168.8.254/24".parse().unwrap()).unwrap();
        ip("-6 addr add 2001:db8:77::ffff/64 dev br-guest nodad");
        ip("link set port2 master br-guest");
    });
    home.stage.at_internet(|| ip("-6 route add 2001:db8:77::/64 via 2001:db8:9::2"));
    home.devices[1].run(|| {
        ip("addr flush dev eth0");
        link::add_address("eth0", "192.168.8.2/24".parse().unwrap()).unwrap();
        ip("-6 addr add 2001:db8:77::2/64 dev eth0 nodad");
        ip("route replace default via 192.168.8.254");
        ip("-6 route replace default via 2001:db8:77::ffff");
    });
    format!(
        "version = 1\n[router]\nlan = [\"br-lan\", \"br-guest\"]\nwan = [\"WAN\"]\n\
         [[device]]\nname = \"tv\"\nweight = 4\nmatch = [\"mac:{}\"]\n\
         [[device]]\nname = \"guests\"\nweight = 1\nmatch = [\"lan:br-guest\"]\n",
        home.devices[0].mac
    )
}

/// The tv's part of what both devices receive, and the used part of the link.
fn measured(home: &Home, span: Duration) -> [f64; 2] {
    let received = || [0, 1].map(|i| home.devices[i].received());
    let wan = || fairweir_testing::traffic(home.stage.home(), "wan").received;
    let (begin, before, wan_before) = (Instant::now(), received(), wan());
    thread::sleep(span);
    let (now, wan_now, seconds) = (received(), wan(), begin.elapsed().as_secs_f64());
    let [tv, guests] = [0, 1].map(|i| (now[i] - before[i]) as f64);
    let used = (wan_now - wan_before) as f64 * 8e-6 / seconds / LINK_MBIT;
    [tv / (tv + guests), used]
}

/// IPv4 through a tunnel and IPv6 beside it; devices in two networks, one of which has one weight: 4 : 1 overall.
fn a_link_seen_twice() {
    let home = Home::new();
    let configuration = with_guests(&home);
    let _tunnel = DsLite::new(&home.stage, "ds0");
    home.stage.at_home(|| ip("route replace default dev ds0"));
    home.stage.at_internet(|| {
        ip("route add 192.168.7.0/24 dev ds0");
        ip("route add 192.168.8.0/24 dev ds0");
    });
    for (wan, family) in [("wan", "IPv4 leaves by ds0"), ("ds0", "IPv6 leaves by wan")] {
        let (_, said) = refused(&home, "router", &configuration.replace("WAN", wan));
        assert!(said.contains(family) && said.contains(r#"wan = ["wan", "ds0"]"#), "{said}");
    }
    home.stage.configure(&configuration.replace("WAN", "wan\", \"ds0"));
    let daemon = home.stage.start_router(&[]);
    let of =
        |device: &Device| [device.download(home.far.address()), device.download(home.address6)];
    let downloads = [of(&home.devices[0]), of(&home.devices[1])];
    daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true);
    thread::sleep(Duration::from_secs(7));
    let [tv, used] = measured(&home, Duration::from_secs(6));
    let status = daemon.status();
    note(&format!("the tv has {tv:.3} of .8, {used:.3} of the link, {}", status["delay"]));
    assert!((tv / 0.8 - 1.0).abs() <= 0.03 && used >= 0.97, "{tv} {used}\n{status:#}");
    assert_eq!(status["groups"][2]["received_bytes"], 0, "nothing is in no device\n{status:#}");
    drop(downloads);
}

#[test]
fn networks_behind_one_link_that_is_seen_twice_share_it_by_weight() {
    if privileged() && has_nat() {
        two_of_three(a_link_seen_twice);
    }
}

/// Another link takes over and uses the data learned about it; both links at once are refused.
fn another_link_takes_over() {
    let home = Home::new();
    let stage = &home.stage;
    stage.at_home(|| {
        link::create_veth("lte", stage.internet(), "isp2").unwrap();
        link::offloads("lte", false).unwrap();
        ip("addr add 10.8.0.2/24 dev lte");
        ip("-6 addr add 2001:db8:8:9::2/64 dev lte nodad");
        ip("link set lte up");
        run("nft", "add rule ip home post oifname lte masquerade");
    });
    stage.at_internet(|| {
        link::offloads("isp2", false).unwrap();
        ip("addr add 10.8.0.1/24 dev isp2");
        ip("-6 addr add 2001:db8:8:9::1/64 dev isp2 nodad");
        ip("link set isp2 up");
        run("tc", "qdisc add dev isp2 root tbf burst 64k latency 50ms rate 12mbit");
    });
    let configuration = home.configuration().replace("wan = \"wan\"", "wan = [\"wan\", \"lte\"]");
    stage.at_home(|| ip("route replace default nexthop via 10.9.0.1 nexthop via 10.8.0.1"));
    let (_, said) = refused(&home, "router", &configuration);
    assert!(said.contains("wan and lte at once") && said.contains("two links"), "{said}");
    stage.at_home(|| {
        ip("route replace default via 10.9.0.1 dev wan");
        ip("route add default via 10.8.0.1 dev lte metric 700");
    });
    stage.configure(&configuration);
    let daemon = stage.start_router(&[]);
    let of = |device: &Device| [0; 2].map(|_| device.download(home.far.address()));
    let downloads = [of(&home.devices[0]), of(&home.devices[1])];
    daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true);
    drop(downloads);
    stage.at_home(|| {
        ip("route del default via 10.9.0.1 dev wan");
        ip("-6 route replace default via 2001:db8:8:9::1 dev lte");
    });
    daemon.wait_for("the other link", PATIENCE, |s| s["link"] == "lte");
    let downloads = [of(&home.devices[0]), of(&home.devices[1])];
    daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true);
    thread::sleep(Duration::from_secs(6));
    let before = [0, 1].map(|i| home.devices[i].received());
    thread::sleep(Duration::from_secs(5));
    let [tv, desk] = [0, 1].map(|i| (home.devices[i].received() - before[i]) as f64);
    let (tv, mbit) = (tv / (tv + desk) * 1.5, (tv + desk) * 8e-6 / 5.0);
    let status = daemon.status();
    note(&format!("by the other link the tv has {tv:.3} of its share, {mbit:.1} of 12 Mbit/s"));
    assert!((tv - 1.0).abs() <= 0.05 && mbit > 0.95 * 12.0, "{tv} {mbit}\n{status:#}");
    drop(downloads);
}

#[test]
fn another_link_that_stands_in_is_divided() {
    if privileged() && has_nat() {
        two_of_three(another_link_takes_over);
    }
}
