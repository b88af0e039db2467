//! The daemon's state machine: in every tick, from the traffic that arrived to the rate of each class.
//!
//! Invariant: whenever the daemon is unsure of the kernel's state, everything passes unshaped. It reports that, and
//! recovers by itself: if its own parts broke, after a pause (see [`FailOpen`]); if the device disappeared, as soon as
//! it is there again.

use std::collections::VecDeque;

use fairweir_config::did_you_mean;
use fairweir_config::host::Role;
use fairweir_config::host::set::{self, Changes};
use fairweir_core::market::guarantee::{Guarantee, Step, Term};
use fairweir_core::receiver::{Act, Control, ControlLoop, Decision, Observation, TICK};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_daemon::StateDir;
use fairweir_linux::probe::ProbeSpec;
use fairweir_linux::{
    Error, Health, Mode, Router, UploadSample, boottime_now, link, monotonic_now, network,
};
use tracing::{Level, debug, info, trace, warn};

use super::calendar::{QuotaFile, Quotas};
use super::delay::Delay;
use super::devices::{DeviceControl, Home};
use super::divided::DeviceClasses;
use super::divider::DividerControl;
use super::kept::KeptFile;
use super::leases::LeaseControl;
use super::memory::Memories;
use super::peers::PeersControl;
use super::point::Point;
use super::settings::Settings;
use super::sites::SiteControl;
use super::stored::put;
use super::timed::{LENGTH_MAX, LENGTH_MIN, TimedChanges, TimedFile};
use super::upload::Upload;
use super::via::{self, Teller};
use super::windows::WindowControl;
use super::wire::{
    CLAIMS_VERSION, Change, Changed, ClaimsReply, ClaimsRequest, GroupRate, Neighbours, Remembered,
    TimedChange, TimedStatus,
};
use crate::words::{chained, lasting};

/// The most earlier changes in the status.
const CHANGES_MAX: usize = 50;

/// How long everything passes unshaped after a first failure, whose cause may still be there.
const PAUSE_MIN: Span = Span::secs(10);

/// The longest pause; pauses double with every failure up to it.
const PAUSE_MAX: Span = Span::secs(300);

/// If this time passes without a failure, the next failure counts as a first one again.
const PAUSE_FORGOTTEN: Span = Span::secs(600);

/// The longest time for which everything may pass for a comparison, and the reason that is shown meanwhile.
const OPEN_MAX: Span = Span::secs(60);
const COMPARED: &str = "`try` or `test` compares with how it is without control";

/// How often to look for a device that disappeared, once attaching to it has failed.
const RETURN_PAUSE: Span = Span::secs(1);

/// How often the network is identified and the capacity stored.
const NETWORK_PERIOD: Span = Span::secs(10);
/// The same while the network is unknown: the kernel learns the gateway from the first packet to it.
const NETWORK_SOON: Span = Span::secs(1);

/// `RUST_LOG=tick=trace` logs every tick.
const TICK_LOG: &str = "tick";

/// The daemon; see the module.
pub(super) struct Daemon {
    pub(super) settings: Settings,
    pub(super) control: ControlLoop,
    /// `None` while the device is gone.
    pub(super) host: Option<Point>,
    /// Set while everything passes because something broke.
    pub(super) fail_open: Option<FailOpen>,
    /// The upload, if it is shared.
    pub(super) upload: Option<Upload>,
    /// Connections whose receive windows are bounded.
    pub(super) windows: WindowControl,
    /// Which connections belong to which site.
    pub(super) sites: SiteControl,
    /// Keeps what is known about connections for the next daemon; `None` in a dry run.
    kept: Option<KeptFile>,
    /// The file of temporary changes of groups; `None` in a dry run.
    timed: Option<TimedFile>,
    /// The usage of quotas.
    pub(super) quotas: Quotas,
    /// The names of devices, on a router.
    pub(super) leases: Option<LeaseControl>,
    /// The last acts other than `measure`, oldest first.
    pub(super) changes: VecDeque<Change>,
    act_noted: Option<Act>,
    pub(super) started: Time,
    /// Differs after each start.
    pub(super) run: String,
    pub(super) network: Option<String>,
    /// The interface through which the network was identified.
    network_dev: String,
    pub(super) remembered: Option<Remembered>,
    pub(super) config_error: Option<String>,
    pub(super) delay: Delay,
    /// Asks another host or router to divide.
    pub(super) divider: DividerControl,
    /// Divides the link with other hosts.
    pub(super) peers: PeersControl,
    /// Agreements with devices that ask how to be divided, on a router.
    pub(super) devices: Option<DeviceControl>,
    /// The rate that is bought for the current slot of the credit market.
    pub(super) guarantee: Term,
    /// Tells the proxy which devices to relay; only on a router.
    teller: Option<Teller>,
    memories: Memories,
    told_capacity: Option<Rate>,
    pause: Span,
    failed_at: Time,
    network_at: Time,
    enforced: bool,
}

