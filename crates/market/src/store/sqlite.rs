//! A market in an SQLite file.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, params_from_iter};

use super::rows::{Dialect, Failed, Rows, Value};

/// An open file.
pub(super) struct Sqlite {
    connection: Connection,
    /// Time limit of a step.
    patience: Duration,
}

impl Sqlite {
    /// Opens a file that exists.
    pub(super) fn open(path: &Path, writes: bool, patience: Duration) -> Result<Sqlite, Failed> {
        let access = match writes {
            true => OpenFlags::SQLITE_OPEN_READ_WRITE,
            false => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        if writes {
            connection.execute_batch(SETTINGS)?;
        }
        Ok(Sqlite { connection, patience })
    }

    /// Arranges for the next step to be interrupted when it takes too long.
    fn begin_step(&self) -> rusqlite::Result<()> {
        let until = Instant::now() + self.patience;
        self.connection.progress_handler(OPERATIONS, Some(move || Instant::now() > until))
    }
}

impl Rows for Sqlite {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn execute(&mut self, sql: &str) -> Result<(), Failed> {
        self.begin_step()?;
        Ok(self.connection.execute_batch(sql)?)
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Vec<Value>>, Failed> {
        self.begin_step()?;
        let mut statement = self.connection.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut found = statement.query(params_from_iter(values))?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            let column = |i| match row.get_ref(i)? {
                ValueRef::Integer(number) => Ok(Value::Number(number)),
                ValueRef::Text(text) => Ok(Value::Text(String::from_utf8_lossy(text).into_owned())),
                other => Err(Failed::Refused(
                    format!("column {i} is of type {}", other.data_type()).into(),
                )),
            };
            rows.push((0..columns).map(column).collect::<Result<_, _>>()?);
        }
        Ok(rows)
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        match self {
            Value::Number(number) => number.to_sql(),
            Value::Text(text) => text.to_sql(),
        }
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Failed {
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Failed::Late,
            _ => Failed::Refused(error.into()),
        }
    }
}

/// How long to wait for another writer.
const BUSY: Duration = Duration::from_secs(20);

/// Operations of SQLite's virtual machine between two checks of the clock: about a millisecond.
const OPERATIONS: i32 = 100_000;

/// A commit is on the disk when it returns.
const SETTINGS: &str = "pragma journal_mode = wal; pragma synchronous = full";

static DIALECT: Dialect = Dialect {
    begin_schema: "begin immediate",
    begin_write: "begin immediate",
    begin_read: "begin",
    now_s: None,
    add_events: "insert into event select $1 + key + 1, value from json_each($2)",
    add_statements: "insert into statement select $1, $2 + key, value ->> 0, value ->> 1, \
        value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each($3)",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_end_is_interrupted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sqlite = Sqlite::open(file.path(), true, Duration::from_millis(50)).unwrap();
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) \
                       select count(*) from n";
        let begun = Instant::now();
        assert!(matches!(sqlite.query(endless, &[]), Err(Failed::Late)));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        // The connection is still usable.
        let one = sqlite.query("select $1", &[Value::Number(1)]).unwrap();
        assert_eq!(one, [[Value::Number(1)]]);
    }
}
