//! Turns the text of a scenario file into a valid [`Scenario`].

use std::ops::RangeInclusive;

use crate::Control;
use fairweir_core::policy::{DEFAULT_GROUP, Match, Policy};
use fairweir_core::receiver::{Enforce, LATENCY_RANGE};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span, Time};

use super::access::{Load, access};
use super::value::{positive, step_time, time};
use super::{
    Browser, CONNECTIONS_MAX, CongestionControl, DURATION_MAX, DemandStep, Device, FLOWS_MAX, Flow,
    Group, IPV6_MTU_MIN, Ip, Kind, Lie, Measurement, Reflector, Scenario, StartJitter, Told,
    Tuning,
};
use fairweir_config::value::{parse_max, parse_min};
use fairweir_config::{ConfigError, Place, Placed, Source, Table, VERSION, not_one_of};

mod bundle;
mod kind;
mod police;

const SETTLE: Span = Span::secs(6);
/// Linux's tick of TCP timestamps (RFC 7323 allows 1 ms to 1 s).
const TIMESTAMP_PERIOD: Span = Span::millis(1);
const RTT: Span = Span::millis(40);
/// Shorter ticks would see single bursts; longer ones do not control anything.
const TICK_RANGE: RangeInclusive<Span> = Span::millis(10)..=Span::secs(10);

pub(super) fn scenario(source: Source<'_>, load: Load<'_>) -> Result<Scenario, ConfigError> {
    let mut top = source.top()?;
    top.refuse_daemons_file()?;
    top.version(VERSION)?;
    let name = top.text("name")?.ok_or_else(|| top.missing("name", "a name for the reports"))?;
    if name.value.is_empty() {
        return Err(name.place.error("empty; expected a name for the reports"));
    }
    let duration = top.parsed::<Span>("duration")?;
    let duration = duration.ok_or_else(|| top.missing("duration", "a time such as 60s"))?;
    if duration.value < Span::secs(1) || duration.value > DURATION_MAX {
        let what = format!("found {}, allowed is from 1s to {DURATION_MAX}", duration.value);
        return Err(duration.place.error(what));
    }
    let end = Time::ZERO + duration.value;
    let settle = top.parsed("settle")?.map_or(SETTLE, |p| p.value);
    let seed = top.integer("seed", 0, i64::MAX as u64)?.map_or(1, |p| p.value);
    let start_jitter = start_jitter(&mut top)?;

    let link = top.table("link")?.ok_or_else(|| top.missing("link", "a table [link]"))?;
    let link = access(link, end, load)?;
    let control = match top.table("control")? {
        Some(table) => told(table)?,
        None => Told::default(),
    };
    let probe = match top.table("probe")? {
        Some(table) => reflector(table)?,
        None => Reflector::default(),
    };
    let devices = devices(top.tables("device")?)?;
    let group_tables = top.tables("group")?;
    let flow_tables = top.tables("flow")?;
    let segment = top.table("segment")?.map(police::segment).transpose()?;
    let police_tables = top.tables("police")?;
    let bundle_tables = top.tables("bundle")?;
    if group_tables.is_empty() {
        return Err(top.missing("group", "at least one table [[group]]"));
    }
    if flow_tables.is_empty() {
        return Err(top.missing("flow", "at least one table [[flow]]"));
    }
    top.finish()?;

    let mut device_of = Vec::new();
    let (groups, places): (Vec<_>, Vec<_>) =
        groups(group_tables, &devices, &mut device_of)?.into_iter().unzip();
    let mut flows = flows(flow_tables, &groups, end, link.mtu)?;
    for (i, (group, place)) in groups.iter().zip(&places).enumerate() {
        let unmatched = group.matches.is_empty() && group.name != DEFAULT_GROUP;
        if unmatched && !flows.iter().any(|f| f.group == i) {
            let what = format!("the group `{}` has neither a flow nor `match`", group.name);
            return Err(place.error(what));
        }
    }
    let is_browser = |flow: &&Flow| matches!(flow.kind, Kind::Browser(_));
    if let Some(flow) = flows.iter().find(is_browser).filter(|_| !devices.is_empty()) {
        let what =
            "a flow of kind `browser` needs a scenario without [[device]]: a router knows no sites";
        return Err(places[flow.group].error(what));
    }
    let police = police::points(police_tables, segment, &groups, &mut flows, end)?;
    let context = bundle::Context { groups: &groups, flows: &flows, link: &link, end };
    let bundles = bundle::bundles(bundle_tables, &context)?;
    let name = name.value;
    let duration = duration.value;
    Ok(Scenario {
        name,
        duration,
        settle,
        seed,
        start_jitter,
        link,
        control,
        probe,
        groups,
        devices,
        device_of,
        flows,
        segment,
        police,
        bundles,
    })
}

