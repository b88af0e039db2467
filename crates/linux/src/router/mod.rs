//! A router whose download is counted by device, and shaped.
//!
//! A packet from the WAN → NAT → egress of the LAN device, where its frame has the device's MAC
//! address: the classifier counts it and sets its class → HTB class, in the LAN device's root qdisc
//! → the device. The device's acknowledgements come back by the ingress of the LAN device, where
//! their receive windows are lowered. Packets between two devices of a bridge, and packets of the
//! router itself, have no class.
//!
//! A [`Router`] owns everything that it creates in the kernel, and removes it when it drops. If the
//! process is killed, its programs are removed with it, so that no packet has a class any more. The
//! HTB qdisc, which then has no effect, stays until the next [`crate::sweep`]; the state of
//! connections is kept for the next router ([`kept`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use fairweir_core::lease;
use fairweir_core::packet::Mac;
use fairweir_core::policy::{LANS_MAX, Policy, WANS_MAX};
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::sites::{Command, Connection, Heard};
use fairweir_core::units::{Bytes, Span, Time};
use libbpf_rs::MapHandle;

use crate::attached::{Attached, Health, Mode};
use crate::bpf::abi::{
    Bound, DhcpHeard, FEATURE_PREFIX4, FEATURE_PREFIX6, FEATURE_SITES, FEATURE_UPLOAD,
    FEATURE_WINDOWS, Lan, Plain, RecentControl, RouterConfig,
};
use crate::bpf::bpf_error;
use crate::bpf::header::{
    self, CLIENTS_MAX, FEATURE_CLIENTS, FEATURE_LANS, FEATURE_MACS, FEATURE_MARKS, RULE_SLOT,
};
use crate::classify::cgroup::Tree;
use crate::classify::leaf;
use crate::classify::rules::{self, Rules};
use crate::classify::site::{self, Ear};
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::shape::classes::At;
use crate::shape::shaper::Shaper;
use crate::shape::uplink::{Uplink, Upload};
use crate::shape::{htb, ifb};
use crate::window::{BoundMaps, Bounds};
use crate::{Error, monotonic_now};

mod conflicts;
mod ends;
mod flows;
pub(crate) mod kept;
mod offload;
pub(crate) mod programs;
pub mod trial;

pub use ends::link_devices;
use ends::{Ends, OtherLinks};
use flows::{Asked, Flows};
use offload::{OffloadWatch, Reading};
use programs::{Parts, Programs, RECENT_SETS};

/// The devices to attach to, and the policy and features to use.
#[derive(Clone, Debug)]
pub struct RouterSpec {
    /// The bridges or devices of the home; some may be missing.
    pub lans: Vec<String>,
    /// The devices that face the Internet: the link's, tunnels through it, and backup links. Some
    /// may be missing.
    pub wans: Vec<String>,
    /// A group for each device of the home.
    pub policy: Policy,
    /// Whether to shape.
    pub mode: Mode,
    /// Whether to count and share what leaves by the WAN, too.
    pub upload: Sharing,
    /// Whether marking of what leaves is possible: see [`Attached::set_marks`].
    pub marks: bool,
}

/// Whether an upload is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Never.
    Never,
    /// Share, unless the WAN has a root qdisc of another program, or routing rules use the bits of
    /// packet marks that identify devices.
    IfPossible,
    /// Share; if that is impossible, the router refuses to start.
    Always,
}

