//! The files of `fairweir host` and `fairweir router`, each of which makes one valid [`Config`].
//!
//! A router has `[router]` for `[host]`, `[[device]]` for `[[group]]`, and `router.d` for `conf.d`.
//!
//! The main file comes first, then `conf.d/*.toml` beside it, in byte order of their names. Groups
//! are appended in that order. It is an error if two files set the same key of `[host]` or have a
//! group of the same name; only the table `[set]` replaces values of other files (see [`set`]). All
//! files are read and checked before any is used, so a file with mistakes changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fairweir_core::calendar::{self, Moment, Plan};
use fairweir_core::policy::{Branch, GROUPS_MAX, Group, Match, Policy, PolicyError};
use fairweir_core::receiver::{Control, ControllerError, Enforce, LATENCY, Limit};
use fairweir_core::units::{Rate, Span};

use crate::FileKind;
use crate::MetricsAt;
use crate::error::ConfigError;
use crate::file::{Rules, Text, Trust};
use crate::mistakes;
use crate::table::{Place, Placed, Source};

pub mod naming;
mod read;
pub mod set;

use read::{HostKeys, document};
use set::SetKeys;

/// The main file of a host if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/fairweir/fairweir.toml";

/// The main file of a router if the command line names none.
pub const ROUTER_PATH: &str = "/etc/fairweir/router.toml";

/// The probe's interval if no file sets it: four replies in a tick, at 12 kbit/s.
pub const PROBE_INTERVAL: Span = Span::millis(50);

/// The size limit in bytes: [`GROUPS_MAX`] groups with 50 matches each fit.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The kind of daemon that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `fairweir host`.
    Host,
    /// `fairweir router`.
    Router,
}

impl Role {
    pub(crate) fn kind(self) -> FileKind {
        match self {
            Role::Host => FileKind::Host,
            Role::Router => FileKind::Router,
        }
    }

    /// The prefix of instance names; the name of the interface that faces the Internet follows.
    pub const fn prefix(self) -> &'static str {
        match self {
            Role::Host => "host-",
            Role::Router => "router-",
        }
    }
}

/// A valid configuration. Only [`Config::load`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Table `[host]` or `[router]`.
    pub host: HostSection,
    /// The groups of all files.
    pub policy: Policy,
    /// Quotas and schedules, by the path of the group or device.
    pub plans: BTreeMap<String, Plan>,
    /// Names of a router's devices whose connections the proxy relays.
    pub relayed: Vec<String>,
    /// The files in the order in which they were merged.
    pub files: Vec<PathBuf>,
    /// Entries that are allowed but probably not intended, each with its place.
    pub warnings: Vec<String>,
}

/// The table `[host]` or `[router]`; a member that the command line can also set is `None` if no file sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostSection {
    /// The interfaces towards a router's devices. Every router has at least one, a host has none.
    pub lan: Vec<String>,
    /// The interface that faces the Internet, unless the command line names one.
    pub dev: Option<String>,
    /// Further interfaces through which a router reaches the Internet.
    pub beside: Vec<String>,
    /// The control; `None` if no file sets it.
    pub control: Option<Control>,
    /// Capacity of the link.
    pub capacity: Option<Rate>,
    /// Whether groups have strict priority in their order, without weights (`chokepoint` only).
    pub strict_priority: bool,
    /// How shares are enforced (`fairweir` only).
    pub enforce: Enforce,
    /// The target of the queueing delay at the ISP (`fairweir` and `rbm` only).
    pub latency: Span,
    /// The host that answers the probe of the access link.
    pub probe: ProbeChoice,
    /// Interval between probe requests while the link is in use.
    pub probe_interval: Span,
    /// Where metrics are served over HTTP.
    pub metrics: Option<MetricsAt>,
    /// Whether the upload is shared too.
    pub upload: UploadChoice,
    /// The capacity of the uplink; `None` if it is to be learned.
    pub upload_capacity: Option<Rate>,
    /// Who may divide the download by these weights; a router asks no other host.
    pub divider: DividerChoice,
    /// Whether all traffic passes unshaped until this is unset; only `[set]` can set it.
    pub paused: bool,
}

/// Whether the upload is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChoice {
    /// If nothing prevents it; the default of a router.
    Auto,
    /// Always; it is an error if that is impossible.
    On,
    /// Never; the default of a host, whose uplink other hosts may fill.
    Off,
}

/// The host that is asked to divide the download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DividerChoice {
    /// The next hop of the default route.
    Auto,
    /// No host: nothing is sent.
    Off,
    /// The host with this address.
    Address(IpAddr),
}

