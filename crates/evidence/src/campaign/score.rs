//! The score of a run relative to the references `wfq` and `none`.

use fairweir_scenario::report::{Report, RightAfter};
use fairweir_scenario::{Control, Kind, Scenario};
use serde::Serialize;

use super::case::Case;
use super::class::Class;

/// Errors count only where the reference's error is below this: elsewhere a scheduler at the ISP
/// does not reach the shares either.
pub(super) const REFERENCE_ERROR_MAX: f64 = 0.03;
/// An event counts if the reference has the shares within this number of seconds.
const REFERENCE_RIGHT_S: f64 = 5.0;
/// It is met within this time, or within this multiple of the reference's time.
const RIGHT_S: f64 = 2.0;
const RIGHT_RATIO: f64 = 1.5;

/// The numbers of a case with one control; `None` where the case does not have them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Score {
    /// Allocation error outside transients. With devices or a policer: the greatest division error
    /// of a host under test.
    pub(super) error: Option<f64>,
    /// The same for `wfq`.
    pub(super) reference_error: Option<f64>,
    /// The difference of the error and the physical bound.
    pub(super) excess: Option<f64>,
    /// Volume delivered divided by the capacity, or by the rate of the plan, outside transients.
    pub(super) used: Option<f64>,
    /// The same relative to `wfq`.
    pub(super) used_by_wfq: Option<f64>,
    /// The same for `none`.
    pub(super) none_used: Option<f64>,
    /// Bytes of the hosts under test over the whole run, relative to `none`.
    pub(super) total_by_none: Option<f64>,
    /// With two hosts under test: the lower total divided by the higher one.
    pub(super) evenness: Option<f64>,
    /// Events after which the reference has the shares in time.
    pub(super) events: u32,
    /// Number of these after which this control has them in time, too.
    pub(super) events_right: u32,
    pub(super) queue_mean_ms: Option<f64>,
    pub(super) queue_p99_ms: Option<f64>,
    /// Mean quality of the worst video relative to `wfq`.
    pub(super) video_by_wfq: Option<f64>,
    /// Median load time of the slowest pages relative to `wfq`.
    pub(super) pages_by_wfq: Option<f64>,
    /// 95th percentile of the slowest short downloads relative to `none`.
    pub(super) shorts_by_none: Option<f64>,
    /// 95th percentile of the slowest ping, minus its RTT without queues.
    pub(super) ping_p95_ms: Option<f64>,
}

/// The reports of a case with which every control is compared.
#[derive(Clone, Copy)]
pub(super) struct References<'r> {
    pub(super) wfq: &'r Report,
    pub(super) none: &'r Report,
    /// The least error that receive windows allow, or a host that competes with others can have.
    pub(super) bound: f64,
}

/// Scores one report of a case; `scenario` is the scenario that was played.
pub(super) fn score(
    case: &Case,
    scenario: &Scenario,
    report: &Report,
    references: References<'_>,
) -> Score {
    let References { wfq, none, bound } = references;
    let (mine, by_wfq, by_none) = (&report.summary, &wfq.summary, &none.summary);
    let error = error(case, report);
    let used = used(report);
    let (events, events_right) = match case.has_devices() || case.is_policed() {
        true => (0, 0),
        false => right(&mine.right_after_s, &by_wfq.right_after_s),
    };
    let tested = case.tested_groups(scenario);
    let quality = |r: &Report, i: usize| {
        r.summary.videos.get(i).map(|v| v.quality.map_or(0.0, |q| q.as_mbit_f64()))
    };
    let load = |r: &Report, i: usize| r.summary.pages.get(i).and_then(|p| p.load_ms_median);
    let short = |r: &Report, i: usize| r.summary.shorts.get(i).and_then(|s| s.completion_ms_p95);
    let videos = (0..mine.videos.len()).filter_map(|i| by(quality(report, i), quality(wfq, i)));
    let pages = (0..mine.pages.len()).filter_map(|i| by(load(report, i), load(wfq, i)));
    let shorts = (0..mine.shorts.len()).filter_map(|i| by(short(report, i), short(none, i)));
    Score {
        error,
        reference_error: self::error(case, wfq),
        excess: error.map(|error| (error - bound).max(0.0)),
        used,
        used_by_wfq: by(used, self::used(wfq)),
        none_used: self::used(none),
        total_by_none: by(
            Some(total(report, &tested)),
            Some(total(none, &tested)).filter(|_| !by_none.groups.is_empty()),
        ),
        evenness: evenness(case, report),
        events,
        events_right,
        queue_mean_ms: mine.isp_queue_ms.map(|queue| queue.mean),
        queue_p99_ms: mine.isp_queue_ms.map(|queue| queue.p99),
        video_by_wfq: videos.reduce(f64::min),
        pages_by_wfq: pages.reduce(f64::max),
        shorts_by_none: shorts.reduce(f64::max),
        ping_p95_ms: ping(scenario, report),
    }
}

fn by(value: Option<f64>, reference: Option<f64>) -> Option<f64> {
    Some(value? / reference.filter(|r| *r > 0.0)?)
}

fn error(case: &Case, report: &Report) -> Option<f64> {
    let summary = &report.summary;
    if !case.has_devices() && !case.is_policed() {
        return summary.allocation_error;
    }
    let hosts = summary.hosts.iter().zip(case.tested()).filter(|(_, tested)| *tested);
    hosts.filter_map(|(host, _)| host.division_error).reduce(f64::max)
}

fn used(report: &Report) -> Option<f64> {
    let plan = report.summary.policed.first().and_then(|p| p.rate_ratio);
    plan.or(report.summary.utilization)
}

