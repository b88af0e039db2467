//! `fairweir campaign`: random scenarios, played with any controls and scored against `wfq`,
//! `none` and a physical bound.
//!
//! | module | contains |
//! |---|---|
//! | `generate` | from a seed to a scenario file |
//! | `case` | what is played of it with each control |
//! | `bound` | the least error that receive windows allow |
//! | `score` | the numbers of a run, and which bounds it breaks |
//! | `summary` | distributions, targets, clusters of failures, the worst |
//!
//! The same seeds give the same numbers on every machine and for every number of threads.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use fairweir_config::output;
use fairweir_core::receiver::Control;
use fairweir_scenario::play::{Job, Run};
use fairweir_scenario::report::{Report, aligned};
use serde::Serialize;

use crate::Players;
use crate::cli::CampaignArgs;

mod bound;
mod case;
mod generate;
mod score;
mod summary;

pub(crate) use generate::Class;

use case::{Case, Played};
use score::{Outcome, References};
use summary::{Cluster, Target};

/// Always played: what every control is compared with.
const REFERENCES: [Control; 2] = [Control::Wfq, Control::None];

/// Everything that was found; what `--json` prints.
#[derive(Debug, Serialize)]
struct Findings {
    targets: Vec<Target>,
    clusters: Vec<Cluster>,
    outcomes: Vec<Outcome>,
}

pub(crate) fn run(args: &CampaignArgs, players: &dyn Players) -> anyhow::Result<()> {
    let mut controls = args.control.clone();
    if controls.is_empty() {
        controls.push(Control::Fairweir);
    }
    let is_asked =
        |seed: &u64| args.class.is_empty() || args.class.contains(&generate::class(*seed));
    let seeds: Vec<u64> = args.seed.all()?.filter(is_asked).collect();
    if seeds.is_empty() {
        bail!("--seed {}: no seed of this class", args.seed);
    }
    if let Some(dir) = &args.out {
        output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let cases: Vec<Case> = seeds.iter().map(|&seed| generate::case(seed)).collect();
    let outcomes = play(&cases, &controls, args.jobs, players)?;
    let findings = Findings {
        targets: controls.iter().flat_map(|&c| summary::targets(c, &outcomes)).collect(),
        clusters: summary::clusters(&outcomes),
        outcomes,
    };
    if let Some(dir) = &args.out {
        save(dir, &cases, &findings)?;
    }
    let out = &mut io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&findings)?)?,
        false => write!(out, "{}", text(&controls, &findings, args.worst))?,
    }
    Ok(())
}

/// Plays every case with the references and the controls, and scores the controls.
///
/// # Errors
/// If a case is not valid, or the user interrupted it.
fn play(
    cases: &[Case],
    controls: &[Control],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<Vec<Outcome>> {
    let mut played_with = REFERENCES.to_vec();
    played_with.extend(controls.iter().filter(|c| !REFERENCES.contains(c)));
    let mut played: Vec<Played> = Vec::new();
    for case in cases {
        for &control in &played_with {
            let one = case.played(control);
            played.push(one.with_context(|| format!("seed {} with {control}", case.seed))?);
        }
    }
    let job = |played: &'_ Played, seed: u64| {
        let run = Run { control: played.control, seed };
        (run, format!("seed {seed}"))
    };
    let mut jobs = Vec::new();
    for (i, one) in played.iter().enumerate() {
        let (run, label) = job(one, cases[i / played_with.len()].seed);
        jobs.push(Job { scenario: &one.scenario, run, label, keeps_series: false });
    }
    let reports = players.simulate(&jobs, parallel)?;
    let mut outcomes = Vec::new();
    let of_case = played.chunks(played_with.len()).zip(reports.chunks(played_with.len()));
    for (case, (played, reports)) in cases.iter().zip(of_case) {
        let with = |control| played_with.iter().position(|c| *c == control);
        for &control in controls {
            let i = with(control).expect("invariant: every control was played");
            outcomes.push(outcome(case, control, (played, reports), i));
        }
    }
    Ok(outcomes)
}

/// The outcome of the control at `i`; the references are the first two.
fn outcome(
    case: &Case,
    control: Control,
    (played, reports): (&[Played], &[Report]),
    i: usize,
) -> Outcome {
    let bound = match case.has_devices() {
        // The capacity of a host is what its neighbours leave.
        true => 0.0,
        false => bound::error_min(&played[0].scenario),
    };
    let references = References { wfq: &reports[0], none: &reports[1], bound };
    let score = score::score(case, &played[i].scenario, &reports[i], references);
    let failures = score::failures(case.class, &score);
    Outcome { seed: case.seed, class: case.class, control, bound, score, failures }
}

/// Every case that fails, and all numbers.
fn save(dir: &Path, cases: &[Case], findings: &Findings) -> anyhow::Result<()> {
    for case in cases {
        let fails = |o: &&Outcome| o.seed == case.seed && !o.failures.is_empty();
        if findings.outcomes.iter().any(|o| fails(&o)) {
            case.save(dir, &format!("campaign-{}.toml", case.seed))?;
        }
    }
    let path = dir.join("campaign.json");
    output::write(&path, serde_json::to_string(findings)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What is printed for people.
fn text(controls: &[Control], findings: &Findings, worst: usize) -> String {
    let mut text = String::new();
    for &control in controls {
        let of = findings.outcomes.iter().filter(|o| o.control == control);
        let of: Vec<&Outcome> = of.collect();
        text.push_str(&format!(
            "{control}: median, p90 (p10) and worst (seed) of {} scenarios\n{}\n",
            of.len(),
            aligned(&summary::distribution(&of))
        ));
        let worst = summary::worst(&of, worst);
        if !worst.is_empty() {
            let rows = aligned(&summary::worst_rows(&worst));
            text.push_str(&format!("{control}: the worst\n{rows}\n"));
        }
    }
    if !findings.clusters.is_empty() {
        text.push_str(&format!(
            "failures\n{}\n",
            aligned(&summary::cluster_rows(&findings.clusters))
        ));
    }
    text.push_str(&aligned(&summary::target_rows(&findings.targets)));
    let met = findings.targets.iter().filter(|t| t.met == Some(true)).count();
    let of = findings.targets.iter().filter(|t| t.met.is_some()).count();
    text.push_str(&format!("{met} of {of} targets met\n"));
    text
}
