//! A router whose download is counted by device, and shaped.
//!
//! Packet from the WAN → NAT → egress of the LAN device, where its frame has the device's MAC
//! address: the classifier counts it and stamps its class → class of HTB, the LAN device's root
//! qdisc → the device. Its acknowledgements come back by the ingress of the LAN device, where their
//! receive windows are lowered. What passes between two devices of a bridge, and what the router
//! sends by itself, has no class.
//!
//! Everything that a [`Router`] makes in the kernel it owns, and it is gone when the router drops.
//! When the process is killed its programs go with it, so that no packet has a class any more; the
//! HTB qdisc, which then changes nothing, stays until the next [`crate::sweep`], and what was known of connections for
//! the next router ([`kept`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use fairweir_core::lease;
use fairweir_core::packet::Mac;
use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::sites::{Command, Connection, Heard};
use fairweir_core::units::{Bytes, Span, Time};
use libbpf_rs::MapHandle;

use crate::attached::{Attached, Health, Mode};
use crate::bpf::abi::{
    Bound, DhcpHeard, FEATURE_PREFIX4, FEATURE_PREFIX6, FEATURE_SITES, FEATURE_UPLOAD,
    FEATURE_WINDOWS, Plain, RecentControl, RouterConfig,
};
use crate::bpf::bpf_error;
use crate::bpf::header::{CLIENTS_MAX, FEATURE_CLIENTS, FEATURE_MACS, FEATURE_MARKS, RULE_SLOT};
use crate::classify::cgroup::Tree;
use crate::classify::leaf;
use crate::classify::rules::{self, Rules};
use crate::classify::site::{self, Ear};
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::shape::classes::At;
use crate::shape::htb;
use crate::shape::shaper::Shaper;
use crate::shape::uplink::{Uplink, Upload};
use crate::window::{BoundMaps, Bounds};
use crate::{Error, monotonic_now};

mod conflicts;
mod flows;
pub(crate) mod kept;
mod offload;
pub(crate) mod programs;
pub mod trial;

use flows::{Asked, Flows};
use offload::{OffloadWatch, Reading};
use programs::{Parts, Programs, RECENT_SETS};

/// What to attach to which devices.
#[derive(Clone, Debug)]
pub struct RouterSpec {
    /// The bridge or device of the home.
    pub lan: String,
    /// The device that faces the Internet.
    pub wan: String,
    /// A group for each device of the home.
    pub policy: Policy,
    /// Whether to shape.
    pub mode: Mode,
    /// Whether to count what leaves by the WAN, too, so that it can be shared.
    pub upload: Sharing,
}

/// Whether an upload is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Never.
    Never,
    /// Unless the WAN has a root qdisc of another program, or rules of the routing look at the bits of packet marks
    /// by which devices are told apart.
    IfPossible,
    /// Or the router refuses to start.
    Always,
}

/// A router whose download is counted and shaped.
///
/// Invariant: the root qdisc of the LAN device is this router's HTB while `has_root`.
pub struct Router {
    lan: Link,
    wan: Link,
    shaper: Shaper,
    programs: Programs,
    config: RouterConfig,
    /// Devices that are bound by name, and the names of their groups.
    hosts: BTreeMap<Mac, String>,
    /// What is heard of DHCP.
    ear: Ear,
    /// What is heard of connections, if the programs hear them.
    sites_ear: Option<Ear>,
    has_root: bool,
    sharing: Sharing,
    /// Why the upload is not shared, though it should be if possible.
    unshared: Option<String>,
    /// What arrived at the WAN, and of it what went to the LAN, until the last look.
    total: Bytes,
    to_lan: Bytes,
    unheard: u64,
    /// Classes of the devices with an agreement.
    clients: BTreeSet<u16>,
    /// Whether packets are taken past the programs.
    offload: OffloadWatch,
    conflicts_at: Time,
    flows: Flows,
    /// Whether the connections were asked for since the last samples, which begins an interval.
    has_asked: bool,
}

impl Router {
    /// The most devices that can have classes of their own fairweir ([`fairweir_core::policy::Match::Class`]).
    pub const CLIENTS_MAX: usize = CLIENTS_MAX as usize;

    /// Refuses if other software shapes the download of this router, or takes packets past its programs.
    ///
    /// # Errors
    /// [`Error::Occupied`] or [`Error::Bypassed`] says what was found; or if a device is missing.
    pub fn refuse_if_occupied(lan: &str, wan: &str) -> Result<(), Error> {
        let (mut netlink, lan, wan) = ends(lan, wan)?;
        htb::refuse_if_occupied(&mut netlink, &lan)?;
        conflicts::refuse_if_any(&mut netlink, &lan, &wan)
    }

