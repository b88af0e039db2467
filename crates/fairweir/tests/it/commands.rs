//! The command line: help, exit codes, errors, and the commands around the daemon.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use fairweir_testing::privileged;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::stage::{SERVERS, Stage};
use crate::common::{FAIRWEIR, fairweir, only_error_line, schema};

const COUNTING: &str = "version = 1\n[host]\ncontrol = \"none\"\n";

#[test]
fn every_subcommand_has_help_with_examples() {
    let commands: [&[&str]; 40] = [
        &[],
        &["host"],
        &["status"],
        &["top"],
        &["reload"],
        &["off"],
        &["check"],
        &["init"],
        &["doctor"],
        &["demo"],
        &["lab"],
        &["lab", "run"],
        &["lab", "check"],
        &["sim"],
        &["sim", "run"],
        &["sim", "check"],
        &["figures"],
        &["figures", "crab"],
        &["router"],
        &["router", "devices"],
        &["router", "devices", "name"],
        &["router", "try"],
        &["router", "test"],
        &["isp"],
        &["isp", "add"],
        &["isp", "change"],
        &["isp", "remove"],
        &["isp", "list"],
        &["isp", "show"],
        &["isp", "import"],
        &["isp", "reload"],
        &["isp", "revert"],
        &["isp", "status"],
        &["isp", "top"],
        &["isp", "metrics"],
        &["isp", "plan"],
        &["isp", "plan", "add"],
        &["isp", "plan", "change"],
        &["isp", "plan", "remove"],
        &["isp", "plan", "list"],
    ];
    for command in &commands {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let output = fairweir(&args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{command:?}");
        assert!(text.contains("Usage: fairweir"), "{text}");
        assert!(
            text.contains("Examples:")
                || [&["lab"][..], &["sim"], &["figures"], &["isp", "plan"]].contains(command),
            "{text}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let wrong: [(&[&str], &str); 10] = [
        (&[], "Usage"),
        (&["hots"], "host"),
        (&["host", "--control", "wfq"], "is for comparison"),
        (&["host", "--control", "crap"], "did you mean `crab`?"),
        (&["host", "--dev", "a/b"], "name of an interface"),
        (&["host", "--json"], "--dry-run"),
        (&["init"], "--dev"),
        (&["init", "--dev", "eth0", "--duration", "60"], "no unit"),
        (&["lab", "run"], "<FILE>"),
        (&["lab", "run", "x", "--control", "crap"], "crap"),
    ];
    for (args, says) in wrong {
        let output = fairweir(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(error.contains(says), "{args:?}: {error}");
    }
}

#[test]
fn failures_are_one_clear_line_and_exit_with_1_or_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("good.toml"), COUNTING).unwrap();
    let failures: [(Vec<String>, &str, i32); 7] = [
        (
            vec![
                "status".into(),
                "--run-dir".into(),
                path("run"),
                "--page-dir".into(),
                path("run"),
            ],
            "no daemon runs (no socket in",
            3,
        ),
        (
            vec![
                "host".into(),
                "status".into(),
                "--run-dir".into(),
                path("run"),
                "--dev".into(),
                "eth9".into(),
            ],
            "no interface `eth9`",
            2,
        ),
        (vec!["top".into()], "must be a terminal", 1),
        (vec!["host".into(), "--config".into(), path("good.toml")], "no interface given", 2),
        (vec!["host".into(), "--config".into(), path("none.toml")], "fairweir init", 2),
        (vec!["lab".into(), "check".into(), path("none.toml")], "cannot read", 2),
        (
            vec!["init".into(), "--dev".into(), "lo".into(), "--output".into(), path("good.toml")],
            "--force overwrites it",
            1,
        ),
    ];
    for (args, says, code) in failures {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = fairweir(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let error = only_error_line(&output);
        assert!(error.starts_with("fairweir: ") && error.contains(says), "{args:?}: {error}");
    }
    let output = fairweir(&[
        "host",
        "--dev",
        "l0",
        "--config",
        &path("good.toml"),
        "--run-dir",
        &path("run"),
    ]);
    assert!(only_error_line(&output).contains("no interface `l0` (did you mean `lo`?)"));
}

#[test]
fn whoever_is_not_root_is_told_so() {
    if !privileged() {
        return;
    }
    // A directory in which every user may execute the binary.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("fairweir");
    fs::copy(FAIRWEIR, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    command.args(["init", "--dev", "lo", "--output", "-", "--run-dir"]);
    let output = command.arg(dir.path().join("run")).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(error.contains("permission denied; run it as root\n"), "{error}");
}

#[test]
fn a_broken_pipe_is_no_failure() {
    // A pipe without a reader, from the first byte on.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(FAIRWEIR)
        .arg("check")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/fairweir.toml"))
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.as_str()), (Some(0), ""));
}

#[test]
fn the_example_configuration_is_valid() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/fairweir.toml");
    let output = fairweir(&["check", "--json", example]);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(checked["warnings"], Value::Array(Vec::new()));
    assert!(checked["groups"].as_array().unwrap().len() >= 3);
}

