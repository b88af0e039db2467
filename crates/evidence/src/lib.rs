//! Commands that produce the evidence in `docs/`: figures, comparisons, tables and validation.
//!
//! They are part of the binary if it is built with its feature `evidence`, as `make build` does;
//! packages leave them out. The binary passes in its simulator and its lab as [`Players`].
//!
//! | module | contains |
//! |---|---|
//! | `document` | documents of which a command writes a part |
//! | `figures` | the figures of the papers and of the default control, in virtual time |
//! | `campaign` | random scenarios: distributions of scores, clusters of failures, the worst |
//! | `golden` | a file of results that the simulator must give again |
//! | `compare` | one scenario in the lab and in the simulator, and how they differ |
//! | `measured` | every scenario in the lab: `docs/results/measured.md` and its pictures |
//! | `validation` | single downloads in both: `docs/results/validation.md`; the default control on random links in both |
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fairweir_config::Override;
use fairweir_scenario::Scenario;
use fairweir_scenario::play::{Job, Run};
use fairweir_scenario::report::Report;

mod campaign;
mod cli;
mod compare;
mod document;
mod figures;
mod golden;
mod measured;
#[cfg(test)]
mod simulator;
mod validation;

pub use cli::Command;

/// The binary's ways to play scenarios.
pub trait Players {
    /// Reads a scenario file and applies the overrides.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid.
    fn read(&self, file: &Path, set: &[Override]) -> anyhow::Result<Scenario>;

    /// Plays all jobs in virtual time over all cores, or `parallel` at a time; the reports are in the
    /// order of the jobs.
    ///
    /// # Errors
    /// The first error of a job, or that the user interrupted it.
    fn simulate(&self, jobs: &[Job<'_>], parallel: Option<usize>) -> anyhow::Result<Vec<Report>>;

    /// Plays all runs of a scenario in the lab; the reports are in the order of the runs.
    ///
    /// # Errors
    /// The first error of a run, or that the user interrupted it.
    fn emulate(&self, scenario: &Scenario, runs: &[Run]) -> anyhow::Result<Vec<Report>>;
}

/// Runs a command.
///
/// # Errors
/// If something could not be read, played or written.
pub fn run(command: &Command, players: &dyn Players) -> anyhow::Result<()> {
    match command {
        Command::Campaign(args) => campaign::run(args, players),
        Command::Golden(args) => golden::run(args, players),
        Command::Compare(args) => compare::run(args, players),
        Command::Figures(command) => figures::run(command, players),
        Command::Evidence(args) => measured::run(&args.scenario),
        Command::ValidateTcp(args) => validation::run(&args.case),
        Command::ValidateControl(args) => validation::control::run(&args.seed),
    }
}

/// Position (counted from 1) of the least of `count` sorted values that a part `q` of all does not exceed.
fn rank(count: usize, q: f64) -> usize {
    ((count as f64 * q).ceil() as usize).max(1)
}

/// The root of the repository: the working directory.
///
/// # Errors
/// If the working directory is not the repository's root.
fn root() -> anyhow::Result<PathBuf> {
    let root = std::env::current_dir().context("cannot tell the working directory")?;
    if !root.join("scenarios").is_dir() || !root.join("docs/results/measured.md").is_file() {
        bail!("{}: not the root of the fairweir repository", root.display());
    }
    Ok(root)
}
