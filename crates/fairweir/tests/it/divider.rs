//! The agreement between `fairweir host` and `fairweir isp` or `fairweir router`, with real packets.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::agreement::message::{Agreed, MESSAGE_MAX, Message, Outcome, Seen};
use fairweir_core::agreement::{LEASE, PORT, mark_of};
use fairweir_core::units::Rate;
use fairweir_testing::{can_run, note, one_at_a_time, privileged, two_of_three};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::access::{ALICE4, Access, NOBODY4, SERVER4, SERVER4_OTHER};
use crate::common::far::Far;
use crate::common::home::{Device, devices, has_nat, run};
use crate::common::stage::{Daemon, Download, Stage};

const ISP_PLAN: &str = r#"
[[plan]]
name = "home"
download = "20mbit"
upload = "8mbit"
share = "client"
"#;

const ISP: &str = r#"version = 1

[isp]
device = "sub"

[[plan]]
name = "home"
download = "20mbit"
upload = "8mbit"
share = "client"

[[subscriber]]
name = "alice"
addresses = ["192.0.2.1", "2001:db8:1::/56"]
plan = "home"
"#;

const HOST: &str = r#"version = 1

[host]
dev = "wan"
divider = "192.0.2.254"

[[group]]
name = "video"
weight = 5
match = ["ip:10.9.0.1"]

[[group]]
name = "backup"
weight = 1
match = ["ip:10.9.0.2"]
"#;

const PATIENCE: Duration = Duration::from_secs(20);
/// Over which a mean is taken.
const SPAN: Duration = Duration::from_secs(10);

/// One connection of a group that weighs 5, and five of a group that weighs 1.
struct Load {
    video: Download,
    backup: Vec<Download>,
}

impl Load {
    fn start(access: &Access) -> Load {
        let backup = (0..5).map(|_| access.download_from(SERVER4_OTHER, ALICE4)).collect();
        Load { video: access.download_from(SERVER4, ALICE4), backup }
    }

    /// What both groups have, in Mbit/s of payload.
    fn over(&self, span: Duration) -> [f64; 2] {
        let received = || {
            let backup: u64 = self.backup.iter().map(Download::received).sum();
            [self.video.received(), backup]
        };
        let (begin, before) = (Instant::now(), received());
        thread::sleep(span);
        let after = received();
        let took = begin.elapsed().as_secs_f64();
        [0, 1].map(|at| (after[at] - before[at]) as f64 * 8e-6 / took)
    }
}

fn stage() -> Access {
    let access = Access::new();
    access.write("isp.toml", ISP);
    access.write("host.toml", HOST);
    access
}

fn divides(status: &Value) -> bool {
    status["divider"]["divides"] == true
}

fn wait_for_agreement(host: &Daemon) {
    host.wait_for("divided by the ISP", PATIENCE, divides);
}

#[test]
fn the_isp_divides_by_the_weights_of_the_host() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| two_of_three(divides_by_weights));
}

fn divides_by_weights() {
    let access = stage();
    let _isp = access.start();
    let host = access.start_host();
    wait_for_agreement(&host);
    let load = Load::start(&access);
    thread::sleep(Duration::from_secs(5));
    let [video, backup] = load.over(SPAN);
    let status = host.status();
    note(&format!("{video:.2} and {backup:.2} Mbit/s of 20; {}", status["divider"]["words"]));
    let shown = access.isp("show alice");
    assert!(shown.contains("weight 5"), "{shown}");
    let part = video / (video + backup);
    assert!((0.78..0.88).contains(&part), "{part:.3} of 5/6; {status:#}\n{shown}");
    assert!((17.0..20.5).contains(&(video + backup)), "{video:.2} + {backup:.2}");
    assert!(divides(&status), "{status:#}");
    // The plan changes, and the host asks for the same classes of the new one.
    let slower = ISP_PLAN.replace("20mbit", "10mbit");
    access.isp(&format!("plan change {}", access.write("slower.toml", &slower)));
    host.wait_for("divided by the new plan", PATIENCE, |status| {
        divides(status) && status["divider"]["rate_bps"] == 10_000_000
    });
    thread::sleep(Duration::from_secs(5));
    let [video, backup] = load.over(SPAN);
    note(&format!("{video:.2} and {backup:.2} Mbit/s of 10"));
    let part = video / (video + backup);
    assert!((0.76..0.90).contains(&part), "{part:.3} of 5/6");
    // A flood into the default class takes no more than its part: 1 of 7.
    let flood = Flood::start(&access);
    thread::sleep(Duration::from_secs(4));
    let [video, backup] = load.over(SPAN);
    note(&format!("{video:.2} and {backup:.2} Mbit/s of 10 beside a flood of UDP"));
    assert!(video > 0.9 * 10.0 * 0.95 * 5.0 / 7.0, "{video:.2} Mbit/s beside a flood");
    drop(flood);
    // It is told, and divides no more.
    drop(host);
    let ended = |shown: &str| !shown.contains("divided as");
    wait_until("the agreement ends", Duration::from_secs(5), || ended(&access.isp("show alice")));
}

