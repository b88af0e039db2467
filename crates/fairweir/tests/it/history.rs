//! The history that `fairweir page` records from a real daemon: sums over restarts and kills, and a full
//! disk.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::privileged;
use serde_json::Value;

use crate::common::FAIRWEIR;
use crate::common::stage::{Daemon, SERVERS, Stage};

/// A user that exists on every Debian, with its primary group.
const USER: &str = "nobody";
const GROUP: &str = "nogroup";

const SECOND: Duration = Duration::from_secs(1);

fn stage() -> Stage {
    let stage = Stage::new();
    fs::set_permissions(stage.path(""), Permissions::from_mode(0o711)).unwrap();
    stage.configure(&format!(
        "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n\
         [[group]]\nname = \"video\"\nweight = 3\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    ));
    stage
}

fn start_daemon(stage: &Stage) -> Daemon {
    stage.start(&["--admin-group", GROUP])
}

/// A running page, which is killed when dropped.
struct Page<'s> {
    stage: &'s Stage,
    child: Child,
    state_dir: PathBuf,
}

impl<'s> Page<'s> {
    /// A page with its file in `state_dir`, started by a shell that runs `prepare` first.
    fn start(stage: &'s Stage, state_dir: PathBuf, prepare: &str) -> Page<'s> {
        let text = format!(
            "{prepare} exec {FAIRWEIR} page --port 0 --user {USER} --run-dir {} --page-dir {} \
             --state-dir {}",
            stage.run_dir(),
            stage.path("page").display(),
            state_dir.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &text]).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(stage.path("page.log")).unwrap());
        let child = stage.at_home(|| command.spawn().unwrap());
        let page = Page { stage, child, state_dir };
        let deadline = Instant::now() + 20 * SECOND;
        while !page.ask("--since 1h").status.success() {
            assert!(Instant::now() < deadline, "{:?}", page.ask("--since 1h"));
            thread::sleep(SECOND / 10);
        }
        page
    }

    fn ask(&self, args: &str) -> Output {
        let dir = self.stage.path("page").display().to_string();
        self.stage.fairweir(&format!("history --page-dir {dir} {args}"))
    }

    fn points(&self, args: &str) -> Vec<Value> {
        let output = self.ask(&format!("--json {args}"));
        assert!(output.status.success(), "{output:?}");
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all["points"].as_array().unwrap().clone()
    }

    /// Total bytes received.
    fn sum(&self) -> u64 {
        let bytes =
            |p: &Value| p["received_bytes"].as_u64().unwrap() + p["late_bytes"].as_u64().unwrap();
        self.points("--since 1h --step 1min").iter().map(bytes).sum()
    }

    /// A path as seen by the page.
    fn inside(&self, path: &str) -> PathBuf {
        let dir = self.state_dir.parent().unwrap().join(path);
        PathBuf::from(format!("/proc/{}/root{}", self.child.id(), dir.display()))
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.stage.path("page.log")).unwrap_or_default());
        }
    }
}

/// The daemon's byte count, after traffic has stopped and the page has read it.
fn settled(daemon: &Daemon) -> u64 {
    let counted = || -> u64 {
        let status = daemon.status();
        let groups = status["groups"].as_array().unwrap();
        groups.iter().map(|group| group["received_bytes"].as_u64().unwrap()).sum()
    };
    let (mut last, mut since) = (counted(), Instant::now());
    let deadline = Instant::now() + 30 * SECOND;
    while since.elapsed() < 3 * SECOND {
        thread::sleep(SECOND / 10);
        let now = counted();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        assert!(Instant::now() < deadline, "something arrives all the time");
    }
    last
}

/// Downloads for the given time.
fn download(stage: &Stage, span: Duration) {
    let _download = stage.download(SERVERS[0]);
    thread::sleep(span);
}