fn told(mut table: Table<'_>) -> Result<Told, ConfigError> {
    let capacity = table.parsed("capacity")?.map(positive).transpose()?;
    let remembered = table.parsed("remembered")?.map(positive).transpose()?;
    let tick = table.parsed::<Span>("tick")?;
    if let Some(tick) = tick.as_ref().filter(|p| !TICK_RANGE.contains(&p.value)) {
        let (least, most) = (TICK_RANGE.start(), TICK_RANGE.end());
        let what = format!("found {}, allowed is from {least} to {most}", tick.value);
        return Err(tick.place.error(what));
    }
    let tuning = Tuning {
        tick: tick.map(|p| p.value),
        window_ticks: table.integer("window_ticks", 1, 100)?.map(|p| p.value as u32),
        headroom: table.parsed("headroom")?.map(positive).transpose()?,
        estimates: estimates(&mut table, remembered.is_some())?,
    };
    let strict_priority = table.truth("strict_priority")?.unwrap_or(false);
    let ways: Vec<(&str, Enforce)> = Enforce::ALL.iter().map(|e| (e.name(), *e)).collect();
    let enforce = table.word("enforce", &ways)?.map_or(Enforce::Auto, |p| p.value);
    let latency = table.parsed::<Span>("latency")?;
    if let Some(latency) = latency.as_ref().filter(|p| !LATENCY_RANGE.contains(&p.value)) {
        let (least, most) = (LATENCY_RANGE.start(), LATENCY_RANGE.end());
        let what = format!("found {}, allowed is from {least} to {most}", latency.value);
        return Err(latency.place.error(what));
    }
    let latency = latency.map(|p| p.value);
    let measurements = [
        ("ideal", Measurement::Ideal),
        ("kernel", Measurement::Kernel),
        ("exact", Measurement::Exact),
    ];
    let measurement =
        table.word("measurement", &measurements)?.map_or(Measurement::Ideal, |p| p.value);
    let start = table.parsed::<Span>("start")?.map_or(Time::ZERO, |p| Time::ZERO + p.value);
    table.finish()?;
    Ok(Told { capacity, remembered, strict_priority, tuning, enforce, latency, measurement, start })
}

fn reflector(mut table: Table<'_>) -> Result<Reflector, ConfigError> {
    let defaults = Reflector::default();
    let lies = [("none", Lie::None), ("fast", Lie::Fast), ("slow", Lie::Slow)];
    let reflector = Reflector {
        is_there: table.truth("reflector")?.unwrap_or(defaults.is_there),
        rtt: table.parsed("rtt")?.map_or(defaults.rtt, |p| p.value),
        loss_ppm: table.ratio_ppm("loss")?.unwrap_or(defaults.loss_ppm),
        answer_interval: table
            .parsed("answer_interval")?
            .map_or(defaults.answer_interval, |p| p.value),
        lie: table.word("lie", &lies)?.map_or(defaults.lie, |p| p.value),
    };
    table.finish()?;
    Ok(reflector)
}

