//! Who gets what of a rate.

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::draw::over_time;
use super::super::read::{drops, rate_between};
use super::{
    BC_PQP, Band, By, Claim, FAIR_POLICER, Figure, Judged, Measured, PQP, Played, Point, Unit,
    bars, chart, jain, named_bars, scenario,
};

pub(super) const FIGURE_5: Figure = Figure {
    number: "5",
    title: "four congestion controls limited to 7.5 Mbit/s before a bottleneck of 8.5 Mbit/s",
    series: true,
    points: || [PQP, BC_PQP].map(tight).into(),
    judge: judge_5,
};

fn tight(by: By) -> Point {
    by.at(scenario("bcpqp-fig5"), 0)
}

/// How long queues that Reno needs take to fill at what the bottleneck has more than the plan.
const EARLY_S: f64 = 20.0;

/// What the flow with the least has of its share of the plan while the queues fill.
fn least_share(report: &Report) -> f64 {
    let rate = |group| rate_between(group, 1.0, EARLY_S)(report);
    let rates = (0..report.summary.groups.len()).map(rate);
    let share = 7.5 / report.summary.groups.len() as f64;
    rates.map(|rate| rate / share).reduce(f64::min).unwrap_or(f64::NAN)
}

fn judge_5(played: &Played) -> Judged {
    let of = |by, of: fn(&Report) -> f64| played.measure(&tight(by), of);
    let claims = vec![
        Claim::new(
            "lowest rate relative to share in the first 20 s, PQP with queues for Reno",
            "unfair",
            (of(PQP, least_share), Unit::Part),
            Band::AtMost(0.85),
        ),
        Claim::new("BC-PQP", "fair", (of(BC_PQP, least_share), Unit::Part), Band::AtLeast(0.95)),
        Claim::new(
            "BC-PQP, Jain's index after 10 s",
            "fair",
            (of(BC_PQP, jain), Unit::Error),
            Band::AtLeast(0.97),
        ),
        Claim::new(
            "drops at the second bottleneck, BC-PQP relative to PQP",
            "-",
            (of(BC_PQP, drops).by(&of(PQP, drops)), Unit::Part),
            Band::AtMost(0.5),
        ),
    ];
    let mut files = over_time("figure-5-pqp", &[tight(PQP)], played);
    files.extend(over_time("figure-5-bcpqp", &[tight(BC_PQP)], played));
    let bars_of = |(i, by): (usize, By)| {
        named_bars(by.name, colour(i), [Some(of(by, least_share)), Some(of(by, jain))])
    };
    let kinds = [PQP, BC_PQP].into_iter().enumerate().map(bars_of).collect();
    let panels = vec![bars("", "", &["lowest rate / share, 20 s", "Jain's index later"], kinds)];
    files.push(chart(
        "figure-5",
        "Figure 5: four congestion controls, a second bottleneck",
        panels,
    ));
    Judged { claims, files }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_8B: Figure = Figure {
    number: "8b",
    title: "seven downloads with weights 1 to 7 and proportional sizes finish together",
    series: true,
    points: || [FAIR_POLICER, BC_PQP].map(weighted).into(),
    judge: judge_8b,
};

fn weighted(by: By) -> Point {
    by.at(scenario("bcpqp-fig8-weights"), 0)
}

/// From the first that is complete to the last, by the last; nothing if one is not complete.
fn finish_spread(report: &Report) -> f64 {
    let times = report.summary.shorts.iter().map(|s| s.completion_ms_p99.unwrap_or(f64::NAN));
    let times: Vec<f64> = times.collect();
    if times.is_empty() || times.iter().any(|t| t.is_nan()) {
        return f64::NAN;
    }
    let least = times.iter().copied().fold(f64::MAX, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    (most - least) / most
}

fn judge_8b(played: &Played) -> Judged {
    let spread = |by| (played.measure(&weighted(by), finish_spread), Unit::Part);
    let each = |by: By| -> Vec<Option<Measured>> {
        let of = |n: usize| {
            move |r: &Report| {
                let ms = r.summary.shorts.get(n).and_then(|s| s.completion_ms_p99);
                ms.map_or(f64::NAN, |ms| ms / 1e3)
            }
        };
        (0..7).map(|n| Some(played.measure(&weighted(by), of(n)))).collect()
    };
    let seconds = |by: By| -> String {
        let each = each(by).into_iter().flatten();
        let each = each.map(|m| m.text(Unit::Seconds).trim_end_matches(" s").to_owned());
        format!("{} s, by weight", each.collect::<Vec<_>>().join(", "))
    };
    let claims = vec![
        Claim::new(
            "BC-PQP: time between the first and the last completion",
            "the same time",
            spread(BC_PQP),
            Band::AtMost(0.05),
        )
        .because(|| seconds(BC_PQP)),
        Claim::new(
            "FairPolicer with weights: the same",
            "fails",
            spread(FAIR_POLICER),
            Band::AtLeast(0.05),
        ),
    ];
    let weights: Vec<String> = (1..8).map(|w| w.to_string()).collect();
    let kinds = [FAIR_POLICER, BC_PQP].into_iter().enumerate();
    let kinds = kinds.map(|(i, by)| named_bars(by.name, colour(i), each(by))).collect();
    let panel = bars("weight", "completion time, s", &weights, kinds);
    let mut files =
        vec![chart("figure-8b", "Figures 8b and 8c: weights 1 to 7 within 50 Mbit/s", vec![panel])];
    files.extend(over_time("figure-8b-fair-policer", &[weighted(FAIR_POLICER)], played));
    files.extend(over_time("figure-8c-bcpqp", &[weighted(BC_PQP)], played));
    Judged { claims, files }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_8D: Figure = Figure {
    number: "8d",
    title: "weights 1:2:3 inside the first of two priorities, 20 Mbit/s",
    series: true,
    points: || vec![nested()],
    judge: judge_8d,
};

fn nested() -> Point {
    scenario("bcpqp-fig8-nested")
}

fn judge_8d(played: &Played) -> Judged {
    let part = |group: usize, from: f64, to: f64| {
        let rate = played.measure(&nested(), rate_between(group, from, to));
        (rate.map(|mbit| mbit / 20.0), Unit::Part)
    };
    let about = |part: f64| Band::Within(part * 0.95, part * 1.05);
    let first = "all bandwidth, by weight";
    let claims = vec![
        Claim::new("the rest, alone", "all", part(3, 4.0, 10.0), Band::AtLeast(0.98)),
        Claim::new("weight 1 of 1:2:3", first, part(0, 11.0, 14.0), about(1.0 / 6.0)),
        Claim::new("weight 2 of 1:2:3", first, part(1, 11.0, 14.0), about(2.0 / 6.0)),
        Claim::new("weight 3 of 1:2:3", first, part(2, 11.0, 14.0), about(3.0 / 6.0)),
        Claim::new("the rest beside them", "nothing", part(3, 11.0, 20.0), Band::AtMost(0.02)),
        Claim::new("weight 2 of 1:2", first, part(1, 15.0, 17.0), about(2.0 / 3.0)),
        Claim::new("weight 1 alone", first, part(0, 18.0, 20.0), Band::AtLeast(0.95)),
        Claim::new(
            "the rest alone again, after 2 s",
            "all",
            part(3, 22.0, 45.0),
            Band::AtLeast(0.98),
        ),
        Claim::new("weight 2 alone, after 2 s", first, part(1, 47.0, 60.0), Band::AtLeast(0.95)),
    ];
    let files = over_time("figure-8d", &[nested()], played);
    Judged { claims, files }
}
