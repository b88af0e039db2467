//! One thread owns the book and commits every change before it is answered.
//!
//! Other threads send it [`Task`]s. It applies those that wait, commits them in one transaction
//! ([`crate::store`]) and then answers them. If the database fails, no task is answered and the book is read
//! again, because the book in memory may be ahead of the database.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::book::{Book, Event, Refused};
use crate::store::{Database, Settled, Store, StoreError, Written};

/// The most tasks that wait; sending another one blocks.
const WAITING_MAX: usize = 4_096;

/// The most tasks in one transaction.
const BATCH_MAX: usize = 1_024;

/// Time between two attempts to open the database after a failure.
const RETRY: Duration = Duration::from_millis(200);

/// Something to do with the book.
pub type Task = Box<dyn FnOnce(&mut Session<'_>) -> Answer + Send>;

/// Sends the answer, once what was done is committed.
pub type Answer = Box<dyn FnOnce() + Send>;

/// What a server knows now. It is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Why the host's time is not believed: no slot is closed and nothing changes meanwhile.
    pub clock: Option<String>,
    /// The slot whose rates the policer refused last.
    pub leases: Option<u64>,
    /// Whether gateways are to hold themselves to their rates, because no policer enforces them.
    pub hold: bool,
    /// When each gateway was heard last, in seconds of Unix time.
    pub heard: BTreeMap<String, u64>,
}

/// The book during a task.
pub struct Session<'k> {
    book: &'k mut Book,
    written: &'k mut Written,
    store: &'k mut Store,
    /// Of this server.
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
    /// If it does not say it; then nothing of this transaction is committed.
    pub fn database_s(&mut self) -> Result<Option<u64>, StoreError> {
        self.store.now_s()
    }

    /// Whether changes are taken.
    ///
    /// # Errors
    /// If the host's time is not believed.
    pub fn check_clock(&self) -> Result<(), Refused> {
        self.present.clock.clone().map_or(Ok(()), |doubt| Err(Refused::Clock(doubt)))
    }

    /// Closes the open slot. Gateways without a bid have the floor, or with `equal` an equal share.
    ///
    /// # Errors
    /// If there is no market, the ledger refuses the amounts, or the clock is in doubt.
    pub fn close(&mut self, equal: bool) -> Result<(), Refused> {
        if let Some(absent) = self.book.absent().filter(|_| equal) {
            self.apply(absent)?;
        }
        self.apply(self.book.closing()?)
    }

    /// Applies an event, and adds it to what is committed.
    ///
    /// # Errors
    /// Why it is refused; then nothing has changed.
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

/// Where tasks are sent; all clones share one thread.
#[derive(Clone)]
pub struct Keeper {
    tasks: SyncSender<Task>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The database refuses, or does not answer; it is tried again.
    #[error("the database cannot be used")]
    Database,
    /// The keeper has ended, and only a new start helps.
    #[error("the keeper of the market has ended")]
    Keeper,
}

impl Keeper {
    /// Opens the database, or makes it, and starts the thread, which ends when the last clone drops. A file
    /// that is removed later is not made again.
    ///
    /// # Errors
    /// If the database cannot be read or written, or what it has did not happen.
    pub fn start(database: Database) -> Result<(Keeper, JoinHandle<()>), StoreError> {
        let is_first = Cell::new(true);
        Keeper::of(move || Store::open(&database, is_first.replace(false)))
    }

    /// The same with another way to open the database.
    pub(crate) fn of(
        open: impl Fn() -> Result<(Store, Book), StoreError> + Send + 'static,
    ) -> Result<(Keeper, JoinHandle<()>), StoreError> {
        let opened = open()?;
        let (tasks, waiting) = sync_channel(WAITING_MAX);
        let run = move || keep(&open, opened, &waiting);
        let thread = thread::Builder::new().name("market-keeper".to_owned()).spawn(run);
        Ok((Keeper { tasks }, thread.map_err(StoreError::Thread)?))
    }

    /// Has something done, and waits until it is committed.
    ///
    /// # Errors
    /// If the database fails; then it may or may not have been done.
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
            // All that wait are told at once that the database is away.
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