/// Logs the measurements and decisions of a tick, as JSON with which a run can be replayed.
fn log_tick(observation: &Observation, decision: &Decision) {
    if !tracing::enabled!(target: TICK_LOG, Level::TRACE) {
        return;
    }
    let json = |value: serde_json::Result<String>| value.unwrap_or_else(|e| e.to_string());
    let (seen, decided) = (serde_json::to_string(observation), serde_json::to_string(decision));
    trace!(target: TICK_LOG, "{{\"observation\":{},\"decision\":{}}}", json(seen), json(decided));
}

/// Everything passes unshaped until the next attempt.
#[derive(Clone, Debug)]
pub(super) struct FailOpen {
    pub(super) reason: String,
    pub(super) retry_at: Time,
}

impl Daemon {
    /// Removes what a killed daemon left at the device, and attaches.
    ///
    /// # Errors
    /// If the device or the kernel refuses.
    pub(super) fn start(
        mut settings: Settings,
        (memories, leases, teller): (Memories, Option<LeaseControl>, Option<Teller>),
        (kept, timed, quotas): (Option<KeptFile>, Option<TimedFile>, Option<QuotaFile>),
        told_capacity: Option<Rate>,
    ) -> anyhow::Result<Daemon> {
        if let Some(file) = &timed {
            settings = settings.continued(file);
        }
        let mut quotas = Quotas::start(quotas);
        let (moment, used_up) = quotas.handle_clock(&settings.configured.plans);
        if let Some(new) = settings.with_calendar(moment, &used_up) {
            settings = new?;
        }
        let mut host = Point::attach(&settings)?;
        let connections = kept.as_ref().and_then(KeptFile::take);
        let devices = settings.lans().first().map(|_| DeviceControl::new()).transpose()?;
        // Packets are counted from here on.
        let now = monotonic_now();
        settings.lacks_windows = !host.has_windows();
        let groups = settings.policy().groups().len();
        let mut daemon = Daemon {
            control: ControlLoop::new(settings.controller(told_capacity)?, groups, now),
            sites: SiteControl::new(&mut host, settings.policy(), connections)?,
            kept,
            timed,
            quotas,
            leases,
            upload: Upload::of(&settings),
            settings,
            host: Some(host),
            fail_open: None,
            windows: WindowControl::default(),
            changes: VecDeque::new(),
            act_noted: None,
            started: now,
            run: crate::instance::new_run(),
            network: None,
            network_dev: String::new(),
            remembered: None,
            config_error: None,
            delay: Delay::default(),
            divider: DividerControl::default(),
            peers: PeersControl::default(),
            devices,
            guarantee: Term::default(),
            teller,
            memories,
            told_capacity,
            pause: PAUSE_MIN,
            failed_at: Time::ZERO,
            network_at: Time::ZERO,
            enforced: false,
        };
        daemon.network_dev = daemon.link_dev().to_owned();
        daemon.windows.set_swept(daemon.settings.with_classes().map(str::to_owned).collect());
        daemon.windows.set_relayed(&daemon.settings.config);
        daemon.recognise_network(now)?;
        daemon.enforce(now);
        Ok(daemon)
    }

    /// Whether downloads are shaped now.
    pub(super) fn enforces(&self) -> bool {
        self.host.is_some()
            && self.fail_open.is_none()
            && self.control.is_enforcing()
            && self.settings.mode() == Mode::Shape
    }

    /// One tick.
    pub(super) fn handle_tick(&mut self, now: Time) {
        match &mut self.host {
            None => self.look_for_device(now),
            Some(host) => match host.health() {
                Health::Well => {}
                Health::Broken { what } => self.open(now, what),
                Health::DeviceGone => self.lose_device(now),
            },
        }
        if self.fail_open.as_ref().is_some_and(|o| self.host.is_some() && now >= o.retry_at) {
            self.repair(now);
        }
        if let Some(step) = self.guarantee.handle_tick(now) {
            self.follow_guarantee(&step, now);
        }
        self.end_timed(now);
        self.follow_calendar(now);
        self.listen(now);
        self.with_devices(|devices, daemon| devices.handle_tick(daemon, now));
        let probe = self.settings.probe().filter(|_| self.host.is_some());
        let probe = probe.map(|probe| ProbeSpec { dev: self.link_dev().to_owned(), ..probe });
        self.delay.follow(probe, now);
        self.observe(now);
        self.tell_proxy(now);
        if now >= self.network_at
            && let Err(e) = self.recognise_network(now)
        {
            warn!("cannot restart the control: {e}");
        }
        if let Some(leases) = &mut self.leases {
            leases.store(now, false);
        }
        self.store_capacity(now, false);
        if self.enforces() != self.enforced {
            self.enforced = self.enforces();
            info!(dev = self.settings.dev, enforcing = self.enforced, "enforcement changed");
        }
    }

    /// The interface of the access link.
    pub(super) fn link_dev(&self) -> &str {
        let router = self.host.as_ref().and_then(Point::as_router);
        router.map_or(&self.settings.dev, Router::carrier)
    }