/// A router whose download is counted and shaped.
///
/// Invariant: the root qdisc of each LAN device is this router's HTB while `has_root`.
pub struct Router {
    lans: Vec<String>,
    wans: Vec<String>,
    ends: Ends,
    other_links: OtherLinks,
    shaper: Shaper,
    programs: Programs,
    config: RouterConfig,
    /// Devices that are bound by name, and the names of their groups.
    hosts: BTreeMap<Mac, String>,
    /// The reader of DHCP messages.
    ear: Ear,
    /// The reader of beginnings of connections, if the programs hear them.
    sites_ear: Option<Ear>,
    has_root: bool,
    sharing: Sharing,
    /// Why the upload is not shared, though it should be if possible.
    unshared: Option<String>,
    /// Bytes that arrived at the WAN, and the part of them that went to the LAN, at the last check.
    total: Bytes,
    to_lan: Bytes,
    unheard: u64,
    /// Classes of the devices with an agreement.
    clients: BTreeSet<u16>,
    /// Whether packets bypass the programs.
    offload: OffloadWatch,
    conflicts_at: Time,
    flows: Flows,
    /// Whether connections were asked for since the last samples, which begin an interval.
    has_asked: bool,
}

impl Router {
    /// The maximum number of devices whose own fairweir chooses classes ([`fairweir_core::policy::Match::Class`]).
    pub const CLIENTS_MAX: usize = CLIENTS_MAX as usize;

    /// Refuses if other software shapes the download of this router, or makes packets bypass its programs.
    ///
    /// # Errors
    /// [`Error::Occupied`] or [`Error::Bypassed`] says what was found; or if a device is missing.
    pub fn refuse_if_occupied(lans: &[String], wans: &[String]) -> Result<(), Error> {
        let mut netlink = Netlink::open()?;
        let ends = Ends::find(&mut netlink, lans, wans)?;
        refuse_if_occupied(&mut netlink, &ends)?;
        conflicts::refuse_if_any(&mut netlink, &ends.lans, &ends.carrier)
    }

    /// Refuses if the Internet is reached by other interfaces, or if no interface exists.
    ///
    /// # Errors
    /// [`Error::Elsewhere`] names the right ones.
    pub fn refuse_if_elsewhere(lans: &[String], wans: &[String]) -> Result<(), Error> {
        Ends::find(&mut Netlink::open()?, lans, wans).map(drop)
    }

    /// The device of the link, by which the Internet is reached now.
    pub fn carrier(&self) -> &str {
        &self.ends.carrier.name
    }

