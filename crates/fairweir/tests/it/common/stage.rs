//! A home behind a slow link, with real TCP: two network namespaces and a veth pair.
//!
//! TBF limits the sender's end, in place of the ISP. Test code may call `tc`; the product does
//! not.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::{link, netns::Netns};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use fairweir_testing::traffic;

use super::{FAIRWEIR, process, schema};

/// Rate of the link, in Mbit/s.
pub const LINK_MBIT: f64 = 40.0;

/// Servers in the internet; each sends without end on every connection.
pub const SERVERS: [&str; 2] = ["10.9.0.1", "10.9.0.3"];

/// The home, with the interface `wan`, and the internet.
pub struct Stage {
    home: Netns,
    internet: Netns,
    port: u16,
    dir: TempDir,
    mbit: f64,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with_link(LINK_MBIT)
    }

    /// A stage whose link carries `mbit` Mbit/s.
    pub fn with_link(mbit: f64) -> Stage {
        let (home, internet) = (Netns::new().unwrap(), Netns::new().unwrap());
        let dir = TempDir::new().unwrap();
        let port = internet.run(|| serve_without_end("0.0.0.0:0"));
        let stage = Stage { home, internet, port, dir, mbit };
        stage.plug_in();
        stage
    }

    /// Connects the home and the internet with a cable.
    pub fn plug_in(&self) {
        let internet = &self.internet;
        self.home.run(|| {
            link::create_veth("wan", internet, "isp").unwrap();
            link::offloads("wan", false).unwrap();
            link::add_address("wan", "10.9.0.2/24".parse().unwrap()).unwrap();
            link::set_up("wan").unwrap();
            let gateway = Some("10.9.0.1".parse().unwrap());
            link::add_route("0.0.0.0/0".parse().unwrap(), gateway, "wan").unwrap();
        });
        internet.run(|| {
            link::offloads("isp", false).unwrap();
            for server in SERVERS {
                link::add_address("isp", format!("{server}/24").parse().unwrap()).unwrap();
            }
            link::set_up("isp").unwrap();
        });
        let rate = format!("{}mbit", self.mbit);
        let tbf = "qdisc add dev isp root tbf burst 64k latency 50ms rate";
        let args: Vec<&str> = tbf.split(' ').chain([rate.as_str()]).collect();
        self.internet.run(|| assert!(Command::new("tc").args(args).status().unwrap().success()));
    }

    /// Gives the ISP's end, the home's gateway, another MAC address; the home notices at once.
    pub fn set_gateway_address(&self, mac: &str) {
        let set = format!("link set isp address {mac}");
        let set = set.split(' ');
        self.internet.run(|| assert!(Command::new("ip").args(set).status().unwrap().success()));
        assert!(self.run("ip neigh flush dev wan").status.success());
        // Only to resolve the address again; the result does not matter.
        let _ = self.home.run(|| TcpStream::connect((SERVERS[0], self.port)));
    }

    /// Disconnects the cable.
    pub fn unplug(&self) {
        self.home.run(|| link::delete("wan").unwrap());
    }

    /// The home's namespace.
    pub fn home(&self) -> &Netns {
        &self.home
    }

    pub fn internet(&self) -> &Netns {
        &self.internet
    }

    /// Runs `work` in the home.
    pub fn at_home<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.home.run(work)
    }

    /// Runs `work` in the internet.
    pub fn at_internet<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.internet.run(work)
    }

    /// The port of the internet's servers.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command in the home and waits for its end.
    pub fn run(&self, command: &str) -> Output {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap();
        self.home.run(|| Command::new(program).args(words).output().unwrap())
    }

    /// Runs fairweir in the home, with this stage's socket directory.
    pub fn fairweir(&self, args: &str) -> Output {
        let run_dir = self.run_dir();
        let args = args.split_whitespace().map(str::to_owned);
        let args: Vec<_> = args.chain(["--run-dir".into(), run_dir]).collect();
        let output = self.home.run(|| Command::new(FAIRWEIR).args(&args).output().unwrap());
        schema::check(&args, &output);
        output
    }

    pub fn run_dir(&self) -> String {
        self.dir.path().join("run").display().to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits until the stored data about networks contain `text`.
    pub fn wait_for_memory(&self, text: &str, patience: Duration) {
        let path = self.path("state/capacity.json");
        let deadline = Instant::now() + patience;
        while !fs::read_to_string(&path).is_ok_and(|memory| memory.contains(text)) {
            assert!(Instant::now() < deadline, "`{text}` is not remembered in {patience:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Replaces the configuration as an editor does: by renaming a new file over the old one.
    pub fn configure(&self, text: &str) {
        let new = self.path(".fairweir.toml.swp");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path("fairweir.toml")).unwrap();
    }

    /// The settings that `set` and the page have stored for a host's daemon.
    pub fn set_file(&self) -> Option<String> {
        fs::read_to_string(self.path("conf.d/zz-set.toml")).ok()
    }

    /// The command for a host's daemon on `wan`.
    pub fn host_command(&self, program: &[&str], more: &[&str]) -> Command {
        self.command(program, &["host", "--dev", "wan"], more)
    }

    /// The command for a daemon.
    fn command(&self, program: &[&str], role: &[&str], more: &[&str]) -> Command {
        let mut command = match program {
            [] => Command::new(super::daemon_binary()),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(FAIRWEIR);
                command
            }
        };
        command.args(role).args(["--run-dir", &self.run_dir()]);
        command.arg("--config").arg(self.path("fairweir.toml"));
        command.arg("--state-dir").arg(self.path("state"));
        command.args(more).env_remove("RUST_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a daemon and waits until it is ready.
    pub fn start(&self, more: &[&str]) -> Daemon {
        self.start_as(&[], more)
    }

    /// As [`Stage::start`], with another program that starts the daemon.
    pub fn start_as(&self, program: &[&str], more: &[&str]) -> Daemon {
        self.spawn(self.host_command(program, more), "host-wan")
    }

    /// Starts a router's daemon and waits until it is ready.
    pub fn start_router(&self, more: &[&str]) -> Daemon {
        self.spawn(self.command(&[], &["router"], more), "router-wan")
    }

    /// Starts a gateway's proxy with `proxy.toml`, limited to `files` descriptors, and waits until it is ready.
    pub fn start_proxy(&self, files: Option<u32>) -> Daemon {
        let mut command = match files {
            None => Command::new(FAIRWEIR),
            Some(files) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={files}:{files}")).arg(FAIRWEIR);
                command
            }
        };
        command.arg("proxy").arg("-c").arg(self.path("proxy.toml"));
        command.args(["--run-dir", &self.run_dir(), "--user-group", super::page::GROUP]);
        command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::null());
        self.spawn(command, "proxy")
    }

    fn spawn(&self, mut command: Command, instance: &str) -> Daemon {
        // A file: a pipe without a reader would fill up and block the daemon.
        let log = File::create(self.path("daemon.log")).unwrap();
        command.stderr(log);
        let child = self.home.run(|| command.spawn().unwrap());
        let socket = self.dir.path().join(format!("run/{instance}.sock"));
        Daemon::begun(child, socket, self.path("daemon.log"), |status| status["ready"] == true)
    }

    /// Starts a download from a server to the home.
    pub fn download(&self, server: &str) -> Download {
        let address: SocketAddr = format!("{server}:{}", self.port).parse().unwrap();
        let stream = self.home.run(|| TcpStream::connect(address).unwrap());
        Download::new(stream)
    }

    /// Round-trip times of small packets to a server, one every `period`, during `span`.
    pub fn ping(&self, server: &str, period: Duration, span: Duration) -> Vec<Duration> {
        self.ping_at(&self.internet, server, period, span)
    }

    /// As [`Stage::ping`], to a server in `netns`.
    pub fn ping_at(
        &self,
        netns: &Netns,
        server: &str,
        period: Duration,
        span: Duration,
    ) -> Vec<Duration> {
        let echo = netns.run(|| UdpSocket::bind((server, 0)).unwrap());
        let socket = self.home.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        round_trips(echo, &socket, period, span)
    }

    /// Number of L2 bytes that arrived over the link.
    pub fn received(&self) -> u64 {
        traffic(&self.home, "wan").received
    }

    /// Names of the interfaces of the home.
    pub fn interfaces(&self) -> Vec<String> {
        self.home.run(|| link::all().unwrap().into_iter().map(|l| l.name).collect())
    }
}

/// A running daemon, which is killed when dropped.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// A daemon that was started, returned when `is_ready` accepts its status.
    pub fn begun(
        child: Child,
        socket: PathBuf,
        log: PathBuf,
        is_ready: impl Fn(&Value) -> bool,
    ) -> Daemon {
        Daemon::begun_within(Duration::from_secs(30), child, socket, log, is_ready)
    }

    /// As [`Daemon::begun`], with a time limit.
    pub fn begun_within(
        patience: Duration,
        child: Child,
        socket: PathBuf,
        log: PathBuf,
        is_ready: impl Fn(&Value) -> bool,
    ) -> Daemon {
        let mut daemon = Daemon { child, socket, log };
        let deadline = Instant::now() + patience;
        while !daemon.ask("status").is_some_and(|status| is_ready(&status)) {
            if daemon.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                panic!("the daemon is not ready: {}", daemon.kill_and_read());
            }
            thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ids of the BPF programs that it holds.
    pub fn programs(&self) -> BTreeSet<u32> {
        let dir = fs::read_dir(format!("/proc/{}/fdinfo", self.pid())).unwrap();
        let texts = dir.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
        let all = texts.collect::<Vec<_>>().join("\n");
        let numbers = all.lines().filter_map(|line| line.strip_prefix("prog_id:"));
        numbers.map(|number| number.trim().parse().unwrap()).collect()
    }

    /// CPU time used so far.
    pub fn cpu_time(&self) -> Duration {
        process::cpu_time(self.pid())
    }

    /// Its memory in bytes, as [`process::memory`] names it.
    pub fn memory(&self, what: &str) -> u64 {
        process::memory(self.pid(), what)
    }

    /// The value in the reply, or the whole reply if it contains none; `None` if there is no reply within 3 s.
    pub fn ask(&self, request: &str) -> Option<Value> {
        self.ask_json(&serde_json::json!({ "request": request }))
    }

    /// As [`Daemon::ask`], for a request with more than a name.
    pub fn ask_json(&self, request: &Value) -> Option<Value> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        writeln!(stream, "{request}").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        value_of(serde_json::from_str(&line).ok()?)
    }

    pub fn status(&self) -> Value {
        self.ask("status").expect("the daemon answers")
    }

    /// Waits until `wanted` accepts the status.
    pub fn wait_for(&self, what: &str, patience: Duration, wanted: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + patience;
        while !self.ask("status").is_some_and(|status| wanted(&status)) {
            assert!(Instant::now() < deadline, "not {what}: {:#}", self.status());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Closes the daemon's standard input.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end and returns its exit code (None after a signal) and all its output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end: {}", self.kill_and_read());
            thread::sleep(Duration::from_millis(20));
        }
        let code = self.child.wait().unwrap().code();
        (code, self.kill_and_read())
    }

    fn kill_and_read(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let said = self.kill_and_read();
        if thread::panicking() {
            eprintln!("--- the daemon said:\n{said}---");
        }
    }
}

