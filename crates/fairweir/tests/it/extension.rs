//! Reports from browser extensions: `web/NAME.sock` with honest and dishonest users, the program that
//! browsers start, and its manifests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairweir_core::host_name::HostName;
use fairweir_core::sites::HostDigest;
use fairweir_testing::{note, privileged};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::stage::{Daemon, SERVERS, Stage, value_of};
use crate::common::web::{Fetch, Protocol, Web};
use crate::common::{FAIRWEIR, fairweir};

const PATIENCE: Duration = Duration::from_secs(5);
const CDN: &str = "cdn.video.example.com";
/// A user who owns no connection of these tests; all belong to root.
const STRANGER: u32 = 12_345;

const CONFIGURATION: &str = "version = 1\n[host]\ncontrol = \"fairweir\"\ncapacity = \"36mbit\"\n\
     [[group]]\nname = \"video\"\nweight = 4\nmatch = [\"web:video.example.com\"]\n\
     [[group]]\nname = \"bulk\"\nweight = 1\nmatch = [\"web:bulk.example.net\"]\n";

fn start() -> (Stage, Web, Daemon) {
    let stage = Stage::new();
    // Other users need access to the run directory.
    fs::set_permissions(stage.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let web = Web::new(&stage, &[CDN]);
    stage.configure(CONFIGURATION);
    let daemon = stage.start(&[]);
    (stage, web, daemon)
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3
}

/// Runs `work` with another user's permissions.
fn as_user<R: Send>(uid: u32, work: impl FnOnce() -> R + Send) -> R {
    let changed = || {
        // SAFETY: the call has no pointers; without libc's wrapper it changes this thread alone.
        let done = unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(done, 0);
        work()
    };
    thread::scope(|scope| scope.spawn(changed).join().unwrap())
}

/// A user's connection to `web/NAME.sock`.
struct Claimant {
    stream: BufReader<UnixStream>,
    generation: Value,
    salt: String,
}

impl Claimant {
    fn connect(stage: &Stage, uid: u32) -> Claimant {
        let path = Path::new(&stage.run_dir()).join("web/host-wan.sock");
        let stream = as_user(uid, || UnixStream::connect(path).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = BufReader::new(stream);
        let mut claimant = Claimant { stream, generation: Value::Null, salt: String::new() };
        let reply = claimant.claim(&[]);
        assert_eq!(reply["config"]["groups"][0]["sites"], json!(["video.example.com"]));
        assert_eq!(reply["config"]["groups"][2]["name"], "default");
        claimant.generation = reply["generation"].clone();
        claimant.salt = reply["config"]["salt"].as_str().unwrap().to_owned();
        claimant
    }

    fn send(&mut self, line: &str) -> Option<Value> {
        writeln!(self.stream.get_mut(), "{line}").ok()?;
        let mut reply = String::new();
        self.stream.read_line(&mut reply).ok()?;
        value_of(serde_json::from_str(&reply).ok()?)
    }

    fn claim(&mut self, events: &[Value]) -> Value {
        let request = json!({
            "request": "claims", "version": 1, "generation": self.generation, "events": events,
        });
        self.send(&request.to_string()).unwrap()
    }

    /// The report of a request to `name` that was sent and answered at these times.
    fn event(&self, web: &Web, name: &str, group: Value, (begin, start): (f64, f64)) -> Value {
        let name = HostName::from_wire(name.as_bytes()).unwrap();
        let HostDigest(digest) = HostDigest::new(&self.salt, &name);
        let host: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({
            "host": host, "address": SERVERS[0], "port": web.port(Protocol::Tls(9_000)),
            "group": group, "begin_ms": begin, "start_ms": start,
        })
    }
}

/// The report of the same request at the time when it is sent.
fn leaving(mut event: Value) -> Value {
    (event["address"], event["start_ms"]) = (Value::Null, Value::Null);
    event
}

/// A browser's request to the shared server, and when it was sent and answered.
fn fetch(stage: &Stage, web: &Web) -> (Fetch, (f64, f64)) {
    let begin = now_ms();
    let fetch = web.download(stage.home(), Protocol::Tls(9_000), SERVERS[0], CDN);
    let deadline = Instant::now() + PATIENCE;
    while fetch.received() == 0 {
        assert!(Instant::now() < deadline, "nothing is received");
        thread::sleep(Duration::from_millis(1));
    }
    (fetch, (begin, now_ms()))
}

fn connections(daemon: &Daemon) -> [u64; 3] {
    let status = daemon.status();
    [0, 1, 2].map(|group| status["groups"][group]["connections"].as_u64().unwrap())
}

#[test]
fn a_claim_moves_a_connection_of_its_own_user_and_no_other() {
    if !privileged() {
        return;
    }
    let (stage, web, daemon) = start();
    let mut owner = Claimant::connect(&stage, 0);
    let mut stranger = Claimant::connect(&stage, STRANGER);
    let (_first, first_at) = fetch(&stage, &web);
    thread::sleep(Duration::from_millis(300));
    let (_second, second_at) = fetch(&stage, &web);
    daemon.wait_for("two by SNI", PATIENCE, |s| s["groups"][0]["connections"] == 2);

    let forged = stranger.event(&web, CDN, json!(1), second_at);
    stranger.claim(&[forged.clone(), leaving(forged)]);
    let guessed = owner.event(&web, "www.video.example.com", json!(1), second_at);
    let (early, late) = (second_at.0 - 250.0, second_at.0 - 200.0);
    let untimely = owner.event(&web, CDN, json!(1), (early, late));
    owner.claim(&[guessed.clone(), leaving(guessed), untimely.clone(), leaving(untimely)]);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(connections(&daemon), [2, 0, 0], "nothing of that moves anything");
    assert_eq!(daemon.status()["sites"]["claims"]["unmatched"], 3);

    let told =
        [owner.event(&web, CDN, json!(0), first_at), owner.event(&web, CDN, json!(1), second_at)];
    let sent_at = Instant::now();
    owner.claim(&told);
    daemon.wait_for("one moved", PATIENCE, |s| s["groups"][1]["connections"] == 1);
    note(&format!("moved {:?} after the claim", sent_at.elapsed()));
    assert_eq!(connections(&daemon), [1, 1, 0]);
    let sites = daemon.status()["sites"].clone();
    assert_eq!((&sites["by_extension"], &sites["claims"]["counted"]), (&json!(2), &json!(2)));
    assert_eq!(sites["claims"]["users"], 2);
    let told = daemon.ask_json(&json!({ "request": "connections", "limit": 9 })).unwrap();
    let all = told["connections"].as_array().unwrap();
    assert!(all.iter().all(|c| c["evidence"]["reason"] == "extension"), "{told:#}");

    // A site without a rule, on a server that also has a site with one.
    let (_third, third_at) = fetch(&stage, &web);
    let event = owner.event(&web, CDN, Value::Null, third_at);
    owner.claim(&[event]);
    daemon.wait_for("none by the extension", PATIENCE, |s| s["groups"][2]["connections"] == 1);

    // After a change of the configuration, names on the wire count until there are new reports.
    stage.configure(&CONFIGURATION.replace("weight = 4", "weight = 3").replace("bulk.", "b."));
    assert!(stage.fairweir("reload --dev wan").status.success());
    daemon.wait_for("by SNI again", PATIENCE, |s| s["groups"][0]["connections"] == 3);
    let event = owner.event(&web, CDN, json!(1), third_at);
    let reply = owner.claim(&[event]);
    assert_ne!(reply["generation"], owner.generation);
    assert_eq!(reply["config"]["groups"][1]["sites"], json!(["b.example.net"]));
    assert_eq!(daemon.status()["sites"]["claims"]["stale"], 1);
}

#[test]
fn what_is_no_claim_is_refused_and_counted() {
    if !privileged() {
        return;
    }
    let (stage, web, daemon) = start();
    let refused = |what: &str| daemon.status()["sites"]["claims"][what].as_u64().unwrap();
    let mut claimant = Claimant::connect(&stage, STRANGER);
    for line in ["", "{}", "[]", "nonsense", "{\"request\":\"claims\",\"version\":1,\"x\":0}"] {
        let reply = claimant.send(line).unwrap();
        assert_eq!(reply["reply"], "error", "{line}: {reply}");
    }
    assert_eq!(refused("malformed"), 5);
    for request in ["status", "off", "reload", "metrics"] {
        let reply = claimant.send(&json!({ "request": request }).to_string()).unwrap();
        assert_eq!(reply["reply"], "error", "{request}: {reply}");
    }
    let reply = claimant.send(r#"{"request":"connections","limit":9}"#).unwrap();
    assert_eq!(reply["reply"], "error", "{reply}");
    let at = |ms: f64| (now_ms() + ms, now_ms() + ms + 5.0);
    let event = claimant.event(&web, CDN, json!(1), at(-100.0));
    claimant.claim(&[event.clone(), event.clone()]);
    claimant.claim(&[event]);
    assert_eq!(refused("repeated"), 2);
    // Times as if the clock had been set in between.
    for ms in [-3.6e6, 3.6e6, -1e12] {
        let event = claimant.event(&web, CDN, json!(1), at(ms));
        claimant.claim(&[event]);
    }
    assert_eq!(refused("out_of_time"), 3);
    let long = "x".repeat(1 << 20);
    assert_eq!(claimant.send(&long), None, "its connection is closed");
    let mut again = Claimant::connect(&stage, STRANGER);
    assert_eq!(again.claim(&[])["version"], 1);
}

/// Sends as many events as possible for `span`; returns how many.
fn flood(stage: &Stage, web: &Web, uid: u32, span: Duration) -> u64 {
    let mut claimant = Claimant::connect(stage, uid);
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < span {
        let event = |i: u32| {
            let at = now_ms() - f64::from(i);
            claimant.event(web, CDN, json!(1), (at, at + 0.5))
        };
        let events: Vec<Value> = (0..60).map(event).collect();
        claimant.claim(&events);
        sent += events.len() as u64;
    }
    sent
}

#[test]
fn floods_of_claims_do_not_hold_the_daemon() {
    if !privileged() {
        return;
    }
    let (stage, web, daemon) = start();
    let (span, used) = (Duration::from_secs(4), daemon.cpu_time());
    let (sent, mut answered) = thread::scope(|scope| {
        let (stage, web) = (&stage, &web);
        let floods: Vec<_> = (0..8)
            .map(|i| scope.spawn(move || flood(stage, web, STRANGER + i % 2, span)))
            .collect();
        let mut answered = Vec::new();
        while floods.iter().any(|flood| !flood.is_finished()) {
            let begin = Instant::now();
            daemon.status();
            answered.push(begin.elapsed());
            thread::sleep(Duration::from_millis(10));
        }
        let sent: u64 = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
        (sent, answered)
    });
    let used = daemon.cpu_time() - used;
    answered.sort_unstable();
    let p99 = answered[answered.len() * 99 / 100];
    let claims = daemon.status()["sites"]["claims"].clone();
    note(&format!("{sent} events in {span:?}: status p99 {p99:?}, CPU {used:?}, {claims}"));
    let of = |what: &str| claims[what].as_u64().unwrap();
    // Each user may send 500 per second, plus what was saved up.
    assert!(of("unmatched") <= 2 * (500 * 5 + 1_000), "{claims}");
    assert!(of("over_rate") + of("repeated") > sent / 2, "{claims}");
    assert!(p99 < Duration::from_millis(100), "{p99:?}");
    assert!(used < span / 2, "{used:?}");
}

/// Sends requests of almost maximum length without a break until `ends`; half of their events are valid and half
/// are incomplete. Returns the number of events sent.
fn pour(stage: &Stage, web: &Web, uid: u32, ends: &AtomicBool) -> u64 {
    const EVENTS: usize = 146;
    let mut claimant = Claimant::connect(stage, uid);
    let mut replies = claimant.stream.get_ref().try_clone().unwrap();
    let read = thread::spawn(move || {
        let mut buffer = [0; 1 << 16];
        while let Ok(1..) = replies.read(&mut buffer) {}
    });
    let request = |claimant: &Claimant| {
        let event = |i: usize| match i % 2 {
            0 => {
                let at = (now_ms() - i as f64).floor();
                leaving(claimant.event(web, CDN, json!(1), (at, at)))
            }
            _ => json!({ "host": "", "port": 1, "group": null, "begin_ms": i }),
        };
        let events: Vec<Value> = (0..EVENTS).map(event).collect();
        let request = json!({
            "request": "claims", "version": 1, "generation": claimant.generation, "events": events,
        });
        let line = format!("{request}\n");
        assert!(line.len() < 16 << 10, "{}", line.len());
        line
    };
    let (mut line, mut made, mut sent) = (request(&claimant), Instant::now(), 0);
    while !ends.load(Ordering::Relaxed) {
        // Making a request takes longer than the daemon takes to read it.
        if made.elapsed() > Duration::from_secs(2) {
            (line, made) = (request(&claimant), Instant::now());
        }
        if claimant.stream.get_mut().write_all(line.as_bytes()).is_err() {
            break;
        }
        sent += EVENTS as u64;
    }
    claimant.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    read.join().unwrap();
    sent
}

/// `cargo test -p fairweir --features evidence --test it a_hundred_thousand -- --ignored --nocapture`
#[test]
#[ignore = "long: 25 s of both cores"]
fn a_hundred_thousand_events_a_second_leave_ticks_on_time() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    fs::set_permissions(stage.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let web = Web::new(&stage, &[CDN]);
    stage.configure(CONFIGURATION);
    let daemon = stage.start_as(&["env", "RUST_LOG=tick=trace"], &[]);
    let _downloads = [(); 2].map(|()| fetch(&stage, &web));
    let (span, ends) = (Duration::from_secs(20), AtomicBool::new(false));
    let seen = |daemon: &Daemon| {
        let claims = daemon.status()["sites"]["claims"].clone();
        let all = claims.as_object().unwrap().iter().filter(|(what, _)| *what != "users");
        (all.map(|(_, count)| count.as_u64().unwrap()).sum::<u64>(), claims)
    };
    let (sent, begun, ended) = thread::scope(|scope| {
        let (stage, web, ends) = (&stage, &web, &ends);
        let users = (0..16).map(|i| scope.spawn(move || pour(stage, web, STRANGER + i, ends)));
        let users: Vec<_> = users.collect();
        thread::sleep(Duration::from_secs(1));
        let begun = (seen(&daemon).0, SystemTime::now());
        thread::sleep(span);
        let ended = (seen(&daemon), SystemTime::now());
        ends.store(true, Ordering::Relaxed);
        (users.into_iter().map(|user| user.join().unwrap()).sum::<u64>(), begun, ended)
    });
    let mut late = lateness(&stage, begun.1, ended.1);
    late.sort_unstable();
    let p99 = late[(late.len() - 1) * 99 / 100];
    let per_s = (ended.0.0 - begun.0) / span.as_secs();
    note(&format!(
        "{sent} events sent, {per_s} refused a second; {} ticks, late by {:?} (median), {p99:?} (p99); {}",
        late.len(),
        late[late.len() / 2],
        ended.0.1
    ));
    assert!(late.len() as u64 >= 4 * span.as_secs(), "{} ticks", late.len());
    assert!(per_s >= 80_000, "{per_s}");
    assert!(p99 <= Duration::from_millis(20), "{p99:?}");
}

/// By how much the interval between two ticks differed from 200 ms, according to the daemon's log.
fn lateness(stage: &Stage, from: SystemTime, until: SystemTime) -> Vec<Duration> {
    let log = fs::read_to_string(stage.path("daemon.log")).unwrap();
    let ticks = log.lines().filter(|line| line.contains("TRACE tick: "));
    let times = ticks.map(|line| {
        let time: jiff::Timestamp = line.split_whitespace().next().unwrap().parse().unwrap();
        SystemTime::from(time)
    });
    let times: Vec<_> = times.filter(|time| (from..until).contains(time)).collect();
    let between = |pair: &[SystemTime]| pair[1].duration_since(pair[0]).unwrap();
    times.windows(2).map(|pair| between(pair).abs_diff(Duration::from_millis(200))).collect()
}

/// The program that a browser starts, and its pipes.
struct Program(std::process::Child);

impl Program {
    fn start(stage: &Stage) -> Program {
        let mut command = Command::new(FAIRWEIR);
        command.args(["extension", "host", "--run-dir", &stage.run_dir()]);
        Program(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn ask(&mut self, message: &str) -> Value {
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(&(message.len() as u32).to_ne_bytes()).unwrap();
        input.write_all(message.as_bytes()).unwrap();
        let output = self.0.stdout.as_mut().unwrap();
        let mut length = [0; 4];
        output.read_exact(&mut length).unwrap();
        let mut reply = vec![0; u32::from_ne_bytes(length) as usize];
        output.read_exact(&mut reply).unwrap();
        serde_json::from_slice(&reply).unwrap()
    }
}

#[test]
fn the_program_of_the_browser_outlives_a_daemon_and_ends_with_the_browser() {
    if !privileged() {
        return;
    }
    let (stage, _web, daemon) = start();
    let mut program = Program::start(&stage);
    let ask = r#"{"version":1,"generation":null,"events":[]}"#;
    let first = program.ask(ask);
    assert_eq!(first["config"]["groups"][1]["name"], "bulk", "{first}");
    assert!(program.ask("[]")["error"].as_str().unwrap().starts_with("not a request"));
    drop(daemon);
    assert!(program.ask(ask)["error"].is_string());
    let daemon = stage.start(&[]);
    let second = program.ask(ask);
    assert_eq!(second["config"]["groups"], first["config"]["groups"]);
    assert_ne!(second["config"]["salt"], first["config"]["salt"]);
    assert_ne!(second["generation"], first["generation"]);
    drop(daemon);
    drop(program.0.stdin.take());
    assert!(program.0.wait().unwrap().success());
}

/// Every file and directory below `dir`.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn manifests_are_written_for_each_browser_and_uninstall_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().to_str().unwrap();
    let all = ["chromium", "chrome", "edge", "brave", "firefox"];
    for user in [true, false] {
        let run = |command: &str| {
            let mut args = vec!["extension", command, "--root", root];
            args.extend(user.then_some("--user"));
            args.extend(all.iter().flat_map(|browser| ["--browser", browser]));
            let output = fairweir(&args);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        if !user && !nix::unistd::geteuid().is_root() {
            continue;
        }
        run("install");
        let manifests: Vec<_> = below(dir.path()).into_iter().filter(|p| p.is_file()).collect();
        assert_eq!(manifests.len(), if user { 5 } else { 4 }, "{manifests:?}");
        for path in &manifests {
            let manifest: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            assert_eq!(manifest["path"], FAIRWEIR);
            assert_eq!(manifest["name"], path.file_stem().unwrap().to_str().unwrap());
            let is_firefox = path.to_str().unwrap().contains("mozilla");
            assert_eq!(manifest["allowed_extensions"].is_array(), is_firefox);
            assert_eq!(manifest["allowed_origins"].is_array(), !is_firefox);
        }
        assert_eq!(run("status").matches("installed, starts").count(), manifests.len());
        fs::write(&manifests[0], "{}").unwrap();
        assert!(run("status").contains("no manifest of fairweir"));
        run("uninstall");
        run("uninstall");
        let left: Vec<_> = below(dir.path()).into_iter().filter(|p| p.is_file()).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
        assert!(!below(dir.path()).iter().any(|p| p.ends_with("native-messaging-hosts")));
    }
}
