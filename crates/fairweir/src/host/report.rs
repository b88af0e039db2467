//! The daemon's replies: status and connections.

use fairweir_config::host::Role;
use fairweir_core::policy::{Branch, Group, Policy};
use fairweir_core::receiver::{Control, GroupDecision, GroupTotals};
use fairweir_core::units::{Rate, Span, Time};

use super::daemon::Daemon;
use super::point::Point;
use super::sites::evidence_status;
use super::upload::Upload;
use super::windows::{Count, Seen};
use super::wire::{
    ConnectionStatus, Connections, DelayStatus, EvidenceStatus, GroupStatus, LimitedBy, PlanStatus,
    Status, TimedStatus, WithinStatus,
};

/// General limits of fairweir, on any kernel.
fn limits(role: Role) -> [&'static str; 2] {
    match role {
        Role::Host => [
            "forwarded traffic (containers, virtual machines) has no local socket and is matched by \
             address and port only",
            "tunnels hide their contents",
        ],
        Role::Router => [
            "connections opened before the daemon started are limited by classes alone",
            "what the router itself downloads is not shaped",
        ],
    }
}

/// The connections of the last tick, at most `limit`, those that received most first. Names of
/// hosts are included only `with_names`.
pub(super) fn connections(daemon: &Daemon, limit: usize, with_names: bool) -> Connections {
    let groups = daemon.settings.policy().groups();
    let mut seen: Vec<&Seen> = daemon.windows.seen.iter().collect();
    seen.sort_by_key(|seen| std::cmp::Reverse((seen.sample.received, seen.sample.id)));
    let all = seen.len();
    seen.truncate(limit);
    let ids = seen.iter().map(|seen| seen.sample.id).collect();
    let evidence = daemon.host.as_ref().map(|point| daemon.sites.evidence(point, &ids));
    let evidence = evidence.unwrap_or_default();
    let status = |seen: &&Seen| {
        let group = groups.get(seen.sample.group).map_or("", |group| group.name.as_str());
        let evidence = evidence.get(&seen.sample.id);
        let evidence = evidence.map(|evidence| evidence_status(evidence, with_names));
        connection_status(seen, group, daemon.windows.interval, evidence)
    };
    Connections { all, connections: seen.iter().map(status).collect() }
}

fn connection_status(
    seen: &Seen,
    group: &str,
    interval: Span,
    evidence: Option<EvidenceStatus>,
) -> ConnectionStatus {
    let sample = &seen.sample;
    let rate = Rate::from_volume(sample.received, interval);
    let ceiling = sample.rtt.filter(|rtt| *rtt > Span::ZERO);
    let ceiling = ceiling.map(|rtt| Rate::from_volume(sample.window, rtt));
    let fills_window = ceiling.is_some_and(|most| rate >= most.scale(FILLS.0, FILLS.1));
    ConnectionStatus {
        id: sample.id,
        group: group.to_owned(),
        port: sample.port,
        rate_bps: rate,
        rtt_ms: sample.rtt.map(Span::as_millis_f64),
        window_bytes: sample.window,
        limited_by: match (fills_window, seen.is_bounded) {
            (true, true) => LimitedBy::Share,
            (true, false) => LimitedBy::Buffer,
            (false, _) => LimitedBy::Sender,
        },
        evidence,
    }
}

/// A connection whose rate is at least this fraction of window / RTT fills its window. The window
/// is a little larger than the data in flight, and the RTT lags.
const FILLS: (u64, u64) = (7, 10);

