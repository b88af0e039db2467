//! `fairweir page` in the home of a [`Stage`], and real browsers that open it.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::can_run;

use super::FAIRWEIR;
use super::process::cpu_time;
use super::stage::{Daemon, Stage};

/// A user that every Debian has; its primary group may send every request to the daemon.
pub const USER: &str = "nobody";
pub const GROUP: &str = "nogroup";

/// The directory with the packages for all browser tests.
const WEB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");

/// The page's process, which ends when dropped.
pub struct Page {
    child: Child,
    /// `127.0.0.1:PORT`, in the home.
    pub host: String,
    dir: PathBuf,
    log: PathBuf,
}

impl Page {
    /// Starts the page for the daemons of the stage; `port` 0 chooses a free port.
    pub fn start(stage: &Stage, port: &str, more: &[&str]) -> Page {
        // The page's user must reach the sockets.
        fs::set_permissions(stage.path(""), Permissions::from_mode(0o711)).unwrap();
        let (dir, log) = (stage.path("page"), stage.path("page.log"));
        let program = super::daemon_binary();
        let mut command = Command::new(program);
        command.args(["page", "--port", port, "--user", USER, "--run-dir", &stage.run_dir()]);
        command.arg("--page-dir").arg(&dir);
        command.arg("--state-dir").arg(stage.path("history")).args(more).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let child = stage.at_home(|| {
            // Browsers reach the page through the loopback interface.
            fairweir_linux::link::set_up("lo").unwrap();
            command.spawn().unwrap()
        });
        let mut page = Page { child, host: String::new(), dir, log };
        let link = page.link();
        page.host = link["http://".len()..].split('/').next().unwrap().to_owned();
        page
    }

    /// A link from `fairweir page --open`.
    pub fn link(&self) -> String {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut open = Command::new(FAIRWEIR);
            open.args(["page", "--open", "--page-dir"]).arg(&self.dir);
            let output = open.output().unwrap();
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap().trim().to_owned();
            }
            let log = fs::read_to_string(&self.log).unwrap();
            assert!(Instant::now() < deadline, "no link: {output:?}\n{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.id())
    }

    /// Maximum resident memory so far, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    /// The page's port, in the home.
    pub fn port(&self) -> &str {
        self.host.rsplit(':').next().unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// Starts `fairweir isp` with this file, in the home or on the internet.
pub fn start_isp(stage: &Stage, file: &str, at_internet: bool, subscribers: usize) -> Daemon {
    let (config, log) = (stage.path("isp.toml"), stage.path("isp.log"));
    fs::write(&config, file).unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new(FAIRWEIR);
    command.args(["isp", "--run-dir", &stage.run_dir(), "--user-group", GROUP]).arg("--config");
    command.arg(&config).arg("--state-dir").arg(stage.path("isp")).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let spawn = || command.spawn().unwrap();
    let child = if at_internet { stage.at_internet(spawn) } else { stage.at_home(spawn) };
    let socket = Path::new(&stage.run_dir()).join("isp.sock");
    // A million subscribers take a minute in a test build.
    let patience = Duration::from_secs(30 + subscribers as u64 / 4_000);
    Daemon::begun_within(patience, child, socket, log, |status| {
        status["subscribers"] == subscribers
    })
}

/// A browser packaged by Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chromium,
    Firefox,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Chromium => "chromium",
            Kind::Firefox => "firefox",
        }
    }

    /// Whether the browser and its driver are installed.
    pub fn is_installed(self) -> bool {
        let (variable, path) = match self {
            Kind::Chromium => ("CHROMIUM", "/usr/bin/chromium"),
            Kind::Firefox => ("FIREFOX", "/usr/bin/firefox-esr"),
        };
        let program = std::env::var(variable).unwrap_or(path.to_owned());
        let modules = Path::new(WEB).join("node_modules/playwright-core");
        let found = Path::new(&program).exists() && modules.exists();
        can_run(found, &format!("{program} and playwright-core; `make test-deps` installs them"))
    }

    /// Runs a script of web/page/test in the home, and carries out the requests in its output lines.
    ///
    /// # Panics
    /// If it fails.
    pub fn play(self, stage: &Stage, script: &str, args: &[&str], mut handle: impl FnMut(&str)) {
        let mut command = Command::new("node");
        command.current_dir(WEB).arg(format!("page/test/{script}")).args(args);
        command.env("BROWSER", self.name()).env("HOME", stage.path(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut node = stage.at_home(|| command.spawn().unwrap());
        let mut answers = node.stdin.take().unwrap();
        let lines = BufReader::new(node.stdout.take().unwrap()).lines();
        let mut told = Vec::new();
        for line in lines.map_while(Result::ok) {
            handle(&line);
            told.push(line);
            let _ = writeln!(answers, "seen");
        }
        assert!(node.wait().unwrap().success(), "{self:?}: {told:?}");
        assert_eq!(told.last().unwrap(), "done");
    }
}

/// Path for a picture: with FAIRWEIR_PICTURES, docs/pictures if the browser is Chromium, because the pictures are
/// light and Firefox prefers dark here; otherwise the stage's directory.
pub fn picture(kind: Kind, stage: &Stage, name: &str) -> PathBuf {
    const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures");
    let is_kept = keeps_pictures() && kind == Kind::Chromium;
    if is_kept { Path::new(PICTURES).join(name) } else { stage.path(name) }
}

pub fn keeps_pictures() -> bool {
    std::env::var_os("FAIRWEIR_PICTURES").is_some()
}
