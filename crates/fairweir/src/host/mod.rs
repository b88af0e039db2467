//! `fairweir host` and `fairweir router`: the daemon that shares a download by weight, as a service
//! of [`fairweir_daemon`].
//!
//! Both run the same control. They differ in what they attach to the kernel ([`point`]). The work
//! of a tick is in [`daemon`]; this module implements the service.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use fairweir_core::receiver::TICK;
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{
    Access, Answer, Error, Metrics, Peer, Progress, Service, Spec, StateDir, Watched,
};
use fairweir_linux::{boottime_now, monotonic_now};
use nix::sys::signal::{Signal, raise};
use tracing::info;

use crate::daemon_args::OffDevArgs;
use crate::device::check_exists;
use fairweir_config::host::Role;
use fairweir_config::text;

mod calendar;
mod claims;
pub(crate) mod cli;
pub(crate) mod client;
mod daemon;
mod delay;
mod devices;
mod divided;
mod divider;
pub(crate) mod guard;
mod kept;
mod leases;
mod memory;
mod naming;
mod peers;
mod point;
pub(crate) mod reload;
mod report;
pub(crate) mod set;
mod settings;
pub(crate) mod show;
mod sites;
pub(crate) mod status;
pub(crate) mod stored;
mod timed;
pub(crate) mod timing;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod trial;
mod upload;
mod via;
pub(crate) mod who;
mod windows;
pub(crate) mod wire;

use calendar::QuotaFile;
use cli::{HostArgs, HostCommand, LoopArgs, RouterArgs, RouterCommand};
use daemon::{Daemon, next_tick};
use devices::DeviceControl;
use kept::KeptFile;
use leases::LeaseControl;
use memory::Memories;
use settings::Settings;
use timed::TimedFile;
use via::Teller;
use wire::{GroupStatus, HostRequest, QuotaStatus, Status, TimedChange, UploadStatus};

/// The longest request, in bytes.
const REQUEST_MAX: usize = 1_024;

/// How often a dry run prints its decisions.
const SAY_PERIOD: Span = Span::secs(1);

/// The prefixes of this service's instance names.
const PREFIXES: [&str; 2] = [Role::Host.prefix(), Role::Router.prefix()];

/// `fairweir off` for the daemons of a role.
type Off = fn(Role, &OffDevArgs) -> anyhow::Result<()>;

pub(crate) fn run(args: &HostArgs, off: Off) -> anyhow::Result<()> {
    if let Some(command) = &args.command {
        return ask(Role::Host, command, off);
    }
    let settings = Settings::load(Role::Host, &args.config, args.dev.as_deref(), &args.run)?;
    serve(settings, &args.state_dir, &args.run)
}

pub(crate) fn run_router(args: &RouterArgs, off: Off) -> anyhow::Result<()> {
    match &args.command {
        Some(RouterCommand::Common(command)) => return ask(Role::Router, command, off),
        Some(RouterCommand::Devices(args)) => return who::run(args),
        None => {}
    }
    let settings = Settings::load(Role::Router, &args.config, None, &args.run)?;
    serve(settings, &args.state_dir, &args.run)
}

fn ask(role: Role, command: &HostCommand, off: Off) -> anyhow::Result<()> {
    match command {
        HostCommand::Status(args) => status::run(Some(role), args),
        #[cfg(feature = "top")]
        HostCommand::Top(args) => top::run(Some(role), args),
        HostCommand::Reload(args) => reload::run(Some(role), args),
        HostCommand::Set(args) => set::run(Some(role), args),
        HostCommand::Boost(args) => timing::boost(Some(role), args),
        HostCommand::Pause(args) => timing::pause(Some(role), args),
        HostCommand::ResetQuota(args) => timing::reset_quota(Some(role), args),
        HostCommand::Try(args) => trial::run(role, args),
        HostCommand::Test(args) => trial::test(role, args),
        HostCommand::Off(args) => off(role, args),
    }
}

