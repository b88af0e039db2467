//! The file of the history: one SQLite database.
//!
//! The rows store differences of counters. For each series (a group of a daemon), the same transaction stores the last
//! counter and the run of the daemon to which it belongs. So nothing is counted twice and nothing is lost, whichever
//! process is killed. Bytes that arrived while the page did not record are in the next difference, as `late` bytes,
//! which have a sum but no rate.
//!
//! | table | rows |
//! |---|---|
//! | `daemon`, `series` | names, and the last counter that was stored |
//! | `second`, `minute` | by time and series, if bytes arrived: bytes, demand, weight |
//! | `link_second`, `link_minute` | by time and daemon, if bytes arrived: capacity, queue |
//!
//! SQLite keeps the file below a limit; at the limit the oldest rows are removed. A damaged file is
//! set aside; a file of another program is left alone. Times are seconds since 1970. If the clock
//! is set back, one row can hold the bytes of two seconds. Source: <https://sqlite.org/wal.html>.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, params};

use super::{Point, Query, Sample, Second};

/// The application id in the file's header: "fwhi".
const APPLICATION_ID: i64 = 0x6677_6869;

/// The version of the table layout.
const VERSION: i64 = 1;

/// How long per-second rows are kept.
pub(crate) const SECONDS_KEPT_S: u64 = 3_600;

/// How long per-minute rows are kept: 31 days.
pub(crate) const MINUTES_KEPT_S: u64 = 31 * 24 * 3_600;

/// How often old rows are removed, in seconds.
const PRUNE_PERIOD_S: u64 = 60;

/// Per-minute rows are removed only if the clock has not been set for this time, in seconds: a clock
/// that is wrong for a while must not empty the history.
const CLOCK_TRUSTED_S: u64 = 3_600;

/// The clock counts as set if its offset from the monotonic clock changes by more than this, in seconds.
const CLOCK_SET_S: u64 = 30;

/// A full file loses 1 / this of its rows.
const ROOM_PART: u64 = 16;

/// How often room is made for one transaction before giving up.
const ROOM_TRIES: usize = 4;

/// The most names of daemons and groups. When the file is opened, names without rows are removed.
const SERIES_MAX: usize = 20_000;

/// Why the history cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{path} is not a history of fairweir, or of a newer version; move it away")]
    Foreign { path: PathBuf },
    #[error("{path}: {source}")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// The open file; see the module.
pub(crate) struct Store {
    path: PathBuf,
    connection: Connection,
    /// The stored counters, by daemon and group.
    stored: BTreeMap<String, Known>,
    pruned_at: u64,
    clock: Clock,
}

/// What is known of a daemon.
#[derive(Clone, Debug)]
struct Known {
    id: i64,
    run: String,
    /// The row id of each group, and its counter if the group has one in this run.
    groups: BTreeMap<String, (i64, Option<u64>)>,
}

/// How long the wall clock has kept its offset from the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    offset: Option<i128>,
    steady_since: u64,
}

impl Clock {
    /// Whether the wall clock has not been set for [`CLOCK_TRUSTED_S`]. Both times are in seconds.
    fn is_trusted(&mut self, wall: u64, monotonic: u64) -> bool {
        let offset = i128::from(wall) - i128::from(monotonic);
        let is_set = self.offset.is_none_or(|old| old.abs_diff(offset) > CLOCK_SET_S.into());
        if is_set {
            *self = Clock { offset: Some(offset), steady_since: monotonic };
        }
        monotonic.saturating_sub(self.steady_since) >= CLOCK_TRUSTED_S
    }
}

