//! `fairweir proxy` on a home router with bridge, NAT and IPv6: real TCP through TPROXY.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::link;
use fairweir_testing::{can_run, note, privileged, two_of_three};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::far::Far;
use crate::common::home::{Device, devices, has_nat, ip};
use crate::common::stage::{Daemon, Download, SERVERS, Stage};

const PATIENCE: Duration = Duration::from_secs(10);
const LINK_MBIT: f64 = 100.0;
/// IPv6 address of the internet's end of the cable.
const INTERNET6: &str = "2001:db8:9::1";
/// IPv4 address of the home's router.
const GATEWAY: &str = "192.168.7.254";

struct Home {
    stage: Stage,
    devices: [Device; 3],
}

impl Home {
    fn new() -> Home {
        Home::with_link(LINK_MBIT)
    }

    fn with_link(mbit: f64) -> Home {
        let stage = Stage::with_link(mbit);
        let devices = devices(&stage, ["tv", "desk", "phone"]);
        stage.at_home(|| {
            ip("link set lo up");
            for family in ["iptables", "ip6tables"] {
                let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
                // Only exists in a kernel with br_netfilter.
                let _ = fs::write(path, "0");
            }
            // Strict source validation, the default in many distributions.
            for dev in ["all", "br-lan", "wan"] {
                fs::write(format!("/proc/sys/net/ipv4/conf/{dev}/rp_filter"), "1").unwrap();
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

    /// Starts a proxy without a rate for all devices.
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

    /// A listener on the internet.
    fn listen(&self, address: &str) -> (TcpListener, SocketAddr) {
        let address: IpAddr = address.parse().unwrap();
        let listener = self.stage.at_internet(|| TcpListener::bind((address, 0)).unwrap());
        let at = listener.local_addr().unwrap();
        (listener, at)
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
            // The server sends first, and again after it has received the client's end of stream.
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
    let usage: u64 = daemon.status()["usage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["down_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(usage, 2 * (11 + 11), "what has ended is still counted");
}

/// Bytes that do not repeat with the length of any segment.
fn pattern() -> Vec<u8> {
    (0..6_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn ends_that_pause_receive_every_byte_in_order() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    let (listener, server) = home.listen(INTERNET6);
    let far_end = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&pattern()).unwrap();
        thread::sleep(Duration::from_millis(700));
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == pattern(), "the server received {} other bytes", received.len());
    });
    let mut stream = home.connect(0, server);
    thread::sleep(Duration::from_millis(700));
    let mut received = vec![0; pattern().len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == pattern(), "the client received other bytes");
    stream.write_all(&pattern()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    far_end.join().unwrap();
    daemon.wait_for("closed", PATIENCE, |s| s["connections"] == 0);
    let usage = &daemon.status()["usage"][0];
    assert_eq!((&usage["down_bytes"], &usage["up_bytes"]), (&6_000_000.into(), &6_000_000.into()));
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
    // The first buffers are larger than later ones, which follow the measured round-trip times.
    thread::sleep(Duration::from_secs(4));
    let (wire, begin, before) = (home.stage.received(), Instant::now(), daemon.status());
    thread::sleep(Duration::from_secs(10));
    let (wire_now, seconds, after) = (home.stage.received(), begin.elapsed(), daemon.status());
    let total = (wire_now - wire) as f64 * 8e-6 / seconds.as_secs_f64();
    // Time by the daemon's clock: on a loaded machine the daemon may take a while to answer.
    let seconds = after["since_s"].as_f64().unwrap() - before["since_s"].as_f64().unwrap();
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
    let mut text =
        "[[class]]\nname = \"all\"\nrate = \"14mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n"
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
        // The name arrives in two parts.
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
fn resets_and_refusals_are_passed_on() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    // A server that resets the connection.
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
    // A client that resets the connection.
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
    // A port without a listener refuses connections.
    let (listener, server) = home.listen(SERVERS[1]);
    drop(listener);
    let refusal = home.devices[1].run(|| TcpStream::connect_timeout(&server, PATIENCE));
    assert_eq!(refusal.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let status = daemon.status();
    assert_eq!((&status["accepted"], &status["unreachable"]), (&2.into(), &1.into()), "{status:#}");
}

#[test]
fn a_client_finds_out_at_once_that_an_ipv6_server_is_dead() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    home.stage.at_internet(|| ip("-6 route add blackhole 2001:db8:dead::/64"));
    let daemon = home.start_open();
    // Browsers try IPv4 after 250 to 300 ms without an answer.
    let dead: SocketAddr = "[2001:db8:dead::1]:80".parse().unwrap();
    let patience = Duration::from_millis(300);
    let connect = || home.devices[0].run(|| TcpStream::connect_timeout(&dead, patience));
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::TimedOut);
    daemon.wait_for("given up", PATIENCE, |s| s["unreachable"] == 1);
    // By now clients connect to the server directly.
    thread::sleep(Duration::from_millis(600));
    let _ = connect();
    assert_eq!(daemon.status()["connections"], 0);
    let (listener, server) = home.listen(SERVERS[0]);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1_000]);
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello").unwrap();
    });
    let port = server.port();
    let (address, url) = (server.ip(), format!("http://page.example.com:{port}/"));
    let to = format!("page.example.com:{port}:[2001:db8:dead::2],{address}");
    let format = "%{remote_ip} %{time_total}";
    let page = home.devices[1].run(|| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-m", "20", "-w", format, "--resolve", &to, &url]);
        curl.output()
    });
    if !can_run(page.is_ok(), "curl") {
        return;
    }
    let page = page.unwrap();
    let said = String::from_utf8(page.stdout).unwrap();
    note(&format!("curl, IPv6 server dead: {said} s"));
    assert!(page.status.success() && said.starts_with(SERVERS[0]), "{said}");
    daemon.wait_for("closed", PATIENCE, |s| s["accepted"] == 1 && s["connections"] == 0);
}

