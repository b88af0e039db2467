//! The page's Unix socket, for root, and the page's user and group: links that work once, and the
//! history.
//!
//! Every local user can connect to the port, so the port alone gives nothing. Requests and replies
//! are those of the daemons' sockets, one line of JSON each.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fairweir_config::text;
use fairweir_daemon::{Access, Answer, Client};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::NAME;
use super::routes::State;
use crate::page::history::suggest::Suggested;
use crate::page::history::{Points, Query};

const PATIENCE: Duration = Duration::from_secs(5);

/// The longest request, in bytes.
const REQUEST_MAX: usize = 1_024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Answered by a text: a link that signs one browser in.
    Open,
    /// Answered by [`Points`].
    History(Query),
    /// Answered by a list of [`Suggested`].
    Suggest,
}

/// `fairweir page --open`: prints a link of the page that runs.
pub(super) fn print(page_dir: &Path) -> anyhow::Result<()> {
    Ok(writeln!(text::stdout(), "{}", new_link(page_dir)?)?)
}

/// A link of the page that runs.
pub(crate) fn new_link(page_dir: &Path) -> anyhow::Result<String> {
    ask(page_dir, &Request::Open)
}

/// Asks the page that runs for a part of the history.
pub(crate) fn ask_history(page_dir: &Path, query: &Query) -> anyhow::Result<Points> {
    ask(page_dir, &Request::History(query.clone()))
}

/// Asks it for weights that would have helped.
pub(crate) fn ask_suggestions(page_dir: &Path) -> anyhow::Result<Vec<Suggested>> {
    ask(page_dir, &Request::Suggest)
}

fn ask<T: DeserializeOwned>(page_dir: &Path, request: &Request) -> anyhow::Result<T> {
    let client = Client::connect(page_dir, NAME, Access::Change, PATIENCE);
    let client = client.context("`fairweir page` does not run; `systemctl start fairweir-page`");
    Ok(client?.ask(request)?)
}

/// Prints a link at the start if a person reads it; logs keep what they are given.
pub(super) fn greet(state: &State) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return Ok(());
    }
    writeln!(text::stdout(), "{}", state.new_link())
}

/// Answers requests for links, one client after the other.
pub(super) async fn serve(listener: UnixListener, state: Arc<State>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = timeout(PATIENCE, answer(stream, &state)).await;
            }
            // No file descriptor is free; one will be.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn answer(stream: UnixStream, state: &State) -> io::Result<()> {
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < REQUEST_MAX {
        stream.readable().await?;
        let mut buffer = [0; REQUEST_MAX];
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => line.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    let answer = match serde_json::from_slice(&line) {
        Ok(Request::Open) => Answer::value(&state.new_link()),
        Ok(Request::History(query)) => match state.history(query).await {
            Ok(points) => Answer::value(&points),
            Err(e) => Answer::error(e),
        },
        Ok(Request::Suggest) => match state.suggestions().await {
            Ok(all) => Answer::value(&all),
            Err(e) => Answer::error(e),
        },
        Err(e) => Answer::error(format!("not a request: {e}")),
    };
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
