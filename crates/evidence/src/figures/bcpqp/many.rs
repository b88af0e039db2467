//! Many aggregates of mixed traffic.

use fairweir_scenario::report::chart::colour;
use fairweir_scenario::report::{Policed, Report};

use super::{
    BC_PQP, Band, By, Claim, FAIR_POLICER, Figure, Judged, Measured, POLICER, POLICER_PLUS, Played,
    Point, SHAPER, Unit, bars, chart, distribution, larger, line, lines, named_bars, scenario,
};

pub(super) const FIGURE_6: Figure = Figure {
    number: "6",
    title: "rates, bursts and losses of many aggregates, 1.5 to 200 Mbit/s, 2 to 50 ms",
    series: false,
    points: all,
    judge: judge_6,
};

pub(super) const FIGURE_8A: Figure = Figure {
    number: "8a",
    title: "fairness among the long downloads of these aggregates",
    series: false,
    points: all,
    judge: judge_8a,
};

/// Plans in Mbit/s, and how many aggregates of each of the twelve kinds there are.
const PLANS: [(f64, u64); 6] = [(1.5, 9), (7.5, 9), (25.0, 4), (50.0, 2), (100.0, 1), (200.0, 1)];
const ALL: [By; 5] = [SHAPER, POLICER, POLICER_PLUS, FAIR_POLICER, BC_PQP];
/// In the scenario each kind has ten flows in a row of three aggregates: four long ones; two series
/// of short ones; three long ones and a series of short ones.
const KINDS: usize = 12;
const SHORT_FLOWS: [(usize, f64); 3] = [(4, 0.625), (5, 0.625), (9, 0.25)];
/// Mean size of a short download, L2: lognormal around 30 kB.
const SHORT_BITS: f64 = 36_000.0 * 8.0;

fn all() -> Vec<Point> {
    PLANS.into_iter().flat_map(|plan| ALL.map(|by| mixed(by, plan))).collect()
}

/// All aggregates with one plan.
fn mixed(by: By, (mbit, count): (f64, u64)) -> Point {
    let mut point = scenario("bcpqp-fig6");
    for kind in 0..KINDS {
        point = by
            .at(point, kind)
            .set(&format!("police.{kind}.rate"), format_args!("{mbit}mbit"))
            .set(&format!("police.{kind}.count"), count);
    }
    for row in 0..KINDS / 3 {
        for (flow, part) in SHORT_FLOWS {
            // Short ones alone want 1.25 times the rate, beside long ones a quarter of it.
            let per_second = part * mbit * 1e6 / SHORT_BITS;
            let key = format!("flow.{}.rate_per_s", row * 10 + flow);
            point = point.set(&key, format_args!("{per_second:.3}"));
        }
    }
    point
}

/// The aggregates of a report with traffic of a kind: `long`, `short` or `both`.
fn of_kind<'r>(report: &'r Report, kind: &'r str) -> impl Iterator<Item = &'r Policed> {
    report.summary.policed.iter().filter(move |p| p.name.split('-').nth(1) == Some(kind))
}

const KIND_NAMES: [&str; 3] = ["long", "short", "both"];

