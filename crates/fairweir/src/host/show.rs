//! The status of `fairweir host` as text for people.

use std::io::{self, Write};

use fairweir_core::receiver::GroupState;
use fairweir_core::units::{Bytes, Rate};

use super::wire::{
    DeviceClientStatus, GroupStatus, HostStatus, PlanStatus, ProbeStatus, SitesStatus, Status,
    UploadStatus, WithinStatus,
};
use crate::table::{self, Align};
use crate::words::{count, mbit};

/// The device, the control, the capacity and whether downloads are shaped, on one line.
pub(crate) fn headline(status: &Status) -> String {
    let doing = match (&status.open_reason, status.enforcing, status.dry_run) {
        (Some(_), ..) => "all traffic passes unshaped",
        (None, _, true) => "dry run: enforcing nothing",
        (None, ..) if status.divider.as_ref().is_some_and(|divider| divider.divides) => {
            "another divides"
        }
        (None, ..) if status.paused => "paused: all traffic passes unshaped",
        (None, true, false) => "enforcing",
        (None, false, false) => "not enforcing",
    };
    let capacity = match status.capacity_bps {
        Some(rate) => format!("capacity {}", mbit(rate.as_bps())),
        None => "capacity unknown".to_owned(),
    };
    let minutes = status.since_s as u64 / 60;
    let link = status.link.as_ref().filter(|link| **link != status.dev);
    let by = link.map(|link| format!(" by {link}")).unwrap_or_default();
    format!("{}{by}  {}  {capacity}  {doing}  up {minutes} min", status.dev, status.control)
}

/// The reason for the last act other than `measure`, which is the act of most ticks.
pub(crate) fn last_reason(status: &Status) -> &str {
    status.changes.last().map_or(&status.reason, |change| &change.reason)
}

/// Notes for people below the table.
pub(crate) fn notes(status: &Status) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    if let Some(reason) = &status.open_reason {
        notes.push(("unshaped", reason.clone()));
    }
    notes.extend(status.divider.as_ref().map(|divider| ("divider", divider.words.clone())));
    for DeviceClientStatus { device, address, classes, bound, refused, .. } in
        status.clients.iter().flatten()
    {
        let bound = count(*bound, "flow");
        let mut note = format!("{device} as {address} asks: {classes} classes, {bound} in them");
        if *refused > 0 {
            note.push_str(&format!("; {refused} marks found no room"));
        }
        notes.push(("divided", note));
    }
    if let Some(error) = &status.config_error {
        notes.push(("configuration error", error.clone()));
    }
    if let Some(remembered) = status.remembered {
        let (capacity, hours) = (mbit(remembered.capacity_bps.as_bps()), remembered.age_s / 3600);
        let network = status.network.as_deref().unwrap_or("this network");
        notes
            .push(("stored capacity", format!("{capacity} for {network}, {hours} h old at start")));
    }
    if let Some(delay) = &status.delay {
        let of = format!("{}, {}", delay.source, count(delay.samples as usize, "sample"));
        notes.push(("queue at the ISP", format!("{:.1} ms ({of})", delay.mean_ms)));
    }
    notes.extend(caps_note(status).map(|note| ("max", note)));
    notes.extend(floors_note(status).map(|note| ("min", note)));
    let mut timed: Vec<String> = Vec::new();
    for group in &status.groups {
        let within = group.within.iter().map(|within| (&within.name, &within.timed));
        for (name, change) in within.chain([(&group.name, &group.timed)]) {
            let Some(change) = change else { continue };
            let note = format!("{name}: {}", change.in_words());
            if !timed.contains(&note) {
                timed.push(note);
            }
        }
    }
    notes.extend(timed.into_iter().map(|note| ("for a time", note)));
    for (name, plan) in plans(&status.groups) {
        let quota =
            plan.quota.iter().map(|quota| ("quota", format!("{name}: {}", quota.in_words())));
        let entries = plan.schedule.iter().map(|entry| ("schedule", format!("{name}: {entry}")));
        notes.extend(quota.chain(entries));
    }
    if status.connections > 0 {
        let (all, bounded) = (status.connections, status.bounded_connections);
        notes.push(("connections", format!("{all}, {bounded} with a limited receive window")));
    }
    notes.extend(status.sites.as_ref().map(|sites| ("sites", sites_note(sites))));
    if let Some(own) = status.own_received_bytes {
        notes.push(("for the router itself", own.to_string()));
    }
    for host in status.hosts.iter().flatten() {
        let HostStatus { name, group, mac, rivals } = host;
        let whose = mac.map_or("no device by DHCP".to_owned(), |mac| mac.to_string());
        let others = match rivals {
            0 => String::new(),
            others => format!("; claimed by {} too", count(*others, "other device")),
        };
        notes.push(("host", format!("{name} ({group}): {whose}{others}")));
    }
    notes.extend(
        status.upload.as_ref().map(|upload| ("upload", upload_note(upload, status.dry_run))),
    );
    notes.extend(status.probe.as_ref().map(|probe| ("probe", probe_note(probe))));
    notes.extend(status.limits.iter().map(|limit| ("limit", limit.clone())));
    notes
}

