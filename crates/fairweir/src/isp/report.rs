//! The daemon's replies: its status, subscribers, and metrics.

use fairweir_config::isp::address::address_text;
use fairweir_core::units::Time;
use fairweir_daemon::Metrics;
use fairweir_linux::police::{Counters, Hook};
use serde_json::Value;

use super::daemon::Daemon;
use super::kernel::{Attachment, DIRECTIONS, direction_name};
use super::leases::Leases;
use super::radius::Radius;
use super::registry::{Origin, PlanRecord, Record};
use super::unpoliced::KINDS;
use super::usage::Usage;
use super::wire::{
    ApiStatus, Directions, Found, HookStatus, Listing, NasStatus, PlanStatus, SegmentUse, Status,
    SubscriberCounters, SubscriberStatus, TotalsStatus, Unpoliced, UnpolicedStatus,
};
use std::collections::BTreeMap;

/// The most subscribers in one reply: a longer one would delay other clients.
const LIST_MAX: usize = 1_000;

/// The most subscribers that a search returns, for a person to read. Each costs two look-ups in the kernel.
const FIND_MAX: usize = 20;

/// The most unpoliced sessions that a status lists with their reasons.
const UNPOLICED_MAX: usize = 100;

/// The status at `now`.
pub(super) fn status(daemon: &Daemon, now: Time) -> Status {
    let [added, changed, removed] = daemon.api_counts();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: daemon.isp.device.clone(),
        uplink: daemon.isp.uplink.clone(),
        pid: std::process::id(),
        enforcing: daemon.kernel.is_attached(),
        open_reason: daemon.open_reason.clone(),
        watchdog_s: daemon.kernel.keeps.map(|watchdog| watchdog.as_secs_f64()),
        keep_error: daemon.kernel.keep_error.clone(),
        hooks: daemon.kernel.attached.iter().map(hook_status).collect(),
        since_s: now.since(daemon.started).as_secs_f64(),
        subscribers: daemon.registry.subscribers().len(),
        addresses: daemon.registry.address_count(),
        plans: plans(daemon),
        segments: daemon.segments.status(),
        unknown: daemon.meter.unknown(),
        api: ApiStatus { added, changed, removed },
        unpoliced_by_reason: unpoliced_by_reason(daemon),
        unpoliced: unpoliced(daemon).take(UNPOLICED_MAX).cloned().collect(),
        memory_bytes: daemon.kernel.memory().as_u64(),
        config_error: daemon.config_error.clone(),
        journal_error: daemon.journal_error(),
        nat_error: daemon.nat.error.clone(),
        radius: daemon.radius.as_ref().map(|radius| radius.status(now)),
        coa: daemon.radius.as_ref().and_then(Radius::coa_status),
        leases: daemon.leases.as_ref().map(Leases::status),
        usage: daemon.usage.as_ref().map(Usage::status),
        clients: daemon.clients.status(now),
    }
}

/// Sessions and leases whose traffic passes.
fn unpoliced(daemon: &Daemon) -> impl Iterator<Item = &UnpolicedStatus> {
    let radius = daemon.radius.iter().flat_map(|radius| radius.unpoliced.iter());
    radius.chain(daemon.leases.iter().flat_map(|leases| leases.unpoliced.iter()))
}

/// A page of these, or of the silent sessions that are still policed, after the first `skip`.
pub(super) fn unpoliced_page(daemon: &Daemon, skip: usize, silent: bool) -> Unpoliced {
    let quiet = daemon.radius.iter().flat_map(|radius| radius.silent.iter());
    let all: Box<dyn Iterator<Item = &UnpolicedStatus>> =
        if silent { Box::new(quiet) } else { Box::new(unpoliced(daemon)) };
    let mut all = all.skip(skip);
    let unpoliced = all.by_ref().take(LIST_MAX).cloned().collect();
    Unpoliced { unpoliced, has_more: all.next().is_some() }
}

