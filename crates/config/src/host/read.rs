//! Reads one TOML document of a host or router.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use fairweir_core::calendar::{Plan, Scheduled};
use fairweir_core::policy::{
    Branch, DEFAULT_GROUP, Group, LANS_MAX, Match, Policy, PolicyError, WANS_MAX,
};
use fairweir_core::receiver::{Control, Enforce, LATENCY};
use fairweir_core::share::{DEPTH_MAX, Weight};
use fairweir_core::units::{Rate, Span};

use super::set::SetKeys;
use super::{DividerChoice, HostSection, PROBE_INTERVAL, ProbeChoice, Role, UploadChoice};
use crate::MetricsAt;
use crate::VERSION;
use crate::error::ConfigError;
use crate::table::{Place, Placed, Source, Table};
use crate::value::{
    in_range, parse_capacity, parse_control, parse_dev, parse_inner_match, parse_latency,
    parse_match, parse_max, parse_min, parse_quota, parse_router_match, parse_window,
};
use crate::words::did_you_mean;

/// More frequent probes would disturb others; rarer ones would not show a queue.
const PROBE_INTERVALS: RangeInclusive<Span> = Span::millis(10)..=Span::secs(10);

/// The content of one file.
pub(super) struct Document<'t> {
    pub(super) host: HostKeys<'t>,
    /// The groups, each with the place of its name.
    pub(super) groups: Vec<Placed<'t, Branch>>,
    /// Quotas and schedules, by path.
    pub(super) plans: BTreeMap<String, Plan>,
    /// Names of the devices with `via = "proxy"`.
    pub(super) relayed: Vec<String>,
    pub(super) set: SetKeys<'t>,
}

/// The keys of `[host]` or `[router]` that are set, with their places.
#[derive(Default)]
pub(super) struct HostKeys<'t> {
    lan: Option<Placed<'t, Vec<String>>>,
    dev: Option<Placed<'t, Vec<String>>>,
    control: Option<Placed<'t, Control>>,
    capacity: Option<Placed<'t, Rate>>,
    strict_priority: Option<Placed<'t, bool>>,
    enforce: Option<Placed<'t, Enforce>>,
    latency: Option<Placed<'t, Span>>,
    probe: Option<Placed<'t, ProbeChoice>>,
    probe_interval: Option<Placed<'t, Span>>,
    metrics: Option<Placed<'t, MetricsAt>>,
    upload: Option<Placed<'t, bool>>,
    upload_capacity: Option<Placed<'t, Rate>>,
    divider: Option<Placed<'t, DividerChoice>>,
}

pub(super) fn document(source: Source<'_>, role: Role) -> Result<Document<'_>, ConfigError> {
    let (section, group_table) = match role {
        Role::Host => ("host", "group"),
        Role::Router => ("router", "device"),
    };
    let mut top = source.top()?;
    top.version_of(role.kind(), VERSION)?;
    let host = top.table(section)?;
    let groups = top.tables(group_table)?;
    let set = top.table("set")?;
    top.finish()?;
    let (mut plans, mut relayed) = (BTreeMap::new(), Vec::new());
    let group = |table| top_group(table, role, (&mut plans, &mut relayed));
    let groups = groups.into_iter().map(group).collect::<Result<_, _>>()?;
    Ok(Document {
        host: host.map(|table| host_keys(table, role)).transpose()?.unwrap_or_default(),
        groups,
        plans,
        relayed,
        set: set.map(SetKeys::read).transpose()?.unwrap_or_default(),
    })
}

fn host_keys(mut table: Table<'_>, role: Role) -> Result<HostKeys<'_>, ConfigError> {
    let (lan, dev) = match role {
        Role::Host => {
            let dev = table.parsed_by("dev", parse_dev)?;
            (None, dev.map(|Placed { value, place }| Placed { value: vec![value], place }))
        }
        Role::Router => {
            (table.some_by("lan", LANS_MAX, parse_dev)?, table.some_by("wan", WANS_MAX, parse_dev)?)
        }
    };
    let keys = HostKeys {
        lan,
        dev,
        control: table.parsed_by("control", parse_control)?,
        capacity: table.parsed_by("capacity", parse_capacity)?,
        strict_priority: table.truth_placed("strict_priority")?,
        enforce: table.parsed_by("enforce", parse_enforce)?,
        latency: table.parsed_by("latency", parse_latency)?,
        probe: table.parsed_by("probe", parse_probe)?,
        probe_interval: table.parsed_by("probe_interval", parse_probe_interval)?,
        metrics: table.parsed_by("metrics", MetricsAt::parse)?,
        upload: table.truth_placed("upload")?,
        upload_capacity: table.parsed_by("upload_capacity", parse_capacity)?,
        divider: table.parsed_by("divider", parse_divider)?,
    };
    table.finish()?;
    Ok(keys)
}

/// The kind of groups that a table describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Group,
    Device,
    /// A group within a device.
    Inner,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Group | Kind::Inner => "group",
            Kind::Device => "device",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Kind::Group => "app:steam",
            Kind::Device => "mac:02:00:5e:00:53:01",
            Kind::Inner => "port:udp/443",
        }
    }

    fn parse(self) -> fn(&str) -> Result<Match, String> {
        match self {
            Kind::Group => parse_match,
            Kind::Device => parse_router_match,
            Kind::Inner => parse_inner_match,
        }
    }
}

