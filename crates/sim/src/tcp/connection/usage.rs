//! Whether the window is used: an unused window must not grow, and is reduced with time.
//!
//! A window that the application does not fill says nothing about the path. It grows only if it was
//! filled in this round or, in slow start, if it is less than twice the packets that were in
//! flight. If it was not filled for an RTO, it goes halfway down to what was used. Source: RFC 2861
//! (validation) and RFC 7661 §4, as in Linux.

use fairweir_core::units::{Span, Time};

use super::super::congestion::{INITIAL_WINDOW, Window};
use super::super::flight::Flight;

#[derive(Clone, Debug)]
pub(super) struct Usage {
    /// Whether the window was full in this round; below, the most packets in flight in it.
    was_full: bool,
    in_flight_max: u32,
    /// The round ends when the packets sent before this number are acknowledged.
    round_end: u64,
    /// The most packets in flight since the window was full.
    used: u32,
    full_at: Time,
    has_sent: bool,
}

impl Usage {
    pub(super) fn new(now: Time) -> Usage {
        Usage {
            was_full: false,
            in_flight_max: 0,
            round_end: 0,
            used: 0,
            full_at: now,
            has_sent: false,
        }
    }

    /// Whether the window limits the sender.
    pub(super) fn is_limited(&self, window: &Window) -> bool {
        self.was_full || (window.is_in_slow_start() && window.cwnd < 2 * self.in_flight_max)
    }

    pub(super) fn handle_sent(&mut self) {
        self.has_sent = true;
    }

    /// All packets that may go now have been sent; `may_decay` if there is nothing else to send.
    pub(super) fn handle_settled(
        &mut self,
        now: Time,
        flight: &Flight,
        window: &mut Window,
        rto: Span,
        may_decay: bool,
    ) {
        let in_flight = flight.in_flight();
        let is_full = in_flight >= window.cwnd;
        if !self.has_sent && !is_full {
            return;
        }
        self.has_sent = false;
        let is_new_round = flight.acked_end() >= self.round_end;
        if is_new_round || is_full || (!self.was_full && in_flight > self.in_flight_max) {
            self.was_full = is_full;
            self.in_flight_max = in_flight;
            self.round_end = flight.numbers_end();
        }
        if self.is_limited(window) {
            self.used = 0;
            self.full_at = now;
            return;
        }
        self.used = self.used.max(in_flight);
        if may_decay && now.since(self.full_at) >= rto {
            let used = self.used.max(INITIAL_WINDOW);
            if used < window.cwnd {
                window.ssthresh = window.ssthresh_remembered();
                window.cwnd = (window.cwnd + used) / 2;
            }
            self.used = 0;
            self.full_at = now;
        }
    }
}
