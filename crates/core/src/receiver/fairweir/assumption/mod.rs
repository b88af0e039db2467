//! Assumptions: a link that may already have been full when the control began.
//!
//! The problem: a queue that exists when the control begins is part of every base RTT, so the link seems
//! idle until the queue grows beyond that. Where receive windows hold the queue, it may never grow.
//! The method: if about the same rate arrives for the control's first second, and the link was never
//! seen without a queue, that rate is *assumed* to be the capacity for a moment: the queue is drained,
//! with all windows at half. If the delay is longer afterwards than in the drain, there is a
//! queue, and the link learns its capacity as usual. Otherwise the assumption is dropped, and repeated
//! at growing intervals as long as the rate stays the same. A download that begins later has
//! seen the link before it was full.

use super::group::Connection;
use super::{Fairweir, NO_CORRECTION};
use crate::backoff::Backoff;
use crate::receiver::{Enforce, TICK};
use crate::units::{Part, Rate, Span, Time};

/// The state of assumptions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assumption {
    /// The rate that has arrived since the first tick, smoothed, and for how many ticks; `None` once the rate
    /// has changed.
    steady: Option<(Rate, u32)>,
    began_busy: bool,
    /// The capacity that is assumed, and until when.
    made: Option<(Rate, Time)>,
    /// The next assumption is made no earlier than this.
    next_at: Time,
    wait: Backoff,
}

impl Assumption {
    pub(super) fn new() -> Assumption {
        let steady = Some((Rate::ZERO, 0));
        let wait = Backoff::new(WAIT_FIRST, WAIT_MAX);
        Assumption { steady, began_busy: false, made: None, next_at: Time::ZERO, wait }
    }

    /// Whether an assumption is in force.
    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Whether the link was as busy in the first tick as in the next one, or an assumption is in force.
    pub(super) fn began_busy(&self) -> bool {
        self.began_busy || self.is_made()
    }

    /// Takes in what arrived in a tick.
    fn handle_total(&mut self, total: Rate) {
        let Some((mean, ticks)) = self.steady else { return };
        let near = |part: Part| (mean * part..=mean * part.inverse()).contains(&total);
        self.steady = match ticks {
            0 => Some((total, 1)),
            // The first tick's interval begins at some instant within the tick.
            1 => near(FIRST_TICK).then_some((total, 2)),
            _ => near(STEADY).then(|| (mean.smoothed(total, 4), ticks + 1)),
        };
        self.began_busy |= ticks == 1 && near(STEADY) && total > ASSUMED_MIN;
    }

    /// The steady rate, if it is time to assume that it is the capacity.
    fn due(&self, now: Time) -> Option<Rate> {
        let (rate, ticks) = self.steady?;
        (ticks >= ASSUMED_STEADY_TICKS && rate > ASSUMED_MIN && now >= self.next_at).then_some(rate)
    }
}

impl Fairweir {
    /// Makes an assumption or drops it.
    pub(super) fn assume(&mut self, now: Time, total: Rate) {
        if !self.assumption.is_made() {
            self.assumption.handle_total(total);
        }
        let is_learned = self.link.confirmed().is_some() || !self.is_queue_ours();
        if let Some((assumed, until)) = self.assumption.made {
            let is_less = |c: Rate| c < assumed * STEADY;
            let is_false = self.is_queue_ours() && self.link.capacity().is_some_and(is_less);
            let is_dropped = is_false || (now >= until && !is_learned);
            if is_dropped {
                self.link.forget();
                self.opening = NO_CORRECTION;
                self.drain.ticks_left = 0;
            }
            if is_dropped || is_learned {
                self.assumption.made = None;
            }
            return;
        }
        let is_unknown = !is_learned && self.link.capacity().is_none();
        if !is_unknown || self.enforce == Enforce::Htb || self.delay.is_settled(now) {
            return;
        }
        if let Some(rate) = self.assumption.due(now) {
            self.link.set_capacity(Some(rate));
            self.opening = NO_CORRECTION;
            let promised = self.promised_ticks(rate);
            let ticks = promised + 2 * self.drain_ticks() + AFTER_TICKS;
            self.assumption.made = Some((rate, now + TICK * ticks));
            self.begin_drain(now, false);
            self.drain.ticks_left += promised as u32;
            self.assumption.next_at = now + self.assumption.wait.span();
            self.assumption.wait.grow(WAIT_GROWS);
        }
    }

    /// The ticks in which narrower windows have no effect yet, since receivers have already promised more.
    fn promised_ticks(&self, total: Rate) -> u64 {
        let matters = |c: &&Connection| c.rate * MATTERS >= total;
        let left = |c: &Connection| c.goodput.time_to_send(c.sample.advertised);
        let longest = self.connections.values().filter(matters).map(left).max();
        let longest = longest.unwrap_or(Span::ZERO).as_nanos();
        longest.div_ceil(TICK.as_nanos()).min(PROMISED_TICKS_MAX)
    }
}

/// A rate is steady while that of each tick is between this part of the mean and its inverse.
const STEADY: Part = Part::of(9, 10);
/// Ticks after which a rate counts as steady.
const ASSUMED_STEADY_TICKS: u32 = 5;
/// The same for the second tick relative to the first, whose interval begins within the tick.
const FIRST_TICK: Part = Part::of(3, 4);
/// Least rate that is assumed to be a capacity.
const ASSUMED_MIN: Rate = Rate::kbit(250);
/// Ticks after a drain within which a queue shows.
const AFTER_TICKS: u64 = 4;
/// A connection matters if its rate times this is at least the rate that arrives.
const MATTERS: u64 = 4;
/// Ticks that a drain waits at most until promised windows are used up.
const PROMISED_TICKS_MAX: u64 = 10;
/// Time to the next assumption, and the factor by which it grows.
const WAIT_FIRST: Span = Span::secs(3);
const WAIT_GROWS: u64 = 3;
const WAIT_MAX: Span = Span::secs(300);

#[cfg(test)]
mod tests;