/// The groups that were found in one table.
#[derive(Default)]
struct Found<'t> {
    /// The path of each group, and the place of its name.
    places: Vec<(String, Place<'t>)>,
    plans: BTreeMap<String, Plan>,
}

/// The most entries in the schedule of a group.
const SCHEDULE_MAX: usize = 32;

fn top_group<'t>(
    mut table: Table<'t>,
    role: Role,
    (plans, relayed): (&mut BTreeMap<String, Plan>, &mut Vec<String>),
) -> Result<Placed<'t, Branch>, ConfigError> {
    let kind = match role {
        Role::Host => Kind::Group,
        Role::Router => Kind::Device,
    };
    let via = match role {
        Role::Host => None,
        Role::Router => table.parsed_by("via", parse_via)?,
    };
    let mut found = Found::default();
    let branch = group(table, kind, &[], &mut found)?;
    plans.append(&mut found.plans);
    if let Some(via) = via {
        let Group { name, matches, .. } = &branch.value.group;
        if matches.is_empty() || !matches.iter().all(Match::is_address) {
            return Err(via.place.error(format!(
                "device `{name}`: the proxy knows devices by `mac:` and `ip:` only; name no others"
            )));
        }
        relayed.push(name.clone());
    }
    // The policy checks the rules; checking group by group yields the place of an error.
    match Policy::nested(vec![branch.value.clone()]) {
        Ok(_) => Ok(branch),
        Err(e) => {
            let ends = |path: &str| path.rsplit('/').next() == e.group();
            let is_meant =
                |(path, _): &&(String, Place<'_>)| Some(path.as_str()) == e.group() || ends(path);
            let place =
                found.places.iter().rfind(is_meant).map_or(&branch.place, |(_, place)| place);
            Err(place.error(e))
        }
    }
}

