//! The place where the download is counted and shaped: at a host's interface, or at a router's.

use std::ops::{Deref, DerefMut};

use fairweir_config::host::UploadChoice;
use fairweir_core::policy::Policy;
use fairweir_core::sites::{InnerSites, Sites};
use fairweir_core::units::Bytes;
use fairweir_linux::{Attached, ExpiryProgram, Host, HostSpec, Router, RouterSpec, Sharing, sweep};
use tracing::info;

use super::settings::Settings;

/// What the daemon has attached; the common functions are in [`Attached`].
pub(super) enum Point {
    Host(Box<Host>),
    Router(Box<Router>),
}

impl Point {
    /// Removes leftovers from the interfaces, unless this is a dry run, and attaches to them.
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
        Ok(match settings.lans() {
            [] => {
                let spec = HostSpec { dev, policy, mode, census: false, marks: settings.marks() };
                let attach = match settings.shares_upload() {
                    true => Host::attach_sharing_upload,
                    false => Host::attach,
                };
                Point::Host(Box::new(attach(&spec)?))
            }
            lans => {
                let upload = match settings.config.host.upload {
                    UploadChoice::Auto => Sharing::IfPossible,
                    UploadChoice::On => Sharing::Always,
                    UploadChoice::Off => Sharing::Never,
                };
                let marks = settings.marks();
                let (lans, wans) = (lans.to_vec(), settings.wans().map(str::to_owned).collect());
                let spec = RouterSpec { lans, wans, policy, mode, upload, marks };
                Point::Router(Box::new(Router::attach(&spec)?))
            }
        })
    }

    /// The host, which has sockets, unlike a router.
    pub(super) fn as_host(&self) -> Option<&Host> {
        match self {
            Point::Host(host) => Some(host),
            Point::Router(_) => None,
        }
    }

    /// The router, which has devices with names, unlike a host.
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

    /// Whether [`Attached::set_policy`] is enough for `policy`; if not, attaching again is necessary.
    pub(super) fn can_take_over(&self, policy: &Policy) -> bool {
        self.as_router().is_none_or(|router| router.can_take_over(policy))
    }

    /// The `web:` patterns of `policy`, and their targets: groups, or on a router labels.
    pub(super) fn sites(&self, policy: &Policy) -> Sites {
        match self {
            Point::Host(_) => Sites::of(policy),
            Point::Router(_) => InnerSites::of(policy).labels,
        }
    }

    pub(super) fn has_windows(&self) -> bool {
        self.as_host().is_none_or(Host::has_windows)
    }

    /// Whether classes remain if the daemon is killed; a host's disappear with its intermediate device.
    pub(super) fn leaves_classes(&self) -> bool {
        matches!(self, Point::Router(_))
    }

    /// The bytes that arrived for the router itself.
    pub(super) fn own_traffic(&self) -> Option<Bytes> {
        match self {
            Point::Host(_) => None,
            Point::Router(router) => Some(router.own_traffic()),
        }
    }

    /// What this kernel cannot do for the policy, in words.
    pub(super) fn limits(&self) -> Vec<String> {
        match self {
            Point::Host(host) => host.limits(),
            Point::Router(router) => router.limits(),
        }
    }

    /// The program that removes a host's window bounds if the daemon is killed.
    pub(super) fn expiry_program(&self) -> Option<ExpiryProgram> {
        self.as_host().and_then(Host::expiry_program)
    }
}

impl Deref for Point {
    type Target = dyn Attached;

    fn deref(&self) -> &Self::Target {
        match self {
            Point::Host(host) => &**host,
            Point::Router(router) => &**router,
        }
    }
}

impl DerefMut for Point {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Point::Host(host) => &mut **host,
            Point::Router(router) => &mut **router,
        }
    }
}
