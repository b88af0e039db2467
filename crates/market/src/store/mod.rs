//! The market's database: SQLite in the state directory, or PostgreSQL by its URL.
//!
//! Method: the table `event` is the market, in order; each server has the book that it leads to. To change
//! it a server opens a transaction that excludes all other writers, reads the events that others have
//! added since, applies its own to the book, adds them and commits. So any number of servers agree, and
//! a slot is closed once. A closed slot is also written as rows that the database itself checks: a
//! settlement, and a statement of each gateway.
//!
//! After an error it is not known whether a transaction was committed: the caller drops store and book
//! and opens them again.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairweir_core::market::ledger::{Credits, Statement};
use fairweir_daemon::StateDir;
use serde::Serialize;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Connection as _, Executor as _, Row as _};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::book::{Book, Event};

/// Where a market is kept.
#[derive(Clone, Debug)]
pub enum Database {
    /// In a file of a state directory. Several servers of one host may use it.
    Sqlite(StateDir),
    /// At a URL as `postgres:///market?host=/run/postgresql`.
    Postgres(String),
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refuses.
    #[error("cannot {attempted}: {source}")]
    Sql {
        /// What was tried.
        attempted: &'static str,
        /// Why not.
        source: sqlx::Error,
    },
    /// It does not answer.
    #[error("cannot {0}: no answer from the database within {PATIENCE_S} s")]
    Late(&'static str),
    /// The state directory.
    #[error(transparent)]
    State(#[from] fairweir_daemon::Error),
    /// The kernel gives no event loop.
    #[error("cannot start an event loop: {0}")]
    Runtime(std::io::Error),
    /// Not a URL of a database that is known.
    #[error("the database must be a URL that begins with postgres://")]
    Url,
    /// The file was removed or replaced while it was open.
    #[error("{} was removed or replaced", .0.display())]
    Removed(PathBuf),
    /// A version of the tables that this program does not know.
    #[error("the tables have version {0}, and this program knows {VERSION}")]
    Version(i64),
    /// What the database has did not happen.
    #[error("event {number}: {why}")]
    Invalid {
        /// Which one.
        number: i64,
        /// What is wrong with it.
        why: String,
    },
}

type Sql<'q> = Query<'q, Any, AnyArguments<'q>>;

/// A closed slot, as its rows say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    slot: u64,
    root: String,
    credits: u64,
    /// By seat.
    statements: Vec<(String, Statement)>,
}

/// What a batch adds.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) events: Vec<String>,
    pub(crate) slots: Vec<Settled>,
}

/// An open database.
pub(crate) struct Store {
    runtime: Runtime,
    connection: AnyConnection,
    /// The file and its number, to see when it is removed.
    file: Option<(PathBuf, u64)>,
    /// The last event that the book has.
    seen: i64,
    /// The event after which the whole book was last written.
    kept: i64,
}

/// In the state directory.
const FILE: &str = "market.db";

/// Of the tables.
const VERSION: i64 = 1;
const SCHEMA: &str = include_str!("schema.sql");

/// How long a step may take, such as writing 10,000 rows or reading a book.
const PATIENCE_S: u64 = 30;

/// Events that are read at a time.
const PAGE: i64 = 10_000;

/// Rows that are written at a time.
const ROWS_MAX: usize = 10_000;

/// Events after which the whole book is written.
const KEEP_AFTER: i64 = 50_000;

impl Database {
    /// SQLite in a state directory, or the database at `url`.
    ///
    /// # Errors
    /// If the URL is of neither.
    pub fn of(dir: &StateDir, url: Option<&str>) -> Result<Database, StoreError> {
        match url {
            None => Ok(Database::Sqlite(dir.clone())),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Database::Postgres(url.to_owned()))
            }
            Some(_) => Err(StoreError::Url),
        }
    }
}

impl Settled {
    /// Of the slot that a book has just closed.
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
    /// Opens a database and reads the book; makes the tables if there are none.
    pub(crate) fn open(database: &Database) -> Result<(Store, Book), StoreError> {
        let mut store = Store::connect(database, true)?;
        store.migrate()?;
        let snapshot = store.snapshot()?;
        let (number, mut book) = snapshot.unwrap_or_default();
        (store.seen, store.kept) = (number, number);
        store.catch_up(&mut book)?;
        Ok((store, book))
    }

