//! What the queue of the access link adds to the delay of arriving packets.
//!
//! The problem: nothing tells the receiver how long packets waited at the ISP; it sees delays that
//! contain a queue, a path and, in one-way delays, the difference of two clocks. The method: every
//! connection has a *base*, its delay without the queue; delay beyond the base is the queue. All share
//! one queue, so for a connection that begins while the queue is filled, the base is its own delay less
//! the queue that the other connections see. Bases are renewed when the queue is known to be empty: at a
//! *drain*, for which the controller narrows all windows for a moment, and when the link rests.
//!
//! The *least* delay of an interval is reported next to its mean. Noise of the path raises the mean, but
//! of many packets at least one arrives without noise, so `least > 0` says that the queue never
//! emptied, and then the rate that left it was the capacity. Among several connections the lowest least
//! counts, since any packet can show that the queue was short. Of the means the median counts, so that a
//! connection with its own queue elsewhere does not decide.
//!
//! A server can write any timestamp into its own packets, and a reflector can hold its answers back.
//! So one source never decides against two others: a connection whose least is far below those of
//! all others is left out, no connection has half of the median's weight, and a delay longer than any
//! queue ([`QUEUE_MAX`]) is a clock that jumped. [`DelaySample::sources`] says how many sources agree,
//! because the capacity must not depend on one alone. If one of two connections lies, nothing shows which
//! one; the honest one can still show that there is no queue, but not that there is one.
//!
//! The first of these sources that has enough packets is used: TCP timestamps, which see only the
//! download; the probe, whose last answer stands for a second, since some hosts answer no sooner; the
//! receiver's own RTT. Source: docs/control.md; Spring et al. §III for the base RTT.
//!
//! | module | contains |
//! |---|---|
//! | `base` | a connection's delay without the queue |
//! | `noise` | random delay of the path |

use std::collections::BTreeMap;

use super::{
    CONNECTIONS_MAX, ConnectionSample, DelaySample, DelaySource, Observation, ProbeSample, TICK,
};
use crate::units::{Bytes, Span, Time};

mod base;
mod noise;

use base::{Base, Pace, QUEUE_MAX, plausible};
use noise::Noise;

/// Bases of the connections and of the probe.
#[derive(Clone, Debug, Default)]
pub(super) struct DelayEstimator {
    connections: BTreeMap<u64, Base>,
    probe: Option<ProbeBase>,
    /// The estimate from the probe's last answers, and its time.
    answer: Option<(Time, Estimate)>,
    /// The time between the last two answers.
    answer_pause: Span,
    /// When there were last enough timestamps.
    stamped_at: Option<Time>,
    /// The estimate of the last interval.
    last: Option<Estimate>,
    noise: Noise,
    /// What all round trips had in common beyond their bases and the queue in the last intervals, in ns.
    common: [i64; SHIFT_TICKS],
}

/// What is known of the queue in an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Nothing is known.
    Unknown,
    /// Empty before the interval: the first packets saw no queue.
    WasEmpty,
    /// Emptied within the interval: the least delay is the base.
    Drained,
}

#[derive(Clone, Copy, Debug)]
struct ProbeBase {
    reflector: u32,
    rtt: Span,
    /// The least since `since`, which finally replaces the base.
    rtt_next: Span,
    since: Time,
    /// Whether the base was confirmed by an answer that came while the queue was empty.
    is_settled: bool,
}

/// An estimate of the queue by one source, in ns.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    least: i64,
    mean: i64,
    samples: u32,
    is_settled: bool,
    /// How many connections say that the queue was never shorter than `least`.
    sources: u32,
}

/// The queue contained in an RTT that was smoothed until the end of an interval; `None` if that is
/// unknown because the queue has changed recently.
fn steady_queue(before: Option<Estimate>, now: Option<Estimate>) -> Option<i64> {
    let Some(now) = now else { return Some(0) };
    let within = STEADY_NS.max(now.mean / 2);
    let is_steady = now.is_settled
        && now.mean - now.least < within
        && before.is_some_and(|before| (before.mean - now.mean).abs() < within);
    is_steady.then_some(now.mean.max(0))
}

