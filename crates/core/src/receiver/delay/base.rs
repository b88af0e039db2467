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
    /// Whether the base was taken while the queue was empty, or is known from other connections.
    pub(super) is_settled: bool,
    /// Whether the connection received a significant part when it was seen last.
    pub(super) is_busy: bool,
    pub(super) seen_at: Time,
    /// How much longer its packets waited than those of others in the last interval.
    pub(super) own_queue: Span,
    pub(super) pace: Pace,
}

/// What a connection received since the probe's last answers, and its largest window in that time.
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

    /// The time in which a window arrived: an RTT including the queue if the window was filled, else longer.
    fn window_time(&self) -> Option<Span> {
        let rate = Rate::from_volume(self.received, self.span);
        (rate > Rate::ZERO && self.window > Bytes::ZERO).then(|| rate.time_to_send(self.window))
    }
}

impl Base {
    /// What the timestamps of an interval say about the queue.
    pub(super) fn by_stamps(&self, sample: &ConnectionSample) -> Option<Estimate> {
        let (transit, base) = (plausible(sample)?, self.transit?);
        let least = transit.min_ns.saturating_sub(base);
        let mean = transit.mean_ns.saturating_sub(base) - STAMP_ROUNDING;
        let (samples, is_settled) = (transit.samples, self.is_settled);
        Some(Estimate { least, mean, samples, is_settled, sources: 1 })
    }

    /// Takes in a smoothed RTT. If the queue is known, the RTT without the queue enters the mean; otherwise
    /// the RTT is an upper limit of the base.
    pub(super) fn handle_rtt(&mut self, rtt: Span, queue: Option<i64>) {
        let rtt = rtt.as_nanos();
        let base = match (self.rtt.map(Span::as_nanos), queue) {
            (Some(old), Some(queue)) => {
                let seen = rtt.saturating_sub(queue as u64).max(RTT_MIN.as_nanos());
                // A first guess that was too high is replaced at once.
                if seen * 10 < old * 9 { seen } else { old / 8 * 7 + seen / 8 }
            }
            (Some(old), None) => old.min(rtt),
            (None, _) => rtt,
        };
        self.rtt = Some(Span::nanos(base));
    }

    /// Takes in an interval without timestamps. The receiver's RTT is then the shortest time in which a window
    /// arrived, which is too short if the window was narrowed. `sent`, the least RTT of what this end sent, may
    /// contain a queue. A filled window shows how long that queue is, once the least wait is known
    /// (`waited`).
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

/// Longest queue, in ns: no buffer of an access link holds packets for longer.
pub(super) const QUEUE_MAX: i64 = 4_000_000_000;
/// Timestamps are whole milliseconds, rounded down: on average packets look older by half a millisecond.
pub(super) const STAMP_ROUNDING: i64 = 500_000;
/// Shortest time over which a pace is measured; round trips are shorter.
const PACE_SPAN: Span = Span::millis(900);
/// Part of an RTT that is left at least when a queue is subtracted: one in this many.
const PACE_PART: u64 = 16;