fn unpoliced_by_reason(daemon: &Daemon) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    if daemon.radius.is_some() || daemon.leases.is_some() {
        counts.extend(KINDS.map(|kind| (kind.to_owned(), 0)));
    }
    for one in unpoliced(daemon) {
        *counts.entry(one.kind.clone()).or_default() += 1;
    }
    counts
}

fn plans(daemon: &Daemon) -> Vec<PlanStatus> {
    let plan = |(name, record): (&std::sync::Arc<str>, &PlanRecord)| PlanStatus {
        name: name.to_string(),
        origin: origin_name(record.origin).to_owned(),
        subscribers: record.users,
        policy: record.entry.policy(),
        rate_bps: Directions {
            download: record.entry.download.map(|rate| rate.as_bps()),
            upload: record.entry.upload.map(|rate| rate.as_bps()),
        },
        totals: daemon.meter.plan(name),
    };
    daemon.registry.plans().iter().map(plan).collect()
}

/// The place where packets are policed.
pub(super) fn hook_status(attachment: &Attachment) -> HookStatus {
    HookStatus {
        device: attachment.device.clone(),
        hook: hook_name(attachment.hook).to_owned(),
        direction: direction_name(attachment.direction).to_owned(),
    }
}

fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::Xdp => "xdp",
        Hook::XdpNative => "xdp_native",
        Hook::XdpGeneric => "xdp_generic",
        Hook::TcxIngress => "tcx_ingress",
        Hook::TcxEgress => "tcx_egress",
    }
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::File => "file",
        Origin::Api => "api",
        Origin::ApiOverFile => "api_over_file",
        Origin::Radius => "radius",
        Origin::Lease => "lease",
    }
}

/// A page of subscribers after the name `after`, in order of their names.
pub(super) fn list(
    daemon: &Daemon,
    plan: Option<&str>,
    after: Option<&str>,
    limit: Option<usize>,
) -> Listing {
    use std::ops::Bound;
    let limit = limit.unwrap_or(LIST_MAX).clamp(1, LIST_MAX);
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let all = daemon.registry.subscribers().range::<str, _>((from, Bound::Unbounded));
    let mut wanted = all.filter(|(_, record)| plan.is_none_or(|plan| *record.plan == *plan));
    let mut listing = Listing::default();
    for (name, record) in wanted.by_ref().take(limit) {
        listing.subscribers.push(subscriber_json(name, record));
    }
    if wanted.next().is_some() {
        let last = listing.subscribers.last();
        listing.after = last.and_then(|s| s["name"].as_str()).map(str::to_owned);
    }
    listing
}

fn subscriber_json(name: &str, record: &Record) -> Value {
    let addresses: Vec<String> = record.addresses.iter().map(address_text).collect();
    serde_json::json!({
        "name": name,
        "addresses": addresses,
        "plan": &*record.plan,
        "origin": origin_name(record.origin),
        "own_plan": record.own_plan(),
    })
}

/// The subscriber that has the address `text`, and the first subscribers whose names begin with `text`.
///
/// The cost is a look-up per prefix length and one by name, independent of the number of subscribers.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn find(daemon: &Daemon, text: &str, now: Time) -> anyhow::Result<Found> {
    let (names, has_more) = daemon.registry.find(text, FIND_MAX);
    let subscribers =
        names.iter().map(|name| subscriber(daemon, name, now)).collect::<Result<_, _>>()?;
    Ok(Found { subscribers, has_more })
}

