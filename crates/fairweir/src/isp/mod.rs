//! `fairweir isp`: polices the subscribers of an access network.
//!
//! One thread, woken every second and by signals and requests. The kernel polices by itself; the
//! daemon only tells it who has what, and reads its counters. When it ends, however it does, its
//! programs end with it and everything passes.
//!
//! | module | its job |
//! |---|---|
//! | [`plan`], [`address`], [`registry`] | plans, subscribers, and the rules that they obey (pure) |
//! | [`read`], [`csv`] | the operator's files |
//! | [`journal`], [`assemble`] | what the API changed, and how it stands over the files |
//! | [`kernel`], [`meter`] | what the kernel is told, and what it counted |
//! | [`daemon`], [`report`], [`http`] | the daemon, and what it tells |
//! | [`wire`], [`commands`], [`top`], [`show`] | what others ask it |

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use fairweir_core::units::Time;
use fairweir_linux::{Lock, monotonic_now};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::chained;
use crate::client::socket_path;
use crate::events::Events;
use crate::progress::Count;
use crate::server::{Peer, Server, as_line};
use crate::systemd;
use crate::text;
use crate::wire::Outcome;

mod address;
mod assemble;
pub(crate) mod cli;
mod commands;
mod csv;
mod daemon;
mod http;
mod journal;
mod kernel;
mod meter;
mod plan;
mod read;
mod registry;
mod report;
mod show;
mod top;
mod wire;

pub(crate) use show::{check, is_isp_file};

use cli::{DaemonArgs, IspArgs};
use daemon::{Daemon, TICK};
use http::Http;
use plan::PlanEntry;
use read::IspFile;
use registry::{Change, Effects};
use wire::{Progress, Request, Step};

/// The name of the socket, and what `fairweir off` calls the daemon.
pub(crate) const NAME: &str = "isp";

/// The longest request: a table of two million subscribers.
const REQUEST_MAX: usize = 512 << 20;

/// How often it is told how far something is, and others are answered meanwhile.
const SAY_PERIOD: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &IspArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(command) => commands::run(command),
        None if args.daemon.dry_run => show::dry_run(&args.daemon),
        None => serve(&args.daemon),
    }
}

/// The daemon's whole life.
fn serve(args: &DaemonArgs) -> anyhow::Result<()> {
    let file = IspFile::load(&args.config)?;
    let devices = [Some(&file.isp.device), file.isp.uplink.as_ref()];
    let mut locks = Vec::new();
    for device in devices.into_iter().flatten() {
        crate::host::check_exists(device)?;
        locks.push(Lock::acquire(device)?);
    }
    allow_many_files();
    let mut events = Events::new(None, args.until_stdin_closes).context("no signals")?;
    let mut server = Server::bind(&socket_path(&args.run_dir.run_dir, NAME), REQUEST_MAX)?;
    if let Some((_, group)) = &file.isp.group {
        server.open_to(*group)?;
    }
    let mut http = file.isp.metrics.map(Http::bind).transpose()?;
    let mut daemon = begin(&file, &args.state.state_dir, &mut server)?;
    info!(device = daemon.isp.device, subscribers = daemon.registry.subscribers().len(), "polices");
    systemd::notify("READY=1\nSTATUS=");
    let ran = Loop { daemon: &mut daemon, server: &mut server, http: &mut http, stop: false }
        .run(&mut events);
    systemd::notify("STOPPING=1");
    daemon.kernel.detach();
    info!(device = daemon.isp.device, "everything passes");
    ran
}

/// The kernel's tables grow by a file descriptor for every thousand subscribers and direction.
fn allow_many_files() {
    let raise = || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)
    };
    if let Err(e) = raise() {
        warn!("there may be room for few subscribers only: {e}");
    }
}

