//! What a household's agent tells the daemon that shapes at home: the rate that the current slot has bought.
//!
//! Problem: a gateway that learns the capacity of its link from what arrives notices late that a slot has
//! bought more, and has to lose packets to notice that the slot is over. Method: the agent repeatedly
//! announces the rate for a few seconds ([`Guarantee`]). A guarantee ends by itself, so an agent that dies
//! or hangs leaves nothing behind ([`Term`]). If no policer enforces the rates, the guarantee is also a
//! *bound*: the gateway lets no more through (self-limiting, Mind Your Own Bandwidth §II.B).
//!
//! Property: a term that is not renewed ends at most [`FOR_MAX`] after it was received.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::preferences::{BOOSTED, Importance, Wanted};
use crate::units::{Part, Rate, Span, Time};

/// The rates that can be guaranteed.
pub const RATES: RangeInclusive<Rate> = Rate::kbit(100)..=Rate::mbit(1_000_000);

/// The longest time for which one message guarantees a rate.
pub const FOR_MAX: Span = Span::secs(10);

/// The rate that the current slot has bought, for a time from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guarantee {
    /// The rate that is guaranteed.
    pub rate_bps: Rate,
    /// The equal share of the market's link, below which no household falls if the others use theirs.
    pub equal_bps: Rate,
    /// How long it holds, in milliseconds.
    pub for_ms: u64,
    /// Whether no more may pass, because nothing else enforces the rates of the market.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// What the household wants now, in the order of [`Kind::ALL`](super::utility::Kind::ALL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance: Option<[Importance; 4]>,
}

impl Guarantee {
    /// Whether the guarantee is valid.
    ///
    /// # Errors
    /// Which of its numbers is out of range, and what would be valid.
    pub fn check(&self) -> Result<(), String> {
        for (key, rate) in [("rate_bps", self.rate_bps), ("equal_bps", self.equal_bps)] {
            if !RATES.contains(&rate) {
                let (least, most) = (RATES.start().as_bps(), RATES.end().as_bps());
                return Err(format!(
                    "{key}: {} is out of range ({least} to {most})",
                    rate.as_bps()
                ));
            }
        }
        if let Some(wrong) = self.importance.iter().flatten().find(|&&n| n > BOOSTED) {
            return Err(format!("importance: {wrong} is out of range (0 to {BOOSTED})"));
        }
        let most = FOR_MAX.as_nanos() / NANOS_PER_MS;
        if !(1..=most).contains(&self.for_ms) {
            return Err(format!("for_ms: {} is out of range (1 to {most})", self.for_ms));
        }
        Ok(())
    }
}

/// The guarantee that holds now, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term(Option<(Guarantee, Time)>);

/// The change from one term to the next, as far as it is not a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rate guaranteed before.
    pub from: Option<Rate>,
    /// The rate guaranteed now.
    pub to: Option<Rate>,
    /// The equal share.
    pub equal: Rate,
}

impl Term {
    /// Takes in a guarantee. Returns the step if rate or bound have changed.
    ///
    /// # Errors
    /// As [`Guarantee::check`]; then nothing has changed.
    pub fn handle(&mut self, told: Guarantee, now: Time) -> Result<Option<Step>, String> {
        told.check()?;
        let before = *self;
        self.0 = Some((told, now + Span::millis(told.for_ms)));
        let step = Step { from: before.raised(), to: self.raised(), equal: told.equal_bps };
        let is_same = (before.rate(), before.bound()) == (self.rate(), self.bound());
        Ok((!is_same).then_some(step))
    }

    /// Ends the guarantee if its time is over. Returns the step.
    pub fn handle_tick(&mut self, now: Time) -> Option<Step> {
        let (told, _) = self.0.filter(|&(_, until)| now >= until)?;
        let from = self.raised();
        self.0 = None;
        Some(Step { from, to: None, equal: told.equal_bps })
    }

    /// The rate that is guaranteed now.
    pub fn rate(&self) -> Option<Rate> {
        self.0.map(|(told, _)| told.rate_bps)
    }

    /// The rate that may pass at most now; `None` means that there is no bound.
    pub fn bound(&self) -> Option<Rate> {
        self.0.filter(|(told, _)| told.hold).map(|(told, _)| told.rate_bps)
    }

    /// The guaranteed rate, if it is not a bound.
    fn raised(&self) -> Option<Rate> {
        self.0.filter(|(told, _)| !told.hold).map(|(told, _)| told.rate_bps)
    }

    /// What the household wants now, if that is known.
    pub fn wanted(&self) -> Option<Wanted> {
        let importance = self.0?.0.importance?;
        Some(Wanted { importance, ..Wanted::default() })
    }

    /// When the guarantee ends unless it is renewed.
    pub fn deadline(&self) -> Option<Time> {
        self.0.map(|(_, until)| until)
    }
}

