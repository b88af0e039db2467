//! The daemon's replies, and the text that people see about the daemon and its file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use fairweir_config::sender::{BundleConfig, SenderFile};
use fairweir_config::{FileKind, text};
use fairweir_core::delegate::{Algorithm, Tally, Target};
use fairweir_core::policy::Match;
use fairweir_core::units::{Rate, Time};
use fairweir_daemon::{Access, Metrics};
use fairweir_linux::sender::{Kind, Sender};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NAME;
use super::bundle::{Member, Places, Rule, Running};
use super::cli::DaemonArgs;
use super::daemon::{Daemon, policy};
use crate::daemon_args::{AskArgs, connect};
use crate::table::{self, Align};
use crate::words::{count, mbit};

/// The most free connections in one reply: as many as can exist.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) since_s: f64,
    pub(super) ready: bool,
    /// The names under which the congestion controls are registered.
    pub(super) congestion_controls: Vec<String>,
    pub(super) bundles: Vec<BundleStatus>,
    pub(super) limits: Vec<String>,
    pub(super) config_error: Option<String>,
    pub(super) error: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct BundleStatus {
    pub(super) name: String,
    pub(super) controller: String,
    pub(super) problem: Option<String>,
    pub(super) free: Vec<FreeStatus>,
    pub(super) stunts: StuntsStatus,
    /// Answers to signals that the kernel lost, for connections that are still open.
    pub(super) mended: u64,
    pub(super) left_out: LeftOutStatus,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct FreeStatus {
    /// The number of the table [[bundle.free]].
    pub(super) rule: usize,
    pub(super) remote: String,
    pub(super) port_local: u16,
    pub(super) congestion_control: String,
    pub(super) target_bps: u64,
    pub(super) rate_bps: u64,
    pub(super) mean_rate_bps: u64,
    pub(super) aim_bps: Option<u64>,
    pub(super) gain: f64,
    pub(super) verdict: String,
    pub(super) reason: Option<String>,
    /// The number of stunts that do not answer for this connection, because they do not share its bottleneck.
    pub(super) apart: usize,
    #[cfg_attr(feature = "evidence", schemars(with = "Signals"))]
    pub(super) signals: Tally,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct StuntsStatus {
    connections: usize,
    rate_bps: u64,
    #[cfg_attr(feature = "evidence", schemars(with = "Signals"))]
    signals: Tally,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct LeftOutStatus {
    other_peers: usize,
    other_congestion_control: usize,
    no_place: usize,
}

/// Numbers of congestion signals of a connection.
#[cfg(feature = "evidence")]
#[derive(schemars::JsonSchema)]
#[schemars(rename = "Tally")]
#[allow(dead_code, reason = "a schema only")]
struct Signals {
    /// The sum of `delegated` and `taken`.
    signals: u64,
    delegated: u64,
    taken: u64,
    /// Signals, counted in `taken`, that no other connection could answer.
    refused: u64,
    /// Cuts of this connection's rate for signals of others.
    cuts: u64,
}

/// `fairweir check` of a sender's file.
pub(crate) fn check(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let file = SenderFile::load(path)?;
    let out = &mut text::stdout();
    if as_json {
        let bundles: Vec<Value> = file.bundles.iter().map(understood).collect();
        let kind = FileKind::Sender.to_string();
        let said = json!({ "kind": kind, "files": [file.path], "bundles": bundles, "warnings": warnings(&file) });
        writeln!(out, "{said}")?;
        return Ok(());
    }
    writeln!(out, "read {}", file.path.display())?;
    for bundle in &file.bundles {
        let peers: Vec<String> = bundle.peers.iter().map(ToString::to_string).collect();
        let controller = controller(bundle.spec.algorithm);
        writeln!(out, "\nbundle {}: controller {controller}, to {}", bundle.name, peers.join(" "))?;
        let free = bundle.free.iter().map(|f| vec![in_words(&f.target), rules(&f.matches)]);
        let stunts = bundle
            .stunts
            .iter()
            .map(|s| vec![format!("stunts, weight {}", s.weight), rules(&s.matches)]);
        let rows: Vec<Vec<String>> = free.chain(stunts).collect();
        table::print(out, &[("TARGET", Align::Left), ("MATCH", Align::Left)], &rows)?;
    }
    for warning in warnings(&file) {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// Warnings: settings that are valid but do not do what they seem to.
fn warnings(file: &SenderFile) -> Vec<String> {
    let fastest = fastest_link();
    let mut warnings = Vec::new();
    let mut before: Vec<&Match> = Vec::new();
    for bundle in &file.bundles {
        if bundle.min_rate > fastest {
            warnings.push(format!(
                "bundle `{}`: min_rate = {} is more than any link carries (at most {fastest} here): stunts give nothing up",
                bundle.name, bundle.min_rate
            ));
        }
        let free = bundle.free.iter().map(|f| &f.matches);
        for matches in free.chain(bundle.stunts.iter().map(|s| &s.matches)) {
            if matches.iter().all(|m| before.contains(&m)) {
                warnings.push(format!(
                    "bundle `{}`: the rule `{}` names nothing, because rules before it name the same",
                    bundle.name,
                    rules(matches)
                ));
            }
            before.extend(matches);
        }
    }
    warnings
}

/// The rate of the host's fastest link, as reported by the kernel; [`LINK_MAX`] if it reports no rate.
fn fastest_link() -> Rate {
    let speed = |entry: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(entry.ok()?.path().join("speed")).ok()?;
        // The kernel reports -1 if the speed is unknown.
        text.trim().parse().ok()
    };
    let speeds = std::fs::read_dir("/sys/class/net").into_iter().flatten().filter_map(speed);
    speeds.max().map_or(LINK_MAX, |mbit| Rate::mbit(mbit.min(LINK_MAX_MBIT)))
}

/// The highest rate of any link, in Mbit/s: 1.6 Tbit/s, the fastest Ethernet.
const LINK_MAX_MBIT: u64 = 1_600_000;
const LINK_MAX: Rate = Rate::mbit(LINK_MAX_MBIT);

fn understood(bundle: &BundleConfig) -> Value {
    let free = |f: &fairweir_config::sender::FreeConfig| json!({ "match": texts(&f.matches), "target": in_words(&f.target) });
    let stunts = |s: &fairweir_config::sender::StuntsConfig| json!({ "match": texts(&s.matches), "weight": s.weight });
    json!({
        "name": bundle.name,
        "peers": bundle.peers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "controller": controller(bundle.spec.algorithm),
        "min_rate_bps": bundle.min_rate,
        "free": bundle.free.iter().map(free).collect::<Vec<_>>(),
        "stunts": bundle.stunts.iter().map(stunts).collect::<Vec<_>>(),
    })
}

fn texts(matches: &[Match]) -> Vec<String> {
    matches.iter().map(ToString::to_string).collect()
}

fn rules(matches: &[Match]) -> String {
    texts(matches).join(" ")
}

fn in_words(target: &Target) -> String {
    match target {
        Target::Trace(trace) => format!("{} at the start", trace.at(Time::ZERO)),
        Target::Connections(n) => format!("as {n} connections"),
    }
}

fn controller(algorithm: Algorithm) -> &'static str {
    let named = Algorithm::ALL.iter().find(|(_, a)| *a == algorithm);
    named.map_or("track", |(name, _)| *name)
}

/// `fairweir sender --dry-run`: prints which connections would be in which bundle now.
pub(super) fn dry_run(args: &DaemonArgs) -> anyhow::Result<()> {
    let file = SenderFile::load(&args.config)?;
    let (policy, roles) = policy(&file.bundles)?;
    let mut kernel = Sender::attach(&policy)?;
    let connections = kernel.connections()?;
    let limits = kernel.limits().to_vec();
    drop(kernel);
    let mut bundles: Vec<Running> =
        file.bundles.iter().map(|config| Running::new(config.clone(), Time::ZERO)).collect();
    let mut places = Places::all();
    for (nth, bundle) in bundles.iter_mut().enumerate() {
        let named = connections.iter().filter(|c| roles[c.group].0 == nth);
        let named: Vec<_> = named.map(|c| (c.clone(), roles[c.group].1)).collect();
        bundle.take_over(nth, &named, &mut places);
    }
    let status: Vec<BundleStatus> = bundles.iter().map(bundle_status).collect();
    let out = &mut text::stdout();
    if args.json {
        writeln!(out, "{}", json!({ "bundles": status, "limits": limits }))?;
        return Ok(());
    }
    for (bundle, status) in bundles.iter().zip(&status) {
        print_head(out, status)?;
        let row = |member: &Member| {
            let role = match member.rule {
                Rule::Free(nth) => in_words(&bundle.config.free[nth].target),
                Rule::Stunt(_) => "stunt".to_owned(),
            };
            let c = &member.connection;
            let cells =
                [peer(member), c.port_local.to_string(), c.congestion_control.clone(), role];
            cells.to_vec()
        };
        let rows: Vec<Vec<String>> = bundle.members.values().map(row).collect();
        let headings = [
            ("PEER", Align::Left),
            ("LOCAL PORT", Align::Right),
            ("NOW", Align::Left),
            ("WOULD BE", Align::Left),
        ];
        table::print(out, &headings, &rows)?;
    }
    limits.iter().try_for_each(|limit| writeln!(out, "limit: {limit}"))?;
    Ok(())
}

/// The status at `now`.
pub(super) fn status(daemon: &Daemon, now: Time) -> Status {
    let kernel = daemon.kernel();
    let name = |kernel: &Sender| Kind::ALL.map(|(_, kind)| kernel.name(kind).to_owned()).to_vec();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        since_s: now.since(daemon.started).as_secs_f64(),
        ready: kernel.is_some(),
        congestion_controls: kernel.map(name).unwrap_or_default(),
        bundles: daemon.bundles.iter().map(bundle_status).collect(),
        limits: kernel.map(|k| k.limits().to_vec()).unwrap_or_default(),
        config_error: daemon.config_error.clone(),
        error: daemon.error.clone(),
    }
}

fn bundle_status(bundle: &Running) -> BundleStatus {
    let free = |(member, status): (&Member, fairweir_core::delegate::Status)| {
        let order = bundle.core.order(member.id).unwrap_or_default();
        let Rule::Free(rule) = member.rule else { return None };
        Some(FreeStatus {
            rule,
            remote: peer(member),
            port_local: member.connection.port_local,
            congestion_control: member.connection.congestion_control.clone(),
            target_bps: status.target.as_bps(),
            rate_bps: status.rate.as_bps(),
            mean_rate_bps: bundle.core.rate(member.id).as_bps(),
            aim_bps: order.aim.map(Rate::as_bps),
            gain: order.gain.as_f64(),
            verdict: status.verdict.name().to_owned(),
            reason: status.verdict.reason().map(str::to_owned),
            apart: status.apart,
            signals: status.tally,
        })
    };
    let (connections, rate, tally) = bundle.stunts();
    BundleStatus {
        name: bundle.config.name.clone(),
        controller: controller(bundle.config.spec.algorithm).to_owned(),
        problem: bundle.problem.clone(),
        free: bundle.free().filter_map(free).collect(),
        mended: bundle.mended,
        stunts: StuntsStatus { connections, rate_bps: rate.as_bps(), signals: tally },
        left_out: LeftOutStatus {
            other_peers: bundle.left_out.peers,
            other_congestion_control: bundle.left_out.congestion_control,
            no_place: bundle.left_out.full,
        },
    }
}

fn peer(member: &Member) -> String {
    let c = &member.connection;
    std::net::SocketAddr::new(c.remote, c.port_remote).to_string()
}

/// `fairweir sender status`.
pub(super) fn print_status(args: &AskArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.run_dir.run_dir, NAME, Access::Read)?;
    let out = &mut text::stdout();
    let value: Value = client.ask(&fairweir_daemon::Request::Status)?;
    if args.json {
        writeln!(out, "{value}")?;
        return Ok(());
    }
    let status: Status = serde_json::from_value(value)?;
    for bundle in &status.bundles {
        print_head(out, bundle)?;
        let rows: Vec<_> = bundle.free.iter().map(|free| cells(free).to_vec()).collect();
        table::print(out, &HEADINGS, &rows)?;
        print_apart(out, bundle)?;
    }
    print_notes(out, &status)?;
    Ok(())
}

/// The columns for a bundle's connections with a target.
pub(super) const HEADINGS: [(&str, Align); 7] = [
    ("FREE", Align::Left),
    ("TARGET", Align::Right),
    ("RATE", Align::Right),
    ("SIGNALS", Align::Right),
    ("DELEGATED", Align::Right),
    ("REFUSED", Align::Right),
    ("VERDICT", Align::Left),
];

pub(super) fn cells(free: &FreeStatus) -> [String; 7] {
    let Tally { signals, delegated, refused, .. } = free.signals;
    [
        free.remote.clone(),
        mbit(free.target_bps),
        mbit(free.mean_rate_bps),
        signals.to_string(),
        delegated.to_string(),
        refused.to_string(),
        free.reason.clone().unwrap_or_else(|| free.verdict.clone()),
    ]
}

/// Prints which connections have stunts behind another bottleneck.
pub(super) fn print_apart(out: &mut impl Write, bundle: &BundleStatus) -> io::Result<()> {
    for free in bundle.free.iter().filter(|free| free.apart > 0) {
        let stunts = count(free.apart, "stunt");
        let why = "delays and losses do not come together";
        writeln!(out, "not asked for {}: {stunts} behind another bottleneck ({why})", free.remote)?;
    }
    Ok(())
}

/// Prints limits and errors of the daemon.
pub(super) fn print_notes(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let notes = [
        ("limit", status.limits.iter().collect::<Vec<_>>()),
        ("configuration error", status.config_error.iter().collect()),
        ("error", status.error.iter().collect()),
    ];
    for (label, texts) in notes {
        texts.iter().try_for_each(|text| writeln!(out, "{label}: {text}"))?;
    }
    Ok(())
}

pub(super) fn print_head(out: &mut impl Write, bundle: &BundleStatus) -> io::Result<()> {
    let BundleStatus { name, controller, stunts, left_out, .. } = bundle;
    let (stunts, rate) = (count(stunts.connections, "stunt"), mbit(stunts.rate_bps));
    writeln!(out, "bundle {name}: controller {controller}, {stunts} with {rate}")?;
    for (number, why) in [
        (left_out.other_peers, "other peers"),
        (left_out.other_congestion_control, "neither reno nor cubic"),
        (left_out.no_place, "no place"),
    ] {
        if number > 0 {
            writeln!(out, "left out: {} ({why})", count(number, "connection"))?;
        }
    }
    bundle.problem.iter().try_for_each(|problem| writeln!(out, "problem: {problem}"))
}

/// All metrics.
pub(super) fn metrics(daemon: &Daemon) -> String {
    let mut metrics = Metrics::default();
    // One value per rule, without names of peers, because every local user can read the metrics.
    let mut free: BTreeMap<(&str, String), (Rate, Rate)> = BTreeMap::new();
    for bundle in &daemon.bundles {
        for (member, status) in bundle.free() {
            let Rule::Free(rule) = member.rule else { continue };
            let sums = free.entry((&bundle.config.name, rule.to_string())).or_default();
            *sums = (sums.0 + status.target, sums.1 + status.rate);
        }
    }
    metrics
        .gauge("fairweir_sender_target_bytes_per_second", "Targets of the connections of a rule.");
    for ((bundle, rule), (target, _)) in &free {
        metrics.sample(&[("bundle", bundle), ("rule", rule)], target.as_bps() / 8);
    }
    metrics.gauge("fairweir_sender_rate_bytes_per_second", "Their rates in the last interval.");
    for ((bundle, rule), (_, rate)) in &free {
        metrics.sample(&[("bundle", bundle), ("rule", rule)], rate.as_bps() / 8);
    }
    metrics.gauge("fairweir_sender_stunts", "Stunts of a bundle.");
    for bundle in &daemon.bundles {
        metrics.sample(&[("bundle", &bundle.config.name)], bundle.stunts().0);
    }
    metrics.gauge(
        "fairweir_sender_apart",
        "Pairs of a target and a stunt without a common bottleneck.",
    );
    for bundle in &daemon.bundles {
        metrics.sample(&[("bundle", &bundle.config.name)], bundle.apart());
    }
    metrics.counter("fairweir_sender_signals", "Congestion signals, by who answered them.");
    for bundle in &daemon.bundles {
        let free = bundle.free().fold(bundle.ended[0], |sum, (_, status)| sum + status.tally);
        for (role, Tally { delegated, taken, .. }) in [("free", free), ("stunt", bundle.stunts().2)]
        {
            for (by, number) in [("others", delegated), ("itself", taken)] {
                let labels = [("bundle", bundle.config.name.as_str()), ("role", role), ("by", by)];
                metrics.sample(&labels, number);
            }
        }
    }
    metrics.finish()
}
