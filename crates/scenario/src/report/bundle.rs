//! How well free connections held their targets, and the cost for their stunts.

use fairweir_core::delegate::{Algorithm, Status, Tally, Verdict, Why};
use fairweir_core::units::{Rate, Span, Time};
use serde::{Deserialize, Serialize};

use super::{Run, WINDOW, WINDOW_BINS, rounded};
use crate::Bundle;

/// Records of a bundle; their size is bounded by the length of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BundleSamples {
    free: Vec<FreeSamples>,
    /// Signals of all its stunts, including those that have ended.
    pub stunts: Tally,
}

/// Records of the free connections of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FreeSamples {
    /// Sums and counts of targets in each window.
    targets: Vec<(f64, u32)>,
    gain: (f64, u32),
    verdict: Verdict,
    signals: Tally,
    apart: usize,
    apart_from: Option<Time>,
}

/// Results of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bundled {
    /// Its name.
    pub name: String,
    /// The algorithm that decided the gains.
    pub controller: &'static str,
    /// Results of each group with a target.
    pub free: Vec<BundledFree>,
    /// Signals of all stunts over the whole run.
    pub stunts: Tally,
}

/// Results of the connections of a free group; rates are per connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BundledFree {
    /// Name of the group.
    pub group: String,
    /// Mean target over the scored windows; `None` if there are none, or if the target is not known.
    #[serde(rename = "target_bps")]
    pub target: Option<Rate>,
    /// Mean rate over the same windows.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Root of the mean squared difference of rate and target over windows of 1 s, divided by the
    /// mean target.
    pub error_rms: Option<f64>,
    /// Mean part of the signals that was delegated; negative if stunts' signals were taken over.
    pub gain: Option<f64>,
    /// Its signals over the whole run.
    pub signals: Tally,
    /// Whether the bundle held the target at the end.
    pub verdict: &'static str,
    /// Why the bundle did not hold the target; `None` if it did.
    pub reason: Option<&'static str>,
    /// The most stunts that were not used for a connection, because they do not share its bottleneck.
    pub apart: usize,
    /// Time from which on there was such a stunt, in seconds.
    pub apart_from_s: Option<f64>,
    /// Times at which the target differs from the request.
    pub changes: Vec<TargetChange>,
    /// Each window, scored or not: its begin in seconds, the target if it is known, and the rate.
    #[serde(skip)]
    pub over_time: Vec<(f64, Option<Rate>, Rate)>,
}

/// A point at which the target was lowered to what is feasible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetChange {
    /// When, in seconds.
    pub at_s: f64,
    /// The requested rate.
    #[serde(rename = "requested_bps")]
    pub requested: Rate,
    /// The target that is used.
    #[serde(rename = "feasible_bps")]
    pub feasible: Rate,
    /// `slope` or `region`.
    pub why: &'static str,
}

impl BundleSamples {
    /// The empty records of a bundle with `free_groups` groups that have a target.
    pub fn new(duration: Span, free_groups: usize) -> BundleSamples {
        let windows = duration.as_nanos().div_ceil(WINDOW.as_nanos()) as usize;
        let free = FreeSamples {
            targets: vec![(0.0, 0); windows],
            gain: (0.0, 0),
            verdict: Verdict::Unknown,
            signals: Tally::default(),
            apart: 0,
            apart_from: None,
        };
        BundleSamples { free: vec![free; free_groups], stunts: Tally::default() }
    }

    /// Records the target of the `nth` free group at a tick.
    pub fn record_target(&mut self, at: Time, nth: usize, target: Rate) {
        let window = (at.as_nanos() / WINDOW.as_nanos()) as usize;
        if let Some((sum, count)) = self.free[nth].targets.get_mut(window) {
            *sum += target.as_bps() as f64;
            *count += 1;
        }
    }

    /// Records the status of a connection of the `nth` free group at a tick.
    pub fn record(&mut self, at: Time, nth: usize, status: &Status) {
        self.record_target(at, nth, status.target);
        let free = &mut self.free[nth];
        free.gain = (free.gain.0 + status.gain.as_f64(), free.gain.1 + 1);
        free.verdict = status.verdict;
        free.apart = free.apart.max(status.apart);
        if status.apart > 0 {
            free.apart_from.get_or_insert(at);
        }
    }

    /// Records all signals of a connection of the `nth` free group, when the connection is over.
    pub fn record_signals(&mut self, nth: usize, tally: Tally) {
        self.free[nth].signals = self.free[nth].signals + tally;
    }

    /// Evaluates the records; `scored` are the numbers of the windows that count.
    pub(super) fn judge(&self, run: &Run<'_>, bundle: &Bundle, scored: &[usize]) -> Bundled {
        let controller = bundle.delegation.map_or("none", |spec| {
            let named = Algorithm::ALL.iter().find(|(_, a)| *a == spec.algorithm);
            named.map_or("none", |(name, _)| *name)
        });
        let free = self.free.iter().enumerate();
        Bundled {
            name: bundle.name.clone(),
            controller,
            free: free.map(|(nth, free)| free.judge(run, bundle, nth, scored)).collect(),
            stunts: self.stunts,
        }
    }
}

impl FreeSamples {
    fn judge(&self, run: &Run<'_>, bundle: &Bundle, nth: usize, scored: &[usize]) -> BundledFree {
        let free = &bundle.free[nth];
        let flows = run.scenario.flows.iter().filter(|flow| flow.group == free.group);
        let connections: u32 = flows.map(|flow| flow.connections).sum();
        let rate = |window: usize| {
            let bins = window * WINDOW_BINS..(window + 1) * WINDOW_BINS;
            run.samples.rate(free.group, bins) / u64::from(connections.max(1))
        };
        let target = |window: usize| {
            let (sum, count) = self.targets[window];
            (count > 0).then(|| sum / f64::from(count))
        };
        let pairs: Vec<(f64, f64)> =
            scored.iter().filter_map(|&w| Some((target(w)?, rate(w).as_bps() as f64))).collect();
        let count = pairs.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let mean_target = mean(&|(target, _)| *target);
        let squares = mean(&|(target, rate)| (rate - target) * (rate - target));
        let has_target = !pairs.is_empty();
        let rates: Rate = scored.iter().map(|&w| rate(w)).sum();
        BundledFree {
            group: run.scenario.groups[free.group].name.clone(),
            target: has_target.then(|| Rate::bps(mean_target.round() as u64)),
            rate: rates / (scored.len() as u64).max(1),
            error_rms: has_target.then(|| rounded(squares.sqrt() / mean_target, 4)),
            gain: (self.gain.1 > 0).then(|| rounded(self.gain.0 / f64::from(self.gain.1), 4)),
            signals: self.signals,
            verdict: self.verdict.name(),
            reason: self.verdict.reason(),
            apart: self.apart,
            apart_from_s: self.apart_from.map(|at| rounded(at.as_secs_f64(), 3)),
            changes: changes(free),
            over_time: (0..run.scenario.duration.as_nanos() / WINDOW.as_nanos())
                .map(|w| {
                    let target = target(w as usize).map(|target| Rate::bps(target as u64));
                    ((WINDOW * w).as_secs_f64(), target, rate(w as usize))
                })
                .collect(),
        }
    }
}

fn changes(free: &crate::FreeGroup) -> Vec<TargetChange> {
    let change = |change: &fairweir_core::delegate::Change| TargetChange {
        at_s: rounded(change.at.as_secs_f64(), 3),
        requested: change.requested,
        feasible: change.feasible,
        why: match change.why {
            Why::Slope => "slope",
            Why::Region => "region",
        },
    };
    free.changes.iter().map(change).collect()
}
