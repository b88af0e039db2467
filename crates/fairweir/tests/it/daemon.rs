//! The daemon in a home behind a slow link, with real TCP: what it shapes, and which events it survives.
//!
//! The control is `static` with half of the link's capacity, so that shaped and unshaped traffic are
//! easily told apart.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use fairweir_testing::{privileged, two_of_three};
use nix::sys::signal::Signal;

use crate::common::FAIRWEIR;
use crate::common::stage::{Daemon, Download, LINK_MBIT, SERVERS, Stage};

/// Payload rates in Mbit/s of one of two groups: with weights 1:1 and 3:1 at half the link's capacity, and
/// at the whole capacity.
const HALF_SHARE: std::ops::Range<f64> = 8.5..10.5;
const LARGE_SHARE: std::ops::Range<f64> = 12.5..15.5;
const UNSHAPED: std::ops::Range<f64> = 0.85 * LINK_MBIT..LINK_MBIT;

const SECONDS_3: Duration = Duration::from_secs(3);
const SECONDS_5: Duration = Duration::from_secs(5);

/// `static` with 20 Mbit/s: the server's group with this weight, and the default group.
fn weighted(weight: u32) -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n\
         [[group]]\nname = \"server\"\nweight = {weight}\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    )
}

/// A daemon with two groups of equal weight, and a download that gets its group's share.
fn shaped() -> (Stage, Daemon, Download) {
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let daemon = stage.start(&[]);
    let download = stage.download(SERVERS[0]);
    download.wait_for_rate(HALF_SHARE, SECONDS_5);
    (stage, daemon, download)
}

#[test]
fn a_second_daemon_is_refused() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let first = stage.start(&[]);
    let output = stage.at_home(|| stage.host_command(&[], &[]).output().unwrap());
    let error = crate::common::only_error_line(&output);
    assert_eq!(output.status.code(), Some(5));
    assert!(error.contains(&format!("another fairweir (pid {})", first.pid())), "{error}");
    assert_eq!(first.status()["ready"], true);
}

#[test]
fn a_reload_under_load_changes_shares_and_keeps_connections() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let daemon = stage.start(&[]);
    let download = stage.download(SERVERS[0]);
    let other = stage.download(SERVERS[1]);
    download.wait_for_rate(HALF_SHARE, SECONDS_5);
    stage.configure(&weighted(3));
    download.wait_for_rate(LARGE_SHARE, SECONDS_3);
    // A wrong file changes nothing, and is reported.
    for wrong in ["version = 1\n[[group]]\nname = \"x\"\n", "", "\u{0}", &weighted(0)] {
        stage.configure(wrong);
        daemon.wait_for("told of the error", SECONDS_3, |s| s["config_error"].is_string());
        let error = daemon.status()["config_error"].to_string();
        assert!(error.contains("fairweir.toml:"), "{error}");
        assert_eq!(daemon.status()["groups"][0]["weight"], 3);
        stage.configure(&weighted(3));
        daemon.wait_for("content again", SECONDS_3, |s| s["config_error"].is_null());
    }
    download.wait_for_rate(LARGE_SHARE, SECONDS_3);
    // Files in conf.d and SIGHUP also cause a reload.
    std::fs::create_dir(stage.path("conf.d")).unwrap();
    let group = format!(
        "version = 1\n[[group]]\nname = \"other\"\nweight = 3\nmatch = [\"ip:{}\"]\n",
        SERVERS[1]
    );
    std::fs::write(stage.path("conf.d/other.toml"), group).unwrap();
    daemon.wait_for("of three groups", SECONDS_3, |s| s["groups"].as_array().unwrap().len() == 3);
    other.wait_for_rate(7.5..9.0, SECONDS_3);
    std::fs::remove_dir_all(stage.path("conf.d")).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for("of two groups", SECONDS_3, |s| s["groups"].as_array().unwrap().len() == 2);
    // The control can be changed too.
    stage.configure(&weighted(3).replace("static", "none"));
    daemon.wait_for("not enforcing", SECONDS_3, |s| s["enforcing"] == false);
    assert_eq!(stage.interfaces().iter().filter(|n| n.starts_with("ifb4")).count(), 0);
    stage.configure(&weighted(1));
    download.wait_for_rate(HALF_SHARE, SECONDS_5);
    assert!(!download.is_broken() && !other.is_broken(), "no connection is lost");
}

