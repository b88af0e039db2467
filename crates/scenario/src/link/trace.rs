//! Capacity as a list of instants at which a packet may leave, as recorded on mobile networks.
//!
//! The format is that of Mahimahi: a line for each opportunity to deliver a full packet, with the
//! time in milliseconds since the start, in order of time; the last line is the length of the
//! trace, which then begins again. An opportunity carries an IP packet of 1500 bytes,
//! [`Trace::OPPORTUNITY`] on Ethernet: several small packets, or the rest of a larger one. It is
//! lost if no packet waits. Source: Netravali et al., "Mahimahi: Accurate Record-and-Replay for
//! HTTP", USENIX ATC 2015, and Winstein, Sivaraman and Balakrishnan, NSDI 2013, for the idea.

use std::str::FromStr;
use std::sync::Arc;

use fairweir_core::units::{Bytes, Rate, Span, Time};

/// The instants at which a packet may leave, repeated without end.
///
/// Invariant: there is an opportunity, all are in order of time, and the last is after zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    at_ms: Arc<[u32]>,
}

/// The first fault found in a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TraceError {
    /// Line number, counted from 1.
    pub line: usize,
    /// What was found and what is allowed.
    pub what: String,
}

/// The most opportunities of a trace: 40 MB of memory, or 20 min at 100 Mbit/s.
const OPPORTUNITIES_MAX: usize = 10_000_000;

impl Trace {
    /// Size of an opportunity, in L2 bytes.
    pub const OPPORTUNITY: Bytes = Bytes::new(1_514);

    /// Length of the trace, after which it begins again.
    pub fn period(&self) -> Span {
        Span::millis(self.at_ms[self.at_ms.len() - 1].into())
    }

    /// Mean rate of the link over a whole period.
    pub fn mean(&self) -> Rate {
        Rate::from_volume(Trace::OPPORTUNITY * self.at_ms.len() as u64, self.period())
    }

    /// Number of opportunities from the start to just before `t`.
    pub fn before(&self, t: Time) -> u64 {
        let (round, next) = self.first_from(t);
        round.saturating_mul(self.at_ms.len() as u64).saturating_add(next as u64)
    }

    /// The first opportunity at or after `t`: how many times the trace began again, and the index.
    ///
    /// The last opportunity of a round is at the instant at which the next round begins, and
    /// precedes that round.
    fn first_from(&self, t: Time) -> (u64, usize) {
        let period = self.period().as_nanos();
        let round = t.as_nanos().saturating_sub(1) / period;
        let within = t.as_nanos() - round * period;
        (round, self.at_ms.partition_point(|&ms| u64::from(ms) * NS_PER_MS < within))
    }
}

impl FromStr for Trace {
    type Err = TraceError;

    /// Reads one whole number of milliseconds per line.
    fn from_str(text: &str) -> Result<Trace, TraceError> {
        let mut at_ms: Vec<u32> = Vec::new();
        for (i, found) in text.lines().enumerate() {
            let error = |what: String| TraceError { line: i + 1, what };
            let Ok(ms) = found.trim().parse::<u32>() else {
                let found: String = found.chars().take(20).collect();
                return Err(error(format!("found `{found}`, expected a whole number of ms")));
            };
            if let Some(last) = at_ms.last().filter(|&&last| ms < last) {
                return Err(error(format!("found {ms} after {last}; the lines are out of order")));
            }
            if at_ms.len() == OPPORTUNITIES_MAX {
                return Err(error(format!("the trace has more than {OPPORTUNITIES_MAX} lines")));
            }
            at_ms.push(ms);
        }
        match at_ms.last() {
            None => Err(TraceError { line: 1, what: "the trace is empty".to_owned() }),
            Some(0) => {
                let what = "the trace ends at 0 ms; the last line is its length".to_owned();
                Err(TraceError { line: at_ms.len(), what })
            }
            Some(_) => Ok(Trace { at_ms: at_ms.into() }),
        }
    }
}

