//! The Debian package of a binary, and a fresh Debian that runs systemd in a container.

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
    // The binary under test is large.
    make.env("COMPRESSION", "0");
    // `make sbom` makes them; its own tests look into them.
    let sbom = dir.join("sbom");
    fs::create_dir(&sbom).unwrap();
    for name in ["fairweir.cdx.json", "THIRD-PARTY.txt"] {
        fs::write(sbom.join(name), "text\n").unwrap();
    }
    let output = make.env("SBOM", &sbom).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().last().unwrap().into()
}

/// A Debian of the least size, whose init is systemd, in the home of a [`Stage`].
pub struct Container {
    nspawn: Child,
    leader: Pid,
    _dir: TempDir,
}

impl Container {
    /// What it needs of this machine.
    pub const PROGRAMS: [&str; 2] = ["debootstrap", "systemd-nspawn"];

    /// Installs Debian and boots it. FAIRWEIR_SYSTEM names one that is copied instead, as this makes it.
    pub fn boot(stage: &Stage) -> Container {
        let dir = TempDir::new().unwrap();
        let system = dir.path().join("system");
        let mut install = match std::env::var_os("FAIRWEIR_SYSTEM") {
            Some(other) => {
                let mut copy = Command::new("cp");
                copy.arg("-a").arg(other);
                copy
            }
            None => {
                let mut debootstrap = Command::new("debootstrap");
                debootstrap
                    .args(["--variant=minbase", "--include=systemd,libelf1,zlib1g,iproute2"]);
                debootstrap.arg("bookworm");
                debootstrap
            }
        };
        let output = install.arg(&system).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe"]);
        // What a machine has that is no container: BPF, tc, and /proc/sys of its own.
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

    /// Where its files are, as this machine sees them.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.leader))
    }

    /// Runs a command of the shell inside and waits for its end.
    pub fn run(&self, command: &str) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--all", "--target", &self.leader.to_string(), "--", "/bin/sh", "-c", command]);
        enter.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        enter.output().unwrap()
    }

    /// The same for one that must succeed; returns what it said on standard output.
    pub fn succeed(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command}: {output:?}\n{}", self.journal());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The last lines of the daemons, and what they do now.
    fn journal(&self) -> String {
        let output =
            self.run("journalctl -b --no-pager -u 'fairweir*' | tail -40; fairweir status 2>&1");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether something listens at this socket.
    pub fn listens(&self, socket: &str) -> bool {
        UnixStream::connect(self.path(socket)).is_ok()
    }

    /// Files below `/`, without those of dpkg, apt and the log.
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
        // With its init everything inside ends.
        let _ = kill(self.leader, Signal::SIGKILL);
        let _ = self.nspawn.wait();
    }
}

fn child_of(pid: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

/// Tries until there is something.
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
