//! HTTP/1.1 over mutual TLS, server and client, with limits on everything.
//!
//! Built on hyper. Only this module is asynchronous: requests are handled on threads that may wait for the
//! database, and a client's calls block until their answer is there.
//!
//! Connections are held in three pools, so that strangers cannot lock gateways out: clients with a certificate of
//! the market; clients from an address from which such a certificate came last; and others. Each pool has
//! [`CONNECTIONS_MAX`] places, of which one certificate or address can take [`OF_CLIENT_MAX`]. If there is no place
//! for a new connection, it replaces the oldest one without a request in progress: one of the same client if that
//! client has its maximum, otherwise one of the network with the most connections. A handshake may take
//! [`HANDSHAKE`] and a connection [`PATIENCE`] in total, so a client that sends nothing, or a byte at a time, holds
//! its place no longer. Within that time it may send any number of requests. A request that is still being handled
//! when its connection has ended keeps the connection's place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::debug;

use crate::sha256;

/// Maximum number of simultaneous connections in a pool.
pub const CONNECTIONS_MAX: usize = 256;

/// Maximum simultaneous connections of one client: a certificate, an IPv4 address, or the /64 of an IPv6 address.
pub const OF_CLIENT_MAX: usize = 16;

/// Maximum number of certificates whose address is remembered.
const KNOWN_MAX: usize = 1 << 16;

/// Time limit of a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(2);

/// Time limit of a connection.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of request line and headers, in bytes; also the size of read and write buffers.
const HEAD_MAX: usize = 8 << 10;

/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 64;

/// Maximum size of a request's body, in bytes.
const BODY_MAX: usize = 16 << 10;

