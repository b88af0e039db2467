//! One thread that owns the book and its journal: what happens is synced to the disk before it is
//! answered.
//!
//! Everybody sends it [`Task`]s. It takes what has arrived, applies it, writes the journal once for
//! all of it, syncs, and answers. If the disk refuses, nothing of that was answered, and the keeper
//! ends: the book in memory may be ahead of the disk, so only a new start, which reads the journal,
//! may go on.
//!
//! The journal has one event per line. A line without end was never answered and is dropped. When
//! most of it is old it is replaced by one line with the whole book.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use fairweir_daemon::{Error, StateDir, StateLock};
use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};

use crate::book::{Book, Event, Refused};

/// Tasks that wait at most; who sends one more waits.
const WAITING_MAX: usize = 4_096;

/// Tasks that are synced together at most.
const BATCH_MAX: usize = 1_024;

/// Lines after which the journal is replaced.
const LINES_MAX: usize = 200_000;

/// In the state directory.
const FILE: &str = "market.journal";

/// Source: a million gateways with 48 statements of 200 bytes each do not fit; 10,000 do, with as
/// much again in events.
const FILE_SIZE_MAX: u64 = 1 << 30;

const HEADER: &str = "{\"fairweir_market_journal\":1}\n";

/// A line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Event(Event),
    Book(Box<Book>),
}

/// What somebody wants of the book.
pub type Task = Box<dyn FnOnce(&mut Session<'_>) -> Answer + Send>;

/// Sends the answer, once what was done is on the disk.
pub type Answer = Box<dyn FnOnce() + Send>;

/// The book during a task.
pub struct Session<'k> {
    book: &'k mut Book,
    lines: &'k mut Vec<u8>,
    count: &'k mut usize,
}

impl Session<'_> {
    /// The book.
    pub fn book(&self) -> &Book {
        self.book
    }

    /// Does an event, and has it written.
    ///
    /// # Errors
    /// Why it is refused; then nothing is done.
    pub fn apply(&mut self, event: Event) -> Result<(), Refused> {
        if !self.book.apply(&event)? {
            return Ok(());
        }
        let line = serde_json::to_writer(&mut *self.lines, &Line::Event(event));
        line.expect("invariant: events are JSON");
        self.lines.push(b'\n');
        *self.count += 1;
        Ok(())
    }
}

/// Where tasks are sent.
#[derive(Clone)]
pub struct Keeper {
    tasks: SyncSender<Task>,
}

/// The keeper has ended, because the disk refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot be written")]
pub struct Gone;

impl Keeper {
    /// Reads the journal of a directory and starts the thread, which ends when the last clone drops.
    ///
    /// # Errors
    /// If the journal cannot be read or written, another process has it open, or what it says did
    /// not happen.
    pub fn start(dir: StateDir) -> Result<(Keeper, JoinHandle<()>), Error> {
        let (mut store, mut book) = Store::open(dir)?;
        let (tasks, waiting) = sync_channel(WAITING_MAX);
        let run = move || keep(&mut store, &mut book, &waiting);
        let thread = thread::Builder::new().name("market-keeper".to_owned()).spawn(run);
        let thread = thread.map_err(|e| Error::io("start a thread", e))?;
        Ok((Keeper { tasks }, thread))
    }

    /// Has something done, and waits until it is on the disk.
    ///
    /// # Errors
    /// If the keeper has ended; then it may or may not have been done.
    pub fn ask<T: Send + 'static>(
        &self,
        of: impl FnOnce(&mut Session<'_>) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, answered) = sync_channel(1);
        let task: Task = Box::new(move |session| {
            let value = of(session);
            Box::new(move || drop(answer.send(value)))
        });
        self.tasks.send(task).map_err(|_| Gone)?;
        answered.recv().map_err(|_| Gone)
    }
}

