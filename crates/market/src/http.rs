//! HTTP/1.1 over mutual TLS, both ends of it, bounded in every direction.
//!
//! By hyper. This module alone is asynchronous: requests are handled on threads that may wait for the
//! database, and a client's calls return when their answer is there.
//!
//! The server has at most [`CONNECTIONS_MAX`] connections at a time, a quarter of them from one address; one
//! more is closed at once. A connection has [`PATIENCE`] for everything, the handshake included, so a client
//! that sends nothing, or a byte at a time, holds it no longer. Within that time it may send any number of
//! requests. A request that is still handled when its connection has ended counts as that connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1 as client;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::debug;

use crate::sha256;

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 256;

/// Connections of one client at a time: an IPv4 address, or the /64 of an IPv6 address.
pub const OF_CLIENT_MAX: usize = CONNECTIONS_MAX / 4;

/// How long a connection may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Request line and headers, in bytes; also what is read or written ahead.
const HEAD_MAX: usize = 8 << 10;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// A request's body, in bytes.
const BODY_MAX: usize = 16 << 10;

/// The longest answer, in bytes: 48 statements and prices.
const ANSWER_MAX: usize = 256 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT`, `POST`.
    pub method: String,
    /// With the query, if there is one.
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

/// Answers a request; it may wait.
pub type Handler = dyn Fn(Request) -> Response + Send + Sync;

/// A listening server; it ends when this drops.
pub struct Server {
    address: SocketAddr,
    /// Until it drops.
    runtime: Option<Runtime>,
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
        let runtime = Builder::new_multi_thread()
            .thread_name("market-http")
            .max_blocking_threads(CONNECTIONS_MAX)
            .enable_io()
            .enable_time()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        runtime.spawn(accept(listener, TlsAcceptor::from(tls), handler));
        Ok(Server { address, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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

async fn accept(listener: TcpListener, tls: TlsAcceptor, handler: Arc<Handler>) {
    let open = Open::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // No file descriptor is free; one will be.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Some(slot) = Slot::take(&open, peer.ip()) else { continue };
        let serve = serve(stream, tls.clone(), Arc::clone(&handler), Arc::new(slot));
        tokio::spawn(async move {
            if let Err(e) = timeout(PATIENCE, serve).await.unwrap_or_else(|late| Err(late.into())) {
                debug!("a connection ended: {e}");
            }
        });
    }
}

async fn serve(
    stream: TcpStream,
    tls: TlsAcceptor,
    handler: Arc<Handler>,
    slot: Arc<Slot>,
) -> io::Result<()> {
    // Else the end of a short answer waits for an acknowledgement of its beginning.
    stream.set_nodelay(true)?;
    let stream = tls.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|certificate| sha256(certificate));
    let answer = service_fn(|request| {
        answer(request, certificate.clone(), Arc::clone(&handler), Arc::clone(&slot))
    });
    let mut http = server::Builder::new();
    http.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX);
    http.serve_connection(TokioIo::new(stream), answer).await.map_err(io::Error::other)
}

async fn answer(
    request: hyper::Request<Incoming>,
    certificate: Option<String>,
    handler: Arc<Handler>,
    slot: Arc<Slot>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let Response { status, body } = match read(request, certificate).await {
        Ok(request) => {
            let handle = move || {
                let _slot = slot;
                handler(request)
            };
            spawn_blocking(handle).await.unwrap_or_else(|e| problem(500, e, None))
        }
        Err(refused) => refused,
    };
    let kind = if status < 400 { "application/json" } else { "application/problem+json" };
    let mut response = hyper::Response::new(Full::from(body.to_string()));
    *response.status_mut() =
        hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

async fn read(
    request: hyper::Request<Incoming>,
    certificate: Option<String>,
) -> Result<Request, Response> {
    let (head, body) = request.into_parts();
    let too_long = || problem(413, format!("the body is longer than {BODY_MAX} bytes"), None);
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(too_long());
    }
    let body = Limited::new(body, BODY_MAX).collect().await;
    let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
        true => too_long(),
        false => problem(400, e, None),
    })?;
    Ok(Request {
        method: head.method.to_string(),
        path: head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        body: body.to_bytes().to_vec(),
        certificate,
    })
}

/// An answer that says what is wrong.
pub(crate) fn problem(status: u16, title: impl ToString, field: Option<&str>) -> Response {
    let body = serde_json::json!({ "status": status, "title": title.to_string(), "field": field });
    Response { status, body }
}

/// A gateway's connection, for [`PATIENCE`].
pub(crate) struct Connection {
    runtime: Runtime,
    requests: client::SendRequest<Full<Bytes>>,
    until: Instant,
}

impl Connection {
    /// Connects to a server whose certificate has `name`.
    ///
    /// # Errors
    /// If the server is not reached in time, or is not the one.
    pub(crate) fn open(
        address: SocketAddr,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
    ) -> io::Result<Connection> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let until = Instant::now() + PATIENCE;
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = TlsConnector::from(tls).connect(name, stream).await?;
            let handshake = client::handshake(TokioIo::new(stream)).await;
            let (requests, connection) = handshake.map_err(io::Error::other)?;
            // It runs while an answer is waited for.
            tokio::spawn(connection);
            io::Result::Ok(requests)
        };
        let requests = runtime.block_on(async { timeout_at(until, connect).await? })?;
        Ok(Connection { runtime, requests, until })
    }

    /// Sends a request; returns the status and the body of the answer.
    ///
    /// # Errors
    /// If there is no whole answer in time.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: String,
    ) -> io::Result<(u16, Bytes)> {
        let request = hyper::Request::builder().method(method).uri(path).header(HOST, "market");
        let request = request.body(Full::from(body)).map_err(io::Error::other)?;
        let requests = &mut self.requests;
        let ask = async {
            requests.ready().await.map_err(io::Error::other)?;
            let answer = requests.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
            io::Result::Ok((status, body.map_err(io::Error::other)?.to_bytes()))
        };
        let until = self.until;
        self.runtime.block_on(async { timeout_at(until, ask).await? })
    }
}
