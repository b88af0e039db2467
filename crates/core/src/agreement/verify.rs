//! Whether a divider does what was agreed, from what arrives and what the divider says that it sees.
//!
//! Spans of [`SPAN`] are judged. A class *wants more* while it loses packets: a policer tells senders by
//! losses. A span fails if of two classes that want more one has less than [`SPAN_LEAST`] of its part, or if
//! some class wants more and all together have less than [`SPAN_LEAST`] of what they had before the agreement.
//! [`FAILED_MAX`] failed spans in a row end it, and so does a class that has had less than [`LONG_LEAST`] in
//! [`LONG`] spans, or a total. A shorter look must be coarser: behind a divider that does as agreed a single
//! connection had 0.86 of its part in two seconds in a row, and 0.89 in ten.
//!
//! A router holds classes back by windows, without losses: those that it says it holds want more too, in the
//! longer look. Of a class of which it has no mark nothing can come as agreed: marks that are taken off on the way
//! end an agreement as failed spans do. Where the divider does not say what it divides, as a router, whose other
//! devices come and go, the total is not judged.

use std::collections::VecDeque;

use super::message::Seen;
use crate::share::{Entry, Weight, fair};
use crate::streak::Streak;
use crate::units::{Bytes, Part, Rate, Span, Time};

/// How long a span is at least.
pub const SPAN: Span = Span::secs(1);
/// Failed spans in a row that end an agreement.
pub const FAILED_MAX: u32 = 2;
/// The least of its part that a class has in a span that wants more, and the least of what arrived before.
pub const SPAN_LEAST: Part = Part::percent(70);
/// The same in [`LONG`] spans: of a class, and of the total.
pub const LONG_LEAST: (Part, Part) = (Part::percent(80), Part::percent(90));
/// Spans of a longer look.
pub const LONG: usize = 10;
/// How long a class wants more after a loss.
const WANTS: Span = Span::secs(5);
/// Nothing is judged while senders find their new shares.
const SETTLING: Span = Span::secs(2);
/// What a class receives at least in a span in which its flows are surely marked: some 20 acknowledgements.
const ACKNOWLEDGED_LEAST: Bytes = Bytes::new(60_000);
/// Spans whose median is what arrived before.
const BEFORE: usize = 10;

/// What a class received in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// In L2 bytes.
    pub bytes: Bytes,
    /// Of these, the payload of TCP connections, which acknowledge it by packets that are marked.
    pub acknowledged: Bytes,
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
    /// The divider sees no mark of a class.
    Marks {
        /// Its number.
        class: usize,
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
    unmarked: Streak,
    /// What classes had and what they should have had, and so the total, of the last spans in which they were
    /// judged.
    long: Vec<VecDeque<(Rate, Rate)>>,
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
            unmarked: Streak::default(),
            long: vec![VecDeque::new(); weights.len() + 1],
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
    pub fn handle_tick(
        &mut self,
        received: &[Received],
        seen: Seen,
        now: Time,
    ) -> Option<Result<(), Fault>> {
        assert_eq!(received.len(), self.sum.len(), "one for each class");
        for (class, tick) in received.iter().enumerate() {
            self.sum[class].bytes += tick.bytes;
            self.sum[class].acknowledged += tick.acknowledged;
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
        let acks = |class: &usize| self.sum[*class].acknowledged >= ACKNOWLEDGED_LEAST;
        let acking: Vec<usize> = (0..rates.len()).filter(acks).collect();
        self.since = now;
        self.sum.fill(Received::default());
        if now < self.judged_from {
            return None;
        }
        let unmarked = acking.iter().copied().find(|class| seen.marked >> class & 1 == 0);
        if let (Some(class), FAILED_MAX..) = (unmarked, self.unmarked.count(unmarked.is_some())) {
            return Some(Err(Fault::Marks { class }));
        }
        let judged = self.judge(&rates, 0, now);
        let is_short = |(has, should): (Rate, Rate), least| has < should * least;
        let short = judged.iter().position(|one| one.is_some_and(|of| is_short(of, SPAN_LEAST)));
        if self.failed.count(short.is_some()) >= FAILED_MAX {
            let of = short.and_then(|at| Some((at, judged[at]?)))?;
            return Some(Err(self.fault(of)));
        }
        let mut fault = None;
        let held = self.judge(&rates, seen.held, now);
        let is_known = held.iter().any(Option::is_some) || !acking.is_empty();
        for (at, (long, judged)) in self.long.iter_mut().zip(held).enumerate() {
            let Some(judged) = judged else {
                long.clear();
                continue;
            };
            long.push_back(judged);
            if long.len() > LONG {
                long.pop_front();
            }
            let sum =
                |of: fn(&(Rate, Rate)) -> Rate| long.iter().map(of).sum::<Rate>() / LONG as u64;
            let mean = (sum(|of| of.0), sum(|of| of.1));
            let (of_class, of_total) = LONG_LEAST;
            let least = if at < self.weights.len() { of_class } else { of_total };
            if long.len() == LONG && is_short(mean, least) {
                fault = fault.or(Some((at, mean)));
            }
        }
        match fault {
            Some(of) => Some(Err(self.fault(of))),
            None => (is_known && short.is_none() && unmarked.is_none()).then_some(Ok(())),
        }
    }

    /// What each class had and should have had in a span, where that can be judged; last the total. Classes that
    /// are `held` want more too.
    fn judge(&self, rates: &[Rate], held: u16, now: Time) -> Vec<Option<(Rate, Rate)>> {
        let wants = |class: usize| {
            held >> class & 1 == 1 || self.lost_at[class].is_some_and(|at| now.since(at) <= WANTS)
        };
        let wanting = (0..rates.len()).filter(|&class| wants(class)).count();
        let total: Rate = rates.iter().copied().sum();
        let entry = |(class, weight): (usize, &Weight)| Entry {
            weight: *weight,
            demand: (!wants(class)).then_some(rates[class]),
        };
        let entries: Vec<Entry> = self.weights.iter().enumerate().map(entry).collect();
        let parts = fair(total, &entries);
        let of =
            |class: usize| (wanting >= 2 && wants(class)).then(|| (rates[class], parts[class]));
        let before = self.before.filter(|_| wanting > 0).map(|before| (total, before));
        (0..rates.len()).map(of).chain([before]).collect()
    }

    fn fault(&self, (at, (rate, part)): (usize, (Rate, Rate))) -> Fault {
        if at < self.weights.len() {
            Fault::Share { class: at, rate, part }
        } else {
            Fault::Total { rate, before: part }
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Share { class, rate, part } => {
                write!(f, "class {class} had {rate} of {part}")
            }
            Fault::Marks { class } => write!(f, "it sees no mark of class {class}"),
            Fault::Total { rate, before } => {
                write!(f, "all classes had {rate}, and {before} before")
            }
        }
    }
}
