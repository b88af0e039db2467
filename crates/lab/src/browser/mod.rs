//! Real Chromium and Firefox with fairweir's extension, and real servers for the sites that they open.
//!
//! | module | contents |
//! |---|---|
//! | here | a browser in a network namespace, and how it opens pages |
//! | `marionette` | how Firefox is driven |
//! | [`site`] | nginx with many sites at the same addresses, and its log |
//!
//! Each program has its own process namespace, which ends with the process that was started; that process
//! ends when its standard input is closed.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;
use fairweir_scenario::Program;

use crate::Error;
use crate::process::Process;

mod marionette;
pub mod site;

use marionette::Marionette;

/// Time limit for a browser to start.
const PATIENCE: Duration = Duration::from_secs(30);
const START_CHECK: Duration = Duration::from_millis(50);
/// The directory in which a package installs the extension.
const EXTENSION_DIR: &str = "/usr/share/fairweir/extension";

/// How a browser is started.
#[derive(Clone, Debug)]
pub struct Setup<'s> {
    /// Which browser.
    pub program: Program,
    /// The network namespace in which it runs.
    pub netns: &'s Netns,
    /// Its home directory, with its profile and log.
    pub dir: &'s Path,
    /// The directory of the daemon's sockets, which the browser sees as /run/fairweir.
    pub run_dir: &'s Path,
    /// All host names that it can resolve.
    pub hosts: Vec<(String, IpAddr)>,
    /// The names from which it loads by HTTP/3.
    pub quic: Option<Quic>,
    /// The extension to install, if any.
    pub extension: Option<Extension>,
}

/// What a browser needs to know to use HTTP/3 from the first request on.
#[derive(Clone, Debug)]
pub struct Quic {
    /// The names that are served by HTTP/3.
    pub names: Vec<String>,
    /// SHA-256 of the servers' public key, in Base64.
    pub key_digest: String,
}

/// fairweir's extension.
#[derive(Clone, Debug)]
pub struct Extension {
    /// The directory that `make extension` has created.
    pub dir: PathBuf,
    /// The program that the browser starts for the extension.
    pub executable: PathBuf,
}

/// A browser, which ends when dropped.
#[derive(Debug)]
pub struct Browser {
    process: Process,
    way: Way,
}

/// How the browser is controlled.
#[derive(Debug)]
enum Way {
    /// Through the port of its developer tools.
    DevTools(u16),
    Marionette(Mutex<Marionette>),
}

impl Extension {
    /// Finds the extension that was built beside `executable`, or that a package installed.
    ///
    /// # Errors
    /// [`Error::NoExtension`] if there is none.
    pub fn find(executable: &Path) -> Result<Extension, Error> {
        let beside = executable.parent().and_then(Path::parent);
        let beside = beside.map(|dir| dir.join("extension"));
        let mut dirs = beside.into_iter().chain([PathBuf::from(EXTENSION_DIR)]);
        let dir = dirs.find(|dir| dir.join("unpacked").is_dir());
        let dir = dir.ok_or(Error::NoExtension)?;
        Ok(Extension { dir, executable: executable.to_owned() })
    }

    /// Lets the browser of the user with this home directory find the program.
    fn install(&self, program: Program, home: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.executable);
        command.args(["extension", "install", "--user", "--browser", name(program)]);
        let output = command.env("HOME", home).output();
        let output = output.map_err(|e| Error::io("install the browser extension", e))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(Error::Ended { name: "fairweir extension install".to_owned(), why })
            }
        }
    }
}

impl Browser {
    /// Starts the browser without opening a page.
    ///
    /// # Errors
    /// If the browser is not installed, or does not start within half a minute.
    pub fn start(setup: &Setup<'_>) -> Result<Browser, Error> {
        refuse_missing(executable(setup.program))?;
        if let Some(extension) = &setup.extension {
            extension.install(setup.program, setup.dir)?;
        }
        match setup.program {
            Program::Chromium => start_chromium(setup),
            Program::Firefox => start_firefox(setup),
        }
    }

    /// Opens a site's page; if it cannot be loaded, the browser shows an error page.
    ///
    /// # Errors
    /// If the browser does not accept the command.
    pub fn open(&self, netns: &Netns, site: &str) -> Result<(), Error> {
        let opened = match &self.way {
            Way::DevTools(port) => netns.run(|| open_page(*port, site)),
            Way::Marionette(marionette) => {
                marionette.lock().unwrap_or_else(PoisonError::into_inner).open(site)
            }
        };
        opened.map_err(|e| Error::io(format!("open https://{site}/"), e))
    }

    /// Returns an error if the browser has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.process.has_ended() { Err(self.process.ended()) } else { Ok(()) }
    }

    /// The id of the process group of all its processes.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// The browser's name in `fairweir extension`.
fn name(program: Program) -> &'static str {
    match program {
        Program::Chromium => "chromium",
        Program::Firefox => "firefox",
    }
}

fn executable(program: Program) -> &'static str {
    match program {
        Program::Chromium => "chromium",
        Program::Firefox => "firefox-esr",
    }
}

/// Refuses a program that is not in the PATH.
///
/// # Errors
/// [`Error::NotInstalled`].
pub(crate) fn refuse_missing(program: &'static str) -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if is_there { Ok(()) } else { Err(Error::NotInstalled(program)) }
}

