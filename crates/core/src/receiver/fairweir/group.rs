//! What the control knows of one group and of its connections.

use std::collections::BTreeMap;

use super::super::{ConnectionSample, Excess, GroupSample, GroupState};
use super::asked::Division;
use super::lost::{LastLosses, Lost};
use super::rhythm::Rhythm;
use crate::streak::Streak;
use crate::units::{Bytes, Part, Rate, Span, Time};
use crate::window::Behaviour;

/// One group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) rate: Rate,
    /// The same, smoothed over about a second.
    pub(super) rate_smoothed: Rate,
    /// The rates of the last ticks, oldest first.
    recent: [Rate; RECENT_TICKS],
    pub(super) demand: Option<Rate>,
    pub(super) share: Rate,
    /// The rate that it may take at once: its share, or the share it would have if it wanted all it can get.
    pub(super) bound: Rate,
    pub(super) ceil: Rate,
    /// Whether a cap keeps it from taking more.
    pub(super) is_capped: bool,
    /// What its class does with packets beyond its ceil.
    pub(super) excess: Excess,
    /// What waits in its class.
    backlog: Bytes,
    pub(super) state: GroupState,
    /// Ticks in which it sent far more than it may and was dropped.
    defiant_ticks: Streak,
    /// The rate that it sent in the first of these ticks.
    defiant_rate: Rate,
    /// Factor by which its windows differ from the window law, in thousandths, so that the rate that arrives
    /// is its share.
    pub(super) correction: u64,
    /// Ticks in which it may have been held by its windows.
    about_filled_ticks: Streak,
    /// Ticks since it saturated.
    lending_ticks: Streak,
    /// Counts the ticks in which it has been active; falls while it is not.
    busy_ticks: u32,
    /// Ticks in which its class held it back.
    held_ticks: Streak,
    /// Whether it is a stream of short connections.
    pub(super) is_stream: bool,
    /// L2 rate of its connections that are not young; falls smoothed over two seconds.
    old: Rate,
    /// Ticks since its class dropped a packet.
    clean_ticks: Streak,
    /// The rate that arrives outside of connections whose windows can be bounded.
    pub(super) unbounded: Rate,
    /// The queue in which it lost packets recently, while these losses limit it.
    pub(super) lost: Option<Lost>,
    /// Whether its receiver divides the group's share by itself.
    pub(super) division: Division,
    rhythm: Rhythm,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) group: usize,
    /// L2 rate in the last tick.
    pub(super) rate: Rate,
    /// Payload rate, smoothed over a round trip.
    pub(super) goodput: Rate,
    pub(super) is_filled: bool,
    /// Whether its window is so full that its sender may be waiting until a burst fits.
    pub(super) is_about_filled: bool,
    pub(super) begun_at: Time,
    pub(super) active_at: Time,
    /// The ticks in which it lost packets, in thousandths of all, smoothed over three seconds.
    pub(super) lossiness: u32,
    pub(super) losses: LastLosses,
    /// How much longer its packets waited than those of other connections.
    pub(super) own_queue: Span,
    pub(super) behaviour: Behaviour,
    /// Whether the window that its receiver asked for went down by a little.
    pub(super) has_moved: bool,
    pub(super) sample: ConnectionSample,
}

impl Group {
    pub(super) fn idle() -> Group {
        Group {
            rate: Rate::ZERO,
            rate_smoothed: Rate::ZERO,
            recent: [Rate::ZERO; RECENT_TICKS],
            demand: Some(Rate::ZERO),
            share: Rate::ZERO,
            bound: Rate::ZERO,
            ceil: Rate::ZERO,
            is_capped: false,
            excess: Excess::Delay,
            backlog: Bytes::ZERO,
            state: GroupState::Idle,
            defiant_ticks: Streak::default(),
            defiant_rate: Rate::ZERO,
            correction: NO_CORRECTION,
            about_filled_ticks: Streak::default(),
            lending_ticks: Streak::default(),
            busy_ticks: 0,
            held_ticks: Streak::default(),
            is_stream: false,
            old: Rate::ZERO,
            clean_ticks: Streak::of(CLEAN_TICKS),
            unbounded: Rate::ZERO,
            lost: None,
            division: Division::default(),
            rhythm: Rhythm::default(),
        }
    }

