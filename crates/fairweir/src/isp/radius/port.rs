//! A UDP port for RADIUS packets: handles those of its clients, and counts all packets by result.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Context;
use fairweir_config::isp::Endpoint;
use fairweir_core::radius::{PACKET_MAX, Refused};
use fairweir_core::units::{Span, Time};
use fairweir_linux::datagram;
use tracing::warn;

/// The most packets that are handled before other events: each may wait for the disk.
const BURST_MAX: usize = 64;
/// The shortest time between two log entries about packets that were refused for the same reason.
const WARN_PERIOD: Span = Span::secs(10);
/// The receive buffer, in bytes, as the kernel counts it: a BNG that restarts reports 50,000
/// sessions at once, and the kernel counts up to 2.3 kB for each packet.
const RECEIVE_BUFFER: usize = 128 << 20;

/// A table of the file, and the kind of packets at its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) table: &'static str,
    pub(super) packet: &'static str,
    /// The possible results of a packet.
    pub(super) results: &'static [&'static str],
}

/// The socket, its clients and counters; see the module.
pub(super) struct Port {
    kind: Kind,
    socket: UdpSocket,
    counts: BTreeMap<&'static str, u64>,
    warned: BTreeMap<&'static str, Time>,
    receive_buffer: usize,
}

impl Port {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the address is not of this host, or in use.
    pub(super) fn bind(kind: Kind, endpoint: &Endpoint) -> anyhow::Result<Port> {
        let listen = endpoint.listen;
        let bind = || {
            let socket = UdpSocket::bind(listen)?;
            socket.set_nonblocking(true)?;
            let receive_buffer = datagram::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
            io::Result::Ok((socket, receive_buffer))
        };
        let (socket, receive_buffer) =
            bind().with_context(|| format!("{}.listen: {listen}", kind.table))?;
        let counts = kind.results.iter().map(|result| (*result, 0)).collect();
        let port = Port { kind, socket, counts, warned: BTreeMap::new(), receive_buffer };
        if let Some(note) = port.buffer_note() {
            warn!("{note}");
        }
        Ok(port)
    }

    pub(super) fn waits_for(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes waiting packets of clients to the caller, up to [`BURST_MAX`].
    pub(super) fn receive(
        &mut self,
        endpoint: &Endpoint,
        now: Time,
        mut handle: impl FnMut(&mut Port, &[u8], SocketAddr),
    ) {
        // One more byte than the limit, to detect longer packets.
        let mut bytes = [0; PACKET_MAX + 1];
        for _ in 0..BURST_MAX {
            let (length, from) = match self.socket.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // An error of an earlier answer, for example because that client does not listen.
                Err(_) => continue,
            };
            let source = from.ip().to_canonical();
            if endpoint.clients.iter().any(|client| client.contains(&source)) {
                handle(self, &bytes[..length], from);
            } else {
                let why = format!("not of [{}] clients", self.kind.table);
                self.count("foreign", from, &why, now);
            }
        }
    }

    /// Sends an answer. If it is lost, the client sends the packet again and gets another answer.
    pub(super) fn answer(&self, answer: &[u8], to: SocketAddr) {
        let _ = self.socket.send_to(answer, to);
    }

    /// Counts a packet by result; logs the reason if it was refused.
    pub(super) fn count(&mut self, result: &'static str, from: SocketAddr, why: &str, now: Time) {
        *self.counts.entry(result).or_default() += 1;
        let is_quiet = self.warned.get(result).is_none_or(|at| now.since(*at) >= WARN_PERIOD);
        if !why.is_empty() && is_quiet {
            self.warned.insert(result, now);
            warn!(%from, "{} {result}: {why}", self.kind.packet);
        }
    }

    /// The number of packets by result, since the start.
    pub(super) fn packets(&self) -> BTreeMap<String, u64> {
        self.counts.iter().map(|(result, n)| ((*result).to_owned(), *n)).collect()
    }

    pub(super) fn dropped(&self) -> u64 {
        datagram::drops(&self.socket).unwrap_or_default()
    }

    pub(super) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Describes a problem with the receive buffer, if there is one.
    pub(super) fn buffer_note(&self) -> Option<String> {
        let (has, wanted) = (self.receive_buffer, RECEIVE_BUFFER);
        (has < wanted).then(|| {
            let half = wanted / 2;
            format!(
                "the receive buffer of [{}] has {has} of {wanted} bytes; packets that arrive at once may be lost: \
                 give the daemon CAP_NET_ADMIN, or set net.core.rmem_max to {half}",
                self.kind.table
            )
        })
    }
}

pub(super) fn result_of(refused: Refused) -> &'static str {
    match refused {
        Refused::Oversized => "oversized",
        Refused::Malformed => "malformed",
        Refused::Forged => "forged",
        Refused::Replayed => "replayed",
        Refused::Untimely => "untimely",
        Refused::Over => "over",
    }
}
