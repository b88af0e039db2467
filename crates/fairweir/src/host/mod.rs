//! `fairweir host`: the daemon of the receiving host.
//!
//! One thread, woken by the clock every [`TICK`], and between the ticks by signals, changed files
//! and requests. What it does in a tick is in [`daemon`]; here is what is around it.

use std::io::Write;

use anyhow::{Context, bail};
use fairweir_core::receiver::TICK;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{Lock, link, monotonic_now};
use tracing::info;

use crate::cli::HostArgs;
use crate::client::socket_path;
use crate::config::nearest;
use crate::events::Events;
use crate::isp;
use crate::server::{Server, as_line};
use crate::status;
use crate::systemd;
use crate::text;
use crate::wire::{Outcome, Request, Status};

mod daemon;
mod delay;
pub(crate) mod guard;
mod memory;
mod report;
mod settings;
mod windows;

use daemon::{Daemon, next_tick};
use memory::Memory;
use settings::Settings;

/// Editors write a file in several steps; it is read once they are done.
const SETTLE: Span = Span::millis(200);

/// The longest request.
const REQUEST_MAX: usize = 1_024;

/// How often a dry run says what it would do.
const SAY_PERIOD: Span = Span::secs(1);

pub(crate) fn run(args: &HostArgs) -> anyhow::Result<()> {
    let settings = Settings::load(args)?;
    let dev = settings.dev.clone();
    check_exists(&dev)?;
    if dev == isp::NAME {
        bail!("`{dev}` is the name of the ISP's socket; give the interface another name");
    }
    let _lock = Lock::acquire(&dev)?;
    // Signals are blocked before the first thing that would have to be removed exists.
    let mut events = Events::new(Some(&settings.path), args.until_stdin_closes)
        .context("cannot listen to signals")?;
    let mut server = Server::bind(&socket_path(&args.run_dir.run_dir, &dev), REQUEST_MAX)?;
    let memory = Memory::new(&args.state_dir);
    let mut daemon = Daemon::start(settings, memory, args.remembered_capacity, monotonic_now())?;
    info!(dev, control = %daemon.settings.control(), "attached");
    for warning in &daemon.settings.config.warnings {
        tracing::warn!("configuration: {warning}");
    }
    systemd::notify("READY=1");
    let ran = Loop { args, daemon: &mut daemon, stop: false, reload_at: None }
        .run(&mut events, &mut server);
    systemd::notify("STOPPING=1");
    let ended = daemon.end();
    info!(dev, "detached");
    ran?;
    Ok(ended?)
}

/// A daemon and what it was asked.
struct Loop<'d> {
    args: &'d HostArgs,
    daemon: &'d mut Daemon,
    stop: bool,
    reload_at: Option<Time>,
}

impl Loop<'_> {
    fn run(mut self, events: &mut Events, server: &mut Server<Request>) -> anyhow::Result<()> {
        let mut tick_at = monotonic_now() + TICK;
        let mut say_at = tick_at;
        while !self.stop {
            let happened = events
                .wait(tick_at.since(monotonic_now()), server.waits_for())
                .context("cannot wait for events")?;
            let now = monotonic_now();
            self.stop |= happened.stop;
            if happened.reload {
                self.reload_at = Some(now);
            } else if happened.files {
                self.reload_at = Some(now + SETTLE);
            }
            if now >= tick_at {
                if self.reload_at.is_some_and(|at| now >= at) {
                    self.reload_at = None;
                    // It is logged and told in the status.
                    let _ = self.daemon.handle_reload(now);
                }
                self.daemon.handle_tick(now);
                tick_at = next_tick(tick_at, now);
            }
            server.serve(|request| self.answer(request, now));
            if self.args.dry_run && now >= say_at {
                self.say(now)?;
                say_at = now + SAY_PERIOD;
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: Request, now: Time) -> String {
        let outcome = match request {
            Request::Status => return as_line(&report::status(self.daemon, now)),
            Request::Reload => self.daemon.handle_reload(now),
            Request::Off => {
                self.stop = true;
                let ended = self.daemon.end().map_err(|e| e.to_string());
                ended.map(|()| "it removed everything and ends".to_owned())
            }
        };
        as_line(&match outcome {
            Ok(message) => Outcome { ok: true, message },
            Err(message) => Outcome { ok: false, message },
        })
    }

    /// What a dry run would do, on stdout.
    fn say(&self, now: Time) -> anyhow::Result<()> {
        let status: Status = report::status(self.daemon, now);
        let out = &mut text::stdout();
        if self.args.json {
            out.write_all(as_line(&status).as_bytes())?;
            return Ok(());
        }
        writeln!(out, "{}\n{}", status::headline(&status), status::last_reason(&status))?;
        status::print_groups(out, &status)?;
        writeln!(out)?;
        Ok(())
    }
}

/// There is an interface `dev`.
///
/// # Errors
/// If there is none: which there are.
pub(crate) fn check_exists(dev: &str) -> anyhow::Result<()> {
    let names: Vec<String> = link::all()?.into_iter().map(|link| link.name).collect();
    if names.iter().any(|name| name == dev) {
        return Ok(());
    }
    let near = nearest(dev, names.iter().map(String::as_str));
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    bail!("there is no interface `{dev}`{hint}; there are {}", names.join(", "))
}
