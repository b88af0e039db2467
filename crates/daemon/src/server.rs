//! A daemon's Unix sockets: reads requests and writes replies without ever waiting for a client.
//!
//! It has limits, since any local user whom the operator lets in may try to exhaust the memory or
//! to block other clients:
//!
//! - Each client has at most one request in progress. Its next one is read after the reply is
//!   written, so a client that pipelines requests and does not read holds only one reply.
//! - A round takes at most one request of each client.
//! - A request of more than [`LINE_MAX`] (a table of subscribers) is read from one client at a
//!   time, and only where changes are allowed.
//! - There are at most [`CLIENTS_MAX`] clients. A further one replaces the oldest client of the
//!   user who has most of them, so one user cannot keep others out.
//! - Clients of the socket that is open to all users ([`Access::Claim`]) are counted separately,
//!   send at most [`CLAIM_MAX`] bytes, and must pause for [`CLAIM_PAUSE`] after each reply.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use fairweir_core::units::{Span, Time};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Gid;

use crate::run_dir::OpenTo;
use crate::wire::Answer;
use crate::{Error, run_dir};

/// The most clients at a time.
const CLIENTS_MAX: usize = 16;

/// A request of at most this many bytes is read from every client at any time.
const LINE_MAX: usize = 64 << 10;

/// The longest request of a client that may only make claims, in bytes.
const CLAIM_MAX: usize = 16 << 10;

/// How long nothing is read from such a client after a reply.
const CLAIM_PAUSE: Span = Span::millis(20);

/// The most bytes that are read from a client in one round.
const READ_MAX: usize = 1 << 20;

/// How long a client may take to send the rest of a request, or to read a reply.
const PATIENCE: Span = Span::secs(60);

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Requests about the client's own user.
    Claim,
    /// Requests that change nothing.
    Read,
    /// Everything.
    Change,
}

/// The client that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of the connection.
    id: u64,
    /// The user id of the client's process, as reported by the kernel.
    pub uid: u32,
    /// The process id, as reported by the kernel; 0 for a process in another PID namespace.
    pub pid: i32,
    /// What the client may ask for.
    pub access: Access,
}

/// The sockets and their clients; the files of the sockets are removed on drop.
pub(crate) struct Server {
    listeners: Vec<Listener>,
    clients: Vec<Client>,
    clients_seen: u64,
    request_max: usize,
}

struct Listener {
    path: PathBuf,
    socket: UnixListener,
    access: Access,
}

struct Client {
    peer: Peer,
    stream: UnixStream,
    input: Vec<u8>,
    /// This many bytes at the begin of `input` contain no end of a line.
    searched: usize,
    output: Vec<u8>,
    /// Whether the client has closed its sending side.
    has_ended: bool,
    /// Whether a request of the client is in progress.
    is_owed: bool,
    /// When bytes were last read or written.
    moved_at: Time,
    /// Nothing is read from the client before this time.
    rests_until: Time,
}

impl Server {
    /// Listens at `path` for requests of at most `request_max` bytes. The socket is open to its
    /// owner and, if given, to the members of a group.
    ///
    /// # Errors
    /// [`Error::SocketInUse`], or the kernel's error.
    pub(crate) fn bind(
        path: &Path,
        group: Option<Gid>,
        request_max: usize,
    ) -> Result<Server, Error> {
        let listener = Listener::bind(path, OpenTo::group(group), Access::Change)?;
        Ok(Server {
            listeners: vec![listener],
            clients: Vec::new(),
            clients_seen: 0,
            request_max: request_max.max(LINE_MAX),
        })
    }

    /// Also listens at `path`, for requests that only read, by the members of `group`.
    ///
    /// # Errors
    /// See [`Server::bind`].
    pub(crate) fn bind_status(&mut self, path: &Path, group: Gid) -> Result<(), Error> {
        self.listeners.push(Listener::bind(path, OpenTo::Group(group), Access::Read)?);
        Ok(())
    }

    /// Also listens at `path`, for claims of every local user.
    ///
    /// # Errors
    /// See [`Server::bind`].
    pub(crate) fn bind_web(&mut self, path: &Path) -> Result<(), Error> {
        self.listeners.push(Listener::bind(path, OpenTo::Everybody, Access::Claim)?);
        Ok(())
    }

