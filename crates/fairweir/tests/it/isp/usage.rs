//! Files with the subscribers' usage, and a standby that takes over when a daemon dies.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fairweir_testing::{note, privileged};
use nix::sys::signal::Signal;

use super::{FILE, PATIENCE, access, passed, subscriber};
use crate::common::access::{ALICE4, Access, BOB4, NOBODY4};
use crate::common::stage::Daemon;

/// Sum of bytes in all files by subscriber, plan, class if the plan has any, and direction.
fn written(access: &Access) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(access.path("state/usage")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            assert!(fields[0].parse::<u64>().unwrap() <= fields[1].parse().unwrap(), "{line}");
            let bytes: u64 = fields[6].parse().unwrap();
            let key: Vec<&str> = fields[2..6].iter().copied().filter(|f| !f.is_empty()).collect();
            *sums.entry(key.join(" ")).or_default() += bytes;
        }
    }
    sums
}

#[test]
fn usage_is_written_to_the_byte_over_changes_removals_and_restarts() {
    if !privileged() {
        return;
    }
    let access = access(&format!("{FILE}[usage]\ninterval = \"10s\"\n"));
    let daemon = access.start();
    access.isp("add carol --plan home-20 --address 192.0.2.99");
    let downloads = [ALICE4, BOB4, NOBODY4].map(|host| access.download(host));
    downloads[2].wait_for_rate(5.0..42.0, PATIENCE);
    assert!(access.isp("usage").contains("state/usage"));
    // Alice continues with another plan, and carol is removed while her download runs.
    access.isp("change alice --plan home-40");
    access.isp("remove carol");
    std::thread::sleep(Duration::from_millis(500));
    drop(downloads);
    // Waits until the last packet has passed.
    let all = || ["alice", "bob"].map(|name| passed(&daemon, name));
    let mut before = all();
    let deadline = Instant::now() + PATIENCE;
    loop {
        std::thread::sleep(Duration::from_millis(400));
        let now = all();
        if now == before {
            break;
        }
        assert!(Instant::now() < deadline, "packets without end");
        before = now;
    }
    daemon.signal(Signal::SIGTERM);
    let (code, log) = daemon.end();
    assert_eq!(code, Some(0), "{log}");
    let sums = written(&access);
    let of = |key: &str| sums.get(key).copied().unwrap_or_default();
    let alice = of("alice home-20 download") + of("alice home-40 download");
    assert_eq!([alice, of("bob home-40 download")], before, "{sums:?}");
    assert!(of("alice home-20 upload") > 0, "{sums:?}");
    assert!(of("alice home-20 download") > 0 && of("alice home-40 download") > 0, "{sums:?}");
    assert!(of("carol home-20 download") > 1_000_000, "{sums:?}");
    // The next daemon continues the same files.
    let daemon = access.start();
    let bob = access.download(BOB4);
    bob.wait_for_rate(5.0..42.0, PATIENCE);
    drop(bob);
    std::thread::sleep(Duration::from_millis(500));
    access.isp("usage");
    assert_eq!(written(&access)["bob home-40 download"], passed(&daemon, "bob"));
}

const DIVIDED: &str = r#"version = 1

[isp]
device = "sub"

[usage]
interval = "10s"
collector = "COLLECTOR"

[[plan]]
name = "family"
download = "30mbit"
upload = "20mbit"
share = "weighted"

[[plan.class]]
name = "voice"
weight = 1
match = ["local-port:7001"]

[[plan.class]]
name = "games"
weight = 2
match = ["local-port:7002-7009"]

[[plan.class]]
name = "rest"
weight = 2
queues = 4

[[subscriber]]
name = "alice"
addresses = ["192.0.2.1", "2001:db8:1::/56"]
plan = "family"
"#;

/// Sends datagrams to alice's ports of all classes, some of which exceed her rate; returns the bytes on the wire
/// that arrived at each port. She has no other traffic.
fn send_to_classes(access: &Access, rounds: usize) -> [u64; 3] {
    let ports = [7_001, 7_002, 9_000];
    let receivers = ports.map(|port| {
        let socket = access.at_homes(|| UdpSocket::bind((ALICE4, port)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2_000];
            let mut bytes = 0;
            while let Ok(payload) = socket.recv(&mut buffer) {
                bytes += (14 + 20 + 8 + payload) as u64;
            }
            bytes
        })
    });
    let sender = access.at_internet(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for round in 0..rounds {
        for (nth, port) in ports.into_iter().enumerate() {
            // More than the rate, with varying sizes.
            for _ in 0..3 {
                let payload = vec![0; 300 + (round * 7 + nth * 131) % 1_100];
                sender.send_to(&payload, (ALICE4, port)).unwrap();
            }
        }
        std::thread::sleep(Duration::from_micros(1_500));
    }
    receivers.map(|receiver| receiver.join().unwrap())
}

