//! A bound set from outside: no more may pass, whatever the link carries.
//!
//! The problem: a household of the credit market keeps to the rate it has bought, and its link carries more.
//! At the link there is no queue that windows could follow, and nothing to learn. The method: one class
//! for all traffic with the bound as its rate, in which tight classes hold the shares. The link is believed
//! to carry what the bound lets through until it shows less; then it is controlled as without a bound.
//! When the bound ends, the earlier belief returns: if the capacity was unknown, everything passes.

use super::{Fairweir, NO_CORRECTION};
use crate::market::guarantee::believed_under;
use crate::receiver::Command;
use crate::units::{Rate, Time};

/// A bound, and what is believed of the link because of it and without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The rate that may pass at most.
    bound: Rate,
    /// The capacity that is supposed because of the bound.
    supposed: Rate,
    /// The capacity that was known without the bound.
    known: Option<Rate>,
}

impl Fairweir {
    /// Sets `bound` from `now` on; `None` removes the bound. Returns whether the bound changed.
    pub(in super::super) fn hold(&mut self, bound: Option<Rate>, now: Time) -> bool {
        if bound == self.bound() {
            return false;
        }
        // A capacity that was measured under the bound is known; one that was only supposed is not.
        let capacity = self.link.capacity();
        let supposed = self.held.filter(|held| capacity == Some(held.supposed));
        let known = supposed.map_or(capacity, |held| held.known);
        let held = |bound| Held { bound, supposed: believed_under(bound, known), known };
        self.held = bound.map(held);
        match self.held.map(|held| held.supposed).or(known) {
            Some(capacity) => self.link.accept(capacity, now),
            None => self.link.forget(),
        }
        self.losses.suppose_another(now);
        (self.drain.ticks_left, self.opening) = (0, NO_CORRECTION);
        self.divide();
        if !self.has_classes() {
            // This command is drained first: windows hold the shares alone again.
            self.commands.push(Command::Release);
        }
        let capacity = self.link.capacity();
        self.decision.capacity = capacity;
        self.decision.enforcing = capacity.is_some() || self.weights.has_caps();
        true
    }

    /// The rate that may pass at most.
    pub(in super::super) fn bound(&self) -> Option<Rate> {
        self.held.map(|held| held.bound)
    }

    /// Whether the link is believed to carry all that may pass.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some_and(|held| self.link.capacity() == Some(held.bound))
    }

    /// Limits the believed capacity to the bound: a higher one was only seen in traffic that no bound held.
    pub(super) fn keep_to_bound(&mut self) {
        if let Some(held) = &mut self.held
            && self.link.capacity().is_none_or(|capacity| capacity > held.bound)
        {
            held.supposed = held.bound;
            self.link.suppose(held.bound);
        }
    }
}
