//! Keeps the API's changes over restarts: a journal beside the operator's files.
//!
//! Each line is one list of edits. It is written and synced before the request is answered. So after a crash all
//! acknowledged edits are there, and an incomplete last line was never acknowledged. The last edit of each name counts:
//! it overrides the file's record of that name until it is reverted.
//!
//! The journal is rewritten when most of it is outdated. There are enough edits between two rewrites that the mean cost
//! of a change does not depend on the number of records, see [`rewrite_at`].
//!
//! Of a damaged journal, or one of another version, the parts that are understood are used. Before it is rewritten it
//! is kept under another name, so nothing of it is lost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use fairweir_config::isp::{PlanEntry, SubscriberSpec};
use fairweir_daemon::{StateDir, StateLock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

use super::registry::{Origin, Record, Registry, Report, Reported, Undo};

/// Even a small journal is rewritten only after at least this many outdated edits.
const OUTDATED_MAX: usize = 10_000;

/// A rewrite reads at most this many records for each outdated edit.
const WALK_PART: usize = 16;

/// The file name in the state directory.
const FILE: &str = "isp.journal";

/// The name for a copy of a journal that was not fully understood; from the second copy on a number follows.
const UNREAD: &str = "isp.journal.unread";

/// The most of these copies.
const UNREAD_MAX: usize = 100;

/// The largest journal, in bytes: enough for 4 million subscribers of 300 bytes each, and as many outdated edits.
const FILE_SIZE_MAX: u64 = 4 << 30;

/// The first line of the file.
const HEADER: &str = "{\"fairweir_isp_journal\":1}\n";

/// The API's records by name; `None` means that the API removed the name, whatever the file has.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Overlay {
    pub(super) plans: BTreeMap<String, Option<PlanEntry>>,
    pub(super) subscribers: BTreeMap<String, Option<SubscriberSpec>>,
    /// Sessions and leases, which give way to the files too. A lease is included only if a command set its plan.
    pub(super) sessions: BTreeMap<String, Reported>,
    /// Whether a part of the journal was not understood; records that do not fit the files are then left out.
    pub(super) is_partial: bool,
}

/// One edit of the overlay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Edit {
    SetPlan(Value),
    HidePlan(String),
    RevertPlan(String),
    SetSubscriber(SubscriberSpec),
    HideSubscriber(String),
    RevertSubscriber(String),
    /// Written by earlier versions.
    SetSession(SubscriberSpec),
    Report(Reported),
}

/// The journal on disk.
#[derive(Debug)]
pub(super) struct Journal {
    dir: StateDir,
    /// Keeps a second writer out: two would overwrite each other's acknowledged edits.
    _lock: StateLock,
    path: PathBuf,
    file: File,
    length: u64,
    /// The number of edits in the file.
    edits: usize,
    /// A description of the part that was not understood, and where it is kept.
    left: Option<String>,
    integrity: Integrity,
    /// The number of records that rewrites have read.
    #[cfg(test)]
    walked: usize,
}

