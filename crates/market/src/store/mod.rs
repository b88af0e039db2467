//! The market's database: SQLite in the state directory, or PostgreSQL by its URL.
//!
//! Method: the rows of table `event`, in order, define the market; each server has the book to which they lead.
//! To change it, a server opens a transaction that excludes all other writers, reads the events that others have
//! added, applies its own events to the book, adds them and commits. So any number of servers agree, and each
//! slot is closed only once. A closed slot is also written as rows that the database itself checks: a
//! settlement, and a statement for each gateway.
//!
//! Old slots can be pruned. The book before a certain close then becomes the *base*; earlier events and the
//! statements of earlier slots are removed. Settlements, whose roots form the hash chain, stay.
//!
//! After an error it is unknown whether the transaction was committed: the caller drops the store and the
//! book, and opens them again.

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use fairweir_core::market::ledger::{Credits, Statement};
use fairweir_daemon::StateDir;
use serde::Serialize;
use tracing::warn;

use crate::book::{Book, Event};
use rows::{Failed, Rows, Value};
use sqlite::Sqlite;

#[cfg(feature = "postgres")]
mod postgres;
mod rows;
mod sqlite;

/// Where a market is stored.
#[derive(Clone, Debug)]
pub enum Database {
    /// In a file of a state directory. Several servers of one host may use it.
    Sqlite(StateDir),
    /// At a URL such as `postgres:///market?host=/run/postgresql`.
    Postgres(String),
}

/// Errors of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refuses a statement.
    #[error("cannot {attempted}: {source}")]
    Sql {
        /// What was attempted.
        attempted: &'static str,
        /// The database's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The database does not answer in time.
    #[error("cannot {}: no answer from the database within {} s", .0, PATIENCE.as_secs())]
    Late(&'static str),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] fairweir_daemon::Error),
    /// The kernel cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// PostgreSQL is wanted, but the program was built without that feature.
    #[error(
        "this program was built without PostgreSQL; `cargo build --release -p fairweir --features postgres` \
         builds one with it"
    )]
    NoPostgres,
    /// The URL is not that of a supported database.
    #[error("the database must be a URL that begins with postgres://")]
    Url,
    /// Slots that cannot be pruned.
    #[error("slot {before} is not a closed slot whose events are kept: {kept}")]
    NotKept {
        /// The slot before which everything was to be removed.
        before: u64,
        /// Which slots are allowed.
        kept: String,
    },
    /// A database at a URL cannot be copied; only a file can.
    #[error("a database at a URL is copied by its own tools, such as pg_dump")]
    AtUrl,
    /// The file was removed or replaced while it was open.
    #[error("{} was removed or replaced", .0.display())]
    Removed(PathBuf),
    /// The tables have a version that this program does not know.
    #[error("the tables have version {0}, and this program knows {VERSION}")]
    Version(i64),
    /// The events or rows contradict each other, or violate the market's rules.
    #[error("event {number}: {why}")]
    Invalid {
        /// The number of the event.
        number: i64,
        /// What is wrong with it.
        why: String,
    },
}

/// A closed slot, as stored in its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    slot: u64,
    root: String,
    credits: u64,
    /// Names and statements of gateways, by seat.
    statements: Vec<(String, Statement)>,
}

/// The events and closed slots that a batch adds.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) events: Vec<String>,
    pub(crate) slots: Vec<Settled>,
}

/// An open database.
pub(crate) struct Store {
    rows: Box<dyn Rows>,
    /// The file and its inode number, to detect when it is removed or replaced.
    file: Option<(PathBuf, u64)>,
    /// Number of the last event that the book contains.
    seen: i64,
    /// Number of the event after which the whole book was last written.
    kept: i64,
}

/// The database's file in the state directory.
const FILE: &str = "market.db";

/// Version of the tables.
const VERSION: i64 = 1;
const SCHEMA: &str = include_str!("schema.sql");

/// Time limit of a step, such as writing 10,000 rows or reading a book.
const PATIENCE: Duration = Duration::from_secs(30);

/// Query for the number of the first event that is kept.
const FIRST: &str = "select coalesce(min(number), 1) from event";