/// The value in a daemon's reply, or the whole reply if it contains none.
pub fn value_of(mut reply: Value) -> Option<Value> {
    if reply["reply"] == "value" { Some(reply["value"].take()) } else { Some(reply) }
}

/// A TCP connection on which data are received without end.
pub struct Download {
    received: Arc<AtomicU64>,
    broken: Arc<AtomicBool>,
    stream: TcpStream,
}

impl Download {
    pub fn new(stream: TcpStream) -> Download {
        let (received, broken) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let (count, ended) = (Arc::clone(&received), Arc::clone(&broken));
        let mut reader = stream.try_clone().unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                count.fetch_add(n as u64, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
        Download { received, broken, stream }
    }

    /// The connection's local address, in the home.
    pub fn local_address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Payload bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Its payload rate during the next `span`, in Mbit/s.
    pub fn mbit_over(&self, span: Duration) -> f64 {
        let (begin, before) = (Instant::now(), self.received());
        thread::sleep(span);
        let volume = self.received() - before;
        volume as f64 * 8e-6 / begin.elapsed().as_secs_f64()
    }

    /// Waits until the rate over the last second is within `range`.
    ///
    /// Data behind a lost packet are read all at once when that packet arrives, up to 0.4 s later, and a lone
    /// connection in a slow class loses a packet about once per second. Measured every half second, the rate
    /// would show only gaps and bursts.
    pub fn wait_for_rate(&self, range: std::ops::Range<f64>, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut readings = VecDeque::from([(Instant::now(), self.received())]);
        let mut seen = Vec::new();
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = (Instant::now(), self.received());
            readings.push_back(now);
            let is_second = |before: Instant| now.0 - before >= Duration::from_secs(1);
            while readings.get(1).is_some_and(|&(next, _)| is_second(next)) {
                readings.pop_front();
            }
            let (since, before) = readings[0];
            let rate = (now.1 - before) as f64 * 8e-6 / (now.0 - since).as_secs_f64();
            if is_second(since) && range.contains(&rate) {
                return;
            }
            seen.push(format!("{rate:.1}"));
            let all = seen.join(", ");
            assert!(now.0 < deadline, "never within {range:?} Mbit/s, but {all}");
        }
    }

