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
//! meanwhile, others take it; if not, the capacity is the new level.
//!
//! Source: docs/control.md; Copa and Nimbus have competitive modes for the same reason, for senders.

use crate::units::{Rate, Span, Time};

/// What the link was believed to carry, and how long the queue may be since it seems to be less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    level: Rate,
    /// By how much longer the queue may be, in thousandths.
    stretch: u64,
    lossy_at: Option<Time>,
    trial: Option<Trial>,
    /// About where the capacity has been, and for how many ticks.
    steady: (Rate, u32),
    /// No trial before this, and how long after the next that fails.
    next_at: Time,
    wait: Span,
}

/// The queue is short to see whether less arrives.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Time,
    least: Rate,
    most: Rate,
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// `None` if windows do not bound what arrives.
    pub(super) capacity: Option<Rate>,
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
            steady: (Rate::ZERO, 0),
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

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) {
        let Some(capacity) = tick.capacity.filter(|&c| c > Rate::ZERO) else {
            *self = Contest::new();
            return;
        };
        let (about, ticks) = self.steady;
        let is_steady = capacity.as_bps().abs_diff(about.as_bps()) < about.as_bps() / STEADY;
        self.steady = if is_steady { (about, ticks + 1) } else { (capacity, 0) };
        if tick.is_lossy {
            self.lossy_at = Some(tick.at);
        }
        if self.level == Rate::ZERO {
            self.next_at = tick.at + self.wait;
        }
        if capacity >= self.level.scale(LOST.0, LOST.1) {
            self.level = self.level.smoothed(capacity, FORGOTTEN_TICKS).max(capacity);
            self.trial = None;
            if tick.at > self.next_at {
                self.wait = WAIT_MIN;
            }
        } else {
            self.try_short_queue(tick, capacity);
        }
        let most = match self.lossy_at {
            Some(at) if tick.at.since(at) < LOSSY_FOR => STRETCH_MAX,
            _ => STRETCH_CLEAN,
        };
        let grown = self.stretch * GROWS.0 / GROWS.1;
        let is_tried = self.trial.is_some();
        self.stretch = if is_tried { UNSTRETCHED } else { self.wanted(capacity, most).min(grown) };
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

    fn try_short_queue(&mut self, tick: &Tick, capacity: Rate) {
        let Some(trial) = &mut self.trial else {
            // What others take and leave is never the same for long.
            if tick.at >= self.next_at || self.steady.1 == STEADY_TICKS {
                self.trial = Some(Trial { since: tick.at, least: capacity, most: capacity });
            }
            return;
        };
        let lasts = tick.at.since(trial.since);
        let begins = lasts < TRIAL_BEGINS + tick.rtt;
        // What was seen before the queue was short says nothing.
        trial.most = if begins { capacity } else { trial.most.max(capacity) };
        trial.least = if begins { capacity } else { trial.least.min(capacity) };
        // Who yields to others is not given more in return.
        let rises = capacity > trial.least.scale(RISES.0, RISES.1);
        if trial.least < trial.most.scale(FALLS.0, FALLS.1) {
            self.trial = None;
            self.next_at = tick.at + self.wait;
            self.wait = (self.wait * 2).min(WAIT_MAX);
        } else if rises || lasts > TRIAL + tick.rtt * 4 {
            self.trial = None;
            self.level = capacity;
        }
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
/// At once if it changes by less than one of so many parts for so many ticks.
const STEADY: u64 = 30;
const STEADY_TICKS: u32 = 8;
/// The next trial, and each time later.
const WAIT_MIN: Span = Span::secs(4);
const WAIT_MAX: Span = Span::secs(64);

#[cfg(test)]
mod tests;