impl DelayEstimator {
    /// Takes in an interval; `None` if no source says anything. Behind classes that delay packets
    /// (`is_shaped`) RTTs contain that delay.
    pub(super) fn handle_observation(
        &mut self,
        observation: &Observation,
        queue: Queue,
        is_shaped: bool,
    ) -> Option<DelaySample> {
        let now = observation.at;
        self.forget_jumps(&observation.connections);
        if queue == Queue::Drained {
            self.renew(&observation.connections);
        }
        let by_stamps = self.by_stamps(&observation.connections);
        self.see_own_queues(&observation.connections, by_stamps);
        let by_rtt = self.by_rtt(observation);
        let by_probe = observation.probe.and_then(|probe| self.by_probe(now, &probe, queue));
        let before = self.answer;
        if let Some(estimate) = by_probe {
            self.answer = Some((now, estimate));
            self.answer_pause = before.map_or(Span::ZERO, |(at, _)| now.since(at));
            // On an idle link the probe is sent rarely.
            let is_used = observation.connections.iter().any(|sample| sample.segments > 0);
            if is_used && self.is_rarely_answered(now) {
                self.noise.handle_rare(estimate.mean);
            }
        }
        let enough = |estimate: &Estimate| estimate.samples >= BASE_SAMPLES_MIN;
        let by_many_stamps = by_stamps.filter(enough);
        self.stamped_at = by_many_stamps.map(|_| now).or(self.stamped_at);
        let standing = self.standing_answer(now);
        let candidates = [
            (by_many_stamps, DelaySource::Timestamps),
            (by_probe, DelaySource::Probe),
            (by_stamps, DelaySource::Timestamps),
            (standing, DelaySource::Probe),
            (by_rtt, DelaySource::ReceiverRtt),
        ];
        let found = candidates.into_iter().find_map(|(e, source)| Some((e?, source)));
        // A single answer of a probe, or an RTT that lags, says nothing about the least of an interval.
        let tells = |(e, source): &(Estimate, DelaySource)| {
            e.is_settled && e.samples >= BASE_SAMPLES_MIN && *source != DelaySource::ReceiverRtt
        };
        let known = match queue {
            Queue::WasEmpty => Some(0),
            _ => found.filter(tells).map(|(e, _)| e.least.max(0)),
        };
        if let Some((estimate, _)) = &found {
            self.noise.handle_estimate(estimate);
        }
        let noise = self.noise.mean();
        let without_noise = |e: Estimate| Estimate { mean: (e.mean - noise).max(e.least), ..e };
        let found = found.map(|(estimate, source)| (without_noise(estimate), source));
        let latest = found.map(|(estimate, _)| estimate);
        let queue = steady_queue(std::mem::replace(&mut self.last, latest), latest);
        let queue = queue.filter(|_| !is_shaped);
        let answers = before.zip(by_probe).map(|((_, before), now)| before.least.min(now.least));
        let answers = answers.map(|least| Span::nanos(least.max(0) as u64));
        self.settle(observation, known, queue, answers);
        self.common.rotate_left(1);
        self.common[SHIFT_TICKS - 1] = match observation.exact {
            Some(_) => self.take_exact(&observation.connections),
            None => self.common_beyond(observation, noise),
        };
        let span = |ns: i64| Span::nanos(ns.max(0) as u64);
        let agrees = |least: i64| by_probe.is_some_and(|probe| probe.least > least / 2);
        found.map(|(estimate, source)| DelaySample {
            sources: match source {
                DelaySource::Timestamps => estimate.sources + u32::from(agrees(estimate.least)),
                DelaySource::Probe | DelaySource::ReceiverRtt => estimate.sources,
            },
            value: span(estimate.mean.max(estimate.least)),
            least: span(estimate.least),
            noise: span(noise),
            source,
            samples: estimate.samples,
        })
    }

