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

/// A rate in Mbit/s, and the number of aggregates of each of the twelve kinds.
type Plan = (f64, u64);
const PLANS: [Plan; 6] = [(1.5, 9), (7.5, 9), (25.0, 4), (50.0, 2), (100.0, 1), (200.0, 1)];
const ALL: [By; 5] = [SHAPER, POLICER, POLICER_PLUS, FAIR_POLICER, BC_PQP];
/// In the scenario each kind has ten flows for three aggregates in a row: four long flows; two
/// series of short ones; three long flows and a series of short ones.
const KINDS: usize = 12;
const SHORT_FLOWS: [(usize, f64); 3] = [(4, 0.625), (5, 0.625), (9, 0.25)];
/// Mean size of a short download in L2 bits: sizes are lognormal around 30 kB.
const SHORT_BITS: f64 = 36_000.0 * 8.0;

fn all() -> Vec<Point> {
    PLANS.into_iter().flat_map(|plan| ALL.map(|by| mixed(by, plan))).collect()
}

/// All aggregates with one plan. With the baselines each flow has a queue of its own; BC-PQP has
/// sixteen queues, chosen as by the daemon.
fn mixed(by: By, (mbit, count): Plan) -> Point {
    let mut point = scenario("bcpqp-fig6");
    for kind in 0..KINDS {
        point = by
            .at(point, kind)
            .set(&format!("police.{kind}.rate"), format_args!("{mbit}mbit"))
            .set(&format!("police.{kind}.count"), count);
        if by.algorithm == BC_PQP.algorithm {
            point = point.set(&format!("police.{kind}.queue_by"), "hash");
        }
    }
    for row in 0..KINDS / 3 {
        for (flow, part) in SHORT_FLOWS {
            // Short flows alone demand 1.25 times the rate, beside long ones a quarter of it.
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

/// The largest value of a number over all aggregates.
fn most_of(of: fn(&Policed) -> Option<f64>) -> impl Fn(&Report) -> f64 {
    move |report| {
        let values = report.summary.policed.iter().map(|p| of(p).unwrap_or(f64::NAN));
        values.reduce(larger).unwrap_or(f64::NAN)
    }
}

/// The largest value of a number over all plans.
fn over_plans(played: &Played, by: By, of: impl Fn(&Report) -> f64) -> Measured {
    let each = PLANS.map(|plan| played.measure(&mixed(by, plan), &of));
    each.into_iter().reduce(|a, b| a.with(&b, larger)).unwrap_or(Measured(Vec::new()))
}

/// Rates in all windows of 250 ms of all aggregates, by the plan's: steady ones, or also start-ups.
fn windows_of(report: &Report, steady: bool) -> Vec<f64> {
    let of = |p: &Policed| -> Vec<f64> {
        let first = p.over_time.iter().position(|ratio| *ratio > 0.0).unwrap_or(p.over_time.len());
        let all = p.over_time.iter().zip(&p.is_steady).skip(first);
        all.filter(|(_, is_steady)| **is_steady || !steady).map(|(ratio, _)| *ratio).collect()
    };
    report.summary.policed.iter().flat_map(of).collect()
}

/// The value that 99 of 100 windows do not exceed.
fn p99(steady: bool) -> impl Fn(&Report) -> f64 {
    move |report| quantile(windows_of(report, steady), 0.99)
}

/// A number computed from the aggregates of all plans together, seed by seed.
fn pooled(
    played: &Played,
    by: By,
    of: impl Fn(&Report) -> Vec<f64>,
    sum: impl Fn(Vec<f64>) -> f64,
) -> Measured {
    let seed =
        |i: usize| PLANS.iter().flat_map(|plan| of(&played.of(&mixed(by, *plan))[i])).collect();
    Measured((0..played.seeds.len()).map(|i| sum(seed(i))).collect())
}

/// Every steady window of all aggregates of all plans and seeds, for a chart.
fn windows(played: &Played, by: By) -> Vec<f64> {
    let reports = PLANS.iter().flat_map(|plan| played.of(&mixed(by, *plan)));
    reports.flat_map(|report| windows_of(report, true)).collect()
}

/// A number of BC-PQP with each plan, as text.
fn by_plan(played: &Played, of: &dyn Fn(&Report) -> f64) -> String {
    by_plan_of(played, BC_PQP, of)
}

fn by_plan_of(played: &Played, by: By, of: &dyn Fn(&Report) -> f64) -> String {
    let each = PLANS.map(|plan| {
        let mean = played.measure(&mixed(by, plan), of).mean();
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
    let mut claims = rates_6(played);
    claims.extend(tails_6(played));
    claims.extend(bursts_6(played));
    claims.extend(losses_6(played));
    Judged { claims, files: vec![draw_6(played)] }
}

fn rates_6(played: &Played) -> Vec<Claim> {
    let off = |kind| move |report: &Report| (mean_of(kind, |p| p.rate_ratio)(report) - 1.0).abs();
    let mut claims = Vec::new();
    for kind in KIND_NAMES {
        let what =
            format!("BC-PQP, {kind} flows: deviation of the mean rate from the plan, worst plan");
        let measured = (over_plans(played, BC_PQP, off(kind)), Unit::Part);
        let why = || by_plan(played, &mean_of(kind, |p| p.rate_ratio));
        claims.push(Claim::new(&what, "accurate", measured, Band::AtMost(0.02)).because(why));
    }
    let rate = |by| played.measure(&mixed(by, PLANS[5]), mean_of("long", |p| p.rate_ratio));
    claims.push(
        Claim::new(
            "policer, 200 Mbit/s: mean rate of long flows, relative to the plan",
            "lower than desired",
            (rate(POLICER), Unit::Part),
            Band::AtMost(0.98),
        )
        .because(|| by_plan_of(played, POLICER, &mean_of("long", |p| p.rate_ratio))),
    );
    claims
}

/// "Close to a shaper", relative to the shaper of the same run.
fn tails_6(played: &Played) -> Vec<Claim> {
    let within = |report: &Report| {
        let windows = windows_of(report, true);
        let near = windows.iter().filter(|ratio| (0.8..=1.2).contains(*ratio)).count();
        near as f64 / windows.len() as f64
    };
    let mut claims = vec![
        Claim::new(
            "BC-PQP: 99th percentile over all steady windows of 250 ms, relative to the rate",
            "close to a shaper",
            (pooled(played, BC_PQP, |r| windows_of(r, true), |w| quantile(w, 0.99)), Unit::Times),
            Band::AtMost(1.5),
        )
        .because(|| by_plan(played, &p99(true))),
        Claim::new(
            "BC-PQP: steady windows within 0.8 and 1.2 of the rate, worst plan",
            "for most parts",
            (over_plans(played, BC_PQP, |r| -within(r)).map(|v| -v), Unit::Part),
            Band::AtLeast(0.9),
        )
        .because(|| by_plan(played, &within)),
    ];
    claims.extend(PLANS.map(|plan| {
        let [mine, shaper] =
            [BC_PQP, SHAPER].map(|by| played.measure(&mixed(by, plan), p99(false)));
        Claim::new(
            format!(
                "{} Mbit/s: the 99th percentile with the start, relative to the shaper's",
                plan.0
            ),
            "close to a shaper",
            (mine.by(&shaper), Unit::Times),
            Band::AtMost(1.2),
        )
        .because(|| format!("{} and {}", mine.text(Unit::Times), shaper.text(Unit::Times)))
    }));
    claims
}

/// "10 times smaller", relative to the policers of the same run.
fn bursts_6(played: &Played) -> Vec<Claim> {
    let most = |by, plan| played.measure(&mixed(by, plan), most_of(highest));
    let mut claims = vec![
        Claim::new(
            "BC-PQP: highest rate over 250 ms, all aggregates, worst plan",
            "small",
            (over_plans(played, BC_PQP, most_of(highest)), Unit::Times),
            Band::AtMost(3.0),
        )
        .because(|| by_plan(played, &most_of(highest))),
    ];
    for by in [POLICER_PLUS, FAIR_POLICER] {
        for plan in PLANS {
            let (mine, other) = (most(BC_PQP, plan), most(by, plan));
            let what =
                format!("{} Mbit/s: highest rate over 250 ms, {} by BC-PQP", plan.0, by.name);
            let ratio = (other.by(&mine), Unit::Times);
            claims.push(Claim::new(&what, "10 times", ratio, Band::AtLeast(10.0)).because(|| {
                format!(
                    "{} and {}; a bucket of 1.5 BDP²/18 permits at most {:.1} ×",
                    other.text(Unit::Times),
                    mine.text(Unit::Times),
                    burst_permitted(plan.0)
                )
            }));
        }
    }
    // §1: "burst (tail throughput deviation from the desired value)", "up to".
    let beyond = |by, plan| most(by, plan).map(|ratio| ratio - 1.0);
    let each = PLANS.map(|plan| beyond(POLICER_PLUS, plan).by(&beyond(BC_PQP, plan)));
    let best = each.iter().cloned().reduce(|a, b| a.with(&b, larger));
    claims.push(
        Claim::new(
            "what the highest rate exceeds the plan by, policer+ by BC-PQP, best plan",
            "up to 18 times (§1)",
            (best.unwrap_or(Measured(Vec::new())), Unit::Times),
            Band::AtLeast(18.0),
        )
        .because(|| told(&each)),
    );
    claims
}

/// The most a bucket of 1.5 BDP²/18 passes in 250 ms, by the plan's rate; 50 ms, 1,500 bytes.
fn burst_permitted(mbit: f64) -> f64 {
    let by_second = mbit * 1e6 / 8.0;
    let packets = by_second * 0.05 / 1_500.0;
    1.0 + 1.5 * packets * packets / 18.0 * 1_500.0 / (by_second * 0.25)
}

fn losses_6(played: &Played) -> Vec<Claim> {
    let long = |by, plan| loss(played, by, plan);
    let whole = |by, plan| played.measure(&mixed(by, plan), mean_of("long", |p| p.loss));
    let ratio = |plan| long(BC_PQP, plan).by(&long(POLICER, plan));
    let mut claims: Vec<Claim> = PLANS
        .map(|plan| {
            let [mine, policer] = [BC_PQP, POLICER].map(|by| long(by, plan));
            let what =
                format!("{} Mbit/s: losses of long flows, BC-PQP relative to the policer", plan.0);
            Claim::new(&what, "comparable", (ratio(plan), Unit::Times), Band::AtMost(1.0))
                .because(|| format!("{} and {}", mine.text(Unit::Part), policer.text(Unit::Part)))
        })
        .into();
    claims.extend(PLANS.map(|plan| {
        let [plus, mine] = [POLICER_PLUS, BC_PQP].map(|by| whole(by, plan));
        Claim::new(
            format!("{} Mbit/s: losses with the start, policer+ relative to BC-PQP", plan.0),
            "higher",
            (plus.by(&mine), Unit::Times),
            Band::AtLeast(1.0),
        )
        .because(|| format!("{} and {}", plus.text(Unit::Part), mine.text(Unit::Part)))
    }));
    let by_bucket = |by: By| PLANS.map(|plan| whole(by, plan).by(&whole(BC_PQP, plan)));
    let each = by_bucket(POLICER_PLUS);
    let both = each.iter().cloned().chain(by_bucket(POLICER)).reduce(|a, b| a.with(&b, larger));
    claims.push(
        Claim::new(
            "losses with the start, a policer relative to BC-PQP, best plan and bucket",
            "up to 2.5 times (§1)",
            (both.unwrap_or(Measured(Vec::new())), Unit::Times),
            Band::AtLeast(2.5),
        )
        .because(|| told(&each)),
    );
    let most = PLANS.map(|plan| long(SHAPER, plan).by(&long(BC_PQP, plan)));
    claims.push(
        Claim::new(
            "losses of long flows, the shaper relative to BC-PQP, worst plan",
            "fewer",
            (
                most.iter()
                    .cloned()
                    .reduce(|a, b| a.with(&b, larger))
                    .unwrap_or(Measured(Vec::new())),
                Unit::Times,
            ),
            Band::AtMost(1.0),
        )
        .because(|| told(&most)),
    );
    claims
}

/// A ratio with each plan, as text.
fn told(each: &[Measured; PLANS.len()]) -> String {
    let told = PLANS.iter().zip(each);
    let told = told.map(|(plan, m)| match m.mean().is_nan() {
        true => format!("{} Mbit/s: nothing", plan.0),
        false => format!("{} Mbit/s: {:.2}", plan.0, m.mean()),
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The highest rate over 250 ms, at the start or later.
fn highest(policed: &Policed) -> Option<f64> {
    let both = [policed.steady, policed.start_up].into_iter().flatten();
    both.map(|windows| windows.max).reduce(f64::max)
}

fn loss(played: &Played, by: By, plan: Plan) -> Measured {
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
    let bars_of = |of: fn(&Played, By, Plan) -> Measured| {
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

/// Jain's index in all windows of 250 ms of all aggregates.
fn jains_of(report: &Report) -> Vec<f64> {
    report.summary.policed.iter().flat_map(|p| p.jains.clone()).collect()
}

/// The same for all plans and seeds, for a chart.
fn jains(played: &Played, by: By) -> Vec<f64> {
    PLANS.iter().flat_map(|plan| played.of(&mixed(by, *plan))).flat_map(jains_of).collect()
}

/// The mean of Jain's index of the long flows' mean rates, over aggregates of long flows only.
fn jain_long(report: &Report) -> f64 {
    mean_of("long", |p| p.jain)(report)
}

fn judge_8a(played: &Played) -> Judged {
    let median = |by| pooled(played, by, jains_of, |all| quantile(all, 0.5));
    let one = |value: Measured| (value, Unit::Error);
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
            "BC-PQP: the median, relative to the shaper's",
            "comparable to the shaper",
            (median(BC_PQP).by(&median(SHAPER)), Unit::Part),
            Band::AtLeast(0.95),
        ),
        Claim::new(
            "the shaper: the median over windows of 250 ms",
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
            one(median(FAIR_POLICER).by(&median(BC_PQP))),
            Band::AtMost(1.0),
        ),
    ];
    let drawn = ALL.into_iter().enumerate();
    let drawn = drawn.map(|(i, by)| line(by.name, i, distribution(jains(played, by))));
    let panel = lines("Jain's index in 250 ms", "fraction of windows", false, drawn.collect());
    let title = "Figure 8a: fairness among long flows, all plans";
    Judged { claims, files: vec![chart("figure-8a", title, vec![panel])] }
}