    /// When the first pausing client that has something to read may be read again.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        let resting = self.clients.iter().filter(|c| c.rests_until > now && !c.has_ended);
        resting.map(|c| c.rests_until).min()
    }

    /// The descriptors to wait for: new clients, requests, or (true) space for the rest of a reply.
    pub(crate) fn waits_for(&self, now: Time) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let large = self.large_client();
        let clients = self.clients.iter().filter_map(move |client| {
            let is_open = !client.is_owed && !client.has_ended && now >= client.rests_until;
            let may_read = is_open && client.may_grow(large);
            match client.output.is_empty() {
                false => Some((client.stream.as_fd(), true)),
                true if may_read => Some((client.stream.as_fd(), false)),
                true => None,
            }
        });
        clients.chain(self.listeners.iter().map(|l| (l.socket.as_fd(), false)))
    }

    /// Whether there is a request that is read but not taken yet.
    pub(crate) fn has_requests(&self, now: Time) -> bool {
        let mut clients = self.clients.iter().filter(|c| now >= c.rests_until);
        clients.any(|c| !c.is_owed && c.output.is_empty() && c.has_line())
    }

    /// Takes the next requests, at most one of each client. Each must be answered.
    pub(crate) fn take_requests(&mut self, now: Time) -> Vec<(Peer, Vec<u8>)> {
        self.accept(now);
        let large = self.large_client();
        let request_max = self.request_max;
        let mut requests = Vec::new();
        self.clients.retain_mut(|client| {
            if client.flush(now).is_err() {
                return false;
            }
            if client.output.is_empty() && !client.is_owed && now >= client.rests_until {
                let max = match client.peer.access {
                    Access::Claim => CLAIM_MAX,
                    Access::Read => LINE_MAX,
                    Access::Change => request_max,
                };
                if client.may_grow(large) && client.read(max, now).is_err() {
                    return false;
                }
                if let Some(line) = client.take_line() {
                    client.is_owed = true;
                    requests.push((client.peer, line));
                }
            }
            !client.is_done() && !client.is_stuck(now)
        });
        requests
    }

    /// Sends the progress of a request that is still to be answered.
    pub(crate) fn tell(&mut self, peer: Peer, line: &Answer, now: Time) {
        let Some(client) = self.clients.iter_mut().find(|c| c.peer.id == peer.id) else { return };
        // A client that does not read misses some progress reports; they are not queued.
        if client.output.is_empty() {
            client.output.extend_from_slice(line.as_bytes());
            client.moved_at = now;
            // The end of a client is noticed when the next requests are taken.
            let _ = client.flush(now);
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, peer: Peer, line: &Answer, now: Time) {
        if let Some(client) = self.clients.iter_mut().find(|c| c.peer.id == peer.id) {
            client.is_owed = false;
            client.output.extend_from_slice(line.as_bytes());
            client.moved_at = now;
            if client.peer.access == Access::Claim {
                client.rests_until = now + CLAIM_PAUSE;
            }
            let _ = client.flush(now);
        }
        self.clients.retain(|c| !c.is_done());
    }

    /// Puts back a request that could not be answered now, so that it is taken again later.
    pub(crate) fn put_back(&mut self, peer: Peer, line: Vec<u8>) {
        if let Some(client) = self.clients.iter_mut().find(|c| c.peer.id == peer.id) {
            client.is_owed = false;
            client.searched = 0;
            client.input.splice(0..0, line);
        }
    }

    /// The client whose long request is being read.
    fn large_client(&self) -> Option<u64> {
        self.clients.iter().find(|c| c.input.len() > LINE_MAX).map(|c| c.peer.id)
    }

    fn accept(&mut self, now: Time) {
        for i in 0..self.listeners.len() {
            let access = self.listeners[i].access;
            while let Ok((stream, _)) = self.listeners[i].socket.accept() {
                self.add(stream, access, now);
            }
        }
    }

    fn add(&mut self, stream: UnixStream, access: Access, now: Time) {
        let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let (uid, pid) = (credentials.uid(), credentials.pid());
        let claims = access == Access::Claim;
        let alike = |client: &&Client| (client.peer.access == Access::Claim) == claims;
        if self.clients.iter().filter(alike).count() >= CLIENTS_MAX {
            let Some(oldest) = self.oldest_of_the_greediest(claims) else { return };
            self.clients.remove(oldest);
        }
        self.clients_seen += 1;
        self.clients.push(Client {
            peer: Peer { id: self.clients_seen, uid, pid, access },
            stream,
            input: Vec::new(),
            searched: 0,
            output: Vec::new(),
            has_ended: false,
            is_owed: false,
            moved_at: now,
            rests_until: now,
        });
    }

    /// The oldest client without a request in progress, of the user with most clients of this type.
    fn oldest_of_the_greediest(&self, claims: bool) -> Option<usize> {
        let alike = |client: &Client| (client.peer.access == Access::Claim) == claims;
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for client in self.clients.iter().filter(|c| alike(c)) {
            *counts.entry(client.peer.uid).or_default() += 1;
        }
        let idle = self.clients.iter().enumerate().filter(|(_, c)| alike(c) && !c.is_owed);
        let key = |(i, client): &(usize, &Client)| (counts[&client.peer.uid], usize::MAX - i);
        idle.max_by_key(key).map(|(i, _)| i)
    }
}