impl Journal {
    /// Reads the journal in `dir`, and opens it for appending.
    ///
    /// # Errors
    /// If it cannot be read or written, others may write to it, or another process has it open.
    pub(super) fn open(dir: StateDir) -> anyhow::Result<(Journal, Overlay)> {
        let lock = dir.lock()?;
        let Read { overlay, length, edits, not_understood } = read(&dir)?;
        let (path, file) = (dir.path_of(FILE), dir.append(FILE)?);
        let mut journal = Journal {
            dir,
            _lock: lock,
            path,
            file,
            length,
            edits,
            left: None,
            integrity: Integrity::Whole,
            #[cfg(test)]
            walked: 0,
        };
        let prepare = |journal: &mut Journal| -> io::Result<()> {
            journal.file.set_len(length)?;
            if length == 0 {
                journal.write(HEADER.as_bytes())?;
            }
            Ok(())
        };
        let prepared = prepare(&mut journal);
        prepared.with_context(|| format!("cannot write {}", journal.path.display()))?;
        journal.left = match not_understood {
            Some(what) => {
                journal.integrity = Integrity::Damaged;
                let kept = match journal.keep_unread() {
                    Ok(path) => format!("all of it is kept in {}", path.display()),
                    Err(e) => format!("it cannot be kept elsewhere, so it is not rewritten: {e}"),
                };
                let left =
                    format!("{}:{what}; the rest is in force, {kept}", journal.path.display());
                warn!("{left}");
                Some(left)
            }
            None => {
                let mut paths = unread_names().map(|name| journal.dir.path_of(&name));
                let path = paths.find(|path| path.exists());
                path.map(|path| {
                    let path = path.display();
                    format!("{path} has changes that an earlier start did not understand; delete it when it is not needed")
                })
            }
        };
        // Otherwise the file and its edits may be missing after a crash.
        journal.dir.sync()?;
        Ok((journal, overlay))
    }

    /// A description of the part that is not in force, if there is one.
    pub(super) fn left(&self) -> Option<&String> {
        self.left.as_ref()
    }

    /// Gives a damaged journal a second name, under which it remains after a rewrite.
    fn keep_unread(&mut self) -> io::Result<PathBuf> {
        for name in unread_names() {
            let path = self.dir.path_of(&name);
            match fs::hard_link(&self.path, &path) {
                // An earlier start may have made this name without getting as far as the rewrite.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if !self.dir.holds(&name, &self.file) {
                        continue;
                    }
                }
                linked => linked?,
            }
            self.integrity = Integrity::Kept;
            return Ok(path);
        }
        Err(io::Error::other(format!("there are {UNREAD_MAX} of them")))
    }

    /// Appends a list of edits; returns the mark for undoing it.
    ///
    /// # Errors
    /// If the disk refuses; no edit is stored then.
    pub(super) fn append(&mut self, edits: &[Edit]) -> anyhow::Result<Mark> {
        let mark = Mark { length: self.length, edits: self.edits };
        if edits.is_empty() {
            return Ok(mark);
        }
        if !self.dir.holds(FILE, &self.file) {
            let path = self.path.display();
            bail!(
                "{path} was removed or replaced, or could not be opened again; restart the daemon"
            );
        }
        let mut line = serde_json::to_vec(edits)?;
        line.push(b'\n');
        if let Err(e) = self.write(&line) {
            let _ = self.file.set_len(mark.length);
            return Err(e).with_context(|| format!("cannot write {}", self.path.display()));
        }
        self.edits += edits.len();
        Ok(mark)
    }

    /// Removes what was appended since `mark`.
    pub(super) fn take_back(&mut self, mark: Mark) {
        if let Err(e) = self.file.set_len(mark.length).and_then(|()| self.file.sync_data()) {
            warn!(path = %self.path.display(), "a failed edit remains in the journal: {e}");
            return;
        }
        (self.length, self.edits) = (mark.length, mark.edits);
    }

    /// Rewrites the journal if most of it is outdated, or a part of it is damaged.
    pub(super) fn tidy(&mut self, registry: &Registry) {
        let records = registry.subscribers().len();
        let is_due = match self.integrity {
            Integrity::Whole => self.edits >= rewrite_at(stored(registry), records),
            Integrity::Kept => true,
            Integrity::Damaged => false,
        };
        if !is_due {
            return;
        }
        if let Err(e) = self.rewrite(&all_edits(registry)) {
            warn!(path = %self.path.display(), "cannot rewrite the journal: {e}");
        }
        #[cfg(test)]
        {
            self.walked += records;
        }
    }

    /// Replaces the journal atomically.
    ///
    /// # Errors
    /// If the disk refuses. The old journal then stays in use. If the new one is in place but could
    /// not be synced, no more edits are accepted.
    pub(super) fn rewrite(&mut self, edits: &[Edit]) -> anyhow::Result<()> {
        if self.integrity == Integrity::Damaged {
            self.keep_unread().context("a part was not understood and cannot be kept elsewhere")?;
        }
        let mut text = HEADER.as_bytes().to_vec();
        // One line for each edit, so that a damaged byte loses only one edit.
        for edit in edits {
            serde_json::to_writer(&mut text, &[edit])?;
            text.push(b'\n');
        }
        if let Err(e) = self.dir.write(FILE, &text) {
            // The new file may be in place, and only syncing the directory may have failed.
            if self.dir.holds(FILE, &self.file) || self.dir.sync().is_err() {
                return Err(e.into());
            }
        }
        let file = self.dir.append(FILE)?;
        if file.metadata()?.len() != text.len() as u64 {
            bail!("{} was replaced; restart the daemon", self.path.display());
        }
        self.file = file;
        (self.length, self.edits) = (text.len() as u64, edits.len());
        self.integrity = Integrity::Whole;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Whether all of a journal was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Integrity {
    Whole,
    /// A part was not understood; the file has a second name, so a rewrite is safe and due.
    Kept,
    /// A part was not understood and would be lost by a rewrite.
    Damaged,
}

/// The length of the journal at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    length: u64,
    edits: usize,
}

