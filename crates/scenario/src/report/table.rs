//! Reports for people and spreadsheets.

use std::fmt::Write;

use fairweir_core::units::Time;

use super::{BIN, Pages, Ping, Policed, QueueDelay, Report, Shorts, Summary};
use crate::Scenario;

/// The reports side by side as aligned plain text: one column for each control, in the order of the
/// first of its reports. If a control has several reports (one per seed), a cell is the mean ±
/// standard deviation of those that have a number, and says how many have one if not all do.
pub fn table(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let columns = columns(reports);
    let seeds = columns.iter().map(Vec::len).max().unwrap_or(1);
    let mut rows = vec![head(&first.scenario, seeds, &columns)];
    let mut row = |name: String, numbers: &dyn Fn(&Report) -> Vec<Number>| {
        let cell = |column: &Vec<&Report>| {
            let all: Vec<Vec<Number>> = column.iter().map(|r| numbers(r)).collect();
            let place = |i: usize| over_seeds(&all.iter().map(|n| n[i]).collect::<Vec<_>>());
            (0..all[0].len()).map(place).collect::<Vec<_>>().join(" / ")
        };
        rows.push([name].into_iter().chain(columns.iter().map(cell)).collect());
    };
    let queue =
        |r: &Report, part: fn(&QueueDelay) -> f64| r.summary.isp_queue_ms.as_ref().map(part);
    row("allocation error".into(), &|r| vec![number(r.summary.allocation_error, 3)]);
    row("  in transients".into(), &|r| vec![number(r.summary.transient_error, 3)]);
    row("utilisation".into(), &|r| vec![percent(r.summary.utilization)]);
    row("  over the whole run".into(), &|r| vec![percent(Some(r.summary.link_utilization))]);
    row("ISP queue mean, ms".into(), &|r| vec![number(queue(r, |q| q.mean), 1)]);
    row("ISP queue p99, ms".into(), &|r| vec![number(queue(r, |q| q.p99), 1)]);
    row("ISP drops".into(), &|r| vec![number(Some(r.summary.isp_drops as f64), 0)]);
    let loss = |r: &Report| r.summary.isp_loss.map(|ratio| ratio * 100.0);
    row("ISP loss".into(), &|r| vec![Number { unit: " %", ..number(loss(r), 3) }]);
    if first.summary.own_drops.is_some() {
        row("own drops".into(), &|r| vec![number(r.summary.own_drops.map(|n| n as f64), 0)]);
    }
    if first.summary.daemon_cpu_cores.is_some() {
        row("daemon, cores".into(), &|r| vec![number(r.summary.daemon_cpu_cores, 4)]);
    }
    if first.lateness.is_some() {
        row("link late p99, ms".into(), &|r| vec![number(r.lateness.map(|l| l.p99_ms), 2)]);
    }
    for (i, group) in first.summary.groups.iter().enumerate() {
        let fair = number(group.fair.map(|f| f.as_mbit_f64()), 2);
        row(format!("{}, Mbit/s (fair {})", group.name, over_seeds(&[fair])), &|r| {
            let group = r.summary.groups.get(i);
            vec![number(group.map(|g| g.rate.as_mbit_f64()), 2)]
        });
    }
    hosts(&first.summary, &mut row);
    policed(&first.summary, &mut row);
    bundled(&first.summary, &mut row);
    applications(&first.summary, &mut row);
    for (i, event) in first.summary.right_after_s.iter().enumerate() {
        row(format!("right after, s: {} ({} s)", event.event, event.at_s), &|r| {
            let seconds = r.summary.right_after_s.get(i).and_then(|e| e.seconds);
            vec![Number { missing: "never", ..number(seconds, 1) }]
        });
    }
    aligned(&rows)
}

/// Adds a row: its name, and a function that gives its cell for a report.
type AddRow<'a> = &'a mut dyn FnMut(String, &dyn Fn(&Report) -> Vec<Number>);

/// The rows of hosts, where the groups' fair shares do not show how well a host divided its rate.
fn hosts(first: &Summary, row: AddRow<'_>) {
    if first.hosts.len() < 2 && first.policed.is_empty() {
        return;
    }
    for (i, host) in first.hosts.iter().enumerate() {
        row(format!("{}, Mbit/s", host.device.as_deref().unwrap_or("host")), &|r| {
            vec![number(r.summary.hosts.get(i).map(|h| h.rate.as_mbit_f64()), 2)]
        });
        row("  division error".into(), &|r| {
            vec![number(r.summary.hosts.get(i).and_then(|h| h.division_error), 3)]
        });
    }
}

