//! `fairweir history`: what groups received, as a table, JSON or CSV.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use fairweir_config::text;
use fairweir_core::units::{Bytes, Span};

use super::{Point, Points, Query};
use crate::cli::HistoryArgs;
use crate::exit::Usage;
use crate::host::client::{devices, instance_of};
use crate::page::ask::{self, Request};
use crate::table::{self, Align};
use crate::words::mbit;
use fairweir_daemon::unix_now;

/// Columns of the chart of a group's rate.
const COLUMNS: u64 = 40;

/// How long per-second rows are kept.
const SECONDS_S: u64 = super::store::SECONDS_KEPT_S;

pub(crate) fn run(args: &HistoryArgs) -> anyhow::Result<()> {
    let since_s = args.since.as_nanos() / 1_000_000_000;
    if !(1..=super::store::MINUTES_KEPT_S).contains(&since_s) {
        return Err(Usage("--since is out of range (1s to 31d)".to_owned()).into());
    }
    let is_table = !args.json && !args.csv;
    let step_s = match args.step {
        Some(step) => step.as_nanos() / 1_000_000_000,
        None if is_table => since_s.div_ceil(COLUMNS),
        None => 1,
    };
    let step_s = step_of(since_s, step_s)?;
    let daemon = match &args.dev {
        Some(dev) => Some(instance(&args.run_dir.run_dir, dev)?),
        None => None,
    };
    let group = args.group.clone();
    let query = Query { daemon, group, ..Query::last(since_s, step_s, unix_now()) };
    let points = ask(&args.page_dir, &query)?;
    let out = &mut text::stdout();
    if args.json {
        let Query { from, to, step_s, .. } = query;
        let all = serde_json::json!({ "from": from, "to": to, "step_s": step_s, "points": points });
        return Ok(writeln!(out, "{all}")?);
    }
    if args.csv {
        return Ok(print_csv(out, &points, step_s)?);
    }
    Ok(print_table(out, &points, &query)?)
}

/// The smallest step that the stored rows allow.
fn step_of(since_s: u64, step_s: u64) -> Result<u64, Usage> {
    match (since_s, step_s) {
        (_, 0) => Err(Usage("--step is out of range (1s or longer)".to_owned())),
        (0..=SECONDS_S, step) => Ok(step),
        // For older times there are only per-minute rows.
        (_, step) => Ok(step.div_ceil(60) * 60),
    }
}

/// The instance for a device, whether it is running or not.
fn instance(run_dir: &Path, dev: &str) -> anyhow::Result<String> {
    let _ = devices(run_dir).context("cannot list the daemons")?;
    Ok(instance_of(run_dir, dev)?)
}

/// All points of a query.
fn ask(page_dir: &Path, query: &Query) -> anyhow::Result<Vec<Point>> {
    let (mut all, mut query) = (Vec::new(), query.clone());
    loop {
        let Points { points, next, fault } = ask::ask(page_dir, &Request::History(query.clone()))?;
        all.extend(points);
        match next.filter(|&next| next > query.from) {
            Some(next) => query.from = next,
            None => {
                if let Some(fault) = fault {
                    let _ = writeln!(io::stderr(), "warning: not recorded now: {fault}");
                }
                return Ok(all);
            }
        }
    }
}

fn print_csv(out: &mut impl Write, points: &[Point], step_s: u64) -> io::Result<()> {
    writeln!(
        out,
        "at,step_s,daemon,group,received_bytes,late_bytes,rate_bps,capacity_bps,queue_ms"
    )?;
    for point in points {
        let Point { at, daemon, group, received_bytes, late_bytes, .. } = point;
        let rate = received_bytes * 8 / step_s;
        let capacity = point.capacity_bps.map_or(String::new(), |bps| bps.to_string());
        let queue = point.queue_ms.map_or(String::new(), |ms| format!("{ms:.3}"));
        let (daemon, group) = (quoted(daemon), quoted(group));
        writeln!(
            out,
            "{at},{step_s},{daemon},{group},{received_bytes},{late_bytes},{rate},{capacity},{queue}"
        )?;
    }
    Ok(())
}