impl Overlay {
    /// Applies an edit.
    ///
    /// # Errors
    /// If it contains a plan that is not valid.
    pub(super) fn apply(&mut self, edit: Edit) -> Result<(), String> {
        match edit {
            Edit::SetPlan(value) => {
                let plan = PlanEntry::from_json(&value)?;
                self.plans.insert(plan.name.clone(), Some(plan));
            }
            Edit::HidePlan(name) => drop(self.plans.insert(name, None)),
            Edit::RevertPlan(name) => drop(self.plans.remove(&name)),
            Edit::SetSubscriber(spec) => {
                self.sessions.remove(&spec.name);
                self.subscribers.insert(spec.name.clone(), Some(spec));
            }
            Edit::HideSubscriber(name) => {
                self.sessions.remove(&name);
                self.subscribers.insert(name, None);
            }
            Edit::RevertSubscriber(name) => {
                self.sessions.remove(&name);
                self.subscribers.remove(&name);
            }
            Edit::SetSession(subscriber) => {
                let (origin, report) = (Origin::Radius, Report::default());
                return self.apply(Edit::Report(Reported { subscriber, origin, report }));
            }
            Edit::Report(stored) => {
                self.subscribers.remove(&stored.subscriber.name);
                self.sessions.insert(stored.subscriber.name.clone(), stored);
            }
        }
        Ok(())
    }

    /// Drops the API's records of `names`, or all of them.
    ///
    /// # Errors
    /// If there is no record of one of them; no record is dropped then.
    pub(super) fn revert(&mut self, names: &[String], all: bool) -> anyhow::Result<()> {
        let is_pinned = |stored: &Reported| stored.report.own_plan.is_some();
        let knows = |name: &String| {
            self.plans.contains_key(name)
                || self.subscribers.contains_key(name)
                || self.sessions.get(name).is_some_and(is_pinned)
        };
        if let Some(unknown) = names.iter().find(|name| !knows(name)) {
            bail!("no change of `{unknown}` by commands");
        }
        self.plans.retain(|name, _| !all && !names.contains(name));
        self.subscribers.retain(|name, _| !all && !names.contains(name));
        for (name, stored) in &mut self.sessions {
            if let Some(own) = stored.report.own_plan.take_if(|_| all || names.contains(name)) {
                stored.subscriber.plan = own;
            }
        }
        Ok(())
    }

