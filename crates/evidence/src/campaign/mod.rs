//! `fairweir campaign`: random scenarios, played with any controls and scored against `wfq`,
//! `none` and a physical bound.
//!
//! | module | contains |
//! |---|---|
//! | `args` | its command line |
//! | `class` | the classes of scenarios |
//! | `generate` | generates a scenario file from a seed |
//! | `case` | the runs of a scenario with each control |
//! | `bound` | the least error that receive windows allow |
//! | `beside` | the least error of a host that competes with others and keeps its total |
//! | `score` | the numbers of a run, and the bounds that it breaks |
//! | `summary` | distributions, targets, clusters of failures, the worst cases |
//! | `minimise` | reduces a scenario that fails to a small one that still fails |
//! | `show` | tables and the picture |
//!
//! The same seeds give the same numbers on every machine and for every number of threads.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use fairweir_config::{output, text};
use fairweir_core::units::Span;
use fairweir_scenario::Control;
use fairweir_scenario::play::{Job, Run};
use fairweir_scenario::report::Report;
use serde::Serialize;

use crate::Players;
use crate::document::Document;

mod args;
mod beside;
mod bound;
mod case;
mod class;
mod generate;
mod minimise;
mod score;
mod show;
mod summary;

pub(crate) use args::{CampaignArgs, parallel};
pub(crate) use class::Class;
pub(crate) use generate::class;

use case::{Case, Played};
use score::{Outcome, References};
use summary::{Cluster, Target};

/// Controls that are always played: every control is compared with them.
const REFERENCES: [Control; 2] = [Control::Wfq, Control::None];
/// The most clusters of a campaign whose worst scenario is minimised.
const MINIMISED_MAX: usize = 12;
/// Part of the failure's amount that a smaller scenario must keep.
const FAILURE_KEPT: f64 = 0.5;

/// All results; the output of `--json`.
#[derive(Debug, Serialize)]
struct Findings {
    /// Targets of the requested controls.
    targets: Vec<Target>,
    clusters: Vec<Cluster>,
    /// Outcomes of these and of the references.
    outcomes: Vec<Outcome>,
}

impl Findings {
    /// The outcomes of a control.
    fn of(&self, control: Control) -> Vec<&Outcome> {
        self.outcomes.iter().filter(|o| o.control == control).collect()
    }
}

pub(crate) fn run(args: &CampaignArgs, players: &dyn Players) -> anyhow::Result<()> {
    let mut controls = args.control.clone();
    if controls.is_empty() {
        controls.push(Control::Fairweir);
    }
    if let Some(i) = (1..controls.len()).find(|&i| controls[..i].contains(&controls[i])) {
        bail!("duplicate control `{}`", controls[i]);
    }
    let is_asked =
        |seed: &u64| args.class.is_empty() || args.class.contains(&generate::class(*seed));
    let seeds: Vec<u64> = args.seed.all()?.filter(is_asked).collect();
    if seeds.is_empty() {
        bail!("--seed {}: no seed of this class", args.seed);
    }
    let document = args.write_docs.as_deref().map(Document::read).transpose()?;
    if let Some(dir) = &args.out {
        output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let lasting = |seed: &u64| {
        let mut case = generate::case(*seed);
        case.last(args.duration);
        case
    };
    let mut cases: Vec<Case> = seeds.iter().map(lasting).collect();
    if args.exact {
        cases = told_exactly(&cases);
    }
    if cases.is_empty() {
        bail!(
            "--exact: only policers, neighbours and second hosts among these seeds; they are not played"
        );
    }
    let outcomes = play(&cases, &controls, args.jobs, players)?;
    let asked: Vec<Outcome> =
        outcomes.iter().filter(|o| controls.contains(&o.control)).cloned().collect();
    let findings = Findings {
        targets: controls.iter().flat_map(|&c| summary::targets(c, &outcomes)).collect(),
        clusters: summary::clusters(&asked),
        outcomes,
    };
    if let Some(dir) = &args.out {
        save(dir, &cases, &findings)?;
        if args.minimise {
            reduce(dir, &cases, &findings.clusters, args.jobs, players)?;
        }
    }
    if let Some(document) = document {
        let exact = match controls.contains(&Control::Fairweir) {
            true => play(&told_exactly(&cases), &[Control::Fairweir], args.jobs, players)?,
            false => Vec::new(),
        };
        let exact: Vec<&Outcome> =
            exact.iter().filter(|o| o.control == Control::Fairweir).collect();
        document.write(&show::section(args, &controls, &findings, &exact))?;
        document.picture(show::PICTURE, &show::picture(&findings))?;
    }
    let out = &mut text::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&findings)?)?,
        false => write!(out, "{}", show::text(&controls, &findings, args.worst))?,
    }
    Ok(())
}

