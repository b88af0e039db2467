//! Real nginx and an HTTP/3 server with two sites that load from one server at a distance from a [`Stage`].

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairweir_core::packet::Transport;
use fairweir_lab::browser::site::{self, image_header, site_of};
use fairweir_scenario::CongestionControl;
use rcgen::{CertifiedKey, KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use super::far::Far;
use super::stage::Stage;

/// The two sites.
pub const SITES: [&str; 2] = ["video.example.com", "bulk.example.net"];
/// The hosts from which both sites load.
pub const CDN: [&str; 3] = ["cdn0.example.org", "cdn1.example.org", "cdn2.example.org"];
/// The addresses of these hosts, in the same order; the first one also serves the pages.
pub const ADDRESSES: [&str; 3] = ["10.8.0.1", "10.8.0.2", "10.8.0.3"];
/// A second port for everything, for a link that tells the sites apart by the server's port.
pub const PORT_AGAIN: u16 = 8_443;

/// The behaviour of a site's page.
#[derive(Clone, Copy, Debug)]
pub enum Page {
    /// The page loads two objects at a time from each of this number of CDN hosts, without end, from this port.
    Endless { hosts: usize, port: u16 },
    /// The page has 43 images in two waves, from all hosts; failed ones are requested again. It is reloaded again
    /// and again, with a pause of this mean between two loads. The seed determines sizes and pauses.
    Images { seed: u64, pause_ms: u64 },
}

impl Page {
    fn of_lab(self) -> site::Page {
        let names = |hosts: usize| CDN[..hosts].iter().map(|&name| name.to_owned()).collect();
        match self {
            Page::Endless { hosts, port } => site::Page::Endless { hosts: names(hosts), port },
            Page::Images { seed, pause_ms } => {
                site::Page::Images { hosts: names(CDN.len()), seed, pause_ms }
            }
        }
    }
}

/// The HTTP version for the objects; with HTTP/3 the pages themselves still come over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
    Three,
}

/// The servers, which end when dropped.
pub struct Servers {
    pub http: Http,
    nginx: site::Servers,
    quic: Option<quinn::Endpoint>,
    by_quic: Arc<Mutex<Vec<Request>>>,
    /// SHA-256 of the servers' public key, in Base64.
    pub key_digest: String,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Request {
    pub transport: Transport,
    /// The server's address.
    pub server: IpAddr,
    /// The client's port.
    pub port: u16,
    /// The site whose page sent the request.
    pub site: String,
    pub uri: String,
    /// When the request arrived, in seconds of the wall clock.
    pub at_s: f64,
}

impl Servers {
    /// Serves the sites at `server`, with endless pages.
    pub fn start(stage: &Stage, server: &Far, http: Http) -> Servers {
        Servers::with_pages(stage, server, http, [Page::Endless { hosts: CDN.len(), port: 443 }; 2])
    }

    /// Serves the sites at `server` with these pages, one for each site.
    pub fn with_pages(stage: &Stage, server: &Far, http: Http, pages: [Page; 2]) -> Servers {
        let names = SITES.iter().chain(&CDN).map(|&name| name.to_owned());
        let identity = site::identity(names.collect()).unwrap();
        let key_digest = Sha256::digest(identity.signing_key.subject_public_key_info());
        let key_digest = STANDARD.encode(key_digest);
        let setup = site::Setup {
            netns: server.netns(),
            dir: &stage.path("nginx"),
            sites: SITES
                .iter()
                .zip(pages)
                .map(|(&s, page)| (s.to_owned(), page.of_lab()))
                .collect(),
            http: if http == Http::One {
                fairweir_scenario::Http::One
            } else {
                fairweir_scenario::Http::Two
            },
            ports: vec![443, PORT_AGAIN],
            congestion_control: CongestionControl::Cubic,
        };
        let nginx = site::Servers::start(&setup, &identity).unwrap();
        let by_quic = Arc::default();
        let quic = (http == Http::Three).then(|| server.run(|| serve_http3(&identity, &by_quic)));
        Servers { http, nginx, quic, by_quic, key_digest }
    }

    /// All requests that were answered completely, over TCP or QUIC.
    pub fn requests(&self) -> Vec<Request> {
        let told = self.nginx.requests().into_iter().map(|request| {
            let site::Request { server, port, site, uri, at_s } = request;
            Request { transport: Transport::Tcp, server, port, site, uri, at_s }
        });
        let by_quic = self.by_quic.lock().unwrap().clone();
        told.chain(by_quic).collect()
    }

    /// The bytes that each site's pages last reported as received, summed: a page that was slow to load is opened
    /// again, and then there are two.
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

    /// The loading times of a page with images, in ms, in chronological order.
    pub fn loads_ms(&self, site: &str) -> Vec<u64> {
        let requests = self.requests();
        let told = requests
            .iter()
            .filter(|request| request.site == site)
            .filter_map(|request| site::loaded_ms(&request.uri));
        told.collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some(quic) = &self.quic {
            quic.close(0_u32.into(), b"");
        }
    }
}

/// Serves objects over HTTP/3 at port 443 in this namespace, until the endpoint is closed.
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

/// Answers every request with the object, until the client has gone.
async fn serve_connection(
    incoming: quinn::Incoming,
    requests: Arc<Mutex<Vec<Request>>>,
) -> Option<()> {
    let (server, port) = (incoming.local_ip()?, incoming.remote_address().port());
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
                server,
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
