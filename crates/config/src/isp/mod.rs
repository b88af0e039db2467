//! The files of `fairweir isp`: `isp.toml` with the section [isp], plans and subscribers, and a table
//! of subscribers beside it ([`csv`]).

use std::path::{Path, PathBuf};

use fairweir_core::units::Span;
use ipnet::IpNet;
use nix::unistd::{Gid, Group};
use serde::{Deserialize, Serialize};

use crate::FileKind;
use crate::file::{Rules, Text, Trust};
use crate::mistakes::{self, MISTAKES_MAX};
use crate::table::{Source, Table as TomlTable};
use crate::value::parse_dev;
use crate::{ConfigError, MetricsAt, Placed, VERSION};

pub mod address;
pub mod csv;
mod plan;
mod segment;
mod sessions;
mod usage;

pub use plan::{BundleEntry, Compiled, NAME_MAX, PlanEntry, check_name};
pub use segment::{MemberPattern, SegmentEntry};
pub use sessions::{CoaSection, Endpoint, LeasesSection, RadiusSection, Secret};
pub use usage::{Collector, UsageSection};

use address::{as_texts, parse_address};

/// The main file if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/fairweir/isp.toml";

/// The size limit in bytes: two million subscribers with two addresses each fit.
pub(crate) const FILE_SIZE_MAX: u64 = 256 << 20;

/// Source: L2 overheads of access technologies. Negative values are for devices that count bytes
/// which are not on the wire.
const OVERHEAD_RANGE: (i64, i64) = (-64, 256);

/// The daemon sends a heartbeat each second, except while it loads: two seconds for 100,000 subscribers.
const WATCHDOG_RANGE: (Span, Span) = (Span::secs(5), Span::secs(86_400));
const WATCHDOG_DEFAULT: Span = Span::secs(600);

/// The most segments. Source: the kernel's table has 256 entries, and a segment needs two.
const SEGMENTS_MAX: usize = 128;

/// A file whose parts are valid one by one. The daemon's registry checks that they fit together:
/// each address belongs to one subscriber, and each subscriber's plan exists.
#[derive(Debug)]
pub struct IspFile {
    /// The path of the main file, as the caller gave it.
    pub path: PathBuf,
    text: Text,
    /// Where and how to police.
    pub isp: IspSection,
    /// In the order of the file.
    pub plans: Vec<(Origin, PlanEntry)>,
    /// In the order of the file.
    pub segments: Vec<SegmentEntry>,
    /// Sessions that access servers report.
    pub radius: Option<RadiusSection>,
    /// Requests of servers to change and end these sessions.
    pub coa: Option<CoaSection>,
    /// Files of DHCP servers.
    pub leases: Option<LeasesSection>,
    /// How the usage of subscribers is written for billing.
    pub usage: Option<UsageSection>,
    /// The subscribers of the main file, then those of the table.
    pub subscribers: Vec<(Origin, SubscriberSpec)>,
    /// The path of the table of subscribers beside the main file.
    pub table: Option<PathBuf>,
    /// The text of the table.
    pub table_source: Option<String>,
    /// Whether the table has an end mark.
    pub has_end: bool,
    /// The table's name, for errors in it.
    table_text: Option<Text>,
}

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the main file, at this offset in bytes.
    File(usize),
    /// A row of the table.
    Table {
        /// Counted from 1.
        line: usize,
        /// The positions at which its fields begin.
        columns: csv::Columns,
    },
}

/// A subscriber, as in a file or a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscriberSpec {
    /// Unique.
    pub name: String,
    /// Whole addresses, or prefixes without host bits.
    #[serde(with = "as_texts")]
    pub addresses: Vec<IpNet>,
    /// The name of a plan.
    pub plan: String,
}

/// Table `[isp]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IspSection {
    /// The interface towards the subscribers.
    pub device: String,
    /// The interface towards the Internet.
    pub uplink: Option<String>,
    /// Where packets are policed.
    pub hook: HookChoice,
    /// The bytes of each packet on the wire in addition to those of its frame.
    pub overhead: i32,
    /// What happens when the daemon ends without a command.
    pub when_gone: WhenGone,
    /// The group that may use the socket, besides root.
    pub group: Option<(String, Gid)>,
    /// Where metrics are served by HTTP.
    pub metrics: Option<MetricsAt>,
}

