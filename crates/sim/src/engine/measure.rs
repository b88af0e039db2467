//! What a receiving host measures of one TCP connection between two ticks.
//!
//! TCP timestamps are in whole ticks. A packet's arrival minus its stamp is its transit time, up to
//! the difference of the two clocks. The arrival minus its echo is the receiver's own sample of the
//! RTT, smoothed by an eighth (Linux's `rcv_rtt_est`).
//!
//! In the kernel's view, packets are timed as [`Timing`] says, and the RTT is also at most the time
//! to receive one whole window (`tcp_rcv_rtt_measure`), which is the only measurement without
//! timestamps. Source: Linux 6.12, `net/ipv4/tcp_input.c`.

use fairweir_core::receiver::{ConnectionSample, TransitSample};
use fairweir_core::units::{Bytes, Span, Time};

use super::transit::{ServerClock, Timed, Timing};
use crate::tcp::Receiver;

const MILLISECOND: u64 = 1_000_000;

/// The TCP timestamps of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamps {
    /// When it was sent, by the server's clock.
    pub(super) sent: u32,
    /// The newest timestamp of the other end that its sender had seen, in ms.
    pub(super) echo: u32,
}

/// Time of a client's clock, in ms.
pub(super) fn stamp(now: Time) -> u32 {
    (now.as_nanos() / MILLISECOND) as u32
}

/// What can be measured of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// Whether the view is the kernel's and no better.
    pub(super) as_kernel: bool,
    /// The server's clock, if there are timestamps.
    pub(super) clock: Option<ServerClock>,
}

/// Measurements of a connection since the last tick, and its RTT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    sight: Sight,
    /// Volume that had been received at the last tick.
    received_before: Bytes,
    /// Volume that had arrived out of order by then.
    out_of_order_before: u64,
    segments: u64,
    has_sent: bool,
    rtt: Option<Span>,
    echo_seen: u32,
    /// Since when a whole window has been awaited, and the payload with which it is complete.
    window_since: Option<(Time, Bytes)>,
    timing: Timing,
    transit: Option<(i64, i64, u32)>,
}

impl Measure {
    /// A connection on which nothing has arrived.
    pub(super) fn new(sight: Sight) -> Measure {
        Measure {
            sight,
            received_before: Bytes::ZERO,
            out_of_order_before: 0,
            segments: 0,
            has_sent: false,
            rtt: None,
            echo_seen: 0,
            window_since: None,
            timing: Timing::default(),
            transit: None,
        }
    }

    /// Times packets from now on; the kernel's RTT estimate began earlier.
    pub(super) fn begin(&mut self) {
        (self.timing, self.transit) = (Timing::default(), None);
    }

    /// A packet with payload has arrived at the interface; `is_turn` says whether the classifier
    /// times this packet.
    pub(super) fn handle_arrival(&mut self, now: Time, stamps: Stamps, is_turn: bool) {
        let Some(clock) = self.sight.clock else { return };
        let transit = if !self.sight.as_kernel {
            let sent = u64::from(stamps.sent) * clock.period.as_nanos();
            now.as_nanos() as i64 - sent as i64
        } else if !is_turn {
            return;
        } else {
            match self.timing.time(now, stamps.sent) {
                Timed::Nothing => return,
                Timed::Anew => {
                    self.transit = None;
                    return;
                }
                Timed::Took(transit) => transit,
            }
        };
        let (min, sum, count) = self.transit.unwrap_or((transit, 0, 0));
        self.transit = Some((min.min(transit), sum + transit, count + 1));
    }