    /// Takes in a tick, and what was seen of its connections.
    pub(super) fn handle_tick(
        &mut self,
        sample: &GroupSample,
        interval: Span,
        seen: SeenConnections,
    ) {
        self.rate = Rate::from_volume(sample.received, interval);
        self.rate_smoothed = self.rate_smoothed.smoothed(self.rate, 5);
        self.recent.rotate_left(1);
        self.recent[RECENT_TICKS - 1] = self.rate;
        // What its class holds or drops has not reached a socket.
        let before = std::mem::replace(&mut self.backlog, sample.backlog);
        let held = sample.backlog.saturating_sub(before) + seen.packet * sample.drops;
        let came = seen.bounded + Rate::from_volume(held, interval);
        self.unbounded = self.rate.saturating_sub(came);
        self.division.handle_tick(seen.has_moved);
        let is_held = sample.drops > 0 || sample.backlog > seen.packet * BACKLOG_PACKETS;
        self.see_defiance(sample.drops > 0);
        self.clean_ticks.count(sample.drops == 0);
        let held_ticks = self.held_ticks.count(is_held);
        self.is_stream = self.see_stream(&seen);
        let is_stream = self.is_stream && held_ticks < HELD_TICKS;
        let recent = self.recent.iter().copied().max().unwrap_or(Rate::ZERO);
        // Connections with less than a tenth of the group's rate do not decide its state.
        let speaks = |rate: Rate| rate > Rate::ZERO && rate * 10 >= self.rate;
        let saturates = speaks(seen.filled) || is_held;
        let is_about_filled = speaks(seen.about_filled) || is_held;
        self.about_filled_ticks.count(is_about_filled);
        let lending_ticks = self.lending_ticks.count(!saturates);
        let by_rhythm = self.rhythm.handle_tick(self.rate, saturates);
        self.lost = None;
        (self.state, self.demand) = if self.defiant_ticks.length() >= DEFIANT_TICKS {
            (GroupState::Unresponsive, Some(self.rate))
        } else if let Some(mean) = by_rhythm {
            (GroupState::Lending, Some(mean * STREAM))
        } else if recent == Rate::ZERO {
            (GroupState::Idle, Some(Rate::ZERO))
        } else if is_stream && !seen.is_crowded {
            (GroupState::Lending, Some(self.rate_smoothed * STREAM))
        } else if saturates {
            (GroupState::Saturating, None)
        } else if seen.is_recovering {
            self.lost = seen.lost;
            (GroupState::Rising, Some(self.rate_smoothed * RECOVERING))
        } else if self.rate >= recent && self.rate > self.recent[0].scale(110, 100) {
            (GroupState::Rising, Some(self.rate * RISING))
        } else if seen.is_crowded {
            (GroupState::Unknown, Some(recent * UNKNOWN))
        } else {
            // A sender that pauses for a moment, as BBR does to measure, wants its full rate again at once.
            let is_pause = lending_ticks <= PAUSE_TICKS && self.rate > Rate::ZERO;
            let rate = if is_pause { recent } else { self.rate };
            (GroupState::Lending, Some(rate * LENDING))
        };
        if !is_about_filled || self.is_unresponsive() {
            self.correction = (self.correction * 9 + NO_CORRECTION) / 10;
        }
        if self.is_capped && self.state == GroupState::Saturating {
            self.state = GroupState::Capped;
        }
    }