    /// Counts, and in [`Mode::Shape`] prepares to shape, what goes to the devices of the LAN.
    ///
    /// # Errors
    /// If a device is missing, other software shapes the LAN device or, with [`Sharing::Always`], has a root
    /// qdisc at the WAN, or the kernel lacks a required feature.
    pub fn attach(spec: &RouterSpec) -> Result<Router, Error> {
        let (mut netlink, lan, wan) = ends(&spec.lan, &spec.wan)?;
        if spec.mode == Mode::Shape {
            htb::refuse_if_occupied(&mut netlink, &lan)?;
            conflicts::refuse_if_any(&mut netlink, &lan, &wan)?;
        }
        let unshared = match spec.upload {
            Sharing::IfPossible => conflicts::with_upload(&mut netlink, &wan)?,
            Sharing::Never | Sharing::Always => None,
        };
        let shares = spec.upload != Sharing::Never && unshared.is_none();
        let config = RouterConfig {
            wan: wan.index,
            lan: lan.index,
            lan_header: lan.header_bytes(),
            wan_header: wan.header_bytes(),
            features: if shares { FEATURE_MARKS } else { 0 },
            recent: RecentControl::new(RECENT_SETS)?,
            ..RouterConfig::default()
        };
        let parts = Parts { upload: shares, sites: rules::needs_sites(&spec.policy) };
        let programs = Programs::load(parts)?;
        let counters = shares.then_some(&programs.upload_counters);
        let counters = counters.map(MapHandle::try_from).transpose();
        let counters = counters.map_err(|e| bpf_error("open a map", &e))?;
        let uplink =
            counters.map(|counters| Uplink::new(&mut netlink, &wan, counters)).transpose()?;
        let mut router = Router {
            lan,
            wan,
            shaper: Shaper::new(netlink, &spec.policy, spec.mode == Mode::Shape),
            ear: Ear::new(&programs.dhcp)?,
            sites_ear: parts.sites.then(|| Ear::new(&programs.heard)).transpose()?,
            programs,
            hosts: BTreeMap::new(),
            config,
            has_root: false,
            sharing: spec.upload,
            unshared,
            total: Bytes::ZERO,
            to_lan: Bytes::ZERO,
            unheard: 0,
            clients: BTreeSet::new(),
            offload: OffloadWatch::default(),
            conflicts_at: monotonic_now() + CONFLICTS_PERIOD,
            flows: Flows::default(),
            has_asked: false,
        };
        router.shaper.uplink = uplink;
        router.set_policy(&spec.policy)?;
        router.make_root()?;
        if spec.mode == Mode::Shape
            && let Err(e) = kept::take_over(&router.lan.name, &router.programs, monotonic_now())
        {
            tracing::info!("connections are not known again after a restart: {e}");
        }
        router.attach_programs()?;
        Ok(router)
    }

    /// Whether the programs can do what `policy` asks for; if not, the router has to be attached anew.
    pub fn can_take_over(&self, policy: &Policy) -> bool {
        self.programs.parts().sites || !rules::needs_sites(policy)
    }

    /// Adds these devices, by MAC address, to groups (by index), in place of those that were added before. A
    /// device that the policy lists stays where it is.
    ///
    /// # Errors
    /// If the kernel refuses; then the old ones stay.
    pub fn set_hosts(&mut self, hosts: &[(Mac, usize)]) -> Result<(), Error> {
        let named = |&(mac, group): &(Mac, usize)| {
            self.shaper.policy.groups().get(group).map(|group| (mac, group.name.clone()))
        };
        let new = hosts.iter().filter_map(named).collect();
        let old = std::mem::replace(&mut self.hosts, new);
        let Shaper { policy, slots, .. } = &self.shaper;
        let rules = self.rules_of(policy, slots);
        let default = rules::slot_of(policy, policy.default_group(), slots);
        let clients = self.clients.clone();
        let put = rules.and_then(|rules| self.put_rules(rules, default, clients));
        if put.is_err() {
            self.hosts = old;
        }
        put
    }

    fn attach_programs(&mut self) -> Result<(), Error> {
        self.programs.attach(self.lan.index, self.wan.index)
    }

