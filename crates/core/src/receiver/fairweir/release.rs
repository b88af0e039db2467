//! What arrives while everything passes.
//!
//! The problem: what a host would have without control shows only without control, and senders whose
//! windows were narrow grow slowly: what arrives after a second says little. The method: what
//! arrives is measured in spans, until it no longer grows. Two cases end it sooner. A link that
//! nobody shares carries the same in every tick, to a packet or two: then there are no others. And if
//! everything passes and much less arrives than with control, it is the link that carries less.
//!
//! Source: docs/control.md, docs/decisions.

use super::super::TICK;
use super::steady::Steady;
use crate::units::{Bytes, Rate, Span, Time};

/// A release that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    begun: Time,
    /// What arrived with control, if it is not known whether there are others.
    doubted: Option<Rate>,
    /// The due is at least this.
    least: Rate,
    /// This span, and the mean of the one before.
    since: Time,
    sum: u64,
    ticks: u64,
    before: Rate,
    /// The most that arrived in a tick since senders have reacted.
    most: Rate,
    steady: Steady,
}

/// What a release has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing yet.
    Nothing,
    /// Others are there: without control the host has this.
    Due(Rate),
    /// Without control it has no more than this, which is about what it had.
    NoMore(Rate),
    /// The link carries less than with control: it is slower now.
    Less(Rate),
    /// The link is this host's own, and carries this.
    Own(Rate),
}

impl Release {
    /// Everything passes from now on because others have shown themselves. The link carried so much before.
    pub(super) fn beside_others(now: Time, carried: Rate) -> Release {
        Release::begin(now, carried.scale(LEAST.0, LEAST.1), None)
    }

    /// The same because there may be others: with control so much arrived.
    pub(super) fn to_compare(now: Time, got: Rate) -> Release {
        Release::begin(now, Rate::ZERO, Some(got))
    }

    fn begin(now: Time, least: Rate, doubted: Option<Rate>) -> Release {
        Release {
            begun: now,
            doubted,
            least,
            since: now,
            sum: 0,
            ticks: 0,
            before: Rate::ZERO,
            most: Rate::ZERO,
            steady: Steady::default(),
        }
    }

    /// Takes in what arrived in a tick.
    pub(super) fn handle_tick(&mut self, now: Time, total: Rate) -> Shown {
        if let Some(shown) = self.see_early(now, total) {
            return shown;
        }
        let passed = now.since(self.since);
        if passed >= GROWN {
            self.sum = self.sum.saturating_add(total.as_bps());
            self.ticks += 1;
        }
        if passed < MEASURED {
            return Shown::Nothing;
        }
        let mean = Rate::bps(self.sum / self.ticks.max(1));
        let most = mean.max(self.before);
        let is_first = self.before == Rate::ZERO;
        let grew = |by: (u64, u64)| is_first || mean > self.before.scale(by.0, by.1);
        let is_more = self.doubted.is_none_or(|got| most >= got.scale(MORE.0, MORE.1));
        let by = if is_more { GREW } else { GREW_DOUBTED };
        if grew(by) {
            // Senders still grow: another such span is measured.
            (self.before, self.sum, self.ticks) = (most, 0, 0);
            self.since = now - GROWN;
            return Shown::Nothing;
        }
        if is_more { Shown::Due(most.max(self.least)) } else { Shown::NoMore(mean) }
    }

    /// What shows before a span is over.
    fn see_early(&mut self, now: Time, total: Rate) -> Option<Shown> {
        let passed = now.since(self.begun);
        if passed < REACTED {
            return None;
        }
        self.most = self.most.max(total);
        let steady_ticks = self.steady.handle_tick(total, alone_within(total));
        if passed < EARLY {
            return None;
        }
        if self.doubted.is_some_and(|got| self.most < got.scale(LESS.0, LESS.1)) {
            return Some(Shown::Less(total));
        }
        let is_more = self.doubted.is_some_and(|got| total > got.scale(MORE.0, MORE.1));
        (steady_ticks >= OWN_TICKS && !is_more).then_some(Shown::Own(total))
    }
}

/// A link that nobody shares carries the same within so much in every tick.
pub(super) fn alone_within(total: Rate) -> Rate {
    total / STEADY + Rate::from_volume(PACKET * 3 / 2, TICK)
}

/// Senders have begun to grow again after this. What arrives then is measured until [`MEASURED`] and for
/// as long again, until it no longer grows by more than this; by less if others are only supposed.
pub(super) const GROWN: Span = Span::millis(2_000);
pub(super) const MEASURED: Span = Span::millis(4_000);
const GREW: (u64, u64) = (105, 100);
const GREW_DOUBTED: (u64, u64) = (103, 100);
/// The due is at least this part of what the link carried.
pub(super) const LEAST: (u64, u64) = (6, 10);
/// Others are there if so much more arrives than with control.
const MORE: (u64, u64) = (115, 100);
/// The link is slower if less than this part of it arrives.
const LESS: (u64, u64) = (85, 100);
/// What is seen before this is of the time before; it is concluded early after this at the earliest.
const REACTED: Span = Span::millis(600);
const EARLY: Span = Span::millis(2_000);
/// A link of its own changes in so many ticks by less than one of so many parts, and by a packet.
const OWN_TICKS: u32 = 8;
const STEADY: u64 = 200;
const PACKET: Bytes = Bytes::new(1_514);

#[cfg(test)]
mod tests;
