//! How long the queue may be while other hosts fill it.
//!
//! The problem: to a host that keeps the queue short, a link that becomes slower looks like a sender
//! elsewhere that grows: less and less arrives while the queue is at its target. A host that takes the
//! growing sender for a slower link yields everything. The method: *level* is the capacity that this host
//! believed in before. The more of it the link seems to have lost, the longer the queue may
//! be:
//!
//! ```text
//! target · (0.95 · level / capacity)⁵
//! ```
//!
//! So a host that competes with a sender that fills the buffer loses only until the queue is as long
//! as that sender makes it, and windows still divide its groups. Two hosts with this control meet
//! where both have lost the same part. A link that did become slower carries as much with a short queue.
//! This is *tried* as soon as the capacity has fallen, and again later: if less and less arrives during
//! the trial, others take the capacity; if not, the capacity is the new level. It is *doubted* that a
//! longer queue keeps what this host would have without control if others take the capacity although much
//! is lost already, if the queue does not become short either, or if that happens again and again while
//! packets are lost. `rivals` then finds that out.
//!
//! Source: docs/control.md; Copa and Nimbus have competitive modes for the same reason, for senders.

use super::steady::Steady;
use crate::backoff::Backoff;
use crate::units::{Part, Rate, Span, Time};

/// What the link was believed to carry, and how much longer the queue may be because it seems to carry less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    level: Rate,
    /// Factor on the length of the queue, in thousandths.
    stretch: u64,
    lossy_at: Option<Time>,
    trial: Option<Trial>,
    steady: Steady,
    /// No trial begins before this time; `wait` is the time to the next trial.
    next_at: Time,
    wait: Backoff,
}

/// A trial: the queue is kept short to see whether less arrives.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Time,
    /// The capacity when the trial began.
    begun: Rate,
    least: Rate,
    most: Rate,
    /// The highest rate that arrived in the trial.
    arrived: Rate,
    /// The shortest queue in the trial.
    queue: Option<Span>,
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// The capacity; `None` if windows do not bound what arrives.
    pub(super) capacity: Option<Rate>,
    /// The rate that arrives, smoothed over a round trip.
    pub(super) arrived: Rate,
    /// The length of the queue, and its target without other hosts.
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
            wait: Backoff::new(TRIAL_WAIT_MIN, TRIAL_WAIT_MAX),
        }
    }

    /// The length that a queue with the target `queue` may have now.
    pub(super) fn stretched(&self, queue: Span) -> Span {
        queue * self.stretch / UNSTRETCHED
    }

    /// Whether the queue may be much longer than the user wants.
    pub(super) fn is_on(&self) -> bool {
        self.stretch >= 2 * UNSTRETCHED
    }

    /// Takes in a tick. If it becomes doubtful that this host keeps what it would have without control,
    /// returns the capacity that the host had.
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
            self.next_at = tick.at + self.wait.span();
        }
        let mut doubted = None;
        if capacity >= self.level * LEVEL_LOST {
            self.level = self.level.smoothed(capacity, FORGOTTEN_TICKS).max(capacity);
            self.trial = None;
            if tick.at > self.next_at {
                self.wait.reset();
            }
        } else {
            doubted = self.try_short_queue(tick, capacity);
        }
        let most = if self.is_lossy(tick.at) { STRETCH_MAX } else { STRETCH_CLEAN };
        let grown = self.stretch * GROWS;
        let is_tried = self.trial.is_some();
        self.stretch = if is_tried { UNSTRETCHED } else { self.wanted(capacity, most).min(grown) };
        doubted
    }

    /// Whether packets were lost recently.
    fn is_lossy(&self, now: Time) -> bool {
        self.lossy_at.is_some_and(|at| now.since(at) < LOSSY_FOR)
    }

    /// The stretch, at most `most`, for the part of the level that was lost.
    fn wanted(&self, capacity: Rate, most: u64) -> u64 {
        let left = self.level * LEVEL_KEPT;
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
            // A capacity that other hosts take and leave is not steady; that of a slower link is.
            if tick.at >= self.next_at || self.steady.ticks() == TRIAL_STEADY_TICKS {
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
        // Values from before the queue was short do not count.
        trial.most = if begins { capacity } else { trial.most.max(capacity) };
        trial.least = if begins { capacity } else { trial.least.min(capacity) };
        trial.arrived = if begins { tick.arrived } else { trial.arrived.max(tick.arrived) };
        let before = trial.queue.unwrap_or(Span::MAX);
        trial.queue = tick.queue.filter(|_| !begins).map(|queue| queue.min(before)).or(trial.queue);
        // A host that yields to others does not receive more in return.
        let rises = capacity > trial.least * RISES;
        if trial.least < trial.most * FALLS {
            let is_filled = trial.queue.is_some_and(|queue| queue > tick.target * QUEUE_FILLED);
            let is_lasting = is_lossy && self.wait.span() >= WAIT_LASTING;
            let is_much = trial.begun < self.level * MUCH;
            // The capacity of a link that became slower is found in steps; the rate that arrives falls at once.
            let is_taken = tick.arrived < trial.arrived * FALLS;
            let is_doubted = is_taken && (is_much || is_filled || is_lasting);
            let doubted = is_doubted.then_some(trial.begun);
            self.trial = None;
            self.next_at = tick.at + self.wait.span();
            self.wait.double();
            return doubted;
        }
        if rises || lasts > TRIAL + tick.rtt * 4 {
            self.trial = None;
            self.level = capacity;
        }
        None
    }
}

/// A capacity below this part of the level counts as a loss.
const LEVEL_LOST: Part = Part::percent(90);
/// Losses count below this part of the level. Source of this and the others here: docs/control.md.
const LEVEL_KEPT: Part = Part::percent(95);
/// Exponent of level / capacity in the factor by which the queue may be longer.
const POWER: u32 = 5;
/// Ticks over which a level that is a little too high is forgotten.
const FORGOTTEN_TICKS: u64 = 100;
/// The stretch of a queue at its target.
const UNSTRETCHED: u64 = 1_000;
/// The largest stretch if packets were lost recently, since others fill the buffer.
const STRETCH_MAX: u64 = 40_000;
/// The largest stretch if no packets were lost recently.
const STRETCH_CLEAN: u64 = 4_000;
/// How long a loss counts as recent.
const LOSSY_FOR: Span = Span::secs(10);
/// Largest growth of the stretch in a tick: the capacity of a mobile link falls and recovers sooner.
const GROWS: Part = Part::percent(130);
/// Length of a trial, to which four round trips are added.
const TRIAL: Span = Span::millis(2_000);
/// First part of a trial, in which the queue is becoming short.
const TRIAL_BEGINS: Span = Span::millis(300);
/// Other hosts take the capacity if it falls below this part of its maximum within a trial.
const FALLS: Part = Part::percent(92);
/// A trial ends if the capacity rises by this factor.
const RISES: Part = Part::percent(105);
/// Ticks with the same capacity after which a trial begins at once.
const TRIAL_STEADY_TICKS: u32 = 8;
/// Time to the next trial; doubled each time it fails.
const TRIAL_WAIT_MIN: Span = Span::secs(4);
const TRIAL_WAIT_MAX: Span = Span::secs(64);
/// Much is lost if less than this part of the level was left when the trial began.
const MUCH: Part = Part::percent(70);
/// Others fill the queue if it stays longer than this multiple of its target throughout a trial.
const QUEUE_FILLED: u64 = 3;
/// The wait after two failed trials in a row: a third failed trial raises a doubt.
const WAIT_LASTING: Span = Span::secs(16);

#[cfg(test)]
mod tests;
