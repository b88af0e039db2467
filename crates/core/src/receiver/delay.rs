//! What the queue of the access link adds to the delay of what arrives.
//!
//! The problem: nobody tells the receiver how long packets waited at the ISP; it sees delays that
//! contain a queue, a path and, in one-way delays, the difference of two clocks. The method: every
//! connection has a *base*, its delay without the queue; what is beyond is the queue. All share one
//! queue, so a connection that begins while the queue stands takes as base what it sees less what
//! the others see. Bases are renewed when the queue is known to be empty: at a *drain*, for which
//! the controller narrows all windows for a moment, and when the link rests.
//!
//! What is reported is the *least* of an interval next to its mean: noise of the path raises the
//! mean, but of many packets at least one comes through without it, so `least > 0` says that the
//! queue never emptied, and what left it was the capacity. Of several connections the least of all
//! counts, since any packet can show that the queue was short, and the median of the means, so that
//! one with a queue of its own elsewhere does not decide.
//!
//! Sources, the first that has enough packets: TCP timestamps, which see the download alone; the
//! probe; the receiver's own RTT. Source: docs/control.md; Spring et al. §III for the base RTT.

use std::collections::BTreeMap;

use super::{ConnectionSample, DelaySample, DelaySource, Observation, ProbeSample};
use crate::units::{Span, Time};

/// Bases of the connections and of the probe.
#[derive(Clone, Debug, Default)]
pub(super) struct DelayEstimator {
    connections: BTreeMap<u64, Base>,
    probe: Option<ProbeBase>,
    /// What the last interval said.
    last: Option<Estimate>,
}

/// What an observation's delays are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// As it is.
    Unknown,
    /// Empty before the interval: whoever came first saw no queue.
    WasEmpty,
    /// Emptied within the interval: what was seen at least is the base.
    Drained,
}

/// A connection's delay without the queue.
#[derive(Clone, Copy, Debug)]
struct Base {
    /// Relative one-way delay in ns.
    transit: Option<i64>,
    rtt: Option<Span>,
    /// Whether it was taken while the queue was empty, or known from others.
    is_settled: bool,
    seen_at: Time,
}

#[derive(Clone, Copy, Debug)]
struct ProbeBase {
    reflector: u32,
    rtt: Span,
    /// The least since `since`, which replaces the base in the end.
    rtt_next: Span,
    since: Time,
}

/// What one source says of the queue.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    least: i64,
    mean: i64,
    samples: u32,
    is_settled: bool,
}

/// The queue that an RTT contains which was smoothed until the end of an interval; `None` if the
/// queue has changed lately, so that nobody knows.
fn steady_queue(before: Option<Estimate>, now: Option<Estimate>) -> Option<i64> {
    let Some(now) = now else { return Some(0) };
    let within = STEADY_NS.max(now.mean / 2);
    let is_steady = now.is_settled
        && now.mean - now.least < within
        && before.is_some_and(|before| (before.mean - now.mean).abs() < within);
    is_steady.then_some(now.mean.max(0))
}

impl Base {
    /// Takes in a smoothed RTT: as the mean of what it is without the queue, where that is known,
    /// else as the most that it can be.
    fn handle_rtt(&mut self, rtt: Span, queue: Option<i64>) {
        let rtt = rtt.as_nanos();
        let base = match (self.rtt.map(Span::as_nanos), queue) {
            (Some(old), Some(queue)) => {
                let seen = rtt.saturating_sub(queue as u64).max(RTT_MIN.as_nanos());
                // A first guess that was too high is left at once.
                if seen * 10 < old * 9 { seen } else { old / 8 * 7 + seen / 8 }
            }
            (Some(old), None) => old.min(rtt),
            (None, _) => rtt,
        };
        self.rtt = Some(Span::nanos(base));
    }
}

