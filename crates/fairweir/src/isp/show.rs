//! Text output about files and the daemon: check, dry run, status, a subscriber, plans.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use fairweir_config::isp::address::address_text;
use fairweir_config::isp::{Endpoint, IspFile, SegmentEntry};
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_daemon::{Access, StateDir, unix_now};
use serde_json::{Value, json};

use super::asker::Asker;
use super::assemble::assemble;
use super::cli::{DaemonArgs, ShowArgs, StatusArgs, UnpolicedArgs};
use super::journal::{self, Overlay};
use super::kernel::ways;
use super::nat;
use super::registry::{PlanRecord, Registry};
use super::report::hook_status;
use super::segments::matching;
use super::wire::{
    ClientClass, ClientStatus, CoaStatus, LeasesStatus, NasStatus, RadiusStatus, Request,
    SessionStatus, Status, SubscriberCounters, SubscriberStatus, TotalsStatus, Unpoliced,
    UnpolicedStatus, UsageStatus,
};
use crate::device::note_missing;
use crate::exit::usage;
use crate::progress::Count;
use crate::table::{self, Align};
use crate::words::{count, lasting, mbit};
use fairweir_config::{FileKind, text};

/// `fairweir check` of an ISP's file.
pub(crate) fn check(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let mut file = IspFile::load(path)?;
    let registry = counted(&mut file, &Overlay::default())?;
    print(&file, &registry, as_json)
}

/// `fairweir isp --dry-run`: like [`check`], with the API's changes and the way to attach.
pub(super) fn dry_run(args: &DaemonArgs) -> anyhow::Result<()> {
    let mut file = IspFile::load(&args.config)?;
    let (overlay, left) = journal::look(&StateDir::new(&args.state.state_dir))?;
    if let Some(left) = left {
        eprintln!("warning: the journal in {}: line {left}", args.state.state_dir.display());
    }
    let registry = counted(&mut file, &overlay)?;
    for device in [Some(&file.isp.device), file.isp.uplink.as_ref()].into_iter().flatten() {
        crate::device::check_exists(device)?;
    }
    print(&file, &registry, args.json)
}

/// The registry; shows progress if building it takes long.
fn counted(file: &mut IspFile, overlay: &Overlay) -> anyhow::Result<Registry> {
    let count = Count::new("checked", "subscribers");
    let registry = assemble(file, overlay, &mut |done, of| count.show(done, of));
    count.end();
    registry.map_err(usage)
}

fn print(file: &IspFile, registry: &Registry, as_json: bool) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    if as_json {
        writeln!(out, "{}", understood(file, registry))?;
        return Ok(());
    }
    writeln!(out, "read {}", file.path.display())?;
    if let Some(table) = &file.table {
        writeln!(out, "read {}", table.display())?;
    }
    let mut ways = ways(&file.isp).into_iter().map(|way| {
        let hooks = way.iter().map(hook_status);
        let words = hooks.map(|h| format!("{} at {} ({})", h.direction, h.device, h.hook));
        words.collect::<Vec<_>>().join(", ")
    });
    writeln!(out, "polices {}", ways.next().unwrap_or_default())?;
    for way in ways {
        writeln!(out, "  or else {way}")?;
    }
    if let Some(metrics) = file.isp.metrics {
        writeln!(out, "serves metrics at {metrics}")?;
    }
    let (subscribers, addresses) = (registry.subscribers().len(), registry.address_count());
    let subscribers = count(subscribers, "subscriber");
    match addresses {
        1 => writeln!(out, "{subscribers} with 1 address\n")?,
        n => writeln!(out, "{subscribers} with {n} addresses\n")?,
    }
    if let Some(Endpoint { listen, clients, .. }) = file.radius.as_ref().map(|r| &r.endpoint) {
        let clients = count(clients.len(), "client");
        writeln!(out, "takes sessions by RADIUS accounting at {listen} from {clients}")?;
    }
    if let Some(Endpoint { listen, clients, .. }) = file.coa.as_ref().map(|coa| &coa.endpoint) {
        let clients = count(clients.len(), "client");
        writeln!(out, "takes CoA and Disconnect requests at {listen} from {clients}")?;
    }
    for leases in file.leases.iter().flat_map(|leases| &leases.files) {
        writeln!(out, "takes devices from the leases in {}", leases.display())?;
    }
    if let Some(usage) = &file.usage {
        let (interval, days) = (usage.interval, usage.days);
        let to = usage.collector.map(|to| format!("; IPFIX to {to}")).unwrap_or_default();
        writeln!(out, "writes usage every {interval}, kept for {days} days{to}")?;
    }
    print_plans(out, registry)?;
    print_segments(out, file, registry)?;
    for warning in warnings(file, registry) {
        writeln!(out, "warning: {warning}")?;
    }
    note_missing(out, [Some(&file.isp.device), file.isp.uplink.as_ref()].into_iter().flatten())?;
    Ok(())
}

