//! `fairweir sim`: plays scenario files in virtual time.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fairweir_scenario::play::{Job, cores, labels, runs};
use fairweir_scenario::report::Report;
use fairweir_sim::engine::{self, PlayError};

use crate::cli::{PlayArgs, SimCommand};
use crate::play;
use crate::progress::Progress;

/// Packets that one core simulates per second, to estimate the duration.
const PACKETS_PER_S: u64 = 2_000_000;
/// An estimate of more seconds than this is announced.
const ANNOUNCED_ABOVE_S: u64 = 60;
/// Progress is shown after this time.
const QUIET: Duration = Duration::from_secs(2);

pub(crate) fn run(command: &SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(args) => play(args),
        SimCommand::Check(args) => play::check(args),
    }
}

fn play(args: &PlayArgs) -> anyhow::Result<()> {
    let scenario = &play::read(&args.scenario)?;
    let runs = runs(&args.control, &args.seed, scenario)?;
    play::make_directory(args)?;
    let cancel = play::cancelled_by_signal()?;
    let keeps_series = play::wants_series(args);
    let job = |(&run, label)| Job { scenario, run, label, keeps_series };
    let jobs: Vec<Job<'_>> = runs.iter().zip(labels(&runs)).map(job).collect();
    let reports = play_all(&jobs, args.parallel, &cancel)?;
    play::hand_over(args, scenario, &runs, reports)
}

/// Plays all jobs on all cores, or `parallel` jobs at a time. The reports are in the order of the jobs.
///
/// # Errors
/// The first error of a job; the other jobs are then ended.
pub(crate) fn play_all(
    jobs: &[Job<'_>],
    parallel: Option<usize>,
    cancel: &AtomicBool,
) -> Result<Vec<Report>, PlayError> {
    let cores = cores();
    let threads = parallel.unwrap_or(cores).clamp(1, jobs.len().max(1));
    let packets: Vec<u64> = jobs.iter().map(|job| engine::estimate(job.scenario)).collect();
    announce(packets.iter().sum(), threads.min(cores));
    let runs = jobs.iter().map(|job| (job.label.clone(), job.scenario.duration));
    let progress = Progress::new(runs.collect(), QUIET);
    let played = engine::play_all(jobs, threads, &|i, at| progress.show(i, at), cancel);
    progress.end();
    played
}

/// Announces the estimated duration before the start, if simulating `packets` will take long.
fn announce(packets: u64, cores: usize) {
    let seconds = packets / PACKETS_PER_S / cores as u64;
    if seconds > ANNOUNCED_ABOVE_S {
        let _ =
            writeln!(io::stderr(), "estimated time: {}; press Ctrl-C to stop", in_words(seconds));
    }
}

/// A duration in words, such as `about 2 h 10 min`.
fn in_words(seconds: u64) -> String {
    let minutes = seconds.div_ceil(60);
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("about {minutes} min"),
        (hours, 0) => format!("about {hours} h"),
        (hours, minutes) => format!("about {hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_are_told_in_hours_and_minutes() {
        let told = [61, 120, 3_600, 7_790].map(in_words);
        assert_eq!(told, ["about 2 min", "about 2 min", "about 1 h", "about 2 h 10 min"]);
    }
}
