//! The figures of CRAB (NSDI 2023): what is played for each, and what the paper says of it.
//!
//! | figure | where |
//! |---|---|
//! | 3, 9, 11a, 13, 17: a film beside downloads | `film` |
//! | 10: web pages beside downloads | `web` |
//! | 7, 8, 11b, 12, 16: downloads | `bulk` |
//! | 15: downloads that differ, and many of them | `robust` |
//!
//! Not here: 1, 2, 4, 5 and 6 are drawings, 14 is what a real Wi-Fi carried.

use fairweir_core::receiver::Control;
use fairweir_sim::report::chart::{Bars, Chart, Marks, Panel, Value, colour_of};
use fairweir_sim::report::{Report, csv, picture};

use super::claim::Measured;
use super::play::{Played, Point};
use super::{Figure, File};

mod bulk;
mod film;
mod robust;
mod web;

/// Every figure, in the paper's order.
pub(super) const FIGURES: [Figure; 13] = [
    film::FIGURE_3,
    bulk::FIGURE_7,
    bulk::FIGURE_8,
    film::FIGURE_9,
    web::FIGURE_10,
    film::FIGURE_11A,
    bulk::FIGURE_11B,
    bulk::FIGURE_12,
    film::FIGURE_13,
    robust::FIGURE_15,
    robust::FIGURE_15C,
    bulk::FIGURE_16,
    film::FIGURE_17,
];

/// The colour of bars that their labels tell apart.
const PLAIN: &str = "#7a8793";

/// The name that a control has in legends.
fn legend(control: Control) -> &'static str {
    match control {
        Control::None => "none (status quo)",
        Control::Static => "static (fixed shares)",
        Control::Borrow => "borrow (HTB with borrowing)",
        Control::Wfq => "wfq (at the ISP)",
        Control::Chokepoint => "chokepoint",
        Control::Rbm => "rbm",
        Control::Crab => "crab",
        Control::Fairweir => "fairweir",
    }
}

/// Bars of a control, one for each measurement.
fn bars_of(control: Control, measured: impl IntoIterator<Item = Option<Measured>>) -> Bars {
    named_bars(legend(control), colour_of(control), measured)
}

fn named_bars(
    name: &str,
    colour: &'static str,
    measured: impl IntoIterator<Item = Option<Measured>>,
) -> Bars {
    let value = |m: Measured| Value { mean: m.mean(), spread: m.spread() };
    let values = measured.into_iter().map(|m| m.map(value)).collect();
    Bars { name: name.to_owned(), colour, values }
}

fn bars<C: ToString>(x: &str, y: &str, categories: &[C], kinds: Vec<Bars>) -> Panel {
    let categories = categories.iter().map(ToString::to_string).collect();
    Panel { x: x.to_owned(), y: y.to_owned(), marks: Marks::Bars { categories, kinds } }
}

fn chart(name: &str, title: &str, panels: Vec<Panel>) -> File {
    File::new(format!("{name}.svg"), Chart { title: title.to_owned(), panels }.svg())
}

/// Rates over time of some controls with the first seed, as a picture and as numbers.
fn over_time(name: &str, points: &[Point], played: &Played) -> Vec<File> {
    let Ok(scenario) = points[0].scenario() else { return Vec::new() };
    let first = |point: &Point| played.of(point).first().cloned();
    let reports: Vec<Report> = points.iter().filter_map(first).collect();
    let mut files = vec![File::new(format!("{name}.svg"), picture(&scenario, &reports))];
    files.extend(reports.iter().map(|report| {
        File::new(format!("{name}-{}-rates.csv", report.control), csv(&scenario, report))
    }));
    files
}