fn print_plans(out: &mut impl Write, registry: &Registry) -> io::Result<()> {
    let row = |record: &PlanRecord| {
        let entry = &record.entry;
        vec![
            entry.name.clone(),
            or_dash(entry.download),
            or_dash(entry.upload),
            record.users.to_string(),
            entry.signal.to_string(),
            entry.rtt_max.to_string(),
            entry.policy(),
        ]
    };
    let headings = [
        ("PLAN", Align::Left),
        ("DOWNLOAD", Align::Right),
        ("UPLOAD", Align::Right),
        ("SUBSCRIBERS", Align::Right),
        ("SIGNAL", Align::Left),
        ("RTT", Align::Right),
        ("SHARED BY", Align::Left),
    ];
    table::print(out, &headings, &registry.plans().values().map(row).collect::<Vec<_>>())
}

fn print_segments(out: &mut impl Write, file: &IspFile, registry: &Registry) -> io::Result<()> {
    let row = |segment: &SegmentEntry| {
        let [download, upload] = segment.capacity.map(or_dash);
        let members = matching(&segment.members, registry).len();
        let guarantees =
            segment.guarantee.map(|rate| or_dash((rate != Rate::ZERO).then_some(rate)));
        vec![segment.name.clone(), download, upload, members.to_string(), guarantees.join(" ")]
    };
    let headings = [
        ("SEGMENT", Align::Left),
        ("DOWNLOAD", Align::Right),
        ("UPLOAD", Align::Right),
        ("MEMBERS", Align::Right),
        ("GUARANTEES", Align::Left),
    ];
    if file.segments.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    table::print(out, &headings, &file.segments.iter().map(row).collect::<Vec<_>>())
}

fn or_dash(rate: Option<Rate>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string())
}

fn warnings(file: &IspFile, registry: &Registry) -> Vec<String> {
    let mut warnings = Vec::new();
    let empty = file.segments.iter().filter(|s| matching(&s.members, registry).is_empty());
    warnings.extend(
        empty.map(|s| format!("segment `{}`: no subscriber is one of its members", s.name)),
    );
    for (name, record) in registry.plans() {
        if record.users == 0 {
            warnings.push(format!("plan `{name}` has no subscribers"));
        }
    }
    if registry.subscribers().is_empty() && file.radius.is_none() && file.leases.is_none() {
        warnings.push("no subscribers: all traffic passes".to_owned());
    }
    warnings.extend(nat::look(&file.isp, registry));
    if registry.plans().is_empty() {
        warnings.push("no [[plan]]: no subscriber can be added".to_owned());
    }
    let overlaid = registry.subscribers().values().filter(|r| r.origin.is_of_api()).count();
    let hidden = registry.hidden().subscribers.len();
    if overlaid + hidden > 0 {
        warnings.push(format!(
            "{overlaid} subscribers were changed and {hidden} of the file removed by commands; \
             `fairweir isp revert` undoes this"
        ));
    }
    warnings
}