/// Bytes waiting in the gateway's receive buffers of connections to `server`.
fn parked(home: &Home, server: SocketAddr) -> u64 {
    let text = home.stage.run(&format!("ss -Htn dst {server}")).stdout;
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

fn little_is_parked() {
    let home = Home::new();
    let far = Far::new(&home.stage, "far", "198.51.100.1", None);
    let text = |mbit: u32| {
        format!(
            "[[class]]\nname = \"all\"\nrate = \"{mbit}mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n"
        )
    };
    home.configure(&text(30));
    let daemon = home.stage.start_proxy(None);
    let download = home.devices[0].download(far.address());
    thread::sleep(Duration::from_secs(4));
    let bound = |mbit: f64| (2.0 * mbit * 1e6 / 8.0 * 0.02) as u64 + 4 * 1_448;
    let before = parked(&home, far.address());
    home.configure(&text(1));
    let begin = Instant::now();
    while parked(&home, far.address()) > bound(1.0) {
        assert!(begin.elapsed() < Duration::from_secs(6), "{} bytes", parked(&home, far.address()));
        thread::sleep(Duration::from_millis(10));
    }
    let took = begin.elapsed().as_secs_f64();
    thread::sleep(Duration::from_secs(1));
    let status = daemon.status();
    let begin = Instant::now();
    let mut most = 0;
    while begin.elapsed() < Duration::from_secs(5) {
        most = most.max(parked(&home, far.address()));
        thread::sleep(Duration::from_millis(20));
    }
    let after = daemon.status();
    let seconds = after["since_s"].as_f64().unwrap() - status["since_s"].as_f64().unwrap();
    let moved = down(&after, "all") - down(&status, "all");
    let mbit = moved as f64 * 8e-6 / seconds * 1_514.0 / 1_448.0;
    note(&format!(
        "{before} B parked at 30 Mbit/s; at 1 Mbit/s {} B after {took:.2} s, then at most {most} B, \
         {mbit:.3} Mbit/s",
        bound(1.0)
    ));
    assert!(before <= bound(30.0), "{before} of {}", bound(30.0));
    assert!(took <= 2.5, "{took} s");
    assert!(most <= bound(1.0), "{most} of {}", bound(1.0));
    assert!((mbit - 1.0).abs() < 0.02, "{mbit}");
    drop(download);
}

#[test]
fn little_is_parked_also_when_the_rate_falls() {
    if is_playable() {
        two_of_three(little_is_parked);
    }
}

/// Payload rates of a relayed download and of a direct one, both with a last hop that loses packets.
fn a_lossy_last_hop_costs_little() {
    let home = Home::new();
    let delay = Duration::from_millis(40);
    let far = Far::with_delay(&home.stage, "far", "198.51.100.1", None, delay);
    home.configure("[[class]]\nname = \"tv\"\nrate = \"30mbit\"\nmatch = [\"ip:192.168.7.1\"]\n");
    let daemon = home.stage.start_proxy(None);
    let [tv, _, phone] = &home.devices;
    for device in [tv, phone] {
        device.lose(5);
    }
    let (relayed, direct) = (tv.download(far.address()), phone.download(far.address()));
    thread::sleep(Duration::from_secs(3));
    let before = [relayed.received(), direct.received()];
    thread::sleep(Duration::from_secs(8));
    let after = [relayed.received(), direct.received()];
    let [relayed, direct] = [0, 1].map(|i| (after[i] - before[i]) as f64 * 8e-6 / 8.0);
    note(&format!("0.5 % lost in the last hop, 80 ms: {relayed:.1} Mbit/s, direct {direct:.1}"));
    assert!(relayed >= 4.0 * direct, "{relayed} Mbit/s beside {direct}");
    assert_eq!(daemon.status()["accepted"], 1);
}

#[test]
fn a_lossy_last_hop_costs_a_relayed_download_little() {
    if is_playable() {
        two_of_three(a_lossy_last_hop_costs_little);
    }
}

/// `cargo test -p fairweir --test it proxy:: -- --ignored --test-threads 1`
#[test]
#[ignore = "long: 3 min"]
fn rates_are_held_at_many_rates_and_round_trips() {
    let points = [
        (1, 20, 1, false),
        (1, 200, 1, true),
        (2, 20, 64, false),
        (10, 80, 4, true),
        (30, 20, 64, true),
        (100, 20, 1, false),
        (100, 200, 4, false),
        (100, 80, 64, true),
    ];
    let mut worst: f64 = 0.0;
    for (mbit, rtt, connections, is_v6) in points {
        let home = Home::with_link(300.0);
        let delay = Duration::from_millis(rtt / 2);
        let far = Far::with_delay(&home.stage, "far", "198.51.100.1", None, delay);
        let address6 = far.add_address6(&home.stage, "far", "2001:db8:8::1");
        let mac = &home.devices[0].mac;
        home.configure(&format!(
            "[[class]]\nname = \"a\"\nrate = \"{mbit}mbit\"\nmatch = [\"mac:{mac}\"]\n"
        ));
        let daemon = home.stage.start_proxy(None);
        let server = if is_v6 { address6 } else { far.address() };
        let downloads: Vec<_> =
            (0..connections).map(|_| home.devices[0].download(server)).collect();
        thread::sleep(Duration::from_secs(8));
        let (before, cpu) = (daemon.status(), daemon.cpu_time());
        thread::sleep(Duration::from_secs(10));
        let after = daemon.status();
        let seconds = after["since_s"].as_f64().unwrap() - before["since_s"].as_f64().unwrap();
        let payload = (down(&after, "a") - down(&before, "a")) as f64 * 8e-6 / seconds;
        let headers = if is_v6 { 86.0 } else { 66.0 };
        let off = payload * 1_514.0 / (1_514.0 - headers) / mbit as f64 - 1.0;
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        note(&format!(
            "{mbit} Mbit/s, {rtt} ms, {connections} x {family}: {:+.2} %, {:.1} % of a core",
            off * 100.0,
            (daemon.cpu_time() - cpu).as_secs_f64() / seconds * 100.0
        ));
        worst = worst.max(off.abs());
        drop(downloads);
    }
    assert!(worst <= 0.01, "{worst}");
}

/// `cargo test -p fairweir --features evidence --test it ten_thousand -- --ignored --nocapture`; with fewer
/// than 32,768 file descriptors it opens as many connections as these allow, and extrapolates to 10,500;
/// `dist/test-connections` plays all of them in a virtual machine.
#[test]
#[ignore = "long: 1 min; needs 32,768 file descriptors"]
fn ten_thousand_idle_and_five_hundred_busy_connections_cost_little() {
    let home = Home::with_link(10_000.0);
    home.configure("[[class]]\nname = \"all\"\nmatch = [\"web:example.com\"]\n");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let files = hard.min(32_768) as usize;
    // Two descriptors per connection, plus those of one pipe for each busy connection.
    let each = ((files / 10 * 9 / 2 - 1_100) / 3).min(3_334);
    let number = 3 * each + 500;
    let daemon = home.stage.start_proxy(Some(files as u32));
    let resident = || memory_kb(&daemon);
    let empty = resident();
    let servers = [SERVERS[0], INTERNET6].map(|address| {
        let (listener, server) = home.listen(address);
        thread::spawn(move || listener.incoming().map(Result::unwrap).collect::<Vec<_>>());
        server
    });
    // No device opens more than 100 a second for long, and no address has more than 3,000.
    let idle: Vec<Vec<TcpStream>> = thread::scope(|scope| {
        let open = |device| {
            let home = &home;
            scope.spawn(move || {
                let one = |n: usize| {
                    thread::sleep(Duration::from_millis(if n < 900 { 0 } else { 11 }));
                    home.connect(device, servers[n % 2])
                };
                (0..each).map(one).collect()
            })
        };
        let threads = [0, 1, 2].map(open);
        threads.map(|thread| thread.join().unwrap()).into()
    });
    daemon.wait_for("idle", PATIENCE, |s| s["connections"] == 3 * each);
    let with_idle = resident();
    thread::sleep(Duration::from_secs(1));
    let before = daemon.cpu_time();
    thread::sleep(Duration::from_secs(5));
    let idle_cpu = (daemon.cpu_time() - before).as_secs_f64() / 5.0;
    let server: SocketAddr = format!("{}:{}", SERVERS[0], home.stage.port()).parse().unwrap();
    let busy: Vec<Download> = (0..500)
        .map(|n| {
            thread::sleep(Duration::from_millis(5));
            home.devices[n % 3].download(server)
        })
        .collect();
    thread::sleep(Duration::from_secs(3));
    let (before, cpu) = (daemon.status(), daemon.cpu_time());
    thread::sleep(Duration::from_secs(10));
    let (after, cpu) = (daemon.status(), daemon.cpu_time() - cpu);
    let seconds = after["since_s"].as_f64().unwrap() - before["since_s"].as_f64().unwrap();
    let gbit = (down(&after, "default") - down(&before, "default")) as f64 * 8e-9;
    let cores = cpu.as_secs_f64() / gbit;
    note(&format!(
        "{} connections: {empty} kB empty, {with_idle} kB with {} idle, {} kB with 500 busy; \
         idle {:.1} % of a core; busy {:.2} Gbit/s, {cores:.3} core s per Gbit",
        after["connections"],
        3 * each,
        resident(),
        idle_cpu * 100.0,
        gbit / seconds,
    ));
    assert_eq!((&after["connections"], &after["times_full"]), (&number.into(), &0.into()));
    let reckoned = empty + (resident() - empty) * 10_500 / number as u64;
    note(&format!("{reckoned} kB with 10,500 connections"));
    assert!(reckoned < 60_000, "{reckoned} kB");
    // CPU time on an emulated processor means nothing.
    let is_emulated = std::env::var_os("FAIRWEIR_EMULATED").is_some();
    assert!(cores <= 0.5 || is_emulated, "{cores} core s per Gbit");
    drop((idle, busy));
}

#[test]
fn a_killed_daemon_leaves_nothing_behind_and_new_connections_pass() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let (listener, server) = home.listen(SERVERS[0]);
    thread::spawn(move || listener.incoming().map(Result::unwrap).collect::<Vec<_>>());
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let daemon = home.start_open();
        let mut open = home.connect(0, server);
        daemon.wait_for("there", PATIENCE, |s| s["connections"] == 1);
        assert!(!leftovers(&home).is_empty());
        let begin = Instant::now();
        daemon.signal(signal);
        while !leftovers(&home).is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(5), "{}", leftovers(&home));
            thread::sleep(Duration::from_millis(20));
        }
        note(&format!("{signal}: nothing is left after {:.2} s", begin.elapsed().as_secs_f64()));
        home.connect(1, server);
        if signal == Signal::SIGKILL {
            daemon.end();
            // The server gets a packet of a connection that it does not know.
            open.write_all(b"x").unwrap();
            assert!(!matches!(open.read(&mut [0; 1]), Ok(1..)));
            continue;
        }
        // A daemon that was stopped may continue: it then diverts again.
        daemon.signal(Signal::SIGCONT);
        let accepted = daemon.status()["accepted"].as_u64().unwrap();
        daemon.wait_for("diverting", PATIENCE, |_| !leftovers(&home).is_empty());
        thread::sleep(Duration::from_millis(100));
        home.connect(1, server);
        daemon.wait_for("accepted", PATIENCE, |s| s["accepted"].as_u64().unwrap() > accepted);
        let off = home.stage.fairweir("off");
        assert!(off.status.success(), "{off:?}");
        assert_eq!(leftovers(&home), "");
        daemon.end();
    }
}