impl Store {
    /// Opens the file or creates it; also returns a note if an old file had to be set aside.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn open(path: &Path, bytes_max: u64) -> Result<(Store, Option<String>), StoreError> {
        // SQLite refuses a symbolic link anywhere in the path.
        let at = |source| StoreError::Io { path: path.to_owned(), source };
        let dir = fs::canonicalize(path.parent().unwrap_or(Path::new("."))).map_err(at)?;
        let path = &dir.join(path.file_name().unwrap_or_default());
        match Store::open_at(path, bytes_max) {
            Err(StoreError::Sqlite { source, .. }) if is_damaged(&source) => {
                let aside = path.with_extension("sqlite.damaged");
                fs::rename(path, &aside).map_err(at)?;
                for suffix in ["-wal", "-shm"] {
                    let mut name = path.clone().into_os_string();
                    name.push(suffix);
                    let _ = fs::remove_file(name);
                }
                let store = Store::open_at(path, bytes_max)?;
                let note = format!("{}: {source}; it is now {}", path.display(), aside.display());
                Ok((store, Some(note)))
            }
            opened => Ok((opened?, None)),
        }
    }

    fn open_at(path: &Path, bytes_max: u64) -> Result<Store, StoreError> {
        let is_new = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata.len() == 0,
            Ok(_) => return Err(StoreError::Foreign { path: path.to_owned() }),
            Err(_) => true,
        };
        let sqlite = |source| StoreError::Sqlite { path: path.to_owned(), source };
        let connection = connect(path).map_err(sqlite)?;
        if !is_new && !is_ours(&connection).map_err(sqlite)? {
            return Err(StoreError::Foreign { path: path.to_owned() });
        }
        let open = || -> rusqlite::Result<BTreeMap<String, Known>> {
            connection.execute_batch(SCHEMA)?;
            connection.pragma_update(None, "application_id", APPLICATION_ID)?;
            connection.pragma_update(None, "user_version", VERSION)?;
            let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
            // Leaves a part of the limit for the write-ahead log.
            let pages = (bytes_max.saturating_sub(LOG_BYTES_MAX) / page as u64).max(PAGES_MIN);
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
            let check: String =
                connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if check != "ok" {
                let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
                return Err(rusqlite::Error::SqliteFailure(code, Some(check)));
            }
            connection.execute_batch(FORGET)?;
            read_known(&connection)
        };
        let stored = open().map_err(sqlite)?;
        let path = path.to_owned();
        Ok(Store { path, connection, stored, pruned_at: 0, clock: Clock::default() })
    }

    /// Stores samples in the given order: all of them or no sample.
    ///
    /// # Errors
    /// If SQLite refuses. The bytes are then in the difference to the next samples.
    pub(crate) fn record(&mut self, samples: &[Sample]) -> Result<(), StoreError> {
        for _ in 0..ROOM_TRIES {
            let mut stored = self.stored.clone();
            match self.try_record(&mut stored, samples) {
                Ok(()) => {
                    self.stored = stored;
                    return Ok(());
                }
                Err(e) if e.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                    // Rows are removed only if the file has reached its limit, not if the disk is full.
                    if !self.is_largest().map_err(|e| self.error(e))? {
                        return Err(self.error(e));
                    }
                    self.make_room().map_err(|e| self.error(e))?;
                }
                Err(e) => return Err(self.error(e)),
            }
        }
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        Err(self.error(rusqlite::Error::SqliteFailure(full, None)))
    }

    fn try_record(
        &mut self,
        stored: &mut BTreeMap<String, Known>,
        samples: &[Sample],
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut series: usize = stored.values().map(|known| known.groups.len() + 1).sum();
        for sample in samples {
            let is_new = |group: &&super::GroupSample| {
                stored
                    .get(&sample.daemon)
                    .is_none_or(|known| !known.groups.contains_key(&group.name))
            };
            series += sample.groups.iter().filter(is_new).count();
            if series > SERIES_MAX {
                continue;
            }
            if !stored.contains_key(&sample.daemon) {
                let insert = "INSERT INTO daemon (name, run) VALUES (?1, '')";
                transaction.execute(insert, [&sample.daemon])?;
                let (id, run) = (transaction.last_insert_rowid(), String::new());
                stored.insert(sample.daemon.clone(), Known { id, run, groups: BTreeMap::new() });
            }
            if let Some(known) = stored.get_mut(&sample.daemon) {
                write(&transaction, known, sample)?;
            }
        }
        transaction.commit()
    }

    /// Points of the history in the order of time and series, and the time at which the next query should
    /// begin, if there are more.
    ///
    /// # Errors
    /// If SQLite refuses.
    pub(crate) fn points(&self, query: &Query) -> Result<(Vec<Point>, Option<u64>), StoreError> {
        let step = query.step_s.clamp(1, MINUTES_KEPT_S);
        let table = if step.is_multiple_of(60) { "minute" } else { "second" };
        let text = format!(
            "SELECT row.at / ?1 * ?1 AS begin, daemon.name, series.name, \
             SUM(row.received), SUM(row.late), MAX(link.capacity), MAX(link.queue_us) \
             FROM {table} AS row JOIN series ON series.id = row.series \
             JOIN daemon ON daemon.id = series.daemon \
             LEFT JOIN link_{table} AS link ON link.at = row.at AND link.daemon = daemon.id \
             WHERE row.at >= ?2 AND row.at < ?3 \
             AND (?4 IS NULL OR daemon.name = ?4) AND (?5 IS NULL OR series.name = ?5) \
             GROUP BY begin, series.id ORDER BY begin, series.id"
        );
        let read = || -> rusqlite::Result<(Vec<Point>, Option<u64>)> {
            // Skips time without rows, however long a time the query covers.
            let first = format!("SELECT MIN(at) FROM {table} WHERE at >= ?1 AND at < ?2");
            let (from, to) = (query.from.min(TIME_MAX), query.to.min(TIME_MAX));
            let first: Option<i64> = self
                .connection
                .prepare_cached(&first)?
                .query_row([(from / step * step) as i64, to as i64], |row| row.get(0))?;
            let Some(from) = first.map(|at| at as u64 / step * step) else {
                return Ok((Vec::new(), None));
            };
            let series = self.stored.values().map(|known| known.groups.len() as u64).sum::<u64>();
            let end = from.saturating_add((POINTS / series.max(1)).max(1) * step).min(to);
            let arguments =
                params![step as i64, from as i64, end as i64, query.daemon, query.group];
            let mut statement = self.connection.prepare_cached(&text)?;
            let rows = statement.query_map(arguments, |row| {
                Ok(Point {
                    at: row.get::<_, i64>(0)? as u64,
                    daemon: row.get(1)?,
                    group: row.get(2)?,
                    received_bytes: row.get::<_, i64>(3)? as u64,
                    late_bytes: row.get::<_, i64>(4)? as u64,
                    capacity_bps: row.get::<_, Option<i64>>(5)?.map(|bps| bps as u64),
                    queue_ms: row.get::<_, Option<i64>>(6)?.map(|us| us as f64 / 1e3),
                })
            })?;
            Ok((rows.collect::<rusqlite::Result<_>>()?, (end < to).then_some(end)))
        };
        read().map_err(|e| self.error(e))
    }

    /// Daemons that have stored rows.
    pub(crate) fn daemons(&self) -> Vec<String> {
        self.stored.keys().cloned().collect()
    }

    /// What the groups of a daemon received in each second since `from`, the newest first, at most
    /// [`SECONDS_MAX`] rows.
    ///
    /// # Errors
    /// If SQLite refuses.
    pub(crate) fn seconds(&self, daemon: &str, from: u64) -> Result<Vec<Second>, StoreError> {
        let text = "SELECT row.at, link.ms, link.capacity, series.id, row.weight, row.received, \
                    row.demand FROM second AS row JOIN series ON series.id = row.series \
                    JOIN daemon ON daemon.id = series.daemon \
                    JOIN link_second AS link ON link.at = row.at AND link.daemon = daemon.id \
                    WHERE row.at >= ?1 AND daemon.name = ?2 AND link.ms > 0 \
                    ORDER BY row.at DESC LIMIT ?3";
        let Some(known) = self.stored.get(daemon) else { return Ok(Vec::new()) };
        let index = |id: i64| known.groups.values().position(|&(other, _)| other == id);
        let read = || -> rusqlite::Result<Vec<Second>> {
            let mut statement = self.connection.prepare_cached(text)?;
            let rows = statement.query_map(params![from as i64, daemon, SECONDS_MAX], |row| {
                let received = row.get::<_, i64>(5)? as u64;
                Ok(Second {
                    at: row.get::<_, i64>(0)? as u64,
                    capacity_bps: row.get::<_, Option<i64>>(2)?.map(|bps| bps as u64),
                    group: index(row.get(3)?).unwrap_or(usize::MAX),
                    weight: row.get(4)?,
                    rate_bps: received.saturating_mul(8_000) / row.get::<_, i64>(1)? as u64,
                    demand_bps: row.get::<_, Option<i64>>(6)?.map(|bps| bps as u64),
                })
            })?;
            rows.collect()
        };
        read().map_err(|e| self.error(e))
    }

    /// Names of a daemon's groups, in the order of the index in [`Second`], and whether the current
    /// configuration has each of them.
    pub(crate) fn groups(&self, daemon: &str) -> Vec<(String, bool)> {
        let groups = self.stored.get(daemon).into_iter().flat_map(|known| &known.groups);
        groups.map(|(name, (_, counter))| (name.clone(), counter.is_some())).collect()
    }

    /// Removes rows that are too old. Both times are in seconds.
    ///
    /// # Errors
    /// If SQLite refuses.
    pub(crate) fn prune(&mut self, now: u64, monotonic: u64) -> Result<(), StoreError> {
        self.try_prune(now, monotonic).map_err(|e| self.error(e))
    }

    fn try_prune(&mut self, now: u64, monotonic: u64) -> rusqlite::Result<()> {
        let is_trusted = self.clock.is_trusted(now, monotonic);
        if now.abs_diff(self.pruned_at) < PRUNE_PERIOD_S {
            return Ok(());
        }
        self.pruned_at = now;
        let remove = |table: &str, kept: u64| -> rusqlite::Result<()> {
            for table in [table.to_owned(), format!("link_{table}")] {
                let old = now.saturating_sub(kept) as i64;
                let text = format!("DELETE FROM {table} WHERE at < ?1");
                self.connection.execute(&text, [old])?;
            }
            Ok(())
        };
        remove("second", SECONDS_KEPT_S + PRUNE_PERIOD_S)?;
        if is_trusted {
            remove("minute", MINUTES_KEPT_S + PRUNE_PERIOD_S)?;
        }
        Ok(())
    }

    fn is_largest(&self) -> rusqlite::Result<bool> {
        let read =
            |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (used, most) = (read("page_count")? - read("freelist_count")?, read("max_page_count")?);
        Ok(used >= most - most / ROOM_PART as i64 / 2)
    }

    /// Removes the oldest rows.
    fn make_room(&mut self) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for table in ["second", "minute"] {
            let all: i64 =
                transaction
                    .query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0))?;
            let until: Option<i64> = transaction
                .query_row(
                    &format!("SELECT at FROM {table} ORDER BY at LIMIT 1 OFFSET ?1"),
                    [all / ROOM_PART as i64],
                    |row| row.get(0),
                )
                .optional()?;
            for table in [table.to_owned(), format!("link_{table}")] {
                transaction.execute(&format!("DELETE FROM {table} WHERE at <= ?1"), [until])?;
            }
        }
        transaction.commit()
    }

    fn error(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Sqlite { path: self.path.clone(), source }
    }
}

