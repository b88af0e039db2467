//! A new user's evening: a fresh Debian, the package, `fairweir setup --yes`, and a slider on the page.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{can_run, note, privileged};
use serde_json::Value;
use tempfile::TempDir;

use super::SECONDS_3;
use crate::common::deb::{self, Container, SUITES, Suite, wait};
use crate::common::page::Kind;
use crate::common::stage::{SERVERS, Stage};

const SOCKET: &str = "/run/fairweir/host-wan.sock";
const SET_FILE: &str = "/etc/fairweir/conf.d/zz-set.toml";

/// Two programs that download. Every Debian has Perl, and each copy of it has a name of its own.
const PROGRAMS: [&str; 2] = ["video", "backup"];
const DOWNLOAD: &str = "use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => shift) or die; \
                        while (sysread $s, my $b, 65536) {}";

impl Container {
    fn status(&self) -> Option<Value> {
        let mut stream = UnixStream::connect(self.path(SOCKET)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.write_all(b"{\"request\":\"status\"}\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str::<Value>(&line).ok()?.get("value").cloned()
    }

    /// Bytes that a program has read so far, as counted by the kernel.
    fn read_by(&self, program: &str) -> u64 {
        let pid = self.succeed(&format!("systemctl show --property MainPID --value {program}"));
        let io = fs::read_to_string(self.path(&format!("/proc/{}/io", pid.trim())));
        let io = io.unwrap_or_else(|e| panic!("{program} has ended: {e}"));
        let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.unwrap().parse().unwrap()
    }

    /// Bytes of the first program divided by bytes of the second, over a second.
    fn ratio(&self) -> f64 {
        let read = || PROGRAMS.map(|program| self.read_by(program) as f64);
        let before = read();
        thread::sleep(Duration::from_secs(1));
        let after = read();
        (after[0] - before[0]) / (after[1] - before[1])
    }

    /// Waits until real TCP shares by the current weights; returns how long that took.
    fn wait_for_weights(&self, patience: Duration) -> Duration {
        let begin = Instant::now();
        loop {
            let ratio = self.ratio();
            let wanted = self.weight("video") / self.weight("backup");
            if (ratio / wanted - 1.0).abs() <= 0.15 {
                return begin.elapsed();
            }
            assert!(
                begin.elapsed() < patience,
                "{ratio:.2} instead of {wanted:.2}: {}",
                self.status().unwrap_or_default()
            );
        }
    }

    fn weight(&self, group: &str) -> f64 {
        let status = self.status().unwrap();
        let groups = status["groups"].as_array().unwrap();
        let group =
            groups.iter().find(|g| g["name"] == group).unwrap_or_else(|| panic!("{status}"));
        group["weight"].as_f64().unwrap()
    }

    fn set_file(&self) -> Option<String> {
        fs::read_to_string(self.path(SET_FILE)).ok()
    }

    /// Does `work`, and returns the longest time during it without a daemon that enforced.
    fn longest_unshaped(&self, work: impl FnOnce()) -> Duration {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
                while !is_done.load(Ordering::Relaxed) {
                    if self.status().is_some_and(|status| status["enforcing"] == true) {
                        last = Instant::now();
                    }
                    longest = longest.max(last.elapsed());
                    thread::sleep(Duration::from_millis(5));
                }
                longest
            });
            work();
            is_done.store(true, Ordering::Relaxed);
            watch.join().unwrap()
        })
    }
}

/// `cargo test -p fairweir --features evidence --test it a_new_users_evening -- --ignored --nocapture`;
/// FAIRWEIR_DEB names the package; the default is one built from the binary under test.
#[test]
#[ignore = "long: installs a Debian, which takes a minute and a mirror"]
fn a_new_users_evening_from_the_package_to_the_purge() {
    evening(&SUITES[0]);
}

#[test]
#[ignore = "long: installs a Debian, which takes a minute and a mirror"]
fn a_new_users_evening_on_the_next_debian() {
    evening(&SUITES[1]);
}

