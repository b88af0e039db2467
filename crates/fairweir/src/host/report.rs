//! What the daemon tells those who ask.

use fairweir_core::policy::Group;
use fairweir_core::receiver::{Act, GroupDecision, GroupTotals};
use fairweir_core::units::{Span, Time};
use fairweir_linux::Host;

use super::daemon::Daemon;
use super::windows::Count;
use crate::wire::{DelayStatus, GroupStatus, Status};

/// What fairweir on a receiving host does not cover, wherever it runs.
const LIMITS: [&str; 3] = [
    "upload is not shaped",
    "forwarded traffic (containers, virtual machines) has no local socket and is matched by \
     address and port only",
    "tunnels hide their contents",
];

/// The status at `now`.
pub(super) fn status(daemon: &Daemon, now: Time) -> Status {
    let settings = &daemon.settings;
    let decision = daemon.control.decision();
    let groups = settings.policy().groups();
    // After a reload the decision is of the old groups until the next tick.
    let decided = Some(&decision.groups).filter(|d| d.len() == groups.len());
    let count = |i: usize| daemon.windows.counts.get(i).copied().unwrap_or_default();
    let group = |(i, group)| {
        group_status(group, decided.map(|d| d[i]), &daemon.control.totals()[i], count(i))
    };
    let host_limits = daemon.host.as_ref().map(Host::limits).unwrap_or_default();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dev: settings.dev.clone(),
        pid: std::process::id(),
        ready: daemon.host.is_some(),
        control: settings.control(),
        dry_run: settings.dry_run,
        enforcing: daemon.enforces(),
        open_reason: daemon.opening.as_ref().map(|o| o.reason.clone()),
        capacity_bps: decision.capacity,
        latency_ms: daemon.control.controller().queue_target().map(Span::as_millis_f64),
        remembered: daemon.remembered,
        network: daemon.network.clone(),
        since_s: now.since(daemon.started).as_secs_f64(),
        act: decision.act,
        reason: reason(&decision.act, groups),
        changes: daemon.changes.iter().cloned().collect(),
        groups: groups.iter().enumerate().map(group).collect(),
        limits: LIMITS.into_iter().map(str::to_owned).chain(host_limits).collect(),
        delay: decision.delay.map(|delay| DelayStatus {
            mean_ms: delay.value.as_millis_f64(),
            least_ms: delay.least.as_millis_f64(),
            source: delay.source,
            samples: delay.samples,
        }),
        connections: daemon.windows.counts.iter().map(|c| c.connections).sum(),
        bounded_connections: daemon.windows.counts.iter().map(|c| c.bounded).sum(),
        probe: daemon.delay.status(),
        config_error: daemon.config_error.clone(),
    }
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
        matches: group.matches.clone(),
        // A group is measured also while nothing is decided.
        decision: GroupDecision { rate: totals.rate, ..decision.unwrap_or_default() },
        received_bytes: totals.sum.received,
        drops: totals.sum.drops,
        backlog_bytes: totals.sum.backlog,
        connections: count.connections,
        bounded_connections: count.bounded,
    }
}

/// An act names a group by its index; people know it by name.
pub(super) fn reason(act: &Act, groups: &[Group]) -> String {
    let group = match *act {
        Act::Reclaim { group } | Act::Lend { group } | Act::Probe { group, .. } => {
            groups.get(group)
        }
        _ => None,
    };
    group.map_or_else(|| act.to_string(), |g| format!("{act} ({})", g.name))
}
