//! A table of all points that were played, a line for each.

use std::fmt::Write;

use fairweir_scenario::report::Report;

use super::super::claim::{Measured, Unit};
use super::super::play::{Played, Point};
use super::super::read::{
    drops, error, film, load_median, queue_mean, queue_p99, scored_utilization,
};

/// All points in a table in Markdown: means over the seeds.
pub(in super::super) fn side_by_side(points: &[Point], played: &Played) -> String {
    let mut text = String::from(HEAD);
    let mut before = None;
    for point in points {
        // A scenario's name is shown only in the first of its lines.
        let name = name(point);
        let shown = if before.as_ref() == Some(&name) { "" } else { name.as_str() };
        let of = |unit, of: fn(&Report) -> f64| cell(&played.measure(point, of), unit);
        let control = way(point);
        let _ = writeln!(
            text,
            "| {shown} | {control} | {} | {} | {} / {} | {} | {} |",
            of(Unit::Error, error),
            of(Unit::Part, scored_utilization),
            of(Unit::Milliseconds, queue_mean),
            of(Unit::Milliseconds, queue_p99),
            of(Unit::Packets, drops),
            experience(point, played),
        );
        before = Some(name);
    }
    text
}

/// Name of what is played, without the setting that distinguishes its lines.
fn name(point: &Point) -> String {
    let set = point.set.iter().filter(|set| !set.starts_with(ENFORCE));
    let set: Vec<String> = set.map(|set| format!(", {set}")).collect();
    format!("{}{}", point.scenario, set.concat())
}

/// The control, and how it enforces where that was set.
fn way(point: &Point) -> String {
    let by = point.set.iter().find_map(|set| set.strip_prefix(ENFORCE));
    by.map_or_else(|| point.control.to_string(), |by| format!("{}, {by}", point.control))
}

/// Results that a user in front of a screen notices.
fn experience(point: &Point, played: &Played) -> String {
    let (quality, load) = (played.measure(point, film), played.measure(point, load_median));
    match (quality.mean().is_nan(), load.mean().is_nan()) {
        (false, _) => format!("video {:.1} Mbit/s", quality.mean()),
        (true, false) => format!("page {:.2} s", load.mean()),
        (true, true) => String::new(),
    }
}

/// A mean without its spread; the files contain the spread.
fn cell(measured: &Measured, unit: Unit) -> String {
    let mean = measured.mean();
    match (mean.is_nan(), unit) {
        (true, _) => "–".to_owned(),
        (false, Unit::Milliseconds) => format!("{:.1}", mean * 1e3),
        (false, unit) => unit.number(mean),
    }
}

const ENFORCE: &str = "control.enforce=";
const HEAD: &str = "\
| scenario | control | error | utilisation, % | ISP queue mean / p99, ms | ISP drops | experience |
|---|---|---:|---:|---:|---:|---|
";
