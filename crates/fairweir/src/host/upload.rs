//! The upload: its capacity, what each group may send, and its status.

use std::collections::BTreeMap;

use fairweir_core::policy::Group;
use fairweir_core::receiver::{Decision, DelaySource, Observation};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_core::upload::{
    ROUND_TRIPS_MAX, RoundTrip, UploadClasses, UploadControl, UploadObservation, UploadPhase,
    classes,
};
use fairweir_linux::{UploadGroup, UploadSample};
use tracing::info;

use super::settings::Settings;
use super::wire::{UploadGroupStatus, UploadStatus};

/// The state of the upload; see the module.
pub(super) struct Upload {
    control: UploadControl,
    /// The recent rate of traffic that is sent before all groups.
    first: Rate,
    /// What groups had to send since the start, by name.
    totals: BTreeMap<String, UploadGroupStatus>,
    /// What groups want to send, by name.
    wants: BTreeMap<String, Want>,
    phase: UploadPhase,
    /// The limit that a dry run logged last.
    logged: Option<Rate>,
    /// The guaranteed rate of each group's class, in the policy's order; empty while nothing is divided.
    shares: Vec<Rate>,
    enforcing: bool,
    /// How long there were uploads while the uplink's queue could not be measured.
    unseen: Span,
    /// Whether flows have queues of their own within a class, as far as known.
    pub(super) has_flow_queues: bool,
}

/// How much a group wants to send.
#[derive(Default)]
struct Want {
    /// The recent rate that it had to send; peaks count more.
    rate: Rate,
    /// When packets of the group last had to wait.
    waited_at: Option<Time>,
}

impl Upload {
    /// The state for these settings; `None` if the upload is not to be shared.
    pub(super) fn of(settings: &Settings) -> Option<Upload> {
        settings.shares_upload().then(|| Upload {
            control: control(settings, None),
            first: Rate::ZERO,
            totals: BTreeMap::new(),
            wants: BTreeMap::new(),
            phase: UploadPhase::default(),
            logged: None,
            shares: Vec::new(),
            enforcing: false,
            unseen: Span::ZERO,
            has_flow_queues: true,
        })
    }

    /// Handles a tick. Returns the classes to set (in a dry run, those that would be set), or
    /// `None` if everything is to leave unshaped. Unless it `shapes` or this is a dry run, nothing
    /// is concluded, because a limit that is not in force has no effect to observe.
    pub(super) fn decide(
        &mut self,
        seen: &Observation,
        decision: &Decision,
        sample: UploadSample,
        settings: &Settings,
        shapes: bool,
    ) -> Option<UploadClasses> {
        self.count(&sample, settings, seen.interval);
        self.enforcing = false;
        self.shares.clear();
        if !shapes && !settings.dry_run {
            return None;
        }
        let round_trips = round_trips(seen, decision);
        let sends = Rate::from_volume(sample.data, seen.interval) > SENDS_MIN;
        self.unseen = match round_trips[..] {
            [] if sends => self.unseen + seen.interval,
            [] => self.unseen,
            _ => Span::ZERO,
        };
        self.control.handle_observation(&UploadObservation {
            at: seen.at,
            interval: seen.interval,
            sent: sample.sent,
            data: sample.data,
            backlog: sample.backlog,
            round_trips,
        });
        self.log(settings);
        let first = Rate::from_volume(sample.first, seen.interval);
        self.first = self.first.smoothed(first, 4).max(first);
        let total = self.control.total()?;
        self.enforcing = shapes;
        // In steps of 1/16, so that the classes are not replaced in each tick.
        let step = (total / 16).as_bps().max(1);
        let first = Rate::bps(self.first.as_bps().div_ceil(step) * step);
        let demands = self.demands(&sample, settings, seen, total / IDLE_PARTS);
        let classes =
            classes(total, first, (&settings.policy().weights().without_rates(), &demands), PACKET);
        self.shares = classes.groups.iter().map(|class| class.spec.rate).collect();
        Some(classes)
    }

    /// Logs a new phase; in a dry run also the limit that would be set, if it differs by a tenth from the last logged.
    fn log(&mut self, settings: &Settings) {
        let (phase, limit) = (self.control.phase(), self.control.total());
        let is_near = |old: Rate, new: Rate| old.min(new) >= old.max(new).scale(9, 10);
        let is_news = |new| !self.logged.is_some_and(|old| is_near(old, new));
        if let Some(would) = limit.filter(|&new| settings.dry_run && is_news(new)) {
            info!(dev = settings.dev, "upload: dry run, the limit would be {would}");
            self.logged = limit;
        }
        if phase != self.phase {
            info!(dev = settings.dev, ?phase, ?limit, "upload");
            self.phase = phase;
        }
    }

    /// What each group wants, in the policy's order, at least `least`; `None` means more than it gets.
    fn demands(
        &mut self,
        sample: &UploadSample,
        settings: &Settings,
        seen: &Observation,
        least: Rate,
    ) -> Vec<Option<Rate>> {
        let groups = settings.policy().groups();
        self.wants.retain(|name, _| groups.iter().any(|group| group.name == *name));
        let demand = |(group, part): (&Group, &UploadGroup)| {
            let want = self.wants.entry(group.name.clone()).or_default();
            let offered = Rate::from_volume(part.offered, seen.interval);
            want.rate = want.rate.smoothed(offered, 8).max(offered);
            if part.backlog > Bytes::ZERO {
                want.waited_at = Some(seen.at);
            }
            let waits = want.waited_at.is_some_and(|at| seen.at.since(at) < WAITED);
            // In steps, so that the classes are not replaced in each tick.
            let step = |rate: Rate| Rate::bps(rate.as_bps().max(1).next_power_of_two());
            (!waits).then(|| step(want.rate).max(least))
        };
        let mut demands: Vec<_> = groups.iter().zip(&sample.groups).map(demand).collect();
        demands.resize(groups.len(), None);
        demands
    }

