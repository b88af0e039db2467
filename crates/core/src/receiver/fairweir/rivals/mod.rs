//! Other hosts behind the same link that fill its queue.
//!
//! The problem: windows keep the queue short only if nobody else fills it. Beside a sender that
//! fills the buffer whatever happens, a control with a short queue as its target yields until it has
//! nothing. The method: a queue that does not become shorter although less and less of this host
//! arrives is a *rival's*. Then windows are left alone. Everything passes as without control until no
//! more arrives than before, and that is the host's *due*. After that classes divide the due by weight,
//! and are opened as far as it takes until the host has about its due again: what one group leaves
//! goes to the rivals too, so that division has a price, and it is bounded. After some time the
//! queue is tried again.
//!
//! Where it is only doubted that there are none (`contest`), everything passes as well (`release`). If
//! more arrives than with control, they are there. If not, nothing is lost yet, and what arrived is
//! kept in mind: if less arrives as soon as the queue is short again, they are there too.
//!
//! Source: docs/control.md; the modes resemble those of Copa and Nimbus, which are for senders.

use super::release::{Release, Shown};
use super::steady::Steady;
use crate::units::{Rate, Span, Time};

/// Whether there are rivals, and what is done meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rivals {
    state: State,
    /// For how long the queue is not tried again.
    stay: Span,
    left_at: Time,
    /// No comparison before this, and how long after the next one.
    compare_at: Time,
    compare_wait: Span,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// None are known.
    Alone,
    /// Whether they are still there is tried until then; if so, this is the due again.
    Tried { until: Time, due: Rate, total: Rate },
    /// Everything passes.
    Measure(Release),
    /// Classes divide.
    Divide { since: Time, due: Rate, slack: u64, total: Rate, short_ticks: u32, steady: Steady },
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// What arrived.
    pub(super) total: Rate,
    /// Whether somebody would take more.
    pub(super) is_wanted: bool,
    /// Whether no more queues than shall: others who fill the queue let it be longer.
    /// `None` if it is not known.
    pub(super) is_queue_short: Option<bool>,
}

/// What is to be done in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// As if there were no rivals.
    Alone,
    /// Let everything pass.
    Release,
    /// Divide this much by classes alone.
    Divide(Rate),
    /// Try the queue again, with this as the capacity.
    Try(Rate),
    /// The link is this host's own and carries this: what it carried before is of no use.
    Accept(Rate),
}

impl Rivals {
    pub(super) fn new() -> Rivals {
        Rivals {
            state: State::Alone,
            stay: STAY_MIN,
            left_at: Time::ZERO,
            compare_at: Time::ZERO,
            compare_wait: COMPARE_MIN,
        }
    }

    /// Whether windows are of no use.
    pub(super) fn are_there(&self) -> bool {
        !matches!(self.state, State::Alone | State::Tried { .. })
    }

    /// They have shown themselves; before that the link carried so much.
    pub(super) fn handle_rivals(&mut self, now: Time, carried: Rate) {
        self.release(now, Release::beside_others(now, carried));
    }

    /// There may be some: with control `got` arrived. Whether everything passes now, to compare.
    pub(super) fn handle_doubt(&mut self, now: Time, got: Rate) -> bool {
        let is_due = now >= self.compare_at && matches!(self.state, State::Alone);
        if is_due {
            self.release(now, Release::to_compare(now, got));
        }
        is_due
    }