/// Reads the group in `table`, which is within the groups `above`.
fn group<'t>(
    mut table: Table<'t>,
    kind: Kind,
    above: &[String],
    found: &mut Found<'t>,
) -> Result<Placed<'t, Branch>, ConfigError> {
    let name = table.text("name")?;
    let Placed { value: name, place } =
        name.ok_or_else(|| table.missing("name", "a name such as \"video\""))?;
    let mut path = above.to_vec();
    path.push(name.clone());
    let label = path.join("/");
    found.places.push((label.clone(), place.clone()));
    if path.len() > DEPTH_MAX {
        return Err(place.error(PolicyError::TooDeep(label)));
    }
    let weight = table.integer("weight", 1, Weight::MAX.into())?.ok_or_else(|| {
        let expected =
            format_args!("a whole number from 1 to {} for {} `{label}`", Weight::MAX, kind.name());
        table.missing("weight", expected)
    })?;
    let weight = u32::try_from(weight.value).ok().and_then(Weight::new);
    let weight = weight.expect("invariant: the range was checked");
    let max = table.parsed_by("max", parse_max)?;
    let min = table.parsed_by("min", parse_min)?;
    let quota = table.parsed_by("quota", parse_quota)?.map(|quota| quota.value);
    let schedule = schedule(&mut table)?;
    if quota.is_some() || !schedule.is_empty() {
        found.plans.insert(label.clone(), Plan { quota, schedule });
    }
    let mut matches = Vec::new();
    for text in table.texts("match")?.into_iter().flat_map(|texts| texts.value) {
        matches.push(kind.parse()(&text.value).map_err(|what| text.place.error(what))?);
    }
    if matches.is_empty() && name != DEFAULT_GROUP {
        return Err(table.missing(
            "match",
            format_args!(
                "a rule for {kind} `{label}`, such as `match = [\"{}\"]`; only the {kind} \
                 `{DEFAULT_GROUP}` has none",
                kind.example(),
                kind = kind.name(),
            ),
        ));
    }
    let mut beneath = Vec::new();
    if kind != Kind::Group {
        for inner in table.tables("group")? {
            beneath.push(group(inner, Kind::Inner, &path, found)?.value);
        }
    }
    table.finish()?;
    check_limits(&label, kind, (max.as_ref(), min.as_ref()), &beneath, &place)?;
    let (max, min) = (max.map(|max| max.value), min.map(|min| min.value));
    let group = Group { name, weight, matches, max, min };
    Ok(Placed { value: Branch { group, beneath }, place })
}

/// The `[[…schedule]]` of a group.
fn schedule(table: &mut Table<'_>) -> Result<Vec<Scheduled>, ConfigError> {
    let mut schedule = Vec::new();
    for mut table in table.tables("schedule")? {
        if schedule.len() == SCHEDULE_MAX {
            let what = format_args!("too many entries (at most {SCHEDULE_MAX})");
            return Err(table.place().error(what));
        }
        let when = table.parsed_by("when", parse_window)?;
        let Some(Placed { value: window, .. }) = when else {
            return Err(table.missing("when", "a time of the week such as \"mon-fri 08:00-18:00\""));
        };
        let weight = table.integer("weight", 1, Weight::MAX.into())?;
        let weight = weight.and_then(|weight| Weight::new(u32::try_from(weight.value).ok()?));
        let max = table.parsed_by("max", parse_max)?.map(|max| max.value);
        let min = table.parsed_by("min", parse_min)?.map(|min| min.value);
        if weight.is_none() && max.is_none() && min.is_none() {
            return Err(table.missing("max", "what is in force at that time: weight, max or min"));
        }
        table.finish()?;
        schedule.push(Scheduled { window, weight, max, min });
    }
    Ok(schedule)
}

type Key<'p, 't, T> = Option<&'p Placed<'t, T>>;

/// Refuses floors of a group, and of groups beneath it, that can never be met.
fn check_limits(
    label: &str,
    kind: Kind,
    (max, min): (Key<'_, '_, Rate>, Key<'_, '_, Rate>),
    beneath: &[Branch],
    place: &Place<'_>,
) -> Result<(), ConfigError> {
    let of_beneath: Rate = beneath.iter().map(Branch::floor).sum();
    let kind = kind.name();
    let Some(max) = max.map(|max| max.value) else { return Ok(()) };
    if let Some(min) = min.filter(|min| min.value > max) {
        let what = format_args!("min {} of {kind} `{label}` is above its max {max}", min.value);
        return Err(min.place.error(what));
    }
    if of_beneath > max {
        return Err(place.error(format_args!(
            "`min` of the groups in {kind} `{label}` sum to {of_beneath}, above its max {max}"
        )));
    }
    Ok(())
}

