//! What each subscriber used of each class of its plan, for billing and statistics: rows of CSV in
//! a file for each day, and the same as IPFIX for a collector ([`super::ipfix`]).
//!
//! A row has what passed since the previous row, so the rows of a subscriber sum to its counters.
//! Rows are written once an interval, when a subscriber gets another plan or is removed, when the
//! classes of a plan change, and when the daemon ends, after it is detached. If the daemon is
//! killed, what was counted since the last interval is lost.
//!
//! Rows that cannot be written wait, up to [`WAITING_MAX`] bytes. Beyond that, rows of removed
//! subscribers are lost and counted; the others are written later with everything that was counted.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use fairweir_config::isp::{NAME_MAX, PlanEntry, UsageSection};
use fairweir_core::units::Time;
use fairweir_daemon::{StateDir, unix_now};
use fairweir_linux::police::Counters;
use tracing::warn;

use super::ipfix::{Exporter, Row};
use super::kernel::{DIRECTIONS, Gone, Kernel};
use super::registry::{Effects, PlanEffect, Registry};
use super::wire::UsageStatus;
use crate::words::chained;

/// The most bytes of waiting rows: a million subscribers with both directions fit.
const WAITING_MAX: usize = 256 << 20;
/// If this many bytes of rows wait, they are written before the interval ends.
const WRITE_AT: usize = 1 << 20;
/// The longest incomplete last line, in bytes.
const LINE_MAX: u64 = 4_096;
const DAY_S: u64 = 86_400;
const HEADER: &str =
    "from_s,until_s,subscriber,plan,class,direction,passed_bytes,dropped_packets,marked_packets\n";

/// The state of the files; see the module.
pub(super) struct Usage {
    section: UsageSection,
    path: PathBuf,
    dir: StateDir,
    /// The classes of each plan.
    classes: HashMap<Arc<str>, Classes>,
    /// The counters that rows already include, by direction and class.
    told: HashMap<Arc<str>, [Box<[Counters]>; 2]>,
    /// When the last interval began, Unix time.
    since_s: u64,
    due: Time,
    waiting: String,
    exporter: Option<Exporter>,
    lost_rows: u64,
    written_s: Option<u64>,
    error: Option<String>,
}

/// The names of a plan's classes by number, and the number of the class for all other traffic.
struct Classes {
    names: Vec<String>,
    rest: usize,
}

impl Usage {
    /// Files are kept in a directory below the state directory.
    pub(super) fn new(section: UsageSection, state_dir: &Path, now: Time) -> Usage {
        let path = state_dir.join("usage");
        Usage {
            due: now + section.interval,
            exporter: section.collector.map(Exporter::start),
            section,
            dir: StateDir::new(&path),
            path,
            classes: HashMap::new(),
            told: HashMap::new(),
            since_s: unix_now(),
            waiting: String::new(),
            lost_rows: 0,
            written_s: None,
            error: None,
        }
    }