/// The status at `now`.
pub(super) fn status(daemon: &Daemon, now: Time) -> Status {
    let settings = &daemon.settings;
    let decision = daemon.control.decision();
    let groups = settings.policy().groups();
    // After a reload the decision is for the old groups until the next tick.
    let decided = Some(&decision.groups).filter(|d| d.len() == groups.len());
    let count = |i: usize| daemon.windows.counts.get(i).copied().unwrap_or_default();
    let timed = |path: &str| daemon.timed_status(path);
    let plan = |path: &str| daemon.quotas.status(path, &settings.configured.plans);
    let within = within(settings.policy(), (&timed, &plan));
    let group = |(i, group): (usize, &Group)| GroupStatus {
        within: within[i].clone(),
        timed: timed(&group.name),
        plan: plan(&group.name),
        ..group_status(group, decided.map(|d| d[i]), &daemon.control.totals()[i], count(i))
    };
    let mut host_limits = daemon.host.as_ref().map(Point::limits).unwrap_or_default();
    // A control that already knows the capacity can work without samples for a while.
    let learns_by_delay = settings.control() == Control::Fairweir && decision.capacity.is_none();
    host_limits.extend(daemon.delay.limit().filter(|_| learns_by_delay));
    if !settings.shares_upload() {
        host_limits.push("upload is not shaped".to_owned());
    }
    let floors: Rate = settings.policy().branches().iter().map(Branch::floor).sum();
    if let Some(capacity) = decision.capacity.filter(|capacity| floors > *capacity) {
        host_limits.push(format!(
            "`min` of all groups sum to {floors}, and the link carries {capacity}: each has its part of that"
        ));
    }
    host_limits.extend(daemon.quotas.limits());
    host_limits.extend(daemon.upload.iter().flat_map(Upload::limits).map(str::to_owned));
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dev: settings.dev.clone(),
        link: (settings.wans().count() > 1).then(|| daemon.link_dev().to_owned()),
        pid: std::process::id(),
        run: daemon.run.clone(),
        ready: daemon.host.is_some(),
        control: settings.control(),
        dry_run: settings.dry_run,
        paused: settings.config.host.paused,
        enforcing: daemon.enforces(),
        divider: daemon.peers.status().or_else(|| daemon.divider.status(settings, now)),
        open_reason: daemon.fail_open.as_ref().map(|o| o.reason.clone()),
        capacity_bps: decision.capacity,
        guaranteed_bps: daemon.guarantee.rate(),
        held_bps: daemon.guarantee.bound().filter(|_| daemon.enforces()),
        latency_ms: daemon.control.controller().queue_target().map(Span::as_millis_f64),
        remembered: daemon.remembered,
        network: daemon.network.clone(),
        since_s: now.since(daemon.started).as_secs_f64(),
        act: decision.act,
        reason: daemon.reason(&decision.act),
        changes: daemon.changes.iter().cloned().collect(),
        groups: groups.iter().enumerate().map(group).collect(),
        limits: limits(settings.role).into_iter().map(str::to_owned).chain(host_limits).collect(),
        delay: decision.delay.map(|delay| DelayStatus {
            mean_ms: delay.value.as_millis_f64(),
            least_ms: delay.least.as_millis_f64(),
            source: delay.source,
            samples: delay.samples,
        }),
        connections: daemon.windows.counts.iter().map(|c| c.connections).sum(),
        bounded_connections: daemon.windows.counts.iter().map(|c| c.bounded).sum(),
        sites: daemon.sites.status(daemon.host.as_ref(), now),
        probe: daemon.delay.status(),
        own_received_bytes: daemon.host.as_ref().and_then(Point::own_traffic),
        hosts: daemon.leases.as_ref().map(|leases| leases.status(settings.policy())),
        clients: daemon.devices.as_ref().map(|devices| devices.status(daemon, now)),
        upload: daemon.upload.as_ref().map(|upload| upload.status(settings)),
        config_error: daemon.config_error.clone(),
    }
}

/// For a path: the temporary change and the calendar of that group, which the policy does not have.
type Own<'a> = (&'a dyn Fn(&str) -> Option<TimedStatus>, &'a dyn Fn(&str) -> Option<PlanStatus>);

/// The groups that contain each leaf of `policy`, the outermost first.
fn within(policy: &Policy, own: Own<'_>) -> Vec<Vec<WithinStatus>> {
    fn add(
        branches: &[Branch],
        above: &[WithinStatus],
        (timed, plan): Own<'_>,
        all: &mut Vec<Vec<WithinStatus>>,
    ) {
        for Branch { group, beneath } in branches {
            if beneath.is_empty() {
                all.push(above.to_vec());
                continue;
            }
            let path = above.last().map(|above| format!("{}/", above.name)).unwrap_or_default();
            let name = path + &group.name;
            let own = WithinStatus {
                timed: timed(&name),
                plan: plan(&name),
                name,
                weight: group.weight,
                max_bps: group.max,
                min_bps: group.min,
            };
            add(beneath, &[above, &[own]].concat(), (timed, plan), all);
        }
    }
    let mut all = Vec::new();
    add(policy.branches(), &[], own, &mut all);
    all
}

fn group_status(
    group: &Group,
    decision: Option<GroupDecision>,
    totals: &GroupTotals,
    count: Count,
) -> GroupStatus {
    GroupStatus {
        name: group.name.clone(),
        weight: group.weight,
        max_bps: group.max,
        min_bps: group.min,
        timed: None,
        plan: None,
        within: Vec::new(),
        matches: group.matches.clone(),
        // The rate of a group is measured even while nothing is decided.
        decision: GroupDecision { rate: totals.rate, ..decision.unwrap_or_default() },
        received_bytes: totals.sum.received,
        drops: totals.sum.drops,
        backlog_bytes: totals.sum.backlog,
        connections: count.connections,
        bounded_connections: count.bounded,
    }
}
