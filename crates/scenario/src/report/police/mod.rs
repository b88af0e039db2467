//! Records of the policing points, and their evaluation.
//!
//! Rates are computed over windows of 250 ms, as in the paper, which begin every 50 ms. The time from
//! an event of the aggregate (one of its flows starts, stops or changes its demand, or the link
//! changes its rate) to `settle` after it is *start-up*; the time that follows is *steady*. A window
//! that touches both belongs to the start-up. The time before its first flow starts does not count.

use fairweir_core::units::{Bytes, Rate, Span, Time};
use serde::Serialize;

use super::rounded;
use crate::{Demand, Kind, Scenario};

mod fairness;

use fairness::Fairness;

/// Resolution of the records.
const BIN: Span = Span::millis(50);
/// Number of bins in a window. Source: BC-PQP §6.1.
const WINDOW_BINS: usize = 5;
/// Spans of the envelope, in bins: 50 ms to 40 s.
const ENVELOPE_BINS: [usize; 10] = [1, 2, 5, 10, 20, 40, 100, 200, 400, 800];

/// Records of a policing point; their size is bounded by the length of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct PoliceSamples {
    /// Index of the point.
    point: usize,
    /// Bytes that passed in each bin.
    bins: Vec<u64>,
    phases: Vec<Phase>,
    flows: Vec<FlowSamples>,
    /// Whether the daemon decides, which counts all flows together, as if they were the first one.
    is_elsewhere: bool,
    fairness: Fairness,
}

/// A daemon's counters of a subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// L2 bytes that passed.
    pub passed: Bytes,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Packets that were marked.
    pub marked: u64,
}

/// The phase to which a bin belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Before,
    StartUp,
    Steady,
}

/// Counts of a flow.
#[derive(Clone, Debug, Default, PartialEq)]
struct FlowSamples {
    passed: u64,
    marked: u64,
    dropped: u64,
    steady_bytes: u64,
    steady_passed: u64,
    steady_dropped: u64,
}

/// Results of a policing point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Policed {
    /// Its name.
    pub name: String,
    /// The algorithm that enforced the rate.
    pub algorithm: &'static str,
    /// The rate that it enforces.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Rate that passed in the steady time, divided by the enforced rate; `None` without steady time.
    pub rate_ratio: Option<f64>,
    /// Rates in windows of 250 ms in the steady time, divided by the enforced rate.
    pub steady: Option<Windows>,
    /// The same for start-ups.
    pub start_up: Option<Windows>,
    /// Packets that passed, marked or not, over the whole run.
    pub passed: u64,
    /// Packets of these that were marked.
    pub marked: u64,
    /// Packets that were dropped, over the whole run.
    pub dropped: u64,
    /// Packets dropped divided by all packets, over the whole run; `None` without a packet.
    pub loss: Option<f64>,
    /// The same for the steady time.
    pub loss_steady: Option<f64>,
    /// Jain's index of the flows' rates per connection in the steady time, each while it is active,
    /// without flows that want little by nature (pings); `None` for fewer than two flows.
    pub jain: Option<f64>,
    /// Results of each flow, in the order of the scenario.
    pub flows: Vec<PolicedFlow>,
    /// Rates in consecutive windows of 250 ms from the begin of the run, divided by the enforced
    /// rate; for pictures, like the fields that follow.
    #[serde(skip)]
    pub over_time: Vec<f64>,
    /// Which of these windows are steady.
    #[serde(skip)]
    pub is_steady: Vec<bool>,
    /// Jain's index of the endless flows in each steady window.
    #[serde(skip)]
    pub jains: Vec<f64>,
    /// For several spans in seconds: the least and the most that passed in any such span of the
    /// steady time, relative to what the rate carries in it.
    #[serde(skip)]
    pub envelope: Vec<(f64, f64, f64)>,
}

/// Rates in windows of 250 ms, divided by the enforced rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Windows {
    /// 99 of 100 windows had no more than this.
    pub p99: f64,
    /// The highest of all windows.
    pub max: f64,
}

