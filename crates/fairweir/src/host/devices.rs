//! Devices behind a router whose own fairweir sends the weights by which to divide their share. See
//! `fairweir_core::agreement`.
//!
//! A client is identified by the link-layer address of its neighbour entry, as its traffic is. Its
//! classes become groups beneath its device, which this daemon divides like any others.
//!
//! The same neighbour entries show which devices are present, for clients that ask.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use fairweir_core::agreement::Classes;
use fairweir_core::agreement::device::is_offered;
use fairweir_core::agreement::divider::Subscribers;
use fairweir_core::agreement::message::{Outcome, Seen};
use fairweir_core::packet::Mac;
use fairweir_core::policy::{Match, PATH_SEPARATOR};
use fairweir_core::receiver::{Decision, GroupState};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_linux::network::{self, Neighbour};
use fairweir_linux::police::Bound;
use fairweir_linux::{Mode, Router, link};
use tracing::{info, warn};

use super::divided::DeviceClasses;
use super::point::Point;
use super::settings::Settings;
use super::via::leaves;
use super::wire::{DeviceClientStatus, NeighbourStatus};
use crate::listener::Listener;

/// The greatest age of the table of neighbours that is used.
const NEIGHBOURS_AGE: Span = Span::millis(200);
/// How often the table is read to detect new devices.
const NEIGHBOURS_PERIOD: Span = Span::secs(10);
/// The most devices in a reply.
const NEIGHBOURS_MAX: usize = 1_024;
/// The most hosts that can have an agreement; there are only 16 devices that can.
const CLIENTS_MAX: u32 = 1_024;
/// Agreements end if nothing is enforced for this time. The control may pause for a shorter time to compare.
const REST_MAX: Span = Span::secs(4);

/// The daemon, as needed by this module.
pub(super) trait Home {
    fn settings(&self) -> &Settings;

    /// `None` while the interface is gone.
    fn point(&self) -> Option<&Point>;

    fn decision(&self) -> &Decision;

    /// Whether downloads are shaped now.
    fn enforces(&self) -> bool;

    /// Whether another divides, including by these classes.
    fn is_delegated(&self) -> bool;

    /// Divides the shares of devices by these classes from now on.
    ///
    /// # Errors
    /// If the control or the kernel refuses; nothing has changed then.
    fn divide(&mut self, divided: DeviceClasses, now: Time) -> anyhow::Result<()>;
}

/// The agreements with devices; see the module.
pub(super) struct DeviceControl {
    listener: Listener<String>,
    neighbours: Vec<Neighbour>,
    /// The time since which each device has been among the neighbours.
    since: BTreeMap<Mac, Time>,
    looked_at: Time,
    enforced_at: Time,
}

impl DeviceControl {
    /// # Errors
    /// If the kernel has no random bytes.
    pub(super) fn new() -> anyhow::Result<DeviceControl> {
        let (looked_at, enforced_at) = (Time::ZERO, Time::ZERO);
        Ok(DeviceControl {
            listener: Listener::new(CLIENTS_MAX)?,
            neighbours: Vec::new(),
            since: BTreeMap::new(),
            looked_at,
            enforced_at,
        })
    }

    pub(super) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.listener.waits_for()
    }

    pub(super) fn handle_tick(&mut self, home: &mut dyn Home, now: Time) {
        if home.enforces() || home.is_delegated() {
            self.enforced_at = now;
        }
        if now.since(self.looked_at) >= NEIGHBOURS_PERIOD {
            self.look(home.settings().lans(), now);
        }
        let shapes = home.settings().mode() == Mode::Shape && home.point().is_some();
        let lan = home.settings().lans().first().filter(|_| shapes).cloned();
        self.with_side(home, now, |listener, side| listener.handle_tick(lan.as_deref(), side, now));
    }

    /// Answers the waiting datagrams.
    pub(super) fn handle_ready(&mut self, home: &mut dyn Home, now: Time) {
        if now.since(self.looked_at) >= NEIGHBOURS_AGE {
            self.look(home.settings().lans(), now);
        }
        self.with_side(home, now, |listener, side| listener.handle_ready(side, now));
    }

    fn look(&mut self, lans: &[String], now: Time) {
        self.looked_at = now;
        let indexes: Vec<u32> = lans.iter().filter_map(|lan| link::index(lan)).collect();
        match network::neighbours() {
            Ok(mut all) => {
                all.retain(|n| indexes.contains(&n.device) && n.mac.is_of_device());
                let since = |n: &Neighbour| (n.mac, self.since.get(&n.mac).copied().unwrap_or(now));
                self.since = all.iter().map(since).collect();
                self.neighbours = all;
            }
            Err(e) => warn!("devices that ask are not known: {e}"),
        }
    }

    fn with_side(
        &mut self,
        home: &mut dyn Home,
        now: Time,
        work: impl FnOnce(&mut Listener<String>, &mut Side<'_>),
    ) {
        let enforced_at = self.enforced_at;
        work(
            &mut self.listener,
            &mut Side { home, neighbours: &self.neighbours, enforced_at, now },
        );
    }

    /// The devices that are present, the most recently heard first.
    pub(super) fn neighbours(&mut self, home: &dyn Home, now: Time) -> Vec<NeighbourStatus> {
        self.look(home.settings().lans(), now);
        let device = |n: &Neighbour| {
            let router = home.point().and_then(Point::as_router)?;
            let group = router.device_of(n.device, n.mac, n.address)?;
            let path = &home.settings().policy().groups().get(group)?.name;
            path.split(PATH_SEPARATOR).next().map(str::to_owned)
        };
        let mut all: BTreeMap<Mac, NeighbourStatus> = BTreeMap::new();
        for neighbour in &self.neighbours {
            let since =
                self.since.get(&neighbour.mac).map_or(Span::ZERO, |since| now.since(*since));
            let status = all.entry(neighbour.mac).or_insert_with(|| NeighbourStatus {
                mac: neighbour.mac,
                addresses: Vec::new(),
                device: None,
                dhcp_name: None,
                since_s: since.as_secs_f64() as u64,
                silent_s: u64::MAX,
            });
            status.addresses.push(neighbour.address);
            status.silent_s = status.silent_s.min(neighbour.silent.as_secs_f64() as u64);
            if status.device.is_none() {
                status.device = device(neighbour);
            }
        }
        let mut all: Vec<_> = all.into_values().collect();
        all.iter_mut().for_each(|status| status.addresses.sort());
        all.sort_by_key(|status| (status.silent_s, status.mac));
        all.truncate(NEIGHBOURS_MAX);
        all
    }

    /// The agreements that are in force.
    pub(super) fn status(&self, home: &dyn Home, now: Time) -> Vec<DeviceClientStatus> {
        let of = |(device, classes): (&String, &Classes)| {
            let lease = self.listener.divider().lease(device)?;
            let bindings = bindings(home, device);
            Some(DeviceClientStatus {
                device: device.clone(),
                address: lease.client.ip().to_canonical(),
                classes: classes.weights().len(),
                ends_in_s: lease.until.since(now).as_secs_f64(),
                bound: bindings.as_ref().map_or(0, |bindings| bindings.bound),
                refused: bindings.map_or(0, |bindings| bindings.refused),
            })
        };
        home.settings().divided.0.iter().filter_map(of).collect()
    }
}

