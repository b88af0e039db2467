//! Tells the proxy beside a router which devices' connections to relay, and the rate of each device.
//!
//! It uses a thread of its own, so that a proxy that hangs delays nothing else. What the proxy is told expires, so it
//! is repeated: if a router is killed, no device stays behind the proxy.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use fairweir_core::policy::{PATH_SEPARATOR, Policy};
use fairweir_core::receiver::Decision;
use fairweir_core::relay::{FOR_MS_MAX, Told, ToldDevice};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::{Access, Client};
use serde::Serialize;
use tracing::{info, warn};

use crate::instance::PROXY;

/// How long to wait for a reply; a daemon replies within a tick.
const PATIENCE: Duration = Duration::from_secs(1);
/// An unchanged list is sent again after this time; it expires after [`FOR_MS`] milliseconds.
const AGAIN_AFTER: Span = Span::secs(1);
const FOR_MS: u64 = 3_000;
const _: () = assert!(FOR_MS <= FOR_MS_MAX);

/// A request to `fairweir proxy`.
#[derive(Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
enum Request {
    Relay(Told),
}

/// Tells the proxy; see the module.
pub(super) struct Teller {
    asks: SyncSender<Told>,
    /// The list that was sent last, and when.
    told: Option<(Vec<ToldDevice>, Time)>,
}

impl Teller {
    /// Starts a teller for the proxy whose socket is in a directory.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(run_dir: &Path) -> io::Result<Teller> {
        let (asks, asked) = sync_channel(1);
        let run_dir = run_dir.to_owned();
        thread::Builder::new().name("tell-proxy".to_owned()).spawn(move || tell(run_dir, asked))?;
        Ok(Teller { asks, told: None })
    }

    /// Sends the list if it has changed, and otherwise from time to time.
    pub(super) fn handle_tick(&mut self, devices: Vec<ToldDevice>, now: Time) {
        let is_known = |(told, at): &(Vec<ToldDevice>, Time)| {
            *told == devices && (devices.is_empty() || now.since(*at) < AGAIN_AFTER)
        };
        let is_nothing = devices.is_empty() && self.told.is_none();
        if is_nothing || self.told.as_ref().is_some_and(is_known) {
            return;
        }
        match self.asks.try_send(Told { devices: devices.clone(), for_ms: FOR_MS }) {
            Ok(()) => self.told = Some((devices, now)),
            // The thread still waits for the proxy. A later tick sends the list of that time.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// The devices with these names, each with the rate that its classes may have.
pub(super) fn devices(relayed: &[String], policy: &Policy, decision: &Decision) -> Vec<ToldDevice> {
    let of = |name: &String| {
        let branch = policy.branches().iter().find(|b| b.group.name == *name)?;
        let ceils = leaves(policy, name).map(|i| decision.groups.get(i).and_then(|g| g.ceil));
        // The sum of the leaves' rates, if each has one.
        let rate_bps: Option<Rate> = ceils.sum();
        let matches = branch.group.matches.clone();
        Some(ToldDevice { name: name.clone(), matches, rate_bps })
    };
    relayed.iter().filter_map(of).collect()
}

/// The indices of the leaves of a device.
pub(super) fn leaves<'p>(policy: &'p Policy, device: &'p str) -> impl Iterator<Item = usize> + 'p {
    let is_of = move |path: &str| path.split(PATH_SEPARATOR).next() == Some(device);
    let groups = policy.groups().iter().enumerate();
    groups.filter(move |(_, group)| is_of(&group.name)).map(|(i, _)| i)
}

fn tell(run_dir: PathBuf, asked: Receiver<Told>) {
    let mut was_followed = None;
    for told in asked {
        let said = Client::connect(&run_dir, PROXY, Access::Change, PATIENCE)
            .and_then(|mut client| client.tell(&Request::Relay(told), &mut |_, _| ()));
        if was_followed != Some(said.is_ok()) {
            match &said {
                Ok(_) => info!("the proxy relays the devices with `via = \"proxy\"`"),
                Err(e) => warn!("devices with `via = \"proxy\"` pass directly: {e}"),
            }
        }
        was_followed = Some(said.is_ok());
    }
}
