//! Servers for many sites at the addresses of a [`Stage`]'s internet, and downloads from them, over TLS,
//! HTTP/1.1 and QUIC.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;
use fairweir_testing::note;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::stage::{Daemon, SERVERS, Stage};

/// The home's IPv6 address.
pub const HOME6: &str = "2001:db8:9::2";
/// The internet's IPv6 address.
pub const SERVER6: &str = "2001:db8:9::1";

/// The protocol of a connection to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TLS over TCP; the client hello is sent in segments of this size in bytes.
    Tls(usize),
    Http,
    Quic,
}

/// Servers that answer for each of `names` at every address, and send without end.
pub struct Web {
    tls: u16,
    http: u16,
    quic: u16,
    certificate: CertificateDer<'static>,
}

impl Web {
    pub fn new(stage: &Stage, names: &[&str]) -> Web {
        for (at_home, device, address) in [(true, "wan", HOME6), (false, "isp", SERVER6)] {
            // Without duplicate address detection, which would take a second.
            let add = format!("-6 address replace {address}/64 dev {device} nodad");
            let ip = || std::process::Command::new("ip").args(add.split(' ')).status().unwrap();
            assert!(if at_home { stage.at_home(ip) } else { stage.at_internet(ip) }.success());
        }
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        let identity = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = identity.cert.der().clone();
        let key = || PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate.clone()], key()).unwrap();
        let config = Arc::new(config);
        let tls = serve(stage, move |mut stream| {
            let mut session = ServerConnection::new(Arc::clone(&config)).unwrap();
            send_without_end(&mut rustls::Stream::new(&mut session, &mut stream));
        });
        let http = serve(stage, |stream| {
            let mut reader = BufReader::new(&stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let mut writer = &stream;
            if writer.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_ok() {
                send_without_end(&mut writer);
            }
        });
        let quic = serve_quic(stage, certificate.clone(), key());
        Web { tls, http, quic, certificate }
    }

    /// The port for a protocol.
    pub fn port(&self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Tls(_) => self.tls,
            Protocol::Http => self.http,
            Protocol::Quic => self.quic,
        }
    }

    /// Starts a download from the site `name` to `client`.
    pub fn download(&self, client: &Netns, protocol: Protocol, server: &str, name: &str) -> Fetch {
        let address: IpAddr = server.parse().unwrap();
        let fetch = Fetch::default();
        let received = Arc::clone(&fetch.received);
        let name = name.to_owned();
        match protocol {
            Protocol::Tls(segment) => {
                let server = SocketAddr::new(address, self.tls);
                let stream = client.run(|| TcpStream::connect(server).unwrap());
                stream.set_nodelay(true).unwrap();
                let mut session = self.client(&name);
                thread::spawn(move || {
                    let mut stream = Segmented { stream, segment };
                    receive(&mut rustls::Stream::new(&mut session, &mut stream), &received);
                });
            }
            Protocol::Http => {
                let server = SocketAddr::new(address, self.http);
                let mut stream = client.run(|| TcpStream::connect(server).unwrap());
                write!(stream, "GET / HTTP/1.1\r\nHost: {name}:80\r\n\r\n").unwrap();
                thread::spawn(move || receive(&mut stream, &received));
            }
            Protocol::Quic => {
                let server = SocketAddr::new(address, self.quic);
                let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = client.run(|| UdpSocket::bind(any).unwrap());
                let certificate = self.certificate.clone();
                thread::spawn(move || fetch_quic(socket, server, &name, certificate, &received));
            }
        }
        fetch
    }

    fn client(&self, name: &str) -> ClientConnection {
        let mut trusted = RootCertStore::empty();
        trusted.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }
}

/// A download that continues until the stage's namespaces are removed.
#[derive(Default)]
pub struct Fetch {
    received: Arc<AtomicU64>,
}