fn devices(tables: Vec<Table<'_>>) -> Result<Vec<Device>, ConfigError> {
    let mut devices: Vec<Device> = Vec::new();
    for mut table in tables {
        let name = table.text("name")?.ok_or_else(|| table.missing("name", "a device's name"))?;
        if devices.iter().any(|d| d.name == name.value) {
            let what = format!("there is a device `{}` already", name.value);
            return Err(name.place.error(what));
        }
        let weight = weight(&mut table)?;
        let controls = Control::ALL.map(|control| (control.name(), control));
        let control = table.word("control", &controls)?;
        let via_proxy = table.word("via", &[("proxy", ())])?.is_some();
        let loss_ppm = table.ratio_ppm("loss")?.unwrap_or(0);
        table.finish()?;
        let control = control.map_or(Control::None, |p| p.value);
        devices.push(Device { name: name.value, weight, control, via_proxy, loss_ppm });
    }
    Ok(devices)
}

fn weight(table: &mut Table<'_>) -> Result<Weight, ConfigError> {
    let weight = table.integer("weight", 1, Weight::MAX.into())?;
    let weight = weight.ok_or_else(|| table.missing("weight", "a whole number, 1 to 10000"))?;
    Ok(Weight::new(weight.value as u32).expect("invariant: the range was checked"))
}