fn serve(settings: Settings, state_dir: &Path, args: &LoopArgs) -> anyhow::Result<()> {
    let dev = settings.dev.clone();
    let devices: Vec<String> = settings.devices().map(str::to_owned).collect();
    if let Some(dev) = settings.missing() {
        check_exists(dev)?;
    }
    let name = format!("{}{dev}", settings.role.prefix());
    let spec = Spec {
        devices,
        metrics: settings.config.host.metrics,
        ..args.service.spec(name, REQUEST_MAX)?
    };
    let needed = Span::secs(args.confirmed_after_s);
    let memories = Memories::new(&StateDir::new(state_dir), args.dry_run, needed);
    let leases = settings
        .lans()
        .first()
        .map(|lan| LeaseControl::new(StateDir::new(state_dir), lan, args.dry_run, monotonic_now()));
    fairweir_daemon::run(&spec, |_| -> anyhow::Result<HostService> {
        let told = args.remembered_capacity;
        let is_router = settings.role == Role::Router && !args.dry_run;
        let teller = is_router.then(|| Teller::start(&spec.run_dir)).transpose()?;
        let kept = (!args.dry_run).then(|| KeptFile::new(&spec.run_dir, &spec.name));
        let timed = (!args.dry_run).then(|| TimedFile::new(StateDir::new(state_dir), &spec.name));
        let quotas = (!args.dry_run).then(|| QuotaFile::new(StateDir::new(state_dir), &spec.name));
        let files = (kept, timed, quotas);
        let daemon = Daemon::start(settings, (memories, leases, teller), files, told)?;
        info!(dev, control = %daemon.settings.control(), "attached");
        for warning in &daemon.settings.config.warnings {
            tracing::warn!("configuration: {warning}");
        }
        let tick_at = monotonic_now() + TICK;
        let say = args.dry_run.then_some(Say { as_json: args.json, at: tick_at });
        let ends_at = args.exit_after.map(|span| boottime_now() + span);
        Ok(HostService { daemon, tick_at, say, ends_at })
    })
}

/// The most connections in one reply.
const CONNECTIONS_SHOWN_MAX: usize = 1_000;

struct HostService {
    daemon: Daemon,
    tick_at: Time,
    say: Option<Say>,
    /// When `--exit-after` ends the daemon, by CLOCK_BOOTTIME.
    ends_at: Option<Time>,
}

/// How a dry run prints its decisions, and when it does next.
struct Say {
    as_json: bool,
    at: Time,
}

impl Service for HostService {
    type Request = HostRequest;

    const TAKES_CLAIMS: bool = true;

    fn access_for(request: &HostRequest) -> Access {
        match request {
            HostRequest::Claims(_) => Access::Claim,
            HostRequest::Connections { .. } | HostRequest::Neighbours => Access::Read,
            HostRequest::Set { .. }
            | HostRequest::Timed { .. }
            | HostRequest::EndTimed { .. }
            | HostRequest::ResetQuota { .. }
            | HostRequest::Open { .. }
            | HostRequest::Guarantee(_) => Access::Change,
        }
    }

    fn deadline(&self) -> Time {
        let leases = self.daemon.leases.as_ref().and_then(LeaseControl::deadline);
        // Without the interface there is nothing to read, so a pause would never end.
        let pauses = match self.daemon.host {
            Some(_) => [self.daemon.sites.deadline(), leases],
            None => [None; 2],
        };
        pauses.into_iter().flatten().fold(self.tick_at, Time::min)
    }

