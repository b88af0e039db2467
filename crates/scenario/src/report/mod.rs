//! How well the groups got their fair shares, by packets that left the link and were not dropped behind it.
//!
//! A world (lab or simulator) records [`Samples`]; [`Run::score`] compares them with the weighted
//! max-min fair shares of the true capacity and demands and makes a [`Report`]. All results are in
//! windows of one second. A window that overlaps the time from an event to `settle` after it is
//! *transient*; the other windows are *scored*; windows without any demand are neither. While the
//! demand of a group is unknown there are no fair shares to compare with. The schema of the JSON
//! form is in `docs/research/simulator.md`.

use fairweir_core::units::{Bytes, Rate, Span, Time};
use serde::Serialize;

use crate::{Control, Scenario};

mod apps;
mod bundle;
pub mod chart;
mod histogram;
mod picture;
mod police;
mod svg;
mod table;

pub use apps::{
    Pages, Ping, PingSamples, Rung, ShortSamples, Shorts, Video, VideoSamples, WebSamples,
};
pub use bundle::{BundleSamples, Bundled, BundledFree, TargetChange};
pub use histogram::Histogram;
pub use picture::picture;
pub use police::{Counted, PoliceSamples, Policed, PolicedFlow, Windows};
pub use table::{aligned, csv, table};

/// Resolution of the recorded rates.
pub const BIN: Span = Span::millis(200);
/// Number of bins in a window of one second.
const WINDOW_BINS: usize = 5;
/// A group is right while its rate differs from its fair share by at most this part of the share.
const RIGHT_WITHIN_PERCENT: u64 = 10;
/// The same tolerance relative to the capacity, for groups with a tiny share.
const SLACK_PERCENT: u64 = 1;

/// Records taken at the link and behind it; their size is bounded by the length of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    groups: usize,
    end: Time,
    /// Bytes that left and were not dropped by a class behind the link, per bin and group. A class
    /// may also drop a packet that left in an earlier bin, so a single bin may be negative.
    bins: Vec<Vec<i64>>,
    /// Sojourn times of the packets that left, per window.
    sojourns: Vec<Histogram>,
    drops: u64,
    own_drops: u64,
}

impl Samples {
    /// The records before the run.
    pub fn new(scenario: &Scenario) -> Samples {
        let windows = scenario.duration.as_nanos().div_ceil(WINDOW.as_nanos()) as usize;
        let groups = scenario.groups.len();
        Samples {
            groups,
            end: scenario.end(),
            bins: vec![vec![0; groups]; windows * WINDOW_BINS],
            sojourns: vec![Histogram::default(); windows],
            drops: 0,
            own_drops: 0,
        }
    }

    /// A packet left the link. Packets that leave after the end of the run are not counted.
    pub fn record_departure(&mut self, at: Time, group: usize, size: Bytes, sojourn: Span) {
        self.record_arrival(at, group, size);
        self.record_sojourn(at, sojourn);
    }

    /// A packet that had left the link arrived behind a class that may drop packets.
    pub fn record_arrival(&mut self, at: Time, group: usize, size: Bytes) {
        if at < self.end {
            self.count(at, group, size.as_u64() as i64);
        }
    }

    /// A packet left the link, but counts only when it arrives.
    pub fn record_sojourn(&mut self, at: Time, sojourn: Span) {
        if at >= self.end {
            return;
        }
        if let Some(window) = self.sojourns.get_mut((at.as_nanos() / WINDOW.as_nanos()) as usize) {
            window.record(sojourn);
        }
    }

    /// The link dropped a packet because its buffer was full.
    pub fn record_drop(&mut self) {
        self.drops += 1;
    }

    /// A class of the control under test dropped a packet that had left the link: it counts as not delivered.
    pub fn record_own_drop(&mut self, at: Time, group: usize, size: Bytes) {
        if at < self.end {
            self.own_drops += 1;
            self.count(at, group, -(size.as_u64() as i64));
        }
    }

    fn count(&mut self, at: Time, group: usize, bytes: i64) {
        if let Some(bin) = self.bins.get_mut((at.as_nanos() / BIN.as_nanos()) as usize) {
            bin[group] += bytes;
        }
    }

    /// Rate of a group over some bins; zero over none.
    fn rate(&self, group: usize, bins: std::ops::Range<usize>) -> Rate {
        let span = BIN * bins.len() as u64;
        Rate::from_volume(self.bytes(group, bins), span)
    }

