//! A private PostgreSQL server in a temporary directory, of an unprivileged user.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::can_run;

/// The server's user: PostgreSQL does not run as root.
const NOBODY: u32 = 65_534;

/// A running server; it is removed completely when it drops.
pub struct Postgres {
    dir: TempDir,
    bin: PathBuf,
    process: Option<Child>,
}

impl Postgres {
    /// A new server; `None` if PostgreSQL is not installed, which fails under `FAIRWEIR_STRICT`.
    pub fn start() -> Option<Postgres> {
        Postgres::start_in(tempfile::tempdir().unwrap())
    }

    /// As [`Postgres::start`], in a given directory.
    pub fn start_in(dir: TempDir) -> Option<Postgres> {
        let bin = bin();
        can_run(bin.is_some(), "PostgreSQL");
        let bin = bin?;
        if geteuid().is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut server = Postgres { dir, bin, process: None };
        let mut init = server.command("initdb");
        init.args([
            "--auth=trust",
            "--username=market",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]);
        let done = init.arg("-D").arg(server.data()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        server.run();
        Some(server)
    }

    /// The URL by which the market connects to it.
    pub fn url(&self) -> String {
        format!("postgres:///postgres?user=market&host={}", self.dir.path().display())
    }

    /// The server's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(".s.PGSQL.5432")
    }

    /// Runs statements as another client; returns the rows, or the server's error message.
    pub fn sql(&self, sql: &str) -> Result<String, String> {
        let mut psql = self.command("psql");
        psql.args([
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "-v",
            "ON_ERROR_STOP=1",
        ]);
        psql.args(["-U", "market", "-d", "postgres", "-h"]).arg(self.dir.path());
        let done = psql.args(["-c", sql]).stdout(Stdio::piped()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
    }

    /// Kills the server, as in a crash.
    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Whether the server has ended by itself, for example when its write-ahead log has no room.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Starts the server, and waits until it has recovered.
    pub fn run(&mut self) {
        let begun = Instant::now();
        // A killed server has child processes that end a little later.
        while begun.elapsed() < Duration::from_secs(60) {
            let mut command = self.command("postgres");
            command.arg("-D").arg(self.data()).arg("-k").arg(self.dir.path());
            command.args([
                "-c",
                "listen_addresses=",
                "-c",
                "shared_buffers=16MB",
                "-c",
                "max_connections=20",
                "-c",
                "max_wal_size=32MB",
                "-c",
                "min_wal_size=32MB",
            ]);
            let log = fs::File::create(self.dir.path().join("log")).unwrap();
            let mut process = command.stderr(log).spawn().unwrap();
            while process.try_wait().unwrap().is_none() {
                if self.is_ready() {
                    self.process = Some(process);
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}", fs::read_to_string(self.dir.path().join("log")).unwrap());
    }

    fn is_ready(&self) -> bool {
        let mut command = self.command("pg_isready");
        command.arg("-q").arg("-h").arg(self.dir.path()).status().unwrap().success()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // Unlike SIGKILL, SIGQUIT leaves no shared memory.
        let _ = Command::new("kill").args(["-QUIT", &process.id().to_string()]).status();
        let _ = process.wait();
    }
}

/// Debian installs the server's programs in a directory for each version.
fn bin() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    bins.filter(|bin| Path::new(bin).join("initdb").exists()).max()
}