/// The rows of the bundles: one for each group with a target.
fn bundled(first: &Summary, row: AddRow<'_>) {
    for (i, bundle) in first.bundled.iter().enumerate() {
        for (j, free) in bundle.free.iter().enumerate() {
            let of = |r: &Report| {
                r.summary.bundled.get(i).and_then(|bundle| bundle.free.get(j).cloned())
            };
            let target = number(free.target.map(|target| target.as_mbit_f64()), 2);
            let title = format!("{}, Mbit/s (target {})", free.group, over_seeds(&[target]));
            row(title, &|r| vec![number(of(r).map(|free| free.rate.as_mbit_f64()), 2)]);
            row("  error over 1 s, RMS by target".into(), &|r| {
                vec![number(of(r).and_then(|free| free.error_rms), 3)]
            });
            row("  signals / delegated".into(), &|r| {
                let count = |n: Option<u64>| number(n.map(|n| n as f64), 0);
                let tally = of(r).map(|free| free.signals);
                vec![count(tally.map(|t| t.signals)), count(tally.map(|t| t.delegated))]
            });
        }
    }
}

/// The most policing points that are listed one by one; more are summarised.
const POLICED_ONE_BY_ONE_MAX: usize = 4;

/// The rows of the policing points: for each point, or for all together.
fn policed(first: &Summary, row: AddRow<'_>) {
    let all = first.policed.len();
    if all == 0 {
        return;
    }
    let each: Vec<(String, Vec<usize>)> = if all <= POLICED_ONE_BY_ONE_MAX {
        let named = |(i, p): (usize, &Policed)| (format!("{} ({})", p.name, p.algorithm), vec![i]);
        first.policed.iter().enumerate().map(named).collect()
    } else {
        vec![(format!("{all} policed, worst"), (0..all).collect())]
    };
    for (name, which) in each {
        let of = |r: &Report, value: fn(&Policed) -> Option<f64>| -> Vec<f64> {
            which.iter().filter_map(|&i| r.summary.policed.get(i).and_then(value)).collect()
        };
        let most = |values: Vec<f64>| values.into_iter().reduce(f64::max);
        let least = |values: Vec<f64>| values.into_iter().reduce(f64::min);
        row(format!("{name}: rate by plan"), &|r| {
            let ratios = of(r, |p| p.rate_ratio);
            match which.len() {
                1 => vec![number(least(ratios), 3)],
                _ => vec![number(least(ratios.clone()), 3), number(most(ratios), 3)],
            }
        });
        row("  250 ms p99 / max".into(), &|r| {
            let p99 = most(of(r, |p| p.steady.map(|w| w.p99)));
            vec![number(p99, 2), number(most(of(r, |p| p.steady.map(|w| w.max))), 2)]
        });
        row("  250 ms max in start-up".into(), &|r| {
            vec![number(most(of(r, |p| p.start_up.map(|w| w.max))), 2)]
        });
        row("  loss, steady / all".into(), &|r| {
            let percent = |values| number(most(values).map(|v: f64| v * 100.0), 3);
            let all = Number { unit: " %", ..percent(of(r, |p| p.loss)) };
            vec![percent(of(r, |p| p.loss_steady)), all]
        });
        row("  Jain".into(), &|r| vec![number(least(of(r, |p| p.jain)), 3)]);
    }
}

