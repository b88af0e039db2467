//! Asks the daemons for what the page shows: each daemon's numbers, with a sentence where a number needs one.
//!
//! The daemons are asked at most once in [`PERIOD`], however many browsers are open, and not at all while no browser
//! is.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fairweir_core::policy::Match;
use fairweir_core::receiver::GroupState;
use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::{Client, Error, Request};
use fairweir_linux::monotonic_now;
use serde_json::Value;

use super::daemons::Daemons;
use super::household::{self, AgentStatus, ProxyStatus};
use super::operator;
use super::shown::{
    ChangeView, ConnectionView, DaemonView, GroupView, LinkView, Members, TableView, View,
};
use crate::host::client::device_of;
use crate::host::show;
use crate::host::wire::{
    ConnectionStatus, Connections, GroupStatus, HostRequest, LimitedBy, Status, UploadGroupStatus,
    UploadStatus,
};
use crate::instance::{MARKET_AGENT, PROXY};
use crate::isp;
use crate::words::mbit;

/// The greatest age of the view that is shown.
pub(super) const PERIOD: Span = Span::millis(900);

/// The most connections of a daemon that are shown.
const CONNECTIONS_MAX: usize = 12;

/// The most changes of a daemon that are shown, the newest first.
const CHANGES_MAX: usize = 8;

/// The most numbers that are shown for a daemon without a view of its own.
const FACTS_MAX: usize = 24;

/// Asks the daemons and caches the view.
pub(super) struct Watcher {
    asked: Mutex<Asked>,
}

struct Asked {
    daemons: Daemons,
    last: Option<(Time, Arc<View>)>,
}

impl Watcher {
    pub(super) fn new(run_dir: &Path) -> Watcher {
        Watcher { asked: Mutex::new(Asked { daemons: Daemons::new(run_dir), last: None }) }
    }

    /// The view to show now. If the cached view is too old, waits for the daemons.
    pub(super) fn view(&self) -> Arc<View> {
        let mut asked = self.asked.lock().unwrap_or_else(|e| e.into_inner());
        let now = monotonic_now();
        if let Some((at, view)) = &asked.last
            && now.since(*at) < PERIOD
        {
            return Arc::clone(view);
        }
        let daemons = asked.daemons.ask_all(ask).into_iter().map(|(name, view)| match view {
            Ok(view) => DaemonView { name, ..view },
            Err(why) => {
                let headline = "does not answer".to_owned();
                DaemonView { name, headline, error: Some(why), ..DaemonView::default() }
            }
        });
        let view = Arc::new(View { daemons: daemons.collect() });
        asked.last = Some((monotonic_now(), Arc::clone(&view)));
        view
    }

    /// Drops the cached view, because something was changed.
    pub(super) fn forget(&self) {
        self.asked.lock().unwrap_or_else(|e| e.into_inner()).last = None;
    }
}

fn ask(name: &str, client: &mut Client) -> Result<DaemonView, Error> {
    if name == isp::NAME {
        return Ok(operator::daemon_view(&client.ask(&Request::Status)?));
    }
    if name == MARKET_AGENT {
        return Ok(household::agent_view(&client.ask::<AgentStatus>(&Request::Status)?));
    }
    if name == PROXY {
        return Ok(household::proxy_view(&client.ask::<ProxyStatus>(&Request::Status)?));
    }
    if device_of(name).is_none() {
        return Ok(other_view(&client.ask::<Value>(&Request::Status)?));
    }
    let status: Status = client.ask(&Request::Status)?;
    let limit = CONNECTIONS_MAX;
    Ok(host_view(&status, &client.ask(&HostRequest::Connections { limit })?))
}

fn host_view(status: &Status, connections: &Connections) -> DaemonView {
    let note = |(about, text): (&str, String)| (about.to_owned(), text);
    let changes = status.changes.iter().rev().take(CHANGES_MAX).map(|change| ChangeView {
        ago_s: (status.since_s - change.at_s).max(0.0),
        reason: change.reason.clone(),
    });
    DaemonView {
        headline: show::headline(status),
        link: Some(LinkView {
            members: if status.own_received_bytes.is_some() {
                Members::Devices
            } else {
                Members::Groups
            },
            is_paused: status.paused,
            capacity_bps: status.capacity_bps.map(Rate::as_bps),
            queue_ms: status.delay.as_ref().map(|delay| delay.mean_ms),
            latency_ms: status.latency_ms,
            groups: status.groups.iter().map(|group| group_view(group, status)).collect(),
            changes: changes.collect(),
            connections_all: connections.all,
            connections: connections.connections.iter().map(connection_view).collect(),
        }),
        tables: status.upload.iter().map(upload_table).collect(),
        notes: show::notes(status).into_iter().map(note).collect(),
        ..DaemonView::default()
    }
}