#[test]
fn sums_equal_the_counters_over_restarts_and_kills() {
    if !privileged() {
        return;
    }
    let stage = stage();
    let page = Page::start(&stage, stage.path("history"), "");
    // A daemon that is stopped normally.
    let daemon = start_daemon(&stage);
    download(&stage, 3 * SECOND);
    let mut wanted = settled(&daemon);
    assert!(wanted > 2_000_000, "{wanted} bytes");
    assert!(stage.fairweir("off").status.success());
    drop(daemon);
    assert_eq!(page.sum(), wanted);
    // A daemon that is killed after no traffic has arrived for a while.
    let daemon = start_daemon(&stage);
    download(&stage, 2 * SECOND);
    wanted += settled(&daemon);
    drop(daemon);
    assert_eq!(page.sum(), wanted);
    // The page is killed during a download and restarted later.
    let daemon = start_daemon(&stage);
    let running = stage.download(SERVERS[0]);
    thread::sleep(2 * SECOND);
    drop(page);
    thread::sleep(3 * SECOND);
    let page = Page::start(&stage, stage.path("history"), "");
    thread::sleep(2 * SECOND);
    drop(running);
    let others = wanted;
    wanted += settled(&daemon);
    assert_eq!(page.sum(), wanted);
    let late: u64 = page.points("--since 1h").iter().filter_map(|p| p["late_bytes"].as_u64()).sum();
    assert!(late > 1_000_000, "{late} bytes arrived while it did not run");
    // A daemon that is killed during a download: all but the last second is recorded.
    let _running = stage.download(SERVERS[0]);
    thread::sleep(2 * SECOND);
    let groups = daemon.status()["groups"].clone();
    let counted = |g: &Value| g["received_bytes"].as_u64().unwrap();
    let before: u64 = groups.as_array().unwrap().iter().map(counted).sum();
    // The page asks once per second; on a busy machine it is late.
    thread::sleep(SECOND * 5 / 2);
    drop(daemon);
    let sum = page.sum();
    assert!(sum >= others + before, "{sum} bytes of at least {}", others + before);
    assert!(sum <= arrived(&stage), "{sum} bytes of at most {}", arrived(&stage));
    let points = page.points("--since 30s --group video");
    let most = points.iter().map(|p| p["received_bytes"].as_u64().unwrap() * 8).max().unwrap();
    assert!((5_000_000..80_000_000).contains(&most), "{most} bits in a second");
    // Output as a table and as CSV, and errors.
    let table = String::from_utf8(page.ask("--since 2h").stdout).unwrap();
    assert!(table.contains("host-wan  video") && table.contains('█'), "{table}");
    let csv = String::from_utf8(page.ask("--since 1h --csv").stdout).unwrap();
    assert!(csv.starts_with("at,step_s,daemon,group,received_bytes,late_bytes,"), "{csv}");
    assert_eq!(page.ask("--since 32d").status.code(), Some(2));
    drop(page);
    let dir = stage.path("page").display().to_string();
    let output = stage.fairweir(&format!("history --page-dir {dir}"));
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("`fairweir page` does not run"));
}

/// Total bytes that have arrived at the interface.
fn arrived(stage: &Stage) -> u64 {
    let output = stage.run("ip -json -stats link show wan").stdout;
    let links: Value = serde_json::from_slice(&output).unwrap();
    links[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
}

#[test]
fn a_full_disk_holds_neither_the_page_nor_the_control_and_loses_no_bytes() {
    if !privileged() {
        return;
    }
    let stage = stage();
    let disk = stage.path("disk");
    fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o size=1m,mode=0711 tmpfs {} &&", disk.display());
    let page = Page::start(&stage, disk.join("history"), &mount);
    let mut filler = File::create(page.inside("filler")).unwrap();
    while filler.write_all(&[7; 4_096]).is_ok() {}
    let daemon = start_daemon(&stage);
    let running = stage.download(SERVERS[0]);
    let deadline = Instant::now() + 60 * SECOND;
    loop {
        let output = page.ask("--since 1h");
        let told = String::from_utf8(output.stderr).unwrap();
        if told.contains("not recorded now") && told.contains("full") {
            assert!(output.status.success());
            break;
        }
        assert!(Instant::now() < deadline, "the full disk is not told: {told}");
        thread::sleep(SECOND);
    }
    // Three quarters of 20 Mbit/s.
    running.wait_for_rate(12.0..15.5, 10 * SECOND);
    assert_eq!(daemon.status()["enforcing"], true);
    drop(running);
    let wanted = settled(&daemon);
    assert!(page.sum() < wanted);
    drop(filler);
    fs::remove_file(page.inside("filler")).unwrap();
    let deadline = Instant::now() + 30 * SECOND;
    while page.sum() < wanted {
        assert!(Instant::now() < deadline, "{} of {wanted} bytes", page.sum());
        thread::sleep(SECOND);
    }
    assert_eq!(page.sum(), wanted);
    assert!(page.ask("--since 1h").stderr.is_empty());
}
