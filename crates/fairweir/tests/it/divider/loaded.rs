//! A home with a thousand live flows, and one flooded by UDP, behind an ISP that divides.

use std::fs;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairweir_testing::{note, one_at_a_time, privileged, two_of_three};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::{SPAN, divides, stage, wait_for_agreement};
use crate::common::access::{ALICE4, Access, SERVER4, SERVER4_OTHER};
use crate::common::played;
use crate::common::stage::{Daemon, Download};

/// Flows that each receive a datagram of 242 bytes a second, until it drops. Half of them are video, half backups.
struct Thin(Arc<AtomicBool>);

impl Thin {
    fn start(access: &Access, count: usize) -> Thin {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
        let servers = [SERVER4, SERVER4_OTHER]
            .map(|server| access.at_internet(|| UdpSocket::bind((server, 0)).unwrap()));
        let socket = |n: usize| {
            let socket = UdpSocket::bind((ALICE4, 0)).unwrap();
            socket.connect(servers[n % 2].local_addr().unwrap()).unwrap();
            socket
        };
        let sockets = access.at_homes(|| (0..count).map(socket).collect::<Vec<_>>());
        let thin = Thin(Arc::default());
        for server in servers {
            server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let is_over = Arc::clone(&thin.0);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((_, from)) = server.recv_from(&mut [0; 16]) {
                        let _ = server.send_to(&[7; 200], from);
                    }
                }
            });
        }
        let is_over = Arc::clone(&thin.0);
        thread::spawn(move || {
            let pause = Duration::from_secs(1) / count as u32;
            for socket in sockets.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let _ = socket.send(&[7]);
                thread::sleep(pause);
            }
        });
        thin
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the ISP knows of alice's client.
fn client(isp: &Daemon) -> Value {
    let reply = isp.ask_json(&json!({ "request": "counters", "name": "alice" }));
    reply.expect("the daemon answers")["client"].take()
}

/// L2 bytes that passed in the classes of video and backups, over [`SPAN`].
fn passed(isp: &Daemon) -> [f64; 2] {
    let passed = || {
        let client = client(isp);
        let of = |weight: u64| {
            let classes = client["classes"].as_array().unwrap();
            let class = classes.iter().find(|class| class["weight"] == weight).unwrap();
            class["passed_bytes"].as_f64().unwrap()
        };
        [of(5), of(2)]
    };
    let before = passed();
    thread::sleep(SPAN);
    let after = passed();
    [0, 1].map(|i| after[i] - before[i])
}

fn many_flows() {
    let access = stage();
    // The default class has weight 1.
    access.write("host.toml", &super::HOST.replace("weight = 1\n", "weight = 2\n"));
    let isp = access.start();
    let host = access.start_host();
    wait_for_agreement(&host);
    let bulk = |server, count| (0..count).map(|_| access.download_from(server, ALICE4)).collect();
    let _bulk: [Vec<Download>; 2] = [bulk(SERVER4, 3), bulk(SERVER4_OTHER, 7)];
    let _thin = Thin::start(&access, 990);
    thread::sleep(Duration::from_secs(6));
    let part = || {
        let [video, backup] = passed(&isp);
        video / (video + backup)
    };
    let (few, seen) = (part(), client(&isp));
    let status = host.status();
    note(&format!(
        "1000 flows: video has {few:.3} of 5/7; {} bound, {} refused",
        seen["bound"], seen["refused"]
    ));
    let more = Thin::start(&access, 2_000);
    thread::sleep(Duration::from_secs(6));
    let (many, seen) = (part(), client(&isp));
    let words = host.status()["divider"]["words"].to_string();
    note(&format!(
        "3000 flows: video has {many:.3}; {} bound, {} refused: {words}",
        seen["bound"], seen["refused"]
    ));
    drop(more);
    assert!(divides(&status), "{status:#}");
    assert!((few - 5.0 / 7.0).abs() <= 0.03, "{few:.3}");
    assert!((many - 5.0 / 7.0).abs() <= 0.03, "{many:.3} with more flows than places");
    assert!(words.contains("found no room"), "{words}");
}

#[test]
#[ignore = "long: 1 min"]
fn a_thousand_flows_share_and_those_without_room_are_told() {
    if privileged() {
        one_at_a_time(|| two_of_three(many_flows));
    }
}

/// Three groups with weights 4:2:1 and a plan of 20 Mbit/s; `{other}` says what is in the last one.
const LOADED: &str = r#"version = 1
name = "flood"
duration = "16s"
settle = "4s"
[link]
rate = "100mbit"
buffer = "100ms"
[[police]]
name = "isp"
rate = "20mbit"
by = "agreement"
[[group]]
name = "a"
weight = 4
[[group]]
name = "b"
weight = 2
[[group]]
name = "other"
weight = 1
[[flow]]
group = "a"
kind = "bulk"
congestion_control = "cubic"
rtt = "20ms"
[[flow]]
group = "b"
kind = "bulk"
congestion_control = "bbr"
rtt = "20ms"
[[flow]]
group = "other"
rtt = "20ms"
{other}
"#;

/// A flood of three times the plan leaves the other groups what they have beside a download in its place.
fn a_flood_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flood.toml").display().to_string();
    let [calm, flooded] =
        ["kind = \"bulk\"\ncongestion_control = \"cubic\"", "kind = \"udp\"\ndemand = \"60mbit\""]
            .map(|other| {
                fs::write(&file, LOADED.replace("{other}", other)).unwrap();
                let report = played::report(&["lab", "run", &file]);
                let group =
                    |n: usize| report["summary"]["groups"][n]["rate_bps"].as_f64().unwrap() * 1e-6;
                [0, 1, 2].map(group)
            });
    let what = format!("{calm:.2?} Mbit/s beside a download, {flooded:.2?} beside a flood");
    note(&what);
    assert!((0..2).all(|n| flooded[n] >= 0.98 * calm[n]), "{what}");
}

#[test]
#[ignore = "long: 1 min"]
fn a_flood_in_one_class_takes_nothing_from_the_others() {
    if privileged() {
        one_at_a_time(|| two_of_three(a_flood_takes_nothing));
    }
}
