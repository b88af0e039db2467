//! Real Chromium and Firefox with the extension, in the home of a [`Stage`].

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::link;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::marionette::Marionette;
use super::page::Kind;
use super::sites::{ADDRESSES, CDN, Http, SITES, Servers};
use super::stage::{Daemon, Stage, cpu_time};
use super::{FAIRWEIR, note};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Until a browser runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the programs are there; says what is missing. `make test` installs them.
pub fn are_installed() -> bool {
    let missing =
        ["chromium", "firefox-esr", "nginx", "npm", "zip"].into_iter().filter(|program| {
            let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
            !found.unwrap().status.success()
        });
    let missing: Vec<_> = missing.collect();
    if !missing.is_empty() {
        note(&format!("SKIPPED: {} not installed", missing.join(", ")));
    }
    missing.is_empty()
}

/// Ends a process and its children, which are a group of their own.
pub(super) fn end(process: &mut Child) {
    let _ = killpg(Pid::from_raw(process.id() as i32), Signal::SIGKILL);
    let _ = process.wait();
}

/// A browser, which ends when this drops.
pub struct Browser {
    process: Child,
    way: Way,
}

/// How it is told what to do.
enum Way {
    /// By the port of its developer tools.
    DevTools(u16),
    Marionette(Mutex<Marionette>),
}

impl Browser {
    /// With the extension or without, and without any page yet; every name but those of the CDN has its first address.
    pub fn start(kind: Kind, stage: &Stage, servers: &Servers, has_extension: bool) -> Browser {
        if has_extension {
            extension(stage, "install", kind);
        }
        match kind {
            Kind::Chromium => start_chromium(stage, servers, has_extension),
            Kind::Firefox => start_firefox(stage, servers, has_extension),
        }
    }

    /// Opens the page of each site, once the daemon has heard of the extension: requests that leave before
    /// tell nothing.
    pub fn open_sites(&self, stage: &Stage, heard_by: Option<&Daemon>) {
        if let Some(daemon) = heard_by {
            let is_heard = |status: &Value| status["sites"]["claims"]["users"] == 1;
            daemon.wait_for("heard", PATIENCE, is_heard);
        }
        for site in SITES {
            self.open(stage, site);
        }
    }

    /// CPU time that the extension has used: its process in Chromium, and the program that speaks for it.
    pub fn extension_cpu_time(&self) -> Duration {
        let mut sum = Duration::ZERO;
        for entry in fs::read_dir("/proc").unwrap() {
            let Ok(pid) = entry.unwrap().file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is_of_it = line.contains("--extension-process") || line.contains("extension host");
            let group = nix::unistd::getpgid(Some(Pid::from_raw(pid as i32)));
            if is_of_it && group == Ok(Pid::from_raw(self.process.id() as i32)) {
                sum += cpu_time(pid);
            }
        }
        sum
    }