/// Reads the groups and the device of each.
fn groups<'t>(
    tables: Vec<Table<'t>>,
    devices: &[Device],
    device_of: &mut Vec<usize>,
) -> Result<Vec<(Group, Place<'t>)>, ConfigError> {
    let mut groups: Vec<(Group, Place<'t>)> = Vec::new();
    for mut table in tables {
        let name = table.text("name")?.ok_or_else(|| table.missing("name", "a group's name"))?;
        let weight = weight(&mut table)?;
        let device = table.text("device")?;
        match device {
            Some(device) => {
                let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
                let index = names.iter().position(|name| *name == device.value);
                let unknown = || device.place.error(not_one_of(&device.value, &names));
                device_of.push(index.ok_or_else(unknown)?);
            }
            None if devices.is_empty() => {}
            None => return Err(table.missing("device", "the name of its device")),
        }
        let max = table.parsed_by("max", parse_max)?.map(|max| max.value);
        let min = table.parsed_by("min", parse_min)?.map(|min| min.value);
        let texts = table.texts("match")?;
        let mut matches = Vec::new();
        if let Some(Placed { value, place }) = texts {
            for text in value {
                matches.push(text.value.parse::<Match>().map_err(|e| text.place.error(e))?);
            }
            if matches.is_empty() {
                return Err(place.error("the list is empty; leave it out to match by address"));
            }
        }
        table.finish()?;
        let group = Group { name: name.value, weight, matches, max, min };
        groups.push((group, name.place));
        check_policy(&groups)?;
    }
    Ok(groups)
}

/// Refuses a last group that makes the list an invalid policy for the daemon.
fn check_policy(groups: &[(Group, Place<'_>)]) -> Result<(), ConfigError> {
    let Some((_, place)) = groups.last() else { return Ok(()) };
    let policy = Policy::new(groups.iter().map(|(group, _)| group.clone()).collect());
    policy.map(drop).map_err(|e| place.error(e))
}

fn flows(
    tables: Vec<Table<'_>>,
    groups: &[Group],
    end: Time,
    mtu: u32,
) -> Result<Vec<Flow>, ConfigError> {
    if tables.len() > FLOWS_MAX {
        let what = format!("{} flows are too many; at most {FLOWS_MAX}", tables.len());
        return Err(tables[FLOWS_MAX].place().error(what));
    }
    let mut flows: Vec<Flow> = Vec::new();
    for table in tables {
        let place = table.place();
        let flow = flow(table, groups, end)?;
        if flow.ip == Ip::V6 && mtu < IPV6_MTU_MIN {
            let what = format!("`ip = 6` needs an MTU of {IPV6_MTU_MIN}; the link has {mtu}");
            return Err(place.error(what));
        }
        // One address cannot be used for both IP versions.
        let same = |f: &&Flow| f.server.is_some() && f.server == flow.server;
        if flows.iter().find(same).is_some_and(|f| f.ip != flow.ip) {
            return Err(place.error("flows of one `server` must have one `ip`"));
        }
        if let Kind::Browser(browser) = &flow.kind {
            share_a_browser(&flows, &flow, browser).map_err(|what| place.error(what))?;
        }
        flows.push(flow);
    }
    Ok(flows)
}

/// Refuses a site that cannot share one browser, or its servers, with the sites before it.
fn share_a_browser(before: &[Flow], flow: &Flow, browser: &Browser) -> Result<(), String> {
    for other in before {
        let Kind::Browser(known) = &other.kind else { continue };
        if known.site == browser.site {
            return Err(format!("duplicate site `{}`", browser.site));
        }
        let differs = [
            ("rtt", other.rtt != flow.rtt),
            ("ip", other.ip != flow.ip),
            ("congestion_control", other.congestion_control != flow.congestion_control),
            ("paced", other.paced != flow.paced),
            ("program", known.program != browser.program),
            ("http", known.http != browser.http),
        ];
        if let Some((key, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Err(format!(
                "flows of kind `browser` share servers and browser; all must have one `{key}`"
            ));
        }
    }
    Ok(())
}

fn flow(mut table: Table<'_>, groups: &[Group], end: Time) -> Result<Flow, ConfigError> {
    let group = table.text("group")?.ok_or_else(|| table.missing("group", "a group's name"))?;
    let Some(index) = groups.iter().position(|g| g.name == group.value) else {
        let names: Vec<&str> = groups.iter().map(|g| g.name.as_str()).collect();
        return Err(group.place.error(not_one_of(&group.value, &names)));
    };
    let name = kind::name(&mut table)?;
    kind::refuse_keys_of_others(&mut table, name)?;
    let start = time(&mut table, "start", Time::ZERO, end)?.map_or(Time::ZERO, |p| p.value);
    let stop = match time(&mut table, "stop", Time::ZERO, end)? {
        Some(stop) if stop.value <= start => {
            let start = start.since(Time::ZERO);
            return Err(stop.place.error(format!("the flow stops before it starts at {start}")));
        }
        Some(stop) => stop.value,
        None => end,
    };
    if start >= stop {
        return Err(table.place().error("the flow starts at the end of the run"));
    }
    let demands = demands(&mut table, start, stop)?;
    let kind = kind::kind(&mut table, name, &demands, stop.since(start))?;
    let congestion_control = table.word(
        "congestion_control",
        &[
            ("reno", CongestionControl::Reno),
            ("cubic", CongestionControl::Cubic),
            ("bbr", CongestionControl::Bbr),
            ("vegas", CongestionControl::Vegas),
        ],
    )?;
    let is_vegas = |p: &&Placed<'_, _>| kind == Kind::Quic && p.value == CongestionControl::Vegas;
    if let Some(vegas) = congestion_control.as_ref().filter(is_vegas) {
        return Err(vegas.place.error("QUIC has no `vegas`; allowed: reno, cubic, bbr"));
    }
    let connections = table.integer("connections", 1, CONNECTIONS_MAX.into())?;
    let ip = match table.integer("ip", 0, u64::MAX)? {
        None | Some(Placed { value: 4, .. }) => Ip::V4,
        Some(Placed { value: 6, .. }) => Ip::V6,
        Some(p) => return Err(p.place.error(format!("found {}, allowed are 4, 6", p.value))),
    };
    let connections = match &kind {
        Kind::Browser(browser) => browser.connections(),
        _ => connections.map_or(1, |p| p.value as u32),
    };
    let flow = Flow {
        group: index,
        kind,
        congestion_control: congestion_control.map_or(CongestionControl::Cubic, |p| p.value),
        paced: table.truth("paced")?.unwrap_or(false),
        timestamps: timestamps(&mut table)?,
        ecn: table.truth("ecn")?.unwrap_or(false),
        connections,
        rtt: table.parsed("rtt")?.map_or(RTT, |p| p.value),
        start,
        stop,
        demands,
        ip,
        app: file_name(&mut table)?,
        server: table.text("server")?.map(|p| p.value),
    };
    table.finish()?;
    Ok(flow)
}

/// The key `estimate`.
fn estimates(table: &mut Table<'_>, is_remembered: bool) -> Result<Option<bool>, ConfigError> {
    let place = table.find("estimate");
    let estimate = table.truth("estimate")?;
    match (estimate, place) {
        (Some(false), Some(place)) if !is_remembered => {
            Err(place.error("without an estimate, `remembered` says what the capacity is"))
        }
        _ => Ok(estimate),
    }
}

/// The key `start_jitter`: a time, or `rtt`.
fn start_jitter(top: &mut Table<'_>) -> Result<StartJitter, ConfigError> {
    let Some(Placed { value, place }) = top.text("start_jitter")? else {
        return Ok(StartJitter::PROCESSES);
    };
    if value == "rtt" {
        return Ok(StartJitter::Rtt);
    }
    let span = value.parse().map_err(|e| place.error(format!("{e}; or `rtt`")))?;
    Ok(StartJitter::UpTo(span))
}

/// The keys `timestamps` and `timestamp_period`.
fn timestamps(table: &mut Table<'_>) -> Result<Option<Span>, ConfigError> {
    let used = table.truth("timestamps")?.unwrap_or(true);
    let periods = [("1ms", 1), ("4ms", 4), ("10ms", 10), ("100ms", 100)];
    let periods = periods.map(|(name, ms)| (name, Span::millis(ms)));
    let period = table.word("timestamp_period", &periods)?;
    match period {
        Some(period) if !used => {
            Err(period.place.error("a flow with `timestamps = false` has no clock of them"))
        }
        Some(period) => Ok(Some(period.value)),
        None => Ok(used.then_some(TIMESTAMP_PERIOD)),
    }
}

fn demands(table: &mut Table<'_>, start: Time, stop: Time) -> Result<Vec<DemandStep>, ConfigError> {
    let first = demand(table)?;
    let mut demands = vec![DemandStep { at: start, demand: first.and_then(|p| p.value) }];
    for mut step in table.tables("steps")? {
        let last = demands[demands.len() - 1].at;
        let at = step_time(&mut step, last, stop)?;
        let wanted = "a rate such as 8mbit, or `unlimited`";
        let demand = demand(&mut step)?.ok_or_else(|| step.missing("demand", wanted))?.value;
        demands.push(DemandStep { at, demand });
        step.finish()?;
    }
    Ok(demands)
}

/// The key `demand`; the value is `None` where it is `unlimited`.
fn demand<'t>(table: &mut Table<'t>) -> Result<Option<Placed<'t, Option<Rate>>>, ConfigError> {
    let Some(Placed { value, place }) = table.text("demand")? else { return Ok(None) };
    if value == "unlimited" {
        return Ok(Some(Placed { value: None, place }));
    }
    match value.parse::<Rate>() {
        Ok(Rate::ZERO) => Err(place.error("a demand must be greater than zero")),
        Ok(rate) => Ok(Some(Placed { value: Some(rate), place })),
        Err(e) => Err(place.error(format!("{e}; or `unlimited`"))),
    }
}

/// The key `app`: a text that can be the name of a file.
fn file_name(table: &mut Table<'_>) -> Result<Option<String>, ConfigError> {
    let Some(Placed { value, place }) = table.text("app")? else { return Ok(None) };
    match format!("app:{value}").parse::<Match>() {
        Ok(Match::App(name)) if name != "." && name != ".." => Ok(Some(name)),
        _ => Err(place.error(format!("found `{value}`, expected a file's name such as steam"))),
    }
}
