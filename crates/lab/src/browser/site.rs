//! nginx with many sites at the same addresses: each site has its own page, which loads objects from hosts that
//! all sites share. The log shows for which site each connection was used.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use fairweir_core::units::Bytes;
use fairweir_linux::netns::Netns;
use fairweir_scenario::{Browser, CongestionControl, Http};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use rcgen::{CertifiedKey, KeyPair};
use socket2::{Domain, Socket, Type};

use super::{contained, refuse_missing};
use crate::Error;
use crate::process::Process;

/// The behaviour of a site's page.
#[derive(Clone, Debug)]
pub enum Page {
    /// The page loads two objects at a time from each of these hosts, without end, from this port.
    Endless {
        /// Names of the hosts.
        hosts: Vec<String>,
        /// The servers' port.
        port: u16,
    },
    /// The page has 43 images in two waves, from all hosts; an image that fails is requested again. The page is
    /// reloaded again and again, with a pause of this mean between two loads. Sizes and pauses are derived from
    /// the seed.
    Images {
        /// Names of the hosts.
        hosts: Vec<String>,
        /// Seed for sizes and pauses.
        seed: u64,
        /// Mean pause in milliseconds.
        pause_ms: u64,
    },
}

const ENDLESS: &str = r#"<!doctype html><script>
const page = crypto.randomUUID();
let received = 0;
async function load(host, of, bytes) {
  for (let i = 0; ; i++) {
    try {
      const query = `${location.hostname}/${of}.${i}`;
      const response = await fetch(`https://${host}:PORT/object/${bytes}?${query}`, {cache: "no-store"});
      const reader = response.body.getReader();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        received += value.length;
      }
    } catch { await new Promise((done) => setTimeout(done, 100)); }
  }
}
HOSTS.forEach((host) => LARGE.forEach((bytes) => load(host, bytes, bytes)));
setInterval(() => fetch(`/report?${page}.${received}`, {cache: "no-store"}), 500);
</script>"#;

/// Sizes are lognormal, as for the scenarios' pages, and rounded to one of the sizes that are served.
const IMAGES: &str = r#"<!doctype html><body><script>
const n = Number(new URLSearchParams(location.search).get("n") ?? 0);
let state = (SEED * 7919 + n * 104729) >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
function size() {
  const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const wanted = 15000 * Math.exp(1.318 * normal);
  return SMALL.find((bytes) => bytes >= wanted) ?? SMALL[SMALL.length - 1];
}
function image(i) {
  return new Promise((done) => {
    const image = new Image();
    const host = HOSTS[Math.floor(random() * HOSTS.length)];
    const url = `https://${host}/object/${size()}?${location.hostname}/${n}.${i}`;
    let tries = 0;
    image.onload = done;
    image.onerror = () => setTimeout(() => { image.src = `${url}.${++tries}`; }, 50);
    image.src = url;
    document.body.append(image);
  });
}
async function load() {
  for (const wave of [21, 22]) {
    const images = Array.from({length: wave}, (_, i) => image(wave * 100 + i));
    await Promise.all(images);
  }
  const took = performance.now();
  await fetch(`/loaded?${n}.${took.toFixed(0)}`, {cache: "no-store"});
  setTimeout(() => location.replace(`/?n=${n + 1}`), -PAUSE * Math.log(1 - random()));
}
load();
</script>"#;

/// Sizes in bytes of the objects of an endless page.
fn large() -> impl Iterator<Item = u64> {
    Browser::OBJECTS.into_iter().map(Bytes::as_u64)
}

/// Sizes in bytes of the images, each 1.5 times the previous one.
fn small() -> impl Iterator<Item = u64> {
    (0..17).map(|i| (1_000.0 * 1.5_f64.powi(i)) as u64)
}

impl Page {
    fn document(&self) -> String {
        let list = |numbers: Vec<u64>| format!("{numbers:?}");
        match self {
            Page::Endless { hosts, port } => ENDLESS
                .replace("PORT", &port.to_string())
                .replace("LARGE", &list(large().collect()))
                .replace("HOSTS", &format!("{hosts:?}")),
            Page::Images { hosts, seed, pause_ms } => IMAGES
                .replace("SEED", &seed.to_string())
                .replace("PAUSE", &pause_ms.to_string())
                .replace("SMALL", &list(small().collect()))
                .replace("HOSTS", &format!("{hosts:?}")),
        }
    }
}

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Setup<'s> {
    /// The network namespace in which nginx runs.
    pub netns: &'s Netns,
    /// The directory for nginx's files.
    pub dir: &'s Path,
    /// Each site's name and page.
    pub sites: Vec<(String, Page)>,
    /// The HTTP version for the objects.
    pub http: Http,
    /// All ports; everything is served at each of them.
    pub ports: Vec<u16>,
    /// The servers' congestion control.
    pub congestion_control: CongestionControl,
}

