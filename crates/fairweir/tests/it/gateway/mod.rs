//! Compares the gateway's ways to limit rates, with real packets. Both tests print tables for the documents:
//! `cargo test -p fairweir --features evidence --test it gateway:: -- --ignored --nocapture --test-threads 1`

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{note, privileged};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

mod film;
mod via;

use crate::common::far::Far;
use crate::common::home::{Device, devices, has_nat, ip};
use crate::common::process;
use crate::common::stage::{Daemon, Download, Stage};

const PATIENCE: Duration = Duration::from_secs(10);

/// How the home limits rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// No limit.
    Nothing,
    /// `fairweir router`, which sets windows in acknowledgements.
    Router,
    /// `fairweir proxy`.
    Proxy,
    /// A token bucket of this size in bytes on the WAN interface, which drops packets. This kernel has no
    /// `act_police`; the limit of nftables is the same bucket.
    Policing(u32),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Nothing => write!(f, "nothing"),
            By::Router => write!(f, "router (ACKs)"),
            By::Proxy => write!(f, "proxy"),
            By::Policing(burst) => write!(f, "policing, {} kB", burst / 1_000),
        }
    }
}

fn home<const N: usize>(mbit: f64, names: [&'static str; N]) -> (Stage, [Device; N]) {
    let stage = Stage::with_link(mbit);
    let devices = devices(&stage, names);
    stage.at_home(|| {
        ip("link set lo up");
        for family in ["iptables", "ip6tables"] {
            // Only a kernel with br_netfilter has it.
            let _ = fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), "0");
        }
        // The machine's default may be bbr, whose probing makes rates uneven.
        ip("route replace 192.168.7.0/24 dev br-lan src 192.168.7.254 congctl cubic");
    });
    (stage, devices)
}

fn start_proxy(stage: &Stage, classes: &str) -> Daemon {
    let text = format!("version = 1\n[proxy]\nlan = [\"br-lan\"]\n{classes}");
    fs::write(stage.path("proxy.toml"), text).unwrap();
    stage.start_proxy(None)
}

fn start_router(stage: &Stage, keys: &str, devices: &str) -> Daemon {
    stage.configure(&format!(
        "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\n{keys}\n{devices}"
    ));
    stage.start_router(&[])
}

const WEIGHTS: [u32; 3] = [4, 2, 1];
const LINK_MBIT: f64 = 28.0;
/// The part of the link that the proxy's classes have in total: the rate that the router reaches without a queue.
const PART: f64 = 0.96;

fn start(by: By, stage: &Stage, home: &[Device; 3], mbit: f64) -> Option<Daemon> {
    let each = home.iter().zip(WEIGHTS);
    match by {
        By::Router => {
            let device = |(device, weight): (&Device, u32)| {
                format!(
                    "[[device]]\nname = \"{}\"\nweight = {weight}\nmatch = [\"mac:{}\"]\n",
                    device.name, device.mac
                )
            };
            Some(start_router(stage, "", &each.map(device).collect::<String>()))
        }
        By::Proxy => {
            let class = |(device, weight): (&Device, u32)| {
                let kbit = mbit * PART * 1e3 * f64::from(weight) / 7.0;
                format!(
                    "[[class]]\nname = \"{}\"\nrate = \"{kbit:.0}kbit\"\nmatch = [\"mac:{}\"]\n",
                    device.name, device.mac
                )
            };
            Some(start_proxy(stage, &each.map(class).collect::<String>()))
        }
        By::Nothing | By::Policing(_) => None,
    }
}

/// A server that sends 10 kB for each byte it receives.
fn serve_requests(far: &Far) -> SocketAddr {
    let listener = far.run(|| TcpListener::bind("0.0.0.0:0").unwrap());
    let at = SocketAddr::new(far.address().ip(), listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = stream.read_exact(&mut [0]);
                let _ = stream.write_all(&[7; 10_000]);
            });
        }
    });
    at
}

/// Median times in ms until a connection is open, and until 10 kB have arrived.
fn request(device: &Device, server: SocketAddr, number: usize) -> [f64; 2] {
    let one = || {
        let begin = Instant::now();
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE).unwrap();
        let open = begin.elapsed();
        stream.write_all(&[1]).unwrap();
        stream.read_exact(&mut [0; 10_000]).unwrap();
        thread::sleep(Duration::from_millis(20));
        [open, begin.elapsed() - Duration::from_millis(20)].map(|span| span.as_secs_f64() * 1e3)
    };
    let times: Vec<_> = device.run(|| (0..number).map(|_| one()).collect());
    [0, 1].map(|i| median(times.iter().map(|time| time[i])))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds until `curl` has loaded a page from a server whose IPv6 address does not answer.
