//! The page's Unix socket, for root, and the page's user and group: links that work once, and the
//! history.
//!
//! Every local user can connect to the port, so access to the port alone gives no rights. Requests
//! and replies have the format of the daemons' sockets: one line of JSON each.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fairweir_config::text;
use fairweir_daemon::Answer;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::ask::{PATIENCE, Request, new_link};
use super::routes::State;

/// The longest request, in bytes.
const REQUEST_MAX: usize = 1_024;

/// `fairweir page --open`: prints a sign-in link of the running page.
pub(super) fn print(page_dir: &Path) -> anyhow::Result<()> {
    Ok(writeln!(text::stdout(), "{}", new_link(page_dir)?)?)
}

/// Prints a link at the start if stdout is a terminal: a log would keep the link.
pub(super) fn greet(state: &State) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return Ok(());
    }
    writeln!(text::stdout(), "{}", state.new_link())
}

/// Answers requests at the socket, one client after the other.
pub(super) async fn serve(listener: UnixListener, state: Arc<State>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = timeout(PATIENCE, answer(stream, &state)).await;
            }
            // No file descriptor is free; retry after a pause.
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
        Ok(Request::Status) => Answer::value(&state.status()),
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
