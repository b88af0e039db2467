//! A device whose download is counted by flow group and, if wanted, shaped.
//!
//! Packet arrives → the classifier finds its class and counts it → intermediate device → class of
//! HTB → the stack. Everything that a [`Host`] makes in the kernel it owns, and it is gone when the
//! host drops; when the process is killed the classifier goes with it, and if the process hangs the
//! stale heartbeat makes the classifier let everything pass.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ClassSpec, GroupSample};
use fairweir_core::units::{Bytes, Span, Time};

use crate::bpf::abi::{
    Config, Counter, FEATURE_CENSUS, FEATURE_OWNERS, FEATURE_TRANSIT, FEATURE_WINDOWS, SLOTS_MAX,
};
use crate::bpf::{Parts, Programs};
use crate::classify::census::{self, Talker};
use crate::classify::cgroup::{self, Tree};
use crate::classify::ingress;
use crate::classify::rules::{self, Rules};
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::shape::htb;
use crate::shape::ifb::{self, Ifb};
use crate::window::WindowEnforcer;
use crate::{Error, monotonic_now};

/// What shall be attached to which device.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// The device's name.
    pub dev: String,
    /// The flow groups.
    pub policy: Policy,
    /// Whether to shape.
    pub mode: Mode,
    /// Whether to keep account of who receives how much, for [`Host::census`].
    pub census: bool,
}

/// What to do with what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Count it; nothing is made but the classifier.
    Count,
    /// Count it and shape it, from the first [`Host::apply`] on.
    Shape,
}

/// How the kernel's side is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// As it was made.
    Well,
    /// Somebody took something away; everything passes unshaped until [`Host::repair`].
    Broken {
        /// What, in words.
        what: String,
    },
    /// The device itself is gone; attach anew when it is back.
    DeviceGone,
}

/// A device whose download is counted and shaped.
///
/// Invariant: packets are redirected only while the intermediate device was there at the last look.
pub struct Host {
    device: Link,
    netlink: Netlink,
    pub(crate) programs: Programs,
    by_clsact: bool,
    pub(crate) config: Config,
    policy: Policy,
    /// The class of each group, in the policy's order.
    pub(crate) slots: Vec<u16>,
    rules: Rules,
    ifb: Option<Ifb>,
    shape: bool,
    classes: BTreeMap<u16, ClassSpec>,
    seen: Seen,
    cgroups: Option<PathBuf>,
    knows_owners: bool,
    pub(crate) limits: Vec<String>,
    /// The device's, in which the caller need not be.
    pub(crate) netns: Netns,
    pub(crate) windows: WindowEnforcer,
}

/// Where the counters stood when they were last read.
struct Seen {
    slots: Box<[Counter; SLOTS_MAX]>,
    drops: BTreeMap<u16, u32>,
    new_cgroups: u64,
    cgroups_read: Time,
}

impl Host {
    /// Counts, and in [`Mode::Shape`] prepares to shape, what arrives at a device.
    ///
    /// # Errors
    /// If there is no such device, somebody else uses its ingress, a user in the policy does not
    /// exist, or the kernel lacks something that cannot be done without.
    pub fn attach(spec: &HostSpec) -> Result<Host, Error> {
        Host::attach_by(spec, Programs::attach_tcx)
    }

    /// The same on a kernel that has no tcx, for tests on one that has.
    ///
    /// # Errors
    /// As for [`Host::attach`].
    #[doc(hidden)]
    pub fn attach_by_clsact(spec: &HostSpec) -> Result<Host, Error> {
        let unsupported = || std::io::Error::from_raw_os_error(libc::EINVAL);
        Host::attach_by(spec, |_, _| Err(Error::refused("attach by tcx", unsupported())))
    }