/// A request that was answered, or aborted.
#[derive(Clone, Debug)]
pub struct Request {
    /// The server's address.
    pub server: IpAddr,
    /// The client's port.
    pub port: u16,
    /// The site whose page sent the request.
    pub site: String,
    /// Path and query.
    pub uri: String,
    /// When the request arrived, in seconds of the wall clock.
    pub at_s: f64,
}

/// A running nginx, which ends when dropped.
#[derive(Debug)]
pub struct Servers {
    process: Process,
    log: PathBuf,
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 511;

/// A self-signed certificate for these names.
///
/// # Errors
/// If a name is not valid.
pub fn identity(names: Vec<String>) -> Result<CertifiedKey<KeyPair>, Error> {
    rcgen::generate_simple_self_signed(names)
        .map_err(|e| Error::io("make a certificate", io::Error::other(e)))
}

impl Servers {
    /// Starts nginx.
    ///
    /// # Errors
    /// If nginx is not installed, or its files cannot be written.
    pub fn start(setup: &Setup<'_>, identity: &CertifiedKey<KeyPair>) -> Result<Servers, Error> {
        refuse_missing("nginx")?;
        let written = write(setup, identity);
        written.map_err(|e| Error::io(format!("write below {}", setup.dir.display()), e))?;
        let args = ["-p", &path(setup.dir), "-c", &path(&setup.dir.join("nginx.conf"))];
        let mut command = contained("", "nginx", &args);
        // nginx cannot choose a congestion control, and its namespace has the machine's default. So nginx takes
        // over sockets that have the right one, as if from a predecessor.
        let sockets = setup.netns.run(|| listen(setup)).map_err(|e| Error::io("listen", e))?;
        let numbers = sockets.iter().map(|socket| format!("{};", socket.as_raw_fd()));
        command.env("NGINX", numbers.collect::<String>());
        let process = Process::start("nginx", command, setup.netns, setup.dir.join("nginx.log"))?;
        Ok(Servers { process, log: setup.dir.join("access.log") })
    }

    /// Returns an error if nginx has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.process.has_ended() { Err(self.process.ended()) } else { Ok(()) }
    }

    /// All requests that were answered, or aborted by the browser.
    pub fn requests(&self) -> Vec<Request> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter_map(parsed).collect()
    }
}

/// The sockets for the addresses of [`listened`], inherited by processes started later.
fn listen(setup: &Setup<'_>) -> io::Result<Vec<Socket>> {
    let open = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_tcp_congestion(setup.congestion_control.name().as_bytes())?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(socket)
    };
    listened(setup).map(open).collect()
}

/// All socket addresses that are served, in both families.
fn listened(setup: &Setup<'_>) -> impl Iterator<Item = SocketAddr> {
    let any: [IpAddr; 2] = [[0; 4].into(), [0; 16].into()];
    setup.ports.iter().flat_map(move |port| any.map(|any| (any, *port).into()))
}

/// Parses a line of the log.
fn parsed(line: &str) -> Option<Request> {
    let mut fields = line.split(' ');
    let mut next = || fields.next();
    let (ended, host, uri, server) = (next()?, next()?, next()?, next()?);
    let (port, took) = (next()?.parse().ok()?, next()?);
    let (ended, took): (f64, f64) = (ended.parse().ok()?, took.parse().ok()?);
    let site = site_of(uri).unwrap_or(host).to_owned();
    let server = server.parse().ok()?;
    Some(Request { server, port, site, uri: uri.to_owned(), at_s: ended - took })
}

/// The site for which each connection was used, by server address and client port.
pub fn sites_of(requests: &[Request]) -> BTreeMap<(IpAddr, u16), &str> {
    requests.iter().map(|r| ((r.server, r.port), r.site.as_str())).collect()
}

/// Whether the request is for a page itself.
pub(crate) fn is_document(uri: &str) -> bool {
    uri == "/" || uri.starts_with("/?")
}