    /// Bytes of a group that were delivered over the whole run.
    fn delivered(&self, group: usize) -> Bytes {
        self.bytes(group, 0..self.bins.len())
    }

    fn bytes(&self, group: usize, bins: std::ops::Range<usize>) -> Bytes {
        let bytes: i64 = self.bins[bins].iter().map(|bin| bin[group]).sum();
        Bytes::new(bytes.max(0) as u64)
    }

    /// Packets dropped by the full buffer, divided by packets dropped or let through.
    fn loss(&self) -> Option<f64> {
        let departures: u64 = self.sojourns.iter().map(Histogram::count).sum();
        let all = self.drops + departures;
        (all > 0).then(|| self.drops as f64 / all as f64)
    }

    fn rates(&self, bins: std::ops::Range<usize>) -> Vec<Rate> {
        (0..self.groups).map(|g| self.rate(g, bins.clone())).collect()
    }
}

/// A scenario that was played, before it is judged.
#[derive(Clone, Debug)]
pub struct Run<'s> {
    /// The scenario that was played.
    pub scenario: &'s Scenario,
    /// Where it was played: `lab` or `sim`.
    pub world: &'static str,
    /// The control with which it was played.
    pub control: Control,
    /// Whether the world kept time well enough to be believed.
    pub valid: bool,
    /// Records of the packets that left the link.
    pub samples: &'s Samples,
    /// Measurements of the pings.
    pub pings: Vec<PingSamples>,
    /// Quality of the films as watched.
    pub videos: Vec<VideoSamples>,
    /// How long the web pages took.
    pub pages: Vec<WebSamples>,
    /// How long the short downloads took.
    pub shorts: Vec<ShortSamples>,
    /// Records of the policing points.
    pub policed: Vec<PoliceSamples>,
    /// Records of the bundles.
    pub bundled: Vec<BundleSamples>,
    /// How many cores the daemon used; `None` without a daemon.
    pub daemon_cpu_cores: Option<f64>,
    /// How late the link element was; `None` in virtual time.
    pub lateness: Option<Lateness>,
}

/// How late packets left the emulated link, compared with the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lateness {
    /// Median in ms.
    pub p50_ms: f64,
    /// 99th percentile in ms.
    pub p99_ms: f64,
    /// Maximum in ms.
    pub max_ms: f64,
}

/// Results of a run: one object of the output of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// `lab` or `sim`.
    pub world: &'static str,
    /// The control with which it was played.
    pub control: Control,
    /// Seed of all randomness.
    pub seed: u64,
    /// Whether the world kept time well enough to be believed.
    pub valid: bool,
    /// The results.
    pub summary: Summary,
    /// How late the link element was; only in the lab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
    /// Rates over time; only if wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Vec<Point>>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Half the L1 distance between rates and fair shares, divided by the capacity, averaged over
    /// the scored windows whose fair shares are known; `None` if there are none.
    pub allocation_error: Option<f64>,
    /// The same over the transient windows.
    pub transient_error: Option<f64>,
    /// For each event after which the fair shares are known, the time until all groups had their shares.
    pub right_after_s: Vec<RightAfter>,
    /// Volume delivered divided by capacity, over the scored windows in which the demand suffices;
    /// `None` if there are none.
    pub utilization: Option<f64>,
    /// The lowest utilization over any [`LEAST_WINDOWS`] seconds in a row in which the demand reached the
    /// capacity, beginning the same number of seconds after the demand did; `None` if there are none.
    pub least_utilization: Option<f64>,
    /// Volume delivered divided by capacity over the whole run, whatever the demand was.
    pub link_utilization: f64,
    /// Queueing delay in the ISP over the scored windows; `None` if no packet left.
    pub isp_queue_ms: Option<QueueDelay>,
    /// Packets that the ISP's full buffer dropped, over the whole run.
    pub isp_drops: u64,
    /// `isp_drops` divided by the sum of itself and the packets that left the link; `None` without a packet.
    pub isp_loss: Option<f64>,
    /// Packets that the control's own classes dropped behind the link, over the whole run; the
    /// other figures do not count them as delivered. `None` where the number is not known.
    pub own_drops: Option<u64>,
    /// How many cores the daemon used; `None` without a daemon.
    pub daemon_cpu_cores: Option<f64>,
    /// Averages over the scored windows, in the order of the scenario.
    pub groups: Vec<GroupRate>,
    /// The same averages for each device, or for the only host.
    pub hosts: Vec<HostRate>,
    /// Measurements of the pings.
    pub pings: Vec<Ping>,
    /// Quality of the films as watched.
    pub videos: Vec<Video>,
    /// How long the web pages took.
    pub pages: Vec<Pages>,
    /// How long the short downloads took.
    pub shorts: Vec<Shorts>,
    /// Results of the policing points; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policed: Vec<Policed>,
    /// Results of the bundles; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bundled: Vec<Bundled>,
}