    /// The API's records in `registry`.
    pub(super) fn of(registry: &Registry) -> Overlay {
        let mut overlay = Overlay::default();
        for (name, record) in registry.plans().iter().filter(|(_, r)| r.origin != Origin::File) {
            overlay.plans.insert(name.to_string(), Some(record.entry.clone()));
        }
        for (name, record) in registry.subscribers().iter() {
            let spec = || record.spec(name);
            match record.origin {
                Origin::File => {}
                Origin::Api | Origin::ApiOverFile => {
                    overlay.subscribers.insert(name.to_string(), Some(spec()));
                }
                Origin::Radius | Origin::Lease => {
                    overlay.sessions.insert(name.to_string(), record.reported(name));
                }
            }
        }
        let hidden = registry.hidden();
        overlay.plans.extend(hidden.plans.iter().map(|name| (name.to_string(), None)));
        overlay.subscribers.extend(hidden.subscribers.iter().map(|name| (name.to_string(), None)));
        overlay
    }

    /// The edits that produce this overlay from an empty one.
    pub(super) fn into_edits(self) -> Vec<Edit> {
        let plans = self.plans.into_iter().map(|(name, plan)| match plan {
            Some(plan) => Edit::SetPlan(plan.to_json()),
            None => Edit::HidePlan(name),
        });
        let subscribers = self.subscribers.into_iter().map(|(name, spec)| match spec {
            Some(spec) => Edit::SetSubscriber(spec),
            None => Edit::HideSubscriber(name),
        });
        let is_stored = |reported: &Reported| {
            reported.origin == Origin::Radius || reported.report.own_plan.is_some()
        };
        let sessions = self.sessions.into_values().filter(is_stored).map(Edit::Report);
        plans.chain(subscribers).chain(sessions).collect()
    }
}

/// The edits that produce the API's records in `registry` from an empty overlay.
pub(super) fn all_edits(registry: &Registry) -> Vec<Edit> {
    Overlay::of(registry).into_edits()
}

/// The edits for changes that were just made and that `undo` would undo.
pub(super) fn edits(registry: &Registry, undo: &Undo) -> Vec<Edit> {
    let hidden = registry.hidden();
    let plan = |name: &str| match registry.plans().get(name) {
        Some(record) => Edit::SetPlan(record.entry.to_json()),
        None if hidden.plans.contains(name) => Edit::HidePlan(name.to_owned()),
        None => Edit::RevertPlan(name.to_owned()),
    };
    let subscriber = |(name, before): (&str, Option<&Record>)| {
        let is_stored = before.is_some_and(|r| r.origin != Origin::Lease || r.is_stored_report());
        match registry.subscribers().get(name) {
            Some(record) if record.origin.is_of_api() => {
                Some(Edit::SetSubscriber(record.spec(name)))
            }
            Some(record) if record.is_stored_report() => Some(Edit::Report(record.reported(name))),
            None if hidden.subscribers.contains(name) => {
                Some(Edit::HideSubscriber(name.to_owned()))
            }
            Some(_) | None => is_stored.then(|| Edit::RevertSubscriber(name.to_owned())),
        }
    };
    let plans = undo.plan_names().map(plan);
    plans.chain(undo.subscribers().filter_map(subscriber)).collect()
}

/// The number of edits at which to rewrite a journal that needs `needed` edits; the registry has `records` records.
///
/// A rewrite reads each record and writes each needed edit. At this point `needed` + max([`OUTDATED_MAX`], records /
/// [`WALK_PART`]) edits are outdated, or more. So for each of them it reads at most [`WALK_PART`] records and writes at
/// most one edit.
fn rewrite_at(needed: usize, records: usize) -> usize {
    2 * needed + OUTDATED_MAX.max(records / WALK_PART)
}

/// The number of edits that produce the API's records in `registry` from an empty overlay.
fn stored(registry: &Registry) -> usize {
    let hidden = registry.hidden();
    let subscribers = [Origin::Api, Origin::ApiOverFile];
    hidden.plans.len()
        + hidden.subscribers.len()
        + registry.plans().values().filter(|r| r.origin != Origin::File).count()
        + subscribers.into_iter().map(|origin| registry.count_of(origin)).sum::<usize>()
        + registry.stored_reports()
}