#[test]
fn the_lab_without_root_asks_for_sudo() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (copy, scenario) = (dir.path().join("fairweir"), dir.path().join("demo.toml"));
    fs::copy(FAIRWEIR, &copy).unwrap();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/demo.toml");
    fs::copy(demo, &scenario).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    let output = command.args(["lab", "run"]).arg(&scenario).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let error = only_error_line(&output);
    assert!(error.contains("the lab needs root: run it with sudo"), "{error}");
}

#[test]
fn status_without_a_host_daemon_names_the_command_for_the_isp() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().to_str().unwrap();
    let status = || only_error_line(&fairweir(&["host", "status", "--run-dir", run_dir]));
    assert!(!status().contains("isp"), "{}", status());
    let _isp = std::os::unix::net::UnixListener::bind(dir.path().join("isp.sock")).unwrap();
    assert!(status().contains("see `fairweir isp status`"), "{}", status());
}

#[test]
fn control_characters_in_errors_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a\u{1b}]0;title\u{7}.toml");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/demo.toml");
    let error = only_error_line(&fairweir(&["sim", "run", demo, "--out", "/dev/null/a\u{1b}]0;b"]));
    assert!(error.contains(r"cannot make /dev/null/a\u001b]0;b"), "{error:?}");
    // Standard output is escaped too.
    fs::write(&file, COUNTING).unwrap();
    let output = fairweir(&["check", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stdout.contains(&0x1b), "{output:?}");
}

#[test]
fn doctor_looks_at_this_kernel() {
    assert_eq!(String::from_utf8(fairweir(&["doctor"]).stderr).unwrap(), "", "no log");
    let findings: Value = serde_json::from_slice(&fairweir(&["doctor", "--json"]).stdout).unwrap();
    let findings = findings.as_array().unwrap();
    assert!(findings.len() >= 5);
    let text = String::from_utf8(fairweir(&["doctor"]).stdout).unwrap();
    for finding in findings {
        assert!(text.contains(finding["feature"].as_str().unwrap()), "{finding}");
        assert!(!finding["lost_without"].as_str().unwrap().is_empty(), "{finding}");
    }
}

#[test]
fn doctor_corrects_what_it_can_and_restores_settings() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let key = "/proc/sys/net/ipv4/tcp_timestamps";
    let value = || stage.at_home(|| fs::read_to_string(key).unwrap().trim().to_owned());
    stage.at_home(|| fs::write(key, "0").unwrap());
    let state = stage.path("states");
    fs::create_dir_all(state.join("host")).unwrap();
    fs::set_permissions(state.join("host"), fs::Permissions::from_mode(0o777)).unwrap();
    let (etc, state_text) = (stage.path("etc"), state.display().to_string());
    let doctor = |args: &str| {
        stage.fairweir(&format!("doctor {args} --etc {} --state {state_text}", etc.display()))
    };
    // The command only reports what it would do.
    let findings: Value = serde_json::from_slice(&doctor("--json").stdout).unwrap();
    let fixes = findings.as_array().unwrap().iter().filter_map(|f| f["fix"].as_str());
    let said = fixes.collect::<Vec<_>>().join("; ");
    assert!(said.contains("set net.ipv4.tcp_timestamps to 1 instead of 0"), "{said}");
    assert!(said.contains("states/host to 0755 instead of 0777"), "{said}");
    assert_eq!(value(), "0");
    // Without an answer to its question, the command changes nothing.
    assert!(!doctor("--fix").status.success());
    assert_eq!(value(), "0");
    let output = doctor("--fix --yes");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(value(), "1");
    let mode = fs::metadata(state.join("host")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    let stored = fs::read_to_string(etc.join("sysctl.d/90-fairweir.conf")).unwrap();
    assert!(stored.contains("\nnet.ipv4.tcp_timestamps = 1\n"), "{stored}");
    let output = doctor("--undo");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(value(), "0");
    assert!(!etc.join("sysctl.d/90-fairweir.conf").exists());
}