    fn connect(database: &Database, writes: bool) -> Result<Store, StoreError> {
        sqlx::any::install_default_drivers();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StoreError::Runtime)?;
        let (url, setting, path) = match database {
            Database::Postgres(url) => (url.clone(), POSTGRES, None),
            Database::Sqlite(dir) => {
                let path = dir.path_of(FILE);
                // Makes it and the directory for this user alone. One that exists is not opened here:
                // closing it would drop the locks that SQLite has on it in this process.
                if writes && !path.exists() {
                    drop(dir.append(FILE)?);
                }
                let mode = if writes { "rw" } else { "ro" };
                (format!("sqlite:{}?mode={mode}", escaped(&path)), SQLITE, Some(path))
            }
        };
        let connection = patient(&runtime, "open the database", AnyConnection::connect(&url))?;
        let file = path.and_then(|path| number_of(&path).map(|number| (path, number)));
        let mut store = Store { runtime, connection, file, seen: 0, kept: 0 };
        if writes || matches!(database, Database::Postgres(_)) {
            store.execute("set up the connection", setting)?;
        }
        Ok(store)
    }

    fn is_postgres(&self) -> bool {
        self.connection.backend_name() == "PostgreSQL"
    }

    pub(crate) fn execute(
        &mut self,
        attempted: &'static str,
        sql: &'static str,
    ) -> Result<(), StoreError> {
        patient(&self.runtime, attempted, self.connection.execute(sql)).map(drop)
    }

    fn run(&mut self, attempted: &'static str, query: Sql<'_>) -> Result<(), StoreError> {
        patient(&self.runtime, attempted, query.execute(&mut self.connection)).map(drop)
    }

    fn rows(&mut self, attempted: &'static str, query: Sql<'_>) -> Result<Vec<AnyRow>, StoreError> {
        patient(&self.runtime, attempted, query.fetch_all(&mut self.connection))
    }

    fn migrate(&mut self) -> Result<(), StoreError> {
        let begin = if self.is_postgres() { LOCK_SCHEMA } else { "begin immediate" };
        self.execute("begin", begin)?;
        let table = "create table if not exists fairweir_market (version bigint not null)";
        self.execute("make the tables", table)?;
        match self.version()? {
            Some(VERSION) => {}
            Some(version) => return Err(StoreError::Version(version)),
            None => {
                self.execute("make the tables", SCHEMA)?;
                let version = sqlx::query("insert into fairweir_market (version) values ($1)");
                self.run("make the tables", version.bind(VERSION))?;
            }
        }
        self.execute("commit", "commit")
    }

    fn version(&mut self) -> Result<Option<i64>, StoreError> {
        let rows =
            self.rows("read the version", sqlx::query("select version from fairweir_market"))?;
        rows.first().map(|row| column(row, 0)).transpose()
    }

    fn snapshot(&mut self) -> Result<Option<(i64, Book)>, StoreError> {
        let last = "select number, book from snapshot order by number desc limit 1";
        let rows = self.rows("read the book", sqlx::query(last))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let number = column(row, 0)?;
        let book = Book::read(&column::<String>(row, 1)?);
        let invalid = |why| StoreError::Invalid { number, why };
        Ok(Some((number, book.map_err(invalid)?)))
    }

    /// Some of the events after `number`, in order.
    fn page(&mut self, number: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let sql = "select number, body from event where number > $1 order by number limit $2";
        let rows = self.rows("read events", sqlx::query(sql).bind(number).bind(PAGE))?;
        rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect()
    }

    /// Applies what others have added.
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

    /// Begins a transaction that excludes other writers.
    pub(crate) fn begin(&mut self) -> Result<(), StoreError> {
        let begin = if self.is_postgres() { LOCK_EVENTS } else { "begin immediate" };
        self.execute("begin", begin)
    }

    /// Ends the transaction; what was written is on the disk.
    pub(crate) fn commit(&mut self, written: &Written) -> Result<(), StoreError> {
        if !written.events.is_empty() {
            // After it is removed or replaced, what is written is lost.
            if let Some((path, number)) = &self.file
                && number_of(path) != Some(*number)
            {
                return Err(StoreError::Removed(path.clone()));
            }
            self.add(written)?;
        }
        self.execute("commit", "commit")
    }

    fn add(&mut self, written: &Written) -> Result<(), StoreError> {
        let sql = if self.is_postgres() { POSTGRES_EVENTS } else { SQLITE_EVENTS };
        for part in written.events.chunks(ROWS_MAX) {
            let query = sqlx::query(sql).bind(self.seen).bind(json(part));
            self.run("write events", query)?;
            self.seen += part.len() as i64;
        }
        written.slots.iter().try_for_each(|settled| self.add_settled(settled))
    }

    fn add_settled(&mut self, settled: &Settled) -> Result<(), StoreError> {
        let sql = "insert into settlement values ($1, $2, $3, $4, $5, $6, $7)";
        let query = sqlx::query(sql)
            .bind(settled.slot as i64)
            .bind(settled.statements.len() as i64)
            .bind(settled.sum(|s| micro(s.spent)))
            .bind(settled.sum(|s| micro(s.received)))
            .bind(settled.sum(|s| s.moved))
            .bind(settled.credits as i64)
            .bind(settled.root.as_str());
        self.run("write a settlement", query)?;
        let sql = if self.is_postgres() { POSTGRES_STATEMENTS } else { SQLITE_STATEMENTS };
        for (i, part) in settled.statements.chunks(ROWS_MAX).enumerate() {
            let row = |(gateway, s): &(String, Statement)| {
                let [opening, spent] = [s.opening, s.spent].map(micro);
                let [received, closing] = [s.received, s.closing].map(micro);
                (gateway.clone(), opening, spent, received, s.moved, closing)
            };
            let rows = json(&part.iter().map(row).collect::<Vec<_>>());
            let (slot, seat) = (settled.slot as i64, (i * ROWS_MAX) as i64);
            let query = sqlx::query(sql).bind(slot).bind(seat).bind(rows);
            self.run("write statements", query)?;
        }
        Ok(())
    }

    /// Writes the whole book if many events were added since the last time. It must be up to date.
    pub(crate) fn keep(&mut self, book: &Book) -> Result<(), StoreError> {
        if self.seen - self.kept < KEEP_AFTER {
            return Ok(());
        }
        self.keep_now(book)
    }

    pub(crate) fn keep_now(&mut self, book: &Book) -> Result<(), StoreError> {
        let text = serde_json::to_string(book).expect("invariant: a book is JSON");
        self.begin()?;
        // Another server may have written it.
        self.run(
            "write the book",
            sqlx::query("delete from snapshot where number <= $1").bind(self.seen),
        )?;
        let sql = "insert into snapshot (number, book) values ($1, $2)";
        self.run("write the book", sqlx::query(sql).bind(self.seen).bind(text))?;
        self.execute("commit", "commit")?;
        self.kept = self.seen;
        Ok(())
    }

    fn settled(&mut self, slot: u64) -> Result<Option<Settled>, StoreError> {
        let sql = "select root, credits from settlement where slot = $1";
        let rows = self.rows("read a settlement", sqlx::query(sql).bind(slot as i64))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (root, credits) = (column(row, 0)?, column::<i64>(row, 1)? as u64);
        let sql = "select gateway, opening, spent, received, moved, closing from statement \
                   where slot = $1 order by seat";
        let rows = self.rows("read statements", sqlx::query(sql).bind(slot as i64))?;
        let amount = |row: &AnyRow, i| column::<i64>(row, i).map(|n| Credits::micro(n as u64));
        let statement = |row: &AnyRow| -> Result<(String, Statement), StoreError> {
            let statement = Statement {
                opening: amount(row, 1)?,
                spent: amount(row, 2)?,
                received: amount(row, 3)?,
                moved: column(row, 4)?,
                closing: amount(row, 5)?,
            };
            Ok((column(row, 0)?, statement))
        };
        let statements = rows.iter().map(statement).collect::<Result<_, _>>()?;
        Ok(Some(Settled { slot, root, credits, statements }))
    }
}

