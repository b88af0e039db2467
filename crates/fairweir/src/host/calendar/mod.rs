//! Schedules and quotas of groups ([`fairweir_core::calendar`]): the clock, and the usage that is remembered.
//!
//! Problem: the usage of a quota must survive a restart of the daemon, even if it is killed, and of the machine.
//! Method: a file in the state directory is replaced every [`STORE_PERIOD`] while traffic arrives. A thread does this,
//! since a slow disk must not delay the control. The file also has the interface's own counter, so that the next daemon
//! knows how much arrived in the meantime. It does not know for which groups: the status shows the amount, and it is
//! added to a quota only if there is just one group.
//!
//! Usage is what arrives for a group in L2 bytes, as seen by the classifier. Packets that the group's class drops later
//! are included, as they are in the interface's counter. ARP and frames for other hosts belong to no group.
//!
//! A user who could write the file could reset his quota. So the file is in a directory that only the daemon's user may
//! change, and is not read if others may. A user who may set the machine's clock can start a period early; each period
//! has its amount once ([`fairweir_core::calendar::Usage`]).

use std::collections::{BTreeMap, BTreeSet};

use fairweir_config::host::Config;
use fairweir_core::calendar::{Local, Moment, PERIODS_MAX, Period, Plan, Usage};
use fairweir_core::policy::{Branch, GROUPS_MAX, Group, PATH_SEPARATOR, Policy};
use fairweir_core::receiver::GroupSample;
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_daemon::unix_now;
use fairweir_linux::{boottime_now, link::Link};
use jiff::tz::TimeZone;
use tracing::warn;

use super::timed::boot_id;
use super::wire::{PlanStatus, QuotaStatus};
use crate::local_time;
use crate::words::{lasting, mbit};

mod store;

pub(super) use store::QuotaFile;
use store::{Interface, Store, Stored, StoredUsage};

/// How often the usage is stored. With the time that a disk takes, at most 5 s are lost.
const STORE_PERIOD: Span = Span::secs(4);

/// How often the time zone is read again.
const ZONE_PERIOD: Span = Span::secs(10);

/// The policy of `config` at a time, with the schedules that are in force and the quotas that are used up.
pub(super) fn applied(config: &Config, at: Moment, used_up: &BTreeSet<String>) -> Policy {
    let mut branches = config.policy.branches().to_vec();
    for (path, plan) in &config.plans {
        if let Some(Branch { group, .. }) = Branch::find_mut(&mut branches, path) {
            plan.apply(group, at, used_up.contains(path));
        }
    }
    Policy::nested(branches)
        .expect("invariant: weights, caps and floors are not what makes a policy invalid")
}

/// The usage of the quotas of all groups.
#[derive(Debug)]
pub(super) struct Quotas {
    usages: BTreeMap<String, (Period, Usage)>,
    /// The groups whose quotas are used up.
    used_up: BTreeSet<String>,
    zone: TimeZone,
    zone_at: Time,
    local: Local,
    /// The time of the last reading, by CLOCK_BOOTTIME.
    asked_at: Time,
    /// Bytes that arrived before this daemon started and are in no quota; `None` until they are known.
    uncounted: Option<Bytes>,
    before: Option<Interface>,
    store: Option<Store>,
    store_at: Time,
    /// The reason if the file could not be read.
    unread: Option<String>,
    /// The interface's counter, as last read.
    interface: Interface,
}

