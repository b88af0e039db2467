//! `fairweir lab`: what it prints and writes, and how it ends early. The lab itself is tested where
//! it lives.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

mod common;
use common::stage::privileged;
use common::{FAIRWEIR, fairweir, only_error_line};

const SHORT: &str = "version = 1\nname = \"short\"\nduration = \"4s\"\nsettle = \"1s\"\n\
    [link]\nrate = \"10mbit\"\nbuffer = \"100ms\"\n\
    [[group]]\nname = \"a\"\nweight = 2\n[[group]]\nname = \"b\"\nweight = 1\n\
    [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n[[flow]]\ngroup = \"b\"\nkind = \"bulk\"\n";

#[test]
fn a_run_prints_and_writes_what_is_documented() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("short.toml"), SHORT).unwrap();
    let (file, out) = (path("short.toml"), path("out"));
    let output = fairweir(&[
        "lab",
        "run",
        &file,
        "--control",
        "static",
        "--control",
        "wfq",
        "--json",
        "--series",
        "--out",
        &out,
    ]);
    let reports: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(reports.as_array().unwrap().len(), 2, "an array of two controls");
    for (report, control) in reports.as_array().unwrap().iter().zip(["static", "wfq"]) {
        assert_eq!((&report["scenario"], &report["world"]), (&"short".into(), &"lab".into()));
        assert_eq!(report["control"], control);
        assert!(report["summary"]["allocation_error"].as_f64().unwrap() < 0.2, "{report}");
        assert!(report["series"].as_array().unwrap().len() >= 2 * 4 * 5, "{report}");
    }
    for name in ["short.svg", "short.json", "short-static.csv", "short-wfq.csv"] {
        assert!(fs::metadata(dir.path().join("out").join(name)).unwrap().len() > 100, "{name}");
    }
    let changed = ["--set", "link.rate=5mbit", "--seed", "7"];
    let output =
        fairweir(&[&["lab", "run", &file, "--control", "none", "--json"], &changed[..]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["control"], "none", "an object of one control");
    assert_eq!(report["seed"], 7);
    let rate: u64 = report["summary"]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["rate_bps"].as_u64().unwrap())
        .sum();
    assert!(rate < 6_000_000, "{report}");
    assert!(report.get("series").is_none(), "only if asked for");
}

#[test]
fn an_interrupted_run_takes_everything_down() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("long.toml");
    fs::write(&file, SHORT.replace("4s", "60s")).unwrap();
    let mut command = Command::new(FAIRWEIR);
    command.args(["lab", "run"]).arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let deadline = Instant::now() + Duration::from_secs(15);
    while descendants(pid).len() < 4 {
        assert!(Instant::now() < deadline, "server, daemon and two receivers are not there");
        sleep(Duration::from_millis(50));
    }
    let started = descendants(pid);
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("fairweir: interrupted\n"), "{said}");
    let left: Vec<_> =
        started.iter().filter(|p| fs::metadata(format!("/proc/{p}")).is_ok()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_wrong_scenario_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    fs::write(&file, SHORT.replace("bulk", "bluk")).unwrap();
    for command in ["check", "run"] {
        let output = fairweir(&["lab", command, file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let error = only_error_line(&output);
        assert!(error.contains("wrong.toml:") && error.contains("bluk"), "{error}");
    }
    fs::write(&file, SHORT).unwrap();
    let output = fairweir(&["lab", "check", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("short: 2 groups, 2 flows"), "{text}");
}

/// Processes that `pid` started.
fn descendants(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let children = tasks
        .into_iter()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    children.iter().flat_map(|c| c.split_whitespace()).map(str::to_owned).collect()
}
