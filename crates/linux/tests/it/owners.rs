//! Owners of traffic: real sockets of processes with different executables, users and cgroups.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fairweir_core::policy::Policy;
use fairweir_linux::{Attached, Host, HostSpec, Mode, Who};
use fairweir_testing::privileged;

use crate::common::agent::Agent;
use crate::common::{Pair, policy};

/// What each group received since the last look.
fn received(host: &mut Host) -> Vec<u64> {
    host.take_samples().unwrap().iter().map(|sample| sample.received.as_u64()).collect()
}

/// Sends 200 kB over TCP.
fn send(mut stream: TcpStream) -> TcpStream {
    stream.write_all(&[7; VOLUME]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    stream
}

/// Sends 200 packets of 1000 bytes to `to`.
fn send_packets(socket: &UdpSocket, to: &str) {
    for _ in 0..200 {
        socket.send_to(&[7; 1_000], to).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
}

const VOLUME: usize = 200_000;

fn assert_all_for(received: &[u64], group: usize) {
    assert!(received[group] as usize > VOLUME, "{received:?}");
    let others: u64 = received.iter().sum::<u64>() - received[group];
    assert!(others < 5_000, "{received:?}");
}

fn steam_and_backup() -> Policy {
    policy(&[("backup", &["app:backup"]), ("steam", &["app:steam"])])
}

#[test]
fn new_sockets_belong_to_the_executable_that_made_them() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.host(&steam_and_backup(), Mode::Count);
    for address in ["192.0.2.2:0", "[2001:db8::2]:0"] {
        let server = pair.internet.run(|| TcpListener::bind(address).unwrap());
        let task = format!("tcp-connect {}", server.local_addr().unwrap());
        let (mut steam, mut backup) = (
            Agent::start(&pair.home, "steam", 0, &task),
            Agent::start(&pair.home, "backup", 0, &task),
        );
        steam.go();
        let to_steam = send(server.accept().unwrap().0);
        assert_all_for(&received(&mut host), 1);
        backup.go();
        let _to_backup = send(server.accept().unwrap().0);
        assert_all_for(&received(&mut host), 0);
        send(to_steam);
        assert_all_for(&received(&mut host), 1);
    }
}

#[test]
fn accepted_connections_belong_to_the_listener() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.host(&steam_and_backup(), Mode::Count);
    let mut steam = Agent::start(&pair.home, "steam", 0, "tcp-listen 192.0.2.1:0");
    let address = steam.go();
    let upload = pair.internet.run(|| TcpStream::connect(&address).unwrap());
    send(upload);
    assert_all_for(&received(&mut host), 1);
}

#[test]
fn udp_belongs_to_the_executable_connected_or_not() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.host(&steam_and_backup(), Mode::Count);
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    let task = format!("udp-connected {}", sender.local_addr().unwrap());
    let mut steam = Agent::start(&pair.home, "steam", 0, &task);
    let address = steam.go();
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 1);
    let mut backup = Agent::start(&pair.home, "backup", 0, "udp-bound 0.0.0.0:0");
    let port = backup.go().rsplit(':').next().unwrap().to_owned();
    send_packets(&sender, &format!("192.0.2.1:{port}"));
    assert_all_for(&received(&mut host), 0);
}

#[test]
fn sockets_that_exist_at_the_start_are_found_by_the_scan() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let server = pair.internet.run(|| TcpListener::bind("192.0.2.2:0").unwrap());
    let task = format!("tcp-connect {}", server.local_addr().unwrap());
    let mut steam = Agent::start(&pair.home, "steam", 0, &task);
    steam.go();
    let stream = server.accept().unwrap().0;
    let mut backup = Agent::start(&pair.home, "backup", 0, "udp-bound 192.0.2.1:0");
    let address = backup.go();
    let mut listening = Agent::start(&pair.home, "steam2", 0, "tcp-listen 192.0.2.1:0");
    let listener = listening.go();

    let groups = [("backup", &["app:backup"][..]), ("steam", &["app:steam", "app:steam2"])];
    let mut host = pair.host(&policy(&groups), Mode::Count);
    send(stream);
    assert_all_for(&received(&mut host), 1);
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 0);
    send(pair.internet.run(|| TcpStream::connect(&listener).unwrap()));
    assert_all_for(&received(&mut host), 1);
}