impl Quotas {
    /// Starts with the usage in `file`; without a file nothing is stored.
    pub(super) fn start(file: Option<QuotaFile>) -> Quotas {
        let (mut usages, mut before, mut unread) = (BTreeMap::new(), None, None);
        match file.as_ref().map(QuotaFile::read) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(stored))) => {
                before = Some(stored.interface);
                for (path, usage) in stored.quotas.into_iter().take(GROUPS_MAX) {
                    let first = usage.periods.len().saturating_sub(PERIODS_MAX);
                    let elapsed = Span::secs(usage.elapsed_s);
                    let known = Usage::new(&usage.periods[first..], elapsed);
                    usages.insert(path, (usage.per, known));
                }
            }
            Some(Err(e)) => {
                warn!("what was used of quotas is not known: {e}");
                unread = Some(e);
            }
        }
        Quotas {
            usages,
            used_up: BTreeSet::new(),
            zone: local_time::zone(),
            zone_at: boottime_now(),
            local: Local::default(),
            asked_at: boottime_now(),
            uncounted: None,
            before,
            store: file.map(Store::new),
            store_at: Time::ZERO,
            unread,
            interface: Interface { boot: boot_id(), ..Interface::default() },
        }
    }

    /// Reads the clocks; returns the minute, and the groups whose quotas are used up.
    pub(super) fn handle_clock(
        &mut self,
        plans: &BTreeMap<String, Plan>,
    ) -> (Moment, BTreeSet<String>) {
        let now = boottime_now();
        if now.since(self.zone_at) >= ZONE_PERIOD {
            (self.zone, self.zone_at) = (local_time::zone(), now);
        }
        let local = local_time::local(unix_now(), &self.zone);
        let passed = now.since(self.asked_at);
        self.asked_at = now;
        self.handle(plans, local, passed)
    }

    fn handle(
        &mut self,
        plans: &BTreeMap<String, Plan>,
        local: Local,
        passed: Span,
    ) -> (Moment, BTreeSet<String>) {
        self.local = local;
        let quota = |path: &str| plans.get(path).and_then(|plan| plan.quota);
        // A quota with another period starts with no usage.
        self.usages.retain(|path, (per, _)| quota(path).is_some_and(|quota| quota.per == *per));
        let mut used_up = BTreeSet::new();
        for (path, plan) in plans {
            let Some(quota) = plan.quota else { continue };
            if !self.usages.contains_key(path) {
                self.usages.insert(path.clone(), (quota.per, Usage::default()));
            }
            let Some((per, usage)) = self.usages.get_mut(path) else { continue };
            usage.handle_clock(*per, local, passed);
            if usage.used() >= quota.amount {
                used_up.insert(path.clone());
            }
        }
        if used_up != self.used_up {
            // Store at once, so that a killed daemon does not forget that the quota is used up or has restarted.
            self.store_at = Time::ZERO;
            self.used_up.clone_from(&used_up);
        }
        (local.moment(), used_up)
    }

    /// Counts the bytes that arrived for the leaves of the policy.
    pub(super) fn handle_samples(&mut self, groups: &[Group], samples: &[GroupSample]) {
        for (path, (_, usage)) in &mut self.usages {
            let is_in = |name: &str| {
                let rest = name.strip_prefix(path.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(PATH_SEPARATOR))
            };
            let all = groups.iter().zip(samples);
            let received = all.filter(|(group, _)| is_in(&group.name)).map(|(_, s)| s.received);
            usage.handle_received(received.sum());
        }
    }

    /// Takes the interface's counter, of which this daemon has counted `counted`, and stores the
    /// usage if it is time. If `alone` is the only group, all uncounted bytes are counted for it.
    pub(super) fn handle_interface(
        &mut self,
        link: &Link,
        counted: Bytes,
        alone: Option<&str>,
        now: Time,
    ) {
        if self.usages.is_empty() {
            self.before = None;
            return;
        }
        (self.interface.index, self.interface.bytes) = (link.index, link.received);
        if self.uncounted.is_none() {
            let mut bytes = uncounted(self.before.take(), &self.interface, counted);
            if let Some((_, usage)) = alone.and_then(|path| self.usages.get_mut(path)) {
                usage.handle_received(std::mem::take(&mut bytes));
            }
            self.uncounted = Some(bytes);
        }
        if now >= self.store_at {
            self.store_at = now + STORE_PERIOD;
            let text = self.text();
            if let Some(store) = &mut self.store {
                store.put(text);
            }
        }
    }

    /// Resets the usage of this group's quota in the present period.
    ///
    /// # Errors
    /// If that cannot be stored; nothing has changed then.
    pub(super) fn reset(&mut self, path: &str) -> Result<(), String> {
        let Some((_, usage)) = self.usages.get_mut(path) else { return Ok(()) };
        let before = usage.clone();
        usage.reset();
        let text = self.text();
        let stored = self.store.as_mut().map_or(Ok(()), |store| store.put_now(&text));
        if let (Err(_), Some((_, usage))) = (&stored, self.usages.get_mut(path)) {
            *usage = before;
        }
        stored.map_err(|e| e.to_string())
    }

    /// Stores the usage; removes the file if there are no quotas.
    pub(super) fn end(&mut self) {
        let text = self.text();
        let Some(store) = &mut self.store else { return };
        let stored = match self.usages.is_empty() {
            true => store.file.dir.remove(&store.file.name),
            false => store.put_now(&text),
        };
        if let Err(e) = stored {
            warn!("what was used of quotas is not stored: {e}");
        }
    }

    fn text(&self) -> Vec<u8> {
        let usage = |(per, usage): &(Period, Usage)| StoredUsage {
            per: *per,
            elapsed_s: usage.elapsed().as_nanos() / 1_000_000_000,
            periods: usage.periods().to_vec(),
        };
        let quotas = self.usages.iter().map(|(path, used)| (path.clone(), usage(used))).collect();
        let stored = Stored { version: 1, interface: self.interface.clone(), quotas };
        serde_json::to_vec(&stored).expect("invariant: the contents have string keys")
    }

    /// The quota and the schedule of the group with this path.
    pub(super) fn status(&self, path: &str, plans: &BTreeMap<String, Plan>) -> Option<PlanStatus> {
        let plan = plans.get(path)?;
        let quota = plan.quota.map(|quota| {
            let used = self.usages.get(path).map_or(Bytes::ZERO, |(_, usage)| usage.used());
            let end = local_time::end_s(quota.per, self.local, &self.zone);
            QuotaStatus {
                amount_bytes: quota.amount,
                per: quota.per,
                used_bytes: used,
                left_bytes: quota.amount.saturating_sub(used),
                used_up: used >= quota.amount,
                then_bps: quota.then,
                ends_in_s: end.map(|end| end.saturating_sub(unix_now())),
            }
        });
        let schedule = plan.in_force(self.local.moment()).map(ToString::to_string).collect();
        Some(PlanStatus { quota, schedule })
    }

    /// What quotas do not count or remember, for people.
    pub(super) fn limits(&self) -> Vec<String> {
        if self.usages.is_empty() {
            return Vec::new();
        }
        let mut limits = Vec::new();
        match &self.store {
            None => limits.push("a dry run stores nothing that is used of quotas".to_owned()),
            Some(store) => {
                let loss = "if the daemon is killed or the power fails, quotas forget 5 s at most";
                limits.push(loss.to_owned());
                limits.extend(store.error().map(|e| format!("quotas are not stored: {e}")));
            }
        }
        let unread = self.unread.iter();
        limits.extend(unread.map(|e| format!("what was used of quotas before is not known: {e}")));
        if let Some(bytes) = self.uncounted.filter(|bytes| *bytes > Bytes::ZERO) {
            limits.push(format!("{bytes} that arrived while no daemon counted are in no quota"));
        }
        limits
    }
}