    /// Whether the connection has ended.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Listens, and sends on each connection until the client closes it. Returns the port.
pub fn serve_without_end(address: &str) -> u16 {
    // The machine's default may be bbr, whose start-up and probing would only slow these tests down.
    serve_without_end_by(address, "cubic")
}

/// As [`serve_without_end`], with another congestion control.
pub fn serve_without_end_by(address: &str, congestion_control: &'static str) -> u16 {
    let listener = TcpListener::bind(address).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || send_without_end(stream, congestion_control));
        }
    });
    port
}

fn send_without_end(mut stream: TcpStream, congestion_control: &str) {
    setsockopt(&stream, TcpCongestion, &congestion_control.into()).unwrap();
    let bytes = vec![7; 1 << 14];
    while stream.write_all(&bytes).is_ok() {}
}

/// Round-trip times from `socket` to `echo`, one every `period`, during `span`; sorted.
pub fn round_trips(
    echo: UdpSocket,
    socket: &UdpSocket,
    period: Duration,
    span: Duration,
) -> Vec<Duration> {
    let address = echo.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        // The last packet is empty.
        while let Ok((n @ 1.., from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..n], from);
        }
    });
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < span {
        let sent = Instant::now();
        socket.send(&[7; 32]).unwrap();
        if socket.recv(&mut [0; 64]).is_ok() {
            times.push(sent.elapsed());
        }
        thread::sleep(period.saturating_sub(sent.elapsed()));
    }
    let _ = socket.send(&[]);
    times.sort();
    times
}
