//! The configuration: raw TOML → validated [`Config`], with an error that names the place.
//!
//! Several files make one configuration: the main file, then `conf.d/*.toml` beside it, in byte
//! order of their names. Groups are appended in that order. Nothing overrides anything: a key of
//! `[host]` that is set twice is an error, and so is a group whose name is already there. All
//! files are read and checked before any of it is used, so a wrong one changes nothing.
//!
//! The documents are read with the spans of every key and value (not by derived deserialisers,
//! which know the place of a wrong type but not of a wrong meaning).

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fairweir_core::policy::{GROUPS_MAX, Group, Match, Policy, PolicyError};
use fairweir_core::receiver::{Control, Enforce, LATENCY};
use fairweir_core::units::{Rate, Span};

mod error;
mod read;

pub(crate) use error::{ConfigError, nearest};
use error::{Place, Placed};
pub(crate) use read::{CAPACITY_MAX, parse_capacity, parse_control, parse_dev};
use read::{HostKeys, Source};

/// Where the configuration lies if nobody says otherwise.
pub(crate) const DEFAULT_PATH: &str = "/etc/fairweir/fairweir.toml";

/// The only version of the format so far.
pub(crate) const VERSION: i64 = 1;

/// Larger files are no configuration. [`GROUPS_MAX`] groups with 50 matches each fit.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// A valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Table `[host]`.
    pub(crate) host: HostSection,
    /// The groups of all files.
    pub(crate) policy: Policy,
    /// The files in the order in which they were merged.
    pub(crate) files: Vec<PathBuf>,
    /// What is allowed but surely not meant, each with its place.
    pub(crate) warnings: Vec<String>,
}

/// Table `[host]`; `None` where the user says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostSection {
    /// The interface, if none is given on the command line.
    pub(crate) dev: Option<String>,
    /// The way of control, if none is given on the command line.
    pub(crate) control: Option<Control>,
    /// What the link carries.
    pub(crate) capacity: Option<Rate>,
    /// Strict priority in the order of the groups instead of weights (`chokepoint` alone).
    pub(crate) strict_priority: bool,
    /// By what shares are enforced (`fairweir` alone).
    pub(crate) enforce: Enforce,
    /// How long the queue at the ISP shall be (`fairweir` and `rbm` alone).
    pub(crate) latency: Span,
    /// Who shall answer the probe of the access link.
    pub(crate) probe: ProbeChoice,
    /// From one request of the probe to the next while the link is in use.
    pub(crate) probe_interval: Span,
}

/// Who shall answer the probe of the access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeChoice {
    /// Whoever is found behind the access link without asking strangers.
    Auto,
    /// Nobody is asked.
    Off,
    /// This host.
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

/// The interval of the probe if nobody says otherwise: four answers in a tick, at 12 kbit/s.
pub(crate) const PROBE_INTERVAL: Span = Span::millis(50);

impl Default for HostSection {
    fn default() -> HostSection {
        HostSection {
            dev: None,
            control: None,
            capacity: None,
            strict_priority: false,
            enforce: Enforce::Auto,
            latency: LATENCY,
            probe: ProbeChoice::Auto,
            probe_interval: PROBE_INTERVAL,
        }
    }
}

impl Config {
    /// Reads `main` and `conf.d/*.toml` beside it.
    ///
    /// # Errors
    /// [`ConfigError`]: the first thing that is wrong.
    pub(crate) fn load(main: &Path) -> Result<Config, ConfigError> {
        let mut draft = Draft::default();
        let files = files_of(main)?;
        for file in &files {
            draft.add(&read_file(file)?)?;
        }
        draft.finish(files)
    }
}

/// Directory beside the main file whose `*.toml` are merged after it.
pub(crate) fn conf_d(main: &Path) -> PathBuf {
    main.parent().unwrap_or(Path::new("")).join("conf.d")
}

/// `main`, then the files of `conf.d` in byte order of their names.
fn files_of(main: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let dir = conf_d(main);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![main.to_owned()]),
        Err(e) => return Err(ConfigError::unreadable(&dir, &e)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| ConfigError::unreadable(&dir, &e))?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    files.insert(0, main.to_owned());
    Ok(files)
}

fn read_file(path: &Path) -> Result<Source, ConfigError> {
    let unreadable = |e: io::Error| ConfigError::unreadable(path, &e);
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_SIZE_MAX {
        let message = format!("{size} bytes are too many: at most {FILE_SIZE_MAX}");
        return Err(ConfigError::whole_file(path, message));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    Source::new(path, bytes)
}

/// What the files read so far say together.
#[derive(Default)]
struct Draft {
    host: HostKeys,
    groups: Vec<Placed<Group>>,
}

impl Draft {
    fn add(&mut self, source: &Source) -> Result<(), ConfigError> {
        let document = source.parse()?;
        self.host.merge(document.host)?;
        for group in document.groups {
            self.add_group(group)?;
        }
        Ok(())
    }

    fn add_group(&mut self, group: Placed<Group>) -> Result<(), ConfigError> {
        let name = &group.value.name;
        if let Some(earlier) = self.groups.iter().find(|g| g.value.name == *name) {
            let message = format!(
                "the group `{name}` stands at {} already; merge the two or rename one",
                earlier.place
            );
            return Err(group.place.error("group.name", message));
        }
        // The rules for one group are those of the policy; asking it group by group gives the
        // place of the one that breaks them.
        if let Err(e) = Policy::new(vec![group.value.clone()]) {
            let key = match e {
                PolicyError::DefaultMatches => "group.match",
                _ => "group.name",
            };
            return Err(group.place.error(key, e.to_string()));
        }
        if self.groups.len() == GROUPS_MAX {
            let e = PolicyError::TooManyGroups(GROUPS_MAX + 1);
            return Err(group.place.error("group", e.to_string()));
        }
        self.groups.push(group);
        Ok(())
    }

    fn finish(self, files: Vec<PathBuf>) -> Result<Config, ConfigError> {
        let last = self.groups.last().map(|g| g.place.clone());
        let warnings = self.warnings();
        let host = self.host.finish()?;
        let policy =
            Policy::new(self.groups.into_iter().map(|g| g.value).collect()).map_err(|e| {
                // What is left is the room for the default group that is added unasked.
                let place = last.unwrap_or_else(|| Place::new(&files[0], 1));
                place.error("group", e.to_string())
            })?;
        Ok(Config { host, policy, files, warnings })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let all = self.groups.iter().flat_map(|g| g.value.matches.iter().map(move |m| (g, m)));
        let mut seen: Vec<(&Placed<Group>, String)> = Vec::new();
        for (group, m) in all {
            let text = m.to_string();
            if matches!(m, Match::Unit(name) if !name.contains('.')) {
                warnings.push(format!(
                    "{}: `{text}` of `{}` names no unit of systemd, which all end like `.service`",
                    group.place, group.value.name
                ));
            }
            if let Some((first, _)) = seen.iter().find(|(_, t)| *t == text) {
                let wins = &first.value.name;
                warnings.push(format!(
                    "{}: `{text}` of `{}` stands in `{wins}` already, which stands first and wins",
                    group.place, group.value.name
                ));
            } else {
                seen.push((group, text));
            }
        }
        if self.groups.is_empty() {
            warnings.push("no groups: everything shares the default group".to_owned());
        }
        let control = self.host.control();
        if let Some(place) = self.host.strict_priority_without(control) {
            warnings.push(format!(
                "{place}: `strict_priority` works with the control `chokepoint` alone, not with \
                 `{control}`"
            ));
        }
        warnings
    }
}