/// The treatment of traffic when the daemon ends without a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenGone {
    /// Traffic is policed until the daemon is back, but no longer than `watchdog`.
    Keep {
        /// The time since the daemon was last alive.
        watchdog: Span,
    },
    /// All traffic passes.
    Open,
}

/// Where packets are policed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// XDP if there is an uplink and both drivers can do it natively, else tcx.
    #[default]
    Auto,
    /// XDP; generic XDP where the driver has no native support.
    Xdp,
    /// tcx.
    Tcx,
}

impl HookChoice {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            HookChoice::Auto => "auto",
            HookChoice::Xdp => "xdp",
            HookChoice::Tcx => "tcx",
        }
    }
}

impl IspFile {
    /// Reads the file, and the table that it names.
    ///
    /// # Errors
    /// All that is wrong: file, line, key, what is allowed.
    pub fn load(path: &Path) -> Result<IspFile, ConfigError> {
        IspFile::load_with(path, None)
    }

    /// Like [`IspFile::load`]; if the file names a table, reads the one at `instead`.
    ///
    /// # Errors
    /// See [`IspFile::load`].
    pub fn load_with(path: &Path, instead: Option<&Path>) -> Result<IspFile, ConfigError> {
        let if_missing = FileKind::Isp.if_missing();
        let text = read_text(path, Trust::OWNER, if_missing)?;
        let mut file = mistakes::all(text.as_str().len(), |mends| {
            IspFile::parse(text.source(&[]).mended(mends), path)
        })?;
        file.text = text;
        if let Some(table) = &file.table {
            let text = read_text(instead.unwrap_or(table), Trust::NOT_OTHERS, "")?;
            let rows = csv::Table::read(text.as_str()).map_err(|bad| in_table(&text, &bad))?;
            let bad = rows.bad.iter().take(MISTAKES_MAX).map(|bad| in_table(&text, bad));
            if let Some(error) = ConfigError::of_all(bad.collect()) {
                return Err(error);
            }
            file.table_text = Some(text.cleared());
            file.table_source = Some(text.as_str().to_owned());
            file.has_end = rows.has_end;
            let placed = |row: csv::Row| {
                (Origin::Table { line: row.line, columns: row.columns }, row.subscriber)
            };
            // Converted in place, so that a million subscribers are not in memory twice.
            let of_table = rows.rows.into_iter().map(placed).collect();
            let own = std::mem::replace(&mut file.subscribers, of_table);
            file.subscribers.splice(0..0, own);
        }
        Ok(file)
    }

    /// Reads a document of the main file, without its table of subscribers.
    pub(crate) fn parse(source: Source<'_>, path: &Path) -> Result<IspFile, ConfigError> {
        let mut top = source.top()?;
        top.version_of(FileKind::Isp, VERSION)?;
        let wanted = "a table [isp] with the `device` towards the subscribers";
        let isp = top.table("isp")?.ok_or_else(|| top.missing("isp", wanted))?;
        let isp = isp_section(isp)?;
        let mut plans = Vec::new();
        for mut table in top.tables("plan")? {
            let at = table.place().offset();
            let entry = PlanEntry::read(&mut table)?;
            table.finish()?;
            plans.push((Origin::File(at), entry));
        }
        let mut subscribers = Vec::new();
        for table in top.tables("subscriber")? {
            let at = table.place().offset();
            let spec = subscriber(table)?;
            subscribers.push((Origin::File(at), spec));
        }
        let segments = segments(top.tables("segment")?)?;
        let table = top.text("subscribers")?.map(|p| beside(path, &p.value));
        let names: Vec<&str> = plans.iter().map(|(_, plan)| plan.name.as_str()).collect();
        let radius = top.table("radius")?;
        let radius = radius.map(|table| RadiusSection::read(table, path, &names)).transpose()?;
        let coa = match top.table("coa")? {
            Some(table) if radius.is_none() => {
                return Err(table.place().error("needs [radius], whose sessions it is for"));
            }
            table => table.map(|table| CoaSection::read(table, path)).transpose()?,
        };
        let leases = top.table("leases")?;
        let leases = leases.map(|table| LeasesSection::read(table, path, &names)).transpose()?;
        let usage = top.table("usage")?.map(UsageSection::read).transpose()?;
        top.finish()?;
        let path = path.to_owned();
        Ok(IspFile {
            path,
            text: Text::new("", ""),
            isp,
            plans,
            segments,
            radius,
            coa,
            leases,
            usage,
            subscribers,
            table,
            table_source: None,
            has_end: false,
            table_text: None,
        })
    }