fn memory_kb(daemon: &Daemon) -> u64 {
    daemon.memory("VmRSS") >> 10
}

/// What remains of the diversion's rules and routes.
fn leftovers(home: &Home) -> String {
    let commands = [
        "nft list tables",
        "ip rule",
        "ip -6 rule",
        "ip route show table 26231",
        "ip -6 route show table 26231",
    ];
    let lines = commands.map(|command| {
        let text = String::from_utf8(home.stage.run(command).stdout).unwrap();
        let words = ["fairweir", "26231", "goto", "nop"];
        let ours = |line: &&str| words.iter().any(|word| line.contains(word));
        let all = command.contains("route");
        let lines: Vec<_> =
            text.lines().filter(|line| all || ours(line)).map(str::to_owned).collect();
        lines.join("\n")
    });
    lines.concat()
}

/// Changes by other programs on a gateway, and the daemon's message if it has to undo something.
const CHANGES: [(&str, &[&str], Option<&str>); 9] = [
    (
        "a firewall is loaded again",
        &[
            "nft flush ruleset; table ip home { chain post { type nat hook postrouting priority 100; \
           oifname wan masquerade; }; }",
        ],
        Some("nftables table"),
    ),
    (
        "networkd, or a script, removes foreign rules",
        &["ip rule del priority 2", "ip -6 rule del priority 2"],
        Some("rules"),
    ),
    (
        "the same with routes",
        &["ip route flush table 26231", "ip -6 route flush table 26231"],
        Some("not delivered"),
    ),
    (
        "NetBird, an exit node, mwan3",
        &[
            "ip rule add priority 105 lookup main suppress_prefixlength 0",
            "ip route add default via 10.9.0.1 dev wan table 52",
            "ip rule add priority 5270 lookup 52",
            "ip route add 192.168.7.0/24 dev br-lan table 1",
            "ip rule add priority 1001 iif wan lookup 1",
            "ip rule add priority 2001 fwmark 0x100/0x3f00 lookup 52",
        ],
        None,
    ),
    (
        "wg-quick, Docker",
        &[
            "sysctl -qw net.ipv4.conf.all.src_valid_mark=1",
            "sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1",
        ],
        None,
    ),
    (
        "whole marks before and behind",
        &["nft table inet marks { \
           chain a { type filter hook prerouting priority mangle; meta mark set 0x10000; }; \
           chain b { type filter hook prerouting priority 0; meta mark set meta mark & 0xff00ffff; }; \
           chain c { type route hook output priority mangle; meta mark set ct mark; }; }"],
        None,
    ),
    ("marks of accepted connections", &["sysctl -qw net.ipv4.tcp_fwmark_accept=1"], None),
    (
        "the same bit",
        &["nft flush table inet marks; table inet marks { \
           chain d { type filter hook prerouting priority mangle; meta mark set meta mark | 0x400000; }; }"],
        Some("marks packets with 0x00400000"),
    ),
    ("another change of rules", &["ip rule add priority 900 fwmark 0x7f/0xff lookup main"], None),
];

