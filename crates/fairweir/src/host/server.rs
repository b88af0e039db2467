//! The daemon's Unix socket: requests in, answers out, never waiting for anybody.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::wire::{Outcome, Request};

/// The most clients at a time. For one more the one goes that has been there longest, so that
/// those who ask for nothing keep nobody out.
const CLIENTS_MAX: usize = 16;

/// The longest request.
const REQUEST_MAX: usize = 1_024;

/// Who may ask: the owner and the group, so that an administrator can open it to a group.
const MODE: u32 = 0o660;

/// The socket; its file is gone when this drops.
pub(super) struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Server {
    /// Listens at `path`, in place of a file that a killed daemon left there.
    ///
    /// # Errors
    /// If somebody listens there already (a daemon of another network namespace, for example), or
    /// the socket cannot be made.
    pub(super) fn bind(path: &Path) -> anyhow::Result<Server> {
        if UnixStream::connect(path).is_ok() {
            bail!(
                "somebody listens at {} already, perhaps a daemon of another network namespace: \
                 choose another --run-dir",
                path.display()
            );
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        let attempt = || -> io::Result<UnixListener> {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            fs::set_permissions(path, Permissions::from_mode(MODE))?;
            Ok(listener)
        };
        let listener = attempt().with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Server { path: path.to_owned(), listener, clients: Vec::new() })
    }

    /// What to wait for: new clients, requests, or (true) room for an answer that did not fit.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let clients = self.clients.iter().map(|c| (c.stream.as_fd(), !c.output.is_empty()));
        clients.chain([(self.listener.as_fd(), false)])
    }

    /// Answers whatever has arrived; `answer` makes one line of JSON of a request.
    pub(super) fn serve(&mut self, mut answer: impl FnMut(Request) -> String) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                if self.clients.len() == CLIENTS_MAX {
                    self.clients.remove(0);
                }
                self.clients.push(Client { stream, input: Vec::new(), output: Vec::new() });
            }
        }
        self.clients.retain_mut(|client| client.serve(&mut answer).is_ok());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The next start replaces it if this fails.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    /// Reads, answers and writes as much as goes without waiting.
    ///
    /// # Errors
    /// When the connection is of no more use.
    fn serve(&mut self, answer: &mut impl FnMut(Request) -> String) -> io::Result<()> {
        self.flush()?;
        if !self.output.is_empty() {
            // Whoever does not read its answers is not asked for more.
            return Ok(());
        }
        let mut buffer = [0; REQUEST_MAX];
        let open = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break false,
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break true,
                Err(e) => return Err(e),
            }
            if self.input.len() > REQUEST_MAX {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        while let Some(end) = self.input.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let text = match serde_json::from_slice(&line) {
                Ok(request) => answer(request),
                Err(e) => as_line(&Outcome { ok: false, message: format!("no request: {e}") }),
            };
            self.output.extend_from_slice(text.as_bytes());
        }
        self.flush()?;
        if open { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// `value` as the line that goes over the socket.
pub(super) fn as_line(value: &impl serde::Serialize) -> String {
    let mut line = serde_json::to_string(value)
        .expect("invariant: what goes over the socket has string keys and finite numbers");
    line.push('\n');
    line
}