impl<'t> HostKeys<'t> {
    /// Adds the keys of a later file.
    pub(super) fn merge(&mut self, later: HostKeys<'t>) -> Result<(), ConfigError> {
        merge_key(&mut self.lan, later.lan)?;
        merge_key(&mut self.dev, later.dev)?;
        merge_key(&mut self.control, later.control)?;
        merge_key(&mut self.capacity, later.capacity)?;
        merge_key(&mut self.strict_priority, later.strict_priority)?;
        merge_key(&mut self.enforce, later.enforce)?;
        merge_key(&mut self.latency, later.latency)?;
        merge_key(&mut self.probe, later.probe)?;
        merge_key(&mut self.probe_interval, later.probe_interval)?;
        merge_key(&mut self.metrics, later.metrics)?;
        merge_key(&mut self.upload, later.upload)?;
        merge_key(&mut self.upload_capacity, later.upload_capacity)?;
        merge_key(&mut self.divider, later.divider)
    }

    /// The capacity of the link, if a file has it.
    pub(super) fn capacity(&self) -> Option<Rate> {
        self.capacity.as_ref().map(|capacity| capacity.value)
    }

    pub(super) fn control(&self) -> Control {
        self.control.as_ref().map_or_else(Control::default, |c| c.value)
    }

    /// The place where strict priority is set, if `control` does not support it.
    pub(super) fn strict_priority_without(&self, control: Control) -> Option<&Place<'t>> {
        let set = self.strict_priority.as_ref().filter(|s| s.value)?;
        (control != Control::Chokepoint).then_some(&set.place)
    }

    /// Checks that a router has interfaces on both sides, and that they differ.
    pub(super) fn check_devices(&self, start: &Place<'_>) -> Result<(), ConfigError> {
        let (Some(lan), Some(wan)) = (&self.lan, &self.dev) else {
            let missing = if self.lan.is_none() { "lan" } else { "wan" };
            let what = format_args!(
                "missing key `{missing}` in [router]; expected `lan = \"br-lan\"` and `wan = \
                 \"wan0\"` with the names of the interfaces"
            );
            return Err(start.error(what));
        };
        if let Some(both) = wan.value.iter().find(|wan| lan.value.contains(wan)) {
            let what = format_args!(
                "`wan` is `{both}`, and so is `lan` ({}); they must be two interfaces",
                lan.place
            );
            return Err(wan.place.error(what));
        }
        Ok(())
    }

    /// Whether this is an interface towards a router's devices.
    pub(super) fn has_lan(&self, name: &str) -> bool {
        self.lan.as_ref().is_some_and(|lan| lan.value.iter().any(|lan| lan == name))
    }

    pub(super) fn finish(self, set: &SetKeys<'_>) -> Result<HostSection, ConfigError> {
        if let Some(control) = self.control.as_ref().filter(|c| c.value.needs_capacity())
            && self.capacity.is_none()
        {
            let what = format_args!(
                "`{}` does not learn the capacity; add for example `capacity = \"30mbit\"`",
                control.value
            );
            return Err(control.place.error(what));
        }
        let upload = match self.upload {
            Some(Placed { value: true, .. }) => UploadChoice::On,
            None if self.lan.is_some() => UploadChoice::Auto,
            _ => UploadChoice::Off,
        };
        let is_off = upload == UploadChoice::Off;
        if let Some(capacity) = self.upload_capacity.as_ref().filter(|_| is_off) {
            let what = "`upload_capacity` has no effect without `upload = true`; add it";
            return Err(capacity.place.error(what));
        }
        let mut wans = self.dev.map(|p| p.value).unwrap_or_default().into_iter();
        Ok(HostSection {
            lan: self.lan.map(|p| p.value).unwrap_or_default(),
            dev: wans.next(),
            beside: wans.collect(),
            control: self.control.map(|p| p.value),
            capacity: self.capacity.map(|p| p.value),
            strict_priority: self.strict_priority.is_some_and(|p| p.value),
            enforce: self.enforce.map_or(Enforce::Auto, |p| p.value),
            latency: set.latency().or(self.latency.map(|p| p.value)).unwrap_or(LATENCY),
            probe: self.probe.map_or(ProbeChoice::Auto, |p| p.value),
            probe_interval: self.probe_interval.map_or(PROBE_INTERVAL, |p| p.value),
            metrics: self.metrics.as_ref().map(|m| m.value),
            upload,
            upload_capacity: self.upload_capacity.map(|p| p.value),
            divider: self.divider.map_or(DividerChoice::Auto, |p| p.value),
            paused: set.is_paused(),
        })
    }
}