    /// Takes in whether a cap keeps it from taking more; if so, it wants no more of the link.
    pub(super) fn see_cap(&mut self, is_capped: bool) {
        self.is_capped = is_capped;
        self.state = match (self.state, is_capped) {
            (GroupState::Saturating | GroupState::Lending, true) => GroupState::Capped,
            (GroupState::Capped, false) => GroupState::Saturating,
            (state, _) => state,
        };
    }

    /// Whether it has been a stream of short connections for some time. Its rate in a single tick is random,
    /// and shares cannot follow that; the shortest connections end before they are seen.
    fn see_stream(&mut self, seen: &SeenConnections) -> bool {
        self.busy_ticks = match self.rate > Rate::ZERO {
            true => (self.busy_ticks + 1).min(STREAM_TICKS * 2),
            false => self.busy_ticks.saturating_sub(3),
        };
        // A group with a lasting connection is not a stream, however many others have ended.
        self.old = seen.old.max(self.old.smoothed(seen.old, OLD_FALLS));
        self.busy_ticks >= STREAM_TICKS && self.old * 2 < self.rate_smoothed
    }

    /// Marks a group as unresponsive if it keeps sending the same rate, far above its ceil, although its
    /// packets are dropped: that rate is lost to the others anyway. A group whose rate grows with its ceil
    /// is not unresponsive, and neither is a group that its windows bound.
    fn see_defiance(&mut self, is_dropped: bool) {
        let defies =
            is_dropped && self.rate > self.ceil.scale(120, 100) && self.unbounded > self.rate / 2;
        let before = self.defiant_rate;
        let is_constant =
            self.rate <= before.scale(115, 100) && before <= self.rate.scale(115, 100);
        self.defiant_ticks.count(defies && is_constant);
        self.defiant_rate = match (defies, is_constant) {
            (false, _) => Rate::ZERO,
            (true, true) => before,
            (true, false) => self.rate,
        };
    }

    /// Widens or narrows the group's windows if its part of `rates` differs from its part of `shares`,
    /// both summed over the groups that are steady.
    pub(super) fn correct(&mut self, shares: Rate, rates: Rate) {
        if !self.is_steady() {
            return;
        }
        let due = u128::from(self.share.as_bps()) * u128::from(rates.as_bps());
        let got = u128::from(self.rate.as_bps()) * u128::from(shares.as_bps());
        let ratio = (due * 1_000 / got.max(1)).clamp(800, 1_250) as u64;
        // A quarter of the way each tick.
        let step = 1_000 + (ratio as i64 - 1_000) / 4;
        let corrected = (self.correction * step as u64 + 500) / 1_000;
        self.correction = corrected.clamp(CORRECTION_MIN, CORRECTION_MAX);
    }

    /// Whether it has used its full share for some time, by connections whose windows are bounded.
    pub(super) fn is_steady(&self) -> bool {
        self.about_filled_ticks.length() >= GROUP_STEADY_TICKS
            && !self.is_capped
            && self.unbounded < self.rate / 5
            && self.share > Rate::ZERO
            && self.rate > Rate::ZERO
    }

    /// Whether the losses of its connections occur outside its own class.
    pub(super) fn is_clean(&self) -> bool {
        self.clean_ticks.length() >= CLEAN_TICKS
    }

    /// Whether most of what arrives comes by connections whose windows can be bounded.
    pub(super) fn has_windows(&self) -> bool {
        self.unbounded <= self.rate * UNBOUNDED
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.state == GroupState::Unresponsive
    }
}

