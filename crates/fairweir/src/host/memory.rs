//! The capacity that a network was last seen to have, so that control begins near it.
//!
//! One file for all daemons: a list of entries, each for a device and the network that it was
//! connected to. It is replaced in one step, so that a reader never sees half of it. What cannot
//! be read is as good as nothing remembered: the capacity is learned anew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fairweir_core::receiver::CAPACITY_MIN;
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};
use tracing::warn;

use fairweir_config::value::CAPACITY_MAX;

/// After this time an access line may well have another contract.
const AGE_MAX_S: u64 = 30 * 24 * 3600;

/// The most networks that are remembered; the oldest is forgotten first.
const ENTRIES_MAX: usize = 64;

/// What is remembered, and where.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    networks: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    dev: String,
    network: String,
    capacity_bps: Rate,
    /// Seconds since 1970.
    at: u64,
}

impl Memory {
    /// The memory below `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Memory {
        Memory { path: state_dir.join("capacity.json") }
    }

    /// The capacity of `network` at `dev` and its age in seconds, if it is not too old and one that
    /// a link can have.
    pub(super) fn recall(&self, dev: &str, network: &str) -> Option<(Rate, u64)> {
        let entry = self.read().into_iter().find(|e| e.dev == dev && e.network == network)?;
        let capacity = entry.capacity_bps;
        let plausible = (CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity);
        plausible.then(|| (capacity, unix_now().saturating_sub(entry.at)))
    }

    /// Remembers `capacity` for `network` at `dev`; a failure is logged and costs nothing else.
    pub(super) fn store(&self, dev: &str, network: &str, capacity: Rate) {
        let mut networks = self.read();
        networks.retain(|e| e.dev != dev || e.network != network);
        networks.push(Entry {
            dev: dev.to_owned(),
            network: network.to_owned(),
            capacity_bps: capacity,
            at: unix_now(),
        });
        networks.sort_by_key(|e| std::cmp::Reverse(e.at));
        networks.truncate(ENTRIES_MAX);
        if let Err(e) = self.write(&Contents { version: 1, networks }) {
            warn!(path = %self.path.display(), "the capacity cannot be remembered: {e}");
        }
    }

    /// The entries that are young enough.
    fn read(&self) -> Vec<Entry> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(e) => {
                warn!(path = %self.path.display(), "what is remembered cannot be read: {e}");
                return Vec::new();
            }
        };
        let contents: Contents = serde_json::from_slice(&text).unwrap_or_else(|e| {
            warn!(path = %self.path.display(), "what is remembered is not understood: {e}");
            Contents::default()
        });
        let oldest = unix_now().saturating_sub(AGE_MAX_S);
        contents.networks.into_iter().filter(|e| e.at >= oldest).collect()
    }

    fn write(&self, contents: &Contents) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let new = self.path.with_extension(format!("json.{}", std::process::id()));
        fs::write(&new, serde_json::to_vec_pretty(contents)?)?;
        fs::rename(&new, &self.path)
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_recalled_for_its_device_and_network_alone() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(&dir.path().join("deeper"));
        assert_eq!(memory.recall("eth0", "home"), None);
        memory.store("eth0", "home", Rate::mbit(30));
        memory.store("eth0", "cafe", Rate::mbit(5));
        memory.store("eth0", "home", Rate::mbit(31));
        let (capacity, age) = memory.recall("eth0", "home").unwrap();
        assert_eq!(capacity, Rate::mbit(31));
        assert!(age <= 1);
        assert_eq!(memory.recall("eth0", "cafe").unwrap().0, Rate::mbit(5));
        assert_eq!(memory.recall("eth1", "home"), None);
        memory.store("eth1", "home", Rate::ZERO);
        assert_eq!(memory.recall("eth1", "home"), None, "no link has that");
        assert_eq!(fs::read_dir(dir.path().join("deeper")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_old_or_broken_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(dir.path());
        let entry = |at| Entry {
            dev: "eth0".into(),
            network: format!("from {at}"),
            capacity_bps: Rate::mbit(1),
            at,
        };
        let now = unix_now();
        let networks = vec![entry(now - AGE_MAX_S - 10), entry(now - AGE_MAX_S + 10)];
        memory.write(&Contents { version: 1, networks }).unwrap();
        assert_eq!(memory.read().len(), 1);
        fs::write(&memory.path, "{ broken").unwrap();
        assert_eq!(memory.read(), []);
        memory.store("eth0", "home", Rate::mbit(30));
        assert_eq!(memory.read().len(), 1);
    }

    #[test]
    fn the_memory_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(dir.path());
        for i in 0..ENTRIES_MAX + 5 {
            memory.store("eth0", &format!("network {i}"), Rate::mbit(30));
        }
        assert_eq!(memory.read().len(), ENTRIES_MAX);
    }
}
