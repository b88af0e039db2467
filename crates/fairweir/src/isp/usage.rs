//! What each subscriber used, as rows of CSV in a file for each day: for billing and statistics.
//!
//! A row says what passed since the row before, so the rows of a subscriber sum to its counters. Rows are
//! made once an interval, when a subscriber gets another plan, when it is removed, and when the daemon
//! ends, after it is detached. What was counted since the last interval is lost if the daemon is killed.
//!
//! Rows that the disk does not take wait, up to [`WAITING_MAX`] bytes; then those of subscribers that are
//! removed are lost and counted, and the others come later with all that was counted.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use fairweir_config::isp::UsageSection;
use fairweir_core::units::Time;
use fairweir_daemon::{StateDir, unix_now};
use fairweir_linux::police::Counters;
use tracing::warn;

use super::kernel::{DIRECTIONS, Gone, Kernel};
use super::registry::{Effects, Registry};
use super::report::direction_name;
use super::wire::UsageStatus;
use crate::words::chained;

/// Of waiting rows, in bytes: a million subscribers with both directions fit.
const WAITING_MAX: usize = 256 << 20;
/// Rows of subscribers that are removed are written when they are so many bytes.
const WRITE_AT: usize = 1 << 20;
/// An incomplete last line is shorter.
const LINE_MAX: u64 = 4_096;
const DAY_S: u64 = 86_400;
const HEADER: &str =
    "from_s,until_s,subscriber,plan,direction,passed_bytes,dropped_packets,marked_packets\n";

/// See the module.
pub(super) struct Usage {
    section: UsageSection,
    path: PathBuf,
    dir: StateDir,
    /// What rows say since the daemon began.
    told: HashMap<Arc<str>, [Counters; 2]>,
    /// When the last interval began, Unix time.
    since_s: u64,
    due: Time,
    waiting: String,
    lost_rows: u64,
    written_s: Option<u64>,
    error: Option<String>,
}

impl Usage {
    /// Keeps its files in a directory below that of the state.
    pub(super) fn new(section: UsageSection, state_dir: &Path, now: Time) -> Usage {
        let path = state_dir.join("usage");
        Usage {
            due: now + section.interval,
            section,
            dir: StateDir::new(&path),
            path,
            told: HashMap::new(),
            since_s: unix_now(),
            waiting: String::new(),
            lost_rows: 0,
            written_s: None,
            error: None,
        }
    }

    pub(super) fn section(&self) -> &UsageSection {
        &self.section
    }

    /// Once a second.
    pub(super) fn handle_tick(&mut self, kernel: &Kernel, registry: &Registry, now: Time) {
        if now >= self.due {
            self.due = now + self.section.interval;
            // The error is in the status.
            let _ = self.write(kernel, registry);
        } else if self.waiting.len() >= WRITE_AT && self.error.is_none() {
            let _ = self.flush();
        }
    }

    /// Writes all that was counted until now.
    ///
    /// # Errors
    /// If the disk or the kernel refuses; then it is written later.
    pub(super) fn write(&mut self, kernel: &Kernel, registry: &Registry) -> anyhow::Result<()> {
        // First what waits: otherwise it may become more and more.
        self.flush()?;
        let counters = kernel.counters_all()?;
        for (name, record) in registry.subscribers() {
            if let Some(counters) = counters.get(name) {
                self.add(name, &record.plan, *counters);
            }
        }
        self.since_s = unix_now();
        self.flush()
    }

    /// Before subscribers get other plans: what they used until now belongs to those before.
    pub(super) fn handle_effects(&mut self, effects: &Effects, kernel: &Kernel) {
        for (name, before, after) in &effects.subscribers {
            let (Some(before), Some(after)) = (before, after) else { continue };
            if before.plan != after.plan
                && let Ok(counters) = kernel.counters(name)
            {
                self.add(name, &before.plan, counters);
            }
        }
    }

    /// A subscriber was removed.
    pub(super) fn handle_gone(&mut self, gone: &Gone) {
        if self.waiting.len() > WAITING_MAX {
            self.lost_rows += 1;
        } else {
            self.add(&gone.name, &gone.plan, gone.counters);
        }
        self.told.remove(&gone.name);
    }

