//! Devices that change their IPv6 address every 5 s, with cubic and bbr, compared with HTB in the same run.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{note, privileged};

use super::{Home, LINK_MBIT, PATIENCE, WEIGHTS, by_weight, received};
use crate::common::home::{Device, has_nat, ip, run};
use crate::common::stage::{Download, SERVERS, round_trips, serve_without_end_by};

/// How long a device keeps an address.
const PERIOD: Duration = Duration::from_secs(5);
const PERIODS: u32 = 4;
const SETTLE: Duration = Duration::from_secs(10);
/// L2 size of a full packet in bytes.
const PACKET: u64 = 1_514;

/// Results over several periods.
#[derive(Debug)]
struct Seen {
    shares: [f64; 3],
    mbit: f64,
    /// Mean queueing delay of the link, as seen by packets of the router itself.
    link_ms: f64,
    /// Mean queueing delay of a packet to the phone: in its class and in the link.
    phone_ms: f64,
    drops_of_link: u64,
    drops_of_classes: u64,
}

/// A device's downloads: one with NAT, and one over IPv6 to its current address.
struct Both<'a> {
    device: &'a Device,
    number: u32,
    _by_nat: Download,
    by_privacy: Option<Download>,
}

impl Both<'_> {
    fn address(&self) -> String {
        format!(
            "2001:db8:7::b{:x}:{}",
            self.number,
            self.device.address.rsplit('.').next().unwrap()
        )
    }

    /// Gives up the privacy address together with its connection, and takes a new address.
    fn renew(&mut self, server: SocketAddr) {
        self.by_privacy = None;
        let old = self.address();
        self.number += 1;
        let new = self.address();
        self.device.run(|| {
            if self.number > 1 {
                ip(&format!("-6 addr change {old}/64 dev eth0 preferred_lft 0 nodad"));
            }
            ip(&format!("-6 addr add {new}/64 dev eth0 nodad"));
        });
        let download = self.device.download(server);
        assert_eq!(download.local_address().ip().to_string(), new, "it uses the new address");
        self.by_privacy = Some(download);
    }
}

/// The mean time by which round trips exceed their minimum, in ms.
fn mean_ms(times: &[Duration]) -> f64 {
    let least = times[0].as_secs_f64();
    let sum: f64 = times.iter().map(|time| time.as_secs_f64() - least).sum();
    sum * 1e3 / times.len() as f64
}

