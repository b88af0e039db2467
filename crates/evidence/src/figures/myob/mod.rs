//! The figures of Mind Your Own Bandwidth (Wong et al.) that need no network, and the rule `float`.
//!
//! | figure | what |
//! |---|---|
//! | 6 | the optimum of the paper's rule beside an equal share |
//! | 7 | Algorithms 1 and 2 beside that optimum |
//! | float | agents with their own past, beside the equilibrium, the optimum and an equal share |
//! | lies | what a household gains by other bids than its agent's |
//! | scale | markets of more gateways, over two weeks |
//!
//! Not here: 1 to 3 are drawings and photographs, 4, 5 and 8 are about a proxy.

use std::fmt::Write as _;

use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::chart;
use super::play::Played;
use super::read::jain;
use super::{Figure, File, Judged};

mod street;
mod week;

use week::{Bids, DAY, HOMES, LEARNED, LOADS, Load, SLOTS, Week, WeekRates};

/// Every figure, in the paper's order, then ours.
pub(super) const FIGURES: [Figure; 5] = [
    figure("6", "the optimum of a week, 16 gateways, 160 credits", judge_6),
    figure("7", "Algorithms 1 and 2, days 5 to 7", judge_7),
    figure(
        "float",
        "spends as weights on the link, agents with their own past, days 5 to 7",
        judge_float,
    ),
    figure("lies", "bids other than the agent's, with `float`, days 5 to 7", judge_lies),
    figure("scale", "two weeks of markets of 16 to 100,000 gateways, with `float`", judge_scale),
];

const fn figure(number: &'static str, title: &'static str, judge: fn(&Played) -> Judged) -> Figure {
    Figure { number, title, series: false, points: Vec::new, judge }
}

/// The weeks are drawn with these seeds, whatever the command's are; tests only see that every figure
/// is computed.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=if cfg!(test) { 1 } else { 3 };

/// The load with one use a slot whose gain in figure 6 is nearest to the paper's.
const BEST: Load = Load { one_use: true, noise: 0.75 };

fn sum(values: &[Vec<f64>], from: usize) -> f64 {
    values.iter().map(|home| home[from..].iter().sum::<f64>()).sum()
}

/// What rates are worth by what others are, from a slot on.
fn ratio(week: &Week, rates: &WeekRates, others: &WeekRates, from: usize) -> f64 {
    sum(&week.values(rates), from) / sum(&week.values(others), from)
}

/// Jain's index of each slot, and of all up to it.
fn jains(rates: &WeekRates) -> Vec<(f64, f64)> {
    let mut totals = vec![0.0; HOMES];
    let at = |t: usize| {
        let now: Vec<f64> = rates.iter().map(|home| home[t]).collect();
        totals.iter_mut().zip(&now).for_each(|(total, now)| *total += now);
        (jain(&now), jain(&totals))
    };
    (0..SLOTS).map(at).collect()
}

fn each_seed(load: Load, of: impl Fn(&Week) -> f64) -> Measured {
    Measured(SEEDS.map(|seed| of(&Week::new(load, seed))).collect())
}

fn name(load: Load) -> String {
    let uses = if load.one_use { "one use a slot" } else { "a mix of uses" };
    format!("{uses}, noise {}", load.noise)
}

fn judge_6(_: &Played) -> Judged {
    let mut claims = Vec::new();
    for &load in LOADS {
        let gain = each_seed(load, |week| ratio(week, &week.optimum(), &week.equal(), 0) - 1.0);
        let what = format!("optimum over an equal share of 10 Mbit/s ({})", name(load));
        claims.push(Claim::new(what, "29.7 %", (gain, Unit::Part), Band::Within(0.267, 0.327)));
    }
    let weeks: Vec<(Week, WeekRates)> = SEEDS
        .map(|seed| {
            let week = Week::new(BEST, seed);
            let rates = week.optimum();
            (week, rates)
        })
        .collect();
    let measured = |of: &dyn Fn(&Week, &WeekRates) -> f64| {
        Measured(weeks.iter().map(|(week, rates)| of(week, rates)).collect())
    };
    let ratios = |week: &Week, rates: &WeekRates| -> Vec<f64> {
        let (ours, equal) = (week.values(rates).concat(), week.values(&week.equal()).concat());
        ours.iter().zip(equal).map(|(a, b)| a / b).collect()
    };
    let below = measured(&|week, rates| {
        let ratios = ratios(week, rates);
        ratios.iter().filter(|r| **r < 1.0).count() as f64 / ratios.len() as f64
    });
    let most = measured(&|week, rates| ratios(week, rates).into_iter().fold(0.0, f64::max));
    let least = measured(&|_, rates| jains(rates).iter().map(|j| j.0).fold(1.0, f64::min));
    let day = measured(&|_, rates| jains(rates)[DAY - 1].1);
    let all = measured(&|_, rates| jains(rates)[SLOTS - 1].1);
    let of = |what: &str| format!("{what} ({})", name(BEST));
    claims.extend([
        Claim::new(
            of("slots of a household that are worth less"),
            "nearly half",
            (below, Unit::Part),
            Band::Within(0.4, 0.6),
        ),
        Claim::new(
            of("a slot by an equal share, most"),
            "more than doubles",
            (most, Unit::Times),
            Band::AtLeast(2.0),
        ),
        Claim::new(
            of("Jain's index of the rates of a slot, least"),
            "relatively low",
            (least, Unit::Error),
            Band::AtMost(0.9),
        ),
        Claim::new(
            of("Jain's index of all rates after a day"),
            "quickly 1",
            (day, Unit::Error),
            Band::AtLeast(0.97),
        ),
        Claim::new(
            of("Jain's index of all rates after the week"),
            "1",
            (all, Unit::Error),
            Band::AtLeast(0.999),
        ),
    ]);
    let (_, rates) = &weeks[0];
    Judged { claims, files: files("6", "the optimum", rates) }
}

