//! Uploads shared by weight, with real packets: of a host, and of devices behind NAT.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{judged, note, privileged, traffic, two_of_three};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use serde_json::Value;

use crate::common::far::{Far, Modem};
use crate::common::home::{devices, has_nat, ip, run};
use crate::common::only_error_line;
use crate::common::stage::{Daemon, Download, Stage};

const PATIENCE: Duration = Duration::from_secs(25);
const UP_MBIT: f64 = 10.0;
/// Addresses of the sinks for the groups `big` and `small`, and of the call.
const SINKS: [&str; 2] = ["10.9.0.11", "10.9.0.12"];
const CALL: &str = "10.9.0.13";

/// A home whose uplink is also a bottleneck, beyond its interface.
fn stage() -> Stage {
    stage_with(40.0, UP_MBIT)
}

fn stage_with(down_mbit: f64, up_mbit: f64) -> Stage {
    let stage = Stage::with_link(down_mbit);
    stage.at_internet(|| {
        for address in SINKS.iter().chain([&CALL]) {
            ip(&format!("addr add {address}/24 dev isp"));
        }
        ip("link add uplink type ifb");
        ip("link set uplink up txqueuelen 1000");
        run("tc", "qdisc add dev isp ingress");
        run(
            "tc",
            "filter add dev isp parent ffff: protocol all u32 match u32 0 0 action mirred egress \
             redirect dev uplink",
        );
        run(
            "tc",
            &format!("qdisc add dev uplink root tbf rate {up_mbit}mbit burst 3k latency 150ms"),
        );
    });
    stage
}

/// A server that receives everything sent to it.
struct Sink {
    address: SocketAddr,
    taken: Arc<AtomicU64>,
}

impl Sink {
    fn new(stage: &Stage, address: &str) -> Sink {
        Sink::of(stage.at_internet(|| TcpListener::bind((address, 0)).unwrap()))
    }