#[test]
fn users_are_told_apart_and_a_new_policy_counts_at_once() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.host(&policy(&[("u", &["user:12345"])]), Mode::Count);
    let mut steam = Agent::start(&pair.home, "steam", 12_345, "udp-bound 192.0.2.1:0");
    let address = steam.go();
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 0);
    host.set_policy(&policy(&[("steam", &["app:steam"]), ("u", &["user:12345"])])).unwrap();
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 0);
    host.set_policy(&policy(&[("other", &["app:other"])])).unwrap();
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 1);
}

#[test]
fn the_first_policy_that_asks_for_applications_finds_older_sockets() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.host(&policy(&[]), Mode::Count);
    let mut steam = Agent::start(&pair.home, "steam", 0, "udp-bound 192.0.2.1:0");
    let address = steam.go();
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    host.set_policy(&steam_and_backup()).unwrap();
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 1);
}

/// A folder below the root of the cgroups; it is removed when this drops.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(path: &str) -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(|fields| fields[2] == "cgroup2")?[1].to_owned();
        let folder = PathBuf::from(root).join(path);
        fs::create_dir_all(&folder).unwrap();
        Some(Cgroup(folder))
    }

    fn admit(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in self.0.ancestors().take(3) {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[test]
fn units_that_start_later_are_found_with_all_below_them() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let unit = format!("fairweir-test-{}.service", std::process::id());
    let by_unit = format!("unit:{unit}");
    let groups = [("backup", &[by_unit.as_str()][..])];
    let mut host = pair.host(&policy(&groups), Mode::Count);
    // This is longer than the interval between two reads of the cgroups since the host began.
    std::thread::sleep(Duration::from_millis(1_100));

    let cgroup = Cgroup::new(&format!("fairweir-test.slice/{unit}/payload")).expect("a cgroup2");
    let mut process = Agent::start(&pair.home, "restic", 0, "udp-bound 192.0.2.1:0");
    cgroup.admit(process.child.id());
    let address = process.go();
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    let start = Instant::now();
    received(&mut host);
    assert!(start.elapsed() < Duration::from_millis(100), "a look at the cgroups is cheap");
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 0);

    let path = format!("cgroup:/fairweir-test.slice/{}", unit);
    host.set_policy(&policy(&[("other", &["app:other"]), ("slice", &[path.as_str()])])).unwrap();
    send_packets(&sender, &address);
    assert_all_for(&received(&mut host), 1);
    drop(process);
}

#[test]
fn a_census_names_who_received_how_much() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let spec = HostSpec {
        dev: "wan".into(),
        policy: policy(&[]),
        mode: Mode::Count,
        census: true,
        marks: false,
    };
    let mut host = pair.home.run(|| Host::attach(&spec).unwrap());
    let mut steam = Agent::start(&pair.home, "steam", 12_345, "udp-bound 192.0.2.1:0");
    let address = steam.go();
    let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
    send_packets(&sender, &address);
    let talkers = host.census().unwrap();
    let prefix = Who::Address("192.0.2.0/24".parse().unwrap());
    for who in [Who::App("steam".into()), Who::User(12_345), prefix] {
        let talker = talkers.iter().find(|t| t.who == who).unwrap_or_else(|| panic!("{talkers:?}"));
        assert_eq!((talker.received.as_u64(), talker.packets), (200 * 1_042, 200), "{who:?}");
    }
    let cgroups =
        talkers.iter().filter(|t| matches!(&t.who, Who::Cgroup(path) if path.starts_with('/')));
    assert_eq!(cgroups.map(|t| t.packets).sum::<u64>(), 200, "{talkers:?}");
}
