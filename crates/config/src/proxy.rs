//! The file of `fairweir proxy`: classes that have a rate, and applications that have a priority.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fairweir_core::market::utility::Kind;
use fairweir_core::packet::Mac;
use fairweir_core::policy::{DEFAULT_GROUP, Match, NAME_MAX};
use fairweir_core::recognition::{DeviceMatch, Identity, Kind as DeviceKind, Os, Word};
use fairweir_core::units::Rate;

use crate::FileKind;
use crate::applications::KINDS;
use crate::error::ConfigError;
use crate::file::{DAEMON, Rules, Text};
use crate::mistakes;
use crate::table::{Source, Table};
use crate::value::{parse_dev, parse_device_match, parse_match};
use crate::{MetricsAt, VERSION};

/// The path that is read if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/fairweir/proxy.toml";
/// The most classes, and the most applications.
pub const TABLES_MAX: usize = 200;
/// The most devices that the user describes.
pub const DEVICES_MAX: usize = 256;
/// The most rules of a class or an application.
const MATCHES_MAX: usize = 64;
/// The largest weight of a kind of use.
const WEIGHT_MAX: u64 = 1_000;
/// The most interfaces of the LAN.
const LAN_MAX: usize = 16;
/// The lowest rate of a class: below it, a segment takes longer than a connection waits.
const RATE_MIN: Rate = Rate::kbit(100);

/// A valid file.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxyFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Interfaces whose devices are served.
    pub lan: Vec<String>,
    /// Whether the router beside the proxy may name devices.
    pub takes_routers: bool,
    /// Where metrics are served over HTTP.
    pub metrics: Option<MetricsAt>,
    /// In the order of the file: a connection belongs to the first class that names it.
    pub classes: Vec<ClassConfig>,
    /// The applications, each with the names of its servers.
    pub apps: Vec<AppConfig>,
    /// The weight of each kind of use, in the order of [`Kind::ALL`].
    pub weights: Option<[f64; 4]>,
    /// Whether the household's market agent overrides these weights while it sends its own.
    pub follows_household: bool,
    /// The user's descriptions of devices, one for each.
    pub devices: Vec<(Mac, Identity)>,
}

/// Connections that share a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Unique.
    pub name: String,
    /// The rate of all their downloads together; `None` if it is not limited.
    pub rate: Option<Rate>,
    /// Whether the rate rises to what the household's market agent has bought, as long as that lasts.
    pub takes_guarantee: bool,
    /// `ip:`, `mac:` or `web:` matches.
    pub matches: Vec<Match>,
    /// `os:` or `device-kind:` matches.
    pub devices: Vec<DeviceMatch>,
}

/// An application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// Unique.
    pub name: String,
    /// The weight of a connection within its class's rate, relative to others: 1 to 255.
    pub alpha: u8,
    /// The criteria for the application's connections.
    pub matches: Vec<AppMatch>,
}

/// One criterion for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppMatch {
    /// Names of servers: `web:netflix.com`.
    Site(Match),
    /// Applications of the built-in table with this kind of use: `app-class:streaming`.
    Kind(Kind),
}

impl AppConfig {
    /// The names of its servers.
    pub fn sites(&self) -> impl Iterator<Item = &Match> {
        self.matches.iter().filter_map(|matched| match matched {
            AppMatch::Site(site) => Some(site),
            AppMatch::Kind(_) => None,
        })
    }

    /// Whether one of its criteria is this kind of use.
    pub fn has_kind(&self, kind: Kind) -> bool {
        self.matches.contains(&AppMatch::Kind(kind))
    }
}

impl FromStr for AppMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<AppMatch, String> {
        if let Some(word) = text.strip_prefix("app-class:") {
            let kind = KINDS.iter().find(|(known, _)| *known == word);
            let wrong = "expected app-class:streaming, social, download or web";
            return kind.map(|(_, kind)| AppMatch::Kind(*kind)).ok_or(wrong.to_owned());
        }
        match parse_match(text)? {
            site @ Match::Web(_) => Ok(AppMatch::Site(site)),
            other => Err(format!(
                "`{other}` is no name of a server; expected web:NAME or app-class:KIND"
            )),
        }
    }
}

impl fmt::Display for AppMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppMatch::Site(site) => site.fmt(f),
            AppMatch::Kind(kind) => {
                let word = KINDS.iter().find(|(_, known)| known == kind);
                let (word, _) = word.expect("invariant: each kind has a word");
                write!(f, "app-class:{word}")
            }
        }
    }
}

