//! A daemon's Unix socket: requests in, answers out, never waiting for anybody.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, chown};
use serde::de::DeserializeOwned;

use crate::wire::Outcome;

/// The most clients at a time. For one more the one goes that has been there longest, so that
/// those who ask for nothing keep nobody out.
const CLIENTS_MAX: usize = 16;

/// How much is read of a client before others have their turn.
const READ_MAX: usize = 1 << 20;

/// Who may ask: the owner and the group, so that an administrator can open it to a group.
const MODE: u32 = 0o660;

/// The socket, where requests `R` arrive; its file is gone when this drops.
pub(crate) struct Server<R> {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    clients_seen: u64,
    request_max: usize,
    requests: PhantomData<R>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The number of the connection.
    id: u64,
    /// The process's user and number, as the kernel knows them.
    pub(crate) uid: u32,
    /// See `uid`.
    pub(crate) pid: i32,
}

struct Client {
    peer: Peer,
    stream: UnixStream,
    input: Vec<u8>,
    /// So much of `input` holds no end of a line.
    searched: usize,
    output: Vec<u8>,
    /// It sends nothing more.
    has_ended: bool,
    /// Requests that are not answered yet.
    owed: usize,
}

impl<R: DeserializeOwned> Server<R> {
    /// Listens at `path`, in place of a file that a killed daemon left there; whoever sends a
    /// request of more than `request_max` bytes is not heard further.
    ///
    /// # Errors
    /// If somebody listens there already (a daemon of another network namespace, for example), or
    /// the socket cannot be made.
    pub(crate) fn bind(path: &Path, request_max: usize) -> anyhow::Result<Server<R>> {
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
            // Nobody else may connect in the moment before the mode is set.
            let mask = umask(Mode::from_bits_truncate(0o177));
            let bound = UnixListener::bind(path);
            umask(mask);
            let listener = bound?;
            listener.set_nonblocking(true)?;
            fs::set_permissions(path, Permissions::from_mode(MODE))?;
            Ok(listener)
        };
        let listener = attempt().with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Server {
            path: path.to_owned(),
            listener,
            clients: Vec::new(),
            clients_seen: 0,
            request_max,
            requests: PhantomData,
        })
    }

    /// Opens the socket to a group.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn open_to(&self, group: Gid) -> anyhow::Result<()> {
        chown(&self.path, None, Some(group))
            .with_context(|| format!("cannot give {} to the group {group}", self.path.display()))
    }

    /// What to wait for: new clients, requests, or (true) room for an answer that did not fit.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let clients = self.clients.iter().map(|c| (c.stream.as_fd(), !c.output.is_empty()));
        clients.chain([(self.listener.as_fd(), false)])
    }

    /// Answers whatever has arrived; `answer` makes one line of JSON of a request.
    pub(crate) fn serve(&mut self, mut answer: impl FnMut(R) -> String) {
        for (peer, request) in self.take_requests() {
            self.answer(peer, &answer(request));
        }
    }

    /// The requests that have arrived, each of which is to be answered. What is no request is
    /// answered here. Nobody is asked for more whose requests are not answered.
    pub(crate) fn take_requests(&mut self) -> Vec<(Peer, R)> {
        self.accept();
        let mut requests = Vec::new();
        let request_max = self.request_max;
        self.clients.retain_mut(|client| {
            if client.flush().is_err() {
                return false;
            }
            if client.output.is_empty() && client.owed == 0 && !client.has_ended {
                let Ok(lines) = client.read(request_max) else { return false };
                for line in lines {
                    match serde_json::from_slice(&line) {
                        Ok(request) => {
                            client.owed += 1;
                            requests.push((client.peer, request));
                        }
                        Err(e) => {
                            let message = format!("no request: {e}");
                            let text = as_line(&Outcome { ok: false, message });
                            client.output.extend_from_slice(text.as_bytes());
                        }
                    }
                }
            }
            client.flush().is_ok() && !client.is_done()
        });
        requests
    }

    /// Says something of a request that is still to be answered: how far it is.
    pub(crate) fn tell(&mut self, peer: Peer, line: &str) {
        if let Some(client) = self.clients.iter_mut().find(|c| c.peer.id == peer.id) {
            client.output.extend_from_slice(line.as_bytes());
            // Who is gone is noticed when the next requests are taken.
            let _ = client.flush();
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, peer: Peer, line: &str) {
        self.tell(peer, line);
        if let Some(client) = self.clients.iter_mut().find(|c| c.peer.id == peer.id) {
            client.owed = client.owed.saturating_sub(1);
        }
        self.clients.retain(|c| !c.is_done());
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= CLIENTS_MAX {
                let Some(oldest) = self.clients.iter().position(|c| c.owed == 0) else { continue };
                self.clients.remove(oldest);
            }
            let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { continue };
            self.clients_seen += 1;
            let (uid, pid) = (credentials.uid(), credentials.pid());
            self.clients.push(Client {
                peer: Peer { id: self.clients_seen, uid, pid },
                stream,
                input: Vec::new(),
                searched: 0,
                output: Vec::new(),
                has_ended: false,
                owed: 0,
            });
        }
    }
}

impl<R> Drop for Server<R> {
    fn drop(&mut self) {
        // The next start replaces it if this fails.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    fn is_done(&self) -> bool {
        self.has_ended && self.owed == 0 && self.output.is_empty()
    }

    /// Reads as much as goes without waiting, and returns the whole lines.
    ///
    /// # Errors
    /// When the connection is of no more use.
    fn read(&mut self, request_max: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut buffer = vec![0; READ_MAX.min(64 << 10)];
        let mut read = 0;
        while read < READ_MAX {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(n) => {
                    self.input.extend_from_slice(&buffer[..n]);
                    read += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
            if self.input.len() > request_max {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.input[self.searched..].iter().position(|&b| b == b'\n') {
            let rest = self.input.split_off(self.searched + end + 1);
            lines.push(std::mem::replace(&mut self.input, rest));
            self.searched = 0;
        }
        self.searched = self.input.len();
        Ok(lines)
    }

    /// Writes as much as goes without waiting.
    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        self.output.drain(..written);
        Ok(())
    }
}

/// `value` as the line that goes over the socket.
pub(crate) fn as_line(value: &impl serde::Serialize) -> String {
    let mut line = serde_json::to_string(value)
        .expect("invariant: what goes over the socket has string keys and finite numbers");
    line.push('\n');
    line
}
