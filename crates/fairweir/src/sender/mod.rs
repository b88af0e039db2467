//! `fairweir sender`: bundles of connections that answer each other's congestion signals, so that
//! some of them hold a rate.
//!
//! A service of [`fairweir_daemon`]. The kernel decides at each signal. The daemon assigns
//! connections to bundles, measures their rates, and decides how much is delegated. However the
//! daemon ends, each connection then has its previous congestion control again.
//!
//! | module | its job |
//! |---|---|
//! | [`bundle`] | one bundle: its connections, its model |
//! | [`daemon`] | all bundles, and the kernel |
//! | [`lock`] | one daemon in a network namespace |
//! | [`lock`] | allows one daemon in a network namespace |
//! | `top` | the live view |

use fairweir_config::sender::SenderFile;
use fairweir_core::units::Time;
use fairweir_daemon::{Access, Answer, Error, Peer, Service, Spec, Watched};
use fairweir_linux::monotonic_now;
use serde::Deserialize;
use tracing::info;

use crate::daemon_args::reload;
use crate::words::{chained, count};

mod bundle;
pub(crate) mod cli;
mod daemon;
mod lock;
pub(crate) mod report;
#[cfg(feature = "top")]
mod top;

pub(crate) use report::check;

use cli::{DaemonArgs, SenderArgs, SenderCommand};
use daemon::Daemon;
use lock::NamespaceLock;

/// The name of the instance.
pub(crate) const NAME: &str = "sender";

const REQUEST_MAX: usize = 4_096;

pub(crate) fn run(args: &SenderArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(SenderCommand::Status(args)) => report::print_status(args),
        #[cfg(feature = "top")]
        Some(SenderCommand::Top(args)) => top::run(args),
        Some(SenderCommand::Reload(args)) => reload(NAME, args),
        Some(SenderCommand::Off(args)) => crate::off::one(args, NAME),
        None if args.daemon.dry_run => report::dry_run(&args.daemon),
        None => serve(&args.daemon),
    }
}

/// Runs the daemon until it ends.
fn serve(args: &DaemonArgs) -> anyhow::Result<()> {
    let file = SenderFile::load(&args.config)?;
    let spec = Spec { metrics: file.metrics, ..args.service.spec(NAME, REQUEST_MAX)? };
    fairweir_daemon::run(&spec, |_| -> anyhow::Result<SenderService> {
        let lock = NamespaceLock::acquire()?;
        let daemon = Daemon::start(&file, monotonic_now())?;
        info!("{} in force", count(daemon.bundles.len(), "bundle"));
        Ok(SenderService { daemon, lock })
    })
}

/// Requests specific to this daemon: it has only the common ones.
#[derive(Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {}

/// The daemon, as a service.
struct SenderService {
    daemon: Daemon,
    lock: Option<NamespaceLock>,
}

impl Service for SenderService {
    type Request = Request;

    fn access_for(request: &Request) -> Access {
        match *request {}
    }

    fn deadline(&self) -> Time {
        self.daemon.tick_at
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        self.daemon.handle_tick(now);
        if let Some(lock) = &self.lock {
            lock.handle_tick();
        }
        Ok(())
    }

    fn handle_request(
        &mut self,
        request: Request,
        _: Peer,
        _: Time,
        _: &mut fairweir_daemon::Progress<'_>,
    ) -> Answer {
        match request {}
    }

    fn reload(
        &mut self,
        dry_run: bool,
        _force: bool,
        now: Time,
        _: &mut fairweir_daemon::Progress<'_>,
    ) -> Result<String, String> {
        self.daemon.reload(dry_run, now).map_err(|e| chained(&e))
    }

    fn watched(&self) -> Watched {
        Watched { files: vec![self.daemon.file.path.clone()], dirs: Vec::new() }
    }

    fn status(&mut self, now: Time) -> Answer {
        Answer::value(&report::status(&self.daemon, now))
    }

    fn metrics(&mut self, _: usize, _: Time) -> Result<String, String> {
        Ok(report::metrics(&self.daemon))
    }

    fn end(&mut self) -> Result<(), String> {
        self.daemon.end().map_err(|e| chained(&e))
    }
}
