//! Files of what subscribers used, and who takes over when a daemon dies.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::common::access::{ALICE4, Access, BOB4, NOBODY4};
use super::common::note;
use super::common::stage::privileged;
use super::{FILE, PATIENCE, access, passed};

/// Bytes by subscriber, plan and direction, of all files.
fn written(access: &Access) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(access.path("state/usage")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            assert!(fields[0].parse::<u64>().unwrap() <= fields[1].parse().unwrap(), "{line}");
            let bytes: u64 = fields[5].parse().unwrap();
            *sums.entry(fields[2..5].join(" ")).or_default() += bytes;
        }
    }
    sums
}

#[test]
fn usage_is_written_to_the_byte_over_changes_removals_and_restarts() {
    if !privileged() {
        return;
    }
    let access = access(&format!("{FILE}[usage]\ninterval = \"10s\"\n"));
    let daemon = access.start();
    access.isp("add carol --plan home-20 --address 192.0.2.99");
    let downloads = [ALICE4, BOB4, NOBODY4].map(|host| access.download(host));
    downloads[2].wait_for_rate(5.0..42.0, PATIENCE);
    assert!(access.isp("usage").contains("state/usage"));
    // Alice goes on with another plan, and carol goes while her download runs.
    access.isp("change alice --plan home-40");
    access.isp("remove carol");
    std::thread::sleep(Duration::from_millis(500));
    drop(downloads);
    // Until the last packet has passed.
    let all = || ["alice", "bob"].map(|name| passed(&daemon, name));
    let mut before = all();
    let deadline = Instant::now() + PATIENCE;
    loop {
        std::thread::sleep(Duration::from_millis(400));
        let now = all();
        if now == before {
            break;
        }
        assert!(Instant::now() < deadline, "packets without end");
        before = now;
    }
    daemon.signal(Signal::SIGTERM);
    let (code, log) = daemon.end();
    assert_eq!(code, Some(0), "{log}");
    let sums = written(&access);
    let of = |key: &str| sums.get(key).copied().unwrap_or_default();
    let alice = of("alice home-20 download") + of("alice home-40 download");
    assert_eq!([alice, of("bob home-40 download")], before, "{sums:?}");
    assert!(of("alice home-20 upload") > 0, "{sums:?}");
    assert!(of("alice home-20 download") > 0 && of("alice home-40 download") > 0, "{sums:?}");
    assert!(of("carol home-20 download") > 1_000_000, "{sums:?}");
    // The next daemon goes on in the same files.
    let daemon = access.start();
    let bob = access.download(BOB4);
    bob.wait_for_rate(5.0..42.0, PATIENCE);
    drop(bob);
    std::thread::sleep(Duration::from_millis(500));
    access.isp("usage");
    let more = passed(&daemon, "bob");
    assert_eq!(written(&access)["bob home-40 download"], before[1] + more);
}

/// A standby is refused while the daemon lives, and has all that was acknowledged when it starts after it.
#[test]
fn a_standby_takes_the_journal_over_when_the_daemon_dies() {
    if !privileged() {
        return;
    }
    let access = access(FILE);
    let first = access.start();
    let standby = || -> Child {
        access.at_router(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fairweir"));
            command.arg("isp").arg("--config").arg(access.path("isp.toml"));
            command.arg("--run-dir").arg(access.path("run"));
            command.arg("--state-dir").arg(access.path("state"));
            command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
    };
    assert_eq!(standby().wait().unwrap().code(), Some(1), "the first one lives");
    access.isp("add carol --plan home-20 --address 192.0.2.99");
    let download = access.download(NOBODY4);
    download.wait_for_rate(0.0..21.0, PATIENCE);
    let died = Instant::now();
    first.signal(Signal::SIGKILL);
    first.end();
    let mut second = standby();
    while !access.fairweir("isp show carol").status.success() {
        assert!(died.elapsed() < PATIENCE, "the standby does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    note(&format!("the standby polices {:?} after the daemon was killed", died.elapsed()));
    download.wait_for_rate(0.0..21.0, PATIENCE);
    access.isp("add dave --plan home-20 --address 192.0.2.98");
    second.kill().unwrap();
    second.wait().unwrap();
}
