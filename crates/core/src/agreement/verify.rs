//! Whether a divider does what was agreed, from what arrives.
//!
//! Spans of [`SPAN`] are judged. A class *wants more* while it loses packets: whoever divides tells senders by
//! losses. A span fails if of two classes that want more one has less than [`SHARE_LEAST`] of its part, or if
//! some class wants more and all together have less than [`TOTAL_LEAST`] of what they had before the agreement.
//! [`FAILED_MAX`] failed spans in a row end it.

use crate::share::{Entry, Weight, fair};
use crate::streak::Streak;
use crate::units::{Bytes, Part, Rate, Span, Time};

/// How long a span is at least.
pub const SPAN: Span = Span::secs(1);
/// Failed spans in a row that end an agreement.
pub const FAILED_MAX: u32 = 2;
/// The least of its part that a class has that wants more.
pub const SHARE_LEAST: Part = Part::percent(90);
/// The least of what arrived before the agreement.
pub const TOTAL_LEAST: Part = Part::percent(95);
/// How long a class wants more after a loss.
const WANTS: Span = Span::secs(5);
/// Nothing is judged while senders find their new shares.
const SETTLING: Span = Span::secs(2);
/// Spans whose median is what arrived before.
const BEFORE: usize = 10;

/// What a class received in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// In L2 bytes.
    pub bytes: Bytes,
    /// Signs of lost packets.
    pub losses: u64,
}

/// Why a divider is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A class has less than its part.
    Share {
        /// Its number.
        class: usize,
        /// What it has.
        rate: Rate,
        /// What it should have.
        part: Rate,
    },
    /// All together have less than before.
    Total {
        /// What they have.
        rate: Rate,
        /// What they had.
        before: Rate,
    },
}

/// What arrived in the last spans while no agreement was in force.
#[derive(Clone, Debug, Default)]
pub struct Before {
    spans: Vec<Rate>,
    bytes: Bytes,
    since: Option<Time>,
}

impl Before {
    /// Takes a tick in.
    pub fn handle_tick(&mut self, bytes: Bytes, now: Time) {
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        if now.since(since) < SPAN {
            return;
        }
        if self.spans.len() == BEFORE {
            self.spans.remove(0);
        }
        self.spans.push(Rate::from_volume(self.bytes, now.since(since)));
        (self.bytes, self.since) = (Bytes::ZERO, Some(now));
    }

    /// The median, if there was time enough to know.
    pub fn median(&self) -> Option<Rate> {
        let mut spans = self.spans.clone();
        spans.sort_unstable();
        (spans.len() == BEFORE).then(|| spans[BEFORE / 2])
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Verifier {
    weights: Vec<Weight>,
    before: Option<Rate>,
    judged_from: Time,
    since: Time,
    sum: Vec<Received>,
    lost_at: Vec<Option<Time>>,
    failed: Streak,
}

impl Verifier {
    /// Begins at `now` with classes of these weights.
    pub fn new(weights: &[u16], before: Option<Rate>, now: Time) -> Verifier {
        let weight = |weight: &u16| Weight::new((*weight).into()).unwrap_or_default();
        Verifier {
            weights: weights.iter().map(weight).collect(),
            before,
            judged_from: now + SETTLING,
            since: now,
            sum: vec![Received::default(); weights.len()],
            lost_at: vec![None; weights.len()],
            failed: Streak::default(),
        }
    }

    /// Takes in what arrived in a tick, by class. `Some` at the end of a span that was judged: whether the
    /// agreement holds.
    ///
    /// # Errors
    /// Why it does not.
    ///
    /// # Panics
    /// If there are not as many classes as weights.
    pub fn handle_tick(&mut self, received: &[Received], now: Time) -> Option<Result<(), Fault>> {
        assert_eq!(received.len(), self.sum.len(), "one for each class");
        for (class, tick) in received.iter().enumerate() {
            self.sum[class].bytes += tick.bytes;
            self.sum[class].losses += tick.losses;
            if tick.losses > 0 {
                self.lost_at[class] = Some(now);
            }
        }
        let length = now.since(self.since);
        if length < SPAN {
            return None;
        }
        let rate = |received: &Received| Rate::from_volume(received.bytes, length);
        let rates: Vec<Rate> = self.sum.iter().map(rate).collect();
        self.since = now;
        self.sum.fill(Received::default());
        if now < self.judged_from {
            return None;
        }
        let fault = self.fault(&rates, now);
        if self.failed.count(fault.is_some()) < FAILED_MAX {
            return fault.is_none().then_some(Ok(()));
        }
        fault.map(Err)
    }

    /// What is wrong with a span.
    fn fault(&self, rates: &[Rate], now: Time) -> Option<Fault> {
        let wants = |class: usize| self.lost_at[class].is_some_and(|at| now.since(at) <= WANTS);
        let wanting: Vec<usize> = (0..rates.len()).filter(|&class| wants(class)).collect();
        let total: Rate = rates.iter().copied().sum();
        if wanting.len() >= 2 {
            let entry = |(class, weight): (usize, &Weight)| Entry {
                weight: *weight,
                demand: (!wants(class)).then_some(rates[class]),
            };
            let entries: Vec<Entry> = self.weights.iter().enumerate().map(entry).collect();
            let parts = fair(total, &entries);
            let short = |class: &&usize| rates[**class] < parts[**class] * SHARE_LEAST;
            if let Some(&class) = wanting.iter().find(short) {
                return Some(Fault::Share { class, rate: rates[class], part: parts[class] });
            }
        }
        let before = self.before.filter(|before| total < *before * TOTAL_LEAST);
        before.filter(|_| !wanting.is_empty()).map(|before| Fault::Total { rate: total, before })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Share { class, rate, part } => {
                write!(f, "class {class} had {rate} of {part}")
            }
            Fault::Total { rate, before } => {
                write!(f, "all classes had {rate}, and {before} before")
            }
        }
    }
}
