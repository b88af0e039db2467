//! What the API changed, kept over restarts: a journal beside the operator's files.
//!
//! Each line is one list of edits, written and synced before it is answered, so what was answered
//! is there after a crash, and half a line at the end was never answered. Of each name the last
//! edit counts: it overrides what the file says of that name until it is reverted. The journal is
//! rewritten when most of it is outdated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use fairweir_config::isp::{PlanEntry, SubscriberSpec};
use fairweir_daemon::{StateDir, StateLock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

use super::registry::{Origin, Registry, Undo};

/// The most outdated edits before the journal is rewritten.
const OUTDATED_MAX: usize = 10_000;

/// In the state directory.
const FILE: &str = "isp.journal";

/// The largest journal, in bytes: 4 million subscribers with 300 bytes each, and as many outdated edits.
const FILE_SIZE_MAX: u64 = 4 << 30;

/// The first line.
const HEADER: &str = "{\"fairweir_isp_journal\":1}\n";

/// What the API says of names: `None` is gone, whatever the file says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Overlay {
    pub(super) plans: BTreeMap<String, Option<PlanEntry>>,
    pub(super) subscribers: BTreeMap<String, Option<SubscriberSpec>>,
    /// Sessions and leases, which give way to the files too; leases are not in the journal.
    pub(super) sessions: BTreeMap<String, (SubscriberSpec, Origin)>,
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
    SetSession(SubscriberSpec),
}

/// The journal on disk.
#[derive(Debug)]
pub(super) struct Journal {
    dir: StateDir,
    /// Two writers would overwrite what the other has acknowledged.
    _lock: StateLock,
    path: PathBuf,
    file: File,
    length: u64,
    /// Edits since it was last rewritten.
    edits: usize,
}

impl Journal {
    /// Reads the journal in `dir`, and opens it for more.
    ///
    /// # Errors
    /// If it cannot be read or written, others may write to it, another process has it open, or a
    /// line in its midst is not understood.
    pub(super) fn open(dir: StateDir) -> anyhow::Result<(Journal, Overlay)> {
        let lock = dir.lock()?;
        let (overlay, length, edits) = read(&dir)?;
        let (path, file) = (dir.path_of(FILE), dir.append(FILE)?);
        let mut journal = Journal { dir, _lock: lock, path, file, length, edits };
        let prepare = |journal: &mut Journal| -> io::Result<()> {
            journal.file.set_len(length)?;
            if length == 0 {
                journal.write(HEADER.as_bytes())?;
            }
            Ok(())
        };
        let prepared = prepare(&mut journal);
        prepared.with_context(|| format!("cannot write {}", journal.path.display()))?;
        // Else the file may be gone after a crash, with all that it keeps.
        journal.dir.sync()?;
        Ok((journal, overlay))
    }

    /// Keeps a list of edits; returns how it is taken back.
    ///
    /// # Errors
    /// If the disk refuses; then nothing is kept.
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

    /// Takes back what was appended since `mark`.
    pub(super) fn take_back(&mut self, mark: Mark) {
        if let Err(e) = self.file.set_len(mark.length).and_then(|()| self.file.sync_data()) {
            warn!(path = %self.path.display(), "a failed edit remains in the journal: {e}");
            return;
        }
        (self.length, self.edits) = (mark.length, mark.edits);
    }

    /// Rewrites the journal if most of it is outdated.
    pub(super) fn tidy(&mut self, registry: &Registry) {
        let hidden = registry.hidden();
        let needed = hidden.plans.len()
            + hidden.subscribers.len()
            + registry.plans().values().filter(|r| r.origin != Origin::File).count();
        if self.edits < needed + OUTDATED_MAX {
            return;
        }
        let edits = all_edits(registry);
        if self.edits >= 2 * edits.len() + OUTDATED_MAX
            && let Err(e) = self.rewrite(&edits)
        {
            warn!(path = %self.path.display(), "cannot rewrite the journal: {e}");
        }
    }

