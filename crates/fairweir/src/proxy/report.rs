//! The daemon's replies, and the text that people see about the daemon and its file.

use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use fairweir_config::proxy::{ClassConfig, ProxyFile};
use fairweir_config::{FileKind, text};
use fairweir_core::market::guarantee::Term;
use fairweir_core::recognition::Word;
use fairweir_core::units::{Rate, Time};
use fairweir_daemon::{Access, Metrics};
use fairweir_proxy::Counts;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cli::DaemonArgs;
use super::daemon::{Daemon, rules};
use super::devices::{self, DeviceStatus, ROWS_SHOWN};
use crate::daemon_args::{AskArgs, connect};
use crate::instance::PROXY;
use crate::table::{self, Align};
use crate::words::mbit;

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    version: String,
    pid: u32,
    /// Differs after each start: counters belong to this run.
    #[serde(default)]
    run: String,
    since_s: f64,
    ready: bool,
    lan: Vec<String>,
    connections: usize,
    /// Whether the proxy is full, so that new connections bypass it.
    full: bool,
    classes: Vec<ClassStatus>,
    /// The rate that is bought for the current slot, as told by the household's market agent.
    #[serde(default)]
    guaranteed_bps: Option<Rate>,
    /// The present bound of the class with a lease, when nothing else enforces the market's rates.
    #[serde(default)]
    held_bps: Option<Rate>,
    /// The present priority of each kind of use; null if alphas do not depend on it.
    #[serde(default)]
    priority: Option<[f64; 4]>,
    /// The largest usage first.
    usage: Vec<UsageStatus>,
    #[serde(default)]
    devices: Vec<DeviceStatus>,
    accepted: u64,
    refused: Refused,
    unreachable: u64,
    /// Connections to servers that the gateway itself could not start.
    #[serde(default)]
    unbegun: u64,
    times_full: u64,
    /// How often another program changed the rules that divert connections, and they were restored.
    #[serde(default)]
    restored: u64,
    /// The last such change.
    #[serde(default)]
    changed: Option<String>,
    config_error: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClassStatus {
    name: String,
    rate_bps: Option<u64>,
    connections: usize,
    /// Payload, in bytes.
    down_bytes: u64,
    up_bytes: u64,
}

/// The payload that an application on a device transferred.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UsageStatus {
    device: IpAddr,
    app: Option<String>,
    down_bytes: u64,
    up_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Refused {
    to_gateway: u64,
    crowded: u64,
}

/// The status at `now`.
pub(super) fn status(daemon: &Daemon, now: Time) -> Status {
    let proxy = &daemon.proxy;
    let Counts { accepted, to_gateway, crowded, unreachable, unbegun, full } = proxy.counts();
    let class = |(name, counts): (&str, fairweir_proxy::ClassCounts)| ClassStatus {
        name: name.to_owned(),
        rate_bps: counts.rate.map(Rate::as_bps),
        connections: counts.connections,
        down_bytes: counts.bytes[0],
        up_bytes: counts.bytes[1],
    };
    let of_device = |((device, app), bytes): ((IpAddr, Option<String>), [u64; 2])| UsageStatus {
        device,
        app,
        down_bytes: bytes[0],
        up_bytes: bytes[1],
    };
    let mut usage: Vec<UsageStatus> = proxy.usage().into_iter().map(of_device).collect();
    usage.sort_by_key(|usage| std::cmp::Reverse(usage.down_bytes));
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        run: daemon.run.clone(),
        since_s: now.since(daemon.started).as_secs_f64(),
        ready: daemon.divert.is_some(),
        lan: daemon.file.lan.clone(),
        connections: proxy.connections(),
        full: proxy.is_full(),
        classes: proxy.classes().map(class).collect(),
        guaranteed_bps: daemon.guarantee.rate(),
        held_bps: daemon.guarantee.bound(),
        priority: proxy.rules().weights(),
        usage,
        devices: proxy.portraits().map(devices::of_portrait).collect(),
        accepted,
        refused: Refused { to_gateway, crowded },
        unreachable,
        unbegun,
        times_full: full,
        restored: daemon.restored.0,
        changed: daemon.restored.1.clone(),
        config_error: daemon.config_error.clone(),
        error: daemon.error.clone(),
    }
}

/// `fairweir check` of a proxy's file.
pub(crate) fn check(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let file = ProxyFile::load(path)?;
    let out = &mut text::stdout();
    if as_json {
        writeln!(out, "{}", understood(&file))?;
        return Ok(());
    }
    writeln!(out, "read {}", file.path.display())?;
    print_file(out, &file)
}