    /// A connection's RTT without the downlink's queue, if known; it includes what waits at the uplink now.
    pub(super) fn rtt_base(&self, id: u64) -> Option<Span> {
        Some(self.shifted(self.connections.get(&id)?.rtt?))
    }

    fn shifted(&self, base: Span) -> Span {
        let now = (base.as_nanos() as i64).saturating_add(self.shift());
        Span::nanos(now.max(0) as u64).max(RTT_MIN)
    }

    /// The lasting part of the uplink's queue, in ns. An RTT that lags behind the queue, or a pause, ends sooner.
    fn shift(&self) -> i64 {
        let least = self.common.into_iter().min().unwrap_or(0);
        let most = self.common.into_iter().max().unwrap_or(0);
        least.max(0) + most.min(0)
    }

    /// The largest RTT without the queue, among connections that receive a significant part.
    pub(super) fn rtt_base_max(&self) -> Option<Span> {
        let busy = self.connections.values().filter(|base| base.is_busy);
        busy.filter_map(|base| base.rtt).max().map(|rtt| self.shifted(rtt).min(RTT_MAX))
    }

    /// How much longer a connection's packets waited on average than those of others; zero while its base is
    /// not known.
    pub(super) fn own_queue(&self, id: u64) -> Span {
        self.connections.get(&id).map_or(Span::ZERO, |base| base.own_queue)
    }

    fn see_own_queues(&mut self, connections: &[ConnectionSample], all: Option<Estimate>) {
        for sample in connections {
            let Some(base) = self.connections.get_mut(&sample.id) else { continue };
            let own = base.by_stamps(sample).filter(|own| own.is_settled);
            let beyond = own.zip(all).map(|(own, all)| own.mean.saturating_sub(all.mean).max(0));
            base.own_queue = Span::nanos(beyond.unwrap_or(0) as u64);
        }
    }

    /// Whether a connection that transmits has a base without a queue.
    pub(super) fn is_settled(&self, now: Time) -> bool {
        self.transmitting(now).any(|base| base.is_settled)
    }

    /// Whether the base of a connection that transmits, or of the probe if only the probe answers, may
    /// contain a queue.
    pub(super) fn is_unsettled(&self, now: Time) -> bool {
        let is_probe_unsettled = self.probe.is_some_and(|base| !base.is_settled);
        self.transmitting(now).any(|base| !base.is_settled)
            || (is_probe_unsettled && self.is_rarely_answered(now))
    }

    /// Bases by timestamps of the connections that transmit.
    fn transmitting(&self, now: Time) -> impl Iterator<Item = &Base> {
        let bases = self.connections.values();
        bases.filter(move |base| base.seen_at == now && base.transit.is_some())
    }

    /// Forgets the bases of one-way delays: what seemed to be a queue does not react to windows, so the path
    /// has become longer.
    pub(super) fn forget_transit(&mut self) {
        for base in self.connections.values_mut() {
            base.transit = None;
            base.is_settled = false;
        }
    }

    /// Forgets bases if the delay beyond them is longer than any queue: the clock of the server
    /// has jumped.
    fn forget_jumps(&mut self, connections: &[ConnectionSample]) {
        for sample in connections {
            let Some(base) = self.connections.get_mut(&sample.id) else { continue };
            let Some(transit) = plausible(sample) else { continue };
            if base.transit.is_some_and(|t| transit.min_ns.saturating_sub(t) > QUEUE_MAX) {
                base.transit = None;
                base.is_settled = false;
            }
        }
    }