fn merge_key<'t, T>(
    into: &mut Option<Placed<'t, T>>,
    later: Option<Placed<'t, T>>,
) -> Result<(), ConfigError> {
    let Some(later) = later else { return Ok(()) };
    if let Some(first) = into {
        let what = format_args!("duplicate key, set at {} already; remove one", first.place);
        return Err(later.place.error(what));
    }
    *into = Some(later);
    Ok(())
}

fn parse_via(text: &str) -> Result<(), String> {
    if text == "proxy" { Ok(()) } else { Err(crate::not_one_of(text, &["proxy"])) }
}

fn parse_enforce(text: &str) -> Result<Enforce, String> {
    let allowed = Enforce::ALL.map(Enforce::name);
    text.parse().map_err(|_| crate::not_one_of(text, &allowed))
}

fn parse_probe_interval(text: &str) -> Result<Span, String> {
    in_range(text, "interval", PROBE_INTERVALS)
}

fn parse_probe(text: &str) -> Result<ProbeChoice, String> {
    let expected = "auto, off, or the address of a host behind the link that answers pings";
    Ok(match parse_far(text, expected)? {
        Far::Auto => ProbeChoice::Auto,
        Far::Off => ProbeChoice::Off,
        Far::Address(address) => ProbeChoice::Address(address),
    })
}

fn parse_divider(text: &str) -> Result<DividerChoice, String> {
    let expected = "auto, off, or the address of the ISP's policer";
    Ok(match parse_far(text, expected)? {
        Far::Auto => DividerChoice::Auto,
        Far::Off => DividerChoice::Off,
        Far::Address(address) => DividerChoice::Address(address),
    })
}

/// A host beyond the link: found automatically, given by address, or none.
enum Far {
    Auto,
    Off,
    Address(IpAddr),
}

fn parse_far(text: &str, expected: &str) -> Result<Far, String> {
    match text {
        "auto" => return Ok(Far::Auto),
        "off" => return Ok(Far::Off),
        _ => {}
    }
    let Ok(address) = text.parse::<IpAddr>() else {
        let hint = did_you_mean(text, ["auto", "off"]);
        return Err(format!("unknown value `{text}`{hint}; allowed: {expected}"));
    };
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if is_link_local || address.is_unspecified() || address.is_multicast() || address.is_loopback()
    {
        return Err(format!("{address} is not a host behind the link; allowed: {expected}"));
    }
    Ok(Far::Address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_takes_devices_that_it_can_know() {
        let text = |matched: &str, more: &str| {
            format!(
                "version = 1\n[[device]]\nname = \"tv\"\nweight = 1\nmatch = [\"{matched}\"]\n{more}"
            )
        };
        let read = |text: &str| {
            let document = document(Source::new(text, "router.toml", &[]), Role::Router);
            document.map(|document| document.relayed).map_err(|e| e.to_string())
        };
        let via = "via = \"proxy\"\n";
        assert_eq!(read(&text("ip:192.0.2.7", "")), Ok(Vec::new()));
        assert_eq!(read(&text("mac:02:00:5e:00:53:01", via)), Ok(vec!["tv".to_owned()]));
        for (wrong, says) in [
            (text("host:tv", via), "router.toml:6"),
            (text("ip:192.0.2.7", "via = \"prox\"\n"), "did you mean `proxy`"),
            (
                text(
                    "ip:192.0.2.7",
                    "[[device.group]]\nname = \"a\"\nweight = 1\nmatch = [\"port:80\"]\nvia = \"proxy\"\n",
                ),
                "unknown key",
            ),
        ] {
            let error = read(&wrong).unwrap_err();
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
    }
}