    /// Starts again if the network has `moved`, or if the capacity is still unknown; `remembered`
    /// is what is stored for the network's uplink.
    pub(super) fn handle_network(
        &mut self,
        settings: &Settings,
        remembered: Option<Rate>,
        moved: bool,
    ) {
        let fresh = self.control.capacity().is_none() && remembered.is_some();
        if moved || fresh {
            self.control = control(settings, remembered);
        }
    }

    /// The learned capacity, if it was not refuted since; `None` while it is being searched for, and in a dry run.
    pub(super) fn learned_capacity(&self) -> Option<Rate> {
        self.control.capacity().filter(|_| self.control.phase() == UploadPhase::Hold)
    }

    /// Whether the uplink's queue is kept short.
    pub(super) fn keeps_queue_short(&self) -> bool {
        self.enforcing && !matches!(self.control.phase(), UploadPhase::Open | UploadPhase::Drain)
    }

    /// What is not possible, in words.
    pub(super) fn limits(&self) -> impl Iterator<Item = &'static str> {
        let learns = self.control.phase() != UploadPhase::Fixed;
        let shared_queue = "the kernel lacks fq_codel: uploads of one group wait in one queue";
        let unseen = "while uploads ran the delay of the uplink was not measured for 10 s, so that its \
                      capacity is not learned";
        let said = [
            (!self.has_flow_queues).then_some(shared_queue),
            (learns && self.unseen >= UNSEEN_MIN).then_some(unseen),
        ];
        said.into_iter().flatten()
    }

    /// Everything leaves unshaped from now on.
    pub(super) fn handle_release(&mut self) {
        self.enforcing = false;
        self.shares.clear();
    }

    fn count(&mut self, sample: &UploadSample, settings: &Settings, interval: Span) {
        let groups = settings.policy().groups();
        self.totals.retain(|name, _| groups.iter().any(|group| group.name == *name));
        for (group, part) in groups.iter().zip(&sample.groups) {
            let total = self.totals.entry(group.name.clone()).or_default();
            total.rate_bps = Rate::from_volume(part.offered, interval);
            total.offered_bytes += part.offered;
            total.drops += part.drops;
            total.backlog_bytes = part.backlog;
        }
    }

    /// The status of the upload.
    pub(super) fn status(&self, settings: &Settings) -> UploadStatus {
        let group = |(index, name): (usize, &String)| {
            let total = self.totals.get(name).cloned().unwrap_or_default();
            let share_bps = self.shares.get(index).copied();
            UploadGroupStatus { name: name.clone(), share_bps, ..total }
        };
        UploadStatus {
            enforcing: self.enforcing,
            phase: self.control.phase(),
            capacity_bps: self.control.capacity(),
            limit_bps: self.control.total(),
            queue_ms: self.control.queue().map(Span::as_millis_f64),
            groups: {
                let names = settings.policy().groups().iter().map(|g| &g.name);
                names.enumerate().map(group).collect()
            },
        }
    }
}

/// The control of the upload; in a dry run it only observes.
fn control(settings: &Settings, remembered: Option<Rate>) -> UploadControl {
    let new = if settings.dry_run { UploadControl::watching } else { UploadControl::new };
    new(settings.config.host.upload_capacity, remembered)
}

/// Round trips without the delay of the download's queue: of the probe, otherwise of
/// acknowledgements. None while that delay is unknown or long.
fn round_trips(seen: &Observation, decision: &Decision) -> Vec<RoundTrip> {
    let received: Bytes = seen.groups.iter().map(|group| group.received).sum();
    // The mean is subtracted: delay of the download taken for delay of the upload would limit the upload.
    let (mean, least) = match decision.delay {
        Some(delay) if delay.source == DelaySource::Timestamps && delay.least < DOWNLOAD_SHORT => {
            (delay.value, delay.least)
        }
        Some(delay) if delay.source == DelaySource::Timestamps => return Vec::new(),
        _ if Rate::from_volume(received, seen.interval) < DOWNLOAD_IDLE => (Span::ZERO, Span::ZERO),
        _ => return Vec::new(),
    };
    let trip = |source, rtt: Span| RoundTrip {
        source,
        least: rtt.saturating_sub(mean),
        most: rtt.saturating_sub(least),
    };
    if let Some(probe) = seen.probe.filter(|probe| probe.answered > 0) {
        return vec![trip(u64::from(probe.reflector), probe.rtt_min)];
    }
    let acknowledges = seen.connections.iter().filter(|c| !c.has_sent && c.segments > 0);
    let trips = acknowledges.filter_map(|c| Some(trip(c.id, c.rtt?)));
    trips.take(ROUND_TRIPS_MAX).collect()
}

/// The longest download queue that does not hide the upload's queue: the two are not measured at the same time.
const DOWNLOAD_SHORT: Span = Span::millis(8);
/// A download below this rate has no queue: it is replies to the probe, and acknowledgements of uploads.
const DOWNLOAD_IDLE: Rate = Rate::mbit(1);
/// An idle group keeps 1/128 of the total for its first packets.
const IDLE_PARTS: u64 = 128;
/// Below this rate no uplink has a queue.
const SENDS_MIN: Rate = Rate::kbit(100);
/// After this time of uploads without a measured round trip of the uplink, the status says so.
const UNSEEN_MIN: Span = Span::secs(10);
/// A group whose packets had to wait within this time wants more than it gets.
const WAITED: Span = Span::secs(2);
/// The largest packet of Ethernet, in L2 bytes.
const PACKET: Bytes = Bytes::new(1_514);
