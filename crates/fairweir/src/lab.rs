//! `fairweir lab`: plays scenario files in an emulated home.

use std::env;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use fairweir_config::text;
use fairweir_lab::{Options, Watchers, run_all, run_once, wait_until_idle};
use fairweir_scenario::play::{Run, labels, runs};
use fairweir_scenario::report::{self, Report};
use fairweir_scenario::{Control, Scenario};
use nix::unistd::geteuid;

use crate::cli::{LabCommand, LabRunArgs};
use crate::exit::{Exit, reworded};
use crate::play;
use crate::progress::Progress;

pub(crate) fn run(command: &LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run(args) => play(args),
        LabCommand::Check(args) => play::check(args),
    }
}

fn play(LabRunArgs { play: args, valid_only }: &LabRunArgs) -> anyhow::Result<()> {
    let scenario = play::read(&args.scenario)?;
    let runs = runs(&args.control, &args.seed, &scenario)?;
    check_root("use `fairweir sim run` with the same file")?;
    play::make_directory(args)?;
    let cancel = play::cancelled_by_signal()?;
    let repeats = match valid_only {
        true => {
            wait_until_idle(IDLE_WAIT, &cancel, |busy| {
                let line = format!("its CPU is {busy} % busy");
                let _ = writeln!(
                    io::stderr(),
                    "waiting until this machine is idle, at most a minute: {line}"
                );
            })?;
            REPEATS_FOR_VALID
        }
        false => REPEATS,
    };
    let reports = play_runs(&scenario, &runs, args.parallel, repeats, cancel)?;
    let void = reports.iter().filter(|report| !report.valid).count();
    if *valid_only && void > 0 {
        write!(text::stdout(), "{}", report::table(&reports))?;
        bail!(
            "{void} of {} plays are void: this machine is too slow or too busy; nothing was written",
            runs.len()
        );
    }
    play::hand_over(args, &scenario, &runs, reports)
}

/// Checks for root: the lab makes network namespaces and loads BPF programs. `otherwise` is the alternative.
pub(crate) fn check_root(otherwise: &str) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        let what = format!("the lab needs root: run it with sudo, or {otherwise}");
        return Err(reworded(Exit::NotPermitted, what));
    }
    Ok(())
}

/// Plays all runs: seed after seed, the controls of a seed in parallel. The reports are in the order of the runs.
///
/// # Errors
/// The error of the first run that failed.
#[cfg(feature = "evidence")]
pub(crate) fn play_all(
    scenario: &Scenario,
    runs: &[Run],
    parallel: Option<usize>,
    cancel: Arc<AtomicBool>,
) -> anyhow::Result<Vec<Report>> {
    check_root("use `fairweir sim run` with the same file")?;
    play_runs(scenario, runs, parallel, REPEATS, cancel)
}

fn play_runs(
    scenario: &Scenario,
    runs: &[Run],
    parallel: Option<usize>,
    repeats: u32,
    cancel: Arc<AtomicBool>,
) -> anyhow::Result<Vec<Report>> {
    let options = Options { repeats, ..options(parallel, None, cancel)? };
    let named = labels(runs).into_iter().map(|label| (label, scenario.duration));
    let progress = Progress::new(named.collect(), Duration::ZERO);
    let played = seed_by_seed(scenario, runs, &options, &progress);
    progress.end();
    played
}

/// Plays a scenario once, even if the machine is too slow, with a daemon that others can watch.
///
/// # Errors
/// If it cannot be played, or was cancelled.
pub(crate) fn play_watched(
    scenario: &Scenario,
    control: Control,
    watchers: Watchers,
    cancel: Arc<AtomicBool>,
) -> anyhow::Result<Report> {
    let options = options(None, Some(watchers), cancel)?;
    let progress = Progress::new(vec![(control.to_string(), scenario.duration)], Duration::ZERO);
    let played = run_once(scenario, control, &options, &|p| progress.show(0, p.at));
    progress.end();
    Ok(played?)
}

/// How often a run that is void (not valid) is repeated.
const REPEATS: u32 = 1;
/// How often a void run is repeated if only valid ones are accepted.
const REPEATS_FOR_VALID: u32 = 3;
/// How long to wait for a busy machine to become idle.
const IDLE_WAIT: Duration = Duration::from_secs(60);

fn options(
    parallel: Option<usize>,
    watchers: Option<Watchers>,
    cancel: Arc<AtomicBool>,
) -> anyhow::Result<Options> {
    let executable = env::current_exe().context("cannot determine the path of this program")?;
    Ok(Options { executable, with_daemon: true, watchers, parallel, repeats: 0, cancel })
}

fn seed_by_seed(
    scenario: &Scenario,
    runs: &[Run],
    options: &Options,
    progress: &Progress,
) -> anyhow::Result<Vec<Report>> {
    let controls: Vec<Control> =
        runs.iter().filter(|run| run.seed == runs[0].seed).map(|run| run.control).collect();
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
        for report in run_all(&scenario, &controls, options, &show)? {
            reports.push((place(report.control, seed), report));
        }
    }
    reports.sort_by_key(|(place, _)| *place);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}
