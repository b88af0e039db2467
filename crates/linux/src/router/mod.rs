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
//! HTB qdisc, which then changes nothing, stays until the next [`crate::sweep`].

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use fairweir_core::lease::Heard;
use fairweir_core::packet::Mac;
use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::units::{Bytes, Span, Time};
use libbpf_rs::MapHandle;

use crate::bpf::abi::{
    Counter, FEATURE_UPLOAD, FEATURE_WINDOWS, InitialWindows, Plain, RecentControl,
};
use crate::bpf::{KEY, bpf_error, update};
use crate::classify::cgroup::Tree;
use crate::classify::rules::{self, Rules};
use crate::classify::site::Ear;
use crate::host::samples::SeenGroups;
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::shape::classes::{At, Classes};
use crate::shape::uplink::{Uplink, Upload};
use crate::shape::{htb, ifb};
use crate::window::{FREE, number, write_bounds};
use crate::{Error, Health, Mode, monotonic_now};

mod abi;
mod conflicts;
mod flows;
mod offload;
mod programs;
mod sites;
pub mod trial;

pub(crate) use abi::LeafKey;
use abi::{DhcpHeard, FEATURE_MACS, FEATURE_MARKS, FEATURES_OF_RULES, RouterConfig};
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
    pub upload: bool,
}

/// A router whose download is counted and shaped.
///
/// Invariant: the root qdisc of the LAN device is this router's HTB while `has_root`.
pub struct Router {
    lan: Link,
    wan: Link,
    netlink: Netlink,
    programs: Programs,
    config: RouterConfig,
    policy: Policy,
    slots: Vec<u16>,
    rules: Rules,
    /// Devices that are bound by name, and the names of their groups.
    hosts: BTreeMap<Mac, String>,
    /// What is heard of DHCP.
    ear: Ear,
    /// What is heard of connections, if the programs hear them.
    sites_ear: Option<Ear>,
    shape: bool,
    has_root: bool,
    classes: Classes,
    seen: SeenGroups,
    /// What arrived at the WAN, and of it what went to the LAN, until the last look.
    total: Bytes,
    to_lan: Bytes,
    unheard: u64,
    /// Whether packets are taken past the programs.
    offload: OffloadWatch,
    conflicts_at: Time,
    flows: Flows,
    /// Whether the connections were asked for since the last samples, which begins an interval.
    has_asked: bool,
    /// The bounds in force.
    wanted: BTreeMap<u64, u32>,
    initial: InitialWindows,
    /// If the upload is shared.
    uplink: Option<Uplink>,
}

impl Router {
    /// Counts, and in [`Mode::Shape`] prepares to shape, what goes to the devices of the LAN.
    ///
    /// # Errors
    /// If a device is missing, other software shapes the LAN device or, with `upload`, has a root
    /// qdisc at the WAN, or the kernel lacks a required feature.
    pub fn attach(spec: &RouterSpec) -> Result<Router, Error> {
        let mut netlink = Netlink::open()?;
        let mut find = |name: &str| {
            link::find_with(&mut netlink, name)?.ok_or_else(|| Error::NoDevice(name.to_owned()))
        };
        let (lan, wan) = (find(&spec.lan)?, find(&spec.wan)?);
        if spec.mode == Mode::Shape {
            htb::refuse_if_occupied(&mut netlink, &lan)?;
            conflicts::refuse_if_any(&mut netlink, &lan, &wan)?;
        }
        let config = RouterConfig {
            wan: wan.index,
            lan: lan.index,
            lan_header: lan.header_bytes(),
            wan_header: wan.header_bytes(),
            features: if spec.upload { FEATURE_MARKS } else { 0 },
            recent: RecentControl::new(RECENT_SETS)?,
            ..RouterConfig::default()
        };
        let parts = Parts { upload: spec.upload, sites: rules::needs_sites(&spec.policy) };
        let programs = Programs::load(parts)?;
        let counters = spec.upload.then_some(&programs.upload_counters);
        let counters = counters.map(MapHandle::try_from).transpose();
        let counters = counters.map_err(|e| bpf_error("open a map", &e))?;
        let uplink =
            counters.map(|counters| Uplink::new(&mut netlink, &wan, counters)).transpose()?;
        let mut router = Router {
            lan,
            wan,
            netlink,
            ear: Ear::new(&programs.dhcp)?,
            sites_ear: parts.sites.then(|| Ear::new(&programs.heard)).transpose()?,
            programs,
            hosts: BTreeMap::new(),
            config,
            policy: spec.policy.clone(),
            slots: Vec::new(),
            rules: Rules::default(),
            shape: spec.mode == Mode::Shape,
            has_root: false,
            classes: Classes::default(),
            seen: SeenGroups::nothing(),
            total: Bytes::ZERO,
            to_lan: Bytes::ZERO,
            unheard: 0,
            offload: OffloadWatch::default(),
            conflicts_at: monotonic_now() + CONFLICTS_PERIOD,
            flows: Flows::default(),
            has_asked: false,
            wanted: BTreeMap::new(),
            initial: FREE,
            uplink,
        };
        router.set_policy(&spec.policy)?;
        router.make_root()?;
        router.attach_programs()?;
        Ok(router)
    }

