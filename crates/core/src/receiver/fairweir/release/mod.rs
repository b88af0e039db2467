//! Releases: what arrives while everything passes.
//!
//! The problem: only a release shows what a host would have without control. Senders whose windows were
//! narrow grow slowly, so the rate after a second says little. The method: the rate that arrives is
//! measured in spans, until it no longer grows. Two cases end a release sooner. A link without other
//! hosts carries the same rate in every tick, to a packet or two. And if everything passes but
//! much less arrives than with control, then the link carries less.
//!
//! While the queue is short, or almost nothing arrives, the host wants less than the link carries, and
//! the rate that arrives says nothing about the link.
//!
//! Source: docs/control.md, "Rivals".

use super::steady::Steady;
use crate::units::{Part, Rate, Span, Time};

/// A release that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    begun: Time,
    /// The rate that arrived with control, or that the link carried.
    had: Rate,
    /// Whether other hosts are only suspected.
    is_doubted: bool,
    /// The measurement of the current span; `before` is the highest mean of the spans before it.
    since: Time,
    sum: u64,
    ticks: u64,
    /// Ticks among these with a long queue.
    long_ticks: u64,
    before: Option<Rate>,
    /// The highest rate of a tick since senders have reacted.
    most: Rate,
    steady: Steady,
}

/// What a release has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing yet.
    Nothing,
    /// Nothing about the link, since the host no longer wants what it had.
    Silence,
    /// There are other hosts: without control this host has this rate.
    Due(Rate),
    /// Without control this host has only this rate, which is about what it had.
    NoMore(Rate),
    /// The link carries less than with control: it is slower now.
    Less(Rate),
    /// The link is this host's own, and carries this.
    Own(Rate),
}

impl Release {
    /// Everything passes from now on because there are rivals. Before, the link carried `carried`.
    pub(super) fn beside_others(now: Time, carried: Rate) -> Release {
        Release::begin(now, carried, false)
    }

    /// As [`Release::beside_others`], because there may be rivals; with control `got` arrived.
    pub(super) fn to_compare(now: Time, got: Rate) -> Release {
        Release::begin(now, got, true)
    }

    fn begin(now: Time, had: Rate, is_doubted: bool) -> Release {
        Release {
            begun: now,
            had,
            is_doubted,
            since: now,
            sum: 0,
            ticks: 0,
            long_ticks: 0,
            before: None,
            most: Rate::ZERO,
            steady: Steady::default(),
        }
    }

    /// Takes in what arrived in a tick, and whether the queue was longer than its target.
    pub(super) fn handle_tick(&mut self, now: Time, total: Rate, is_queue_long: bool) -> Shown {
        if let Some(shown) = self.see_early(now, total, is_queue_long) {
            return shown;
        }
        let passed = now.since(self.since);
        if passed >= GROWN {
            self.sum = self.sum.saturating_add(total.as_bps());
            self.ticks += 1;
            self.long_ticks += u64::from(is_queue_long);
        }
        if passed < MEASURED {
            return Shown::Nothing;
        }
        let mean = Rate::bps(self.sum / self.ticks.max(1));
        let most = self.before.map_or(mean, |before| before.max(mean));
        let grew = |by: Part| self.before.is_none_or(|before| mean > before * by);
        let is_more = !self.is_doubted || most >= self.had * MORE;
        let is_silent = self.long_ticks * 2 < self.ticks || mean < self.had / SILENT;
        if grew(if is_more { GREW } else { GREW_DOUBTED }) {
            // Senders still grow: another such span is measured.
            (self.before, self.sum, self.ticks, self.long_ticks) = (Some(most), 0, 0, 0);
            self.since = now - GROWN;
            return Shown::Nothing;
        }
        match (self.is_doubted, is_more, is_silent) {
            (false, ..) | (true, true, _) => Shown::Due(most),
            (true, false, true) => Shown::Silence,
            (true, false, false) => Shown::NoMore(mean),
        }
    }

    /// What can be concluded before a span is over.
    fn see_early(&mut self, now: Time, total: Rate, is_queue_long: bool) -> Option<Shown> {
        let passed = now.since(self.begun);
        if passed < REACTED {
            return None;
        }
        self.most = self.most.max(total);
        if !is_queue_long || total < self.had / SILENT {
            self.steady = Steady::default();
            return None;
        }
        let steady_ticks = self.steady.handle_total(total);
        if passed < EARLY {
            return None;
        }
        if self.is_doubted && self.most < self.had * LESS {
            return Some(Shown::Less(total));
        }
        let is_more = self.is_doubted && total > self.had * MORE;
        (steady_ticks >= RELEASED_OWN_TICKS && !is_more).then_some(Shown::Own(total))
    }
}

/// Time after which senders have begun to grow again. What arrives from then until [`MEASURED`] is
/// measured, and as long as it grows another span of the same length.
pub(super) const GROWN: Span = Span::millis(2_000);
pub(super) const MEASURED: Span = Span::millis(4_000);
/// Growth from one span to the next beyond which another span is measured.
const GREW: Part = Part::percent(105);
/// The same if rivals are only suspected.
const GREW_DOUBTED: Part = Part::percent(103);
/// There are rivals if more than this multiple of the earlier rate arrives without control.
const MORE: Part = Part::percent(115);
/// The link has become slower if less than this part of the earlier rate arrives.
const LESS: Part = Part::percent(85);
/// The host wants less if less arrives than what it had divided by this.
pub(super) const SILENT: u64 = 8;
/// Before this time senders have not reacted yet; an early conclusion is drawn after [`EARLY`].
const REACTED: Span = Span::millis(600);
const EARLY: Span = Span::millis(2_000);
/// Ticks with the same rate after which the link is taken to be this host's own.
const RELEASED_OWN_TICKS: u32 = 8;

#[cfg(test)]
mod tests;