impl DelayEstimator {
    /// Takes in an interval; `None` if no source says anything.
    pub(super) fn handle_observation(
        &mut self,
        observation: &Observation,
        queue: Queue,
    ) -> Option<DelaySample> {
        let now = observation.at;
        if queue == Queue::Drained {
            self.renew(&observation.connections);
        }
        let by_stamps = self.by_stamps(&observation.connections);
        let by_rtt = self.by_rtt(&observation.connections);
        let by_probe = observation.probe.and_then(|probe| self.by_probe(now, &probe));
        let enough = |estimate: &Estimate| estimate.samples >= SAMPLES_MIN;
        let candidates = [
            (by_stamps.filter(enough), DelaySource::Timestamps),
            (by_probe, DelaySource::Probe),
            (by_stamps, DelaySource::Timestamps),
            (by_rtt, DelaySource::ReceiverRtt),
        ];
        let found = candidates.into_iter().find_map(|(e, source)| Some((e?, source)));
        let known = found.filter(|(e, _)| e.is_settled).map(|(e, _)| e.least.max(0));
        let known = known.or((queue == Queue::WasEmpty).then_some(0));
        let latest = found.map(|(estimate, _)| estimate);
        let queue = steady_queue(std::mem::replace(&mut self.last, latest), latest);
        self.settle(now, &observation.connections, known, queue);
        let span = |ns: i64| Span::nanos(ns.max(0) as u64);
        found.map(|(estimate, source)| DelaySample {
            value: span(estimate.mean.max(estimate.least)),
            least: span(estimate.least),
            source,
            samples: estimate.samples,
        })
    }

    /// A connection's RTT without the queue, if it is known.
    pub(super) fn rtt_base(&self, id: u64) -> Option<Span> {
        self.connections.get(&id)?.rtt
    }

    /// The largest RTT without the queue.
    pub(super) fn rtt_base_max(&self) -> Option<Span> {
        self.connections.values().filter_map(|base| base.rtt).max()
    }

    /// Whether a connection that transmits has a base that may contain a queue.
    pub(super) fn is_unsettled(&self) -> bool {
        self.connections.values().any(|base| base.transit.is_some() && !base.is_settled)
    }

    /// What is taken for a queue does not react to windows, so it is none: the path has become
    /// longer.
    pub(super) fn forget_transit(&mut self) {
        for base in self.connections.values_mut() {
            base.transit = None;
            base.is_settled = false;
        }
    }

    /// The queue is empty, so what is seen now is the base, whether it is higher or lower.
    fn renew(&mut self, connections: &[ConnectionSample]) {
        for sample in connections {
            let Some(base) = self.connections.get_mut(&sample.id) else { continue };
            if let Some(transit) = sample.transit.filter(|t| t.samples >= RENEWING_SAMPLES_MIN) {
                base.transit = Some(transit.min_ns);
                base.is_settled = true;
            }
        }
    }

    /// Takes over new connections and lower bases; forgets connections that are gone.
    fn settle(
        &mut self,
        now: Time,
        connections: &[ConnectionSample],
        known: Option<i64>,
        queue: Option<i64>,
    ) {
        for sample in connections {
            let base = self.connections.entry(sample.id).or_insert(Base {
                transit: None,
                rtt: None,
                is_settled: false,
                seen_at: now,
            });
            base.seen_at = now;
            if let Some(transit) = sample.transit {
                let seen = transit.min_ns - if base.is_settled { 0 } else { known.unwrap_or(0) };
                base.transit = Some(base.transit.map_or(seen, |old| old.min(seen)));
                base.is_settled |= known.is_some();
            }
            if let Some(rtt) = sample.rtt.filter(|_| sample.segments > 0) {
                base.handle_rtt(rtt, queue);
            }
        }
        self.connections.retain(|_, base| now.since(base.seen_at) < FORGOTTEN_AFTER);
    }

    fn by_stamps(&self, connections: &[ConnectionSample]) -> Option<Estimate> {
        let estimates = connections.iter().filter_map(|sample| {
            let (transit, base) = (sample.transit?, self.connections.get(&sample.id)?);
            let least = transit.min_ns - base.transit?;
            let mean = transit.mean_ns - base.transit? - STAMP_ROUNDING;
            Some(Estimate { least, mean, samples: transit.samples, is_settled: base.is_settled })
        });
        combine(estimates.collect())
    }

