//! The file of `fairweir sender`: bundles, with the rules that assign connections to them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fairweir_core::delegate::{Algorithm, BundleSpec, Reverse, Target};
use fairweir_core::policy::{Match, parse_prefix};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;
use ipnet::IpNet;

use crate::FileKind;
use crate::error::ConfigError;
use crate::file::{DAEMON, Rules, Text};
use crate::mistakes;
use crate::table::{Placed, Source, Table};
use crate::target::target;
use crate::value::parse_match;
use crate::{MetricsAt, VERSION};

/// The path that is read if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/fairweir/sender.toml";
/// The most bundles.
pub const BUNDLES_MAX: usize = 16;
/// The most connections with a target in a bundle, and therefore the most rules for them.
pub const FREE_MAX: usize = 16;
/// The most lists of stunts in a bundle.
pub const STUNTS_MAX: usize = 15;

/// The most rules of a list.
const MATCHES_MAX: usize = 64;
/// The longest name.
const NAME_MAX: usize = 64;

/// A valid file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Where metrics are served over HTTP.
    pub metrics: Option<MetricsAt>,
    /// In the order of the file: a connection belongs to the first one with a rule that names it.
    pub bundles: Vec<BundleConfig>,
}

/// Connections that share a bottleneck and answer each other's congestion signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleConfig {
    /// Unique.
    pub name: String,
    /// Only connections to these prefixes are in the bundle.
    pub peers: Vec<IpNet>,
    /// How signals are delegated.
    pub spec: BundleSpec,
    /// The lowest rate to which delegation reduces a stunt.
    pub min_rate: Rate,
    /// The congestion control of connections in the bundle. With `None` each keeps its own, and
    /// only connections with reno or cubic are included.
    pub congestion_control: Option<CongestionControl>,
    /// Connections with targets.
    pub free: Vec<FreeConfig>,
    /// Connections that answer signals for them.
    pub stunts: Vec<StuntsConfig>,
}

/// Connections of which each has a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeConfig {
    /// A connection is included if any of these matches.
    pub matches: Vec<Match>,
    /// The target of each connection; a trace begins when the daemon takes the connection over.
    pub target: Target,
}

/// Connections that answer signals for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuntsConfig {
    /// A connection is included if any of these matches.
    pub matches: Vec<Match>,
    /// A stunt of weight 2 is asked half as often as one of weight 1.
    pub weight: Weight,
}

/// A congestion control that can be in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Reno.
    Reno,
    /// CUBIC.
    Cubic,
}

impl SenderFile {
    /// Reads the file.
    ///
    /// # Errors
    /// All that is wrong: file, line, key, what is allowed.
    pub fn load(path: &Path) -> Result<SenderFile, ConfigError> {
        let text =
            Text::read(path, &Rules { if_missing: FileKind::Sender.if_missing(), ..DAEMON })?;
        mistakes::all(text.as_str().len(), |mends| {
            SenderFile::parse(text.source(&[]).mended(mends), path)
        })
    }

    pub(crate) fn parse(source: Source<'_>, path: &Path) -> Result<SenderFile, ConfigError> {
        let mut top = source.top()?;
        top.version_of(FileKind::Sender, VERSION)?;
        let metrics = match top.table("sender")? {
            Some(mut table) => {
                let metrics = table.parsed_by("metrics", MetricsAt::parse)?;
                table.finish()?;
                metrics.map(|p| p.value)
            }
            None => None,
        };
        let mut bundles: Vec<BundleConfig> = Vec::new();
        for table in top.tables("bundle")? {
            let place = table.place();
            let bundle = bundle(table)?;
            if bundles.iter().any(|b| b.name == bundle.name) {
                return Err(place.error(format!("duplicate bundle `{}`", bundle.name)));
            }
            if bundles.len() == BUNDLES_MAX {
                return Err(place.error(format!("too many bundles (at most {BUNDLES_MAX})")));
            }
            bundles.push(bundle);
        }
        if bundles.is_empty() {
            return Err(top.missing("bundle", "at least one table [[bundle]]"));
        }
        top.finish()?;
        Ok(SenderFile { path: path.to_owned(), metrics, bundles })
    }
}

impl BundleConfig {
    /// Whether a connection to `address` can be in the bundle.
    pub fn has_peer(&self, address: IpAddr) -> bool {
        self.peers.iter().any(|net| net.contains(&address))
    }
}