fn understood(file: &IspFile, registry: &Registry) -> Value {
    let plans: Vec<Value> = registry
        .plans()
        .values()
        .map(|record| {
            let mut plan = record.entry.to_json();
            plan["subscribers"] = json!(record.users);
            plan
        })
        .collect();
    let files = [Some(&file.path), file.table.as_ref()];
    let files: Vec<_> = files.into_iter().flatten().collect();
    let way = |way: &Vec<_>| way.iter().map(hook_status).collect::<Vec<_>>();
    json!({
        "kind": FileKind::Isp.to_string(),
        "files": files,
        "device": file.isp.device,
        "uplink": file.isp.uplink,
        "hook": file.isp.hook.name(),
        "ways": ways(&file.isp).iter().map(way).collect::<Vec<_>>(),
        "overhead": file.isp.overhead,
        "group": file.isp.group.as_ref().map(|(name, _)| name),
        "metrics": file.isp.metrics.map(|address| address.to_string()),
        "subscribers": registry.subscribers().len(),
        "addresses": registry.address_count(),
        "plans": plans,
        "segments": file.segments.iter().map(|s| segment_json(s, registry)).collect::<Vec<_>>(),
        "radius": file.radius.as_ref().map(|radius| json!({
            "listen": radius.endpoint.listen,
            "clients": radius.endpoint.clients.iter().map(address_text).collect::<Vec<_>>(),
            "plan": radius.plan,
            "plan_by": radius.plan_by.iter().map(|source| source.name()).collect::<Vec<_>>(),
            "stale_after_s": radius.stale_after.map(Span::as_secs_f64),
        })),
        "coa": file.coa.as_ref().map(|coa| json!({
            "listen": coa.endpoint.listen,
            "clients": coa.endpoint.clients.iter().map(address_text).collect::<Vec<_>>(),
            "strict": coa.strict,
        })),
        "usage": file.usage.map(|usage| json!({
            "interval_s": usage.interval.as_secs_f64(),
            "days": usage.days,
            "collector": usage.collector.map(|collector| collector.to_string()),
        })),
        "leases": file.leases.as_ref().map(|l| json!({ "files": l.files, "plan": l.plan })),
        "warnings": warnings(file, registry),
    })
}

fn segment_json(segment: &SegmentEntry, registry: &Registry) -> Value {
    let [download, upload] = segment.capacity;
    let [guarantee_download, guarantee_upload] = segment.guarantee;
    json!({
        "name": segment.name,
        "download_bps": download.map(|rate| rate.as_bps()),
        "upload_bps": upload.map(|rate| rate.as_bps()),
        "guarantee_download_bps": guarantee_download.as_bps(),
        "guarantee_upload_bps": guarantee_upload.as_bps(),
        "matching": matching(&segment.members, registry).len(),
    })
}

// ------------------------------------------------------------------------------------------------
// Of the daemon

