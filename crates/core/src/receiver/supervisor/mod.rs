//! Notices when control costs throughput, and then lets everything pass.
//!
//! The problem: a control that is wrong about a link leaves a part of it idle and cannot see that itself.
//! The method: a link that has room although a group wants more is *suspicious*. If that lasts,
//! everything passes for a moment, and the rate that arrives is compared with the rate before. If it is
//! higher, control has cost the difference. The control has now seen the higher rate, so the first time it
//! simply continues. If control costs throughput again soon, everything passes for longer, twice as long
//! each time. A suspicion that was wrong is followed by a pause, also doubled each time, so that a link
//! whose sender is slow is not disturbed again and again.
//!
//! Only controls that learn the capacity are supervised. A capacity that the user gave is kept.

use crate::backoff::Backoff;
use crate::streak::Streak;
use crate::units::{Part, Rate, Span, Time};

/// Watches what a control costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supervisor {
    state: State,
    /// Ticks in which the link had room although a group wanted more.
    idle_ticks: Streak,
    /// What arrives, smoothed.
    usual: Rate,
    /// The highest smoothed rate since control began, slowly forgotten.
    level: Rate,
    /// No comparison before this time; `pause` follows the next comparison that shows no harm.
    next_at: Time,
    pause: Backoff,
    /// When control cost throughput last; `away` is how long everything passes if it does so again.
    harmed_at: Option<Time>,
    away: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The control's commands are in force.
    Watch,
    /// Everything passes, to compare.
    Compare { since: Time, had: Rate, sum: u64, ticks: u64 },
    /// Everything passes, because control costs throughput.
    Away { until: Time },
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// What arrived.
    pub(super) total: Rate,
    /// Whether the control enforces anything.
    pub(super) is_enforcing: bool,
    /// Whether a group would take more than it gets.
    pub(super) is_wanted: bool,
    /// Whether the queue of the link was empty for a while; `None` if unknown.
    pub(super) has_room: Option<bool>,
}

/// Whether the control's commands are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The commands are in force.
    Enforce,
    /// Everything passes, to see what control costs.
    Compare,
    /// Everything passes, because control costs throughput.
    LetGo,
}

impl Supervisor {
    pub(super) fn new() -> Supervisor {
        Supervisor {
            state: State::Watch,
            idle_ticks: Streak::default(),
            usual: Rate::ZERO,
            level: Rate::ZERO,
            next_at: Time::ZERO,
            pause: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            harmed_at: None,
            away: Backoff::new(AWAY_MIN, AWAY_MAX),
        }
    }

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Verdict {
        match self.state {
            State::Watch => self.watch(tick),
            State::Compare { since, had, sum, ticks } => {
                let passed = tick.at.since(since);
                let counts = passed > REGROWN;
                let sum = sum.saturating_add(if counts { tick.total.as_bps() } else { 0 });
                let ticks = ticks + u64::from(counts);
                self.state = State::Compare { since, had, sum, ticks };
                if passed >= COMPARED {
                    self.judge(tick.at, had, Rate::bps(sum / ticks.max(1)));
                }
            }
            State::Away { until } if tick.at >= until => self.state = State::Watch,
            State::Away { .. } => {}
        }
        match self.state {
            State::Watch => Verdict::Enforce,
            State::Compare { .. } => Verdict::Compare,
            State::Away { .. } => Verdict::LetGo,
        }
    }

    fn watch(&mut self, tick: &Tick) {
        self.usual = self.usual.smoothed(tick.total, USUAL_TICKS);
        self.level = self.level.smoothed(self.usual, LEVEL_TICKS).max(self.usual);
        let has_room = tick.has_room.unwrap_or(true) && self.usual < self.level * ROOM;
        let idle_ticks = self.idle_ticks.count(tick.is_enforcing && tick.is_wanted && has_room);
        if idle_ticks >= IDLE_TICKS && tick.at >= self.next_at {
            self.idle_ticks.end();
            self.state = State::Compare { since: tick.at, had: self.usual, sum: 0, ticks: 0 };
        }
    }

    fn judge(&mut self, now: Time, had: Rate, free: Rate) {
        self.state = State::Watch;
        (self.usual, self.level) = (free, free);
        if free < had * COSTS {
            self.next_at = now + self.pause.span();
            self.pause.double();
            return;
        }
        self.pause.reset();
        if self.harmed_at.is_some_and(|at| now.since(at) < HARMED_AGAIN + self.away.span()) {
            self.state = State::Away { until: now + self.away.span() };
            self.away.double();
        } else {
            self.away.reset();
        }
        self.harmed_at = Some(now);
    }
}

/// Ticks in a row in which the link has room although more is wanted, before a comparison.
const IDLE_TICKS: u32 = 25;
/// Ticks over which what arrives is smoothed.
const USUAL_TICKS: u64 = 10;
/// Ticks over which the highest rate is forgotten.
const LEVEL_TICKS: u64 = 3_000;
/// If no delays are known, the link has room below this part of the highest rate.
const ROOM: Part = Part::percent(70);
/// Time after which senders have begun to grow; what arrives counts from then on.
const REGROWN: Span = Span::millis(1_000);
/// How long everything passes for a comparison.
const COMPARED: Span = Span::millis(3_000);
/// Control costs throughput if at least this multiple arrives without control.
const COSTS: Part = Part::percent(105);
/// Pause after a comparison that showed no harm.
const PAUSE_MIN: Span = Span::secs(30);
const PAUSE_MAX: Span = Span::secs(600);
/// Control that costs throughput again within this time is suspended.
const HARMED_AGAIN: Span = Span::secs(60);
/// How long control is then suspended.
const AWAY_MIN: Span = Span::secs(30);
const AWAY_MAX: Span = Span::secs(600);

#[cfg(test)]
mod tests;
