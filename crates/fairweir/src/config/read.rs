//! One TOML document: its keys and values, each with its line.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use fairweir_core::policy::{DEFAULT_GROUP, Group, Match, MatchError};
use fairweir_core::receiver::{CAPACITY_MIN_RBM, Control, Enforce, LATENCY, LATENCY_RANGE};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::{ConfigError, Place, Placed, did_you_mean};
use super::{HostSection, PROBE_INTERVAL, ProbeChoice, VERSION};

/// The most that a link is believed to carry; more is a slip of the unit.
pub(crate) const CAPACITY_MAX: Rate = Rate::mbit(400_000);

/// The longest name of an interface. Source: IFNAMSIZ of linux/if.h, without its end.
const DEV_NAME_MAX: usize = 15;

/// Shorter ones would be felt by others, longer ones tell nothing of a queue.
const PROBE_INTERVALS: RangeInclusive<Span> = Span::millis(10)..=Span::secs(10);

/// The most of a wrong line that a message repeats, in characters.
const LINE_SHOWN_MAX: usize = 60;

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

/// The text of one file.
pub(super) struct Source {
    place: Place,
    text: String,
}

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

impl Source {
    pub(super) fn new(path: &Path, bytes: Vec<u8>) -> Result<Source, ConfigError> {
        let place = Place::new(path, 1);
        let text = String::from_utf8(bytes).map_err(|e| {
            let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|&&b| b == b'\n').count();
            place.at(line).error("text", "a byte that is not UTF-8")
        })?;
        Ok(Source { place, text })
    }

    pub(super) fn parse(&self) -> Result<Document, ConfigError> {
        let table = DeTable::parse(&self.text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            let line = self.line_of(start);
            self.place_of(start).error("syntax", format!("{} in `{line}`", e.message()))
        })?;
        let root = Section { source: self, name: "", table: table.get_ref(), start: 0 };
        root.check_version()?;
        root.check_keys("the file", &DOCUMENT_KEYS)?;
        let host = match root.table("host")? {
            Some(section) => section.host()?,
            None => HostKeys::default(),
        };
        let groups = root.tables("group")?.iter().map(Section::group).collect::<Result<_, _>>()?;
        Ok(Document { host, groups })
    }

    /// The line that holds `offset`, cut to what a message can hold.
    fn line_of(&self, offset: usize) -> String {
        let start = offset.min(self.text.len());
        let before = self.text.as_bytes()[..start].iter().rposition(|&b| b == b'\n');
        let line = self.text.get(before.map_or(0, |i| i + 1)..).unwrap_or_default();
        line.lines().next().unwrap_or_default().trim().chars().take(LINE_SHOWN_MAX).collect()
    }

    fn place_of(&self, offset: usize) -> Place {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        self.place.at(1 + before.iter().filter(|&&b| b == b'\n').count())
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

/// A table of the document.
struct Section<'d> {
    source: &'d Source,
    /// What stands before the keys in messages: `host`, `group`, or nothing.
    name: &'static str,
    table: &'d DeTable<'d>,
    start: usize,
}

impl<'d> Section<'d> {
    fn check_version(&self) -> Result<(), ConfigError> {
        let place = self.source.place.at(1);
        let Some(value) = self.find("version") else {
            let message = format!("is missing; write `version = {VERSION}` at the top");
            return Err(place.error("version", message));
        };
        match self.integer(value) {
            Some(VERSION) => Ok(()),
            _ => {
                let message =
                    format!("{} is unknown; this fairweir reads version {VERSION}", shown(value));
                Err(self.error(value, "version", message))
            }
        }
    }

    fn check_keys(&self, title: &str, known: &[&str]) -> Result<(), ConfigError> {
        let unknown = self.table.iter().filter(|(k, _)| !known.contains(&k.get_ref().as_ref()));
        let Some((key, _)) = unknown.min_by_key(|(k, _)| k.span().start) else {
            return Ok(());
        };
        let word = key.get_ref();
        let message = format!(
            "is no key of {title}{}; there are {}",
            did_you_mean(word, known),
            known.join(", ")
        );
        Err(self.place_at(key.span().start).error(&self.key(word), message))
    }

    fn host(&self) -> Result<HostKeys, ConfigError> {
        self.check_keys("[host]", &HOST_KEYS)?;
        Ok(HostKeys {
            dev: self.parsed("dev", "an interface's name, such as \"eth0\"", parse_dev)?,
            control: self.parsed("control", "a control, such as \"fairweir\"", parse_control)?,
            capacity: self.parsed("capacity", "a rate, such as \"30mbit\"", parse_capacity)?,
            strict_priority: self.boolean("strict_priority")?,
            enforce: self.parsed("enforce", "\"auto\", \"window\" or \"htb\"", parse_enforce)?,
            latency: self.parsed("latency", "a time, such as \"5ms\"", parse_latency)?,
            probe: self.parsed("probe", "\"auto\", \"off\" or an address", parse_probe)?,
            probe_interval: self.parsed(
                "probe_interval",
                "a time, such as \"50ms\"",
                parse_probe_interval,
            )?,
        })
    }

