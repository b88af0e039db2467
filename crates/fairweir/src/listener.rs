//! The socket of a divider: hosts that say by which weights their download is to be divided. See
//! `fairweir_core::agreement`.
//!
//! What arrives is read in bounded portions, and nothing is stored of who is not known.

use std::fmt::Debug;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use fairweir_core::agreement::PORT;
use fairweir_core::agreement::cookie::Key;
use fairweir_core::agreement::divider::{Divider, Subscribers};
use fairweir_core::agreement::message::MESSAGE_MAX;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{datagram, random};
use tracing::{info, warn};

/// The most datagrams that are handled before other events.
const BURST_MAX: usize = 256;
/// The most that are read in a [`PORTION`]; the kernel drops more. A flood takes two microseconds of each.
const PORTION_MAX: usize = 2_000;
/// See [`PORTION_MAX`].
const PORTION: Span = Span::millis(100);

/// See the module. `K` names who is known.
pub(crate) struct Listener<K> {
    socket: Option<UdpSocket>,
    divider: Divider<K>,
    /// Datagrams of this portion, and when the next one begins.
    portion: (usize, Time),
    error: Option<String>,
}

impl<K: Ord + Clone + Debug> Listener<K> {
    /// Without a socket.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(crate) fn new() -> anyhow::Result<Listener<K>> {
        let [high, low, epoch] = [random()?, random()?, random()?];
        let key = Key((u128::from(high) << 64 | u128::from(low)).to_ne_bytes());
        let divider = Divider::new(key, epoch as u32);
        Ok(Listener { socket: None, divider, portion: (0, Time::ZERO), error: None })
    }

    pub(crate) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| !self.is_full()).map(AsFd::as_fd)
    }

    fn is_full(&self) -> bool {
        self.portion.0 >= PORTION_MAX
    }

    /// When it reads again, if it has read enough for now.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.is_full().then_some(self.portion.1)
    }

    /// Begins the next portion if it is time.
    pub(crate) fn handle_time(&mut self, now: Time) {
        if now >= self.portion.1 {
            self.portion = (0, now + PORTION);
        }
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
        match datagram::listen_at(device, PORT) {
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
        self.handle_time(now);
        let Some(socket) = &self.socket else { return };
        let mut bytes = [0; MESSAGE_MAX + 1];
        for _ in 0..BURST_MAX {
            if self.portion.0 >= PORTION_MAX {
                return;
            }
            self.portion.0 += 1;
            let asked = match datagram::receive(socket, &mut bytes) {
                Ok(asked) => asked,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // As of a client that does not listen to the answer.
                Err(_) => continue,
            };
            let said = &bytes[..asked.length];
            if let Some(answer) = self.divider.handle_datagram(asked.from, said, now, side) {
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