/// The default control; the server's group has a rate cap.
fn capped() -> String {
    format!(
        "version = 1\n[host]\nprobe = \"off\"\n\
         [[group]]\nname = \"server\"\nweight = 1\nmax = \"8mbit\"\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    )
}

/// As [`capped`], but `limit` applies to the server, and all other traffic has nine times its weight.
fn limited(limit: &str) -> String {
    let capped = capped().replace("max = \"8mbit\"", limit);
    capped + "[[group]]\nname = \"default\"\nweight = 9\n"
}

/// A cap that a quota lowers when it is used up; the other group's quota is never used up.
fn with_quota() -> String {
    let quota = "max = \"8mbit\"\nquota = \"3 MB per month, then 1mbit\"";
    let default = "[[group]]\nname = \"default\"\nweight = 1\nquota = \"1 TB per month\"\n";
    capped().replace("max = \"8mbit\"", quota) + default
}

/// Bytes counted by the interface and by the quotas, both as of one moment.
fn metered(stage: &Stage) -> Option<[u64; 2]> {
    let text = std::fs::read(stage.path("state/quota-host-wan.json")).ok()?;
    let stored: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let all = stored["quotas"].as_object().unwrap().values();
    let periods = all.flat_map(|quota| quota["periods"].as_array().unwrap());
    let used = periods.map(|period| period["bytes"].as_u64().unwrap()).sum();
    Some([stored["interface"]["bytes"].as_u64().unwrap(), used])
}

/// Payload rate in Mbit/s at which a second of UDP at 9.6 Mbit/s arrives from the first server.
fn mbit_by_udp(stage: &Stage) -> f64 {
    let server = stage.at_internet(|| UdpSocket::bind((SERVERS[0], 0)).unwrap());
    let home = stage.at_home(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    home.send_to(b"begin", server.local_addr().unwrap()).unwrap();
    let (_, to) = server.recv_from(&mut [0; 16]).unwrap();
    home.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1_000 {
                let _ = server.send_to(&[0; 1_200], to);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let begin = Instant::now();
        let arrived =
            std::iter::from_fn(|| Some((home.recv(&mut [0; 1_500]).ok()?, Instant::now())));
        let arrived: Vec<_> = arrived.collect();
        let bytes: usize = arrived.iter().map(|(bytes, _)| bytes).sum();
        let (_, end) = arrived.last().expect("something arrives");
        bytes as f64 * 8e-6 / (*end - begin).as_secs_f64()
    })
}

/// Payload rate of 24 of 40 Mbit/s.
const FLOOR: std::ops::Range<f64> = 22.3..24.5;

/// Payload rates in Mbit/s: of a cap of 8 Mbit/s, of the rest of the link, and of a paused group.
const CAP: std::ops::Range<f64> = 7.4..7.8;
const BESIDE_CAP: std::ops::Range<f64> = 26.0..31.0;
const PAUSED: std::ops::Range<f64> = 0.0..0.3;
/// Payload rate of the 1 Mbit/s that remains when the quota is used up.
const USED_UP: std::ops::Range<f64> = 0.8..1.02;

/// One daemon for all steps: a cap alone and beside other traffic, a pause over a restart, a boost that ends.
#[test]
fn a_cap_holds_and_pauses_and_boosts_end_by_themselves() {
    if !privileged() {
        return;
    }
    const PATIENCE: Duration = Duration::from_secs(20);
    let stage = Stage::new();
    stage.configure(&capped());
    let daemon = stage.start(&[]);
    let server = stage.download(SERVERS[0]);
    // The capacity is not known at this time.
    daemon.wait_for("capped", PATIENCE, |s| s["groups"][0]["state"] == "capped");
    server.wait_for_rate(CAP, PATIENCE);
    let other = stage.download(SERVERS[1]);
    other.wait_for_rate(BESIDE_CAP, PATIENCE);
    server.wait_for_rate(CAP, PATIENCE);
    let status = daemon.status();
    assert_eq!(status["groups"][0]["max_bps"], 8_000_000);
    assert_eq!(status["groups"][0]["drops"], 0, "what has a window is not dropped");
    let shown = String::from_utf8(stage.fairweir("host status").stdout).unwrap();
    assert!(shown.contains("max: server 8.00 Mbit/s (limits)"), "{shown}");
    stage.configure(&limited("min = \"24mbit\""));
    server.wait_for_rate(FLOOR, PATIENCE);
    stage.configure(&capped());
    server.wait_for_rate(CAP, PATIENCE);

    // A quota counts the bytes that the interface counts, and lowers the rate within seconds once it is used up.
    stage.configure(&with_quota());
    let quota = |s: &serde_json::Value| s["groups"][0]["plan"]["quota"].clone();
    daemon.wait_for("counted", PATIENCE, |s| quota(s)["used_bytes"].as_u64() > Some(0));
    let patience = Instant::now() + PATIENCE;
    let began = loop {
        assert!(Instant::now() < patience, "nothing is stored");
        match metered(&stage) {
            Some(began) => break began,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    daemon.wait_for("used up", PATIENCE, |s| quota(s)["used_up"] == true);
    server.wait_for_rate(USED_UP, SECONDS_5);
    let udp = mbit_by_udp(&stage);
    assert!(udp < 1.3, "{udp} Mbit/s by UDP");
    let shown = String::from_utf8(stage.fairweir("host status").stdout).unwrap();
    assert!(shown.contains("quota: server: used up, at most 1.00 Mbit/s: "), "{shown}");
    let metrics = String::from_utf8(stage.fairweir("host status --json").stdout).unwrap();
    assert!(metrics.contains("quotas forget 5 s at most"), "{metrics}");

    let said = |args: &str| {
        let output = stage.fairweir(args);
        let text = if output.status.success() { output.stdout } else { output.stderr };
        String::from_utf8(text).unwrap()
    };
    assert_eq!(said("pause default 60m"), "default: paused for 1 h\n");
    other.wait_for_rate(PAUSED, PATIENCE);
    let stored = metered(&stage).unwrap();
    let [arrived, used] = [stored[0] - began[0], stored[1] - began[1]];
    println!("of {arrived} bytes at the interface the quotas have {used}");
    // The difference is what arrives between two readings that belong to one moment.
    assert!(used > 5_000_000 && arrived.abs_diff(used) < 65_536, "{used} of {arrived}");
    // The pause outlasts the daemon, even one that is killed.
    drop(daemon);
    let daemon = stage.start(&[]);
    let timed = daemon.status()["groups"][1]["timed"].clone();
    assert_eq!((&timed["change"], &timed["configured_weight"]), (&"pause".into(), &1.into()));
    assert!((3_300..3_600).contains(&timed["left_s"].as_u64().unwrap()), "{timed}");
    other.wait_for_rate(PAUSED, PATIENCE);
    // The quota's use is kept as well, except for what arrived since it was last stored.
    assert!(metered(&stage).unwrap()[1] >= stored[1]);
    let known = quota(&daemon.status());
    assert_eq!((&known["used_up"], &known["per"]), (&true.into(), &"month".into()), "{known}");
    server.wait_for_rate(USED_UP, PATIENCE);
    assert_eq!(said("reset-quota server"), "server: 3MB are left of this month\n");
    daemon.wait_for("reset", SECONDS_3, |s| quota(s)["used_up"] == false);
    stage.configure(&capped());
    server.wait_for_rate(CAP, PATIENCE);
    assert_eq!(said("host pause --end default"), "default: ended: paused\n");
    other.wait_for_rate(BESIDE_CAP, PATIENCE);
    // A boost that ends by itself.
    assert_eq!(said("boost server 4s"), "server: boosted to weight 4 for 4 s\n");
    daemon.wait_for("boosted", PATIENCE, |s| s["groups"][0]["weight"] == 4);
    daemon.wait_for("as before", PATIENCE, |s| s["groups"][0]["timed"].is_null());
    assert_eq!(daemon.status()["groups"][0]["weight"], 1);
    assert!(!stage.path("state/timed-host-wan.json").exists());
    assert!(!server.is_broken() && !other.is_broken(), "no connection is lost");
    for (args, wrong) in [
        ("pause servr 1h", "no group `servr` (did you mean `server`?)"),
        ("boost server 1h --weight 1", "weight 1 is no boost: `server` has 1; use a larger one"),
        ("pause server 32d", "out of range (1s to"),
        ("pause --end server", "`server` is neither boosted nor paused"),
        ("reset-quota server", "no group `server` with a quota"),
    ] {
        let error = said(args);
        assert!(error.contains(wrong) && error.lines().count() == 1, "{args}: {error}");
    }
    assert!(daemon.status()["groups"].as_array().unwrap().iter().all(|g| g["timed"].is_null()));
}

#[test]
fn a_killed_daemon_leaves_the_full_rate_and_the_next_one_cleans_up() {
    if !privileged() {
        return;
    }
    let (stage, daemon, download) = shaped();
    daemon.signal(Signal::SIGKILL);
    download.wait_for_rate(UNSHAPED, SECONDS_3);
    assert_eq!(daemon.end().0, None);
    let next = stage.start(&[]);
    download.wait_for_rate(HALF_SHARE, SECONDS_5);
    next.signal(Signal::SIGTERM);
    let (code, said) = next.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("removed what was left"), "{said}");
    assert_nothing_is_left(&stage);
    download.wait_for_rate(UNSHAPED, SECONDS_3);
    assert!(!download.is_broken());
}

#[test]
fn a_stopped_daemon_leaves_the_full_rate_until_it_goes_on() {
    if !privileged() {
        return;
    }
    // In a class that drops packets, a single sender may vary by more than the range for seconds.
    two_of_three(|| {
        let (_stage, daemon, download) = shaped();
        daemon.signal(Signal::SIGSTOP);
        download.wait_for_rate(UNSHAPED, SECONDS_3);
        daemon.signal(Signal::SIGCONT);
        download.wait_for_rate(HALF_SHARE, SECONDS_5);
    });
}

#[test]
fn a_broken_enforcer_leaves_the_full_rate_and_is_repaired() {
    if !privileged() {
        return;
    }
    for breakage in
        ["ip link del ifb4wan", "ip link set ifb4wan down", "tc qdisc del dev ifb4wan root"]
    {
        let (stage, daemon, download) = shaped();
        assert!(stage.run(breakage).status.success(), "{breakage}");
        download.wait_for_rate(UNSHAPED, SECONDS_3);
        let status = daemon.status();
        assert!(status["open_reason"].as_str().unwrap().contains("ifb4wan"), "{status:#}");
        assert_eq!(status["enforcing"], false);
        daemon.wait_for("repaired", Duration::from_secs(12), |s| s["enforcing"] == true);
        download.wait_for_rate(HALF_SHARE, SECONDS_5);
        assert!(daemon.status()["open_reason"].is_null(), "{breakage}");
        assert!(!download.is_broken());
    }
}

#[test]
fn control_resumes_when_the_interface_comes_back() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let daemon = stage.start(&[]);
    stage.download(SERVERS[0]).wait_for_rate(HALF_SHARE, SECONDS_5);
    stage.unplug();
    daemon.wait_for("told of it", SECONDS_3, |s| s["ready"] == false);
    let status = daemon.status();
    assert!(status["open_reason"].as_str().unwrap().contains("`wan` is gone"), "{status:#}");
    stage.plug_in();
    daemon.wait_for("enforcing", SECONDS_3, |s| s["enforcing"] == true);
    stage.download(SERVERS[0]).wait_for_rate(HALF_SHARE, SECONDS_5);
}

#[test]
fn every_clean_end_leaves_nothing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGINT), None] {
        let mut daemon = stage.start(&["--until-stdin-closes"]);
        match signal {
            Some(signal) => daemon.signal(signal),
            None => daemon.close_stdin(),
        }
        let (code, said) = daemon.end();
        assert_eq!(code, Some(0), "{said}");
        assert_nothing_is_left(&stage);
    }
}

