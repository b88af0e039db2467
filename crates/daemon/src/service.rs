//! The main loop of every daemon: one thread, woken at the service's deadline and, between deadlines, by signals,
//! changed files and requests.
//!
//! A daemon's life: locks are taken, signals blocked, sockets opened, the [`Service`] started, readiness reported; then
//! the loop; then [`Service::end`]. So the signals are blocked before anything exists that would have to be removed,
//! and clients that connect early wait and do not fail.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use fairweir_config::MetricsAt;
use fairweir_core::units::{Span, Time};
use nix::unistd::Gid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::events::{Events, Happened, Watched};
use crate::http::Http;
use crate::server::{Access, Peer, Server};
use crate::systemd::{self, Watchdog};
use crate::wire::{Answer, Request};
use crate::{Error, Lock, run_dir};

/// Editors write a file in several steps; the file is read this long after the last change.
const SETTLE: Span = Span::millis(200);

/// How often a client gets a progress report, and other clients are answered meanwhile.
const SAY_PERIOD: Span = Span::millis(200);

/// The part of a daemon that is specific to it.
pub trait Service {
    /// Requests other than [`Request`].
    type Request: DeserializeOwned;

    /// Whether every local user may send requests for which [`Access::Claim`] is enough.
    const TAKES_CLAIMS: bool = false;

    /// The access that a client needs for a request.
    fn access_for(request: &Self::Request) -> Access;

    /// When the service must be woken next.
    fn deadline(&self) -> Time;

    /// Called when the deadline has passed.
    ///
    /// # Errors
    /// An error ends the daemon; the service must handle errors from which it can recover.
    fn handle_tick(&mut self, now: Time) -> Result<(), Error>;

    /// File descriptors that become readable when [`Service::handle_ready`] should be called before
    /// the deadline; none by default.
    fn waits_for(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Called when one of these descriptors may be readable.
    ///
    /// # Errors
    /// As in [`Service::handle_tick`].
    fn handle_ready(&mut self, _now: Time) -> Result<(), Error> {
        Ok(())
    }

    /// Answers a request; a long one reports its progress.
    fn handle_request(
        &mut self,
        request: Self::Request,
        peer: Peer,
        now: Time,
        progress: &mut Progress<'_>,
    ) -> Answer;

    /// Called when a client has sent something other than a request.
    fn handle_malformed(&mut self, _peer: Peer) {}

    /// Reads the configuration again and applies the differences. `dry_run` only reports what would change; `force`
    /// also applies what looks like a mistake. A configuration with mistakes changes nothing.
    ///
    /// # Errors
    /// The reason why the old one stays in force.
    fn reload(
        &mut self,
        dry_run: bool,
        force: bool,
        now: Time,
        progress: &mut Progress<'_>,
    ) -> Result<String, String>;

    /// The files of the configuration; a change of one triggers a reload.
    fn watched(&self) -> Watched;

    /// The service's status.
    fn status(&mut self, now: Time) -> Answer;

    /// Metrics as OpenMetrics text, with `top` members by name.
    ///
    /// # Errors
    /// The reason why they cannot be made.
    fn metrics(&mut self, top: usize, now: Time) -> Result<String, String>;

    /// Removes everything from the kernel, on behalf of a command; [`Service::end`] follows.
    ///
    /// # Errors
    /// What could not be removed.
    fn off(&mut self) -> Result<(), String> {
        self.end()
    }

    /// Removes from the kernel what must end with the daemon; called again after an error or a request to stop.
    ///
    /// # Errors
    /// What could not be removed.
    fn end(&mut self) -> Result<(), String>;
}

/// What the main loop must know of a daemon.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The instance, which names the sockets and the lock.
    pub name: String,
    /// Devices that no other daemon may control at the same time.
    pub devices: Vec<String>,
    /// The directory of sockets and locks.
    pub run_dir: PathBuf,
    /// The group that may use the control socket, besides its owner.
    pub admin_group: Option<Gid>,
    /// The group that may read status and metrics.
    pub user_group: Option<Gid>,
    /// The longest request, in bytes.
    pub request_max: usize,
    /// Where to serve metrics over HTTP, if anywhere.
    pub metrics: Option<MetricsAt>,
    /// Whether to exit when stdin ends.
    pub until_stdin_closes: bool,
    /// The monotonic clock.
    pub clock: fn() -> Time,
}

/// Reports the progress of a long operation. Meanwhile other clients are told to try again.
pub struct Progress<'f> {
    server: &'f mut Server,
    watchdog: &'f mut Watchdog,
    clock: fn() -> Time,
    said_at: Time,
    /// The client that asked for it; `None` if the daemon starts or reloads by itself.
    peer: Option<Peer>,
    is_start: bool,
}

