//! The socket of a divider: hosts send the weights by which to divide their download. See `fairweir_core::agreement`.
//!
//! The kernel limits how much strangers and each client can send. Nothing is stored about a host that has not proven
//! its address.

use std::fmt::Debug;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use fairweir_core::agreement::PORT;
use fairweir_core::agreement::cookie::Key;
use fairweir_core::agreement::divider::{Divider, Subscribers};
use fairweir_core::agreement::message::MESSAGE_MAX;
use fairweir_core::units::Time;
use fairweir_linux::admission::Admission;
use fairweir_linux::{datagram, random};
use tracing::{info, warn};

/// The most datagrams that are handled before other events.
const BURST_MAX: usize = 256;
/// In bytes, as the kernel counts them: some 5,000 datagrams.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The socket and its divider; see the module. `K` identifies a known client.
pub(crate) struct Listener<K> {
    clients: u32,
    socket: Option<(UdpSocket, Admission)>,
    divider: Divider<K>,
    error: Option<String>,
}

impl<K: Ord + Clone + Debug> Listener<K> {
    /// Makes a listener without a socket. About `clients` hosts can have agreements and not be strangers.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(crate) fn new(clients: u32) -> anyhow::Result<Listener<K>> {
        let [high, low, epoch] = [random()?, random()?, random()?];
        let key = Key((u128::from(high) << 64 | u128::from(low)).to_ne_bytes());
        let divider = Divider::new(key, epoch as u32);
        Ok(Listener { clients, socket: None, divider, error: None })
    }

    pub(crate) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|(socket, _)| socket.as_fd())
    }

    /// Opens the socket at `device`, or closes it if there is no device; ends agreements that were not renewed.
    pub(crate) fn handle_tick(
        &mut self,
        device: Option<&str>,
        side: &mut impl Subscribers<Id = K>,
        now: Time,
    ) {
        match device {
            None => (self.socket, self.error) = (None, None),
            Some(device) if self.socket.is_none() => self.listen(device),
            Some(_) => {}
        }
        self.divider.handle_tick(now, side);
    }

    fn listen(&mut self, device: &str) {
        match open(device, self.clients) {
            Ok(socket) => {
                info!(device, port = PORT, "hosts can ask");
                (self.socket, self.error) = (Some(socket), None);
            }
            Err(e) => {
                let error = format!("cannot listen at UDP port {PORT} of {device}: {e}");
                if self.error.as_ref() != Some(&error) {
                    warn!("hosts cannot ask: {error}");
                }
                self.error = Some(error);
            }
        }
    }

    /// Answers the waiting datagrams.
    pub(crate) fn handle_ready(&mut self, side: &mut impl Subscribers<Id = K>, now: Time) {
        let Some((socket, admission)) = &self.socket else { return };
        let mut bytes = [0; MESSAGE_MAX + 1];
        for _ in 0..BURST_MAX {
            let asked = match datagram::receive(socket, &mut bytes) {
                Ok(asked) => asked,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // An error of an earlier answer, for example because that client does not listen.
                Err(_) => continue,
            };
            let (said, epoch) = (&bytes[..asked.length], self.divider.epoch());
            let answer = self.divider.handle_datagram(asked.from, said, now, side);
            if self.divider.epoch() != epoch
                && let Err(e) = admission.know(asked.from)
            {
                warn!("a client counts as a stranger: {e}");
            }
            if let Some(answer) = answer {
                // If the answer is lost, the client asks again.
                let _ = datagram::answer(socket, &asked, &answer.bytes());
            }
        }
    }

    /// The current agreements with hosts.
    pub(crate) fn divider(&self) -> &Divider<K> {
        &self.divider
    }

    /// The reason if hosts cannot ask.
    pub(crate) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }
}

fn open(device: &str, clients: u32) -> anyhow::Result<(UdpSocket, Admission)> {
    let socket = datagram::listen_at(device, PORT)?;
    // Room for the renewals that arrive while the daemon does something else.
    datagram::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
    let admission = Admission::bound(&socket, clients)?;
    Ok((socket, admission))
}
