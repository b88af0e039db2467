//! 200 devices and 20,000 connections: memory of the daemon and of its tables, and the cost of a tick.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{note, privileged};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::PATIENCE;
use crate::common::home::{devices, has_nat};
use crate::common::process;
use crate::common::stage::{Daemon, SERVERS, Stage};

const DEVICES: usize = 200;
const CONNECTIONS: usize = 20_000;
/// File descriptors that a process needs for other purposes.
const RESERVE: u64 = 200;
/// Environment variable with the address for a process of this binary that acts as the server.
const SERVER: &str = "FAIRWEIR_TEST_TRICKLE";
/// Interval between rounds of packets; with ticks of 200 ms, each connection has a packet in every tick.
const ROUND: Duration = Duration::from_millis(150);
const WATCHED: Duration = Duration::from_secs(10);
const TICKS: u32 = 50;

/// As many connections as the limit of file descriptors allows, at most [`CONNECTIONS`].
fn connections() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    CONNECTIONS.min((most - RESERVE) as usize)
}

/// A server that sends a byte to every connection, again and again.
fn serve(address: &str) {
    let count = connections();
    let listener = TcpListener::bind(address).unwrap();
    let mut all = Vec::new();
    for stream in listener.incoming().take(count) {
        let stream = stream.unwrap();
        stream.set_nodelay(true).unwrap();
        all.push(stream);
    }
    loop {
        let begin = Instant::now();
        for stream in &mut all {
            if stream.write_all(&[7]).is_err() {
                return;
            }
        }
        thread::sleep(ROUND.saturating_sub(begin.elapsed()));
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon's memory in bytes: resident (with its binary's pages), anonymous, and the kernel's for its tables.
fn memory(daemon: &Daemon) -> [u64; 3] {
    [daemon.memory("VmRSS"), daemon.memory("RssAnon"), process::bpf_maps(daemon.pid())]
}

#[test]
#[ignore = "long: 25 s; the bounds are those of a release build"]
fn many_devices_and_connections_cost_little() {
    // The test starts itself as the server, in a process with its own file descriptors.
    if let Ok(address) = std::env::var(SERVER) {
        return serve(&address);
    }
    if !privileged() || !has_nat() {
        return;
    }
    let count = connections();
    let stage = Stage::with_link(1_000.0);
    let [tv] = devices(&stage, ["tv"]);
    let mut text = "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\n".to_owned();
    for number in 1..=DEVICES {
        text += &format!(
            "[[device]]\nname = \"device-{number}\"\nweight = 1\n\
             match = [\"mac:02:00:5e:00:{:02}:{:02x}\"]\n",
            if number == 1 { 53 } else { 54 },
            number
        );
    }
    stage.configure(&text);
    let daemon = stage.start_router(&[]);
    let address = format!("{}:4000", SERVERS[1]);
    let server = stage.at_internet(|| {
        fs::write("/proc/sys/net/core/somaxconn", "4096").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--ignored",
            "--exact",
            "router::scale::many_devices_and_connections_cost_little",
        ]);
        Server(command.env(SERVER, &address).stdout(Stdio::null()).spawn().unwrap())
    });
    let [_, before, _] = memory(&daemon);
    let connect = || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect(&address) {
                Ok(stream) => return stream,
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    };
    let streams: Vec<TcpStream> = tv.run(|| {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 60000").unwrap();
        (0..count).map(|_| connect()).collect()
    });
    thread::sleep(Duration::from_secs(5));
    let counting = process::Counting::begin();
    let programs = || (process::bpf_runs(daemon.pid()), process::bpf_time(daemon.pid()));
    let (used, begin, ran) = (daemon.cpu_time(), Instant::now(), programs());
    let (mut most, mut seen) = ([0; 3], Vec::new());
    while begin.elapsed() < WATCHED {
        let status = daemon.status();
        seen.push(status["connections"].as_u64().unwrap());
        let now = memory(&daemon);
        most = [0, 1, 2].map(|i| most[i].max(now[i]));
        thread::sleep(Duration::from_millis(500));
    }
    let tick = (daemon.cpu_time() - used) / TICKS;
    let (runs, time) = programs();
    let run_ns = (time - ran.1).as_nanos() as f64 / (runs - ran.0) as f64;
    drop(counting);
    seen.sort_unstable();
    let [resident, own, tables] = most.map(|bytes| bytes as f64 / 1e6);
    note(&format!(
        "{count} connections, {} in an observation (median): {own:.1} MB of its own ({:.1} before), \
         {resident:.1} MB resident, {tables:.1} MB of tables, {:.1} ms a tick; a program ran {run_ns:.0} ns, by \
         the kernel's own count",
        seen[seen.len() / 2],
        before as f64 / 1e6,
        tick.as_secs_f64() * 1e3
    ));
    assert!(own + tables <= 24.0, "{own} MB and {tables} MB of tables");
    assert!(tick <= Duration::from_millis(100), "{tick:?} of a tick's 200 ms");
    // The maximum that a control examines in a tick.
    assert_eq!(seen[seen.len() / 2], 4_096, "{seen:?}");
    drop((streams, server));
}