/// The time it took until all groups had their shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RightAfter {
    /// The event.
    pub event: String,
    /// When it happened, in seconds.
    pub at_s: f64,
    /// Seconds until the end of the first second in which every group was right, and stayed so
    /// until the next event; `None` if there was none.
    pub seconds: Option<f64>,
}

/// Queueing delay in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueDelay {
    /// Mean over all packets.
    pub mean: f64,
    /// 99 of 100 packets waited no longer than this.
    pub p99: f64,
    /// The longest wait.
    pub max: f64,
}

/// A group's rate and its fair share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRate {
    /// Its name.
    pub name: String,
    /// Its mean rate.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Its fair share; `None` where it is unknown.
    #[serde(rename = "fair_bps")]
    pub fair: Option<Rate>,
    /// Volume that it got over the whole run, in L2 bytes.
    #[serde(rename = "delivered_bytes")]
    pub delivered: Bytes,
}

/// A host's rate, and how its groups divided it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostRate {
    /// Name of its device; `None` without devices.
    pub device: Option<String>,
    /// The rate that its groups got together.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Half the L1 distance between the rates of its groups and the fair division of the host's
    /// rate, divided by that rate; averaged over the scored windows in which the host got something
    /// and the demands of its groups are known. `None` if there are none.
    pub division_error: Option<f64>,
}

/// A group's rate in the bin that begins at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Begin of the bin in seconds.
    pub t_s: f64,
    /// Name of the group.
    pub group: String,
    /// Rate at which its packets left the link.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
}

const WINDOW: Span = Span::nanos(BIN.as_nanos() * WINDOW_BINS as u64);

/// A window of one second with its rates and fair shares.
struct Window {
    begin: Time,
    transient: bool,
    rates: Vec<Rate>,
    /// Fair shares; `None` while they cannot be known.
    fair: Option<Vec<Rate>>,
    capacity: Rate,
    /// Whether the groups demand at least the link's capacity.
    full: bool,
}

impl Window {
    fn error(&self) -> Option<f64> {
        Some(distance(&self.rates, self.fair.as_ref()?, self.capacity))
    }

    /// The error of some groups, with the sum of their rates in place of the capacity.
    fn division_error(&self, scenario: &Scenario, groups: &[usize]) -> Option<f64> {
        let rates: Vec<Rate> = groups.iter().map(|&group| self.rates[group]).collect();
        let total: Rate = rates.iter().copied().sum();
        let fair = scenario.division_at(groups, total, self.begin)?;
        (total > Rate::ZERO).then(|| distance(&rates, &fair, total))
    }
}

/// See [`Summary::least_utilization`].
fn least_utilization(windows: &[Window]) -> Option<f64> {
    let used = |windows: &[Window]| {
        let delivered: u64 = windows.iter().flat_map(|w| &w.rates).map(|r| r.as_bps()).sum();
        let capacity: u64 = windows.iter().map(|w| w.capacity.as_bps()).sum();
        delivered as f64 / capacity.max(1) as f64
    };
    let follows = |a: &Window, b: &Window| a.full && b.full && b.begin == a.begin + WINDOW;
    let runs = windows.chunk_by(follows).filter(|run| run[0].full);
    let least = runs.filter_map(|run| {
        let late = run.get(LEAST_WINDOWS..)?;
        late.windows(LEAST_WINDOWS).map(used).reduce(f64::min)
    });
    least.reduce(f64::min).map(|least| rounded(least, 4))
}

/// Number of seconds over which the least utilization is taken.
pub const LEAST_WINDOWS: usize = 3;