    /// Replaces the journal in one step.
    ///
    /// # Errors
    /// If the disk refuses. Then the old one stays; or if the new one is there already but may be gone
    /// after a crash, nothing more is kept.
    pub(super) fn rewrite(&mut self, edits: &[Edit]) -> anyhow::Result<()> {
        let mut text = HEADER.as_bytes().to_vec();
        if !edits.is_empty() {
            serde_json::to_writer(&mut text, edits)?;
            text.push(b'\n');
        }
        if let Err(e) = self.dir.write(FILE, &text) {
            // It may be that only the directory could not be synced.
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
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// How long the journal was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    length: u64,
    edits: usize,
}

impl Overlay {
    /// Does an edit.
    ///
    /// # Errors
    /// If it holds a plan that cannot be.
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
            Edit::SetSession(spec) => {
                self.subscribers.remove(&spec.name);
                self.sessions.insert(spec.name.clone(), (spec, Origin::Radius));
            }
        }
        Ok(())
    }

    /// Forgets what the API said of `names`, or of all.
    ///
    /// # Errors
    /// If it said nothing of one of them; then nothing is forgotten.
    pub(super) fn revert(&mut self, names: &[String], all: bool) -> anyhow::Result<()> {
        let knows =
            |name: &String| self.plans.contains_key(name) || self.subscribers.contains_key(name);
        if let Some(unknown) = names.iter().find(|name| !knows(name)) {
            bail!("no change of `{unknown}` by commands");
        }
        self.plans.retain(|name, _| !all && !names.contains(name));
        self.subscribers.retain(|name, _| !all && !names.contains(name));
        Ok(())
    }

    /// What the API says in `registry`.
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
                origin @ (Origin::Radius | Origin::Lease) => {
                    overlay.sessions.insert(name.to_string(), (spec(), origin));
                }
            }
        }
        let hidden = registry.hidden();
        overlay.plans.extend(hidden.plans.iter().map(|name| (name.to_string(), None)));
        overlay.subscribers.extend(hidden.subscribers.iter().map(|name| (name.to_string(), None)));
        overlay
    }

    /// The edits that lead to it from nothing.
    pub(super) fn into_edits(self) -> Vec<Edit> {
        let plans = self.plans.into_iter().map(|(name, plan)| match plan {
            Some(plan) => Edit::SetPlan(plan.to_json()),
            None => Edit::HidePlan(name),
        });
        let subscribers = self.subscribers.into_iter().map(|(name, spec)| match spec {
            Some(spec) => Edit::SetSubscriber(spec),
            None => Edit::HideSubscriber(name),
        });
        let stored = |(spec, origin)| (origin == Origin::Radius).then_some(spec);
        let sessions = self.sessions.into_values().filter_map(stored).map(Edit::SetSession);
        plans.chain(subscribers).chain(sessions).collect()
    }
}

/// The edits that lead from nothing to what the API says in `registry`.
pub(super) fn all_edits(registry: &Registry) -> Vec<Edit> {
    Overlay::of(registry).into_edits()
}

/// The edits that some changes amount to, once they are made.
pub(super) fn edits(registry: &Registry, undo: &Undo) -> Vec<Edit> {
    let hidden = registry.hidden();
    let plan = |name: &str| match registry.plans().get(name) {
        Some(record) => Edit::SetPlan(record.entry.to_json()),
        None if hidden.plans.contains(name) => Edit::HidePlan(name.to_owned()),
        None => Edit::RevertPlan(name.to_owned()),
    };
    let subscriber = |(name, before): (&str, Option<Origin>)| {
        let is_stored = before.is_some_and(|origin| origin != Origin::Lease);
        match registry.subscribers().get(name) {
            Some(record) if record.origin.is_of_api() => {
                Some(Edit::SetSubscriber(record.spec(name)))
            }
            Some(record) if record.origin == Origin::Radius => {
                Some(Edit::SetSession(record.spec(name)))
            }
            None if hidden.subscribers.contains(name) => {
                Some(Edit::HideSubscriber(name.to_owned()))
            }
            Some(_) | None => is_stored.then(|| Edit::RevertSubscriber(name.to_owned())),
        }
    };
    let plans = undo.plan_names().map(plan);
    plans.chain(undo.subscribers().filter_map(subscriber)).collect()
}