/// The devices, and the daemon that divides their shares.
struct Side<'d> {
    home: &'d mut dyn Home,
    neighbours: &'d [Neighbour],
    enforced_at: Time,
    now: Time,
}

impl Side<'_> {
    fn change(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<String, Classes>),
    ) -> anyhow::Result<()> {
        let mut divided = self.home.settings().divided.clone();
        change(&mut divided.0);
        self.home.divide(divided, self.now)
    }

    /// A bit set of the device's classes that would take more than they get.
    fn held(&self, device: &str) -> u16 {
        let Some(classes) = self.home.settings().divided.0.get(device) else { return 0 };
        let decided = &self.home.decision().groups;
        let policy = self.home.settings().policy();
        if !self.home.enforces() || policy.groups().len() != decided.len() {
            return 0;
        }
        let number =
            |rule: &Match| if let Match::Class(number) = rule { Some(*number) } else { None };
        leaves(policy, device)
            .filter(|leaf| decided[*leaf].state == GroupState::Saturating)
            .map(|leaf| policy.groups()[leaf].matches.iter().find_map(number))
            .fold(0, |all, number| all | 1 << number.unwrap_or(classes.default()))
    }
}

impl Subscribers for Side<'_> {
    type Id = String;

    fn owner(&self, address: IpAddr) -> Option<String> {
        let router = self.home.point().and_then(Point::as_router)?;
        let is_it = |neighbour: &&Neighbour| neighbour.address == address;
        let Neighbour { device, mac, .. } = *self.neighbours.iter().find(is_it)?;
        let group = router.device_of(device, mac, address)?;
        let group = self.home.settings().policy().groups().get(group)?;
        group.name.split(PATH_SEPARATOR).next().map(str::to_owned)
    }

    fn offer(&self, device: &String) -> Result<Rate, Outcome> {
        if !is_offered(&self.home.settings().configured.policy, device) {
            return Err(Outcome::NotOffered);
        }
        let divides = self.now.since(self.enforced_at) < REST_MAX;
        // No rate is promised: a device's share depends on the others.
        if divides { Ok(Rate::ZERO) } else { Err(Outcome::NotNow) }
    }

    fn divide(&mut self, device: &String, classes: &Classes) -> bool {
        let others = self.home.settings().divided.0.keys().filter(|other| *other != device).count();
        if others >= Router::CLIENTS_MAX {
            return false;
        }
        let is_new = !self.is_divided(device);
        let done = self.change(|all| {
            all.insert(device.clone(), classes.clone());
        });
        if let Err(e) = &done {
            warn!(device, "cannot divide as it asks: {e:#}");
            return false;
        }
        let has_room = leaves(self.home.settings().policy(), device).nth(1).is_some();
        if has_room && is_new {
            info!(device, classes = classes.weights().len(), "divided as it asks from now on");
        }
        has_room
    }

    fn undivide(&mut self, device: &String) {
        if !self.is_divided(device) {
            return;
        }
        info!(device, "not divided as it asks any more");
        if let Err(e) = self.change(|all| drop(all.remove(device))) {
            warn!(device, "cannot end an agreement: {e:#}");
        }
    }

    fn is_divided(&self, device: &String) -> bool {
        self.home.settings().divided.0.contains_key(device)
    }

    fn seen(&self, device: &String, now: Time) -> Seen {
        let seen = bindings(self.home, device).map_or(Seen::default(), |bound| bound.seen(now));
        Seen { held: self.held(device), ..seen }
    }
}

/// The flows of a device that are bound to classes.
fn bindings(home: &dyn Home, device: &str) -> Option<Bound> {
    let router = home.point().and_then(Point::as_router)?;
    let policy = home.settings().policy();
    let group = leaves(policy, device).find(|leaf| policy.within(*leaf).is_none())?;
    router.bindings(group).ok()?
}
