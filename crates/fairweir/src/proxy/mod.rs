//! `fairweir proxy`: relays TCP connections of a LAN on its gateway, at the rates of their classes.
//!
//! A service of [`fairweir_daemon`] around [`fairweir_proxy::Proxy`], on the daemon's single
//! thread. The service waits for the proxy's `epoll`.
//!
//! | module | its job |
//! |---|---|
//! | [`daemon`] | the proxy, the diversion to it, the guard |
//! | [`devices`] | recognised properties of devices, for the status |
//! | [`guard`] | a process that removes the diversion if the daemon is killed or hangs |
//! | [`report`] | status, metrics, check, dry run, top |

use std::os::fd::BorrowedFd;

use fairweir_config::proxy::ProxyFile;
use fairweir_core::market::guarantee::Guarantee;
use fairweir_core::relay::Told;
use fairweir_core::units::Time;
use fairweir_daemon::{Access, Answer, Error, Peer, Progress, Service, Spec, Watched};
use fairweir_linux::monotonic_now;
use serde::Deserialize;
use tracing::info;

use crate::daemon_args::reload;
use crate::instance::PROXY;
use crate::words::chained;

pub(crate) mod cli;
mod daemon;
pub(crate) mod devices;
pub(crate) mod guard;
pub(crate) mod report;

pub(crate) use report::check;

use cli::{DaemonArgs, ProxyArgs, ProxyCommand};
use daemon::Daemon;

/// The longest request, in bytes: enough for all devices of a router, each with several addresses.
const REQUEST_MAX: usize = 128 << 10;

pub(crate) fn run(args: &ProxyArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(ProxyCommand::Status(args)) => report::print_status(args),
        Some(ProxyCommand::Top(args)) => report::top(args),
        Some(ProxyCommand::Reload(args)) => reload(PROXY, args),
        Some(ProxyCommand::Off(args)) => crate::off::one(args, PROXY),
        None if args.daemon.dry_run => report::dry_run(&args.daemon),
        None => serve(&args.daemon),
    }
}

/// Runs the daemon until it ends.
fn serve(args: &DaemonArgs) -> anyhow::Result<()> {
    let file = ProxyFile::load(&args.config)?;
    let spec = Spec { metrics: file.metrics, ..args.service.spec(PROXY, REQUEST_MAX)? };
    fairweir_daemon::run(&spec, |_| -> anyhow::Result<ProxyService> {
        let daemon = Daemon::start(&file, monotonic_now())?;
        info!(classes = file.classes.len(), apps = file.apps.len(), "connections are diverted");
        Ok(ProxyService { daemon })
    })
}

/// Requests other than status, reload, metrics and off.
#[derive(Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// The rate that is bought for a slot of the credit market, from the household's agent.
    Guarantee(Guarantee),
    /// The devices whose connections the router beside the proxy wants relayed.
    Relay(Told),
}

/// The daemon, as a service.
struct ProxyService {
    daemon: Daemon,
}

impl Service for ProxyService {
    type Request = Request;

    fn access_for(request: &Request) -> Access {
        match request {
            Request::Guarantee(_) | Request::Relay(_) => Access::Change,
        }
    }

    fn deadline(&self) -> Time {
        self.daemon.deadline()
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        self.daemon.handle_deadline(now).map_err(|e| Error::Refused(e.to_string()))
    }

    fn waits_for(&self) -> Vec<BorrowedFd<'_>> {
        self.daemon.waits_for().into_iter().collect()
    }

    fn handle_ready(&mut self, now: Time) -> Result<(), Error> {
        self.daemon.handle_ready(now).map_err(|e| Error::Refused(e.to_string()))
    }

    fn handle_request(
        &mut self,
        request: Request,
        _: Peer,
        now: Time,
        _: &mut Progress<'_>,
    ) -> Answer {
        Answer::outcome(match request {
            Request::Guarantee(told) => self.daemon.handle_guarantee(told, now),
            Request::Relay(told) => self.daemon.handle_told(told, now),
        })
    }

    fn reload(
        &mut self,
        dry_run: bool,
        _force: bool,
        now: Time,
        _: &mut Progress<'_>,
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
        self.daemon.end();
        Ok(())
    }
}
