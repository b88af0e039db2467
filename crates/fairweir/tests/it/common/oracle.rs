//! Compares three records: the site of each connection, from the logs of [`Servers`]; the daemon's decision,
//! from its log; and the bytes that arrived, as captured when they left the link of a [`Stage`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairweir_core::packet::Transport;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use socket2::{Domain, Protocol, Socket, Type};

use super::sites::{ADDRESSES, SITES, Servers};
use super::stage::Stage;

/// A connection from the home to the CDN: the protocol, the server's address and the client's port.
type Client = (Transport, IpAddr, u16);

/// Captures the packets that leave the link for the home, from the servers of [`ADDRESSES`].
pub struct Capture {
    ends: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Packet>>,
}

struct Packet {
    at_s: f64,
    client: Client,
    bytes: u64,
}

impl Capture {
    pub fn start(stage: &Stage) -> Capture {
        const ETH_P_ALL: u16 = 3;
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket = stage.at_internet(|| Socket::new(Domain::PACKET, Type::RAW, Some(protocol)));
        let mut socket = socket.unwrap();
        setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let ends = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&ends);
        let reader = thread::spawn(move || {
            let (mut packets, mut buffer) = (Vec::new(), [0; 2_048]);
            while !ended.load(Ordering::Relaxed) {
                let Ok(length) = socket.read(&mut buffer) else { continue };
                packets.extend(client_of(&buffer[..length]).map(|client| Packet {
                    at_s: wall_s(),
                    client,
                    bytes: length as u64,
                }));
            }
            packets
        });
        Capture { ends, reader }
    }

    fn finish(self) -> Vec<Packet> {
        self.ends.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}

/// The client of an IPv4 frame from one of the servers. Devices without an Ethernet header are ignored, because
/// the same packet passed them before.
fn client_of(frame: &[u8]) -> Option<Client> {
    let ip = frame.strip_prefix(frame.get(..12)?)?.strip_prefix(&[8, 0])?;
    let server: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
    let transport = match ip[9] {
        6 => Transport::Tcp,
        17 => Transport::Udp,
        _ => return None,
    };
    let server = IpAddr::from(server);
    let is_ours = ADDRESSES.iter().any(|address| address.parse() == Ok(server));
    let at = usize::from(ip[0] & 15) * 4 + 2;
    let port = u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?);
    is_ours.then_some((transport, server, port))
}

/// A decision of the daemon about a connection: when, for which group, and whether from the extension.
struct Bound {
    at_s: f64,
    group: Option<usize>,
}

/// Parses the lines that `RUST_LOG=fairweir::host::sites=debug` produces.
fn bound(stage: &Stage) -> BTreeMap<Client, Vec<Bound>> {
    let mut all = BTreeMap::<Client, Vec<Bound>>::new();
    for line in fs::read_to_string(stage.path("daemon.log")).unwrap().lines() {
        let Some((head, fields)) = line.split_once("bound a connection ") else { continue };
        let time: jiff::Timestamp = head.split_whitespace().next().unwrap().parse().unwrap();
        let field = |name: &str| {
            let fields = fields.split(' ').filter_map(|field| field.split_once('='));
            fields.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
        };
        let transport = match field("transport").unwrap() {
            "Tcp" => Transport::Tcp,
            _ => Transport::Udp,
        };
        let [local, remote]: [SocketAddr; 2] =
            ["local", "remote"].map(|end| field(end).unwrap().parse().unwrap());
        let group = field("group").unwrap().strip_prefix("Some(");
        let group = group.map(|group| group.trim_end_matches(')').parse().unwrap());
        let bound = Bound { at_s: time.as_microsecond() as f64 * 1e-6, group };
        all.entry((transport, remote.ip(), local.port())).or_default().push(bound);
    }
    all
}

/// How well connections were attributed to sites.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Bytes that arrived while their connection was in its site's group; below: in another site's, in no group.
    pub right: u64,
    pub wrong: u64,
    pub undecided: u64,
    /// Bytes of connections for which the servers have logged no request.
    pub unknown: u64,
    /// Time from each connection's first request until it was in the right group; infinite if it never was.
    pub delays_s: Vec<f64>,
}

impl Judged {
    /// The fractions of the known bytes that were attributed rightly and wrongly.
    pub fn parts(&self) -> (f64, f64) {
        let known = (self.right + self.wrong + self.undecided) as f64;
        (self.right as f64 / known, self.wrong as f64 / known)
    }

    pub fn add(&mut self, other: &Judged) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.undecided += other.undecided;
        self.unknown += other.unknown;
        self.delays_s.extend(&other.delays_s);
    }

    /// The median delay in ms.
    pub fn delay_median_ms(&self) -> f64 {
        let mut delays = self.delays_s.clone();
        delays.sort_by(f64::total_cmp);
        delays[delays.len() / 2] * 1e3
    }
}

/// Compares the daemon's decisions with the servers' logs. Group `i` belongs to site `i`; a request takes
/// `one_way` to reach a server.
///
/// # Panics
/// If a browser has used one connection for both sites.
pub fn judge(stage: &Stage, servers: &Servers, capture: Capture, one_way: Duration) -> Judged {
    let bound = bound(stage);
    let mut truth = BTreeMap::<Client, (usize, f64)>::new();
    for request in servers.requests() {
        let Some(site) = SITES.iter().position(|site| *site == request.site) else { continue };
        let left_s = request.at_s - one_way.as_secs_f64();
        let client = (request.transport, request.server, request.port);
        let known = truth.entry(client).or_insert((site, left_s));
        assert_eq!(known.0, site, "a connection of both sites: {request:?}");
        known.1 = known.1.min(left_s);
    }
    let mut judged = Judged::default();
    for Packet { at_s, client, bytes } in capture.finish() {
        let Some((site, _)) = truth.get(&client) else {
            judged.unknown += bytes;
            continue;
        };
        let last = bound.get(&client).and_then(|all| all.iter().rfind(|bound| bound.at_s <= at_s));
        *match last.and_then(|bound| bound.group) {
            None => &mut judged.undecided,
            Some(group) if group == *site => &mut judged.right,
            Some(_) => &mut judged.wrong,
        } += bytes;
    }
    for (client, (site, first_s)) in &truth {
        let right = bound.get(client).and_then(|all| all.iter().find(|b| b.group == Some(*site)));
        let delay_s = right.map_or(f64::INFINITY, |bound| (bound.at_s - first_s).max(0.0));
        judged.delays_s.push(delay_s);
    }
    judged
}

fn wall_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