/// Runs a daemon until a signal or a request stops it. `start` makes the service, and attaches it.
///
/// # Errors
/// The error that kept the daemon from starting, or ended it.
pub fn run<S: Service, E: From<Error>>(
    spec: &Spec,
    start: impl FnOnce(&mut Progress<'_>) -> Result<S, E>,
) -> Result<(), E> {
    let mut locks = vec![Lock::acquire(&spec.run_dir, &spec.name)?];
    for device in &spec.devices {
        locks.push(Lock::device(&spec.run_dir, device)?);
    }
    let mut events =
        Events::new(spec.until_stdin_closes).map_err(|e| Error::io("receive signals", e))?;
    let mut server = bind(spec, S::TAKES_CLAIMS)?;
    let mut http = match spec.metrics {
        None => None,
        Some(MetricsAt::Loopback(address)) => Some(Http::bind(address)?),
        Some(MetricsAt::Unix) => {
            let path = run_dir::metrics_socket(&spec.run_dir, &spec.name);
            Some(Http::bind_unix(&path, spec.user_group)?)
        }
    };
    let mut watchdog = Watchdog::from_environment();
    let mut service = start(&mut Progress {
        server: &mut server,
        watchdog: &mut watchdog,
        clock: spec.clock,
        said_at: (spec.clock)(),
        peer: None,
        is_start: true,
    })?;
    events.watch(service.watched());
    systemd::notify("READY=1\nSTATUS=");
    let frame = Frame {
        service: &mut service,
        server: &mut server,
        http: &mut http,
        watchdog: &mut watchdog,
        clock: spec.clock,
        reload_at: None,
        has_reloaded: false,
        stop: false,
    };
    let ran = frame.run(&mut events);
    systemd::notify("STOPPING=1");
    let ended = service.end().map_err(Error::Refused);
    drop(locks);
    ran?;
    Ok(ended?)
}

fn bind(spec: &Spec, takes_claims: bool) -> Result<Server, Error> {
    let path = run_dir::control_socket(&spec.run_dir, &spec.name);
    let mut server = Server::bind(&path, spec.admin_group, spec.request_max)?;
    if let Some(group) = spec.user_group {
        server.bind_status(&run_dir::status_socket(&spec.run_dir, &spec.name), group)?;
    }
    if takes_claims {
        server.bind_web(&run_dir::web_socket(&spec.run_dir, &spec.name))?;
    }
    Ok(server)
}

/// A running daemon.
struct Frame<'d, S> {
    service: &'d mut S,
    server: &'d mut Server,
    http: &'d mut Option<Http>,
    watchdog: &'d mut Watchdog,
    clock: fn() -> Time,
    reload_at: Option<Time>,
    has_reloaded: bool,
    stop: bool,
}

impl<S: Service> Frame<'_, S> {
    fn run(mut self, events: &mut Events) -> Result<(), Error> {
        while !self.stop {
            let happened = self.wait(events)?;
            let now = (self.clock)();
            self.watchdog.beat(now);
            self.stop |= happened.stop;
            if happened.reload {
                self.reload_at = Some(now);
            } else if happened.files {
                self.reload_at = Some(now + SETTLE);
            }
            if self.reload_at.is_some_and(|at| now >= at) {
                self.reload_at = None;
                // The outcome is logged, and the service keeps an error for its status.
                let _ = self.reload(None, false, false, now);
            }
            if !self.service.waits_for().is_empty() {
                self.service.handle_ready(now)?;
            }
            if now >= self.service.deadline() {
                self.service.handle_tick(now)?;
            }
            for (peer, line) in self.server.take_requests(now) {
                let answer = self.answer(peer, &line, now);
                self.server.answer(peer, &answer, now);
            }
            // The new configuration may name other files.
            if std::mem::take(&mut self.has_reloaded) {
                events.watch(self.service.watched());
            }
            if let Some(http) = self.http {
                http.serve(now, |top| self.service.metrics(top, now));
            }
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Events) -> Result<Happened, Error> {
        let deadline = self.service.deadline();
        let deadline = self.reload_at.map_or(deadline, |at| at.min(deadline));
        let now = (self.clock)();
        let deadline = self.server.deadline(now).map_or(deadline, |at| at.min(deadline));
        let span = match self.server.has_requests(now) {
            true => Span::ZERO,
            false => deadline.since(now),
        };
        let fds = self.server.waits_for(now).chain(self.http.iter().flat_map(Http::waits_for));
        let fds = fds.chain(self.service.waits_for().into_iter().map(|fd| (fd, false)));
        events.wait(span, fds).map_err(|e| Error::io("wait for events", e))
    }

    fn answer(&mut self, peer: Peer, line: &[u8], now: Time) -> Answer {
        match Parsed::<S::Request>::read(line) {
            Err(message) => {
                self.service.handle_malformed(peer);
                Answer::error(message)
            }
            Ok(parsed) if parsed.access::<S>() > peer.access => Answer::error(match peer.access {
                Access::Claim => "this socket takes only what browsers' extensions say",
                _ => "this socket only reads; use the control socket as root",
            }),
            Ok(Parsed::Own(request)) => {
                let mut progress = progress(self.server, self.watchdog, self.clock, Some(peer));
                self.service.handle_request(request, peer, now, &mut progress)
            }
            Ok(Parsed::Common(Request::Status)) => self.service.status(now),
            Ok(Parsed::Common(Request::Reload { dry_run, force })) => {
                Answer::outcome(self.reload(Some(peer), dry_run, force, now))
            }
            Ok(Parsed::Common(Request::Metrics { top })) => match self.service.metrics(top, now) {
                Ok(text) => Answer::value(&text),
                Err(message) => Answer::error(message),
            },
            Ok(Parsed::Common(Request::Off)) => {
                info!(uid = peer.uid, pid = peer.pid, "told to stop");
                self.stop = true;
                let ended = self.service.off();
                Answer::outcome(ended.map(|()| "stopped, and removed everything".to_owned()))
            }
        }
    }

    fn reload(
        &mut self,
        peer: Option<Peer>,
        dry_run: bool,
        force: bool,
        now: Time,
    ) -> Result<String, String> {
        let mut progress = progress(self.server, self.watchdog, self.clock, peer);
        let outcome = self.service.reload(dry_run, force, now, &mut progress);
        self.has_reloaded |= !dry_run;
        match &outcome {
            _ if dry_run => {}
            Ok(done) => info!("configuration reloaded: {done}"),
            Err(e) => warn!("configuration not reloaded, the old one stays in force: {e}"),
        }
        outcome
    }
}