    fn attach_by(
        spec: &HostSpec,
        tcx: impl Fn(&mut Programs, u32) -> Result<(), Error>,
    ) -> Result<Host, Error> {
        let mut netlink = Netlink::open()?;
        let device = link::find_with(&mut netlink, &spec.dev)?
            .ok_or_else(|| Error::NoDevice(spec.dev.clone()))?;
        ingress::detach_clsact(&mut netlink, device.index)?;
        ingress::refuse_if_occupied(&mut netlink, &device)?;
        if let Some(found) = link::find_with(&mut netlink, &ifb::name(&spec.dev))? {
            ifb::refuse_if_foreign(&found, &spec.dev)?;
        }
        let programs = Programs::load()?;
        let config = Config {
            l2_header: if device.hardware == libc::ARPHRD_ETHER { ETHERNET_HEADER } else { 0 },
            features: if spec.census { FEATURE_CENSUS } else { 0 },
            device: device.index,
            netns: Netns::current_cookie().unwrap_or(0),
            ..Config::default()
        };
        let mut host = Host {
            device,
            netlink,
            programs,
            by_clsact: false,
            config,
            policy: spec.policy.clone(),
            slots: Vec::new(),
            rules: Rules::default(),
            ifb: None,
            shape: spec.mode == Mode::Shape,
            classes: BTreeMap::new(),
            seen: Seen {
                slots: Box::new([Counter::default(); SLOTS_MAX]),
                drops: BTreeMap::new(),
                new_cgroups: 0,
                cgroups_read: monotonic_now(),
            },
            cgroups: cgroup::root().ok(),
            knows_owners: false,
            limits: Vec::new(),
            netns: Netns::current()?,
            windows: WindowEnforcer::Asleep,
        };
        host.set_policy(&spec.policy)?;
        if host.shape {
            let ifb = Ifb::create(&mut host.netlink, &spec.dev)?;
            host.config.ifb = ifb.index;
            host.ifb = Some(ifb);
        }
        host.configure()?;
        match tcx(&mut host.programs, host.device.index) {
            Err(e) if ingress::lacks_tcx(&e) => {
                tracing::debug!(error = %e, "no tcx, so by clsact");
                host.attach_clsact()?;
            }
            result => result?,
        }
        Ok(host)
    }

