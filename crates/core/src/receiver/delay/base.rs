//! A connection's delay without the queue: by TCP timestamps, by the receiver's RTT, by what it sent.

use super::{Estimate, RTT_MIN};
use crate::receiver::{ConnectionSample, TransitSample};
use crate::units::{Bytes, Rate, Span, Time};

/// A connection's delay without the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    /// Relative one-way delay in ns.
    pub(super) transit: Option<i64>,
    pub(super) rtt: Option<Span>,
    /// Whether it was taken while the queue was empty, or known from others.
    pub(super) is_settled: bool,
    /// Whether it received a part that matters when it was seen last.
    pub(super) is_busy: bool,
    pub(super) seen_at: Time,
    /// By how much its packets waited longer than those of others in the last interval.
    pub(super) own_queue: Span,
    pub(super) pace: Pace,
}

/// What a connection received since the last answers of a probe, and the largest window that it had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    received: Bytes,
    span: Span,
    window: Bytes,
}

impl Pace {
    /// Takes in an interval.
    pub(super) fn handle_sample(&mut self, sample: &ConnectionSample, interval: Span) {
        self.received += sample.received;
        self.span += interval;
        self.window = self.window.max(sample.advertised);
    }

    /// The time in which a window arrived: an RTT with the queue if the window was filled, else more.
    fn window_time(&self) -> Option<Span> {
        let rate = Rate::from_volume(self.received, self.span);
        (rate > Rate::ZERO && self.window > Bytes::ZERO).then(|| rate.time_to_send(self.window))
    }
}

impl Base {
    /// What the timestamps of an interval say of the queue.
    pub(super) fn by_stamps(&self, sample: &ConnectionSample) -> Option<Estimate> {
        let (transit, base) = (plausible(sample)?, self.transit?);
        let least = transit.min_ns.saturating_sub(base);
        let mean = transit.mean_ns.saturating_sub(base) - STAMP_ROUNDING;
        let (samples, is_settled) = (transit.samples, self.is_settled);
        Some(Estimate { least, mean, samples, is_settled, sources: 1 })
    }

    /// Takes in a smoothed RTT: as the mean of what it is without the queue, where that is known,
    /// else as the most that it can be.
    pub(super) fn handle_rtt(&mut self, rtt: Span, queue: Option<i64>) {
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

    /// Takes in what is known without timestamps, where the receiver's RTT is the least time in which a
    /// window arrived, and one that was narrowed arrives sooner than in an RTT. At `sent`, the least RTT
    /// of what this end sent, there may have been a queue. A window that is filled shows it once the
    /// least wait is known (`waited`).
    pub(super) fn handle_unstamped(&mut self, sent: Span, waited: Option<Span>) {
        let before = self.rtt.unwrap_or(sent).min(sent);
        let seen = waited.filter(|_| self.pace.span >= PACE_SPAN).and_then(|waited| {
            let took = std::mem::take(&mut self.pace).window_time()?;
            Some(took.saturating_sub(waited).max(sent / PACE_PART).min(before))
        });
        let beyond = before.saturating_sub(seen.unwrap_or(before));
        self.rtt = Some(before.saturating_sub(beyond / 4).max(RTT_MIN));
    }
}

/// What the connection's timestamps say, unless its server's clock jumped within the interval.
pub(super) fn plausible(sample: &ConnectionSample) -> Option<TransitSample> {
    sample.transit.filter(|t| t.mean_ns.saturating_sub(t.min_ns) <= QUEUE_MAX)
}

/// No buffer of an access link holds packets for longer.
pub(super) const QUEUE_MAX: i64 = 4_000_000_000;
/// Timestamps are whole milliseconds, rounded down: on average packets look older by half of one.
pub(super) const STAMP_ROUNDING: i64 = 500_000;
/// Round trips are shorter.
const PACE_SPAN: Span = Span::millis(900);
/// No more than the rest of an RTT was a queue.
const PACE_PART: u64 = 16;
