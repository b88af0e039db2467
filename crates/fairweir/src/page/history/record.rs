//! From the daemons' counters to the file: what is recorded, when it is written, and what happens
//! while the file cannot be written.
//!
//! Samples are kept in memory for [`FLUSH_PERIOD`] and written together, to avoid a disk write
//! every second. Losing a sample loses only the times of its bytes, not the bytes: the next sample
//! of the same run of the daemon has a counter that includes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::{Client, Error, Request, unix_now};
use fairweir_linux::monotonic_now;
use tracing::{info, warn};

use super::store::{SECONDS_KEPT_S, Store, StoreError};
use super::suggest::{Suggested, suggested};
use super::{Points, Query, Sample};
use crate::host::client::device_of;
use crate::host::wire::Status;
use crate::instance::PROXY;
use crate::page::daemons::Daemons;
use crate::page::heard::{GroupSample, Heard};
use crate::page::household::{self, ProxyStatus};

/// How often daemons are asked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often samples are written, and how often a file that cannot be written is tried again.
const FLUSH_PERIOD: Span = Span::secs(10);

/// The longest time between two samples that yields a rate; a longer one yields only a sum.
const SPAN_MAX: Span = Span::secs(5);

/// The most samples that are kept while the file cannot be written.
const PENDING_MAX: usize = 600;

/// The history of this machine. Clones share the same state.
#[derive(Clone)]
pub(crate) struct History(Arc<Mutex<Inner>>);

struct Inner {
    path: PathBuf,
    bytes_max: u64,
    store: Option<Store>,
    pending: Vec<Sample>,
    flush_at: Time,
    /// When each daemon was last heard.
    heard: BTreeMap<String, Time>,
    /// The current fault, if there is one.
    fault: Option<String>,
}

impl History {
    /// Opens the history in a file of at most `bytes_max`. If it cannot be opened, nothing is recorded
    /// until it can be.
    pub(crate) fn open(path: &Path, bytes_max: u64) -> History {
        let inner = Inner {
            path: path.to_owned(),
            bytes_max,
            store: None,
            pending: Vec::new(),
            flush_at: Time::ZERO,
            heard: BTreeMap::new(),
            fault: None,
        };
        let history = History(Arc::new(Mutex::new(inner)));
        let _ = history.lock().flush(monotonic_now());
        history
    }