#[test]
fn doctor_removes_what_a_killed_daemon_left() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure("version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n");
    let doctor = |args: &str| {
        let (etc, state) = (stage.path("etc"), stage.path("states"));
        stage.fairweir(&format!(
            "doctor {args} --etc {} --state {}",
            etc.display(),
            state.display()
        ))
    };
    let fixes = || {
        let findings: Value = serde_json::from_slice(&doctor("--json").stdout).unwrap();
        let fixes = findings.as_array().unwrap().iter().filter_map(|f| f["fix"].as_str());
        fixes.map(str::to_owned).collect::<Vec<_>>()
    };
    let daemon = stage.start(&[]);
    // Anything that a running daemon needs is not listed as a fix.
    assert_eq!(fixes(), Vec::<String>::new());
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    assert!(stage.interfaces().contains(&"ifb4wan".to_owned()), "nothing is left behind");
    assert_eq!(
        fixes(),
        [
            "remove what a killed daemon left at wan",
            "remove the socket of host-wan, which does not run",
        ]
    );
    let output = doctor("--fix --yes");
    assert!(output.status.success(), "{output:?}");
    assert!(!stage.interfaces().contains(&"ifb4wan".to_owned()), "{output:?}");
    assert!(!stage.path("run/host-wan.sock").exists(), "{output:?}");
    assert_eq!(fixes(), Vec::<String>::new());
    assert!(stage.start(&[]).status()["enforcing"].is_boolean(), "a daemon starts again");
}

#[test]
fn status_is_as_documented() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&format!(
        "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n\
         [[group]]\nname = \"server\"\nweight = 3\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    ));
    let daemon = stage.start(&[]);
    let _download = stage.download(SERVERS[0]);
    daemon.wait_for("busy", Duration::from_secs(5), |s| {
        s["groups"][0]["rate_bps"].as_u64().unwrap() > 10_000_000
    });
    let output = stage.fairweir("host status --json");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let documented =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/status.md"));
    let documented = documented.unwrap();
    let schema = documented.split("```json").nth(1).unwrap().split("```").next().unwrap();
    let schema: Value = serde_json::from_str(schema).unwrap();
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&status), keys(&schema), "docs/reference/status.md shows every key");
    assert_eq!(keys(&status["groups"][0]), keys(&schema["groups"][0]));
    assert_eq!(status["groups"][0]["share_bps"], 15_000_000);
    assert_eq!(status["capacity_bps"], 20_000_000);
    let table = String::from_utf8(stage.fairweir("host status --dev wan").stdout).unwrap();
    assert!(table.contains("wan  static  capacity 20.00 Mbit/s  enforcing"), "{table}");
    assert!(table.contains("limit: upload is not shaped"), "{table}");
    let error = only_error_line(&stage.fairweir("host status --dev wann"));
    assert!(error.contains("one runs for `wan`"), "{error}");
}

#[test]
fn a_wrong_request_is_answered_and_ends_nothing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(COUNTING);
    let daemon = stage.start(&[]);
    assert_eq!(daemon.ask("dance").unwrap()["reply"], "error");
    assert_eq!(daemon.ask("reload").unwrap()["message"], "nothing changed");
    assert_eq!(daemon.status()["ready"], true);
}

