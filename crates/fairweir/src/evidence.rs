//! Runs the commands of `fairweir_evidence`, and gives them access to the simulator and the lab.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fairweir_config::Override;
use fairweir_evidence::{Command, Players};
use fairweir_scenario::Scenario;
use fairweir_scenario::play::{Job, Run};
use fairweir_scenario::report::Report;

use crate::{lab, play, sim};

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    fairweir_evidence::run(command, &Binary { cancel: play::cancelled_by_signal()? })
}

struct Binary {
    /// Set when SIGINT or SIGTERM arrives.
    cancel: Arc<AtomicBool>,
}

impl Players for Binary {
    fn read(&self, file: &Path, set: &[Override]) -> anyhow::Result<Scenario> {
        play::read_file(file, set)
    }

    fn simulate(&self, jobs: &[Job<'_>], parallel: Option<usize>) -> anyhow::Result<Vec<Report>> {
        Ok(sim::play_all(jobs, parallel, &self.cancel)?)
    }

    fn emulate(&self, scenario: &Scenario, runs: &[Run]) -> anyhow::Result<Vec<Report>> {
        lab::play_all(scenario, runs, None, Arc::clone(&self.cancel))
    }
}
