//! `fairweir sender` with connections that exist before it starts: which ones it switches, and that each gets
//! back its congestion control, however the daemon ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::{link, netns::Netns};
use fairweir_testing::{note, once, privileged, two_of_three, valid};
use nix::sys::socket::{getsockopt, setsockopt, sockopt::TcpCongestion};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{FAIRWEIR, played, schema};

const PATIENCE: Duration = Duration::from_secs(8);

/// A host with connections to itself, each of which sends a little all the time.
struct Host {
    netns: Netns,
    dir: TempDir,
    daemon: Option<Child>,
    stop: Arc<AtomicBool>,
}

impl Host {
    fn new() -> Host {
        let netns = Netns::new().unwrap();
        netns.run(|| link::set_up("lo").unwrap());
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        Host { netns, dir, daemon: None, stop: Arc::new(AtomicBool::new(false)) }
    }

    /// The sending end of a new connection from `port`.
    fn connection(&self, port: u16, congestion_control: &str) -> TcpStream {
        let listener = self.netns.run(|| TcpListener::bind(("127.0.0.1", port)).unwrap());
        let mut receiver = self.netns.run(|| TcpStream::connect(("127.0.0.1", port)).unwrap());
        let (sender, _) = listener.accept().unwrap();
        setsockopt(&sender, TcpCongestion, &congestion_control.into()).unwrap();
        let (stop, mut writer) = (Arc::clone(&self.stop), sender.try_clone().unwrap());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                writer.write_all(&[7; 2_000]).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        thread::spawn(move || while receiver.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {});
        sender
    }

    fn configure(&self, stunts: u16) {
        let text = format!(
            "version = 1\n[[bundle]]\nname = \"b\"\npeers = [\"127.0.0.0/8\"]\n\
             [[bundle.free]]\nmatch = [\"local-port:tcp/7001\"]\ntarget = \"5mbit\"\n\
             [[bundle.stunts]]\nmatch = [\"local-port:tcp/{stunts}\"]\n"
        );
        fs::write(self.dir.path().join("sender.toml"), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FAIRWEIR);
        command.args(args).arg("--run-dir").arg(self.dir.path().join("run"));
        command.stderr(Stdio::null());
        command
    }

    fn start(&mut self) {
        let mut command = self.command(&["sender"]);
        command.arg("--config").arg(self.dir.path().join("sender.toml"));
        self.daemon = Some(self.netns.run(|| command.spawn().unwrap()));
    }

    /// The output of a command; empty if it fails, as long as the daemon does not answer yet.
    fn printed(&self, args: &[&str]) -> String {
        let output = self.netns.run(|| self.command(args).output().unwrap());
        schema::check(args, &output);
        String::from_utf8(output.stdout).unwrap()
    }

