//! `fairweir proxy` on a home router with bridge, NAT and IPv6: real TCP through TPROXY.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

mod common;
use common::far::Far;
use common::home::{Device, devices, has_nat, ip};
use common::stage::{Daemon, Download, SERVERS, Stage, privileged};
use common::{note, two_of_three};

const PATIENCE: Duration = Duration::from_secs(10);
const LINK_MBIT: f64 = 100.0;
/// Of the internet's end of the cable.
const INTERNET6: &str = "2001:db8:9::1";
/// Of the home's router.
const GATEWAY: &str = "192.168.7.254";

struct Home {
    stage: Stage,
    devices: [Device; 3],
}

impl Home {
    fn new() -> Home {
        let stage = Stage::with_link(LINK_MBIT);
        let devices = devices(&stage, ["tv", "desk", "phone"]);
        stage.at_home(|| {
            ip("link set lo up");
            for family in ["iptables", "ip6tables"] {
                let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
                // Only a kernel with br_netfilter has it.
                let _ = fs::write(path, "0");
            }
            // The machine's default may be bbr, whose probing makes rates uneven.
            ip("route replace 192.168.7.0/24 dev br-lan src 192.168.7.254 congctl cubic");
        });
        Home { stage, devices }
    }

    fn configure(&self, rest: &str) {
        let text = format!("version = 1\n[proxy]\nlan = [\"br-lan\"]\n{rest}");
        let new = self.stage.path("proxy.toml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.stage.path("proxy.toml")).unwrap();
    }

    /// A proxy for all devices without a rate.
    fn start_open(&self) -> Daemon {
        self.configure("[[class]]\nname = \"all\"\nmatch = [\"web:example.com\"]\n");
        self.stage.start_proxy(None)
    }

    fn connect(&self, device: usize, server: SocketAddr) -> TcpStream {
        let stream = self.devices[device].run(|| TcpStream::connect_timeout(&server, PATIENCE));
        let stream = stream.unwrap_or_else(|e| panic!("{server}: {e}"));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A listener of the internet.
    fn listen(&self, address: &str) -> (TcpListener, SocketAddr) {
        let address: IpAddr = address.parse().unwrap();
        let listener = self.stage.at_internet(|| TcpListener::bind((address, 0)).unwrap());
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    /// L2 bytes that came over the access link.
    fn received(&self) -> u64 {
        let text = self.stage.at_home(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = text.lines().find_map(|line| line.trim().strip_prefix("wan:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

fn is_playable() -> bool {
    privileged() && has_nat()
}

fn class<'s>(status: &'s Value, name: &str) -> &'s Value {
    let classes = status["classes"].as_array().unwrap();
    classes.iter().find(|class| class["name"] == name).unwrap()
}

fn down(status: &Value, name: &str) -> u64 {
    class(status, name)["down_bytes"].as_u64().unwrap()
}

#[test]
fn connections_of_both_families_arrive_with_the_clients_own_address() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    for (address, seen) in [(SERVERS[0], "10.9.0.2"), (INTERNET6, "2001:db8:7::1")] {
        let (listener, server) = home.listen(address);
        let server_side = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            // The server speaks first, and again after it has heard the client's end.
            stream.write_all(b"220 hello\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            stream.write_all(text.to_uppercase().as_bytes()).unwrap();
            peer
        });
        let mut stream = home.connect(0, server);
        let mut greeting = [0; 11];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 hello\r\n");
        stream.write_all(b"half-closed").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "HALF-CLOSED");
        assert_eq!(server_side.join().unwrap().ip().to_string(), seen);
    }
    let status = daemon.status();
    assert_eq!(status["accepted"], 2, "{status:#}");
    assert_eq!(down(&status, "default"), 2 * (11 + 11), "{status:#}");
    assert_eq!(class(&status, "default")["up_bytes"], 2 * 11, "{status:#}");
    daemon.wait_for("closed", PATIENCE, |s| s["connections"] == 0);
    let usage: u64 = daemon.status()["usage"].as_array().unwrap().iter().map(|u| {
        u["down_bytes"].as_u64().unwrap()
    }).sum();
    assert_eq!(usage, 2 * (11 + 11), "what has ended is still counted");
}

fn rates_are_held() {
    let home = Home::new();
    let far = Far::new(&home.stage, "far", "198.51.100.1", None);
    let address6 = far.add_address6(&home.stage, "far", "2001:db8:8::1");
    let farther = Duration::from_millis(40);
    let farther = Far::with_delay(&home.stage, "farther", "198.51.100.2", None, farther);
    let rates = [("tv", 30.0), ("desk", 8.0), ("phone", 2.0)];
    let class = |(name, mbit): (&str, f64), n: usize| {
        format!(
            "[[class]]\nname = \"{name}\"\nrate = \"{mbit}mbit\"\nmatch = [\"mac:{}\"]\n",
            home.devices[n].mac
        )
    };
    let text: String = rates.iter().enumerate().map(|(n, &rate)| class(rate, n)).collect();
    home.configure(&text);
    let daemon = home.stage.start_proxy(None);
    let [tv, desk, phone] = &home.devices;
    let downloads = [
        tv.download(farther.address()),
        desk.download(address6),
        desk.download(address6),
        desk.download(address6),
        desk.download(address6),
        phone.download(far.address()),
    ];
    thread::sleep(Duration::from_secs(4));
    let (wire, before, begin) = (home.received(), daemon.status(), Instant::now());
    thread::sleep(Duration::from_secs(10));
    let (wire_now, after, seconds) = (home.received(), daemon.status(), begin.elapsed());
    let seconds = seconds.as_secs_f64();
    let total = (wire_now - wire) as f64 * 8e-6 / seconds;
    let mut said = format!("{total:.3} of 40 Mbit/s on the wire");
    let mut held = Vec::new();
    for ((name, mbit), headers) in rates.into_iter().zip([66.0, 86.0, 66.0]) {
        let payload = (down(&after, name) - down(&before, name)) as f64 * 8e-6 / seconds;
        let segment = 1_514.0 - headers;
        let rate = payload * 1_514.0 / segment;
        said += &format!(", {name} {rate:.3} of {mbit}");
        held.push((rate / mbit - 1.0).abs());
    }
    note(&said);
    assert!((total / 40.0 - 1.0).abs() <= 0.01, "{said}\n{after:#}");
    assert!(held.iter().all(|&off| off <= 0.01), "{said}\n{after:#}");
    assert!(downloads.iter().all(|download| !download.is_broken()));
}

#[test]
fn rates_are_held_for_both_families_near_and_far() {
    if is_playable() {
        two_of_three(rates_are_held);
    }
}

fn priorities_are_parts() {
    let home = Home::new();
    let far = Far::new(&home.stage, "far", "198.51.100.1", None);
    let mut text = "[[class]]\nname = \"all\"\nrate = \"14mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n"
        .to_owned();
    for alpha in [50, 100, 200] {
        text += &format!(
            "[[app]]\nname = \"a{alpha}\"\nalpha = {alpha}\nmatch = [\"web:a{alpha}.example.com\"]\n"
        );
    }
    home.configure(&text);
    let daemon = home.stage.start_proxy(None);
    let downloads = [50, 100, 200].map(|alpha| {
        let mut stream = home.connect(0, far.address());
        // The name comes in two pieces.
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        thread::sleep(Duration::from_millis(30));
        stream.write_all(format!("a{alpha}.example.com\r\n\r\n").as_bytes()).unwrap();
        Download::new(stream)
    });
    thread::sleep(Duration::from_secs(4));
    let before = downloads.each_ref().map(Download::received);
    thread::sleep(Duration::from_secs(10));
    let after = downloads.each_ref().map(Download::received);
    let parts = [0, 1, 2].map(|i| (after[i] - before[i]) as f64);
    let shares = [0, 1, 2].map(|i| parts[i] / parts.iter().sum::<f64>() * 7.0 / f64::from(1 << i));
    note(&format!("parts over alphas {shares:.4?}"));
    let status = daemon.status();
    assert!(shares.iter().all(|share| (share - 1.0).abs() <= 0.03), "{shares:?}\n{status:#}");
    let apps = status["usage"].as_array().unwrap();
    assert!(apps.iter().any(|usage| usage["app"] == "a200"), "{status:#}");
}

#[test]
fn connections_of_a_class_share_its_rate_by_priority() {
    if is_playable() {
        two_of_three(priorities_are_parts);
    }
}

#[test]
fn a_reset_is_passed_on_and_a_dead_server_is_asked_directly_the_next_time() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    // A server that resets.
    let (listener, server) = home.listen(SERVERS[0]);
    let resets = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let mut stream = home.connect(0, server);
    stream.write_all(b"x").unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    resets.join().unwrap();
    // A client that resets.
    let (listener, server) = home.listen(SERVERS[0]);
    let hears = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0; 1]).unwrap_err().kind()
    });
    let stream = home.connect(0, server);
    daemon.wait_for("there", PATIENCE, |s| s["connections"] == 1);
    thread::sleep(Duration::from_millis(100));
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert_eq!(hears.join().unwrap(), ErrorKind::ConnectionReset);
    daemon.wait_for("closed", PATIENCE, |s| s["connections"] == 0);
    // A port on which nobody listens: accepted here and then reset, and refused the next time.
    let (listener, server) = home.listen(SERVERS[1]);
    drop(listener);
    let mut stream = home.connect(1, server);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    thread::sleep(Duration::from_millis(600));
    let again = home.devices[1].run(|| TcpStream::connect_timeout(&server, PATIENCE));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionRefused, "it passes directly");
    let status = daemon.status();
    assert_eq!(status["unreachable"], 1, "{status:#}");
    // Another device's connections are relayed all the same.
    let accepted = status["accepted"].as_u64().unwrap();
    home.connect(2, server);
    assert_eq!(daemon.status()["accepted"], accepted + 1);
}