/// Whether the error means that the file is damaged and must be set aside.
fn is_damaged(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl StoreError {
    /// Whether the file is damaged. Opening it again sets it aside.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, StoreError::Sqlite { source, .. } if is_damaged(source))
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Values in the file cannot make SQLite run code that someone else wrote into its schema.
    connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;")?;
    Ok(connection)
}

/// Whether fairweir made the file, in a known version.
fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let read = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (id, version) = (read("application_id")?, read("user_version")?);
    // If the page was killed before it wrote the header, the file has no tables.
    let tables: i64 =
        connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok((id == APPLICATION_ID && version <= VERSION) || tables == 0)
}

fn read_known(connection: &Connection) -> rusqlite::Result<BTreeMap<String, Known>> {
    let mut all = BTreeMap::new();
    let mut daemons = connection.prepare("SELECT id, name, run FROM daemon")?;
    let daemons = daemons.query_map([], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    })?;
    for daemon in daemons {
        let (id, name, run) = daemon?;
        let mut series =
            connection.prepare("SELECT name, id, counter FROM series WHERE daemon = ?1")?;
        let groups = series.query_map([id], |row| {
            let counter = row.get::<_, Option<i64>>(2)?.map(|counter| counter as u64);
            Ok((row.get::<_, String>(0)?, (row.get::<_, i64>(1)?, counter)))
        })?;
        let groups = groups.collect::<rusqlite::Result<_>>()?;
        all.insert(name, Known { id, run, groups });
    }
    Ok(all)
}