#[test]
fn what_other_programs_change_is_undone_or_told_and_traffic_passes() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let far = Far::new(&home.stage, "far", "198.51.100.1", None);
    let servers = [far.address(), far.add_address6(&home.stage, "far", "2001:db8:8::1")];
    let mac = &home.devices[0].mac;
    home.configure(&format!(
        "[[class]]\nname = \"tv\"\nrate = \"6mbit\"\nmatch = [\"mac:{mac}\"]\n"
    ));
    let daemon = home.stage.start_proxy(None);
    let tv = &home.devices[0];
    let running = servers.map(|server| tv.download(server));
    let change = |command: &&str| {
        let done = match command.strip_prefix("nft ") {
            Some(text) => home.stage.at_home(|| Command::new("nft").arg(text).output().unwrap()),
            None => home.stage.run(command),
        };
        assert!(done.status.success(), "{command}: {done:?}");
    };
    let number = |status: &Value, what: &str| status[what].as_u64().unwrap();
    for (who, commands, wanted) in CHANGES {
        let before = daemon.status();
        commands.iter().for_each(change);
        let begin = Instant::now();
        let received = running.each_ref().map(Download::received);
        // New connections in both families go through the proxy.
        for server in servers {
            let mut stream = home.connect(0, server);
            stream.read_exact(&mut [0; 1]).unwrap();
        }
        let opened = begin.elapsed();
        // Open connections continue as well.
        while running.iter().zip(received).any(|(one, then)| one.received() < then + 20_000) {
            assert!(begin.elapsed() < Duration::from_secs(3), "{who}: {:#}", daemon.status());
            thread::sleep(Duration::from_millis(20));
        }
        if let Some(wanted) = wanted {
            daemon.wait_for(who, Duration::from_secs(2), |status| {
                number(status, "restored") > number(&before, "restored")
                    && status["changed"].as_str().is_some_and(|what| what.contains(wanted))
            });
        }
        let (status, passed) = (daemon.status(), begin.elapsed().as_secs_f64());
        note(&format!("{who}: opened after {opened:.2?}, all had data after {passed:.2} s"));
        assert!(opened < Duration::from_millis(2_500), "{who}: {opened:?}");
        assert_eq!(status["error"], Value::Null, "{who}: {status:#}");
        assert_eq!(number(&status, "unreachable"), 0, "{who}: {status:#}");
        if wanted.is_none() {
            assert_eq!(number(&status, "accepted"), number(&before, "accepted") + 2, "{who}");
            assert_eq!(status["restored"], before["restored"], "{who}: {status:#}");
        }
    }
    assert!(running.iter().all(|download| !download.is_broken()));
    // With br_netfilter, frames between two devices of the bridge also pass the rules.
    let listener = home.devices[1].run(|| TcpListener::bind("192.168.7.2:0").unwrap());
    let accepted = number(&daemon.status(), "accepted");
    home.connect(0, listener.local_addr().unwrap());
    assert_eq!(number(&daemon.status(), "accepted"), accepted);
    // A fault that no inspection of rules can reveal: nothing that is diverted arrives.
    change(
        &"nft table inet closed { chain in { type filter hook input priority 0; \
             iifname { br-lan, wan } meta l4proto tcp drop; }; }",
    );
    let begin = Instant::now();
    let mut stream = home.connect(0, servers[0]);
    stream.read_exact(&mut [0; 1]).unwrap();
    let status = daemon.status();
    note(&format!("nothing gets in: a connection passes after {:.2?}", begin.elapsed()));
    assert!(status["error"].as_str().is_some_and(|e| e.contains("do not arrive")), "{status:#}");
    assert_eq!((&status["unreachable"], &status["ready"]), (&0.into(), &false.into()));
    assert!(running.iter().all(Download::is_broken), "their clients open others");
}

