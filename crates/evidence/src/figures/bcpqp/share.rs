//! How a rate is shared among flows.

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::draw::over_time;
use super::super::read::{drops, jain as jain_of, rate_between};
use super::{
    BC_PQP, Band, By, Claim, FAIR_POLICER, Figure, Judged, Measured, PQP, Played, Point, Unit,
    bars, chart, jain, named_bars, scenario,
};

pub(super) const FIGURE_5: Figure = Figure {
    number: "5",
    title: "four congestion controls limited to 7.5 Mbit/s before a bottleneck of 8.5 Mbit/s",
    series: true,
    points: || BUFFERS.into_iter().flat_map(|b| [PQP, BC_PQP].map(|by| tight(by, b))).collect(),
    judge: judge_5,
};

/// Buffers of the second bottleneck. The paper does not give any.
const BUFFERS: [&str; 2] = ["50ms", "200ms"];

fn tight(by: By, buffer: &str) -> Point {
    by.at(scenario("bcpqp-fig5"), 0).set("link.buffer", buffer)
}

/// Time in which queues as large as Reno needs fill at the bottleneck's rate beyond the plan's.
const EARLY_S: f64 = 20.0;

/// The rates of the flows while the queues fill.
fn early(report: &Report) -> Vec<f64> {
    let rate = |group| rate_between(group, 1.0, EARLY_S)(report);
    (0..report.summary.groups.len()).map(rate).collect()
}

/// Jain's index of these rates.
fn jain_early(report: &Report) -> f64 {
    jain_of(&early(report))
}

/// The lowest rate of a flow while the queues fill, divided by its share of the plan.
fn least_share(report: &Report) -> f64 {
    let share = 7.5 / report.summary.groups.len() as f64;
    early(report).into_iter().map(|rate| rate / share).reduce(f64::min).unwrap_or(f64::NAN)
}

fn judge_5(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut files = Vec::new();
    let mut panels = Vec::new();
    for buffer in BUFFERS {
        claims.extend(claims_5(played, buffer));
        for by in [PQP, BC_PQP] {
            let name = format!("figure-5-{}-{buffer}", by.algorithm);
            files.extend(over_time(&name, &[tight(by, buffer)], played));
        }
        let bars_of = |(i, by): (usize, By)| {
            let all: [fn(&Report) -> f64; 3] = [jain_early, least_share, jain];
            let point = tight(by, buffer);
            named_bars(by.name, colour(i), all.map(|of| Some(played.measure(&point, of))))
        };
        let kinds = [PQP, BC_PQP].into_iter().enumerate().map(bars_of).collect();
        let names = ["Jain's index, 20 s", "lowest rate / share, 20 s", "Jain's index later"];
        panels.push(bars(&format!("buffer of {buffer}"), "", &names, kinds));
    }
    files.push(chart(
        "figure-5",
        "Figure 5: four congestion controls, a second bottleneck",
        panels,
    ));
    Judged { claims, files }
}

fn claims_5(played: &Played, buffer: &str) -> Vec<Claim> {
    let of = |by, of: fn(&Report) -> f64| played.measure(&tight(by, buffer), of);
    let rates = |by| {
        let each = (0..4).map(|group| {
            let of = rate_between(group, 1.0, EARLY_S);
            played.measure(&tight(by, buffer), of).text(Unit::Mbit)
        });
        format!("reno, cubic, bbr, vegas: {}", each.collect::<Vec<_>>().join(", "))
    };
    let mut claims = Vec::new();
    for (by, told, index, share) in [
        (PQP, "unfair", Band::AtMost(0.95), Band::AtMost(0.85)),
        (BC_PQP, "fair", Band::AtLeast(0.97), Band::AtLeast(0.95)),
    ] {
        let name = by.name;
        claims.push(
            Claim::new(
                format!("buffer of {buffer}, {name}: Jain's index of the first 20 s"),
                told,
                (of(by, jain_early), Unit::Error),
                index,
            )
            .because(|| rates(by)),
        );
        claims.push(
            Claim::new(
                format!("buffer of {buffer}, {name}: lowest rate relative to share, first 20 s"),
                told,
                (of(by, least_share), Unit::Part),
                share,
            )
            .because(|| rates(by)),
        );
    }
    claims.extend([
        Claim::new(
            format!("buffer of {buffer}, BC-PQP: Jain's index after 10 s"),
            "fair",
            (of(BC_PQP, jain), Unit::Error),
            Band::AtLeast(0.97),
        ),
        Claim::new(
            format!("buffer of {buffer}: drops there, BC-PQP relative to PQP"),
            "-",
            (of(BC_PQP, drops).by(&of(PQP, drops)), Unit::Part),
            Band::AtMost(0.5),
        ),
    ]);
    claims
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

/// Time from the first completion to the last, by the last; NaN if a download is not complete.
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
    // The parts of the four in the first second after each event.
    let seconds = || {
        let each = [10.0, 14.0, 17.0, 20.0, 45.0].map(|at| {
            let parts = [0, 1, 2, 3].map(|group| part(group, at, at + 1.0).0);
            let parts = parts.map(|part| Unit::Part.number(part.mean()));
            format!("from {at} s {}", parts.join(", "))
        });
        format!("parts of the four in the first second, %: {}", each.join("; "))
    };
    let first = "all bandwidth, by weight";
    // The claims begin at each event, so no second is left out.
    let claims = [
        Claim::new("0-10 s: the rest, alone", "all", part(3, 0.0, 10.0), Band::AtLeast(0.98)),
        Claim::new("10-14 s: weight 1 of 1:2:3", first, part(0, 10.0, 14.0), about(1.0 / 6.0)),
        Claim::new("10-14 s: weight 2 of 1:2:3", first, part(1, 10.0, 14.0), about(2.0 / 6.0)),
        Claim::new("10-14 s: weight 3 of 1:2:3", first, part(2, 10.0, 14.0), about(3.0 / 6.0)),
        Claim::new("10-20 s: the rest", "nothing", part(3, 10.0, 20.0), Band::AtMost(0.02)),
        Claim::new("14-17 s: weight 1 of 1:2", first, part(0, 14.0, 17.0), about(1.0 / 3.0)),
        Claim::new("14-17 s: weight 2 of 1:2", first, part(1, 14.0, 17.0), about(2.0 / 3.0)),
        Claim::new("17-20 s: weight 1 alone", first, part(0, 17.0, 20.0), Band::AtLeast(0.95)),
        Claim::new("20-45 s: the rest, alone", "all", part(3, 20.0, 45.0), Band::AtLeast(0.98)),
        Claim::new("45-60 s: weight 2 alone", first, part(1, 45.0, 60.0), Band::AtLeast(0.95)),
        Claim::new("45-60 s: the rest", "nothing", part(3, 45.0, 60.0), Band::AtMost(0.02)),
    ];
    let claims = claims.into_iter().map(|claim| claim.because(seconds)).collect();
    let files = over_time("figure-8d", &[nested()], played);
    Judged { claims, files }
}