impl ProxyFile {
    /// Reads the file.
    ///
    /// # Errors
    /// All that is wrong: file, line, key, what is allowed.
    pub fn load(path: &Path) -> Result<ProxyFile, ConfigError> {
        let text = Text::read(path, &Rules { if_missing: FileKind::Proxy.if_missing(), ..DAEMON })?;
        mistakes::all(text.as_str().len(), |mends| {
            ProxyFile::parse(text.source(&[]).mended(mends), path)
        })
    }

    pub(crate) fn parse(source: Source<'_>, path: &Path) -> Result<ProxyFile, ConfigError> {
        let mut top = source.top()?;
        top.version_of(FileKind::Proxy, VERSION)?;
        let wanted = "a table with `lan = [\"br-lan\"]`";
        let mut proxy = top.table("proxy")?.ok_or_else(|| top.missing("proxy", wanted))?;
        let lan =
            proxy.texts("lan")?.ok_or_else(|| proxy.missing("lan", "a list of interfaces"))?;
        if lan.value.is_empty() || lan.value.len() > LAN_MAX {
            return Err(lan.place.error(format!("expected 1 to {LAN_MAX} interfaces")));
        }
        let dev =
            |p: crate::table::Placed<'_, String>| parse_dev(&p.value).map_err(|e| p.place.error(e));
        let lan = lan.value.into_iter().map(dev).collect::<Result<Vec<_>, _>>()?;
        let metrics = proxy.parsed_by("metrics", MetricsAt::parse)?.map(|p| p.value);
        let takes_routers = proxy.truth_placed("router")?.is_some_and(|p| p.value);
        proxy.finish()?;

        let mut classes: Vec<ClassConfig> = Vec::new();
        for table in top.tables("class")? {
            let place = table.place();
            let class = class(table)?;
            if classes.iter().any(|c| c.name == class.name) {
                return Err(place.error(format!("duplicate class `{}`", class.name)));
            }
            if class.takes_guarantee && classes.iter().any(|c| c.takes_guarantee) {
                return Err(place.error("a lease is for one class only; another class has `lease`"));
            }
            if classes.len() == TABLES_MAX {
                return Err(place.error(format!("too many classes (at most {TABLES_MAX})")));
            }
            classes.push(class);
        }
        if classes.is_empty() && !takes_routers {
            let wanted = "at least one table [[class]], or `router = true` in [proxy]";
            return Err(top.missing("class", wanted));
        }
        let mut apps: Vec<AppConfig> = Vec::new();
        for table in top.tables("app")? {
            let place = table.place();
            let app = app(table)?;
            if apps.iter().any(|a| a.name == app.name) {
                return Err(place.error(format!("duplicate application `{}`", app.name)));
            }
            if apps.len() == TABLES_MAX {
                return Err(place.error(format!("too many applications (at most {TABLES_MAX})")));
            }
            apps.push(app);
        }
        let priority = top.table("priority")?.map(priority).transpose()?;
        let (weights, follows_household) = priority.map_or((None, false), |(w, f)| (Some(w), f));
        let mut devices: Vec<(Mac, Identity)> = Vec::new();
        for table in top.tables("device")? {
            let place = table.place();
            let device = device(table)?;
            if devices.iter().any(|(mac, _)| *mac == device.0) {
                return Err(place.error(format!("duplicate device `{}`", device.0)));
            }
            if devices.len() == DEVICES_MAX {
                return Err(place.error(format!("too many devices (at most {DEVICES_MAX})")));
            }
            devices.push(device);
        }
        top.finish()?;
        let path = path.to_owned();
        Ok(ProxyFile {
            path,
            lan,
            takes_routers,
            metrics,
            classes,
            apps,
            weights,
            follows_household,
            devices,
        })
    }
}

fn class(mut table: Table<'_>) -> Result<ClassConfig, ConfigError> {
    let name = name(&mut table)?;
    let rate = table.parsed::<Rate>("rate")?;
    if let Some(rate) = rate.as_ref().filter(|rate| rate.value < RATE_MIN) {
        return Err(rate
            .place
            .error(format!("{} is out of range (at least {RATE_MIN})", rate.value)));
    }
    let lease = table.truth_placed("lease")?;
    let takes_guarantee = lease.as_ref().is_some_and(|lease| lease.value);
    if let Some(lease) = lease.filter(|lease| lease.value && rate.is_none()) {
        return Err(lease.place.error("`lease` needs `rate`: what the class has without a lease"));
    }
    let wanted = "rules such as [\"ip:192.168.1.7\", \"mac:02:00:5e:00:53:01\", \
                  \"web:example.com\", \"os:ios\", \"device-kind:television\"]";
    let mut devices = Vec::new();
    let matches = matches(&mut table, wanted, |text| match DeviceMatch::parse(text) {
        Some(device) => device.map(|device| devices.push(device)).map(|()| None),
        None if text.starts_with("web:") => parse_match(text).map(Some),
        None => parse_device_match(text).map(Some),
    })?;
    let matches = matches.into_iter().flatten().collect();
    table.finish()?;
    Ok(ClassConfig { name, rate: rate.map(|rate| rate.value), takes_guarantee, matches, devices })
}