/// Number of packets that an interface's queues have dropped.
fn drops(text: &str) -> u64 {
    let numbers = text.split("(dropped ").skip(1);
    numbers.map(|after| after.split(',').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn watch(home: &Home, all: &mut [Both<'_>; 3], server: SocketAddr) -> Seen {
    let counts = || {
        let of = |dev| {
            let output =
                Command::new("tc").args(["-s", "qdisc", "show", "dev", dev]).output().unwrap();
            drops(&String::from_utf8(output.stdout).unwrap())
        };
        (home.stage.at_internet(|| of("isp")), home.stage.at_home(|| of("br-lan")))
    };
    let (before, begin) = (counts(), Instant::now());
    let wire = home.devices.each_ref().map(Device::received);
    let (mut link, mut phone) = (Vec::new(), Vec::new());
    for _ in 0..PERIODS {
        all.iter_mut().for_each(|both| both.renew(server));
        let period = Duration::from_millis(20);
        thread::scope(|scope| {
            let at_phone = scope.spawn(|| {
                let at = (SERVERS[0], 0);
                let echo = home.stage.at_internet(|| UdpSocket::bind(at).unwrap());
                let socket = home.devices[2].run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
                round_trips(echo, &socket, period, PERIOD)
            });
            link.extend(home.stage.ping(SERVERS[1], period, PERIOD));
            phone.extend(at_phone.join().unwrap());
        });
    }
    let seconds = begin.elapsed().as_secs_f64();
    let wire_now = home.devices.each_ref().map(Device::received);
    let after = counts();
    let parts = [0, 1, 2].map(|i| wire_now[i] - wire[i]);
    link.sort();
    phone.sort();
    Seen {
        shares: by_weight(parts),
        mbit: parts.iter().sum::<u64>() as f64 * 8e-6 / seconds,
        link_ms: mean_ms(&link),
        phone_ms: mean_ms(&phone),
        drops_of_link: after.0 - before.0,
        drops_of_classes: after.1 - before.1,
    }
}

/// HTB at 95 % of the link, as set up by hand, with unused rate lent to other classes.
fn htb(home: &Home) {
    home.stage.at_home(|| {
        let total = LINK_MBIT * 950.0;
        run("tc", "qdisc add dev br-lan root handle 1: htb default 9");
        run("tc", &format!("class add dev br-lan parent 1: classid 1:8 htb rate {total}kbit"));
        run("tc", "class add dev br-lan parent 1: classid 1:9 htb rate 1gbit");
        for (i, device) in home.devices.iter().enumerate() {
            let rate = total * WEIGHTS[i] as f64 / WEIGHTS.iter().sum::<u64>() as f64;
            let of = format!("classid 1:{} htb rate {rate:.0}kbit ceil {total}kbit", i + 1);
            run("tc", &format!("class add dev br-lan parent 1:8 {of}"));
            let to = format!("match ether dst {} flowid 1:{}", device.mac, i + 1);
            run("tc", &format!("filter add dev br-lan parent 1: protocol all u32 {to}"));
        }
    });
}

fn play(congestion_control: &'static str, by_htb: bool) -> Seen {
    let home = Home::new();
    let port = home.far.run(|| serve_without_end_by("[::]:0", congestion_control));
    let [mut server, mut server6] = [home.far.address(), home.address6];
    server.set_port(port);
    server6.set_port(port);
    let daemon = (!by_htb).then(|| home.start());
    let at_first = home.devices.each_ref().map(Device::received);
    let mut all = home.devices.each_ref().map(|device| {
        let by_nat = device.download(server);
        let mut both = Both { device, number: 0, _by_nat: by_nat, by_privacy: None };
        both.renew(server6);
        both
    });
    match &daemon {
        Some(daemon) => daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true),
        None => htb(&home),
    }
    thread::sleep(SETTLE);
    let seen = watch(&home, &mut all, server6);
    let name = if by_htb { "HTB at 95 %" } else { "fairweir" };
    note(&format!("{congestion_control}, {name}: {seen:.3?}"));
    drop(all);
    let Some(daemon) = daemon else { return seen };
    // A status is as old as the last tick, so counters can only be compared when traffic has stopped.
    thread::sleep(Duration::from_secs(2));
    let status = daemon.status();
    assert_eq!(status["groups"][3]["received_bytes"], 0, "nothing is in no device");
    let counted = received(&status);
    for (i, device) in home.devices.iter().enumerate() {
        let wire = device.received() - at_first[i];
        let dropped = status["groups"][i]["drops"].as_u64().unwrap();
        note(&format!(
            "{}: {} counted, {dropped} dropped, {wire} on its wire",
            device.name, counted[i]
        ));
        // The router's own packets in the LAN have no class: ARP, neighbour discovery.
        let others = 20_000;
        assert!(counted[i] <= wire + dropped * PACKET, "{}: {} of {wire}", device.name, counted[i]);
        assert!(counted[i] + others >= wire, "{}: {} of {wire}", device.name, counted[i]);
    }
    seen
}

/// Compares `fairweir` with HTB.
fn changing_addresses(congestion_control: &'static str, within: f64) {
    if !privileged() || !has_nat() {
        return;
    }
    play(congestion_control, true);
    let seen = play(congestion_control, false);
    for share in seen.shares {
        assert!((share - 1.0).abs() <= within, "{seen:?}");
    }
    assert!(seen.link_ms <= 6.0 && seen.phone_ms <= 20.0, "{seen:?}");
    assert_eq!(seen.drops_of_classes + seen.drops_of_link, 0, "{seen:?}");
    assert!(seen.mbit > 0.95 * LINK_MBIT, "{seen:?}");
}

#[test]
#[ignore = "long: 70 s"]
fn addresses_that_change_every_five_seconds_lose_nothing_with_cubic() {
    changing_addresses("cubic", 0.05);
}

#[test]
#[ignore = "long: 70 s"]
fn addresses_that_change_every_five_seconds_lose_nothing_with_bbr() {
    changing_addresses("bbr", 0.08);
}