/// The host that answers the probe of the access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeChoice {
    /// A router behind the access link, found without contacting hosts that this host does not
    /// already talk to.
    Auto,
    /// No host: nothing is sent.
    Off,
    /// The host with this address.
    Address(IpAddr),
}

impl fmt::Display for ProbeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeChoice::Auto => f.write_str("auto"),
            ProbeChoice::Off => f.write_str("off"),
            ProbeChoice::Address(address) => address.fmt(f),
        }
    }
}

impl HostSection {
    /// All interfaces that face the Internet and are named in the file.
    pub fn wans(&self) -> impl Iterator<Item = &String> {
        self.dev.iter().chain(&self.beside)
    }
}

impl Default for HostSection {
    fn default() -> HostSection {
        HostSection {
            lan: Vec::new(),
            dev: None,
            beside: Vec::new(),
            control: None,
            capacity: None,
            strict_priority: false,
            enforce: Enforce::Auto,
            latency: LATENCY,
            probe: ProbeChoice::Auto,
            probe_interval: PROBE_INTERVAL,
            metrics: None,
            upload: UploadChoice::Off,
            upload_capacity: None,
            divider: DividerChoice::Auto,
            paused: false,
        }
    }
}

impl Config {
    /// Reads `main` and `conf.d/*.toml` beside it.
    ///
    /// # Errors
    /// [`ConfigError`]: all mistakes.
    pub fn load(main: &Path) -> Result<Config, ConfigError> {
        Config::load_as(Role::Host, main)
    }

    /// Reads `main`, the file of a host or a router, and `*.toml` of [`Role::conf_d`].
    ///
    /// # Errors
    /// [`ConfigError`]: all mistakes.
    pub fn load_as(role: Role, main: &Path) -> Result<Config, ConfigError> {
        let if_missing = role.kind().if_missing();
        let rules = Rules { bytes_max: FILE_BYTES_MAX, trust: Trust::OWNER, if_missing };
        let mut texts = vec![(main.to_owned(), Text::read(main, &rules)?)];
        texts.extend(Text::read_dir(&role.conf_d(main), FILE_BYTES_MAX)?);
        mistakes::all(texts.iter().map(|(_, text)| text.as_str().len()).sum(), |mends| {
            let sources = texts.iter().map(|(_, text)| text.source(&[]).mended(mends));
            let files = texts.iter().map(|(path, _)| path.clone()).collect();
            Config::read(role, &sources.collect::<Vec<_>>(), files)
        })
    }

    /// Reads documents and merges them, the main one first; `files` has their paths.
    pub(crate) fn read(
        role: Role,
        sources: &[Source<'_>],
        files: Vec<PathBuf>,
    ) -> Result<Config, ConfigError> {
        let mut draft = Draft {
            role,
            host: HostKeys::default(),
            groups: Vec::new(),
            plans: BTreeMap::new(),
            relayed: Vec::new(),
            set: SetKeys::default(),
        };
        for source in sources {
            draft.add(*source)?;
        }
        draft.finish(sources[0], files)
    }
}

impl Role {
    /// The directory beside the main file whose `*.toml` are merged after it.
    pub fn conf_d(self, main: &Path) -> PathBuf {
        let name = match self {
            Role::Host => "conf.d",
            Role::Router => "router.d",
        };
        main.parent().unwrap_or(Path::new("")).join(name)
    }
}

/// The [`Role::conf_d`] of a host.
pub fn conf_d(main: &Path) -> PathBuf {
    Role::Host.conf_d(main)
}

/// The content of the files read so far.
struct Draft<'t> {
    role: Role,
    host: HostKeys<'t>,
    groups: Vec<Placed<'t, Branch>>,
    plans: BTreeMap<String, Plan>,
    relayed: Vec<String>,
    set: SetKeys<'t>,
}

impl<'t> Draft<'t> {
    fn add(&mut self, source: Source<'t>) -> Result<(), ConfigError> {
        let document = document(source, self.role)?;
        self.host.merge(document.host)?;
        self.set.merge(document.set);
        self.relayed.extend(document.relayed);
        for group in document.groups {
            self.add_group(group)?;
        }
        self.plans.extend(document.plans);
        Ok(())
    }

    fn add_group(&mut self, group: Placed<'t, Branch>) -> Result<(), ConfigError> {
        let name = &group.value.group.name;
        if let Some(first) = self.groups.iter().find(|g| g.value.group.name == *name) {
            let kind = match self.role {
                Role::Host => "group",
                Role::Router => "device",
            };
            let what = format_args!(
                "duplicate {kind} `{name}`, defined at {} already; merge the two or rename one",
                first.place
            );
            return Err(group.place.error(what));
        }
        if self.groups.len() == GROUPS_MAX {
            return Err(group.place.error(PolicyError::TooManyGroups(GROUPS_MAX + 1)));
        }
        self.groups.push(group);
        Ok(())
    }