impl Listener {
    fn bind(path: &Path, open_to: OpenTo, access: Access) -> Result<Listener, Error> {
        let socket = run_dir::listen(path, open_to)?;
        Ok(Listener { path: path.to_owned(), socket, access })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If this fails, the next start replaces the file.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    fn is_done(&self) -> bool {
        self.has_ended && !self.is_owed && self.output.is_empty() && !self.has_line()
    }

    /// Whether the client has not sent the rest of a request, or not read a reply, for too long.
    fn is_stuck(&self, now: Time) -> bool {
        let owes = !self.is_owed && !self.input.is_empty() && !self.has_line();
        (owes || !self.output.is_empty()) && now.since(self.moved_at) > PATIENCE
    }

    fn may_grow(&self, large: Option<u64>) -> bool {
        self.input.len() < LINE_MAX || large.is_none_or(|id| id == self.peer.id)
    }

    fn has_line(&self) -> bool {
        self.input[self.searched..].contains(&b'\n')
    }

    /// Reads available bytes, until there is a whole line.
    ///
    /// # Errors
    /// If the connection can no longer be used.
    fn read(&mut self, max: usize, now: Time) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        let mut read = 0;
        while read < READ_MAX && !self.has_line() {
            self.searched = self.input.len();
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(n) => {
                    self.input.extend_from_slice(&buffer[..n]);
                    self.moved_at = now;
                    read += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
            if self.input.len() > max && !self.has_line() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        Ok(())
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input[self.searched..].iter().position(|&b| b == b'\n')?;
        let rest = self.input.split_off(self.searched + end + 1);
        self.searched = 0;
        Some(std::mem::replace(&mut self.input, rest))
    }

    /// Writes as much as possible without waiting.
    fn flush(&mut self, now: Time) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if written > 0 {
            self.moved_at = now;
        }
        self.output.drain(..written);
        if self.output.is_empty() {
            // Releases the memory of a long reply or request.
            self.output.shrink_to(LINE_MAX);
            self.input.shrink_to(LINE_MAX);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOW: Time = Time::ZERO;

    fn server(request_max: usize) -> (tempfile::TempDir, Server, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/test.sock");
        let server = Server::bind(&path, None, request_max).unwrap();
        (dir, server, path)
    }

    /// The memory that a server uses for its clients, in bytes.
    fn held(server: &Server) -> usize {
        server.clients.iter().map(|c| c.input.capacity() + c.output.capacity()).sum()
    }

    #[test]
    fn a_request_is_answered_before_the_next_is_read() {
        let (_dir, mut server, path) = server(LINE_MAX);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"one\ntwo\n").unwrap();
        let first = server.take_requests(NOW);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].1, b"one\n");
        assert!(server.take_requests(NOW).is_empty(), "the first is not answered");
        server.answer(first[0].0, &Answer::value(&1), NOW);
        assert!(server.has_requests(NOW));
        let second = server.take_requests(NOW);
        assert_eq!(second[0].1, b"two\n");
        server.answer(second[0].0, &Answer::value(&2), NOW);
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"reply":"value","value":1}"#);
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"reply":"value","value":2}"#);
    }

    #[test]
    fn a_client_that_pipelines_and_reads_nothing_holds_one_reply() {
        let (_dir, mut server, path) = server(512 << 20);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_nonblocking(true).unwrap();
        let reply = Answer::value(&"x".repeat(1 << 20));
        let mut answered = 0;
        for _ in 0..1_000 {
            let _ = stream.write(&b"{\"request\":\"list\"}\n".repeat(1_000));
            for (peer, _) in server.take_requests(NOW) {
                server.answer(peer, &reply, NOW);
                answered += 1;
            }
        }
        assert!(answered <= 2, "{answered} replies for a client that reads none");
        assert!(held(&server) < 4 << 20, "{} bytes", held(&server));
    }

    #[test]
    fn one_long_request_at_a_time_is_read() {
        let (_dir, mut server, path) = server(64 << 20);
        let mut streams: Vec<_> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for stream in &mut streams {
            stream.set_nonblocking(true).unwrap();
        }
        let piece = vec![b'x'; 128 << 10];
        for _ in 0..100 {
            for stream in &mut streams {
                let _ = stream.write(&piece);
            }
            assert!(server.take_requests(NOW).is_empty());
        }
        let long = server.clients.iter().filter(|c| c.input.len() > LINE_MAX + READ_MAX).count();
        assert_eq!(long, 1);
        let mut status = UnixStream::connect(&path).unwrap();
        status.write_all(b"status\n").unwrap();
        assert_eq!(server.take_requests(NOW).len(), 1, "others are heard meanwhile");
        assert!(server.take_requests(NOW + PATIENCE + Span::millis(1)).is_empty());
        assert!(server.clients.len() <= 1, "half requests do not stay for ever");
    }

    #[test]
    fn a_client_that_may_only_read_cannot_send_long_requests() {
        let (dir, mut server, _) = server(64 << 20);
        let path = dir.path().join("run/status/test.sock");
        server.bind_status(&path, nix::unistd::getgid()).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"status\n").unwrap();
        let requests = server.take_requests(NOW);
        assert_eq!(requests[0].0.access, Access::Read);
        server.answer(requests[0].0, &Answer::value(&1), NOW);
        stream.set_nonblocking(true).unwrap();
        for _ in 0..10 {
            let _ = stream.write(&vec![b'x'; LINE_MAX]);
            server.take_requests(NOW);
        }
        assert!(server.clients.is_empty());
    }

    #[test]
    fn for_one_client_more_the_oldest_goes_of_who_has_most() {
        let (_dir, mut server, path) = server(LINE_MAX);
        let mut streams = Vec::new();
        for _ in 0..CLIENTS_MAX + 1 {
            streams.push(UnixStream::connect(&path).unwrap());
            server.take_requests(NOW);
        }
        assert_eq!(server.clients.len(), CLIENTS_MAX);
        assert_eq!(streams[0].read(&mut [0; 1]).unwrap(), 0, "it was closed");
        // Makes all clients except two appear to be from another user.
        for client in &mut server.clients[2..] {
            client.peer.uid = 12_345;
        }
        assert_eq!(server.oldest_of_the_greediest(false), Some(2));
    }

    #[test]
    fn clients_that_make_claims_are_short_slow_and_displace_no_other() {
        let (dir, mut server, path) = server(64 << 20);
        let web = dir.path().join("run/web/test.sock");
        server.bind_web(&web).unwrap();
        assert_eq!(fs::metadata(&web).unwrap().permissions().mode() & 0o777, 0o666);
        let mut admin = UnixStream::connect(&path).unwrap();
        let mut claimants: Vec<_> =
            (0..CLIENTS_MAX + 1).map(|_| UnixStream::connect(&web).unwrap()).collect();
        server.take_requests(NOW);
        assert_eq!(server.clients.len(), 1 + CLIENTS_MAX);
        admin.write_all(b"off\n").unwrap();
        let last = claimants.last_mut().unwrap();
        last.write_all(b"one\ntwo\n").unwrap();
        let requests = server.take_requests(NOW);
        let of = |access| requests.iter().find(|(peer, _)| peer.access == access).unwrap().0;
        let (_, claimant) = (of(Access::Change), of(Access::Claim));
        server.answer(claimant, &Answer::value(&1), NOW);
        assert!(!server.has_requests(NOW));
        assert_eq!(server.deadline(NOW), Some(NOW + CLAIM_PAUSE));
        assert!(server.take_requests(NOW + Span::millis(19)).is_empty());
        assert!(server.has_requests(NOW + CLAIM_PAUSE));
        assert_eq!(server.take_requests(NOW + CLAIM_PAUSE)[0].1, b"two\n");
        let other = &mut claimants[CLIENTS_MAX - 1];
        other.write_all(&[b'x'; CLAIM_MAX + 1]).unwrap();
        server.take_requests(NOW + CLAIM_PAUSE);
        assert_eq!(server.clients.len(), CLIENTS_MAX, "a long request ends its client");
    }
}