#[test]
fn a_reload_succeeds_or_fails_with_the_configuration() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(COUNTING);
    let _daemon = stage.start(&[]);
    // An instance of the systemd unit may have the interface's escaped name.
    let output = stage.fairweir(r"reload --dev \x77an");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"nothing changed\n"[..])
    );
    stage.configure("version = 1\n[host]\ncontrol = \"nnoe\"\n");
    let output = stage.fairweir("reload --dev wan");
    assert_eq!(output.status.code(), Some(1));
    let error = only_error_line(&output);
    assert!(error.contains("fairweir.toml:3: host.control"), "{error}");
}

#[test]
fn a_dry_run_touches_nothing_and_says_every_second_what_it_would_do() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure("version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n");
    let mut command = stage.host_command(&[], &["--dry-run", "--json"]);
    let mut child = stage.at_home(|| command.spawn().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let status: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&status["dry_run"], &status["enforcing"]), (&true.into(), &false.into()));
        assert_eq!(status["groups"][0]["share_bps"], 20_000_000);
    }
    assert!(!stage.interfaces().contains(&"ifb4wan".to_owned()));
    assert!(!stage.path("state").exists(), "a dry run stores nothing");
    // The reader goes away.
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_dry_run_probes_only_if_it_is_told_to() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&format!("version = 1\n[host]\nprobe = \"{}\"\n", SERVERS[1]));
    for (more, probes) in [(&["--dry-run"][..], false), (&["--dry-run", "--probe"], true)] {
        let daemon = stage.start(more);
        std::thread::sleep(Duration::from_secs(2));
        let status = daemon.status();
        assert_eq!(status["probe"].is_object(), probes, "{more:?}: {}", status["probe"]);
        if probes {
            assert!(status["probe"]["sent"].as_u64() >= Some(1), "{}", status["probe"]);
        }
    }
    let output = stage.fairweir("host --dev wan --probe");
    assert_eq!(output.status.code(), Some(2), "--probe is for dry runs");
}

#[test]
fn init_proposes_a_group_for_who_downloads() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let mut command = Command::new(FAIRWEIR);
    let file = stage.path("new/fairweir.toml");
    command.args(["init", "--dev", "wan", "--duration", "3s", "--output"]).arg(&file);
    command.args(["--run-dir", &stage.run_dir()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = stage.at_home(|| command.spawn().unwrap());
    std::thread::sleep(Duration::from_millis(700));
    let download = stage.download(SERVERS[0]);
    let output = child.wait_with_output().unwrap();
    drop(download);
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    // The downloading process is this test itself.
    let me = std::env::current_exe().unwrap();
    let me = me.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(&format!("match = [\"app:{me}\"]")), "{text}");
    assert!(text.contains("user:root") && text.contains("ip:10.9.0.0/24"), "{text}");
    let output = fairweir(&["check", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
}

/// Two groups that can compete: only a capacity that such groups confirm is stored.
fn competing() -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"crab\"\n\
         [[group]]\nname = \"a\"\nweight = 1\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    )
}

/// Stores a learned capacity at once instead of after a minute of use.
const CONFIRMED_SOON: [&str; 2] = ["--confirmed-after-s", "0"];

#[test]
fn a_learned_capacity_is_remembered_for_its_network() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&competing());
    let daemon = stage.start(&CONFIRMED_SOON);
    let _downloads = SERVERS.map(|server| stage.download(server));
    let patience = Duration::from_secs(30);
    daemon.wait_for("on a known network", patience, |s| s["network"].is_string());
    stage.wait_for_memory("capacity_bps", patience);
    let learned = daemon.status()["capacity_bps"].as_u64().unwrap();
    assert!((30_000_000..45_000_000).contains(&learned), "{learned}");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(0));
    let next = stage.start(&[]);
    let status = next.status();
    let remembered = status["remembered"]["capacity_bps"].as_u64().unwrap();
    assert!((30_000_000..45_000_000).contains(&remembered), "{status:#}");
    assert_eq!(status["enforcing"], true, "it begins with what is remembered");
}

