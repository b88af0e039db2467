//! Real nginx and an HTTP/3 server with two sites that load from one server far away from a [`Stage`].

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairweir_core::policy::Transport;
use rcgen::{CertifiedKey, KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use super::browser::end;
use super::far::Far;
use super::stage::Stage;

/// The two sites.
pub const SITES: [&str; 2] = ["video.example.com", "bulk.example.net"];
/// From which both load.
pub const CDN: [&str; 3] = ["cdn0.example.org", "cdn1.example.org", "cdn2.example.org"];
/// Of these, in their order; the first one serves the pages too.
pub const ADDRESSES: [&str; 3] = ["10.8.0.1", "10.8.0.2", "10.8.0.3"];
/// Where everything is served again, for a link that tells the sites apart by the server's port.
pub const PORT_AGAIN: u16 = 8_443;

/// What a site's page does.
#[derive(Clone, Copy, Debug)]
pub enum Page {
    /// It loads two objects at a time from each of so many hosts of the CDN, without end, from this port.
    Endless { hosts: usize, port: u16 },
    /// It has 43 images in two waves, from all hosts; one that fails is asked for again. The page is loaded again and again, with a pause of
    /// this mean between two loads. Sizes and pauses are those of the seed.
    Images { seed: u64, pause_ms: u64 },
}

const ENDLESS: &str = r#"<!doctype html><script>
const page = crypto.randomUUID();
let received = 0;
async function load(host, of, bytes) {
  for (let i = 0; ; i++) {
    try {
      const query = `${location.hostname}.${of}.${i}`;
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

/// Sizes are lognormal, as those of the scenarios' pages, and rounded to one of those that are served.
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
    const url = `https://${host}/object/${size()}?${location.hostname}.${n}.${i}`;
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

/// How large the objects of an endless page are: two, so that they do not end at the same time.
const LARGE: [u64; 2] = [3_000_000, 4_200_000];
/// How large images are: each 1.5 times the last.
fn small() -> impl Iterator<Item = u64> {
    (0..17).map(|i| (1_000.0 * 1.5_f64.powi(i)) as u64)
}

impl Page {
    fn document(self) -> String {
        let list = |numbers: Vec<u64>| format!("{numbers:?}");
        let document = match self {
            Page::Endless { hosts, port } => ENDLESS
                .replace("PORT", &port.to_string())
                .replace("LARGE", &list(LARGE.to_vec()))
                .replace("HOSTS", &format!("{:?}", &CDN[..hosts])),
            Page::Images { seed, pause_ms } => IMAGES
                .replace("SEED", &seed.to_string())
                .replace("PAUSE", &pause_ms.to_string())
                .replace("SMALL", &list(small().collect())),
        };
        document.replace("HOSTS", &format!("{CDN:?}"))
    }
}

/// By which the pages load what they load; with HTTP/3 the pages themselves come by HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
    Three,
}

/// The servers, which end when this drops.
pub struct Servers {
    pub http: Http,
    nginx: Child,
    log: PathBuf,
    quic: Option<quinn::Endpoint>,
    by_quic: Arc<Mutex<Vec<Request>>>,
    /// Of the servers' public key: SHA-256 in Base64.
    pub key_digest: String,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Request {
    pub transport: Transport,
    /// The client's.
    pub port: u16,
    /// Whose page asked for it.
    pub site: String,
    pub uri: String,
    /// When it came, in seconds of the wall clock.
    pub at_s: f64,
}

impl Servers {
    /// Serves the sites at `server`, by endless pages.
    pub fn start(stage: &Stage, server: &Far, http: Http) -> Servers {
        Servers::with_pages(stage, server, http, [Page::Endless { hosts: CDN.len(), port: 443 }; 2])
    }

    /// The same with these pages, one for each site.
    pub fn with_pages(stage: &Stage, server: &Far, http: Http, pages: [Page; 2]) -> Servers {
        let names = SITES.iter().chain(&CDN).map(|&name| name.to_owned());
        let identity = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>()).unwrap();
        let key_digest = Sha256::digest(identity.signing_key.subject_public_key_info());
        let key_digest = STANDARD.encode(key_digest);
        let (nginx, log) = start_nginx(stage, server, http, &identity, pages);
        let by_quic = Arc::default();
        let quic = (http == Http::Three).then(|| server.run(|| serve_http3(&identity, &by_quic)));
        Servers { http, nginx, log, quic, by_quic, key_digest }
    }

    /// Every request that was answered whole, by TCP or QUIC.
    pub fn requests(&self) -> Vec<Request> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let told = log.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let mut next = || fields.next();
            let (ended, host, uri, port, took) = (next()?, next()?, next()?, next()?, next()?);
            let (ended, took): (f64, f64) = (ended.parse().ok()?, took.parse().ok()?);
            let site = site_of(uri).unwrap_or(host).to_owned();
            let (uri, port) = (uri.to_owned(), port.parse().ok()?);
            Some(Request { transport: Transport::Tcp, port, site, uri, at_s: ended - took })
        });
        let by_quic = self.by_quic.lock().unwrap().clone();
        told.chain(by_quic).collect()
    }

    /// What each site's pages, taken together, have said last that they have received: a page that was
    /// slow to load is opened again, and then there are two.
    pub fn reported(&self) -> BTreeMap<String, u64> {
        let requests = self.requests();
        let told = requests.iter().filter_map(|request| {
            let (page, received) = request.uri.strip_prefix("/report?")?.split_once('.')?;
            Some(((&request.site, page), received.parse().ok()?))
        });
        let last: BTreeMap<_, u64> = told.collect();
        let mut sums = BTreeMap::new();
        for ((site, _), received) in last {
            *sums.entry(site.to_owned()).or_default() += received;
        }
        sums
    }

    /// How long each load of a page with images took, in ms, in order of time.
    pub fn loads_ms(&self, site: &str) -> Vec<u64> {
        let requests = self.requests();
        let told = requests.iter().filter(|request| request.site == site).filter_map(|request| {
            request.uri.strip_prefix("/loaded?")?.split_once('.')?.1.parse().ok()
        });
        told.collect()
    }
}

