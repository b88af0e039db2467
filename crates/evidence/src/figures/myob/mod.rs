//! The figures of Mind Your Own Bandwidth (Wong et al.) that need no network, and the rule `float`.
//!
//! | figure | content |
//! |---|---|
//! | 6 | the optimum of the paper's rule compared with an equal share |
//! | 7 | Algorithms 1 and 2 compared with that optimum |
//! | float | agents with their own past, compared with the equilibrium, the optimum and an equal share |
//! | lies | the gain of a household that bids otherwise than its agent |
//! | scale | markets of more gateways, over two weeks |
//!
//! Not here: 1 to 3 are drawings and photographs, 4, 5 and 8 are about a proxy.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairweir_scenario::play::{cores, over_threads};
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::chart;
use super::play::Played;
use super::read::jain;
use super::{Figure, File, Judged};

mod load;
mod street;
mod week;

use load::{DAY, LEARNED, LOADS, Load};
use week::{Bids, HOMES, SLOTS, Week, WeekRates};

/// Every figure, in the paper's order, then our own.
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

/// The load with one use per slot whose gain in figure 6 is closest to the paper's.
const BEST: Load = Load { one_use: true, noise: 0.75 };

fn sum(values: &[Vec<f64>], from: usize) -> f64 {
    values.iter().map(|home| home[from..].iter().sum::<f64>()).sum()
}

/// The value of rates divided by the value of `others`, from a slot on.
fn ratio(week: &Week, rates: &WeekRates, others: &WeekRates, from: usize) -> f64 {
    sum(&week.values(rates), from) / sum(&week.values(others), from)
}

/// Jain's index of each slot, and of all slots up to it.
fn jains(rates: &WeekRates) -> Vec<(f64, f64)> {
    let mut totals = vec![0.0; HOMES];
    let at = |t: usize| {
        let now: Vec<f64> = rates.iter().map(|home| home[t]).collect();
        totals.iter_mut().zip(&now).for_each(|(total, now)| *total += now);
        (jain(&now), jain(&totals))
    };
    (0..SLOTS).map(at).collect()
}

/// One result per seed's week, with a load.
type Found<T> = (Load, Vec<T>);

/// Computes a result for the week of each load and seed, over all cores; by load, in the order of the seeds.
fn each_week<T: Send>(
    figure: &str,
    seeds: &[u64],
    of: impl Fn(&Week, u64) -> T + Sync,
) -> Vec<Found<T>> {
    let jobs: Vec<(Load, u64)> =
        LOADS.iter().flat_map(|&load| seeds.iter().map(move |&seed| (load, seed))).collect();
    let done = AtomicUsize::new(0);
    let order: Vec<usize> = (0..jobs.len()).collect();
    let found = over_threads(&order, cores(), |i| {
        let (load, seed) = jobs[i];
        let found = of(&Week::new(load, seed), seed);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("figure {figure}: week {done} of {}", jobs.len());
        found
    });
    let mut found = found.into_iter();
    LOADS.iter().map(|&load| (load, found.by_ref().take(seeds.len()).collect())).collect()
}

/// One number for each seed.
fn measured<T>(found: &[T], of: impl Fn(&T) -> f64) -> Measured {
    Measured(found.iter().map(of).collect())
}

/// A claim about one number for each seed.
fn claim<T>(
    (load, found): &Found<T>,
    what: &str,
    paper: &str,
    (of, unit): (impl Fn(&T) -> f64, Unit),
    band: Band,
) -> Claim {
    Claim::new(format!("{what} ({})", name(*load)), paper, (measured(found, of), unit), band)
}

/// The results with the load [`BEST`].
fn best<T>(weeks: &[Found<T>]) -> &Found<T> {
    weeks.iter().find(|(load, _)| *load == BEST).expect("invariant: one of the loads")
}

fn name(load: Load) -> String {
    let uses = if load.one_use { "one use a slot" } else { "a mix of uses" };
    format!("{uses}, noise {}", load.noise)
}

/// Results of the optimum of a week.
struct Best {
    rates: WeekRates,
    gain: f64,
    /// The value of each slot of each household, divided by that with an equal share.
    ratios: Vec<f64>,
    jains: Vec<(f64, f64)>,
}

impl Best {
    fn of(week: &Week) -> Best {
        let (rates, equal) = (week.optimum(), week.equal());
        let (ours, theirs) = (week.values(&rates).concat(), week.values(&equal).concat());
        Best {
            gain: ratio(week, &rates, &equal, 0) - 1.0,
            ratios: ours.iter().zip(theirs).map(|(a, b)| a / b).collect(),
            jains: jains(&rates),
            rates,
        }
    }
}