/// One subscriber, and the counters of its packets.
///
/// # Errors
/// If no subscriber has that name, or the kernel refuses.
pub(super) fn subscriber(
    daemon: &Daemon,
    name: &str,
    now: Time,
) -> anyhow::Result<SubscriberStatus> {
    let found = daemon.registry.subscribers().get(name);
    let record = found.ok_or_else(|| {
        let is_of = |one: &&UnpolicedStatus| {
            one.subscriber == name || one.addresses.iter().any(|address| address == name)
        };
        match unpoliced(daemon).find(is_of) {
            Some(one) => anyhow::anyhow!(
                "subscriber `{}` is not policed: {} (session {}, NAS {}, since {})",
                one.subscriber,
                one.reason,
                one.session,
                one.nas,
                one.since_s
            ),
            None => anyhow::anyhow!("no subscriber `{name}`, and none with this address"),
        }
    })?;
    let counters = daemon.kernel.counters(name)?;
    let plan = daemon.registry.plans().get(&record.plan);
    let [download, upload] = directions_of(plan, counters);
    let sessions = daemon.radius.as_ref().map(|radius| radius.sessions_of(name, now));
    Ok(SubscriberStatus {
        name: name.to_owned(),
        addresses: record.addresses.iter().map(address_text).collect(),
        plan: record.plan.to_string(),
        policy: plan.map(|plan| plan.entry.policy()).unwrap_or_default(),
        origin: origin_name(record.origin).to_owned(),
        own_plan: record.own_plan().cloned(),
        sessions: sessions.unwrap_or_default(),
        download,
        upload,
        client: daemon.clients.of(name, &daemon.kernel, now)?,
    })
}

fn directions_of(
    plan: Option<&PlanRecord>,
    counters: [Counters; 2],
) -> [Option<SubscriberCounters>; 2] {
    let rates = plan.map(|p| [p.entry.download, p.entry.upload]).unwrap_or_default();
    [0, 1].map(|i| {
        rates[i].map(|rate| SubscriberCounters {
            plan_bps: rate.as_bps(),
            passed_bytes: counters[i].passed.as_u64(),
            dropped_packets: counters[i].dropped_packets,
            marked_packets: counters[i].marked_packets,
        })
    })
}

// ------------------------------------------------------------------------------------------------
// Metrics

/// OpenMetrics text, with the `top` busiest subscribers.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn metrics(daemon: &mut Daemon, top: usize, now: Time) -> anyhow::Result<String> {
    let status = status(daemon, now);
    let mut metrics = Metrics::default();
    let device = ("interface", status.device.as_str());
    metrics.gauge("fairweir_up", "Whether subscribers are policed (1) or all traffic passes (0).");
    metrics.sample(&[device], u64::from(status.enforcing));
    metrics.gauge("fairweir_subscribers", "Subscribers of a plan.");
    for plan in &status.plans {
        metrics.sample(&[device, ("plan", &plan.name)], plan.subscribers);
    }
    let help = "Whether something is not in force (1), as the status says.";
    metrics.gauge("fairweir_error", help);
    for (what, is_wrong) in errors(&status) {
        metrics.sample(&[device, ("of", what)], u64::from(is_wrong));
    }
    let name = "fairweir_plan_rate_bytes_per_second";
    metrics.gauge(name, "Rate of each subscriber of a plan.");
    for plan in &status.plans {
        for (direction, rate) in pairs(plan.rate_bps) {
            if let Some(bps) = rate {
                let labels = [device, ("direction", direction), ("plan", &plan.name)];
                metrics.sample(&labels, bps / 8);
            }
        }
    }
    totals(&mut metrics, device, &status);
    segments(&mut metrics, device, &status);
    sessions(&mut metrics, device, &status);
    metrics.gauge("fairweir_memory_bytes", "Kernel memory for plans and subscribers.");
    metrics.sample(&[device], status.memory_bytes);
    if top > 0 {
        subscribers(&mut metrics, device, daemon, top, now)?;
    }
    Ok(metrics.finish())
}