/// Which page asked for an object.
fn site_of(uri: &str) -> Option<&str> {
    let query = uri.strip_prefix("/object/")?.split_once('?')?.1;
    SITES.into_iter().find(|site| query.starts_with(site))
}

impl Drop for Servers {
    fn drop(&mut self) {
        end(&mut self.nginx);
        if let Some(quic) = &self.quic {
            quic.close(0_u32.into(), b"");
        }
    }
}

fn start_nginx(
    stage: &Stage,
    server: &Far,
    http: Http,
    identity: &CertifiedKey<KeyPair>,
    pages: [Page; 2],
) -> (Child, PathBuf) {
    let dir = stage.path("nginx");
    fs::create_dir_all(dir.join("www/object")).unwrap();
    fs::write(dir.join("cert.pem"), identity.cert.pem()).unwrap();
    fs::write(dir.join("key.pem"), identity.signing_key.serialize_pem()).unwrap();
    for (site, page) in SITES.into_iter().zip(pages) {
        fs::create_dir_all(dir.join("www").join(site)).unwrap();
        fs::write(dir.join("www").join(site).join("index.html"), page.document()).unwrap();
    }
    for bytes in small().chain(LARGE) {
        let path = dir.join(format!("www/object/{bytes}"));
        fs::write(&path, image_header(bytes)).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
    }
    let (path, http2) = (dir.display(), if http == Http::One { "" } else { "http2" });
    let configuration = format!(
        "worker_processes 1; user root; pid {path}/pid; error_log {path}/error.log; daemon off;\n\
         events {{ worker_connections 256; }}\n\
         http {{ default_type text/html;\n\
         log_format told '$msec $host $request_uri $remote_port $request_time';\n\
         access_log {path}/access.log told; client_body_temp_path {path}/t1;\n\
         proxy_temp_path {path}/t2; fastcgi_temp_path {path}/t3; uwsgi_temp_path {path}/t4;\n\
         scgi_temp_path {path}/t5; server {{ listen 443 ssl {http2};\n\
         listen {PORT_AGAIN} ssl {http2}; root {path}/www/$host;\n\
         ssl_certificate {path}/cert.pem; ssl_certificate_key {path}/key.pem;\n\
         location = /report {{ return 204; }}\n\
         location = /loaded {{ return 204; }}\n\
         location /object/ {{ root {path}/www; default_type image/bmp;\n\
         add_header Access-Control-Allow-Origin *; add_header Cache-Control no-store; }} }} }}\n"
    );
    fs::write(dir.join("nginx.conf"), configuration).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf")).stderr(Stdio::null());
    command.process_group(0);
    (server.run(|| command.spawn().unwrap()), dir.join("access.log"))
}