/// Writes one sample.
fn write(
    transaction: &Transaction<'_>,
    known: &mut Known,
    sample: &Sample,
) -> rusqlite::Result<()> {
    if known.run != sample.run {
        sample.run.clone_into(&mut known.run);
        known.groups.values_mut().for_each(|(_, counter)| *counter = None);
        let update = "UPDATE daemon SET run = ?2 WHERE id = ?1";
        transaction.execute(update, params![known.id, sample.run])?;
        transaction.execute("UPDATE series SET counter = NULL WHERE daemon = ?1", [known.id])?;
    }
    for (name, (id, counter)) in &mut known.groups {
        // A group that is removed and added again later counts from 0.
        if counter.is_some() && !sample.groups.iter().any(|group| group.name == *name) {
            *counter = None;
            transaction.execute("UPDATE series SET counter = NULL WHERE id = ?1", [*id])?;
        }
    }
    let mut is_idle = true;
    for group in &sample.groups {
        if !known.groups.contains_key(&group.name) {
            let insert = "INSERT INTO series (daemon, name) VALUES (?1, ?2)";
            transaction.execute(insert, params![known.id, group.name])?;
            known.groups.insert(group.name.clone(), (transaction.last_insert_rowid(), None));
        }
        let Some((id, counter)) = known.groups.get_mut(&group.name) else { continue };
        let before = counter.unwrap_or(0);
        let difference = group.received.checked_sub(before).unwrap_or(group.received);
        if *counter == Some(group.received) {
            continue;
        }
        *counter = Some(group.received);
        let update = "UPDATE series SET counter = ?2 WHERE id = ?1";
        transaction.execute(update, params![*id, group.received as i64])?;
        if difference == 0 {
            continue;
        }
        is_idle = false;
        let (received, late) = match sample.span_ms {
            Some(_) => (difference, 0),
            None => (0, difference),
        };
        let rate = group.demand_bps.map_or(Value::Null, |bps| Value::Integer(bps as i64));
        for (table, length) in LENGTHS {
            let text = format!(
                "INSERT INTO {table} (at, series, received, late, demand, weight) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET \
                 received = received + excluded.received, late = late + excluded.late, \
                 demand = excluded.demand, weight = excluded.weight"
            );
            let begin = (sample.at / length * length) as i64;
            let row = params![begin, *id, received as i64, late as i64, rate, group.weight];
            transaction.prepare_cached(&text)?.execute(row)?;
        }
    }
    let Some(span_ms) = sample.span_ms.filter(|_| !is_idle) else { return Ok(()) };
    for (table, length) in LENGTHS {
        let text = format!(
            "INSERT INTO link_{table} (at, daemon, ms, capacity, queue_us) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET ms = ms + excluded.ms, \
             capacity = COALESCE(excluded.capacity, capacity), \
             queue_us = MAX(COALESCE(excluded.queue_us, queue_us), COALESCE(queue_us, excluded.queue_us))"
        );
        let begin = (sample.at / length * length) as i64;
        let queue_us = sample.queue_ms.map(|ms| (ms.clamp(0.0, 1e9) * 1e3) as i64);
        let capacity = sample.capacity_bps.map(|bps| bps as i64);
        let row = params![begin, known.id, span_ms as i64, capacity, queue_us];
        transaction.prepare_cached(&text)?.execute(row)?;
    }
    Ok(())
}