fn print_file(out: &mut impl Write, file: &ProxyFile) -> anyhow::Result<()> {
    writeln!(out, "lan {}\n", file.lan.join(" "))?;
    let rate = |c: &ClassConfig| match c.rate {
        Some(rate) if c.takes_guarantee => format!("{rate} or the lease"),
        Some(rate) => rate.to_string(),
        None => "none".to_owned(),
    };
    let row = |c: &ClassConfig| vec![c.name.clone(), rate(c), class_texts(c).join(" ")];
    let headings = [("CLASS", Align::Left), ("RATE", Align::Right), ("MATCH", Align::Left)];
    table::print(out, &headings, &file.classes.iter().map(row).collect::<Vec<_>>())?;
    if !file.apps.is_empty() {
        writeln!(out)?;
        let rows = file.apps.iter().map(|app| {
            vec![app.name.clone(), app.alpha.to_string(), texts(&app.matches).join(" ")]
        });
        let headings = [("APP", Align::Left), ("ALPHA", Align::Right), ("MATCH", Align::Left)];
        table::print(out, &headings, &rows.collect::<Vec<_>>())?;
    }
    Ok(())
}

fn understood(file: &ProxyFile) -> Value {
    let classes = file.classes.iter().map(|class| {
        json!({ "name": class.name, "rate_bps": class.rate, "lease": class.takes_guarantee, "match": class_texts(class) })
    });
    let devices = file.devices.iter().map(|(mac, said)| {
        json!({ "mac": mac, "os": said.os.map(Word::name), "kind": said.kind.map(Word::name) })
    });
    let apps = file
        .apps
        .iter()
        .map(|app| json!({ "name": app.name, "alpha": app.alpha, "match": texts(&app.matches) }));
    json!({
        "kind": FileKind::Proxy.to_string(),
        "files": [file.path],
        "lan": file.lan,
        "classes": classes.collect::<Vec<_>>(),
        "apps": apps.collect::<Vec<_>>(),
        "priority": file.weights,
        "household": file.follows_household,
        "devices": devices.collect::<Vec<_>>(),
        "warnings": [],
    })
}

fn class_texts(class: &ClassConfig) -> Vec<String> {
    [texts(&class.matches), texts(&class.devices)].concat()
}

fn texts(matches: &[impl ToString]) -> Vec<String> {
    matches.iter().map(ToString::to_string).collect()
}

/// `fairweir proxy --dry-run`: prints what would be diverted, and whether it could be.
pub(super) fn dry_run(args: &DaemonArgs) -> anyhow::Result<()> {
    let file = ProxyFile::load(&args.config)?;
    let rules = rules(&file, &Term::default(), &[]);
    fairweir_linux::divert::check(&file.lan)?;
    let out = &mut text::stdout();
    print_file(out, &file)?;
    let taken = match rules.clients() {
        None => {
            "connections of all devices would be relayed, since a class names servers, or what \
             devices are"
        }
        Some(_) => "connections of the devices above would be relayed",
    };
    writeln!(out, "\n{taken}")?;
    Ok(())
}

/// `fairweir proxy status`.
pub(super) fn print_status(args: &AskArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.run_dir.run_dir, PROXY, Access::Read)?;
    let value: Value = client.ask(&fairweir_daemon::Request::Status)?;
    let out = &mut text::stdout();
    if args.json {
        writeln!(out, "{value}")?;
        return Ok(());
    }
    let status: Status = serde_json::from_value(value)?;
    print_classes(out, &status, None)?;
    if !status.usage.is_empty() {
        writeln!(out)?;
        let row = |usage: &UsageStatus| {
            vec![
                usage.device.to_string(),
                usage.app.clone().unwrap_or_else(|| "-".to_owned()),
                usage.down_bytes.to_string(),
                usage.up_bytes.to_string(),
            ]
        };
        let headings = [
            ("DEVICE", Align::Left),
            ("APP", Align::Left),
            ("DOWN BYTES", Align::Right),
            ("UP BYTES", Align::Right),
        ];
        let rows: Vec<_> = status.usage.iter().take(ROWS_SHOWN).map(row).collect();
        table::print(out, &headings, &rows)?;
    }
    if !status.devices.is_empty() {
        writeln!(out)?;
        devices::print(out, &status.devices)?;
    }
    for (number, what) in [
        (status.refused.to_gateway, "refused: connections to the gateway's proxy itself"),
        (status.refused.crowded, "refused: connections of a device that had too many"),
        (status.unreachable, "unreachable servers"),
        (status.unbegun, "connections that the gateway could not begin"),
        (status.restored, "times another program changed the diversion and it was made anew"),
        (status.times_full, "times full"),
    ] {
        if number > 0 {
            writeln!(out, "{what}: {number}")?;
        }
    }
    if status.full {
        writeln!(out, "full: new connections pass directly")?;
    }
    for (label, text) in [
        ("last change", &status.changed),
        ("configuration error", &status.config_error),
        ("error", &status.error),
    ] {
        text.iter().try_for_each(|text| writeln!(out, "{label}: {text}"))?;
    }
    Ok(())
}