/// The rows of the applications' measurements.
fn applications(first: &Summary, row: AddRow<'_>) {
    for (i, ping) in first.pings.iter().enumerate() {
        row(format!("{}, RTT median / p95, ms", ping.group), &|r| {
            let ping = r.summary.pings.get(i);
            let ms = |of: fn(&Ping) -> Option<f64>| number(ping.and_then(of), 1);
            vec![ms(|p| p.rtt_ms_median), ms(|p| p.rtt_ms_p95)]
        });
    }
    for (i, video) in first.videos.iter().enumerate() {
        row(format!("{}, film Mbit/s / stalled, s", video.group), &|r| {
            let video = r.summary.videos.get(i);
            let quality = video.and_then(|v| v.quality).map(|q| q.as_mbit_f64());
            vec![number(quality, 2), number(video.map(|v| v.stalled_s), 1)]
        });
    }
    for (i, pages) in first.pages.iter().enumerate() {
        row(format!("{}, page load median / p95, ms", pages.group), &|r| {
            let pages = r.summary.pages.get(i);
            let ms = |of: fn(&Pages) -> Option<f64>| number(pages.and_then(of), 0);
            vec![ms(|p| p.load_ms_median), ms(|p| p.load_ms_p95)]
        });
    }
    for (i, shorts) in first.shorts.iter().enumerate() {
        row(format!("{}, completion median / p95 / p99, ms", shorts.group), &|r| {
            let shorts = r.summary.shorts.get(i);
            let ms = |of: fn(&Shorts) -> Option<f64>| number(shorts.and_then(of), 0);
            let median = ms(|s| s.completion_ms_median);
            vec![median, ms(|s| s.completion_ms_p95), ms(|s| s.completion_ms_p99)]
        });
    }
}

/// The reports of each control.
fn columns(reports: &[Report]) -> Vec<Vec<&Report>> {
    let mut columns: Vec<Vec<&Report>> = Vec::new();
    for report in reports {
        match columns.iter_mut().find(|column| column[0].control == report.control) {
            Some(column) => column.push(report),
            None => columns.push(vec![report]),
        }
    }
    columns
}

fn head(scenario: &str, seeds: usize, columns: &[Vec<&Report>]) -> Vec<String> {
    let name = match seeds {
        1 => scenario.to_owned(),
        several => format!("{scenario}, {several} seeds"),
    };
    let control = |column: &Vec<&Report>| {
        let mark = if column.iter().all(|r| r.valid) { "" } else { " (invalid)" };
        format!("{}{mark}", column[0].control)
    };
    [name].into_iter().chain(columns.iter().map(control)).collect()
}

/// A number of a cell, with its format.
#[derive(Clone, Copy)]
struct Number {
    value: Option<f64>,
    decimals: usize,
    unit: &'static str,
    /// Text that is shown if there is no value.
    missing: &'static str,
}

fn number(value: Option<f64>, decimals: usize) -> Number {
    Number { value, decimals, unit: "", missing: "-" }
}

fn percent(value: Option<f64>) -> Number {
    Number { unit: " %", ..number(value.map(|v| v * 100.0), 1) }
}

/// One number is shown as it is, several as mean ± standard deviation.
fn over_seeds(numbers: &[Number]) -> String {
    let Number { decimals, unit, missing, .. } = numbers[0];
    let known: Vec<f64> = numbers.iter().filter_map(|n| n.value).collect();
    let count = known.len() as f64;
    let mean = known.iter().sum::<f64>() / count;
    match (known.len(), numbers.len()) {
        (0, _) => missing.to_owned(),
        (_, 1) => format!("{mean:.decimals$}{unit}"),
        (n, of) => {
            let squares = known.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
            let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
            let how_many = if n == of { String::new() } else { format!(" ({n} of {of})") };
            format!("{mean:.decimals$} ± {deviation:.decimals$}{unit}{how_many}")
        }
    }
}

/// Rows as aligned plain text: the first column is left-aligned, the others are right-aligned; a
/// rule follows the first row.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let pad = widths[column] - cell.chars().count();
            text.push_str(if column == 0 { "" } else { "  " });
            let (before, after) = if column == 0 { (0, pad) } else { (pad, 0) };
            text.extend(std::iter::repeat_n(' ', before));
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', after));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        if i == 0 {
            let rule = widths.iter().sum::<usize>() + 2 * (columns - 1);
            text.extend(std::iter::repeat_n('-', rule));
            text.push('\n');
        }
    }
    text
}

/// Rates and fair shares over time: `t_s,group,rate_bps,fair_bps`, the last empty where it cannot
/// be known.
pub fn csv(scenario: &Scenario, report: &Report) -> String {
    let mut text = String::from("t_s,group,rate_bps,fair_bps\n");
    for (i, point) in report.series.iter().flatten().enumerate() {
        let (bin, group) = (i / scenario.groups.len(), i % scenario.groups.len());
        let fair = scenario.fair_shares_at(Time::ZERO + BIN * bin as u64);
        let fair = fair.map_or(String::new(), |fair| fair[group].as_bps().to_string());
        let (t, rate) = (point.t_s, point.rate.as_bps());
        let _ = writeln!(text, "{t},{},{rate},{fair}", point.group);
    }
    text
}
