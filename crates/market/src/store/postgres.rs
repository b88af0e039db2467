//! A market in a PostgreSQL database, given by its URL.
//!
//! Uses `tokio-postgres` on its own event loop rather than `postgres`, which does not bound the time of a step: a
//! server behind a broken network would block the keeper for ever. As with libpq, settings that the URL leaves
//! out come from `PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD` and `~/.pgpass`.

use std::env;
use std::error::Error;
use std::fs::File;
use std::future::Future;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::Host;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls};
use tracing::warn;

use super::rows::{Dialect, Failed, Rows, Value};

/// A connection to PostgreSQL.
pub(super) struct Postgres {
    runtime: Runtime,
    client: Client,
    /// Time limit of a step.
    patience: Duration,
}

impl Postgres {
    pub(super) fn connect(url: &str, patience: Duration) -> Result<Postgres, Failed> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Failed::Refused(e.into()))?;
        let mut config: Config = url.parse()?;
        complete(&mut config);
        let (client, connection) = wait(&runtime, patience, config.connect(NoTls))?;
        // This task runs whenever a step is waited for, and ends when the client is dropped.
        runtime.spawn(connection);
        let mut postgres = Postgres { runtime, client, patience };
        postgres.execute(SETTINGS)?;
        Ok(postgres)
    }
}

impl Rows for Postgres {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn execute(&mut self, sql: &str) -> Result<(), Failed> {
        wait(&self.runtime, self.patience, self.client.batch_execute(sql))
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Vec<Value>>, Failed> {
        let typed = values.iter().map(|value| match value {
            Value::Number(number) => (number as &(dyn ToSql + Sync), Type::INT8),
            Value::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
        });
        let values: Vec<_> = typed.collect();
        let found = wait(&self.runtime, self.patience, self.client.query_typed(sql, &values))?;
        let row = |row: &tokio_postgres::Row| {
            let column = |(i, column): (usize, &tokio_postgres::Column)| match *column.type_() {
                Type::INT8 => row.try_get(i).map(Value::Number),
                _ => row.try_get(i).map(Value::Text),
            };
            row.columns().iter().enumerate().map(column).collect()
        };
        let rows: Result<_, tokio_postgres::Error> = found.iter().map(row).collect();
        Ok(rows?)
    }
}

/// Runs a step until it ends or exceeds its time limit.
fn wait<T>(
    runtime: &Runtime,
    patience: Duration,
    step: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failed> {
    let done = runtime.block_on(async { tokio::time::timeout(patience, step).await });
    Ok(done.map_err(|_| Failed::Late)??)
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Failed {
        // The error's own text states only its kind.
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Failed::Refused(text.into())
    }
}

/// Adds the settings that the URL leaves out.
fn complete(config: &mut Config) {
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    if config.get_ports().is_empty()
        && let Some(port) = said("PGPORT").and_then(|port| port.parse().ok())
    {
        config.port(port);
    }
    let port = config.get_ports().first().copied().unwrap_or(PORT);
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(said("PGHOST").unwrap_or_else(|| usual_host(port)));
    }
    if config.get_user().is_none()
        && let Some(user) = said("PGUSER")
    {
        config.user(user);
    }
    if config.get_dbname().is_none()
        && let Some(name) = said("PGDATABASE")
    {
        config.dbname(name);
    }
    if config.get_password().is_none()
        && let Some(password) = said("PGPASSWORD").or_else(|| stored_password(config, port))
    {
        config.password(password);
    }
}

/// The directory with the socket of a server on this machine.
fn usual_host(port: u16) -> String {
    let is_there = |dir: &&&str| Path::new(dir).join(format!(".s.PGSQL.{port}")).exists();
    let dir = ["/run/postgresql", "/tmp"].iter().find(is_there);
    dir.map_or_else(|| "localhost".to_owned(), |dir| (*dir).to_owned())
}

/// The password in `~/.pgpass`, or in the file that `PGPASSFILE` names.
fn stored_password(config: &Config, port: u16) -> Option<String> {
    let usual = || env::home_dir().map(|home| home.join(".pgpass"));
    let path = env::var_os("PGPASSFILE").map(PathBuf::from).or_else(usual)?;
    let mut file = File::open(&path).ok()?;
    if file.metadata().ok()?.permissions().mode() & 0o077 != 0 {
        warn!("{} is ignored: others can read it", path.display());
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(dir)) => dir.display().to_string(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let user =
        config.get_user().map_or_else(|| env::var("USER").unwrap_or_default(), str::to_owned);
    let database = config.get_dbname().unwrap_or(&user);
    password_in(&text, [&host, &port.to_string(), database, &user])
}

/// The password of the first line of a pgpass file that matches host, port, database and user.
///
/// Fields are separated by colons, `*` matches anything, `\` escapes the next character. Source: the manual
/// of libpq, "The Password File".
fn password_in(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let mut characters = line.chars();
        while let Some(c) = characters.next() {
            match c {
                '\\' => fields.last_mut()?.extend(characters.next()),
                ':' if fields.len() <= wanted.len() => fields.push(String::new()),
                c => fields.last_mut()?.push(c),
            }
        }
        let password = (fields.len() > wanted.len()).then(|| fields.pop())??;
        let is_match = |(field, wanted): (&String, &str)| field == "*" || field == wanted;
        fields.iter().zip(wanted).all(is_match).then_some(password)
    })
}

