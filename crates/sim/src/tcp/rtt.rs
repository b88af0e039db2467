//! Round-trip times and the timeouts that follow from them.
//!
//! RFC 6298, with Linux's floor: the retransmission timeout is the smoothed RTT plus four deviations
//! but at least [`RTO_ABOVE_SRTT_MIN`], so that a delayed ACK never looks like a loss.

use fairweir_core::units::Span;

/// Estimates of a connection's round-trip time.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed: Span,
    deviation: Span,
    min: Span,
    latest: Span,
    /// Sum of all samples, one per ACK from its newest packet.
    sum: Span,
    count: u64,
    /// Number of times the timeout was doubled since the last new acknowledgement.
    backoff: u32,
}

impl Rtt {
    /// Starts with `first`, the RTT of the handshake.
    pub(super) fn new(first: Span) -> Rtt {
        Rtt {
            smoothed: first,
            deviation: first / 2,
            min: first,
            latest: first,
            sum: first,
            count: 1,
            backoff: 0,
        }
    }

    /// Adds the samples of an ACK: the RTT of the oldest packet that it acknowledges, which includes
    /// the receiver's delay, and the RTT of the newest, which includes the least of that delay.
    pub(super) fn handle_sample(&mut self, oldest: Span, newest: Span) {
        let [smoothed, deviation, sample] =
            [self.smoothed, self.deviation, oldest].map(|s| s.as_nanos());
        let off = smoothed.abs_diff(sample);
        self.deviation = Span::nanos(deviation - deviation / 4 + off / 4);
        self.smoothed = Span::nanos(smoothed - smoothed / 8 + sample / 8);
        self.min = self.min.min(newest);
        self.latest = newest;
        self.sum += newest;
        self.count += 1;
        self.backoff = 0;
    }

    pub(super) fn smoothed(&self) -> Span {
        self.smoothed
    }

    pub(super) fn min(&self) -> Span {
        self.min
    }

    /// RTT of the packet that was delivered last.
    pub(super) fn latest(&self) -> Span {
        self.latest
    }

    /// The sum of all samples, and their number.
    pub(super) fn all(&self) -> (Span, u64) {
        (self.sum, self.count)
    }

    /// The timeout without backoff.
    pub(super) fn rto(&self) -> Span {
        (self.smoothed + (self.deviation * 4).max(RTO_ABOVE_SRTT_MIN)).min(RTO_MAX)
    }

    /// The timeout in force: doubled for each time that it passed without an answer.
    pub(super) fn rto_backed_off(&self) -> Span {
        (self.rto() * (1 << self.backoff)).min(RTO_MAX)
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    pub(super) fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// Time from the last transmission to a probe: RFC 8985 §7.2. With one packet in flight its ACK
    /// may be delayed; Linux allows the smallest RTO for that.
    pub(super) fn probe_timeout(&self, in_flight: u32) -> Span {
        let allowance = if in_flight == 1 { RTO_ABOVE_SRTT_MIN } else { PROBE_ALLOWANCE };
        self.smoothed * 2 + allowance
    }

    /// Time after its RTT for which a packet may still be late while fewer than three later ones
    /// are acknowledged: RFC 8985 §6.2.
    pub(super) fn reordering_window(&self) -> Span {
        (self.min / 4).min(self.smoothed / 8)
    }
}

/// Linux's `tcp_rto_min`.
const RTO_ABOVE_SRTT_MIN: Span = Span::millis(200);
/// RFC 6298 (2.5) permits an upper bound of at least 60 s; Linux has 120 s.
const RTO_MAX: Span = Span::secs(120);
/// 200 ms · 2¹⁰ is above [`RTO_MAX`].
const BACKOFF_MAX: u32 = 10;
/// Two jiffies, which Linux adds to a probe timeout.
const PROBE_ALLOWANCE: Span = Span::millis(2);
