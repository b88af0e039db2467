//! Plays a golden with the copy of the sources whose constants can be changed.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use fairweir_config::Override;
use fairweir_evidence::{Command, Players};
use fairweir_scenario::Scenario;
use fairweir_scenario::play::{Job, Run, cores};
use fairweir_scenario::report::Report;
use fairweir_sim::engine;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

struct Simulator;

impl Players for Simulator {
    fn read(&self, _: &Path, _: &[Override]) -> anyhow::Result<Scenario> {
        anyhow::bail!("nothing is read")
    }

    fn simulate(&self, jobs: &[Job<'_>], parallel: Option<usize>) -> anyhow::Result<Vec<Report>> {
        let threads = parallel.unwrap_or_else(cores);
        Ok(engine::play_all(jobs, threads, &|_, _| {}, &AtomicBool::new(false))?)
    }

    fn emulate(&self, _: &Scenario, _: &[Run]) -> anyhow::Result<Vec<Report>> {
        anyhow::bail!("nothing is emulated")
    }
}

fn main() -> anyhow::Result<()> {
    fairweir_evidence::run(&Cli::parse().command, &Simulator)
}
