//! A device whose download is counted by flow group and, if wanted, shaped.
//!
//! A packet arrives → the classifier finds its class and counts it → intermediate device → HTB
//! class → the stack. A [`Host`] owns everything that it creates in the kernel, and removes it when
//! it drops. If the process is killed, the classifier is removed with it; if the process hangs, the
//! stale heartbeat makes the classifier let everything pass.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::sites::{Command, Connection, Heard};
use fairweir_core::units::Time;

use crate::attached::{Attached, Health, Mode};
use crate::bpf::abi::{
    Config, FEATURE_CENSUS, FEATURE_CLASS_MARKS, RECENT_SETS_MAX, RecentControl,
};
use crate::classify::site::{self, Ear};
use crate::classify::{cgroup, ingress, rules};
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::shape::ifb::{self, Ifb};
use crate::shape::shaper::Shaper;
use crate::shape::uplink::{Uplink, Upload};
use crate::{Error, monotonic_now};

mod bypass;
mod health;
mod policy;
pub(crate) mod programs;
#[cfg(test)]
mod replay;
mod samples;
pub mod trial;
mod windows;

use bypass::Bypass;
use programs::{Egress, Programs};
use samples::Seen;
use windows::WindowEnforcer;

/// The device to attach to, and the policy and features to use.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// The device's name.
    pub dev: String,
    /// The flow groups.
    pub policy: Policy,
    /// Whether to shape.
    pub mode: Mode,
    /// Whether to count how much each talker receives, for [`Host::census`].
    pub census: bool,
    /// Whether marking of what leaves is possible: see [`Attached::set_marks`].
    pub marks: bool,
}

/// A device whose download is counted and shaped.
///
/// Invariant: packets are redirected only while the intermediate device existed at the last check.
pub struct Host {
    device: Link,
    shaper: Shaper,
    programs: Programs,
    by_clsact: bool,
    config: Config,
    ifb: Option<Ifb>,
    seen: Seen,
    bypass: Bypass,
    cgroups: Option<PathBuf>,
    knows_owners: bool,
    limits: Vec<String>,
    /// The device's namespace; the caller's may differ.
    netns: Netns,
    windows: WindowEnforcer,
    /// Present while the policy has sites, if the kernel can hear.
    ear: Option<Ear>,
    /// The evidence numbers of the connections that were watched last, by cookie.
    evidence: BTreeMap<u64, u64>,
}

impl Host {
    /// Counts, and in [`Mode::Shape`] prepares to shape, what arrives at a device.
    ///
    /// # Errors
    /// If there is no such device, other software uses its ingress, a user in the policy does not
    /// exist, or the kernel lacks a required feature.
    pub fn attach(spec: &HostSpec) -> Result<Host, Error> {
        Host::attach_by(spec, Programs::attach_tcx, false)
    }

    /// As [`Host::attach`]; also counts what leaves by the device, and shares it on request.
    ///
    /// # Errors
    /// As for [`Host::attach`], and if the device has a root qdisc of another program or the kernel is
    /// older than 6.6.
    pub fn attach_sharing_upload(spec: &HostSpec) -> Result<Host, Error> {
        let mut host = Host::attach_by(spec, Programs::attach_tcx, true)?;
        host.share_upload()?;
        Ok(host)
    }

    /// As [`Host::attach`] on a kernel that has no tcx, for tests on one that has.
    ///
    /// # Errors
    /// As for [`Host::attach`].
    #[doc(hidden)]
    pub fn attach_by_clsact(spec: &HostSpec) -> Result<Host, Error> {
        let unsupported = || std::io::Error::from_raw_os_error(libc::EINVAL);
        Host::attach_by(spec, |_, _| Err(Error::refused("attach by tcx", unsupported())), false)
    }

    /// What this kernel cannot do for the policy, in words.
    pub fn limits(&self) -> Vec<String> {
        self.limits.clone()
    }

