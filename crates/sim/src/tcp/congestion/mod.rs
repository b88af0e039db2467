//! Congestion control: the size of the window.
//!
//! Each control is a state machine that sees every ACK and may change the [`Window`]; loss recovery
//! asks it how far to cut. Reno, CUBIC and Vegas do not change the window while a recovery reduces
//! it; BBR always sets it, and its own pacing rate.

use fairweir_core::units::{Rate, Span, Time};
use fairweir_scenario::CongestionControl;

use super::rate::RateSample;
use super::recovery::State;

mod bbr;
mod cubic;
mod reno;
mod vegas;

use bbr::Bbr;
use cubic::Cubic;
use vegas::Vegas;

/// The congestion window, in packets.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) cwnd: u32,
    /// Below this window, growth is by slow start.
    pub(super) ssthresh: u32,
    /// Packets acknowledged towards the next increase.
    pub(super) count: u32,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { cwnd: INITIAL_WINDOW, ssthresh: u32::MAX, count: 0 }
    }

    pub(super) fn is_in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows by a packet for each acknowledged one, up to ssthresh; returns how many are left over.
    fn slow_start(&mut self, acked: u32) -> u32 {
        let grown = (self.cwnd + acked).min(self.ssthresh).min(WINDOW_MAX).max(self.cwnd);
        let rest = acked - (grown - self.cwnd);
        self.cwnd = grown;
        rest
    }

    /// Grows by a packet for every `per_packet` acknowledged (RFC 3465, counted in packets).
    fn increase(&mut self, per_packet: u32, acked: u32) {
        // Packets counted towards a slower pace are worth at most one packet of growth.
        if self.count >= per_packet {
            self.count = 0;
            self.cwnd += 1;
        }
        self.count += acked;
        self.cwnd = (self.cwnd + self.count / per_packet).min(WINDOW_MAX);
        self.count %= per_packet;
    }

    /// The ssthresh to remember while the window shrinks unused (RFC 2861 §3.1).
    pub(super) fn ssthresh_remembered(&self) -> u32 {
        self.ssthresh.max(self.cwnd - self.cwnd / 4)
    }
}

/// The input of congestion control from one ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    pub(super) now: Time,
    pub(super) state: State,
    /// Packets that it acknowledges; below, packets that it shows to be lost.
    pub(super) acked: u32,
    pub(super) lost: u32,
    /// Total packets ever delivered, and lost; both counts wrap around.
    pub(super) delivered_total: u32,
    pub(super) lost_total: u32,
    /// Packets in flight now; below, before the ACK.
    pub(super) in_flight: u32,
    pub(super) in_flight_before: u32,
    /// RTT of the newest packet that it acknowledges.
    pub(super) rtt: Option<Span>,
    pub(super) rate: Option<RateSample>,
    /// One more than the highest number acknowledged; below, the number of the next packet.
    pub(super) acked_end: u64,
    pub(super) numbers_end: u64,
    /// Whether the window may grow: it was used, and packets other than those above holes are
    /// acknowledged.
    pub(super) may_grow: bool,
    pub(super) is_paced: bool,
}

/// A connection's congestion control.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each connection, never moved")]
pub(super) enum Congestion {
    Reno,
    Cubic(Cubic),
    Vegas(Vegas),
    Bbr(Bbr),
}

impl Congestion {
    /// At the end of the handshake, which took `rtt`; `segment` is the payload of a full packet.
    pub(super) fn new(
        kind: CongestionControl,
        now: Time,
        rtt: Span,
        segment: u64,
        seed: u64,
    ) -> Congestion {
        match kind {
            CongestionControl::Reno => Congestion::Reno,
            CongestionControl::Cubic => Congestion::Cubic(Cubic::new()),
            CongestionControl::Vegas => Congestion::Vegas(Vegas::new(rtt)),
            CongestionControl::Bbr => Congestion::Bbr(Bbr::new(now, rtt, segment, seed)),
        }
    }

    /// Whether it sets the window also during recovery, and has its own pacing rate.
    pub(super) fn is_model_based(&self) -> bool {
        matches!(self, Congestion::Bbr(_))
    }

    /// An ACK has come.
    pub(super) fn handle_ack(&mut self, sample: &AckSample, window: &mut Window) {
        match self {
            Congestion::Reno => {
                if sample.state != State::Recovery && sample.may_grow {
                    reno::grow(window, sample.acked);
                }
            }
            Congestion::Cubic(cubic) => cubic.handle_ack(sample, window),
            Congestion::Vegas(vegas) => vegas.handle_ack(sample, window),
            Congestion::Bbr(bbr) => bbr.handle_ack(sample, window),
        }
    }

    /// A packet was lost for the first time in a round; returns ssthresh.
    pub(super) fn handle_congestion(&mut self, window: &Window) -> u32 {
        match self {
            Congestion::Reno | Congestion::Vegas(_) => reno::ssthresh(window.cwnd),
            Congestion::Cubic(cubic) => cubic.handle_congestion(window.cwnd),
            Congestion::Bbr(bbr) => {
                bbr.handle_congestion(window.cwnd);
                window.ssthresh
            }
        }
    }

    /// The window that would remain after a loss.
    pub(super) fn ssthresh(&self, cwnd: u32) -> u32 {
        match self {
            Congestion::Reno | Congestion::Vegas(_) => reno::ssthresh(cwnd),
            Congestion::Cubic(_) => cubic::ssthresh(cwnd),
            Congestion::Bbr(_) => cwnd,
        }
    }

    /// A retransmission timeout has passed.
    pub(super) fn handle_timeout(&mut self) {
        match self {
            Congestion::Reno | Congestion::Vegas(_) => {}
            Congestion::Cubic(cubic) => *cubic = Cubic::new(),
            Congestion::Bbr(bbr) => bbr.handle_timeout(),
        }
    }

    /// Sending begins again after nothing was in flight for a time of `idle`.
    pub(super) fn handle_restart(
        &mut self,
        now: Time,
        idle: Span,
        is_app_limited: bool,
        window: &mut Window,
    ) {
        match self {
            Congestion::Reno => {}
            Congestion::Cubic(cubic) => cubic.handle_restart(now, idle),
            Congestion::Vegas(vegas) => vegas.handle_restart(),
            Congestion::Bbr(bbr) if is_app_limited => bbr.handle_restart(now, window),
            Congestion::Bbr(_) => {}
        }
    }

    /// Whether few packets are in flight on purpose, so that rate samples mean little.
    pub(super) fn is_probing_rtt(&self) -> bool {
        match self {
            Congestion::Bbr(bbr) => bbr.is_probing_rtt(),
            Congestion::Reno | Congestion::Cubic(_) | Congestion::Vegas(_) => false,
        }
    }

    /// Its own pacing rate, in payload.
    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        match self {
            Congestion::Bbr(bbr) => Some(bbr.pacing_rate()),
            Congestion::Reno | Congestion::Cubic(_) | Congestion::Vegas(_) => None,
        }
    }
}

/// The initial window in packets (RFC 6928).
pub(super) const INITIAL_WINDOW: u32 = 10;
/// The smallest window after a loss (RFC 5681 (4)).
const WINDOW_AFTER_LOSS_MIN: u32 = 2;
/// The largest window: more packets than any path here holds, 1.5 GB.
const WINDOW_MAX: u32 = 1 << 20;
