//! Turns the tables `[[bundle]]` into valid bundles.

use fairweir_config::target::target;
use fairweir_config::{ConfigError, Place, Placed, Table, not_one_of};
use fairweir_core::delegate::{Algorithm, Bounds, BundleSpec, Reverse, Target};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::super::bundle::{BUNDLE_FREE_MAX, Bundle, FreeGroup};
use super::super::{Access, CongestionControl, ETHERNET_HEADER, Flow, Group, Kind};

/// Parts of the scenario that are known when the bundles are read.
pub(super) struct Context<'s> {
    pub(super) groups: &'s [Group],
    pub(super) flows: &'s [Flow],
    pub(super) link: &'s Access,
    pub(super) end: Time,
}

/// Reads the bundles.
pub(super) fn bundles(
    tables: Vec<Table<'_>>,
    context: &Context<'_>,
) -> Result<Vec<Bundle>, ConfigError> {
    let mut bundles: Vec<Bundle> = Vec::new();
    for table in tables {
        let place = table.place();
        let bundle = bundle(table, context)?;
        if bundles.iter().any(|b| b.name == bundle.name) {
            return Err(place.error(format!("duplicate bundle `{}`", bundle.name)));
        }
        let twice = bundle.groups().find(|g| bundles.iter().any(|b| b.groups().any(|h| h == *g)));
        if let Some(group) = twice {
            let name = &context.groups[group].name;
            return Err(place.error(format!("the group `{name}` belongs to another bundle")));
        }
        bundles.push(bundle);
    }
    Ok(bundles)
}

fn bundle(mut table: Table<'_>, context: &Context<'_>) -> Result<Bundle, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name for reports"))?;
    let mut words: Vec<(&str, Option<Algorithm>)> =
        Algorithm::ALL.iter().map(|(name, algorithm)| (*name, Some(*algorithm))).collect();
    words.push(("none", None));
    let algorithm = table.word("controller", &words)?.map_or(Some(Algorithm::Track), |p| p.value);
    let reverse = [("exact", Reverse::Exact), ("own", Reverse::Own)];
    let reverse = table.word("reverse", &reverse)?.map_or(Reverse::Exact, |p| p.value);
    let min_rate = table.parsed("min_rate")?.map_or(Rate::ZERO, |p| p.value);

    let mut stunts: Vec<(usize, Weight)> = Vec::new();
    let named = table.texts("stunts")?;
    let named = named.ok_or_else(|| table.missing("stunts", "a list of groups"))?;
    for Placed { value, place } in named.value {
        let group = member(&value, &place, context)?;
        if stunts.iter().any(|(other, _)| *other == group) {
            return Err(place.error(format!("duplicate stunt `{value}`")));
        }
        stunts.push((group, context.groups[group].weight));
    }
    if stunts.is_empty() {
        return Err(named.place.error("the list is empty; a bundle has at least one stunt"));
    }
    let region = region(&stunts, context);
    let mut free: Vec<FreeGroup> = Vec::new();
    let mut connections = 0;
    for table in table.tables("free")? {
        let place = table.place();
        let group = free_group(table, context, region)?;
        let taken = stunts.iter().any(|(other, _)| *other == group.group)
            || free.iter().any(|other| other.group == group.group);
        if taken {
            let name = &context.groups[group.group].name;
            return Err(place.error(format!("the group `{name}` is in the bundle already")));
        }
        connections += connections_of(group.group, context);
        if connections > BUNDLE_FREE_MAX {
            let what = format!(
                "{connections} connections with a target; allowed are at most {BUNDLE_FREE_MAX}"
            );
            return Err(place.error(what));
        }
        free.push(group);
    }
    if free.is_empty() {
        return Err(table.missing("free", "at least one table with a group and its target"));
    }
    table.finish()?;
    let delegation = algorithm.map(|algorithm| BundleSpec { algorithm, reverse });
    Ok(Bundle { name: name.value, delegation, free, stunts, min_rate })
}

/// The group with that name, if its flows can take part.
fn member(name: &str, place: &Place<'_>, context: &Context<'_>) -> Result<usize, ConfigError> {
    let names: Vec<&str> = context.groups.iter().map(|g| g.name.as_str()).collect();
    let group = names.iter().position(|other| *other == name);
    let group = group.ok_or_else(|| place.error(not_one_of(name, &names)))?;
    let flows = || context.flows.iter().filter(|flow| flow.group == group);
    let can = |flow: &Flow| {
        let is_windowed =
            matches!(flow.congestion_control, CongestionControl::Reno | CongestionControl::Cubic);
        is_windowed && !matches!(flow.kind, Kind::Udp | Kind::Ping { .. })
    };
    if !flows().all(can) {
        let what = format!("a flow of `{name}` is not TCP or QUIC with reno or cubic");
        return Err(place.error(what));
    }
    Ok(group)
}

fn connections_of(group: usize, context: &Context<'_>) -> u32 {
    context.flows.iter().filter(|flow| flow.group == group).map(|flow| flow.connections).sum()
}

/// Rate of the stunts if all connections have the same rate.
fn region(stunts: &[(usize, Weight)], context: &Context<'_>) -> Rate {
    let count: u32 = stunts.iter().map(|(group, _)| connections_of(*group, context)).sum();
    let all: u32 = context.flows.iter().map(|flow| flow.connections).sum();
    context.link.capacity.nominal().scale(count.into(), all.max(1).into())
}

fn free_group(
    mut table: Table<'_>,
    context: &Context<'_>,
    region: Rate,
) -> Result<FreeGroup, ConfigError> {
    let name = table.text("group")?.ok_or_else(|| table.missing("group", "a group's name"))?;
    let group = member(&name.value, &name.place, context)?;
    let place = table.place();
    let target = target(&mut table, Some(context.end))?;
    table.finish()?;
    let rtt = context.flows.iter().filter(|flow| flow.group == group).map(|flow| flow.rtt).min();
    let Target::Trace(trace) = &target else {
        return Ok(FreeGroup { group, target, changes: Vec::new() });
    };
    let packet = Bytes::new(u64::from(context.link.mtu) + ETHERNET_HEADER);
    let rtt = rtt.unwrap_or(Span::ZERO).max(Span::millis(1));
    if region == Rate::ZERO {
        return Err(place.error("the stunts of the bundle have no connections"));
    }
    let (trace, changes) = trace.feasible(&Bounds { packet, rtt, region });
    Ok(FreeGroup { group, target: Target::Trace(trace), changes })
}