/// Loads everything, and says how far it is if that takes long.
fn begin(file: &IspFile, state_dir: &Path, server: &mut Server<Request>) -> anyhow::Result<Daemon> {
    let count = Count::new("loaded", "subscribers");
    let mut said = Instant::now();
    let begun = Daemon::start(file, state_dir, monotonic_now(), &mut |done, of| {
        count.show(done, of);
        if said.elapsed() >= SAY_PERIOD {
            said = Instant::now();
            // Ten more seconds from now on before systemd loses patience.
            let text = format!("STATUS=loading {done} of {of}\nEXTEND_TIMEOUT_USEC=10000000");
            systemd::notify(&text);
            refuse_meanwhile(server, done, of);
        }
    });
    count.end();
    begun
}

/// Whoever asks while something takes long is told so at once.
fn refuse_meanwhile(server: &mut Server<Request>, done: usize, of: usize) {
    for (peer, _) in server.take_requests() {
        let message = format!("busy: {done} of {of} subscribers are done; ask again");
        server.answer(peer, &as_line(&Outcome { ok: false, message }));
    }
}

/// A daemon and who asks it.
struct Loop<'d> {
    daemon: &'d mut Daemon,
    server: &'d mut Server<Request>,
    http: &'d mut Option<Http>,
    stop: bool,
}

impl Loop<'_> {
    fn run(mut self, events: &mut Events) -> anyhow::Result<()> {
        let mut tick_at = monotonic_now() + TICK;
        while !self.stop {
            let happened = events
                .wait(tick_at.since(monotonic_now()), waits_for(self.server, self.http))
                .context("cannot wait for events")?;
            let now = monotonic_now();
            self.stop |= happened.stop;
            if happened.reload {
                match self.daemon.reload(false, &mut |_, _| ()) {
                    Ok(effects) => info!("reloaded: {}", in_words(&effects)),
                    Err(e) => warn!("everything stays as it was: {}", chained(&e)),
                }
            }
            if now >= tick_at {
                self.daemon.handle_tick(now);
                tick_at = monotonic_now() + TICK;
            }
            for (peer, request) in self.server.take_requests() {
                let line = self.answer(peer, request, now);
                self.server.answer(peer, &line);
            }
            let daemon = &mut *self.daemon;
            if let Some(http) = self.http {
                let text = |top| report::metrics(daemon, top, now).map_err(|e| chained(&e));
                http.serve(text);
            }
        }
        Ok(())
    }

    fn answer(&mut self, peer: Peer, request: Request, now: Time) -> String {
        let outcome = match request {
            Request::Status => return as_line(&report::status(self.daemon, now)),
            Request::List { plan, after, limit } => {
                let (plan, after) = (plan.as_deref(), after.as_deref());
                return as_line(&report::list(self.daemon, plan, after, limit));
            }
            Request::Plans => {
                let plans = self.daemon.registry.plans().values();
                let plans: Vec<Value> = plans.map(|record| record.entry.to_json()).collect();
                return as_line(&json!({ "plans": plans }));
            }
            Request::Counters { name } => value(report::subscriber(self.daemon, &name)),
            Request::Top { count } => {
                let daemon = &mut *self.daemon;
                let (kernel, registry) = (&daemon.kernel, &daemon.registry);
                value(daemon.meter.busiest(kernel, registry, count, now))
            }
            Request::Metrics { top } => {
                value(report::metrics(self.daemon, top, now).map(|text| json!({ "text": text })))
            }
            Request::Off => {
                self.stop = true;
                self.daemon.kernel.detach();
                message(Ok("it polices nobody any more and ends".to_owned()))
            }
            Request::Import { table, dry_run, skip_bad } => {
                let mut progress = progress(self.server, peer);
                let imported = self.daemon.import(&table, dry_run, skip_bad, &mut progress);
                log(peer, "import", imported.ok, &imported.message);
                return as_line(&imported);
            }
            change => {
                let (what, done) = self.change(peer, change);
                if let Err(e) = &done {
                    log(peer, what, false, &chained(e));
                } else if let Ok(text) = &done {
                    log(peer, what, true, text);
                }
                message(done)
            }
        };
        as_line(&outcome)
    }

    /// What changes something, and is answered by what it did.
    fn change(&mut self, peer: Peer, request: Request) -> (&'static str, anyhow::Result<String>) {
        let mut progress = progress(self.server, peer);
        let daemon = &mut *self.daemon;
        let plan = |value: &Value| PlanEntry::from_json(value).map_err(anyhow::Error::msg);
        let (what, changes) = match request {
            Request::Reload { dry_run } => {
                let done = daemon.reload(dry_run, &mut progress);
                let would = if dry_run { "dry run, nothing was changed: " } else { "" };
                return ("reload", done.map(|effects| format!("{would}{}", in_words(&effects))));
            }
            Request::Revert { names, all } => {
                let done = daemon.revert(&names, all, &mut progress);
                return ("revert", done.map(|effects| in_words(&effects)));
            }
            Request::Add { subscriber } => ("add", Ok(Change::Add(subscriber))),
            Request::Change { name, addresses, plan } => {
                let addresses = addresses.map(|a| a.0);
                ("change", Ok(Change::Alter { name, addresses, plan }))
            }
            Request::Remove { name } => ("remove", Ok(Change::Remove(name))),
            Request::AddPlan { plan: value } => ("add a plan", plan(&value).map(Change::AddPlan)),
            Request::ChangePlan { plan: value } => {
                ("change a plan", plan(&value).map(Change::AlterPlan))
            }
            Request::RemovePlan { name } => ("remove a plan", Ok(Change::RemovePlan(name))),
            Request::Status
            | Request::Off
            | Request::List { .. }
            | Request::Counters { .. }
            | Request::Top { .. }
            | Request::Plans
            | Request::Import { .. }
            | Request::Metrics { .. } => unreachable!("answered elsewhere"),
        };
        let done = changes.and_then(|change| daemon.change(&[change], &mut progress));
        (what, done.map(|effects| in_words(&effects)))
    }
}