fn start_chromium(setup: &Setup<'_>) -> Result<Browser, Error> {
    // The directory in which the user's manifests are looked for if a profile is given.
    let profile = setup.dir.join(".config/chromium");
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
    let map = |(name, address): &(String, IpAddr)| match address {
        IpAddr::V4(address) => format!("MAP {name} {address}"),
        IpAddr::V6(address) => format!("MAP {name} [{address}]"),
    };
    let rules: Vec<_> = setup.hosts.iter().map(map).collect();
    args.push(format!("--host-resolver-rules={}, MAP * ~NOTFOUND", rules.join(", ")));
    args.push(format!("--user-data-dir={}", profile.display()));
    if let Some(Quic { names, key_digest }) = &setup.quic {
        let origins: Vec<_> = names.iter().map(|name| format!("{name}:443")).collect();
        args.push(format!("--origin-to-force-quic-on={}", origins.join(",")));
        args.push(format!("--ignore-certificate-errors-spki-list={key_digest}"));
    }
    if let Some(extension) = &setup.extension {
        let unpacked = extension.dir.join("unpacked");
        args.push(format!("--load-extension={}", unpacked.display()));
        args.push(format!("--disable-extensions-except={}", unpacked.display()));
    }
    // Otherwise Debian's Chromium opens a start page.
    args.push("about:blank".to_owned());
    // Left by an earlier browser with this profile that was killed.
    for left in ["DevToolsActivePort", "SingletonLock"] {
        match fs::remove_file(profile.join(left)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("clean a profile of Chromium", e));
            }
            _ => {}
        }
    }
    let mut process = spawn(setup, &args)?;
    let begun = Instant::now();
    loop {
        let told = fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        if let Some(port) = told.lines().next().and_then(|line| line.parse().ok()) {
            return Ok(Browser { process, way: Way::DevTools(port) });
        }
        if process.has_ended() || begun.elapsed() > PATIENCE {
            return Err(process.ended());
        }
        thread::sleep(START_CHECK);
    }
}

fn start_firefox(setup: &Setup<'_>) -> Result<Browser, Error> {
    let profile = setup.dir.join("firefox");
    let mut prefs = String::from(
        "user_pref(\"network.dns.native_https_query\", false);\n\
         user_pref(\"network.trr.mode\", 5);\n\
         user_pref(\"network.http.throttle.enable\", false);\n\
         user_pref(\"browser.startup.page\", 0);\n",
    );
    if let Some(Quic { names, .. }) = &setup.quic {
        let mapped: Vec<_> = names.iter().map(|name| format!("{name};h3=:443")).collect();
        prefs += &format!(
            "user_pref(\"network.http.http3.alt-svc-mapping-for-testing\", \"{}\");\n\
             user_pref(\"network.http.http3.disable_when_third_party_roots_found\", false);\n",
            mapped.join(",")
        );
    }
    fs::create_dir_all(&profile)
        .and_then(|()| fs::write(profile.join("user.js"), prefs))
        .map_err(|e| Error::io("write a profile of Firefox", e))?;
    let profile = profile.display().to_string();
    let args = ["--headless", "--marionette", "--no-remote", "--profile", &profile, "about:blank"];
    let process = spawn(setup, &args.map(str::to_owned))?;
    let driven = Marionette::connect(setup.netns, PATIENCE).and_then(|mut marionette| {
        if let Some(extension) = &setup.extension {
            marionette.install(&extension.dir.join("fairweir.xpi"))?;
        }
        Ok(marionette)
    });
    let marionette = driven.map_err(|e| Error::io("drive Firefox", e))?;
    Ok(Browser { process, way: Way::Marionette(Mutex::new(marionette)) })
}

/// Starts a browser that sees the daemon's sockets in /run/fairweir, where the program started for the
/// extension looks for them. Firefox finds the servers in /etc/hosts.
fn spawn(setup: &Setup<'_>, args: &[String]) -> Result<Process, Error> {
    const MOUNTS: &str = "mount -t tmpfs fairweir /run && mkdir /run/fairweir && \
                          mount --bind \"$RUN_DIR\" /run/fairweir && \
                          mount --bind \"$HOME/hosts\" /etc/hosts || exit; ";
    let hosts = setup.hosts.iter().map(|(name, address)| format!("{address} {name}\n"));
    let hosts: String = hosts.collect();
    let file = setup.dir.join("hosts");
    fs::write(&file, hosts).map_err(|e| Error::io(format!("write {}", file.display()), e))?;
    let program = executable(setup.program);
    let mut command = contained(MOUNTS, program, args);
    command.env("HOME", setup.dir).env("RUN_DIR", setup.run_dir);
    Process::start(program, command, setup.netns, setup.dir.join(format!("{program}.log")))
}

/// A command for a program in its own process and mount namespaces, which end with standard input. The
/// shell runs `before` first.
fn contained(before: &str, program: &str, args: &[impl AsRef<OsStr>]) -> Command {
    // The shell is the first process of the namespace: when it ends, all others end.
    const RUN: &str = "exec 3<&0; \"$@\" <&- >/dev/null 3<&- & program=$!; \
                       { cat <&3 >/dev/null; kill -KILL $program; } & wait $program";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "sh", "-c", &format!("{before}{RUN}"), "sh", program]);
    command.args(args);
    command
}

/// Opens a page through the protocol of Chromium's developer tools.
fn open_page(port: u16, site: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "PUT /json/new?https://{site}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut answer = [0; 15];
    stream.read_exact(&mut answer)?;
    match answer.ends_with(b"200 OK") {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned())),
    }
}