impl Fetch {
    /// Payload bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Sends datagrams that look like QUIC Initial packets, from changing ports, as fast as possible; returns how many.
fn flood(client: &Netns, span: Duration) -> u64 {
    let mut datagram = vec![0xc3, 0, 0, 0, 1, 8];
    datagram.extend([9; 8]);
    datagram.extend([0, 0, 0x44, 0x9e]);
    datagram.resize(1_200, 5);
    let (begin, mut sent) = (Instant::now(), 0);
    client.run(|| {
        while begin.elapsed() < span {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 443..453 {
                sent += u64::from(socket.send_to(&datagram, (SERVERS[0], port)).is_ok());
            }
        }
    });
    sent
}

/// Checks that while a client floods the daemon with connection starts, it answers and its memory stays bounded.
pub fn assert_holds_in_flood(daemon: &Daemon, client: &Netns, span: Duration) {
    let (sent, slowest) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(client, span));
        let mut slowest = Duration::ZERO;
        while !flood.is_finished() {
            let begin = Instant::now();
            daemon.status();
            slowest = slowest.max(begin.elapsed());
            thread::sleep(Duration::from_millis(20));
        }
        (flood.join().unwrap(), slowest)
    });
    let (sites, resident) = (daemon.status()["sites"].clone(), daemon.memory("VmHWM"));
    note(&format!(
        "{sent} beginnings in {span:?}, slowest status {slowest:?}, {resident} B, {sites}"
    ));
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    assert!(resident < 150_000_000, "{resident} bytes");
}

/// A name server that answers only when [`NameServer::answer`] is called.
pub struct NameServer(UdpSocket);

impl NameServer {
    /// Must be called in the name server's namespace.
    pub fn new(address: &str) -> NameServer {
        NameServer(UdpSocket::bind((address, 53)).unwrap())
    }

    /// Lets `client` ask for `name`, and answers with `address`.
    pub fn answer(&self, client: &Netns, name: &str, address: [u8; 4]) {
        let client = client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
        let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend(name.split('.').flat_map(label));
        query.extend([0, 0, 1, 0, 1]);
        client.send_to(&query, self.0.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 512];
        let (length, from) = self.0.recv_from(&mut buffer).unwrap();
        let mut answer = buffer[..length].to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address);
        self.0.send_to(&answer, from).unwrap();
        client.recv(&mut buffer).unwrap();
    }
}

/// A stream that is written in small pieces, each in its own segment.
struct Segmented {
    stream: TcpStream,
    segment: usize,
}

impl Read for Segmented {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for Segmented {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(&bytes[..bytes.len().min(self.segment)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn receive(stream: &mut impl Read, received: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        received.fetch_add(n as u64, Ordering::Relaxed);
    }
}

fn send_without_end(stream: &mut impl Write) {
    let bytes = vec![7; 1 << 14];
    while stream.write_all(&bytes).is_ok() {}
}

/// Listens on a port at all addresses of the internet.
fn serve(stage: &Stage, answer: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = stage.at_internet(|| TcpListener::bind("[::]:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            setsockopt(&stream, TcpCongestion, &"cubic".into()).unwrap();
            let answer = Arc::clone(&answer);
            thread::spawn(move || answer(stream));
        }
    });
    port
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn serve_quic(
    stage: &Stage,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> u16 {
    let socket = stage.at_internet(|| UdpSocket::bind("[::]:0").unwrap());
    let port = socket.local_addr().unwrap().port();
    let config = quinn::ServerConfig::with_single_cert(vec![certificate], key).unwrap();
    thread::spawn(move || {
        runtime().block_on(async {
            let (own, runtime) = (quinn::EndpointConfig::default(), Arc::new(quinn::TokioRuntime));
            let endpoint = quinn::Endpoint::new(own, Some(config), socket, runtime).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                // The client's address is validated first, so its hello arrives twice.
                let incoming = match incoming.remote_address_validated() {
                    false => {
                        incoming.retry().unwrap();
                        continue;
                    }
                    true => incoming,
                };
                tokio::spawn(async move {
                    let connection = incoming.await.ok()?;
                    let mut stream = connection.open_uni().await.ok()?;
                    let bytes = vec![7; 1 << 14];
                    while stream.write_all(&bytes).await.is_ok() {}
                    Some(())
                });
            }
        });
    });
    port
}

fn fetch_quic(
    socket: UdpSocket,
    server: SocketAddr,
    name: &str,
    certificate: CertificateDer<'static>,
    received: &AtomicU64,
) {
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate).unwrap();
    let config = quinn::ClientConfig::with_root_certificates(Arc::new(trusted)).unwrap();
    runtime().block_on(async {
        let (own, runtime) = (quinn::EndpointConfig::default(), Arc::new(quinn::TokioRuntime));
        let mut endpoint = quinn::Endpoint::new(own, None, socket, runtime).unwrap();
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(server, name).unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let mut buffer = vec![0; 1 << 16];
        let patience = Duration::from_secs(10);
        while let Ok(Ok(Some(n))) = tokio::time::timeout(patience, stream.read(&mut buffer)).await {
            received.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
}
