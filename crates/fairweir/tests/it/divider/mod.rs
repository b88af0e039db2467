//! The agreement between `fairweir host` and `fairweir isp` or `fairweir router`, with real packets.

mod loaded;
mod shares;
mod street;

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
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
use socket2::{Domain, Socket, Type};

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
/// Time over which a mean rate is measured.
const SPAN: Duration = Duration::from_secs(10);

/// One connection in a group with weight 5, and five connections in a group with weight 1.
struct Load {
    video: Download,
    backup: Vec<Download>,
}

impl Load {
    fn start(access: &Access) -> Load {
        let backup = (0..5).map(|_| access.download_from(SERVER4_OTHER, ALICE4)).collect();
        Load { video: access.download_from(SERVER4, ALICE4), backup }
    }

    /// Payload rates of both groups in Mbit/s.
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
    two_of_three(divides_by_weights);
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
    // The plan changes, and the host requests the same classes for the new plan.
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
    // A flood into the default class gets no more than its share: 1 of 7.
    let flood = Flood::start(&access);
    thread::sleep(Duration::from_secs(4));
    let [video, backup] = load.over(SPAN);
    note(&format!("{video:.2} and {backup:.2} Mbit/s of 10 beside a flood of UDP"));
    assert!(video > 0.9 * 10.0 * 0.95 * 5.0 / 7.0, "{video:.2} Mbit/s beside a flood");
    drop(flood);
    // When the host ends, the ISP is told and stops dividing.
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
    two_of_three(falls_silent);
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

/// The host also sees it if marks are removed on the way: the plan's queues then divide by flow.
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

/// Answers as a divider does, without dividing.
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
    // A second host of the subscriber, with a valid cookie.
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
    // Floods of hellos and of invalid messages.
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
    // The host's own renewals did not get lost among them.
    assert!(divides(&host.status()), "{:#}", host.status());
    let shown = access.isp("show alice");
    assert!(shown.contains("weight 5") && !shown.contains("weight 200"), "{shown}");
    assert_eq!(isp.status()["enforcing"], true);
    drop(host);
    let ended = |shown: &str| !shown.contains("divided as");
    wait_until("the agreement ends", Duration::from_secs(5), || ended(&access.isp("show alice")));
    another_client_is_divided_for(&access);
}

/// A client by someone who has only read the specification: a hundred lines of Python.
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

/// A router with a desk, whose own fairweir has two groups, and a tv; both devices have the same weight.
struct Home {
    stage: Stage,
    devices: [Device; 2],
    /// The servers of video (over IPv6), of backups, and of the tv.
    servers: [SocketAddr; 3],
    _far: [Far; 3],
    router: Daemon,
    host: Daemon,
}

impl Home {
    fn new() -> Home {
        Home::with(Stage::with_link(ROUTER_MBIT), &format!("capacity = \"{ROUTER_MBIT}mbit\""))
    }

    /// Adds `key` to the router's configuration.
    fn with(stage: Stage, key: &str) -> Home {
        let devices = devices(&stage, ["desk", "tv"]);
        let far = [1, 2, 3]
            .map(|n| Far::new(&stage, &format!("far{n}"), &format!("198.51.100.{n}"), None));
        let video = far[0].add_address6(&stage, "far1", "2001:db8:8::1");
        let servers = [video, far[1].address(), far[2].address()];
        let mut text = format!("version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\n{key}\n");
        for Device { name, mac, .. } in &devices {
            text +=
                &format!("[[device]]\nname = \"{name}\"\nweight = 1\nmatch = [\"mac:{mac}\"]\n");
        }
        stage.configure(&text);
        let router = stage.start_router(&[]);
        let host = devices[0].start_host(&stage, HOST_BEHIND);
        Home { stage, devices, servers, _far: far, router, host }
    }

    /// Two connections for each of the desk's groups and for the tv.
    fn loads(&self) -> [[Download; 2]; 3] {
        let [desk, tv] = &self.devices;
        let from = |at: usize| if at < 2 { desk } else { tv };
        [0, 1, 2].map(|at| [0; 2].map(|_| from(at).download(self.servers[at])))
    }

    fn wait_for_agreement(&self) {
        self.host.wait_for("divided by the router", PATIENCE, divides);
    }

