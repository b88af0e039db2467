//! Whether a bundle holds a target, and the reason if it does not.
//!
//! Method: after each [`SPAN`], the mean rate of a free connection over the last [`SPANS`] is compared
//! with its mean target, since a single span is dominated by chance. A miss is final only if the gain was at
//! the end of its range for nearly all of that time: then nothing is left to delegate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Gain, Tally};
use crate::units::{Bytes, Rate, Span, Time};

/// How long a span is.
const SPAN: Span = Span::secs(5);
/// Spans that are judged together: 30 s.
const SPANS: usize = 6;
/// A target is held if the rate is within this percentage of it.
const WITHIN_PERCENT: u64 = 5;
/// A mean gain beyond this counts as the end of the range.
const GAIN_END: f64 = 0.9;

/// Whether a bundle holds a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was not watched for long enough.
    #[default]
    Unknown,
    /// The mean rate is within 5 % of the target.
    Held,
    /// The target is missed, and the gain can still change that.
    Approaching,
    /// The target is missed, and the gain is at the end of its range.
    Unreachable(Reason),
}

/// Why a target cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No stunt has delivered 1 MB and left slow start.
    NoStunts,
    /// No stunt shares its bottleneck.
    NotShared,
    /// The stunts cannot give up as much as the free connection would.
    StuntsAtFloor,
    /// The connection had few signals: its application or its receiver limits it.
    NotCongested,
    /// All of its signals are delegated, and its window still cannot grow fast enough.
    TooManySignals,
    /// The rate is above its target although the connection answers all signals that it can.
    TooFewSignals,
}

impl Verdict {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Held => "held",
            Verdict::Approaching => "approaching",
            Verdict::Unreachable(_) => "unreachable",
        }
    }

    /// The verdict of this name in reports.
    pub fn named(name: &str, reason: Option<&str>) -> Option<Verdict> {
        let reasons = Reason::ALL.into_iter().map(Verdict::Unreachable);
        let all = [Verdict::Unknown, Verdict::Held, Verdict::Approaching].into_iter();
        all.chain(reasons).find(|v| v.name() == name && v.reason() == reason)
    }

    /// The reason why the target cannot be held, for people; `None` if it can.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Verdict::Unreachable(reason) => Some(reason.text()),
            Verdict::Unknown | Verdict::Held | Verdict::Approaching => None,
        }
    }
}

impl Reason {
    const ALL: [Reason; 6] = [
        Reason::NoStunts,
        Reason::NotShared,
        Reason::StuntsAtFloor,
        Reason::NotCongested,
        Reason::TooManySignals,
        Reason::TooFewSignals,
    ];

    const fn text(self) -> &'static str {
        match self {
            Reason::NoStunts => "no stunt has delivered 1 MB and left slow start",
            Reason::NotShared => "no stunt shares the bottleneck of the connection",
            Reason::StuntsAtFloor => "the stunts have too little above their floors",
            Reason::NotCongested => "the application or the receiver limits the connection",
            Reason::TooManySignals => "the window cannot grow fast enough between losses",
            Reason::TooFewSignals => "the connection has too few signals to fall to its target",
        }
    }
}

/// What is watched of one free connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    verdict: Verdict,
    since: Option<Time>,
    now: Sums,
    /// The last spans, at most [`SPANS`].
    past: VecDeque<Sums>,
    before: Tally,
}

/// Sums over some intervals.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    seconds: f64,
    wanted: Bytes,
    had: Bytes,
    /// Gain times seconds.
    gain_s: f64,
    reachable: Bytes,
    signals: u64,
    refused: u64,
}

impl Sums {
    fn and(self, other: &Sums) -> Sums {
        Sums {
            seconds: self.seconds + other.seconds,
            wanted: self.wanted + other.wanted,
            had: self.had + other.had,
            gain_s: self.gain_s + other.gain_s,
            reachable: self.reachable + other.reachable,
            signals: self.signals + other.signals,
            refused: self.refused + other.refused,
        }
    }
}

/// One interval.
pub(super) struct Seen {
    pub(super) now: Time,
    pub(super) length: Span,
    pub(super) target: Rate,
    pub(super) rate: Rate,
    pub(super) gain: Gain,
    pub(super) has_stunts: bool,
    pub(super) are_apart: bool,
    pub(super) reachable: Rate,
    pub(super) tally: Tally,
}