/// Position in a trace up to which opportunities are used up.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    trace: Trace,
    /// Number of times the trace began again.
    round: u64,
    /// Index of the opportunity that is used next.
    next: usize,
    /// Bytes that this opportunity can still carry.
    left: u64,
}

impl Cursor {
    pub(super) fn new(trace: Trace) -> Cursor {
        Cursor { trace, round: 0, next: 0, left: Trace::OPPORTUNITY.as_u64() }
    }

    /// Sends a packet that is there from `now` on; returns when its first and last bit are sent.
    pub(super) fn send(&mut self, now: Time, size: Bytes) -> (Time, Time) {
        self.skip_until(now);
        let first = self.time();
        let mut to_send = size.as_u64();
        while to_send > self.left {
            to_send -= self.left;
            self.turn();
        }
        self.left -= to_send;
        (first, self.time())
    }

    /// Skips opportunities that are used up or lie before `now`.
    fn skip_until(&mut self, now: Time) {
        if self.left == 0 {
            self.turn();
        }
        if self.time() < now {
            (self.round, self.next) = self.trace.first_from(now);
            self.left = Trace::OPPORTUNITY.as_u64();
        }
    }

    fn turn(&mut self) {
        self.left = Trace::OPPORTUNITY.as_u64();
        self.next += 1;
        if self.next == self.trace.at_ms.len() {
            self.next = 0;
            self.round += 1;
        }
    }

    fn time(&self) -> Time {
        let begin = self.trace.period() * self.round;
        Time::ZERO + begin + Span::millis(self.trace.at_ms[self.next].into())
    }
}

const NS_PER_MS: u64 = Span::millis(1).as_nanos();

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time::ZERO + Span::millis(n)
    }

    #[test]
    fn a_trace_repeats_from_its_last_line_on() {
        let trace: Trace = "0\n2\n2\n5\n".parse().unwrap();
        assert_eq!(trace.period(), Span::millis(5));
        // Opportunities are at 0, 2, 2, 5, then 5 (the next round's 0), 7, 7, 10, 10, …
        let before: Vec<u64> = (0..=11).map(|t| trace.before(ms(t))).collect();
        assert_eq!(before, [0, 1, 1, 3, 3, 3, 5, 5, 7, 7, 7, 9]);
        assert_eq!(trace.mean(), Rate::from_volume(Bytes::new(4 * 1_514), Span::millis(5)));
    }

    #[test]
    fn packets_leave_at_opportunities_and_share_them() {
        let mut cursor = Cursor::new("2\n3\n5\n".parse().unwrap());
        let mut send = |now, size| cursor.send(ms(now), Bytes::new(size));
        assert_eq!(send(1, 500), (ms(2), ms(2)));
        assert_eq!(send(2, 1_014), (ms(2), ms(2)));
        // The packet takes all of the second opportunity, and the beginning of the third.
        assert_eq!(send(2, 2_000), (ms(3), ms(5)));
        assert_eq!(send(5, 1_000), (ms(5), ms(5)));
        // No packet used the rest of the one at 5 ms and those at 7 ms and 8 ms.
        assert_eq!(send(9, 1_514), (ms(10), ms(10)));
        assert_eq!(send(1_000_000, 1_514), (ms(1_000_000), ms(1_000_000)));
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        let error = |text: &str| {
            let e = text.parse::<Trace>().unwrap_err();
            format!("{}: {e}", e.line)
        };
        assert!(error("1\n2x\n").starts_with("2: found `2x`"));
        assert!(error("1\n\n3\n").starts_with("2: found ``"));
        assert!(error("1\n-2\n").contains("whole number"));
        assert!(error("3\n2\n").starts_with("2: found 2 after 3"));
        assert!(error("").contains("empty"));
        assert!(error("0\n0\n").starts_with("2: the trace ends at 0 ms"));
    }
}
