//! What the page's own socket is asked, and how commands ask it.

use std::path::Path;
use std::time::Duration;

use fairweir_daemon::{Access, Client, Error};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::NAME;
use crate::daemon_args::not_running;

/// How long the page may take to answer, and a client to ask.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

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

/// Asks the page that runs.
pub(super) fn ask<T: DeserializeOwned>(page_dir: &Path, request: &Request) -> anyhow::Result<T> {
    let client = Client::connect(page_dir, NAME, Access::Change, PATIENCE);
    let mut client = client.map_err(|e| match e {
        Error::NotRunning { .. } => not_running(NAME, page_dir),
        e => e.into(),
    })?;
    Ok(client.ask(request)?)
}
