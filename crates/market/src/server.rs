//! HTTP over mutual TLS, bounded in every direction.
//!
//! A connection has a thread, at most [`CONNECTIONS_MAX`] at a time, and a quarter of them from one address;
//! one more is closed at once. It has [`PATIENCE`] for everything, the handshake included, so a client that
//! sends nothing, or a byte at a time, holds a thread no longer. Within that time it may send any number of
//! requests, without waiting for the answers. A request that cannot be read is the last of its connection.
//! Of HTTP/1.1 the server knows `content-length`, `connection: close`, and nothing else: no chunks. Heads are
//! parsed by `httparse`. Not by hyper: it begins a connection's next request when the one before is answered, and
//! what the server answers in a second is what it has committed together.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use tracing::debug;

use crate::sha256;

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 256;

/// Connections of one client at a time: an IPv4 address, or the /64 of an IPv6 address.
pub const OF_CLIENT_MAX: usize = CONNECTIONS_MAX / 4;

/// How long a connection may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Request line and headers, in bytes.
const HEAD_MAX: usize = 8 << 10;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// A body, in bytes.
const BODY_MAX: usize = 16 << 10;

/// Requests of a connection that are done at the same time.
const PENDING_MAX: usize = 16;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT`, `POST`.
    pub method: String,
    /// Without a query.
    pub path: String,
    /// At most [`BODY_MAX`].
    pub body: Vec<u8>,
    /// SHA-256 of the client's certificate, if it showed one.
    pub certificate: Option<String>,
}

/// A response.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// JSON; a problem from 400 on.
    pub body: Value,
}

/// Waits for the answer to a request.
pub type Later = Box<dyn FnOnce() -> Response>;

/// Has requests done, in order; what it returns waits for the answer.
pub type Handler = dyn Fn(Request) -> Later + Send + Sync;

/// A listening server; it ends when this drops.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(
        address: SocketAddr,
        tls: Arc<ServerConfig>,
        handler: Arc<Handler>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let server = Server { address: listener.local_addr()?, stop: Arc::default() };
        let stop = Arc::clone(&server.stop);
        let open = Open::default();
        let accept = move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    Ok(stream) => admit(stream, &open, &tls, &handler),
                    // Without file descriptors accepting fails at once, again and again.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        };
        thread::Builder::new().name("market-accept".to_owned()).spawn(accept)?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

/// Open connections by client.
type Open = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of the connections at a time; counted while it lives.
struct Slot {
    open: Open,
    client: IpAddr,
}

impl Slot {
    /// `None` if there are too many.
    fn take(open: &Open, client: IpAddr) -> Option<Slot> {
        let client = match client.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            v4 => v4,
        };
        let mut clients = open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = clients.values().sum();
        let of_client = clients.entry(client).or_default();
        if all >= CONNECTIONS_MAX || *of_client >= OF_CLIENT_MAX {
            return None;
        }
        *of_client += 1;
        Some(Slot { open: Arc::clone(open), client })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut clients = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

fn admit(stream: TcpStream, open: &Open, tls: &Arc<ServerConfig>, handler: &Arc<Handler>) {
    let Some(slot) = stream.peer_addr().ok().and_then(|peer| Slot::take(open, peer.ip())) else {
        return;
    };
    let (tls, handler) = (Arc::clone(tls), Arc::clone(handler));
    let serve = move || {
        let _slot = slot;
        if let Err(e) = serve(stream, tls, &*handler) {
            debug!("a connection ended: {e}");
        }
    };
    let _ = thread::Builder::new().name("market-client".to_owned()).spawn(serve);
}

fn serve(stream: TcpStream, tls: Arc<ServerConfig>, handler: &Handler) -> io::Result<()> {
    // Else the end of a short answer waits for an acknowledgement of its beginning.
    stream.set_nodelay(true)?;
    let stream = Hurried { stream, until: Instant::now() + PATIENCE };
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (mut arrived, mut pending) = (Vec::new(), Vec::<Later>::new());
    let mut certificate = None;
    loop {
        let (response, last) = match next(&mut arrived) {
            Ok(None) => {
                send(&mut pending, false, &mut stream)?;
                if fill(&mut arrived, &mut stream)? == 0 {
                    return Ok(());
                }
                continue;
            }
            Ok(Some((Head { method, path, last, .. }, body))) => {
                if certificate.is_none() {
                    let shown = stream.conn.peer_certificates().and_then(|chain| chain.first());
                    certificate = shown.map(|certificate| sha256(certificate));
                }
                (handler(Request { method, path, body, certificate: certificate.clone() }), last)
            }
            Err((status, why)) => (Box::new(move || problem(status, why, None)) as Later, true),
        };
        pending.push(response);
        if last || pending.len() == PENDING_MAX {
            send(&mut pending, last, &mut stream)?;
        }
        if last {
            return Ok(());
        }
    }
}

/// Takes the first request from what has arrived; `None` if it is not whole.
fn next(arrived: &mut Vec<u8>) -> Result<Option<(Head, Vec<u8>)>, Bad> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let end = match request.parse(arrived) {
        Ok(httparse::Status::Complete(end)) if end <= HEAD_MAX => end,
        Ok(httparse::Status::Partial) if arrived.len() <= HEAD_MAX => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Err((431, "the headers are too long"));
        }
        Err(_) => return Err(NO_REQUEST),
    };
    let head = head(&request)?;
    let whole = end + head.length;
    if arrived.len() < whole {
        return Ok(None);
    }
    let body = arrived[end..whole].to_vec();
    arrived.drain(..whole);
    Ok(Some((head, body)))
}

/// Reads what there is; 0 at the end of the stream.
fn fill(arrived: &mut Vec<u8>, stream: &mut impl Read) -> io::Result<usize> {
    let mut part = [0; 4_096];
    let count = match stream.read(&mut part) {
        // Clients may end a connection without a farewell of TLS.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => 0,
        count => count?,
    };
    arrived.extend_from_slice(&part[..count]);
    Ok(count)
}

/// Why a request is refused: a status, and what is wrong.
type Bad = (u16, &'static str);

/// What the head of a request says.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    method: String,
    path: String,
    /// Of the body, in bytes.
    length: usize,
    /// `connection: close`.
    last: bool,
}

/// What is wrong with most that is none.
const NO_REQUEST: Bad = (400, "not a request of HTTP/1.1");

fn head(request: &httparse::Request) -> Result<Head, Bad> {
    let (Some(method), Some(path), Some(1)) = (request.method, request.path, request.version)
    else {
        return Err(NO_REQUEST);
    };
    let (mut length, mut last) = (None, false);
    for httparse::Header { name, value } in &*request.headers {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err((411, "a body needs content-length"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            let digits = value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let number = number.filter(|_: &usize| digits && length.is_none());
            length = Some(number.ok_or((400, "content-length is invalid"))?);
        }
        if name.eq_ignore_ascii_case("connection") {
            last |= value.eq_ignore_ascii_case(b"close");
        }
    }
    match length.unwrap_or(0) {
        length if length > BODY_MAX => Err((413, "the body is longer than 16384 bytes")),
        length => Ok(Head { method: method.to_owned(), path: path.to_owned(), length, last }),
    }
}

fn write(answers: &mut Vec<u8>, response: &Response, last: bool) {
    let body = response.body.to_string();
    let kind = if response.status < 400 { "application/json" } else { "application/problem+json" };
    let close = if last { "connection: close\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {} -\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n{close}\r\n",
        response.status,
        body.len()
    );
    answers.extend_from_slice(head.as_bytes());
    answers.extend_from_slice(body.as_bytes());
}

/// Sends the answers to all requests that wait; the last of them is that of the connection if `last` is set.
fn send(pending: &mut Vec<Later>, last: bool, stream: &mut impl Write) -> io::Result<()> {
    let mut answers = Vec::new();
    let count = pending.len();
    for (i, response) in pending.drain(..).enumerate() {
        write(&mut answers, &response(), last && i + 1 == count);
    }
    stream.write_all(&answers)?;
    stream.flush()
}

/// An answer that says what is wrong.
pub(crate) fn problem(status: u16, title: impl ToString, field: Option<&str>) -> Response {
    let body = serde_json::json!({ "status": status, "title": title.to_string(), "field": field });
    Response { status, body }
}

/// A stream on which everything has to be done until an instant.
pub(crate) struct Hurried {
    pub(crate) stream: TcpStream,
    pub(crate) until: Instant,
}

impl Hurried {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Hurried {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Hurried {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let read = |text: &str| next(&mut text.as_bytes().to_vec());
        let put = "PUT /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
        let (method, path) = ("PUT".to_owned(), "/v1/x".to_owned());
        let head = Head { method, path, length: 2, last: false };
        assert_eq!(read(put), Ok(Some((head, b"ab".to_vec()))));
        assert!(read("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n").unwrap().unwrap().0.last);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        for (text, status) in [
            ("GET / HTTP/1.0\r\n\r\n", 400),
            ("GET  / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nx\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\ncontent-length:\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\ncontent-length: 1073741824\r\n\r\n", 413),
            ("GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
            (&many, 431),
        ] {
            assert_eq!(read(text).unwrap_err().0, status, "{text}");
        }
    }

    #[test]
    fn requests_that_follow_each_other_are_told_apart() {
        let text = b"PUT /a HTTP/1.1\r\ncontent-length: 4\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        let wanted = [("/a".to_owned(), b"\r\n\r\n".to_vec()), ("/b".to_owned(), Vec::new())];
        for at_a_time in [1, text.len()] {
            let (mut arrived, mut all) = (Vec::new(), Vec::new());
            for part in text.chunks(at_a_time) {
                arrived.extend_from_slice(part);
                while let Some((head, body)) = next(&mut arrived).unwrap() {
                    all.push((head.path, body));
                }
            }
            assert_eq!(all, wanted);
            assert!(arrived.is_empty());
        }
    }

    #[test]
    fn endless_headers_are_refused_and_cut_bodies_waited_for() {
        for endless in [b"x".repeat(HEAD_MAX + 1), b"\r\n".repeat(HEAD_MAX)] {
            assert_eq!(next(&mut endless.clone()).unwrap_err().0, 431);
        }
        let cut = b"GET / HTTP/1.1\r\ncontent-length: 5\r\n\r\nab";
        assert_eq!(next(&mut cut.to_vec()), Ok(None));
    }
}