/// What each group or device sends. The note `upload` names the limit.
fn upload_table(upload: &UploadStatus) -> TableView {
    let mut table = TableView::new("upload", "Upload", &UPLOAD);
    for group in &upload.groups {
        let UploadGroupStatus { name, rate_bps, share_bps, offered_bytes, drops, backlog_bytes } =
            group;
        table.rows.push(vec![
            name.clone(),
            mbit(rate_bps.as_bps()),
            share_bps.map_or("-".to_owned(), |share| mbit(share.as_bps())),
            format!("{:.1} kB", backlog_bytes.as_u64() as f64 / 1e3),
            format!("{:.1} MB", offered_bytes.as_u64() as f64 / 1e6),
            drops.to_string(),
        ]);
    }
    table
}

const UPLOAD: [&str; 6] =
    ["Name", "Sends", "Share", "Waits here", "To send since the start", "Drops"];

fn group_view(group: &GroupStatus, status: &Status) -> GroupView {
    let matches: Vec<String> = group.matches.iter().map(|m| match_text(m, status)).collect();
    let decision = &group.decision;
    GroupView {
        name: group.name.clone(),
        matches: if matches.is_empty() {
            "all other traffic".to_owned()
        } else {
            matches.join(" ")
        },
        weight: group.timed.as_ref().map_or(group.weight, |t| t.configured_weight).as_u32(),
        rate_bps: decision.rate.as_bps(),
        share_bps: decision.share.as_bps(),
        demand_bps: decision.demand.map(Rate::as_bps),
        received_bytes: group.received_bytes.as_u64(),
        connections: group.connections,
        state: state(group),
    }
}

/// The text of a match; a DHCP name is followed by the MAC address of the device with this name.
fn match_text(rule: &Match, status: &Status) -> String {
    let mac = match rule {
        Match::Host(name) => status.hosts.iter().flatten().find(|host| host.name == *name),
        _ => None,
    };
    match mac.and_then(|host| host.mac) {
        Some(mac) => format!("{rule} ({mac})"),
        None => rule.to_string(),
    }
}

/// A group's state in words: what limits it, or how it uses its share.
fn state(group: &GroupStatus) -> String {
    let caps = group.within.iter().filter_map(|within| within.max_bps).chain(group.max_bps);
    let most = caps.min().map(|max| format!(" It may have at most {}.", mbit(max.as_bps())));
    let least =
        group.min_bps.map(|min| format!(" It has {} whenever it wants them.", mbit(min.as_bps())));
    let within = group.within.iter().filter_map(|within| within.timed.as_ref());
    let timed: String = within
        .chain(&group.timed)
        .map(|timed| format!(" For a time: {}.", timed.in_words()))
        .collect();
    let within = group.within.iter().filter_map(|within| within.plan.as_ref());
    let plans = within.chain(&group.plan).flat_map(|plan| {
        let quota = plan.quota.iter().map(|quota| format!(" Quota: {}.", quota.in_words()));
        quota.chain(plan.schedule.iter().map(|entry| format!(" By schedule {entry}.")))
    });
    let plans: String = plans.collect();
    let (most, least) = (most.unwrap_or_default(), least.unwrap_or_default());
    format!("{}{most}{least}{timed}{plans}", sentence(group.decision.state))
}

fn sentence(state: GroupState) -> &'static str {
    match state {
        GroupState::Idle => "It receives nothing.",
        GroupState::Unknown => "Its demand is not known yet.",
        GroupState::Growing => "It had lent a part of its share and takes it back.",
        GroupState::Rising => "Its rate rises towards its share.",
        GroupState::Saturating => "It uses its whole share and may want more.",
        GroupState::Capped => "A cap limits it.",
        GroupState::NonSaturating => "It gets all that it asks for.",
        GroupState::Lending => "It lends the part of its share that it does not use.",
        GroupState::Unresponsive => "It keeps its rate although its packets are dropped.",
    }
}

fn connection_view(connection: &ConnectionStatus) -> ConnectionView {
    let evidence = connection.evidence.as_ref();
    ConnectionView {
        group: connection.group.clone(),
        host: evidence.and_then(|e| e.name.clone()).unwrap_or_default(),
        port: connection.port,
        rate_bps: connection.rate_bps.as_bps(),
        rtt_ms: connection.rtt_ms,
        limited_by: match connection.limited_by {
            LimitedBy::Share => "its share",
            LimitedBy::Buffer => "the receive buffer",
            LimitedBy::Sender => "the sender or the path",
        }
        .to_owned(),
    }
}

