//! What the control knows of one group and of its connections.

use std::collections::BTreeMap;

use super::super::{ConnectionSample, GroupSample, GroupState};
use super::asked::Division;
use super::squeeze::{LastLosses, Lost};
use crate::units::{Rate, Span, Time};
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
    /// What it may take at once: its share, or what that would be if it wanted all.
    pub(super) bound: Rate,
    pub(super) ceil: Rate,
    pub(super) state: GroupState,
    /// Ticks in a row in which it sent far more than it may and was dropped.
    defiant_ticks: u32,
    /// And what it sent in the first of them.
    defiant_rate: Rate,
    /// By how much its windows are wider than the law says, in thousandths, so that what arrives
    /// is its share.
    pub(super) correction: u64,
    /// Ticks in a row in which it may have been held by its windows.
    about_filled_ticks: u32,
    /// Ticks since it saturated.
    lending_ticks: u32,
    /// How many ticks it has been active lately, and held by its class in a row.
    busy_ticks: u32,
    held_ticks: u32,
    /// Whether it is a stream of short connections.
    pub(super) is_stream: bool,
    /// L2 rate of connections that are not young, smoothed over two seconds.
    old: Rate,
    /// Ticks since its class dropped anything.
    clean_ticks: u32,
    /// What arrives outside of connections whose windows can be bounded.
    pub(super) unbounded: Rate,
    /// In which queue it lost packets lately, while that is what limits it.
    pub(super) lost: Option<Lost>,
    /// Whether its receiver divides by itself.
    pub(super) division: Division,
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
    /// Of its window so much is in flight that its sender may be waiting for room for a burst.
    pub(super) is_about_filled: bool,
    pub(super) begun_at: Time,
    pub(super) active_at: Time,
    /// In how many of a thousand ticks packets were lost to it, smoothed over three seconds.
    pub(super) lossiness: u32,
    pub(super) losses: LastLosses,
    /// By how much its packets waited longer than those of others.
    pub(super) own_queue: Span,
    pub(super) behaviour: Behaviour,
    /// The window that its receiver asked for went down by a little.
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
            state: GroupState::Idle,
            defiant_ticks: 0,
            defiant_rate: Rate::ZERO,
            correction: NO_CORRECTION,
            about_filled_ticks: 0,
            lending_ticks: 0,
            busy_ticks: 0,
            held_ticks: 0,
            is_stream: false,
            old: Rate::ZERO,
            clean_ticks: CLEAN_TICKS,
            unbounded: Rate::ZERO,
            lost: None,
            division: Division::default(),
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
        self.unbounded = self.rate.saturating_sub(seen.bounded);
        self.division.handle_tick(seen.has_moved);
        let is_held = sample.drops > 0 || sample.backlog > seen.packet * BACKLOG_PACKETS;
        self.see_defiance(sample.drops > 0);
        self.clean_ticks = if sample.drops > 0 { 0 } else { self.clean_ticks.saturating_add(1) };
        self.held_ticks = if is_held { self.held_ticks.saturating_add(1) } else { 0 };
        self.is_stream = self.see_stream(&seen);
        let is_stream = self.is_stream && self.held_ticks < HELD_TICKS;
        let recent = self.recent.iter().copied().max().unwrap_or(Rate::ZERO);
        // Connections that are nothing beside the others of the group do not speak for it.
        let speaks = |rate: Rate| rate > Rate::ZERO && rate * 10 >= self.rate;
        let saturates = speaks(seen.filled) || is_held;
        let is_about_filled = speaks(seen.about_filled) || is_held;
        self.about_filled_ticks = if is_about_filled { self.about_filled_ticks + 1 } else { 0 };
        self.lending_ticks = if saturates { 0 } else { self.lending_ticks.saturating_add(1) };
        self.lost = None;
        (self.state, self.demand) = if recent == Rate::ZERO {
            (GroupState::Idle, Some(Rate::ZERO))
        } else if self.defiant_ticks >= DEFIANT_TICKS {
            (GroupState::Unresponsive, Some(self.rate))
        } else if is_stream && !seen.is_crowded {
            (GroupState::Lending, Some(self.rate_smoothed.scale(STREAM.0, STREAM.1)))
        } else if saturates {
            (GroupState::Saturating, None)
        } else if seen.is_recovering {
            self.lost = seen.lost;
            (GroupState::Rising, Some(self.rate_smoothed.scale(RECOVERING.0, RECOVERING.1)))
        } else if self.rate >= recent && self.rate > self.recent[0].scale(110, 100) {
            (GroupState::Rising, Some(self.rate.scale(RISING.0, RISING.1)))
        } else if seen.is_crowded {
            (GroupState::Unknown, Some(recent.scale(UNKNOWN.0, UNKNOWN.1)))
        } else {
            // A sender that pauses for a moment, as BBR does to measure, wants all again at once.
            let is_pause = self.lending_ticks <= PAUSE_TICKS && self.rate > Rate::ZERO;
            let rate = if is_pause { recent } else { self.rate };
            (GroupState::Lending, Some(rate.scale(LENDING.0, LENDING.1)))
        };
        if !is_about_filled || self.is_unresponsive() {
            self.correction = (self.correction * 9 + NO_CORRECTION) / 10;
        }
    }

    /// Whether it has been a stream of short connections for some time: what each tick sees of it is
    /// chance, and others cannot follow it. The shortest are gone before anybody sees them.
    fn see_stream(&mut self, seen: &SeenConnections) -> bool {
        self.busy_ticks = match self.rate > Rate::ZERO {
            true => (self.busy_ticks + 1).min(STREAM_TICKS * 2),
            false => self.busy_ticks.saturating_sub(3),
        };
        // One that has lasted is no stream, however many of the others have ended.
        self.old = seen.old.max(self.old.smoothed(seen.old, OLD_FALLS));
        self.busy_ticks >= STREAM_TICKS && self.old * 2 < self.rate_smoothed
    }

    /// Who sends far more than it may although it is dropped, and always as much, reacts to nothing:
    /// the others had better leave it that. One that takes more when it is left more is not like
    /// that, and gets nothing for it; and who has windows obeys them in the end.
    fn see_defiance(&mut self, is_dropped: bool) {
        let defies =
            is_dropped && self.rate > self.ceil.scale(120, 100) && self.unbounded > self.rate / 2;
        let before = self.defiant_rate;
        let is_constant =
            self.rate <= before.scale(115, 100) && before <= self.rate.scale(115, 100);
        (self.defiant_ticks, self.defiant_rate) = match (defies, is_constant) {
            (false, _) => (0, Rate::ZERO),
            (true, true) => (self.defiant_ticks + 1, before),
            (true, false) => (0, self.rate),
        };
    }

    /// Widens or narrows its windows if it gets another part of `rates` than it has of `shares`,
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

    /// Whether it has taken all it may for some time, by connections whose windows are bounded.
    pub(super) fn is_steady(&self) -> bool {
        self.about_filled_ticks >= STEADY_TICKS
            && self.unbounded < self.rate / 5
            && self.share > Rate::ZERO
            && self.rate > Rate::ZERO
    }

    /// Whether what its connections lose is not lost in its own class.
    pub(super) fn is_clean(&self) -> bool {
        self.clean_ticks >= CLEAN_TICKS
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.state == GroupState::Unresponsive
    }
}

