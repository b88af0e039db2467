//! `fairweir isp`: polices the subscribers of an access network.
//!
//! A service of [`fairweir_daemon`]. The kernel polices by itself; the daemon tells it which
//! subscriber has which plan, and reads its counters. However the daemon ends, its programs remain
//! until the next daemon replaces them, a time is over, or a command ends them. With `when_gone =
//! "open"` they end with the daemon, and all traffic passes.
//!
//! | module | its job |
//! |---|---|
//! | [`registry`] | plans, subscribers, and the rules that they must satisfy (pure) |
//! | [`journal`], [`assemble`] | the API's changes, and how they override the files |
//! | [`last_good`] | the last table that was in force |
//! | [`kernel`], [`handles`], [`meter`] | the kernel's state and its counters |
//! | [`radius`], [`leases`] | subscribers that access servers and DHCP servers report |
//! | [`unpoliced`] | reported subscribers that are not policed, and why |
//! | [`usage`], [`ipfix`] | what each subscriber used, in files and for a collector |
//! | [`nat`] | whether this host hides subscribers from the policer |
//! | [`clients`] | hosts that choose how their downloads are divided |
//! | [`segments`] | members that share a capacity, and how it is divided |
//! | [`daemon`], [`report`] | the daemon's state, and its replies |
//! | [`wire`], [`commands`], [`top`], [`show`] | requests to the daemon |

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use fairweir_config::isp::PlanEntry;
use fairweir_core::units::{Rate, Time};
use fairweir_daemon::{Access, Answer, Client, Error, Peer, Service, Spec, StateDir, Watched};
use fairweir_linux::monotonic_now;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::device::check_exists;
use crate::progress::Count;
use crate::words::{chained, count};
use fairweir_config::text;

mod asker;
mod assemble;
pub(crate) mod cli;
mod clients;
mod commands;
mod daemon;
mod handles;
mod ipfix;
mod journal;
mod kernel;
mod last_good;
mod leases;
mod meter;
mod nat;
mod radius;
mod registry;
mod report;
mod segments;
mod sessions;
mod show;
mod top;
mod unpoliced;
mod usage;
pub(crate) mod wire;

pub(crate) use crate::instance::ISP as NAME;
pub(crate) use show::check;

use cli::{DaemonArgs, IspArgs};
use daemon::{Daemon, TICK};
use radius::Radius;
use registry::{Change, Effects, Origin};
use wire::{LeasedRate, Request};

pub(crate) use show::{headline, notes};
pub(crate) use wire::{Directions, Found, SegmentUse, Status};

/// The most subscribers that may be missing after a reload or in a lease file without `--force`:
/// this number, or 1 / the second number of all, if that is more.
const SHRINK_MAX: (usize, usize) = (10, 10);

/// The longest request, in bytes: a table of two million subscribers.
const REQUEST_MAX: usize = 512 << 20;

pub(crate) fn run(args: &IspArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(command) => commands::run(command),
        None if args.daemon.dry_run => show::dry_run(&args.daemon),
        None => serve(&args.daemon),
    }
}

/// Runs the daemon until it ends.
fn serve(args: &DaemonArgs) -> anyhow::Result<()> {
    let state = StateDir::new(&args.state.state_dir);
    let (file, config_error) = last_good::load(&args.config, &state)?;
    let devices = [Some(&file.isp.device), file.isp.uplink.as_ref()];
    let devices: Vec<String> = devices.into_iter().flatten().cloned().collect();
    for device in &devices {
        check_exists(device)?;
    }
    allow_many_files();
    let common = args.service.spec(NAME, REQUEST_MAX)?;
    let spec = Spec {
        devices,
        // The command line takes precedence.
        admin_group: common.admin_group.or(file.isp.group.as_ref().map(|(_, group)| *group)),
        metrics: file.isp.metrics,
        ..common
    };
    fairweir_daemon::run(&spec, |progress| -> anyhow::Result<Isp> {
        let count = Count::new("loaded", "subscribers");
        let state_dir = &args.state.state_dir;
        let daemon =
            Daemon::start(file, config_error, state_dir, monotonic_now(), &mut |done, of| {
                count.show(done, of);
                progress.show(done, of);
            })?;
        count.end();
        let subscribers = daemon.registry.subscribers().len();
        info!(device = daemon.isp.device, subscribers, "policing");
        Ok(Isp { daemon, tick_at: monotonic_now() + TICK })
    })
}

/// Asks the daemon for subscribers by address, or by the begin of their names.
///
/// # Errors
/// If the daemon does not answer or refuses.
pub(crate) fn find(client: &mut Client, text: &str) -> Result<Found, Error> {
    client.ask(&Request::Find { text: text.to_owned() })
}

/// Raises the limit: the kernel's tables use a file descriptor for every thousand subscribers and direction.
fn allow_many_files() {
    let raise = || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)
    };
    if let Err(e) = raise() {
        warn!("cannot raise the limit of open files; few subscribers will fit: {e}");
    }
}