/// The bytes that arrived since `before`, without those that were `counted`.
fn uncounted(before: Option<Interface>, now: &Interface, counted: Bytes) -> Bytes {
    // Without a file there was no quota before.
    let Some(before) = before else { return Bytes::ZERO };
    let is_same = before.boot == now.boot && before.index == now.index;
    let first = if is_same { before.bytes } else { 0 };
    Bytes::new(now.bytes.saturating_sub(first)).saturating_sub(counted)
}

impl QuotaStatus {
    /// The quota in words, for people.
    pub(crate) fn in_words(&self) -> String {
        let per = self.per.name();
        let in_words = |s: u64| match s / 86_400 {
            0 | 1 => lasting(s),
            days => format!("{days} days"),
        };
        let ends = self.ends_in_s.map(|s| format!(", which ends in {}", in_words(s)));
        let ends = ends.unwrap_or_default();
        let QuotaStatus { amount_bytes: amount, used_bytes: used, left_bytes: left, .. } = self;
        match self.used_up {
            true => format!(
                "used up, at most {}: {used} of {amount} in this {per}{ends}",
                mbit(self.then_bps.as_bps())
            ),
            false => format!("{left} left of {amount} in this {per}{ends}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::calendar::Quota;
    use fairweir_core::share::Weight;
    use fairweir_core::units::Rate;
    use fairweir_daemon::StateDir;

    use super::store::FILE_SIZE_MAX;
    use super::*;

    fn plans(amount: u64, per: Period) -> BTreeMap<String, Plan> {
        let quota = Quota { amount: Bytes::new(amount), per, then: Rate::mbit(1) };
        BTreeMap::from([("tv".to_owned(), Plan { quota: Some(quota), schedule: Vec::new() })])
    }

    fn at(day: i64) -> Local {
        Local { day, day_of_month: 1, minute: 0 }
    }

    fn receive(quotas: &mut Quotas, bytes: &[(&str, u64)]) {
        let group = |name: &str| Group::new(name, Weight::ONE, Vec::new());
        let groups: Vec<Group> = bytes.iter().map(|(name, _)| group(name)).collect();
        let sample = |n: u64| GroupSample { received: Bytes::new(n), ..GroupSample::default() };
        let samples: Vec<GroupSample> = bytes.iter().map(|(_, n)| sample(*n)).collect();
        quotas.handle_samples(&groups, &samples);
    }

    fn link(index: u32, received: u64) -> Link {
        let nothing = || String::new();
        Link {
            name: nothing(),
            index,
            flags: 0,
            hardware: 1,
            alias: nothing(),
            kind: nothing(),
            mtu: 1_500,
            master: 0,
            received,
            sent: 0,
        }
    }

    #[test]
    fn a_device_is_counted_with_all_its_groups_until_its_quota_is_used_up() {
        let mut quotas = Quotas::start(None);
        let plans = plans(100, Period::Day);
        let used_up =
            |quotas: &mut Quotas, day| !quotas.handle(&plans, at(day), Span::ZERO).1.is_empty();
        assert!(!used_up(&mut quotas, 5));
        receive(&mut quotas, &[("tv/video", 60), ("tv/default", 39), ("tvs", 500), ("t", 500)]);
        assert!(!used_up(&mut quotas, 5));
        receive(&mut quotas, &[("tv", 1)]);
        assert!(used_up(&mut quotas, 5) && !used_up(&mut quotas, 6) && used_up(&mut quotas, 5));
        quotas.reset("tv").unwrap();
        assert!(!used_up(&mut quotas, 5));
        // With another period, or without a quota, the usage is forgotten.
        receive(&mut quotas, &[("tv", 100)]);
        assert!(used_up(&mut quotas, 5));
        quotas.handle(&self::plans(100, Period::Week), at(5), Span::ZERO);
        assert!(!used_up(&mut quotas, 5));
    }

    /// One daemon is killed and one ends; some bytes are not counted; then there is another interface.
    #[test]
    fn what_was_used_outlasts_the_daemon_and_what_was_not_counted_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = || QuotaFile::new(StateDir::new(&dir.path().join("state")), "host-eth0");
        let plans = plans(1_000, Period::Month);
        let mut quotas = Quotas::start(Some(file()));
        quotas.handle(&plans, at(5), Span::ZERO);
        receive(&mut quotas, &[("tv", 300), ("pc", 50)]);
        quotas.handle_interface(&link(3, 10_000), Bytes::new(350), None, Time::ZERO);
        assert_eq!(quotas.uncounted, Some(Bytes::ZERO));
        while file().read().unwrap().is_none() {
            std::thread::yield_now();
        }
        // These bytes are lost, with those that arrive before the next daemon starts.
        receive(&mut quotas, &[("tv", 10), ("pc", 0)]);
        quotas.handle_interface(&link(3, 10_010), Bytes::ZERO, None, Time::ZERO + Span::secs(1));
        drop(quotas);
        let mut quotas = Quotas::start(Some(file()));
        quotas.handle(&plans, at(5), Span::ZERO);
        receive(&mut quotas, &[("tv", 100), ("pc", 5)]);
        quotas.handle_interface(&link(3, 10_200), Bytes::new(105), None, Time::ZERO);
        assert_eq!(quotas.usages["tv"].1.used(), Bytes::new(400));
        assert_eq!(quotas.uncounted, Some(Bytes::new(95)));
        assert!(quotas.limits().iter().any(|limit| limit.starts_with("95B that arrived")));
        receive(&mut quotas, &[("tv", 1), ("pc", 5)]);
        quotas.end();
        let mut quotas = Quotas::start(Some(file()));
        quotas.handle(&plans, at(5), Span::ZERO);
        assert_eq!(quotas.usages["tv"].1.used(), Bytes::new(401));
        // The counter of another interface starts at zero; all its bytes are for the only group.
        quotas.handle_interface(&link(4, 20), Bytes::new(5), Some("tv"), Time::ZERO);
        assert_eq!(quotas.usages["tv"].1.used(), Bytes::new(416));
        assert_eq!(quotas.uncounted, Some(Bytes::ZERO));
        // Without quotas the file is removed.
        quotas.handle(&BTreeMap::new(), at(5), Span::ZERO);
        quotas.end();
        assert!(file().read().unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_broken_or_of_others_is_not_read_and_that_is_told() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = QuotaFile::new(StateDir::new(&dir.path().join("state")), "host-eth0");
        let plans = plans(1_000, Period::Month);
        let mut quotas = Quotas::start(Some(file.clone()));
        quotas.handle(&plans, at(5), Span::ZERO);
        receive(&mut quotas, &[("tv", 300)]);
        quotas.end();
        let path = file.dir.path_of(&file.name);
        let good = std::fs::read_to_string(&path).unwrap();
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut quotas = Quotas::start(Some(file.clone()));
            quotas.handle(&plans, at(5), Span::ZERO);
            let is_told = quotas.limits().iter().any(|limit| limit.contains("is not known"));
            (quotas.usages["tv"].1.used().as_u64(), is_told)
        };
        assert_eq!(write(&good, 0o600), (300, false));
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"first_day\":5", "\"first_day\":9223372036854775807"),
            ("\"first_day\":5", "\"first_day\":-9223372036854775808"),
            ("\"bytes\":300", "\"bytes\":-1"),
            ("{", ""),
        ] {
            assert!(good.contains(from), "{good}");
            assert_eq!(write(&good.replacen(from, to, 1), 0o600), (0, true), "{from}");
        }
        assert_eq!(write(&" ".repeat(FILE_SIZE_MAX as usize + 1), 0o600), (0, true));
        assert_eq!(write(&good, 0o666), (0, true), "others may write to it");
        let most = u64::MAX.to_string();
        let huge = good.replacen("\"bytes\":300", &format!("\"bytes\":{most}"), 1);
        assert_eq!(write(&huge, 0o600), (u64::MAX, false));
    }
}