    /// How long it takes until the host divides by itself, and the reason that it gives.
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

/// Rates of both of the desk's groups and of the tv, in each of the next 30 spans of 200 ms.
fn points(loads: &[Vec<Download>; 3]) -> Vec<[f64; 3]> {
    let received =
        || loads.each_ref().map(|all| all.iter().map(Download::received).sum::<u64>() as f64);
    let mut before = received();
    let mut point = |_| {
        thread::sleep(Duration::from_millis(200));
        let after = received();
        let rates = [0, 1, 2].map(|i| after[i] - before[i]);
        before = after;
        rates
    };
    (0..30).map(&mut point).collect()
}

/// Whether each part is off its share by no more than a tenth of it, or a hundredth of all.
fn are_right(parts: impl IntoIterator<Item = (f64, f64)>) -> bool {
    parts.into_iter().all(|(part, share)| (part - share).abs() <= (share / 10.0).max(0.01))
}

/// The seconds until the end of the first second in which all parts were right.
fn right_after(points: &[[f64; 3]], shares: [f64; 3]) -> Option<f64> {
    let is_right = |second: &[[f64; 3]]| {
        let sent = [0, 1, 2].map(|i| second.iter().map(|point| point[i]).sum::<f64>());
        let all: f64 = sent.iter().sum();
        are_right((0..3).map(|i| (sent[i] / all, shares[i])))
    };
    let at = points.windows(5).position(is_right)?;
    Some((at + 5) as f64 / 5.0)
}

/// The video ends and returns, again and again.
fn events_behind_the_router() {
    let home = Home::new();
    let mut loads = home.loads().map(Vec::from);
    home.wait_for_agreement();
    thread::sleep(Duration::from_secs(8));
    let mut times = Vec::new();
    for _ in 0..5 {
        loads[0].clear();
        times.push(right_after(&points(&loads), [0.0, 0.5, 0.5]));
        loads[0] = [0; 2].map(|_| home.devices[0].download(home.servers[0])).into();
        times.push(right_after(&points(&loads), [0.4, 0.1, 0.5]));
    }
    let right = times.iter().filter(|time| time.is_some_and(|time| time <= 2.0)).count();
    note(&format!("{right} of {} events right within 2 s: {times:.1?}", times.len()));
    assert!(divides(&home.host.status()), "{:#}", home.host.status());
    assert!(right as f64 >= 0.85 * times.len() as f64, "{times:?}");
}

#[test]
#[ignore = "long: 75 s"]
fn shares_behind_the_router_are_right_soon_after_an_event() {
    if privileged() && has_nat() {
        one_at_a_time(|| two_of_three(events_behind_the_router));
    }
}

#[test]
fn the_router_divides_a_device_by_the_weights_of_its_host() {
    if privileged() && has_nat() {
        two_of_three(the_router_divides);
    }
}

const ISP_OF_HOME: &str = r#"version = 1

[isp]
device = "isp"

[[plan]]
name = "home"
download = "20mbit"
upload = "20mbit"
share = "client"

[[subscriber]]
name = "home"
addresses = ["10.9.0.2", "2001:db8:7::/64", "2001:db8:9::2"]
plan = "home"
"#;

/// Starts the ISP's policer on the ISP's side of the home's link.
fn start_isp(stage: &Stage) -> Daemon {
    std::fs::write(stage.path("isp.toml"), ISP_OF_HOME).unwrap();
    let mut command = Command::new(crate::common::FAIRWEIR);
    command.arg("isp").arg("--config").arg(stage.path("isp.toml"));
    command.args(["--run-dir", &stage.run_dir()]).arg("--state-dir").arg(stage.path("state-isp"));
    command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::null());
    let log = stage.path("isp.log");
    command.stderr(File::create(&log).unwrap());
    let child = stage.at_internet(|| command.spawn().unwrap());
    let socket = format!("{}/isp.sock", stage.run_dir()).into();
    Daemon::begun(child, socket, log, |status| status["enforcing"] == true)
}

/// A download whose packets have this DSCP, whatever the daemons request.
fn download_with(device: &Device, server: SocketAddr, dscp: u8) -> Download {
    let socket = device.run(|| {
        let domain = Domain::for_address(server);
        let socket = Socket::new(domain, Type::STREAM, None).unwrap();
        socket.set_tos_v4(u32::from(dscp) << 2).unwrap();
        socket.connect(&server.into()).unwrap();
        socket
    });
    Download::new(socket.into())
}

fn the_chain_divides() {
    let stage = Stage::with_link(100.0);
    let isp = start_isp(&stage);
    // The host asks its own gateway.
    let home = Home::with(stage, "");
    home.router.wait_for("the ISP divides", PATIENCE, divides);
    home.wait_for_agreement();
    let [desk, tv] = &home.devices;
    let [video, backup, other] = home.servers;
    // The tv marks its flows as the desk's largest class.
    let loads = [
        [0; 2].map(|_| desk.download(video)),
        [0; 2].map(|_| desk.download(backup)),
        [0; 2].map(|_| download_with(tv, other, mark_of(0))),
    ];
    thread::sleep(Duration::from_secs(4));
    let received = || loads.each_ref().map(|two| two.iter().map(Download::received).sum::<u64>());
    let (begin, before) = (Instant::now(), received());
    thread::sleep(Duration::from_secs(6));
    let (took, after) = (begin.elapsed().as_secs_f64(), received());
    let mbit = [0, 1, 2].map(|i| (after[i] - before[i]) as f64 * 8e-6 / took);
    let sum: f64 = mbit.iter().sum();
    let shares = [0, 1, 2].map(|i| mbit[i] / sum / [0.4, 0.1, 0.5][i]);
    let [router, host] = [&home.router, &home.host].map(Daemon::status);
    let shown = Command::new(crate::common::FAIRWEIR)
        .args(["isp", "show", "home", "--run-dir", &home.stage.run_dir()])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    note(&format!("shares {shares:.3?} of {sum:.2} Mbit/s; {}", router["divider"]["words"]));
    assert!(divides(&router) && divides(&host), "{router:#} {host:#}");
    assert!(router["divider"]["verified_s"].as_f64().is_some_and(|ago| ago < 3.0), "{router:#}");
    assert_eq!(router["enforcing"], false, "{router:#}");
    for share in shares {
        assert!((share - 1.0).abs() <= 0.1, "{shares:?}\n{shown}");
    }
    assert!(sum > 0.9 * 20.0, "{sum} Mbit/s\n{shown}");
    isp.signal(Signal::SIGKILL);
    let begin = Instant::now();
    wait_until("own control", Duration::from_secs(6), || !divides(&home.router.status()));
    let words = home.router.status()["divider"]["words"].to_string();
    note(&format!("{:.1?} after the kill: {words}", begin.elapsed()));
    assert!(words.contains("this router divides") && words.contains("did not renew"), "{words}");
}

#[test]
fn shares_of_a_host_hold_through_its_router_at_the_isp() {
    if privileged() && has_nat() {
        one_at_a_time(|| two_of_three(the_chain_divides));
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

/// Datagrams for one of alice's ports, at three times the rate of the plan of 10 Mbit/s.
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
                // 3 datagrams of 1,258 bytes per millisecond.
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