/// The cases in which `fairweir` can be given exact values that no host can measure, with these values.
fn told_exactly(cases: &[Case]) -> Vec<Case> {
    let can_be_told = |case: &&Case| !(case.has_devices() || case.is_policed());
    let mut told: Vec<Case> = cases.iter().filter(can_be_told).cloned().collect();
    told.iter_mut().for_each(Case::tell_exactly);
    told
}

/// Plays every case with the references and the controls, and scores all of them.
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
    let mut jobs = Vec::new();
    for (i, one) in played.iter().enumerate() {
        let case = &cases[i / played_with.len()];
        let seed = case.seed;
        // The bound with neighbours needs the rates over time.
        let is_none = played_with[i % played_with.len()] == Control::None;
        let keeps_series = is_none && case.has_neighbours();
        let run = Run { control: one.control, seed };
        let label = format!("seed {seed}");
        jobs.push(Job { scenario: &one.scenario, run, label, keeps_series });
    }
    let reports = players.simulate(&jobs, parallel)?;
    let mut outcomes = Vec::new();
    let of_case = played.chunks(played_with.len()).zip(reports.chunks(played_with.len()));
    for (case, (played, reports)) in cases.iter().zip(of_case) {
        for (i, &control) in played_with.iter().enumerate() {
            outcomes.push(outcome(case, control, (played, reports), i));
        }
    }
    Ok(outcomes)
}

/// A scenario of the campaign with one control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) seed: u64,
    /// Duration of the run; `None` for the drawn one.
    pub(crate) duration: Option<Span>,
    pub(crate) control: Control,
}

/// The reports of scenarios with their rates over time, in the order of the runs.
///
/// # Errors
/// If a scenario is not valid, or the user interrupted it.
pub(crate) fn reports(
    runs: &[Drawn],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<Vec<Report>> {
    let played = |&Drawn { seed, duration, control }: &Drawn| {
        let mut case = generate::case(seed);
        case.last(duration);
        case.played(control).with_context(|| format!("seed {seed} with {control}"))
    };
    let played: Vec<Played> = runs.iter().map(played).collect::<anyhow::Result<_>>()?;
    let mut jobs = Vec::new();
    for (&Drawn { seed, .. }, Played { scenario, control }) in runs.iter().zip(&played) {
        let run = Run { control: *control, seed };
        jobs.push(Job { scenario, run, label: format!("seed {seed}"), keeps_series: true });
    }
    players.simulate(&jobs, parallel)
}

/// The outcome of the control at `i`; the references are the first two.
fn outcome(
    case: &Case,
    control: Control,
    (played, reports): (&[Played], &[Report]),
    i: usize,
) -> Outcome {
    let scenario = &played[i].scenario;
    let bound = match (case.has_devices(), case.has_neighbours()) {
        (_, true) => beside::error_min(scenario, &reports[1], &case.tested_groups(scenario)),
        // The capacity of a host depends on what the other host leaves.
        (true, false) => 0.0,
        (false, false) => bound::error_min(&played[0].scenario),
    };
    let references = References { wfq: &reports[0], none: &reports[1], bound };
    let score = score::score(case, scenario, &reports[i], references);
    let failures = score::failures(case.class, &score);
    Outcome { seed: case.seed, class: case.class, control, bound, score, failures }
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    output::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the scenario of a seed, for the default control.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn save_case(seed: u64, dir: &Path, name: &str) -> anyhow::Result<()> {
    generate::case(seed).save(dir, name)
}

/// Saves every case that fails, all numbers and the picture.
fn save(dir: &Path, cases: &[Case], findings: &Findings) -> anyhow::Result<()> {
    for case in cases {
        let fails = |o: &Outcome| {
            o.seed == case.seed && !REFERENCES.contains(&o.control) && !o.failures.is_empty()
        };
        if findings.outcomes.iter().any(fails) {
            case.save(dir, &format!("campaign-{}.toml", case.seed))?;
        }
    }
    write(dir, "campaign.json", &serde_json::to_string(findings)?)?;
    write(dir, show::PICTURE, &show::picture(findings))
}

/// Writes the smallest scenario for the worst case of each of the largest clusters.
fn reduce(
    dir: &Path,
    cases: &[Case],
    clusters: &[Cluster],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<()> {
    for cluster in clusters.iter().take(MINIMISED_MAX) {
        let &Cluster { control, bound, class, worst, worst_seed, .. } = cluster;
        let Some(case) = cases.iter().find(|case| case.seed == worst_seed) else { continue };
        let small = minimise::minimise(case, |case| {
            let outcomes = play(std::slice::from_ref(case), &[control], parallel, players)?;
            let mine = outcomes.iter().filter(|o| o.control == control);
            let mut failures = mine.flat_map(|o| &o.failures);
            Ok(failures.any(|f| f.bound == bound && f.amount >= worst * FAILURE_KEPT))
        })?;
        let name = format!("{}-{class}-{control}-{worst_seed}.toml", bound.name());
        small.save(dir, &name)?;
        let _ = writeln!(
            io::stderr(),
            "wrote {}",
            text::escaped(&dir.join(name).display().to_string())
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