    /// Renews the bases, up or down: the queue is empty, so the delays seen now are the bases.
    fn renew(&mut self, connections: &[ConnectionSample]) {
        for sample in connections {
            let Some(base) = self.connections.get_mut(&sample.id) else { continue };
            if let Some(transit) = plausible(sample).filter(|t| t.samples >= RENEWING_SAMPLES_MIN) {
                // A rise beyond the drift of clocks means that the queue did not empty.
                let most = base.transit.filter(|_| base.is_settled).map(|t| t + DRIFT_NS);
                base.transit = Some(most.map_or(transit.min_ns, |most| transit.min_ns.min(most)));
                base.is_settled = true;
            }
        }
    }

    /// Takes over RTTs that are known to be without a queue; returns 0, since nothing is left beyond them.
    fn take_exact(&mut self, connections: &[ConnectionSample]) -> i64 {
        for sample in connections {
            if let (Some(base), Some(rtt)) = (self.connections.get_mut(&sample.id), sample.rtt) {
                base.rtt = Some(rtt.max(RTT_MIN));
            }
        }
        0
    }

    /// By how much all round trips differ from base plus queue: when an upload fills the uplink, the
    /// acknowledgements of all downloads wait there. Timestamps of arriving packets do not contain that wait,
    /// so it can be separated. A difference that the queue itself may cause, since RTTs lag, is not counted.
    fn common_beyond(&self, observation: &Observation, noise: i64) -> i64 {
        let beyond = |sample: &ConnectionSample| {
            let waits =
                observation.groups.get(sample.group).is_some_and(|g| g.backlog > Bytes::ZERO);
            let base =
                self.connections.get(&sample.id).filter(|_| sample.segments > 0 && !waits)?;
            let queue = base.by_stamps(sample)?;
            let mean = (queue.mean - noise).max(queue.least);
            let beyond = sample.rtt?.as_nanos() as i64 - base.rtt?.as_nanos() as i64 - mean;
            let doubt = STEADY_NS.max(mean / 2);
            Some(Estimate { mean: beyond - beyond.clamp(-doubt, doubt), ..queue })
        };
        let mut beyond: Vec<Estimate> = observation.connections.iter().filter_map(beyond).collect();
        median(&mut beyond).unwrap_or(0)
    }

    /// Takes over new connections and lower bases; forgets connections that are gone. `answers` is the
    /// smaller of the delays in the probe's last two answers, if it was answered.
    fn settle(
        &mut self,
        observation: &Observation,
        known: Option<i64>,
        queue: Option<i64>,
        answers: Option<Span>,
    ) {
        let Observation { at, interval, connections, groups, .. } = observation;
        let now = *at;
        let segments = connections.iter().map(|c| c.segments).fold(0, u64::saturating_add);
        for sample in connections {
            let base = self.connections.entry(sample.id).or_insert(Base {
                transit: None,
                rtt: None,
                is_settled: false,
                is_busy: false,
                seen_at: now,
                own_queue: Span::ZERO,
                pace: Pace::default(),
            });
            base.seen_at = now;
            base.is_busy = sample.segments > 0 && sample.segments * BUSY_DIVISOR >= segments;
            if let Some(transit) = plausible(sample) {
                let seen = transit.min_ns - if base.is_settled { 0 } else { known.unwrap_or(0) };
                base.transit = Some(base.transit.map_or(seen, |old| old.min(seen)));
                base.is_settled |= known.is_some();
            }
            if base.transit.is_none() {
                // Long round trips arrive in clumps: the pauses between them are part of the connection's pace.
                base.pace.handle_sample(sample, *interval);
            }
            if sample.segments == 0 {
                continue;
            }
            if let Some(sent) = sample.rtt_sent.filter(|_| base.transit.is_none()) {
                base.handle_unstamped(sent, answers);
            } else if let Some(rtt) = sample.rtt {
                // Time that packets wait in a class is not part of the path.
                let waits = groups.get(sample.group).is_some_and(|g| g.backlog > Bytes::ZERO);
                base.handle_rtt(rtt, queue.filter(|_| !waits));
            }
        }
        // A flood of connections must not fill the memory: then only connections that receive now are kept.
        let is_full = self.connections.len() > BASES_MAX;
        let kept =
            |seen_at| if is_full { seen_at == now } else { now.since(seen_at) < FORGOTTEN_AFTER };
        self.connections.retain(|_, base| kept(base.seen_at));
    }