    /// The error of a record that violates a rule of the registry; `key` is a key of a plan or of a
    /// subscriber.
    pub fn error(&self, origin: Origin, section: &str, key: &str, what: &str) -> ConfigError {
        match (origin, &self.table_text) {
            (Origin::Table { line, columns }, Some(table)) => {
                table.error(line, Some(columns.of(key)), key, what)
            }
            (Origin::File(offset) | Origin::Table { line: offset, .. }, _) => {
                let line = self.text.line_of(offset);
                self.text.error(line, None, &format!("{section}.{key}"), what)
            }
        }
    }

    /// The place of a record, for people.
    pub fn place(&self, origin: Origin) -> String {
        match (origin, &self.table) {
            (Origin::Table { line, .. }, Some(table)) => format!("{}:{line}", table.display()),
            (Origin::File(offset) | Origin::Table { line: offset, .. }, _) => {
                format!("{}:{}", self.path.display(), self.text.line_of(offset))
            }
        }
    }
}

fn segments(tables: Vec<TomlTable<'_>>) -> Result<Vec<SegmentEntry>, ConfigError> {
    let mut segments: Vec<SegmentEntry> = Vec::new();
    for table in tables {
        let place = table.place();
        let entry = SegmentEntry::read(table)?;
        if segments.iter().any(|other| other.name == entry.name) {
            return Err(place.error(format!("duplicate segment `{}`", entry.name)));
        }
        if segments.len() == SEGMENTS_MAX {
            return Err(place.error(format!("more than {SEGMENTS_MAX} segments")));
        }
        segments.push(entry);
    }
    Ok(segments)
}

fn isp_section(mut table: TomlTable<'_>) -> Result<IspSection, ConfigError> {
    let wanted = "the interface towards the subscribers, such as \"eth1\"";
    let device = dev(&mut table, "device")?.ok_or_else(|| table.missing("device", wanted))?;
    let uplink = dev(&mut table, "uplink")?;
    if let Some(uplink) = uplink.as_ref().filter(|u| u.value == device.value) {
        let what = format!("{} is the device already; wanted another interface", uplink.value);
        return Err(uplink.place.error(what));
    }
    let hooks = [HookChoice::Auto, HookChoice::Xdp, HookChoice::Tcx].map(|h| (h.name(), h));
    let hook = table.word("hook", &hooks)?;
    if let Some(hook) = hook.as_ref().filter(|h| h.value == HookChoice::Xdp && uplink.is_none()) {
        let what = "XDP sees only what arrives at an interface, so it needs an `uplink` too, where \
                    downloads arrive; or write \"tcx\"";
        return Err(hook.place.error(what));
    }
    let (least, most) = OVERHEAD_RANGE;
    let overhead = table.signed("overhead", least, most)?.map_or(0, |p| p.value as i32);
    let when_gone = when_gone(&mut table)?;
    let group = match table.text("group")? {
        None => None,
        Some(Placed { value, place }) => match Group::from_name(&value) {
            Ok(Some(group)) => Some((value, group.gid)),
            Ok(None) => {
                return Err(place.error(format!("no group `{value}` on this system")));
            }
            Err(e) => return Err(place.error(format!("`{value}` cannot be looked up: {e}"))),
        },
    };
    let metrics = table.parsed_by("metrics", MetricsAt::parse)?;
    table.finish()?;
    Ok(IspSection {
        device: device.value,
        uplink: uplink.map(|p| p.value),
        hook: hook.map_or(HookChoice::Auto, |p| p.value),
        overhead,
        when_gone,
        group,
        metrics: metrics.map(|p| p.value),
    })
}