fn device(mut table: Table<'_>) -> Result<(Mac, Identity), ConfigError> {
    let place = table.place();
    let mac = table.parsed::<Mac>("mac")?;
    let mac = mac.ok_or_else(|| table.missing("mac", "an address such as 02:00:5e:00:53:01"))?;
    let os = table.word("os", Os::ALL)?.map(|p| p.value);
    let kind = table.word("kind", DeviceKind::ALL)?.map(|p| p.value);
    table.finish()?;
    if os.is_none() && kind.is_none() {
        return Err(place.error("expected `os` or `kind`, such as `os = \"ios\"`"));
    }
    Ok((mac.value, Identity { os, kind }))
}

fn app(mut table: Table<'_>) -> Result<AppConfig, ConfigError> {
    let name = name(&mut table)?;
    let wanted = "a priority from 1 to 255; connections of no application have 64";
    let alpha = table.integer("alpha", 1, 255)?.ok_or_else(|| table.missing("alpha", wanted))?;
    let wanted = "rules such as [\"web:example.com\", \"app-class:streaming\"]";
    let matches = matches(&mut table, wanted, AppMatch::from_str)?;
    table.finish()?;
    Ok(AppConfig { name, alpha: alpha.value as u8, matches })
}

/// The weights of kinds (1 for those that are not named), and whether the household's take precedence.
fn priority(mut table: Table<'_>) -> Result<([f64; 4], bool), ConfigError> {
    let follows_household = table.truth("household")?.unwrap_or(false);
    let mut weights = [1.0; 4];
    for (word, kind) in KINDS {
        if let Some(weight) = table.integer(word, 0, WEIGHT_MAX)? {
            weights[kind as usize] = weight.value as f64;
        }
    }
    table.finish()?;
    Ok((weights, follows_household))
}

fn name(table: &mut Table<'_>) -> Result<String, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name for reports"))?;
    if !fairweir_core::policy::is_name(&name.value) || name.value == DEFAULT_GROUP {
        return Err(name.place.error(format!(
            "`{}` is not a valid name (1 to {NAME_MAX} letters, digits, `-`, `_` or `.`, not \
             `{DEFAULT_GROUP}`)",
            name.value
        )));
    }
    Ok(name.value)
}

