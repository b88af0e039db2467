//! The Debian package of a binary, and a fresh Debian with systemd in a container.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::FAIRWEIR;
use super::stage::Stage;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Builds the package of the binary under test below `dir`, with this PATH.
pub fn build(dir: &Path, path: &str) -> PathBuf {
    let mut make = Command::new(Path::new(ROOT).join("dist/make-deb"));
    make.env("FAIRWEIR", FAIRWEIR).env("OUT", dir.join("out")).env("PATH", path);
    // The binary under test is large, so it is not compressed.
    make.env("COMPRESSION", "0");
    // `make sbom` creates these files, and has its own tests.
    let sbom = dir.join("sbom");
    fs::create_dir(&sbom).unwrap();
    for name in ["fairweir.cdx.json", "THIRD-PARTY.txt"] {
        fs::write(sbom.join(name), "text\n").unwrap();
    }
    let output = make.env("SBOM", &sbom).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().last().unwrap().into()
}

/// A Debian release, by its name for debootstrap.
pub struct Suite {
    pub name: &'static str,
    pub what: &'static str,
    libelf: &'static str,
}

const MIRROR: &str = "http://deb.debian.org/debian";

pub const SUITES: [Suite; 2] = [
    Suite { name: "bookworm", what: "Debian 12", libelf: "libelf1" },
    Suite { name: "trixie", what: "Debian 13", libelf: "libelf1t64" },
];

/// The program that [`Suite::install`] needs.
pub const DEBOOTSTRAP: &str = "debootstrap";

impl Suite {
    /// Installs a minimal system of this release into `system`.
    ///
    /// # Panics
    /// If debootstrap fails, with its output.
    pub fn install(&self, system: &Path) {
        let packages = format!("systemd,{},zlib1g,iproute2,make,nftables", self.libelf);
        let mut debootstrap = Command::new(DEBOOTSTRAP);
        debootstrap.args(["--variant=minbase", "--include", &packages, self.name]);
        run(debootstrap.arg(system).arg(MIRROR));
    }
}

/// Runs a command; if it fails, panics with its output.
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

/// A minimal Debian whose init is systemd, in the home of a [`Stage`].
pub struct Container {
    nspawn: Child,
    leader: Pid,
    _dir: TempDir,
}

impl Container {
    /// The programs that a container needs.
    pub const PROGRAMS: [&str; 2] = [DEBOOTSTRAP, "systemd-nspawn"];

    /// Installs and boots a release. FAIRWEIR_SYSTEM names a system made by this function that is copied instead.
    pub fn boot(stage: &Stage, suite: &Suite) -> Container {
        let dir = TempDir::new().unwrap();
        let system = dir.path().join("system");
        match std::env::var_os("FAIRWEIR_SYSTEM") {
            Some(other) => run(Command::new("cp").arg("-a").arg(other).arg(&system)),
            None => suite.install(&system),
        }
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe"]);
        // Allows what a real machine allows: BPF, tc, and its own /proc/sys.
        nspawn.args(["--capability=all", "--system-call-filter=bpf perf_event_open @keyring"]);
        nspawn.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "1").env("SYSTEMD_NSPAWN_LOCK", "0");
        nspawn.arg("-D").arg(&system).stdin(Stdio::null()).stdout(Stdio::null());
        nspawn.stderr(Stdio::null());
        let nspawn = stage.at_home(|| nspawn.spawn().unwrap());
        let leader = wait(Duration::from_secs(20), "a container", || child_of(nspawn.id()));
        let container = Container { nspawn, leader, _dir: dir };
        wait(Duration::from_secs(60), "systemd", || {
            let state = container.run("systemctl is-system-running");
            let state = String::from_utf8_lossy(&state.stdout).into_owned();
            matches!(state.trim(), "running" | "degraded").then_some(())
        });
        container
    }

    /// The path of a container's file on this machine.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.leader))
    }

    /// Runs a shell command in the container and waits for its end.
    pub fn run(&self, command: &str) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--all", "--target", &self.leader.to_string(), "--", "/bin/sh", "-c", command]);
        enter.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        enter.output().unwrap()
    }

    /// Runs a shell command that must succeed; returns its standard output.
    pub fn succeed(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command}: {output:?}\n{}", self.journal());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The last log lines of the daemons, and their current state.
    fn journal(&self) -> String {
        let output =
            self.run("journalctl -b --no-pager -u 'fairweir*' | tail -40; fairweir status 2>&1");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether a process listens on this socket.
    pub fn listens(&self, socket: &str) -> bool {
        UnixStream::connect(self.path(socket)).is_ok()
    }

    /// Files below `/`, except those of dpkg, apt and the log.
    pub fn files(&self) -> BTreeSet<String> {
        let find = "find / -xdev \\( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \
                    -o -path /var/lib/apt -o -path /tmp -o -path /var/tmp \\) -prune -o ! -type d -print";
        self.succeed(find).lines().map(str::to_owned).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.journal());
        }
        // When its init ends, everything in the container ends.
        let _ = kill(self.leader, Signal::SIGKILL);
        let _ = self.nspawn.wait();
    }
}

fn child_of(pid: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

/// Repeats `attempt` until it returns a value.
pub fn wait<T>(patience: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} in {patience:?}");
        thread::sleep(Duration::from_millis(100));
    }
}