#[test]
fn the_proxy_lets_go_if_another_program_changes_the_same_all_the_time() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    let server: SocketAddr = format!("{}:{}", SERVERS[0], home.stage.port()).parse().unwrap();
    daemon.wait_for("six removals", PATIENCE, |status| {
        home.stage.run("nft delete table inet fairweir_proxy");
        status["error"].as_str().is_some_and(|error| error.contains("5 times in 10 s"))
    });
    assert_eq!(leftovers(&home), "");
    home.connect(0, server).read_exact(&mut [0; 1]).unwrap();
    assert_eq!(daemon.status()["accepted"], 0);
}

#[test]
fn connections_to_the_gateway_and_forged_ones_are_not_relayed() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    // A service of the gateway itself is reached directly, at any of its addresses.
    let own = home.stage.at_home(|| TcpListener::bind("0.0.0.0:0").unwrap());
    let port = own.local_addr().unwrap().port();
    thread::spawn(move || own.incoming().map(Result::unwrap).collect::<Vec<_>>());
    for address in [GATEWAY, "10.9.0.2"] {
        home.connect(0, format!("{address}:{port}").parse().unwrap());
    }
    assert_eq!(daemon.status()["accepted"], 0);
    // The proxy's own listeners cannot be reached from the LAN, and are useless on the gateway.
    let ports =
        String::from_utf8(home.stage.run("nft list table inet fairweir_proxy").stdout).unwrap();
    let port4: u16 =
        ports.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let to_proxy = format!("{GATEWAY}:{port4}").parse().unwrap();
    let refused = home.devices[0].run(|| TcpStream::connect_timeout(&to_proxy, PATIENCE));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let mut local = home.stage.at_home(|| TcpStream::connect(("127.0.0.1", port4)).unwrap());
    local.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(local.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(daemon.status()["refused"]["to_gateway"], 1);
    // A packet from the internet does not come from a client, whatever its source address.
    let (listener, server) = home.listen(SERVERS[1]);
    drop(listener);
    home.stage.at_internet(|| {
        ip("addr add 192.168.7.77/32 dev isp");
        ip("route add 192.168.7.254/32 via 10.9.0.2");
        let target: SocketAddr = format!("198.51.100.9:{}", server.port()).parse().unwrap();
        ip("route add 198.51.100.9/32 via 10.9.0.2");
        let forged =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        forged.bind(&"192.168.7.77:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let _ = forged.connect_timeout(&target.into(), Duration::from_millis(500));
    });
    // The same is true of a source address that is not routed back to the LAN.
    home.devices[0].run(|| {
        ip("addr add 203.0.113.5/32 dev eth0");
        let forged =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        forged.bind(&"203.0.113.5:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let _ = forged.connect_timeout(&server.into(), Duration::from_millis(500));
    });
    assert_eq!(daemon.status()["accepted"], 1, "only the one on the gateway");
}

#[test]
fn a_connection_of_the_proxy_that_comes_back_opens_no_other() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    // The desk sends packets for a server back to the gateway, which sends them to the desk's other interface.
    let desk = home.devices[1].netns();
    home.stage.at_home(|| {
        link::create_veth("side", desk, "eth1").unwrap();
        link::add_address("side", "192.168.8.254/24".parse().unwrap()).unwrap();
        link::set_up("side").unwrap();
    });
    desk.run(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        link::add_address("eth1", "192.168.8.2/24".parse().unwrap()).unwrap();
        link::set_up("eth1").unwrap();
    });
    home.stage.at_home(|| ip("route add 198.51.100.7/32 via 192.168.8.2"));
    let daemon = home.start_open();
    let server: SocketAddr = "198.51.100.7:80".parse().unwrap();
    let patience = Duration::from_millis(700);
    let ended = home.devices[0].run(|| TcpStream::connect_timeout(&server, patience));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::TimedOut);
    daemon.wait_for("given up", PATIENCE, |s| s["unreachable"] != 0);
    // The proxy recognises returning packets as its own, and opens no connection for them.
    let status = daemon.status();
    assert_eq!((&status["accepted"], &status["unreachable"]), (&0.into(), &1.into()), "{status:#}");
}

