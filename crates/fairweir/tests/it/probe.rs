//! The daemon's probe of the access link: when it sends, and what it reports.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairweir_testing::privileged;
use serde_json::Value;

use crate::common::FAIRWEIR;
use crate::common::stage::{SERVERS, Stage};

const SECONDS_3: Duration = Duration::from_secs(3);

/// Number of echo requests that the home has sent.
fn requests(stage: &Stage) -> u64 {
    let snmp = stage.at_home(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let snmp6 = stage.at_home(|| fs::read_to_string("/proc/thread-self/net/snmp6").unwrap());
    let lines: Vec<Vec<&str>> = snmp
        .lines()
        .filter_map(|line| line.strip_prefix("IcmpMsg:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let four = lines.chunks(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
    let four = four.filter(|(name, _)| **name == "OutType8").map(|(_, n)| *n);
    let six = snmp6.lines().filter_map(|line| line.strip_prefix("Icmp6OutEchos")).map(str::trim);
    four.chain(six).map(|n| n.parse::<u64>().unwrap()).sum()
}

fn configuration(control: &str, probe: &str) -> String {
    format!("version = 1\n[host]\ncontrol = \"{control}\"\ncapacity = \"20mbit\"\n{probe}\n")
}

#[test]
fn a_probe_that_is_off_or_not_needed_sends_nothing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let address = format!("probe = \"{}\"", SERVERS[1]);
    let unasked = [("crab", ""), ("fairweir", "probe = \"off\""), ("none", address.as_str())];
    for (control, probe) in unasked {
        stage.configure(&configuration(control, probe));
        let daemon = stage.start(&[]);
        sleep(Duration::from_millis(1_500));
        assert_eq!(daemon.status()["probe"], Value::Null);
        assert_eq!(requests(&stage), 0, "{control}, {probe}");
    }
    // Checks that the counter works.
    stage.configure(&configuration("static", &address));
    let daemon = stage.start(&[]);
    daemon.wait_for("answered", SECONDS_3, |s| s["probe"]["answered"].as_u64() >= Some(1));
    assert!(requests(&stage) >= 1);
}

#[test]
fn the_status_tells_who_answers_and_a_reload_changes_it() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let to = |server: &str| configuration("static", &format!("probe = \"{server}\""));
    stage.configure(&to(SERVERS[0]));
    let daemon = stage.start(&[]);
    daemon.wait_for("answered", SECONDS_3, |s| s["probe"]["answered"].as_u64() >= Some(2));
    let probe = daemon.status()["probe"].clone();
    assert_eq!(probe["reflector"], SERVERS[0]);
    assert_eq!(probe["sent"], probe["answered"], "{probe}");
    assert!((0.0..5.0).contains(&probe["rtt_last_ms"].as_f64().unwrap()), "{probe}");
    let said = String::from_utf8(stage.fairweir("host status").stdout).unwrap();
    assert!(said.contains(&format!("probe: {} answered ", SERVERS[0])), "{said}");
    // An idle link is probed every second, and a busy one every 50 ms.
    let per_second = || {
        let before = requests(&stage);
        sleep(Duration::from_secs(2));
        (requests(&stage) - before) / 2
    };
    assert!((1..=2).contains(&per_second()), "idle");
    let download = stage.download(SERVERS[0]);
    sleep(Duration::from_millis(500));
    let busy = per_second();
    assert!((17..=21).contains(&busy), "in use: {busy} per second");
    drop(download);
    stage.configure(&to(SERVERS[1]));
    daemon.wait_for("asks the other", SECONDS_3, |s| s["probe"]["reflector"] == SERVERS[1]);
    stage.configure(&configuration("static", "probe = \"off\""));
    daemon.wait_for("silent", SECONDS_3, |s| s["probe"].is_null());
    let before = requests(&stage);
    sleep(Duration::from_millis(1_200));
    assert_eq!(requests(&stage), before);
}

/// Plays a download in the emulated home: returns the daemon's last report on the probe, and the
/// median in ms of the round-trip times seen during the play.
fn in_the_lab(probe: &str) -> (Value, f64) {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "version = 1\nname = \"probe\"\nduration = \"5s\"\nsettle = \"1s\"\n\
         [link]\nrate = \"20mbit\"\nbuffer = \"60ms\"\n[control]\ncapacity = \"40mbit\"\n\
         [probe]\n{probe}\n[[group]]\nname = \"a\"\nweight = 1\n\
         [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\nconnections = 4\n"
    );
    let file = dir.path().join("probe.toml");
    fs::write(&file, text).unwrap();
    // `static` with twice the capacity: nothing keeps the link's own queue from filling up.
    let mut lab = Command::new(FAIRWEIR)
        .args(["lab", "run", "--control", "static", "--json"])
        .arg(&file)
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let (mut last, mut rtts) = (Value::Null, Vec::new());
    while lab.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(40), "the lab ends");
        if let Some(status) = socket(dir.path()).and_then(|path| status(&path)) {
            rtts.extend(status["probe"]["rtt_last_ms"].as_f64());
            last = status;
        }
        sleep(Duration::from_millis(100));
    }
    rtts.sort_by(f64::total_cmp);
    (last["probe"].clone(), rtts.get(rtts.len() / 2).copied().unwrap_or(0.0))
}

fn socket(dir: &Path) -> Option<PathBuf> {
    let home = fs::read_dir(dir).ok()?.flatten().find(|e| e.path().is_dir())?;
    Some(home.path().join("run/host-wan.sock"))
}

fn status(socket: &Path) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"{\"request\":\"status\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    crate::common::stage::value_of(serde_json::from_str(&line).ok()?)
}

#[test]
fn the_reflector_of_the_lab_shows_the_queue_unless_it_lies() {
    if !privileged() {
        return;
    }
    let (honest, rtt) = in_the_lab("rtt = \"30ms\"");
    assert!((45.0..95.0).contains(&rtt), "30 ms and most of 60 ms: {rtt} ms");
    assert_eq!(honest["reflector"], "198.18.255.254");
    assert!(honest["answered"].as_u64() >= Some(40), "{honest}");
    let (_, rtt) = in_the_lab("rtt = \"30ms\"\nlie = \"fast\"");
    assert!((30.0..36.0).contains(&rtt), "past the queue: {rtt} ms");
    let (lossy, _) = in_the_lab("loss = 0.5");
    let (sent, answered) = (&lossy["sent"].as_u64().unwrap(), lossy["answered"].as_u64().unwrap());
    assert!(answered * 10 > sent * 2 && answered * 10 < sent * 8, "{lossy}");
    assert_eq!(in_the_lab("reflector = false").0, Value::Null);
}