    fn finish(self, main: Source<'t>, files: Vec<PathBuf>) -> Result<Config, ConfigError> {
        let last = self.groups.last().map(|g| g.place.clone());
        if self.role == Role::Router {
            self.host.check_devices(&main.start())?;
            self.refuse_shared_matches()?;
            self.refuse_unknown_lans()?;
        }
        let mut warnings = self.warnings();
        self.check_limits()?;
        self.check_schedules()?;
        let host = self.host.finish(&self.set)?;
        let mut groups = self.groups.into_iter().map(|g| g.value).collect();
        warnings.extend(self.set.apply_weights(&mut groups));
        // One error is still possible: there may be no room for the default group.
        let policy = Policy::nested(groups).map_err(|e| last.unwrap_or(main.start()).error(e))?;
        Ok(Config { host, policy, plans: self.plans, relayed: self.relayed, files, warnings })
    }

    /// Refuses a device at an interface that `lan` does not list.
    fn refuse_unknown_lans(&self) -> Result<(), ConfigError> {
        for Placed { value, place } in &self.groups {
            for of in &value.group.matches {
                if let Match::Lan(name) = of
                    && !self.host.has_lan(name)
                {
                    return Err(place.error(format_args!("`{of}`: `lan` does not list `{name}`")));
                }
            }
        }
        Ok(())
    }

    /// Refuses limits of groups that the control cannot enforce, and floors whose sum exceeds the capacity.
    fn check_limits(&self) -> Result<(), ConfigError> {
        fn has(branch: &Branch, limit: Limit) -> bool {
            let Group { max, min, .. } = &branch.group;
            let has_own = match limit {
                Limit::Max => max.is_some(),
                Limit::Min => min.is_some(),
            };
            has_own || branch.beneath.iter().any(|beneath| has(beneath, limit))
        }
        let control = self.host.control();
        let is_planned = |group: &&Placed<'_, Branch>| {
            let mut planned = self.plans.iter().filter(|(_, plan)| plan.has_limits());
            planned.any(|(path, _)| path.split('/').next() == Some(&group.value.group.name))
        };
        if let Some(group) = self.groups.iter().find(is_planned).filter(|_| !control.holds_limits())
        {
            return Err(group.place.error(ControllerError::NoLimit(control, Limit::Max)));
        }
        for limit in Limit::ALL.into_iter().filter(|_| !control.holds_limits()) {
            if let Some(group) = self.groups.iter().find(|group| has(&group.value, limit)) {
                return Err(group.place.error(ControllerError::NoLimit(control, limit)));
            }
        }
        let mut sum = Rate::ZERO;
        for Placed { value, place } in &self.groups {
            sum += value.floor();
            if let Some(capacity) = self.host.capacity().filter(|capacity| sum > *capacity) {
                return Err(place.error(format_args!(
                    "`min` up to `{}` sum to {sum}, above the capacity {capacity}",
                    value.group.name
                )));
            }
        }
        Ok(())
    }

    /// Refuses floors that, at some time of a schedule, contradict caps or the capacity.
    fn check_schedules(&self) -> Result<(), ConfigError> {
        for at in calendar::changes(self.plans.values()) {
            let mut sum = Rate::ZERO;
            for Placed { value, place } in &self.groups {
                let mut branch = value.clone();
                self.apply_plans(&mut branch, &value.group.name, at);
                sum += branch.floor();
                let too_large = self.host.capacity().filter(|capacity| sum > *capacity);
                let what = contradiction(&branch, &value.group.name).or_else(|| {
                    let capacity = too_large?;
                    let name = &value.group.name;
                    Some(format!(
                        "`min` up to `{name}` sum to {sum}, above the capacity {capacity}"
                    ))
                });
                if let Some(what) = what {
                    let (day, hour) = (calendar::DAYS[usize::from(at.weekday)], at.minute / 60);
                    let when = format!("{day} {hour:02}:{:02}", at.minute % 60);
                    return Err(place.error(format_args!("{what} (by the schedule, {when})")));
                }
            }
        }
        Ok(())
    }

    fn apply_plans(&self, branch: &mut Branch, path: &str, at: Moment) {
        if let Some(plan) = self.plans.get(path) {
            plan.apply(&mut branch.group, at, false);
        }
        for inner in &mut branch.beneath {
            let path = format!("{path}/{}", inner.group.name);
            self.apply_plans(inner, &path, at);
        }
    }

    /// Refuses a match that two devices have: a device's address must lead to one class only.
    fn refuse_shared_matches(&self) -> Result<(), ConfigError> {
        let mut first: BTreeMap<String, &Placed<'_, Branch>> = BTreeMap::new();
        for group in &self.groups {
            for matched in &group.value.group.matches {
                let Some(other) = first.insert(matched.to_string(), group) else { continue };
                let name = &group.value.group.name;
                let what = if other.value.group.name == *name {
                    format!("device `{name}`: `{matched}` is listed twice; remove one")
                } else {
                    let (of, place) = (&other.value.group.name, &other.place);
                    format!(
                        "device `{name}`: `{matched}` belongs to device `{of}` ({place}) already"
                    )
                };
                return Err(group.place.error(what));
            }
        }
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let matches = |g: &'_ Placed<'t, Branch>| g.value.group.matches.clone();
        let all = self.groups.iter().flat_map(|g| matches(g).into_iter().map(move |m| (g, m)));
        let mut seen: Vec<(&Placed<'_, Branch>, String)> = Vec::new();
        for (group, m) in all {
            let text = m.to_string();
            let (place, name) = (&group.place, &group.value.group.name);
            if matches!(&m, Match::Unit(unit) if !unit.contains('.')) {
                warnings.push(format!(
                    "{place}: group `{name}`: `{text}` has no suffix such as `.service`, so it \
                     matches no unit"
                ));
            }
            if let Some((first, _)) = seen.iter().find(|(_, t)| *t == text) {
                warnings.push(format!(
                    "{place}: group `{name}`: `{text}` has no effect, because the earlier group \
                     `{}` has it too",
                    first.value.group.name
                ));
            } else {
                seen.push((group, text));
            }
        }
        for Placed { value, place } in &self.groups {
            warn_of_shadowed(value, &value.group.name, place, &mut warnings);
        }
        let top = self.groups.iter().map(|g| (&g.value.group, &g.place));
        warn_of_split_sites(top, "", &mut warnings);
        if self.groups.is_empty() {
            warnings.push(
                match self.role {
                    Role::Host => "no groups: all traffic shares the group `default`",
                    Role::Router => "no devices: all share the device `default`",
                }
                .to_owned(),
            );
        }
        let control = self.host.control();
        if let Some(place) = self.host.strict_priority_without(control) {
            warnings.push(format!(
                "{place}: `strict_priority` has no effect with control `{control}`; only \
                 `chokepoint` uses it"
            ));
        }
        warnings
    }
}