    /// The packet has come to its socket; `is_full` says whether it is a full one.
    pub(super) fn handle_segment(&mut self, now: Time, stamps: Stamps, is_full: bool) {
        self.segments += 1;
        if self.sight.clock.is_none() || stamps.echo == self.echo_seen {
            return;
        }
        if self.sight.as_kernel {
            self.echo_seen = stamps.echo;
        }
        if !is_full {
            return;
        }
        self.echo_seen = stamps.echo;
        let sample = Span::millis(u64::from((stamp(now) - stamps.echo).max(1)));
        let smoothed = |old: Span| Span::nanos(old.as_nanos() / 8 * 7 + sample.as_nanos() / 8);
        self.rtt = Some(self.rtt.map_or(sample, smoothed));
    }

    /// The receiver has the packet: measures the time of a whole window, which is at least an RTT.
    pub(super) fn handle_window(&mut self, now: Time, receiver: &Receiver) {
        if self.sight.clock.is_some() && !self.sight.as_kernel {
            return;
        }
        let received = receiver.received();
        if let Some((since, edge)) = self.window_since {
            if received < edge {
                return;
            }
            let took = now.since(since).max(Span::micros(1));
            self.rtt = Some(self.rtt.map_or(took, |rtt| rtt.min(took)));
        }
        self.window_since = Some((now, received + receiver.window()));
    }

    /// The smoothed RTT.
    pub(super) fn rtt(&self) -> Option<Span> {
        self.rtt
    }

    /// Whether the daemon sees the connection at all: its iterator skips connections on which
    /// nothing has arrived and whose window it does not bound.
    pub(super) fn is_told(&self, receiver: &Receiver, is_bounded: bool) -> bool {
        !self.sight.as_kernel || is_bounded || receiver.received() != self.received_before
    }

    /// Whether the connection is seen as the kernel sees it.
    pub(super) fn as_kernel(&self) -> bool {
        self.sight.as_kernel
    }

    /// The application has sent something.
    pub(super) fn handle_sent(&mut self) {
        self.has_sent = true;
    }

    /// The measurements since the last call, partly from the receiver of the connection.
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
        let sight = Sight { as_kernel: false, clock: None };
        let mut measure = Measure::new(sight);
        let mut holes_after = |numbers: &[(u64, u32)]| {
            for &(number, resent) in numbers {
                let segment =
                    Segment { number, payload: 1_448, resent, copy: false, marked: false };
                receiver.handle_segment(Time::ZERO, &segment);
            }
            measure.take(ConnectionSample::default(), &receiver).holes
        };
        assert_eq!(holes_after(&[(0, 0), (1, 0)]), 0, "all in order");
        assert_eq!(holes_after(&[(4, 0), (5, 0), (6, 0)]), 3, "2 and 3 are missing");
        // 7 carries the payload of 2 again, 9 that of 3; 8 is new and comes after 3.
        assert_eq!(holes_after(&[(7, 1), (8, 1), (9, 2)]), 1, "what fills a hole is in order");
        assert_eq!(holes_after(&[(10, 2)]), 0, "nothing is missing");
    }

    #[test]
    fn without_timestamps_the_rtt_is_the_least_time_in_which_a_window_arrived() {
        let mut receiver = Receiver::new(&ReceiverSpec { window: Bytes::new(14_480) });
        let mut measure = Measure::new(Sight { as_kernel: false, clock: None });
        let mut receive = |number: u64, ms: u64| {
            let now = Time::ZERO + Span::millis(ms);
            let segment = Segment { number, payload: 1_448, resent: 0, copy: false, marked: false };
            measure.handle_segment(now, Stamps::default(), true);
            receiver.handle_segment(now, &segment);
            receiver.advertise();
            measure.handle_window(now, &receiver);
            measure.rtt()
        };
        // A window of ten packets: ten come after 50 ms, then ten after 30 ms, then after 90 ms.
        assert!((0..10).all(|n| receive(n, 0).is_none()));
        let rtts: Vec<_> =
            (10..40).map(|n| receive(n, [50, 80, 170][n as usize / 10 - 1])).collect();
        assert_eq!(rtts[..10], [Some(Span::millis(50)); 10]);
        assert_eq!(rtts[10..], [Some(Span::millis(30)); 20]);
    }
}
