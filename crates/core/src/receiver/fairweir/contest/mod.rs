//! How long the queue may be beside others who fill it.
//!
//! The problem: a queue that is kept short looks the same beside a link that becomes slower and
//! beside a sender elsewhere that grows: less and less arrives while the queue is at its target. A
//! host that takes the second for the first yields everything. The method: the more of its
//! *level*, what it believed to carry before, the link seems to have lost, the longer the queue may
//! be:
//!
//! ```text
//! target · (0.95 · level / capacity)⁵
//! ```
//!
//! So a host beside a sender that fills the buffer loses only until the queue is as long as that
//! sender makes it, its groups still divided by windows, and two hosts with this control meet where
//! both have lost the same part. A link that did become slower carries as much with a short queue.
//! That is *tried* as soon as the capacity has fallen, and again later: if less and less arrives
//! meanwhile, others take it; if not, the capacity is the new level. If others take it although much is
//! lost already, or the queue does not become short either, or again and again while packets are lost,
//! it is *doubted* that a longer queue keeps what this host would have without control. `rivals` finds
//! that out.
//!
//! Source: docs/control.md; Copa and Nimbus have competitive modes for the same reason, for senders.

use super::steady::Steady;
use crate::units::{Rate, Span, Time};

/// What the link was believed to carry, and how long the queue may be since it seems to be less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    level: Rate,
    /// By how much longer the queue may be, in thousandths.
    stretch: u64,
    lossy_at: Option<Time>,
    trial: Option<Trial>,
    steady: Steady,
    /// No trial before this, and how long after the next that fails.
    next_at: Time,
    wait: Span,
}

/// The queue is short to see whether less arrives.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Time,
    /// What the capacity was at its beginning.
    begun: Rate,
    least: Rate,
    most: Rate,
    /// The most that arrived.
    arrived: Rate,
    /// The shortest queue that was seen.
    queue: Option<Span>,
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// `None` if windows do not bound what arrives.
    pub(super) capacity: Option<Rate>,
    /// What arrives, over a round trip.
    pub(super) arrived: Rate,
    /// How long the queue is, and how long it shall be without others.
    pub(super) queue: Option<Span>,
    pub(super) target: Span,
    /// Whether packets were lost on their way to this host.
    pub(super) is_lossy: bool,
    /// The longest round trip.
    pub(super) rtt: Span,
}

impl Contest {
    pub(super) fn new() -> Contest {
        Contest {
            level: Rate::ZERO,
            stretch: UNSTRETCHED,
            lossy_at: None,
            trial: None,
            steady: Steady::default(),
            next_at: Time::ZERO,
            wait: WAIT_MIN,
        }
    }

    /// A queue of this length, as long as it may be now.
    pub(super) fn stretched(&self, queue: Span) -> Span {
        queue * self.stretch / UNSTRETCHED
    }

    /// Whether the queue may be much longer than the user wants.
    pub(super) fn is_on(&self) -> bool {
        self.stretch >= 2 * UNSTRETCHED
    }

