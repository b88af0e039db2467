//! The daemon's side of `host:` rules: DHCP messages that pass the LAN go to [`Leases`], and the
//! devices that have the rules' names go to the kernel.
//!
//! A device that was just given its address is assigned at once: the daemon wakes when a message
//! passed, but at most once every [`PAUSE`]. Leases are remembered over restarts, since a device
//! may not ask again for a day; a dry run stores nothing.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use fairweir_core::lease::{Binding, LEASE_MAX, LEASES_MAX, Lease, Leases};
use fairweir_core::packet::Mac;
use fairweir_core::policy::{Match, Policy, host_label};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{StateDir, unix_now};
use fairweir_linux::{Error, Router};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::wire::HostStatus;

/// The names of devices.
#[derive(Debug)]
pub(super) struct LeaseControl {
    leases: Leases,
    /// The bindings that the kernel has.
    bound: Vec<Binding>,
    /// Whether the kernel must be updated.
    is_stale: bool,
    dir: StateDir,
    file: String,
    is_read_only: bool,
    pauses_until: Option<Time>,
    store_at: Option<Time>,
}

/// The longest delay until a device is in its group.
const PAUSE: Span = Span::millis(20);
/// The pause between a change and writing the file, so that a flood of requests does not cause constant writes.
const STORE_PAUSE: Span = Span::secs(10);
/// The largest file, in bytes: a lease takes about 150 bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    leases: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    mac: Mac,
    name: String,
    address: Ipv4Addr,
    /// Seconds since 1970.
    since: u64,
    until: u64,
}

impl LeaseControl {
    /// Starts for the devices at `lan`, with the leases that are stored in `dir`.
    pub(super) fn new(dir: StateDir, lan: &str, is_read_only: bool, now: Time) -> LeaseControl {
        let mut control = LeaseControl {
            leases: Leases::default(),
            bound: Vec::new(),
            is_stale: true,
            dir,
            file: format!("leases-{lan}.json"),
            is_read_only,
            pauses_until: None,
            store_at: None,
        };
        control.recall(now, unix_now());
        control
    }

    /// When to listen again, during a pause.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.pauses_until
    }

    /// The descriptor to wait for, outside a pause.
    pub(super) fn waits_for<'r>(&self, router: &'r Router) -> Option<BorrowedFd<'r>> {
        self.pauses_until.is_none().then(|| router.dhcp_fd())
    }

    /// The router was attached again, or has another policy.
    pub(super) fn handle_change(&mut self) {
        self.is_stale = true;
    }

    /// Reads the DHCP messages that passed; updates the kernel if a name now belongs to another device.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn listen(
        &mut self,
        router: &mut Router,
        policy: &Policy,
        now: Time,
    ) -> Result<(), Error> {
        if self.pauses_until.is_none_or(|until| now >= until) {
            let wanted = names(policy);
            let (leases, mut has_heard, mut has_changed) = (&mut self.leases, false, false);
            router.take_dhcp(|heard| {
                has_heard = true;
                has_changed |= leases.handle_heard(heard, &wanted, now);
            })?;
            self.pauses_until = has_heard.then_some(now + PAUSE);
            if has_changed {
                self.store_at.get_or_insert(now + STORE_PAUSE);
            }
            self.is_stale |= has_changed;
        }
        self.is_stale |= self.leases.handle_time(now);
        if !self.is_stale {
            return Ok(());
        }
        let bindings = self.leases.bindings(policy, now);
        let hosts: Vec<(Mac, usize)> =
            bindings.iter().filter_map(|b| Some((b.mac?, b.group))).collect();
        router.set_hosts(&hosts)?;
        for binding in bindings.iter().filter(|binding| !self.bound.contains(binding)) {
            say(binding, policy);
        }
        self.bound = bindings;
        self.is_stale = false;
        Ok(())
    }

    /// The device that has each name of the policy.
    pub(super) fn status(&self, policy: &Policy) -> Vec<HostStatus> {
        let group = |index: usize| policy.groups().get(index).map(|group| group.name.clone());
        let status = |binding: &Binding| HostStatus {
            name: binding.name.clone(),
            group: group(binding.group).unwrap_or_default(),
            mac: binding.mac,
            rivals: binding.rivals,
        };
        self.bound.iter().map(status).collect()
    }

    /// The name of a device by its lease, and the time since which the device has had a lease.
    pub(super) fn lease(&self, mac: Mac, now: Time) -> Option<(&str, Time)> {
        let (_, lease) = self.leases.live(now).find(|(of, _)| *of == mac)?;
        Some((&lease.name, lease.since))
    }

    /// Stores changes after a pause; `at_once` at the end.
    pub(super) fn store(&mut self, now: Time, at_once: bool) {
        if self.is_read_only || self.store_at.is_none_or(|at| now < at && !at_once) {
            return;
        }
        self.store_at = None;
        let wall = unix_now();
        let secs = |span: Span| span.as_nanos() / 1_000_000_000;
        let entry = |(mac, lease): (Mac, &Lease)| Entry {
            mac,
            name: lease.name.clone(),
            address: lease.address,
            since: wall.saturating_sub(secs(now.since(lease.since))),
            until: wall + secs(lease.until.since(now)),
        };
        let contents = Contents { version: 1, leases: self.leases.live(now).map(entry).collect() };
        let text = serde_json::to_vec(&contents).map_err(|e| e.to_string());
        let stored =
            text.and_then(|text| self.dir.write(&self.file, &text).map_err(|e| e.to_string()));
        if let Err(e) = stored {
            warn!("the leases are not remembered: {e}");
        }
    }

    fn recall(&mut self, now: Time, wall: u64) {
        let text = match self.dir.read(&self.file, FILE_BYTES_MAX) {
            Ok(text) => text.unwrap_or_else(|| b"{\"version\":1,\"leases\":[]}".to_vec()),
            Err(e) => return warn!("the leases are not known: {e}"),
        };
        let contents: Contents = match serde_json::from_slice(&text) {
            Ok(contents) => contents,
            Err(e) => return warn!("the leases are not known: {}: {e}", self.file),
        };
        for entry in contents.leases.into_iter().take(LEASES_MAX) {
            let is_valid = host_label(&entry.name).as_ref() == Some(&entry.name);
            if contents.version != 1 || !is_valid || entry.until <= wall {
                continue;
            }
            let age = Span::secs(wall.saturating_sub(entry.since).min(LEASE_SECS_MAX));
            let since = now.since(Time::ZERO).as_nanos().saturating_sub(age.as_nanos());
            let lease = Lease {
                name: entry.name,
                address: entry.address,
                since: Time::ZERO + Span::nanos(since),
                until: now + Span::secs((entry.until - wall).min(LEASE_SECS_MAX)),
            };
            self.leases.restore(entry.mac, lease);
        }
    }
}