fn when_gone(table: &mut TomlTable<'_>) -> Result<WhenGone, ConfigError> {
    let words = [("keep", true), ("open", false)];
    let keeps = table.word("when_gone", &words)?.is_none_or(|word| word.value);
    let watchdog = table.parsed::<Span>("watchdog")?;
    if let Some(Placed { value, place }) = &watchdog {
        let (least, most) = WATCHDOG_RANGE;
        if *value < least || *value > most {
            let what = format!("watchdog {value} is out of range ({least} to {most})");
            return Err(place.error(what));
        }
        if !keeps {
            return Err(
                place.error("with `when_gone` \"open\" there is nothing to end; remove one")
            );
        }
    }
    let watchdog = watchdog.map_or(WATCHDOG_DEFAULT, |placed| placed.value);
    Ok(if keeps { WhenGone::Keep { watchdog } } else { WhenGone::Open })
}

fn dev<'t>(
    table: &mut TomlTable<'t>,
    key: &str,
) -> Result<Option<Placed<'t, String>>, ConfigError> {
    let Some(text) = table.text(key)? else { return Ok(None) };
    let value = parse_dev(&text.value).map_err(|e| text.place.error(e))?;
    Ok(Some(Placed { value, place: text.place }))
}

fn subscriber(mut table: TomlTable<'_>) -> Result<SubscriberSpec, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name"))?;
    let wanted = "a list, such as [\"192.0.2.1\", \"2001:db8:1::/56\"]";
    let texts = table.texts("addresses")?.ok_or_else(|| table.missing("addresses", wanted))?;
    let parsed = |p: &Placed<'_, String>| parse_address(&p.value).map_err(|e| p.place.error(e));
    let addresses = texts.value.iter().map(parsed).collect::<Result<_, _>>()?;
    let wanted = "the name of a [[plan]]";
    let plan = table.text("plan")?.ok_or_else(|| table.missing("plan", wanted))?;
    table.finish()?;
    Ok(SubscriberSpec { name: name.value, addresses, plan: plan.value })
}

/// The path of a file that another file names.
fn beside(path: &Path, named: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(named)
}

fn in_table(table: &Text, bad: &csv::BadRow) -> ConfigError {
    table.error(bad.line, Some(bad.column), &bad.key, &bad.what)
}