/// Maximum number of events read at a time.
const PAGE: i64 = 10_000;

/// Maximum number of rows written at a time.
const ROWS_MAX: usize = 10_000;

/// Number of events after which the whole book is written again.
const KEEP_AFTER: i64 = 50_000;

impl Database {
    /// The path of the database, if it is a file.
    fn path(&self) -> Option<PathBuf> {
        match self {
            Database::Sqlite(dir) => Some(dir.path_of(FILE)),
            Database::Postgres(_) => None,
        }
    }

    /// Removes the database's file; does nothing to a database at a URL.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn remove(&self) -> Result<(), StoreError> {
        let Database::Sqlite(dir) = self else { return Ok(()) };
        let files = ["", "-wal", "-shm"].map(|end| format!("{FILE}{end}"));
        Ok(files.iter().try_for_each(|name| dir.remove(name))?)
    }

    /// Copies the database as of one moment into another directory, even while servers run, and verifies the
    /// copy.
    ///
    /// # Errors
    /// If the database is at a URL, a file cannot be read or written, or the copy is not valid.
    pub fn copy_to(&self, dir: &StateDir) -> Result<Book, StoreError> {
        if self.path().is_none() {
            return Err(StoreError::AtUrl);
        }
        // Creates the file for this user alone. SQLite fills an empty file, but leaves syncing it to the caller.
        let file = dir.append(FILE)?;
        let path = dir.path_of(FILE).to_string_lossy().into_owned();
        let mut store = Store::connect(self, false)?;
        store.query("copy the database", "vacuum into $1", &[Value::Text(path)])?;
        drop(store);
        let written = file.sync_all();
        written.map_err(|e| fairweir_daemon::Error::io("write the copy of the database", e))?;
        dir.sync()?;
        verify(&Database::Sqlite(dir.clone()))
    }

    /// The SQLite database in a state directory, or the database at `url` if given.
    ///
    /// # Errors
    /// If the URL is not that of a PostgreSQL database.
    pub fn of(dir: &StateDir, url: Option<&str>) -> Result<Database, StoreError> {
        match url {
            None => Ok(Database::Sqlite(dir.clone())),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Database::Postgres(url.to_owned()))
            }
            Some(_) => Err(StoreError::Url),
        }
    }

    /// Whether the database is a file that certainly does not exist.
    pub fn is_missing(&self) -> bool {
        self.path().is_some_and(|path| path.try_exists().is_ok_and(|exists| !exists))
    }
}

impl Settled {
    /// The rows of the slot that a book has just closed.
    pub(crate) fn last_of(book: &Book) -> Option<Settled> {
        let closed = book.closed().last()?;
        let row = |gateway: &crate::book::Gateway| {
            let &(_, statement) = gateway.statements().last()?;
            Some((gateway.name.clone(), statement))
        };
        Some(Settled {
            slot: closed.slot,
            root: closed.root.clone(),
            credits: book.credits(),
            statements: book.gateways().iter().filter_map(row).collect(),
        })
    }

    fn sum(&self, of: impl Fn(&Statement) -> i64) -> i64 {
        self.statements.iter().map(|(_, statement)| of(statement)).sum()
    }
}

impl Store {
    /// Opens a database and reads the book; creates the tables if there are none. A file that does not exist is
    /// created if `creates` is set.
    pub(crate) fn open(database: &Database, creates: bool) -> Result<(Store, Book), StoreError> {
        if !creates && database.is_missing() {
            return Err(StoreError::Removed(database.path().unwrap_or_default()));
        }
        Store::connect(database, true)?.read()
    }

    /// A store over an open connection.
    pub(crate) fn over(rows: Box<dyn Rows>) -> Store {
        Store { rows, file: None, seen: 0, kept: 0 }
    }

    /// Reads the book; creates the tables if there are none.
    pub(crate) fn read(mut self) -> Result<(Store, Book), StoreError> {
        self.migrate()?;
        let (number, mut book) = match self.snapshot() {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => self.base()?,
            // The snapshot can be dropped, because everything in it follows from the events.
            Err(StoreError::Invalid { number, why }) => {
                warn!("the book after event {number} is not used, but all events: {why}");
                self.base()?
            }
            Err(e) => return Err(e),
        };
        (self.seen, self.kept) = (number, number);
        self.catch_up(&mut book)?;
        Ok((self, book))
    }