/// The tables, and how many seconds a row covers.
const LENGTHS: [(&str, u64); 2] = [("second", 1), ("minute", 60)];

/// The largest write-ahead log, in bytes.
const LOG_BYTES_MAX: u64 = 2 << 20;

/// The fewest pages that can hold a history.
const PAGES_MIN: u64 = 64;

/// The most per-second rows that are read at a time: one hour of 55 groups.
const SECONDS_MAX: i64 = 200_000;

/// The most points in one reply, unless one time has more series than this.
const POINTS: u64 = 4_096;

/// The largest time in a query, in seconds: larger ones would overflow SQLite's integers in some sum.
const TIME_MAX: u64 = 1 << 40;

const FORGET: &str = "
DELETE FROM series WHERE counter IS NULL AND id NOT IN (SELECT series FROM minute UNION SELECT series FROM second);
DELETE FROM daemon WHERE id NOT IN (SELECT daemon FROM series);
";

const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 256;
PRAGMA journal_size_limit = 1048576;
PRAGMA cache_size = -1024;
PRAGMA temp_store = MEMORY;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS daemon (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, run TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, daemon INTEGER NOT NULL, name TEXT NOT NULL,
    counter INTEGER, UNIQUE (daemon, name)) STRICT;
CREATE TABLE IF NOT EXISTS second (at INTEGER NOT NULL, series INTEGER NOT NULL, received INTEGER NOT NULL,
    late INTEGER NOT NULL, demand INTEGER, weight INTEGER NOT NULL, PRIMARY KEY (at, series)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS minute (at INTEGER NOT NULL, series INTEGER NOT NULL, received INTEGER NOT NULL,
    late INTEGER NOT NULL, demand INTEGER, weight INTEGER NOT NULL, PRIMARY KEY (at, series)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS link_second (at INTEGER NOT NULL, daemon INTEGER NOT NULL, ms INTEGER NOT NULL,
    capacity INTEGER, queue_us INTEGER, PRIMARY KEY (at, daemon)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS link_minute (at INTEGER NOT NULL, daemon INTEGER NOT NULL, ms INTEGER NOT NULL,
    capacity INTEGER, queue_us INTEGER, PRIMARY KEY (at, daemon)) STRICT, WITHOUT ROWID;
COMMIT;
";

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