fn dead_ipv6(stage: &Stage, device: &Device, server: SocketAddr) -> f64 {
    stage.at_internet(|| ip("-6 route add blackhole 2001:db8:dead::/64"));
    let (port, address) = (server.port(), server.ip());
    let to = format!("page.example.com:{port}:[2001:db8:dead::2],{address}");
    let args = ["-s", "-o", "/dev/null", "-m", "9", "--http0.9", "-w", "%{time_total}"];
    let url = format!("http://page.example.com:{port}/");
    let output = device
        .run(|| Command::new("curl").args(args).args(["--resolve", &to, &url]).output().unwrap());
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

/// Which hosts' packets count as the daemon's CPU time. Without interrupts of their own, the emulated hosts receive
/// and answer a packet within the daemon's system call that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// The work of all hosts, as it happens.
    WithOtherHosts,
    /// Only the gateway: it has a core to itself, and another core handles what other hosts receive.
    GatewayAlone,
}

/// Makes core `core` handle the packets that `device` in this namespace receives.
fn steer(device: &str, core: u32) {
    let mask = 1 << core;
    let line = format!(
        "mount -t sysfs sysfs /sys && echo {mask:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus"
    );
    let done = Command::new("unshare").args(["--mount", "sh", "-c", &line]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Restricts the process to one core; pid 0 is this thread, including the threads it starts later.
fn pin(pid: i32, core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core).unwrap();
    sched_setaffinity(Pid::from_raw(pid), &cores).unwrap();
}

/// Core seconds per Gbit of payload, for the daemon and for BPF programs, on a link that is no bottleneck.
fn cost(by: By, counted: Counted) -> Option<[f64; 2]> {
    let is_alone = counted == Counted::GatewayAlone;
    if is_alone {
        pin(0, 1);
    }
    let (stage, home) = home(1_000.0, ["tv", "desk", "phone"]);
    let daemon = start(by, &stage, &home, 1_000.0)?;
    if is_alone {
        pin(daemon.pid() as i32, 0);
        stage.at_internet(|| steer("isp", 1));
        home.iter().for_each(|device| device.run(|| steer("eth0", 1)));
        stage.at_home(|| ["wan", "port1", "port2", "port3"].map(|device| steer(device, 0)));
    }
    let server: SocketAddr = format!("10.9.0.1:{}", stage.port()).parse().unwrap();
    let downloads: Vec<_> =
        home.iter().flat_map(|device| [device.download(server), device.download(server)]).collect();
    thread::sleep(Duration::from_secs(5));
    let received = || downloads.iter().map(Download::received).sum::<u64>();
    let before = (received(), daemon.cpu_time(), process::bpf_time(daemon.pid()));
    thread::sleep(Duration::from_secs(10));
    let gbit = (received() - before.0) as f64 * 8e-9;
    let cpu = (daemon.cpu_time() - before.1).as_secs_f64();
    let programs = (process::bpf_time(daemon.pid()) - before.2).as_secs_f64();
    note(&format!(
        "{by}, {counted:?}: {:.2} Gbit/s, {:.3} core s per Gbit",
        gbit / 10.0,
        cpu / gbit
    ));
    Some([cpu / gbit, programs / gbit])
}

fn compare(by: By) {
    let (stage, home) = home(LINK_MBIT, ["tv", "desk", "phone"]);
    let far = Far::new(&stage, "far", "198.51.100.1", None);
    let requests = serve_requests(&far);
    let daemon = start(by, &stage, &home, LINK_MBIT);
    let [open, idle] = request(&home[1], requests, 41);
    let dead = dead_ipv6(&stage, &home[1], requests);
    let downloads: Vec<_> = home
        .iter()
        .flat_map(|device| [device.download(far.address()), device.download(far.address())])
        .collect();
    thread::sleep(Duration::from_secs(12));
    let parts = || [0, 1, 2].map(|i| downloads[2 * i].received() + downloads[2 * i + 1].received());
    let before = parts();
    let pings = stage.ping("10.9.0.1", Duration::from_millis(50), Duration::from_secs(10));
    let after = parts();
    let [_, busy] = request(&home[1], requests, 15);
    let parts = [0, 1, 2].map(|i| (after[i] - before[i]) as f64);
    let all: f64 = parts.iter().sum();
    let error: f64 = parts
        .iter()
        .zip(WEIGHTS)
        .map(|(part, weight)| (part / all - f64::from(weight) / 7.0).abs() / 2.0)
        .sum();
    let queue = pings.iter().map(Duration::as_secs_f64).sum::<f64>() / pings.len() as f64 * 1e3;
    let p95 = pings[pings.len() * 95 / 100].as_secs_f64() * 1e3;
    let memory = daemon.as_ref().map(|daemon| {
        let maps = process::bpf_maps(daemon.pid()) as f64 / 1e6;
        format!("{:.1} MB and {maps:.1} MB of maps", (daemon.memory("VmRSS") >> 10) as f64 / 1e3)
    });
    drop(downloads);
    drop(daemon);
    let cost = cost(by, Counted::WithOtherHosts);
    let cost = cost.map(|[cpu, programs]| format!("{cpu:.3} and {programs:.3}"));
    let none = || "-".to_owned();
    note(&format!(
        "| {by} | {error:.4} | {:.1} Mbit/s | {queue:.1}, {p95:.1} ms | {} | {} | {open:.1} ms | {idle:.1} ms | \
         {busy:.1} ms | {dead:.2} s |",
        all * 8e-7 * 1_514.0 / 1_448.0,
        cost.unwrap_or_else(none),
        memory.unwrap_or_else(none),
    ));
}

#[test]
#[ignore = "long: 2 min; prints a table"]
fn the_same_policy_by_acknowledgements_and_by_the_proxy() {
    assert!(privileged() && has_nat());
    let _counting = process::Counting::begin();
    note(
        "| by | error | used | queue mean, 95 % | core s per Gbit: daemon, BPF | memory | connect | 10 kB, \
         idle | 10 kB, busy | dead IPv6 |",
    );
    for by in [By::Nothing, By::Router, By::Proxy] {
        compare(by);
    }
}

/// `cargo test -p fairweir --features evidence --test it a_gigabit -- --ignored --nocapture`
#[test]
#[ignore = "long: half a minute; prints what the proxy costs"]
fn a_gigabit_by_the_proxy_takes_half_a_core_second() {
    assert!(privileged() && has_nat());
    // On a separate thread, because the thread is pinned to a core.
    let of = |counted| thread::spawn(move || cost(By::Proxy, counted).unwrap()[0]).join().unwrap();
    of(Counted::WithOtherHosts);
    let daemon = of(Counted::GatewayAlone);
    assert!(daemon <= 0.5, "{daemon} core s per Gbit");
}

/// Payload rate in Mbit/s of a download with an RTT of 80 ms, whose last hop loses `per_mille` of 1,000 packets.
fn over_a_lossy_hop(by: By, per_mille: u32) -> f64 {
    let (stage, [device]) = home(30.0, ["pc"]);
    let far = Far::with_delay(&stage, "far", "198.51.100.1", None, Duration::from_millis(40));
    let class = "[[class]]\nname = \"pc\"\nrate = \"30mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n";
    let daemon = (by == By::Proxy).then(|| start_proxy(&stage, class));
    if per_mille > 0 {
        device.lose(per_mille);
    }
    let download = device.download(far.address());
    thread::sleep(Duration::from_secs(8));
    let mbit = download.mbit_over(Duration::from_secs(20));
    assert!(daemon.is_none_or(|daemon| daemon.status()["accepted"] == 1));
    mbit
}

/// `cargo test -p fairweir --features evidence --test it gateway::a_lossy -- --ignored --nocapture`
#[test]
#[ignore = "long: 90 s"]
fn a_lossy_last_hop_by_the_proxy_and_directly() {
    assert!(privileged() && has_nat());
    let mut missed = Vec::new();
    for (per_mille, least) in [(0, 0.97), (5, 4.0), (20, 8.0)] {
        let [proxy, direct] = thread::scope(|scope| {
            [By::Proxy, By::Nothing]
                .map(|by| scope.spawn(move || over_a_lossy_hop(by, per_mille)))
                .map(|thread| thread.join().unwrap())
        });
        let (percent, gain) = (f64::from(per_mille) / 10.0, proxy / direct);
        note(&format!(
            "{percent} % lost: {proxy:.2} Mbit/s by the proxy, {direct:.2} directly: {gain:.3} times"
        ));
        if gain < least {
            missed.push(format!("{percent} %: {gain:.3} of {least}"));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// For one download: the rate's deviation from the limit, the retransmissions, and the spread of the rate.
#[derive(Clone, Copy, Debug)]
struct Point {
    off: f64,
    again: f64,
    jitter: f64,
}

/// Numbers of TCP segments that the server has sent and retransmitted.
fn segments(far: &Far) -> [f64; 2] {
    let text = far.run(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let of = |wanted: &str| {
        let place = names.split_whitespace().position(|name| name == wanted).unwrap();
        values.split_whitespace().nth(place).unwrap().parse().unwrap()
    };
    [of("OutSegs"), of("RetransSegs")]
}

/// Sets up a token bucket on the home's WAN interface.
fn police(stage: &Stage, mbit: u32, burst: u32) {
    // The bucket counts packets without the Ethernet header.
    let bytes = u64::from(mbit) * 125_000 * 1_500 / 1_514;
    stage.at_home(|| {
        for line in [
            "add table netdev police",
            "add chain netdev police in { type filter hook ingress device wan priority 0 ; }",
            &format!(
                "add rule netdev police in limit rate over {bytes} bytes/second burst {burst} bytes \
                 drop"
            ),
        ] {
            assert!(Command::new("nft").arg(line).status().unwrap().success());
        }
    });
}

fn limited(by: By, mbit: u32, rtt_ms: u64, seconds: u64) -> Point {
    let (stage, [device]) = home(100.0, ["pc"]);
    let delay = Duration::from_millis(rtt_ms) / 2;
    let far = Far::with_delay(&stage, "far", "198.51.100.1", None, delay);
    let mac = &device.mac;
    let daemon = match by {
        By::Nothing => None,
        By::Router => {
            let keys = format!("control = \"rbm\"\ncapacity = \"{mbit}mbit\"");
            let device =
                format!("[[device]]\nname = \"pc\"\nweight = 1\nmatch = [\"mac:{mac}\"]\n");
            Some(start_router(&stage, &keys, &device))
        }
        By::Proxy => {
            let class = format!(
                "[[class]]\nname = \"pc\"\nrate = \"{mbit}mbit\"\nmatch = [\"mac:{mac}\"]\n"
            );
            Some(start_proxy(&stage, &class))
        }
        By::Policing(burst) => {
            police(&stage, mbit, burst);
            None
        }
    };
    let download = device.download(far.address());
    thread::sleep(Duration::from_secs(6));
    let (sent, begin, before) = (segments(&far), Instant::now(), download.received());
    let mut rates = Vec::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        rates.push(download.mbit_over(Duration::from_millis(200)));
    }
    let received = (download.received() - before) as f64 * 8e-6 / begin.elapsed().as_secs_f64();
    let now = segments(&far);
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let spread = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
    drop((download, daemon));
    Point {
        off: received * 1_514.0 / 1_448.0 / f64::from(mbit) - 1.0,
        again: (now[1] - sent[1]) / (now[0] - sent[0]),
        jitter: spread.sqrt() / mean,
    }
}

/// Points for all ways to limit, measured at the same time; each has its own link.
fn points(mbit: u32, rtt_ms: u64, seconds: u64) -> Vec<(By, Point)> {
    let all = [10_000, 50_000, 200_000].map(By::Policing);
    let all = [By::Proxy, By::Router].into_iter().chain(all);
    thread::scope(|scope| {
        let threads: Vec<_> =
            all.map(|by| (by, scope.spawn(move || limited(by, mbit, rtt_ms, seconds)))).collect();
        threads.into_iter().map(|(by, thread)| (by, thread.join().unwrap())).collect()
    })
}

/// MYOB figure 4 with real packets: (a) rates at 100 ms, (b) and (c) round trips at 8 Mbit/s.
#[test]
#[ignore = "long: 3 min; prints the tables of figure 4"]
fn figure_4_rates_by_reading_slowly_beside_policing() {
    assert!(privileged() && has_nat());
    let mut proxy = Vec::new();
    note("| Mbit/s | RTT | by | rate off | sent again | jitter |");
    let settings = [(1, 100), (4, 100), (8, 100), (15, 100), (8, 20), (8, 60)];
    for (mbit, rtt) in settings {
        for (by, point) in points(mbit, rtt, 15) {
            let Point { off, again, jitter } = point;
            note(&format!(
                "| {mbit} | {rtt} ms | {by} | {:+.1} % | {:.2} % | {:.0} % |",
                off * 100.0,
                again * 100.0,
                jitter * 100.0
            ));
            if by == By::Proxy {
                proxy.push((mbit, rtt, point));
            }
        }
    }
    for (mbit, rtt, Point { off, again, .. }) in proxy {
        assert!(off.abs() < 0.04 && again <= 0.001, "{mbit} Mbit/s, {rtt} ms: {off} {again}");
    }
}
