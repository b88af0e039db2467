//! The worth of each deviation from the paper: each left out alone, and all of them.

use std::fmt::Write;

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::read::rate_between;
use super::{
    BC_PQP, Band, By, Claim, Figure, Judged, Measured, PQP, Played, Point, Unit, bars, chart, jain,
    least, loss, most, named_bars, rate_ratio, scenario, start_up, window_p99,
};

pub(super) const ABLATION: Figure = Figure {
    number: "ablation",
    title: "deviations from the paper left out",
    series: true,
    points: || WAYS.into_iter().flat_map(points).collect(),
    judge,
};

/// The variants, named by the deviation left out, as in the legends and the scenario.
const WAYS: [By; 8] = [
    BC_PQP,
    By { name: "hard signals (k)", size: Some(("signal", "hard")), ..BC_PQP },
    By { name: "no gate (h, p)", size: Some(("without", "gate")), ..BC_PQP },
    By { name: "κ = 10 (j)", size: Some(("without", "size")), ..BC_PQP },
    By { name: "nothing given back (m, q)", size: Some(("without", "gives-back")), ..BC_PQP },
    PRINTED,
    By { name: "as printed, κ = 2", size: Some(("queue", "2reno")), ..PRINTED },
    PQP,
];
const PRINTED: By = By { name: "as printed, κ = 10", algorithm: "bc-pqp-printed", size: None };

const CONGESTION: [&str; 3] = ["reno", "cubic", "bbr"];
/// Rate in Mbit/s and round trip in ms of a single flow.
const PATHS: [(&str, u64); 4] = [("1.5", 50), ("7.5", 50), ("50", 10), ("50", 50)];

fn points(by: By) -> Vec<Point> {
    let at_once = COUNTS.into_iter().flat_map(|count| together(by, count));
    let others = [short(by), mixed(by), ending(by)];
    alone(by).into_iter().chain(at_once).chain(others).collect()
}

/// A single flow, on every path.
fn alone(by: By) -> Vec<Point> {
    let one = |cc: &str, (mbit, rtt): (&str, u64)| {
        by.at(scenario("bcpqp-one"), 0)
            .set("duration", "40s")
            .set("police.0.queues", 16)
            .set("police.0.rtt_max", "50ms")
            .set("police.0.rate", format_args!("{mbit}mbit"))
            .set("flow.0.congestion_control", cc)
            .set("flow.0.rtt", format_args!("{rtt}ms"))
    };
    CONGESTION.into_iter().flat_map(|cc| PATHS.map(|path| one(cc, path))).collect()
}

/// A flow whose BDP is 1.25 packets, with a plan made for it: the paper's queue is smaller than a
/// packet.
fn short(by: By) -> Point {
    by.at(scenario("bcpqp-one"), 0)
        .set("duration", "40s")
        .set("police.0.queues", 16)
        .set("police.0.rtt_max", "10ms")
        .set("police.0.rate", "1.5mbit")
        .set("flow.0.congestion_control", "cubic")
        .set("flow.0.rtt", "10ms")
}

/// Numbers of flows that start at once.
const COUNTS: [u32; 2] = [16, 64];

/// Flows that start at once.
fn together(by: By, count: u32) -> [Point; 2] {
    ["1.5mbit", "50mbit"].map(|rate| {
        by.at(scenario("bcpqp-one"), 0)
            .set("duration", "40s")
            .set("police.0.queues", 64)
            .set("police.0.rtt_max", "50ms")
            .set("police.0.rate", rate)
            .set("flow.0.connections", count)
            .set("flow.0.congestion_control", "cubic")
            .set("flow.0.rtt", "20ms")
    })
}

/// Flows with four congestion controls.
fn mixed(by: By) -> Point {
    by.at(scenario("bcpqp-fig5"), 0).set("link.rate", "1gbit").set("police.0.rtt_max", "50ms")
}

/// Time at which two of four flows end, in seconds.
const END_S: f64 = 20.0;
const ENDING_MBIT: f64 = 50.0;

/// Four flows, of which two end.
fn ending(by: By) -> Point {
    let point = by
        .at(scenario("bcpqp-fig5"), 0)
        .set("link.rate", "1gbit")
        .set("duration", "40s")
        .set("police.0.rtt_max", "50ms")
        .set("police.0.rate", format_args!("{ENDING_MBIT}mbit"));
    let all = ["reno", "cubic", "bbr", "vegas"];
    let point = all.iter().fold(point, |point, group| {
        let point = point.set(&format!("flow.{group}.congestion_control"), "cubic");
        point.set(&format!("flow.{group}.rtt"), "20ms")
    });
    all[..2].iter().fold(point, |point, group| {
        point.set(&format!("flow.{group}.stop"), format_args!("{END_S}s"))
    })
}

