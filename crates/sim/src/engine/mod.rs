//! Plays a scenario in virtual time.
//!
//! ```text
//! servers ── down line (RTT/2) ── police ── downlink ── stages of the home ── receivers
//!    └────── up line (RTT/2) ──── uplink ──────────────────────────────────────┘
//! ```
//! The controllers are those of the daemon, and the link is that of the lab; TCP and applications
//! are models. Method: every source of events (a link, a path, an enforcer, a timer) has at most
//! one deadline, the earliest is handled, and packets are handed on from element to element until
//! they wait somewhere. Flows of equal RTT share one path, so that the number of deadlines does not
//! grow with the packets under way.
//!
//! Properties, all tested: the same scenario, control and seed give the same report to the byte; a
//! packet that is sent arrives, is dropped or is under way at the end, which each run checks
//! itself; memory does not grow with the length of the run, except for the report's samples.
//!
//! Not modelled: the receiver's CPU, offloads, reassembly. Handshakes and requests are sent again
//! only if they were lost, not if they are late.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use fairweir_core::receiver::{ControllerError, Decision};
use fairweir_core::units::Time;
use fairweir_scenario::app::Outcome;
use fairweir_scenario::play::{Job, over_threads};
use fairweir_scenario::report::{BundleSamples, PoliceSamples, Report, Run, Samples};
use fairweir_scenario::{Control, Scenario};

mod connection;
mod deadlines;
mod home;
mod line;
mod measure;
mod packet;
mod transit;
mod world;

use world::World;

/// Why a scenario could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The control cannot work with the scenario.
    #[error(transparent)]
    Control(#[from] ControllerError),
    /// The scenario needs something that only the lab plays.
    #[error(
        "an agreement with the ISP, and a device behind the proxy or with a last hop that loses packets, are played in the lab only"
    )]
    LabOnly,
    /// The caller asked to stop.
    #[error("interrupted")]
    Cancelled,
}

/// Records that remain after a run.
struct Ended {
    samples: Samples,
    /// The outcome of each flow's application.
    outcomes: Vec<Outcome>,
    policed: Vec<PoliceSamples>,
    bundled: Vec<BundleSamples>,
}

impl Ended {
    fn judge(self, scenario: &Scenario, control: Control) -> Report {
        let mut run = Run {
            scenario,
            world: "sim",
            control,
            valid: true,
            samples: &self.samples,
            pings: Vec::new(),
            videos: Vec::new(),
            pages: Vec::new(),
            shorts: Vec::new(),
            policed: self.policed,
            bundled: self.bundled,
            daemon_cpu_cores: None,
            lateness: None,
        };
        for outcome in self.outcomes {
            outcome.add_to(&mut run);
        }
        run.score()
    }
}

/// Plays a scenario with one control and evaluates it; `progress` is called every second of virtual
/// time, and `cancel` is read as often.
///
/// # Errors
/// [`PlayError`] if the control cannot work with the scenario, or `cancel` was set.
pub fn play(
    scenario: &Scenario,
    control: Control,
    seed: u64,
    progress: &dyn Fn(Time),
    cancel: &AtomicBool,
) -> Result<Report, PlayError> {
    let scenario = &Scenario { seed, ..scenario.clone() };
    let mut world = World::new(scenario, control, seed)?;
    world.play(progress, cancel)?;
    Ok(world.ended().judge(scenario, control))
}

/// Plays as [`play`] does, and shows every decision of the control loop that packets meet first.
///
/// # Errors
/// [`PlayError::Control`] if the control cannot work with the scenario.
pub fn play_watched(
    scenario: &Scenario,
    control: Control,
    seed: u64,
    watch: &mut dyn FnMut(&Decision),
) -> Result<Report, PlayError> {
    let scenario = &Scenario { seed, ..scenario.clone() };
    let mut world = World::new(scenario, control, seed)?;
    world.set_watcher(Some(Box::new(watch)));
    world.play(&|_| {}, &AtomicBool::new(false))?;
    Ok(world.ended().judge(scenario, control))
}

/// Plays jobs on several threads, the longest first; the reports are in the order of the jobs. For
/// each job, by its index, `progress` gets what [`play`] reports, and its end.
///
/// # Errors
/// The first [`PlayError`] of a job; it sets `cancel`, which ends the others.
pub fn play_all(
    jobs: &[Job<'_>],
    threads: usize,
    progress: &(dyn Fn(usize, Time) + Sync),
    cancel: &AtomicBool,
) -> Result<Vec<Report>, PlayError> {
    let error = Mutex::new(None);
    let one = |i: usize| {
        let Job { scenario, run, keeps_series, .. } = jobs[i];
        match play(scenario, run.control, run.seed, &|at| progress(i, at), cancel) {
            Ok(mut report) => {
                progress(i, scenario.end());
                report.series = report.series.filter(|_| keeps_series);
                Some(report)
            }
            Err(e) => {
                // The other jobs end because of this error, so their errors are not the cause.
                error.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                cancel.store(true, Ordering::Relaxed);
                None
            }
        }
    };
    // Long jobs come first, so that no core plays alone at the end.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&i| Reverse(estimate(jobs[i].scenario)));
    let played = over_threads(&order, threads.clamp(1, jobs.len().max(1)), one);
    match error.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => Err(error),
        None => Ok(played.into_iter().flatten().collect()),
    }
}

/// About how many packets a run has to carry.
pub fn estimate(scenario: &Scenario) -> u64 {
    let packet = u64::from(scenario.link.mtu) * 8;
    let rate = scenario.link.capacity.max(scenario.end()).as_bps();
    let seconds = scenario.duration.as_nanos() / 1_000_000_000 + 1;
    (rate / packet + 1).saturating_mul(seconds)
}

#[cfg(test)]
mod tests;