    fn of(listener: TcpListener) -> Sink {
        let (address, taken) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
        let count = Arc::clone(&taken);
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                thread::spawn(move || {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(n @ 1..) = stream.read(&mut buffer) {
                        count.fetch_add(n as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        Sink { address, taken }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A connection that sends without end until it is dropped.
struct Upload(TcpStream);

impl Upload {
    /// Must be called in the sender's namespace.
    fn start(to: SocketAddr) -> Upload {
        Upload::with(to, "cubic")
    }

    /// As [`Upload::start`], with this congestion control.
    fn with(to: SocketAddr, algorithm: &str) -> Upload {
        let stream = TcpStream::connect(to).unwrap();
        setsockopt(&stream, TcpCongestion, &algorithm.into()).unwrap();
        let mut writer = stream.try_clone().unwrap();
        thread::spawn(move || while writer.write_all(&[7; 1 << 14]).is_ok() {});
        Upload(stream)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// The rates of two sinks and a call's delay over some time.
#[derive(Debug)]
struct Seen {
    /// The first sink's part relative to its weight: 3/4 is 1.
    share: f64,
    /// L2 rate on the link, in Mbit/s.
    mbit: f64,
    call_p95_ms: f64,
}

fn link_bytes(stage: &Stage) -> u64 {
    traffic(stage.internet(), "uplink").sent
}

fn watch(stage: &Stage, sinks: &[Sink; 2], span: Duration) -> Seen {
    let (begin, bytes) = (Instant::now(), link_bytes(stage));
    let before = sinks.each_ref().map(Sink::taken);
    let times = stage.ping(CALL, Duration::from_millis(20), span);
    let [big, small] = [0, 1].map(|i| (sinks[i].taken() - before[i]) as f64);
    let mbit = (link_bytes(stage) - bytes) as f64 * 8e-6 / begin.elapsed().as_secs_f64();
    let p95 = times[times.len() * 95 / 100];
    Seen { share: big / (big + small) / 0.75, mbit, call_p95_ms: p95.as_secs_f64() * 1e3 }
}

impl Seen {
    /// The used fraction of the link.
    fn used(&self) -> f64 {
        self.mbit / UP_MBIT
    }

    fn assert_good(&self, what: &str, status: &Value) {
        note(&format!("{what}: {self:.3?}"));
        assert!((self.share - 1.0).abs() <= 0.05, "{self:?}\n{status:#}");
        // Raising the limit, and the drain after it, reduce the use a little.
        assert!(self.used() >= 0.96, "{self:?}\n{status:#}");
        assert!(self.call_p95_ms <= 15.0, "{self:?}\n{status:#}");
    }
}

fn configuration(more: &str) -> String {
    format!(
        "version = 1\n[host]\nupload = true\nprobe = \"10.9.0.1\"\n{more}\
         [[group]]\nname = \"big\"\nweight = 3\nmatch = [\"ip:{}\"]\n\
         [[group]]\nname = \"small\"\nweight = 1\nmatch = [\"ip:{}\"]\n",
        SINKS[0], SINKS[1]
    )
}

fn has_htb(stage: &Stage) -> bool {
    let qdiscs = stage.run("tc qdisc show dev wan").stdout;
    String::from_utf8(qdiscs).unwrap().contains("htb")
}

fn limited(daemon: &Daemon) {
    daemon.wait_for("limited", PATIENCE, |s| s["upload"]["phase"] == "hold");
}

fn groups_share_a_learned_uplink() {
    let stage = stage();
    stage.configure(&configuration(""));
    let sinks = SINKS.map(|address| Sink::new(&stage, address));
    let daemon = stage.start(&["--confirmed-after-s", "0"]);
    daemon.wait_for("probed", PATIENCE, |s| s["upload"]["queue_ms"].is_number());
    assert!(!has_htb(&stage), "an idle uplink keeps its queue");
    let uploads = stage.at_home(|| sinks.each_ref().map(|sink| Upload::start(sink.address)));
    let begin = Instant::now();
    limited(&daemon);
    note(&format!("limited after {:.1} s", begin.elapsed().as_secs_f64()));
    thread::sleep(Duration::from_secs(2));
    let seen = watch(&stage, &sinks, Duration::from_secs(8));
    seen.assert_good("learned", &daemon.status());
    // A killed daemon leaves no classes behind.
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    thread::sleep(Duration::from_secs(2));
    assert!(!has_htb(&stage), "the guard removes the classes");
    // The next daemon knows the capacity although the uplink is full; the existing queue drains first.
    let daemon = stage.start(&[]);
    daemon.wait_for("limited", Duration::from_secs(1), |s| s["upload"]["enforcing"] == true);
    let status = daemon.status();
    let remembered = status["upload"]["capacity_bps"].as_f64().unwrap() / 1e6 / UP_MBIT;
    thread::sleep(Duration::from_secs(4));
    let again = watch(&stage, &sinks, Duration::from_secs(8));
    note(&format!("after a restart: {remembered:.3} of the capacity, {again:.3?}"));
    assert!((remembered - 1.0).abs() <= 0.03, "{status:#}");
    assert!((again.share - 1.0).abs() <= 0.05 && again.used() >= 0.92, "{again:?}");
    assert!(again.call_p95_ms <= 60.0, "{again:?}");
    drop(uploads);
}

#[test]
fn groups_share_an_uplink_that_is_learned_and_a_call_is_not_delayed() {
    if privileged() {
        two_of_three(groups_share_a_learned_uplink);
    }
}

/// Nothing is limited, and the status reports the rates that groups would have.
#[test]
fn a_dry_run_says_what_groups_would_have() {
    judged(say_what_groups_would_have);
}

fn say_what_groups_would_have() {
    let stage = stage();
    stage.configure(&configuration(""));
    let sinks = SINKS.map(|address| Sink::new(&stage, address));
    let daemon = stage.start(&["--dry-run", "--probe"]);
    daemon.wait_for("probed", PATIENCE, |s| s["upload"]["queue_ms"].is_number());
    let uploads = stage.at_home(|| sinks.each_ref().map(|sink| Upload::start(sink.address)));
    daemon.wait_for("guessed", PATIENCE, |s| s["upload"]["groups"][1]["share_bps"].is_number());
    thread::sleep(Duration::from_secs(3));
    let status = daemon.status();
    let upload = &status["upload"];
    assert_eq!((&upload["enforcing"], &upload["phase"]), (&false.into(), &"open".into()));
    let limit = upload["limit_bps"].as_f64().unwrap() / 1e6 / UP_MBIT;
    let [big, small] = [0, 1].map(|i| upload["groups"][i]["share_bps"].as_f64().unwrap());
    note(&format!("the limit would be {limit:.3} of the uplink, shares {:.2} : 1", big / small));
    assert!((0.9..=1.06).contains(&limit) && (2.5..=3.5).contains(&(big / small)), "{upload:#}");
    assert!(!has_htb(&stage));
    let text = String::from_utf8(stage.fairweir("host status").stdout).unwrap();
    assert!(text.contains("would be limited to "), "{text}");
    drop(uploads);
}

#[test]
fn a_shaper_of_the_upload_is_refused_and_never_replaced() {
    if !privileged() {
        return;
    }
    let stage = stage();
    stage.configure(&configuration("upload_capacity = \"10mbit\"\n"));
    let shaper = "tc qdisc add dev wan root tbf rate 9mbit burst 10k latency 50ms";
    assert!(stage.run(shaper).status.success());
    let file = stage.path("fairweir.toml");
    let refused = stage.fairweir(&format!("host --config {} --dev wan", file.display()));
    let line = only_error_line(&refused);
    assert!(line.contains("`tbf`") && line.contains("tc qdisc del dev wan root"), "{line}");
    assert!(stage.run("tc qdisc del dev wan root").status.success());
    let daemon = stage.start(&[]);
    daemon.wait_for("limited", PATIENCE, |s| s["upload"]["enforcing"] == true);
    assert!(has_htb(&stage));
    assert!(stage.run(&shaper.replace("add", "replace")).status.success());
    daemon.wait_for("given way", PATIENCE, |s| {
        s["upload"]["enforcing"] == false && s["open_reason"].is_string()
    });
    assert_eq!(stage.fairweir("off").status.code(), Some(0));
    let qdiscs = String::from_utf8(stage.run("tc qdisc show dev wan").stdout).unwrap();
    assert!(qdiscs.contains("tbf"), "it is left alone: {qdiscs}");
}

/// Two devices behind NAT: results while they filled the upload, and while they filled both directions.
struct Both {
    alone: Seen,
    both: Seen,
    /// For the download: the first device's part relative to its weight, and the total rate.
    down: (f64, f64),
    status: Value,
}

fn devices_fill_both(down_mbit: f64, up_mbit: f64, seconds: u64) -> Both {
    let stage = stage_with(down_mbit, up_mbit);
    let [tv, phone] = devices(&stage, ["tv", "phone"]);
    let sinks = SINKS.map(|address| Sink::new(&stage, address));
    let device = |name: &str, weight: u32, mac: &str| {
        format!("[[device]]\nname = \"{name}\"\nweight = {weight}\nmatch = [\"mac:{mac}\"]\n")
    };
    stage.configure(&format!(
        "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\nupload = true\n\
         probe = \"10.9.0.1\"\n{}{}",
        device("tv", 3, &tv.mac),
        device("phone", 1, &phone.mac)
    ));
    let daemon = stage.start_router(&[]);
    daemon.wait_for("probed", PATIENCE, |s| s["upload"]["queue_ms"].is_number());
    let send = || {
        let all = [&tv, &phone].into_iter().zip(&sinks);
        all.map(|(device, sink)| device.run(|| Upload::start(sink.address))).collect::<Vec<_>>()
    };
    let uploads = send();
    limited(&daemon);
    thread::sleep(Duration::from_secs(seconds / 3));
    let alone = watch(&stage, &sinks, Duration::from_secs(seconds));
    let server = SocketAddr::new("10.9.0.3".parse().unwrap(), stage.port());
    let downloads = [tv.download(server), phone.download(server)];
    daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true);
    thread::sleep(Duration::from_secs(seconds));
    let before = downloads.each_ref().map(|d| d.received());
    let begin = Instant::now();
    let both = watch(&stage, &sinks, Duration::from_secs(seconds * 4 / 3));
    let [big, small] = [0, 1].map(|i| (downloads[i].received() - before[i]) as f64);
    let mbit = (big + small) * 8e-6 / begin.elapsed().as_secs_f64();
    let down = (big / (big + small) / 0.75, mbit);
    note(&format!("up {up_mbit} Mbit/s, upload alone: {alone:.3?}; both: {both:.3?}"));
    note(&format!("download meanwhile: share {:.3}, {mbit:.1} of {down_mbit} Mbit/s", down.0));
    drop((uploads, downloads));
    Both { alone, both, down, status: daemon.status() }
}

impl Both {
    fn assert_shared(&self, down_mbit: f64) {
        let (share, mbit) = self.down;
        assert!((self.both.share - 1.0).abs() <= 0.05, "{:?}\n{:#}", self.both, self.status);
        assert!((share - 1.0).abs() <= 0.05, "{share}\n{:#}", self.status);
        assert!(mbit >= 0.9 * down_mbit, "{mbit}\n{:#}", self.status);
    }
}

/// Two devices behind NAT and with IPv6, both directions full.
#[test]
#[ignore = "long: 40 s"]
fn devices_share_the_upload_while_the_download_is_full() {
    if !privileged() || !has_nat() {
        return;
    }
    let seen = devices_fill_both(40.0, UP_MBIT, 6);
    seen.alone.assert_good("devices", &seen.status);
    seen.assert_shared(40.0);
}

/// An access link with 8 Mbit/s down and 0.5 Mbit/s up, on which a full packet takes 24 ms.
#[test]
#[ignore = "long: 2 min"]
fn devices_share_both_directions_of_a_link_with_half_a_megabit_up() {
    if !privileged() || !has_nat() {
        return;
    }
    let seen = devices_fill_both(8.0, 0.5, 15);
    seen.assert_shared(8.0);
    for part in [&seen.alone, &seen.both] {
        assert!(part.mbit >= 0.9 * 0.5 && part.call_p95_ms <= 60.0, "{part:?}\n{:#}", seen.status);
    }
    assert!((seen.alone.share - 1.0).abs() <= 0.05, "{:?}\n{:#}", seen.alone, seen.status);
}

/// Rate that one group of the tv does not use goes to its other group, and the phone's rate stays.
#[test]
#[ignore = "long: 30 s"]
fn groups_within_a_device_share_its_upload() {
    if !privileged() || !has_nat() {
        return;
    }
    let stage = stage();
    let [tv, phone] = devices(&stage, ["tv", "phone"]);
    let sinks = SINKS.map(|address| Sink::new(&stage, address));
    let group = |name: &str, weight: u32, to: &str| {
        format!("[[device.group]]\nname = \"{name}\"\nweight = {weight}\nmatch = [\"ip:{to}\"]\n")
    };
    stage.configure(&format!(
        "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\nupload = true\n\
         upload_capacity = \"{UP_MBIT}mbit\"\nprobe = \"10.9.0.1\"\n\
         [[device]]\nname = \"tv\"\nweight = 1\nmatch = [\"mac:{}\"]\n{}{}\
         [[device]]\nname = \"phone\"\nweight = 1\nmatch = [\"mac:{}\"]\n",
        tv.mac,
        group("big", 3, SINKS[0]),
        group("small", 1, SINKS[1]),
        phone.mac
    ));
    let daemon = stage.start_router(&[]);
    daemon.wait_for("limited", PATIENCE, |s| s["upload"]["enforcing"] == true);
    let classes = String::from_utf8(stage.run("tc class show dev wan").stdout).unwrap();
    assert!(classes.contains("parent fa17:fff0"), "{classes}");
    let send = |device: &crate::common::home::Device, sink: &Sink| {
        device.run(|| Upload::start(sink.address))
    };
    let offered = |status: &Value| {
        [0, 1, 3].map(|i| status["upload"]["groups"][i]["offered_bytes"].as_u64().unwrap() as f64)
    };
    let parts = |seconds| {
        let before = offered(&daemon.status());
        thread::sleep(Duration::from_secs(seconds));
        let after = offered(&daemon.status());
        let sent = [0, 1, 2].map(|i| after[i] - before[i]);
        sent.map(|bytes| bytes / sent.iter().sum::<f64>())
    };
    let big = send(&tv, &sinks[0]);
    let small = send(&tv, &sinks[1]);
    let other = send(&phone, &sinks[1]);
    thread::sleep(Duration::from_secs(5));
    let all = parts(8);
    drop(big);
    thread::sleep(Duration::from_secs(3));
    let left = parts(6);
    note(&format!("big, small, phone: {all:.3?}; without big: {left:.3?}"));
    for (part, wanted) in all.iter().zip([0.375, 0.125, 0.5]) {
        assert!((part - wanted).abs() <= 0.04, "{all:?}\n{:#}", daemon.status());
    }
    assert!((left[1] / 0.5 - 1.0).abs() <= 0.06, "{left:?}\n{:#}", daemon.status());
    drop((small, other));
}

/// HTB at 95 % of a configured capacity, as set up by hand.
#[test]
#[ignore = "long: 35 s"]
fn htb_at_95_percent_beside_it() {
    if !privileged() {
        return;
    }
    let stage = stage();
    let sinks = SINKS.map(|address| Sink::new(&stage, address));
    let uploads = stage.at_home(|| sinks.each_ref().map(|sink| Upload::start(sink.address)));
    thread::sleep(Duration::from_secs(2));
    let none = watch(&stage, &sinks, Duration::from_secs(4));
    note(&format!("no shaper: {none:.3?}"));
    stage.at_home(|| {
        run("tc", "qdisc add dev wan root handle 1: htb default 3");
        run("tc", "class add dev wan parent 1: classid 1:9 htb rate 9500kbit");
        for (class, rate, address) in [(1, 5_700, SINKS[0]), (2, 1_900, SINKS[1]), (3, 1_900, CALL)]
        {
            let of = format!("classid 1:{class} htb rate {rate}kbit ceil 9500kbit");
            run("tc", &format!("class add dev wan parent 1:9 {of}"));
            let to = format!("match ip dst {address}/32 flowid 1:{class}");
            run("tc", &format!("filter add dev wan parent 1: protocol ip u32 {to}"));
        }
    });
    thread::sleep(Duration::from_secs(2));
    note(&format!("HTB: {:.3?}", watch(&stage, &sinks, Duration::from_secs(6))));
    stage.at_home(|| run("tc", "qdisc del dev wan root"));
    stage.configure(&configuration("upload_capacity = \"10mbit\"\n"));
    let daemon = stage.start(&[]);
    daemon.wait_for("limited", PATIENCE, |s| s["upload"]["enforcing"] == true);
    // The queue at the modem has drained by then, through the 1.5 % by which the limit is below the capacity.
    thread::sleep(Duration::from_secs(14));
    let told = watch(&stage, &sinks, Duration::from_secs(6));
    told.assert_good("told the capacity", &daemon.status());
    drop(uploads);
}

/// Simultaneous downloads and uploads, for a cell of the table or for a test.
struct Cell {
    down_mbit: f64,
    up_mbit: f64,
    uploads: usize,
    algorithm: &'static str,
    control: &'static str,
    /// Whether the daemon shares the upload.
    is_shared: bool,
    /// Whether uploads fill the uplink before the downloads begin.
    are_first: bool,
}

/// Measurements over 5 s of a cell.
#[derive(Debug)]
struct Part {
    /// Used fraction of the download and of the uplink.
    used: [f64; 2],
    /// The devices' parts of the download, relative to their weights.
    shares: [f64; 3],
    /// Queueing delay at the modem in ms: mean and 99th percentile.
    modem_ms: [f64; 2],
    /// Round trips in ms of a call in its own group, 20 ms without a queue: median and 99th percentile.
    call_ms: [f64; 2],
    capacity_bps: Value,
}

impl Cell {
    /// The heaviest group's server has the longest round trip: its window grows most when acknowledgements wait at
    /// the uplink. The daemon finds the probe's reflector by itself. Returns parts of 5 s.
    fn play(&self, parts: usize) -> Vec<Part> {
        const WEIGHTS: [u32; 3] = [4, 2, 1];
        const ONE_WAY_MS: [u64; 3] = [60, 20, 5];
        let stage = Stage::with_link(self.down_mbit);
        let modem = Modem::new(self.up_mbit, Duration::from_millis(150));
        let servers = [0, 1, 2].map(|i| {
            let (name, address) = (format!("far{i}"), format!("10.9.7.{}", i + 1));
            let delay = Duration::from_millis(ONE_WAY_MS[i]);
            Far::behind(&stage, &name, &address, None, delay, Some(Arc::clone(&modem)))
        });
        let (call_at, way) = ("10.9.7.4", Duration::from_millis(10));
        let called = Far::behind(&stage, "far3", call_at, None, way, Some(Arc::clone(&modem)));
        // The second hop of all traffic to other destinations.
        stage.at_internet(|| ip("route add default dev far2"));
        servers[2].run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        let group = |name: &str, weight: u32, ip: IpAddr| {
            format!("[[group]]\nname = \"{name}\"\nweight = {weight}\nmatch = [\"ip:{ip}\"]\n")
        };
        let mut groups = [0, 1, 2]
            .map(|i| group(&format!("g{i}"), WEIGHTS[i], servers[i].address().ip()))
            .concat();
        groups += &group("call", 1, called.address().ip());
        let keys = format!("control = \"{}\"\nupload = {}\n", self.control, self.is_shared);
        stage.configure(&format!("version = 1\n[host]\n{keys}{groups}"));
        let sink = Sink::of(servers[2].run(|| TcpListener::bind(("10.9.7.3", 0)).unwrap()));
        let daemon = stage.start(&[]);
        if self.is_shared {
            daemon.wait_for("probed", PATIENCE, |s| s["upload"]["queue_ms"].is_number());
        }
        let send = || {
            let upload = || Upload::with(sink.address, self.algorithm);
            stage.at_home(|| (0..self.uploads).map(|_| upload()).collect::<Vec<_>>())
        };
        let first = self.are_first.then(|| (send(), thread::sleep(Duration::from_secs(5))));
        let downloads = servers.each_ref().map(|server| server.download(&stage));
        let later = (!self.are_first).then(|| (thread::sleep(Duration::from_secs(5)), send()));
        let part = |number: usize| {
            let (begin, sent) = (Instant::now(), modem.carried());
            let before = downloads.each_ref().map(Download::received);
            let (period, span) = (Duration::from_millis(20), Duration::from_secs(5));
            let call = || stage.ping_at(called.netns(), call_at, period, span);
            let mut queues = Vec::new();
            let call = thread::scope(|scope| {
                let call = scope.spawn(call);
                while begin.elapsed() < span {
                    queues.push(modem.wait().as_secs_f64() * 1e3);
                    thread::sleep(period);
                }
                call.join().unwrap()
            });
            let call_ms = [50, 99].map(|percent| {
                call.get(call.len() * percent / 100)
                    .map_or(f64::INFINITY, |rtt| rtt.as_secs_f64() * 1e3)
            });
            let seconds = begin.elapsed().as_secs_f64();
            let got = [0, 1, 2].map(|i| (downloads[i].received() - before[i]) as f64);
            let all: f64 = got.iter().sum();
            queues.sort_by(f64::total_cmp);
            let mean = queues.iter().sum::<f64>() / queues.len() as f64;
            let upload = &daemon.status()["upload"];
            let part = Part {
                // As a fraction of the capacity without headers.
                used: [
                    all * 8e-6 / seconds / (self.down_mbit * 1_448.0 / 1_514.0),
                    (modem.carried() - sent) as f64 * 8e-6 / seconds / self.up_mbit,
                ],
                shares: [0, 1, 2].map(|i| got[i] / all / (f64::from(WEIGHTS[i]) / 7.0)),
                modem_ms: [mean, queues[queues.len() * 99 / 100]],
                call_ms,
                capacity_bps: upload["capacity_bps"].clone(),
            };
            note(&format!("{} s: {part:.3?}", number * 5 + 5));
            part
        };
        let parts = (0..parts).map(part).collect();
        drop((first, later, downloads));
        parts
    }
}

/// Uploads that start beside downloads: the modem's queue is short within seconds, and the link stays full.
fn learn_an_uplink_beside_downloads() {
    let cell = Cell {
        down_mbit: 28.0,
        up_mbit: UP_MBIT,
        uploads: 1,
        algorithm: "cubic",
        control: "fairweir",
        is_shared: true,
        are_first: false,
    };
    // After 15 s the control has tried and measured.
    let parts = cell.play(4);
    let last = &parts[3];
    let capacity = last.capacity_bps.as_f64().unwrap() / 1e6 / UP_MBIT;
    assert!((0.95..=1.06).contains(&capacity), "{parts:?}");
    assert!(last.used[0] >= 0.95 && last.used[1] >= 0.9, "{parts:?}");
    assert!(last.shares.iter().all(|s| (s - 1.0).abs() <= 0.15), "{parts:?}");
    // Without a control the delay is 120 ms.
    assert!(last.modem_ms[0] <= 20.0, "{parts:?}");
    assert!(last.call_ms[0] <= 40.0, "{parts:?}");
}

#[test]
fn an_uplink_is_learned_while_downloads_run() {
    judged(learn_an_uplink_beside_downloads);
}

/// Plays every cell for a link.
fn table(down_mbit: f64, up_mbit: f64) {
    if !privileged() {
        return;
    }
    for (uploads, algorithm) in [(1, "cubic"), (4, "cubic"), (1, "bbr")] {
        for are_first in [true, false] {
            for (control, is_shared) in [("none", false), ("fairweir", false), ("fairweir", true)] {
                let order = if are_first { "before" } else { "beside" };
                let shared = if is_shared { ", shared" } else { "" };
                note(&format!(
                    "{down_mbit}/{up_mbit} Mbit/s, {uploads} {algorithm} {order}, {control}{shared}"
                ));
                Cell { down_mbit, up_mbit, uploads, algorithm, control, is_shared, are_first }
                    .play(4);
            }
        }
    }
}

#[test]
#[ignore = "long: 8 min"]
fn uploads_beside_downloads_at_28_over_10_mbit() {
    table(28.0, 10.0);
}

#[test]
#[ignore = "long: 8 min"]
fn uploads_beside_downloads_at_50_over_10_mbit() {
    table(50.0, 10.0);
}

#[test]
#[ignore = "long: 8 min"]
fn uploads_beside_downloads_at_200_over_20_mbit() {
    table(200.0, 20.0);
}

#[test]
#[ignore = "long: 8 min"]
fn uploads_beside_downloads_at_28_over_1_mbit() {
    table(28.0, 1.0);
}