/// Results of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicedFlow {
    /// Index in the scenario.
    pub flow: usize,
    /// Name of its group.
    pub group: String,
    /// Mean rate over the steady time in which it was active; `None` if there is none.
    #[serde(rename = "rate_bps")]
    pub rate: Option<Rate>,
    /// Packets dropped divided by all its packets, over the whole run; `None` without a packet.
    pub loss: Option<f64>,
}

impl PoliceSamples {
    /// The empty records of a point of a scenario.
    pub fn new(scenario: &Scenario, point: usize) -> PoliceSamples {
        let count = (scenario.duration.as_nanos() / BIN.as_nanos()) as usize;
        let flows = vec![FlowSamples::default(); scenario.police[point].flows.len()];
        let phases = phases(scenario, point, count);
        let fairness = Fairness::new(endless(scenario, point));
        PoliceSamples { point, bins: vec![0; count], phases, flows, is_elsewhere: false, fairness }
    }

    /// A packet of the point's flow `member` went on. Packets after the end are not counted.
    pub fn record_pass(&mut self, at: Time, member: usize, size: Bytes) {
        let bin = (at.as_nanos() / BIN.as_nanos()) as usize;
        let Some(bytes) = self.bins.get_mut(bin) else { return };
        *bytes += size.as_u64();
        let flow = &mut self.flows[member];
        flow.passed += 1;
        if self.phases[bin] == Phase::Steady {
            flow.steady_passed += 1;
            flow.steady_bytes += size.as_u64();
            self.fairness.record(bin / WINDOW_BINS, member, size.as_u64());
        }
    }

    /// A packet arrived on which the daemon will decide.
    pub fn record_offer(&mut self, at: Time, member: usize) {
        let bin = (at.as_nanos() / BIN.as_nanos()) as usize;
        let Some(phase) = self.phases.get(bin) else { return };
        self.flows[member].passed += 1;
        self.flows[member].steady_passed += u64::from(*phase == Phase::Steady);
    }

    /// Adds a daemon's counters, as read at some instants, in order.
    pub fn record_elsewhere(&mut self, counted: &[(Time, Counted)]) {
        self.is_elsewhere = true;
        let mut all = self.flows.iter().fold(FlowSamples::default(), |sum, flow| FlowSamples {
            passed: sum.passed + flow.passed,
            steady_passed: sum.steady_passed + flow.steady_passed,
            ..sum
        });
        for pair in counted.windows(2) {
            let [(from, before), (to, after)] = pair else { continue };
            // Counts everything between two readings as at the middle.
            let bin = ((from.as_nanos() + to.as_nanos()) / 2 / BIN.as_nanos()) as usize;
            let Some(bytes) = self.bins.get_mut(bin) else { continue };
            let passed = after.passed.saturating_sub(before.passed).as_u64();
            let dropped = after.dropped.saturating_sub(before.dropped);
            *bytes += passed;
            if self.phases[bin] == Phase::Steady {
                all.steady_bytes += passed;
                all.steady_passed = all.steady_passed.saturating_sub(dropped);
                all.steady_dropped += dropped;
            }
            all.passed = all.passed.saturating_sub(dropped);
            all.dropped += dropped;
            all.marked += after.marked.saturating_sub(before.marked);
        }
        self.flows.fill(FlowSamples::default());
        self.flows[0] = all;
    }

    /// A packet went on with a mark.
    pub fn record_mark(&mut self, at: Time, member: usize, size: Bytes) {
        self.record_pass(at, member, size);
        self.flows[member].marked += 1;
    }

    /// A packet was dropped.
    pub fn record_drop(&mut self, at: Time, member: usize, _size: Bytes) {
        let bin = (at.as_nanos() / BIN.as_nanos()) as usize;
        let Some(phase) = self.phases.get(bin) else { return };
        self.flows[member].dropped += 1;
        if *phase == Phase::Steady {
            self.flows[member].steady_dropped += 1;
        }
    }

