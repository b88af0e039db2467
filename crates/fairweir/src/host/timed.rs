//! Changes of groups that end by themselves: another weight (`fairweir boost`), or next to nothing (`fairweir pause`).
//!
//! Problem: such a change must end on time even if the daemon or the machine restarts, and if the time of day is set.
//! Method: until the machine restarts, only CLOCK_BOOTTIME counts, which started with it, cannot be set, and includes
//! suspension. After a restart the time of day counts; if it is before the time at which the file was written, the
//! change has ended. The remaining time never exceeds that at the time of writing.
//!
//! A paused group has a cap of [`CAPACITY_MIN`], so that its connections stay open. The changes are in a file of the
//! state
//! directory, not in that of `[set]`: nothing is left to be undone if no daemon runs when they end.

use fairweir_config::host::Config;
use fairweir_core::policy::{Branch, GROUPS_MAX, Policy};
use fairweir_core::receiver::CAPACITY_MIN;
use fairweir_core::share::Weight;
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{StateDir, unix_now};
use fairweir_linux::boottime_now;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::wire::{TimedChange, TimedStatus};
use crate::words::lasting;

/// The largest file, in bytes: [`GROUPS_MAX`] changes of the longest names.
const FILE_SIZE_MAX: u64 = 256 << 10;
/// The id of this run of the kernel, which changes with each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A change of a group that lasts until `ends`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    /// The path of the group.
    pub(super) group: String,
    pub(super) change: TimedChange,
    /// The end, by CLOCK_BOOTTIME.
    pub(super) ends: Time,
}

/// The changes that are in force, at most one for each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TimedChanges(pub(super) Vec<Timed>);

impl TimedChanges {
    /// These changes with a new change of `group`, or without one for it.
    pub(super) fn with(&self, group: &str, new: Option<(TimedChange, Time)>) -> TimedChanges {
        let others = self.0.iter().filter(|timed| timed.group != group).cloned();
        let new = new.map(|(change, ends)| Timed { group: group.to_owned(), change, ends });
        TimedChanges(others.chain(new).collect())
    }

    /// These changes without those that have ended.
    pub(super) fn at(&self, now: Time) -> TimedChanges {
        TimedChanges(self.0.iter().filter(|timed| timed.ends > now).cloned().collect())
    }

    pub(super) fn of(&self, group: &str) -> Option<&Timed> {
        self.0.iter().find(|timed| timed.group == group)
    }

    /// `policy` with these changes; changes of groups that it does not have are ignored.
    pub(super) fn applied(&self, policy: &Policy) -> Policy {
        let mut branches = policy.branches().to_vec();
        for Timed { group, change, .. } in &self.0 {
            let Some(Branch { group, .. }) = Branch::find_mut(&mut branches, group) else {
                continue;
            };
            match *change {
                TimedChange::Boost { weight } => {
                    group.weight = weight.unwrap_or_else(|| boosted(group.weight));
                }
                TimedChange::Pause => group.max = Some(CAPACITY_MIN),
            }
        }
        Policy::nested(branches)
            .expect("invariant: weights and caps are not what makes a policy invalid")
    }

    /// The configuration with these changes.
    pub(super) fn applied_to(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.policy = self.applied(&config.policy);
        config
    }
}

/// The default weight of a boosted group with the weight `configured`.
fn boosted(configured: Weight) -> Weight {
    Weight::new((configured.as_u32() * BOOST).min(Weight::MAX)).unwrap_or(configured)
}

const BOOST: u32 = 4;

/// The clocks of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clocks {
    /// Differs after each start of the machine.
    boot: String,
    since_boot: Time,
    /// Seconds since 1970.
    unix_s: u64,
}

impl Clocks {
    fn now() -> Clocks {
        Clocks { boot: boot_id(), since_boot: boottime_now(), unix_s: unix_now() }
    }
}

/// Differs after each start of the machine; empty if the kernel does not provide it.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    boot: String,
    unix_s: u64,
    changes: Vec<StoredChange>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredChange {
    group: String,
    change: TimedChange,
    /// The end, by CLOCK_BOOTTIME, in seconds.
    ends_s: u64,
    /// The remaining seconds at `unix_s`.
    left_s: u64,
}

impl Stored {
    fn new(changes: &TimedChanges, at: &Clocks) -> Stored {
        let change = |timed: &Timed| StoredChange {
            group: timed.group.clone(),
            change: timed.change,
            ends_s: seconds(timed.ends.since(Time::ZERO)),
            left_s: seconds(timed.ends.since(at.since_boot)),
        };
        let changes = changes.0.iter().map(change).collect();
        Stored { version: 1, boot: at.boot.clone(), unix_s: at.unix_s, changes }
    }