    fn release(&mut self, now: Time, release: Release) {
        let is_again = now.since(self.left_at) < AGAIN && self.left_at > Time::ZERO;
        self.stay = if is_again { (self.stay * 2).min(STAY_MAX) } else { STAY_MIN };
        self.state = State::Measure(release);
    }

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Course {
        let Tick { at: now, total, is_wanted, is_queue_short } = *tick;
        match &mut self.state {
            State::Alone => Course::Alone,
            State::Tried { until, due, total: smoothed } => {
                let due = *due;
                *smoothed = smoothed.smoothed(total, 3);
                if is_wanted && *smoothed < due.scale(GIVEN_UP.0, GIVEN_UP.1) {
                    // They are: what they take while that is found out anew need not be lost.
                    self.stay = (self.stay * 2).min(STAY_MAX);
                    return self.begin_division(now, due);
                }
                if now > *until {
                    self.state = State::Alone;
                }
                Course::Alone
            }
            State::Measure(release) => {
                let shown = release.handle_tick(now, total, is_queue_short == Some(false));
                self.handle_shown(now, shown)
            }
            State::Divide { since, due, slack, total: smoothed, short_ticks, steady } => {
                *short_ticks = if is_queue_short == Some(true) { *short_ticks + 1 } else { 0 };
                *smoothed = smoothed.smoothed(total, 5);
                let passes = due.scale(1_000 + *slack, 1_000);
                let steady_ticks = steady.handle_total(total);
                let is_held = *smoothed >= passes.scale(HELD.0, HELD.1);
                if is_wanted && !is_held && steady_ticks >= OWN_TICKS {
                    self.state = State::Alone;
                    return Course::Accept(total);
                }
                if now.since(*since) > self.stay || *short_ticks >= SHORT_TICKS {
                    self.left_at = now;
                    let due = *smoothed;
                    self.state = State::Tried { until: now + TRIED_FOR, due, total: due };
                    return Course::Try(due);
                }
                *slack = match *smoothed < due.scale(KEPT.0, KEPT.1) {
                    true => (*slack + SLACK_STEP).min(SLACK_MAX),
                    // What passes stays a little more than the due, or that could not grow.
                    false => slack.saturating_sub(SLACK_STEP / 4).max(SLACK_MIN),
                };
                if *slack == SLACK_MAX {
                    // Nothing is held back any more, and it is not reached: it is less.
                    *due = due.scale(99, 100);
                }
                *due = (*due).max(due.smoothed(*smoothed, DUE_TICKS));
                Course::Divide(due.scale(1_000 + *slack, 1_000))
            }
        }
    }

    fn handle_shown(&mut self, now: Time, shown: Shown) -> Course {
        match shown {
            Shown::Nothing => Course::Release,
            Shown::Due(due) => {
                self.compare_wait = COMPARE_MIN;
                self.begin_division(now, due)
            }
            Shown::NoMore(due) => {
                let until = now + TRIED_FOR;
                self.end_release(now, State::Tried { until, due, total: due }, Course::Try(due))
            }
            Shown::Silence => self.end_release(now, State::Alone, Course::Alone),
            Shown::Less(rate) => self.end_release(now, State::Alone, Course::Try(rate)),
            Shown::Own(rate) => self.end_release(now, State::Alone, Course::Accept(rate)),
        }
    }

    /// It has shown no others: there is control again.
    fn end_release(&mut self, now: Time, state: State, course: Course) -> Course {
        self.compare_wait = (self.compare_wait * 2).min(COMPARE_MAX);
        self.compare_at = now + self.compare_wait;
        self.state = state;
        course
    }

    fn begin_division(&mut self, now: Time, due: Rate) -> Course {
        let (since, slack, steady) = (now, SLACK_MIN, Steady::default());
        self.state = State::Divide { since, due, slack, total: due, short_ticks: 0, steady };
        Course::Divide(due.scale(1_000 + slack, 1_000))
    }
}

/// A due that is exceeded follows over so many ticks.
const DUE_TICKS: u64 = 20;
/// The host keeps this part of its due, by opening classes so many thousandths further a tick.
const KEPT: (u64, u64) = (97, 100);
const SLACK_MIN: u64 = 30;
const SLACK_STEP: u64 = 24;
const SLACK_MAX: u64 = 1_000;
/// For so long the queue is not tried again; longer each time that rivals are there again so soon.
const STAY_MIN: Span = Span::secs(20);
const STAY_MAX: Span = Span::secs(120);
/// A queue that is short for so long is not filled by others.
const SHORT_TICKS: u32 = 15;
/// What arrives is held by the classes if it is at least this part of what they let pass. If it is not and
/// stays the same for so many ticks, it is all that the link carries, and nobody shares it.
const HELD: (u64, u64) = (90, 100);
const OWN_TICKS: u32 = 10;
/// From a comparison that found no others to the next one at least, each time twice as long.
const COMPARE_MIN: Span = Span::secs(8);
const COMPARE_MAX: Span = Span::secs(120);
const AGAIN: Span = Span::secs(10);
/// While it is tried, less than this part of the due is left to no one.
const TRIED_FOR: Span = Span::secs(10);
const GIVEN_UP: (u64, u64) = (90, 100);

#[cfg(test)]
mod tests;