    /// Counts, and in [`Mode::Shape`] prepares to shape, packets to the devices of the LAN.
    ///
    /// # Errors
    /// If all devices of a side are missing, the Internet is reached by others, other software shapes a LAN device or,
    /// with [`Sharing::Always`], has a root qdisc at the WAN, or the kernel lacks a required feature.
    pub fn attach(spec: &RouterSpec) -> Result<Router, Error> {
        let mut netlink = Netlink::open()?;
        let ends = Ends::find(&mut netlink, &spec.lans, &spec.wans)?;
        if spec.mode == Mode::Shape {
            refuse_if_occupied(&mut netlink, &ends)?;
            conflicts::refuse_if_any(&mut netlink, &ends.lans, &ends.carrier)?;
        }
        let unshared = match spec.upload {
            Sharing::IfPossible => conflicts::with_upload(&mut netlink, &ends.carrier)?,
            Sharing::Never | Sharing::Always => None,
        };
        let shares = spec.upload != Sharing::Never && unshared.is_none();
        let mut config = RouterConfig {
            lan_header: ends.lans[0].header_bytes(),
            wan_header: ends.carrier.header_bytes(),
            features: if shares { FEATURE_MARKS } else { 0 },
            recent: RecentControl::new(RECENT_SETS)?,
            ..RouterConfig::default()
        };
        for (place, link) in config.lans.iter_mut().zip(&ends.lans) {
            *place = Lan { index: link.index, rule: 0 };
        }
        for (place, link) in
            config.wans.iter_mut().zip([&ends.carrier].into_iter().chain(&ends.tunnels))
        {
            *place = link.index;
        }
        let parts =
            Parts { upload: shares, sites: rules::needs_sites(&spec.policy), marks: spec.marks };
        let programs = Programs::load(parts)?;
        let counters = shares.then_some(&programs.upload_counters);
        let counters = counters.map(MapHandle::try_from).transpose();
        let counters = counters.map_err(|e| bpf_error("open a map", &e))?;
        let uplink = counters
            .map(|counters| Uplink::new(&mut netlink, &ends.carrier, counters))
            .transpose()?;
        let mut router = Router {
            lans: spec.lans.clone(),
            wans: spec.wans.clone(),
            ends,
            other_links: OtherLinks::default(),
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
            && let Err(e) = kept::take_over(&spec.lans[0], &router.programs, monotonic_now())
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

    /// Adds these devices, by MAC address, to groups (by index), in place of those that were added
    /// before. A device that the policy lists keeps its group.
    ///
    /// # Errors
    /// If the kernel refuses; then the previous devices stay.
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
        self.programs.attach(&self.lan_indexes(), self.ends.carrier.index)
    }

    fn lan_indexes(&self) -> Vec<u32> {
        self.ends.lans.iter().map(|lan| lan.index).collect()
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

    /// A descriptor that becomes readable when a DHCP message passed.
    pub fn dhcp_fd(&self) -> BorrowedFd<'_> {
        self.ear.fd()
    }

    /// Bytes that arrived at the WAN for the router itself, such as its own downloads, since the
    /// start, as of the last [`Attached::take_samples`].
    pub fn own_traffic(&self) -> Bytes {
        self.total.saturating_sub(self.to_lan)
    }

    /// Restarts the samples of transit times; the rules are evaluated anew for each known connection.
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

    /// Puts `rules` in force. The devices of the classes `clients` have an agreement; packets that
    /// match no rule get `default_slot`.
    fn put_rules(
        &mut self,
        rules: Rules,
        default_slot: u16,
        clients: BTreeSet<u16>,
    ) -> Result<(), Error> {
        clients.iter().try_for_each(|slot| self.programs.add_client(*slot))?;
        let macs = if rules.macs.is_empty() { 0 } else { FEATURE_MACS };
        let divided = if clients.is_empty() { 0 } else { FEATURE_CLIENTS };
        let lans = if rules.lans.is_empty() { 0 } else { FEATURE_LANS };
        let features = rules.features(false) & FEATURES_OF_RULES | macs | divided | lans;
        self.shaper.put_rules(rules, |old, new| self.programs.set_rules(old, new))?;
        let before = self.config;
        for (place, link) in self.config.lans.iter_mut().zip(&self.ends.lans) {
            place.rule = self.shaper.rules.lans.get(&link.name).copied().unwrap_or(0);
        }
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

    /// The group of the device with these addresses behind the interface number `lan`, as the programs find it. For a
    /// device with an agreement or groups it is the default group within the device. The default device has none.
    pub fn device_of(&self, lan: u32, mac: Mac, address: IpAddr) -> Option<usize> {
        let lan = self.ends.lans.iter().find(|link| link.index == lan)?;
        let rule = self.shaper.rules.device(&lan.name, mac, address)?;
        let slot = (rule & RULE_SLOT) as u16;
        self.shaper.slots.iter().position(|of| *of == slot)
    }

    /// The bindings of the device of this group ([`Router::device_of`]); `None` without an agreement.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bindings(&self, group: usize) -> Result<Option<Bound>, Error> {
        let slot = self.shaper.slots.get(group).filter(|slot| self.clients.contains(slot));
        let bindings = slot.map(|slot| self.programs.client(*slot)).transpose()?;
        Ok(bindings.flatten().map(|bindings| Bound::of(&bindings)))
    }

    /// The fault, in words; `None` if everything is as it was created.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if a device is gone, or if the kernel does not answer.
    fn fault(&mut self) -> Result<Option<String>, Error> {
        let netlink = &mut self.shaper.netlink;
        for device in self.ends.lans.iter_mut().chain([&mut self.ends.carrier]) {
            let found = link::find_index_with(netlink, device.index)?;
            device.mtu = found.ok_or_else(|| Error::NoDevice(device.name.clone()))?.mtu;
        }
        if !self.programs.are_attached() {
            let names: Vec<&str> = self.ends.attached().map(|link| link.name.as_str()).collect();
            return Ok(Some(format!("the programs were detached from {}", names.join(" or "))));
        }
        for Link { name, index, .. } in self.ends.lans.iter().filter(|_| self.has_root) {
            if !htb::is_there(netlink, *index)? {
                return Ok(Some(format!("the HTB qdisc of {name} was deleted or replaced")));
            }
        }
        let now = monotonic_now();
        let is_due = now >= self.conflicts_at;
        if is_due {
            self.conflicts_at = now + CONFLICTS_PERIOD;
            self.look_for_changes()?;
        }
        if self.shaper.uplink.is_some()
            && let Some(what) = self.in_the_way_of_upload(is_due)?
        {
            if self.sharing == Sharing::Always {
                return Ok(Some(what));
            }
            self.unshare(what)?;
        }
        if self.shaper.shape && (is_due || self.offload.verdict().is_some()) {
            return Ok(self.refuse_conflicts().err().map(|e| e.to_string()));
        }
        Ok(None)
    }

    /// Checks whether interfaces have come, gone or changed roles, if there are several.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if this router has to be attached anew.
    fn look_for_changes(&mut self) -> Result<(), Error> {
        if self.lans.len() + self.wans.len() == 2 {
            return Ok(());
        }
        match Ends::find(&mut self.shaper.netlink, &self.lans, &self.wans) {
            Ok(now) if !now.are(&self.ends) => Err(Error::NoDevice(now.carrier.name)),
            Ok(now) => {
                self.other_links.handle(&self.ends, &now);
                self.ends = now;
                Ok(())
            }
            // No route at the moment, or a route of another program: the interfaces stay.
            Err(Error::Elsewhere { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Why the upload can no longer be shared, in words.
    fn in_the_way_of_upload(&mut self, is_due: bool) -> Result<Option<String>, Error> {
        match self.shaper.upload_fault(&self.ends.carrier)? {
            None if self.sharing == Sharing::IfPossible && is_due => {
                conflicts::with_upload(&mut self.shaper.netlink, &self.ends.carrier)
            }
            fault => Ok(fault),
        }
    }

    /// Stops sharing the upload.
    fn unshare(&mut self, why: String) -> Result<(), Error> {
        self.release_upload()?;
        self.shaper.uplink = None;
        self.config.features &= !FEATURE_MARKS;
        self.unshared = Some(why);
        self.configure()
    }

    /// What is not done, and why, in words.
    pub fn limits(&self) -> Vec<String> {
        let unshared = self.unshared.iter().map(|why| format!("upload is not shaped: {why}"));
        unshared.chain(self.other_links.limit(&self.ends)).collect()
    }

    /// Refuses if packets bypass the programs, or the download has another shaper.
    fn refuse_conflicts(&mut self) -> Result<(), Error> {
        if let Some(excess) = self.offload.verdict() {
            let wan = &self.ends.carrier.name;
            return Err(Error::Bypassed {
                found: format!(
                    "it missed {} of {} that arrived at {wan}, which a hardware offload or another \
                     program takes",
                    excess.missed, excess.arrived
                ),
                remedy: "switch the offload off".to_owned(),
            });
        }
        conflicts::refuse_if_any(&mut self.shaper.netlink, &self.ends.lans, &self.ends.carrier)
    }

    /// The received bytes that the WAN's driver has counted.
    fn wan_received(&mut self) -> Result<Bytes, Error> {
        let wan = link::find_index_with(&mut self.shaper.netlink, self.ends.carrier.index)?;
        Ok(Bytes::new(wan.map_or(0, |wan| wan.received)))
    }

    fn make_root(&mut self) -> Result<(), Error> {
        for lan in self.ends.lans.iter().filter(|_| self.shaper.shape) {
            let attempted = format!("make the HTB qdisc of {}", lan.name);
            self.shaper.netlink.change(&attempted, htb::root(lan.index))?;
            self.has_root = true;
        }
        Ok(())
    }

    fn delete_root(&mut self) -> Result<(), Error> {
        self.shaper.clear();
        let netlink = &mut self.shaper.netlink;
        let had_root = std::mem::take(&mut self.has_root);
        let mut deleted = Ok(());
        for lan in self.ends.lans.iter().filter(|_| had_root) {
            if htb::is_there(netlink, lan.index)? {
                let attempted = format!("delete the HTB qdisc of {}", lan.name);
                deleted = deleted.and(netlink.change(&attempted, htb::root_deletion(lan.index)));
            }
        }
        deleted
    }

    fn set_bounds(&mut self, bounds: Bounds) -> Result<(), Error> {
        let Programs { windows, initial_windows, .. } = &self.programs;
        let maps = BoundMaps { connections: windows, initial: initial_windows };
        self.shaper.bounds.replace(bounds, maps)
    }

    /// Writes the configuration with a heartbeat, which shows that this process is alive.
    fn configure(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&RouterConfig { heartbeat_ns, ..self.config })
    }
}

impl Attached for Router {
    /// A part of the policy that the router cannot take over ([`Router::can_take_over`]) matches nothing.
    fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let slots = self.shaper.slots_of(policy);
        let rules = self.rules_of(policy, &slots)?;
        let counters = self.programs.counters()?;
        self.programs.forget_marks()?;
        let default = rules::slot_of(policy, policy.default_group(), &slots);
        self.put_rules(rules, default, rules::clients_of(policy, &slots))?;
        let places: Vec<_> = self.ends.lans.iter().filter(|_| self.has_root).map(at).collect();
        self.shaper.take_over(policy, slots, &counters.slots, &places);
        Ok(())
    }

    fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        if !std::mem::take(&mut self.has_asked) {
            // It is in force with the next heartbeat.
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
        let places: Vec<_> = self.ends.lans.iter().map(at).collect();
        self.shaper.take_samples(&counters.slots, &places)
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

    fn set_marks(&mut self, of_groups: Option<&[u8]>) -> Result<(), Error> {
        let marks = of_groups.map(|of_groups| self.shaper.marks_of(of_groups));
        self.programs.set_marks(marks.as_ref())?;
        match marks {
            Some(_) => self.programs.attach_marks(&self.lan_indexes(), self.ends.carrier.index),
            None => Ok(()),
        }
    }

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        let lans = self.ends.lans.iter().filter(|_| self.has_root);
        let places: Vec<_> = lans.map(|lan| (at(lan), ifb::mtu(lan))).collect();
        let applied = self.shaper.apply(&places, allocation);
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
        self.shaper.upload(&self.ends.carrier, &mut self.config.features, move |features| {
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
            refuse_if_occupied(&mut self.shaper.netlink, &self.ends)?;
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
            tracing::warn!(error = %e, lans = ?self.lans, "not everything could be given back");
        }
    }
}

/// Features that depend on the rules, except those by MAC address.
const FEATURES_OF_RULES: u32 = FEATURE_PREFIX4 | FEATURE_PREFIX6 | FEATURE_SITES;
/// Interval between two searches for other interfaces, shapers and flowtables.
const CONFLICTS_PERIOD: Span = Span::secs(2);

/// Refuses if another program's qdisc is the root of a LAN.
fn refuse_if_occupied(netlink: &mut Netlink, ends: &Ends) -> Result<(), Error> {
    ends.lans.iter().try_for_each(|lan| htb::refuse_if_occupied(netlink, lan))
}

const _: () = assert!(
    LANS_MAX == header::LANS_MAX as usize && WANS_MAX == header::WANS_MAX as usize,
    "the programs know all interfaces"
);

fn at(device: &Link) -> At<'_> {
    At { name: &device.name, index: device.index }
}
