//! Web pages during two long downloads.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour_of, label_of};

use super::super::claim::{Band, Claim, Unit};
use super::super::play::{Played, Point};
use super::super::read::{load_median, utilization};
use super::super::{Figure, Judged};
use super::{bars, bars_of, chart};

pub(super) const FIGURE_10: Figure = Figure {
    number: "10",
    title: "web pages beside two downloads on 10 Mbit/s, weights 7:3",
    series: false,
    points: || CONTROLS.map(point).into(),
    judge,
};

const CONTROLS: [Control; 3] = [Control::None, Control::Wfq, Control::Crab];

fn point(control: Control) -> Point {
    Point::new("crab-fig10", control)
}

fn judge(played: &Played) -> Judged {
    let [none, wfq, crab] = CONTROLS.map(|c| played.measure(&point(c), load_median));
    let [none_used, _, crab_used] = CONTROLS.map(|c| played.measure(&point(c), utilization));
    let medians = || {
        let [none, wfq, crab] = [&none, &wfq, &crab].map(|m| m.text(Unit::Seconds));
        format!("none {none}, wfq {wfq}, crab {crab}")
    };
    let claims = vec![
        Claim::new(
            "median load time with crab relative to no control",
            "half",
            (crab.by(&none), Unit::Part),
            Band::AtMost(0.5),
        )
        .because(medians),
        Claim::new(
            "median load time with crab relative to wfq",
            "within 115 %",
            (crab.by(&wfq), Unit::Part),
            Band::AtMost(1.15),
        )
        .because(medians),
        Claim::new(
            "utilisation lost with crab",
            "about 13 %",
            (crab_used.by(&none_used).map(|ratio| 1.0 - ratio), Unit::Part),
            Band::AtMost(0.13),
        ),
    ];
    let lines = CONTROLS.map(|control| Line {
        name: label_of(control).to_owned(),
        colour: colour_of(control),
        dashed: false,
        points: distribution(played.of(&point(control))),
    });
    let panels = vec![
        Panel {
            x: "load time, s".to_owned(),
            y: "fraction of pages".to_owned(),
            marks: Marks::Lines { logarithmic: false, lines: lines.into() },
        },
        bars(
            "",
            "utilisation",
            &[""],
            CONTROLS.map(|c| bars_of(c, [Some(played.measure(&point(c), utilization))])).to_vec(),
        ),
    ];
    let title = "Figure 10: web pages beside two downloads on 10 Mbit/s, weights 7 : 3";
    Judged { claims, files: vec![chart("figure-10", title, panels)] }
}

/// The part of all pages that was loaded within a number of seconds, over all seeds.
fn distribution(reports: &[Report]) -> Vec<(f64, f64)> {
    let pages = reports.iter().flat_map(|r| &r.summary.pages);
    let mut loads: Vec<_> = pages.flat_map(|p| &p.loads).copied().collect();
    loads.sort_unstable();
    let count = loads.len();
    let rise = |i: usize| (loads[i].as_secs_f64(), (i + 1) as f64 / count as f64);
    // Two hundred points are as smooth as a thousand.
    (0..count).step_by((count / 200).max(1)).chain(count.checked_sub(1)).map(rise).collect()
}
