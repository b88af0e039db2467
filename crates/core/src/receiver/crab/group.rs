//! What the loop knows of one group, and how it judges it at the end of a window.

use super::super::GroupState;
use crate::streak::Streak;
use crate::units::{Rate, Span};

/// What the loop knows of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLoop {
    pub(super) demand: Option<Rate>,
    pub(super) share: Rate,
    pub(super) ceil: Rate,
    /// The rates of the largest and the smallest tick of this window, and whether packets were dropped in it.
    pub(super) observed: Rate,
    pub(super) observed_min: Rate,
    pub(super) dropped: bool,
    /// The rate of the largest tick of the previous window.
    pub(super) observed_last: Rate,
    pub(super) rate: Rate,
    pub(super) state: GroupState,
    pub(super) silent_for: Span,
    /// Windows in a row in which it sent far above its ceil and packets were dropped.
    pub(super) defiant_windows: Streak,
    /// The rate that it may carry beyond its share while it is raised.
    pub(super) raise_extra: Rate,
    /// The number of the raise in which it was raised last.
    pub(super) raised: u64,
}

impl GroupLoop {
    pub(super) fn idle() -> GroupLoop {
        GroupLoop {
            demand: Some(Rate::ZERO),
            share: Rate::ZERO,
            ceil: Rate::ZERO,
            observed: Rate::ZERO,
            observed_min: Rate::MAX,
            dropped: false,
            observed_last: Rate::ZERO,
            rate: Rate::ZERO,
            state: GroupState::Idle,
            silent_for: Span::ZERO,
            defiant_windows: Streak::default(),
            raise_extra: Rate::ZERO,
            raised: 0,
        }
    }

    /// Takes in one tick; a group that is silent for long loses its share (11).
    pub(super) fn take_in(&mut self, rate: Rate, dropped: bool, silent: bool, interval: Span) {
        self.rate = rate;
        self.observed = self.observed.max(rate);
        self.observed_min = self.observed_min.min(rate);
        self.dropped |= dropped;
        self.silent_for = if silent { self.silent_for + interval } else { Span::ZERO };
        if self.silent_for >= SILENT_MAX {
            *self = GroupLoop { observed: self.observed, ..GroupLoop::idle() };
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.demand == Some(Rate::ZERO)
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.defiant_windows.length() >= DEFIANT_WINDOWS
    }

    /// Whether the group uses as much as it was believed to want. A few stray packets of an idle group are not
    /// growth: its ceil lets them pass anyway.
    pub(super) fn is_growing(&self) -> bool {
        self.demand.is_some_and(|demand| self.rate >= demand.max(HEADROOM_MIN))
    }

    /// Judges, by the window that ends, how the group stands to its ceil.
    pub(super) fn judge(&mut self) {
        let margin = (self.observed / 10).max(HEADROOM_MIN);
        // What a raise adds does not count: if a group cannot use it at a full link, this says nothing
        // about the group's demand.
        let ceil = self.ceil.saturating_sub(self.raise_extra);
        let useful = self.demand.map_or(ceil, |demand| demand.min(ceil));
        let defiant = self.dropped && self.observed_min > self.ceil.scale(120, 100);
        self.defiant_windows.count(defiant);
        self.state = if self.is_unresponsive() {
            GroupState::Unresponsive
        } else if self.is_growing() {
            GroupState::Growing
        } else if self.is_idle() {
            GroupState::Idle
        } else if defiant {
            // Lending to a group that exceeds its ceil anyway would only harm the groups that it crowds out (12).
            GroupState::Lending
        } else if self.observed + margin >= ceil {
            GroupState::Saturating
        } else if self.observed > self.observed_last.scale(105, 100) + HEADROOM_MIN {
            GroupState::Rising
        } else if self.observed + margin < useful {
            GroupState::NonSaturating
        } else {
            GroupState::Lending
        };
        self.observed_last = self.observed;
    }
}

/// What a lender keeps beyond its rate, so that its growth shows (5): a 64 KB burst of
/// receive offload in one tick must not look like growth of a fast group.
pub(super) fn headroom(observed: Rate, least: Rate) -> Rate {
    (observed / HEADROOM_DIVISOR).max(least)
}

/// Source: CRAB §3.1 and §3.3: `δ` and the lending headroom are at least 0.25 Mbit/s.
pub(super) const HEADROOM_MIN: Rate = Rate::kbit(250);
/// A twentieth: of a lender's rate, and of the capacity for all lenders together.
pub(super) const HEADROOM_DIVISOR: u64 = 20;
/// A group without a packet for this long is idle.
const SILENT_MAX: Span = Span::secs(30);
/// Windows in a row after which a group that ignores its drops counts as unresponsive.
const DEFIANT_WINDOWS: u32 = 5;