    /// Reads which connections have opened, and to which hosts; on a router also which devices have
    /// which names.
    pub(super) fn listen(&mut self, now: Time) {
        if let Some(leases) = &mut self.leases
            && let Some(router) = self.host.as_mut().and_then(Point::as_router_mut)
            && let Err(e) = leases.listen(router, self.settings.policy(), now)
        {
            self.open(now, e.to_string());
        }
        let Some(point) = &mut self.host else { return };
        if let Err(e) = self.sites.listen(point, now) {
            self.open(now, e.to_string());
        }
    }

    /// Answers the devices that ask to be divided.
    pub(super) fn answer_devices(&mut self, now: Time) {
        self.with_devices(|devices, daemon| devices.handle_ready(daemon, now));
    }

    /// The devices behind the router.
    pub(super) fn neighbours(&mut self, now: Time) -> Neighbours {
        let mut neighbours = Vec::new();
        self.with_devices(|devices, daemon| neighbours = devices.neighbours(daemon, now));
        for status in &mut neighbours {
            let lease = self.leases.as_ref().and_then(|leases| leases.lease(status.mac, now));
            if let Some((name, since)) = lease {
                status.dhcp_name = Some(name.to_owned());
                status.since_s = status.since_s.max(now.since(since).as_secs_f64() as u64);
            }
        }
        // Absolute paths, because the client may have another working directory.
        let files = self.settings.config.files.iter();
        let files = files.filter_map(|file| std::path::absolute(file).ok()).collect();
        Neighbours { files, neighbours }
    }

    fn with_devices(&mut self, work: impl FnOnce(&mut DeviceControl, &mut Daemon)) {
        if let Some(mut devices) = self.devices.take() {
            work(&mut devices, self);
            self.devices = Some(devices);
        }
    }

    /// Handles a message of a user's browser extension; returns the reply.
    pub(super) fn handle_claims(
        &mut self,
        user: u32,
        request: &ClaimsRequest,
        now: Time,
    ) -> ClaimsReply {
        let policy = self.settings.policy();
        if let Some(point @ Point::Host(_)) = &mut self.host
            && let Err(e) = self.sites.handle_claims(user, request, policy, point)
        {
            self.open(now, e.to_string());
        }
        let generation = self.sites.generation();
        let is_known = request.generation == Some(generation);
        let config = (!is_known).then(|| self.sites.claims_config(self.settings.policy()));
        ClaimsReply { version: CLAIMS_VERSION, generation, config, rates: self.rates() }
    }

    /// The present rate of each group.
    fn rates(&self) -> Vec<GroupRate> {
        let decided = &self.control.decision().groups;
        let totals = self.control.totals().iter().enumerate();
        let rate = totals.map(|(i, totals)| {
            let decision = decided.get(i).copied().unwrap_or_default();
            GroupRate { rate_bps: totals.rate, share_bps: decision.share, state: decision.state }
        });
        rate.collect()
    }

    /// An act in words. An act has a group's index; people know the group by name.
    pub(super) fn reason(&self, act: &Act) -> String {
        if let (Act::Hold, Some(bound)) = (act, self.guarantee.bound()) {
            return format!("hold: held to {bound} by the market");
        }
        let group = match *act {
            Act::Reclaim { group } | Act::Lend { group } | Act::Raise { group, .. } => {
                self.settings.policy().groups().get(group)
            }
            _ => None,
        };
        group.map_or_else(|| act.to_string(), |g| format!("{act} ({})", g.name))
    }

    /// Applies the rate that is bought for a slot of the credit market.
    ///
    /// # Errors
    /// The reason why it is refused; nothing has changed then.
    pub(super) fn handle_guarantee(
        &mut self,
        told: Guarantee,
        now: Time,
    ) -> Result<String, String> {
        let control = self.settings.control();
        if control != Control::Fairweir {
            return Err(format!(
                "the control `{control}` follows no guarantee; only `fairweir` does"
            ));
        }
        if let Some(step) = self.guarantee.handle(told, now)? {
            self.follow_guarantee(&step, now);
        }
        let Guarantee { rate_bps: rate, for_ms, hold, .. } = told;
        Ok(match hold {
            true => format!("held to {rate} for {for_ms} ms"),
            false => format!("{rate} is guaranteed for {for_ms} ms"),
        })
    }

    fn follow_guarantee(&mut self, step: &Step, now: Time) {
        let words = |rate: Option<Rate>| rate.map_or("nothing".to_owned(), |rate| rate.to_string());
        info!(
            dev = self.settings.dev,
            bound = words(self.guarantee.bound()),
            "{} is guaranteed, before {}",
            words(step.to),
            words(step.from)
        );
        self.control.handle_guarantee(step, now);
        self.enforce(now);
    }