    /// The changes that are still in force.
    fn at(self, now: &Clocks) -> TimedChanges {
        let is_same_boot = !now.boot.is_empty() && self.boot == now.boot;
        let mut changes = TimedChanges::default();
        for StoredChange { group, change, ends_s, left_s } in
            self.changes.into_iter().take(GROUPS_MAX)
        {
            let left = if is_same_boot {
                ends_s.saturating_sub(seconds(now.since_boot.since(Time::ZERO)))
            } else {
                // If the clock was set back, the elapsed time is unknown.
                now.unix_s
                    .checked_sub(self.unix_s)
                    .map_or(0, |passed| left_s.saturating_sub(passed))
            };
            let left = Span::secs(left.min(left_s).min(LENGTH_MAX.as_secs_f64() as u64));
            if left > Span::ZERO {
                changes = changes.with(&group, Some((change, now.since_boot + left)));
            }
        }
        changes
    }
}

fn seconds(span: Span) -> u64 {
    span.as_nanos().div_ceil(1_000_000_000)
}

/// The shortest and the longest duration of a change.
pub(super) const LENGTH_MIN: Span = Span::secs(1);
pub(super) const LENGTH_MAX: Span = Span::secs(31 * 24 * 3_600);

impl TimedChange {
    /// The change in words, for people; `configured` is the weight that the group has otherwise.
    pub(crate) fn in_words(self, configured: Weight) -> String {
        match self {
            TimedChange::Boost { weight } => {
                let weight = weight.unwrap_or_else(|| boosted(configured));
                format!("boosted to weight {weight}")
            }
            TimedChange::Pause => "paused".to_owned(),
        }
    }
}

impl TimedStatus {
    /// The change in words, for people.
    pub(crate) fn in_words(&self) -> String {
        let change = self.change.in_words(self.configured_weight);
        format!("{change}, {} left", lasting(self.left_s))
    }
}

/// The file of the daemon called `name`.
#[derive(Clone, Debug)]
pub(super) struct TimedFile {
    dir: StateDir,
    name: String,
}

impl TimedFile {
    pub(super) fn new(dir: StateDir, name: &str) -> TimedFile {
        TimedFile { dir, name: format!("timed-{name}.json") }
    }

    /// The stored changes that are still in force; broken contents are logged and ignored.
    pub(super) fn read(&self) -> TimedChanges {
        let read = self.dir.read(&self.name, FILE_SIZE_MAX).map_err(|e| e.to_string());
        let stored = read.and_then(|text| match text {
            None => Ok(None),
            Some(text) => match serde_json::from_slice::<Stored>(&text) {
                Ok(stored) if stored.version == 1 => Ok(Some(stored)),
                Ok(stored) => Err(format!("version {} is unknown", stored.version)),
                Err(e) => Err(e.to_string()),
            },
        });
        match stored {
            Ok(stored) => stored.map(|stored| stored.at(&Clocks::now())).unwrap_or_default(),
            Err(e) => {
                let path = self.dir.path_of(&self.name);
                warn!("boosts and pauses are ignored: {}: {e}", path.display());
                TimedChanges::default()
            }
        }
    }

    /// Replaces the file, or removes it if there are no changes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn write(&self, changes: &TimedChanges) -> Result<(), fairweir_daemon::Error> {
        if changes.0.is_empty() {
            return self.dir.remove(&self.name);
        }
        let stored = Stored::new(changes, &Clocks::now());
        let text = serde_json::to_vec(&stored).expect("invariant: the contents have string keys");
        self.dir.write(&self.name, &text)
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::policy::Group;
    use proptest::prelude::*;

    use super::*;

    fn weight(n: u32) -> Weight {
        Weight::new(n).unwrap()
    }

    fn clocks(boot: &str, since_boot: u64, unix_s: u64) -> Clocks {
        Clocks { boot: boot.to_owned(), since_boot: Time::ZERO + Span::secs(since_boot), unix_s }
    }

    fn pause(ends: u64) -> TimedChanges {
        let ends = Time::ZERO + Span::secs(ends);
        TimedChanges::default().with("a", Some((TimedChange::Pause, ends)))
    }

    /// The remaining seconds of a pause that is stored at `at` and read at `now`.
    fn left(length: u64, at: &Clocks, now: &Clocks) -> u64 {
        let stored = Stored::new(&pause(seconds(at.since_boot.since(Time::ZERO)) + length), at);
        let read: Stored = serde_json::from_str(&serde_json::to_string(&stored).unwrap()).unwrap();
        read.at(now).of("a").map_or(0, |timed| seconds(timed.ends.since(now.since_boot)))
    }

    #[test]
    fn within_one_start_of_the_machine_setting_the_clock_changes_nothing() {
        let at = clocks("x", 100, 1_000_000);
        for unix_s in [0, 999_000, 1_000_060, 9_000_000] {
            assert_eq!(left(600, &at, &clocks("x", 160, unix_s)), 540, "{unix_s}");
            assert_eq!(left(600, &at, &clocks("x", 700, unix_s)), 0, "{unix_s}");
        }
    }