fn waits_for<'s>(
    server: &'s Server<Request>,
    http: &'s Option<Http>,
) -> impl Iterator<Item = (BorrowedFd<'s>, bool)> {
    server.waits_for().chain(http.iter().flat_map(Http::waits_for))
}

/// Tells whoever asked how far it is, and others that they have to wait.
fn progress(server: &mut Server<Request>, peer: Peer) -> impl FnMut(usize, usize) {
    let mut said = Instant::now();
    move |done, of| {
        if said.elapsed() >= SAY_PERIOD {
            said = Instant::now();
            server.tell(peer, &as_line(&Progress { progress: Step { done, of } }));
            refuse_meanwhile(server, done, of);
        }
    }
}

fn log(peer: Peer, what: &str, ok: bool, message: &str) {
    let (uid, pid) = (peer.uid, peer.pid);
    if ok {
        info!(uid, pid, "{what}: {message}");
    } else {
        info!(uid, pid, "{what} was refused: {message}");
    }
}

/// What changes did, in a few words.
fn in_words(effects: &Effects) -> String {
    if effects.is_empty() {
        return "nothing changed".to_owned();
    }
    let mut parts = Vec::new();
    let [added, changed, removed] = effects.counts();
    for (count, what) in [(added, "added"), (changed, "changed"), (removed, "removed")] {
        match count {
            0 => {}
            1 => parts.push(format!("1 subscriber {what}")),
            n => parts.push(format!("{n} subscribers {what}")),
        }
    }
    for (name, before, after) in &effects.plans {
        let what = match (before, after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        parts.push(format!("plan `{name}` {what}"));
    }
    let rest = parts.len().saturating_sub(WORDS_MAX);
    parts.truncate(WORDS_MAX);
    if rest > 0 {
        parts.push(format!("and {rest} more"));
    }
    parts.join(", ")
}

/// More changes are counted.
const WORDS_MAX: usize = 8;

fn message(done: anyhow::Result<String>) -> Value {
    let outcome = match done {
        Ok(message) => Outcome { ok: true, message },
        Err(e) => Outcome { ok: false, message: chained(&e) },
    };
    json!(outcome)
}

fn value(found: anyhow::Result<impl serde::Serialize>) -> Value {
    match found {
        Ok(value) => json!(value),
        Err(e) => message(Err(e)),
    }
}

/// Writes to stdout.
fn say(text: &str) -> io::Result<()> {
    writeln!(text::stdout(), "{text}")
}