/// The header of an image 64 pixels wide, whose file has so many bytes.
fn image_header(bytes: u64) -> Vec<u8> {
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

/// Serves objects over HTTP/3 at port 443 of this namespace, until the endpoint is closed.
fn serve_http3(
    identity: &CertifiedKey<KeyPair>,
    requests: &Arc<Mutex<Vec<Request>>>,
) -> quinn::Endpoint {
    let requests = Arc::clone(requests);
    let certificate: CertificateDer<'static> = identity.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
    let tls = rustls::ServerConfig::builder().with_no_client_auth();
    let mut tls = tls.with_single_cert(vec![certificate], key).unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let socket = UdpSocket::bind("0.0.0.0:443").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = {
        let _inside = runtime.enter();
        let (own, tokio) = (quinn::EndpointConfig::default(), Arc::new(quinn::TokioRuntime));
        quinn::Endpoint::new(own, Some(config), socket, tokio).unwrap()
    };
    let served = endpoint.clone();
    thread::spawn(move || {
        runtime.block_on(async {
            while let Some(incoming) = served.accept().await {
                tokio::spawn(serve_connection(incoming, Arc::clone(&requests)));
            }
        });
    });
    endpoint
}

/// Answers every request with the object, until the client is gone.
async fn serve_connection(
    incoming: quinn::Incoming,
    requests: Arc<Mutex<Vec<Request>>>,
) -> Option<()> {
    let port = incoming.remote_address().port();
    let connection = h3_quinn::Connection::new(incoming.await.ok()?);
    let mut connection = h3::server::Connection::new(connection).await.ok()?;
    while let Ok(Some(request)) = connection.accept().await {
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let (request, mut stream) = request.resolve_request().await.ok()?;
            let uri = request.uri().path_and_query()?.as_str().to_owned();
            let bytes: u64 = request.uri().path().strip_prefix("/object/")?.parse().ok()?;
            let at_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
            let site = site_of(&uri)?.to_owned();
            requests.lock().unwrap().push(Request {
                transport: Transport::Udp,
                port,
                site,
                uri,
                at_s,
            });
            let head = http::Response::builder()
                .header("Access-Control-Allow-Origin", "*")
                .header("Cache-Control", "no-store")
                .header("Content-Type", "image/bmp");
            stream.send_response(head.body(()).unwrap()).await.ok()?;
            let header = image_header(bytes);
            let mut left = bytes - header.len() as u64;
            stream.send_data(header.into()).await.ok()?;
            while left > 0 {
                let piece = left.min(PIECE.len() as u64);
                stream.send_data(bytes::Bytes::from_static(&PIECE[..piece as usize])).await.ok()?;
                left -= piece;
            }
            stream.finish().await.ok()
        });
    }
    Some(())
}

static PIECE: [u8; 20_000] = [0; 20_000];