    fn connect(database: &Database, writes: bool) -> Result<Store, StoreError> {
        let failed = |failed| failed_to("open the database", failed);
        match database {
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => {
                let rows = postgres::Postgres::connect(url, PATIENCE).map_err(failed)?;
                Ok(Store::over(Box::new(rows)))
            }
            #[cfg(not(feature = "postgres"))]
            Database::Postgres(_) => Err(StoreError::NoPostgres),
            Database::Sqlite(dir) => {
                let path = dir.path_of(FILE);
                // Creates the file and its directory for this user alone. An existing file is not opened here: closing
                // it would release the locks that SQLite has on it in this process.
                if writes && !path.exists() {
                    drop(dir.append(FILE)?);
                }
                let rows = Sqlite::open(&path, writes, PATIENCE).map_err(failed)?;
                let file = number_of(&path).map(|number| (path, number));
                Ok(Store { file, ..Store::over(Box::new(rows)) })
            }
        }
    }

    /// See [`crate::keeper::Session::database_s`].
    pub(crate) fn now_s(&mut self) -> Result<Option<u64>, StoreError> {
        let Some(sql) = self.rows.dialect().now_s else { return Ok(None) };
        let rows = self.query("read the database's clock", sql, &[])?;
        rows.first().map(|row| Ok(u64::try_from(number(row, 0)?).unwrap_or_default())).transpose()
    }

    pub(crate) fn execute(&mut self, attempted: &'static str, sql: &str) -> Result<(), StoreError> {
        self.rows.execute(sql).map_err(|failed| failed_to(attempted, failed))
    }

    fn query(
        &mut self,
        attempted: &'static str,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        self.rows.query(sql, values).map_err(|failed| failed_to(attempted, failed))
    }

    fn migrate(&mut self) -> Result<(), StoreError> {
        self.execute("begin", self.rows.dialect().begin_schema)?;
        let table = "create table if not exists fairweir_market (version bigint not null)";
        self.execute("make the tables", table)?;
        match self.version()? {
            Some(VERSION) => {}
            Some(version) => return Err(StoreError::Version(version)),
            None => {
                self.execute("make the tables", SCHEMA)?;
                let version = "insert into fairweir_market (version) values ($1)";
                self.query("make the tables", version, &[VERSION.into()])?;
            }
        }
        self.execute("commit", "commit")
    }

    fn version(&mut self) -> Result<Option<i64>, StoreError> {
        let rows = self.query("read the version", "select version from fairweir_market", &[])?;
        rows.first().map(|row| number(row, 0)).transpose()
    }

    fn snapshot(&mut self) -> Result<Option<(i64, Book)>, StoreError> {
        let last = "select number, book from snapshot order by number desc limit 1";
        let rows = self.query("read the book", last, &[])?;
        rows.first().map(|row| book_of(row)).transpose()
    }

    /// The book before the first event that is kept, and the number of the last event in that book.
    fn base(&mut self) -> Result<(i64, Book), StoreError> {
        let before = self.count(FIRST, &[])? - 1;
        if before < 1 {
            return Ok(Default::default());
        }
        let sql = "select number, book from snapshot where number = $1";
        let rows = self.query("read the book", sql, &[before.into()])?;
        let missing = || "the events before it are missing, and so is the book".to_owned();
        let row =
            rows.first().ok_or_else(|| StoreError::Invalid { number: before, why: missing() });
        book_of(row?)
    }

    /// At most [`PAGE`] events after the given number, in order.
    fn page(&mut self, after: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let sql = "select number, body from event where number > $1 order by number limit $2";
        let rows = self.query("read events", sql, &[after.into(), PAGE.into()])?;
        rows.iter().map(|row| Ok((number(row, 0)?, text(row, 1)?.to_owned()))).collect()
    }

