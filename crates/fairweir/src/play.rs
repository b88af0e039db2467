//! What `fairweir lab` and `fairweir sim` have in common: what is asked for, and what comes out.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use fairweir_config::output;
use fairweir_core::receiver::Control;
use fairweir_scenario::Scenario;
use fairweir_scenario::report::{self, Report};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{AccessFlags, access};

use crate::cli::{PlayArgs, ScenarioArgs};
use crate::exit::Usage;
use crate::text;

/// The most runs of one command.
const RUNS_MAX: usize = 10_000;

/// One scenario, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) control: Control,
    pub(crate) seed: u64,
}

/// Seeds as they are typed: `3`, or `1..20`, both of which are played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    first: u64,
    last: u64,
}

/// A text that names no seeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found `{0}`, wanted a whole number such as 3, or a range such as 1..20")]
pub(crate) struct BadSeeds(String);

impl FromStr for Seeds {
    type Err = BadSeeds;

    fn from_str(text: &str) -> Result<Seeds, BadSeeds> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        // As large as a scenario file can say.
        let number = |text: &str| text.parse().ok().filter(|&n| n <= i64::MAX as u64);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Seeds { first, last }),
            _ => Err(BadSeeds(text.to_owned())),
        }
    }
}

impl Seeds {
    /// Every one.
    ///
    /// # Errors
    /// If nobody would wait for so many runs.
    pub(crate) fn all(&self) -> anyhow::Result<RangeInclusive<u64>> {
        if self.last - self.first >= RUNS_MAX as u64 {
            return Err(Usage(format!("`--seed {self}` are more than {RUNS_MAX} runs")).into());
        }
        Ok(self.first..=self.last)
    }
}

/// As they are typed.
impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}..{}", self.first, self.last),
        }
    }
}

/// Everything that is asked for: each control with each seed, in the order asked for.
///
/// # Errors
/// If something is asked for twice, or there are too many.
pub(crate) fn runs(
    controls: &[Control],
    seed: &[Seeds],
    scenario: &Scenario,
) -> anyhow::Result<Vec<Run>> {
    let mut seeds = Vec::new();
    for range in seed {
        seeds.extend(range.all()?);
    }
    if seeds.is_empty() {
        seeds.push(scenario.seed);
    }
    if let Some(seed) = twice(&seeds) {
        return Err(Usage(format!("the seed {seed} is asked for twice")).into());
    }
    if let Some(control) = twice(controls) {
        return Err(Usage(format!("the control `{control}` is asked for twice")).into());
    }
    if seeds.len() * controls.len() > RUNS_MAX {
        return Err(Usage(format!("these are more than {RUNS_MAX} runs")).into());
    }
    let of = |&control| seeds.iter().map(move |&seed| Run { control, seed });
    Ok(controls.iter().flat_map(of).collect())
}

/// The first that is there before.
fn twice<T: Ord>(all: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    all.iter().find(|one| !seen.insert(*one))
}

/// What people call each run: by its control, and by its seed if there are several.
pub(crate) fn labels(runs: &[Run]) -> Vec<String> {
    let several = runs.iter().any(|run| run.seed != runs[0].seed);
    let label = |run: &Run| match several {
        true => format!("{} seed {}", run.control, run.seed),
        false => run.control.to_string(),
    };
    runs.iter().map(label).collect()
}

/// Reads a scenario as it is asked for.
///
/// # Errors
/// If there is no such file, or it or what is changed in it is wrong.
pub(crate) fn read(args: &ScenarioArgs) -> anyhow::Result<Scenario> {
    let file = args.file.display().to_string();
    let text = fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"))?;
    Ok(Scenario::parse_with(&text, &file, &args.set, &|trace| fs::read_to_string(trace))?)
}

/// `lab check` and `sim check`.
///
/// # Errors
/// What is wrong with the scenario.
pub(crate) fn check(args: &ScenarioArgs) -> anyhow::Result<()> {
    let scenario = read(args)?;
    let out = &mut text::stdout();
    let flows = scenario.flows.len();
    writeln!(out, "{}: {} groups, {flows} flows", scenario.name, scenario.groups.len())?;
    for event in scenario.events() {
        writeln!(out, "{:>8.1} s  {}", event.at.as_secs_f64(), event.what)?;
    }
    Ok(())
}

/// Makes the directory that files shall be written to, so that it fails not only after minutes.
///
/// # Errors
/// If it cannot be made, or nothing can be written there.
pub(crate) fn make_directory(args: &PlayArgs) -> anyhow::Result<()> {
    let Some(dir) = &args.out else { return Ok(()) };
    output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    access(dir, AccessFlags::W_OK).with_context(|| format!("cannot write to {}", dir.display()))
}

/// Whether anybody will see rates over time.
pub(crate) fn wants_series(args: &PlayArgs) -> bool {
    args.series || args.out.is_some()
}

/// Writes and prints what was asked for.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn hand_over(
    args: &PlayArgs,
    scenario: &Scenario,
    runs: &[Run],
    mut reports: Vec<Report>,
) -> anyhow::Result<()> {
    if let Some(dir) = &args.out {
        write_files(dir, scenario, runs, &reports)?;
    }
    if !args.series {
        reports.iter_mut().for_each(|report| report.series = None);
    }
    let out = &mut text::stdout();
    match (args.json, reports.as_slice()) {
        (false, all) => write!(out, "{}", report::table(all))?,
        (true, [one]) => writeln!(out, "{}", serde_json::to_string(one)?)?,
        (true, all) => writeln!(out, "{}", serde_json::to_string(all)?)?,
    }
    Ok(())
}

/// A picture of all controls with the first seed, and the numbers of everything.
fn write_files(
    dir: &Path,
    scenario: &Scenario,
    runs: &[Run],
    reports: &[Report],
) -> anyhow::Result<()> {
    let write = |name: String, text: String| {
        let path = dir.join(name);
        output::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let name = &scenario.name;
    let first = runs.iter().zip(reports).filter(|(run, _)| run.seed == runs[0].seed);
    let shown: Vec<Report> = first.map(|(_, report)| report.clone()).collect();
    write(format!("{name}.svg"), report::picture(scenario, &shown))?;
    write(format!("{name}.json"), serde_json::to_string(reports)?)?;
    for (label, report) in labels(runs).iter().zip(reports) {
        let label = label.replace(' ', "-");
        write(format!("{name}-{label}.csv"), report::csv(scenario, report))?;
    }
    let _ = writeln!(io::stderr(), "wrote {}", dir.join(format!("{name}.svg")).display());
    Ok(())
}

/// Set by SIGINT or SIGTERM, so that everything is taken down in order.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn cancelled_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGINT);
    heard.add(Signal::SIGTERM);
    // Threads that start later inherit the block, so the one below is the only one who hears.
    heard.thread_block().context("cannot block signals")?;
    let set = Arc::clone(&cancel);
    thread::spawn(move || {
        while heard.wait().is_ok() {
            set.store(true, Ordering::Relaxed);
        }
    });
    Ok(cancel)
}