    /// Reads the configuration again and applies the differences; one with mistakes changes nothing.
    ///
    /// # Errors
    /// The reason why the old one stays in force; it is also kept for the status.
    pub(super) fn handle_reload(&mut self, dry_run: bool, now: Time) -> Result<String, String> {
        let new = self.settings.reload();
        if dry_run {
            return match new {
                Ok(new) if new.config == self.settings.config => Ok("nothing would change".into()),
                Ok(_) => Ok("the configuration is valid and would be taken over".into()),
                Err(e) => Err(chained(&e)),
            };
        }
        let outcome = new.and_then(|new| self.take_over(new, now)).map_err(|e| chained(&e));
        self.config_error = outcome.as_ref().err().cloned();
        outcome.map(str::to_owned)
    }

    /// Writes values to the file of `[set]`, and applies them; on an error the old file is kept.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub(super) fn handle_set(&mut self, changes: &Changes, now: Time) -> Result<Changed, String> {
        for (key, value) in changes {
            if let (Some(name), Some(_)) = (key.strip_prefix("weight."), value)
                && self.settings.weight_of(name).is_none()
            {
                let groups = self.settings.configured.policy.groups();
                let names = groups.iter().map(|g| g.name.as_str());
                return Err(format!("no group `{name}`{}", did_you_mean(name, names)));
            }
        }
        let dir = StateDir::new(&self.settings.role.conf_d(&self.settings.path));
        put(&dir, changes, set::path_of, || self.handle_reload(false, now).map(drop))
    }

    /// Changes a group temporarily, or ends such a change; an error changes nothing.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub(super) fn handle_timed(
        &mut self,
        path: &str,
        change: Option<(TimedChange, Span)>,
        now: Time,
    ) -> Result<String, String> {
        let Some(configured) = self.settings.weight_of(path) else {
            let names = self.settings.policy().groups().iter().map(|g| g.name.as_str());
            return Err(format!("no group `{path}`{}", did_you_mean(path, names)));
        };
        let control = self.settings.control();
        let before = self.settings.timed.of(path).map(|timed| timed.change);
        let words = match (change, before) {
            (Some(_), _) if control == Control::None => {
                return Err("the control `none` enforces nothing".to_owned());
            }
            (Some((TimedChange::Boost { weight: Some(weight) }, _)), _) if weight <= configured => {
                return Err(format!(
                    "weight {weight} is no boost: `{path}` has {configured}; use a larger one"
                ));
            }
            (Some((_, span)), _) if !(LENGTH_MIN..=LENGTH_MAX).contains(&span) => {
                return Err(format!(
                    "a time of {span} is out of range ({LENGTH_MIN} to {LENGTH_MAX})"
                ));
            }
            (Some((change, span)), _) => {
                let length = lasting(span.as_secs_f64() as u64);
                format!("{path}: {} for {length}", change.in_words(configured))
            }
            (None, Some(change)) => format!("{path}: ended: {}", change.in_words(configured)),
            (None, None) => return Err(format!("`{path}` is neither boosted nor paused")),
        };
        let change = change.map(|(change, span)| (change, boottime_now() + span));
        let timed = self.settings.timed.with(path, change);
        let new = self.settings.with_timed(timed).map_err(|e| chained(&e))?;
        self.store_timed(&new.timed).map_err(|e| e.to_string())?;
        let old = self.settings.timed.clone();
        if let Err(e) = self.take_over(new, now) {
            if let Err(e) = self.store_timed(&old) {
                warn!("a boost or pause that failed is still stored: {e}");
            }
            return Err(chained(&e));
        }
        Ok(words)
    }

    fn store_timed(&self, timed: &TimedChanges) -> Result<(), fairweir_daemon::Error> {
        self.timed.as_ref().map_or(Ok(()), |file| file.write(timed))
    }

    /// Ends temporary changes of groups whose time is over.
    fn end_timed(&mut self, now: Time) {
        let timed = self.settings.timed.at(boottime_now());
        if timed == self.settings.timed {
            return;
        }
        let old = self.settings.timed.clone();
        let ended = old.0.iter().filter(|change| !timed.0.contains(change));
        ended.for_each(|change| info!(group = change.group, "a boost or pause has ended"));
        let new = self.settings.with_timed(timed);
        match new.and_then(|new| self.take_over(new, now)) {
            Ok(_) => {
                if let Err(e) = self.store_timed(&self.settings.timed) {
                    warn!("a boost or pause that has ended is still stored: {e}");
                }
            }
            // The next tick tries again.
            Err(e) => self.open(now, chained(&e)),
        }
    }

    /// Applies schedules, and quotas that are used up or have restarted.
    fn follow_calendar(&mut self, now: Time) {
        let (moment, used_up) = self.quotas.handle_clock(&self.settings.configured.plans);
        let Some(new) = self.settings.with_calendar(moment, &used_up) else { return };
        for group in used_up.difference(&self.settings.used_up) {
            info!(group, "the quota is used up");
        }
        for group in self.settings.used_up.difference(&used_up) {
            info!(group, "the quota has begun anew");
        }
        if let Err(e) = new.and_then(|new| self.take_over(new, now)) {
            // The next tick tries again.
            self.open(now, chained(&e));
        }
    }

    /// Resets the usage of a group's quota in the present period.
    ///
    /// # Errors
    /// If the group has no quota, or the usage cannot be stored; nothing has changed then.
    pub(super) fn handle_reset_quota(&mut self, path: &str, now: Time) -> Result<String, String> {
        let plans = &self.settings.configured.plans;
        let Some(quota) = plans.get(path).and_then(|plan| plan.quota) else {
            let with = plans.iter().filter(|(_, plan)| plan.quota.is_some());
            let names = with.map(|(path, _)| path.as_str());
            return Err(format!("no group `{path}` with a quota{}", did_you_mean(path, names)));
        };
        self.quotas.reset(path)?;
        self.follow_calendar(now);
        Ok(format!("{path}: {} are left of this {}", quota.amount, quota.per.name()))
    }

    /// The temporary change of the group with this path.
    pub(super) fn timed_status(&self, path: &str) -> Option<TimedStatus> {
        let timed = self.settings.timed.of(path)?;
        let left = timed.ends.since(boottime_now());
        Some(TimedStatus {
            change: timed.change,
            configured_weight: self.settings.weight_of(path)?,
            left_s: left.as_secs_f64().ceil() as u64,
        })
    }

    fn take_over(&mut self, new: Settings, now: Time) -> anyhow::Result<&'static str> {
        if new.config == self.settings.config {
            self.settings = new;
            return Ok("nothing changed");
        }
        let (spec, start) = (new.spec()?, self.starting_capacity());
        // A control that learns the capacity starts at the configured one if it knows no better.
        let starts_elsewhere = spec.capacity().is_none()
            && start.is_none()
            && new.config.host.capacity != self.settings.config.host.capacity;
        let goes_on = self.control.controller().can_take_over(&spec) && !starts_elsewhere;
        let controller = if goes_on { None } else { Some(new.controller(start)?) };
        let stays =
            |point: &Point| new.mode() == self.settings.mode() && point.can_take_over(new.policy());
        if self.host.as_ref().is_some_and(|point| !stays(point)) {
            // Only one daemon can hold a device, so the old attachment is removed first. If
            // attaching again fails, the next tick looks for the device and tries again.
            self.host = None;
            let mut point = Point::attach(&new)?;
            let kept = self.sites.kept(self.settings.policy());
            self.sites = SiteControl::new(&mut point, new.policy(), Some(kept))?;
            self.host = Some(point);
            self.divider.handle_policy();
            self.fail_open = None;
            self.control.handle_lost_state();
        } else if let Some(host) = &mut self.host {
            let old = self.settings.policy();
            host.set_policy(new.policy()).inspect_err(|_| {
                if let Err(e) = host.set_policy(old) {
                    warn!("the old groups cannot be restored either: {e}");
                }
            })?;
            self.sites.handle_policy(new.policy(), host, now)?;
            self.divider.handle_policy();
        }
        let kept = continued(&self.settings, &new);
        match controller {
            Some(controller) => self.control.replace(controller, &kept),
            None => self.control.handle_policy(&spec, new.policy().weights(), &kept),
        }
        let was = self.settings.config.host.upload_capacity;
        self.settings = new;
        self.windows.set_relayed(&self.settings.config);
        if self.settings.config.host.upload_capacity != was {
            self.upload = Upload::of(&self.settings);
        }
        self.handle_hosts_changed();
        self.enforce(now);
        Ok("configuration reloaded")
    }

    /// Ends the daemon: removes everything, stores the capacity, and keeps what is known of connections.
    ///
    /// # Errors
    /// What could not be removed.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        let now = monotonic_now();
        self.divider.stop(self.host.as_mut(), now);
        self.store_capacity(now, true);
        if let Some(leases) = &mut self.leases {
            leases.store(monotonic_now(), true);
        }
        if let Err(e) = self.store_timed(&self.settings.timed) {
            warn!("what is left of boosts and pauses is not stored: {e}");
        }
        // The traffic since the last tick.
        let dev = self.link_dev().to_owned();
        if let Some(Ok(samples)) = self.host.as_mut().map(|host| host.take_samples()) {
            self.quotas.handle_samples(self.settings.policy().groups(), &samples);
            if let Ok(Some(link)) = link::find(&dev) {
                self.quotas.handle_interface(&link, Bytes::ZERO, None, now);
            }
        }
        self.quotas.end();
        if let Some(file) = &self.kept {
            file.write(&self.sites.kept(self.settings.policy()));
        }
        self.host.take().map_or(Ok(()), |mut point| point.detach())
    }

    // --------------------------------------------------------------------------------------------
    // One tick

    fn observe(&mut self, now: Time) {
        let dev = self.link_dev().to_owned();
        let Some(host) = &mut self.host else { return };
        // The tick began a few system calls ago: a rate must not depend on how long they took.
        let read_at = monotonic_now();
        let samples = match host.take_samples() {
            Ok(samples) => samples,
            Err(e) => return self.open(now, e.to_string()),
        };
        let interval = self.control.count(read_at, &samples);
        self.quotas.handle_samples(self.settings.policy().groups(), &samples);
        let connections = match self.windows.observe(host, &self.settings, interval) {
            Ok(connections) => connections,
            Err(e) => return self.open(now, e.to_string()),
        };
        let upload = match host.upload().map(|mut upload| upload.take()).transpose() {
            Ok(upload) => upload,
            Err(e) => return self.open(now, e.to_string()),
        };
        // Another program may have taken over the uplink, or have left it before this attached again.
        if upload.is_some() != self.upload.is_some() {
            self.upload = upload.as_ref().and_then(|_| Upload::of(&self.settings));
        }
        if let Some(sample) = &upload {
            self.delay.handle_upload(Rate::from_volume(sample.sent, interval), read_at);
        }
        if let Ok(Some(link)) = link::find(&dev) {
            let received = samples.iter().map(|group| group.received).sum();
            self.delay.handle_sent(link.sent, received, interval);
            let counted: Bytes = self.control.totals().iter().map(|t| t.sum.received).sum();
            let counted = counted + host.own_traffic().unwrap_or_default();
            let alone = match (self.settings.role, self.settings.policy().groups()) {
                (Role::Host, [group]) => Some(group.name.as_str()),
                _ => None,
            };
            self.quotas.handle_interface(&link, counted, alone, read_at);
        }
        let probe = self.delay.take_sample(&samples, interval, read_at);
        let open = self.fail_open.is_some() || self.settings.config.host.paused;
        let network = self.network.as_ref();
        // Another divider does not know the bound that the market sets for this household.
        let is_free = !open && self.guarantee.bound().is_none();
        let arrived = (&samples[..], &connections[..]);
        let point = (&mut *host, network, is_free);
        let delegated = self.divider.handle_tick(&self.settings, point, arrived, now);
        self.control.set_delegated(delegated);
        // While everything passes or another divides, this host does not share the link with its peers.
        let network = network.filter(|_| !delegated && !open);
        let beside = self.peers.handle_tick(&self.settings, network, now);
        if open {
            // Traffic that arrives unshaped does not show what the classes would let through.
            return;
        }
        let is_short = self.upload.as_ref().is_some_and(Upload::keeps_queue_short);
        let witness = probe.filter(|_| self.delay.shows_download(is_short));
        let mut observation = Observation {
            at: read_at,
            interval,
            groups: samples,
            connections,
            probe: witness,
            exact: None,
            beside,
        };
        if delegated {
            self.control.observe_delegated(&observation, &self.settings.policy().weights());
        } else {
            self.control.decide(&observation);
        }
        match self.settings.tells() {
            [] if delegated => {}
            [] => self.peers.say(&self.control, now),
            lans => self.peers.tell(lans, now),
        }
        self.delay.handle_decision(self.control.decision().delay, read_at);
        log_tick(&observation, self.control.decision());
        let received: Bytes = observation.groups.iter().map(|g| g.received).sum();
        let received = Rate::from_volume(received, interval);
        if !delegated {
            let learned = self.control.controller().learned_capacity();
            self.memories.download.handle_tick(learned, received, interval);
        }
        self.note_act(now);
        self.enforce(now);
        if let Some(sample) = upload {
            observation.probe = probe;
            self.share_upload(now, &observation, sample);
        }
        if self.fail_open.is_none()
            && let Some(host) = &mut self.host
            && let Err(e) = host.beat()
        {
            self.open(now, e.to_string());
        }
    }

    /// Tells the proxy to relay the devices with `via` at the rates that their classes may have;
    /// without a bound while everything passes.
    fn tell_proxy(&mut self, now: Time) {
        let enforces = self.enforces();
        let Some(teller) = &mut self.teller else { return };
        let policy = self.settings.policy();
        let mut devices =
            via::devices(&self.settings.config.relayed, policy, self.control.decision());
        if !enforces {
            devices.iter_mut().for_each(|device| device.rate_bps = None);
        }
        teller.handle_tick(devices, now);
    }

    /// Enforces the decision, unless everything is to pass.
    fn enforce(&mut self, now: Time) {
        // A new control must learn of the bound too.
        self.control.hold(self.guarantee.bound(), now);
        let shaping = self.settings.mode() == Mode::Shape && self.fail_open.is_none();
        let Some(host) = self.host.as_mut().filter(|_| shaping) else { return };
        if let Err(e) = self.control.enforce(&mut self.windows.enforcer(host)) {
            self.open(now, e.to_string());
        }
    }

    /// Decides how much each group may send, and enforces it.
    fn share_upload(&mut self, now: Time, seen: &Observation, sample: UploadSample) {
        let shapes = self.settings.mode() == Mode::Shape && self.fail_open.is_none();
        let (Some(upload), Some(host)) = (&mut self.upload, &mut self.host) else { return };
        let sent = Rate::from_volume(sample.sent, seen.interval);
        let plan = upload.decide(seen, self.control.decision(), sample, &self.settings, shapes);
        // While the capacity is being searched for, it is neither confirmed nor refuted.
        if let learned @ Some(_) = upload.learned_capacity() {
            self.memories.upload.handle_tick(learned, sent, seen.interval);
        }
        let done = match plan {
            _ if !shapes => Ok(()),
            Some(plan) => {
                self.windows.stand_by();
                host.upload().map_or(Ok(()), |mut out| {
                    let applied = out.apply(&plan);
                    upload.has_flow_queues = out.has_flow_queues();
                    applied
                })
            }
            None => host.release_upload(),
        };
        if let Err(e) = done {
            self.open(now, e.to_string());
        }
    }

    fn note_act(&mut self, now: Time) {
        let act = self.control.decision().act;
        debug!(dev = self.settings.dev, act = %act, "tick");
        if matches!(act, Act::Measure | Act::Drain) || self.act_noted == Some(act) {
            return;
        }
        self.act_noted = Some(act);
        if matches!(
            act,
            Act::Learn { .. }
                | Act::Decrease { .. }
                | Act::Measured { .. }
                | Act::UndoLoan { .. }
                | Act::Increase { .. }
                | Act::Limit
                | Act::Yield
                | Act::Delegate
        ) {
            info!(dev = self.settings.dev, "{act}");
        }
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            at_s: now.since(self.started).as_secs_f64(),
            act,
            reason: self.reason(&act),
        });
    }

    // --------------------------------------------------------------------------------------------
    // When something breaks

    /// Lets everything pass for a while.
    fn open(&mut self, now: Time, reason: String) {
        if self.fail_open.is_some() {
            return;
        }
        if now.since(self.failed_at) > PAUSE_FORGOTTEN {
            self.pause = PAUSE_MIN;
        }
        warn!(dev = self.settings.dev, pause = %self.pause, "all traffic passes unshaped: {reason}");
        self.release();
        self.put_off(now, reason);
    }

    /// Lets everything pass for `span`; a `span` of zero ends that at once. It ends by itself.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(super) fn handle_open(&mut self, span: Span, now: Time) -> Result<String, String> {
        let was_asked = |open: &FailOpen| open.reason == COMPARED;
        if let Some(reason) = self.fail_open.as_ref().filter(|open| !was_asked(open)) {
            return Err(format!("all traffic passes unshaped already: {}", reason.reason));
        }
        if span > OPEN_MAX {
            return Err(format!("a time of {span} is out of range (0s to {OPEN_MAX})"));
        }
        if self.fail_open.is_none() && span > Span::ZERO {
            self.release();
        }
        if self.fail_open.is_some() || span > Span::ZERO {
            self.fail_open = Some(FailOpen { reason: COMPARED.to_owned(), retry_at: now + span });
        }
        Ok(format!("all traffic passes unshaped for {span}"))
    }

    fn release(&mut self) {
        let opened = self
            .host
            .as_mut()
            .map(|host| host.release_windows().and(host.release()).and(host.release_upload()));
        if let Some(upload) = &mut self.upload {
            upload.handle_release();
        }
        if let Some(Err(e)) = opened {
            // There are no more heartbeats from now on, which also makes everything pass.
            warn!(dev = self.settings.dev, "cannot pass traffic unshaped at once: {e}");
        }
    }

    fn put_off(&mut self, now: Time, reason: String) {
        self.failed_at = now;
        self.fail_open = Some(FailOpen { reason, retry_at: now + self.pause });
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn repair(&mut self, now: Time) {
        let Some(host) = &mut self.host else { return };
        if let Err(e) = host.repair() {
            warn!(dev = self.settings.dev, pause = %self.pause, "cannot repair: {e}");
            return self.put_off(now, e.to_string());
        }
        info!(dev = self.settings.dev, "repaired");
        self.fail_open = None;
        self.failed_at = now;
        // Nothing is redirected before the first heartbeat, which follows in this tick.
        self.control.handle_lost_state();
        self.enforce(now);
    }

    fn lose_device(&mut self, now: Time) {
        let is_missing = |dev: &&str| link::index(dev).is_none();
        let reason = match self.settings.devices().find(is_missing) {
            Some(gone) => format!("the interface `{gone}` is gone"),
            None => "other interfaces lead to the Internet or to devices".to_owned(),
        };
        warn!(dev = self.settings.dev, "attaching anew: {reason}");
        self.store_capacity(now, true);
        self.host = None;
        self.fail_open = Some(FailOpen { reason, retry_at: now });
    }

    /// The kernel may have lost its entries for devices with names.
    fn handle_hosts_changed(&mut self) {
        if let Some(leases) = &mut self.leases {
            leases.handle_change();
        }
    }

    fn look_for_device(&mut self, now: Time) {
        let waiting = self.fail_open.as_ref().is_some_and(|o| now < o.retry_at);
        if waiting || self.settings.missing().is_some() {
            return;
        }
        let policy = self.settings.policy();
        let attached = Point::attach(&self.settings).and_then(|mut host| {
            let kept = self.sites.kept(policy);
            Ok((SiteControl::new(&mut host, policy, Some(kept))?, host))
        });
        match attached {
            Ok((sites, host)) => {
                self.host = Some(host);
                info!(dev = self.settings.dev, link = self.link_dev(), "attached again");
                self.divider.handle_policy();
                self.sites = sites;
                self.handle_hosts_changed();
                self.fail_open = None;
                self.control.skip_to(monotonic_now());
                self.network_at = now;
                self.control.handle_lost_state();
                self.enforce(now);
            }
            Err(e) => {
                let reason = format!("{e:#}");
                if self.fail_open.as_ref().is_none_or(|o| o.reason != reason) {
                    warn!(dev = self.settings.dev, "cannot attach: {reason}");
                }
                self.fail_open = Some(FailOpen { reason, retry_at: now + RETURN_PAUSE });
            }
        }
    }

    // --------------------------------------------------------------------------------------------
    // The remembered capacity

    /// Identifies the network. If it has changed, the control starts again with the capacity that
    /// is remembered for it; also if nothing is learned yet and the network is identified late.
    fn recognise_network(&mut self, now: Time) -> anyhow::Result<()> {
        let dev = self.link_dev().to_owned();
        let network = network::identity(&dev);
        self.network_at = now + if network.is_some() { NETWORK_PERIOD } else { NETWORK_SOON };
        let is_other_link = dev != self.network_dev;
        if !is_other_link && (network.is_none() || self.network == network) {
            return Ok(());
        }
        let moved = self.network.is_some() || is_other_link;
        if moved {
            info!(dev, network, "this is another network");
            self.store_capacity(now, true);
            self.memories.download.handle_moved();
            self.memories.upload.handle_moved();
            // That capacity belonged to the network in which the daemon started.
            self.told_capacity = None;
        }
        let known = network.as_deref();
        let recalled = known.and_then(|known| self.memories.download.recall(&dev, known));
        let upload = known.and_then(|known| self.memories.upload.recall(&dev, known));
        if let Some(out) = &mut self.upload {
            out.handle_network(&self.settings, upload.map(|(capacity, _)| capacity), moved);
        }
        (self.network, self.network_dev) = (network, dev);
        self.remembered =
            recalled.map(|(capacity, age_s)| Remembered { capacity_bps: capacity, age_s });
        let learned = self.control.controller().learned_capacity();
        let fresh = self.told_capacity.is_none() && learned.is_none();
        if moved || (fresh && recalled.is_some()) {
            let controller = self.settings.controller(recalled.map(|(capacity, _)| capacity))?;
            let same: Vec<_> = (0..self.control.totals().len()).map(Some).collect();
            self.control.replace(controller, &same);
            self.enforce(now);
        }
        Ok(())
    }

    /// The capacity with which a controller that starts now, in the same network, begins.
    fn starting_capacity(&self) -> Option<Rate> {
        let remembered = self.remembered.map(|r| r.capacity_bps);
        self.control.controller().learned_capacity().or(remembered).or(self.told_capacity)
    }

    /// Stores the capacities: `at_once`, or after a pause.
    fn store_capacity(&mut self, now: Time, at_once: bool) {
        let Some(network) = &self.network else { return };
        let (link, Memories { download, upload }) =
            ((&*self.network_dev, &**network), &mut self.memories);
        download.keep(link, self.control.controller().learned_capacity(), now, at_once);
        if let Some(control) = &self.upload {
            upload.keep(link, control.learned_capacity(), now, at_once);
        }
    }
}

impl Home for Daemon {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn point(&self) -> Option<&Point> {
        self.host.as_ref()
    }

    fn decision(&self) -> &Decision {
        self.control.decision()
    }

    fn enforces(&self) -> bool {
        self.enforces()
    }

    fn is_delegated(&self) -> bool {
        self.divider.divides()
    }

    fn divide(&mut self, divided: DeviceClasses, now: Time) -> anyhow::Result<()> {
        let new = self.settings.with_divided(divided)?;
        self.take_over(new, now).map(drop)
    }
}

/// For each group of `new`, the index of the group of `old` with the same name.
fn continued(old: &Settings, new: &Settings) -> Vec<Option<usize>> {
    let old = old.policy().groups();
    let of = |name: &str| old.iter().position(|g| g.name == name);
    new.policy().groups().iter().map(|g| of(&g.name)).collect()
}

/// The next tick after `now` of a clock that last ticked at `last`; missed ticks are skipped.
pub(super) fn next_tick(last: Time, now: Time) -> Time {
    let next = last + TICK;
    if next > now { next } else { now + TICK }
}
