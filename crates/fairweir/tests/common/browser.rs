//! Real Chromium with the extension, and real nginx with two sites that load from one server, in the
//! namespaces of a [`Stage`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::link;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::far::Far;
use super::stage::Stage;
use super::{FAIRWEIR, note};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The two sites.
pub const SITES: [&str; 2] = ["video.example.com", "bulk.example.net"];
/// From which both load.
pub const CDN: &str = "cdn.example.org";

/// A page that loads two objects at a time, again and again, and reports how much it has received.
const PAGE: &str = r#"<!doctype html><script>
const page = crypto.randomUUID();
let received = 0;
async function load(of) {
  for (let i = 0; ; i++) {
    try {
      const response = await fetch(`https://cdn.example.org/object?${of}.${i}`, {cache: "no-store"});
      const reader = response.body.getReader();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        received += value.length;
      }
    } catch { await new Promise((done) => setTimeout(done, 100)); }
  }
}
load("a"); load("b");
setInterval(() => fetch(`/report?${page}.${received}`, {cache: "no-store"}), 500);
</script>"#;

/// How much of it a page loads at a time.
const OBJECT_BYTES: u64 = 3_000_000;

/// Whether the programs are there; says what is missing. `make test` installs them.
pub fn are_installed() -> bool {
    let missing = ["chromium", "nginx", "npm", "zip"].into_iter().filter(|program| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        !found.unwrap().status.success()
    });
    let missing: Vec<_> = missing.collect();
    if !missing.is_empty() {
        note(&format!("SKIPPED: {} not installed", missing.join(", ")));
    }
    missing.is_empty()
}

/// nginx, which ends when this drops.
pub struct Nginx {
    process: Child,
    log: PathBuf,
}

impl Nginx {
    /// Serves the sites at `server` over HTTP/1.1 or HTTP/2.
    pub fn start(stage: &Stage, server: &Far, is_h2: bool) -> Nginx {
        let dir = stage.path("nginx");
        fs::create_dir_all(dir.join("www")).unwrap();
        let names: Vec<String> = SITES.iter().chain([&CDN]).map(|&name| name.to_owned()).collect();
        let identity = rcgen::generate_simple_self_signed(names).unwrap();
        fs::write(dir.join("cert.pem"), identity.cert.pem()).unwrap();
        fs::write(dir.join("key.pem"), identity.signing_key.serialize_pem()).unwrap();
        fs::write(dir.join("www/index.html"), PAGE).unwrap();
        fs::File::create(dir.join("www/object")).unwrap().set_len(OBJECT_BYTES).unwrap();
        let (path, http2) = (dir.display(), if is_h2 { "http2" } else { "" });
        let configuration = format!(
            "worker_processes 1; user root; pid {path}/pid; error_log {path}/error.log; daemon off;\n\
             events {{ worker_connections 256; }}\n\
             http {{ default_type text/html; log_format told '$msec $host $request_uri';\n\
             access_log {path}/access.log told; client_body_temp_path {path}/t1;\n\
             proxy_temp_path {path}/t2; fastcgi_temp_path {path}/t3; uwsgi_temp_path {path}/t4;\n\
             scgi_temp_path {path}/t5; server {{ listen 443 ssl {http2}; root {path}/www;\n\
             ssl_certificate {path}/cert.pem; ssl_certificate_key {path}/key.pem;\n\
             location = /report {{ return 204; }}\n\
             location = /object {{ add_header Access-Control-Allow-Origin *; }} }} }}\n"
        );
        fs::write(dir.join("nginx.conf"), configuration).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf")).stderr(Stdio::null());
        command.process_group(0);
        let process = server.run(|| command.spawn().unwrap());
        Nginx { process, log: dir.join("access.log") }
    }

