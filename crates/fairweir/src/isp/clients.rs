//! Clients: hosts of subscribers that send the weights by which to divide their download. See
//! `fairweir_core::agreement`.
//!
//! The socket exists while a plan is for clients, and listens only at the subscribers' device.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fairweir_core::agreement::divider::Subscribers;
use fairweir_core::agreement::message::{Outcome, Seen};
use fairweir_core::agreement::{Classes, PORT};
use fairweir_core::units::{Rate, Time};
use fairweir_linux::police::SubscriberId;
use tracing::warn;

use super::kernel::Kernel;
use super::registry::{PlanRecord, Registry};
use super::wire::{ClientClass, ClientStatus, ClientsStatus};
use crate::listener::Listener;

/// The most clients that do not count as strangers: more than a daemon has subscribers.
const CLIENTS_MAX: u32 = 1 << 17;

/// See the module.
pub(super) struct Clients {
    listener: Listener<Arc<str>>,
    /// Whether at least one plan is for clients.
    is_wanted: bool,
}

impl Clients {
    /// Starts without a socket.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(super) fn new() -> anyhow::Result<Clients> {
        Ok(Clients { listener: Listener::new(CLIENTS_MAX)?, is_wanted: false })
    }

    pub(super) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.listener.waits_for()
    }

    /// Opens or closes the socket as plans require, and ends agreements that were not renewed.
    pub(super) fn handle_tick(
        &mut self,
        device: &str,
        registry: &Registry,
        kernel: &mut Kernel,
        now: Time,
    ) {
        self.is_wanted = registry.plans().values().any(|plan| plan.entry.is_for_clients);
        let device = Some(device).filter(|_| self.is_wanted);
        self.listener.handle_tick(device, &mut Side { registry, kernel }, now);
    }

    /// Answers the waiting datagrams.
    pub(super) fn handle_ready(&mut self, registry: &Registry, kernel: &mut Kernel, now: Time) {
        self.listener.handle_ready(&mut Side { registry, kernel }, now);
    }

    /// The status of the clients; `None` if no plan is for clients.
    pub(super) fn status(&self, now: Time) -> Option<ClientsStatus> {
        self.is_wanted.then(|| ClientsStatus {
            port: PORT,
            agreements: self.listener.divider().live(now),
            error: self.listener.error().cloned(),
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
        let lease = self.listener.divider().lease(&Arc::from(name));
        let lease = lease.filter(|lease| lease.is_live(now));
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

/// The subscribers, and the kernel part that divides their downloads.
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

    fn offer(&self, name: &Arc<str>) -> Result<Rate, Outcome> {
        let entry = self.plan(name).map(|plan| &plan.entry).filter(|entry| entry.is_for_clients);
        entry.and_then(|entry| entry.download).ok_or(Outcome::NotOffered)
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

    fn seen(&self, name: &Arc<str>, now: Time) -> Seen {
        let seen = self.id(name).and_then(|id| self.kernel.police().seen(id, now));
        seen.unwrap_or_default()
    }
}
