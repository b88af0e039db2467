//! Verifies that a divider does what was agreed, by what arrives and what the divider says it sees.
//!
//! Spans of [`SPAN`] are judged. A class *wants more* while it loses packets, since a policer signals by losses.
//! A span fails if one of two classes that want more has less than [`SPAN_LEAST`] of its part, or if some class
//! wants more and all classes together have less than [`SPAN_LEAST`] of what they had before the agreement.
//! [`FAILED_MAX`] failed spans in a row end the agreement. So does a class, or the total, that stayed below its
//! [`LONG_LEAST`] over [`LONG`] spans. Shorter tests must be coarser: behind a divider that does as agreed a single
//! connection had 0.86 of its part in two seconds in a row, and 0.89 in ten. When other classes want more than before,
//! senders find their new shares, and single spans are not judged for [`SETTLING`].
//!
//! A router holds classes back by windows, without losses, so in the longer test classes that the router reports
//! as held want more too. If the divider sees no mark of a class, it cannot divide that class as agreed: marks that
//! are removed on the way end an agreement as failed spans do. If the divider does not state the rate that it
//! divides, as a router whose other devices come and go, the total is not judged.

use std::collections::VecDeque;

use super::Classes;
use super::message::Seen;
use crate::share::{Claims, Tree};
use crate::streak::Streak;
use crate::units::{Bytes, Part, Rate, Span, Time};

/// The minimum length of a span.
pub const SPAN: Span = Span::secs(1);
/// Failed spans in a row that end an agreement.
pub const FAILED_MAX: u32 = 2;
/// Part of its share that a class that wants more must have in a span, and part of the earlier total likewise.
pub const SPAN_LEAST: Part = Part::percent(70);
/// The same over [`LONG`] spans: for a class, and for the total.
pub const LONG_LEAST: (Part, Part) = (Part::percent(80), Part::percent(90));
/// Spans of the longer test.
pub const LONG: usize = 10;
/// How long a class counts as wanting more after a loss.
const WANTS: Span = Span::secs(5);
/// Nothing is judged while senders find their new shares.
const SETTLING: Span = Span::secs(2);
/// If a class receives this much in a span, its flows surely sent marks: some 20 acknowledgements.
const ACKNOWLEDGED_LEAST: Bytes = Bytes::new(60_000);
/// Spans whose median counts as the rate before the agreement.
const BEFORE: usize = 10;

/// What a class received in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// In L2 bytes.
    pub bytes: Bytes,
    /// Payload of TCP connections among these bytes, which the host acknowledges by marked packets.
    pub acknowledged: Bytes,
    /// Signs of lost packets.
    pub losses: u64,
}

/// A span that has ended, by class.
struct Judged {
    rates: Vec<Rate>,
    losses: Vec<u64>,
}

impl Judged {
    fn total(&self) -> Rate {
        self.rates.iter().copied().sum()
    }
}

/// Why a divider is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A class has less than its part.
    Share {
        /// The class's number.
        class: usize,
        /// The rate that it has.
        rate: Rate,
        /// The rate that it should have.
        part: Rate,
    },
    /// All classes together have less than before.
    Total {
        /// The rate that they have.
        rate: Rate,
        /// The rate that they had.
        before: Rate,
    },
    /// The divider sees no mark of a class.
    Marks {
        /// The class's number.
        class: usize,
    },
}

/// The rates of the last spans while no agreement was in force.
#[derive(Clone, Debug, Default)]
pub struct Before {
    spans: Vec<Rate>,
    bytes: Bytes,
    since: Option<Time>,
}

impl Before {
    /// Takes in a tick.
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

    /// The median rate, if enough spans were measured.
    pub fn median(&self) -> Option<Rate> {
        let mut spans = self.spans.clone();
        spans.sort_unstable();
        (spans.len() == BEFORE).then(|| spans[BEFORE / 2])
    }
}

/// The verifier, see the module.
#[derive(Clone, Debug)]
pub struct Verifier {
    tree: Tree,
    before: Option<Rate>,
    judged_from: Time,
    since: Time,
    sum: Vec<Received>,
    lost_at: Vec<Option<Time>>,
    /// Which classes wanted more in the last span.
    wanted: Vec<bool>,
    /// Single spans are judged from this time on.
    settled_at: Time,
    failed: Streak,
    unmarked: Streak,
    /// For each class and, last, for the total: the actual and the agreed rate in the last spans that could be
    /// judged.
    long: Vec<VecDeque<(Rate, Rate)>>,
}