/// The mean of a number over the aggregates of a kind.
fn mean_of(kind: &'static str, of: fn(&Policed) -> Option<f64>) -> impl Fn(&Report) -> f64 {
    move |report| {
        let values: Vec<f64> = of_kind(report, kind).filter_map(of).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// The largest of a number over all aggregates.
fn most_of(of: fn(&Policed) -> Option<f64>) -> impl Fn(&Report) -> f64 {
    move |report| {
        let values = report.summary.policed.iter().map(|p| of(p).unwrap_or(f64::NAN));
        values.reduce(larger).unwrap_or(f64::NAN)
    }
}

/// A number over all plans: the largest.
fn over_plans(played: &Played, by: By, of: impl Fn(&Report) -> f64) -> Measured {
    let each = PLANS.map(|plan| played.measure(&mixed(by, plan), &of));
    each.into_iter().reduce(|a, b| a.with(&b, larger)).unwrap_or(Measured(Vec::new()))
}

/// Every steady window of 250 ms of all aggregates of all plans, by the rate, with the first seed.
fn windows(played: &Played, by: By) -> Vec<f64> {
    let reports = PLANS.into_iter().filter_map(|plan| played.of(&mixed(by, plan)).first());
    let policed = reports.flat_map(|report| &report.summary.policed);
    let steady = policed.flat_map(|p| p.over_time.iter().zip(&p.is_steady));
    steady.filter(|(_, steady)| **steady).map(|(ratio, _)| *ratio).collect()
}

/// A number of BC-PQP with each plan, for people.
fn by_plan(played: &Played, of: &dyn Fn(&Report) -> f64) -> String {
    let each = PLANS.map(|plan| {
        let mean = played.measure(&mixed(BC_PQP, plan), of).mean();
        let shown = if mean.is_nan() { "nothing".to_owned() } else { format!("{mean:.3}") };
        format!("{} Mbit/s: {shown}", plan.0)
    });
    each.join(", ")
}

fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(crate::rank(values.len(), q) - 1).copied().unwrap_or(f64::NAN)
}

fn judge_6(played: &Played) -> Judged {
    let off = |kind| move |report: &Report| (mean_of(kind, |p| p.rate_ratio)(report) - 1.0).abs();
    let per_plan = |of: &dyn Fn(&Report) -> f64| by_plan(played, of);
    let mut claims = Vec::new();
    for kind in KIND_NAMES {
        let what =
            format!("BC-PQP, {kind} flows: deviation of the mean rate from the plan, worst plan");
        let measured = (over_plans(played, BC_PQP, off(kind)), Unit::Part);
        let why = || per_plan(&mean_of(kind, |p| p.rate_ratio));
        claims.push(Claim::new(&what, "accurate", measured, Band::AtMost(0.02)).because(why));
    }
    let seeds = played.of(&mixed(BC_PQP, PLANS[0])).len();
    let p99 = |by| Measured(vec![quantile(windows(played, by), 0.99); seeds.min(1)]);
    let start = |by, plan| played.measure(&mixed(by, plan), most_of(|p| p.start_up.map(|w| w.max)));
    let start_most = |p: &Policed| p.start_up.map(|w| w.max);
    claims.extend([
        Claim::new(
            "BC-PQP: 99th percentile over all windows of 250 ms, relative to the rate",
            "close to a shaper",
            (p99(BC_PQP), Unit::Times),
            Band::AtMost(1.5),
        ),
        Claim::new(
            "BC-PQP: highest rate over 250 ms at the start, all aggregates",
            "10 times smaller",
            (over_plans(played, BC_PQP, most_of(start_most)), Unit::Times),
            Band::AtMost(3.0),
        )
        .because(|| per_plan(&most_of(start_most))),
        Claim::new(
            "Policer+, 50 Mbit/s: the same",
            "a long tail",
            (start(POLICER_PLUS, PLANS[3]), Unit::Times),
            Band::AtLeast(5.0),
        ),
        Claim::new(
            "FairPolicer, 50 Mbit/s: the same",
            "a long tail",
            (start(FAIR_POLICER, PLANS[3]), Unit::Times),
            Band::AtLeast(5.0),
        ),
        Claim::new(
            "policer, 200 Mbit/s: mean rate of long flows, relative to the plan",
            "lower than desired",
            (
                played.measure(&mixed(POLICER, PLANS[5]), mean_of("long", |p| p.rate_ratio)),
                Unit::Part,
            ),
            Band::AtMost(0.98),
        ),
        Claim::new(
            "losses of long flows, 25 Mbit/s, BC-PQP relative to the policer",
            "comparable",
            (loss(played, BC_PQP, PLANS[2]).by(&loss(played, POLICER, PLANS[2])), Unit::Times),
            Band::AtMost(1.0),
        ),
    ]);
    Judged { claims, files: vec![draw_6(played)] }
}

fn loss(played: &Played, by: By, plan: (f64, u64)) -> Measured {
    played.measure(&mixed(by, plan), mean_of("long", |p| p.loss_steady))
}

fn draw_6(played: &Played) -> super::super::File {
    let all = ALL.into_iter().enumerate();
    let drawn = all.clone().map(|(i, by)| line(by.name, i, distribution(windows(played, by))));
    let tail = all.clone().map(|(i, by)| {
        let kept = distribution(windows(played, by)).into_iter().filter(|(_, part)| *part > 0.95);
        line(by.name, i, kept.collect())
    });
    let names = PLANS.map(|(mbit, _)| mbit.to_string());
    let bars_of = |of: fn(&Played, By, (f64, u64)) -> Measured| {
        let kinds = all.clone().map(|(i, by)| {
            named_bars(by.name, colour(i), PLANS.map(|plan| Some(of(played, by, plan))))
        });
        kinds.collect::<Vec<_>>()
    };
    let mean = |played: &Played, by, plan| {
        played.measure(&mixed(by, plan), mean_of("long", |p| p.rate_ratio))
    };
    let panels = vec![
        lines(
            "rate over 250 ms, relative to the plan",
            "fraction of windows",
            false,
            drawn.collect(),
        ),
        lines(
            "rate over 250 ms, relative to the plan",
            "fraction of windows",
            true,
            tail.collect(),
        ),
        bars("plan, Mbit/s", "mean rate, relative to the plan, long flows", &names, bars_of(mean)),
        bars("plan, Mbit/s", "loss of long flows", &names, bars_of(loss)),
    ];
    chart("figure-6", "Figure 6: many aggregates, all plans", panels)
}

// ------------------------------------------------------------------------------------------------

/// Jain's index in all windows of 250 ms of all aggregates, with the first seed.
fn jains(played: &Played, by: By) -> Vec<f64> {
    let reports = PLANS.into_iter().filter_map(|plan| played.of(&mixed(by, plan)).first());
    reports.flat_map(|report| &report.summary.policed).flat_map(|p| p.jains.clone()).collect()
}

/// The mean of Jain's index of the long flows' mean rates, over aggregates of long flows only.
fn jain_long(report: &Report) -> f64 {
    mean_of("long", |p| p.jain)(report)
}

fn judge_8a(played: &Played) -> Judged {
    let one = |value: f64| (Measured(vec![value]), Unit::Error);
    let median = |by| quantile(jains(played, by), 0.5);
    let worst = |by| {
        let each = PLANS.map(|plan| played.measure(&mixed(by, plan), |r| -jain_long(r)));
        let worst = each.into_iter().reduce(|a, b| a.with(&b, larger));
        worst.unwrap_or(Measured(Vec::new())).map(|v| -v)
    };
    let claims = vec![
        Claim::new(
            "BC-PQP: mean of Jain's index of long flows, worst plan",
            "comparable to the shaper",
            (worst(BC_PQP), Unit::Error),
            Band::AtLeast(0.97),
        )
        .because(|| by_plan(played, &jain_long)),
        Claim::new(
            "BC-PQP: median over windows of 250 ms",
            "comparable to the shaper",
            one(median(BC_PQP)),
            Band::AtLeast(0.95),
        ),
        Claim::new(
            "the shaper: the same",
            "close to perfect",
            one(median(SHAPER)),
            Band::AtLeast(0.95),
        ),
        Claim::new(
            "the policer: worst plan",
            "unable",
            (worst(POLICER), Unit::Error),
            Band::AtMost(0.9),
        ),
        Claim::new(
            "FairPolicer: median over windows, relative to BC-PQP",
            "falls a bit short",
            one(median(FAIR_POLICER) / median(BC_PQP)),
            Band::AtMost(1.0),
        ),
    ];
    let drawn = ALL.into_iter().enumerate();
    let drawn = drawn.map(|(i, by)| line(by.name, i, distribution(jains(played, by))));
    let panel = lines("Jain's index in 250 ms", "fraction of windows", false, drawn.collect());
    let title = "Figure 8a: fairness among long flows, all plans";
    Judged { claims, files: vec![chart("figure-8a", title, vec![panel])] }
}