/// What the journal in `dir` says, touching nothing.
///
/// # Errors
/// As [`Journal::open`].
pub(super) fn look(dir: &StateDir) -> anyhow::Result<Overlay> {
    read(dir).map(|(overlay, ..)| overlay)
}

/// What a journal says, how much of it is good, and how many edits that are.
fn read(dir: &StateDir) -> anyhow::Result<(Overlay, u64, usize)> {
    let path = dir.path_of(FILE);
    let bytes = dir.read(FILE, FILE_SIZE_MAX)?.unwrap_or_default();
    let mut overlay = Overlay::default();
    let (mut good, mut edits) = (0, 0);
    for (i, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        if !line.ends_with(b"\n") {
            warn!(path = %path.display(), "the journal ends with an incomplete line, which was not acknowledged");
            break;
        }
        let understood = match i {
            0 if line == HEADER.as_bytes() => Ok(Vec::new()),
            0 => Err("not a journal of this version".to_owned()),
            _ => serde_json::from_slice::<Vec<Edit>>(line).map_err(|e| e.to_string()),
        };
        let applied = understood.and_then(|list| {
            edits += list.len();
            list.into_iter().try_for_each(|edit| overlay.apply(edit))
        });
        if let Err(e) = applied {
            let shown = path.display();
            bail!("{shown}:{}: invalid entry: {e}; move the file away", i + 1);
        }
        good += line.len() as u64;
    }
    Ok((overlay, good, edits))
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
        // Rewritten, it says the same, and more can be appended.
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
        assert!(look(&state).is_ok());
        state.write(FILE, HEADER.as_bytes()).unwrap();
        let error = journal.append(&[Edit::HidePlan("slow".into())]).unwrap_err().to_string();
        assert!(error.contains("was removed or replaced"), "{error}");
        journal.rewrite(&[]).unwrap();
        journal.append(&[Edit::HidePlan("slow".into())]).unwrap();
        drop(journal);
        let (_, overlay) = Journal::open(state).unwrap();
        assert_eq!(overlay.plans["slow"], None);
    }

    #[test]
    fn a_journal_that_is_not_understood_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        for text in ["{}\n", "{\"fairweir_isp_journal\":1}\nbroken\n"] {
            state.write(FILE, text.as_bytes()).unwrap();
            let error = format!("{:#}", Journal::open(state.clone()).unwrap_err());
            assert!(
                error.contains("isp.journal:") && error.contains("move the file away"),
                "{error}"
            );
            assert_eq!(state.read(FILE, 100).unwrap().unwrap(), text.as_bytes());
        }
    }

    /// Writes edits until it is killed, and says which are kept.
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
        // It starts itself as the writer.
        if let Some(dir) = std::env::var_os(WRITER) {
            return write(Path::new(&dir));
        }
        // Of two writers at the same time, since a start takes longer than a write.
        let kept: usize = thread::scope(|scope| {
            let writers = [0..100, 100..200].map(|kills| scope.spawn(move || kept_over(kills)));
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        println!("{kept} edits kept over 200 kills");
        assert!(kept > 1_000, "{kept} edits kept");
    }

    /// Kills the writer of a journal of its own; the number of edits that it kept, which must all be there.
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
            let overlay = look(&state).unwrap();
            let missing = (0..kept).find(|n| !overlay.subscribers.contains_key(&format!("s{n}")));
            assert_eq!(missing, None, "after kill {kill}, {kept} kept");
        }
        kept
    }

    /// Where [`write()`] writes.
    const WRITER: &str = "FAIRWEIR_TEST_JOURNAL";
    const KILLS: &str = "isp::journal::tests::two_hundred_kills_lose_nothing_that_was_kept_and_a_second_writer_is_refused";
}
