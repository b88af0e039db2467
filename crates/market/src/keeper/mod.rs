//! One thread owns the book and commits every change before it is acknowledged.
//!
//! Other threads send [`Task`]s to it. It applies the waiting tasks, commits them in one transaction
//! ([`crate::store`]) and then answers them. If the database fails, no task is answered and the book is read
//! again, because the book in memory may contain changes that are not in the database.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::book::{Book, Event, Refused};
use crate::store::{Database, Settled, Store, StoreError, Written};

/// Maximum number of waiting tasks; sending a further one blocks.
const WAITING_MAX: usize = 4_096;

/// Maximum number of tasks in one transaction.
const BATCH_MAX: usize = 1_024;

/// Time between two attempts to open the database after a failure.
const RETRY: Duration = Duration::from_millis(200);

/// A task that reads or changes the book.
pub type Task = Box<dyn FnOnce(&mut Session<'_>) -> Answer + Send>;

/// Sends the answer; called after the changes are committed.
pub type Answer = Box<dyn FnOnce() + Send>;

/// What a server knows at present; not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Why the host's clock is not trusted; while set, no slot is closed and no change is taken.
    pub clock: Option<String>,
    /// The slot whose rates the policer refused last.
    pub leases: Option<u64>,
    /// Whether gateways have to limit themselves to their rates, because no policer enforces them.
    pub hold: bool,
    /// When each gateway last sent a request, in seconds of Unix time.
    pub heard: BTreeMap<String, u64>,
}

/// Access to the book during a task.
pub struct Session<'k> {
    book: &'k mut Book,
    written: &'k mut Written,
    store: &'k mut Store,
    /// What this server knows at present.
    pub present: &'k mut Present,
}

impl Session<'_> {
    /// The book.
    pub fn book(&self) -> &Book {
        self.book
    }

    /// The database's time, in seconds of Unix time, if it has a clock of its own.
    ///
    /// # Errors
    /// If the database does not report its time; then nothing in this transaction is committed.
    pub fn database_s(&mut self) -> Result<Option<u64>, StoreError> {
        self.store.now_s()
    }

    /// Checks that changes are allowed.
    ///
    /// # Errors
    /// If the host's clock is not trusted.
    pub fn check_clock(&self) -> Result<(), Refused> {
        self.present.clock.clone().map_or(Ok(()), |doubt| Err(Refused::Clock(doubt)))
    }

    /// Closes the open slot. Gateways without a bid get the floor, or an equal share if `equal` is set.
    ///
    /// # Errors
    /// If there is no market, the ledger refuses the amounts, or the host's clock is not trusted.
    pub fn close(&mut self, equal: bool) -> Result<(), Refused> {
        if let Some(absent) = self.book.absent().filter(|_| equal) {
            self.apply(absent)?;
        }
        self.apply(self.book.closing()?)
    }

    /// Applies an event and adds it to the transaction.
    ///
    /// # Errors
    /// Why the event is refused; the book is then unchanged.
    pub fn apply(&mut self, event: Event) -> Result<(), Refused> {
        self.check_clock()?;
        if !self.book.apply(&event)? {
            return Ok(());
        }
        let body = serde_json::to_string(&event).expect("invariant: events are JSON");
        self.written.events.push(body);
        if matches!(event, Event::Close { .. }) {
            self.written.slots.extend(Settled::last_of(self.book));
        }
        Ok(())
    }
}

/// Handle for sending tasks; all clones share one thread.
#[derive(Clone)]
pub struct Keeper {
    tasks: SyncSender<Task>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The database refuses or does not answer; the keeper tries again.
    #[error("the database cannot be used")]
    Database,
    /// The keeper has ended, and only a new start helps.
    #[error("the keeper of the market has ended")]
    Keeper,
}

impl Keeper {
    /// Opens the database, creating it if necessary, and starts the thread, which ends when the last clone is
    /// dropped. A file that is removed later is not created again.
    ///
    /// # Errors
    /// If the database cannot be read or written, or its contents are not valid.
    pub fn start(database: Database) -> Result<(Keeper, JoinHandle<()>), StoreError> {
        let is_first = Cell::new(true);
        Keeper::of(move || Store::open(&database, is_first.replace(false)))
    }

    /// As [`Keeper::start`], with a given way to open the database.
    pub(crate) fn of(
        open: impl Fn() -> Result<(Store, Book), StoreError> + Send + 'static,
    ) -> Result<(Keeper, JoinHandle<()>), StoreError> {
        let opened = open()?;
        let (tasks, waiting) = sync_channel(WAITING_MAX);
        let run = move || keep(&open, opened, &waiting);
        let thread = thread::Builder::new().name("market-keeper".to_owned()).spawn(run);
        Ok((Keeper { tasks }, thread.map_err(StoreError::Thread)?))
    }

    /// Runs `of` on the keeper's thread, and waits until its changes are committed.
    ///
    /// # Errors
    /// If the database fails; the changes may or may not have been committed.
    pub fn ask<T: Send + 'static>(
        &self,
        of: impl FnOnce(&mut Session<'_>) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, answered) = sync_channel(1);
        let task: Task = Box::new(move |session| {
            let value = of(session);
            Box::new(move || drop(answer.send(value)))
        });
        self.tasks.send(task).map_err(|_| Gone::Keeper)?;
        answered.recv().map_err(|_| Gone::Database)
    }
}

fn keep(
    open: &dyn Fn() -> Result<(Store, Book), StoreError>,
    opened: (Store, Book),
    waiting: &Receiver<Task>,
) {
    let (mut opened, mut present) = (Some(opened), Present::default());
    while let Ok(first) = waiting.recv() {
        let Some((store, book)) = &mut opened else {
            // All waiting tasks fail at once, because the database is unavailable.
            drop(first);
            while waiting.try_recv().is_ok() {}
            match open() {
                Ok(again) => {
                    info!("the database answers again");
                    opened = Some(again);
                }
                Err(e) => {
                    debug!("{e}");
                    thread::sleep(RETRY);
                }
            }
            continue;
        };
        let done = batch(store, book, &mut present, first, waiting).map(|answers| {
            answers.into_iter().for_each(|answer| answer());
        });
        if let Err(e) = done.and_then(|()| store.keep(book)) {
            warn!("what happened last may be lost: {e}");
            opened = None;
        }
    }
}

fn batch(
    store: &mut Store,
    book: &mut Book,
    present: &mut Present,
    first: Task,
    waiting: &Receiver<Task>,
) -> Result<Vec<Answer>, StoreError> {
    store.begin()?;
    store.catch_up(book)?;
    let (mut written, mut answers) = (Written::default(), Vec::new());
    let mut next = Some(first);
    while let Some(task) = next {
        let session = &mut Session { book, written: &mut written, store, present };
        answers.push(task(session));
        next = if answers.len() < BATCH_MAX { waiting.try_recv().ok() } else { None };
    }
    store.commit(&written)?;
    Ok(answers)
}

#[cfg(test)]
mod tests;