/// `fairweir isp status`.
pub(super) fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let out = &mut text::stdout();
    if args.json {
        let status: Value = asker.ask(&fairweir_daemon::Request::Status)?;
        if status["ok"] == false {
            anyhow::bail!("{}", status["message"].as_str().unwrap_or_default());
        }
        writeln!(out, "{status}")?;
        return Ok(());
    }
    let status: Status = asker.ask(&fairweir_daemon::Request::Status)?;
    writeln!(out, "{}\n", headline(&status))?;
    print_status(out, &status)?;
    print_bundle_status(out, &status)?;
    print_segment_status(out, &status)?;
    writeln!(out)?;
    for note in notes(&status) {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

/// The device, the hooks and the mode, on one line.
pub(crate) fn headline(status: &Status) -> String {
    let doing = if status.enforcing { "policing" } else { "everything passes" };
    let hook = status.hooks.first().map_or("no hook", |hook| &hook.hook).replace('_', " ");
    let minutes = status.since_s as u64 / 60;
    let subscribers = count(status.subscribers, "subscriber");
    let who = format!("{subscribers}, {}", count(status.plans.len(), "plan"));
    format!("{}  {hook}  {who}  {doing}  up {minutes} min", status.device)
}

/// The most unpoliced sessions in the output for people; `--json` has more.
const UNPOLICED_SHOWN: usize = 10;

/// The most access servers in the output for people.
const NAS_SHOWN: usize = 10;

/// Notes for people below the table.
pub(crate) fn notes(status: &Status) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(reason) = &status.open_reason {
        notes.push(format!("all traffic passes: {reason}"));
    }
    notes.push(match (status.watchdog_s, &status.keep_error) {
        (Some(s), _) => format!(
            "if the daemon ends, policing goes on for {s:.0} s; `fairweir isp off` opens at once"
        ),
        (None, None) => "if the daemon ends, all traffic passes".to_owned(),
        (None, Some(e)) => {
            format!("if the daemon ends, all traffic passes, although `when_gone` is \"keep\": {e}")
        }
    });
    if let Some(error) = &status.config_error {
        notes.push(format!("the file is not in force: {error}"));
    }
    if let Some(error) = &status.journal_error {
        notes.push(format!("changes by commands or sessions are missing: {error}"));
    }
    if let Some(error) = &status.nat_error {
        notes.push(format!("downloads are not policed: {error}"));
    }
    if let Some(radius) = &status.radius {
        let RadiusStatus { listen, sessions, packets, dropped_packets, .. } = radius;
        let taken = ["taken", "repeated", "status", "ignored"];
        let packets = packet_counts(packets, "taken", &taken, *dropped_packets);
        notes.push(format!("RADIUS at {listen}: {}, {packets}", count(*sessions, "session")));
        notes.extend(radius.note.clone());
        for one in radius.nas.iter().take(NAS_SHOWN) {
            let NasStatus { nas, sessions, silent_s, packets, refused } = one;
            let (sessions, last) = (count(*sessions, "session"), last_packet(*silent_s));
            let counts = |map: &BTreeMap<String, u64>| {
                map.iter().map(|(name, n)| format!(", {n} {name}")).collect::<String>()
            };
            let refused = match counts(refused) {
                none if none.is_empty() => none,
                some => format!("; without effect{some}"),
            };
            notes.push(format!("  NAS {nas}: {sessions}, {last}{}{refused}", counts(packets)));
        }
        if radius.silent > 0 {
            let silent = count(radius.silent, "session");
            notes.push(format!("silent but policed: {silent} (`fairweir isp unpoliced --silent`)"));
        }
    }
    if let Some(CoaStatus { listen, packets, dropped_packets }) = &status.coa {
        let of = |result: &str| packets.get(result).copied().unwrap_or_default();
        let done = format!("{} sessions changed, {} ended", of("changed"), of("disconnected"));
        let taken = ["changed", "disconnected", "repeated"];
        let packets = packet_counts(packets, "repeated", &taken, *dropped_packets);
        notes.push(format!("CoA at {listen}: {done}, {packets}"));
    }
    let unpoliced: usize = status.unpoliced_by_reason.values().sum();
    if unpoliced > 0 {
        let number = count(unpoliced, "session or lease");
        notes.push(format!("not policed: {number} (`fairweir isp unpoliced` lists all)"));
    }
    for one in status.unpoliced.iter().take(UNPOLICED_SHOWN) {
        let UnpolicedStatus { subscriber, session, nas, addresses, reason, since_s, .. } = one;
        let addresses = addresses.join(" ");
        notes.push(format!(
            "  {subscriber} {addresses}: {reason} (session {session}, NAS {nas}, since {since_s})"
        ));
    }
    if let Some(UsageStatus { error, collector, .. }) = &status.usage {
        notes.extend(error.iter().map(|error| format!("usage is not written: {error}")));
        let error = collector.iter().filter_map(|collector| collector.error.as_ref());
        notes.extend(error.map(|error| format!("usage is not sent: {error}")));
    }
    if let Some(LeasesStatus { devices, refused, error, .. }) = &status.leases {
        let error = error.as_ref().map(|e| format!("; not taken over: {e}")).unwrap_or_default();
        let devices = count(*devices, "device");
        notes.push(format!("leases: {devices}, {refused} refused{error}"));
    }
    let api = &status.api;
    if api.added + api.changed + api.removed > 0 {
        let (added, changed, removed) = (api.added, api.changed, api.removed);
        notes.push(format!("by commands: {added} added, {changed} changed, {removed} removed"));
    }
    let of_nobody = status.unknown.download.passed_bytes + status.unknown.upload.passed_bytes;
    if of_nobody > 0 {
        notes.push(format!("passed from unknown addresses: {}", Bytes::new(of_nobody)));
    }
    if let Some(clients) = &status.clients {
        let agreements = count(clients.agreements, "agreement");
        let error = clients.error.iter().map(|error| format!("; {error}")).collect::<String>();
        notes.push(format!("clients: {agreements} at UDP port {}{error}", clients.port));
    }
    notes.push(format!("memory: {} in the kernel", Bytes::new(status.memory_bytes)));
    notes
}

/// The number of packets with the result `main`, and of those with a result that is not in `taken`.
fn packet_counts(
    packets: &BTreeMap<String, u64>,
    main: &str,
    taken: &[&str],
    dropped: u64,
) -> String {
    let of = |result: &str| packets.get(result).copied().unwrap_or_default();
    let mut text = format!("{} packets {main}", of(main));
    let others = packets.iter().filter(|(result, n)| !taken.contains(&result.as_str()) && **n > 0);
    let others: Vec<String> = others.map(|(result, n)| format!("{n} {result}")).collect();
    if !others.is_empty() {
        text += &format!(", not taken: {}", others.join(", "));
    }
    if dropped > 0 {
        text += &format!("; the kernel dropped {dropped}, as too many waited");
    }
    text
}