    #[test]
    fn after_another_start_the_time_of_day_counts_and_a_clock_set_back_ends_it() {
        let at = clocks("x", 100, 1_000_000);
        assert_eq!(left(600, &at, &clocks("y", 5, 1_000_060)), 540);
        assert_eq!(left(600, &at, &clocks("y", 5, 1_000_600)), 0);
        assert_eq!(left(600, &at, &clocks("y", 5, 999_999)), 0);
        assert_eq!(
            left(600, &clocks("", 100, 50), &clocks("", 5, 60)),
            590,
            "no name of the start"
        );
    }

    proptest! {
        /// However often the daemon and the machine restart, and whatever the clock says, the remaining time never
        /// grows. Within one run of the machine it shrinks by exactly the time that has passed.
        #[test]
        fn no_clock_makes_a_change_longer(
            length in 1..100_000u64,
            steps in proptest::collection::vec((0..5_000u64, 0..3u8, any::<u32>()), 1..40),
        ) {
            let mut now = clocks("0", 1_000, 1_700_000_000);
            let mut changes = pause(1_000 + length);
            let left = |changes: &TimedChanges, now: &Clocks| {
                changes.of("a").map_or(0, |timed| seconds(timed.ends.since(now.since_boot)))
            };
            for (number, (passes, kind, unix_s)) in steps.into_iter().enumerate() {
                let (stored, before) = (Stored::new(&changes, &now), left(&changes, &now));
                now.since_boot = now.since_boot + Span::secs(passes);
                now.unix_s = if kind == 0 { now.unix_s + passes } else { unix_s.into() };
                if kind == 2 {
                    now.boot = number.to_string() + "another";
                }
                changes = stored.at(&now);
                let after = left(&changes, &now);
                prop_assert!(after <= before);
                prop_assert!(kind == 2 || after == before.saturating_sub(passes));
            }
        }
    }

    #[test]
    fn changes_are_of_groups_and_devices_and_leave_the_rest() {
        let group =
            |name: &str, matched: &str| Group::new(name, weight(2), vec![matched.parse().unwrap()]);
        let tv = Branch {
            group: group("tv", "ip:192.0.2.1"),
            beneath: vec![group("video", "port:443").into()],
        };
        let policy = Policy::nested(vec![tv, group("pc", "ip:192.0.2.2").into()]).unwrap();
        let ends = Time::ZERO + Span::secs(5);
        let boost = |n| Some((TimedChange::Boost { weight: Some(weight(n)) }, ends));
        let changes = TimedChanges::default().with("tv", boost(8)).with("tv/video", boost(9));
        let changes = changes.with("pc", Some((TimedChange::Pause, ends))).with("gone", boost(1));
        let applied = changes.applied(&policy);
        assert_eq!(applied.branches()[0].group.weight, weight(8));
        assert_eq!(applied.branches()[0].beneath[0].group.weight, weight(9));
        let max: Vec<_> = applied.groups().iter().map(|g| (g.name.as_str(), g.max)).collect();
        let paused = Some(CAPACITY_MIN);
        assert_eq!(
            max,
            [("tv/video", None), ("tv/default", None), ("pc", paused), ("default", None)]
        );
        assert_eq!(changes.at(ends).applied(&policy), policy);
        assert_eq!(changes.with("pc", None).of("pc"), None);
        assert_eq!([boosted(weight(3)), boosted(weight(9_000))], [weight(12), weight(10_000)]);
    }

    #[test]
    fn a_broken_file_is_ignored_and_the_next_one_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = TimedFile::new(StateDir::new(&dir.path().join("state")), "host-eth0");
        assert_eq!(file.read(), TimedChanges::default());
        let changes = TimedChanges::default().with(
            "a",
            Some((TimedChange::Boost { weight: Some(weight(8)) }, boottime_now() + Span::secs(60))),
        );
        file.write(&changes).unwrap();
        let Timed { group, change, ends } = file.read().0.remove(0);
        assert_eq!((group.as_str(), change), ("a", TimedChange::Boost { weight: Some(weight(8)) }));
        assert!(
            ends <= changes.0[0].ends + Span::secs(1) && ends > boottime_now() + Span::secs(30)
        );
        let path = file.dir.path_of(&file.name);
        let text = std::fs::read_to_string(&path).unwrap();
        let weight_8 = "\"weight\":8";
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            (weight_8, "\"weight\":0"),
            (weight_8, "\"weight\":99999"),
            ("{", ""),
        ] {
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert_eq!(file.read(), TimedChanges::default(), "{from} → {to}");
        }
        std::fs::write(&path, vec![b' '; FILE_SIZE_MAX as usize + 1]).unwrap();
        assert_eq!(file.read(), TimedChanges::default());
        file.write(&changes).unwrap();
        assert_eq!(file.read().0.len(), 1);
        file.write(&TimedChanges::default()).unwrap();
        assert!(!path.exists());
    }
}
