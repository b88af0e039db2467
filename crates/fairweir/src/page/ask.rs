//! Requests to the page's own socket, and how commands send them.

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

/// How long to wait for the page's reply, and how long the page waits for a client's request.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(20);

/// A request, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// The reply is a text: a link that signs one browser in.
    Open,
    /// The reply is [`super::history::Points`].
    History(Query),
    /// The reply is a list of [`super::history::suggest::Suggested`].
    Suggest,
    /// The reply is [`PageStatus`].
    Status,
}

/// The state of the running page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct PageStatus {
    /// The version of fairweir.
    pub(super) version: String,
    /// The process id of the page.
    pub(super) pid: u32,
    /// The address that signed-in browsers open.
    pub(super) url: String,
    /// Whether the page refuses all changes.
    pub(super) read_only: bool,
    /// Whether the page records what groups receive.
    pub(super) records: bool,
}

/// A request for a part of the history, divided into steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    /// The daemon's instance; null for all daemons.
    pub(crate) daemon: Option<String>,
    /// The group; null for all groups.
    pub(crate) group: Option<String>,
    /// Seconds since 1970.
    pub(crate) from: u64,
    /// Seconds since 1970, not included.
    pub(crate) to: u64,
    /// The length of a step. Multiples of 60 use the rows per minute, others the rows per second.
    pub(crate) step_s: u64,
}

impl Query {
    /// The last `span_s` seconds before `now`, in steps of `step_s`.
    pub(crate) fn last(span_s: u64, step_s: u64, now: u64) -> Query {
        let step_s = step_s.max(1);
        let from = now.saturating_sub(span_s) / step_s * step_s;
        Query { from, to: now + 1, step_s, ..Query::default() }
    }
}

/// A new sign-in link from the running page.
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

/// Sends a request to the running page and reads the reply.
pub(super) fn ask<T: DeserializeOwned>(page_dir: &Path, request: &Request) -> anyhow::Result<T> {
    let client = Client::connect(page_dir, NAME, Access::Change, PATIENCE);
    let mut client = client.map_err(|e| match e {
        Error::NotRunning { .. } => not_running(NAME, page_dir),
        e => e.into(),
    })?;
    Ok(client.ask(request)?)
}