    /// Takes in a tick. If it is doubted that this host keeps what it would have without control, tells
    /// what it had.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Option<Rate> {
        let Some(capacity) = tick.capacity.filter(|&c| c > Rate::ZERO) else {
            *self = Contest::new();
            return None;
        };
        self.steady.handle_capacity(capacity);
        if tick.is_lossy {
            self.lossy_at = Some(tick.at);
        }
        if self.level == Rate::ZERO {
            self.next_at = tick.at + self.wait;
        }
        let mut doubted = None;
        if capacity >= self.level.scale(LOST.0, LOST.1) {
            self.level = self.level.smoothed(capacity, FORGOTTEN_TICKS).max(capacity);
            self.trial = None;
            if tick.at > self.next_at {
                self.wait = WAIT_MIN;
            }
        } else {
            doubted = self.try_short_queue(tick, capacity);
        }
        let most = if self.is_lossy(tick.at) { STRETCH_MAX } else { STRETCH_CLEAN };
        let grown = self.stretch * GROWS.0 / GROWS.1;
        let is_tried = self.trial.is_some();
        self.stretch = if is_tried { UNSTRETCHED } else { self.wanted(capacity, most).min(grown) };
        doubted
    }

    /// Whether packets were lost lately.
    fn is_lossy(&self, now: Time) -> bool {
        self.lossy_at.is_some_and(|at| now.since(at) < LOSSY_FOR)
    }

    /// The stretch for what was lost, `most` at most.
    fn wanted(&self, capacity: Rate, most: u64) -> u64 {
        let left = self.level.scale(KEPT.0, KEPT.1);
        let mut wanted = UNSTRETCHED;
        for _ in 0..POWER {
            let next =
                u128::from(wanted) * u128::from(left.as_bps()) / u128::from(capacity.as_bps());
            wanted = next.min(u128::from(most)) as u64;
        }
        wanted.max(UNSTRETCHED)
    }

    fn try_short_queue(&mut self, tick: &Tick, capacity: Rate) -> Option<Rate> {
        let is_lossy = self.is_lossy(tick.at);
        let Some(trial) = &mut self.trial else {
            // What others take and leave is never the same for long.
            if tick.at >= self.next_at || self.steady.ticks() == STEADY_TICKS {
                self.trial = Some(Trial {
                    since: tick.at,
                    begun: capacity,
                    least: capacity,
                    most: capacity,
                    arrived: tick.arrived,
                    queue: None,
                });
            }
            return None;
        };
        let lasts = tick.at.since(trial.since);
        let begins = lasts < TRIAL_BEGINS + tick.rtt;
        // What was seen before the queue was short says nothing.
        trial.most = if begins { capacity } else { trial.most.max(capacity) };
        trial.least = if begins { capacity } else { trial.least.min(capacity) };
        trial.arrived = if begins { tick.arrived } else { trial.arrived.max(tick.arrived) };
        let before = trial.queue.unwrap_or(Span::MAX);
        trial.queue = tick.queue.filter(|_| !begins).map(|queue| queue.min(before)).or(trial.queue);
        // Who yields to others is not given more in return.
        let rises = capacity > trial.least.scale(RISES.0, RISES.1);
        if trial.least < trial.most.scale(FALLS.0, FALLS.1) {
            let is_filled = trial.queue.is_some_and(|queue| queue > tick.target * FILLED);
            let is_lasting = is_lossy && self.wait >= WAIT_LASTING;
            let is_much = trial.begun < self.level.scale(MUCH.0, MUCH.1);
            // The capacity of a link that became slower is found in steps; what arrives falls at once.
            let is_taken = tick.arrived < trial.arrived.scale(FALLS.0, FALLS.1);
            let is_doubted = is_taken && (is_much || is_filled || is_lasting);
            let doubted = is_doubted.then_some(trial.begun);
            self.trial = None;
            self.next_at = tick.at + self.wait;
            self.wait = (self.wait * 2).min(WAIT_MAX);
            return doubted;
        }
        if rises || lasts > TRIAL + tick.rtt * 4 {
            self.trial = None;
            self.level = capacity;
        }
        None
    }
}

/// A capacity below this part of the level is a loss.
const LOST: (u64, u64) = (90, 100);
/// A loss counts from this part of the level on. Source: docs/control.md, as the others here.
const KEPT: (u64, u64) = (95, 100);
const POWER: u32 = 5;
/// A level that is a little too high is forgotten over so many ticks.
const FORGOTTEN_TICKS: u64 = 100;
const UNSTRETCHED: u64 = 1_000;
/// The longest, where others fill the buffer: something was lost so lately. And where they do not.
const STRETCH_MAX: u64 = 40_000;
const STRETCH_CLEAN: u64 = 4_000;
const LOSSY_FOR: Span = Span::secs(10);
/// It grows no faster in a tick: the capacity of a mobile link falls and comes back sooner.
const GROWS: (u64, u64) = (130, 100);
/// A trial lasts so long and four round trips, the first part of it for the queue to become short.
const TRIAL: Span = Span::millis(2_000);
const TRIAL_BEGINS: Span = Span::millis(300);
/// Others take what is missing if this part is left at least.
const FALLS: (u64, u64) = (92, 100);
const RISES: (u64, u64) = (105, 100);
/// At once if it stays the same for so many ticks.
const STEADY_TICKS: u32 = 8;
/// The next trial, and each time later.
const WAIT_MIN: Span = Span::secs(4);
const WAIT_MAX: Span = Span::secs(64);
/// Much is lost if less than this part of the level was left when the trial began.
const MUCH: (u64, u64) = (70, 100);
/// Others fill the queue if it never becomes shorter than so many targets in a trial.
const FILLED: u64 = 3;
/// The third trial that fails in a row.
const WAIT_LASTING: Span = Span::secs(16);

#[cfg(test)]
mod tests;