/// Shifts the corrections of the steady groups together, so that on average by share there is none.
///
/// They divide what there is, and how wide all windows are together is not theirs. As they follow
/// noise, all would otherwise drift together: down, until the windows do not fill the link any
/// more, or up, until the queue is too long.
pub(super) fn centre_corrections(groups: &mut [Group]) {
    let share = |g: &Group| u128::from(g.share.as_bps());
    let steady = || groups.iter().filter(|g| g.is_steady());
    let shares: u128 = steady().map(share).sum();
    let corrected: u128 = steady().map(|g| share(g) * u128::from(g.correction)).sum();
    // Windows that cannot be narrowed any more leave the others to be widened.
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
    /// L2 rate of those that would take more than their windows.
    pub(super) filled: Rate,
    /// L2 rate of those that may be held by their windows.
    pub(super) about_filled: Rate,
    /// More queues than shall: who does not fill its window may be held up by others.
    pub(super) is_crowded: bool,
    /// Packets were lost to one of them lately, where that is what limits them, and in which queue.
    pub(super) is_recovering: bool,
    pub(super) lost: Option<Lost>,
    /// The window that one of the receivers asked for went down by a little.
    pub(super) has_moved: bool,
    /// L2 rate of those that began some time ago.
    pub(super) old: Rate,
    /// L2 rate of all whose windows are bounded.
    pub(super) bounded: Rate,
    /// The largest packet.
    pub(super) packet: crate::units::Bytes,
}

/// All connections, by identity.
pub(super) type Connections = BTreeMap<u64, Connection>;

const RECENT_TICKS: usize = 3;
pub(super) const NO_CORRECTION: u64 = 1_000;
const CORRECTION_MIN: u64 = 600;
const CORRECTION_MAX: u64 = 1_700;
/// Who is narrowed so far holds about the least windows, which no correction narrows.
const CORRECTION_SPENT: u64 = 700;
const STEADY_TICKS: u32 = 4;
/// So many ticks of less are a pause.
const PAUSE_TICKS: u32 = 1;
/// So long after a drop in the class packets still arrive out of order.
const CLEAN_TICKS: u32 = 5;
/// A class in which more waits than that holds its group back.
const BACKLOG_PACKETS: u64 = 4;
/// A group that rises may have this times as much in the next tick.
const RISING: (u64, u64) = (4, 1);
/// What lends keeps so much more than it uses, so that it can grow: the others' windows have room
/// for what it leaves.
const LENDING: (u64, u64) = (108, 100);
/// And one whose senders have slowed down after a loss.
const RECOVERING: (u64, u64) = (11, 8);
/// One that others may hold back can take so much more in the next tick.
const UNKNOWN: (u64, u64) = (5, 4);
/// A stream of short connections that has lasted for so many ticks is taken to want so much more
/// than it has on average, unless its class holds it back for some ticks in a row.
const STREAM_TICKS: u32 = 8;
const HELD_TICKS: u32 = 3;
const STREAM: (u64, u64) = (5, 4);
/// The rate of those that have lasted falls over so many ticks.
const OLD_FALLS: u64 = 10;
const DEFIANT_TICKS: u32 = 10;