const LEASE_SECS_MAX: u64 = LEASE_MAX.as_nanos() / 1_000_000_000;

fn names(policy: &Policy) -> BTreeSet<&str> {
    let matches = policy.groups().iter().flat_map(|group| &group.matches);
    matches
        .filter_map(|m| if let Match::Host(name) = m { Some(name.as_str()) } else { None })
        .collect()
}

fn say(binding: &Binding, policy: &Policy) {
    let Binding { name, group, mac, rivals } = binding;
    let group = policy.groups().get(*group).map_or("", |group| group.name.as_str());
    match mac {
        Some(mac) => info!(%name, group, %mac, "a device has a name of the configuration"),
        None => info!(%name, group, "no device has this name of the configuration"),
    }
    if *rivals > 0 {
        warn!(%name, group, %rivals, "other devices claim the name and are not in the group");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn lease(name: &str, since: u64, until: u64) -> Lease {
        let [since, until] = [since, until].map(|s| Time::ZERO + Span::secs(s));
        Lease { name: name.into(), address: Ipv4Addr::new(192, 168, 7, 9), since, until }
    }

    #[test]
    fn leases_are_remembered_and_nonsense_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = || StateDir::new(&dir.path().join("state"));
        let now = Time::ZERO + Span::secs(1_000);
        let mut control = LeaseControl::new(state(), "br-lan", false, now);
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        control.leases.restore(mac(1), lease("tv", 900, 4_600));
        control.leases.restore(mac(2), lease("gone", 900, 999));
        control.store(now, true);
        assert!(!dir.path().join("state").exists(), "nothing has changed");
        control.store_at = Some(now + STORE_PAUSE);
        control.store(now, false);
        assert!(!dir.path().join("state").exists(), "it waits");
        control.store(now + STORE_PAUSE, false);
        // After a reboot the monotonic clock starts at zero again.
        let early = Time::ZERO + Span::secs(5);
        let control = LeaseControl::new(state(), "br-lan", false, early);
        let known: Vec<_> = control.leases.live(early).collect();
        assert_eq!((known.len(), known[0].0, known[0].1.name.as_str()), (1, mac(1), "tv"));
        let left = known[0].1.until.since(early).as_nanos() / 1_000_000_000;
        assert!((3_580..=3_600).contains(&left), "{left} s");
        assert_eq!(LeaseControl::new(state(), "lan2", false, early).leases.live(early).count(), 0);
        let path = dir.path().join("state/leases-br-lan.json");
        let text = fs::read_to_string(&path).unwrap();
        let nonsense = [
            text.replace("tv", "t\\u001bv"),
            text.replace("02:00", "01:00"),
            "{".to_owned(),
            text.replace(":1,", ":2,"),
        ];
        for nonsense in nonsense {
            fs::write(&path, nonsense).unwrap();
            let control = LeaseControl::new(state(), "br-lan", false, early);
            assert_eq!(control.leases.live(early).count(), 0);
        }
    }
}