    /// Passes on the DHCP messages that passed the LAN since the last call, in their order.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_dhcp(&mut self, mut each: impl FnMut(lease::Heard<'_>)) -> Result<(), Error> {
        for record in self.ear.read()? {
            let Some(heard) = DhcpHeard::from_bytes(&record) else { continue };
            let Some(bytes) = heard.bytes.get(..heard.length as usize) else { continue };
            each(lease::Heard {
                is_own: heard.is_own != 0,
                source: Mac(heard.source.bytes),
                bytes,
            });
        }
        Ok(())
    }

    /// What becomes readable when a DHCP message passed.
    pub fn dhcp_fd(&self) -> BorrowedFd<'_> {
        self.ear.fd()
    }

    /// What arrived at the WAN for the router itself, such as its own downloads, since the start, as
    /// of the last [`Attached::take_samples`].
    pub fn own_traffic(&self) -> Bytes {
        self.total.saturating_sub(self.to_lan)
    }

    /// Samples of transit begin anew, and the rules are looked up anew for each known connection.
    fn begin_interval(&mut self) {
        self.config.interval = self.config.interval.wrapping_add(1);
    }

    /// The rules of `policy`, with those of the devices that are bound by name.
    fn rules_of(&self, policy: &Policy, slots: &[u16]) -> Result<Rules, Error> {
        let mut rules = Rules::new(policy, slots, &Tree::default())?;
        for (mac, name) in &self.hosts {
            let group = policy.groups().iter().position(|group| group.name == *name);
            let Some(group) = group else { continue };
            let rule = rules::rule(group, rules::slot_of(policy, group, slots));
            rules.macs.entry(mac.0.to_vec()).or_insert(rule);
        }
        Ok(rules)
    }

    /// Puts `rules` in force, by which the devices of the classes `clients` have an agreement; everything else
    /// has `default_slot`.
    fn put_rules(
        &mut self,
        rules: Rules,
        default_slot: u16,
        clients: BTreeSet<u16>,
    ) -> Result<(), Error> {
        clients.iter().try_for_each(|slot| self.programs.add_client(*slot))?;
        let macs = if rules.macs.is_empty() { 0 } else { FEATURE_MACS };
        let divided = if clients.is_empty() { 0 } else { FEATURE_CLIENTS };
        let features = rules.features(false) & FEATURES_OF_RULES | macs | divided;
        self.shaper.put_rules(rules, |old, new| self.programs.set_rules(old, new))?;
        let before = self.config;
        self.config.features =
            features | self.config.features & (FEATURE_WINDOWS | FEATURE_UPLOAD | FEATURE_MARKS);
        self.config.default_slot = default_slot.into();
        self.begin_interval();
        self.configure().inspect_err(|_| self.config = before)?;
        for gone in std::mem::replace(&mut self.clients, clients).difference(&self.clients) {
            self.programs.delete_client(*gone);
        }
        Ok(())
    }

    /// The group of the device with these addresses, as the programs find it: with an agreement, or groups, the
    /// default group within the device. The default device has none.
    pub fn device_of(&self, mac: Mac, address: IpAddr) -> Option<usize> {
        let rule = self.shaper.rules.device(mac, address)?;
        let slot = (rule & RULE_SLOT) as u16;
        self.shaper.slots.iter().position(|of| *of == slot)
    }

    /// What is bound of the device of this group ([`Router::device_of`]); `None` without an agreement.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bindings(&self, group: usize) -> Result<Option<Bound>, Error> {
        let slot = self.shaper.slots.get(group).filter(|slot| self.clients.contains(slot));
        let bindings = slot.map(|slot| self.programs.client(*slot)).transpose()?;
        Ok(bindings.flatten().map(|bindings| Bound::of(&bindings)))
    }

    /// What is no longer as it was made, in words.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if a device is gone, or if the kernel does not answer.
    fn fault(&mut self) -> Result<Option<String>, Error> {
        let mut look = |device: &Link| {
            let found = link::find_index_with(&mut self.shaper.netlink, device.index)?;
            found.ok_or_else(|| Error::NoDevice(device.name.clone()))
        };
        look(&self.wan)?;
        self.lan.mtu = look(&self.lan)?.mtu;
        let Link { name, index, .. } = &self.lan;
        if !self.programs.are_attached() {
            let wan = &self.wan.name;
            return Ok(Some(format!("the programs were detached from {name} or {wan}")));
        }
        if self.has_root && !htb::is_there(&mut self.shaper.netlink, *index)? {
            return Ok(Some(format!("the HTB qdisc of {name} was deleted or replaced")));
        }
        let now = monotonic_now();
        if self.shaper.uplink.is_some()
            && let Some(what) = self.in_the_way_of_upload(now)?
        {
            if self.sharing == Sharing::Always {
                return Ok(Some(what));
            }
            self.unshare(what)?;
        }
        if self.shaper.shape && (now >= self.conflicts_at || self.offload.verdict().is_some()) {
            self.conflicts_at = now + CONFLICTS_PERIOD;
            return Ok(self.refuse_conflicts().err().map(|e| e.to_string()));
        }
        Ok(None)
    }

    /// What ends the sharing of the upload, in words.
    fn in_the_way_of_upload(&mut self, now: Time) -> Result<Option<String>, Error> {
        match self.shaper.upload_fault(&self.wan)? {
            None if self.sharing == Sharing::IfPossible && now >= self.conflicts_at => {
                conflicts::with_upload(&mut self.shaper.netlink, &self.wan)
            }
            fault => Ok(fault),
        }
    }

    /// No longer shares the upload.
    fn unshare(&mut self, why: String) -> Result<(), Error> {
        self.release_upload()?;
        self.shaper.uplink = None;
        self.config.features &= !FEATURE_MARKS;
        self.unshared = Some(why);
        self.configure()
    }

    /// What is not done, and why, in words.
    pub fn limits(&self) -> Vec<String> {
        self.unshared.iter().map(|why| format!("upload is not shaped: {why}")).collect()
    }

    /// Refuses if packets are taken past the programs, or the download has another shaper.
    fn refuse_conflicts(&mut self) -> Result<(), Error> {
        if let Some(excess) = self.offload.verdict() {
            let wan = &self.wan.name;
            return Err(Error::Bypassed {
                found: format!(
                    "it missed {} of {} that arrived at {wan}, which a hardware offload or another \
                     program takes",
                    excess.missed, excess.arrived
                ),
                remedy: "switch the offload off".to_owned(),
            });
        }
        conflicts::refuse_if_any(&mut self.shaper.netlink, &self.lan, &self.wan)
    }

    /// What the WAN's driver has counted.
    fn wan_received(&mut self) -> Result<Bytes, Error> {
        let wan = link::find_index_with(&mut self.shaper.netlink, self.wan.index)?;
        Ok(Bytes::new(wan.map_or(0, |wan| wan.received)))
    }

    fn make_root(&mut self) -> Result<(), Error> {
        if self.shaper.shape {
            let attempted = format!("make the HTB qdisc of {}", self.lan.name);
            self.shaper.netlink.change(&attempted, htb::root(self.lan.index))?;
            self.has_root = true;
        }
        Ok(())
    }

    fn delete_root(&mut self) -> Result<(), Error> {
        self.shaper.clear();
        let netlink = &mut self.shaper.netlink;
        if !std::mem::take(&mut self.has_root) || !htb::is_there(netlink, self.lan.index)? {
            return Ok(());
        }
        let attempted = format!("delete the HTB qdisc of {}", self.lan.name);
        netlink.change(&attempted, htb::root_deletion(self.lan.index))
    }

    fn set_bounds(&mut self, bounds: Bounds) -> Result<(), Error> {
        let Programs { windows, initial_windows, .. } = &self.programs;
        let maps = BoundMaps { connections: windows, initial: initial_windows };
        self.shaper.bounds.replace(bounds, maps)
    }

    /// Writes the configuration with a heartbeat: the process that writes is alive.
    fn configure(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&RouterConfig { heartbeat_ns, ..self.config })
    }
}