    fn by_stamps(&self, connections: &[ConnectionSample]) -> Option<Estimate> {
        let estimates = connections
            .iter()
            .filter_map(|sample| self.connections.get(&sample.id)?.by_stamps(sample));
        combine(estimates.collect())
    }

    /// RTTs of connections that received something, except in groups whose class delays them.
    fn by_rtt(&self, observation: &Observation) -> Option<Estimate> {
        let is_free = |sample: &&ConnectionSample| {
            let group = observation.groups.get(sample.group);
            sample.segments > 0 && group.is_none_or(|g| g.backlog == Bytes::ZERO && g.drops == 0)
        };
        let estimates = observation.connections.iter().filter(is_free).filter_map(|sample| {
            let base = self.connections.get(&sample.id)?;
            let beyond = sample.rtt?.as_nanos() as i64 - base.rtt?.as_nanos() as i64;
            // One smoothed value at the end of the interval says little about the least of the interval.
            let (least, mean) = (beyond - RTT_NOISE, beyond);
            Some(Estimate { least, mean, samples: 1, is_settled: true, sources: 1 })
        });
        combine(estimates.collect())
    }

    fn by_probe(&mut self, now: Time, probe: &ProbeSample, queue: Queue) -> Option<Estimate> {
        if probe.answered == 0 {
            return None;
        }
        let rtt = probe.rtt_min;
        let (reflector, rtt_next, since) = (probe.reflector, rtt, now);
        let begun = ProbeBase { reflector, rtt, rtt_next, since, is_settled: false };
        let base = self.probe.get_or_insert(begun);
        if base.reflector != probe.reflector {
            *base = begun;
        }
        if queue == Queue::Drained {
            base.is_settled = rtt < base.rtt + CONFIRMED && base.rtt < rtt + CONFIRMED;
        }
        base.rtt = base.rtt.min(rtt);
        base.rtt_next = base.rtt_next.min(rtt);
        if now.since(base.since) > PROBE_BASE_AGE_MAX {
            *base = ProbeBase { rtt: base.rtt_next, ..begun };
        }
        let beyond = |rtt: Span| rtt.as_nanos() as i64 - base.rtt.as_nanos() as i64;
        let (least, mean) = (beyond(probe.rtt_min), beyond(probe.rtt_mean));
        Some(Estimate { least, mean, samples: probe.answered, is_settled: true, sources: 1 })
    }

    /// The estimate from the probe's last answers, unless they are too old or timestamps are available.
    fn standing_answer(&self, now: Time) -> Option<Estimate> {
        let (at, estimate) = self.answer?;
        let stands = !self.is_stamped(now) && now.since(at) < ANSWER_STANDS;
        stands.then_some(Estimate { samples: 0, ..estimate })
    }

    fn is_stamped(&self, now: Time) -> bool {
        self.stamped_at.is_some_and(|at| now.since(at) < UNSTAMPED_AFTER)
    }

    /// Whether only a probe is available, and it is not answered in each tick.
    pub(super) fn is_rarely_answered(&self, now: Time) -> bool {
        !self.is_stamped(now) && self.answer_pause > TICK * 2
    }
}