    /// Whether the programs can do what `policy` asks for; if not, the router has to be attached anew.
    pub fn can_take_over(&self, policy: &Policy) -> bool {
        self.programs.parts().sites || !rules::needs_sites(policy)
    }

    /// Takes over a new policy, touching only what changed: a device that keeps its name keeps its
    /// class, its queue and its counters. What the router cannot take over
    /// ([`Router::can_take_over`]) matches nothing.
    ///
    /// # Errors
    /// If the kernel refuses; then the old policy stays.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let names = self.policy.groups().iter().map(|g| g.name.clone());
        let old: BTreeMap<String, u16> = names.zip(self.slots.iter().copied()).collect();
        let slots = rules::assign_slots(policy, &old);
        let rules = self.rules_of(policy, &slots)?;
        let counters = self.programs.counters()?;
        self.put_rules(rules, rules::slot_of(policy, policy.default_group(), &slots))?;
        for (group, &slot) in policy.groups().iter().zip(&slots) {
            if !old.contains_key(&group.name) {
                self.seen.slots[usize::from(slot)] = counters.slots[usize::from(slot)];
            }
        }
        let stays = |name: &str| policy.groups().iter().any(|group| group.name == name);
        let gone: Vec<u16> =
            old.iter().filter(|(name, _)| !stays(name)).map(|(_, &slot)| slot).collect();
        self.policy = policy.clone();
        self.slots = slots;
        if self.has_root {
            self.classes.delete(&mut self.netlink, at(&self.lan), &gone);
        }
        for slot in gone {
            self.seen.drops.remove(&slot);
        }
        Ok(())
    }

    /// Lets these devices, by MAC address, belong to groups (by index) as if they were listed there,
    /// and only these; one that the policy lists stays where it is.
    ///
    /// # Errors
    /// If the kernel refuses; then the old ones stay.
    pub fn set_hosts(&mut self, hosts: &[(Mac, usize)]) -> Result<(), Error> {
        let named = |&(mac, group): &(Mac, usize)| {
            self.policy.groups().get(group).map(|group| (mac, group.name.clone()))
        };
        let new = hosts.iter().filter_map(named).collect();
        let old = std::mem::replace(&mut self.hosts, new);
        let rules = self.rules_of(&self.policy, &self.slots);
        let default = rules::slot_of(&self.policy, self.policy.default_group(), &self.slots);
        let put = rules.and_then(|rules| self.put_rules(rules, default));
        if put.is_err() {
            self.hosts = old;
        }
        put
    }

    /// What leaves by the WAN; `None` if it is not shared.
    pub fn upload(&mut self) -> Option<Upload<'_>> {
        let (programs, config) = (&self.programs, self.config);
        Some(Upload {
            uplink: self.uplink.as_mut()?,
            netlink: &mut self.netlink,
            device: &self.wan,
            slots: &self.slots,
            shape: self.shape,
            features: &mut self.config.features,
            configure: Box::new(move |features| {
                let heartbeat_ns = monotonic_now().as_nanos();
                programs.configure(&RouterConfig { features, heartbeat_ns, ..config })
            }),
        })
    }

    fn release_upload(&mut self) -> Result<(), Error> {
        self.upload().map_or(Ok(()), |mut upload| upload.release())
    }

    fn attach_programs(&mut self) -> Result<(), Error> {
        self.programs.attach(self.lan.index, self.wan.index)
    }

    /// Passes on the DHCP messages that passed the LAN since the last call, in their order.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_dhcp(&mut self, mut each: impl FnMut(Heard<'_>)) -> Result<(), Error> {
        for record in self.ear.read()? {
            let Some(heard) = DhcpHeard::from_bytes(&record) else { continue };
            let Some(bytes) = heard.bytes.get(..heard.length as usize) else { continue };
            each(Heard { is_own: heard.is_own != 0, source: Mac(heard.source), bytes });
        }
        Ok(())
    }

    /// What becomes readable when a DHCP message passed.
    pub fn dhcp_fd(&self) -> BorrowedFd<'_> {
        self.ear.fd()
    }

    /// What each device received since the last call, in the policy's order.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        if !std::mem::take(&mut self.has_asked) {
            // In force with the next heartbeat.
            self.begin_interval();
        }
        let before = self.wan_received()?;
        let counters = self.programs.counters()?;
        let after = self.wan_received()?;
        let classifier = Bytes::new(counters.frames.bytes);
        self.offload.handle(Reading { at: monotonic_now(), before, classifier, after });
        let classes = self.classes.counts(&mut self.netlink, at(&self.lan))?;
        self.total = Bytes::new(counters.total.bytes);
        self.unheard = counters.unheard;
        self.to_lan = counters.slots.iter().map(|c: &Counter| Bytes::new(c.bytes)).sum();
        let seen = &mut self.seen;
        let sample = |&slot: &u16| {
            let class = classes.get(&slot).copied().unwrap_or_default();
            seen.take(slot, counters.slots[usize::from(slot)], class)
        };
        Ok(self.slots.iter().map(sample).collect())
    }

    /// What arrived at the WAN for the router itself, such as its own downloads, since the start, as
    /// of the last [`Router::take_samples`].
    pub fn own_traffic(&self) -> Bytes {
        self.total.saturating_sub(self.to_lan)
    }

    /// What each connection received since the last call, by id: those that have opened since the
    /// start, and received something or have a bound; at most
    /// [`fairweir_core::receiver::CONNECTIONS_MAX`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        let asked = Asked {
            interval: self.config.interval,
            slots: &self.slots,
            bounds: &self.wanted,
            now: monotonic_now(),
        };
        let samples = self.flows.take(|each| self.programs.each_flow(each), asked)?;
        self.has_asked = true;
        self.begin_interval();
        self.configure()?;
        Ok(samples)
    }

    /// Samples of transit begin anew, and the rules are looked up anew for each known connection.
    fn begin_interval(&mut self) {
        self.config.interval = self.config.interval.wrapping_add(1);
    }

    /// Makes the classes so, all in one batch and only what differs, and lets packets have classes.
    ///
    /// # Errors
    /// If the kernel refuses; then everything passes unshaped.
    ///
    /// # Panics
    /// If the allocation has another number of classes than the policy has groups.
    pub fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        assert_eq!(allocation.classes.len(), self.slots.len(), "each device has a class");
        if !self.has_root {
            return Ok(());
        }
        let wanted = (allocation, self.slots.as_slice());
        let mtu = ifb::mtu(&self.lan);
        if let Err(e) = self.classes.apply(&mut self.netlink, at(&self.lan), wanted, mtu) {
            self.release()?;
            return Err(e);
        }
        self.config.enforce = 1;
        self.configure()
    }

    /// Lets everything pass unshaped until the next [`Router::apply`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release(&mut self) -> Result<(), Error> {
        self.config.enforce = 0;
        self.configure()
    }

    /// Makes the windows so, and only these: every other connection is free.
    ///
    /// # Errors
    /// If the kernel refuses; then nothing is bounded.
    ///
    /// # Panics
    /// If there is another number of initial windows than the policy has groups.
    pub fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        assert_eq!(windows.initial.len(), self.slots.len(), "each device has an initial window");
        let wanted = windows.connections.iter().map(|w| (w.id, number(w.window))).collect();
        let mut initial = FREE;
        for (&slot, window) in self.slots.iter().zip(&windows.initial) {
            initial.slots[usize::from(slot)] = window.map_or(0, number);
        }
        let written = self.write_windows(wanted, initial);
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

    /// Lets all windows be as the devices tell them, until the next [`Router::apply_windows`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release_windows(&mut self) -> Result<(), Error> {
        if self.config.features & FEATURE_WINDOWS == 0 {
            return Ok(());
        }
        self.config.features &= !FEATURE_WINDOWS;
        self.configure()?;
        self.write_windows(BTreeMap::new(), FREE)
    }

    /// Whether the window of the connection `id` is bounded, as last applied.
    pub fn is_bounded(&self, id: u64) -> bool {
        self.wanted.contains_key(&id)
    }

    /// Tells the BPF programs that this process is alive. Without this for two seconds nothing has a
    /// class, and no window is lowered.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn beat(&mut self) -> Result<(), Error> {
        self.configure()
    }

    /// Looks whether everything is still there; if not, everything passes unshaped from now on.
    pub fn health(&mut self) -> Health {
        let found = [self.lan.index, self.wan.index]
            .map(|index| link::find_index_with(&mut self.netlink, index));
        let broken = match found {
            [Ok(Some(lan)), Ok(Some(_))] => {
                self.lan.mtu = lan.mtu;
                match self.fault() {
                    Ok(None) => return Health::Well,
                    Ok(Some(what)) => what,
                    Err(e) => e.to_string(),
                }
            }
            [Ok(None), _] | [_, Ok(None)] => return Health::DeviceGone,
            [Err(e), _] | [_, Err(e)] => e.to_string(),
        };
        let released = self.release().and(self.release_windows()).and(self.release_upload());
        let what = match released {
            Ok(()) => broken,
            Err(e) => format!("{broken}; {e}"),
        };
        Health::Broken { what }
    }

    /// Makes anew what was taken away ([`Health::Broken`]); packets have classes from the next
    /// [`Router::apply`] on.
    ///
    /// # Errors
    /// If the kernel refuses, or another qdisc is at the root of the LAN device now.
    pub fn repair(&mut self) -> Result<(), Error> {
        self.release()?;
        self.release_upload()?;
        self.delete_root()?;
        self.seen.drops.clear();
        if self.shape {
            htb::refuse_if_occupied(&mut self.netlink, &self.lan)?;
            self.refuse_conflicts()?;
        }
        self.make_root()?;
        if self.programs.are_attached() {
            return Ok(());
        }
        self.attach_programs()
    }

    /// Gives everything back; like dropping, but tells what went wrong.
    ///
    /// # Errors
    /// If something of ours could not be removed.
    pub fn detach(mut self) -> Result<(), Error> {
        self.close()
    }

    /// Idempotent.
    fn close(&mut self) -> Result<(), Error> {
        let released = self.release_windows().and(self.release()).and(self.release_upload());
        self.programs.detach();
        released.and(self.delete_root())
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

    /// Puts `rules` in force, and which slot everything else has.
    fn put_rules(&mut self, rules: Rules, default_slot: u16) -> Result<(), Error> {
        if let Err(e) = self.programs.set_rules(&self.rules, &rules) {
            let _ = self.programs.set_rules(&rules, &self.rules);
            return Err(e);
        }
        let before = self.config;
        let macs = if rules.macs.is_empty() { 0 } else { FEATURE_MACS };
        self.config.features = rules.features(false) & FEATURES_OF_RULES
            | macs
            | self.config.features & (FEATURE_WINDOWS | FEATURE_UPLOAD | FEATURE_MARKS);
        self.config.default_slot = default_slot.into();
        self.begin_interval();
        self.rules = rules;
        self.configure().inspect_err(|_| self.config = before)
    }

    /// What is no longer as it was made, in words.
    fn fault(&mut self) -> Result<Option<String>, Error> {
        let Link { name, index, .. } = &self.lan;
        if !self.programs.are_attached() {
            let wan = &self.wan.name;
            return Ok(Some(format!("the programs were detached from {name} or {wan}")));
        }
        if self.has_root && !htb::is_there(&mut self.netlink, *index)? {
            return Ok(Some(format!("the HTB qdisc of {name} was deleted or replaced")));
        }
        if let Some(uplink) = self.uplink.as_ref().filter(|_| self.shape)
            && let Some(what) = uplink.fault(&mut self.netlink, &self.wan)?
        {
            return Ok(Some(what));
        }
        let now = monotonic_now();
        if self.shape && (now >= self.conflicts_at || self.offload.verdict().is_some()) {
            self.conflicts_at = now + CONFLICTS_PERIOD;
            return Ok(self.refuse_conflicts().err().map(|e| e.to_string()));
        }
        Ok(None)
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
        conflicts::refuse_if_any(&mut self.netlink, &self.lan, &self.wan)
    }

    /// What the WAN's driver has counted.
    fn wan_received(&mut self) -> Result<Bytes, Error> {
        let wan = link::find_index_with(&mut self.netlink, self.wan.index)?;
        Ok(Bytes::new(wan.map_or(0, |wan| wan.received)))
    }

    fn make_root(&mut self) -> Result<(), Error> {
        if self.shape {
            let attempted = format!("make the HTB qdisc of {}", self.lan.name);
            self.netlink.change(&attempted, htb::root(self.lan.index))?;
            self.has_root = true;
        }
        Ok(())
    }

    fn delete_root(&mut self) -> Result<(), Error> {
        self.classes.clear();
        if !std::mem::take(&mut self.has_root) || !htb::is_there(&mut self.netlink, self.lan.index)?
        {
            return Ok(());
        }
        let attempted = format!("delete the HTB qdisc of {}", self.lan.name);
        self.netlink.change(&attempted, htb::root_deletion(self.lan.index))
    }

    fn write_windows(
        &mut self,
        wanted: BTreeMap<u64, u32>,
        initial: InitialWindows,
    ) -> Result<(), Error> {
        if self.initial != initial {
            update(&self.programs.initial_windows, &KEY, initial.as_bytes())?;
            self.initial = initial;
        }
        write_bounds(&self.programs.windows, &self.wanted, &wanted)?;
        self.wanted = wanted;
        Ok(())
    }

    /// Whatever is written, the process that writes is alive.
    fn configure(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&RouterConfig { heartbeat_ns, ..self.config })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::warn!(error = %e, lan = self.lan.name, "not everything could be given back");
        }
    }
}

/// How often other shapers and flowtables are looked for.
const CONFLICTS_PERIOD: Span = Span::secs(2);

fn at(device: &Link) -> At<'_> {
    At { name: &device.name, index: device.index }
}