/// The first floor in `branch` that exceeds a cap, described in words.
fn contradiction(branch: &Branch, path: &str) -> Option<String> {
    let floor = branch.floor();
    if let Some(max) = branch.group.max.filter(|max| floor > *max) {
        return Some(format!("min {floor} of `{path}` is above its max {max}"));
    }
    let mut beneath = branch.beneath.iter();
    beneath.find_map(|inner| contradiction(inner, &format!("{path}/{}", inner.group.name)))
}

/// Warns if names of a site are in different groups of a level: a browser may fetch them all by one
/// connection, which belongs to one group. `path` is put before the groups' names.
fn warn_of_split_sites<'g>(
    level: impl Iterator<Item = (&'g Group, &'g Place<'g>)>,
    path: &str,
    warnings: &mut Vec<String>,
) {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for (group, place) in level {
        for matched in &group.matches {
            let Match::Web(site) = matched else { continue };
            let Some(domain) = site.name().domain() else { continue };
            let other = *first.entry(domain).or_insert(&group.name);
            if other != group.name {
                warnings.push(format!(
                    "{place}: group `{path}{}`: `{matched}` and a pattern of group `{path}{other}` are \
                     of the same site `{domain}`, whose names a browser may fetch by one connection",
                    group.name
                ));
            }
        }
    }
}

/// Warns if two groups within one group have the same match: the second never gets a packet by it.
fn warn_of_shadowed(branch: &Branch, path: &str, place: &Place<'_>, warnings: &mut Vec<String>) {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    for inner in &branch.beneath {
        let name = &inner.group.name;
        for matched in &inner.group.matches {
            let other = *first.entry(matched.to_string()).or_insert(name);
            if other != name {
                warnings.push(format!(
                    "{place}: group `{path}/{name}`: `{matched}` has no effect, because the earlier \
                     group `{path}/{other}` has it too"
                ));
            }
        }
        warn_of_shadowed(inner, &format!("{path}/{name}"), place, warnings);
    }
    let level = branch.beneath.iter().map(|inner| (&inner.group, place));
    warn_of_split_sites(level, &format!("{path}/"), warnings);
}
