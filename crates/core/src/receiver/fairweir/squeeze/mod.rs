//! Groups that get less than their shares because a queue at the ISP drops their packets.
//!
//! The problem: with queue management (CoDel, PIE) the queue never gets as long as this control wants it,
//! and with FQ-CoDel each connection has its own queue, so that many connections see no queue. The
//! control then takes a full link for one with room, and opens the windows of groups that already take
//! more than their shares, while a group below its share loses packets. The method: windows are not opened
//! further while as much arrives as the link is known to carry and a group that recently lost packets in a
//! queue at the link gets less than its share. If that queue was the connection's own, windows that are
//! wider than the law says return to it, and the capacity is not raised.
//!
//! A server can feign its own queue by its timestamps, and losses by gaps. It gains nothing for itself:
//! the capacity is held for [`PATIENCE_TICKS`] at most, then in every second tick at most. A rate above
//! the capacity raises it at once in any case.
//!
//! Source: docs/control.md, section 6; docs/decisions/0014-queues-that-stay-short.md.

use super::super::ConnectionSample;
use super::Fairweir;
use super::group::{Connection, Group};
use super::lost::{LastLosses, Lost};
use crate::units::{Part, Span, Time};

impl Group {
    /// The queue in which the group lost packets recently, if it gets less than its share.
    fn squeezed(&self) -> Option<Lost> {
        self.lost.filter(|_| self.rate_smoothed < self.share * SHORT)
    }
}

impl Fairweir {
    /// What is known of a connection's losses after this tick, in which the link's queue was `queue`.
    pub(super) fn see_losses_of(
        &self,
        now: Time,
        sample: &ConnectionSample,
        before: Option<&Connection>,
        queue: Span,
    ) -> LastLosses {
        let mut losses = before.map_or_else(LastLosses::default, |known| known.losses);
        if sample.holes == 0 {
            return losses;
        }
        // The losses may have emptied the queue within the tick.
        let own = self.delay.own_queue(sample.id);
        let own = own.max(before.map_or(Span::ZERO, |known| known.own_queue));
        let is_noisy = before.is_some_and(|known| known.lossiness > NOISY_CONNECTION);
        let is_queued = queue.max(self.queue_last) > self.queue_target() / 2;
        let lost = if own > OWN_MIN + self.noise {
            Some(Lost::Own)
        } else {
            (is_queued && !is_noisy).then_some(Lost::Shared)
        };
        losses.handle_loss(now, lost);
        losses
    }

    /// The queue in which a group below its share loses packets, while as much arrives as the link is
    /// known to carry.
    pub(super) fn squeezed(&self) -> Option<Lost> {
        let known = self.link.capacity().map(|c| self.link.confirmed().map_or(c, |k| k.min(c)));
        let is_carried = known.is_some_and(|known| self.link.arrived() >= known * CARRIED);
        // Beside other hosts, packets may be lost because of what these send.
        let is_meant = is_carried && !self.contest.is_on();
        self.groups.iter().filter_map(Group::squeezed).max().filter(|_| is_meant)
    }
}

/// The number of ticks for which the capacity may still be held for the sake of a squeezed group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    ticks: u32,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { ticks: PATIENCE_TICKS }
    }

    /// Takes in a tick; returns whether the capacity must not be raised.
    pub(super) fn handle_tick(&mut self, squeezed: Option<Lost>) -> bool {
        let is_held = squeezed == Some(Lost::Own) && self.ticks > 0;
        self.ticks = match is_held {
            true => self.ticks - 1,
            false => (self.ticks + 1).min(PATIENCE_TICKS),
        };
        is_held
    }
}

/// A group is short of its share if it gets less than this part of it.
const SHORT: Part = Part::percent(95);
/// The link is full if at least this part of its capacity arrives.
const CARRIED: Part = Part::percent(97);
/// A queue is a connection's own if its packets wait this much longer than those of others, beyond noise.
const OWN_MIN: Span = Span::micros(2_500);
/// Losses in more ticks than this, in thousandths, are noise of the path.
const NOISY_CONNECTION: u32 = 300;
/// Ticks in a row (30 s) for which the capacity may be held.
const PATIENCE_TICKS: u32 = 150;

#[cfg(test)]
mod tests;