impl Run<'_> {
    /// Evaluates the run.
    pub fn score(&self) -> Report {
        let windows = self.windows();
        let (transient, scored): (Vec<&Window>, Vec<&Window>) =
            windows.iter().partition(|w| w.transient);
        let full = || scored.iter().filter(|w| w.full);
        let delivered: u64 = full().flat_map(|w| &w.rates).map(|r| r.as_bps()).sum();
        let capacity: u64 = full().map(|w| w.capacity.as_bps()).sum();
        let summary = Summary {
            allocation_error: mean(scored.iter().filter_map(|w| w.error())),
            transient_error: mean(transient.iter().filter_map(|w| w.error())),
            right_after_s: self.right_after(),
            utilization: (capacity > 0).then(|| rounded(delivered as f64 / capacity as f64, 4)),
            least_utilization: least_utilization(&windows),
            link_utilization: rounded(self.link_utilization(), 4),
            isp_queue_ms: self.queue(&scored),
            isp_drops: self.samples.drops,
            isp_loss: self.samples.loss().map(|ratio| rounded(ratio, 6)),
            own_drops: (self.world == "sim").then_some(self.samples.own_drops),
            daemon_cpu_cores: self.daemon_cpu_cores.map(|cores| rounded(cores, 5)),
            groups: self.group_rates(&scored),
            hosts: self.host_rates(&scored),
            pings: self.pings.iter().map(|p| p.judge(self.name(p.group))).collect(),
            videos: self.videos.iter().map(|v| v.judge(self.name(v.group))).collect(),
            pages: self.pages.iter().map(|p| p.judge(self.name(p.group))).collect(),
            shorts: self.shorts.iter().map(|s| s.judge(self.name(s.group))).collect(),
            policed: self.policed.iter().map(|p| p.judge(self.scenario)).collect(),
            bundled: self.bundles(&scored),
        };
        Report {
            scenario: self.scenario.name.clone(),
            world: self.world,
            control: self.control,
            seed: self.scenario.seed,
            valid: self.valid,
            summary,
            lateness: self.lateness,
            series: Some(self.series()),
        }
    }

    fn bundles(&self, scored: &[&Window]) -> Vec<Bundled> {
        let number = |w: &&Window| (w.begin.as_nanos() / WINDOW.as_nanos()) as usize;
        let scored: Vec<usize> = scored.iter().map(number).collect();
        let pairs = self.bundled.iter().zip(&self.scenario.bundles);
        pairs.map(|(samples, bundle)| samples.judge(self, bundle, &scored)).collect()
    }

    fn name(&self, group: usize) -> &str {
        &self.scenario.groups[group].name
    }

    fn link_utilization(&self) -> f64 {
        let carried = self.scenario.link.capacity.volume(self.scenario.end());
        let delivered: Bytes = (0..self.samples.groups).map(|g| self.samples.delivered(g)).sum();
        delivered.as_u64() as f64 / carried.as_u64().max(1) as f64
    }

    /// The whole seconds of the run with demand.
    fn windows(&self) -> Vec<Window> {
        let scenario = self.scenario;
        let events = scenario.events();
        let whole = scenario.duration.as_nanos() / WINDOW.as_nanos();
        let window = |i: u64| {
            let begin = Time::ZERO + WINDOW * i;
            let end = begin + WINDOW;
            let changes = events.iter().any(|e| e.at < end && begin < e.at + scenario.settle);
            let transient = changes || end <= scenario.control.start;
            let bin = i as usize * WINDOW_BINS;
            let capacity = scenario.capacity_at(begin);
            let fair = scenario.fair_shares_at(begin);
            let full = scenario.demand_suffices_at(begin);
            let rates = self.samples.rates(bin..bin + WINDOW_BINS);
            Window { begin, transient, rates, fair, capacity, full }
        };
        let wanted =
            |w: &Window| w.fair.as_ref().is_none_or(|fair| fair.iter().any(|&f| f > Rate::ZERO));
        (0..whole).map(window).filter(wanted).collect()
    }

    fn right_after(&self) -> Vec<RightAfter> {
        let events = self.scenario.events();
        let ends = events.iter().skip(1).map(|e| e.at).chain([self.scenario.end()]);
        let judge = |(event, until): (&crate::Event, Time)| {
            let first = event.at.as_nanos().div_ceil(BIN.as_nanos()) as usize;
            let last = (until.as_nanos() / BIN.as_nanos()) as usize;
            self.scenario.fair_shares_at(event.at)?;
            let is_right = |begin: usize| {
                // Between events only a trace changes the shares.
                let at = Time::ZERO + BIN * begin as u64;
                let Some(fair) = self.scenario.fair_shares_at(at) else { return false };
                let capacity = self.scenario.capacity_at(at);
                let rates = self.samples.rates(begin..begin + WINDOW_BINS);
                rates.iter().zip(&fair).all(|(&rate, &fair)| is_right(rate, fair, capacity))
            };
            // Searches backwards from the next event for the earliest window from which on all are right.
            let begins = first..(last + 1).saturating_sub(WINDOW_BINS).max(first);
            let since = begins.rev().take_while(|&begin| is_right(begin)).last();
            let seconds = since.map(|begin| {
                let end = Time::ZERO + BIN * (begin + WINDOW_BINS) as u64;
                rounded(end.since(event.at).as_secs_f64(), 3)
            });
            let (event, at_s) = (event.what.clone(), event.at.as_secs_f64());
            Some(RightAfter { event, at_s, seconds })
        };
        events
            .iter()
            .zip(ends)
            .filter(|(_, until)| *until > self.scenario.control.start)
            .filter_map(judge)
            .collect()
    }

    fn queue(&self, scored: &[&Window]) -> Option<QueueDelay> {
        let mut all = Histogram::default();
        for window in scored {
            all.add(&self.samples.sojourns[(window.begin.as_nanos() / WINDOW.as_nanos()) as usize]);
        }
        let (mean, p99) = (all.mean()?, all.quantile(0.99)?);
        Some(QueueDelay {
            mean: rounded(mean.as_millis_f64(), 3),
            p99: rounded(p99.as_millis_f64(), 3),
            max: rounded(all.max().as_millis_f64(), 3),
        })
    }

    fn group_rates(&self, scored: &[&Window]) -> Vec<GroupRate> {
        let average = |sum: Rate| sum / (scored.len() as u64).max(1);
        let fair = |group: usize| {
            let shares = scored.iter().map(|w| w.fair.as_ref().map(|fair| fair[group]));
            shares.sum::<Option<Rate>>().filter(|_| !scored.is_empty()).map(average)
        };
        let group = |(i, group): (usize, &crate::Group)| GroupRate {
            name: group.name.clone(),
            rate: average(scored.iter().map(|w| w.rates[i]).sum()),
            fair: fair(i),
            delivered: self.samples.delivered(i),
        };
        self.scenario.groups.iter().enumerate().map(group).collect()
    }

    fn host_rates(&self, scored: &[&Window]) -> Vec<HostRate> {
        let rate = |groups: &[usize]| -> Rate {
            let rates = scored.iter().flat_map(|w| groups.iter().map(|&group| w.rates[group]));
            rates.sum::<Rate>() / (scored.len() as u64).max(1)
        };
        let host = |(i, groups): (usize, Vec<usize>)| HostRate {
            device: self.scenario.devices.get(i).map(|device| device.name.clone()),
            rate: rate(&groups),
            division_error: mean(
                scored.iter().filter_map(|w| w.division_error(self.scenario, &groups)),
            ),
        };
        self.scenario.hosts().into_iter().enumerate().map(host).collect()
    }

    fn series(&self) -> Vec<Point> {
        let bins = self.scenario.duration.as_nanos() / BIN.as_nanos();
        let point = |bin: usize, group: usize| Point {
            t_s: rounded((BIN * bin as u64).as_secs_f64(), 3),
            group: self.scenario.groups[group].name.clone(),
            rate: self.samples.rate(group, bin..bin + 1),
        };
        (0..bins as usize)
            .flat_map(|bin| (0..self.samples.groups).map(move |group| point(bin, group)))
            .collect()
    }
}

/// Half the L1 distance between rates and fair shares, divided by the capacity.
fn distance(rates: &[Rate], fair: &[Rate], capacity: Rate) -> f64 {
    let pairs = rates.iter().zip(fair);
    let distance: u64 = pairs.map(|(r, f)| r.as_bps().abs_diff(f.as_bps())).sum();
    distance as f64 / 2.0 / capacity.as_bps() as f64
}

/// Whether a rate is close enough to a fair share.
fn is_right(rate: Rate, fair: Rate, capacity: Rate) -> bool {
    let tolerance = fair.scale(RIGHT_WITHIN_PERCENT, 100).max(capacity.scale(SLACK_PERCENT, 100));
    rate.as_bps().abs_diff(fair.as_bps()) <= tolerance.as_bps()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| rounded(sum / f64::from(count), 4))
}

/// Rounds to a number of decimals, as further ones have no meaning.
fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests;
