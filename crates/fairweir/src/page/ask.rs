//! What the page's own socket is asked, and how commands ask it.

use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fairweir_config::text;
use fairweir_daemon::{Access, Client, Error};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::NAME;
use crate::daemon_args::not_running;

/// How long the page may take to answer, and a client to ask.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(20);

/// A request, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Answered by a text: a link that signs one browser in.
    Open,
    /// Answered by [`super::history::Points`].
    History(Query),
    /// Answered by a list of [`super::history::suggest::Suggested`].
    Suggest,
    /// Answered by [`PageStatus`].
    Status,
}

/// The page that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct PageStatus {
    /// Of fairweir.
    pub(super) version: String,
    /// The page's process.
    pub(super) pid: u32,
    /// Where browsers find it, once they are signed in.
    pub(super) url: String,
    /// Whether it changes nothing.
    pub(super) read_only: bool,
    /// Whether it records what groups receive.
    pub(super) records: bool,
}

/// A part of the history, in steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    /// The instance; null for all.
    pub(crate) daemon: Option<String>,
    /// null for all.
    pub(crate) group: Option<String>,
    /// Seconds since 1970.
    pub(crate) from: u64,
    /// Seconds since 1970, not included.
    pub(crate) to: u64,
    /// Multiples of 60 are read from the minutes, others from the seconds.
    pub(crate) step_s: u64,
}

impl Query {
    /// The last `span_s`, in steps of this length.
    pub(crate) fn last(span_s: u64, step_s: u64, now: u64) -> Query {
        let step_s = step_s.max(1);
        let from = now.saturating_sub(span_s) / step_s * step_s;
        Query { from, to: now + 1, step_s, ..Query::default() }
    }
}

/// A link of the page that runs.
pub(crate) fn new_link(page_dir: &Path) -> anyhow::Result<String> {
    ask(page_dir, &Request::Open)
}

/// `fairweir page status`.
pub(super) fn print_status(page_dir: &Path, as_json: bool) -> anyhow::Result<()> {
    let status: PageStatus = ask(page_dir, &Request::Status)?;
    let out = &mut text::stdout();
    if as_json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&status)?)?);
    }
    let may = if status.read_only { "changes nothing" } else { "changes weights" };
    let records = if status.records { "records a history" } else { "records no history" };
    let PageStatus { url, pid, .. } = &status;
    writeln!(out, "{url} (pid {pid}); it {may}, and {records}")?;
    Ok(writeln!(out, "`fairweir page --open` prints a link that signs a browser in")?)
}

/// `fairweir page off`: ends the process that listens at the page's socket, and waits until it has.
pub(super) fn end(page_dir: &Path) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    let connect = || Client::connect(page_dir, NAME, Access::Change, PATIENCE);
    let pid = match connect() {
        Ok(client) => client.daemon_pid()?,
        Err(Error::NotRunning { .. }) => return Ok(writeln!(out, "it does not run")?),
        Err(e) => return Err(e.into()),
    };
    if pid <= 0 {
        bail!("the page runs in another PID namespace; run `fairweir page off` there");
    }
    kill(Pid::from_raw(pid), Signal::SIGTERM)
        .with_context(|| format!("cannot end the page (pid {pid})"))?;
    let deadline = Instant::now() + PATIENCE;
    while !matches!(connect(), Err(Error::NotRunning { .. })) {
        if Instant::now() >= deadline {
            bail!("the page (pid {pid}) does not end");
        }
        sleep(PAUSE);
    }
    Ok(writeln!(out, "the page (pid {pid}) has ended")?)
}

/// Asks the page that runs.
pub(super) fn ask<T: DeserializeOwned>(page_dir: &Path, request: &Request) -> anyhow::Result<T> {
    let client = Client::connect(page_dir, NAME, Access::Change, PATIENCE);
    let mut client = client.map_err(|e| match e {
        Error::NotRunning { .. } => not_running(NAME, page_dir),
        e => e.into(),
    })?;
    Ok(client.ask(request)?)
}