/// Gives each event to `each`, in order, touching nothing.
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

/// Computes the book from all events, touching nothing, and compares it with what the tables say of each
/// slot, and with the book that was written last.
///
/// # Errors
/// The first difference, or why the database cannot be read.
pub fn verify(database: &Database) -> Result<Book, StoreError> {
    let mut store = Store::connect(database, false)?;
    // All of one moment, while servers go on.
    store.execute("begin", if store.is_postgres() { POSTGRES_MOMENT } else { "begin" })?;
    match store.version()? {
        Some(VERSION) => {}
        version => return Err(StoreError::Version(version.unwrap_or_default())),
    }
    let snapshot = store.snapshot()?;
    let mut book = Book::default();
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
    let number = store.seen;
    let sql = "select count(*) from settlement where slot >= $1";
    let rows = store.rows("count", sqlx::query(sql).bind(book.open_slot() as i64))?;
    let later: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    if later > 0 || snapshot.is_some_and(|(at, _)| at > number) {
        return Err(StoreError::Invalid { number, why: "the last events are missing".to_owned() });
    }
    Ok(book)
}

fn apply(book: &mut Book, seen: i64, number: i64, body: &str) -> Result<Event, StoreError> {
    let invalid = |why: String| StoreError::Invalid { number, why };
    if number != seen + 1 {
        return Err(invalid(format!("it does not follow {seen}")));
    }
    let event: Event = serde_json::from_str(body).map_err(|e| invalid(e.to_string()))?;
    book.apply(&event).map_err(|e| invalid(e.to_string()))?;
    Ok(event)
}