/// Rate of the two that stay, from one to four seconds after the end of the others, by the plan's.
fn after_end(report: &Report) -> f64 {
    let of = |group| rate_between(group, END_S + 1.0, END_S + 4.0)(report);
    (of(2) + of(3)) / ENDING_MBIT
}

/// A column of the table: its head, its unit and its value for each variant.
type Column = (&'static str, Unit, fn(&Played, By) -> Measured);
const COLUMNS: [Column; 10] = [
    ("alone: least mean rate", Unit::Part, |played, by| least(played, &alone(by), rate_ratio)),
    ("most", Unit::Part, |played, by| most(played, &alone(by), rate_ratio)),
    ("worst p99", Unit::Times, |played, by| most(played, &alone(by), window_p99)),
    ("worst start", Unit::Times, |played, by| most(played, &alone(by), start_up)),
    ("loss, mean", Unit::Part, |played, by| played.mean(&alone(by), loss)),
    ("a BDP of 1.25 packets: rate", Unit::Part, |played, by| {
        played.measure(&short(by), rate_ratio)
    }),
    ("16 at once: worst start", Unit::Times, |played, by| {
        most(played, &together(by, 16), start_up)
    }),
    ("64 at once", Unit::Times, |played, by| most(played, &together(by, 64), start_up)),
    ("four congestion controls: Jain's index", Unit::Error, |played, by| {
        played.measure(&mixed(by), jain)
    }),
    ("two of four end: rate 1 to 4 s later", Unit::Part, |played, by| {
        played.measure(&ending(by), after_end)
    }),
];

fn judge(played: &Played) -> Judged {
    let of = |column: usize| [BC_PQP, PRINTED].map(|by| (COLUMNS[column].2)(played, by));
    let told = |column: usize| {
        let unit = COLUMNS[column].1;
        let [mine, printed] = of(column).map(|measured| measured.text(unit));
        move || format!("{mine} and {printed}")
    };
    let ratio = |column: usize| {
        let [mine, printed] = of(column);
        (mine.by(&printed), Unit::Times)
    };
    let claim = |column: usize, what: &str, band| {
        let what = format!("{what}, relative to as printed");
        Claim::new(what, "-", ratio(column), band).because(told(column))
    };
    let claims = vec![
        claim(0, "a flow alone: least mean rate", Band::AtLeast(1.0)),
        claim(2, "a flow alone: worst 99th percentile over 250 ms", Band::AtMost(1.0)),
        claim(3, "a flow alone: highest rate over 250 ms at the start", Band::AtMost(1.0)),
        claim(4, "a flow alone: losses", Band::AtMost(1.0)),
        claim(6, "16 flows at once: highest rate over 250 ms at the start", Band::AtMost(1.0)),
        claim(7, "64 flows at once: the same", Band::AtMost(1.0)),
        claim(8, "four congestion controls, 7.5 Mbit/s: Jain's index", Band::AtLeast(1.0)),
        claim(9, "two of four flows end: rate from 1 to 4 s later", Band::AtLeast(1.0)),
    ];
    let names = ["a flow alone", "16 at once", "64 at once"];
    let kinds = WAYS.into_iter().enumerate().map(|(i, by)| {
        named_bars(
            by.name,
            colour(i),
            [3, 6, 7].map(|column: usize| Some((COLUMNS[column].2)(played, by))),
        )
    });
    let y = "highest rate over 250 ms at the start, relative to the rate";
    let panels = vec![bars("", y, &names, kinds.collect())];
    Judged { claims, files: vec![chart("figure-ablation", "Deviations left out", panels)] }
}

/// The table, one line for each variant; empty if the figure was not asked for.
pub(in super::super) fn table(planned: &[Point], played: &Played) -> String {
    let all = || WAYS.into_iter().flat_map(points);
    if !all().all(|point| planned.contains(&point)) {
        return String::new();
    }
    let mut text = String::from("Figure *ablation*, every way. ");
    text.push_str(
        "Alone: one flow with Reno, CUBIC or BBR, 1.5 Mbit/s and 50 ms, 7.5 and 50, 50 and 10, 50 and 50. \
         A BDP of\n1.25 packets: CUBIC, 1.5 Mbit/s, 10 ms. At once: CUBIC, 20 ms, 1.5 and 50 Mbit/s. Four \
         congestion controls: 7.5\nMbit/s, 50 ms. Two of four CUBIC flows with 20 ms end within 50 \
         Mbit/s. Means over the seeds, ± half their 95 %\ninterval.\n\n|",
    );
    let _ = writeln!(text, " | {} |", COLUMNS.map(|(name, ..)| name).join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(COLUMNS.len()));
    for by in WAYS {
        let name = if by == BC_PQP { "as it is" } else { by.name };
        let cells = COLUMNS.map(|(_, unit, of)| of(played, by).text(unit));
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}
