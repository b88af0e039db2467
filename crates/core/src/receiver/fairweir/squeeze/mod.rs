//! Groups that get less than their shares because a queue at the ISP drops their packets.
//!
//! The problem: with queue management (CoDel, PIE) the queue never gets as long as this control wants it,
//! and with FQ-CoDel each connection has a queue of its own, so that many connections find none. The
//! control then takes a full link for one with room, and opens the windows of those that take more than
//! their shares already, while the one that shall have more loses packets. The method: while as much
//! arrives as the link is known to carry, and a group that lost packets lately in a queue at the link gets
//! less than its share, windows are not opened further. If that queue was its own, windows that are wider
//! than the law says return to it, and the capacity is not raised.
//!
//! A server can feign a queue of its own by its timestamps, and losses by gaps. It gains nothing for
//! itself, and the capacity stays as it is for [`PATIENCE_TICKS`], then in every second tick at most; what
//! arrives beyond the capacity raises it at once in any case.
//!
//! Source: docs/control.md, section 6; docs/decisions/0014-queues-that-stay-short.md.

use super::super::ConnectionSample;
use super::Fairweir;
use super::group::{Connection, Group};
use crate::units::{Span, Time};

/// In which queue packets were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    /// In the one that all share.
    Shared,
    /// In one of its own, in which its packets waited longer than others.
    Own,
}

/// When a connection lost packets last: anywhere, in the queue that all share, in one of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastLosses {
    at: Option<Time>,
    shared_at: Option<Time>,
    own_at: Option<Time>,
}

impl LastLosses {
    /// Takes in a loss.
    fn handle_loss(&mut self, now: Time, lost: Option<Lost>) {
        self.at = Some(now);
        match lost {
            Some(Lost::Own) => self.own_at = Some(now),
            Some(Lost::Shared) => self.shared_at = Some(now),
            None => {}
        }
    }

    /// Whether its sender still grows back after a loss.
    pub(super) fn is_recovering(&self, now: Time) -> bool {
        is_recent(self.at, now)
    }

    /// In which queue it lost packets lately.
    pub(super) fn lost(&self, now: Time) -> Option<Lost> {
        let own = is_recent(self.own_at, now).then_some(Lost::Own);
        own.or(is_recent(self.shared_at, now).then_some(Lost::Shared))
    }
}

fn is_recent(at: Option<Time>, now: Time) -> bool {
    at.is_some_and(|at| now.since(at) < RECOVERS_FOR)
}

impl Group {
    /// In which queue it lost packets lately, if it gets less than its share.
    fn squeezed(&self) -> Option<Lost> {
        self.lost.filter(|_| self.rate_smoothed < self.share.scale(SHORT.0, SHORT.1))
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
        // What drops may have emptied the queue within the tick.
        let own = self.delay.own_queue(sample.id);
        let own = own.max(before.map_or(Span::ZERO, |known| known.own_queue));
        let is_noisy = before.is_some_and(|known| known.lossiness > NOISY);
        let is_queued = queue.max(self.queue_last) > self.queue_target() / 2;
        let lost = if own > OWN_MIN + self.noise {
            Some(Lost::Own)
        } else {
            (is_queued && !is_noisy).then_some(Lost::Shared)
        };
        losses.handle_loss(now, lost);
        losses
    }

    /// In which queue a group loses that gets less than its share, while as much arrives as the link is
    /// known to carry.
    pub(super) fn squeezed(&self) -> Option<Lost> {
        let known = self.link.capacity().map(|c| self.link.confirmed().map_or(c, |k| k.min(c)));
        let is_carried =
            known.is_some_and(|known| self.link.arrived() >= known.scale(CARRIED.0, CARRIED.1));
        // Beside other hosts packets are lost to what they send.
        let is_meant = is_carried && !self.contest.is_on();
        self.groups.iter().filter_map(Group::squeezed).max().filter(|_| is_meant)
    }
}

/// For how many ticks the capacity may still be left as it is for the sake of a squeezed group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    ticks: u32,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { ticks: PATIENCE_TICKS }
    }

    /// Takes in a tick; whether the capacity is not to be raised.
    pub(super) fn handle_tick(&mut self, squeezed: Option<Lost>) -> bool {
        let is_held = squeezed == Some(Lost::Own) && self.ticks > 0;
        self.ticks = match is_held {
            true => self.ticks - 1,
            false => (self.ticks + 1).min(PATIENCE_TICKS),
        };
        is_held
    }
}

/// For so long a sender grows back after a loss, as cubic does.
const RECOVERS_FOR: Span = Span::secs(8);
/// A group is short of its share below this part.
const SHORT: (u64, u64) = (95, 100);
/// As much arrives as the link carries from this part on.
const CARRIED: (u64, u64) = (97, 100);
/// A queue is a connection's own if its packets wait so much longer than those of others, beyond noise.
const OWN_MIN: Span = Span::micros(2_500);
/// Losses in more than so many of a thousand ticks are of the path.
const NOISY: u32 = 300;
/// Ticks in a row (30 s) for which the capacity may be left as it is.
const PATIENCE_TICKS: u32 = 150;

#[cfg(test)]
mod tests;
