//! The client side of a daemon's socket, for commands.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::lock::{namespace, namespace_of};
use crate::run_dir::{control_socket, status_socket, web_socket};
use crate::server::Access;
use crate::wire::{Reply, as_line};

/// The longest reply, in bytes.
const REPLY_MAX: u64 = 256 << 20;

/// Called with the number of items that are done, and of all.
pub type OnProgress<'p> = &'p mut dyn FnMut(usize, usize);

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    name: String,
    patience: Duration,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the instance `name`, at the socket that `access` needs. A reply, or a progress
    /// report, must arrive within `patience`.
    ///
    /// A request that only reads uses the control socket if the caller may use it, otherwise the
    /// status socket. Claims use their own socket, even if the caller may use others.
    ///
    /// # Errors
    /// [`Error::NotRunning`], [`Error::NotPermitted`].
    pub fn connect(
        run_dir: &Path,
        name: &str,
        access: Access,
        patience: Duration,
    ) -> Result<Client, Error> {
        let attempt = || -> io::Result<UnixStream> {
            let path = match access {
                Access::Claim => web_socket(run_dir, name),
                Access::Read | Access::Change => control_socket(run_dir, name),
            };
            let stream = match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied && access == Access::Read => {
                    // The first error is more informative if this attempt fails too.
                    UnixStream::connect(status_socket(run_dir, name)).map_err(|_| e)?
                }
                connected => connected?,
            };
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            Ok(stream)
        };
        let stream = attempt().map_err(|source| {
            let (name, run_dir) = (name.to_owned(), run_dir.to_owned());
            match source.kind() {
                io::ErrorKind::PermissionDenied => Error::NotPermitted { name, run_dir, source },
                _ => Error::NotRunning { name, run_dir, source },
            }
        })?;
        Ok(Client { name: name.to_owned(), patience, stream: BufReader::new(stream) })
    }

    /// Sends a request and reads the value in the reply.
    ///
    /// # Errors
    /// [`Error::Refused`] with the daemon's message, or an error of the connection.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &impl Serialize) -> Result<T, Error> {
        self.ask_slowly(request, &mut |_, _| ())
    }

    /// Like [`Client::ask`], for a request that takes long.
    ///
    /// # Errors
    /// See [`Client::ask`].
    pub fn ask_slowly<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        on_progress: OnProgress<'_>,
    ) -> Result<T, Error> {
        match self.exchange(request, on_progress)? {
            Reply::Value { value } => Ok(value),
            Reply::Error { message } => Err(Error::Refused(message)),
            Reply::Done { .. } | Reply::Progress { .. } => Err(self.not_understood("no value")),
        }
    }

    /// Sends a request to change something; returns the daemon's description of what was done.
    ///
    /// # Errors
    /// See [`Client::ask`].
    pub fn tell(
        &mut self,
        request: &impl Serialize,
        on_progress: OnProgress<'_>,
    ) -> Result<String, Error> {
        match self.exchange::<serde_json::Value>(request, on_progress)? {
            Reply::Done { message } => Ok(message),
            Reply::Error { message } => Err(Error::Refused(message)),
            Reply::Value { .. } | Reply::Progress { .. } => Err(self.not_understood("no outcome")),
        }
    }

    /// The id of the process at the other end; 0 if it is in another PID namespace.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn daemon_pid(&self) -> Result<i32, Error> {
        let credentials = getsockopt(self.stream.get_ref(), PeerCredentials);
        let credentials = credentials
            .map_err(|e| Error::io("look which process is at the other end", e.into()))?;
        Ok(credentials.pid())
    }

    /// Whether the daemon is known to be in another network namespace than the caller.
    pub fn is_elsewhere(&self) -> bool {
        let theirs = self.daemon_pid().ok().filter(|&pid| pid > 0);
        let theirs = theirs.and_then(|pid| namespace_of(&pid.to_string()).ok());
        theirs.is_some_and(|theirs| namespace().is_ok_and(|ours| ours != theirs))
    }

    fn exchange<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        on_progress: OnProgress<'_>,
    ) -> Result<Reply<T>, Error> {
        let line = as_line(request);
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|e| self.broken(&e))?;
        loop {
            let mut line = String::new();
            let read = (&mut self.stream).take(REPLY_MAX).read_line(&mut line);
            if read.map_err(|e| self.broken(&e))? == 0 {
                let why = "the daemon closed it".to_owned();
                return Err(Error::Broken { name: self.name.clone(), why });
            }
            match serde_json::from_str(&line).map_err(|e| self.not_understood(e))? {
                Reply::Progress { done, of } => on_progress(done, of),
                reply => return Ok(reply),
            }
        }
    }

    fn broken(&self, e: &io::Error) -> Error {
        let name = self.name.clone();
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Error::NoAnswer { name, seconds: self.patience.as_secs() }
            }
            _ => Error::Broken { name, why: e.to_string() },
        }
    }

    fn not_understood(&self, why: impl ToString) -> Error {
        Error::NotUnderstood { name: self.name.clone(), why: why.to_string() }
    }
}