fn unread_names() -> impl Iterator<Item = String> {
    (1..=UNREAD_MAX).map(|n| if n == 1 { UNREAD.to_owned() } else { format!("{UNREAD}.{n}") })
}

/// Reads the journal in `dir` without changing it; also returns a description of what was not understood.
///
/// # Errors
/// If it cannot be read, or others may write to it.
pub(super) fn look(dir: &StateDir) -> anyhow::Result<(Overlay, Option<String>)> {
    read(dir).map(|read| (read.overlay, read.not_understood))
}

/// The contents of a journal.
#[derive(Default)]
struct Read {
    overlay: Overlay,
    /// The number of bytes that are kept.
    length: u64,
    edits: usize,
    /// The first line that was not fully understood, why, and the number of such lines.
    not_understood: Option<String>,
}

fn read(dir: &StateDir) -> anyhow::Result<Read> {
    let path = dir.path_of(FILE);
    let bytes = dir.read(FILE, FILE_SIZE_MAX)?.unwrap_or_default();
    let mut read = Read::default();
    let mut bad: Option<(usize, String, usize)> = None;
    for (i, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let is_ended = line.ends_with(b"\n");
        let understood = match i {
            0 if line == HEADER.as_bytes() => Ok(Vec::new()),
            0 => Err("not a journal of this version".to_owned()),
            _ => serde_json::from_slice::<Vec<Edit>>(line).map_err(|e| e.to_string()),
        };
        if !is_ended && understood.is_err() {
            warn!(path = %path.display(), "the journal ends with an incomplete line, which was not acknowledged");
            break;
        }
        read.length += line.len() as u64;
        let (list, mut why) = match understood {
            Ok(list) => (list, (!is_ended).then(|| "no end of the line".to_owned())),
            Err(e) => (salvage(line), Some(e)),
        };
        read.edits += list.len();
        for edit in list {
            why = read.overlay.apply(edit).err().or(why);
        }
        if let Some(why) = why {
            bad.get_or_insert((i + 1, why, 0)).2 += 1;
        }
    }
    read.overlay.is_partial = bad.is_some();
    read.not_understood = bad.map(|(line, why, lines)| {
        let more = if lines > 1 { format!(" (and {} more)", lines - 1) } else { String::new() };
        format!("{line}: not understood{more}: {why}")
    });
    Ok(read)
}

