//! The figures of Free and Stunts (Guirguis and Valdez).
//!
//! | figure | where |
//! |---|---|
//! | 3: the fluid model | `fluid`, here |
//! | 4 to 7, targets: packets | `packets` |
//! | 8, others: other connections, and which of them pay | `others` |
//! | 10 to 12: the paper's experiments with a server | `server` |
//!
//! Not here: 1, 2 and 9 are drawings.

use std::fmt::Write as _;

use fairweir_core::delegate::{Bounds, Point, Shape, Trace};
use fairweir_core::units::{Span, Time};
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::chart;
use super::play::Played;
use super::{Figure, File, Judged};

mod fluid;
mod others;
mod packets;
mod scenes;
mod server;

use fluid::{CAPACITY, Law, Model, RTT, Sample, Signals, packets};

/// Every figure, in the paper's order.
pub(super) const FIGURES: [Figure; 11] = [
    FIGURE_3,
    packets::FIGURE_4,
    packets::FIGURE_5,
    packets::FIGURE_6,
    packets::FIGURE_7,
    others::FIGURE_8,
    server::FIGURE_10,
    server::FIGURE_11,
    server::FIGURE_12,
    packets::FIGURE_TARGETS,
    others::FIGURE_OTHERS,
];

const FIGURE_3: Figure = Figure {
    number: "3",
    title: "the fluid model: 1 free connection, 4 stunts, 15 others",
    series: false,
    points: Vec::new,
    judge: judge_3,
};

/// The model uses these seeds for its round-trip times, whatever the command's seeds are.
const FLUID_SEEDS: std::ops::RangeInclusive<u64> = 1..=10;
const STUNTS: usize = 4;
const CROSS: usize = 15;
/// Rate of each of 20 connections if none has a target, in packets per second.
const FAIR: f64 = CAPACITY / 20.0;
const FLUID_END_S: u64 = 120;
/// Time until which the paper's system is "in a transient behavior", in seconds.
const TRANSIENT_S: f64 = 3.0;

/// The target: 200 packets per second, from 30 s on a sine between 200 and 60.
fn trace_3() -> Trace {
    let point = |tick: u64| {
        let s = tick as f64 / 10.0;
        let turn = ((s - 30.0).max(0.0) / 60.0) * std::f64::consts::TAU;
        let rate = packets(130.0 + 70.0 * turn.cos());
        Point { at: Time::ZERO + Span::millis(100) * tick, rate }
    };
    let points: Vec<Point> = (0..=FLUID_END_S * 10).map(point).collect();
    Trace::new(&points, Shape::Linear).expect("invariant: times rise and rates are in range")
}

/// The samples of every seed.
fn fluid(gain: Law, signals: Signals, trace: &Trace) -> Vec<Vec<Sample>> {
    let end = Time::ZERO + Span::secs(FLUID_END_S);
    let model = |seed| Model { stunts: STUNTS, cross: CROSS, gain, signals, seed };
    FLUID_SEEDS.map(|seed| model(seed).play(trace, end)).collect()
}

/// The mean of a number over the samples that count, for each seed.
fn mean(
    runs: &[Vec<Sample>],
    counts: impl Fn(&Sample) -> bool,
    of: impl Fn(&Sample) -> f64,
) -> Measured {
    let one = |run: &Vec<Sample>| {
        let values: Vec<f64> = run.iter().filter(|s| counts(s)).map(&of).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    Measured(runs.iter().map(one).collect())
}

fn judge_3(_: &Played) -> Judged {
    let requested = trace_3();
    let packet = fluid::PACKET;
    let region = packets(STUNTS as f64 * FAIR);
    let (trace, changes) = requested.feasible(&Bounds { packet, rtt: RTT, region });
    let resolved = fluid(Law::Resolved, Signals::Resolved, &trace);
    let wrong_sign = fluid(Law::Printed, Signals::Resolved, &trace);
    let wrong_signals = fluid(Law::Resolved, Signals::Printed, &trace);
    let settled = |s: &Sample| s.at_s > TRANSIENT_S;
    let miss = |s: &Sample| (s.free / s.target - 1.0).abs();
    let by_fair = |rate: f64| rate / FAIR;
    let below = |s: &Sample| s.target < 0.7 * FAIR;
    let claims = vec![
        Claim::new(
            "points of the trace that the preprocessor changed",
            "-",
            (Measured(vec![changes.len() as f64]), Unit::Count),
            Band::AtMost(0.0),
        ),
        Claim::new(
            "free by target, 10 to 30 s (200 packets/s)",
            "matches",
            (
                mean(&resolved, |s| (10.0..30.0).contains(&s.at_s), |s| s.free / s.target),
                Unit::Part,
            ),
            Band::Within(0.98, 1.02),
        ),
        Claim::new(
            "mean distance of free from its target, after 3 s",
            "matches",
            (mean(&resolved, settled, miss), Unit::Part),
            Band::AtMost(0.02),
        ),
        Claim::new(
            "others by their fair share, after 3 s",
            "little affected",
            (mean(&resolved, settled, |s| by_fair(s.cross)), Unit::Part),
            Band::AtLeast(0.97),
        ),
        Claim::new(
            "stunts by their fair share while the target is below 70 packets/s",
            "above",
            (mean(&resolved, below, |s| by_fair(s.stunt)), Unit::Part),
            Band::AtLeast(1.0),
        ),
        Claim::new(
            "free by target with the sign of eq. (4) as printed, after 10 s",
            "-",
            (mean(&wrong_sign, |s| s.at_s > 10.0, |s| s.free / s.target), Unit::Part),
            Band::AtMost(0.2),
        ),
        Claim::new(
            "others by their fair share with eq. (10) and (11) as printed, 10 to 30 s",
            "-",
            (
                mean(&wrong_signals, |s| (10.0..30.0).contains(&s.at_s), |s| by_fair(s.cross)),
                Unit::Part,
            ),
            Band::AtMost(0.97),
        ),
    ];
    let panels = vec![
        panel("resolved: packets/s", &resolved[0]),
        panel("eq. (4) as printed: packets/s", &wrong_sign[0]),
    ];
    let title = "Figure 3: the fluid model, free connection, stunts and others (mean)";
    let mut csv = String::from("run,t_s,target,free,stunt,cross\n");
    for (run, samples) in
        [("resolved", &resolved[0]), ("sign", &wrong_sign[0]), ("signals", &wrong_signals[0])]
    {
        for Sample { at_s, target, free, stunt, cross } in samples {
            let _ = writeln!(csv, "{run},{at_s:.1},{target:.2},{free:.2},{stunt:.2},{cross:.2}");
        }
    }
    let files =
        vec![chart("figure-3", title, panels), File::new("figure-3-model.csv".to_owned(), csv)];
    Judged { claims, files }
}

fn panel(y: &str, samples: &[Sample]) -> Panel {
    let line = |name: &str, i, dashed, of: fn(&Sample) -> f64| Line {
        name: name.to_owned(),
        colour: colour(i),
        dashed,
        points: samples.iter().map(|s| (s.at_s, of(s))).collect(),
    };
    let lines = vec![
        line("free", 0, false, |s| s.free),
        line("stunts", 1, false, |s| s.stunt),
        line("others", 2, false, |s| s.cross),
        line("target", 3, true, |s| s.target),
    ];
    let marks = Marks::Lines { logarithmic: false, lines };
    Panel { x: "time, s".to_owned(), y: y.to_owned(), marks }
}