    fn by_rtt(&self, connections: &[ConnectionSample]) -> Option<Estimate> {
        let estimates = connections.iter().filter_map(|sample| {
            let base = self.connections.get(&sample.id)?;
            let beyond = sample.rtt?.as_nanos() as i64 - base.rtt?.as_nanos() as i64;
            // One smoothed number at the end of the interval says little of its least.
            Some(Estimate { least: beyond - RTT_NOISE, mean: beyond, samples: 1, is_settled: true })
        });
        combine(estimates.collect())
    }

    fn by_probe(&mut self, now: Time, probe: &ProbeSample) -> Option<Estimate> {
        if probe.answered == 0 {
            return None;
        }
        let rtt = probe.rtt_min;
        let begun = ProbeBase { reflector: probe.reflector, rtt, rtt_next: rtt, since: now };
        let base = self.probe.get_or_insert(begun);
        if base.reflector != probe.reflector {
            *base = begun;
        }
        base.rtt = base.rtt.min(rtt);
        base.rtt_next = base.rtt_next.min(rtt);
        if now.since(base.since) > PROBE_BASE_AGE_MAX {
            *base = ProbeBase { rtt: base.rtt_next, ..begun };
        }
        let beyond = |rtt: Span| rtt.as_nanos() as i64 - base.rtt.as_nanos() as i64;
        let (least, mean) = (beyond(probe.rtt_min), beyond(probe.rtt_mean));
        Some(Estimate { least, mean, samples: probe.answered, is_settled: true })
    }
}

/// Of those whose base is settled the least of all, since any packet can show that the queue was
/// shorter, and the median of the means, weighed by packets. Where none is settled, the largest:
/// a base that contains a queue makes the rest too small.
fn combine(mut estimates: Vec<Estimate>) -> Option<Estimate> {
    let samples = estimates.iter().map(|e| e.samples).fold(0, u32::saturating_add);
    if !estimates.iter().any(|e| e.is_settled) {
        return estimates.into_iter().max_by_key(|e| e.least).map(|e| Estimate { samples, ..e });
    }
    // A connection with hardly a packet says little, be it right or wrong.
    estimates.retain(|e| e.is_settled && e.samples >= samples / FEW_DIVISOR);
    let samples = estimates.iter().map(|e| e.samples).fold(0, u32::saturating_add);
    let least = estimates.iter().map(|e| e.least).min()?;
    estimates.sort_by_key(|e| e.mean);
    let mut below = 0;
    let middle = estimates.iter().find(|e| {
        below += e.samples;
        below > samples / 2
    });
    let mean = middle.or(estimates.last())?.mean;
    Some(Estimate { least, mean, samples, is_settled: true })
}

/// Connections with less than this part of the packets are left out.
const FEW_DIVISOR: u32 = 64;
/// With fewer packets another source is asked first.
const SAMPLES_MIN: u32 = 4;
/// Of fewer packets none may have come through undisturbed.
const RENEWING_SAMPLES_MIN: u32 = 3;
/// Timestamps are whole milliseconds, rounded down: on average packets look older by half of one.
const STAMP_ROUNDING: i64 = 500_000;
/// The receiver's RTT is smoothed over whole milliseconds.
const RTT_NOISE: i64 = 2_000_000;
/// A queue that changes by less between two intervals, and within one, is steady.
const STEADY_NS: i64 = 2_500_000;
/// No path is shorter than what timestamps tell apart.
pub(super) const RTT_MIN: Span = Span::millis(1);
/// A connection's RTT until it is known.
pub(super) const RTT_GUESS: Span = Span::millis(50);
/// A connection without payload for this long is new when it comes back.
const FORGOTTEN_AFTER: Span = Span::secs(60);
/// After this the probe's path may have become longer.
const PROBE_BASE_AGE_MAX: Span = Span::secs(600);

#[cfg(test)]
mod tests;