/// The book that a journal leads to, touching nothing.
///
/// # Errors
/// As [`Keeper::start`].
pub fn look(dir: &StateDir) -> Result<Book, Error> {
    read(dir).map(|(book, ..)| book)
}

fn keep(store: &mut Store, book: &mut Book, waiting: &Receiver<Task>) {
    while let Ok(first) = waiting.recv() {
        let (mut lines, mut count, mut answers) = (Vec::new(), 0, Vec::new());
        let mut next = Some(first);
        while let Some(task) = next {
            let mut session = Session { book, lines: &mut lines, count: &mut count };
            answers.push(task(&mut session));
            next = if answers.len() < BATCH_MAX { waiting.try_recv().ok() } else { None };
        }
        if let Err(e) = store.append(&lines, count) {
            error!("the journal cannot be written; the market stops: {e}");
            return;
        }
        answers.into_iter().for_each(|answer| answer());
        if store.lines > LINES_MAX
            && let Err(e) = store.replace(book)
        {
            error!("the journal cannot be replaced; the market stops: {e}");
            return;
        }
    }
}

/// The journal on disk.
struct Store {
    dir: StateDir,
    _lock: StateLock,
    file: File,
    lines: usize,
}

impl Store {
    fn open(dir: StateDir) -> Result<(Store, Book), Error> {
        let lock = dir.lock()?;
        let (book, length, lines) = read(&dir)?;
        let mut file = dir.append(FILE)?;
        let mut prepare = || -> io::Result<()> {
            file.set_len(length)?;
            if length == 0 {
                file.write_all(HEADER.as_bytes())?;
            }
            file.sync_all()
        };
        prepare().map_err(|e| Error::io(format!("write {}", dir.path_of(FILE).display()), e))?;
        dir.sync()?;
        Ok((Store { dir, _lock: lock, file, lines }, book))
    }

    fn append(&mut self, lines: &[u8], count: usize) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        // After it is removed or replaced, what is written is lost.
        if !self.dir.holds(FILE, &self.file) {
            return Err(io::Error::other("it was removed or replaced"));
        }
        self.file.write_all(lines)?;
        self.lines += count;
        self.file.sync_data()
    }

    fn replace(&mut self, book: &Book) -> Result<(), Error> {
        let mut text = HEADER.as_bytes().to_vec();
        let line = serde_json::to_writer(&mut text, &Line::Book(Box::new(book.clone())));
        line.expect("invariant: a book is JSON");
        text.push(b'\n');
        self.dir.write(FILE, &text)?;
        self.dir.sync()?;
        self.file = self.dir.append(FILE)?;
        info!(lines = self.lines, "replaced the journal by the book");
        self.lines = 1;
        Ok(())
    }
}

/// The book, the bytes that are good, and the lines that they are.
fn read(dir: &StateDir) -> Result<(Book, u64, usize), Error> {
    let path = dir.path_of(FILE);
    let bytes = dir.read(FILE, FILE_SIZE_MAX)?.unwrap_or_default();
    let mut book = Book::default();
    let (mut good, mut lines) = (0, 0);
    for (i, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if !line.ends_with(b"\n") {
            warn!(path = %path.display(), "the journal ends with an incomplete line, which was not acknowledged");
            break;
        }
        let done = match i {
            0 if line == HEADER.as_bytes() => Ok(()),
            0 => Err("not a journal of this version".to_owned()),
            _ => match serde_json::from_slice(line) {
                Ok(Line::Event(event)) => book.apply(&event).map(drop).map_err(|e| e.to_string()),
                Ok(Line::Book(whole)) => {
                    book = *whole;
                    Ok(())
                }
                Err(e) => Err(e.to_string()),
            },
        };
        done.map_err(|e| {
            Error::Refused(format!("{}:{}: invalid entry: {e}", path.display(), i + 1))
        })?;
        good += line.len() as u64;
        lines += 1;
    }
    Ok((book, good, lines))
}

#[cfg(test)]
mod tests;