fn bundle(mut table: Table<'_>) -> Result<BundleConfig, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name for reports"))?;
    if name.value.is_empty() || name.value.len() > NAME_MAX {
        return Err(name.place.error(format!("a name has 1 to {NAME_MAX} bytes")));
    }
    let wanted =
        "prefixes such as [\"192.0.2.0/24\"]; all connections to them must share a bottleneck";
    let peers = table.texts("peers")?.ok_or_else(|| table.missing("peers", wanted))?;
    if peers.value.is_empty() || peers.value.len() > MATCHES_MAX {
        return Err(peers.place.error(format!("expected 1 to {MATCHES_MAX} prefixes")));
    }
    let prefix = |p: Placed<'_, String>| parse_prefix(&p.value).map_err(|e| p.place.error(e));
    let peers = peers.value.into_iter().map(prefix).collect::<Result<Vec<_>, _>>()?;

    let algorithm = table.word("controller", &Algorithm::ALL)?;
    let reverse = [("exact", Reverse::Exact), ("own", Reverse::Own)];
    let reverse = table.word("reverse", &reverse)?.map_or(Reverse::Exact, |p| p.value);
    let algorithm = algorithm.map_or(Algorithm::Track, |p| p.value);
    let min_rate = table.parsed("min_rate")?.map_or(Rate::ZERO, |p| p.value);
    let words = [("reno", CongestionControl::Reno), ("cubic", CongestionControl::Cubic)];
    let congestion_control = table.word("congestion_control", &words)?.map(|p| p.value);

    let free = table.tables("free")?.into_iter().map(free).collect::<Result<Vec<_>, _>>()?;
    if free.is_empty() || free.len() > FREE_MAX {
        return Err(table.missing(
            "free",
            format_args!("1 to {FREE_MAX} tables [[bundle.free]] with `match` and a target"),
        ));
    }
    let stunts = table.tables("stunts")?.into_iter().map(stunts).collect::<Result<Vec<_>, _>>()?;
    if stunts.is_empty() || stunts.len() > STUNTS_MAX {
        return Err(table.missing(
            "stunts",
            format_args!("1 to {STUNTS_MAX} tables [[bundle.stunts]] with `match`"),
        ));
    }
    table.finish()?;
    let spec = BundleSpec { algorithm, reverse };
    Ok(BundleConfig { name: name.value, peers, spec, min_rate, congestion_control, free, stunts })
}

fn free(mut table: Table<'_>) -> Result<FreeConfig, ConfigError> {
    let matches = matches(&mut table)?;
    let target = target(&mut table, None)?;
    table.finish()?;
    Ok(FreeConfig { matches, target })
}

fn stunts(mut table: Table<'_>) -> Result<StuntsConfig, ConfigError> {
    let matches = matches(&mut table)?;
    let weight = table.integer("weight", 1, Weight::MAX.into())?;
    let weight = weight.map_or(Some(Weight::ONE), |p| Weight::new(p.value as u32));
    table.finish()?;
    Ok(StuntsConfig { matches, weight: weight.expect("invariant: the range was checked") })
}

fn matches(table: &mut Table<'_>) -> Result<Vec<Match>, ConfigError> {
    let wanted = "rules such as [\"local-port:tcp/873\"]";
    let texts = table.texts("match")?.ok_or_else(|| table.missing("match", wanted))?;
    if texts.value.is_empty() || texts.value.len() > MATCHES_MAX {
        return Err(texts.place.error(format!("expected 1 to {MATCHES_MAX} rules")));
    }
    let parse = |p: Placed<'_, String>| match parse_match(&p.value) {
        Ok(Match::Web(_)) => Err(p.place.error("`web:` is for downloads; it does not work here")),
        parsed => parsed.map_err(|e| p.place.error(e)),
    };
    texts.value.into_iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bundle: &str) -> Result<SenderFile, String> {
        let text = format!("version = 1\n[[bundle]]\n{bundle}");
        let source = Source::new(&text, "sender.toml", &[]);
        SenderFile::parse(source, Path::new("sender.toml")).map_err(|e| e.to_string())
    }

    const FREE: &str = "[[bundle.free]]\nmatch = [\"local-port:tcp/1935\"]\n";
    const STUNTS: &str = "[[bundle.stunts]]\nmatch = [\"app:rsync\"]\nweight = 2\n";
    const HEAD: &str = "name = \"a\"\npeers = [\"192.0.2.0/24\"]\n";

    #[test]
    fn a_bundle_is_read_with_its_defaults() {
        let file = parse(&format!("{HEAD}{FREE}target = \"8mbit\"\n{STUNTS}")).unwrap();
        let bundle = &file.bundles[0];
        assert_eq!(bundle.spec.algorithm, Algorithm::Track);
        assert_eq!(bundle.stunts[0].weight.as_u32(), 2);
        assert_eq!((bundle.congestion_control, bundle.min_rate), (None, Rate::ZERO));
        assert!(bundle.has_peer("192.0.2.7".parse().unwrap()));
        assert!(!bundle.has_peer("192.0.3.7".parse().unwrap()));
    }

    #[test]
    fn what_is_wrong_is_one_error_with_its_line() {
        let trace = |points: &str| format!("{HEAD}{FREE}trace = [{points}]\n{STUNTS}");
        for (text, says) in [
            (format!("{HEAD}{FREE}target = \"8mbit\"\n"), "stunts"),
            (format!("{HEAD}{STUNTS}"), "free"),
            (format!("{HEAD}{FREE}{STUNTS}"), "expected one of"),
            (format!("name = \"a\"\n{FREE}target = \"8mbit\"\n{STUNTS}"), "peers"),
            (format!("{HEAD}{FREE}target = \"-8mbit\"\n{STUNTS}"), "target"),
            (format!("{HEAD}{FREE}target = \"900000gbit\"\n{STUNTS}"), "target"),
            (
                trace("{ at = \"9s\", rate = \"1mbit\" }, { at = \"5s\", rate = \"2mbit\" }"),
                "trace",
            ),
            (
                format!("{HEAD}{FREE}sine = {{ mean = \"1mbit\" }}\ntarget = \"1mbit\"\n{STUNTS}"),
                "sine",
            ),
            (
                format!(
                    "{HEAD}{FREE}target = \"8mbit\"\n[[bundle.stunts]]\nmatch = [\"colour:red\"]\n"
                ),
                "unknown kind",
            ),
            (format!("{HEAD}x = 1\n{FREE}target = \"8mbit\"\n{STUNTS}"), "unknown key"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with("sender.toml:") && error.contains(says), "{text}\n{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