/// Scales the corrections of the steady groups together, so that their average, weighted by share, is none.
/// Corrections divide the capacity among groups; they do not decide how wide all windows are together. As
/// they follow noise, all of them would otherwise drift together: down, until the windows no longer fill
/// the link, or up, until the queue is too long.
pub(super) fn centre_corrections(groups: &mut [Group]) {
    let share = |g: &Group| u128::from(g.share.as_bps());
    let steady = || groups.iter().filter(|g| g.is_steady());
    let shares: u128 = steady().map(share).sum();
    let corrected: u128 = steady().map(|g| share(g) * u128::from(g.correction)).sum();
    // If a group's windows cannot be narrowed further, the other groups' windows may be widened.
    let is_spent = steady().any(|g| g.correction <= CORRECTION_SPENT);
    if corrected == 0 || (is_spent && corrected >= shares * u128::from(NO_CORRECTION)) {
        return;
    }
    for group in groups.iter_mut().filter(|g| g.is_steady()) {
        let whole = u128::from(group.correction * NO_CORRECTION) * shares;
        let centred = ((whole + corrected / 2) / corrected) as u64;
        group.correction = centred.clamp(CORRECTION_MIN, CORRECTION_MAX);
    }
}

/// What was seen of a group's connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenConnections {
    /// L2 rate of the connections that would take more than their windows allow.
    pub(super) filled: Rate,
    /// L2 rate of the connections that may be limited by their windows.
    pub(super) about_filled: Rate,
    /// Whether the queue is above its target, so that other traffic may hold up a connection that does not
    /// fill its window.
    pub(super) is_crowded: bool,
    /// Whether one of them lost packets recently and is limited by that; `lost` is the queue where it did.
    pub(super) is_recovering: bool,
    pub(super) lost: Option<Lost>,
    /// Whether the window that one of the receivers asked for went down by a little.
    pub(super) has_moved: bool,
    /// L2 rate of the connections that began some time ago.
    pub(super) old: Rate,
    /// L2 rate of all connections whose windows are bounded.
    pub(super) bounded: Rate,
    /// The largest packet.
    pub(super) packet: Bytes,
}

/// All connections, by identity.
pub(super) type Connections = BTreeMap<u64, Connection>;

/// Ticks whose rates are kept.
const RECENT_TICKS: usize = 3;
/// The value, in thousandths, of a correction and an opening that leave windows as the law says.
pub(super) const NO_CORRECTION: u64 = 1_000;
/// Range of the correction, in thousandths.
const CORRECTION_MIN: u64 = 600;
const CORRECTION_MAX: u64 = 1_700;
/// At a correction this small, windows are about the smallest possible and cannot be narrowed.
const CORRECTION_SPENT: u64 = 700;
/// Ticks in a row in which a group fills its windows before it counts as steady: slow start has ended.
const GROUP_STEADY_TICKS: u32 = 4;
/// Ticks with a lower rate that still count as a pause.
const PAUSE_TICKS: u32 = 1;
/// Ticks after a drop in the class during which packets still arrive out of order.
const CLEAN_TICKS: u32 = 5;
/// A class whose backlog is longer than this, in packets, holds its group back.
const BACKLOG_PACKETS: u64 = 4;
/// The demand of a group whose rate rises, as a multiple of its rate.
const RISING: Part = Part::of(4, 1);
/// The demand of a group that lends, as a multiple of its rate, so that it can grow. The other groups'
/// windows use the rest of its share.
const LENDING: Part = Part::percent(108);
/// The same for a group whose senders slowed down after a loss.
const RECOVERING: Part = Part::of(11, 8);
/// The same for a group that other traffic may hold back.
const UNKNOWN: Part = Part::of(5, 4);
/// Traffic without windows counts if it is more than this part of a group's rate.
const UNBOUNDED: Part = Part::of(1, 5);
/// Ticks after which a series of short connections is a stream.
const STREAM_TICKS: u32 = 8;
/// After this many ticks in a row in which its class holds it back, a stream wants all it can get.
const HELD_TICKS: u32 = 3;
/// The demand of a stream, or of a group that pauses and comes back, as a multiple of its mean rate.
const STREAM: Part = Part::of(5, 4);
/// Ticks over which the rate of lasting connections is smoothed when it falls.
const OLD_FALLS: u64 = 10;
/// Ticks in a row of defiance after which a group is unresponsive: longer than slow start overshoots.
const DEFIANT_TICKS: u32 = 10;