fn print_status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let mut rows = Vec::new();
    for plan in &status.plans {
        let both = [
            ("download", plan.rate_bps.download, plan.totals.download),
            ("upload", plan.rate_bps.upload, plan.totals.upload),
        ];
        for (direction, rate, totals) in both {
            let Some(rate) = rate else { continue };
            rows.push(vec![
                plan.name.clone(),
                direction.to_owned(),
                mbit(rate),
                plan.subscribers.to_string(),
                mbit(totals.passed_bps),
                mbit(totals.dropped_bps),
                lost(&totals),
                totals.marked_packets.to_string(),
                Bytes::new(totals.passed_bytes).to_string(),
            ]);
        }
    }
    let headings = [
        ("PLAN", Align::Left),
        ("DIRECTION", Align::Left),
        ("EACH", Align::Right),
        ("SUBSCRIBERS", Align::Right),
        ("PASSES", Align::Right),
        ("DROPPED", Align::Right),
        ("LOSS", Align::Right),
        ("MARKED", Align::Right),
        ("PASSED", Align::Right),
    ];
    table::print(out, &headings, &rows)
}

/// The plans whose bundles have delegated something, or would have.
fn print_bundle_status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let mut rows = Vec::new();
    for plan in &status.plans {
        let both = [("download", plan.totals.download), ("upload", plan.totals.upload)];
        for (direction, totals) in both {
            if totals.delegated_packets + totals.refused_packets > 0 {
                rows.push(vec![
                    plan.name.clone(),
                    direction.to_owned(),
                    Bytes::new(totals.delegated_bytes).to_string(),
                    totals.delegated_packets.to_string(),
                    totals.refused_packets.to_string(),
                ]);
            }
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let headings = [
        ("BUNDLE OF", Align::Left),
        ("DIRECTION", Align::Left),
        ("DELEGATED", Align::Right),
        ("PACKETS", Align::Right),
        ("REFUSED", Align::Right),
    ];
    writeln!(out)?;
    table::print(out, &headings, &rows)
}

fn print_segment_status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let mut rows = Vec::new();
    for segment in &status.segments {
        let both = [("download", segment.used.download), ("upload", segment.used.upload)];
        for (direction, used) in both {
            let Some(used) = used else { continue };
            rows.push(vec![
                segment.name.clone(),
                direction.to_owned(),
                mbit(used.capacity_bps),
                segment.members.to_string(),
                mbit(used.guaranteed_bps),
                mbit(used.passed_bps),
                used.refused_packets.to_string(),
            ]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let headings = [
        ("SEGMENT", Align::Left),
        ("DIRECTION", Align::Left),
        ("CARRIES", Align::Right),
        ("MEMBERS", Align::Right),
        ("GUARANTEED", Align::Right),
        ("PASSES", Align::Right),
        ("REFUSED", Align::Right),
    ];
    writeln!(out)?;
    table::print(out, &headings, &rows)
}

/// The fraction of the packets that was dropped since the start.
fn lost(totals: &TotalsStatus) -> String {
    let all = totals.passed_packets + totals.dropped_packets;
    if all == 0 {
        return "-".to_owned();
    }
    format!("{:.2} %", 100.0 * totals.dropped_packets as f64 / all as f64)
}

/// `fairweir isp show`.
pub(super) fn subscriber(args: &ShowArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let status: SubscriberStatus = asker.ask(&Request::Counters { name: args.name.clone() })?;
    let out = &mut text::stdout();
    if args.json {
        writeln!(out, "{}", json!(status))?;
        return Ok(());
    }
    let origin = status.origin.replace('_', " ");
    let own = status.own_plan.map(|own| format!(" by command or CoA until its end, then {own}"));
    let (name, plan, own) = (status.name, status.plan, own.unwrap_or_default());
    writeln!(out, "{name}  plan {plan}{own}  (said by {origin})")?;
    writeln!(out, "{}", status.addresses.join(" "))?;
    for (direction, counters) in [("download", status.download), ("upload", status.upload)] {
        let Some(SubscriberCounters { plan_bps, passed_bytes, dropped_packets, marked_packets }) =
            counters
        else {
            continue;
        };
        let (rate, passed) = (mbit(plan_bps), Bytes::new(passed_bytes));
        writeln!(
            out,
            "{direction}: {rate}, {passed} passed, {dropped_packets} packets dropped, \
             {marked_packets} marked"
        )?;
    }
    for SessionStatus { session, nas, silent_s } in &status.sessions {
        writeln!(out, "session {session} of NAS {nas}: {}", last_packet(*silent_s))?;
    }
    if let Some(client) = status.client {
        print_client(out, &client)?;
    }
    Ok(())
}

fn last_packet(silent_s: Option<f64>) -> String {
    let ago = |s| format!("last packet {} ago", lasting(s as u64));
    silent_s.map_or_else(|| "no packet since the daemon's start".to_owned(), ago)
}

/// `fairweir isp unpoliced`.
pub(super) fn unpoliced(args: &UnpolicedArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let (mut all, mut has_more) = (Vec::new(), true);
    while has_more {
        let request = Request::Unpoliced { skip: all.len(), silent: args.silent };
        let page: Unpoliced = asker.ask(&request)?;
        has_more = page.has_more && !page.unpoliced.is_empty();
        all.extend(page.unpoliced);
    }
    let out = &mut io::BufWriter::new(text::stdout());
    if args.json {
        for one in &all {
            writeln!(out, "{}", json!(one))?;
        }
        return Ok(out.flush()?);
    }
    let now_s = unix_now();
    let row = |one: &UnpolicedStatus| {
        let ago = lasting(now_s.saturating_sub(one.since_s));
        let who = [&one.subscriber, &one.session, &one.nas].map(Clone::clone);
        [&who[..], &[one.addresses.join(" "), ago, one.reason.clone()]].concat()
    };
    let headings = ["SUBSCRIBER", "SESSION", "NAS", "ADDRESSES", "FOR", "REASON"];
    let headings = headings.map(|heading| (heading, Align::Left));
    table::print(out, &headings, &all.iter().map(row).collect::<Vec<_>>())?;
    Ok(out.flush()?)
}

/// What a host of the subscriber asked for, and the state of its classes.
fn print_client(out: &mut impl Write, client: &ClientStatus) -> io::Result<()> {
    let ClientStatus { address, ends_in_s, classes, default_class, bound, refused } = client;
    let bound = count(*bound, "flow");
    writeln!(
        out,
        "divided as {address} asks, for {ends_in_s:.1} s unless it asks again; {bound} bound, \
         {refused} marks without room"
    )?;
    for (number, class) in classes.iter().enumerate() {
        let ClientClass { weight, passed_bytes, dropped_packets } = class;
        let others = if number == *default_class { ", and all flows without a mark" } else { "" };
        let passed = Bytes::new(*passed_bytes);
        writeln!(
            out,
            "  class {number}: weight {weight}, {passed} passed, {dropped_packets} packets \
             dropped{others}"
        )?;
    }
    Ok(())
}

/// `fairweir isp plan list`.
pub(super) fn plans(args: &StatusArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let out = &mut text::stdout();
    if args.json {
        let answer: Value = asker.ask(&Request::Plans)?;
        for plan in answer["plans"].as_array().into_iter().flatten() {
            writeln!(out, "{plan}")?;
        }
        return Ok(());
    }
    let status: Status = asker.ask(&fairweir_daemon::Request::Status)?;
    let row = |plan: &super::wire::PlanStatus| {
        let or_dash = |bps: Option<u64>| bps.map_or_else(|| "-".to_owned(), mbit);
        vec![
            plan.name.clone(),
            or_dash(plan.rate_bps.download),
            or_dash(plan.rate_bps.upload),
            plan.subscribers.to_string(),
            plan.origin.replace('_', " "),
            plan.policy.clone(),
        ]
    };
    let headings = [
        ("PLAN", Align::Left),
        ("DOWNLOAD", Align::Right),
        ("UPLOAD", Align::Right),
        ("SUBSCRIBERS", Align::Right),
        ("SAID BY", Align::Left),
        ("SHARED BY", Align::Left),
    ];
    table::print(out, &headings, &status.plans.iter().map(row).collect::<Vec<_>>())?;
    Ok(())
}