fn matches<T>(
    table: &mut Table<'_>,
    wanted: &str,
    mut parse: impl FnMut(&str) -> Result<T, String>,
) -> Result<Vec<T>, ConfigError> {
    let texts = table.texts("match")?.ok_or_else(|| table.missing("match", wanted))?;
    if texts.value.is_empty() || texts.value.len() > MATCHES_MAX {
        return Err(texts.place.error(format!("expected 1 to {MATCHES_MAX} rules")));
    }
    let mut one =
        |p: crate::table::Placed<'_, String>| parse(&p.value).map_err(|e| p.place.error(e));
    texts.value.into_iter().map(&mut one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "version = 1\n[proxy]\nlan = [\"br-lan\"]\n";

    fn parse(text: &str) -> Result<ProxyFile, String> {
        let source = Source::new(text, "proxy.toml", &[]);
        ProxyFile::parse(source, Path::new("proxy.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn classes_and_applications_are_read() {
        let file = parse(&format!(
            "{HEAD}[[class]]\nname = \"tv\"\nrate = \"8mbit\"\nmatch = [\"ip:192.0.2.7\", \
             \"mac:02:00:5e:00:53:01\", \"web:example.com\"]\n[[class]]\nname = \"rest\"\n\
             match = [\"ip:192.0.2.0/24\"]\n[[app]]\nname = \"film\"\nalpha = 200\n\
             match = [\"web:film.example.com\"]\n"
        ));
        let file = file.unwrap();
        assert_eq!(file.classes[0].rate, Some(Rate::mbit(8)));
        assert_eq!(file.classes[0].matches.len(), 3);
        assert_eq!(file.classes[1].rate, None);
        assert_eq!((file.apps[0].alpha, file.lan), (200, vec!["br-lan".to_owned()]));
        assert_eq!((file.weights, file.takes_routers), (None, false));
        let routed = parse(&HEAD.replace("[proxy]", "[proxy]\nrouter = true")).unwrap();
        assert!(routed.takes_routers && routed.classes.is_empty());
        let file = parse(&format!(
            "{HEAD}[[class]]\nname = \"tv\"\nmatch = [\"os:ios\", \"ip:192.0.2.7\", \
             \"device-kind:television\"]\n[[device]]\nmac = \"02:00:5e:00:53:01\"\n\
             kind = \"television\"\n"
        ));
        let file = file.unwrap();
        assert_eq!((file.classes[0].matches.len(), file.classes[0].devices.len()), (1, 2));
        assert_eq!(file.devices[0].1, Identity { os: None, kind: Some(DeviceKind::Television) });
        let file = parse(&format!(
            "{HEAD}[[class]]\nname = \"a\"\nmatch = [\"ip:192.0.2.7\"]\n[[app]]\nname = \"x\"\n\
             alpha = 9\nmatch = [\"web:x.org\", \"app-class:download\"]\n\
             [priority]\nstreaming = 5\nweb = 0\n"
        ));
        let file = file.unwrap();
        assert_eq!((file.weights, file.follows_household), (Some([5.0, 1.0, 1.0, 0.0]), false));
        let class = "[[class]]\nname = \"a\"\nmatch = [\"ip:192.0.2.7\"]\n";
        let followed = parse(&format!("{HEAD}{class}[priority]\nhousehold = true\nweb = 2\n"));
        let followed = followed.unwrap();
        assert_eq!(followed.weights, Some([1.0, 1.0, 1.0, 2.0]));
        assert!(followed.follows_household);
        assert_eq!(file.apps[0].sites().count(), 1);
        assert!(file.apps[0].has_kind(Kind::Downloads) && !file.apps[0].has_kind(Kind::Web));
        assert_eq!(file.apps[0].matches[1].to_string(), "app-class:download");
    }

    #[test]
    fn what_is_wrong_is_one_error_with_its_line() {
        let class = "[[class]]\nname = \"a\"\nmatch = [\"ip:192.0.2.7\"]\n";
        let leased = format!("{class}rate = \"8mbit\"\nlease = true\n");
        for (text, says) in [
            (class.to_owned(), "proxy"),
            (HEAD.to_owned(), "class"),
            (format!("{HEAD}{class}{class}"), "duplicate class `a`"),
            (format!("{HEAD}{class}rate = \"1kbit\"\n"), "out of range"),
            (format!("{HEAD}{class}lease = true\n"), "`lease` needs `rate`"),
            (format!("{HEAD}{class}rate = \"8mbit\"\nlease = 1\n"), "lease"),
            (
                format!("{HEAD}{leased}{}", leased.replace("\"a\"", "\"b\"")),
                "a lease is for one class only",
            ),
            (format!("{HEAD}{}", class.replace("ip:192.0.2.7", "app:steam")), "match"),
            (format!("{HEAD}{}", class.replace("\"a\"", "\"a b\"")), "not a valid name"),
            (format!("{HEAD}{}", class.replace("\"a\"", "\"default\"")), "not a valid name"),
            (format!("{HEAD}{}", class.replace("ip:192.0.2.7", "web:com")), "public suffix"),
            (format!("{HEAD}{class}[[app]]\nname = \"x\"\nmatch = [\"web:x.org\"]\n"), "alpha"),
            (
                format!("{HEAD}{class}[[app]]\nname = \"x\"\nalpha = 0\nmatch = [\"web:x.org\"]\n"),
                "255",
            ),
            (
                format!(
                    "{HEAD}{class}[[app]]\nname = \"x\"\nalpha = 9\nmatch = [\"ip:192.0.2.1\"]\n"
                ),
                "web:NAME",
            ),
            (format!("{HEAD}colour = 1\n{class}"), "unknown key"),
            (format!("{HEAD}{}", class.replace("ip:192.0.2.7", "os:iso")), "ios"),
            (format!("{HEAD}{}", class.replace("ip:192.0.2.7", "device-kind:x")), "television"),
            (format!("{HEAD}{class}[[device]]\nos = \"ios\"\n"), "mac"),
            (format!("{HEAD}{class}[[device]]\nmac = \"02:00:5e:00:53:01\"\n"), "`os` or `kind`"),
            (
                format!(
                    "{HEAD}{class}{}",
                    "[[device]]\nmac = \"02:00:5e:00:53:01\"\nos = \"ios\"\n".repeat(2)
                ),
                "duplicate device",
            ),
            (
                format!("{HEAD}{class}[[device]]\nmac = \"02:00:5e:00:53:01\"\nos = \"iso\"\n"),
                "did you mean `ios`",
            ),
            (format!("{HEAD}{class}[priority]\nfilm = 1\n"), "unknown key"),
            (format!("{HEAD}{class}[priority]\nweb = 1001\n"), "1000"),
            (
                format!(
                    "{HEAD}{class}[[app]]\nname = \"x\"\nalpha = 9\nmatch = [\"app-class:films\"]\n"
                ),
                "app-class:streaming",
            ),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with("proxy.toml:") && error.contains(says), "{text}\n{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
