//! No harm: control that costs is noticed, and lets go.
//!
//! The problem: a control that is wrong about a link leaves a part of it idle, and nothing in the control
//! tells it so. The method: a link that has room although a group wants more is *suspicious*. If that
//! lasts, everything passes for a moment, and what arrives then is compared with what arrived before. If
//! it is more, control has cost the difference. The control has seen what arrived, so the first time it
//! goes on with that. If control costs again soon after, everything passes for longer, each time twice as
//! long. A suspicion that was wrong is followed by a pause, each time twice as long, so that a link whose
//! sender is slow is not disturbed again and again.
//!
//! It judges only controls that learn the capacity: one that was given by the user is kept.

use crate::units::{Rate, Span, Time};

/// Watches what a control costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supervisor {
    state: State,
    /// In how many ticks in a row the link had room.
    idle_ticks: u32,
    /// What arrives, smoothed.
    usual: Rate,
    /// The most of that since control began, slowly forgotten.
    level: Rate,
    /// No release before this, and for how long after the next that shows no harm.
    next_at: Time,
    pause: Span,
    /// Control cost last at this time, and how long it lets go if it does again.
    harmed_at: Option<Time>,
    stay: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The control's commands are in force.
    Watch,
    /// Everything passes, to compare.
    Compare { since: Time, had: Rate, sum: u64, ticks: u64 },
    /// Everything passes, because control costs.
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
    /// Whether a group wants more than it has.
    pub(super) is_wanted: bool,
    /// Whether the queue of the link was empty for a while; `None` if nobody knows.
    pub(super) has_room: Option<bool>,
}

/// Whether the control's commands are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are.
    Enforce,
    /// Everything passes, to see what control costs.
    Compare,
    /// Everything passes, because control costs.
    LetGo,
}

impl Supervisor {
    pub(super) fn new() -> Supervisor {
        Supervisor {
            state: State::Watch,
            idle_ticks: 0,
            usual: Rate::ZERO,
            level: Rate::ZERO,
            next_at: Time::ZERO,
            pause: PAUSE_MIN,
            harmed_at: None,
            stay: STAY_MIN,
        }
    }

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Verdict {
        match self.state {
            State::Watch => self.watch(tick),
            State::Compare { since, had, sum, ticks } => {
                let passed = tick.at.since(since);
                let counts = passed > GROWN;
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
        let has_room =
            tick.has_room.unwrap_or(true) && self.usual < self.level.scale(ROOM.0, ROOM.1);
        self.idle_ticks = match tick.is_enforcing && tick.is_wanted && has_room {
            true => self.idle_ticks + 1,
            false => 0,
        };
        if self.idle_ticks >= IDLE_TICKS && tick.at >= self.next_at {
            self.idle_ticks = 0;
            self.state = State::Compare { since: tick.at, had: self.usual, sum: 0, ticks: 0 };
        }
    }

    fn judge(&mut self, now: Time, had: Rate, free: Rate) {
        self.state = State::Watch;
        (self.usual, self.level) = (free, free);
        if free < had.scale(COSTS.0, COSTS.1) {
            self.next_at = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            return;
        }
        self.pause = PAUSE_MIN;
        if self.harmed_at.is_some_and(|at| now.since(at) < AGAIN + self.stay) {
            self.state = State::Away { until: now + self.stay };
            self.stay = (self.stay * 2).min(STAY_MAX);
        } else {
            self.stay = STAY_MIN;
        }
        self.harmed_at = Some(now);
    }
}

/// The link had room for so many ticks in a row although more was wanted.
const IDLE_TICKS: u32 = 25;
/// What arrives is smoothed over so many ticks; its largest value is forgotten over so many.
const USUAL_TICKS: u64 = 10;
const LEVEL_TICKS: u64 = 3_000;
/// Where no delays are known, below this part of that the link has room.
const ROOM: (u64, u64) = (70, 100);
/// Senders have begun to grow after this, and are compared until then.
const GROWN: Span = Span::millis(1_000);
const COMPARED: Span = Span::millis(3_000);
/// Control costs if so much arrives without it.
const COSTS: (u64, u64) = (105, 100);
/// The next comparison after one that showed no harm.
const PAUSE_MIN: Span = Span::secs(30);
const PAUSE_MAX: Span = Span::secs(600);
/// If control costs again within this, it lets go for so long.
const AGAIN: Span = Span::secs(60);
const STAY_MIN: Span = Span::secs(30);
const STAY_MAX: Span = Span::secs(600);

#[cfg(test)]
mod tests;
