//! The capacity that a network was last found to have, so that the control starts near it.
//!
//! There is one file for each direction, with a list of entries: each for a device and the network
//! that it was connected to. A file that cannot be read is logged and counts as empty: the capacity
//! is then learned again. A dry run reads the files and writes nothing.
//!
//! A capacity is stored only if it stayed the same for a minute in which the link was used. So a
//! short disturbance, or an attack on the measurement, has no effect beyond its end.

use fairweir_core::receiver::{CAPACITY_MIN, TICK};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::{Error, StateDir, unix_now};
use serde::{Deserialize, Serialize};
use tracing::warn;

use fairweir_config::value::CAPACITY_MAX;

/// The greatest age of a capacity that is used: later an access line may have another contract.
const AGE_MAX_S: u64 = 30 * 24 * 3600;

/// The files in the state directory.
const DOWNLOAD: &str = "capacity.json";
const UPLOAD: &str = "upload-capacity.json";

/// The largest file, in bytes.
const FILE_SIZE_MAX: u64 = 64 << 10;

/// The most networks that are remembered; the oldest is forgotten first.
const ENTRIES_MAX: usize = 64;

/// A capacity counts as unchanged within these fractions of the first one of its minute.
const SAME: [(u64, u64); 2] = [(80, 100), (125, 100)];

/// The smallest relative change that is stored. An upload is held 15/1000 below its capacity.
const STORE_CHANGE: (u64, u64) = (5, 1_000);

/// A capacity that is stored early may be a rough guess: it is stored again after this pause, which doubles each time.
const STORE_PAUSE: (Span, Span) = (Span::secs(1), Span::secs(60));

/// The memories of both directions.
#[derive(Debug)]
pub(super) struct Memories {
    pub(super) download: Memory,
    pub(super) upload: Memory,
}

impl Memories {
    /// The memories in `dir`, for capacities that stay unchanged for `needed`.
    pub(super) fn new(dir: &StateDir, is_read_only: bool, needed: Span) -> Memories {
        let of = |file| Memory::new(dir.clone(), file, is_read_only, needed);
        Memories { download: of(DOWNLOAD), upload: of(UPLOAD) }
    }
}

/// The remembered capacities of one direction, and their file.
#[derive(Debug)]
pub(super) struct Memory {
    dir: StateDir,
    file: &'static str,
    is_read_only: bool,
    confirmation: Confirmation,
    /// The stored capacity of the network that was last recalled or stored.
    stored: Option<Rate>,
    /// Nothing is stored before this time; and the length of the next pause.
    pause: (Time, Span),
}

/// How long the learned capacity has been unchanged.
#[derive(Debug)]
struct Confirmation {
    needed: Span,
    capacity: Option<Rate>,
    /// The time in which at least half of the capacity was received.
    used: Span,
}

impl Confirmation {
    fn handle_tick(&mut self, learned: Option<Rate>, received: Rate, interval: Span) {
        let [low, high] = SAME;
        let is_same = match (self.capacity, learned) {
            (Some(old), Some(new)) => {
                (old.scale(low.0, low.1)..=old.scale(high.0, high.1)).contains(&new)
            }
            _ => false,
        };
        if !is_same {
            (self.capacity, self.used) = (learned, Span::ZERO);
        }
        if learned.is_some_and(|learned| received >= learned / 2) {
            // A time in which the machine was suspended does not count as use.
            self.used += interval.min(TICK * 2);
        }
    }
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
    fn new(dir: StateDir, file: &'static str, is_read_only: bool, needed: Span) -> Memory {
        let confirmation = Confirmation { needed, capacity: None, used: Span::ZERO };
        Memory {
            dir,
            file,
            is_read_only,
            confirmation,
            stored: None,
            pause: (Time::ZERO, STORE_PAUSE.0),
        }
    }

    /// Takes the capacity that the control has `learned`, and the rate that `passed` in an interval.
    pub(super) fn handle_tick(&mut self, learned: Option<Rate>, passed: Rate, interval: Span) {
        self.confirmation.handle_tick(learned, passed, interval);
    }

