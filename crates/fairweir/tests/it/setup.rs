//! `fairweir setup` on a computer, a router, an access network and a server: right role, right file, no harm.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fairweir_linux::{leftovers, link, netns::Netns};
use fairweir_testing::privileged;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::home::{self, ip};
use crate::common::stage::{SERVERS, Stage};
use crate::common::{FAIRWEIR, check};

/// Starts `fairweir setup` in the home.
fn begin(stage: &Stage, args: &str) -> Child {
    let mut command = Command::new(FAIRWEIR);
    command.arg("setup").args(args.split_whitespace());
    command.args(["--run-dir", &stage.run_dir(), "--state"]).arg(stage.path("setup-state"));
    command.args(["--page-dir", &stage.run_dir()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    stage.at_home(|| command.spawn().unwrap())
}

fn setup(stage: &Stage, args: &str, answers: &str) -> Output {
    let mut child = begin(stage, args);
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

#[test]
fn a_computer_is_set_up_again_and_as_it_was() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let file = stage.path("new/fairweir.toml");
    let with_download = |args: &str, answers: &str| {
        let args = format!("--duration 2s --output {} {args}", file.display());
        let mut child = begin(&stage, &args);
        child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let download = stage.download(SERVERS[0]);
        let output = child.wait_with_output().unwrap();
        drop(download);
        output
    };
    // Without an answer, or with a negative answer, nothing is written.
    for answers in ["", "\n", "\n\n", "\n\n\n\nno\n"] {
        let output = with_download("", answers);
        assert_eq!(output.status.success(), answers.ends_with("no\n"), "{output:?}");
        assert!(!file.exists() && !stage.path("setup-state").exists(), "{answers:?}");
    }
    let output = with_download("--yes", "");
    let words = said(&output);
    assert!(output.status.success(), "{words}");
    assert!(words.contains("This looks like a computer: it does not forward"), "{words}");
    assert!(words.contains("sudo fairweir host --dev wan"), "{words}");
    let first = fs::read_to_string(&file).unwrap();
    assert!(words.contains(&first), "the configuration is shown: {words}");
    assert!(first.contains("dev = \"wan\"") && !first.contains("probe"), "{first}");
    assert!(check(&file).status.success());
    // A second run keeps a person's edits, unless the person wants the file replaced.
    let edited = first.replace("weight = 2", "weight = 7");
    assert_ne!(edited, first);
    fs::write(&file, &edited).unwrap();
    let output = with_download("--yes", "");
    assert!(output.status.success(), "{output:?}");
    let kept = fs::read_to_string(&file).unwrap();
    assert!(kept.starts_with(&edited), "{kept}");
    assert!(check(&file).status.success());
    // Answers: the role, the interface, the file, no probe, the download matters most, write the file.
    let output = with_download("", "0\nwan\nno\nno\n1\nyes\n");
    assert!(output.status.success(), "{output:?}");
    let second = fs::read_to_string(&file).unwrap();
    assert!(second.contains("probe = \"off\"") && second.contains("weight = 10"), "{second}");
    // An unreadable file is reported and kept.
    fs::write(&file, "version = 7\n").unwrap();
    let output = with_download("--yes", "");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "version = 7\n");
    // Edits and settings made since then are not lost.
    let set = stage.path("new/conf.d/zz-set.toml");
    fs::create_dir(set.parent().unwrap()).unwrap();
    fs::write(&set, "[set.weight]\nnobody = 3\n").unwrap();
    let output = setup(&stage, "--undo", "");
    assert!(output.status.success(), "{output:?}");
    assert!(!file.exists(), "{output:?}");
    let kept = fs::read_to_string(stage.path("new/fairweir.toml.edited")).unwrap();
    assert_eq!(kept, "version = 7\n");
    assert!(!set.exists() && set.with_extension("toml.edited").exists(), "{output:?}");
    assert!(said(&setup(&stage, "--undo", "")).contains("nothing to undo"));
    let output = setup(&stage, "--yes --dev nosuch", "");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("no interface `nosuch`"), "{output:?}");
}

#[test]
fn a_daemon_that_runs_is_set_up_again_without_a_stop() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure("version = 1\n[host]\ncontrol = \"none\"\n[[group]]\nname = \"a\"\nweight = 3\nmatch = [\"app:a\"]\n");
    let daemon = stage.start(&[]);
    let pid = daemon.status()["pid"].clone();
    let file = stage.path("fairweir.toml");
    let args = format!("--output {}", file.display());
    let output = setup(&stage, &format!("--yes {args}"), "");
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("stays as it is"), "{output:?}");
    assert!(said(&output).contains("the daemon that runs has read it"), "{output:?}");
    // Replaced: the groups of the new file are those that the daemon counts.
    let output = setup(&stage, &args, "\n\nno\nno\n\n\n");
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("probe = \"off\"") && check(&file).status.success(), "{text}");
    assert_eq!(daemon.status()["pid"], pid, "it was not stopped");
    // For the role of a router it would also need the interface.
    let output = setup(&stage, "--yes --role router --lan lo --output router.toml", "");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(said(&output).contains("`fairweir setup --undo` or `fairweir off` stops it"));
    assert!(setup(&stage, "--undo", "").status.success());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("weight = 3"), "{text}");
}

