//! Whether a bundle holds a target, and why not.
//!
//! Method: over spans of [`SPAN`], what a free connection had is compared with what it was to have.
//! Only with a gain at its end for nearly all of the span is a miss final: then nothing is left to
//! delegate.

use serde::{Deserialize, Serialize};

use super::{Gain, Tally};
use crate::units::{Bytes, Rate, Span, Time};

/// How long something is watched before it is judged.
const SPAN: Span = Span::secs(5);
/// A target is held if the rate is within this percentage of it.
const WITHIN_PERCENT: u64 = 10;
/// A mean gain beyond this is the end of the range.
const GAIN_END: f64 = 0.9;

/// Whether a bundle holds a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Not watched for long enough.
    #[default]
    Unknown,
    /// The rate is within 10 % of the target.
    Held,
    /// It is not, and the gain can still change that.
    Approaching,
    /// It is not, and the gain is at its end.
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
    /// It is above its target though it answers all that it can.
    TooFewSignals,
}

impl Verdict {
    /// In reports.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Held => "held",
            Verdict::Approaching => "approaching",
            Verdict::Unreachable(_) => "unreachable",
        }
    }

    /// A verdict as reports have it.
    pub fn named(name: &str, reason: Option<&str>) -> Option<Verdict> {
        let reasons = Reason::ALL.into_iter().map(Verdict::Unreachable);
        let all = [Verdict::Unknown, Verdict::Held, Verdict::Approaching].into_iter();
        all.chain(reasons).find(|v| v.name() == name && v.reason() == reason)
    }

    /// Why the target cannot be held, for people; `None` if it can.
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
    wanted: Bytes,
    had: Bytes,
    /// Gain times seconds.
    gain_s: f64,
    reachable: Bytes,
    before: Tally,
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
        self.wanted += seen.target * seen.length;
        self.had += seen.rate * seen.length;
        self.reachable += seen.reachable * seen.length;
        self.gain_s += seen.gain.as_f64() * seen.length.as_secs_f64();
        let span = seen.now.since(since);
        if span < SPAN {
            return;
        }
        let verdict = self.judge(seen, self.gain_s / span.as_secs_f64());
        *self = Watch { verdict, since: Some(seen.now), before: seen.tally, ..Watch::default() };
    }

    fn judge(&self, seen: &Seen, gain: f64) -> Verdict {
        let tolerance = Bytes::new(self.wanted.as_u64() / 100 * WITHIN_PERCENT);
        if self.had > self.wanted + tolerance {
            return match gain < -GAIN_END {
                true => Verdict::Unreachable(Reason::TooFewSignals),
                false => Verdict::Approaching,
            };
        }
        if self.had + tolerance >= self.wanted {
            return Verdict::Held;
        }
        let signals = seen.tally.signals - self.before.signals;
        let refused = seen.tally.refused - self.before.refused;
        let is_beyond = self.reachable + tolerance < self.wanted;
        let no_stunts = if seen.are_apart { Reason::NotShared } else { Reason::NoStunts };
        let reason = match gain > GAIN_END {
            _ if is_beyond && !seen.has_stunts => no_stunts,
            _ if is_beyond => Reason::StuntsAtFloor,
            false => return Verdict::Approaching,
            true if !seen.has_stunts => no_stunts,
            true if signals == 0 => Reason::NotCongested,
            true if refused * 2 > signals => Reason::StuntsAtFloor,
            true => Reason::TooManySignals,
        };
        Verdict::Unreachable(reason)
    }
}