#[test]
fn slow_readers_and_idle_connections_hold_little_and_others_are_served() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    home.configure("[[class]]\nname = \"all\"\nmatch = [\"web:example.com\"]\n");
    let daemon = home.stage.start_proxy(Some(1_024));
    let resident = || memory_kb(&daemon);
    let before = resident();
    // Slow readers: servers that send without end, and clients that read nothing.
    let port = home.stage.port();
    let server: SocketAddr = format!("{}:{port}", SERVERS[0]).parse().unwrap();
    let slow: Vec<TcpStream> = (0..100).map(|_| home.connect(2, server)).collect();
    let begin = Instant::now();
    loop {
        let before = home.stage.received();
        thread::sleep(Duration::from_millis(500));
        if home.stage.received() < before + 100_000 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "they read without end");
    }
    let held = home.stage.received() / 100;
    note(&format!("{held} bytes for each slow reader"));
    assert!(held < 1_500_000, "{held} bytes");
    let status = daemon.status();
    assert_eq!(status["connections"], 100, "{status:#}");
    // Another device's download continues.
    let download = home.devices[0].download(server);
    download.wait_for_rate(0.5 * LINK_MBIT..1.5 * LINK_MBIT, PATIENCE);
    drop(download);
    // Idle connections until file descriptors run out: new connections then bypass the proxy.
    let (listener, quiet) = home.listen(SERVERS[0]);
    thread::spawn(move || listener.incoming().map(Result::unwrap).collect::<Vec<_>>());
    let idle: Vec<TcpStream> = (0..500).map(|_| home.connect(0, quiet)).collect();
    let status = daemon.status();
    assert_eq!(status["full"], true, "{status:#}");
    let connections = status["connections"].as_u64().unwrap();
    assert!((300..500).contains(&connections), "{status:#}");
    home.connect(0, quiet);
    assert_eq!(daemon.status()["connections"], connections, "it passed directly");
    note(&format!("{} kB more for {connections} connections", resident() - before));
    assert!(resident() - before < 16_000, "{} kB", resident());
    for stream in slow.iter().chain(&idle) {
        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop((slow, idle));
    daemon.wait_for("listening again", PATIENCE, |s| s["full"] == false && s["connections"] == 0);
    home.connect(0, quiet);
    daemon.wait_for("relaying again", PATIENCE, |s| s["connections"].as_u64().unwrap() <= 1);
}

