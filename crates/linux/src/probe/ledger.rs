//! Which requests are under way, and what became of the others.
//!
//! Invariant: every request that was sent is under way, answered or lost, and each of these once.

use std::collections::VecDeque;
use std::net::IpAddr;

use fairweir_core::receiver::ProbeSample;
use fairweir_core::units::{Span, Time};

use super::packet::{Answer, Request};

/// A request without an answer for so long is lost. Source: no access link that people keep has a
/// queue of a second; what comes later says nothing about now.
pub(super) const TIMEOUT: Span = Span::secs(1);

/// The most requests under way: [`TIMEOUT`] at the shortest interval, 10 ms, and some.
const OPEN_MAX: usize = 128;

/// Requests and their fate.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: VecDeque<Open>,
    sent: u32,
    answered: u32,
    rtt_min: Span,
    rtt_sum: Span,
    /// How often another host than before answered.
    reflector: u32,
    answered_by: Option<IpAddr>,
    totals: Totals,
}

#[derive(Debug)]
struct Open {
    request: Request,
    at: Time,
}

/// Since the probe's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Requests whose fate is known.
    pub(super) sent: u64,
    pub(super) answered: u64,
    /// The newest answer's.
    pub(super) rtt_last: Option<Span>,
    /// Who gave it.
    pub(super) from: Option<IpAddr>,
    /// How many requests were lost since the newest answer.
    pub(super) lost_in_a_row: u32,
}

impl Ledger {
    /// A request went out.
    pub(super) fn handle_sent(&mut self, request: Request, at: Time) {
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
            self.lose();
        }
        self.open.push_back(Open { request, at });
    }

    /// Something came in that looks like an answer; false if it is none, or the second, or late.
    pub(super) fn handle_answer(&mut self, answer: &Answer, at: Time) -> bool {
        self.handle_time(at);
        let Some(i) = self.open.iter().position(|o| o.request.is_answered_by(answer)) else {
            return false;
        };
        let Some(open) = self.open.remove(i) else { return false };
        let rtt = at.since(open.at);
        if self.answered_by.replace(answer.from).is_some_and(|before| before != answer.from) {
            // What the other one answered says nothing of this one's way.
            self.reflector += 1;
            (self.answered, self.rtt_sum) = (0, Span::ZERO);
        }
        self.rtt_min = if self.answered == 0 { rtt } else { self.rtt_min.min(rtt) };
        self.rtt_sum += rtt;
        self.sent += 1;
        self.answered += 1;
        self.totals.sent += 1;
        self.totals.answered += 1;
        self.totals.rtt_last = Some(rtt);
        self.totals.from = Some(answer.from);
        self.totals.lost_in_a_row = 0;
        true
    }

    /// Gives up what has waited too long at `now`.
    pub(super) fn handle_time(&mut self, now: Time) {
        while self.open.front().is_some_and(|o| now.since(o.at) > TIMEOUT) {
            self.open.pop_front();
            self.lose();
        }
    }

    /// What was decided since the last call.
    pub(super) fn take_sample(&mut self) -> ProbeSample {
        let sample = ProbeSample {
            sent: self.sent,
            answered: self.answered,
            rtt_min: self.rtt_min,
            rtt_mean: self.rtt_sum / u64::from(self.answered.max(1)),
            reflector: self.reflector,
        };
        (self.sent, self.answered) = (0, 0);
        (self.rtt_min, self.rtt_sum) = (Span::ZERO, Span::ZERO);
        sample
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Somebody else is asked from now on.
    pub(super) fn forget_reflector(&mut self) {
        (self.totals.from, self.totals.lost_in_a_row) = (None, 0);
    }

    fn lose(&mut self) {
        self.sent += 1;
        self.totals.sent += 1;
        self.totals.lost_in_a_row += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::probe::packet::answer;
    use crate::probe::packet::tests::{exceeded, reply, request};

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::millis(ms)
    }

    fn numbered(sequence: u16) -> Request {
        Request { sequence, token: u64::from(sequence) * 77, ..request("198.51.100.7") }
    }

    #[test]
    fn a_sample_holds_what_was_decided_in_its_interval() {
        let mut ledger = Ledger::default();
        for i in 0..4 {
            ledger.handle_sent(numbered(i), at(50 * u64::from(i)));
        }
        for (i, late) in [(0, 20), (2, 40), (1, 120)] {
            let answer = answer(&reply(&numbered(i), "192.0.2.1")).unwrap();
            assert!(ledger.handle_answer(&answer, at(50 * u64::from(i) + late)));
        }
        let sample = ledger.take_sample();
        assert_eq!((sample.sent, sample.answered), (3, 3), "the fourth is under way");
        assert_eq!((sample.rtt_min, sample.rtt_mean), (Span::millis(20), Span::millis(60)));
        assert_eq!(ledger.take_sample(), ProbeSample::default());
        ledger.handle_time(at(1_151));
        let sample = ledger.take_sample();
        assert_eq!((sample.sent, sample.answered), (1, 0), "the fourth is lost");
        assert_eq!((ledger.totals().sent, ledger.totals().answered), (4, 3));
        assert_eq!(ledger.totals().lost_in_a_row, 1);
    }

    #[test]
    fn a_forged_a_second_and_a_late_answer_are_ignored() {
        let mut ledger = Ledger::default();
        let (asked, here) = (numbered(1), "192.0.2.1");
        ledger.handle_sent(asked, at(0));
        let forged = [
            reply(&Request { token: 1, ..asked }, here),
            reply(&Request { to: "198.51.100.8".parse().unwrap(), ..asked }, here),
            exceeded(&Request { token: 1, ..asked }, here, "203.0.113.1", 16),
            exceeded(&Request { sequence: 2, ..asked }, here, "203.0.113.1", 8),
        ];
        for packet in forged {
            assert!(!ledger.handle_answer(&answer(&packet).unwrap(), at(1)));
        }
        let right = answer(&reply(&asked, here)).unwrap();
        assert!(ledger.handle_answer(&right, at(30)));
        assert!(!ledger.handle_answer(&right, at(31)), "the second");
        assert_eq!((ledger.totals().sent, ledger.totals().answered), (1, 1));
        ledger.handle_sent(asked, at(100));
        assert!(!ledger.handle_answer(&right, at(1_101)), "too late");
        assert_eq!((ledger.totals().sent, ledger.totals().answered), (2, 1));
    }

    #[test]
    fn requests_under_way_are_bounded_and_all_are_counted_once() {
        let mut ledger = Ledger::default();
        for i in 0..1_000 {
            ledger.handle_sent(numbered(i), at(0));
            assert!(ledger.open.len() <= OPEN_MAX);
        }
        ledger.handle_time(at(5_000));
        assert_eq!((ledger.take_sample().sent, ledger.open.len()), (1_000, 0));
    }
}