    /// Opens a site's page; one that could not be loaded stays an error.
    pub fn open(&self, stage: &Stage, site: &str) {
        match &self.way {
            Way::DevTools(port) => stage.at_home(|| open_page(*port, site)),
            Way::Marionette(marionette) => marionette.lock().unwrap().open(site),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        end(&mut self.process);
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

fn start_chromium(stage: &Stage, servers: &Servers, has_extension: bool) -> Browser {
    // Where manifests of the user are looked for, if a profile is named.
    let profile = stage.path(".config/chromium");
    let mut args: Vec<String> = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--ignore-certificate-errors",
        "--remote-debugging-port=0",
    ]
    .map(str::to_owned)
    .to_vec();
    let cdn = CDN.iter().zip(ADDRESSES).map(|(name, address)| format!("MAP {name} {address}"));
    let rules: Vec<_> = cdn.chain([format!("MAP * {}", ADDRESSES[0])]).collect();
    args.push(format!("--host-resolver-rules={}", rules.join(", ")));
    args.push(format!("--user-data-dir={}", profile.display()));
    if servers.http == Http::Three {
        let origins = CDN.map(|name| format!("{name}:443")).join(",");
        args.push(format!("--origin-to-force-quic-on={origins}"));
        args.push(format!("--ignore-certificate-errors-spki-list={}", servers.key_digest));
    }
    if has_extension {
        let unpacked = made().join("unpacked");
        args.push(format!("--load-extension={}", unpacked.display()));
        args.push(format!("--disable-extensions-except={}", unpacked.display()));
    }
    // Else Debian's Chromium opens a start page, which would be served as a third site.
    args.push("about:blank".to_owned());
    let process = spawn(stage, "chromium", &args);
    let begun = Instant::now();
    let port = loop {
        let told = fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        if let Some(port) = told.lines().next().and_then(|line| line.parse().ok()) {
            break port;
        }
        assert!(begun.elapsed() < PATIENCE, "Chromium does not start");
        thread::sleep(Duration::from_millis(50));
    };
    Browser { process, way: Way::DevTools(port) }
}

fn start_firefox(stage: &Stage, servers: &Servers, has_extension: bool) -> Browser {
    let profile = stage.path("firefox");
    fs::create_dir_all(&profile).unwrap();
    let mut prefs = String::from(
        "user_pref(\"network.dns.native_https_query\", false);\n\
         user_pref(\"network.trr.mode\", 5);\n\
         user_pref(\"network.http.throttle.enable\", false);\n\
         user_pref(\"browser.startup.page\", 0);\n",
    );
    if servers.http == Http::Three {
        let mapped = CDN.map(|name| format!("{name};h3=:443")).join(",");
        prefs += &format!(
            "user_pref(\"network.http.http3.alt-svc-mapping-for-testing\", \"{mapped}\");\n\
             user_pref(\"network.http.http3.disable_when_third_party_roots_found\", false);\n"
        );
    }
    fs::write(profile.join("user.js"), prefs).unwrap();
    let profile = profile.to_str().unwrap();
    let args = ["--headless", "--marionette", "--no-remote", "--profile", profile, "about:blank"];
    let process = spawn(stage, "firefox-esr", &args.map(str::to_owned));
    let mut marionette = Marionette::connect(stage, PATIENCE);
    if has_extension {
        marionette.install(&made().join("fairweir.xpi"));
    }
    Browser { process, way: Way::Marionette(Mutex::new(marionette)) }
}

/// Starts a browser in the home, where the daemon's sockets are in /run/fairweir for it: the program
/// that it starts for the extension looks for them there. Firefox finds the servers in /etc/hosts.
fn spawn(stage: &Stage, program: &str, args: &[String]) -> Child {
    const SCRIPT: &str = "mount -t tmpfs fairweir /run && mkdir /run/fairweir && \
                          mount --bind \"$0\" /run/fairweir && \
                          mount --bind \"$HOME/hosts\" /etc/hosts && exec \"$@\"";
    let of_cdn = CDN.into_iter().zip(ADDRESSES);
    let of_sites = SITES.into_iter().map(|site| (site, ADDRESSES[0]));
    let hosts = of_cdn.chain(of_sites).map(|(name, address)| format!("{address} {name}\n"));
    fs::write(stage.path("hosts"), hosts.collect::<String>()).unwrap();
    let log = fs::File::create(stage.path(&format!("{program}.log"))).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, &stage.run_dir()]);
    command.arg(program).args(args).env("HOME", stage.path(""));
    command.stdout(Stdio::null()).stderr(log).process_group(0);
    stage.at_home(|| {
        link::set_up("lo").unwrap();
        command.spawn().unwrap()
    })
}

/// Opens a page by the protocol of Chromium's developer tools.
fn open_page(port: u16, site: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "PUT /json/new?https://{site}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(b"200 OK"), "{}", String::from_utf8_lossy(&answer));
}

/// The extension as `make extension` makes it.
fn made() -> PathBuf {
    static MADE: std::sync::Once = std::sync::Once::new();
    let root = Path::new(ROOT).canonicalize().unwrap();
    MADE.call_once(|| {
        let made = Command::new("make").arg("-C").arg(&root).arg("extension").output().unwrap();
        assert!(made.status.success(), "{made:?}");
    });
    root.join("target/extension")
}
