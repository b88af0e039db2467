//! What the page shows a household besides its link: the status of the credit market's agent, and
//! of the gateway's proxy.

use fairweir_config::applications::KINDS;
use fairweir_core::market::ledger::Credits;
use serde::Deserialize;

use super::heard::{GroupSample, Heard};
use super::shown::{DaemonView, HouseholdView, TableView, WantedView};
use crate::words::{count, mbit};

/// The most rows of a table that are shown; `fairweir proxy status --json` prints all.
const ROWS_MAX: usize = 64;

/// The most pairs of device and application that are recorded; those with the most bytes are kept.
const RECORDED_MAX: usize = 256;

const SLOTS: [&str; 5] = ["Begins", "Bid", "Should buy", "Price of 1 Mbit/s", "Wanted for"];
const CLASSES: [&str; 5] = ["Class", "Rate", "Connections", "Downloaded", "Uploaded"];
const USAGE: [&str; 4] = ["Device", "Application", "Downloaded", "Uploaded"];
const PRIORITY: [&str; 2] = ["Kind of use", "Worth now"];
const DEVICES: [&str; 4] = ["Device", "System", "Kind", "Evidence"];

/// The reply of `fairweir market agent`; see docs/experiments/market.md.
#[derive(Deserialize)]
pub(super) struct AgentStatus {
    gateway: String,
    rate_bps: u64,
    error: Option<String>,
    balance: Option<Credits>,
    cap: Option<Credits>,
    plan: Vec<Planned>,
    why: Vec<String>,
    preferences: Preferences,
}

#[derive(Deserialize)]
struct Planned {
    begins: String,
    spend: Credits,
    rate_bps: u64,
    price: f64,
    wanted: String,
}

#[derive(Deserialize)]
struct Preferences {
    kinds: Vec<String>,
    always: Vec<u8>,
    times: Vec<TimeOfWeek>,
    boosted_for_s: Vec<u64>,
    holiday_for_s: u64,
}

#[derive(Deserialize)]
struct TimeOfWeek {
    name: String,
    days: [bool; 7],
    from_min: u16,
    to_min: u16,
    importance: Vec<Option<u8>>,
}

pub(super) fn agent_view(status: &AgentStatus) -> DaemonView {
    let balance = match (status.balance, status.cap) {
        (Some(balance), Some(cap)) => {
            format!("{:.2} of at most {:.2}", balance.as_f64(), cap.as_f64())
        }
        _ => "unknown".to_owned(),
    };
    let mut slots = TableView::new("slots", "Slots to come", &SLOTS);
    for Planned { begins, spend, rate_bps, price, wanted } in status.plan.iter().take(ROWS_MAX) {
        slots.rows.push(vec![
            begins.clone(),
            format!("{:.2}", spend.as_f64()),
            mbit(*rate_bps),
            format!("{price:.2}"),
            wanted.clone(),
        ]);
    }
    let preferences = &status.preferences;
    let always = WantedView {
        name: "always".to_owned(),
        when: "at all other times".to_owned(),
        key: "always".to_owned(),
        importance: preferences.always.iter().copied().map(Some).collect(),
    };
    let times = preferences.times.iter().map(|time| WantedView {
        name: time.name.clone(),
        when: when(time),
        key: format!("time.{}", time.name),
        importance: time.importance.clone(),
    });
    let rows = [always].into_iter().chain(times).collect();
    let mut facts = vec![
        ("credits".to_owned(), balance.clone()),
        ("gateway".to_owned(), status.gateway.clone()),
    ];
    for (kind, left_s) in preferences.kinds.iter().zip(&preferences.boosted_for_s) {
        if *left_s > 0 {
            facts.push((format!("{kind} now"), format!("for {} min", left_s.div_ceil(60))));
        }
    }
    if preferences.holiday_for_s > 0 {
        let days = preferences.holiday_for_s.div_ceil(86_400) as usize;
        facts.push(("holiday".to_owned(), format!("for {}", count(days, "day"))));
    }
    let mut notes: Vec<_> =
        status.why.iter().map(|text| ("why".to_owned(), text.clone())).collect();
    notes.extend(status.error.iter().map(|text| ("market".to_owned(), text.clone())));
    DaemonView {
        headline: format!("the market: {} now, credits {balance}", mbit(status.rate_bps)),
        household: Some(HouseholdView { kinds: preferences.kinds.clone(), rows }),
        tables: [slots].into_iter().filter(|table| !table.rows.is_empty()).collect(),
        facts,
        notes,
        ..DaemonView::default()
    }
}