/// Runs a step, but not for ever: a server that hangs must not hold the others.
fn patient<T>(
    runtime: &Runtime,
    attempted: &'static str,
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    let done = runtime.block_on(async { timeout(Duration::from_secs(PATIENCE_S), step).await });
    let done = done.map_err(|_| StoreError::Late(attempted))?;
    done.map_err(|source| StoreError::Sql { attempted, source })
}

fn column<'r, T>(row: &'r AnyRow, i: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, Any> + sqlx::Type<Any>,
{
    row.try_get(i).map_err(|source| StoreError::Sql { attempted: "read a row", source })
}

/// Rows go into the database as one value: binding each column was more than ten times as slow.
fn json(rows: &[impl Serialize]) -> String {
    serde_json::to_string(rows).expect("invariant: rows are JSON")
}

/// At most [`Credits::MAX`], so it fits.
fn micro(amount: Credits) -> i64 {
    amount.as_micro() as i64
}

fn number_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

/// A path in a URL.
fn escaped(path: &Path) -> String {
    let byte = |&byte: &u8| match byte {
        b'/' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.as_os_str().as_encoded_bytes().iter().map(byte).collect()
}

/// A commit is on the disk; another writer is waited for.
const SQLITE: &str =
    "pragma journal_mode = wal; pragma synchronous = full; pragma busy_timeout = 20000";

/// A server that is stopped while it holds the lock loses it.
const POSTGRES: &str = "set idle_in_transaction_session_timeout = '10s'; set synchronous_commit = on; \
                        set client_min_messages = warning";

const POSTGRES_MOMENT: &str = "begin transaction isolation level repeatable read read only";

/// Readers go on meanwhile.
const LOCK_EVENTS: &str = "begin; lock table event in exclusive mode";

/// Of this program, whatever the database has; a number without meaning.
const LOCK_SCHEMA: &str = "begin; do $$ begin perform pg_advisory_xact_lock(7204513866); end $$";

const SQLITE_EVENTS: &str = "insert into event select $1 + key + 1, value from json_each($2)";
const POSTGRES_EVENTS: &str = "insert into event select $1 + n, body \
    from json_array_elements_text($2::json) with ordinality as row (body, n)";

const SQLITE_STATEMENTS: &str = "insert into statement select $1, $2 + key, value ->> 0, value ->> 1, \
    value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each($3)";
const POSTGRES_STATEMENTS: &str = "insert into statement select $1, $2 + n - 1, e ->> 0, \
    (e ->> 1)::bigint, (e ->> 2)::bigint, (e ->> 3)::bigint, (e ->> 4)::bigint, (e ->> 5)::bigint \
    from json_array_elements($3::json) with ordinality as row (e, n)";
