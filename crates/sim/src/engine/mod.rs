//! Plays a scenario in virtual time.
//!
//! ```text
//! servers ── down line (RTT/2) ── police ── downlink ── stages of the home ── receivers
//!    └────── up line (RTT/2) ──── uplink ──────────────────────────────────────┘
//! ```
//! The same controllers as in the daemon, the same link as in the lab; TCP and applications are
//! models. The method: every source of events (a link, a path, an enforcer, a timer) has at most
//! one deadline, the earliest is handled, and packets go on from hand to hand until they wait
//! somewhere. Flows of equal RTT share one path, so that the number of deadlines does not grow
//! with the packets under way.
//!
//! Properties, all tested: the same scenario, control and seed give the same report to the byte; a
//! packet that is sent arrives, is dropped or is under way at the end, which each run checks for
//! itself; what is kept does not grow with the length of the run, but for the report's samples.
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
    /// What only the lab plays.
    #[error(
        "a device behind the proxy, or with a last hop that loses packets, is played in the lab only"
    )]
    LabOnly,
    /// The caller asked for it.
    #[error("interrupted")]
    Cancelled,
}

/// What is left after a run.
struct Ended {
    samples: Samples,
    /// What each flow's application has to say.
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

/// Plays a scenario with one control and judges how it went; `progress` hears every second of
/// virtual time, and `cancel` is looked at as often.
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

/// Plays jobs on several threads, the longest first; the reports are in the order of the jobs.
/// `progress` hears of each job, by its index, what [`play`] tells of one, and its end.
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
                // The others end because of it, and are not what went wrong.
                error.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                cancel.store(true, Ordering::Relaxed);
                None
            }
        }
    };
    // The long ones first, so that no core plays alone at the end.
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