    /// Counters at the start of the daemon are not written as usage: an earlier daemon has written
    /// them, except what passed since.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn begin(&mut self, kernel: &Kernel) -> anyhow::Result<()> {
        kernel.counters_by_class_all(&mut |name, direction, counters| {
            if counters.iter().any(|counted| *counted != Counters::default()) {
                self.told.entry(Arc::clone(name)).or_default()[direction] = counters.into();
            }
        })
    }

    /// Updates the classes of plans that are new, changed or removed.
    pub(super) fn learn(&mut self, plans: &[PlanEffect]) {
        for (name, _, after) in plans {
            match after {
                Some(entry) => {
                    let (names, rest) = entry.classes();
                    let names = names.iter().map(|name| plain(name)).collect();
                    self.classes.insert(Arc::clone(name), Classes { names, rest });
                }
                None => drop(self.classes.remove(name)),
            }
        }
    }

    pub(super) fn section(&self) -> &UsageSection {
        &self.section
    }

    /// Called once a second.
    pub(super) fn handle_tick(&mut self, kernel: &Kernel, registry: &Registry, now: Time) {
        if now >= self.due {
            self.due = now + self.section.interval;
            // An error is in the status.
            let _ = self.write(kernel, registry);
        } else if self.waiting.len() >= WRITE_AT && self.error.is_none() {
            let _ = self.flush();
        }
    }

    /// Writes everything that was counted until now.
    ///
    /// # Errors
    /// If the disk or the kernel refuses; it is then written later.
    pub(super) fn write(&mut self, kernel: &Kernel, registry: &Registry) -> anyhow::Result<()> {
        // Waiting rows first: otherwise they might grow without limit.
        self.flush()?;
        self.add_all(kernel, registry)?;
        self.since_s = unix_now();
        self.flush()
    }

    fn add_all(&mut self, kernel: &Kernel, registry: &Registry) -> anyhow::Result<()> {
        kernel.counters_by_class_all(&mut |name, direction, counters| {
            if let Some(record) = registry.subscribers().get(name) {
                self.add(name, &record.plan, direction, counters);
            }
        })
    }

    /// Called before subscribers get other plans, or plans get other classes: the usage until now belongs to the old
    /// ones. If it cannot be read here, it is read later and counted for the new ones.
    pub(super) fn handle_effects(
        &mut self,
        effects: &Effects,
        kernel: &Kernel,
        registry: &Registry,
    ) {
        for (name, before, after) in &effects.subscribers {
            let (Some(before), Some(after)) = (before, after) else { continue };
            if before.plan != after.plan
                && let Ok(counters) = kernel.counters_by_class(name)
            {
                for (direction, counters) in counters.iter().enumerate() {
                    self.add(name, &before.plan, direction, counters);
                }
            }
        }
        let of = |plan: &Option<PlanEntry>| plan.as_ref().map(PlanEntry::classes);
        let differ = |(_, before, after): &PlanEffect| before.is_some() && of(before) != of(after);
        if effects.plans.iter().any(differ) {
            let _ = self.add_all(kernel, registry);
        }
    }

    /// Adds the last rows of a subscriber that was removed.
    pub(super) fn handle_gone(&mut self, gone: &Gone) {
        let are_written = gone
            .counters
            .iter()
            .enumerate()
            .map(|(direction, counters)| self.add(&gone.name, &gone.plan, direction, counters));
        self.lost_rows += are_written.filter(|is_written| !is_written).count() as u64;
        self.told.remove(&gone.name);
    }

    /// Adds the rows of a direction. Returns whether rows now include everything that was counted.
    fn add(
        &mut self,
        name: &Arc<str>,
        plan: &str,
        direction: usize,
        counters: &[Counters],
    ) -> bool {
        let told = self.told.get(name).map_or(&[][..], |told| &told[direction]);
        let none = Counters::default();
        let told_of = |at: usize| told.get(at).copied().unwrap_or(none);
        if counters.iter().enumerate().all(|(at, now)| *now == told_of(at)) {
            return true;
        }
        if self.waiting.len() > WAITING_MAX {
            return false;
        }
        let unknown = Classes { names: vec![String::new()], rest: 0 };
        let classes = self.classes.get(plan).unwrap_or(&unknown);
        let mut used = vec![none; classes.names.len()];
        for (at, now) in counters.iter().enumerate() {
            // Counts of a class that the plan no longer has are added to the class for all other traffic.
            let class = if at < used.len() { at } else { classes.rest };
            used[class] += now.since(told_of(at));
        }
        let until_s = unix_now();
        for (class, used) in classes.names.iter().zip(used).filter(|(_, used)| *used != none) {
            let row = Row {
                span_s: (self.since_s, until_s),
                subscriber: name,
                plan,
                class,
                direction: DIRECTIONS[direction],
                used,
            };
            let _ = writeln!(self.waiting, "{row}");
            if let Some(exporter) = &mut self.exporter {
                exporter.add(&row);
            }
        }
        self.told.entry(Arc::clone(name)).or_default()[direction] = counters.into();
        true
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if let Some(exporter) = &mut self.exporter {
            exporter.flush();
        }
        if self.waiting.is_empty() {
            self.error = None;
            return Ok(());
        }
        let flushed = self.append().with_context(|| format!("write to {}", self.path.display()));
        match &flushed {
            Ok(()) => (self.error, self.waiting) = (None, String::new()),
            Err(e) => {
                let error = chained(e);
                if self.error.as_ref() != Some(&error) {
                    warn!("usage is not written: {error}");
                }
                self.error = Some(error);
            }
        }
        flushed
    }

    /// Appends the waiting rows to the file of the day, all of them or none.
    fn append(&mut self) -> anyhow::Result<()> {
        let now_s = unix_now();
        let name = file_name(now_s);
        let mut file = self.dir.append(&name)?;
        let whole = whole_lines(&self.path.join(&name))?;
        // Removes an incomplete last line that a crash left.
        file.set_len(whole)?;
        let header = if whole == 0 { HEADER } else { "" };
        let mut write = || -> std::io::Result<()> {
            file.write_all(header.as_bytes())?;
            file.write_all(self.waiting.as_bytes())?;
            file.sync_data()
        };
        if let Err(e) = write() {
            let _ = file.set_len(whole);
            return Err(e.into());
        }
        if whole == 0 {
            self.dir.sync()?;
            self.remove_old(now_s);
        }
        self.written_s = Some(now_s);
        Ok(())
    }

    /// Removes files of days that are older than the configuration keeps.
    fn remove_old(&self, now_s: u64) {
        let oldest = file_name(now_s.saturating_sub(self.section.days * DAY_S));
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| is_file_name(name) && *name < oldest) {
            if let Err(e) = fs::remove_file(self.path.join(&name)) {
                warn!("cannot remove {name}: {e}");
            }
        }
    }

    /// Ends the export; called after the last rows were written.
    pub(super) fn end(&mut self) {
        if let Some(exporter) = self.exporter.take() {
            exporter.end();
        }
    }

    pub(super) fn status(&self) -> UsageStatus {
        UsageStatus {
            dir: self.path.display().to_string(),
            written_s: self.written_s,
            lost_rows: self.lost_rows,
            error: self.error.clone(),
            collector: self.exporter.as_ref().map(Exporter::status),
        }
    }
}