/// Writes a time of the week, such as "fri sat 20:00 to 00:30".
fn when(time: &TimeOfWeek) -> String {
    const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let days = match time.days {
        [true, true, true, true, true, true, true] => "every day".to_owned(),
        days => {
            let named = DAYS.iter().zip(days).filter(|(_, is)| *is).map(|(name, _)| *name);
            named.collect::<Vec<_>>().join(" ")
        }
    };
    let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    format!("{days} {} to {}", clock(time.from_min), clock(time.to_min))
}

/// The reply of `fairweir proxy`; see docs/experiments/proxy.md.
#[derive(Deserialize)]
pub(super) struct ProxyStatus {
    #[serde(default)]
    run: String,
    since_s: f64,
    connections: usize,
    full: bool,
    classes: Vec<Class>,
    /// The largest usage first.
    usage: Vec<Usage>,
    /// The current priority of each kind of use.
    #[serde(default)]
    priority: Option<[f64; 4]>,
    #[serde(default)]
    devices: Vec<Device>,
    config_error: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Class {
    name: String,
    rate_bps: Option<u64>,
    connections: usize,
    down_bytes: u64,
    up_bytes: u64,
}

#[derive(Deserialize)]
struct Usage {
    device: String,
    app: Option<String>,
    down_bytes: u64,
    up_bytes: u64,
}

#[derive(Deserialize)]
struct Device {
    mac: String,
    os: Verdict,
    kind: Verdict,
    evidence: Vec<Evidence>,
}

#[derive(Deserialize)]
struct Verdict {
    known: Option<String>,
    confidence: Option<String>,
    conflict: bool,
}

#[derive(Deserialize)]
struct Evidence {
    source: String,
    seen: String,
}

pub(super) fn proxy_view(status: &ProxyStatus) -> DaemonView {
    let mut classes = TableView::new("classes", "Classes", &CLASSES);
    for class in status.classes.iter().take(ROWS_MAX) {
        classes.rows.push(vec![
            class.name.clone(),
            class.rate_bps.map_or("no rate".to_owned(), mbit),
            class.connections.to_string(),
            volume(class.down_bytes),
            volume(class.up_bytes),
        ]);
    }
    let mut usage = TableView::new("usage", "Since the start, by device and application", &USAGE);
    for of in status.usage.iter().take(ROWS_MAX) {
        usage.rows.push(vec![
            of.device.clone(),
            app(of).to_owned(),
            volume(of.down_bytes),
            volume(of.up_bytes),
        ]);
    }
    let mut priority = TableView::new("priority", "Priorities by kind of use", &PRIORITY);
    for ((word, kind), weights) in KINDS.into_iter().zip(status.priority.iter().cycle()) {
        priority.rows.push(vec![word.to_owned(), weights[kind as usize].to_string()]);
    }
    let mut devices = TableView::new("devices", "Devices, and what says so", &DEVICES);
    for device in status.devices.iter().take(ROWS_MAX) {
        let seen = device.evidence.iter().map(|e| format!("{} {}", e.source, e.seen));
        devices.rows.push(vec![
            device.mac.clone(),
            verdict(&device.os),
            verdict(&device.kind),
            seen.collect::<Vec<_>>().join("; "),
        ]);
    }
    let errors = [("configuration error", &status.config_error), ("error", &status.error)];
    let notes = errors.into_iter().filter_map(|(about, text)| Some((about, text.clone()?)));
    let headline = match status.full {
        true => "full: new connections pass directly".to_owned(),
        false => format!("{} relayed", count(status.connections, "connection")),
    };
    let tables =
        [classes, priority, usage, devices].into_iter().filter(|table| !table.rows.is_empty());
    DaemonView {
        headline,
        tables: tables.collect(),
        notes: notes.map(|(about, text)| (about.to_owned(), text)).collect(),
        ..DaemonView::default()
    }
}

/// The part of the reply that the history records: payload by device and application.
pub(super) fn heard(status: ProxyStatus) -> Heard {
    let groups = status.usage.iter().take(RECORDED_MAX).map(|of| GroupSample {
        name: format!("{} {}", of.device, app(of)),
        received: of.down_bytes,
        demand_bps: None,
        weight: 1,
    });
    let groups = groups.collect();
    let (run, since_s) = (status.run, status.since_s);
    Heard { run, since_s, capacity_bps: None, queue_ms: None, groups }
}

fn app(of: &Usage) -> &str {
    of.app.as_deref().unwrap_or("other")
}

fn verdict(verdict: &Verdict) -> String {
    match (&verdict.known, &verdict.confidence) {
        (Some(known), Some(confidence)) => format!("{known} ({confidence})"),
        _ if verdict.conflict => "conflict".to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn volume(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_agent_is_shown_with_its_plan_and_its_reasons() {
        let status: AgentStatus = serde_json::from_value(json!({
            "gateway": "g-1", "rate_bps": 28_000_000, "error": null, "balance": "12500000",
            "cap": "32000000", "why": ["The balance is 12.50 credits of at most 32.00."],
            "plan": [{ "slot": 7, "begins_s": 1, "begins": "20:00", "spend": "3000000",
                       "rate_bps": 20_000_000, "price": 0.25, "wanted": "streaming 3 (film night)" }],
            "preferences": {
                "kinds": ["streaming", "social", "downloads", "web"], "always": [1, 0, 2, 1],
                "times": [{ "name": "film night", "days": [false, false, false, false, true, true, false],
                            "from_min": 1_200, "to_min": 30, "importance": [3, null, null, null] }],
                "boosted_for_s": [0, 0, 61, 0], "holiday_for_s": 0,
            },
        }))
        .unwrap();
        let view = agent_view(&status);
        assert_eq!(view.headline, "the market: 28.00 Mbit/s now, credits 12.50 of at most 32.00");
        assert_eq!(view.tables[0].rows[0][..4], ["20:00", "3.00", "20.00 Mbit/s", "0.25"]);
        let household = view.household.unwrap();
        assert_eq!(household.rows[0].importance, [Some(1), Some(0), Some(2), Some(1)]);
        let film = &household.rows[1];
        assert_eq!(
            (film.when.as_str(), film.key.as_str()),
            ("fri sat 20:00 to 00:30", "time.film night")
        );
        assert!(view.facts.contains(&("downloads now".to_owned(), "for 2 min".to_owned())));
    }

    #[test]
    fn a_proxy_is_shown_by_device_and_application_within_bounds() {
        let usage = |i| {
            json!({ "device": format!("192.0.2.{i}"), "app": (i == 1).then_some("films"),
                                "down_bytes": 3_000_000 - i, "up_bytes": 5 })
        };
        let status: ProxyStatus = serde_json::from_value(json!({
            "run": "1", "since_s": 9.0, "connections": 2, "full": false, "classes": [],
            "priority": [8.0, 1.0, 0.0, 1.0],
            "usage": (1..301).map(usage).collect::<Vec<_>>(), "config_error": "bad", "error": null,
            "devices": [{ "mac": "02:00:00:00:00:01",
                "os": { "known": "android", "confidence": "several sources", "conflict": false },
                "kind": { "known": null, "confidence": null, "conflict": true },
                "evidence": [{ "source": "dhcp", "seen": "1,3,6", "os": null, "kind": null }] }],
        }))
        .unwrap();
        let view = proxy_view(&status);
        let [priority, usage, devices] = &view.tables[..] else { panic!("{:?}", view.tables) };
        assert_eq!(priority.rows[0], ["streaming", "8"]);
        assert_eq!(usage.rows.len(), ROWS_MAX);
        assert_eq!(usage.rows[0][..3], ["192.0.2.1", "films", "3.0 MB"]);
        assert_eq!(devices.rows[0][1..], ["android (several sources)", "conflict", "dhcp 1,3,6"]);
        let heard = heard(status);
        assert_eq!((heard.groups.len(), heard.groups[1].name.as_str()), (256, "192.0.2.2 other"));
    }
}
