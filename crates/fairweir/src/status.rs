//! `fairweir status`: what a running daemon knows and does, as a table.

use std::io::{self, Write};

use fairweir_core::units::Bytes;
use fairweir_daemon::{Access, Request};

use crate::cli::StatusArgs;
use crate::host::client::find;
use crate::table::{self, Align};
use crate::wire::{ProbeStatus, Status};
use crate::words::mbit;

pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let mut client = find(&args.run_dir.run_dir, args.dev.as_deref(), Access::Read)?;
    let out = &mut io::stdout().lock();
    if args.json {
        let status: serde_json::Value = client.ask(&Request::Status)?;
        writeln!(out, "{status}")?;
        return Ok(());
    }
    let status: Status = client.ask(&Request::Status)?;
    writeln!(out, "{}", headline(&status))?;
    writeln!(out, "{}\n", last_reason(&status))?;
    print_groups(out, &status)?;
    writeln!(out)?;
    for (label, text) in notes(&status) {
        writeln!(out, "{label}: {text}")?;
    }
    Ok(())
}

/// Device, control, capacity and what happens to downloads, on one line.
pub(crate) fn headline(status: &Status) -> String {
    let doing = match (&status.open_reason, status.enforcing, status.dry_run) {
        (Some(_), ..) => "everything passes unshaped",
        (None, _, true) => "dry run: touches nothing",
        (None, true, false) => "enforcing",
        (None, false, false) => "not enforcing",
    };
    let capacity = match status.capacity_bps {
        Some(bps) => format!("capacity {}", mbit(bps)),
        None => "capacity not known".to_owned(),
    };
    let minutes = status.since_s as u64 / 60;
    format!("{}  {}  {capacity}  {doing}  up {minutes} min", status.dev, status.control)
}

/// Why things are as they are: the last act other than to measure, which is most of the time only
/// what goes on until the next one.
pub(crate) fn last_reason(status: &Status) -> &str {
    status.changes.last().map_or(&status.reason, |change| &change.reason)
}

/// What the user should know beside the numbers.
pub(crate) fn notes(status: &Status) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    if let Some(reason) = &status.open_reason {
        notes.push(("unshaped", reason.clone()));
    }
    if let Some(error) = &status.config_error {
        notes.push(("configuration not in force", error.clone()));
    }
    if let Some(remembered) = status.remembered {
        let (capacity, hours) = (mbit(remembered.capacity_bps), remembered.age_s / 3600);
        let network = status.network.as_deref().unwrap_or("this network");
        notes.push(("remembered", format!("{capacity} of {network}, {hours} h old at the start")));
    }
    if let Some(delay) = &status.delay {
        let source = delay.source.replace('_', " ");
        let of = format!("by {source}, {} samples", delay.samples);
        notes.push(("queue at the ISP", format!("{:.1} ms ({of})", delay.mean_ms)));
    }
    if status.connections > 0 {
        let (all, bounded) = (status.connections, status.bounded_connections);
        notes.push(("connections", format!("{all}, the windows of {bounded} bounded")));
    }
    notes.extend(status.probe.as_ref().map(|probe| ("probe", probe_note(probe))));
    notes.extend(status.limits.iter().map(|limit| ("limit", limit.clone())));
    notes
}

/// Who answers the probe, how often and how quickly.
fn probe_note(probe: &ProbeStatus) -> String {
    let mut note = match &probe.reflector {
        Some(reflector) => {
            format!("{reflector} answered {} of {} requests", probe.answered, probe.sent)
        }
        None => "nobody behind the link is known to answer".to_owned(),
    };
    if let Some(ms) = probe.rtt_last_ms {
        note.push_str(&format!(", the last within {ms:.1} ms"));
    }
    if let Some(error) = &probe.error {
        note.push_str(&format!("; {error}"));
    }
    note
}

/// The groups of `status`, one per line.
pub(crate) fn print_groups(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let row = |group: &crate::wire::GroupStatus| {
        let or_dash = |bps: Option<u64>| bps.map_or_else(|| "-".to_owned(), mbit);
        vec![
            group.name.clone(),
            group.weight.to_string(),
            mbit(group.rate_bps),
            mbit(group.share_bps),
            or_dash(group.demand_bps),
            or_dash(group.ceil_bps),
            group.state.replace('_', " "),
            group.drops.to_string(),
            Bytes::new(group.backlog_bytes).to_string(),
            Bytes::new(group.received_bytes).to_string(),
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
    table::print(out, &headings, &status.groups.iter().map(row).collect::<Vec<_>>())
}