impl Attached for Router {
    /// What the router cannot take over ([`Router::can_take_over`]) matches nothing.
    fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let slots = self.shaper.slots_of(policy);
        let rules = self.rules_of(policy, &slots)?;
        let counters = self.programs.counters()?;
        let default = rules::slot_of(policy, policy.default_group(), &slots);
        self.put_rules(rules, default, rules::clients_of(policy, &slots))?;
        let at = self.has_root.then(|| at(&self.lan));
        self.shaper.take_over(policy, slots, &counters.slots, at);
        Ok(())
    }

    fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        if !std::mem::take(&mut self.has_asked) {
            // In force with the next heartbeat.
            self.begin_interval();
        }
        let before = self.wan_received()?;
        let counters = self.programs.counters()?;
        let after = self.wan_received()?;
        let classifier = Bytes::new(counters.frames.bytes);
        self.offload.handle(Reading { at: monotonic_now(), before, classifier, after });
        self.total = Bytes::new(counters.total.bytes);
        self.unheard = counters.unheard;
        self.to_lan = counters.slots.iter().map(|c| Bytes::new(c.bytes)).sum();
        self.shaper.take_samples(&counters.slots, Some(at(&self.lan)))
    }

    /// Only connections that have opened since the start.
    fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        let asked = Asked {
            interval: self.config.interval,
            slots: &self.shaper.slots,
            bounds: &self.shaper.bounds.connections,
            now: monotonic_now(),
        };
        let samples = self.flows.take(|each| self.programs.each_flow(each), asked)?;
        self.has_asked = true;
        self.begin_interval();
        self.configure()?;
        Ok(samples)
    }

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        let at = self.has_root.then(|| at(&self.lan));
        let applied = self.shaper.apply(at, &self.lan, allocation);
        self.config.enforce = match applied {
            Ok(has_classes) => has_classes.into(),
            Err(e) => {
                self.release()?;
                return Err(e);
            }
        };
        self.configure()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.config.enforce = 0;
        self.configure()
    }

    fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        let written = self.set_bounds(Bounds::of(windows, &self.shaper.slots));
        if written.is_err() {
            self.release_windows()?;
            return written;
        }
        if self.config.features & FEATURE_WINDOWS == 0 {
            self.config.features |= FEATURE_WINDOWS;
            self.configure()?;
        }
        Ok(())
    }

    fn release_windows(&mut self) -> Result<(), Error> {
        if self.config.features & FEATURE_WINDOWS == 0 {
            return Ok(());
        }
        self.config.features &= !FEATURE_WINDOWS;
        self.configure()?;
        self.set_bounds(Bounds::NONE)
    }

    fn is_bounded(&self, id: u64) -> bool {
        self.shaper.bounds.connections.contains_key(&id)
    }

    fn upload(&mut self) -> Option<Upload<'_>> {
        let (programs, config) = (&self.programs, self.config);
        self.shaper.upload(&self.wan, &mut self.config.features, move |features| {
            let heartbeat_ns = monotonic_now().as_nanos();
            programs.configure(&RouterConfig { features, heartbeat_ns, ..config })
        })
    }

    fn take_heard(
        &mut self,
        each: &mut dyn FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error> {
        self.sites_ear.as_ref().map_or(Ok(()), |ear| ear.read_heard(each))
    }

    fn heard_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sites_ear.as_ref().map(Ear::fd)
    }

    fn bind(&mut self, command: &Command) -> Result<(), Error> {
        if !site::bind(&self.programs.bound, leaf::label_rule, command)? {
            return Ok(());
        }
        self.config.recent.forget();
        self.configure()
    }

    fn take_over(
        &mut self,
        connections: &mut dyn Iterator<Item = &Connection>,
    ) -> Result<(), Error> {
        site::take_over(&self.programs.bound, connections)?;
        self.config.recent.forget();
        self.configure()
    }

    fn evidence_of(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error> {
        if self.sites_ear.is_none() {
            return Ok(BTreeMap::new());
        }
        self.programs.evidence(ids)
    }

    fn unheard(&self) -> u64 {
        self.unheard
    }

    fn beat(&mut self) -> Result<(), Error> {
        self.configure()
    }

    fn health(&mut self) -> Health {
        let fault = self.fault();
        let release = || self.release().and(self.release_windows()).and(self.release_upload());
        Health::of(fault, release)
    }

    fn repair(&mut self) -> Result<(), Error> {
        self.release()?;
        self.release_upload()?;
        self.delete_root()?;
        if self.shaper.shape {
            htb::refuse_if_occupied(&mut self.shaper.netlink, &self.lan)?;
            self.refuse_conflicts()?;
        }
        self.make_root()?;
        if self.programs.are_attached() {
            return Ok(());
        }
        self.attach_programs()
    }

    fn detach(&mut self) -> Result<(), Error> {
        let released = self.release_windows().and(self.release()).and(self.release_upload());
        self.programs.detach();
        released.and(self.delete_root())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Err(e) = self.detach() {
            tracing::warn!(error = %e, lan = self.lan.name, "not everything could be given back");
        }
    }
}

/// What depends on the rules, except those by MAC address.
const FEATURES_OF_RULES: u32 = FEATURE_PREFIX4 | FEATURE_PREFIX6 | FEATURE_SITES;
/// Between two searches for other shapers and flowtables.
const CONFLICTS_PERIOD: Span = Span::secs(2);

/// The LAN and the WAN of these names.
fn ends(lan: &str, wan: &str) -> Result<(Netlink, Link, Link), Error> {
    let mut netlink = Netlink::open()?;
    let mut find = |name: &str| {
        link::find_with(&mut netlink, name)?.ok_or_else(|| Error::NoDevice(name.to_owned()))
    };
    let (lan, wan) = (find(lan)?, find(wan)?);
    Ok((netlink, lan, wan))
}

fn at(device: &Link) -> At<'_> {
    At { name: &device.name, index: device.index }
}
