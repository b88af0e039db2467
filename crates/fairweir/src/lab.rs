//! `fairweir lab`: plays scenario files in an emulated home.

use std::env;
use std::time::Duration;

use anyhow::Context;
use fairweir_core::receiver::Control;
use fairweir_lab::{Options, run_all};
use fairweir_sim::report::Report;
use fairweir_sim::scenario::Scenario;

use crate::cli::{LabCommand, PlayArgs};
use crate::play::{self, Run};
use crate::progress::Progress;

pub(crate) fn run(command: &LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run(args) => play(args),
        LabCommand::Check(args) => play::check(args),
    }
}

fn play(args: &PlayArgs) -> anyhow::Result<()> {
    let scenario = play::read(&args.scenario)?;
    let runs = play::runs(args, &scenario)?;
    play::make_directory(args)?;
    let options = Options {
        executable: env::current_exe().context("cannot tell where this program lies")?,
        with_daemon: true,
        parallel: args.parallel,
        cancel: play::cancelled_by_signal()?,
    };
    let progress = Progress::new(play::labels(&runs), scenario.duration, Duration::ZERO);
    let played = play_all(args, &scenario, &runs, &options, &progress);
    progress.end();
    play::hand_over(args, &scenario, &runs, played?)
}

/// Seed after seed, the controls side by side.
fn play_all(
    args: &PlayArgs,
    scenario: &Scenario,
    runs: &[Run],
    options: &Options,
    progress: &Progress,
) -> anyhow::Result<Vec<Report>> {
    let seeds = runs.iter().filter(|run| run.control == runs[0].control).map(|run| run.seed);
    let place = |control: Control, seed| runs.iter().position(|r| *r == Run { control, seed });
    let mut reports = Vec::new();
    for seed in seeds {
        let scenario = Scenario { seed, ..scenario.clone() };
        let show = |p: fairweir_lab::Progress| {
            if let Some(run) = place(p.control, seed) {
                progress.show(run, p.at);
            }
        };
        for report in run_all(&scenario, &args.control, options, &show)? {
            reports.push((place(report.control, seed), report));
        }
    }
    reports.sort_by_key(|(place, _)| *place);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}