    fn attach_by(
        spec: &HostSpec,
        tcx: impl Fn(&mut Programs, u32) -> Result<(), Error>,
        upload: bool,
    ) -> Result<Host, Error> {
        let mut netlink = Netlink::open()?;
        let device = link::find_with(&mut netlink, &spec.dev)?
            .ok_or_else(|| Error::NoDevice(spec.dev.clone()))?;
        ingress::detach_clsact(&mut netlink, device.index)?;
        ingress::refuse_if_occupied(&mut netlink, &device)?;
        if let Some(found) = link::find_with(&mut netlink, &ifb::name(&spec.dev))? {
            ifb::refuse_if_foreign(&found, &spec.dev)?;
        }
        let programs = Programs::load(Egress { upload, marks: spec.marks })?;
        let config = Config {
            l2_header: device.header_bytes(),
            features: if spec.census { FEATURE_CENSUS } else { 0 },
            device: device.index,
            netns: Netns::current_cookie().unwrap_or(0),
            recent: RecentControl::new(RECENT_SETS_MAX)?,
            ..Config::default()
        };
        let shape = spec.mode == Mode::Shape;
        let mut host = Host {
            device,
            shaper: Shaper::new(netlink, &spec.policy, shape),
            programs,
            by_clsact: false,
            config,
            ifb: None,
            seen: Seen::nothing(),
            bypass: Bypass::default(),
            cgroups: cgroup::root().ok(),
            knows_owners: false,
            limits: Vec::new(),
            netns: Netns::current()?,
            windows: WindowEnforcer::Asleep,
            ear: None,
            evidence: BTreeMap::new(),
        };
        host.set_policy(&spec.policy)?;
        if shape {
            let ifb = Ifb::create(&mut host.shaper.netlink, &spec.dev)?;
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

    /// Counts what leaves by the device from now on, so that it can be shared.
    fn share_upload(&mut self) -> Result<(), Error> {
        let counters = self.programs.upload_counters()?;
        self.shaper.uplink = Some(Uplink::new(&mut self.shaper.netlink, &self.device, counters)?);
        self.programs.attach_upload(self.device.index)
    }

    /// Writes the configuration with a heartbeat, which shows that this process is alive.
    fn configure(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&Config { heartbeat_ns, ..self.config })
    }
}

impl Attached for Host {
    fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        self.change_policy(policy)
    }

    fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        self.read_counters()
    }

    fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        self.watch_connections()
    }

    fn set_marks(&mut self, of_groups: Option<&[u8]>) -> Result<(), Error> {
        let marks = of_groups.map(|of_groups| self.shaper.marks_of(of_groups));
        self.programs.set_marks(marks.as_ref())?;
        self.config.features &= !FEATURE_CLASS_MARKS;
        if marks.is_some() {
            self.programs.attach_mark(self.device.index)?;
            self.config.features |= FEATURE_CLASS_MARKS;
        }
        self.configure()
    }

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        let mtu = ifb::mtu(&self.device);
        let place = self.ifb.as_ref().map(|ifb| (ifb.at(), mtu));
        let applied = self.shaper.apply(place.as_slice(), allocation);
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
        if matches!(self.windows, WindowEnforcer::Asleep) {
            self.watch_connections()?;
        }
        let applied = self.set_windows(windows);
        if applied.is_err() {
            self.lift_windows()?;
        }
        applied
    }

    fn release_windows(&mut self) -> Result<(), Error> {
        self.lift_windows()
    }

    fn is_bounded(&self, id: u64) -> bool {
        self.shaper.bounds.connections.contains_key(&id)
    }

    fn upload(&mut self) -> Option<Upload<'_>> {
        let (programs, config) = (&self.programs, self.config);
        self.shaper.upload(&self.device, &mut self.config.features, move |features| {
            let heartbeat_ns = monotonic_now().as_nanos();
            programs.configure(&Config { features, heartbeat_ns, ..config })
        })
    }

    fn take_heard(
        &mut self,
        each: &mut dyn FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error> {
        self.ear.as_ref().map_or(Ok(()), |ear| ear.read_heard(each))
    }

    fn heard_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ear.as_ref().map(Ear::fd)
    }

    fn bind(&mut self, command: &Command) -> Result<(), Error> {
        let rule = |group| rules::rule(group, self.shaper.slots[group]);
        if !site::bind(&self.programs.maps.hearing()?.flows, rule, command)? {
            return Ok(());
        }
        self.config.recent.forget();
        self.configure()
    }

    fn take_over(
        &mut self,
        connections: &mut dyn Iterator<Item = &Connection>,
    ) -> Result<(), Error> {
        site::take_over(&self.programs.maps.hearing()?.flows, connections)?;
        self.config.recent.forget();
        self.configure()
    }

    fn evidence_of(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error> {
        Ok(ids.iter().filter_map(|id| Some((*id, *self.evidence.get(id)?))).collect())
    }

    fn unheard(&self) -> u64 {
        self.seen.unheard
    }

    fn beat(&mut self) -> Result<(), Error> {
        if !self.bounds_openings() {
            self.bypass.restart();
        }
        let shaper = &self.shaper;
        if let Some(allowances) = self.bypass.take_allowances(|slot| shaper.ceil(slot)) {
            self.programs.allow(&allowances)?;
        }
        self.configure()
    }

    fn health(&mut self) -> Health {
        let fault = self.fault();
        Health::of(fault, || self.release().and(self.release_upload()))
    }

    fn repair(&mut self) -> Result<(), Error> {
        self.restore()
    }

    fn detach(&mut self) -> Result<(), Error> {
        let opened = self.close_windows();
        let released = opened.and(self.release()).and(self.release_upload());
        self.programs.detach();
        let netlink = &mut self.shaper.netlink;
        let unfiltered = match std::mem::take(&mut self.by_clsact) {
            true => ingress::detach_clsact(netlink, self.device.index).map(drop),
            false => Ok(()),
        };
        let deleted = self.ifb.take().map_or(Ok(()), |ifb| ifb.delete(netlink));
        released.and(unfiltered).and(deleted)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(e) = self.detach() {
            tracing::warn!(error = %e, dev = self.device.name, "not everything could be given back");
        }
    }
}
