//! A connection to a database: the operations that the store needs from it.

use std::error::Error;

/// A connection to a database.
pub(crate) trait Rows: Send {
    /// The SQL statements that differ between databases.
    fn dialect(&self) -> &'static Dialect;

    /// Runs statements that have no values and return no rows.
    ///
    /// # Errors
    /// If the database refuses or is late; it is then unknown which statements took effect.
    fn execute(&mut self, sql: &str) -> Result<(), Failed>;

    /// Runs one statement and returns all its rows; `$1` stands for the first of `values`.
    ///
    /// # Errors
    /// As [`Rows::execute`], and if a column is neither an integer nor text.
    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Vec<Value>>, Failed>;
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(i64),
    Text(String),
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Number(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

/// Why a statement failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The statement exceeded the time limit of a step.
    Late,
    /// The database refused it, or the connection was lost.
    Refused(Box<dyn Error + Send + Sync>),
}

/// The statements whose text differs between SQLite and PostgreSQL.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Begins a transaction that keeps other connections from creating the tables.
    pub(crate) begin_schema: &'static str,
    /// Begins a transaction that excludes other writers.
    pub(crate) begin_write: &'static str,
    /// Begins a transaction that sees the database at one moment.
    pub(crate) begin_read: &'static str,
    /// Query for the database's Unix time in seconds, if the database may run on another host.
    pub(crate) now_s: Option<&'static str>,
    /// Adds events after event `$1`, from `$2`, a JSON list of texts. Rows go in as one value because binding
    /// each column took more than ten times as long.
    pub(crate) add_events: &'static str,
    /// Adds statements of slot `$1` from seat `$2` on, from `$3`, a JSON list of lists of columns.
    pub(crate) add_statements: &'static str,
}