/// The edits that can be recovered from a line that is not a valid list.
fn salvage(line: &[u8]) -> Vec<Edit> {
    let (mut edits, mut at) = (Vec::new(), 0);
    while let Some(step) = line[at..].iter().position(|&b| b == b'{') {
        at += step;
        let mut found = serde_json::Deserializer::from_slice(&line[at..]).into_iter();
        if let Some(Ok(edit)) = found.next() {
            edits.push(edit);
            at += found.byte_offset();
        } else {
            at += 1;
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::ops::Range;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::isp::registry::Change;
    use fairweir_config::isp::address::parse_address;
    use serde_json::json;

    fn spec(name: &str, address: &str) -> SubscriberSpec {
        SubscriberSpec {
            name: name.to_owned(),
            addresses: vec![parse_address(address).unwrap()],
            plan: "slow".to_owned(),
        }
    }

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let plan = json!({ "name": "slow", "download": "10mbit" });
        registry.load_plan(&PlanEntry::from_json(&plan).unwrap(), Origin::File).unwrap();
        registry.load(&spec("alice", "192.0.2.1"), Origin::File).unwrap();
        registry
    }

    #[test]
    fn what_was_kept_is_there_after_a_crash_and_half_a_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("deeper"));
        let mut registry = registry();
        let (mut journal, overlay) = Journal::open(state.clone()).unwrap();
        assert_eq!(overlay, Overlay::default());
        let fast = json!({ "name": "fast", "upload": "1mbit" });
        for changes in [
            vec![Change::AddPlan(PlanEntry::from_json(&fast).unwrap())],
            vec![Change::Add(spec("bob", "192.0.2.2")), Change::Add(spec("eve", "192.0.2.3"))],
            vec![Change::Remove("alice".into()), Change::Remove("eve".into())],
        ] {
            let undo = registry.apply(&changes).unwrap();
            journal.append(&edits(&registry, &undo)).unwrap();
        }
        let mark = journal.append(&[Edit::HidePlan("slow".into())]).unwrap();
        journal.take_back(mark);
        state.append(FILE).unwrap().write_all(b"[{\"set_su").unwrap();
        drop(journal);
        let (mut journal, overlay) = Journal::open(state.clone()).unwrap();
        assert_eq!(overlay, Overlay::of(&registry));
        assert_eq!(overlay.subscribers["alice"], None);
        assert_eq!(overlay.subscribers.get("eve"), None);
        assert_eq!(overlay.subscribers["bob"], Some(spec("bob", "192.0.2.2")));
        // The rewritten journal has the same contents and can be appended to.
        journal.rewrite(&all_edits(&registry)).unwrap();
        journal.append(&[Edit::RevertSubscriber("alice".into())]).unwrap();
        drop(journal);
        let (_, again) = Journal::open(state.clone()).unwrap();
        assert_eq!(again.subscribers.keys().collect::<Vec<_>>(), ["bob"]);
        assert_eq!(again.plans, overlay.plans);
    }

    #[test]
    fn a_second_writer_is_refused_and_a_journal_that_was_replaced_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let (mut journal, _) = Journal::open(state.clone()).unwrap();
        let error = Journal::open(state.clone()).unwrap_err().to_string();
        assert!(error.contains("is the state directory of another fairweir"), "{error}");
        assert!(look(&state).unwrap().1.is_none());
        state.write(FILE, HEADER.as_bytes()).unwrap();
        let error = journal.append(&[Edit::HidePlan("slow".into())]).unwrap_err().to_string();
        assert!(error.contains("was removed or replaced"), "{error}");
        journal.rewrite(&[]).unwrap();
        journal.append(&[Edit::HidePlan("slow".into())]).unwrap();
        drop(journal);
        let (_, overlay) = Journal::open(state).unwrap();
        assert_eq!(overlay.plans["slow"], None);
    }

    /// The overlay after opening and rewriting a journal with this text.
    fn reopened(text: &[u8]) -> Overlay {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        state.write(FILE, text).unwrap();
        let (mut journal, mut overlay) = Journal::open(state.clone()).unwrap();
        assert!(overlay.is_partial && look(&state).unwrap().1.is_some());
        let left = journal.left().unwrap();
        assert!(left.contains("isp.journal:") && left.contains("isp.journal.unread"), "{left}");
        journal.append(&[Edit::HidePlan("later".into())]).unwrap();
        let edits: Vec<Edit> =
            overlay.subscribers.keys().cloned().map(Edit::HideSubscriber).collect();
        journal.rewrite(&edits).unwrap();
        drop(journal);
        // All of it is kept, and the status mentions it until the operator deletes the copy.
        let kept = fs::read(dir.path().join(UNREAD)).unwrap();
        assert!(kept.starts_with(text));
        let (journal, again) = Journal::open(state.clone()).unwrap();
        assert!(!again.is_partial && journal.left().unwrap().contains(UNREAD));
        assert_eq!(again.subscribers.len(), overlay.subscribers.len());
        drop(journal);
        fs::remove_file(dir.path().join(UNREAD)).unwrap();
        let (journal, _) = Journal::open(state).unwrap();
        assert_eq!(journal.left(), None);
        overlay.is_partial = false;
        overlay
    }

    #[test]
    fn of_a_damaged_journal_all_but_the_damaged_edits_are_in_force_and_nothing_is_lost() {
        let list = |names: std::ops::Range<u8>| {
            let spec = |n| spec(&format!("s{n}"), &format!("192.0.2.{n}"));
            let edits: Vec<Edit> = names.map(spec).map(Edit::SetSubscriber).collect();
            [serde_json::to_vec(&edits).unwrap(), b"\n".to_vec()].concat()
        };
        let text = [HEADER.as_bytes(), &list(1..2), &list(2..7), &list(7..8)].concat();
        let mut fewest = usize::MAX;
        for at in 0..text.len() - 1 {
            let mut damaged = text.clone();
            damaged[at] = if damaged[at] == b'#' { b'\n' } else { b'#' };
            let dir = tempfile::tempdir().unwrap();
            let state = StateDir::new(dir.path());
            state.write(FILE, &damaged).unwrap();
            // A changed byte in a name or address may produce another valid one.
            fewest = fewest.min(look(&state).unwrap().0.subscribers.len());
        }
        assert_eq!(fewest, 6, "one wrong byte costs one edit");
        let mut damaged = text.clone();
        let at = text.len() / 2;
        damaged[at] = 0xff;
        assert_eq!(reopened(&damaged).subscribers.len(), 6);
        let header = HEADER.len();
        for (other, wanted) in [
            ([b"{\"fairweir_isp_journal\":2}\n", &text[header..]].concat(), 7),
            ([&text[..], b"[{\"set_quota\":{\"name\":\"s1\"}}]\n"].concat(), 7),
            ([&text[..], b"[{\"set_plan\":{\"name\":\"x\",\"color\":1}}]\n"].concat(), 7),
            (text[header..].to_vec(), 7),
            (b"\0\0\0\0\n".to_vec(), 0),
        ] {
            assert_eq!(reopened(&other).subscribers.len(), wanted);
        }
    }

    #[test]
    fn a_damaged_journal_that_cannot_be_kept_is_not_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        for name in unread_names() {
            fs::write(dir.path().join(name), "of an earlier start").unwrap();
        }
        let text = format!("{HEADER}broken\n");
        state.write(FILE, text.as_bytes()).unwrap();
        let (mut journal, _) = Journal::open(state.clone()).unwrap();
        journal.append(&[Edit::HidePlan("slow".into())]).unwrap();
        journal.tidy(&registry());
        assert!(journal.rewrite(&[]).is_err());
        drop(journal);
        let bytes = state.read(FILE, 1_000).unwrap().unwrap();
        assert!(bytes.starts_with(text.as_bytes()) && bytes.len() > text.len());
        // Once a name is free, the journal is kept at the next attempt.
        fs::remove_file(dir.path().join("isp.journal.unread.7")).unwrap();
        let (mut journal, _) = Journal::open(state.clone()).unwrap();
        journal.tidy(&registry());
        drop(journal);
        assert_eq!(state.read("isp.journal.unread.7", 1_000).unwrap().unwrap(), bytes);
        assert_eq!(state.read(FILE, 1_000).unwrap().unwrap(), HEADER.as_bytes());
    }

    /// Measures how many records a rewrite reads and writes, not the time.
    #[test]
    fn a_change_costs_the_same_with_a_hundred_thousand_sessions_as_with_a_hundred() {
        // On a disk, syncing these changes would take a minute.
        let memory = Some(Path::new("/dev/shm")).filter(|path| path.is_dir());
        for sessions in [100_u32, 100_000] {
            let dir = memory.map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();
            let (mut journal, _) = Journal::open(StateDir::new(dir.path())).unwrap();
            let mut registry = registry();
            let begin = |n: u32| {
                let address = std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string();
                Change::Begin(spec(&format!("s{n}"), &address), Origin::Radius)
            };
            let first: Vec<Change> = (0..sessions).map(begin).collect();
            let undo = registry.apply(&first).unwrap();
            journal.append(&edits(&registry, &undo)).unwrap();
            journal.tidy(&registry);
            let before = journal.walked;
            let changes = 60_000;
            for n in 0..changes {
                let change = match n % 3 {
                    0 => begin(sessions + n),
                    1 => Change::End(format!("s{}", sessions + n - 1), Origin::Radius),
                    _ => Change::Alter {
                        name: "s0".to_owned(),
                        addresses: Some(vec![
                            parse_address(&format!("192.0.2.{}", n % 9 + 2)).unwrap(),
                        ]),
                        plan: None,
                    },
                };
                let undo = registry.apply(std::slice::from_ref(&change)).unwrap();
                journal.append(&edits(&registry, &undo)).unwrap();
                journal.tidy(&registry);
            }
            let walked = (journal.walked - before) as f64 / f64::from(changes);
            println!("{sessions} sessions: {walked:.2} records per change");
            assert!(walked <= WALK_PART as f64, "{walked} records per change");
            assert!(journal.edits < rewrite_at(stored(&registry), registry.subscribers().len()));
            assert_eq!(stored(&registry), all_edits(&registry).len());
            let wanted = Overlay::of(&registry);
            let state = journal.dir.clone();
            drop(journal);
            assert_eq!(Journal::open(state).unwrap().1, wanted);
        }
    }

    /// Writes edits until it is killed, and prints the number of each stored edit.
    fn write(dir: &Path) {
        let (mut journal, overlay) = Journal::open(StateDir::new(dir)).unwrap();
        let mut out = io::stdout();
        for n in overlay.subscribers.len().. {
            let edits = [n, n + 1].map(|n| Edit::HideSubscriber(format!("s{n}")));
            journal.append(&edits[..1 + n % 2]).unwrap();
            writeln!(out, "kept {n}").unwrap();
            out.flush().unwrap();
            if n % 40 == 39 {
                journal
                    .rewrite(
                        &(0..=n).map(|n| Edit::HideSubscriber(format!("s{n}"))).collect::<Vec<_>>(),
                    )
                    .unwrap();
            }
        }
    }

    #[test]
    fn two_hundred_kills_lose_nothing_that_was_kept_and_a_second_writer_is_refused() {
        // The test starts itself as the writer.
        if let Some(dir) = std::env::var_os(WRITER) {
            return write(Path::new(&dir));
        }
        // Two writers run in parallel, since a start takes longer than a write.
        let kept: usize = thread::scope(|scope| {
            let writers = [0..100, 100..200].map(|kills| scope.spawn(move || kept_over(kills)));
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        println!("{kept} edits kept over 200 kills");
        assert!(kept > 1_000, "{kept} edits kept");
    }

    /// Kills a writer repeatedly. Returns the number of edits that it reported as stored; all must be in its journal.
    fn kept_over(kills: Range<u64>) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let mut kept = 0;
        for kill in kills {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", KILLS, "--nocapture"])
                .env(WRITER, dir.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
            let mut number = || {
                let line = lines.next()?.unwrap();
                Some(line.split_once("kept ").map_or(0, |(_, n)| n.parse::<usize>().unwrap() + 1))
            };
            while number().unwrap() == 0 {}
            let error = Journal::open(state.clone()).unwrap_err().to_string();
            assert!(error.contains("is the state directory of another fairweir"), "{error}");
            thread::sleep(Duration::from_micros(kill * 7_919 % 20_000));
            child.kill().unwrap();
            child.wait().unwrap();
            while let Some(number) = number() {
                kept = kept.max(number);
            }
            let (overlay, _) = look(&state).unwrap();
            let missing = (0..kept).find(|n| !overlay.subscribers.contains_key(&format!("s{n}")));
            assert_eq!(missing, None, "after kill {kill}, {kept} kept");
        }
        kept
    }

    /// The variable with the directory in which [`write()`] writes.
    const WRITER: &str = "FAIRWEIR_TEST_JOURNAL";
    const KILLS: &str = "isp::journal::tests::two_hundred_kills_lose_nothing_that_was_kept_and_a_second_writer_is_refused";
}