    /// Takes over a new policy, touching only what changed: a group that keeps its name keeps its
    /// class, its queue and its counters.
    ///
    /// # Errors
    /// If a user does not exist or the kernel refuses; then the old policy stays.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let names = self.policy.groups().iter().map(|g| g.name.clone());
        let old: BTreeMap<String, u16> = names.zip(self.slots.iter().copied()).collect();
        let slots = rules::assign_slots(policy, &old);
        let rules = Rules::new(policy, &slots, &self.cgroup_tree(policy))?;
        let counters = self.programs.counters()?;
        if let Err(e) = self.programs.set_rules(&self.rules, &rules) {
            let _ = self.programs.set_rules(&rules, &self.rules);
            return Err(e);
        }
        let before = self.config;
        self.config.features =
            rules.features(rules::needs_owners(policy)) | (self.config.features & FEATURES_KEPT);
        self.config.default_slot = slots[policy.default_group()].into();
        self.config.generation += 1;
        if let Err(e) = self.configure() {
            self.config = before;
            return Err(e);
        }
        for (group, &slot) in policy.groups().iter().zip(&slots) {
            if !old.contains_key(&group.name) {
                self.seen.slots[usize::from(slot)] = counters.slots[usize::from(slot)];
            }
        }
        let stays = |name: &str| policy.groups().iter().any(|group| group.name == name);
        let gone = old.iter().filter(|(name, _)| !stays(name)).map(|(_, &slot)| slot).collect();
        self.policy = policy.clone();
        self.slots = slots;
        self.rules = rules;
        self.learn_owners();
        self.delete_classes(gone);
        Ok(())
    }

    /// What each group received since the last call, in the policy's order.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        let counters = self.programs.counters()?;
        if counters.new_cgroups != self.seen.new_cgroups {
            self.look_for_cgroups(counters.new_cgroups)?;
        }
        let classes = match &self.ifb {
            Some(ifb) if !self.classes.is_empty() => htb::counts(&mut self.netlink, ifb.index)?,
            _ => BTreeMap::new(),
        };
        let seen = &mut self.seen;
        let sample = |&slot: &u16| {
            let index = usize::from(slot);
            let (now, before) = (counters.slots[index], seen.slots[index]);
            seen.slots[index] = now;
            let class = classes.get(&slot).copied().unwrap_or_default();
            let drops_before = seen.drops.insert(slot, class.drops).unwrap_or(0);
            GroupSample {
                received: Bytes::new(now.bytes - before.bytes),
                packets: now.packets - before.packets,
                // A class that was made anew starts at zero.
                drops: class.drops.checked_sub(drops_before).unwrap_or(class.drops).into(),
                backlog: class.backlog,
            }
        };
        Ok(self.slots.iter().map(sample).collect())
    }

    /// Makes the classes so, all in one batch and only what differs, and lets the classifier send
    /// packets through them.
    ///
    /// # Errors
    /// If the kernel refuses; then everything passes unshaped.
    ///
    /// # Panics
    /// If the allocation has another number of classes than the policy has groups.
    pub fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        assert_eq!(allocation.classes.len(), self.slots.len(), "each group has a class");
        let Some(ifb) = &self.ifb else {
            return Ok(());
        };
        let classes = htb::class_specs(allocation, &self.slots, ifb::mtu(&self.device));
        let requests = htb::changes(ifb.index, &self.classes, &classes);
        let attempted = format!("set the classes of {}", ifb.name);
        if let Err(e) = self.netlink.change_all(&attempted, &requests) {
            self.release()?;
            return Err(e);
        }
        self.classes = classes;
        self.config.enforce = 1;
        self.configure()
    }

    /// Lets everything pass unshaped until the next [`Host::apply`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release(&mut self) -> Result<(), Error> {
        self.config.enforce = 0;
        self.configure()
    }

    /// Tells the BPF programs that this process is alive. Without this for two seconds everything
    /// passes unshaped, and bounds of receive windows expire.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn beat(&self) -> Result<(), Error> {
        self.configure()
    }

    /// Looks whether everything is still there; if not, everything passes unshaped from now on.
    pub fn health(&mut self) -> Health {
        let broken = match link::find_index_with(&mut self.netlink, self.device.index) {
            Ok(None) => return Health::DeviceGone,
            Ok(Some(device)) => {
                self.device.mtu = device.mtu;
                match self.fault() {
                    Ok(None) => return Health::Well,
                    Ok(Some(what)) => what,
                    Err(e) => e.to_string(),
                }
            }
            Err(e) => e.to_string(),
        };
        let what = match self.release() {
            Ok(()) => broken,
            Err(e) => format!("{broken}; {e}"),
        };
        Health::Broken { what }
    }

    /// Makes anew what was taken away ([`Health::Broken`]); packets go through the classes from the
    /// next [`Host::apply`] on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn repair(&mut self) -> Result<(), Error> {
        self.release()?;
        if let Some(old) = self.ifb.take() {
            old.delete(&mut self.netlink)?;
        }
        self.classes.clear();
        self.seen.drops.clear();
        if self.shape {
            let ifb = Ifb::create(&mut self.netlink, &self.device.name)?;
            self.config.ifb = ifb.index;
            self.ifb = Some(ifb);
            self.configure()?;
        }
        match (self.is_attached()?, self.by_clsact) {
            (true, _) => Ok(()),
            (false, false) => self.programs.attach_tcx(self.device.index),
            (false, true) => self.attach_clsact(),
        }
    }

    /// Who received how much since the start, in no particular order; empty without
    /// [`HostSpec::census`].
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn census(&mut self) -> Result<Vec<Talker>, Error> {
        let tree = self.cgroups.as_deref().map(Tree::read).unwrap_or_default();
        Ok(census::talkers(&self.programs.census()?, &tree))
    }

    /// What this kernel cannot do for the policy, in words.
    pub fn limits(&self) -> Vec<String> {
        self.limits.clone()
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
        let opened = self.close_windows();
        let released = opened.and(self.release());
        self.programs.detach();
        let unfiltered = match self.by_clsact {
            true => ingress::detach_clsact(&mut self.netlink, self.device.index).map(drop),
            false => Ok(()),
        };
        self.by_clsact = false;
        let deleted = self.ifb.take().map_or(Ok(()), |ifb| ifb.delete(&mut self.netlink));
        released.and(unfiltered).and(deleted)
    }

    fn attach_clsact(&mut self) -> Result<(), Error> {
        let program = self.programs.classifier_fd()?;
        ingress::attach_clsact(&mut self.netlink, self.device.index, program)?;
        self.by_clsact = true;
        Ok(())
    }

    fn is_attached(&mut self) -> Result<bool, Error> {
        match self.by_clsact {
            true => ingress::has_our_filter(&mut self.netlink, self.device.index),
            false => Ok(self.programs.is_attached()),
        }
    }

    /// What is no longer as it was made, in words.
    fn fault(&mut self) -> Result<Option<String>, Error> {
        if !self.is_attached()? {
            return Ok(Some(format!("the classifier was detached from {}", self.device.name)));
        }
        self.ifb.as_ref().map_or(Ok(None), |ifb| ifb.fault(&mut self.netlink))
    }

    /// From the first policy on that asks for owners of sockets; others do not pay for them. What
    /// cannot be had is a limit and no error: addresses and ports still work.
    fn learn_owners(&mut self) {
        let needed = self.config.features & (FEATURE_OWNERS | FEATURE_CENSUS) != 0;
        if self.knows_owners || !needed {
            return;
        }
        self.knows_owners = true;
        match self.programs.parts() {
            Parts::All | Parts::NoWindows => {}
            Parts::NoScan => self.limits.push(
                "sockets that were open at the start belong to no application (the kernel cannot \
                 list them: needs 5.11)"
                    .to_owned(),
            ),
            Parts::NoOwners => self.limits.push(
                "app:, unit:, cgroup: and user: match nothing (the kernel cannot store the owner \
                 of a socket: needs 5.11)"
                    .to_owned(),
            ),
        }
        if let Err(e) = self.programs.attach_owners() {
            self.limits.push(format!("app:, unit:, cgroup: and user: may match nothing: {e}"));
        }
    }

    fn cgroup_tree(&self, policy: &Policy) -> Tree {
        match &self.cgroups {
            Some(root) if rules::needs_cgroups(policy) => Tree::read(root),
            _ => Tree::default(),
        }
    }

    /// Units come and go: a cgroup that makes sockets for the first time may be one of ours.
    fn look_for_cgroups(&mut self, new_cgroups: u64) -> Result<(), Error> {
        let now = monotonic_now();
        let needed = rules::needs_cgroups(&self.policy);
        if needed && now.since(self.seen.cgroups_read) < CGROUPS_READ_INTERVAL {
            return Ok(());
        }
        self.seen.new_cgroups = new_cgroups;
        self.seen.cgroups_read = now;
        if !needed {
            return Ok(());
        }
        let tree = self.cgroup_tree(&self.policy);
        let rules = Rules::new(&self.policy, &self.slots, &tree)?;
        if rules == self.rules {
            return Ok(());
        }
        self.programs.set_rules(&self.rules, &rules)?;
        self.rules = rules;
        self.config.generation += 1;
        self.configure()
    }

    /// Nothing is sent to these classes any more, so one that stays (or that somebody has deleted
    /// with all the rest) does no harm: whoever gets the slot next gives it its rate.
    fn delete_classes(&mut self, slots: Vec<u16>) {
        let Some(ifb) = &self.ifb else {
            return;
        };
        let made = |slot: &u16| self.classes.contains_key(&htb::minor(*slot));
        let requests: Vec<_> =
            slots.iter().filter(|s| made(s)).map(|&s| htb::deletion(ifb.index, s)).collect();
        for slot in slots {
            self.classes.remove(&htb::minor(slot));
            self.seen.drops.remove(&slot);
        }
        let attempted = format!("delete classes of {}", ifb.name);
        if let Err(e) = self.netlink.change_all(&attempted, &requests) {
            tracing::debug!(error = %e, "classes that nobody needs stay");
        }
    }

    /// Whatever is written, the process that writes is alive.
    pub(crate) fn configure(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&Config { heartbeat_ns, ..self.config })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::warn!(error = %e, dev = self.device.name, "not everything could be given back");
        }
    }
}