/// The daemon, as a service.
struct Isp {
    daemon: Daemon,
    tick_at: Time,
}

impl Service for Isp {
    type Request = Request;

    fn access_for(request: &Request) -> Access {
        match request {
            Request::List { .. }
            | Request::Find { .. }
            | Request::Counters { .. }
            | Request::Top { .. }
            | Request::Plans
            | Request::Unpoliced { .. }
            | Request::Import { dry_run: true, .. } => Access::Read,
            Request::Add { .. }
            | Request::Change { .. }
            | Request::Remove { .. }
            | Request::AddPlan { .. }
            | Request::ChangePlan { .. }
            | Request::RemovePlan { .. }
            | Request::Import { dry_run: false, .. }
            | Request::Lease { .. }
            | Request::Usage
            | Request::Revert { .. } => Access::Change,
        }
    }

    fn deadline(&self) -> Time {
        self.daemon.segments.deadline().map_or(self.tick_at, |at| at.min(self.tick_at))
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        let daemon = &mut self.daemon;
        if daemon.segments.deadline().is_some_and(|at| at <= now) {
            daemon.segments.handle_tick(now, &daemon.kernel);
        }
        if self.tick_at <= now {
            daemon.handle_tick(now);
            self.tick_at = now + TICK;
        }
        Ok(())
    }

    fn waits_for(&self) -> Vec<BorrowedFd<'_>> {
        let radius = self.daemon.radius.iter().flat_map(Radius::waits_for);
        radius.chain(self.daemon.clients.waits_for()).collect()
    }

    fn handle_ready(&mut self, now: Time) -> Result<(), Error> {
        self.daemon.handle_ready(now);
        Ok(())
    }

    fn handle_request(
        &mut self,
        request: Request,
        peer: Peer,
        now: Time,
        progress: &mut fairweir_daemon::Progress<'_>,
    ) -> Answer {
        let daemon = &mut self.daemon;
        let mut progress = |done, of| progress.show(done, of);
        match request {
            Request::List { plan, after, limit } => {
                let (plan, after) = (plan.as_deref(), after.as_deref());
                Answer::value(&report::list(daemon, plan, after, limit))
            }
            Request::Find { text } => answer(report::find(daemon, &text, now)),
            Request::Unpoliced { skip, silent } => {
                Answer::value(&report::unpoliced_page(daemon, skip, silent))
            }
            Request::Plans => {
                let plans = daemon.registry.plans().values();
                let plans: Vec<Value> = plans.map(|record| record.entry.to_json()).collect();
                Answer::value(&json!({ "plans": plans }))
            }
            Request::Counters { name } => {
                answer(report::subscriber(daemon, daemon.name_of(&name), now))
            }
            Request::Top { count } => {
                answer(daemon.meter.busiest(&daemon.kernel, &daemon.registry, count, now))
            }
            Request::Import { table, dry_run, skip_bad } => {
                let imported = daemon.import(&table, dry_run, skip_bad, &mut progress);
                log(peer, "import", imported.ok, &imported.message);
                Answer::value(&imported)
            }
            Request::Revert { names, all } => {
                outcome(peer, "revert", daemon.revert(&names, all, &mut progress))
            }
            Request::Add { subscriber } => {
                let changes = [Change::Add(subscriber)];
                outcome(peer, "add", daemon.change(&changes, &mut progress))
            }
            Request::Change { name, addresses, plan } => {
                let addresses = addresses.map(|a| a.0);
                let was = daemon.origin_of(&name);
                let changes = [Change::Alter { name: name.clone(), addresses, plan }];
                let done = daemon.change(&changes, &mut progress);
                let how_long = match (was, daemon.origin_of(&name)) {
                    (Some(Origin::Radius | Origin::Lease), Some(Origin::Api)) => {
                        format!(", permanently; `fairweir isp revert {name}` undoes it")
                    }
                    (Some(Origin::Radius), _) => ", until the session ends".to_owned(),
                    (Some(Origin::Lease), _) => ", until the lease ends".to_owned(),
                    _ => String::new(),
                };
                outcome_and(peer, "change", done, &how_long)
            }
            Request::Remove { name } => {
                outcome(peer, "remove", daemon.change(&[Change::Remove(name)], &mut progress))
            }
            Request::Lease { segment, generation, until_s, rates, keep } => {
                let Daemon { segments, kernel, .. } = daemon;
                let done = segments.lease(&segment, generation, until_s, &rates, keep, kernel);
                let done = done.map_err(|e| chained(&e));
                log(peer, "lease", done.is_ok(), done.as_ref().unwrap_or_else(|e| e));
                Answer::outcome(done)
            }
            Request::Usage => Answer::outcome(daemon.write_usage().map_err(|e| chained(&e))),
            Request::AddPlan { plan } => {
                let done = change_plan(daemon, &plan, Change::AddPlan, &mut progress);
                outcome(peer, "add a plan", done)
            }
            Request::ChangePlan { plan } => {
                let done = change_plan(daemon, &plan, Change::AlterPlan, &mut progress);
                outcome(peer, "change a plan", done)
            }
            Request::RemovePlan { name } => {
                let changes = [Change::RemovePlan(name)];
                outcome(peer, "remove a plan", daemon.change(&changes, &mut progress))
            }
        }
    }

    fn reload(
        &mut self,
        dry_run: bool,
        force: bool,
        _: Time,
        progress: &mut fairweir_daemon::Progress<'_>,
    ) -> Result<String, String> {
        let done = self.daemon.reload(dry_run, force, &mut |done, of| progress.show(done, of));
        let prefix = if dry_run { "dry run, nothing was changed: " } else { "" };
        let done = done.map(|effects| format!("{prefix}{}", in_words(&effects)));
        done.map_err(|e| chained(&e))
    }

    fn watched(&self) -> Watched {
        Watched { files: self.daemon.files(), dirs: Vec::new() }
    }

    fn status(&mut self, now: Time) -> Answer {
        Answer::value(&report::status(&self.daemon, now))
    }

    fn metrics(&mut self, top: usize, now: Time) -> Result<String, String> {
        report::metrics(&mut self.daemon, top, now).map_err(|e| chained(&e))
    }

    fn off(&mut self) -> Result<(), String> {
        self.daemon.open().map_err(|e| chained(&e))
    }

    fn end(&mut self) -> Result<(), String> {
        self.daemon.end().map_err(|e| chained(&e))
    }
}