#[test]
fn off_stops_a_daemon_that_answers_and_one_that_does_not() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let daemon = stage.start(&[]);
    let programs = daemon.programs();
    assert!(!programs.is_empty());
    let said = off(&stage);
    assert!(said.contains("removed everything"), "{said}");
    assert_eq!(daemon.end().0, Some(0));
    assert_nothing_is_left(&stage);
    assert_gone(&stage, &programs);

    let daemon = stage.start(&[]);
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.end().0, None);
    let said = off(&stage);
    assert!(said.contains("socket of a daemon that is gone"), "{said}");
    assert_nothing_is_left(&stage);
    assert_eq!(off(&stage).trim(), "no daemon runs, and nothing was left behind");
}

#[test]
fn off_without_proc_says_once_what_is_missing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let off = format!("mount -t tmpfs none /proc; {FAIRWEIR} off --run-dir {}", stage.run_dir());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &off]);
    let output = stage.at_home(|| command.output().unwrap());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("below /proc (mounted?)") && error.lines().count() == 1, "{error}");
}

#[test]
fn off_waits_for_a_daemon_that_is_slow_and_kills_one_only_if_told_to() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    let daemon = stage.start(&[]);
    daemon.signal(Signal::SIGSTOP);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SECONDS_3);
            daemon.signal(Signal::SIGCONT);
        });
        let said = off(&stage);
        assert!(said.contains("stopped, and removed everything"), "{said}");
    });
    assert_eq!(daemon.end().0, Some(0), "it was not killed");
    assert_nothing_is_left(&stage);

    let daemon = stage.start(&[]);
    let programs = daemon.programs();
    let download = stage.download(SERVERS[0]);
    daemon.signal(Signal::SIGSTOP);
    let output = stage.fairweir("off");
    assert_eq!(output.status.code(), Some(1), "it lives on: {output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    let pid = format!("(pid {})", daemon.pid());
    assert!(error.contains("not everything is off") && error.contains(&pid), "{error}");
    download.wait_for_rate(UNSHAPED, SECONDS_3);
    let output = stage.fairweir("off --force");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("killed the daemon {pid}")), "{said}");
    assert!(said.contains("removed the device ifb4wan"), "{said}");
    assert_nothing_is_left(&stage);
    assert_gone(&stage, &programs);
}