/// Prints the classes, with rates since an earlier status.
fn print_classes(
    out: &mut impl Write,
    status: &Status,
    earlier: Option<&Status>,
) -> std::io::Result<()> {
    let row = |class: &ClassStatus| {
        let mut cells = vec![
            class.name.clone(),
            class.rate_bps.map_or("none".to_owned(), mbit),
            class.connections.to_string(),
        ];
        match earlier {
            None => cells.extend([class.down_bytes, class.up_bytes].map(|n| n.to_string())),
            Some(earlier) => {
                let before = earlier.classes.iter().find(|other| other.name == class.name);
                let seconds = (status.since_s - earlier.since_s).max(1e-3);
                let rate = |now: u64, before: Option<u64>| {
                    mbit((now.saturating_sub(before.unwrap_or(0)) as f64 * 8.0 / seconds) as u64)
                };
                cells.push(rate(class.down_bytes, before.map(|b| b.down_bytes)));
                cells.push(rate(class.up_bytes, before.map(|b| b.up_bytes)));
            }
        }
        cells
    };
    let (down, up) = match earlier {
        None => ("DOWN BYTES", "UP BYTES"),
        Some(_) => ("DOWN", "UP"),
    };
    let headings = [
        ("CLASS", Align::Left),
        ("RATE", Align::Right),
        ("CONNECTIONS", Align::Right),
        (down, Align::Right),
        (up, Align::Right),
    ];
    table::print(out, &headings, &status.classes.iter().map(row).collect::<Vec<_>>())
}

/// `fairweir proxy top`.
pub(super) fn top(args: &AskArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.run_dir.run_dir, PROXY, Access::Read)?;
    let mut ask = || -> anyhow::Result<Status> {
        Ok(serde_json::from_value(client.ask(&fairweir_daemon::Request::Status)?)?)
    };
    let out = &mut text::stdout();
    let mut before = ask()?;
    loop {
        sleep(PERIOD);
        let now = ask()?;
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&now)?)?;
        } else {
            print_classes(out, &now, Some(&before))?;
            writeln!(out)?;
        }
        out.flush()?;
        before = now;
    }
}

/// All metrics, without names of devices: every local user can read this.
pub(super) fn metrics(daemon: &Daemon) -> String {
    let mut metrics = Metrics::default();
    metrics.gauge("fairweir_proxy_rate_bps", "Configured rate of a class.");
    for (name, counts) in daemon.proxy.classes() {
        if let Some(rate) = counts.rate {
            metrics.sample(&[("class", name)], rate.as_bps());
        }
    }
    metrics.gauge("fairweir_proxy_connections", "Open connections of a class.");
    for (name, counts) in daemon.proxy.classes() {
        metrics.sample(&[("class", name)], counts.connections);
    }
    metrics.counter("fairweir_proxy_bytes", "Payload that was relayed.");
    for (name, counts) in daemon.proxy.classes() {
        for (direction, bytes) in ["down", "up"].into_iter().zip(counts.bytes) {
            metrics.sample(&[("class", name), ("direction", direction)], bytes);
        }
    }
    let Counts { accepted, to_gateway, crowded, unreachable, unbegun, full } =
        daemon.proxy.counts();
    metrics.counter("fairweir_proxy_accepted", "Connections that were accepted.");
    metrics.sample(&[], accepted);
    metrics.counter("fairweir_proxy_refused", "Connections that were reset, by the reason.");
    for (why, number) in [("gateway", to_gateway), ("crowded", crowded)] {
        metrics.sample(&[("why", why)], number);
    }
    metrics.counter("fairweir_proxy_unreachable", "Servers that could not be reached.");
    metrics.sample(&[], unreachable);
    metrics.counter("fairweir_proxy_unbegun", "Connections to servers that could not be begun.");
    metrics.sample(&[], unbegun);
    metrics.gauge("fairweir_proxy_diverting", "1 while connections are diverted.");
    metrics.sample(&[], u8::from(daemon.divert.is_some()));
    metrics.counter("fairweir_proxy_restored", "Changes by other programs that were undone.");
    metrics.sample(&[], daemon.restored.0);
    metrics.counter("fairweir_proxy_full", "How often new connections had to pass directly.");
    metrics.sample(&[], full);
    metrics.finish()
}

const PERIOD: Duration = Duration::from_secs(1);