/// Tells the daemon at `run_dir` to guarantee these downloads to members of a segment until a time.
///
/// # Errors
/// If no daemon answers within `patience`, or it refuses.
pub(crate) fn lease(
    run_dir: &Path,
    patience: Duration,
    segment: &str,
    (generation, until_s): (u64, u64),
    rates: impl Iterator<Item = (String, Rate)>,
) -> anyhow::Result<String> {
    let rate = |(name, rate): (String, Rate)| LeasedRate {
        name,
        download_bps: rate.as_bps(),
        upload_bps: 0,
    };
    let segment = segment.to_owned();
    let rates = rates.map(rate).collect();
    let request = Request::Lease { segment, generation, until_s, rates, keep: false };
    let mut client = Client::connect(run_dir, NAME, Access::Change, patience)?;
    Ok(client.tell(&request, &mut |_, _| ())?)
}

/// Makes the change of a plan that a request contains.
fn change_plan(
    daemon: &mut Daemon,
    plan: &Value,
    as_change: fn(PlanEntry) -> Change,
    progress: &mut daemon::Progress<'_>,
) -> anyhow::Result<Effects> {
    let plan = PlanEntry::from_json(plan).map_err(anyhow::Error::msg)?;
    daemon.change(&[as_change(plan)], progress)
}

/// The effects of a change, for the log and for the client.
fn outcome(peer: Peer, what: &str, done: anyhow::Result<Effects>) -> Answer {
    outcome_and(peer, what, done, "")
}

/// Like [`outcome`], with an additional text if something changed.
fn outcome_and(peer: Peer, what: &str, done: anyhow::Result<Effects>, more: &str) -> Answer {
    let in_words = |effects: Effects| {
        let more = if effects.is_empty() { "" } else { more };
        format!("{}{more}", in_words(&effects))
    };
    let done = done.map(in_words).map_err(|e| chained(&e));
    match &done {
        Ok(text) => log(peer, what, true, text),
        Err(e) => log(peer, what, false, e),
    }
    Answer::outcome(done)
}

fn answer(found: anyhow::Result<impl serde::Serialize>) -> Answer {
    match found {
        Ok(value) => Answer::value(&value),
        Err(e) => Answer::error(chained(&e)),
    }
}

fn log(peer: Peer, what: &str, ok: bool, message: &str) {
    let (uid, pid) = (peer.uid, peer.pid);
    let verdict = if ok { "" } else { " refused" };
    info!(uid, pid, "{what}{verdict}: {message}");
}

/// The effects of changes, in a few words.
fn in_words(effects: &Effects) -> String {
    if effects.is_empty() {
        return "nothing changed".to_owned();
    }
    let mut parts = Vec::new();
    let [added, changed, removed] = effects.counts();
    for (number, what) in [(added, "added"), (changed, "changed"), (removed, "removed")] {
        if number > 0 {
            parts.push(format!("{} {what}", count(number, "subscriber")));
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

/// The most changes that are listed; further ones are only counted.
const WORDS_MAX: usize = 8;

/// Writes to stdout.
fn say(text: &str) -> io::Result<()> {
    writeln!(text::stdout(), "{text}")
}