fn evening(suite: &Suite) {
    if !privileged() || !Kind::Chromium.is_installed() || !has_programs() {
        return;
    }
    let stage = Stage::new();
    let dir = TempDir::new().unwrap();
    let package = std::env::var_os("FAIRWEIR_DEB").map(Into::into);
    let package = package.unwrap_or_else(|| deb::build(dir.path(), env!("PATH")));
    let container = Container::boot(&stage, suite);
    let (files, interfaces) = (container.files(), stage.interfaces());
    let users = container.succeed("cat /etc/passwd /etc/group");
    fs::copy(&package, container.path("/var/tmp/fairweir.deb")).unwrap();
    let installed = Instant::now();
    container.succeed("dpkg -i /var/tmp/fairweir.deb");
    note(&format!("installed in {:.1} s", installed.elapsed().as_secs_f64()));

    for (program, server) in PROGRAMS.iter().zip(SERVERS) {
        container.succeed(&format!(
            "cp /usr/bin/perl /var/tmp/{program} && systemd-run --quiet --unit {program} \
             /var/tmp/{program} -e '{DOWNLOAD}' {server}:{}",
            stage.port()
        ));
    }
    let said = container.succeed("fairweir setup --yes --duration 5s");
    note(&said);
    let link = said.lines().last().unwrap().trim().to_owned();
    assert!(link.starts_with("http://127.0.0.1:8070/enter?code="), "{said}");
    let written = fs::read_to_string(container.path("/etc/fairweir/fairweir.toml")).unwrap();
    assert!(
        PROGRAMS.iter().all(|name| written.contains(&format!("name = \"{name}\""))),
        "{written}"
    );
    let enforcing = || container.status().filter(|status| status["enforcing"] == true);
    wait(Duration::from_secs(20), "enforcement", enforcing);
    container.wait_for_weights(Duration::from_secs(20));

    let picture = stage.path("evening.png");
    let args = [link, picture.display().to_string()];
    Kind::Chromium.play(&stage, "evening.mjs", &args.each_ref().map(String::as_str), |line| {
        match line {
            "moved" => {
                let took = container.wait_for_weights(SECONDS_3);
                note(&format!("real TCP shares by the new weight after {took:.1?} at most"));
                assert!(container.set_file().unwrap().contains("video = 16"));
            }
            "undone" => {
                assert_eq!(container.set_file(), None);
                container.wait_for_weights(SECONDS_3);
            }
            "moved again" => assert!(container.set_file().unwrap().contains("video = 16")),
            other => note(other),
        }
    });
    assert!(fs::metadata(picture).unwrap().len() > 10_000);

    // Learned values are stored after a while; then an upgrade follows.
    let stored = "/var/lib/fairweir/host/capacity.json";
    wait(Duration::from_secs(60), "stored capacity", || {
        container.path(stored).exists().then_some(())
    });
    let before = container.status().unwrap();
    let unshaped = container.longest_unshaped(|| {
        container.succeed("dpkg -i /var/tmp/fairweir.deb");
        wait(Duration::from_secs(10), "another daemon", || {
            enforcing().filter(|status| status["run"] != before["run"])
        });
    });
    note(&format!("upgraded; unshaped for {unshaped:.2?}"));
    assert!(unshaped <= Duration::from_secs(2), "{unshaped:?}");
    let after = container.status().unwrap();
    assert!(!after["remembered"].is_null() && container.weight("video") == 16.0, "{after}");
    assert!(wait(SECONDS_3, "page", || container
        .listens("/run/fairweir-page/page.sock")
        .then_some(true)));
    container.wait_for_weights(Duration::from_secs(20));

    // Both programs are still downloading; they must end before their interface's daemon does.
    container.succeed("dpkg --remove fairweir");
    assert!(container.path("/etc/fairweir/fairweir.toml").exists());
    assert!(!container.listens(SOCKET) && stage.interfaces() == interfaces);
    assert!(container.ratio() > 0.0);
    container.succeed("dpkg --purge fairweir");
    container.succeed("systemctl stop video backup");
    let is_left = |file: &&String| !files.contains(*file) && !is_backup(file);
    let left: Vec<_> = container.files().iter().filter(is_left).cloned().collect();
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(container.succeed("cat /etc/passwd /etc/group"), users);
    for dir in ["/etc/fairweir", "/var/lib/fairweir", "/var/lib/fairweir-page", "/run/fairweir"] {
        assert!(!container.path(dir).exists(), "{dir}");
    }
}

/// Backup files that systemd-sysusers and userdel leave when they change a file.
fn is_backup(file: &str) -> bool {
    file == "/etc/.pwd.lock" || (file.starts_with("/etc/") && file.ends_with('-'))
}

/// Whether a Debian can be installed and booted on this machine.
fn has_programs() -> bool {
    let is_missing = |name: &&&str| Command::new(name).arg("--version").output().is_err();
    let missing: Vec<_> = Container::PROGRAMS.iter().filter(is_missing).collect();
    can_run(missing.is_empty(), &format!("{missing:?} (packages debootstrap, systemd-container)"))
}
