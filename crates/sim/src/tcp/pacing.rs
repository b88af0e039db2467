//! When packets may go, if they are paced.
//!
//! As in Linux's own pacing and its fq qdisc, packets go in bursts of about a millisecond at the
//! pacing rate (the effect of TSO), of at least two packets and at most 64 KB. After a burst comes
//! a pause of its length at that rate. A sender that is late, since its window held it back, gets
//! at most half of that lateness back, so that it keeps its rate without catching up in a lump. The
//! first ten packets of a connection are not paced.

use fairweir_core::units::{Bytes, Rate, Span, Time};

/// The pacing of a connection.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    rate: Rate,
    /// Payload of a full packet in bytes.
    segment: u64,
    /// When the next burst may begin.
    next_at: Time,
    burst: Option<Burst>,
    /// Number of packets that still go unpaced.
    free_left: u32,
}

/// A burst that is going out.
#[derive(Clone, Copy, Debug)]
struct Burst {
    at: Time,
    packets_left: u64,
    bytes: u64,
}

impl Pacer {
    pub(super) fn new(segment: u64) -> Pacer {
        let free_left = FREE_PACKETS;
        Pacer { rate: Rate::MAX, segment, next_at: Time::ZERO, burst: None, free_left }
    }

    pub(super) fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// Number of packets in a burst at a rate.
    pub(super) fn burst_packets(rate: Rate, segment: u64) -> u64 {
        let bytes = (rate.bytes_per_second_floor() >> BURST_SHIFT).min(BURST_BYTES_MAX);
        let least = if rate < SLOW { 1 } else { BURST_PACKETS_MIN };
        (bytes / segment).max(least)
    }

    /// When the next packet may go: at once, if that time is not after `now`.
    pub(super) fn next_at(&self, now: Time) -> Time {
        match self.burst {
            Some(burst) if burst.at == now => now,
            _ => self.next_at.max(self.burst.map_or(Time::ZERO, |b| self.pause_after(b))),
        }
    }

    /// A packet was sent.
    pub(super) fn handle_sent(&mut self, now: Time, payload: u64) {
        if self.free_left > 0 {
            self.free_left -= 1;
            return;
        }
        let burst = match self.burst {
            Some(burst) if burst.at == now => burst,
            _ => {
                self.end_burst();
                let packets_left = Self::burst_packets(self.rate, self.segment);
                Burst { at: now, packets_left, bytes: 0 }
            }
        };
        let burst =
            Burst { packets_left: burst.packets_left - 1, bytes: burst.bytes + payload, ..burst };
        self.burst = Some(burst);
        if burst.packets_left == 0 {
            self.end_burst();
        }
    }

    /// No more packets go with the present burst.
    pub(super) fn end_burst(&mut self) {
        if let Some(burst) = self.burst.take() {
            self.next_at = self.pause_after(burst);
        }
    }

    fn pause_after(&self, burst: Burst) -> Time {
        let length = self.rate.time_to_send(Bytes::new(burst.bytes)).min(PAUSE_MAX);
        let late = burst.at.since(self.next_at);
        let credit = late.min(length / 2);
        self.next_at.max(burst.at) + Span::nanos(length.as_nanos() - credit.as_nanos())
    }
}

/// A burst is what passes in 2⁻¹⁰ s (Linux's `sk_pacing_shift`).
const BURST_SHIFT: u32 = 10;
/// Largest size of a TSO packet.
const BURST_BYTES_MAX: u64 = 65_536;
/// Linux's `tcp_min_tso_segs`.
const BURST_PACKETS_MIN: u64 = 2;
/// Below this rate packets go one by one (`bbr_min_tso_rate`, which is for BBR only).
const SLOW: Rate = Rate::kbit(1_200);
/// Number of packets in the initial window, which goes unpaced.
const FREE_PACKETS: u32 = 10;
/// However low the rate, a packet goes each second (as in fq).
const PAUSE_MAX: Span = Span::secs(1);
