//! The players that tests use.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::bail;
use fairweir_config::Override;
use fairweir_scenario::Scenario;
use fairweir_scenario::play::{Job, Run, cores};
use fairweir_scenario::report::Report;
use fairweir_sim::engine;

use crate::Players;

/// Plays in virtual time, without files and without the lab.
pub(crate) struct Simulator;

impl Players for Simulator {
    fn read(&self, _: &Path, _: &[Override]) -> anyhow::Result<Scenario> {
        bail!("nothing is read")
    }

    fn simulate(&self, jobs: &[Job<'_>], parallel: Option<usize>) -> anyhow::Result<Vec<Report>> {
        let threads = parallel.unwrap_or_else(cores);
        Ok(engine::play_all(jobs, threads, &|_, _| {}, &AtomicBool::new(false))?)
    }

    fn emulate(&self, _: &Scenario, _: &[Run]) -> anyhow::Result<Vec<Report>> {
        bail!("nothing is emulated")
    }
}