fn judge_7(_: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut shown = Vec::new();
    for &load in LOADS {
        let (mut by_optimum, mut by_gain, mut index) = (Vec::new(), Vec::new(), Vec::new());
        for seed in SEEDS {
            let week = Week::new(load, seed);
            let (online, best, equal) = (week.online(), week.optimum(), week.equal());
            by_optimum.push(ratio(&week, &online, &best, LEARNED));
            by_gain.push(ratio(&week, &online, &equal, LEARNED) - 1.0);
            index.push(jains(&online)[SLOTS - 1].1);
            if load == BEST && seed == 1 {
                shown = online;
            }
        }
        let load = name(load);
        claims.extend([
            Claim::new(
                format!("by the optimum ({load})"),
                "84.7 %",
                (Measured(by_optimum), Unit::Part),
                Band::Within(0.80, 0.92),
            ),
            Claim::new(
                format!("over an equal share ({load})"),
                "-",
                (Measured(by_gain), Unit::Part),
                Band::AtLeast(0.0),
            ),
            Claim::new(
                format!("Jain's index of all rates after the week ({load})"),
                "1",
                (Measured(index), Unit::Error),
                Band::AtLeast(0.99),
            ),
        ]);
    }
    Judged { claims, files: files("7", "Algorithms 1 and 2", &shown) }
}

fn judge_float(_: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut shown = Vec::new();
    for &load in LOADS {
        let [mut by_equilibrium, mut by_optimum, mut over_equal, mut worst, mut regrets] =
            [const { Vec::new() }; 5];
        for seed in SEEDS {
            let week = Week::new(load, seed);
            let (agents, best, equal) =
                (week.agents(&[], Bids::AllIn), week.optimum(), week.equal());
            let (foresight, regret) = week.foresight();
            by_equilibrium.push(ratio(&week, &agents, &foresight, LEARNED));
            by_optimum.push(ratio(&week, &agents, &best, LEARNED));
            over_equal.push(ratio(&week, &agents, &equal, LEARNED) - 1.0);
            worst.push(of_each(&week, &agents, &equal).into_iter().fold(f64::INFINITY, f64::min));
            regrets.push(regret);
            if load == BEST && seed == 1 {
                shown = agents;
            }
        }
        let load = name(load);
        let part = |of: Vec<f64>| (Measured(of), Unit::Part);
        claims.extend([
            Claim::new(
                format!("regret of the equilibrium with all futures known ({load})"),
                "-",
                part(regrets),
                Band::AtMost(0.02),
            ),
            Claim::new(
                format!("by that equilibrium ({load})"),
                "-",
                part(by_equilibrium),
                Band::AtLeast(0.9),
            ),
            Claim::new(
                format!("by the optimum of the paper's rule ({load})"),
                "-",
                part(by_optimum),
                Band::AtLeast(1.0),
            ),
            Claim::new(
                format!("over an equal share ({load})"),
                "-",
                part(over_equal),
                Band::AtLeast(0.1),
            ),
            Claim::new(
                format!("the household with the least, by an equal share ({load})"),
                "-",
                part(worst),
                Band::AtLeast(1.1),
            ),
        ]);
    }
    Judged { claims, files: files("float", "agents with `float`", &shown) }
}

/// By household: what rates are worth by what others are, after the learning.
fn of_each(week: &Week, rates: &WeekRates, others: &WeekRates) -> Vec<f64> {
    let (ours, theirs) = (week.values(rates), week.values(others));
    let total = |home: &Vec<f64>| home[LEARNED..].iter().sum::<f64>();
    ours.iter().zip(&theirs).map(|(a, b)| total(a) / total(b)).collect()
}