#[test]
fn a_setup_that_is_interrupted_leaves_nothing() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let file = stage.path("fairweir.toml");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut child =
            begin(&stage, &format!("--yes --duration 600s --output {}", file.display()));
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("watching wan"), "{line}");
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let output = child.wait().unwrap();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(output.code(), Some(1), "{rest}");
        assert!(rest.contains("interrupted; nothing was written"), "{rest}");
        assert!(!file.exists() && !stage.path("setup-state").exists());
        assert_eq!(stage.at_home(|| leftovers().unwrap()), [] as [String; 0]);
    }
}

#[test]
fn a_router_is_found_with_its_devices_and_new_ones_are_added() {
    if !privileged() || !home::has_nat() {
        return;
    }
    let stage = Stage::new();
    let devices = home::devices(&stage, ["tv", "laptop"]);
    let reach = |i: usize| {
        drop(devices[i].run(|| TcpStream::connect((SERVERS[0], stage.port())).unwrap()));
    };
    reach(0);
    let file = stage.path("router.toml");
    let args = format!("--yes --output {}", file.display());
    // If another program shapes already, setup prints a message and writes no file.
    assert!(
        stage
            .run("tc qdisc add dev br-lan root tbf rate 20mbit burst 64k latency 50ms")
            .status
            .success()
    );
    let output = setup(&stage, &args, "");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(said(&output).contains("`tbf`") && !file.exists(), "{output:?}");
    assert!(stage.run("tc qdisc del dev br-lan root").status.success());
    let output = setup(&stage, &args, "");
    assert!(output.status.success(), "{output:?}");
    assert!(
        said(&output).contains("a router: it forwards between br-lan and wan, with NAT"),
        "{output:?}"
    );
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("lan = \"br-lan\"\nwan = \"wan\"\n"), "{text}");
    assert!(text.contains(&devices[0].mac) && !text.contains(&devices[1].mac), "{text}");
    assert!(check(&file).status.success());
    reach(1);
    let edited = text.replacen("weight = 1", "weight = 4", 1);
    fs::write(&file, &edited).unwrap();
    let output = setup(&stage, &args, "");
    assert!(output.status.success(), "{output:?}");
    let grown = fs::read_to_string(&file).unwrap();
    assert!(grown.starts_with(&edited) && grown.contains(&devices[1].mac), "{grown}");
    assert!(check(&file).status.success());
    let output = setup(&stage, &args, "");
    assert!(said(&output).contains("stays as it is"), "{output:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), grown);
    assert!(setup(&stage, "--undo", "").status.success());
    assert!(!file.exists());
    // Internet access over a point-to-point link, as with PPPoE: this kernel has no PPP.
    let _ppp = stage.at_home(|| {
        let tun = link::tun("ppp0").unwrap();
        ip("link set ppp0 up");
        ip("route replace default dev ppp0");
        ip("-6 route replace default dev ppp0");
        tun
    });
    let output = setup(&stage, &args, "");
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("lan = \"br-lan\"\nwan = \"ppp0\"\n"), "{text}");
}

#[test]
fn an_access_network_gets_a_file_to_edit_and_no_daemon() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let subscribers = Netns::new().unwrap();
    stage.at_home(|| {
        link::create_veth("access", &subscribers, "eth0").unwrap();
        ip("link set access up");
        ip("neigh add 192.0.2.1 lladdr 02:00:5e:00:53:01 dev access");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    });
    let file = stage.path("isp.toml");
    let args = format!("--yes --output {}", file.display());
    for is_second in [false, true] {
        let output = setup(&stage, &args, "");
        let words = said(&output);
        assert!(output.status.success(), "{words}");
        assert!(
            words.contains("an access network: it forwards between access and wan, without NAT"),
            "{words}"
        );
        assert!(words.contains("plans and subscribers cannot be found out"), "{words}");
        assert!(words.contains("sudo fairweir isp --config"), "{words}");
        assert_eq!(words.contains("stays as it is"), is_second, "{words}");
    }
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("device = \"access\"") && text.contains("uplink = \"wan\""), "{text}");
    assert!(check(&file).status.success());
    assert!(setup(&stage, "--undo", "").status.success());
    assert!(!file.exists());
}

#[test]
fn a_server_is_found_by_who_is_connected_to_it() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    let listeners =
        stage.at_home(|| [8_443, 1_935].map(|port| TcpListener::bind(("10.9.0.2", port)).unwrap()));
    let connect = |port: u16, count: usize| -> Vec<TcpStream> {
        stage.at_internet(|| {
            (0..count).map(|_| TcpStream::connect(("10.9.0.2", port)).unwrap()).collect()
        })
    };
    let held = [connect(8_443, 60), connect(1_935, 3)];
    let file = stage.path("sender.toml");
    let args = format!("--yes --output {}", file.display());
    for is_second in [false, true] {
        let output = setup(&stage, &args, "");
        let words = said(&output);
        assert!(output.status.success(), "{words}");
        assert!(words.contains("a server: others hold 63 connections to it"), "{words}");
        assert_eq!(words.contains("stays as it is"), is_second, "{words}");
    }
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("[[bundle.free]]\nmatch = [\"local-port:tcp/1935\"]"), "{text}");
    assert!(text.contains("peers = [\"10.9.0.0/24\"]"), "{text}");
    assert!(check(&file).status.success());
    assert!(setup(&stage, "--undo", "").status.success());
    assert!(!file.exists());
    drop((held, listeners));
}