    fn add(&mut self, name: &Arc<str>, plan: &str, mut counters: [Counters; 2]) {
        let told = self.told.get(name).copied().unwrap_or_default();
        for (now, told) in counters.iter_mut().zip(told) {
            // What was counted before a plan without this direction is not in it for a while.
            if now.passed < told.passed {
                *now = told;
            }
        }
        if told == counters {
            return;
        }
        let (since_s, until_s) = (self.since_s, unix_now());
        for ((direction, now), told) in DIRECTIONS.into_iter().zip(counters).zip(told) {
            if now == told {
                continue;
            }
            let passed = now.passed.saturating_sub(told.passed).as_u64();
            let dropped = now.dropped_packets.saturating_sub(told.dropped_packets);
            let marked = now.marked_packets.saturating_sub(told.marked_packets);
            let direction = direction_name(direction);
            // Names have no character that would have to be quoted.
            let row = format_args!(
                "{since_s},{until_s},{name},{plan},{direction},{passed},{dropped},{marked}\n"
            );
            let _ = self.waiting.write_fmt(row);
        }
        self.told.insert(Arc::clone(name), counters);
    }

    fn flush(&mut self) -> anyhow::Result<()> {
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

    /// Appends what waits to the file of the day, all of it or nothing.
    fn append(&mut self) -> anyhow::Result<()> {
        let now_s = unix_now();
        let name = file_name(now_s);
        let mut file = self.dir.append(&name)?;
        let whole = whole_lines(&self.path.join(&name))?;
        // What a crash has left incomplete.
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

    /// Removes files of days that are long over.
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

    pub(super) fn status(&self) -> UsageStatus {
        UsageStatus {
            dir: self.path.display().to_string(),
            written_s: self.written_s,
            lost_rows: self.lost_rows,
            error: self.error.clone(),
        }
    }
}

/// `2026-11-22.csv`, of the day in UTC.
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
        Usage::new(UsageSection { interval: Span::secs(60), days: 31 }, dir, Time::ZERO)
    }

    fn counted(passed: u64, dropped_packets: u64) -> Counters {
        Counters { passed: Bytes::new(passed), dropped_packets, marked_packets: 0 }
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
        usage.add(&alice, "slow", [counted(100, 1), counted(0, 0)]);
        usage.add(&alice, "slow", [counted(100, 1), counted(0, 0)]);
        usage.flush().unwrap();
        let path = dir.path().join("usage").join(file_name(unix_now()));
        File::options().append(true).open(&path).unwrap().write_all(b"1,2,ali").unwrap();
        usage.add(&alice, "fast", [counted(150, 1), counted(7, 0)]);
        let gone =
            Gone { name: Arc::clone(&alice), plan: "fast".into(), counters: [counted(151, 3); 2] };
        usage.handle_gone(&gone);
        usage.add(&alice, "slow", [counted(5, 0), counted(0, 0)]);
        usage.flush().unwrap();
        assert_eq!(
            rows(dir.path()),
            [
                "alice,slow,download,100,1,0",
                "alice,fast,download,50,0,0",
                "alice,fast,upload,7,0,0",
                "alice,fast,download,1,2,0",
                "alice,fast,upload,144,3,0",
                "alice,slow,download,5,0,0",
            ]
        );
    }

    #[test]
    fn what_the_disk_does_not_take_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut usage = usage(dir.path());
        let alice: Arc<str> = "alice".into();
        fs::write(dir.path().join("usage"), "not a directory").unwrap();
        usage.add(&alice, "slow", [counted(100, 0), counted(0, 0)]);
        assert!(usage.flush().is_err() && usage.status().error.is_some());
        fs::remove_file(dir.path().join("usage")).unwrap();
        usage.add(&alice, "slow", [counted(130, 0), counted(0, 0)]);
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
        usage.add(&"alice".into(), "slow", [counted(1, 0); 2]);
        usage.flush().unwrap();
        let mut left: Vec<_> = fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let today = file_name(unix_now());
        assert_eq!(left, ["2020-02-30.csv", recent.as_str(), today.as_str(), "notes.csv"]);
    }
}
