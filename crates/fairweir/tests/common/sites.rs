//! Real nginx and an HTTP/3 server with two sites that load from one server far away from a [`Stage`].

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertifiedKey, KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use super::browser::end;
use super::far::Far;
use super::stage::Stage;

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
    /// Of the servers' public key: SHA-256 in Base64.
    pub key_digest: String,
}

impl Servers {
    /// Serves the sites at `server`.
    pub fn start(stage: &Stage, server: &Far, http: Http) -> Servers {
        let names: Vec<String> = SITES.iter().chain([&CDN]).map(|&name| name.to_owned()).collect();
        let identity = rcgen::generate_simple_self_signed(names).unwrap();
        let key_digest = Sha256::digest(identity.signing_key.subject_public_key_info());
        let key_digest = STANDARD.encode(key_digest);
        let (nginx, log) = start_nginx(stage, server, http, &identity);
        let quic = (http == Http::Three).then(|| server.run(|| serve_http3(&identity)));
        Servers { http, nginx, log, quic, key_digest }
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
) -> (Child, PathBuf) {
    let dir = stage.path("nginx");
    fs::create_dir_all(dir.join("www")).unwrap();
    fs::write(dir.join("cert.pem"), identity.cert.pem()).unwrap();
    fs::write(dir.join("key.pem"), identity.signing_key.serialize_pem()).unwrap();
    fs::write(dir.join("www/index.html"), PAGE).unwrap();
    fs::File::create(dir.join("www/object")).unwrap().set_len(OBJECT_BYTES).unwrap();
    let (path, http2) = (dir.display(), if http == Http::One { "" } else { "http2" });
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
    (server.run(|| command.spawn().unwrap()), dir.join("access.log"))
}

/// Serves the object over HTTP/3 at port 443 of this namespace, until the endpoint is closed.
fn serve_http3(identity: &CertifiedKey<KeyPair>) -> quinn::Endpoint {
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
                tokio::spawn(serve_connection(incoming));
            }
        });
    });
    endpoint
}

/// Answers every request with the object, until the client is gone.
async fn serve_connection(incoming: quinn::Incoming) -> Option<()> {
    let connection = h3_quinn::Connection::new(incoming.await.ok()?);
    let mut connection = h3::server::Connection::new(connection).await.ok()?;
    while let Ok(Some(request)) = connection.accept().await {
        tokio::spawn(async move {
            let (_, mut stream) = request.resolve_request().await.ok()?;
            let head = http::Response::builder().header("Access-Control-Allow-Origin", "*");
            stream.send_response(head.body(()).unwrap()).await.ok()?;
            let piece = bytes::Bytes::from_static(&[7; 20_000]);
            for _ in 0..OBJECT_BYTES / piece.len() as u64 {
                stream.send_data(piece.clone()).await.ok()?;
            }
            stream.finish().await.ok()
        });
    }
    Some(())
}
