//! `fairweir compare`: one scenario in the lab and in the simulator, and the differences.
//!
//! The emulated home plays the scenario once for each control, the simulator plays it with several
//! seeds and reports the mean. Under a control that sets the shares, the worlds agree if allocation
//! error and utilisation differ by at most [`AGREEMENT`]. Without such a control the shares are an
//! accident of timing, and the worlds agree if the same group wins.

use std::io::{self, Write};

use fairweir_config::text;
use fairweir_scenario::Control;
use fairweir_scenario::play::{Job, labels, runs};
use fairweir_scenario::report::{Report, aligned};
use serde::Serialize;

use crate::Players;
use crate::cli::CompareArgs;

/// The largest difference of allocation error and of utilisation.
const AGREEMENT: f64 = 0.02;
/// A winner must be ahead by this part of the capacity; otherwise there is no winner.
const TIE: f64 = 0.05;

const HEADINGS: [&str; 6] = ["", "lab", "sim", "over seeds", "difference", "allowed"];

/// The results of one control in both worlds.
#[derive(Debug, Serialize)]
struct Comparison {
    scenario: String,
    control: Control,
    /// Whether the emulated link kept time well enough to be trusted; if not, `agrees` has no
    /// meaning.
    valid: bool,
    agrees: bool,
    measures: Vec<Measure>,
    lab: Report,
    /// One report for each seed.
    sim: Vec<Report>,
}

/// A number of both worlds; `None` where one of them does not have it.
#[derive(Debug, Serialize)]
struct Measure {
    name: String,
    lab: Option<f64>,
    /// Mean over the seeds.
    sim: Option<f64>,
    /// Smallest and largest over the seeds.
    sim_range: Option<(f64, f64)>,
    /// `sim` minus `lab`.
    difference: Option<f64>,
    /// The largest allowed difference, where it counts.
    allowed: Option<f64>,
}

pub(crate) fn run(args: &CompareArgs, players: &dyn Players) -> anyhow::Result<()> {
    let scenario = &players.read(&args.file, &args.set)?;
    let controls = match args.control.as_slice() {
        [] => vec![Control::None, Control::Static, Control::Wfq, Control::Crab, Control::Fairweir],
        given => given.to_vec(),
    };
    let sims = runs(&controls, std::slice::from_ref(&args.seed), scenario)?;
    let labs = runs(&controls, &[], scenario)?;
    // The lab comes first, since anything that it lacks shows at once.
    let emulated = players.emulate(scenario, &labs)?;
    let job = |(&run, label)| Job { scenario, run, label, keeps_series: false };
    let jobs: Vec<Job<'_>> = sims.iter().zip(labels(&sims)).map(job).collect();
    let simulated = players.simulate(&jobs, None)?;
    let seeds = sims.len() / labs.len();
    let pairs = emulated.into_iter().zip(simulated.chunks(seeds));
    let compared: Vec<Comparison> = pairs.map(|(lab, sim)| compare(lab, sim.to_vec())).collect();
    let out = &mut text::stdout();
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&compared)?)?);
    }
    Ok(print(out, &compared)?)
}

fn compare(mut lab: Report, sim: Vec<Report>) -> Comparison {
    lab.series = None;
    let measure = |name: &str, allowed: Option<f64>, of: &dyn Fn(&Report) -> Option<f64>| {
        let lab = of(&lab);
        let sims: Vec<f64> = sim.iter().filter_map(of).collect();
        let mean = (!sims.is_empty()).then(|| sims.iter().sum::<f64>() / sims.len() as f64);
        Measure {
            name: name.to_owned(),
            lab,
            sim: mean,
            sim_range: mean.map(|mean| {
                let least = sims.iter().copied().fold(mean, f64::min);
                (least, sims.iter().copied().fold(mean, f64::max))
            }),
            difference: mean.zip(lab).map(|(sim, lab)| sim - lab),
            allowed,
        }
    };
    let shares_are_set = !matches!(lab.control, Control::None | Control::Borrow);
    let within = shares_are_set.then_some(AGREEMENT);
    let mut measures = vec![
        measure("allocation error", within, &|r| r.summary.allocation_error),
        measure("utilisation", within, &|r| r.summary.utilization),
        measure("ISP queue mean, ms", None, &|r| r.summary.isp_queue_ms.map(|q| q.mean)),
        measure("ISP loss, %", None, &|r| r.summary.isp_loss.map(|ratio| ratio * 100.0)),
    ];
    for (i, group) in lab.summary.groups.iter().enumerate() {
        let name = format!("{}, Mbit/s", group.name);
        measures.push(measure(&name, None, &|r| Some(r.summary.groups[i].rate.as_mbit_f64())));
    }
    let agrees = match shares_are_set {
        true => measures.iter().all(Measure::is_within),
        false => {
            let rates = &measures[measures.len() - lab.summary.groups.len()..];
            winner(rates, |m| m.lab) == winner(rates, |m| m.sim)
        }
    };
    let (scenario, control, valid) = (lab.scenario.clone(), lab.control, lab.valid);
    Comparison { scenario, control, valid, agrees, measures, lab, sim }
}

impl Measure {
    fn is_within(&self) -> bool {
        match (self.allowed, self.difference) {
            (Some(allowed), Some(difference)) => difference.abs() <= allowed,
            (Some(_), None) => self.lab.is_none() && self.sim.is_none(),
            (None, _) => true,
        }
    }
}

/// The group that has most; `None` if two have about the same.
fn winner(rates: &[Measure], of: impl Fn(&Measure) -> Option<f64>) -> Option<usize> {
    let mut by_rate: Vec<(f64, usize)> =
        rates.iter().enumerate().map(|(i, rate)| (of(rate).unwrap_or(0.0), i)).collect();
    by_rate.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all: f64 = by_rate.iter().map(|(rate, _)| rate).sum();
    match by_rate.as_slice() {
        [first, second, ..] if first.0 - second.0 < TIE * all => None,
        [first, ..] => Some(first.1),
        [] => None,
    }
}

fn print(out: &mut impl Write, compared: &[Comparison]) -> io::Result<()> {
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or("–".to_owned(), |v| format!("{v:.decimals$}"))
    };
    for comparison in compared {
        let Comparison { scenario, control, measures, .. } = comparison;
        let verdict = match (comparison.valid, comparison.agrees) {
            (false, _) => "not judged: the emulated link was late",
            (true, true) => "the worlds agree",
            (true, false) => "the worlds DIFFER",
        };
        writeln!(out, "{scenario}, {control}: {verdict}")?;
        let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
        rows.extend(measures.iter().map(|m| {
            let decimals = if m.lab.is_some_and(|lab| lab < 2.0) { 3 } else { 1 };
            let seeds = m.sim_range.map_or("–".to_owned(), |(least, most)| {
                format!("{least:.decimals$} to {most:.decimals$}")
            });
            let sign = m.difference.map_or("–".to_owned(), |d| format!("{d:+.decimals$}"));
            let allowed = m.allowed.map_or(String::new(), |a| format!("{a:.3}"));
            vec![
                m.name.clone(),
                number(m.lab, decimals),
                number(m.sim, decimals),
                seeds,
                sign,
                allowed,
            ]
        }));
        write!(out, "{}", aligned(&rows))?;
        writeln!(out)?;
    }
    Ok(())
}
