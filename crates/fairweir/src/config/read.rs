//! What a file says of a receiving host.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fairweir_core::policy::{DEFAULT_GROUP, Group, Match, MatchError};
use fairweir_core::receiver::{CAPACITY_MIN_RBM, Control, Enforce, LATENCY, LATENCY_RANGE};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};

use super::document::{Section, Source};
use super::error::{ConfigError, Place, Placed, did_you_mean};
use super::{HostSection, PROBE_INTERVAL, ProbeChoice};

/// The most that a link is believed to carry; more is a slip of the unit.
pub(crate) const CAPACITY_MAX: Rate = Rate::mbit(400_000);

/// The longest name of an interface. Source: IFNAMSIZ of linux/if.h, without its end.
const DEV_NAME_MAX: usize = 15;

/// Shorter ones would be felt by others, longer ones tell nothing of a queue.
const PROBE_INTERVALS: RangeInclusive<Span> = Span::millis(10)..=Span::secs(10);

const DOCUMENT_KEYS: [&str; 3] = ["version", "host", "group"];
const HOST_KEYS: [&str; 8] = [
    "dev",
    "control",
    "capacity",
    "strict_priority",
    "enforce",
    "latency",
    "probe",
    "probe_interval",
];
const GROUP_KEYS: [&str; 3] = ["name", "weight", "match"];
const MATCH_KINDS: [&str; 7] = ["app", "unit", "cgroup", "user", "ip", "port", "local-port"];

/// What one file says.
pub(super) struct Document {
    pub(super) host: HostKeys,
    pub(super) groups: Vec<Placed<Group>>,
}

/// The keys of `[host]` that are set, and where.
#[derive(Default)]
pub(super) struct HostKeys {
    dev: Option<Placed<String>>,
    control: Option<Placed<Control>>,
    capacity: Option<Placed<Rate>>,
    strict_priority: Option<Placed<bool>>,
    enforce: Option<Placed<Enforce>>,
    latency: Option<Placed<Span>>,
    probe: Option<Placed<ProbeChoice>>,
    probe_interval: Option<Placed<Span>>,
}

impl Document {
    pub(super) fn read(source: &Source) -> Result<Document, ConfigError> {
        source.parse(|root| {
            root.check_version()?;
            root.check_keys("the file", &DOCUMENT_KEYS)?;
            let host = match root.table("host")? {
                Some(section) => host(&section)?,
                None => HostKeys::default(),
            };
            let groups = root.tables("group")?.iter().map(group).collect::<Result<_, _>>()?;
            Ok(Document { host, groups })
        })
    }
}

impl HostKeys {
    /// Takes over the keys of a later file.
    pub(super) fn merge(&mut self, later: HostKeys) -> Result<(), ConfigError> {
        merge_key("host.dev", &mut self.dev, later.dev)?;
        merge_key("host.control", &mut self.control, later.control)?;
        merge_key("host.capacity", &mut self.capacity, later.capacity)?;
        merge_key("host.strict_priority", &mut self.strict_priority, later.strict_priority)?;
        merge_key("host.enforce", &mut self.enforce, later.enforce)?;
        merge_key("host.latency", &mut self.latency, later.latency)?;
        merge_key("host.probe", &mut self.probe, later.probe)?;
        merge_key("host.probe_interval", &mut self.probe_interval, later.probe_interval)
    }

    pub(super) fn control(&self) -> Control {
        self.control.as_ref().map_or_else(Control::default, |c| c.value)
    }

    /// Where strict priority is asked for, although `control` does not know it.
    pub(super) fn strict_priority_without(&self, control: Control) -> Option<&Place> {
        let asked = self.strict_priority.as_ref().filter(|s| s.value)?;
        (control != Control::Chokepoint).then_some(&asked.place)
    }

    pub(super) fn finish(&self) -> Result<HostSection, ConfigError> {
        if let Some(control) = self.control.as_ref().filter(|c| c.value.needs_capacity())
            && self.capacity.is_none()
        {
            let message = format!(
                "`{}` does not learn the capacity; add for example `capacity = \"30mbit\"`",
                control.value
            );
            return Err(control.place.error("host.control", message));
        }
        Ok(HostSection {
            dev: self.dev.as_ref().map(|d| d.value.clone()),
            control: self.control.as_ref().map(|c| c.value),
            capacity: self.capacity.as_ref().map(|c| c.value),
            strict_priority: self.strict_priority.as_ref().is_some_and(|s| s.value),
            enforce: self.enforce.as_ref().map_or(Enforce::Auto, |e| e.value),
            latency: self.latency.as_ref().map_or(LATENCY, |l| l.value),
            probe: self.probe.as_ref().map_or(ProbeChoice::Auto, |p| p.value),
            probe_interval: self.probe_interval.as_ref().map_or(PROBE_INTERVAL, |p| p.value),
        })
    }
}

fn merge_key<T>(
    key: &str,
    into: &mut Option<Placed<T>>,
    later: Option<Placed<T>>,
) -> Result<(), ConfigError> {
    match (&into, later) {
        (_, None) => Ok(()),
        (Some(earlier), Some(later)) => {
            let message = format!("is set at {} already; keep one of them", earlier.place);
            Err(later.place.error(key, message))
        }
        (None, later) => {
            *into = later;
            Ok(())
        }
    }
}