fn judge_6(played: &Played) -> Judged {
    let weeks = each_week("6", &played.seeds, |week, _| Best::of(week));
    let gain = |week| {
        let what = "optimum over an equal share of 10 Mbit/s";
        let gain = (|best: &Best| best.gain, Unit::Part);
        claim(week, what, "29.7 %", gain, Band::Within(0.267, 0.327))
    };
    let mut claims: Vec<Claim> = weeks.iter().map(gain).collect();
    let below = |best: &Best| {
        best.ratios.iter().filter(|r| **r < 1.0).count() as f64 / best.ratios.len() as f64
    };
    let best = best(&weeks);
    claims.extend([
        claim(
            best,
            "slots of a household that are worth less",
            "nearly half",
            (below, Unit::Part),
            Band::Within(0.4, 0.6),
        ),
        claim(
            best,
            "a slot by an equal share, most",
            "more than doubles",
            (|best| best.ratios.iter().copied().fold(0.0, f64::max), Unit::Times),
            Band::AtLeast(2.0),
        ),
        claim(
            best,
            "Jain's index of the rates of a slot, least",
            "relatively low",
            (|best| best.jains.iter().map(|j| j.0).fold(1.0, f64::min), Unit::Error),
            Band::AtMost(0.9),
        ),
        claim(
            best,
            "Jain's index of all rates after a day",
            "quickly 1",
            (|best| best.jains[DAY - 1].1, Unit::Error),
            Band::AtLeast(0.97),
        ),
        claim(
            best,
            "Jain's index of all rates after the week",
            "1",
            (|best| best.jains[SLOTS - 1].1, Unit::Error),
            Band::AtLeast(0.999),
        ),
    ]);
    Judged { claims, files: files("6", "the optimum", &best.1[0].rates) }
}

/// Results of the paper's rule when gateways decide online.
struct Online {
    rates: WeekRates,
    by_optimum: f64,
    gain: f64,
    charged: f64,
}

fn judge_7(played: &Played) -> Judged {
    let weeks = each_week("7", &played.seeds, |week, _| {
        let (rates, best) = (week.online(), week.optimum());
        Online {
            by_optimum: ratio(week, &rates, &best, LEARNED),
            gain: ratio(week, &rates, &week.equal(), LEARNED) - 1.0,
            charged: ratio(week, &week.charged(&best), &best, 0),
            rates,
        }
    });
    let mut claims = Vec::new();
    for week in &weeks {
        claims.extend([
            claim(
                week,
                "by the optimum",
                "84.7 %",
                (|week| week.by_optimum, Unit::Part),
                Band::Within(0.80, 0.92),
            ),
            claim(
                week,
                "over an equal share",
                "-",
                (|week| week.gain, Unit::Part),
                Band::AtLeast(0.0),
            ),
            claim(
                week,
                "Jain's index of all rates after the week",
                "1",
                (|week| jains(&week.rates)[SLOTS - 1].1, Unit::Error),
                Band::AtLeast(0.99),
            ),
            claim(
                week,
                "a published charge, own future known: by the optimum of the week",
                "-",
                (|week| week.charged, Unit::Part),
                Band::AtLeast(0.98),
            ),
        ]);
    }
    Judged { claims, files: files("7", "Algorithms 1 and 2", &best(&weeks).1[0].rates) }
}

/// Results of agents with their own past, compared with other rules.
struct Agents {
    rates: WeekRates,
    by_equilibrium: f64,
    by_optimum: f64,
    by_even: f64,
    gain: f64,
    worst: f64,
    /// The same two numbers for the equilibrium with all futures known.
    foreseen: (f64, f64),
    regret: f64,
}