/// Sends requests without waiting for answers. Returns how many bytes of them are held, and how much memory
/// the process uses for them.
fn pipelined(bytes: u64, server_reads: bool) -> (u64, u64) {
    let home = Home::with_link(10_000.0);
    let daemon = home.start_open();
    let before = memory_kb(&daemon);
    let (listener, server) = home.listen(SERVERS[0]);
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 18];
        let mut received = 0;
        if server_reads {
            while let Ok(n @ 1..) = stream.read(&mut buffer) {
                received += n as u64;
            }
        }
        (stream, received)
    });
    let mut stream = home.connect(0, server);
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n".repeat(4_096);
    let mut sent = 0;
    while sent < bytes {
        match stream.write(&request) {
            Ok(n) => sent += n as u64,
            Err(_) => break,
        }
    }
    // Wait a second for data in flight.
    thread::sleep(Duration::from_secs(1));
    let more = memory_kb(&daemon).saturating_sub(before);
    // Another device's download continues.
    let port = home.stage.port();
    let download = home.devices[1].download(format!("{}:{port}", SERVERS[0]).parse().unwrap());
    download.wait_for_rate(10.0..20_000.0, PATIENCE);
    let _ = stream.shutdown(Shutdown::Both);
    let (_, received) = reader.join().unwrap();
    assert!(!server_reads || received == sent, "{received} of {sent} bytes");
    (sent, more)
}