    /// Starts recording, in a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn begin(&self, run_dir: &Path) -> std::io::Result<()> {
        let (history, mut daemons) = (self.clone(), Daemons::new(run_dir));
        let record = move || {
            loop {
                let all = daemons.ask_all(ask);
                let all: Vec<_> = all
                    .into_iter()
                    .filter_map(|(name, heard)| Some((name, heard.ok()??)))
                    .collect();
                history.take_in(all, unix_now(), monotonic_now());
                thread::sleep(PERIOD);
            }
        };
        thread::Builder::new().name("history".to_owned()).stack_size(256 << 10).spawn(record)?;
        Ok(())
    }

    /// The reason if nothing is recorded now.
    pub(crate) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// Adds what the daemons reported to the pending samples, and writes them when it is time.
    pub(crate) fn take_in(&self, all: Vec<(String, Heard)>, wall: u64, now: Time) {
        let mut inner = self.lock();
        inner.heard.retain(|name, _| all.iter().any(|(other, _)| other == name));
        for (name, said) in all {
            let heard = inner.heard.insert(name.clone(), now);
            let up = Span::nanos((said.since_s.max(0.0) * 1e9) as u64);
            let span = heard.map_or(up, |heard| now.since(heard).min(up));
            inner.pending.push(sample(name, said, wall, span));
        }
        inner.shorten();
        if now >= inner.flush_at {
            let _ = inner.flush(now);
        }
    }

    /// Writes the pending samples.
    ///
    /// # Errors
    /// The reason why they could not be written.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.lock().flush(monotonic_now())
    }

    /// Points up to now that match the query.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(crate) fn points(&self, query: &Query) -> Result<Points, String> {
        let mut inner = self.lock();
        let (points, next) = inner.read(|store| store.points(query))?;
        Ok(Points { points, next, fault: inner.fault.clone() })
    }

    /// The weights that would have helped in the last hour, for each daemon that has stored rows.
    ///
    /// # Errors
    /// The reason why they are not known.
    pub(crate) fn suggest(&self) -> Result<Vec<Suggested>, String> {
        let from = unix_now().saturating_sub(SECONDS_KEPT_S);
        let daemons = self.lock().read(|store| Ok(store.daemons()))?;
        let of = |daemon: String| {
            let mut inner = self.lock();
            let seconds = inner.read(|store| store.seconds(&daemon, from))?;
            let groups = inner.read(|store| Ok(store.groups(&daemon)))?;
            drop(inner);
            Ok((!seconds.is_empty()).then(|| suggested(daemon, &groups, &seconds)))
        };
        // A proxy has no weights and knows no capacity.
        let shared = daemons.into_iter().filter(|daemon| device_of(daemon).is_some());
        shared.filter_map(|daemon| of(daemon).transpose()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Inner {
    fn read<T>(&mut self, read: impl FnOnce(&Store) -> Result<T, StoreError>) -> Result<T, String> {
        // If pending samples cannot be written, the stored rows can still be read.
        let flushed = self.flush(monotonic_now());
        let Some(store) = &self.store else { return Err(flushed.err().unwrap_or_default()) };
        let read = read(store);
        read.map_err(|e| self.note(&e))
    }

    fn flush(&mut self, now: Time) -> Result<(), String> {
        if self.fault.is_some() && now < self.flush_at {
            return Err(self.fault.clone().unwrap_or_default());
        }
        self.flush_at = now + FLUSH_PERIOD;
        let store = match self.store.take() {
            Some(store) => Ok(store),
            None => Store::open(&self.path, self.bytes_max).map(|(store, note)| {
                if let Some(note) = note {
                    warn!("the history begins anew: {note}");
                }
                store
            }),
        };
        let mut store = store.map_err(|e| self.note(&e))?;
        let monotonic = now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        let recorded = store.record(&self.pending).and_then(|()| {
            // The samples are now in the file.
            self.pending.clear();
            store.prune(unix_now(), monotonic)
        });
        // Closes a damaged file: opening it again sets it aside.
        self.store = Some(store).filter(|_| !matches!(&recorded, Err(e) if e.is_damage()));
        recorded.map_err(|e| self.note(&e))?;
        if self.fault.take().is_some() {
            info!("the history is recorded again");
        }
        Ok(())
    }

    /// Logs a fault, unless it is the same as the previous one.
    fn note(&mut self, error: &StoreError) -> String {
        let text = error.to_string();
        if self.fault.as_ref() != Some(&text) {
            warn!("the history is not recorded: {text}");
        }
        self.fault = Some(text.clone());
        text
    }

    /// Makes room for new samples. A sample that has a later one of the same run is removed first.
    fn shorten(&mut self) {
        while self.pending.len() > PENDING_MAX {
            let next = |i: usize| {
                let old = &self.pending[i];
                let is_same = |new: &Sample| new.daemon == old.daemon && new.run == old.run;
                Some((i, i + 1 + self.pending[i + 1..].iter().position(is_same)?))
            };
            match (0..self.pending.len()).find_map(next) {
                Some((old, later)) => {
                    self.pending[later].span_ms = None;
                    self.pending.remove(old);
                }
                None => drop(self.pending.remove(0)),
            }
        }
    }
}

fn ask(name: &str, client: &mut Client) -> Result<Option<Heard>, Error> {
    if name == PROXY {
        return Ok(Some(household::heard(client.ask::<ProxyStatus>(&Request::Status)?)));
    }
    device_of(name).map(|_| client.ask(&Request::Status).map(heard)).transpose()
}

fn heard(status: Status) -> Heard {
    let groups = status.groups.iter().map(|group| GroupSample {
        name: group.name.clone(),
        received: group.received_bytes.as_u64(),
        demand_bps: group.decision.demand.map(Rate::as_bps),
        weight: group.weight.as_u32(),
    });
    Heard {
        groups: groups.collect(),
        run: status.run,
        since_s: status.since_s,
        capacity_bps: status.capacity_bps.map(Rate::as_bps),
        queue_ms: status.delay.as_ref().map(|delay| delay.mean_ms),
    }
}

fn sample(daemon: String, said: Heard, wall: u64, span: Span) -> Sample {
    let Heard { run, since_s: _, capacity_bps, queue_ms, groups } = said;
    let span_ms = (span <= SPAN_MAX).then(|| (span.as_nanos() / 1_000_000).max(1));
    Sample { at: wall, daemon, run, span_ms, capacity_bps, queue_ms, groups }
}
