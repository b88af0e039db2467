//! The socket of a divider: hosts that say by which weights their download is to be divided. See
//! `fairweir_core::agreement`.
//!
//! The kernel bounds what strangers and each client may say, and nothing is stored of who has not proven its address.

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

/// See the module. `K` names who is known.
pub(crate) struct Listener<K> {
    clients: u32,
    socket: Option<(UdpSocket, Admission)>,
    divider: Divider<K>,
    error: Option<String>,
}

impl<K: Ord + Clone + Debug> Listener<K> {
    /// Without a socket; about `clients` may have an agreement at a time without counting as strangers.
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

    /// Listens at `device`, or no more, and ends agreements that were not renewed.
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

    /// Answers the datagrams that wait.
    pub(crate) fn handle_ready(&mut self, side: &mut impl Subscribers<Id = K>, now: Time) {
        let Some((socket, admission)) = &self.socket else { return };
        let mut bytes = [0; MESSAGE_MAX + 1];
        for _ in 0..BURST_MAX {
            let asked = match datagram::receive(socket, &mut bytes) {
                Ok(asked) => asked,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // As of a client that does not listen to the answer.
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
                // If it is lost, the client asks again.
                let _ = datagram::answer(socket, &asked, &answer.bytes());
            }
        }
    }

    /// Who divides how.
    pub(crate) fn divider(&self) -> &Divider<K> {
        &self.divider
    }

    /// Why hosts cannot ask.
    pub(crate) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }
}

fn open(device: &str, clients: u32) -> anyhow::Result<(UdpSocket, Admission)> {
    let socket = datagram::listen_at(device, PORT)?;
    let admission = Admission::bound(&socket, clients)?;
    Ok((socket, admission))
}