#[test]
fn another_user_cannot_keep_the_daemon_from_starting() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    // This name once locked a device: any user could take it.
    let name = SocketAddr::from_abstract_name("fairweir/host/wan").unwrap();
    let _taken = stage.at_home(|| UnixListener::bind_addr(&name).unwrap());
    let daemon = stage.start(&[]);
    let locks = std::path::Path::new(&stage.run_dir()).join("lock");
    let files: Vec<_> = std::fs::read_dir(&locks).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "of the instance and of the device: {files:?}");
    for path in files.iter().chain([&locks]) {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
    let mut second = stage.host_command(&[], &[]);
    let refused = stage.at_home(|| second.output().unwrap());
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains(&format!("another fairweir (pid {})", daemon.pid())), "{error}");
    off(&stage);
    assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 0);
}

#[test]
fn a_user_group_reads_the_status_and_changes_nothing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&weighted(1));
    std::fs::set_permissions(stage.path("."), Permissions::from_mode(0o755)).unwrap();
    let daemon = stage.start(&["--user-group", "adm"]);
    let as_member = |args: &str| {
        let run_dir = stage.run_dir();
        let setpriv = "setpriv --reuid=65534 --regid=65534 --groups=";
        let adm = nix::unistd::Group::from_name("adm").unwrap().unwrap().gid;
        stage.run(&format!("{setpriv}{adm} {} {args} --run-dir {run_dir}", crate::common::FAIRWEIR))
    };
    let status = as_member("status --json");
    assert!(status.status.success(), "{status:?}");
    let refused = as_member("off");
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let socket = std::path::Path::new(&stage.run_dir()).join("status/host-wan.sock");
    let mut stream = UnixStream::connect(socket).unwrap();
    let ask = |stream: &mut UnixStream, request: &str| {
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    };
    // A guarantee from the credit market, sent by a user with read access only, would starve the home.
    let hold = r#"{"request":"guarantee","rate_bps":100000,"equal_bps":100000,"for_ms":10000,"hold":true}"#;
    let reset = r#"{"request":"reset_quota","group":"server"}"#;
    for request in [r#"{"request":"off"}"#, r#"{"request":"reload"}"#, hold, reset] {
        let line = ask(&mut stream, request);
        assert!(line.contains("this socket only reads"), "{line}");
    }
    let metrics = ask(&mut stream, r#"{"request":"metrics"}"#);
    let metrics: serde_json::Value = serde_json::from_str(&metrics).unwrap();
    let metrics = metrics["value"].as_str().unwrap();
    assert!(metrics.contains("fairweir_up{interface=\"wan\"} 1\n"), "{metrics}");
    crate::common::check_metrics(metrics);
    assert!(daemon.status()["held_bps"].is_null());
    assert_eq!(daemon.status()["enforcing"], true);
}