    fn group(&self) -> Result<Placed<Group>, ConfigError> {
        self.check_keys("[[group]]", &GROUP_KEYS)?;
        let here = self.place_at(self.start);
        let name = self
            .parsed("name", "a name, such as \"video\"", |text| Ok(text.to_owned()))?
            .ok_or_else(|| here.error("group.name", "is missing; every group has a name"))?;
        let weight = self.weight()?.ok_or_else(|| {
            let message = format!(
                "is missing in the group `{}`; a whole number from 1 to {}",
                name.value,
                Weight::MAX
            );
            here.error("group.weight", message)
        })?;
        let matches = self.matches()?;
        if matches.is_empty() && name.value != DEFAULT_GROUP {
            let message = format!(
                "is missing in the group `{}`; write for example `match = [\"app:steam\"]` (only \
                 the group `{DEFAULT_GROUP}` takes all unmatched traffic)",
                name.value
            );
            return Err(here.error("group.match", message));
        }
        let value = Group { name: name.value, weight, matches };
        Ok(Placed { value, place: name.place })
    }

    fn weight(&self) -> Result<Option<Weight>, ConfigError> {
        let Some(value) = self.find("weight") else { return Ok(None) };
        let weight = self.integer(value).and_then(|n| u32::try_from(n).ok()).and_then(Weight::new);
        if weight.is_none() {
            let message =
                format!("{} is no weight: a whole number from 1 to {}", shown(value), Weight::MAX);
            return Err(self.error(value, "weight", message));
        }
        Ok(weight)
    }

    fn matches(&self) -> Result<Vec<Match>, ConfigError> {
        let Some(value) = self.find("match") else { return Ok(Vec::new()) };
        let wanted = "a list, such as [\"app:steam\", \"ip:203.0.113.0/24\"]";
        let Some(entries) = value.get_ref().as_array() else {
            return Err(self.error(value, "match", wanted_instead(value, wanted)));
        };
        let mut matches = Vec::new();
        for entry in entries.iter() {
            let Some(text) = entry.get_ref().as_str() else {
                return Err(self.error(entry, "match", wanted_instead(entry, wanted)));
            };
            matches.push(parse_match(text).map_err(|m| self.error(entry, "match", m))?);
        }
        Ok(matches)
    }

    fn boolean(&self, key: &str) -> Result<Option<Placed<bool>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        match value.get_ref().as_bool() {
            Some(b) => Ok(Some(Placed { value: b, place: self.place_at(value.span().start) })),
            None => Err(self.error(value, key, wanted_instead(value, "true or false"))),
        }
    }

    fn parsed<T>(
        &self,
        key: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Placed<T>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let Some(text) = value.get_ref().as_str() else {
            return Err(self.error(value, key, wanted_instead(value, wanted)));
        };
        let parsed = parse(text).map_err(|message| self.error(value, key, message))?;
        Ok(Some(Placed { value: parsed, place: self.place_at(value.span().start) }))
    }

    fn table(&self, key: &'static str) -> Result<Option<Section<'d>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(self.section(key, value, table))),
            _ => Err(self.error(value, key, format!("is a table: write `[{key}]`"))),
        }
    }

    fn tables(&self, key: &'static str) -> Result<Vec<Section<'d>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(Vec::new()) };
        let message = format!("is a list of tables: write `[[{key}]]`");
        let Some(entries) = value.get_ref().as_array() else {
            return Err(self.error(value, key, message));
        };
        let section = |entry: &'d Spanned<DeValue<'d>>| match entry.get_ref() {
            DeValue::Table(table) => Ok(self.section(key, entry, table)),
            _ => Err(self.error(entry, key, &message)),
        };
        entries.iter().map(section).collect()
    }

    fn section(
        &self,
        name: &'static str,
        value: &Spanned<DeValue<'d>>,
        table: &'d DeTable<'d>,
    ) -> Section<'d> {
        Section { source: self.source, name, table, start: value.span().start }
    }

    fn find(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table.iter().find(|(k, _)| k.get_ref() == key).map(|(_, value)| value)
    }

    fn integer(&self, value: &Spanned<DeValue<'_>>) -> Option<i64> {
        let integer: &DeInteger<'_> = value.get_ref().as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    fn place_at(&self, offset: usize) -> Place {
        self.source.place_of(offset)
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn error(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
        message: impl std::fmt::Display,
    ) -> ConfigError {
        self.place_at(value.span().start).error(&self.key(key), message)
    }
}

/// What a value is, for a message: short ones in full, others by their type.
fn shown(value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("the text `{text}`"),
        DeValue::Integer(n) => format!("{n}"),
        DeValue::Float(n) => format!("{n}"),
        DeValue::Boolean(b) => format!("`{b}`"),
        other => format!("the {}", other.type_str()),
    }
}

fn wanted_instead(value: &Spanned<DeValue<'_>>, wanted: &str) -> String {
    format!("{} is not {wanted}", shown(value))
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