    /// What each site's pages, taken together, have said last that they have received: a page that was
    /// slow to load is opened again, and then there are two.
    pub fn reported(&self) -> BTreeMap<String, u64> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let told = log.lines().filter_map(|line| {
            let (site, rest) = line.split_once(' ')?.1.split_once(' ')?;
            let (page, received) = rest.strip_prefix("/report?")?.split_once('.')?;
            Some(((site, page), received.parse().ok()?))
        });
        let last: BTreeMap<_, u64> = told.collect();
        let mut sums = BTreeMap::new();
        for ((site, _), received) in last {
            *sums.entry(site.to_owned()).or_default() += received;
        }
        sums
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Ends a process and its children, which are a group of their own.
fn end(process: &mut Child) {
    let _ = killpg(Pid::from_raw(process.id() as i32), Signal::SIGKILL);
    let _ = process.wait();
}

/// Chromium with a page of each site, which ends when this drops.
pub struct Chromium {
    process: Child,
    /// Of its developer tools.
    port: u16,
}

impl Chromium {
    /// With the extension or without; `server` answers for every name.
    pub fn start(stage: &Stage, server: &Far, has_extension: bool) -> Chromium {
        let profile = stage.path("profile");
        let rules = format!("--host-resolver-rules=MAP * {}", server.address().ip());
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
        args.extend([rules, format!("--user-data-dir={}", profile.display())]);
        if has_extension {
            let unpacked = unpacked();
            args.push(format!("--load-extension={}", unpacked.display()));
            args.push(format!("--disable-extensions-except={}", unpacked.display()));
            install(stage, &profile);
        }
        let said = fs::File::create(stage.path("chromium.log")).unwrap();
        let mut command = Command::new("chromium");
        command.args(args).env("HOME", stage.path("")).stdout(Stdio::null()).stderr(said);
        command.process_group(0);
        // Else Debian's Chromium opens a start page, which would be served as a third site.
        command.arg("about:blank");
        let process = stage.at_home(|| {
            link::set_up("lo").unwrap();
            command.spawn().unwrap()
        });
        let mut chromium = Chromium { process, port: 0 };
        let deadline = Instant::now() + Duration::from_secs(30);
        chromium.port = loop {
            let told = fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
            if let Some(port) = told.lines().next().and_then(|line| line.parse().ok()) {
                break port;
            }
            assert!(Instant::now() < deadline, "Chromium does not start");
            thread::sleep(Duration::from_millis(50));
        };
        // Headless Chromium opens only one page by itself.
        for site in SITES {
            chromium.open(stage, site);
        }
        chromium
    }

    /// Opens a site's page; one that could not be loaded stays an error.
    pub fn open(&self, stage: &Stage, site: &str) {
        stage.at_home(|| open_page(self.port, site));
    }
}

/// Opens a page by the protocol of Chromium's developer tools.
fn open_page(port: u16, site: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "PUT /json/new?https://{site}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(b"200 OK"), "{}", String::from_utf8_lossy(&answer));
}

impl Drop for Chromium {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// The extension as `make extension` makes it.
fn unpacked() -> PathBuf {
    static MADE: std::sync::Once = std::sync::Once::new();
    let root = Path::new(ROOT).canonicalize().unwrap();
    MADE.call_once(|| {
        let made = Command::new("make").arg("-C").arg(&root).arg("extension").output().unwrap();
        assert!(made.status.success(), "{made:?}");
    });
    root.join("target/extension/unpacked")
}

/// As `fairweir extension install` does it, but for the stage's daemon and this profile alone.
fn install(stage: &Stage, profile: &Path) {
    let program = stage.path("extension-host");
    let script =
        format!("#!/bin/sh\nexec {FAIRWEIR} extension host --run-dir {}\n", stage.run_dir());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let root = stage.path("manifests");
    let to = ["--root", root.to_str().unwrap(), "--browser", "chromium"];
    let installed = super::fairweir(&[&["extension", "install"][..], &to].concat());
    assert!(installed.status.success(), "{installed:?}");
    let name = "net.fairweir.extension.json";
    let manifest = root.join("etc/chromium/native-messaging-hosts").join(name);
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
    manifest["path"] = program.to_str().unwrap().into();
    let dir = profile.join("NativeMessagingHosts");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(name), manifest.to_string()).unwrap();
}