    fn waits_for(&self) -> Vec<BorrowedFd<'_>> {
        let Some(point) = &self.daemon.host else { return Vec::new() };
        let sites = self.daemon.sites.waits_for(point);
        let leases = || {
            let (router, leases) = (point.as_router()?, self.daemon.leases.as_ref()?);
            leases.waits_for(router)
        };
        let devices = self.daemon.devices.as_ref().and_then(DeviceControl::waits_for);
        sites.into_iter().chain(leases()).chain(devices).collect()
    }

    fn handle_ready(&mut self, now: Time) -> Result<(), Error> {
        self.daemon.listen(now);
        self.daemon.answer_devices(now);
        Ok(())
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        if now < self.tick_at {
            return self.handle_ready(now);
        }
        if self.ends_at.is_some_and(|at| boottime_now() >= at) {
            info!("the time is over");
            // A signal to this process: the daemon then ends as with `kill`.
            raise(Signal::SIGTERM).map_err(|e| Error::io("end", e.into()))?;
            self.ends_at = None;
        }
        self.daemon.handle_tick(now);
        self.tick_at = next_tick(self.tick_at, now);
        if let Some(say) = self.say.as_mut().filter(|say| now >= say.at) {
            say.at = now + SAY_PERIOD;
            let status = report::status(&self.daemon, now);
            say.print(&status).map_err(|e| Error::io("print the status", e))?;
        }
        Ok(())
    }

    fn handle_request(
        &mut self,
        request: HostRequest,
        peer: Peer,
        now: Time,
        _: &mut Progress<'_>,
    ) -> Answer {
        match request {
            HostRequest::Set { changes } => match self.daemon.handle_set(&changes, now) {
                Ok(changed) => {
                    info!(uid = peer.uid, pid = peer.pid, "{}", changed.message);
                    Answer::value(&changed)
                }
                Err(e) => Answer::error(e),
            },
            HostRequest::Timed { group, change, for_s } => {
                let change = Some((change, Span::secs(for_s.min(u64::from(u32::MAX)))));
                self.answer_timed(&group, change, peer, now)
            }
            HostRequest::EndTimed { group } => self.answer_timed(&group, None, peer, now),
            HostRequest::ResetQuota { group } => {
                let outcome = self.daemon.handle_reset_quota(&group, now);
                if let Ok(words) = &outcome {
                    info!(uid = peer.uid, pid = peer.pid, "{words}");
                }
                Answer::outcome(outcome)
            }
            HostRequest::Guarantee(told) => {
                Answer::outcome(self.daemon.handle_guarantee(told, now))
            }
            HostRequest::Claims(request) => {
                Answer::value(&self.daemon.handle_claims(peer.uid, &request, now))
            }
            HostRequest::Open { for_s } => {
                let span = Span::secs(for_s.min(u64::from(u32::MAX)));
                Answer::outcome(self.daemon.handle_open(span, now))
            }
            HostRequest::Neighbours => Answer::value(&self.daemon.neighbours(now)),
            HostRequest::Connections { limit } => {
                let with_names = peer.access == Access::Change;
                let limit = limit.min(CONNECTIONS_SHOWN_MAX);
                Answer::value(&report::connections(&self.daemon, limit, with_names))
            }
        }
    }

    fn handle_malformed(&mut self, peer: Peer) {
        if peer.access == Access::Claim {
            self.daemon.sites.handle_malformed();
        }
    }

    fn reload(
        &mut self,
        dry_run: bool,
        _force: bool,
        now: Time,
        _: &mut Progress<'_>,
    ) -> Result<String, String> {
        self.daemon.handle_reload(dry_run, now)
    }

    fn watched(&self) -> Watched {
        let Settings { path, role, .. } = &self.daemon.settings;
        let dirs = vec![role.conf_d(path)];
        Watched { files: vec![path.clone()], dirs }
    }

    fn status(&mut self, now: Time) -> Answer {
        Answer::value(&report::status(&self.daemon, now))
    }

    fn metrics(&mut self, _: usize, now: Time) -> Result<String, String> {
        Ok(metrics(&report::status(&self.daemon, now)))
    }

    fn end(&mut self) -> Result<(), String> {
        self.daemon.end().map_err(|e| e.to_string())
    }
}

impl HostService {
    fn answer_timed(
        &mut self,
        group: &str,
        change: Option<(TimedChange, Span)>,
        peer: Peer,
        now: Time,
    ) -> Answer {
        let outcome = self.daemon.handle_timed(group, change, now);
        if let Ok(words) = &outcome {
            info!(uid = peer.uid, pid = peer.pid, "{words}");
        }
        Answer::outcome(outcome)
    }
}

impl Say {
    fn print(&self, status: &Status) -> io::Result<()> {
        let out = &mut text::stdout();
        if self.as_json {
            return out.write_all(fairweir_daemon::as_line(status).as_bytes());
        }
        writeln!(out, "{}\n{}", show::headline(status), show::last_reason(status))?;
        show::print_groups(out, status)?;
        if let Some(upload) = &status.upload {
            writeln!(out, "upload: {}", show::upload_note(upload, status.dry_run))?;
        }
        writeln!(out)
    }
}