    /// Applies the events that other servers have added.
    pub(crate) fn catch_up(&mut self, book: &mut Book) -> Result<(), StoreError> {
        loop {
            let page = self.page(self.seen)?;
            if page.is_empty() {
                return Ok(());
            }
            for (number, body) in page {
                apply(book, self.seen, number, &body)?;
                self.seen = number;
            }
        }
    }

    /// Checks for a removed or replaced file: data read from it are outdated, and data written to it are lost.
    fn check_file(&self) -> Result<(), StoreError> {
        match &self.file {
            Some((path, number)) if number_of(path) != Some(*number) => {
                Err(StoreError::Removed(path.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Begins a transaction that excludes other writers.
    pub(crate) fn begin(&mut self) -> Result<(), StoreError> {
        self.check_file()?;
        self.execute("begin", self.rows.dialect().begin_write)
    }

    /// Ends the transaction; all that was written is then on the disk.
    pub(crate) fn commit(&mut self, written: &Written) -> Result<(), StoreError> {
        if !written.events.is_empty() {
            // The file may have been removed since the transaction began.
            self.check_file()?;
            self.add(written)?;
        }
        self.execute("commit", "commit")
    }

    fn add(&mut self, written: &Written) -> Result<(), StoreError> {
        let sql = self.rows.dialect().add_events;
        for part in written.events.chunks(ROWS_MAX) {
            self.query("write events", sql, &[self.seen.into(), json(part).into()])?;
            self.seen += part.len() as i64;
        }
        written.slots.iter().try_for_each(|settled| self.add_settled(settled))
    }

    fn add_settled(&mut self, settled: &Settled) -> Result<(), StoreError> {
        let sql = "insert into settlement values ($1, $2, $3, $4, $5, $6, $7)";
        let values = [
            (settled.slot as i64).into(),
            (settled.statements.len() as i64).into(),
            settled.sum(|s| micro(s.spent)).into(),
            settled.sum(|s| micro(s.received)).into(),
            settled.sum(|s| s.moved).into(),
            (settled.credits as i64).into(),
            settled.root.clone().into(),
        ];
        self.query("write a settlement", sql, &values)?;
        let sql = self.rows.dialect().add_statements;
        for (i, part) in settled.statements.chunks(ROWS_MAX).enumerate() {
            let row = |(gateway, s): &(String, Statement)| {
                let [opening, spent] = [s.opening, s.spent].map(micro);
                let [received, closing] = [s.received, s.closing].map(micro);
                (gateway.clone(), opening, spent, received, s.moved, closing)
            };
            let rows = json(&part.iter().map(row).collect::<Vec<_>>());
            let (slot, seat) = (settled.slot as i64, (i * ROWS_MAX) as i64);
            self.query("write statements", sql, &[slot.into(), seat.into(), rows.into()])?;
        }
        Ok(())
    }

    /// Writes the whole book if many events were added since it was last written. `book` must be up to date.
    pub(crate) fn keep(&mut self, book: &Book) -> Result<(), StoreError> {
        if self.seen - self.kept < KEEP_AFTER {
            return Ok(());
        }
        self.keep_now(book)
    }

    pub(crate) fn keep_now(&mut self, book: &Book) -> Result<(), StoreError> {
        let text = serde_json::to_string(book).expect("invariant: a book is JSON");
        self.begin()?;
        // Another server may have written the same snapshot.
        let sql = "delete from snapshot where number <= $1 \
                   and number >= (select coalesce(min(number), 1) from event)";
        self.query("write the book", sql, &[self.seen.into()])?;
        let sql = "insert into snapshot (number, book) values ($1, $2)";
        self.query("write the book", sql, &[self.seen.into(), text.into()])?;
        self.execute("commit", "commit")?;
        self.kept = self.seen;
        Ok(())
    }

    /// Checks that the roots in a book are those in the settlements.
    fn check_roots(&mut self, number: i64, book: &Book) -> Result<(), StoreError> {
        for closed in book.closed() {
            let sql = "select root from settlement where slot = $1";
            let rows = self.query("read a settlement", sql, &[(closed.slot as i64).into()])?;
            if rows.first().map(|row| text(row, 0)).transpose()? != Some(&closed.root[..]) {
                let why = format!("the root of slot {} is another in the settlements", closed.slot);
                return Err(StoreError::Invalid { number, why });
            }
        }
        Ok(())
    }

    fn count(&mut self, sql: &str, values: &[Value]) -> Result<i64, StoreError> {
        let rows = self.query("count", sql, values)?;
        rows.first().map_or(Ok(0), |row| number(row, 0))
    }

    fn settled(&mut self, slot: u64) -> Result<Option<Settled>, StoreError> {
        let sql = "select root, credits from settlement where slot = $1";
        let rows = self.query("read a settlement", sql, &[(slot as i64).into()])?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (root, credits) = (text(row, 0)?.to_owned(), number(row, 1)? as u64);
        let sql = "select gateway, opening, spent, received, moved, closing from statement \
                   where slot = $1 order by seat";
        let rows = self.query("read statements", sql, &[(slot as i64).into()])?;
        let amount = |row: &[Value], i| number(row, i).map(|n| Credits::micro(n as u64));
        let statement = |row: &Vec<Value>| -> Result<(String, Statement), StoreError> {
            let statement = Statement {
                opening: amount(row, 1)?,
                spent: amount(row, 2)?,
                received: amount(row, 3)?,
                moved: number(row, 4)?,
                closing: amount(row, 5)?,
            };
            Ok((text(row, 0)?.to_owned(), statement))
        };
        let statements = rows.iter().map(statement).collect::<Result<_, _>>()?;
        Ok(Some(Settled { slot, root, credits, statements }))
    }
}

/// What a prune removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Number of events removed.
    pub events: i64,
    /// Number of statements removed.
    pub statements: i64,
    /// The first slot that is still kept.
    pub first_slot: u64,
}

/// Removes the history before a closed slot, even while servers run: its events and the statements of earlier
/// slots. Their settlements stay, and so does the book before that slot was closed, on which later events build.
///
/// # Errors
/// If the slot is not a closed one whose events are kept, the database is not valid, or another prune was
/// faster. Then nothing is removed.
pub fn prune(database: &Database, before: u64) -> Result<Pruned, StoreError> {
    let kept = verify(database)?;
    let mut store = Store::connect(database, true)?;
    let (first, mut book) = store.base()?;
    let not_kept = |book: &Book| {
        let kept = match (book.open_slot() + 1, kept.open_slot().saturating_sub(1)) {
            (from, to) if from <= to => format!("{from} to {to} are"),
            _ => "none is".to_owned(),
        };
        StoreError::NotKept { before, kept }
    };
    if before <= book.open_slot() || before >= kept.open_slot() {
        return Err(not_kept(&book));
    }
    store.seen = first;
    let number = 'found: loop {
        let page = store.page(store.seen)?;
        if page.is_empty() {
            return Err(not_kept(&book));
        }
        for (number, body) in page {
            if book.open_slot() == before && matches!(read(number, &body)?, Event::Close { .. }) {
                break 'found number;
            }
            apply(&mut book, store.seen, number, &body)?;
            store.seen = number;
        }
    };
    let (last, slot) = (Value::from(number - 1), Value::from(before as i64));
    let text = serde_json::to_string(&book).expect("invariant: a book is JSON");
    store.begin()?;
    let at = store.count(FIRST, &[])?;
    if at != first + 1 {
        let why = "the events before it were pruned meanwhile".to_owned();
        return Err(StoreError::Invalid { number: at, why });
    }
    let pruned = Pruned {
        events: store
            .count("select count(*) from event where number <= $1", slice::from_ref(&last))?,
        statements: store
            .count("select count(*) from statement where slot < $1", slice::from_ref(&slot))?,
        first_slot: before,
    };
    for (sql, values) in [
        ("delete from snapshot where number <= $1", vec![last.clone()]),
        ("insert into snapshot (number, book) values ($1, $2)", vec![last.clone(), text.into()]),
        ("delete from event where number <= $1", vec![last]),
        ("delete from statement where slot < $1", vec![slot]),
    ] {
        store.query("remove old slots", sql, &values)?;
    }
    store.execute("commit", "commit")?;
    Ok(pruned)
}

/// Passes each event to `each`, in order, without changing the database.
///
/// # Errors
/// If the database cannot be read.
pub fn events(database: &Database, mut each: impl FnMut(&str)) -> Result<(), StoreError> {
    let mut store = Store::connect(database, false)?;
    let mut seen = 0;
    loop {
        let page = store.page(seen)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        seen = *last;
        page.iter().for_each(|(_, body)| each(body));
    }
}

/// Computes the book from all events that are kept, without changing the database, and compares it with the
/// rows of each slot and with the book that was written last.
///
/// # Errors
/// The first difference, or why the database cannot be read.
pub fn verify(database: &Database) -> Result<Book, StoreError> {
    let mut store = Store::connect(database, false)?;
    // Read everything as of one moment, while servers continue.
    store.execute("begin", store.rows.dialect().begin_read)?;
    match store.version()? {
        Some(VERSION) => {}
        version => return Err(StoreError::Version(version.unwrap_or_default())),
    }
    let snapshot = store.snapshot()?;
    let (first, mut book) = store.base()?;
    store.check_roots(first, &book)?;
    store.seen = first;
    loop {
        let page = store.page(store.seen)?;
        if page.is_empty() {
            break;
        }
        for (number, body) in page {
            let event = apply(&mut book, store.seen, number, &body)?;
            store.seen = number;
            let differs = |why: &str| StoreError::Invalid { number, why: why.to_owned() };
            if let Event::Close { slot, .. } = event
                && store.settled(slot)? != Settled::last_of(&book)
            {
                return Err(differs(
                    "settlement or statements of the slot are not what it came to",
                ));
            }
            if snapshot.as_ref().is_some_and(|(at, kept)| *at == number && *kept != book) {
                return Err(differs("the book that was written after it is another"));
            }
        }
    }
    let sql = "select count(*) from settlement where slot >= $1";
    let later = store.count(sql, &[(book.open_slot() as i64).into()])?;
    let last = store.seen;
    if later > 0 || snapshot.is_some_and(|(at, _)| at > last) {
        let why = "the last events are missing".to_owned();
        return Err(StoreError::Invalid { number: last, why });
    }
    Ok(book)
}

fn apply(book: &mut Book, seen: i64, number: i64, body: &str) -> Result<Event, StoreError> {
    let invalid = |why: String| StoreError::Invalid { number, why };
    if number != seen + 1 {
        return Err(invalid(format!("it does not follow {seen}")));
    }
    let event = read(number, body)?;
    book.apply(&event).map_err(|e| invalid(e.to_string()))?;
    Ok(event)
}

fn read(number: i64, body: &str) -> Result<Event, StoreError> {
    serde_json::from_str(body).map_err(|e| StoreError::Invalid { number, why: e.to_string() })
}

/// The event number and the book in a row of `snapshot`.
fn book_of(row: &[Value]) -> Result<(i64, Book), StoreError> {
    let number = number(row, 0)?;
    let book = Book::read(text(row, 1)?);
    Ok((number, book.map_err(|why| StoreError::Invalid { number, why })?))
}

fn failed_to(attempted: &'static str, failed: Failed) -> StoreError {
    match failed {
        Failed::Late => StoreError::Late(attempted),
        Failed::Refused(source) => StoreError::Sql { attempted, source },
    }
}

fn number(row: &[Value], i: usize) -> Result<i64, StoreError> {
    match row.get(i) {
        Some(Value::Number(number)) => Ok(*number),
        _ => Err(not_of_type(i, "an integer")),
    }
}

fn text(row: &[Value], i: usize) -> Result<&str, StoreError> {
    match row.get(i) {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(not_of_type(i, "text")),
    }
}

fn not_of_type(column: usize, wanted: &str) -> StoreError {
    let source = format!("column {column} is not {wanted}").into();
    StoreError::Sql { attempted: "read a row", source }
}

/// Encodes rows in the form that a dialect's statements take.
fn json(rows: &[impl Serialize]) -> String {
    serde_json::to_string(rows).expect("invariant: rows are JSON")
}

/// The amount fits, because it is at most [`Credits::MAX`].
fn micro(amount: Credits) -> i64 {
    amount.as_micro() as i64
}

fn number_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

#[cfg(test)]
mod tests;
