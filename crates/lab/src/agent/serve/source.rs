//! A source with a demand that changes in steps.

use fairweir_core::units::{Span, Time};

use super::CHUNK;
use crate::job::Job;

/// Demand that could not be sent is sent later, up to the demand of this time: a paced source that was delayed
/// does not catch up with more.
const OWED_MAX: Span = Span::millis(20);

/// A source with a demand that changes in steps: a token bucket of payload bytes.
pub(super) struct Source {
    /// Payload bytes per second from each instant on; `None` is unlimited.
    goodputs: Vec<(Time, Option<u64>)>,
    segment: u64,
    at: Time,
    /// Tokens in 10⁻⁹ bytes, so that rounding loses nothing.
    nanotokens: u128,
}

/// How much a source may send now.
pub(super) enum Allowance {
    Bytes(u64),
    NothingUntil(Time),
}

impl Source {
    /// A source that has sent nothing yet, and that sends whole `segment`s.
    pub(super) fn new(job: &Job, now: Time, segment: u64) -> Source {
        Source { goodputs: job.goodputs(), segment, at: now, nanotokens: 0 }
    }

    /// How much may be sent at `now`, in whole segments.
    pub(super) fn allowance(&mut self, now: Time) -> Allowance {
        let holds = self.goodputs.iter().rev().find(|(at, _)| *at <= now);
        let goodput = holds.or(self.goodputs.first()).and_then(|(_, goodput)| *goodput);
        let passed = now.since(self.at);
        self.at = now;
        let Some(goodput) = goodput else {
            self.nanotokens = 0;
            return Allowance::Bytes(CHUNK as u64);
        };
        let segment = self.segment;
        self.nanotokens += u128::from(goodput) * u128::from(passed.as_nanos());
        self.nanotokens = self.nanotokens.min(u128::from(owed_max(goodput, segment)) * NANO);
        let segments = (self.nanotokens / NANO) as u64 / segment;
        if segments > 0 {
            return Allowance::Bytes(segments * segment);
        }
        let missing = u128::from(segment) * NANO - self.nanotokens;
        let wait = missing.div_ceil(u128::from(goodput.max(1)));
        Allowance::NothingUntil(now + Span::nanos(wait.min(u64::MAX.into()) as u64))
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        self.nanotokens = self.nanotokens.saturating_sub(u128::from(bytes) * NANO);
    }
}

const NANO: u128 = 1_000_000_000;

/// Maximum payload, in bytes, by which a paced source may be behind.
pub(super) fn owed_max(goodput: u64, segment: u64) -> u64 {
    const SEGMENTS_MIN: u64 = 4;
    let owed = u128::from(goodput) * u128::from(OWED_MAX.as_nanos()) / 1_000_000_000;
    (owed as u64).max(SEGMENTS_MIN * segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes sent by a source that can send at any time except between `held_from` and `held_to` (`held`, in ms).
    fn sent_in_ten_seconds(goodputs: Vec<(Time, Option<u64>)>, held: std::ops::Range<u64>) -> u64 {
        let mut source = Source { goodputs, segment: 1448, at: Time::ZERO, nanotokens: 0 };
        let mut sent = 0;
        for ms in (0..10_000).filter(|ms| !held.contains(ms)) {
            if let Allowance::Bytes(bytes) = source.allowance(Time::ZERO + Span::millis(ms)) {
                source.sent(bytes);
                sent += bytes;
            }
        }
        sent
    }

    #[test]
    fn a_source_sends_its_goodput() {
        let sent = sent_in_ten_seconds(vec![(Time::ZERO, Some(1_000_000))], 0..0);
        assert!((9_995_000..=10_000_000).contains(&sent), "{sent}");
    }

    #[test]
    fn a_step_changes_the_goodput() {
        let at = Time::ZERO + Span::secs(5);
        let steps = vec![(Time::ZERO, Some(1_000_000)), (at, Some(200_000))];
        let sent = sent_in_ten_seconds(steps, 0..0);
        assert!((5_995_000..=6_005_000).contains(&sent), "{sent}");
    }

    #[test]
    fn what_could_not_be_sent_is_not_owed() {
        let sent = sent_in_ten_seconds(vec![(Time::ZERO, Some(1_000_000))], 2_000..6_000);
        assert!((6_000_000..=6_030_000).contains(&sent), "{sent}");
    }
}