impl Step {
    /// The capacity that is believed after this step, if it was `capacity` before.
    ///
    /// An increase is believed up to [`GROWTH_MAX`] times the earlier capacity, since the agent may be wrong.
    /// When the guarantee falls or ends, an estimate that rests on it falls with it, but not below the equal
    /// share; an estimate more than a tenth above it was measured, and stays.
    pub fn believed(&self, capacity: Rate) -> Rate {
        let to = self.to.unwrap_or(Rate::ZERO);
        if self.from.is_none_or(|from| to >= from) {
            return capacity.max(to.min(capacity * GROWTH_MAX));
        }
        let rests = self.from.is_some_and(|from| capacity <= from * RESTS);
        if rests { capacity.min(to.max(self.equal)) } else { capacity }
    }
}

/// The capacity that is believed under a bound if the link was `known` to carry another rate: the bound
/// if nothing is known, else no more than [`GROWTH_MAX`] times the known capacity.
pub fn believed_under(bound: Rate, known: Option<Rate>) -> Rate {
    known.map_or(bound, |known| bound.min(known * GROWTH_MAX))
}

/// Limits what a wrong guarantee can cause.
const GROWTH_MAX: u64 = 8;
/// An estimate up to this multiple of a guarantee rests on it.
const RESTS: Part = Part::of(11, 10);
const NANOS_PER_MS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mbit: u64, for_ms: u64) -> Guarantee {
        Guarantee {
            rate_bps: Rate::mbit(mbit),
            equal_bps: Rate::mbit(10),
            for_ms,
            hold: false,
            importance: None,
        }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::millis(ms)
    }

    #[test]
    fn a_term_ends_by_itself_unless_it_is_told_again() {
        let mut term = Term::default();
        let step = term.handle(told(28, 3_000), at(0)).unwrap().unwrap();
        assert_eq!((step.from, step.to), (None, Some(Rate::mbit(28))));
        assert_eq!(term.handle(told(28, 3_000), at(2_000)), Ok(None), "the same once more");
        assert_eq!(term.handle_tick(at(4_999)), None);
        let end = term.handle_tick(at(5_000)).unwrap();
        assert_eq!((end.from, end.to, term.rate()), (Some(Rate::mbit(28)), None, None));
        assert_eq!(term.handle_tick(at(9_000)), None, "it ends once");
    }

    #[test]
    fn a_bound_raises_nothing_and_ends_with_its_term() {
        let mut term = Term::default();
        let hold = |mbit| Guarantee { hold: true, ..told(mbit, 3_000) };
        let step = |from: Option<u64>, to: Option<u64>| {
            Some(Step { from: from.map(Rate::mbit), to: to.map(Rate::mbit), equal: Rate::mbit(10) })
        };
        assert_eq!(term.handle(told(28, 3_000), at(0)), Ok(step(None, Some(28))));
        assert_eq!(term.handle(hold(28), at(1)), Ok(step(Some(28), None)), "the rate is the same");
        assert_eq!((term.rate(), term.bound()), (Some(Rate::mbit(28)), Some(Rate::mbit(28))));
        assert_eq!(term.handle(hold(28), at(2)), Ok(None));
        assert_eq!(term.handle(hold(4), at(3)), Ok(step(None, None)));
        assert_eq!(term.bound(), Some(Rate::mbit(4)));
        assert_eq!(term.handle_tick(at(3_003)), step(None, None));
        assert_eq!((term.rate(), term.bound()), (None, None));
    }

    #[test]
    fn what_is_out_of_range_changes_nothing() {
        let mut term = Term::default();
        term.handle(told(28, 3_000), at(0)).unwrap();
        let before = term;
        for (wrong, says) in [
            (told(0, 3_000), "rate_bps: 0 is out of range (100000 to 1000000000000)"),
            (Guarantee { rate_bps: Rate::bps(u64::MAX), ..told(1, 1) }, "rate_bps"),
            (Guarantee { equal_bps: Rate::ZERO, ..told(1, 1) }, "equal_bps: 0"),
            (told(28, 0), "for_ms: 0 is out of range (1 to 10000)"),
            (told(28, u64::MAX), "for_ms"),
            (Guarantee { importance: Some([0, 1, 200, 0]), ..told(1, 1) }, "importance: 200"),
        ] {
            let error = term.handle(wrong, at(1)).unwrap_err();
            assert!(error.starts_with(says), "{error}");
            assert_eq!(term, before);
        }
    }

    #[test]
    fn an_estimate_follows_a_guarantee_and_falls_back_to_the_equal_share() {
        let mbit = Rate::mbit;
        let step = |from: Option<u64>, to: Option<u64>| Step {
            from: from.map(mbit),
            to: to.map(mbit),
            equal: mbit(10),
        };
        for (from, to, before, after) in [
            (None, Some(28), 10, 28),
            (None, Some(28), 40, 40),
            // A guarantee may be wrong.
            (None, Some(1_000), 10, 80),
            (Some(28), None, 28, 10),
            (Some(28), None, 30, 10),
            (Some(28), Some(12), 28, 12),
            (Some(28), Some(1), 28, 10),
            // The estimate was measured.
            (Some(28), None, 40, 40),
            (Some(28), None, 6, 6),
        ] {
            let believed = step(from, to).believed(mbit(before));
            assert_eq!(believed, mbit(after), "{from:?} to {to:?} at {before}");
        }
    }
}