    /// Evaluates the records.
    pub(super) fn judge(&self, scenario: &Scenario) -> Policed {
        let police = &scenario.police[self.point];
        let rate = police.rate();
        let sum = |of: fn(&FlowSamples) -> u64| self.flows.iter().map(of).sum::<u64>();
        let steady_bins = self.phases.iter().filter(|phase| **phase == Phase::Steady).count();
        let steady = Bytes::new(sum(|f| f.steady_bytes));
        let ratio = |bytes: Bytes| {
            let rate_then = Rate::from_volume(bytes, BIN * steady_bins as u64);
            rounded(rate_then.as_bps() as f64 / rate.as_bps() as f64, 4)
        };
        let (passed, dropped) = (sum(|f| f.passed), sum(|f| f.dropped));
        Policed {
            name: police.name.clone(),
            algorithm: police.algorithm.name(),
            rate,
            rate_ratio: (steady_bins > 0).then(|| ratio(steady)),
            steady: self.windows(rate, Phase::Steady),
            start_up: self.windows(rate, Phase::StartUp),
            passed,
            marked: sum(|f| f.marked),
            dropped,
            loss: loss(passed, dropped),
            loss_steady: loss(sum(|f| f.steady_passed), sum(|f| f.steady_dropped)),
            jain: self.jain(scenario),
            flows: self.flow_rates(scenario),
            over_time: self
                .bins
                .chunks_exact(WINDOW_BINS)
                .map(|bins| by_rate(bins, rate))
                .collect(),
            is_steady: self.phases.chunks_exact(WINDOW_BINS).map(is_steady).collect(),
            jains: self.fairness.indices(),
            envelope: self.envelope(rate),
        }
    }

    /// See [`Policed::envelope`].
    fn envelope(&self, rate: Rate) -> Vec<(f64, f64, f64)> {
        let steady: Vec<u64> = self
            .bins
            .iter()
            .zip(&self.phases)
            .rev()
            .take_while(|(_, phase)| **phase == Phase::Steady)
            .map(|(bytes, _)| *bytes)
            .collect();
        let of = |bins: usize| {
            let ratios = steady.windows(bins).map(|window| by_rate(window, rate));
            let (least, most) = ratios.fold((f64::MAX, 0.0), |(least, most): (f64, f64), ratio| {
                (least.min(ratio), most.max(ratio))
            });
            ((BIN * bins as u64).as_secs_f64(), least, most)
        };
        ENVELOPE_BINS.into_iter().filter(|&bins| bins <= steady.len()).map(of).collect()
    }

    /// Windows that lie entirely in one phase; for the start-up, windows that touch it.
    fn windows(&self, rate: Rate, phase: Phase) -> Option<Windows> {
        let span = BIN * WINDOW_BINS as u64;
        let phases = self.phases.windows(WINDOW_BINS);
        let of_phase = |phases: &[Phase]| match phase {
            Phase::StartUp => phases.contains(&Phase::StartUp),
            phase => phases.iter().all(|p| *p == phase),
        };
        let bins = self.bins.windows(WINDOW_BINS).zip(phases);
        let bytes = bins.filter(|(_, phases)| of_phase(phases)).map(|(bins, _)| bins.iter().sum());
        let mut bytes: Vec<u64> = bytes.collect();
        bytes.sort_unstable();
        let ratio = |bytes: u64| {
            let rate_then = Rate::from_volume(Bytes::new(bytes), span);
            rounded(rate_then.as_bps() as f64 / rate.as_bps() as f64, 3)
        };
        let rank = (bytes.len() * 99).div_ceil(100).max(1);
        Some(Windows { p99: ratio(*bytes.get(rank - 1)?), max: ratio(*bytes.last()?) })
    }

    /// How long a flow of the point was active in the steady time.
    fn active(&self, scenario: &Scenario, member: usize) -> Span {
        let flow = &scenario.flows[scenario.police[self.point].flows[member]];
        let is_active = |bin: usize| {
            let at = Time::ZERO + BIN * bin as u64;
            at >= flow.start && at < flow.stop && self.phases[bin] == Phase::Steady
        };
        BIN * (0..self.phases.len()).filter(|&bin| is_active(bin)).count() as u64
    }