/// Octets by class in alice's downloads, from IPFIX messages that use [`fairweir`]'s template.
fn octets(message: &[u8], sums: &mut BTreeMap<String, u64>) {
    let be = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let mut sets = &message[16..be(&message[2..4]) as usize];
    while !sets.is_empty() {
        let (set, rest) = sets.split_at(be(&sets[2..4]) as usize);
        sets = rest;
        let mut records = if set[..2] == [1, 0] { &set[4..] } else { &[] };
        while !records.is_empty() {
            let mut at = 8;
            let [subscriber, _, class] = [(); 3].map(|()| {
                let end = at + 1 + usize::from(records[at]);
                let text = String::from_utf8(records[at + 1..end].to_vec()).unwrap();
                at = end;
                text
            });
            let direction = ["upload", "download"][usize::from(records[at])];
            let key = format!("{subscriber} {class} {direction}");
            *sums.entry(key).or_default() += be(&records[at + 1..at + 9]);
            records = &records[at + 17..];
        }
    }
}

/// For each class, rows, IPFIX and counters agree with what receivers count, over a reload that changes the classes,
/// a restart and a kill.
#[test]
fn usage_of_each_class_is_what_its_receiver_got() {
    if !privileged() {
        return;
    }
    let access = Access::new();
    let collector = access.at_router(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    collector.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let to = format!("udp:{}", collector.local_addr().unwrap());
    let file = DIVIDED.replace("COLLECTOR", &to);
    access.write("isp.toml", &file);
    let mut daemon = access.start();
    let mut wanted = [0; 3];
    let mut exported = BTreeMap::new();
    let mut add = |got: [u64; 3]| {
        wanted.iter_mut().zip(got).for_each(|(wanted, got)| *wanted += got);
        wanted
    };
    let check = |wanted: [u64; 3], exported: &mut BTreeMap<String, u64>| {
        let sums = written(&access);
        let of = |class: &str| sums.get(&format!("alice family {class} download")).copied();
        let got = ["voice", "games", "rest"].map(|class| of(class).unwrap_or_default());
        assert_eq!(got, wanted, "{sums:?}");
        let mut message = [0; 2_000];
        while let Ok(length) = collector.recv(&mut message) {
            octets(&message[..length], exported);
        }
        let of = |class: &str| exported.get(&format!("alice {class} download")).copied();
        assert_eq!(["voice", "games", "rest"].map(|class| of(class).unwrap_or_default()), wanted);
    };
    let dropped = |daemon: &Daemon| {
        let counters = subscriber(daemon, "alice");
        counters["download"]["dropped_packets"].as_u64().unwrap()
    };
    let mut sum = add(send_to_classes(&access, 400));
    // A busy machine may for once send no faster than the plan's rate.
    for _ in 0..10 {
        if dropped(&daemon) > 0 {
            break;
        }
        sum = add(send_to_classes(&access, 400));
    }
    assert!(dropped(&daemon) > 0, "more was sent than the plan lets through");
    access.isp("usage");
    check(sum, &mut exported);
    assert_eq!(passed(&daemon, "alice"), sum.iter().sum::<u64>());
    // For a while games have no class of their own; the rest class does not inherit their bytes.
    let games = file.find("[[plan.class]]\nname = \"games\"").unwrap();
    let rest = file.find("[[plan.class]]\nname = \"rest\"").unwrap();
    access.write("isp.toml", &format!("{}{}", &file[..games], &file[rest..]));
    let got = send_to_classes(&access, 50);
    add(got);
    access.isp("reload");
    let [voice, games, rest] = send_to_classes(&access, 200);
    let sum = add([voice, 0, games + rest]);
    access.write("isp.toml", &file);
    access.isp("reload");
    access.isp("usage");
    check(sum, &mut exported);
    // A restart.
    let sum = add(send_to_classes(&access, 100));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(0));
    check(sum, &mut exported);
    // A kill loses the bytes counted since the last rows were written, and nothing else.
    daemon = access.start();
    let sum = add(send_to_classes(&access, 100));
    access.isp("usage");
    send_to_classes(&access, 50);
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    check(sum, &mut exported);
    let daemon = access.start();
    let sum = add(send_to_classes(&access, 100));
    daemon.signal(Signal::SIGTERM);
    daemon.end();
    check(sum, &mut exported);
}

/// A standby is refused while the daemon lives; started after the daemon's death, it has all acknowledged changes.
#[test]
fn a_standby_takes_the_journal_over_when_the_daemon_dies() {
    if !privileged() {
        return;
    }
    let access = access(FILE);
    let first = access.start();
    let standby = || -> Child {
        access.at_router(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fairweir"));
            command.arg("isp").arg("--config").arg(access.path("isp.toml"));
            command.arg("--run-dir").arg(access.path("run"));
            command.arg("--state-dir").arg(access.path("state"));
            command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
    };
    assert_eq!(standby().wait().unwrap().code(), Some(5), "the first one lives");
    access.isp("add carol --plan home-20 --address 192.0.2.99");
    let download = access.download(NOBODY4);
    download.wait_for_rate(0.0..21.0, PATIENCE);
    let died = Instant::now();
    first.signal(Signal::SIGKILL);
    first.end();
    let mut second = standby();
    while !access.fairweir("isp show carol").status.success() {
        assert!(died.elapsed() < PATIENCE, "the standby does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    note(&format!("the standby polices {:?} after the daemon was killed", died.elapsed()));
    download.wait_for_rate(0.0..21.0, PATIENCE);
    access.isp("add dave --plan home-20 --address 192.0.2.98");
    second.kill().unwrap();
    second.wait().unwrap();
}