/// The quotas and schedules of groups and of those that contain them, each once.
pub(super) fn plans(groups: &[GroupStatus]) -> Vec<(&str, &PlanStatus)> {
    let mut plans: Vec<(&str, &PlanStatus)> = Vec::new();
    for group in groups {
        let within = group.within.iter().map(|within| (&within.name, &within.plan));
        for (name, plan) in within.chain([(&group.name, &group.plan)]) {
            let plan = plan.as_ref().map(|plan| (name.as_str(), plan));
            plans.extend(plan.filter(|(name, _)| plans.iter().all(|(other, _)| other != name)));
        }
    }
    plans
}

/// The caps, and which of them limit a group now.
fn caps_note(status: &Status) -> Option<String> {
    let mut caps: Vec<String> = Vec::new();
    let mut add = |name: &str, max: Rate, limits: bool| {
        let word = if limits { " (limits)" } else { "" };
        let note = format!("{name} {}{word}", mbit(max.as_bps()));
        if !caps.contains(&note) {
            caps.push(note);
        }
    };
    for group in &status.groups {
        for WithinStatus { name, max_bps, .. } in &group.within {
            let Some(max) = *max_bps else { continue };
            let beneath =
                || status.groups.iter().filter(|g| g.within.iter().any(|w| w.name == *name));
            let sum: Rate = beneath().map(|g| g.decision.share).sum();
            let is_capped = beneath().any(|g| g.decision.state == GroupState::Capped);
            add(name, max, is_capped && sum >= max);
        }
        if let Some(max) = group.max_bps {
            let is_capped = group.decision.state == GroupState::Capped;
            add(&group.name, max, is_capped && group.decision.share >= max);
        }
    }
    let held = if status.enforcing || caps.is_empty() { "" } else { "; not in force" };
    (!caps.is_empty()).then(|| format!("{}{held}", caps.join(", ")))
}

/// The floors, and whether they are met.
fn floors_note(status: &Status) -> Option<String> {
    let mut floors = Vec::new();
    let mut add = |name: &str, min: Option<Rate>| {
        let floor = min.map(|min| format!("{name} {}", mbit(min.as_bps())));
        floors.extend(floor.filter(|floor| !floors.contains(floor)));
    };
    for group in &status.groups {
        for within in &group.within {
            add(&within.name, within.min_bps);
        }
        add(&group.name, group.min_bps);
    }
    let holds = status.enforcing && status.capacity_bps.is_some();
    let held = if holds {
        ""
    } else {
        "; not in force while the capacity is unknown or nothing is enforced"
    };
    (!floors.is_empty()).then(|| format!("{}{held}", floors.join(", ")))
}

/// How connections were assigned to sites, and which cannot be.
fn sites_note(sites: &SitesStatus) -> String {
    let decided = sites.by_evidence().map(|(evidence, count)| format!("{count} {evidence}"));
    let mut note = format!("{}, {} undecided", decided.join(", "), sites.undecided);
    let more = [
        (sites.ech, "with an encrypted ClientHello"),
        (sites.encrypted_dns, "for DNS over TLS"),
        (sites.lost, "lost"),
        (sites.claims.users, "users with the browser extension"),
        (sites.claims.refused(), "messages of extensions refused"),
    ];
    for (count, what) in more.into_iter().filter(|(count, _)| *count > 0) {
        note.push_str(&format!("; {count} {what}"));
    }
    note
}