/// The text of a file.
///
/// # Errors
/// If it cannot be read, is too large, or is not UTF-8.
fn read_text(path: &Path, trust: Trust, if_missing: &'static str) -> Result<Text, ConfigError> {
    Text::read(path, &Rules { bytes_max: FILE_SIZE_MAX, trust, if_missing })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = r#"version = 1
subscribers = "subscribers.csv"
[isp]
device = "eth1"
uplink = "eth0"
hook = "xdp"
overhead = -4
metrics = "127.0.0.1:9115"
[[plan]]
name = "home-50"
download = "50mbit"
upload = "10mbit"
[[subscriber]]
name = "alice"
addresses = ["192.0.2.1", "2001:db8:1::/56"]
plan = "home-50"
"#;

    fn load(toml: &str, csv: &str) -> Result<IspFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isp.toml");
        fs::write(&path, toml).unwrap();
        fs::write(dir.path().join("subscribers.csv"), csv).unwrap();
        IspFile::load(&path).map_err(|e| {
            let prefix = format!("{}/", dir.path().display());
            e.to_string().replace(&prefix, "")
        })
    }

    #[test]
    fn a_file_and_its_table_make_one_list() {
        let file = load(GOOD, "name,addresses,plan\nbob,192.0.2.2,home-50\n").unwrap();
        assert_eq!((file.isp.device.as_str(), file.isp.overhead), ("eth1", -4));
        assert_eq!(file.isp.when_gone, WhenGone::Keep { watchdog: Span::secs(600) });
        assert_eq!(file.plans.len(), 1);
        let names: Vec<_> = file.subscribers.iter().map(|(_, s)| s.name.as_str()).collect();
        assert_eq!(names, ["alice", "bob"]);
        assert!(file.place(file.subscribers[0].0).ends_with("isp.toml:13"));
        assert!(file.place(file.subscribers[1].0).ends_with("subscribers.csv:2"));
    }

    #[test]
    fn what_is_wrong_is_told_with_file_line_and_key() {
        let header = "name,addresses,plan\n";
        for (from, to, csv, wanted) in [
            (
                "version = 1",
                "version = 2",
                header,
                "isp.toml:1: version: found the number 2, allowed",
            ),
            (
                "device =",
                "devcie =",
                header,
                "isp.toml:4: isp.devcie: unknown key (did you mean `device`",
            ),
            (
                "\"xdp\"",
                "\"xpd\"",
                header,
                "isp.toml:6: isp.hook: unknown value `xpd` (did you mean `xdp`?); allowed: auto",
            ),
            ("uplink = \"eth0\"", "", header, "isp.toml:6: isp.hook: XDP sees only what"),
            (
                "overhead = -4",
                "watchdog = \"1s\"",
                header,
                "isp.toml:7: isp.watchdog: watchdog 1s is out of range (5s to",
            ),
            (
                "overhead = -4",
                "when_gone = \"open\"\nwatchdog = \"9s\"",
                header,
                "isp.toml:8: isp.watchdog: with `when_gone` \"open\" there is nothing to end",
            ),
            ("-4", "1000", header, "isp.toml:7: isp.overhead: found the number 1000, expected"),
            (
                "127.0.0.1",
                "0.0.0.0",
                header,
                "isp.toml:8: isp.metrics: 0.0.0.0:9115 can be reached",
            ),
            ("hook", "group = \"nobody-has-it\"\nhook", header, "isp.toml:6: isp.group: no group"),
            (
                "192.0.2.1",
                "192.0.2.1/24",
                header,
                "isp.toml:15: subscriber.addresses: `192.0.2.1/24`",
            ),
            ("name = \"alice\"", "", header, "isp.toml:13: subscriber.name: missing"),
            ("version", "versoin", header, "isp.toml:1: versoin: unknown key (did"),
            (
                "[[plan]]",
                "[[segment]]\nname = \"a\"\nmembers = []\n[[plan]]",
                header,
                "isp.toml:9: segment.download: missing",
            ),
            (
                "[[plan]]",
                "[[segment]]\nname = \"a\"\nupload = \"1kbit\"\nmembers = []\n[[plan]]",
                header,
                "isp.toml:11: segment.upload: rate 1kbit is out of range",
            ),
            (
                "[[plan]]",
                "[[segment]]\nname = \"a\"\nupload = \"1mbit\"\nmembers = [\"*x\"]\n[[plan]]",
                header,
                "isp.toml:12: segment.members: ",
            ),
            (
                "[[plan]]",
                "[usage]\ninterval = \"5s\"\n[[plan]]",
                header,
                "isp.toml:10: usage.interval: interval 5s is out of range (10s to 86400s)",
            ),
            // 1 Mbit/s is accepted for a plan, and 100 Gbit/s is not.
            (
                "download = \"50mbit\"\nupload = \"10mbit\"",
                "download = \"100gbit\"\nupload = \"1mbit\"",
                header,
                "isp.toml:11: plan.download: rate 100gbit is out of range (64kbit to 25gbit)",
            ),
            ("", "", "name,plan\n", "subscribers.csv:1:1: header: column `addresses`"),
            ("", "", "name,addresses,plan\nb,x,y\n", "subscribers.csv:2:3: addresses: `x` is"),
        ] {
            let error = load(&GOOD.replacen(from, to, 1), csv).unwrap_err();
            assert!(error.starts_with(wanted), "{error}\n(wanted {wanted})");
        }
        let error = IspFile::load(Path::new("/nowhere/isp.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/isp.toml: cannot read it"), "{error}");
    }
}