/// The kinds of errors, and whether each is present.
fn errors(status: &Status) -> [(&'static str, bool); 5] {
    [
        ("config", status.config_error.is_some()),
        ("journal", status.journal_error.is_some()),
        ("nat", status.nat_error.is_some()),
        ("leases", status.leases.as_ref().is_some_and(|leases| leases.error.is_some())),
        ("usage", status.usage.as_ref().is_some_and(|usage| usage.error.is_some())),
    ]
}

type Label<'l> = (&'l str, &'l str);

/// The name, the explanation, and how to get the value from the totals.
type Counter = (&'static str, &'static str, fn(&TotalsStatus) -> u64);

const COUNTERS: [Counter; 8] = [
    ("passed_bytes", "L2 bytes that passed.", |t| t.passed_bytes),
    ("passed_packets", "Packets that passed.", |t| t.passed_packets),
    ("dropped_bytes", "L2 bytes that were dropped.", |t| t.dropped_bytes),
    ("dropped_packets", "Packets that were dropped.", |t| t.dropped_packets),
    ("marked_packets", "Packets that passed, marked (ECN CE).", |t| t.marked_packets),
    ("delegated_bytes", "L2 bytes for which a bundle's stunts paid.", |t| t.delegated_bytes),
    ("delegated_packets", "Packets for which a bundle's stunts paid.", |t| t.delegated_packets),
    ("undelegated_packets", "Packets for which no stunt could pay.", |t| t.refused_packets),
];

/// Counters of all plans, and of traffic that belongs to no subscriber.
fn totals(metrics: &mut Metrics, device: Label<'_>, status: &Status) {
    for (name, help, count) in COUNTERS {
        let help = format!("{help} By plan, of all its subscribers.");
        metrics.counter(&format!("fairweir_{name}"), &help);
        for plan in &status.plans {
            for ((direction, totals), (_, rate)) in pairs(plan.totals).zip(pairs(plan.rate_bps)) {
                if rate.is_some() {
                    let labels = [device, ("direction", direction), ("plan", &plan.name)];
                    metrics.sample(&labels, count(&totals));
                }
            }
        }
    }
    for (name, help, count) in &COUNTERS[..2] {
        let help = format!("{help} Of addresses without a subscriber.");
        metrics.counter(&format!("fairweir_unknown_{name}"), &help);
        for (direction, totals) in pairs(status.unknown) {
            metrics.sample(&[device, ("direction", direction)], count(&totals));
        }
    }
}

/// Gets a value of a segment in one direction.
type Used = fn(&SegmentUse) -> u64;

fn segments(metrics: &mut Metrics, device: Label<'_>, status: &Status) {
    let used = || {
        status.segments.iter().flat_map(|segment| {
            let name = ("segment", segment.name.as_str());
            let of = move |(direction, used)| Some((name, ("direction", direction), used?));
            pairs(segment.used).filter_map(of)
        })
    };
    if !status.segments.is_empty() {
        metrics.gauge("fairweir_segment_members", "Members of a segment.");
        for segment in &status.segments {
            metrics.sample(&[device, ("segment", &segment.name)], segment.members);
        }
    }
    let gauges: [(&str, &str, Used); 3] = [
        ("capacity", "What a segment carries.", |used| used.capacity_bps),
        ("guaranteed", "Guarantees of all members of a segment.", |used| used.guaranteed_bps),
        ("passed", "What passed a segment in the last tenth of a second.", |used| used.passed_bps),
    ];
    for (name, help, of) in gauges.iter().filter(|_| used().next().is_some()) {
        metrics.gauge(&format!("fairweir_segment_{name}_bytes_per_second"), help);
        for (segment, direction, used) in used() {
            metrics.sample(&[device, segment, direction], of(&used) / 8);
        }
    }
    if used().next().is_some() {
        let help = "Packets dropped because the segment was full.";
        metrics.counter("fairweir_segment_refused_packets", help);
        for (segment, direction, used) in used() {
            metrics.sample(&[device, segment, direction], used.refused_packets);
        }
    }
}

fn sessions(metrics: &mut Metrics, device: Label<'_>, status: &Status) {
    if let Some(radius) = &status.radius {
        metrics.gauge("fairweir_radius_sessions", "Sessions that access servers reported.");
        metrics.sample(&[device], radius.sessions);
        let help = "Sessions that are policed although no packet came for too long.";
        metrics.gauge("fairweir_radius_silent_sessions", help);
        metrics.sample(&[device], radius.silent);
        access_servers(metrics, device, &radius.nas);
    }
    let radius = status.radius.as_ref();
    let radius = radius.map(|r| ("radius", "Accounting packets", &r.packets, r.dropped_packets));
    let coa = status.coa.as_ref();
    let coa = coa.map(|c| ("coa", "Requests of servers", &c.packets, c.dropped_packets));
    for (port, what, packets, dropped) in radius.into_iter().chain(coa) {
        let help = format!("{what} by what became of them.");
        metrics.counter(&format!("fairweir_{port}_packets"), &help);
        for (result, packets) in packets {
            metrics.sample(&[device, ("result", result)], *packets);
        }
        let help = format!("{what} that the kernel dropped, as too many waited.");
        metrics.counter(&format!("fairweir_{port}_dropped_packets"), &help);
        metrics.sample(&[device], dropped);
    }
    if !status.unpoliced_by_reason.is_empty() {
        let help = "Sessions and leases that are not policed, by reason.";
        metrics.gauge("fairweir_unpoliced", help);
        for (reason, number) in &status.unpoliced_by_reason {
            metrics.sample(&[device, ("reason", reason)], *number);
        }
    }
    if let Some(leases) = &status.leases {
        metrics.gauge("fairweir_lease_devices", "Devices with a lease of a DHCP server.");
        metrics.sample(&[device], leases.devices);
    }
}

/// Metrics of the access servers, 256 at most.
fn access_servers(metrics: &mut Metrics, device: Label<'_>, all: &[NasStatus]) {
    if all.is_empty() {
        return;
    }
    metrics.gauge("fairweir_nas_sessions", "Sessions of an access server.");
    for one in all {
        metrics.sample(&[device, ("nas", &one.nas)], one.sessions);
    }
    metrics.gauge("fairweir_nas_silent_seconds", "For how long an access server sent no packet.");
    for one in all {
        if let Some(silent_s) = one.silent_s {
            metrics.sample(&[device, ("nas", &one.nas)], silent_s as u64);
        }
    }
    type Map = fn(&NasStatus) -> &BTreeMap<String, u64>;
    let counters: [(&str, &str, &str, Map); 2] = [
        ("packets", "kind", "Packets of an access server by kind.", |one| &one.packets),
        ("refused", "reason", "Packets and sessions of an access server without effect.", |one| {
            &one.refused
        }),
    ];
    for (name, label, help, map) in counters {
        metrics.counter(&format!("fairweir_nas_{name}"), help);
        for one in all {
            for (key, n) in map(one) {
                metrics.sample(&[device, ("nas", &one.nas), (label, key)], *n);
            }
        }
    }
}

/// Metrics of the busiest subscribers only, because a million time series would be too many.
fn subscribers(
    metrics: &mut Metrics,
    device: Label<'_>,
    daemon: &mut Daemon,
    top: usize,
    now: Time,
) -> anyhow::Result<()> {
    let busiest = daemon.meter.busiest(&daemon.kernel, &daemon.registry, top, now)?;
    let mut of = Vec::new();
    for busy in &busiest.subscribers {
        of.push((busy, subscriber(daemon, &busy.name, now)?));
    }
    type Count = fn(&SubscriberCounters) -> u64;
    let counters: [(&str, &str, Count); 3] = [
        ("passed_bytes", "L2 bytes that passed.", |c| c.passed_bytes),
        ("dropped_packets", "Packets that were dropped.", |c| c.dropped_packets),
        ("marked_packets", "Packets that passed, marked.", |c| c.marked_packets),
    ];
    for (name, help, count) in counters {
        let help = format!("{help} Of the busiest subscribers.");
        metrics.counter(&format!("fairweir_subscriber_{name}"), &help);
        for (busy, status) in &of {
            let both = Directions { download: status.download, upload: status.upload };
            for (direction, counters) in pairs(both) {
                let Some(counters) = counters else { continue };
                let labels = [
                    device,
                    ("direction", direction),
                    ("subscriber", &busy.name),
                    ("plan", &busy.plan),
                ];
                metrics.sample(&labels, count(&counters));
            }
        }
    }
    Ok(())
}

fn pairs<T>(both: Directions<T>) -> impl Iterator<Item = (&'static str, T)> {
    DIRECTIONS.into_iter().map(direction_name).zip([both.download, both.upload])
}