/// Quotes a field as in RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// What is printed about a group.
#[derive(Default)]
struct Sums {
    received: u64,
    late: u64,
    /// Bytes by step.
    steps: BTreeMap<u64, u64>,
}

fn print_table(out: &mut impl Write, points: &[Point], query: &Query) -> io::Result<()> {
    if points.is_empty() {
        return writeln!(out, "nothing was received in this time, or nothing was recorded");
    }
    let mut all: BTreeMap<(&str, &str), Sums> = BTreeMap::new();
    for point in points {
        let sums = all.entry((&point.daemon, &point.group)).or_default();
        sums.received += point.received_bytes;
        sums.late += point.late_bytes;
        *sums.steps.entry(point.at).or_default() += point.received_bytes;
    }
    let seconds = query.to - query.from;
    let most = all.values().flat_map(|sums| sums.steps.values()).copied().max().unwrap_or(0);
    let begins: Vec<u64> = (query.from..query.to).step_by(query.step_s as usize).collect();
    let row = |(&(daemon, group), sums): (&(&str, &str), &Sums)| {
        let of = |begin: &u64| sums.steps.get(begin).copied().unwrap_or(0);
        let peak = sums.steps.values().copied().max().unwrap_or(0);
        vec![
            daemon.to_owned(),
            group.to_owned(),
            Bytes::new(sums.received + sums.late).to_string(),
            Bytes::new(sums.late).to_string(),
            mbit(sums.received.saturating_mul(8) / seconds),
            mbit(peak.saturating_mul(8) / query.step_s),
            begins.iter().map(|begin| bar(of(begin), most)).collect(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let headings = [
        ("DAEMON", Align::Left),
        ("GROUP", Align::Left),
        ("RECEIVED", Align::Right),
        ("LATE", Align::Right),
        ("MEAN", Align::Right),
        ("PEAK", Align::Right),
        ("RATE", Align::Left),
    ];
    table::print(out, &headings, &rows)?;
    writeln!(out, "\nthe last {}; a column is {}", Span::secs(seconds), Span::secs(query.step_s))?;
    if all.values().any(|sums| sums.late > 0) {
        writeln!(out, "late: arrived before, while nothing was recorded; not in mean and peak")?;
    }
    Ok(())
}

/// A character of the chart: a bar of one of eight heights.
fn bar(value: u64, most: u64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    match value {
        0 => ' ',
        _ => BARS[((u128::from(value) * 8 / u128::from(most.max(1))) as usize).min(7)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: u64, group: &str, received_bytes: u64, late_bytes: u64) -> Point {
        let (daemon, group) = ("host-eth0".to_owned(), group.to_owned());
        Point { at, daemon, group, received_bytes, late_bytes, capacity_bps: None, queue_ms: None }
    }

    #[test]
    fn steps_are_those_of_the_stored_rows() {
        assert_eq!(step_of(600, 7), Ok(7));
        assert_eq!(step_of(3_600, 1), Ok(1));
        assert_eq!(step_of(3_601, 1), Ok(60));
        assert_eq!(step_of(7_200, 61), Ok(120));
        assert!(step_of(600, 0).is_err());
    }

    #[test]
    fn a_table_has_sums_and_a_picture() {
        let points =
            [point(0, "a", 1_000_000, 0), point(10, "a", 500_000, 0), point(10, "b", 1, 7)];
        let query = Query { from: 0, to: 30, step_s: 10, ..Query::default() };
        let mut out = Vec::new();
        print_table(&mut out, &points, &query).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("0.40 Mbit/s  0.80 Mbit/s  █▅"), "{text}");
        assert!(text.contains("host-eth0  b") && text.contains("  7B  "), "{text}");
        assert!(
            text.contains("the last 30s; a column is 10s") && text.contains("late: "),
            "{text}"
        );
    }

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let mut out = Vec::new();
        print_csv(&mut out, &[point(60, "a,\"b", 60, 1)], 60).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().nth(1).unwrap(), "60,60,host-eth0,\"a,\"\"b\",60,1,8,,");
    }
}
