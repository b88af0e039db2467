//! Charts that several figures use.

use fairweir_scenario::Control;
use fairweir_scenario::report::chart::{Bars, Chart, Marks, Panel, Value, colour_of, label_of};
use fairweir_scenario::report::{Report, csv, picture};

use super::File;
use super::claim::Measured;
use super::play::{Played, Point};

/// The colour of bars that are distinguished by their labels.
pub(super) const PLAIN: &str = "#7a8793";

/// Bars of a control, one for each measurement.
pub(super) fn bars_of(
    control: Control,
    measured: impl IntoIterator<Item = Option<Measured>>,
) -> Bars {
    named_bars(label_of(control), colour_of(control), measured)
}

pub(super) fn named_bars(
    name: &str,
    colour: &'static str,
    measured: impl IntoIterator<Item = Option<Measured>>,
) -> Bars {
    let value = |m: Measured| Value { mean: m.mean(), spread: m.spread() };
    let values = measured.into_iter().map(|m| m.map(value)).collect();
    Bars { name: name.to_owned(), colour, values }
}

pub(super) fn bars<C: ToString>(x: &str, y: &str, categories: &[C], kinds: Vec<Bars>) -> Panel {
    let categories = categories.iter().map(ToString::to_string).collect();
    Panel { x: x.to_owned(), y: y.to_owned(), marks: Marks::Bars { categories, kinds } }
}

pub(super) fn chart(name: &str, title: &str, panels: Vec<Panel>) -> File {
    File::new(format!("{name}.svg"), Chart { title: title.to_owned(), panels }.svg())
}

/// Rates over time of some controls with the first seed, as a picture and as numbers.
pub(super) fn over_time(name: &str, points: &[Point], played: &Played) -> Vec<File> {
    let Ok(scenario) = points[0].scenario() else { return Vec::new() };
    let first = |point: &Point| played.of(point).first().cloned();
    let reports: Vec<Report> = points.iter().filter_map(first).collect();
    let mut files = vec![File::new(format!("{name}.svg"), picture(&scenario, &reports))];
    files.extend(reports.iter().map(|report| {
        File::new(format!("{name}-{}-rates.csv", report.control), csv(&scenario, report))
    }));
    files
}
