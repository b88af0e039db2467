//! Short HTTPS connections beside a download:
//! `cargo test -p fairweir --features evidence --test it short_https -- --ignored --nocapture`

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use fairweir_lab::browser::site;
use fairweir_scenario::{CongestionControl, Http};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;
use crate::common::far::Far;
use crate::common::stage::LINK_MBIT;

/// Address of the web server; another server serves a long download beside it.
const WEB: &str = "10.8.0.1";
const NAME: &str = "web.example.com";
/// Path of an object of one of the sizes that the server offers.
const OBJECT: &str = "/object/86497";
const CLIENTS: usize = 8;

/// Like `ab -c 8` over HTTPS: eight clients, each of which opens a new connection for each request.
#[test]
#[ignore = "long: 3 min"]
fn short_https_connections_beside_a_download_leave_nothing_unused() {
    if !privileged() {
        return;
    }
    for weights in [[3, 1], [1, 1], [1, 3]] {
        let [without, with] =
            [false, true].map(|controlled| short_beside_bulk(weights, controlled));
        note(&format!("{weights:?}, requests and download: without {without}, with {with}"));
        assert!(with.used >= 0.95, "{weights:?}: {with}");
    }
}

/// Results over 20 s.
struct Beside {
    /// Used fraction of the link.
    used: f64,
    /// Requests per second.
    requests: f64,
    /// Payload rate of the download, in Mbit/s.
    bulk_mbit: f64,
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used * 100.0;
        write!(f, "{used:.1} % used, {:.1}/s, {:.1} Mbit/s", self.requests, self.bulk_mbit)
    }
}

fn short_beside_bulk([web_weight, bulk_weight]: [u32; 2], controlled: bool) -> Beside {
    let stage = Stage::new();
    let (web, bulk) =
        (Far::new(&stage, "web", WEB, None), Far::new(&stage, "bulk", "10.8.1.1", None));
    let identity = site::identity(vec![NAME.to_owned()]).unwrap();
    let setup = site::Setup {
        netns: web.netns(),
        dir: &stage.path("nginx"),
        sites: Vec::new(),
        http: Http::One,
        ports: vec![443],
        congestion_control: CongestionControl::Cubic,
    };
    let _servers = site::Servers::start(&setup, &identity).unwrap();
    let daemon = controlled.then(|| {
        stage.configure(&format!(
            "version = 1\n[host]\n[[group]]\nname = \"web\"\nweight = {web_weight}\nmatch = [\"ip:{WEB}\"]\n\
             [[group]]\nname = \"bulk\"\nweight = {bulk_weight}\nmatch = [\"ip:10.8.1.1\"]\n"
        ));
        stage.start(&[])
    });
    let download = bulk.download(&stage);
    let mut roots = RootCertStore::empty();
    roots.add(identity.cert.der().clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let (config, ended, answered) =
        (Arc::new(config), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let beside = thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let (config, ended, answered) = (&config, &ended, &answered);
            let stage = &stage;
            scope.spawn(move || {
                stage.at_home(|| {
                    while !ended.load(Ordering::Relaxed) {
                        fetch(config);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        thread::sleep(Duration::from_secs(10));
        let count = || (stage.received(), answered.load(Ordering::Relaxed), download.received());
        let (begin, before) = (Instant::now(), count());
        thread::sleep(Duration::from_secs(20));
        let (seconds, after) = (begin.elapsed().as_secs_f64(), count());
        ended.store(true, Ordering::Relaxed);
        let mbit = |after: u64, before: u64| (after - before) as f64 * 8e-6 / seconds;
        Beside {
            used: mbit(after.0, before.0) / LINK_MBIT,
            requests: (after.1 - before.1) as f64 / seconds,
            bulk_mbit: mbit(after.2, before.2),
        }
    });
    drop(daemon);
    beside
}

/// Sends one request on a new connection.
fn fetch(config: &Arc<ClientConfig>) {
    let stream = TcpStream::connect((WEB, 443)).unwrap();
    let session = ClientConnection::new(Arc::clone(config), NAME.try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    write!(stream, "GET {OBJECT} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..200]));
}