/// An object's size as text, and the site whose page requested it.
fn object(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix("/object/")?.split_once('?')
}

/// The size of the requested object.
pub(crate) fn object_size(uri: &str) -> Option<Bytes> {
    object(uri)?.0.parse().ok().map(Bytes::new)
}

/// The site whose page requested an object.
pub fn site_of(uri: &str) -> Option<&str> {
    object(uri)?.1.split_once('/').map(|(site, _)| site)
}

/// The page's loading time in ms, if this request reports it.
pub fn loaded_ms(uri: &str) -> Option<u64> {
    uri.strip_prefix("/loaded?")?.split_once('.')?.1.parse().ok()
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Writes all files that nginx reads.
fn write(setup: &Setup<'_>, identity: &CertifiedKey<KeyPair>) -> io::Result<()> {
    let dir = setup.dir;
    fs::create_dir_all(dir.join("www/object"))?;
    fs::write(dir.join("cert.pem"), identity.cert.pem())?;
    fs::write(dir.join("key.pem"), identity.signing_key.serialize_pem())?;
    for (site, page) in &setup.sites {
        fs::create_dir_all(dir.join("www").join(site))?;
        fs::write(dir.join("www").join(site).join("index.html"), page.document())?;
    }
    for bytes in large().chain(small()) {
        let path = dir.join(format!("www/object/{bytes}"));
        fs::write(&path, image_header(bytes))?;
        fs::File::options().write(true).open(path)?.set_len(bytes)?;
    }
    fs::write(dir.join("nginx.conf"), configuration(setup))
}

fn configuration(setup: &Setup<'_>) -> String {
    let dir = setup.dir.display();
    let http2 = if setup.http == Http::Two { " http2" } else { "" };
    let listen: String =
        listened(setup).map(|address| format!("listen {address} ssl{http2};\n")).collect();
    format!(
        "worker_processes 1; user root; pid {dir}/pid; error_log {dir}/error.log; daemon off;\n\
         events {{ worker_connections 256; }}\n\
         http {{ default_type text/html;\n\
         log_format told '$msec $host $request_uri $server_addr $remote_port $request_time';\n\
         access_log {dir}/access.log told; client_body_temp_path {dir}/t1;\n\
         proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4;\n\
         scgi_temp_path {dir}/t5; server {{ {listen} root {dir}/www/$host;\n\
         ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem;\n\
         location = /report {{ return 204; }}\n\
         location = /loaded {{ return 204; }}\n\
         location /object/ {{ root {dir}/www; default_type image/bmp;\n\
         add_header Access-Control-Allow-Origin *; add_header Cache-Control no-store; }} }} }}\n"
    )
}

/// The header of an image 64 pixels wide in a file of `bytes` bytes.
pub fn image_header(bytes: u64) -> Vec<u8> {
    const HEADER: u32 = 54;
    const WIDTH: u32 = 64;
    let height = (bytes as u32 - HEADER) / (4 * WIDTH);
    // Source: BITMAPFILEHEADER and BITMAPINFOHEADER of the Windows API.
    let mut header = b"BM".to_vec();
    for word in
        [bytes as u32, 0, HEADER, HEADER - 14, WIDTH, height, 32 << 16 | 1, 0, 0, 0, 0, 0, 0]
    {
        header.extend(word.to_le_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_for_which_site_a_connection_was() {
        let log = "1.500 cdn0.example.org /object/1000?a.example.com/3.1 198.18.254.1 40000 0.250\n\
                   1.600 a.example.com / 198.18.254.1 40001 0.000\n\
                   1.700 a.example.com /loaded?3.812 fd77::1 40001 0.000\n\
                   garbage\n1.8 x /object/1?y 198.18.254.1 70000 0.1\n";
        let requests: Vec<_> = log.lines().filter_map(parsed).collect();
        assert_eq!(requests.len(), 3);
        let object = &requests[0];
        assert_eq!(
            (object.site.as_str(), object.port, object.at_s),
            ("a.example.com", 40_000, 1.25)
        );
        let sites = sites_of(&requests);
        assert_eq!(sites[&([198, 18, 254, 1].into(), 40_001)], "a.example.com");
        assert_eq!(sites.len(), 3, "one port at two servers is two connections");
        assert_eq!(loaded_ms(&requests[2].uri), Some(812));
    }
}