#[test]
fn a_divider_that_falls_silent_is_replaced_by_the_own_control() {
    let has_nft = can_run(Command::new("nft").arg("--version").output().is_ok(), "nft");
    if !privileged() || !has_nft {
        return;
    }
    one_at_a_time(|| two_of_three(falls_silent));
}

fn falls_silent() {
    let access = stage();
    let _isp = access.start();
    let host = access.start_host();
    wait_for_agreement(&host);
    let load = Load::start(&access);
    thread::sleep(Duration::from_secs(6));
    let before: f64 = load.over(Duration::from_secs(3)).iter().sum();
    assert!(divides(&host.status()), "{:#}", host.status());
    for line in [
        "add table inet silent",
        "add chain inet silent in { type filter hook input priority 0 ; }",
        &format!("add rule inet silent in udp dport {PORT} drop"),
    ] {
        let done = access.at_router(|| Command::new("nft").arg(line).status().unwrap());
        assert!(done.success(), "{line}");
    }
    let begin = Instant::now();
    wait_until("the own control", Duration::from_secs(6), || !divides(&host.status()));
    let took = begin.elapsed();
    let words = host.status()["divider"]["words"].to_string();
    assert!(words.contains("did not renew"), "{words}");
    let after: f64 = load.over(Duration::from_secs(3)).iter().sum();
    note(&format!("{took:.1?}; {before:.1} Mbit/s before, {after:.1} after; {words}"));
    assert!(after > 0.85 * before, "{after:.1} of {before:.1} Mbit/s");
    let ended = |shown: &str| !shown.contains("divided as");
    wait_until("the agreement ends", Duration::from_secs(5), || ended(&access.isp("show alice")));
}

/// Also what is seen if marks are taken off on the way: the plan's queues go by flows.
#[test]
fn a_divider_that_does_not_do_as_agreed_is_replaced_by_the_own_control() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| two_of_three(lies));
}

fn lies() {
    let access = stage();
    access.write("isp.toml", &ISP.replace("share = \"client\"\n", ""));
    let isp = access.start();
    assert!(isp.status()["clients"].is_null());
    let socket = access.at_router(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    thread::spawn(move || agree_and_do_nothing(&socket));
    let host = access.start_host();
    wait_for_agreement(&host);
    let load = Load::start(&access);
    let begin = Instant::now();
    wait_until("the own control", Duration::from_secs(30), || !divides(&host.status()));
    let took = begin.elapsed();
    let words = host.status()["divider"]["words"].to_string();
    let [video, backup] = load.over(Duration::from_secs(3));
    note(&format!("{took:.1?}; {video:.1} and {backup:.1} Mbit/s after it; {words}"));
    assert!(words.contains("did not divide as agreed"), "{words}");
}

/// Answers as a divider does.
fn agree_and_do_nothing(socket: &UdpSocket) {
    let mut bytes = [0; MESSAGE_MAX];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        let answer = match Message::read(&bytes[..length]) {
            Some(Message::Hello { nonce }) => Message::Cookie { nonce, cookie: [7; 16] },
            Some(Message::Ask(ask)) => {
                let marks = (0..ask.classes.weights().len() as u8).map(mark_of).collect();
                let (lease, outcome) = (LEASE, Outcome::Divides);
                let (epoch, rate, nonce) = (1, Rate::ZERO, ask.nonce);
                let seen = Seen { marked: u16::MAX, ..Seen::default() };
                Message::Agreed(Agreed { nonce, epoch, lease, outcome, rate, seen, marks })
            }
            _ => continue,
        };
        let _ = socket.send_to(&answer.bytes(), from);
    }
}

#[test]
fn attacks_on_the_agreement_change_nothing() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| two_of_three(attacks));
}

