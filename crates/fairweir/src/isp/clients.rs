//! Clients: hosts of subscribers that say by which weights their download is to be divided. See
//! `fairweir_core::agreement`.
//!
//! The socket is there while a plan is for clients, and hears the subscribers' device only. What arrives is
//! read in bounded portions, and nothing is stored of who is no subscriber.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fairweir_core::agreement::cookie::Key;
use fairweir_core::agreement::divider::{Divider, Subscribers};
use fairweir_core::agreement::message::MESSAGE_MAX;
use fairweir_core::agreement::{Classes, PORT};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_linux::police::SubscriberId;
use fairweir_linux::{datagram, random};
use tracing::{info, warn};

use super::kernel::Kernel;
use super::registry::{PlanRecord, Registry};
use super::wire::{ClientClass, ClientStatus, ClientsStatus};

/// The most datagrams that are handled before other events.
const BURST_MAX: usize = 256;
/// The most that are read in a [`PORTION`]; the kernel drops more. A flood takes two microseconds of each.
const PORTION_MAX: usize = 2_000;
/// See [`PORTION_MAX`].
const PORTION: Span = Span::millis(100);

/// See the module.
pub(super) struct Clients {
    socket: Option<UdpSocket>,
    divider: Divider<Arc<str>>,
    /// Whether a plan is for clients.
    is_wanted: bool,
    /// Datagrams of this portion, and when the next one begins.
    portion: (usize, Time),
    error: Option<String>,
}

impl Clients {
    /// Without a socket.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(super) fn new() -> anyhow::Result<Clients> {
        let [high, low, epoch] = [random()?, random()?, random()?];
        let key = Key((u128::from(high) << 64 | u128::from(low)).to_ne_bytes());
        let divider = Divider::new(key, epoch as u32);
        Ok(Clients {
            socket: None,
            divider,
            is_wanted: false,
            portion: (0, Time::ZERO),
            error: None,
        })
    }

    pub(super) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| !self.is_full()).map(AsFd::as_fd)
    }

    fn is_full(&self) -> bool {
        self.portion.0 >= PORTION_MAX
    }

    /// When it reads again, if it has read enough for now.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.is_full().then_some(self.portion.1)
    }

    /// Begins the next portion if it is time.
    pub(super) fn handle_time(&mut self, now: Time) {
        if now >= self.portion.1 {
            self.portion = (0, now + PORTION);
        }
    }

    /// Opens the socket if a plan is for clients, and ends agreements that were not renewed.
    pub(super) fn handle_tick(
        &mut self,
        device: &str,
        registry: &Registry,
        kernel: &mut Kernel,
        now: Time,
    ) {
        self.is_wanted = registry.plans().values().any(|plan| plan.entry.is_for_clients);
        if !self.is_wanted {
            (self.socket, self.error) = (None, None);
        } else if self.socket.is_none() {
            match datagram::listen_at(device, PORT) {
                Ok(socket) => {
                    info!(device, port = PORT, "hosts of subscribers can ask");
                    (self.socket, self.error) = (Some(socket), None);
                }
                Err(e) => {
                    let error = format!("cannot listen at UDP port {PORT} of {device}: {e}");
                    if self.error.as_ref() != Some(&error) {
                        warn!("hosts of subscribers cannot ask: {error}");
                    }
                    self.error = Some(error);
                }
            }
        }
        self.divider.handle_tick(now, &mut Side { registry, kernel });
    }

    /// Answers the datagrams that wait.
    pub(super) fn handle_ready(&mut self, registry: &Registry, kernel: &mut Kernel, now: Time) {
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
            let side = &mut Side { registry, kernel };
            let said = &bytes[..asked.length];
            if let Some(answer) = self.divider.handle_datagram(asked.from, said, now, side) {
                // If it is lost, the client asks again.
                let _ = datagram::answer(socket, &asked, &answer.bytes());
            }
        }
    }

    /// `None` if no plan is for clients.
    pub(super) fn status(&self, now: Time) -> Option<ClientsStatus> {
        self.is_wanted.then(|| ClientsStatus {
            port: PORT,
            agreements: self.divider.live(now),
            error: self.error.clone(),
        })
    }

    /// The agreement with a host of a subscriber.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn of(
        &self,
        name: &str,
        kernel: &Kernel,
        now: Time,
    ) -> anyhow::Result<Option<ClientStatus>> {
        let lease = self.divider.lease(&Arc::from(name)).filter(|lease| lease.is_live(now));
        let (Some(lease), Some(id)) = (lease, kernel.id(name)) else { return Ok(None) };
        let Some(bindings) = kernel.police().bindings(id)? else { return Ok(None) };
        let [counters, _] = kernel.counters_by_class(name)?;
        let class = |(number, weight): (usize, &u16)| {
            let counted = counters.get(number).copied().unwrap_or_default();
            ClientClass {
                weight: *weight,
                passed_bytes: counted.passed.as_u64(),
                dropped_packets: counted.dropped_packets,
            }
        };
        Ok(Some(ClientStatus {
            address: lease.client.to_string(),
            ends_in_s: lease.until.since(now).as_secs_f64(),
            classes: lease.classes.weights().iter().enumerate().map(class).collect(),
            default_class: lease.classes.default().into(),
            bound: bindings.bound,
            refused: bindings.refused,
        }))
    }
}

/// Subscribers, and the kernel that divides for them.
struct Side<'d> {
    registry: &'d Registry,
    kernel: &'d mut Kernel,
}

impl Side<'_> {
    fn plan(&self, name: &str) -> Option<&PlanRecord> {
        self.registry.plans().get(&self.registry.subscribers().get(name)?.plan)
    }

    fn try_to_divide(&mut self, name: &str, classes: &Classes) -> anyhow::Result<bool> {
        let (Some(plan), Some(id)) = (self.plan(name), self.kernel.id(name)) else {
            return Ok(false);
        };
        let [Some(download), _] = plan.entry.compile()? else { return Ok(false) };
        self.kernel.police_mut().divide(id, &download.plan.divided(classes))?;
        Ok(true)
    }

    fn id(&self, name: &str) -> Option<SubscriberId> {
        self.kernel.id(name)
    }
}

impl Subscribers for Side<'_> {
    type Id = Arc<str>;

    fn owner(&self, address: IpAddr) -> Option<Arc<str>> {
        self.registry.owner_of(address.into()).cloned()
    }

    fn offer(&self, name: &Arc<str>) -> Option<Rate> {
        let entry = &self.plan(name)?.entry;
        entry.download.filter(|_| entry.is_for_clients)
    }

    fn divide(&mut self, name: &Arc<str>, classes: &Classes) -> bool {
        self.try_to_divide(name, classes).unwrap_or_else(|e| {
            warn!(subscriber = &**name, "cannot divide as its host asks: {e:#}");
            false
        })
    }

    fn undivide(&mut self, name: &Arc<str>) {
        let Some(id) = self.id(name) else { return };
        if let Err(e) = self.kernel.police_mut().undivide(id) {
            warn!(subscriber = &**name, "cannot end an agreement: {e}");
        }
    }

    fn is_divided(&self, name: &Arc<str>) -> bool {
        self.id(name).is_some_and(|id| self.kernel.police().is_divided(id))
    }

    fn refused(&self, name: &Arc<str>) -> u32 {
        let bindings = self.id(name).and_then(|id| self.kernel.police().bindings(id).ok()?);
        bindings.map_or(0, |bindings| bindings.refused)
    }
}