/// Makes any class name fit for a row: one line of at most this many bytes.
fn plain(name: &str) -> String {
    let mut name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = (0..=NAME_MAX).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(end.unwrap_or_default());
    name
}

/// The file name, such as `2026-11-22.csv`, for the day in UTC.
fn file_name(now_s: u64) -> String {
    let at = i64::try_from(now_s).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    let day = at.unwrap_or_default().to_zoned(jiff::tz::TimeZone::UTC).date();
    format!("{day}.csv")
}

fn is_file_name(name: &str) -> bool {
    let day = name.strip_suffix(".csv");
    day.is_some_and(|day| day.len() == 10 && day.parse::<jiff::civil::Date>().is_ok())
}

/// The length of a file up to the end of its last whole line.
fn whole_lines(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LINE_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(LINE_MAX).read_to_end(&mut tail)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |at| from + at as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairweir_core::units::{Bytes, Span};

    fn usage(dir: &Path) -> Usage {
        Usage::new(
            UsageSection { interval: Span::secs(60), days: 31, collector: None },
            dir,
            Time::ZERO,
        )
    }

    fn counted(passed: u64, dropped_packets: u64) -> Counters {
        Counters { passed: Bytes::new(passed), dropped_packets, marked_packets: 0 }
    }

    fn add(usage: &mut Usage, name: &Arc<str>, plan: &str, counters: [Counters; 2]) {
        for (direction, counters) in counters.into_iter().enumerate() {
            assert!(usage.add(name, plan, direction, &[counters]));
        }
    }

    fn rows(dir: &Path) -> Vec<String> {
        let text = fs::read_to_string(dir.join("usage").join(file_name(unix_now()))).unwrap();
        let row = |line: &str| line.splitn(3, ',').nth(2).unwrap().to_owned();
        assert!(text.starts_with(HEADER));
        text.lines().skip(1).map(row).collect()
    }

    #[test]
    fn rows_sum_to_the_counters_and_an_incomplete_line_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let alice: Arc<str> = "alice".into();
        add(&mut usage, &alice, "slow", [counted(100, 1), counted(0, 0)]);
        add(&mut usage, &alice, "slow", [counted(100, 1), counted(0, 0)]);
        usage.flush().unwrap();
        let path = dir.path().join("usage").join(file_name(unix_now()));
        File::options().append(true).open(&path).unwrap().write_all(b"1,2,ali").unwrap();
        add(&mut usage, &alice, "fast", [counted(150, 1), counted(7, 0)]);
        let counters = [(); 2].map(|()| vec![counted(151, 3)]);
        let gone = Gone { name: Arc::clone(&alice), plan: "fast".into(), counters };
        usage.handle_gone(&gone);
        add(&mut usage, &alice, "slow", [counted(5, 0), counted(0, 0)]);
        usage.flush().unwrap();
        assert_eq!(
            rows(dir.path()),
            [
                "alice,slow,,download,100,1,0",
                "alice,fast,,download,50,0,0",
                "alice,fast,,upload,7,0,0",
                "alice,fast,,download,1,2,0",
                "alice,fast,,upload,144,3,0",
                "alice,slow,,download,5,0,0",
            ]
        );
    }

    #[test]
    fn classes_have_rows_of_their_own_and_other_bytes_are_those_of_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let (alice, plan): (Arc<str>, Arc<str>) = ("alice".into(), "family".into());
        let names = ["voice \"x\", y", "rest"].map(str::to_owned).to_vec();
        usage.classes.insert(plan, Classes { names, rest: 1 });
        assert!(usage.add(&alice, "family", 0, &[counted(10, 0), counted(20, 2)]));
        // The plan had class 2 before, but no longer.
        assert!(usage.add(&alice, "family", 0, &[counted(10, 0), counted(25, 2), counted(4, 1)]));
        usage.flush().unwrap();
        assert_eq!(
            rows(dir.path()),
            [
                r#"alice,family,"voice ""x"", y",download,10,0,0"#,
                "alice,family,rest,download,20,2,0",
                "alice,family,rest,download,9,1,0",
            ]
        );
        assert_eq!(plain("a\nb"), "a b");
        assert_eq!(plain(&"ß".repeat(100)), "ß".repeat(48));
    }

    #[test]
    fn too_many_rows_come_later_and_those_of_who_left_are_counted_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let [alice, bob]: [Arc<str>; 2] = ["alice".into(), "bob".into()];
        usage.waiting = "x".repeat(WAITING_MAX + 1);
        assert!(!usage.add(&alice, "slow", 0, &[counted(10, 0)]));
        let counters = [vec![counted(7, 0)], Vec::new()];
        usage.handle_gone(&Gone { name: bob, plan: "slow".into(), counters });
        assert_eq!(usage.lost_rows, 1);
        usage.waiting.clear();
        assert!(usage.add(&alice, "slow", 0, &[counted(12, 0)]));
        assert!(usage.waiting.ends_with(",alice,slow,,download,12,0,0\n"), "{}", usage.waiting);
    }

    #[test]
    fn what_the_disk_does_not_take_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let alice: Arc<str> = "alice".into();
        fs::write(dir.path().join("usage"), "not a directory").unwrap();
        add(&mut usage, &alice, "slow", [counted(100, 0), counted(0, 0)]);
        assert!(usage.flush().is_err() && usage.status().error.is_some());
        fs::remove_file(dir.path().join("usage")).unwrap();
        add(&mut usage, &alice, "slow", [counted(130, 0), counted(0, 0)]);
        usage.flush().unwrap();
        assert_eq!(rows(dir.path()).len(), 2);
        assert_eq!(usage.status().error, None);
    }

    #[test]
    fn old_files_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let at = dir.path().join("usage");
        fs::create_dir(&at).unwrap();
        fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let recent = file_name(unix_now() - 30 * DAY_S);
        for name in ["2020-02-29.csv", "2020-02-30.csv", "notes.csv", recent.as_str()] {
            fs::write(at.join(name), "").unwrap();
        }
        add(&mut usage, &"alice".into(), "slow", [counted(1, 0); 2]);
        usage.flush().unwrap();
        let mut left: Vec<_> = fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let today = file_name(unix_now());
        assert_eq!(left, ["2020-02-30.csv", recent.as_str(), today.as_str(), "notes.csv"]);
    }
}
