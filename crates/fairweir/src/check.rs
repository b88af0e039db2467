//! `fairweir check`: prints a configuration as fairweir reads it, or its mistakes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use fairweir_core::calendar::Plan;
use fairweir_core::policy::{Branch, Policy};
use fairweir_core::share::Claims;
use fairweir_core::units::Rate;

use crate::cli::CheckArgs;
use crate::device::note_missing;
use crate::exit::Usage;
#[cfg(feature = "isp")]
use crate::isp;
#[cfg(feature = "market")]
use crate::market;
#[cfg(feature = "proxy")]
use crate::proxy;
use crate::sender;
use crate::table::{self, Align};
use fairweir_config::host::{Config, Role, UploadChoice};
use fairweir_config::{FileKind, text};
use fairweir_linux::Router;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    if args.file.extension().is_some_and(|extension| extension == "csv") {
        let what =
            "this is a table, not a configuration: `fairweir isp import FILE --dry-run` reads it";
        return Err(Usage(format!("{}: {what}", args.file.display())).into());
    }
    match FileKind::at(&args.file) {
        #[cfg(feature = "isp")]
        FileKind::Isp => isp::check(&args.file, args.json),
        FileKind::Sender => sender::check(&args.file, args.json),
        #[cfg(feature = "proxy")]
        FileKind::Proxy => proxy::check(&args.file, args.json),
        #[cfg(feature = "market")]
        FileKind::Agent => market::check(&args.file, args.json),
        FileKind::Router => check_host(args, Role::Router),
        FileKind::Host => check_host(args, Role::Host),
        #[cfg(not(all(feature = "isp", feature = "market", feature = "proxy")))]
        kind => anyhow::bail!("a file of `fairweir {kind}`, which this binary was built without"),
    }
}

fn check_host(args: &CheckArgs, role: Role) -> anyhow::Result<()> {
    let config = Config::load_as(role, &args.file)?;
    let out = &mut text::stdout();
    if args.json {
        let kind = match role {
            Role::Host => FileKind::Host,
            Role::Router => FileKind::Router,
        };
        serde_json::to_writer(&mut *out, &as_json(kind, &config))?;
        writeln!(out)?;
        return Ok(());
    }
    for file in &config.files {
        writeln!(out, "read {}", file.display())?;
    }
    let host = &config.host;
    let control = host.control.unwrap_or_default();
    write!(out, "control {control}")?;
    if let Some(capacity) = host.capacity {
        write!(out, ", capacity {capacity}")?;
    }
    if host.strict_priority {
        write!(out, ", strict priority in the order below")?;
    }
    write!(out, ", probe {}", host.probe)?;
    match host.upload_capacity {
        _ if host.upload == UploadChoice::Off => {}
        Some(capacity) => write!(out, ", upload shared at {capacity}")?,
        None => write!(out, ", upload shared")?,
    }
    if !host.lan.is_empty() {
        write!(out, ", lan {}", host.lan.join(" "))?;
    }
    let wans: Vec<String> = host.wans().cloned().collect();
    match &host.dev {
        Some(_) if role == Role::Router => writeln!(out, ", wan {}\n", wans.join(" "))?,
        Some(dev) => writeln!(out, ", dev {dev}\n")?,
        None => writeln!(out, ", no dev (give --dev)\n")?,
    }
    print_groups(out, &config, role)?;
    for warning in &config.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    note_missing(out, host.lan.iter().chain(&wans))?;
    if role == Role::Router
        && let Err(e @ fairweir_linux::Error::Elsewhere { .. }) =
            Router::refuse_if_elsewhere(&host.lan, &wans)
    {
        writeln!(out, "warning: {e}")?;
    }
    Ok(())
}

fn print_groups(out: &mut impl Write, config: &Config, role: Role) -> io::Result<()> {
    let mut rows = Rows { parts: by_weight(&config.policy).into_iter(), rows: Vec::new() };
    rows.add(config.policy.branches(), "");
    let headings = [
        (if role == Role::Router { "DEVICE" } else { "GROUP" }, Align::Left),
        ("WEIGHT", Align::Right),
        ("IF ALL WANT MORE", Align::Right),
        ("MATCH", Align::Left),
    ];
    table::print(out, &headings, &rows.rows)?;
    for (path, said) in &plans(config) {
        said.iter().try_for_each(|said| writeln!(out, "{path}: {said}"))?;
    }
    Ok(())
}

/// The quotas and schedules as they were read, in words.
fn plans(config: &Config) -> BTreeMap<&str, Vec<String>> {
    let said = |plan: &Plan| {
        let quota = plan.quota.map(|quota| format!("quota {quota}"));
        quota.into_iter().chain(plan.schedule.iter().map(ToString::to_string)).collect()
    };
    config.plans.iter().map(|(path, plan)| (path.as_str(), said(plan))).collect()
}

/// The rows of the table so far, and the shares of the leaves that have no row yet.
struct Rows {
    parts: std::vec::IntoIter<Rate>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// Adds a row for each of `branches`, which are beneath `path`, and for the groups beneath
    /// them; returns the sum of their shares.
    fn add(&mut self, branches: &[Branch], path: &str) -> Rate {
        let mut sum = Rate::ZERO;
        for Branch { group, beneath } in branches {
            let name = format!("{path}{}", group.name);
            let at = self.rows.len();
            self.rows.push(Vec::new());
            let part = match beneath.as_slice() {
                [] => self.parts.next().unwrap_or_default(),
                beneath => self.add(beneath, &format!("{name}/")),
            };
            let matches: Vec<String> = group.matches.iter().map(ToString::to_string).collect();
            let matches = match (matches.is_empty(), path.strip_suffix('/')) {
                (false, _) => matches.join(" "),
                (true, None) => "all other traffic".to_owned(),
                (true, Some(above)) => format!("all other traffic of {above}"),
            };
            let percent = 100.0 * part.as_bps() as f64 / WHOLE.as_bps() as f64;
            let most = group.max.map(|max| format!(", at most {max}")).unwrap_or_default();
            let least = group.min.map(|min| format!(", at least {min}")).unwrap_or_default();
            let part_of_all = format!("{percent:.1} %{most}{least}");
            self.rows[at] = vec![name, group.weight.to_string(), part_of_all, matches];
            sum += part;
        }
        sum
    }
}

/// Each group's share of [`WHOLE`] if all demand more, ignoring rate limits.
fn by_weight(policy: &Policy) -> Vec<Rate> {
    let demands = vec![None; policy.groups().len()];
    policy.weights().without_rates().divide(WHOLE, Claims { demands: &demands, taken: &[] })
}

/// The rate that is divided to compute the shares by weight alone.
const WHOLE: Rate = Rate::mbit(1_000_000);

fn as_json(kind: FileKind, config: &Config) -> serde_json::Value {
    serde_json::json!({
        "kind": kind.to_string(),
        "files": config.files,
        "lan": config.host.lan,
        "dev": config.host.dev,
        "beside": config.host.beside,
        "control": config.host.control.unwrap_or_default(),
        "capacity_bps": config.host.capacity,
        "strict_priority": config.host.strict_priority,
        "upload": config.host.upload != UploadChoice::Off,
        "upload_capacity_bps": config.host.upload_capacity,
        "probe": config.host.probe.to_string(),
        "probe_interval_ms": config.host.probe_interval.as_millis_f64(),
        "groups": config.policy.branches(),
        "plans": plans(config),
        "warnings": config.warnings,
    })
}
