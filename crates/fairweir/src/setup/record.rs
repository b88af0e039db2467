//! The state of the machine before `fairweir setup`, so that `--undo` can restore it.
//!
//! The record is written before each change, and only the first run records the previous state. So
//! `--undo` also works after a run that was killed, and after several runs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fairweir_config::file::read_own;
use fairweir_config::{output, text};
use serde::{Deserialize, Serialize};

use super::units::{self, UnitBefore};

const NAME: &str = "setup.json";
/// The size limit of a record, in bytes; it holds a few files.
const BYTES_MAX: u64 = 16_000_000;
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    files: Vec<FileBefore>,
    units: Vec<UnitBefore>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBefore {
    path: PathBuf,
    /// The previous text; `None` if there was no file.
    before: Option<String>,
    /// The text that `fairweir setup` wrote last. If the file has another text, it was edited since.
    written: String,
}

impl Record {
    /// The record in `dir`; an empty one if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn load(dir: &Path) -> anyhow::Result<Record> {
        let path = dir.join(NAME);
        let empty = Record { version: VERSION, files: Vec::new(), units: Vec::new() };
        let Some(bytes) = read_own(&path, BYTES_MAX)? else { return Ok(empty) };
        let record: Record = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not a record of `fairweir setup`", path.display()))?;
        if record.version != VERSION {
            bail!("{} is of another version of fairweir", path.display());
        }
        Ok(record)
    }

    fn store(&self, dir: &Path) -> anyhow::Result<()> {
        let path = dir.join(NAME);
        output::make_dir(dir)
            .and_then(|()| output::write_private(&path, serde_json::to_vec(self)?))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Records the text of a file before `text` is written to it. `text` is `None` if only a daemon will write to it.
    ///
    /// # Errors
    /// If the file or the record cannot be read or written; the file must not be written then.
    pub(super) fn note_file(
        &mut self,
        dir: &Path,
        path: &Path,
        text: Option<&str>,
    ) -> anyhow::Result<()> {
        let path = std::path::absolute(path)?;
        match self.files.iter_mut().find(|file| file.path == path) {
            Some(file) => file.written = text.unwrap_or(&file.written).to_owned(),
            None => {
                let before = read(&path)?;
                let written = text.or(before.as_deref()).unwrap_or_default().to_owned();
                self.files.push(FileBefore { path, before, written });
            }
        }
        self.store(dir)
    }

    /// Records the state of a unit before it is changed.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn note_unit(&mut self, dir: &Path, unit: UnitBefore) -> anyhow::Result<()> {
        if self.units.iter().all(|known| known.name != unit.name) {
            self.units.push(unit);
        }
        self.store(dir)
    }
}

/// Restores the state in the record in `dir`.
///
/// # Errors
/// At the first item that cannot be restored; the remaining items stay in the record.
pub(super) fn undo(dir: &Path) -> anyhow::Result<()> {
    let mut record = Record::load(dir)?;
    let out = &mut text::stdout();
    if record.files.is_empty() && record.units.is_empty() {
        let what = "nothing to undo: `fairweir setup` has changed nothing here, or it was undone";
        return Ok(writeln!(out, "{what}")?);
    }
    while let Some(unit) = record.units.pop() {
        for line in units::restore(&unit)? {
            writeln!(out, "{line}")?;
        }
        record.store(dir)?;
    }
    while let Some(file) = record.files.pop() {
        if let Some(line) = restore(&file)? {
            writeln!(out, "{line}")?;
        }
        record.store(dir)?;
    }
    fs::remove_file(dir.join(NAME)).context("cannot remove the record")
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => bail!("cannot read {}: {e}", path.display()),
    }
}

/// Restores a file; returns a description if there was anything to do.
fn restore(file: &FileBefore) -> anyhow::Result<Option<String>> {
    let path = &file.path;
    let now = read(path)?;
    if now == file.before {
        return Ok(None);
    }
    let mut kept = String::new();
    if let Some(now) = now.as_ref().filter(|now| **now != file.written) {
        let mut edited = path.clone().into_os_string();
        edited.push(".edited");
        output::write(Path::new(&edited), now)
            .with_context(|| format!("cannot write {}", Path::new(&edited).display()))?;
        kept = format!("; what was edited since is in {}", Path::new(&edited).display());
    }
    let what = match &file.before {
        Some(before) => {
            output::write(path, before)
                .with_context(|| format!("cannot write {}", path.display()))?;
            "restored"
        }
        None => {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
            "removed"
        }
    };
    Ok(Some(format!("{what} {}{kept}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_says_what_was_before_and_edits_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [state, new, old, set, unused] =
            ["state", "new", "old", "set", "unused"].map(|name| dir.path().join(name));
        fs::write(&old, "mine").unwrap();
        for text in ["one", "two"] {
            let mut record = Record::load(&state).unwrap();
            for path in [&new, &old] {
                record.note_file(&state, path, Some(text)).unwrap();
                fs::write(path, text).unwrap();
            }
            for path in [&set, &unused] {
                record.note_file(&state, path, None).unwrap();
            }
        }
        fs::write(&old, "edited").unwrap();
        fs::write(&set, "by a daemon").unwrap();
        undo(&state).unwrap();
        assert!(!new.exists() && !set.exists() && !unused.exists());
        assert_eq!(fs::read_to_string(dir.path().join("set.edited")).unwrap(), "by a daemon");
        assert_eq!(fs::read_to_string(&old).unwrap(), "mine");
        assert_eq!(fs::read_to_string(dir.path().join("old.edited")).unwrap(), "edited");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "the record is gone");
        undo(&state).unwrap();
        fs::write(state.join(NAME), "{}").unwrap();
        assert!(undo(&state).is_err(), "a record that cannot be read undoes nothing");
    }

    #[test]
    fn a_run_that_was_killed_between_record_and_file_is_undone_too() {
        let dir = tempfile::tempdir().unwrap();
        let (state, path) = (dir.path().join("state"), dir.path().join("file"));
        fs::write(&path, "mine").unwrap();
        Record::load(&state).unwrap().note_file(&state, &path, Some("new")).unwrap();
        undo(&state).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(!dir.path().join("file.edited").exists());
    }
}
