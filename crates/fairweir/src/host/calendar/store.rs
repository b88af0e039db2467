//! The file that keeps the usage of quotas when the daemon ends, and the thread that writes it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use fairweir_core::calendar::{Counted, Period};
use fairweir_daemon::{Error, StateDir};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The largest file, in bytes: [`fairweir_core::policy::GROUPS_MAX`] quotas of the longest paths.
pub(super) const FILE_SIZE_MAX: u64 = 256 << 10;

/// The last day that a calendar has, in days since 1970.
const DAY_MAX: i64 = 2_900_000;

/// The bytes that an interface has received since the machine started, by its own counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Interface {
    /// Differs after each start of the machine.
    pub(super) boot: String,
    pub(super) index: u32,
    pub(super) bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) version: u32,
    pub(super) interface: Interface,
    pub(super) quotas: BTreeMap<String, StoredUsage>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredUsage {
    pub(super) per: Period,
    pub(super) elapsed_s: u64,
    pub(super) periods: Vec<Counted>,
}

/// The file of the daemon called `name`.
#[derive(Clone, Debug)]
pub(in super::super) struct QuotaFile {
    pub(super) dir: StateDir,
    pub(super) name: String,
}

impl QuotaFile {
    pub(in super::super) fn new(dir: StateDir, name: &str) -> QuotaFile {
        QuotaFile { dir, name: format!("quota-{name}.json") }
    }

    pub(super) fn read(&self) -> Result<Option<Stored>, String> {
        let Some(text) = self.dir.read(&self.name, FILE_SIZE_MAX).map_err(|e| e.to_string())?
        else {
            return Ok(None);
        };
        let of = |e: String| format!("{}: {e}", self.dir.path_of(&self.name).display());
        let stored: Stored = serde_json::from_slice(&text).map_err(|e| of(e.to_string()))?;
        let mut periods = stored.quotas.values().flat_map(|usage| &usage.periods);
        if periods.any(|period| !(-DAY_MAX..=DAY_MAX).contains(&period.first_day)) {
            return Err(of("a day is out of range".to_owned()));
        }
        match stored.version {
            1 => Ok(Some(stored)),
            version => Err(of(format!("version {version} is unknown"))),
        }
    }
}

/// Writes the file: in a thread, except at the end.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) file: QuotaFile,
    put: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    error: Arc<Mutex<Option<String>>>,
    last: Vec<u8>,
}

impl Store {
    pub(super) fn new(file: QuotaFile) -> Store {
        let error = Arc::new(Mutex::new(None));
        Store { file, put: None, thread: None, error, last: Vec::new() }
    }

    fn start_thread(&mut self) -> std::io::Result<()> {
        let (put, texts): (_, Receiver<Vec<u8>>) = sync_channel(1);
        let (QuotaFile { dir, name }, error) = (self.file.clone(), self.error.clone());
        let work = move || {
            for text in texts {
                let written = dir.write(&name, &text).err().map(|e| e.to_string());
                let mut error = error.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(e) = written.iter().find(|_| written != *error) {
                    warn!("what was used of quotas is not stored: {e}");
                }
                *error = written;
            }
        };
        self.thread = Some(std::thread::Builder::new().name("quotas".to_owned()).spawn(work)?);
        self.put = Some(put);
        Ok(())
    }

    /// The reason if the last text was not written.
    pub(super) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes `text` soon, unless it is unchanged. While the disk is busy, a later text is written.
    pub(super) fn put(&mut self, text: Vec<u8>) {
        if text == self.last && self.error().is_none() {
            return;
        }
        if self.put.is_none()
            && let Err(e) = self.start_thread()
        {
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
            return;
        }
        self.last.clone_from(&text);
        if let Some(Err(TrySendError::Full(_))) = self.put.as_ref().map(|put| put.try_send(text)) {
            self.last.clear();
        }
    }

    /// Writes `text` before this returns, after the texts that were passed before.
    pub(super) fn put_now(&mut self, text: &[u8]) -> Result<(), Error> {
        self.put = None;
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic.
            let _ = thread.join();
        }
        self.file.dir.write(&self.file.name, text)
    }
}