    /// The network has changed: what was learned until now belongs to the old one.
    pub(super) fn handle_moved(&mut self) {
        self.handle_tick(None, Rate::ZERO, Span::ZERO);
    }

    /// Stores the capacity that was `learned` of `network`, if it was confirmed and differs from
    /// the stored one; after a pause, or `at_once`.
    pub(super) fn keep(
        &mut self,
        (dev, network): (&str, &str),
        learned: Option<Rate>,
        now: Time,
        at_once: bool,
    ) {
        let Some(learned) = learned.filter(|_| self.is_confirmed()) else { return };
        if now < self.pause.0 && !at_once {
            return;
        }
        let differs = |stored: Rate| {
            let change = learned.max(stored).saturating_sub(learned.min(stored));
            change > stored.scale(STORE_CHANGE.0, STORE_CHANGE.1)
        };
        if self.stored.is_none_or(differs) {
            self.store(dev, network, learned);
            self.stored = Some(learned);
        }
        let (_, pause) = self.pause;
        self.pause = (now + pause, (pause * 2).min(STORE_PAUSE.1));
    }

    /// Whether the learned capacity was confirmed long enough to be stored.
    fn is_confirmed(&self) -> bool {
        let Confirmation { needed, capacity, used } = self.confirmation;
        capacity.is_some() && used >= needed
    }

    /// The stored capacity of `network` at `dev` and its age in seconds, if it is not too old and
    /// is a possible capacity of a link.
    pub(super) fn recall(&mut self, dev: &str, network: &str) -> Option<(Rate, u64)> {
        let plausible = |e: &Entry| (CAPACITY_MIN..=CAPACITY_MAX).contains(&e.capacity_bps);
        let entry = self.read().into_iter().find(|e| e.dev == dev && e.network == network);
        let entry = entry.filter(plausible);
        self.stored = entry.as_ref().map(|e| e.capacity_bps);
        self.pause = (Time::ZERO, STORE_PAUSE.0);
        entry.map(|e| (e.capacity_bps, unix_now().saturating_sub(e.at)))
    }