fn progress<'f>(
    server: &'f mut Server,
    watchdog: &'f mut Watchdog,
    clock: fn() -> Time,
    peer: Option<Peer>,
) -> Progress<'f> {
    Progress { server, watchdog, clock, said_at: clock(), peer, is_start: false }
}

impl Progress<'_> {
    /// Reports that `done` of `of` items are done.
    pub fn show(&mut self, done: usize, of: usize) {
        let now = (self.clock)();
        if now.since(self.said_at) < SAY_PERIOD {
            return;
        }
        self.said_at = now;
        self.watchdog.beat(now);
        if self.is_start {
            // systemd waits another ten seconds from now on before it gives up.
            systemd::notify(&format!(
                "STATUS=starting: {done} of {of}\nEXTEND_TIMEOUT_USEC=10000000"
            ));
        }
        if let Some(peer) = self.peer {
            self.server.tell(peer, &Answer::progress(done, of), now);
        }
        for (peer, line) in self.server.take_requests(now) {
            // The client waits until the daemon can answer.
            self.server.tell(peer, &Answer::progress(done, of), now);
            self.server.put_back(peer, line);
        }
    }
}

/// A request that every daemon has, or one of the service.
enum Parsed<R> {
    Common(Request),
    Own(R),
}

#[derive(Deserialize)]
struct Tag {
    request: String,
}

impl Tag {
    fn of(line: &[u8]) -> Result<String, String> {
        let tag = serde_json::from_slice::<Tag>(line);
        tag.map(|tag| tag.request).map_err(|e| format!("not a request: {e}"))
    }
}

impl<R: DeserializeOwned> Parsed<R> {
    fn read(line: &[u8]) -> Result<Parsed<R>, String> {
        let parsed = match Tag::of(line)? {
            tag if Request::TAGS.contains(&tag.as_str()) => {
                serde_json::from_slice(line).map(Parsed::Common)
            }
            _ => serde_json::from_slice(line).map(Parsed::Own),
        };
        parsed.map_err(|e| format!("not a request: {e}"))
    }

    fn access<S: Service<Request = R>>(&self) -> Access {
        match self {
            Parsed::Common(request) if request.changes_something() => Access::Change,
            Parsed::Common(_) => Access::Read,
            Parsed::Own(request) => S::access_for(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_request_waits_while_the_daemon_is_at_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/test.sock");
        let mut server = Server::bind(&path, None, 1 << 16).unwrap();
        let mut watchdog = Watchdog::from_environment();
        let mut stream = UnixStream::connect(&path).unwrap();
        let request = b"{\"request\":\"add\"}\n";
        stream.write_all(request).unwrap();
        let clock = || Time::ZERO + SAY_PERIOD;
        let (said_at, is_start) = (Time::ZERO, false);
        let (server_of, watchdog) = (&mut server, &mut watchdog);
        Progress { server: server_of, watchdog, clock, said_at, peer: None, is_start }.show(1, 2);
        let later = server.take_requests(clock());
        assert_eq!(later[0].1, request);
        server.answer(later[0].0, &Answer::value(&3), clock());
        let lines = BufReader::new(stream).lines().take(2).map(Result::unwrap);
        let wanted = [r#"{"reply":"progress","done":1,"of":2}"#, r#"{"reply":"value","value":3}"#];
        assert_eq!(lines.collect::<Vec<_>>(), wanted);
    }
}
