//! The figures of BC-PQP, and promises of `fairweir isp` beyond them.
//!
//! Figure 7 and table 1 are about processor cycles, which `make bench` measures.

use fairweir_scenario::Control;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};
use fairweir_scenario::report::{Policed, Report};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::{bars, chart, named_bars};
use super::play::{Played, Point};
use super::{Figure, Judged};

mod ablation;
mod apps;
mod loss;
mod many;
mod rate;
mod share;

pub(super) use ablation::table;

/// Every figure, in the paper's order, then the figures that are not in the paper.
pub(super) const FIGURES: [Figure; 17] = [
    rate::FIGURE_1,
    rate::FIGURE_3,
    rate::FIGURE_4,
    share::FIGURE_5,
    many::FIGURE_6,
    many::FIGURE_8A,
    share::FIGURE_8B,
    share::FIGURE_8D,
    apps::FIGURE_9A,
    apps::FIGURE_9B,
    apps::FIGURE_9C,
    apps::FIGURE_10,
    apps::FIGURE_11,
    rate::RATES,
    rate::STARTS,
    loss::LOSSES,
    ablation::ABLATION,
];

/// An algorithm that enforces a rate, as in scenario files, and its size if not the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct By {
    /// Its name in legends.
    name: &'static str,
    algorithm: &'static str,
    /// Key and value of the size.
    size: Option<(&'static str, &'static str)>,
}

const BC_PQP: By = By { name: "BC-PQP", algorithm: "bc-pqp", size: None };
const SHAPER: By = By { name: "shaper", algorithm: "shaper", size: None };
/// A bucket that holds what the rate carries in the longest round trip.
const POLICER: By = By { name: "policer", algorithm: "token-bucket", size: None };
/// A bucket large enough for Reno to reach the rate.
const POLICER_PLUS: By =
    By { name: "policer+", algorithm: "token-bucket", size: Some(("burst", "1.5reno")) };
const FAIR_POLICER: By = By { name: "FairPolicer", algorithm: "fair-policer", size: None };
const PQP: By = By { name: "PQP", algorithm: "pqp", size: None };

impl By {
    /// Makes this algorithm police the `n`th policing point of a scenario.
    fn at(self, point: Point, n: usize) -> Point {
        let point = point.set(&format!("police.{n}.algorithm"), self.algorithm);
        match self.size {
            Some((key, value)) => point.set(&format!("police.{n}.{key}"), value),
            None => point,
        }
    }
}

/// A scenario without control at home.
fn scenario(name: &'static str) -> Point {
    Point::new(name, Control::None)
}

// ------------------------------------------------------------------------------------------------
// Numbers from reports; NaN where a report has none.

/// A number of the first policing point.
fn home(of: impl Fn(&Policed) -> Option<f64>) -> impl Fn(&Report) -> f64 {
    move |report| report.summary.policed.first().and_then(&of).unwrap_or(f64::NAN)
}

/// Rate that passed in the steady time, divided by the plan's rate.
fn rate_ratio(report: &Report) -> f64 {
    home(|p| p.rate_ratio)(report)
}

/// The 99th percentile of windows of 250 ms in the steady time, divided by the rate.
fn window_p99(report: &Report) -> f64 {
    home(|p| p.steady.map(|w| w.p99))(report)
}

/// The highest window of 250 ms in start-ups, divided by the rate.
fn start_up(report: &Report) -> f64 {
    home(|p| p.start_up.map(|w| w.max))(report)
}

/// The part of the packets that was dropped, including the start.
fn loss(report: &Report) -> f64 {
    home(|p| p.loss)(report)
}

/// The same for the steady time.
fn loss_steady(report: &Report) -> f64 {
    home(|p| p.loss_steady)(report)
}

/// Jain's index of the flows.
fn jain(report: &Report) -> f64 {
    home(|p| p.jain)(report)
}

/// The largest value of a number over some points, seed by seed.
fn most(played: &Played, points: &[Point], of: impl Fn(&Report) -> f64) -> Measured {
    let all = points.iter().map(|point| played.measure(point, &of));
    all.reduce(|a, b| a.with(&b, larger)).unwrap_or(Measured(Vec::new()))
}

/// The smallest value of a number over some points, seed by seed.
fn least(played: &Played, points: &[Point], of: impl Fn(&Report) -> f64) -> Measured {
    most(played, points, |report| -of(report)).map(|v| -v)
}

/// The larger of two numbers; NaN if one of them is NaN.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

// ------------------------------------------------------------------------------------------------
// Drawing

fn line(name: &str, i: usize, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), colour: colour(i), dashed: false, points }
}

fn lines(x: &str, y: &str, logarithmic: bool, lines: Vec<Line>) -> Panel {
    Panel { x: x.to_owned(), y: y.to_owned(), marks: Marks::Lines { logarithmic, lines } }
}

/// The distribution of numbers: for each, the part of all that are not above it.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // Keeps as many points as can be distinguished.
    let step = (count / 400).max(1);
    let kept = (0..count).filter(|i| i % step == 0 || *i + 1 == count);
    kept.map(|i| (values[i], (i + 1) as f64 / count as f64)).collect()
}