fn host(section: &Section<'_>) -> Result<HostKeys, ConfigError> {
    section.check_keys("[host]", &HOST_KEYS)?;
    Ok(HostKeys {
        dev: section.parsed("dev", "an interface's name, such as \"eth0\"", parse_dev)?,
        control: section.parsed("control", "a control, such as \"fairweir\"", parse_control)?,
        capacity: section.parsed("capacity", "a rate, such as \"30mbit\"", parse_capacity)?,
        strict_priority: section.boolean("strict_priority")?,
        enforce: section.parsed("enforce", "\"auto\", \"window\" or \"htb\"", parse_enforce)?,
        latency: section.parsed("latency", "a time, such as \"5ms\"", parse_latency)?,
        probe: section.parsed("probe", "\"auto\", \"off\" or an address", parse_probe)?,
        probe_interval: section.parsed(
            "probe_interval",
            "a time, such as \"50ms\"",
            parse_probe_interval,
        )?,
    })
}

fn group(section: &Section<'_>) -> Result<Placed<Group>, ConfigError> {
    section.check_keys("[[group]]", &GROUP_KEYS)?;
    let here = section.place();
    let name = section
        .parsed("name", "a name, such as \"video\"", |text| Ok(text.to_owned()))?
        .ok_or_else(|| here.error("group.name", "is missing; every group has a name"))?;
    let weight = weight(section)?.ok_or_else(|| {
        let message = format!(
            "is missing in the group `{}`; a whole number from 1 to {}",
            name.value,
            Weight::MAX
        );
        here.error("group.weight", message)
    })?;
    let wanted = "a list, such as [\"app:steam\", \"ip:203.0.113.0/24\"]";
    let matches = section.list("match", wanted, parse_match)?;
    if matches.is_empty() && name.value != DEFAULT_GROUP {
        let message = format!(
            "is missing in the group `{}`; write for example `match = [\"app:steam\"]` (only \
             the group `{DEFAULT_GROUP}` takes what matches nothing)",
            name.value
        );
        return Err(here.error("group.match", message));
    }
    let value = Group { name: name.value, weight, matches };
    Ok(Placed { value, place: name.place })
}

fn weight(section: &Section<'_>) -> Result<Option<Weight>, ConfigError> {
    let range = 1..=i64::from(Weight::MAX);
    let weight = section.number("weight", "weight", range)?;
    Ok(weight.and_then(|n| Weight::new(n.value as u32)))
}

pub(crate) fn parse_dev(text: &str) -> Result<String, String> {
    let ok = (1..=DEV_NAME_MAX).contains(&text.len())
        && !text.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control())
        && text != "."
        && text != "..";
    if ok {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` cannot be an interface's name: 1 to {DEV_NAME_MAX} bytes, such as eth0"))
}

pub(crate) fn parse_control(text: &str) -> Result<Control, String> {
    let allowed = || Control::ALL.into_iter().filter(|&c| c != Control::Wfq).map(Control::name);
    let list = allowed().collect::<Vec<_>>();
    match Control::from_str(text) {
        Ok(Control::Wfq) => Err(format!(
            "`wfq` is what only the ISP can do (or the lab); there are {}",
            list.join(", ")
        )),
        Ok(control) => Ok(control),
        Err(_) => Err(format!(
            "`{text}` is no control{}; there are {}",
            did_you_mean(text, &list),
            list.join(", ")
        )),
    }
}

fn parse_latency(text: &str) -> Result<Span, String> {
    let latency: Span = text.parse().map_err(|e| format!("{e}"))?;
    if LATENCY_RANGE.contains(&latency) {
        return Ok(latency);
    }
    let (least, most) = (LATENCY_RANGE.start(), LATENCY_RANGE.end());
    Err(format!("{latency} is no length for the queue at the ISP: from {least} to {most}"))
}

fn parse_enforce(text: &str) -> Result<Enforce, String> {
    text.parse().map_err(|e| format!("{e}{}", did_you_mean(text, &Enforce::ALL.map(Enforce::name))))
}

pub(crate) fn parse_capacity(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|e| format!("{e}"))?;
    if (CAPACITY_MIN_RBM..=CAPACITY_MAX).contains(&rate) {
        return Ok(rate);
    }
    Err(format!("{rate} is no capacity of a link: from {CAPACITY_MIN_RBM} to {CAPACITY_MAX}"))
}

fn parse_probe(text: &str) -> Result<ProbeChoice, String> {
    match text {
        "auto" => return Ok(ProbeChoice::Auto),
        "off" => return Ok(ProbeChoice::Off),
        _ => {}
    }
    let wanted = "`auto`, `off`, or the address of a host that answers pings from behind the link";
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(format!(
            "`{text}` is none of these{}: {wanted}",
            did_you_mean(text, &["auto", "off"])
        ));
    };
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if is_link_local || address.is_unspecified() || address.is_multicast() || address.is_loopback()
    {
        return Err(format!("{address} is no single host behind a link; wanted {wanted}"));
    }
    Ok(ProbeChoice::Address(address))
}

fn parse_probe_interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e| format!("{e}"))?;
    if PROBE_INTERVALS.contains(&span) {
        return Ok(span);
    }
    let (least, most) = (PROBE_INTERVALS.start(), PROBE_INTERVALS.end());
    Err(format!("{span} is no interval of a probe: from {least} to {most}"))
}

fn parse_match(text: &str) -> Result<Match, String> {
    let parsed = text.parse::<Match>().map_err(|e| match &e {
        MatchError::UnknownKind { kind } => format!("{e}{}", did_you_mean(kind, &MATCH_KINDS)),
        _ => e.to_string(),
    })?;
    if let Match::User(name) = &parsed {
        check_user(name)?;
    }
    Ok(parsed)
}

/// A number is taken as it is; a name must be one that the system knows.
fn check_user(name: &str) -> Result<(), String> {
    if name.parse::<u32>().is_ok() {
        return Ok(());
    }
    match nix::unistd::User::from_name(name) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("there is no user `{name}` on this system")),
        Err(e) => Err(format!("the user `{name}` cannot be looked up: {e}")),
    }
}