fn total(report: &Report, groups: &[usize]) -> f64 {
    let delivered = groups.iter().filter_map(|&group| report.summary.groups.get(group));
    delivered.map(|group| group.delivered.as_u64() as f64).sum()
}

fn evenness(case: &Case, report: &Report) -> Option<f64> {
    let hosts = report.summary.hosts.iter().zip(case.tested()).filter(|(_, tested)| *tested);
    let rates: Vec<f64> = hosts.map(|(host, _)| host.rate.as_mbit_f64()).collect();
    match rates[..] {
        [a, b] => by(Some(a.min(b)), Some(a.max(b))),
        _ => None,
    }
}

/// Number of events that the reference gets right in time, and of these that this control does.
fn right(mine: &[RightAfter], reference: &[RightAfter]) -> (u32, u32) {
    let (mut events, mut met) = (0, 0);
    for (mine, reference) in mine.iter().zip(reference) {
        let Some(wanted) = reference.seconds.filter(|s| *s <= REFERENCE_RIGHT_S) else { continue };
        events += 1;
        let most = RIGHT_S.max(RIGHT_RATIO * wanted);
        met += u32::from(mine.seconds.is_some_and(|seconds| seconds <= most));
    }
    (events, met)
}

fn ping(scenario: &Scenario, report: &Report) -> Option<f64> {
    let flows = scenario.flows.iter().filter(|f| matches!(f.kind, Kind::Ping { .. }));
    let beyond = |(flow, ping): (&fairweir_scenario::Flow, &fairweir_scenario::report::Ping)| {
        Some((ping.rtt_ms_p95? - flow.rtt.as_millis_f64()).max(0.0))
    };
    flows.zip(&report.summary.pings).filter_map(beyond).reduce(f64::max)
}

// ------------------------------------------------------------------------------------------------

/// A bound that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// The error exceeds the physical bound by more than .04, where `wfq` has less than .03.
    Error,
    /// It uses less than 92 % of what `wfq` uses.
    Used,
    /// The hosts get less than 95 % of their total without control.
    Total,
    /// An event is right in 5 s with `wfq`, but not within max(2 s, 1.5 × `wfq`'s time).
    Right,
    /// The mean queue is longer than 10 ms, without neighbours.
    Queue,
    /// A video below 90 % of its quality with `wfq`.
    Video,
    /// Pages that take more than 1.2 times as long as with `wfq`.
    Pages,
    /// Short downloads whose 95th percentile exceeds that without control by a tenth.
    Shorts,
    /// A ping inside a busy group that takes more than 20 ms longer.
    Ping,
    /// Two equal hosts of which one gets less than 80 % of the other.
    Uneven,
}

impl Bound {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Bound::Error => "error",
            Bound::Used => "used",
            Bound::Total => "total",
            Bound::Right => "right",
            Bound::Queue => "queue",
            Bound::Video => "video",
            Bound::Pages => "pages",
            Bound::Shorts => "shorts",
            Bound::Ping => "ping",
            Bound::Uneven => "uneven",
        }
    }
}

/// A bound that a run broke.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Failure {
    pub(super) bound: Bound,
    /// Size of the failure from 0 to 1: the missing part of the link, of the total, of the quality
    /// or of the events, or the part by which a time is too long.
    pub(super) amount: f64,
}

/// The bounds that a score breaks, the worst first.
pub(super) fn failures(class: Class, score: &Score) -> Vec<Failure> {
    let wfq_reaches = score.reference_error.is_none_or(|error| error < REFERENCE_ERROR_MAX);
    let has_neighbours = matches!(class, Class::Neighbours);
    let below = |value: Option<f64>, least: f64| value.filter(|v| *v < least).map(|v| 1.0 - v);
    let above = |value: Option<f64>, most: f64| value.filter(|v| *v > most).map(|v| 1.0 - 1.0 / v);
    let missed = f64::from(score.events - score.events_right);
    let queue = score.queue_mean_ms.filter(|_| !has_neighbours);
    let ping = score.ping_p95_ms.filter(|_| class == Class::Call);
    let found = [
        (Bound::Error, score.excess.filter(|error| wfq_reaches && *error > 0.04)),
        (Bound::Used, below(score.used_by_wfq, 0.92)),
        (Bound::Total, below(score.total_by_none, 0.95)),
        // An event counts less than the steady state.
        (Bound::Right, (missed > 0.0).then(|| 0.2 * missed / f64::from(score.events))),
        (Bound::Queue, queue.filter(|ms| *ms > 10.0).map(|ms| (ms / 250.0).min(1.0))),
        (Bound::Video, below(score.video_by_wfq, 0.9)),
        (Bound::Pages, above(score.pages_by_wfq, 1.2)),
        (Bound::Shorts, above(score.shorts_by_none, 1.1)),
        (Bound::Ping, ping.filter(|ms| *ms > 20.0).map(|ms| (ms / 250.0).min(1.0))),
        (Bound::Uneven, below(score.evenness, 0.8)),
    ];
    let failure = |(bound, amount): (Bound, Option<f64>)| Some(Failure { bound, amount: amount? });
    let mut all: Vec<Failure> = found.into_iter().filter_map(failure).collect();
    all.sort_by(|a, b| b.amount.total_cmp(&a.amount));
    all
}

/// The result of a case with one control.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) class: Class,
    pub(super) control: Control,
    /// The least error that receive windows allow, or a host that competes with others can have.
    pub(super) bound: f64,
    #[serde(flatten)]
    pub(super) score: Score,
    pub(super) failures: Vec<Failure>,
}

impl Outcome {
    /// Total size of the failures.
    pub(super) fn badness(&self) -> f64 {
        self.failures.iter().map(|failure| failure.amount).sum()
    }
}
