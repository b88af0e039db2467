//! Where the download is counted and shaped: at a host's interface, or at a router's two.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::sites::{Command, Connection, Heard, InnerSites, Sites};
use fairweir_core::units::{Bytes, Time};
use fairweir_linux::{
    Error, ExpiryProgram, Health, Host, HostSpec, Router, RouterSpec, Upload, sweep,
};
use tracing::info;

use super::settings::Settings;

/// What the daemon has attached.
pub(super) enum Point {
    Host(Box<Host>),
    Router(Box<Router>),
}

/// The same call, whichever it is.
macro_rules! either {
    ($point:expr, $it:ident => $call:expr) => {
        match $point {
            Point::Host($it) => $call,
            Point::Router($it) => $call,
        }
    };
}

impl Point {
    /// Sweeps the interfaces, unless this is a dry run, and attaches to them.
    pub(super) fn attach(settings: &Settings) -> anyhow::Result<Point> {
        if !settings.dry_run {
            for dev in settings.devices() {
                for removed in sweep(dev)? {
                    info!(dev, "removed what was left: {removed}");
                }
            }
        }
        let (dev, policy) = (settings.dev.clone(), settings.policy().clone());
        let mode = settings.mode();
        let upload = settings.config.host.upload;
        Ok(match settings.lan() {
            None => {
                let spec = HostSpec { dev, policy, mode, census: false };
                let attach = if upload { Host::attach_sharing_upload } else { Host::attach };
                Point::Host(Box::new(attach(&spec)?))
            }
            Some(lan) => {
                let spec = RouterSpec { lan: lan.to_owned(), wan: dev, policy, mode, upload };
                Point::Router(Box::new(Router::attach(&spec)?))
            }
        })
    }

    /// What leaves by the device that faces the Internet, if it is shared.
    pub(super) fn upload(&mut self) -> Option<Upload<'_>> {
        either!(self, it => it.upload())
    }

    pub(super) fn release_upload(&mut self) -> Result<(), Error> {
        self.upload().map_or(Ok(()), |mut upload| upload.release())
    }

    /// The host, which has what a router has not: sockets.
    pub(super) fn as_host(&self) -> Option<&Host> {
        match self {
            Point::Host(host) => Some(host),
            Point::Router(_) => None,
        }
    }

    /// The router, which has what a host has not: devices with names.
    pub(super) fn as_router(&self) -> Option<&Router> {
        match self {
            Point::Host(_) => None,
            Point::Router(router) => Some(router),
        }
    }

    pub(super) fn as_router_mut(&mut self) -> Option<&mut Router> {
        match self {
            Point::Host(_) => None,
            Point::Router(router) => Some(router),
        }
    }

    pub(super) fn health(&mut self) -> Health {
        either!(self, it => it.health())
    }

    pub(super) fn repair(&mut self) -> Result<(), Error> {
        either!(self, it => it.repair())
    }

    pub(super) fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        either!(self, it => it.set_policy(policy))
    }

    /// Whether [`Point::set_policy`] suffices for `policy`; if not, this has to be attached anew.
    pub(super) fn can_take_over(&self, policy: &Policy) -> bool {
        self.as_router().is_none_or(|router| router.can_take_over(policy))
    }

    /// The `web:` patterns of `policy`, and to what they lead: groups, or on a router labels.
    pub(super) fn sites(&self, policy: &Policy) -> Sites {
        match self {
            Point::Host(_) => Sites::of(policy),
            Point::Router(_) => InnerSites::of(policy).labels,
        }
    }

    pub(super) fn take_heard(
        &mut self,
        each: impl FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error> {
        either!(self, it => it.take_heard(each))
    }

    pub(super) fn heard_fd(&self) -> Option<BorrowedFd<'_>> {
        either!(self, it => it.heard_fd())
    }

    pub(super) fn bind(&mut self, command: &Command) -> Result<(), Error> {
        either!(self, it => it.bind(command))
    }

    pub(super) fn take_over<'c>(
        &mut self,
        connections: impl Iterator<Item = &'c Connection>,
    ) -> Result<(), Error> {
        either!(self, it => it.take_over(connections))
    }

    pub(super) fn evidence_of(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error> {
        match self {
            Point::Host(host) => Ok(host.evidence_of(ids)),
            Point::Router(router) => router.evidence_of(ids),
        }
    }

    pub(super) fn unheard(&self) -> u64 {
        either!(self, it => it.unheard())
    }

    pub(super) fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error> {
        either!(self, it => it.take_samples())
    }

    pub(super) fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        either!(self, it => it.take_connections())
    }

    pub(super) fn is_bounded(&self, id: u64) -> bool {
        either!(self, it => it.is_bounded(id))
    }

    pub(super) fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        either!(self, it => it.apply(allocation))
    }

    pub(super) fn release(&mut self) -> Result<(), Error> {
        either!(self, it => it.release())
    }

    pub(super) fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        either!(self, it => it.apply_windows(windows))
    }

    pub(super) fn release_windows(&mut self) -> Result<(), Error> {
        either!(self, it => it.release_windows())
    }

    pub(super) fn beat(&mut self) -> Result<(), Error> {
        either!(self, it => it.beat())
    }

    pub(super) fn detach(self) -> Result<(), Error> {
        either!(self, it => it.detach())
    }

    pub(super) fn has_windows(&self) -> bool {
        self.as_host().is_none_or(Host::has_windows)
    }

    /// Whether classes stay if the daemon is killed; a host's go with its intermediate device.
    pub(super) fn leaves_classes(&self) -> bool {
        matches!(self, Point::Router(_))
    }

    /// What arrived for the router itself.
    pub(super) fn own_traffic(&self) -> Option<Bytes> {
        match self {
            Point::Host(_) => None,
            Point::Router(router) => Some(router.own_traffic()),
        }
    }

    /// What this kernel cannot do for the policy, in words.
    pub(super) fn limits(&self) -> Vec<String> {
        self.as_host().map(Host::limits).unwrap_or_default()
    }

    /// The program that lifts a host's bounds if the daemon is killed.
    pub(super) fn expiry_program(&self) -> Option<ExpiryProgram> {
        self.as_host().and_then(Host::expiry_program)
    }
}