/// A view with the numbers and texts of any status, independent of its schema.
fn other_view(status: &Value) -> DaemonView {
    let mut facts = Vec::new();
    collect(status, "", &mut facts);
    facts.truncate(FACTS_MAX);
    let headline = match status["enforcing"].as_bool() {
        Some(true) => "enforcing",
        Some(false) => "not enforcing",
        None => "running",
    };
    let notes = ["open_reason", "config_error", "journal_error"]
        .into_iter()
        .filter_map(|key| Some((key.replace('_', " "), status[key].as_str()?.to_owned())));
    let notes = notes.collect();
    DaemonView { headline: headline.to_owned(), facts, notes, ..DaemonView::default() }
}

fn collect(value: &Value, name: &str, facts: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let key = key.replace('_', " ");
                let name = if name.is_empty() { key } else { format!("{name}, {key}") };
                collect(value, &name, facts);
            }
            return;
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Bool(truth) => truth.to_string(),
        Value::Null | Value::Array(_) => return,
    };
    facts.push((name.to_owned(), text));
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::page::past::{PastGroup, PastView};
    use crate::page::shown::{HouseholdView, WantedView};

    /// The members that `page.ts` declares for an interface, with their types.
    fn declared(interface: &str) -> Vec<(String, String)> {
        let script = include_str!("../../../../web/page/page.ts");
        let (_, rest) = script.split_once(&format!("interface {interface} {{\n")).unwrap();
        let (body, _) = rest.split_once("\n}").unwrap();
        let member = |line: &str| {
            let (name, kind) = line.trim().trim_end_matches(';').split_once(": ").unwrap();
            (name.to_owned(), kind.to_owned())
        };
        body.lines().map(member).collect()
    }

    fn check(interface: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).unwrap();
        let object = value.as_object().unwrap();
        let members = declared(interface);
        let names: std::collections::BTreeSet<_> = members.iter().map(|(name, _)| name).collect();
        assert_eq!(names, object.keys().collect(), "{interface}");
        for (name, kind) in members {
            let fits = match &object[&name] {
                Value::Null => kind.ends_with(" | null"),
                Value::Bool(_) => kind.starts_with("boolean"),
                Value::Number(_) => kind.starts_with("number"),
                Value::String(_) => kind.starts_with("string") && !kind.contains("[]"),
                Value::Array(_) => kind.ends_with("[]"),
                Value::Object(_) => kind.contains("View"),
            };
            assert!(fits, "{interface}.{name} is {kind}, but {} is sent", object[&name]);
        }
    }

    #[test]
    fn the_script_declares_what_is_sent() {
        check("View", &View::default());
        check("DaemonView", &DaemonView::default());
        check("LinkView", &LinkView::default());
        check("GroupView", &GroupView::default());
        check("ChangeView", &ChangeView::default());
        check("ConnectionView", &ConnectionView::default());
        let link = LinkView {
            capacity_bps: Some(1),
            queue_ms: Some(1.0),
            latency_ms: Some(1.0),
            ..LinkView::default()
        };
        check("LinkView", &link);
        let (error, link) = (Some(String::new()), Some(link));
        let household = Some(HouseholdView::default());
        check("DaemonView", &DaemonView { error, link, household, ..DaemonView::default() });
        check("HouseholdView", &HouseholdView::default());
        check("WantedView", &WantedView::default());
        check("TableView", &TableView::default());
        check("GroupView", &GroupView { demand_bps: Some(1), ..GroupView::default() });
        check("PastView", &PastView::default());
        check("PastGroup", &PastGroup::default());
        check("ConnectionView", &ConnectionView { rtt_ms: Some(1.0), ..Default::default() });
    }

    #[test]
    fn a_status_of_any_schema_is_shown_within_bounds() {
        let status = serde_json::json!({
            "enforcing": true, "pid": 7, "plans": [1, 2], "api": { "added": 3, "who": null },
            "config_error": "bad",
        });
        let view = other_view(&status);
        assert_eq!(view.headline, "enforcing");
        assert!(view.facts.contains(&("api, added".to_owned(), "3".to_owned())));
        assert_eq!(view.notes, [("config error".to_owned(), "bad".to_owned())]);
        let many: serde_json::Map<String, Value> =
            (0..1_000).map(|i| (i.to_string(), i.into())).collect();
        assert_eq!(other_view(&many.into()).facts.len(), FACTS_MAX);
    }
}