/// Maximum size of an answer, in bytes: enough for 48 statements and prices.
const ANSWER_MAX: usize = 256 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT`, `POST`.
    pub method: String,
    /// The path, with the query if there is one.
    pub path: String,
    /// The body; at most [`BODY_MAX`] bytes.
    pub body: Vec<u8>,
    /// SHA-256 of the client's certificate, if it showed one.
    pub certificate: Option<String>,
}

/// A response.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// JSON; a problem document if the status is 400 or above.
    pub body: Value,
}

/// Answers a request; it may block.
pub type Handler = dyn Fn(Request) -> Response + Send + Sync;

/// A listening server; it stops when dropped.
pub struct Server {
    address: SocketAddr,
    /// `None` only while the server is being dropped.
    runtime: Option<Runtime>,
}

impl Server {
    /// Starts to listen at an address.
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

    /// The address at which the server listens.
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

/// The pool in which a connection is counted.
#[derive(Clone, Copy)]
enum Pool {
    Enrolled,
    Known,
    Others,
}

/// A place that a connection occupies.
struct Held {
    /// The client's certificate or address.
    client: String,
    /// The client's /24 or /48.
    network: IpAddr,
    /// Number of requests in progress.
    busy: Arc<AtomicUsize>,
    /// Aborts the connection's task.
    task: Option<AbortHandle>,
}

/// The pools of connections; see the module.
#[derive(Default)]
struct Door {
    /// The number of the next connection.
    next: u64,
    /// Places by connection number, so the oldest comes first.
    pools: [BTreeMap<u64, Held>; 3],
    /// The last certificate seen from an address; and below, the address of each certificate.
    known: HashMap<IpAddr, String>,
    address_of: HashMap<String, IpAddr>,
}

impl Door {
    /// Takes a place. `None` if there is none, because every replaceable connection has a request in progress.
    fn enter(&mut self, address: IpAddr) -> Option<(u64, Arc<AtomicUsize>)> {
        let client = masked(address, 32, 64);
        let pool = match self.known.contains_key(&client) {
            true => Pool::Known,
            false => Pool::Others,
        };
        let (number, busy) = (self.next, Arc::<AtomicUsize>::default());
        let (network, task) = (masked(address, 24, 48), None);
        let held = Held { client: client.to_string(), network, busy: Arc::clone(&busy), task };
        self.take(pool, number, held)?;
        self.next += 1;
        Some((number, busy))
    }

    /// Moves a connection with a certificate of the market to the enrolled pool. `None` if it must be closed.
    fn enrolled(&mut self, number: u64, address: IpAddr, certificate: &str) -> Option<()> {
        let held = self.leave(number)?;
        self.take(Pool::Enrolled, number, Held { client: certificate.to_owned(), ..held })?;
        let client = masked(address, 32, 64);
        if self.address_of.get(certificate) == Some(&client) {
            return Some(());
        }
        if self.address_of.len() >= KNOWN_MAX {
            (self.known, self.address_of) = Default::default();
        }
        if let Some(before) = self.address_of.insert(certificate.to_owned(), client)
            && self.known.get(&before).is_some_and(|last| last == certificate)
        {
            self.known.remove(&before);
        }
        self.known.insert(client, certificate.to_owned());
        Some(())
    }

    fn take(&mut self, pool: Pool, number: u64, held: Held) -> Option<()> {
        let places = &mut self.pools[pool as usize];
        let is_own = |other: &Held| other.client == held.client;
        let has_most = places.values().filter(|other| is_own(other)).count() >= OF_CLIENT_MAX;
        if has_most || places.len() >= CONNECTIONS_MAX {
            let mut of_network = BTreeMap::<IpAddr, usize>::new();
            places.values().for_each(|other| *of_network.entry(other.network).or_default() += 1);
            let can_go = |(_, other): &(&u64, &Held)| {
                other.busy.load(Ordering::Relaxed) == 0 && (!has_most || is_own(other))
            };
            let goes = places.iter().filter(can_go);
            let goes = goes.max_by_key(|(n, other)| (of_network[&other.network], Reverse(**n)));
            let number = *goes?.0;
            if let Some(task) = places.remove(&number).and_then(|gone| gone.task) {
                task.abort();
            }
        }
        places.insert(number, held);
        Some(())
    }

    fn leave(&mut self, number: u64) -> Option<Held> {
        self.pools.iter_mut().find_map(|places| places.remove(&number))
    }

    fn set_task(&mut self, number: u64, task: AbortHandle) {
        match self.pools.iter_mut().find_map(|places| places.get_mut(&number)) {
            Some(held) => held.task = Some(task),
            // The connection lost its place, or has ended.
            None => task.abort(),
        }
    }
}

/// The address with all bits but the network prefix cleared.
fn masked(address: IpAddr, v4: u32, v6: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & (u32::MAX << (32 - v4))).into(),
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & (u128::MAX << (128 - v6))).into(),
    }
}

/// A connection's place; released when dropped.
struct Slot {
    door: Arc<Mutex<Door>>,
    number: u64,
    address: IpAddr,
    busy: Arc<AtomicUsize>,
}

impl Slot {
    fn take(door: &Arc<Mutex<Door>>, address: IpAddr) -> Option<Slot> {
        let (number, busy) = locked(door).enter(address)?;
        Some(Slot { door: Arc::clone(door), number, address, busy })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        locked(&self.door).leave(self.number);
    }
}

fn locked(door: &Mutex<Door>) -> MutexGuard<'_, Door> {
    door.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request in progress.
struct Work(Arc<Slot>);

impl Work {
    fn begin(slot: Arc<Slot>) -> Work {
        slot.busy.fetch_add(1, Ordering::Relaxed);
        Work(slot)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, handler: Arc<Handler>) {
    let door = Arc::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // No file descriptor is free; retry until one is.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Some(slot) = Slot::take(&door, peer.ip()) else { continue };
        let number = slot.number;
        let serve = serve(stream, tls.clone(), Arc::clone(&handler), Arc::new(slot));
        let task = tokio::spawn(async move {
            if let Err(e) = timeout(PATIENCE, serve).await.unwrap_or_else(|late| Err(late.into())) {
                debug!("a connection ended: {e}");
            }
        });
        locked(&door).set_task(number, task.abort_handle());
    }
}

async fn serve(
    stream: TcpStream,
    tls: TlsAcceptor,
    handler: Arc<Handler>,
    slot: Arc<Slot>,
) -> io::Result<()> {
    // Without this, the end of a short answer waits for an acknowledgement of its beginning.
    stream.set_nodelay(true)?;
    let stream = timeout(HANDSHAKE, tls.accept(stream)).await??;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|certificate| sha256(certificate));
    if let Some(certificate) = &certificate {
        let entered = locked(&slot.door).enrolled(slot.number, slot.address, certificate);
        entered.ok_or_else(|| io::Error::other("no place is free"))?;
    }
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
            let work = Work::begin(slot);
            let handle = move || {
                let _work = work;
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

/// An answer that describes an error.
pub(crate) fn problem(status: u16, title: impl ToString, field: Option<&str>) -> Response {
    let body = serde_json::json!({ "status": status, "title": title.to_string(), "field": field });
    Response { status, body }
}

/// A gateway's connection, which lasts at most [`PATIENCE`].
pub(crate) struct Connection {
    runtime: Runtime,
    requests: client::SendRequest<Full<Bytes>>,
    until: Instant,
}

impl Connection {
    /// Connects to a server whose certificate has `name`.
    ///
    /// # Errors
    /// If the server cannot be reached in time, or has another certificate.
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
            // The connection's task runs whenever the client waits for an answer.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(network: u8, host: u8) -> IpAddr {
        IpAddr::from([10, 0, network, host])
    }

    #[test]
    fn the_oldest_silent_connection_of_the_largest_network_goes() {
        let mut door = Door::default();
        let enter = |door: &mut Door, network, host| door.enter(address(network, host));
        let neighbour = enter(&mut door, 1, 200).unwrap().0;
        let others: Vec<_> = (1..CONNECTIONS_MAX)
            .map(|i| enter(&mut door, 1 + (i % 2) as u8, (i / 2) as u8).unwrap())
            .collect();
        let is_there = |door: &Door, number| door.pools.iter().any(|p| p.contains_key(&number));
        // Both networks have equally many connections; the neighbour's is the oldest, but has a request in progress.
        door.pools[Pool::Others as usize][&neighbour].busy.store(1, Ordering::Relaxed);
        enter(&mut door, 9, 1).unwrap();
        assert!(is_there(&door, neighbour) && !is_there(&door, others[0].0));
        // Network 1 now has one more than the other.
        enter(&mut door, 9, 2).unwrap();
        assert!(!is_there(&door, others[1].0) && is_there(&door, others[2].0));
        // A client that has its maximum replaces one of its own connections.
        let own: Vec<_> = (0..=OF_CLIENT_MAX).map(|_| enter(&mut door, 7, 7).unwrap().0).collect();
        assert!(!is_there(&door, own[0]) && is_there(&door, own[1]));
        assert_eq!(door.pools[Pool::Others as usize].len(), CONNECTIONS_MAX);
        // If all connections have requests in progress, there is no place.
        door.pools.iter().flatten().for_each(|(_, held)| held.busy.store(1, Ordering::Relaxed));
        assert!(enter(&mut door, 7, 8).is_none());
        // An enrolled gateway has its own pool, and so has its address.
        door.pools.iter().flatten().for_each(|(_, held)| held.busy.store(0, Ordering::Relaxed));
        let gateway = enter(&mut door, 1, 77).unwrap().0;
        door.enrolled(gateway, address(1, 77), "a").unwrap();
        let next = enter(&mut door, 1, 77).unwrap().0;
        assert!(door.pools[Pool::Enrolled as usize].contains_key(&gateway));
        assert!(door.pools[Pool::Known as usize].contains_key(&next));
        // The gateway moves: clients at its old address count as strangers again.
        door.enrolled(next, address(3, 3), "a").unwrap();
        assert_eq!(door.known.len(), 1);
        assert!(door.known.contains_key(&address(3, 3)));
        assert!(door.leave(next).is_some() && door.leave(next).is_none());
    }

    #[test]
    fn networks_of_addresses_are_those_of_ipv4_where_ipv6_has_one() {
        let text = |address: &str, v4, v6| masked(address.parse().unwrap(), v4, v6).to_string();
        assert_eq!(text("::ffff:192.0.2.77", 24, 48), "192.0.2.0");
        assert_eq!(text("192.0.2.77", 32, 64), "192.0.2.77");
        assert_eq!(text("2001:db8:1:2:3::4", 32, 64), "2001:db8:1:2::");
        assert_eq!(text("2001:db8:1:2:3::4", 24, 48), "2001:db8:1::");
    }
}