/// Combines estimates with settled bases: the lowest least, since any packet can show that the queue was
/// shorter, and the median of the means, weighted by packets. If no base is settled, the largest estimate:
/// a base that contains a queue makes the difference too small. Of three or more no single one decides.
fn combine(mut estimates: Vec<Estimate>) -> Option<Estimate> {
    let sum =
        |estimates: &[Estimate]| estimates.iter().map(|e| e.samples).fold(0, u32::saturating_add);
    let samples = sum(&estimates);
    if !estimates.iter().any(|e| e.is_settled) {
        estimates.sort_by_key(|e| std::cmp::Reverse(e.least));
        let largest = estimates.get(usize::from(estimates.len() >= MANY))?;
        let sources = estimates.iter().filter(|e| e.least > largest.least / 2).count() as u32;
        return Some(Estimate { samples, sources, ..*largest });
    }
    // A connection with few packets says little, whether it is right or wrong.
    estimates.retain(|e| e.is_settled && e.samples >= samples / FEW_DIVISOR);
    let samples = sum(&estimates);
    estimates.sort_by_key(|e| e.least);
    if let [lone, next, _, ..] = estimates[..]
        && next.least.saturating_sub(lone.least) > LONE_NS
    {
        estimates.remove(0);
    }
    let least = estimates.first()?.least;
    let sources = estimates.len() as u32;
    let mean = median(&mut estimates)?;
    Some(Estimate { least, mean, samples, is_settled: true, sources })
}

/// The median of the means, weighted by packets; of three or more, no estimate has half of the weight.
fn median(estimates: &mut [Estimate]) -> Option<i64> {
    let samples: u64 = estimates.iter().map(|e| u64::from(e.samples)).sum();
    let many = estimates.len() >= MANY;
    let weight = |e: &Estimate| {
        let own = u64::from(e.samples);
        if many { own.min((samples - own).saturating_sub(1)) } else { own }
    };
    let all: u64 = estimates.iter().map(weight).sum();
    estimates.sort_by_key(|e| e.mean);
    let mut below = 0;
    let middle = estimates.iter().find(|e| {
        below += weight(e);
        below > all / 2
    });
    Some(middle.or(estimates.last())?.mean)
}

/// From this number of connections on, a connection that contradicts the others is outvoted.
const MANY: usize = 3;
/// A least that is lower than all others by more than this, in ns, is not confirmed by them.
const LONE_NS: i64 = 5_000_000;
/// More bases than this can only come from a flood of connections.
const BASES_MAX: usize = 2 * CONNECTIONS_MAX;
/// Connections with less than this part of the packets are left out.
const FEW_DIVISOR: u32 = 64;
/// A source with fewer packets than this is used only if no other source has enough.
const BASE_SAMPLES_MIN: u32 = 4;
/// Fewest packets that renew a base: of fewer, perhaps no packet arrived undisturbed.
const RENEWING_SAMPLES_MIN: u32 = 3;
/// The receiver's RTT is smoothed over whole milliseconds.
const RTT_NOISE: i64 = 2_000_000;
/// A queue is steady if it changes by less than this between two intervals and within one, in ns.
const STEADY_NS: i64 = 2_500_000;
/// Intervals for which all round trips must exceed base plus queue before the excess is the uplink's queue.
const SHIFT_TICKS: usize = 3;
/// Drift of clocks between two drains, in ns, and changes of paths that go unnoticed.
const DRIFT_NS: i64 = 3_000_000;
/// Shortest RTT: timestamps do not resolve shorter paths.
pub(super) const RTT_MIN: Span = Span::millis(1);
/// Longer RTTs are pauses of the application.
const RTT_MAX: Span = Span::secs(1);
/// A connection counts as busy if it receives at least one packet in this many.
const BUSY_DIVISOR: u64 = 16;
/// The RTT that is assumed until a connection's RTT is known.
pub(super) const RTT_GUESS: Span = Span::millis(50);
/// A connection without payload for this long is new when it comes back.
const FORGOTTEN_AFTER: Span = Span::secs(60);
/// How long a probe's answer stays in force: some hosts answer only once a second.
const ANSWER_STANDS: Span = Span::millis(1_300);
/// Two answers without a queue differ by less than this.
const CONFIRMED: Span = Span::millis(2);
/// After senders sent no timestamps for this long, the probe is used.
const UNSTAMPED_AFTER: Span = Span::secs(3);
/// After this time the path to the reflector may have become longer.
const PROBE_BASE_AGE_MAX: Span = Span::secs(600);

#[cfg(test)]
mod tests;