    fn run(&self, args: &[&str]) -> bool {
        let mut command = self.command(args);
        self.netns.run(|| command.stdout(Stdio::null()).status().unwrap().success())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn has(connection: &TcpStream) -> String {
    let name = getsockopt(connection, TcpCongestion).unwrap().into_string().unwrap();
    name.trim_end_matches('\0').to_owned()
}

/// Waits until the congestion control of every connection begins with the given prefix.
fn wait_for(connections: &[(&TcpStream, &str)], what: &str) {
    let begin = Instant::now();
    loop {
        let names: Vec<String> = connections.iter().map(|(c, _)| has(c)).collect();
        if names.iter().zip(connections).all(|(name, (_, wanted))| name.starts_with(wanted)) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {names:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_are_switched_as_rules_say_and_given_back_at_reload_and_off() {
    if !privileged() {
        return;
    }
    let mut host = Host::new();
    let free = host.connection(7001, "cubic");
    let stunt = host.connection(7002, "reno");
    let other = host.connection(7003, "cubic");
    // A sending connection whose congestion control cannot take part.
    let paced = host.connection(7004, "bbr");
    host.configure(7002);
    host.start();
    let both = [(&free, "fw_cubic"), (&stunt, "fw_reno"), (&other, "cubic"), (&paced, "bbr")];
    wait_for(&both, "switched");
    // A connection that is opened later.
    let late = host.connection(7002, "cubic");
    wait_for(&[(&late, "fw_cubic")], "a late one");
    // A wrong file changes nothing.
    let path = host.dir.path().join("sender.toml");
    fs::write(&path, "version = 1\n[[bundle]]\nname = \"b\"\n").unwrap();
    assert!(!host.run(&["sender", "reload"]), "a wrong file is refused");
    wait_for(&both, "as before");
    host.configure(7003);
    assert!(host.run(&["sender", "reload"]));
    let others = [(&free, "fw_cubic"), (&stunt, "reno"), (&other, "fw_cubic"), (&late, "cubic")];
    wait_for(&others, "by the new rules");
    host.configure(7004);
    assert!(host.run(&["sender", "reload"]));
    wait_for(&[(&other, "cubic"), (&paced, "bbr")], "bbr is left out");
    assert!(host.run(&["off"]));
    let all = [(&free, "cubic"), (&stunt, "reno"), (&other, "cubic"), (&late, "cubic")];
    wait_for(&all, "given back");
}

/// A rule with a target that matches a thousand connections is treated as a mistake in the rule.
#[test]
fn a_thousand_connections_with_a_target_are_told_and_none_is_switched() {
    if !privileged() {
        return;
    }
    let mut host = Host::new();
    let stunt = host.connection(7002, "reno");
    let listener = host.netns.run(|| TcpListener::bind(("127.0.0.1", 7001)).unwrap());
    let mut many: Vec<(TcpStream, TcpStream)> = (0..1_000)
        .map(|_| {
            let receiver = host.netns.run(|| TcpStream::connect(("127.0.0.1", 7001)).unwrap());
            (listener.accept().unwrap().0, receiver)
        })
        .collect();
    many.iter().for_each(|(sender, _)| setsockopt(sender, TcpCongestion, &"cubic".into()).unwrap());
    host.configure(7002);
    host.start();
    let told = "problem: rules of targets name 1000 connections (at most 16); nothing is delegated";
    let begin = Instant::now();
    while !host.printed(&["sender", "top"]).contains(told) {
        assert!(begin.elapsed() < PATIENCE, "{}", host.printed(&["sender", "top"]));
        thread::sleep(Duration::from_millis(50));
    }
    assert!(many.iter().all(|(sender, _)| has(sender) == "cubic") && has(&stunt) == "reno");
    let status: Value = serde_json::from_str(&host.printed(&["sender", "top", "--json"])).unwrap();
    assert_eq!(status["bundles"][0]["stunts"]["connections"], 0, "{status:#}");
    // After the rule is corrected, everything is as configured.
    many.truncate(1);
    wait_for(&[(&many[0].0, "fw_cubic"), (&stunt, "fw_reno")], "switched");
}

/// This kernel's type information, with the last letter of a name changed: as from a kernel without the named
/// item.
fn without(name: &str) -> Vec<u8> {
    let mut types = fs::read(BTF).unwrap();
    let ended = format!("\0{name}\0");
    let mut found = 0;
    for at in 0..types.len() - ended.len() {
        if types[at..].starts_with(ended.as_bytes()) {
            types[at + name.len()] = b'~';
            found += 1;
        }
    }
    assert!(found > 0, "{name} is not in {BTF}");
    types
}

#[test]
fn a_kernel_that_cannot_is_named_once_and_no_connection_is_switched() {
    if !privileged() {
        return;
    }
    let host = Host::new();
    let free = host.connection(7001, "cubic");
    let stunt = host.connection(7002, "reno");
    host.configure(7002);
    let (config, types) = (host.dir.path().join("sender.toml"), host.dir.path().join("types"));
    let hide = format!("mount --bind {} {BTF}", types.display());
    let cases = [
        (None, "mount -t tmpfs none /sys/kernel", "CONFIG_DEBUG_INFO_BTF"),
        (Some("bpf_struct_ops_tcp_congestion_ops"), hide.as_str(), "CONFIG_BPF_JIT"),
        (Some("cubictcp_cong_avoid"), hide.as_str(), "CONFIG_TCP_CONG_CUBIC"),
    ];
    for (name, hide, says) in cases {
        fs::write(&types, name.map(without).unwrap_or_default()).unwrap();
        let mut command = Command::new("timeout");
        command.args(["20", "unshare", "--mount", "sh", "-c"]);
        command.arg(format!("{hide} && exec \"$0\" \"$@\"")).arg(FAIRWEIR);
        command.arg("sender").arg("--config").arg(&config);
        command.arg("--run-dir").arg(host.dir.path().join("run"));
        let output = host.netns.run(|| command.output().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        let begins = "fairweir: cannot load the congestion controls: ";
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(begins) && said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "one error: {said}");
        assert_eq!([has(&free), has(&stunt)], ["cubic", "reno"]);
        assert!(!host.dir.path().join("run/sender.sock").exists(), "no socket of it is left");
    }
}

const BTF: &str = "/sys/kernel/btf/vmlinux";

#[test]
fn connections_of_a_killed_daemon_return_by_themselves_and_go_on() {
    if !privileged() {
        return;
    }
    let mut host = Host::new();
    let free = host.connection(7001, "cubic");
    let stunt = host.connection(7002, "reno");
    host.configure(7002);
    host.start();
    wait_for(&[(&free, "fw_cubic"), (&stunt, "fw_reno")], "switched");
    let mut daemon = host.daemon.take().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    wait_for(&[(&free, "cubic"), (&stunt, "reno")], "returned");
    // The writers panic if a connection breaks; the next daemon finds nothing in use.
    host.start();
    wait_for(&[(&free, "fw_cubic"), (&stunt, "fw_reno")], "switched again");
}

/// A second daemon in the network namespace, with another run directory, changes nothing, however often it is
/// started; it begins only after the first one has ended.
#[test]
fn a_second_daemon_of_the_network_namespace_is_refused() {
    if !privileged() {
        return;
    }
    let mut host = Host::new();
    let free = host.connection(7001, "cubic");
    let stunt = host.connection(7002, "reno");
    host.configure(7002);
    host.start();
    let switched = [(&free, "fw_cubic"), (&stunt, "fw_reno")];
    wait_for(&switched, "switched");
    let names = [has(&free), has(&stunt)];
    let second = || {
        let mut command = Command::new(FAIRWEIR);
        command.arg("sender").arg("--config").arg(host.dir.path().join("sender.toml"));
        command.arg("--run-dir").arg(host.dir.path().join("run-of-second"));
        command
    };
    for _ in 0..3 {
        let done = host.netns.run(|| second().arg("--until-stdin-closes").output().unwrap());
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(5), "{said}");
        let pid = host.daemon.as_ref().unwrap().id().to_string();
        assert!(said.contains(&pid), "{said}");
    }
    assert_eq!([has(&free), has(&stunt)], names);
    assert!(host.run(&["sender", "off"]));
    wait_for(&[(&free, "cubic"), (&stunt, "reno")], "returned");
    // Another user who takes the name does not keep the daemon from starting.
    let listen = "import socket,time;s=socket.socket(socket.AF_UNIX);s.bind('\\0fairweir-sender');s.listen(1);time.sleep(600)";
    let mut other = Command::new("python3");
    other.args(["-c", listen]).uid(65_534).gid(65_534).current_dir("/");
    let mut other = host.netns.run(|| other.spawn().unwrap());
    let begin = Instant::now();
    let is_taken = || {
        let unix = host.netns.run(|| fs::read_to_string("/proc/thread-self/net/unix").unwrap());
        unix.contains("@fairweir-sender")
    };
    while !is_taken() {
        assert!(begin.elapsed() < PATIENCE, "the other user's socket");
        thread::sleep(Duration::from_millis(20));
    }
    let mut daemon = host.netns.run(|| second().spawn().unwrap());
    wait_for(&switched, "switched by the second");
    for process in [&mut daemon, &mut other] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// Settings that are valid but have no or another effect than expected are reported.
#[test]
fn a_floor_above_any_link_and_a_rule_that_names_nothing_are_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("sender.toml");
    let check = |floor: &str, stunts: &str| {
        let text = format!(
            "version = 1\n[[bundle]]\nname = \"b\"\npeers = [\"127.0.0.0/8\"]\nmin_rate = \"{floor}\"\n\
             [[bundle.free]]\nmatch = [\"local-port:tcp/7001\"]\ntarget = \"5mbit\"\n\
             [[bundle.stunts]]\nmatch = [\"local-port:tcp/{stunts}\"]\n"
        );
        fs::write(&path, text).unwrap();
        let done = Command::new(FAIRWEIR).arg("check").arg(&path).output().unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(!check("1mbit", "7002").contains("warning"));
    let said = check("1700gbit", "7002");
    assert!(
        said.contains("warning: bundle `b`: min_rate = 1700gbit is more than any link"),
        "{said}"
    );
    let said = check("1mbit", "7001");
    assert!(said.contains("the rule `local-port:tcp/7001` names nothing"), "{said}");
}

/// The summary of a lab run without a control at the receiver.
fn summary_of(scenario: &str, set: &[&str]) -> Value {
    let file = played::file(scenario);
    let set = set.iter().flat_map(|set| ["--set", *set]);
    let args = ["lab", "run", &file, "--control", "none"].into_iter().chain(set);
    played::report(&args.collect::<Vec<_>>())["summary"].take()
}

/// The part of the summary about free connections.
fn free_of(scenario: &str, set: &[&str]) -> Value {
    let free = summary_of(scenario, set)["bundled"][0]["free"].take();
    note(&format!("{free}"));
    free
}

fn by_target(free: &Value) -> f64 {
    free["rate_bps"].as_f64().unwrap() / free["target_bps"].as_f64().unwrap()
}

/// Individual targets, stunts with two weights and a floor, and a target counted in connections.
#[test]
#[ignore = "long: 3 to 7 min"]
fn several_real_connections_hold_targets_of_their_own() {
    if !privileged() {
        return;
    }
    let floor = "bundle.0.min_rate=300kbit";
    let counted = "bundle.0.free=[{ group = \"first\", connections = 2 }, \
                   { group = \"second\", target = \"0.3mbit\" }]";
    for set in [&[][..], &[floor], &[floor, counted]] {
        two_of_three(|| {
            let free = free_of("fs-several", set);
            for nth in 0..2 {
                let by_target = by_target(&free[nth]);
                assert!((0.92..1.08).contains(&by_target), "{set:?}: {by_target} of {free:#}");
            }
        });
    }
}

/// The server itself handles the signals of QUIC, by the same rules. Without a bundle the connection gets about
/// half of its target.
fn quic(set: &[&str], within: std::ops::Range<f64>) {
    two_of_three(|| {
        let free = free_of("fs-quic", set);
        let by_target = by_target(&free[0]);
        assert!(within.contains(&by_target), "{by_target} of {free:#}");
        assert!(free[0]["signals"]["delegated"].as_u64().unwrap() > 0, "{free:#}");
    });
}

#[test]
fn a_real_quic_connection_gets_closer_to_its_target_than_its_fair_share() {
    if privileged() {
        quic(&["duration=18s", "settle=8s"], 0.75..1.15);
    }
}

#[test]
#[ignore = "long: 2 to 7 min"]
fn a_real_quic_connection_holds_its_target_for_a_minute() {
    if !privileged() {
        return;
    }
    once(|| {
        let alone = by_target(&free_of("fs-quic", &["bundle.0.controller=none"])[0]);
        assert!(alone < 0.75, "alone it has {alone} of its target");
    });
    quic(&[], 0.95..1.05);
}

/// The free connection and four stunts pass through one queue, and four other stunts through another one.
#[test]
#[ignore = "long: 3 to 9 min; needs an idle machine"]
fn real_stunts_behind_another_bottleneck_are_no_longer_asked() {
    if !privileged() {
        return;
    }
    two_of_three(|| {
        let free = free_of("fs-apart", &[]);
        assert_eq!(free[0]["apart"], 4, "{free:#}");
        let by_target = by_target(&free[0]);
        assert!((0.92..1.08).contains(&by_target), "{by_target} of its target");
    });
}

/// Runs `fs-kernel` with this congestion control, link and base RTT for its connections. The target is a multiple of
/// the fair share, or absent. `None` if the run was void.
fn at_a_bottleneck(sender: &str, mbit: u64, rtt: &str, times: Option<f64>) -> Option<Value> {
    let fair = mbit as f64 / 16.0;
    let mut set = vec![
        format!("link.rate={mbit}mbit"),
        format!("link.up_rate={mbit}mbit"),
        format!("bundle.0.free.0.target={}kbit", (fair * times.unwrap_or(1.0) * 1e3).round()),
    ];
    for flow in 0..3 {
        set.push(format!("flow.{flow}.rtt={rtt}"));
        set.push(format!("flow.{flow}.congestion_control={sender}"));
    }
    if times.is_none() {
        set.push("bundle.0.controller=none".to_owned());
    }
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    valid(|| summary_of("fs-kernel", &set))
}

/// 48 runs of 40 s, of which 30 s count. A single run varies by some percent: if a target is missed by more than
/// 8 %, it is played twice more, and the median counts. Other connections' rates and the link's drops are judged
/// by the median of all runs.
#[test]
#[ignore = "long: 30 min; needs an idle machine"]
fn each_target_at_each_bottleneck_with_real_tcp() {
    if !privileged() {
        return;
    }
    let number = |value: &Value| value.as_f64().unwrap();
    println!("| senders | link | RTT | target by share | rate by target | others | drops |");
    println!("|---|---|---|---|---|---|---|");
    let (mut worst, mut others, mut drops) = (0_f64, Vec::new(), Vec::new());
    for sender in ["reno", "cubic"] {
        for (mbit, rtt) in [(10, "20ms"), (10, "80ms"), (40, "20ms"), (40, "80ms")] {
            let Some(plain) = at_a_bottleneck(sender, mbit, rtt, None) else { continue };
            for times in [0.5, 1.0, 1.5, 2.0, 2.5] {
                let play = || at_a_bottleneck(sender, mbit, rtt, Some(times));
                let held_in = |run: &Value| by_target(&run["bundled"][0]["free"][0]);
                let Some(run) = play() else { continue };
                let mut held = held_in(&run);
                if (held - 1.0).abs() > 0.08 {
                    let mut all = vec![held];
                    all.extend((0..2).filter_map(|_| play()).map(|run| held_in(&run)));
                    all.sort_by(f64::total_cmp);
                    note(&format!("played again: {all:.3?}"));
                    if let [_, median, _] = all[..] {
                        held = median;
                    }
                }
                let ratio = |key: &dyn Fn(&Value) -> f64| key(&run) / key(&plain);
                let others_by = ratio(&|summary| number(&summary["groups"][2]["rate_bps"]));
                let drops_by = ratio(&|summary| number(&summary["isp_drops"]));
                println!(
                    "| {sender} | {mbit} Mbit/s | {rtt} | {times} | {:.1} % | {:.1} % | {:.0} % |",
                    held * 100.0,
                    others_by * 100.0,
                    drops_by * 100.0
                );
                worst = worst.max((held - 1.0).abs());
                others.push(others_by);
                drops.push(drops_by);
            }
        }
    }
    assert!(others.len() >= 20, "the machine was too busy: {} runs count", others.len());
    others.sort_by(f64::total_cmp);
    drops.sort_by(f64::total_cmp);
    let (others, drops) = (others[others.len() / 2], drops[drops.len() / 2]);
    println!("worst distance {worst:.3}; medians: others {others:.3}, drops {drops:.3}");
    assert!(worst <= 0.08, "{worst}");
    assert!(others >= 0.95, "{others}");
    assert!((0.9..=1.1).contains(&drops), "{drops}");
}