/// The upload's limit, its queue, and what each group sends.
pub(super) fn upload_note(upload: &UploadStatus, dry_run: bool) -> String {
    let mut note = match upload.limit_bps {
        Some(limit) if dry_run => format!("would be limited to {}", mbit(limit.as_bps())),
        Some(limit) if upload.enforcing => format!("limited to {}", mbit(limit.as_bps())),
        _ => "not limited".to_owned(),
    };
    match upload.capacity_bps {
        Some(capacity) => note.push_str(&format!(", capacity {}", mbit(capacity.as_bps()))),
        None => note.push_str(", capacity unknown"),
    }
    if let Some(ms) = upload.queue_ms {
        note.push_str(&format!(", queue {ms:.1} ms"));
    }
    for group in upload.groups.iter().filter(|group| group.rate_bps > Rate::ZERO) {
        note.push_str(&format!("; {} {}", group.name, mbit(group.rate_bps.as_bps())));
        if let Some(share) = group.share_bps.filter(|_| dry_run) {
            note.push_str(&format!(" (share {})", mbit(share.as_bps())));
        }
    }
    note
}

/// The reflector, how often it replied and how fast.
fn probe_note(probe: &ProbeStatus) -> String {
    let mut note = match &probe.reflector {
        Some(reflector) => {
            format!("{reflector} answered {} of {} requests", probe.answered, probe.sent)
        }
        None => "no reflector found".to_owned(),
    };
    if let Some(ms) = probe.rtt_last_ms {
        note.push_str(&format!(", last RTT {ms:.1} ms"));
    }
    if let Some(error) = &probe.error {
        note.push_str(&format!("; {error}"));
    }
    note
}

/// Prints the groups of `status`, one per line.
pub(crate) fn print_groups(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let row = |group: &GroupStatus| {
        let rate = |rate: Rate| mbit(rate.as_bps());
        let or_dash = |optional: Option<Rate>| optional.map_or_else(|| "-".to_owned(), rate);
        let decision = &group.decision;
        vec![
            group.name.clone(),
            group.weight.to_string(),
            rate(decision.rate),
            rate(decision.share),
            or_dash(decision.demand),
            or_dash(decision.ceil),
            decision.state.to_string(),
            group.drops.to_string(),
            group.backlog_bytes.to_string(),
            group.received_bytes.to_string(),
        ]
    };
    let headings = [
        ("GROUP", Align::Left),
        ("WEIGHT", Align::Right),
        ("RATE", Align::Right),
        ("SHARE", Align::Right),
        ("DEMAND", Align::Right),
        ("CEIL", Align::Right),
        ("STATE", Align::Left),
        ("DROPS", Align::Right),
        ("BACKLOG", Align::Right),
        ("RECEIVED", Align::Right),
    ];
    let mut rows = Vec::new();
    let mut above: &[WithinStatus] = &[];
    for group in &status.groups {
        let known = above.iter().zip(&group.within).take_while(|(a, b)| a == b).count();
        rows.extend(group.within[known..].iter().map(|within| sum_row(within, &status.groups)));
        above = &group.within;
        rows.push(row(group));
    }
    table::print(out, &headings, &rows)
}

/// The sums of the groups of a device.
fn sum_row(within: &WithinStatus, groups: &[GroupStatus]) -> Vec<String> {
    let own = || groups.iter().filter(|group| group.within.contains(within));
    let rate = |of: fn(&GroupStatus) -> Rate| mbit(own().map(of).sum::<Rate>().as_bps());
    let bytes = |of: fn(&GroupStatus) -> Bytes| own().map(of).sum::<Bytes>().to_string();
    let dash = || "-".to_owned();
    vec![
        within.name.clone(),
        within.weight.to_string(),
        rate(|g| g.decision.rate),
        rate(|g| g.decision.share),
        dash(),
        dash(),
        String::new(),
        own().map(|g| g.drops).sum::<u64>().to_string(),
        bytes(|g| g.backlog_bytes),
        bytes(|g| g.received_bytes),
    ]
}