#[test]
fn requests_that_a_server_does_not_read_are_held_back_at_the_client() {
    if !is_playable() {
        return;
    }
    let (sent, more) = pipelined(1 << 30, false);
    note(&format!("{sent} bytes of requests were taken, {more} kB more in the process"));
    assert!(sent < 32 << 20 && more < 4_000, "{sent} bytes, {more} kB");
}

/// `cargo test -p fairweir --features evidence --test it four_gigabytes -- --ignored --nocapture`
#[test]
#[ignore = "long: half a minute"]
fn four_gigabytes_of_pipelined_requests_take_no_memory() {
    let (sent, more) = pipelined(4 << 30, true);
    note(&format!("{sent} bytes of requests, {more} kB more in the process"));
    assert!(sent >= 4 << 30 && more < 4_000, "{sent} bytes, {more} kB");
}

#[test]
fn half_open_connections_of_one_device_do_not_keep_others_out() {
    if !is_playable() {
        return;
    }
    let home = Home::new();
    let daemon = home.start_open();
    let (listener, server) = home.listen(SERVERS[0]);
    thread::spawn(move || listener.incoming().map(Result::unwrap).collect::<Vec<_>>());
    // Clients that do not answer: their device drops all replies.
    let flood = home.devices[1].run(|| {
        for line in [
            "add table ip flood",
            "add chain ip flood in { type filter hook input priority 0 ; }",
            "add rule ip flood in tcp flags & (syn|ack) == syn|ack drop",
        ] {
            assert!(Command::new("nft").arg(line).status().unwrap().success());
        }
        let begin = |_| {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&server.into());
            socket
        };
        (0..6_000).map(begin).collect::<Vec<_>>()
    });
    let half_open = || {
        let text = home.stage.run("ss -Htn state syn-recv").stdout;
        String::from_utf8(text).unwrap().lines().count()
    };
    let begin = Instant::now();
    while half_open() < 100 {
        assert!(begin.elapsed() < PATIENCE, "{} half-open connections", half_open());
        thread::sleep(Duration::from_millis(20));
    }
    let held = half_open();
    note(&format!("{held} of {} half-open connections are held", flood.len()));
    assert!(held <= 512, "{held}");
    for device in [0, 2] {
        home.connect(device, server);
    }
    daemon.wait_for("accepted", PATIENCE, |s| s["accepted"] == 2);
}