    fn rate_of(&self, scenario: &Scenario, member: usize) -> Option<Rate> {
        if self.is_elsewhere {
            return None;
        }
        let active = self.active(scenario, member);
        let bytes = Bytes::new(self.flows[member].steady_bytes);
        (active > Span::ZERO).then(|| Rate::from_volume(bytes, active))
    }

    fn jain(&self, scenario: &Scenario) -> Option<f64> {
        let members = scenario.police[self.point].flows.iter().enumerate();
        let rates: Vec<f64> = members
            .filter(|(_, flow)| !matches!(scenario.flows[**flow].kind, Kind::Ping { .. }))
            .filter_map(|(member, &flow)| {
                let rate = self.rate_of(scenario, member)?.as_bps() as f64;
                Some(rate / f64::from(scenario.flows[flow].connections))
            })
            .collect();
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let enough = rates.len() > 1 && squares > 0.0;
        enough.then(|| rounded(sum * sum / (rates.len() as f64 * squares), 4))
    }

    fn flow_rates(&self, scenario: &Scenario) -> Vec<PolicedFlow> {
        let members = scenario.police[self.point].flows.iter().enumerate();
        let judged = members.map(|(member, &flow)| PolicedFlow {
            flow,
            group: scenario.groups[scenario.flows[flow].group].name.clone(),
            rate: self.rate_of(scenario, member),
            loss: loss(self.flows[member].passed, self.flows[member].dropped)
                .filter(|_| !self.is_elsewhere),
        });
        judged.collect()
    }
}

/// Rate that passed in some bins, divided by the enforced rate.
fn by_rate(bins: &[u64], rate: Rate) -> f64 {
    let bytes = Bytes::new(bins.iter().sum());
    Rate::from_volume(bytes, BIN * bins.len() as u64).as_bps() as f64 / rate.as_bps() as f64
}

fn is_steady(phases: &[Phase]) -> bool {
    phases.iter().all(|phase| *phase == Phase::Steady)
}

/// The number of connections of each flow of a point; `None` unless it always has more to send.
fn endless(scenario: &Scenario, point: usize) -> Vec<Option<u32>> {
    let flows = scenario.police[point].flows.iter().map(|&flow| &scenario.flows[flow]);
    flows
        .map(|flow| {
            let wants = flow.demands.last().map(|step| flow.demand_at(step.at));
            (wants == Some(Demand::Endless)).then_some(flow.connections)
        })
        .collect()
}

fn loss(passed: u64, dropped: u64) -> Option<f64> {
    let all = passed + dropped;
    (all > 0).then(|| rounded(dropped as f64 / all as f64, 6))
}

/// The phase of each bin of a point.
fn phases(scenario: &Scenario, point: usize, count: usize) -> Vec<Phase> {
    let flows = || scenario.police[point].flows.iter().map(|&flow| &scenario.flows[flow]);
    let first = flows().map(|flow| flow.start).min().unwrap_or(scenario.end());
    let steps = scenario.link.capacity.steps().iter().skip(1).map(|step| step.at);
    let changes = flows().flat_map(|flow| {
        let demands = flow.demands.iter().skip(1).map(|step| step.at);
        [flow.start, flow.stop].into_iter().chain(demands)
    });
    let mut phases = vec![Phase::Steady; count];
    for at in changes.chain(steps).filter(|at| *at < scenario.end()) {
        let begin = (at.as_nanos() / BIN.as_nanos()) as usize;
        let end = ((at + scenario.settle).as_nanos().div_ceil(BIN.as_nanos()) as usize).min(count);
        phases[begin.min(end)..end].fill(Phase::StartUp);
    }
    let before = (first.as_nanos() / BIN.as_nanos()) as usize;
    phases[..before.min(count)].fill(Phase::Before);
    phases
}

#[cfg(test)]
mod tests;