/// PostgreSQL's usual port.
const PORT: u16 = 5_432;

/// A server that is stopped while it holds the lock loses the lock. A commit is on the disk when it returns.
const SETTINGS: &str = "set idle_in_transaction_session_timeout = '10s'; set synchronous_commit = on; \
                        set client_min_messages = warning";

static DIALECT: Dialect = Dialect {
    // An arbitrary number that identifies this program's lock.
    begin_schema: "begin; do $$ begin perform pg_advisory_xact_lock(7204513866); end $$",
    // Readers are not blocked.
    begin_write: "begin; lock table event in exclusive mode",
    begin_read: "begin transaction isolation level repeatable read read only",
    // Not the time at which the transaction began, because it may have waited for the lock.
    now_s: Some("select extract(epoch from clock_timestamp())::bigint"),
    add_events: "insert into event select $1 + n, body \
        from json_array_elements_text($2::json) with ordinality as row (body, n)",
    add_statements: "insert into statement select $1, $2 + n - 1, e ->> 0, \
        (e ->> 1)::bigint, (e ->> 2)::bigint, (e ->> 3)::bigint, (e ->> 4)::bigint, (e ->> 5)::bigint \
        from json_array_elements($3::json) with ordinality as row (e, n)",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let text = "# host:port:database:user:password\n\
                    db.example.net:5432:other:market:one\n\
                    db.example.net:*:*:market:two:with\\:colon\\\\s\n\
                    too:few\n\
                    *:*:*:*:three\n";
        let of = |host, user| password_in(text, [host, "5432", "market", user]);
        assert_eq!(of("db.example.net", "market").as_deref(), Some("two:with:colon\\s"));
        assert_eq!(of("db.example.net", "else").as_deref(), Some("three"));
        assert_eq!(password_in("a:1:b:c:d", ["x", "1", "b", "c"]), None);
    }

    #[test]
    fn what_the_url_says_is_taken_from_it() {
        let mut config: Config =
            "postgres:///market?host=/run/elsewhere&user=me&password=it".parse().unwrap();
        complete(&mut config);
        assert_eq!(config.get_hosts(), [Host::Unix("/run/elsewhere".into())]);
        assert_eq!((config.get_user(), config.get_dbname()), (Some("me"), Some("market")));
        assert_eq!(config.get_password(), Some(&b"it"[..]));
    }
}