impl Verifier {
    /// Begins at `now` with these classes.
    pub fn new(classes: &Classes, before: Option<Rate>, now: Time) -> Verifier {
        let count = classes.weights().len();
        Verifier {
            tree: classes.tree(),
            before,
            judged_from: now + SETTLING,
            since: now,
            sum: vec![Received::default(); count],
            lost_at: vec![None; count],
            wanted: vec![false; count],
            settled_at: now,
            failed: Streak::default(),
            unmarked: Streak::default(),
            long: vec![VecDeque::new(); count + 1],
        }
    }

    /// Takes in what arrived in a tick, by class. Returns `Some` at the end of a span that was judged: whether the
    /// agreement holds.
    ///
    /// # Errors
    /// Why the agreement does not hold.
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
        let losses = self.sum.iter().map(|received| received.losses).collect();
        let acks = |class: &usize| self.sum[*class].acknowledged >= ACKNOWLEDGED_LEAST;
        let acking: Vec<usize> = (0..self.sum.len()).filter(acks).collect();
        self.since = now;
        self.sum.fill(Received::default());
        if now < self.judged_from {
            return None;
        }
        let unmarked = acking.iter().copied().find(|class| seen.marked >> class & 1 == 0);
        if let (Some(class), FAILED_MAX..) = (unmarked, self.unmarked.count(unmarked.is_some())) {
            return Some(Err(Fault::Marks { class }));
        }
        let span = Judged { rates, losses };
        let wants = self.wants(&span, 0, now);
        let judged = self.judge(&span, &wants);
        if wants != self.wanted && self.wanted.contains(&true) {
            self.settled_at = now + SETTLING;
        }
        self.wanted = wants;
        let is_short = |(has, should): (Rate, Rate), least| has < should * least;
        let is_settled = now >= self.settled_at;
        let short = judged
            .iter()
            .position(|one| is_settled && one.is_some_and(|of| is_short(of, SPAN_LEAST)));
        if self.failed.count(short.is_some()) >= FAILED_MAX {
            let of = short.and_then(|at| Some((at, judged[at]?)))?;
            return Some(Err(self.fault(of)));
        }
        let mut fault = None;
        let held = self.judge(&span, &self.wants(&span, seen.held, now));
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
            let least = if at < self.tree.len() { of_class } else { of_total };
            if long.len() == LONG && is_short(mean, least) {
                fault = fault.or(Some((at, mean)));
            }
        }
        match fault {
            Some(of) => Some(Err(self.fault(of))),
            None => (is_known && short.is_none() && unmarked.is_none()).then_some(Ok(())),
        }
    }

    /// Which classes want more than they have; `held` classes do. A class below [`SPAN_LEAST`] without losses in the
    /// span counts as ended: what arrives does not distinguish this from a divider that blocks the class completely.
    fn wants(&self, span: &Judged, held: u16, now: Time) -> Vec<bool> {
        let is_held = |class: usize| held >> class & 1 == 1;
        let has_lost = |class: usize| self.lost_at[class].is_some_and(|at| now.since(at) <= WANTS);
        let mut wants: Vec<bool> =
            (0..span.rates.len()).map(|class| is_held(class) || has_lost(class)).collect();
        for (class, part) in self.divided(span, &wants).into_iter().enumerate() {
            let has_part = span.losses[class] > 0 || span.rates[class] >= part * SPAN_LEAST;
            wants[class] &= is_held(class) || has_part;
        }
        wants
    }

    /// The agreed rate of each class in a span.
    fn divided(&self, span: &Judged, wants: &[bool]) -> Vec<Rate> {
        let demand = |(rate, wants): (&Rate, &bool)| (!wants).then_some(*rate);
        let demands: Vec<_> = span.rates.iter().zip(wants).map(demand).collect();
        self.tree.divide(span.total(), Claims { demands: &demands, taken: &[] })
    }

    /// The actual and the agreed rate of each class in a span, if it can be judged; the last entry is the total.
    fn judge(&self, span: &Judged, wants: &[bool]) -> Vec<Option<(Rate, Rate)>> {
        let parts = self.divided(span, wants);
        let wanting = wants.iter().filter(|wants| **wants).count();
        let of = |class: usize| {
            (wanting >= 2 && wants[class]).then(|| (span.rates[class], parts[class]))
        };
        let before = self.before.filter(|_| wanting > 0).map(|before| (span.total(), before));
        (0..wants.len()).map(of).chain([before]).collect()
    }

    fn fault(&self, (at, (rate, part)): (usize, (Rate, Rate))) -> Fault {
        if at < self.tree.len() {
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