/// What does not come from the policy.
const FEATURES_KEPT: u32 = FEATURE_CENSUS | FEATURE_WINDOWS | FEATURE_TRANSIT;
const ETHERNET_HEADER: u32 = 14;
/// Reading all cgroups takes some milliseconds, so they are not read at every tick.
const CGROUPS_READ_INTERVAL: Span = Span::secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_classifier_that_somebody_detaches_is_missed_and_attached_again() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            assert!(std::env::var_os("FAIRWEIR_STRICT").is_none(), "skipped under FAIRWEIR_STRICT");
            return;
        }
        Netns::new().unwrap().run(|| {
            link::create_ifb("wan", "").unwrap();
            let policy = Policy::new(Vec::new()).unwrap();
            let spec = HostSpec { dev: "wan".into(), policy, mode: Mode::Shape, census: false };
            for attach in [Host::attach, Host::attach_by_clsact] {
                let mut host = attach(&spec).unwrap();
                assert_eq!(host.health(), Health::Well);
                if host.by_clsact {
                    ingress::detach_clsact(&mut host.netlink, host.device.index).unwrap();
                } else {
                    host.programs.force_detach();
                }
                let what = "the classifier was detached from wan".to_owned();
                assert_eq!(host.health(), Health::Broken { what });
                host.repair().unwrap();
                assert_eq!(host.health(), Health::Well);
            }
        });
    }
}
