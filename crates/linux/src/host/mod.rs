//! A device whose download is counted by flow group and, if wanted, shaped.
//!
//! Packet arrives → the classifier finds its class and counts it → intermediate device → class of
//! HTB → the stack. Everything that a [`Host`] makes in the kernel it owns, and it is gone when the
//! host drops; when the process is killed the classifier goes with it, and if the process hangs the
//! stale heartbeat makes the classifier let everything pass.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fairweir_core::policy::Policy;

use crate::bpf::Programs;
use crate::bpf::abi::{Config, FEATURE_CENSUS, RECENT_SETS_MAX, RecentControl};
use crate::classify::rules::Rules;
use crate::classify::site::Ear;
use crate::classify::{cgroup, ingress};
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::shape::classes::Classes;
use crate::shape::ifb::{self, Ifb};
use crate::shape::uplink::Uplink;
use crate::window::WindowEnforcer;
use crate::{Error, monotonic_now};

pub(crate) mod bypass;
mod classes;
mod health;
mod policy;
pub(crate) mod samples;
mod upload;

use bypass::Bypass;
use samples::Seen;

/// What to attach to which device.
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
    /// Another process removed something; everything passes unshaped until [`Host::repair`].
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
    classes: Classes,
    pub(crate) seen: Seen,
    pub(crate) bypass: Bypass,
    cgroups: Option<PathBuf>,
    knows_owners: bool,
    pub(crate) limits: Vec<String>,
    /// The device's, in which the caller need not be.
    pub(crate) netns: Netns,
    pub(crate) windows: WindowEnforcer,
    /// While the policy has sites, if the kernel can hear.
    pub(crate) ear: Option<Ear>,
    /// The numbers of the evidence of connections that were watched last, by cookie.
    pub(crate) evidence: BTreeMap<u64, u64>,
    /// If the upload is shared.
    uplink: Option<Uplink>,
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

    /// The same, and counts and, when it is told to, shares what leaves by the device.
    ///
    /// # Errors
    /// As for [`Host::attach`], and if the device has a root qdisc of another program or the kernel is
    /// older than 6.6.
    pub fn attach_sharing_upload(spec: &HostSpec) -> Result<Host, Error> {
        let mut host = Host::attach_by(spec, Programs::attach_tcx, true)?;
        host.share_upload()?;
        Ok(host)
    }

    /// The same on a kernel that has no tcx, for tests on one that has.
    ///
    /// # Errors
    /// As for [`Host::attach`].
    #[doc(hidden)]
    pub fn attach_by_clsact(spec: &HostSpec) -> Result<Host, Error> {
        let unsupported = || std::io::Error::from_raw_os_error(libc::EINVAL);
        Host::attach_by(spec, |_, _| Err(Error::refused("attach by tcx", unsupported())), false)
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
        let programs = Programs::load(upload)?;
        let config = Config {
            l2_header: device.header_bytes(),
            features: if spec.census { FEATURE_CENSUS } else { 0 },
            device: device.index,
            netns: Netns::current_cookie().unwrap_or(0),
            recent: RecentControl::new(RECENT_SETS_MAX)?,
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
            classes: Classes::default(),
            seen: Seen::nothing(),
            bypass: Bypass::default(),
            cgroups: cgroup::root().ok(),
            knows_owners: false,
            limits: Vec::new(),
            netns: Netns::current()?,
            windows: WindowEnforcer::Asleep,
            ear: None,
            evidence: BTreeMap::new(),
            uplink: None,
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

    /// Tells the BPF programs that this process is alive, and, after each [`Host::take_samples`],
    /// which TCP needs no class. Without this for two seconds everything passes unshaped, and bounds
    /// of receive windows expire.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn beat(&mut self) -> Result<(), Error> {
        if !self.bounds_openings() {
            self.bypass.restart();
        }
        if let Some(allowances) = self.bypass.take_allowances(|slot| self.classes.ceil(slot)) {
            self.programs.allow(&allowances)?;
        }
        self.configure()
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
        let released = opened.and(self.release()).and(self.release_upload());
        self.programs.detach();
        let unfiltered = match self.by_clsact {
            true => ingress::detach_clsact(&mut self.netlink, self.device.index).map(drop),
            false => Ok(()),
        };
        self.by_clsact = false;
        let deleted = self.ifb.take().map_or(Ok(()), |ifb| ifb.delete(&mut self.netlink));
        released.and(unfiltered).and(deleted)
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