    /// Stores `capacity` for `network` at `dev`; an error is logged and has no other effect.
    fn store(&self, dev: &str, network: &str, capacity: Rate) {
        if self.is_read_only {
            return;
        }
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
            warn!("the capacity is not remembered: {e}");
        }
    }

    /// The stored entries that are not too old.
    fn read(&self) -> Vec<Entry> {
        let text = match self.dir.read(self.file, FILE_SIZE_MAX) {
            Ok(text) => text,
            Err(e) => {
                warn!("remembered capacities are ignored: {e}");
                None
            }
        };
        let Some(text) = text else { return Vec::new() };
        let contents: Contents = serde_json::from_slice(&text).unwrap_or_else(|e| {
            let path = self.dir.path_of(self.file);
            warn!("remembered capacities are ignored: {}: {e}", path.display());
            Contents::default()
        });
        let oldest = unix_now().saturating_sub(AGE_MAX_S);
        contents.networks.into_iter().filter(|e| e.at >= oldest).take(ENTRIES_MAX).collect()
    }

    fn write(&self, contents: &Contents) -> Result<(), Error> {
        let text =
            serde_json::to_vec_pretty(contents).expect("invariant: the contents have string keys");
        self.dir.write(self.file, &text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn memory_in(dir: &Path) -> Memory {
        Memory::new(StateDir::new(dir), DOWNLOAD, false, Span::ZERO)
    }

    #[test]
    fn a_capacity_is_confirmed_by_a_minute_of_use_without_change() {
        let nowhere = StateDir::new(Path::new("/nowhere"));
        let mut memory = Memory::new(nowhere, DOWNLOAD, false, Span::secs(60));
        let mut play = |learned: Rate, received: Rate, seconds: u64| {
            for _ in 0..seconds * 5 {
                memory.handle_tick(Some(learned), received, TICK);
            }
            memory.is_confirmed()
        };
        let (right, wrong) = (Rate::mbit(30), Rate::mbit(1));
        assert!(!play(right, right, 59));
        assert!(play(right.scale(9, 10), right, 1), "about the same");
        assert!(!play(wrong, wrong, 59), "an attack of a minute");
        assert!(!play(right, right, 59), "and its end");
        assert!(!play(right, wrong, 600), "an idle link confirms nothing");
        assert!(play(right, right, 1));
        memory.handle_tick(None, right, TICK);
        assert!(!memory.is_confirmed(), "another control");
    }

    #[test]
    fn what_is_stored_is_recalled_for_its_device_and_network_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = memory_in(&dir.path().join("deeper"));
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
    fn each_direction_has_a_memory_of_its_own_and_keeps_what_differs() {
        let dir = tempfile::tempdir().unwrap();
        let all = || Memories::new(&StateDir::new(dir.path()), false, Span::ZERO);
        let Memories { mut download, mut upload } = all();
        let some = |mbit| Some(Rate::mbit(mbit));
        let at = Time::ZERO;
        for (memory, mbit) in [(&mut download, 100), (&mut upload, 10)] {
            memory.keep(("eth0", "home"), some(mbit), at, true);
            assert_eq!(memory.stored, None, "nothing is confirmed");
            memory.handle_tick(some(mbit), Rate::mbit(mbit), TICK);
            memory.keep(("eth0", "home"), some(mbit), at, true);
            memory.keep(("eth0", "home"), Some(Rate::mbit(mbit).scale(1_004, 1_000)), at, true);
            memory.handle_moved();
            memory.keep(("eth0", "cafe"), some(1), at, true);
        }
        let Memories { mut download, mut upload } = all();
        assert_eq!(download.recall("eth0", "home").unwrap().0, Rate::mbit(100));
        assert_eq!(upload.recall("eth0", "home").unwrap().0, Rate::mbit(10));
        assert_eq!(upload.recall("eth0", "cafe"), None);
        assert_eq!(upload.stored, None);
    }

    #[test]
    fn a_rough_guess_is_corrected_soon_and_later_changes_wait() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = memory_in(dir.path());
        let mut keep = |seconds, mbit| {
            let learned = Some(Rate::mbit(mbit));
            memory.handle_tick(learned, Rate::mbit(mbit), TICK);
            memory.keep(("eth0", "home"), learned, Time::ZERO + Span::secs(seconds), false);
            memory.stored.unwrap().as_mbit_f64() as u64
        };
        assert_eq!([keep(1, 102), keep(1, 101), keep(2, 100)], [102, 102, 100]);
        for seconds in 3..200 {
            keep(seconds, 100);
        }
        let changed: Vec<_> = (200..320).filter(|&at| keep(at, 100 + at) == 100 + at).collect();
        assert!(changed.len() <= 2, "{changed:?}");
    }

    #[test]
    fn what_is_old_or_broken_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let memory = memory_in(dir.path());
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
        fs::write(memory.dir.path_of(DOWNLOAD), "{ broken").unwrap();
        assert_eq!(memory.read(), []);
        memory.store("eth0", "home", Rate::mbit(30));
        assert_eq!(memory.read().len(), 1);
    }

    #[test]
    fn the_memory_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let memory = memory_in(dir.path());
        for i in 0..ENTRIES_MAX + 5 {
            memory.store("eth0", &format!("network {i}"), Rate::mbit(30));
        }
        assert_eq!(memory.read().len(), ENTRIES_MAX);
    }

    #[test]
    fn a_dry_run_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        memory_in(dir.path()).store("eth0", "home", Rate::mbit(30));
        let mut memory = Memory::new(StateDir::new(dir.path()), DOWNLOAD, true, Span::ZERO);
        memory.store("eth0", "home", Rate::mbit(99));
        assert_eq!(memory.recall("eth0", "home").unwrap().0, Rate::mbit(30));
    }
}