#[test]
fn in_another_network_the_control_begins_anew() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&competing());
    stage.set_gateway_address("02:00:00:00:00:01");
    let daemon = stage.start(&["--until-stdin-closes", CONFIRMED_SOON[0], CONFIRMED_SOON[1]]);
    let downloads = SERVERS.map(|server| stage.download(server));
    let patience = Duration::from_secs(90);
    daemon.wait_for("at home", patience, |s| s["network"] == "gateway 02:00:00:00:00:01");
    stage.wait_for_memory(":00:01\"", patience);
    stage.set_gateway_address("02:00:00:00:00:02");
    daemon.wait_for("elsewhere", patience, |s| s["network"] == "gateway 02:00:00:00:00:02");
    let kinds = daemon.status()["changes"].to_string();
    assert!(kinds.contains("\"learn\""), "{kinds}");
    daemon.wait_for("enforcing again", patience, |s| s["enforcing"] == true);
    stage.wait_for_memory(":00:02\"", patience);
    drop(downloads);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end().0, Some(0));
    let remembered = fs::read_to_string(stage.path("state/capacity.json")).unwrap();
    assert!(remembered.contains(":00:01\""), "the first one is not forgotten: {remembered}");
}

#[test]
fn systemd_is_told_when_the_daemon_is_ready() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(COUNTING);
    let path = stage.path("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut command = stage.host_command(&[], &["--until-stdin-closes"]);
    let mut child = stage.at_home(|| command.env("NOTIFY_SOCKET", &path).spawn().unwrap());
    let heard = || {
        let mut buffer = [0; 64];
        let n = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    assert_eq!(heard(), "READY=1\nSTATUS=");
    drop(child.stdin.take());
    assert_eq!(heard(), "STOPPING=1");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
}

#[test]
fn status_is_a_line_for_every_daemon_and_each_has_its_verbs() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(COUNTING);
    let daemon = stage.start(&[]);
    let run_dir = std::path::PathBuf::from(stage.run_dir());
    // A daemon that was killed: its socket file exists, but no process listens.
    drop(std::os::unix::net::UnixListener::bind(run_dir.join("isp.sock")).unwrap());
    let output = stage.fairweir("status");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "isp does not run: {said}");
    assert!(said.contains("host wan  wan  none  "), "{said}");
    assert!(said.contains("isp       no daemon answers for `isp`"), "{said}");
    fs::remove_file(run_dir.join("isp.sock")).unwrap();
    let output = stage.fairweir("status");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    // The old spelling still works, and the output names the new one.
    let old = stage.fairweir("status --json");
    let parsed = |output: &std::process::Output| -> Value {
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(parsed(&old)["dev"], "wan");
    assert!(only_error_line(&old).contains("`fairweir host status`"), "{old:?}");
    let new = stage.fairweir("host status --json");
    assert_eq!(parsed(&new)["dev"], "wan");
    assert!(new.stderr.is_empty(), "{new:?}");
    // A daemon for a host is not one for a router.
    let router = stage.fairweir("router status");
    assert_eq!(router.status.code(), Some(3));
    assert!(only_error_line(&router).contains("`fairweir router` does not run"));
    assert_eq!(stage.fairweir("host reload").stdout, b"nothing changed\n");
    let off = stage.fairweir("host off");
    assert!(String::from_utf8(off.stdout).unwrap().contains("host-wan: the daemon (pid "));
    assert_eq!(daemon.end().0, Some(0));
    assert_eq!(stage.fairweir("host status").status.code(), Some(3));
    let off = stage.fairweir("host off --dev wan");
    assert_eq!(off.stdout, b"it does not run, and nothing was left behind\n");
    assert_eq!(stage.fairweir("host off --dev wann").status.code(), Some(2));
}

#[test]
#[cfg(feature = "evidence")]
fn every_command_with_json_has_a_schema_of_this_version() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json.schema.json");
    let printed = fairweir(&["generate", "schemas"]).stdout;
    assert!(
        fs::read(path).unwrap_or_default() == printed,
        "docs/reference/json.schema.json is not of this version; `fairweir generate schemas` prints it"
    );
    let listed = String::from_utf8(fairweir(&["generate", "commands"]).stdout).unwrap();
    let commands =
        listed.lines().filter_map(|line| line.strip_prefix("| `fairweir ")?.split('`').next());
    let is_other =
        |c: &&str| *c == "check" || schema::OTHERS.iter().any(|other| c.starts_with(other));
    for command in commands.filter(|c| !is_other(c)) {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = String::from_utf8(fairweir(&args).stdout).unwrap();
        let has_schema = schema::schemas()["commands"].get(command).is_some();
        let has_json = help.lines().any(|line| line.trim_start().starts_with("--json"));
        assert_eq!(has_json, has_schema, "`fairweir {command}`");
    }
}