fn judge_float(played: &Played) -> Judged {
    let weeks = each_week("float", &played.seeds, |week, _| {
        let (rates, equal) = (week.agents(None), week.equal());
        let (foresight, regret) = week.foresight();
        let gain = |rates| ratio(week, rates, &equal, LEARNED) - 1.0;
        let worst = |rates| of_each(week, rates, &equal).into_iter().fold(f64::INFINITY, f64::min);
        Agents {
            by_equilibrium: ratio(week, &rates, &foresight, LEARNED),
            by_optimum: ratio(week, &rates, &week.optimum(), LEARNED),
            by_even: ratio(week, &rates, &week.optimum_even(), LEARNED),
            gain: gain(&rates),
            worst: worst(&rates),
            foreseen: (gain(&foresight), worst(&foresight)),
            regret,
            rates,
        }
    });
    let mut claims = Vec::new();
    for week in &weeks {
        let claim = |what: &str, of: &dyn Fn(&Agents) -> f64, band| {
            claim(week, what, "-", (of, Unit::Part), band)
        };
        let foreseen = |of: &dyn Fn(&Agents) -> f64| {
            let text = measured(&week.1, of).text(Unit::Part);
            format!("with all futures known it is {text}")
        };
        claims.extend([
            claim(
                "regret of the equilibrium with all futures known",
                &|week| week.regret,
                Band::AtMost(0.02),
            ),
            claim("by that equilibrium", &|week| week.by_equilibrium, Band::AtLeast(0.9)),
            claim(
                "by the optimum of the paper's rule",
                &|week| week.by_optimum,
                Band::AtLeast(1.0),
            ),
            claim("by the optimum of `even`", &|week| week.by_even, Band::AtLeast(1.0)),
            claim("over an equal share", &|week| week.gain, Band::AtLeast(0.1))
                .because(|| foreseen(&|week| week.foreseen.0)),
            claim(
                "the household with the least, by an equal share",
                &|week| week.worst,
                Band::AtLeast(1.1),
            )
            .because(|| foreseen(&|week| week.foreseen.1)),
        ]);
    }
    Judged { claims, files: files("float", "agents with `float`", &best(&weeks).1[0].rates) }
}

/// For each household: the value of rates divided by that of `others`, after the learning.
fn of_each(week: &Week, rates: &WeekRates, others: &WeekRates) -> Vec<f64> {
    let (ours, theirs) = (week.values(rates), week.values(others));
    let total = |home: &Vec<f64>| home[LEARNED..].iter().sum::<f64>();
    ours.iter().zip(&theirs).map(|(a, b)| total(a) / total(b)).collect()
}

const LIES: [(&str, Bids); 6] = [
    ("bids the whole balance", Bids::AllIn),
    ("bids half", Bids::Times(0.5)),
    ("bids double", Bids::Times(2.0)),
    ("bids four times", Bids::Times(4.0)),
    ("bids nothing", Bids::Times(0.0)),
    ("knows its own future", Bids::Foresees),
];

/// Value for the household that bids otherwise, and mean of the others, by that with honest bids.
struct Lied {
    liar: f64,
    others: f64,
}

fn judge_lies(played: &Played) -> Judged {
    let liar = |seed: u64| (seed % HOMES as u64) as usize;
    let weeks = each_week("lies", &played.seeds, |week, seed| {
        let honest = week.agents(None);
        LIES.map(|(_, bids)| {
            let mut lied = of_each(week, &week.agents(Some((liar(seed), bids))), &honest);
            let own = lied.remove(liar(seed));
            Lied { liar: own, others: lied.iter().sum::<f64>() / lied.len() as f64 }
        })
    });
    let mut claims = Vec::new();
    let mut csv = String::from("household,load,seed,liar,own,others\n");
    for (k, (what, _)) in LIES.iter().enumerate() {
        let all: Vec<&Lied> =
            weeks.iter().flat_map(|(_, found)| found).map(|lies| &lies[k]).collect();
        for (load, found) in &weeks {
            for (lies, &seed) in found.iter().zip(&played.seeds) {
                let Lied { liar: own, others } = lies[k];
                let load = name(*load).replace(',', "");
                let _ = writeln!(csv, "{what},{load},{seed},{},{own:.4},{others:.4}", liar(seed));
            }
        }
        let mut claim = |whose: &str, of: &dyn Fn(&Lied) -> f64, band| {
            let measured = measured(&all, |lied| of(lied));
            claims.push(Claim::new(
                format!("one {what}: {whose}"),
                "-",
                (measured, Unit::Part),
                band,
            ));
        };
        claim("it has, by honest bids", &|lied| lied.liar, Band::AtMost(1.03));
        claim("the others have, by before", &|lied| lied.others, Band::AtLeast(0.995));
    }
    Judged { claims, files: vec![File::new("figure-lies-each.csv".to_owned(), csv)] }
}

/// Numbers of gateways of the markets in figure scale.
const SIZES: &[usize] = if cfg!(test) { &[16] } else { &[16, 1_000, 100_000] };

/// Two weeks of the first seed.
fn judge_scale(played: &Played) -> Judged {
    let seed = played.seeds.first().copied().unwrap_or_default();
    let mut claims = Vec::new();
    let mut csv = String::from("gateways,household,value_by_equal_share\n");
    for &homes in SIZES {
        let Some(weeks) = street::weeks(homes, BEST, seed) else { continue };
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

/// A chart of Jain's indices and four households' rates, and a file of all rates.
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
