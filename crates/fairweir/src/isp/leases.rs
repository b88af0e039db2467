//! Subscribers from the files of DHCP servers. See `fairweir_core::lease_file`.
//!
//! Files are looked at once a second and read if they changed, but not for more than a twentieth of the
//! time. A DHCP server may rewrite its file in place, so a lease is over if two readings lack it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fairweir_config::file::{Rules, Text, Trust};
use fairweir_config::isp::{LeasesSection, SubscriberSpec};
use fairweir_core::lease_file::{self, FileLease};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::unix_now;
use fairweir_linux::monotonic_now;
use ipnet::IpNet;
use tracing::warn;

use super::registry::{ADDRESSES_MAX, Change, Origin};
use super::sessions::Subscribers;
use super::wire::LeasesStatus;
use crate::words::chained;

/// The largest file, in bytes, as for a table of subscribers.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How often an unchanged file is read: leases end without a change of the file.
const READ_PERIOD: Span = Span::secs(60);
/// Reading takes at most 1/20 of the time.
const READ_PART: u64 = 20;

/// See the module.
pub(super) struct Leases {
    section: LeasesSection,
    stamps: Vec<Option<Stamp>>,
    read_at: Option<Time>,
    /// Not before this, as the last reading took long.
    not_before: Time,
    /// What the registry has, by MAC address.
    given: BTreeMap<String, Vec<IpNet>>,
    /// Those that the last reading lacked.
    missing: BTreeSet<String>,
    skipped: usize,
    /// Leases that the registry refused.
    refused: usize,
    error: Option<String>,
}

/// What changes when a file does: device, inode, size, time.
type Stamp = (u64, u64, u64, i64, i64);

impl Leases {
    pub(super) fn new(section: LeasesSection) -> Leases {
        Leases {
            stamps: vec![None; section.files.len()],
            section,
            read_at: None,
            not_before: Time::ZERO,
            given: BTreeMap::new(),
            missing: BTreeSet::new(),
            skipped: 0,
            refused: 0,
            error: None,
        }
    }

    pub(super) fn section(&self) -> &LeasesSection {
        &self.section
    }

    /// Once a second: reads the files if they changed.
    pub(super) fn handle_tick(&mut self, daemon: &mut impl Subscribers, now: Time) {
        let stamps: Vec<Option<Stamp>> = self.section.files.iter().map(|f| stamp(f)).collect();
        let is_due = self.read_at.is_none_or(|at| now.since(at) >= READ_PERIOD);
        let is_wanted = is_due || stamps != self.stamps || !self.missing.is_empty();
        if !is_wanted || now < self.not_before {
            return;
        }
        (self.stamps, self.read_at) = (stamps, Some(now));
        let began = monotonic_now();
        let error = match self.read() {
            Ok(leases) => self.take(daemon, leases).err().map(|e| chained(&e)),
            Err(e) => Some(e),
        };
        if let Some(error) = error.as_ref().filter(|error| self.error.as_ref() != Some(error)) {
            warn!("leases are not taken over: {error}");
        }
        self.error = error;
        let took = monotonic_now().since(began);
        self.not_before = now + Span::nanos(took.as_nanos() * READ_PART);
    }

    /// What all files say.
    ///
    /// # Errors
    /// If one cannot be read.
    fn read(&mut self) -> Result<BTreeMap<String, Vec<IpNet>>, String> {
        let rules = Rules { bytes_max: FILE_BYTES_MAX, trust: Trust::NOT_OTHERS, if_missing: "" };
        let mut leases: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        let mut skipped = 0;
        for file in &self.section.files {
            let text = Text::read(file, &rules).map_err(|e| e.to_string())?;
            let read = lease_file::read(text.as_str(), unix_now());
            skipped += read.skipped;
            for FileLease { mac, address, .. } in read.leases {
                let addresses = leases.entry(mac.to_string()).or_default();
                if addresses.len() == ADDRESSES_MAX || addresses.contains(&address) {
                    skipped += 1;
                } else {
                    addresses.push(address);
                }
            }
        }
        self.skipped = skipped;
        Ok(leases)
    }

    /// Lets the registry follow.
    ///
    /// # Errors
    /// If the disk or the kernel refuses.
    fn take(
        &mut self,
        daemon: &mut impl Subscribers,
        leases: BTreeMap<String, Vec<IpNet>>,
    ) -> anyhow::Result<()> {
        let gone = self.given.keys().filter(|name| !leases.contains_key(*name));
        let gone: BTreeSet<String> = gone.cloned().collect();
        let is_over = |name: &&String| self.missing.contains(*name);
        let over: Vec<String> = gone.iter().filter(is_over).cloned().collect();
        let end = |name: &String| Change::End(name.clone(), Origin::Lease);
        let mut changes: Vec<Change> = over.iter().map(end).collect();
        let is_new =
            |(name, addresses): &(&String, &Vec<IpNet>)| self.given.get(*name) != Some(*addresses);
        let begin = |(name, addresses): (&String, &Vec<IpNet>)| {
            let (name, addresses) = (name.clone(), addresses.clone());
            Change::Begin(
                SubscriberSpec { name, addresses, plan: self.section.plan.clone() },
                Origin::Lease,
            )
        };
        changes.extend(leases.iter().filter(is_new).map(begin));
        let results = daemon.change_sessions(&changes)?;
        for name in &over {
            self.given.remove(name);
        }
        for (change, result) in changes.into_iter().zip(results) {
            let Change::Begin(spec, _) = change else { continue };
            match result {
                Ok(()) => drop(self.given.insert(spec.name, spec.addresses)),
                Err(e) => {
                    warn!("lease refused: {}: {e}", spec.name);
                    self.given.remove(&spec.name);
                }
            }
        }
        self.refused = leases.keys().filter(|name| !self.given.contains_key(*name)).count();
        self.missing = gone.into_iter().filter(|name| self.given.contains_key(name)).collect();
        Ok(())
    }

    pub(super) fn status(&self) -> LeasesStatus {
        let shown = |file: &std::path::PathBuf| file.display().to_string();
        LeasesStatus {
            files: self.section.files.iter().map(shown).collect(),
            devices: self.given.len(),
            skipped: self.skipped,
            refused: self.refused,
            error: self.error.clone(),
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let m = fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}