#[test]
fn a_key_too_many_or_too_few_is_found() {
    let good = serde_json::json!({ "error": "it fails", "exit_code": 1 });
    schema::assert_valid("error", &good);
    let of_error = &schema::schemas()["commands"]["error"]["schema"];
    for wrong in [
        serde_json::json!({ "error": "it fails" }),
        serde_json::json!({ "error": "it fails", "exit_code": 1, "more": 1 }),
        serde_json::json!({ "error": null, "exit_code": 1 }),
        serde_json::json!({ "error": "it fails", "exit_code": 1.5 }),
    ] {
        assert!(schema::contradiction(of_error, &wrong).is_some(), "{wrong}");
    }
}

/// No schema has objects that allow any key, or values of any type.
#[test]
fn no_schema_is_open() {
    const SAYS_A_TYPE: [&str; 6] = ["type", "$ref", "anyOf", "oneOf", "enum", "const"];
    fn openings(at: &str, schema: &Value) -> Vec<String> {
        let says_a_type = SAYS_A_TYPE.iter().any(|key| schema.get(key).is_some());
        let is_open = schema.get("type") == Some(&"object".into())
            && schema.get("additionalProperties").is_none_or(|more| more == true)
            || schema.get("type") == Some(&"array".into()) && schema.get("items").is_none();
        let mut found = Vec::new();
        if !says_a_type || is_open {
            found.push(at.to_owned());
        }
        let of = |key: &str| schema.get(key).and_then(Value::as_object).into_iter().flatten();
        for (key, inner) in of("properties") {
            found.extend(openings(&format!("{at}.{key}"), inner));
        }
        for key in ["items", "additionalProperties"] {
            let inner = schema.get(key).filter(|inner| *inner != false);
            found.extend(inner.into_iter().flat_map(|inner| openings(at, inner)));
        }
        for key in ["anyOf", "oneOf"] {
            let all = schema.get(key).and_then(Value::as_array).into_iter().flatten();
            found.extend(all.flat_map(|inner| openings(at, inner)));
        }
        found
    }
    let all = schema::schemas();
    let commands = all["commands"].as_object().unwrap().iter().map(|(n, of)| (n, &of["schema"]));
    let schemas = commands.chain(all["$defs"].as_object().unwrap());
    let found: Vec<String> = schemas.flat_map(|(name, of)| openings(name, of)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn what_a_market_answers_is_held_to_every_key() {
    let good = serde_json::json!({
        "address": null, "enforcement": "none", "doubt": null, "rules": null, "open_slot": 3,
        "paused": false, "gateways": 1, "credits_micro": 5,
        "last": { "slot": 2, "price": "0", "root": "00" },
    });
    schema::assert_valid("market status", &good);
    let of_status = &schema::schemas()["commands"]["market status"]["schema"];
    for (at, wrong) in [
        ("/last/price", serde_json::json!(0)),
        ("/last", serde_json::json!({ "slot": 2, "price": "0", "root": "00", "more": 1 })),
        ("/rules", serde_json::json!({ "share": "1" })),
        ("/enforcement", serde_json::json!(null)),
    ] {
        let mut changed = good.clone();
        *changed.pointer_mut(at).unwrap() = wrong;
        assert!(schema::contradiction(of_status, &changed).is_some(), "{changed}");
    }
}

#[test]
#[cfg(feature = "evidence")]
fn the_document_of_the_commands_is_that_of_the_command_line() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/commands.md");
    let printed = fairweir(&["generate", "commands"]).stdout;
    assert!(
        fs::read(path).unwrap_or_default() == printed,
        "docs/reference/commands.md is not of this version; `fairweir generate commands` prints it"
    );
}
