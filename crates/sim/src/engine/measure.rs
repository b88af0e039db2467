//! What a receiving host sees of one TCP connection between two ticks.
//!
//! The method is the kernel's: TCP timestamps in whole milliseconds. What a packet's stamp is older
//! than its arrival is its transit, up to the difference of two clocks; what its echo is older is
//! the receiver's own sample of the RTT, smoothed by an eighth (Linux's `rcv_rtt_est`).

use fairweir_core::receiver::{ConnectionSample, TransitSample};
use fairweir_core::units::{Bytes, Span, Time};

use crate::tcp::Receiver;

const MILLISECOND: u64 = 1_000_000;

/// The TCP timestamps of a packet, in ms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamps {
    /// When it was sent.
    pub(super) sent: u32,
    /// The newest that its sender had seen of the other end.
    pub(super) echo: u32,
}

impl Stamps {
    /// Of a packet that is sent now.
    pub(super) fn new(now: Time, echo: u32) -> Stamps {
        Stamps { sent: stamp(now), echo }
    }
}

/// What a clock of milliseconds says.
pub(super) fn stamp(now: Time) -> u32 {
    (now.as_nanos() / MILLISECOND) as u32
}

/// What was seen of a connection since the last tick, and its RTT.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    /// What had been received at the last tick.
    received_before: Bytes,
    /// What had arrived out of order by then.
    out_of_order_before: u64,
    segments: u64,
    has_sent: bool,
    rtt: Option<Span>,
    echo_seen: u32,
    transit: Option<(i64, i64, u32)>,
}

impl Measure {
    /// A packet with payload has arrived at the interface.
    pub(super) fn handle_arrival(&mut self, now: Time, stamps: Stamps) {
        let transit = now.as_nanos() as i64 - (u64::from(stamps.sent) * MILLISECOND) as i64;
        let (min, sum, count) = self.transit.unwrap_or((transit, 0, 0));
        self.transit = Some((min.min(transit), sum + transit, count + 1));
    }

    /// It has come to its socket, a full one or not.
    pub(super) fn handle_segment(&mut self, now: Time, stamps: Stamps, is_full: bool) {
        self.segments += 1;
        if !is_full || stamps.echo == self.echo_seen {
            return;
        }
        self.echo_seen = stamps.echo;
        let sample = Span::millis(u64::from((stamp(now) - stamps.echo).max(1)));
        let smoothed = |old: Span| Span::nanos(old.as_nanos() / 8 * 7 + sample.as_nanos() / 8);
        self.rtt = Some(self.rtt.map_or(sample, smoothed));
    }

    /// The smoothed RTT.
    pub(super) fn rtt(&self) -> Option<Span> {
        self.rtt
    }

    /// The application has sent something.
    pub(super) fn handle_sent(&mut self) {
        self.has_sent = true;
    }

    /// What was seen since the last call, by the receiver of the connection among others.
    pub(super) fn take(
        &mut self,
        sample: ConnectionSample,
        receiver: &Receiver,
    ) -> ConnectionSample {
        let transit = self.transit.take().map(|(min_ns, sum, samples)| TransitSample {
            min_ns,
            mean_ns: sum / i64::from(samples),
            samples,
        });
        let (received, out_of_order) = (receiver.received(), receiver.out_of_order());
        let before = std::mem::replace(&mut self.received_before, received);
        let out_of_order_before = std::mem::replace(&mut self.out_of_order_before, out_of_order);
        ConnectionSample {
            received: received.saturating_sub(before),
            holes: out_of_order - out_of_order_before,
            segments: std::mem::take(&mut self.segments),
            has_sent: std::mem::take(&mut self.has_sent),
            rtt: self.rtt,
            transit,
            ..sample
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{ReceiverSpec, Segment};

    #[test]
    fn a_tick_reports_the_packets_that_arrived_behind_a_missing_one_since_the_last_tick() {
        let mut receiver = Receiver::new(&ReceiverSpec { window: Bytes::kb(64) });
        let mut measure = Measure::default();
        let mut holes_after = |numbers: &[(u64, u32)]| {
            for &(number, resent) in numbers {
                let segment = Segment { number, payload: 1_448, resent, copy: false };
                receiver.handle_segment(Time::ZERO, &segment);
            }
            measure.take(ConnectionSample::default(), &receiver).holes
        };
        assert_eq!(holes_after(&[(0, 0), (1, 0)]), 0, "all in order");
        assert_eq!(holes_after(&[(4, 0), (5, 0), (6, 0)]), 3, "2 and 3 are missing");
        // 7 carries the payload of 2 again, 9 that of 3; 8 is new and lies behind 3.
        assert_eq!(holes_after(&[(7, 1), (8, 1), (9, 2)]), 1, "what fills a hole is in order");
        assert_eq!(holes_after(&[(10, 2)]), 0, "nothing is missing");
    }
}
