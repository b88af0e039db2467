//! One connection: the client's socket, the server's socket, and the data in transit between them.

use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use fairweir_core::host_name::HostName;
use fairweir_core::packet::Mac;
use fairweir_core::recognition;
use fairweir_core::relay::{Alpha, BUFFER_MAX, buffer_target, follow};
use fairweir_core::sites::{FirstBytes, STREAM_MAX, first_bytes};
use fairweir_core::units::{Bytes, Rate, Span, Time};

use crate::lane::{Lane, Pipes};
use crate::socket;

/// Ethernet, IP and TCP headers (with timestamps) of a segment, in bytes: IPv4, IPv6.
const HEADERS: [u64; 2] = [14 + 20 + 32, 14 + 40 + 32];

/// Maximum bytes relayed from a client in one turn, so that other connections get their turn.
const UP_TURN: usize = 256 << 10;

/// Initial receive buffer of a connection with a rate: as large as the kernel's own initial window.
const BUFFER_FIRST: Bytes = Bytes::new(64 << 10);

/// Time to receive the rest of a client's first message before it is relayed without being parsed.
const NAMING_PATIENCE: Span = Span::millis(300);

/// A connection; see the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: TcpStream,
    pub(crate) upstream: TcpStream,
    pub(crate) from: IpAddr,
    pub(crate) mac: Option<Mac>,
    pub(crate) naming: Naming,
    pub(crate) name: Option<HostName>,
    /// What the client's first request says about its program, until the proxy takes it.
    pub(crate) agent: Option<Box<[u8]>>,
    pub(crate) app: Option<usize>,
    pub(crate) class: usize,
    pub(crate) alpha: Alpha,
    /// From the server to the client.
    pub(crate) down: Lane,
    pub(crate) up: Lane,
    /// Payload bytes moved: down, up.
    pub(crate) moved: [u64; 2],
    /// Downloaded payload bytes when the receive buffers were last adapted.
    pub(crate) moved_before: u64,
    /// Whether data moved between the last two adaptations of the receive buffers.
    pub(crate) is_active: bool,
    /// Round-trip time; `None` while unknown.
    pub(crate) rtt: Option<Span>,
    segment: u64,
    buffer: Option<Bytes>,
}

/// How far the client's first bytes have been inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The client has sent nothing.
    Silent,
    /// The client has sent the beginning of a message that may be incomplete.
    Begun,
    /// The first bytes have been inspected.
    Done,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The connection waits for its sockets.
    Waits,
    /// The connection needs another turn.
    Again,
    /// The client's first message is incomplete; inspect it again at this time.
    Names(Time),
    /// Its client has named a server, or has sent other data.
    Named,
    /// Both directions have ended.
    Ended,
    /// A socket is broken.
    Broken,
}

impl Connection {
    pub(crate) fn new(
        client: TcpStream,
        upstream: TcpStream,
        from: IpAddr,
        mac: Option<Mac>,
    ) -> Connection {
        let segment = socket::segment(&upstream);
        Connection {
            client,
            upstream,
            from,
            mac,
            naming: Naming::Silent,
            name: None,
            agent: None,
            app: None,
            class: 0,
            alpha: Alpha::DEFAULT,
            down: Lane::new(),
            up: Lane::new(),
            moved: [0; 2],
            moved_before: 0,
            is_active: false,
            rtt: None,
            segment,
            buffer: None,
        }
    }

    /// Moves the data that need no grant: what the client sends, and parked data that the client had no
    /// room for. Adds the relayed upload to `moved`.
    pub(crate) fn advance(&mut self, pipes: &mut Pipes, scratch: &mut [u8], now: Time) -> Turn {
        if self.naming != Naming::Done {
            let turn = self.look(scratch, now);
            if turn != Turn::Waits {
                return turn;
            }
        }
        let mut left = UP_TURN;
        let both = self.down.flush(&self.client, pipes).and_then(|()| {
            self.up.flush(&self.upstream, pipes)?;
            while self.naming == Naming::Done && self.up.is_ready() && left > 0 {
                let turn = left.min(UP_TURN / 4);
                let taken = self.up.pull(&self.client, &self.upstream, turn, pipes)?;
                self.moved[1] += taken as u64;
                left -= taken;
            }
            Ok(())
        });
        match both {
            Err(_) => Turn::Broken,
            Ok(()) if self.up.is_done() && self.down.is_done() => Turn::Ended,
            Ok(()) if left == 0 => Turn::Again,
            Ok(()) => Turn::Waits,
        }
    }

    /// Inspects the client's first bytes without removing them from its socket.
    fn look(&mut self, scratch: &mut [u8], now: Time) -> Turn {
        if !self.up.can_read {
            return Turn::Waits;
        }
        let read = self.client.peek(&mut scratch[..STREAM_MAX]).unwrap_or(0);
        match first_bytes(&scratch[..read]) {
            // End of stream or an error; the next move detects it.
            FirstBytes::More if read == 0 => {}
            FirstBytes::More if self.naming == Naming::Begun => return Turn::Waits,
            FirstBytes::More => {
                self.naming = Naming::Begun;
                return Turn::Names(now + NAMING_PATIENCE);
            }
            FirstBytes::Unnamed => {}
            FirstBytes::Named(_, name) => self.name = Some(name),
        }
        self.agent = recognition::agent(&scratch[..read]).map(Into::into);
        self.naming = Naming::Done;
        Turn::Named
    }

    /// Reads from the server as much as the grant allows; returns its size on the wire.
    ///
    /// # Errors
    /// If a socket is broken.
    pub(crate) fn serve(&mut self, grant: Bytes, pipes: &mut Pipes) -> std::io::Result<Bytes> {
        let headers = HEADERS[usize::from(self.from.is_ipv6())];
        let payload = grant.as_u64() * self.segment / (self.segment + headers);
        let taken = self.down.pull(&self.upstream, &self.client, payload as usize, pipes)? as u64;
        self.moved[0] += taken;
        Ok(Bytes::new(taken + taken * headers / self.segment))
    }

    /// Adapts the receive buffer to the connection's rate. If the connection no longer has a rate, the
    /// buffer grows to the maximum, since the kernel no longer adapts it.
    pub(crate) fn follow(&mut self, rate: Option<Rate>, set: fn(BorrowedFd<'_>, Bytes)) {
        let target = match (rate, self.rtt, self.buffer) {
            (None, _, None) => return,
            (None, _, Some(_)) => BUFFER_MAX,
            (Some(_), None, _) | (Some(_), _, None) => BUFFER_FIRST,
            (Some(rate), Some(rtt), _) => buffer_target(rate, rtt, Bytes::new(self.segment)),
        };
        if let Some(size) = follow(self.buffer, target) {
            set(self.upstream.as_fd(), size);
            self.buffer = Some(size);
        }
    }

    /// Resets both sockets.
    pub(crate) fn reset(&self) {
        socket::reset(&self.client);
        socket::reset(&self.upstream);
    }
}