impl Watch {
    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(super) fn handle_interval(&mut self, seen: &Seen) {
        let since = *self.since.get_or_insert(seen.now);
        let seconds = seen.length.as_secs_f64();
        self.now = self.now.and(&Sums {
            seconds,
            wanted: seen.target * seen.length,
            had: seen.rate * seen.length,
            gain_s: seen.gain.as_f64() * seconds,
            reachable: seen.reachable * seen.length,
            signals: seen.tally.signals - self.before.signals,
            refused: seen.tally.refused - self.before.refused,
        });
        self.before = seen.tally;
        if seen.now.since(since) < SPAN {
            return;
        }
        self.past.push_back(std::mem::take(&mut self.now));
        if self.past.len() > SPANS {
            self.past.pop_front();
        }
        self.since = Some(seen.now);
        self.verdict = judge(&self.past.iter().fold(Sums::default(), Sums::and), seen);
    }
}

fn judge(sums: &Sums, seen: &Seen) -> Verdict {
    let gain = sums.gain_s / sums.seconds;
    let tolerance = Bytes::new(sums.wanted.as_u64() / 100 * WITHIN_PERCENT);
    if sums.had > sums.wanted + tolerance {
        return match gain < -GAIN_END {
            true => Verdict::Unreachable(Reason::TooFewSignals),
            false => Verdict::Approaching,
        };
    }
    if sums.had + tolerance >= sums.wanted {
        return Verdict::Held;
    }
    let is_beyond = sums.reachable + tolerance < sums.wanted;
    let no_stunts = if seen.are_apart { Reason::NotShared } else { Reason::NoStunts };
    let reason = match gain > GAIN_END {
        _ if is_beyond && !seen.has_stunts => no_stunts,
        _ if is_beyond => Reason::StuntsAtFloor,
        false => return Verdict::Approaching,
        true if !seen.has_stunts => no_stunts,
        true if sums.signals == 0 => Reason::NotCongested,
        true if sums.refused * 2 > sums.signals => Reason::StuntsAtFloor,
        true => Reason::TooManySignals,
    };
    Verdict::Unreachable(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict after spans with these percentages of the target and gains, the same at each tick of a span.
    fn verdict(spans: &[(u64, f64)]) -> Verdict {
        let mut watch = Watch::default();
        for n in 0..=50 * spans.len() as u64 {
            let (percent, gain) = spans[(n.saturating_sub(1) / 50) as usize];
            watch.handle_interval(&Seen {
                now: Time::ZERO + Span::millis(100) * n,
                length: Span::millis(100),
                target: Rate::mbit(10),
                rate: Rate::kbit(100 * percent),
                gain: Gain::from_f64(gain),
                has_stunts: true,
                are_apart: false,
                reachable: Rate::mbit(10),
                tally: Tally { signals: n, ..Tally::default() },
            });
        }
        watch.verdict()
    }

    #[test]
    fn the_mean_of_30_s_is_judged_and_not_the_last_5_s() {
        let at_end = Verdict::Unreachable(Reason::TooManySignals);
        // 10 s and 60 s give the same verdict as 30 s.
        for spans in [2, 6, 12] {
            assert_eq!(verdict(&vec![(100, 0.0); spans]), Verdict::Held);
            assert_eq!(verdict(&vec![(97, 1.0); spans]), Verdict::Held);
            assert_eq!(verdict(&vec![(92, 1.0); spans]), at_end);
            assert_eq!(verdict(&vec![(92, 0.5); spans]), Verdict::Approaching);
            let above = Verdict::Unreachable(Reason::TooFewSignals);
            assert_eq!(verdict(&vec![(120, -1.0); spans]), above);
        }
        // One span above the target with the gain at its end, but a mean of 101 %.
        let mut spans = vec![(98, 0.0); 6];
        spans[5] = (116, -1.0);
        assert_eq!(verdict(&spans), Verdict::Held);
        // A single good span does not mean that the target is held.
        spans = vec![(85, 1.0); 6];
        spans[5] = (110, 1.0);
        assert_eq!(verdict(&spans), at_end);
        // Spans older than 30 s do not count.
        spans = [vec![(50, 1.0); 6], vec![(100, 0.5); 6]].concat();
        assert_eq!(verdict(&spans), Verdict::Held);
    }
}