fn judge_lies(_: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut csv = String::from("bids,load,seed,liar,own,others\n");
    for (what, bids) in [
        ("the whole balance", Bids::AllIn),
        ("half", Bids::Times(0.5)),
        ("double", Bids::Times(2.0)),
        ("four times", Bids::Times(4.0)),
        ("nothing", Bids::Times(0.0)),
    ] {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (load, seed) in LOADS.iter().zip(SEEDS.cycle()) {
            let week = Week::new(*load, seed);
            let honest = week.agents(&[], bids);
            let liar = seed as usize;
            let lied = of_each(&week, &week.agents(&[liar], bids), &honest);
            let rest: f64 =
                lied.iter().enumerate().filter(|(i, _)| *i != liar).map(|(_, r)| r).sum();
            own.push(lied[liar]);
            others.push(rest / (HOMES - 1) as f64);
            let _ = writeln!(
                csv,
                "{what},{},{seed},{liar},{:.4},{:.4}",
                name(*load).replace(',', ""),
                lied[liar],
                rest / (HOMES - 1) as f64
            );
        }
        let part = |of: Vec<f64>| (Measured(of), Unit::Part);
        claims.push(Claim::new(
            format!("one bids {what}: it has, by honest bids"),
            "-",
            part(own),
            Band::AtMost(1.03),
        ));
        claims.push(Claim::new(
            format!("one bids {what}: the others have, by before"),
            "-",
            part(others),
            Band::AtLeast(0.995),
        ));
    }
    Judged { claims, files: vec![File::new("figure-lies-each.csv".to_owned(), csv)] }
}

/// Gateways of the markets of figure scale.
const SIZES: &[usize] = if cfg!(test) { &[16] } else { &[16, 1_000, 100_000] };

fn judge_scale(_: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut csv = String::from("gateways,household,value_by_equal_share\n");
    for &homes in SIZES {
        let Some(weeks) = street::weeks(homes, BEST, 1) else { continue };
        let at = |part: f64| weeks.each[(part * (homes - 1) as f64) as usize];
        for percent in 0..=100 {
            let _ = writeln!(csv, "{homes},{percent} %,{:.4}", at(f64::from(percent) / 100.0));
        }
        let mut claim = |what: &str, measured: f64, unit, band| {
            let what = format!("{what} ({homes} gateways)");
            claims.push(Claim::new(what, "-", (Measured(vec![measured]), unit), band));
        };
        claim("over an equal share", weeks.gain - 1.0, Unit::Part, Band::AtLeast(0.1));
        claim(
            "the household with the least, by an equal share",
            at(0.0),
            Unit::Part,
            Band::AtLeast(1.0),
        );
        claim(
            "99 of 100 households have more, by an equal share",
            at(0.01),
            Unit::Part,
            Band::AtLeast(1.1),
        );
        claim(
            "least part of the link that is leased",
            weeks.used,
            Unit::Part,
            Band::AtLeast(0.999),
        );
        claim("Jain's index of all rates", weeks.jain, Unit::Error, Band::AtLeast(0.99));
        claim("micro-credits lost or made", weeks.lost, Unit::Count, Band::AtMost(0.0));
    }
    Judged { claims, files: vec![File::new("figure-scale-each.csv".to_owned(), csv)] }
}

/// A picture of Jain's indices and four households' rates, and all rates.
fn files(number: &str, title: &str, rates: &WeekRates) -> Vec<File> {
    let line = |name: String, i, points: Vec<(f64, f64)>| Line {
        name,
        colour: colour(i),
        dashed: false,
        points,
    };
    let over = |of: &dyn Fn(usize) -> f64| (0..SLOTS).map(|t| (t as f64, of(t))).collect();
    let indices = jains(rates);
    let panel = |y: &str, lines| Panel {
        x: "slot".to_owned(),
        y: y.to_owned(),
        marks: Marks::Lines { logarithmic: false, lines },
    };
    let fairness = vec![
        line("slot".to_owned(), 0, over(&|t| indices[t].0)),
        line("cumulative".to_owned(), 1, over(&|t| indices[t].1)),
    ];
    let homes =
        (0..4).map(|i| line(format!("gateway {}", i + 1), i, over(&|t| rates[i][t]))).collect();
    let panels = vec![panel("Jain's index", fairness), panel("rate, Mbit/s", homes)];
    let mut csv = String::from("slot,gateway,rate_mbit\n");
    for t in 0..SLOTS {
        for (i, home) in rates.iter().enumerate() {
            let _ = writeln!(csv, "{t},{},{:.4}", i + 1, home[t]);
        }
    }
    let title = format!("Figure {number}: {title}, {}", name(BEST));
    vec![
        chart(&format!("figure-{number}"), &title, panels),
        File::new(format!("figure-{number}-rates.csv"), csv),
    ]
}
