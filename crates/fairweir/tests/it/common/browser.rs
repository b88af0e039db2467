//! Real Chromium and Firefox with the extension, in the home of a [`Stage`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use fairweir_lab::browser::{Extension, Quic, Setup};
use fairweir_scenario::Program;
use fairweir_testing::can_run;
use nix::unistd::Pid;
use serde_json::Value;

use super::FAIRWEIR;
use super::page::Kind;
use super::process::cpu_time;
use super::sites::{ADDRESSES, CDN, Http, SITES, Servers};
use super::stage::{Daemon, Stage};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Time limit for a browser to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the browsers' programs are installed; `make test` installs them.
pub fn are_installed() -> bool {
    let missing =
        ["chromium", "firefox-esr", "nginx", "npm", "zip"].into_iter().filter(|program| {
            let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
            !found.unwrap().status.success()
        });
    let missing: Vec<_> = missing.collect();
    can_run(missing.is_empty(), &missing.join(", "))
}

/// A browser, which ends when dropped.
pub struct Browser(fairweir_lab::browser::Browser);

impl Browser {
    /// Starts a browser with or without the extension, without opening a page.
    pub fn start(kind: Kind, stage: &Stage, servers: &Servers, has_extension: bool) -> Browser {
        Browser::start_with(kind, stage, servers, has_extension.then(made))
    }

    /// Starts a browser with the extension in a directory such as [`made`] returns.
    pub fn start_with(
        kind: Kind,
        stage: &Stage,
        servers: &Servers,
        extension: Option<PathBuf>,
    ) -> Browser {
        let of_cdn = CDN.into_iter().zip(ADDRESSES);
        let of_sites = SITES.into_iter().map(|site| (site, ADDRESSES[0]));
        let hosts = of_cdn.chain(of_sites);
        let extension = extension.map(|dir| Extension { dir, executable: FAIRWEIR.into() });
        let setup = Setup {
            program: match kind {
                Kind::Chromium => Program::Chromium,
                Kind::Firefox => Program::Firefox,
            },
            netns: stage.home(),
            dir: &stage.path(""),
            run_dir: &stage.path("run"),
            hosts: hosts.map(|(name, at)| (name.to_owned(), at.parse().unwrap())).collect(),
            quic: (servers.http == Http::Three).then(|| Quic {
                names: CDN.map(str::to_owned).to_vec(),
                key_digest: servers.key_digest.clone(),
            }),
            extension,
        };
        Browser(fairweir_lab::browser::Browser::start(&setup).unwrap())
    }

    /// Waits until the daemon has heard from the extension: earlier requests are not reported.
    pub fn wait_until_heard(&self, daemon: &Daemon) {
        let is_heard = |status: &Value| status["sites"]["claims"]["users"] == 1;
        daemon.wait_for("heard", PATIENCE, is_heard);
    }

    /// Opens the page of each site, after the daemon has heard from the extension.
    pub fn open_sites(&self, stage: &Stage, heard_by: Option<&Daemon>) {
        if let Some(daemon) = heard_by {
            self.wait_until_heard(daemon);
        }
        for site in SITES {
            self.open(stage, site);
        }
    }

    /// CPU time used by the browser's first process, in Chromium by the extension's process, and by the program that
    /// the browser starts for the extension.
    pub fn cpu_times(&self) -> [Duration; 3] {
        let mut sums = [Duration::ZERO; 3];
        for entry in fs::read_dir("/proc").unwrap() {
            let Ok(pid) = entry.unwrap().file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is_first = line.contains("chromium") && !line.contains("--type=");
            let is_of = ["--extension-process", "fairweir chrome-extension:"]
                .map(|what| line.contains(what));
            let group = nix::unistd::getpgid(Some(Pid::from_raw(pid as i32)));
            if group == Ok(Pid::from_raw(self.0.id() as i32))
                && let Some(i) = [is_first, is_of[0], is_of[1]].iter().position(|is_of| *is_of)
            {
                sums[i] += cpu_time(pid);
            }
        }
        sums
    }

    /// Opens a site's page once, without checking whether it loads.
    pub fn open(&self, stage: &Stage, site: &str) {
        self.0.open(stage.home(), site).unwrap();
    }
}

/// `fairweir extension` for the user whose home is the stage's directory.
pub fn extension(stage: &Stage, command: &str, kind: Kind) -> Output {
    let mut program = Command::new(FAIRWEIR);
    program.args(["extension", command, "--browser", kind.name()]).env("HOME", stage.path(""));
    if command != "status" {
        program.arg("--user");
    }
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The directory with the extension that `make extension` builds.
pub fn made() -> PathBuf {
    static MADE: std::sync::Once = std::sync::Once::new();
    let root = Path::new(ROOT).canonicalize().unwrap();
    MADE.call_once(|| {
        let made = Command::new("make").arg("-C").arg(&root).arg("extension").output().unwrap();
        assert!(made.status.success(), "{made:?}");
    });
    root.join("target/extension")
}

/// An extension that listens to pages and these request events and does nothing, to measure Chromium's own cost.
pub fn listening_only(stage: &Stage, events: &[&str]) -> PathBuf {
    let of_requests = events.iter().map(|event| {
        format!(
            "chrome.webRequest.{event}.addListener(() => {{}}, {{ urls: [\"<all_urls>\"] }});\n"
        )
    });
    let pages = "chrome.webNavigation.onCommitted.addListener(() => {});\n".to_owned();
    let background: String = of_requests.chain([pages]).collect();
    let dir = stage.path("listening-only");
    let unpacked = dir.join("unpacked");
    fs::create_dir_all(&unpacked).unwrap();
    fs::copy(made().join("unpacked/manifest.json"), unpacked.join("manifest.json")).unwrap();
    fs::copy(made().join("unpacked/popup.html"), unpacked.join("popup.html")).unwrap();
    fs::write(unpacked.join("background.js"), background).unwrap();
    dir
}
