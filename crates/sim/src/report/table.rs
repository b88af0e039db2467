//! Reports for people and spreadsheets.

use std::fmt::Write;

use fairweir_core::units::Time;

use super::{BIN, Report, Shorts};
use crate::scenario::Scenario;

/// The reports side by side, one column each, as aligned plain text.
pub fn table(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: String, cell: &dyn Fn(&Report) -> String| {
        rows.push([name].into_iter().chain(reports.iter().map(cell)).collect());
    };
    row(first.scenario.clone(), &|r| {
        let mark = if r.valid { "" } else { " (invalid)" };
        format!("{}{mark}", r.control)
    });
    row("allocation error".into(), &|r| decimals(r.summary.allocation_error, 3));
    row("  in transients".into(), &|r| decimals(r.summary.transient_error, 3));
    row("utilisation".into(), &|r| percent(r.summary.utilization));
    row("  over the whole run".into(), &|r| percent(Some(r.summary.link_utilization)));
    row("ISP queue mean, ms".into(), &|r| decimals(r.summary.isp_queue_ms.map(|q| q.mean), 1));
    row("ISP queue p99, ms".into(), &|r| decimals(r.summary.isp_queue_ms.map(|q| q.p99), 1));
    row("ISP drops".into(), &|r| r.summary.isp_drops.to_string());
    row("daemon, cores".into(), &|r| decimals(r.summary.daemon_cpu_cores, 4));
    if first.lateness.is_some() {
        row("link late p99, ms".into(), &|r| decimals(r.lateness.map(|l| l.p99_ms), 2));
    }
    for (i, group) in first.summary.groups.iter().enumerate() {
        let fair = decimals(group.fair.map(|f| f.as_mbit_f64()), 2);
        row(format!("{}, Mbit/s (fair {fair})", group.name), &|r| {
            let group = r.summary.groups.get(i);
            decimals(group.map(|g| g.rate.as_mbit_f64()), 2)
        });
    }
    for (i, ping) in first.summary.pings.iter().enumerate() {
        row(format!("{}, RTT median / p95, ms", ping.group), &|r| {
            let ping = r.summary.pings.get(i);
            let median = decimals(ping.and_then(|p| p.rtt_ms_median), 1);
            format!("{median} / {}", decimals(ping.and_then(|p| p.rtt_ms_p95), 1))
        });
    }
    for (i, video) in first.summary.videos.iter().enumerate() {
        row(format!("{}, film Mbit/s / stalled, s", video.group), &|r| {
            let video = r.summary.videos.get(i);
            let quality = video.and_then(|v| v.quality).map(|q| q.as_mbit_f64());
            format!("{} / {}", decimals(quality, 2), decimals(video.map(|v| v.stalled_s), 1))
        });
    }
    for (i, pages) in first.summary.pages.iter().enumerate() {
        row(format!("{}, page load median / p95, ms", pages.group), &|r| {
            let pages = r.summary.pages.get(i);
            let median = decimals(pages.and_then(|p| p.load_ms_median), 0);
            format!("{median} / {}", decimals(pages.and_then(|p| p.load_ms_p95), 0))
        });
    }
    for (i, shorts) in first.summary.shorts.iter().enumerate() {
        row(format!("{}, completion median / p95 / p99, ms", shorts.group), &|r| {
            let shorts = r.summary.shorts.get(i);
            let ms = |of: fn(&Shorts) -> Option<f64>| decimals(shorts.and_then(of), 0);
            let (median, p95) = (ms(|s| s.completion_ms_median), ms(|s| s.completion_ms_p95));
            format!("{median} / {p95} / {}", ms(|s| s.completion_ms_p99))
        });
    }
    for (i, event) in first.summary.right_after_s.iter().enumerate() {
        row(format!("right after, s: {} ({} s)", event.event, event.at_s), &|r| {
            let right = r.summary.right_after_s.get(i);
            right.and_then(|e| e.seconds).map_or("never".into(), |s| format!("{s:.1}"))
        });
    }
    aligned(&rows)
}

/// Names to the left, numbers to the right, a rule below the head.
fn aligned(rows: &[Vec<String>]) -> String {
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

/// Rates and fair shares over time: `t_s,group,rate_bps,fair_bps`, the last empty where nobody can
/// know.
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

fn decimals(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.decimals$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or("-".into(), |v| format!("{:.1} %", v * 100.0))
}