fn attacks() {
    let access = stage();
    let isp = access.start();
    let host = access.start_host();
    wait_for_agreement(&host);
    let divider = ("192.0.2.254", PORT);
    let socket = |host: &str| {
        let socket = access.at_homes(|| UdpSocket::bind((host, 0)).unwrap());
        socket.connect(divider).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    };
    let [foreign, second] = [NOBODY4, ALICE4].map(socket);
    let hello = Message::Hello { nonce: 1 }.bytes();
    let mut bytes = [0; MESSAGE_MAX];
    foreign.send(&hello).unwrap();
    assert!(foreign.recv(&mut bytes).is_err(), "who is no subscriber gets no answer");
    second.send(&hello).unwrap();
    let length = second.recv(&mut bytes).unwrap();
    assert!(length <= hello.len());
    // A second host of the subscriber, with the right cookie.
    let Some(Message::Cookie { cookie, .. }) = Message::read(&bytes[..length]) else {
        panic!("no cookie")
    };
    let classes = fairweir_core::agreement::Classes::new(vec![1, 200], 0).unwrap();
    let ask = fairweir_core::agreement::message::Ask { nonce: 1, cookie, epoch: 0, classes };
    let mut forged = ask.clone();
    forged.cookie[3] ^= 1;
    second.send(&Message::Ask(forged).bytes()).unwrap();
    let length = second.recv(&mut bytes).unwrap();
    assert!(matches!(Message::read(&bytes[..length]), Some(Message::Cookie { .. })));
    second.send(&Message::Ask(ask).bytes()).unwrap();
    let length = second.recv(&mut bytes).unwrap();
    let answer = Message::read(&bytes[..length]);
    assert!(
        matches!(&answer, Some(Message::Agreed(a)) if a.outcome == Outcome::Taken),
        "{answer:?}"
    );
    // Floods of hellos and of nonsense.
    let cost_of = |send: &mut dyn FnMut()| {
        let (before, begin) = (isp.cpu_time(), Instant::now());
        while begin.elapsed() < Duration::from_secs(3) {
            send();
        }
        100.0 * (isp.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64()
    };
    let idle = cost_of(&mut || thread::sleep(Duration::from_millis(100)));
    let mut sent = 0;
    let cost = cost_of(&mut || {
        for said in [&hello[..], &[7; 72], b"FWAG"] {
            sent += u64::from(second.send(said).is_ok());
        }
    });
    note(&format!("{sent} datagrams in 3 s take {cost:.1} % of a core, none {idle:.1} %"));
    assert!(cost < idle + 2.0, "{cost:.1} % of a core, {idle:.1} % without");
    // Its own renewals were not lost among them.
    assert!(divides(&host.status()), "{:#}", host.status());
    let shown = access.isp("show alice");
    assert!(shown.contains("weight 5") && !shown.contains("weight 200"), "{shown}");
    assert_eq!(isp.status()["enforcing"], true);
    drop(host);
    let ended = |shown: &str| !shown.contains("divided as");
    wait_until("the agreement ends", Duration::from_secs(5), || ended(&access.isp("show alice")));
    another_client_is_divided_for(&access);
}

/// Who has only read the specification: a client of a hundred lines of Python.
fn another_client_is_divided_for(access: &Access) {
    let [video, backup] = [(5, SERVER4), (1, SERVER4_OTHER)]
        .map(|(weight, server)| format!("{weight}={}", access.server_at(server)));
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/agreement_client.py");
    let asked = [client, "192.0.2.254", ALICE4, "6", &video, &backup];
    let done = access.at_homes(|| Command::new("python3").args(asked).output().unwrap());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes: Vec<f64> = said.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let part = bytes[0] / (bytes[0] + bytes[1]);
    note(&format!("a client in Python: {part:.3} of 5/6"));
    assert!((0.76..0.90).contains(&part), "{part:.3} of 5/6");
}

const ROUTER_MBIT: f64 = 28.0;

/// Behind a router: a desk whose own fairweir has two groups, and a tv, both with the same weight.
struct Home {
    stage: Stage,
    devices: [Device; 2],
    /// Of video, which comes by IPv6, of backups, and of the tv.
    servers: [SocketAddr; 3],
    _far: [Far; 3],
    router: Daemon,
    host: Daemon,
}

impl Home {
    fn new() -> Home {
        let stage = Stage::with_link(ROUTER_MBIT);
        let devices = devices(&stage, ["desk", "tv"]);
        let far = [1, 2, 3]
            .map(|n| Far::new(&stage, &format!("far{n}"), &format!("198.51.100.{n}"), None));
        let video = far[0].add_address6(&stage, "far1", "2001:db8:8::1");
        let servers = [video, far[1].address(), far[2].address()];
        let mut text = format!(
            "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\ncapacity = \"{ROUTER_MBIT}mbit\"\n"
        );
        for Device { name, mac, .. } in &devices {
            text +=
                &format!("[[device]]\nname = \"{name}\"\nweight = 1\nmatch = [\"mac:{mac}\"]\n");
        }
        stage.configure(&text);
        let router = stage.start_router(&[]);
        let host = devices[0].start_host(&stage, HOST_BEHIND);
        Home { stage, devices, servers, _far: far, router, host }
    }

    /// Two connections of the desk's groups and of the tv.
    fn loads(&self) -> [[Download; 2]; 3] {
        let [desk, tv] = &self.devices;
        let from = |at: usize| if at < 2 { desk } else { tv };
        [0, 1, 2].map(|at| [0; 2].map(|_| from(at).download(self.servers[at])))
    }

    fn wait_for_agreement(&self) {
        self.host.wait_for("divided by the router", PATIENCE, divides);
    }

    /// How long the host takes to divide itself, and why.
    fn own_control(&self) -> (Duration, String) {
        let begin = Instant::now();
        wait_until("own control", Duration::from_secs(6), || !divides(&self.host.status()));
        (begin.elapsed(), self.host.status()["divider"]["words"].to_string())
    }
}

const HOST_BEHIND: &str = r#"version = 1

[[group]]
name = "video"
weight = 4
match = ["ip:2001:db8:8::1"]

[[group]]
name = "backup"
weight = 1
match = ["ip:198.51.100.2"]
"#;

fn the_router_divides() {
    let home = Home::new();
    let loads = home.loads();
    home.wait_for_agreement();
    thread::sleep(Duration::from_secs(5));
    let received = || loads.each_ref().map(|two| two.iter().map(Download::received).sum::<u64>());
    let (begin, before) = (Instant::now(), received());
    thread::sleep(SPAN);
    let (took, after) = (begin.elapsed().as_secs_f64(), received());
    let mbit = [0, 1, 2].map(|i| (after[i] - before[i]) as f64 * 8e-6 / took);
    let sum: f64 = mbit.iter().sum();
    let shares = [0, 1, 2].map(|i| mbit[i] / sum / [0.4, 0.1, 0.5][i]);
    let (status, shown) = (home.host.status(), home.stage.fairweir("router status").stdout);
    let shown = String::from_utf8(shown).unwrap();
    note(&format!("shares {shares:.3?} of {sum:.2} Mbit/s; {}", status["divider"]["words"]));
    assert!(divides(&status), "{status:#}");
    assert!(status["divider"]["verified_s"].as_f64().is_some_and(|ago| ago < 3.0), "{status:#}");
    assert!(shown.contains("divided: desk as 192.168.7.1 asks: 3 classes"), "{shown}");
    for share in shares {
        assert!((share - 1.0).abs() <= 0.03, "{shares:?}\n{shown}");
    }
    assert!(sum > 0.92 * ROUTER_MBIT, "{sum} Mbit/s");
    home.router.signal(Signal::SIGKILL);
    let (took, words) = home.own_control();
    note(&format!("{took:.1?} after the kill: {words}"));
    assert!(words.contains("did not renew"), "{words}");
}

#[test]
fn the_router_divides_a_device_by_the_weights_of_its_host() {
    if privileged() && has_nat() {
        one_at_a_time(|| two_of_three(the_router_divides));
    }
}

fn marks_are_taken_off() {
    let home = Home::new();
    let _loads = home.loads();
    home.wait_for_agreement();
    home.host.wait_for("verified", PATIENCE, |status| status["divider"]["verified_s"].is_number());
    home.stage.at_home(|| {
        for line in [
            "add table bridge bleach",
            "add chain bridge bleach in { type filter hook prerouting priority 0 ; }",
            "add rule bridge bleach in ip dscp set 0",
            "add rule bridge bleach in ip6 dscp set 0",
        ] {
            run("nft", line);
        }
    });
    let (took, words) = home.own_control();
    note(&format!("{took:.1?} after the marks were gone: {words}"));
    assert!(words.contains("no mark"), "{words}");
}

#[test]
fn marks_that_do_not_reach_the_router_give_control_back_to_the_host() {
    if privileged() && has_nat() {
        one_at_a_time(|| two_of_three(marks_are_taken_off));
    }
}

/// Datagrams for one of alice's ports, three times what the plan of 10 Mbit/s carries.
struct Flood(Arc<AtomicBool>);

impl Flood {
    fn start(access: &Access) -> Flood {
        let sink = access.at_homes(|| UdpSocket::bind((ALICE4, 0)).unwrap());
        let to = sink.local_addr().unwrap();
        let source = access.at_internet(|| UdpSocket::bind((SERVER4_OTHER, 0)).unwrap());
        let flood = Flood(Arc::default());
        let is_over = Arc::clone(&flood.0);
        thread::spawn(move || {
            let _sink = sink;
            while !is_over.load(Ordering::Relaxed) {
                // 3 datagrams of 1,258 bytes each ms.
                for _ in 0..3 {
                    let _ = source.send_to(&[0; 1_216], to);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn wait_until(what: &str, patience: Duration, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}