fn upload_metrics(metrics: &mut Metrics, dev: (&str, &str), upload: &UploadStatus) {
    metrics.gauge("fairweir_upload_up", "Whether uploads are shaped (1) or pass unshaped (0).");
    metrics.sample(&[dev], u64::from(upload.enforcing));
    for (name, help, value) in [
        (
            "fairweir_upload_capacity_bytes_per_second",
            "Capacity of the uplink.",
            upload.capacity_bps,
        ),
        ("fairweir_upload_limit_bytes_per_second", "What may leave.", upload.limit_bps),
    ] {
        if let Some(value) = value {
            metrics.gauge(name, help);
            metrics.sample(&[dev], value.as_bps() / 8);
        }
    }
    metrics.counter("fairweir_group_upload_bytes", "L2 bytes to be sent, before the class.");
    for group in &upload.groups {
        metrics.sample(&[dev, ("group", &group.name)], group.offered_bytes.as_u64());
    }
    metrics.counter("fairweir_group_upload_dropped_packets", "Packets that its class dropped.");
    for group in &upload.groups {
        metrics.sample(&[dev, ("group", &group.name)], group.drops);
    }
}

fn quota_metrics(metrics: &mut Metrics, dev: (&str, &str), groups: &[GroupStatus]) {
    type Of = fn(&QuotaStatus) -> u64;
    let gauges: [(&str, &str, Of); 2] = [
        ("fairweir_group_quota_bytes", "What a group may receive in a period.", |quota| {
            quota.amount_bytes.as_u64()
        }),
        ("fairweir_group_quota_used_bytes", "What it received in this one.", |quota| {
            quota.used_bytes.as_u64()
        }),
    ];
    let plans = show::plans(groups);
    let quotas = || plans.iter().filter_map(|(name, plan)| Some((name, plan.quota.as_ref()?)));
    for (name, help, of) in gauges.into_iter().filter(|_| quotas().next().is_some()) {
        metrics.gauge(name, help);
        for (group, quota) in quotas() {
            let per = ("per", quota.per.name());
            metrics.sample(&[dev, ("group", group), per], of(quota));
        }
    }
}

/// The status as OpenMetrics text.
fn metrics(status: &Status) -> String {
    let mut metrics = Metrics::default();
    let dev = ("interface", status.dev.as_str());
    metrics.gauge("fairweir_up", "Whether downloads are shaped (1) or pass unshaped (0).");
    metrics.sample(&[dev], u64::from(status.enforcing));
    if let Some(capacity) = status.capacity_bps {
        metrics.gauge("fairweir_capacity_bytes_per_second", "Estimated capacity of the link.");
        metrics.sample(&[dev], capacity.as_bps() / 8);
    }
    if let Some(delay) = &status.delay {
        let help = "Mean delay that the queue of the access link adds.";
        metrics.gauge("fairweir_queue_delay_seconds", help);
        metrics.sample(&[dev], delay.mean_ms / 1e3);
    }
    if let Some(upload) = &status.upload {
        upload_metrics(&mut metrics, dev, upload);
    }
    metrics.gauge("fairweir_connections", "TCP connections that receive.");
    metrics.sample(&[dev], status.connections);
    if let Some(sites) = &status.sites {
        let help = "Connections whose host is known, by what told it.";
        metrics.counter("fairweir_connections_by_evidence", help);
        for (evidence, count) in sites.by_evidence() {
            metrics.sample(&[dev, ("evidence", evidence)], count);
        }
    }
    type Of = fn(&GroupStatus) -> u64;
    let gauges: [(&str, &str, Of); 4] = [
        ("fairweir_group_weight", "Weight of a flow group.", |g| g.weight.as_u32().into()),
        ("fairweir_group_rate_bytes_per_second", "Rate of a flow group.", |g| {
            g.decision.rate.as_bps() / 8
        }),
        ("fairweir_group_share_bytes_per_second", "Fair share of a flow group.", |g| {
            g.decision.share.as_bps() / 8
        }),
        ("fairweir_group_backlog_bytes", "Bytes that wait in its class.", |g| {
            g.backlog_bytes.as_u64()
        }),
    ];
    for (name, help, of) in gauges {
        metrics.gauge(name, help);
        for group in &status.groups {
            metrics.sample(&[dev, ("group", &group.name)], of(group));
        }
    }
    quota_metrics(&mut metrics, dev, &status.groups);
    let counters: [(&str, &str, Of); 2] = [
        ("fairweir_group_received_bytes", "L2 bytes that arrived.", |g| g.received_bytes.as_u64()),
        ("fairweir_group_dropped_packets", "Packets that its class dropped.", |g| g.drops),
    ];
    for (name, help, of) in counters {
        metrics.counter(name, help);
        for group in &status.groups {
            metrics.sample(&[dev, ("group", &group.name)], of(group));
        }
    }
    metrics.finish()
}