#[test]
fn four_capabilities_are_enough() {
    if !privileged() {
        return;
    }
    let four = "+net_admin,+net_raw,+bpf,+perfmon";
    let bounding = format!("--bounding-set=-all,{four}");
    let inheritable = format!("--inh-caps=-all,{four}");
    let stage = Stage::new();
    // The probe needs the one of the four capabilities that nothing else needs.
    let probe = format!("[host]\nprobe = \"{}\"\n", SERVERS[1]);
    stage.configure(&weighted(1).replace("[host]\n", &probe));
    let daemon = stage
        .start_as(&["setpriv", "--no-new-privs", bounding.as_str(), inheritable.as_str()], &[]);
    let held = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(held.contains("CapEff:\t000000c000003000"), "{held}");
    stage.download(SERVERS[0]).wait_for_rate(HALF_SHARE, SECONDS_5);
    daemon.wait_for("probing", SECONDS_5, |s| s["probe"]["answered"].as_u64() >= Some(3));
    daemon.signal(Signal::SIGTERM);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    assert_nothing_is_left(&stage);
}

fn off(stage: &Stage) -> String {
    let output = stage.fairweir("off");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn assert_nothing_is_left(stage: &Stage) {
    let interfaces = stage.interfaces();
    assert!(!interfaces.iter().any(|name| name.starts_with("ifb")), "{interfaces:?}");
    let qdiscs = String::from_utf8(stage.run("tc qdisc show").stdout).unwrap();
    assert!(!["clsact", "ingress", "htb"].iter().any(|q| qdiscs.contains(q)), "{qdiscs}");
    assert!(!std::path::Path::new(&stage.run_dir()).join("host-wan.sock").exists());
}

/// The kernel frees programs a moment after their last user has gone.
fn assert_gone(stage: &Stage, programs: &BTreeSet<u32>) {
    let deadline = Instant::now() + SECONDS_3;
    for program in programs {
        while stage.run(&format!("bpftool prog show id {program}")).status.success() {
            assert!(Instant::now() < deadline, "the BPF program {program} is still there");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
