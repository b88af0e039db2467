//! Other hosts behind the same link that fill its queue.
//!
//! The problem: windows keep the queue short only if no other host fills it. Against a sender that
//! fills the buffer in any case, a control with a short queue as its target yields until it has
//! nothing. The method: if the queue does not become shorter although this host receives less and less,
//! it is a *rival's* queue. Then nothing is enforced: what one group leaves would go to the rivals too, and
//! a host that divides has less than without control. Everything passes until what arrives no longer grows;
//! that rate is the host's *due*. After some time control by the queue is tried again.
//!
//! If rivals are only suspected (`contest`), everything passes as well (`release`). If more arrives than
//! with control, there are rivals. If not, the rate that arrived is remembered: if less arrives as soon as
//! the queue is short again, there are rivals too.
//!
//! Source: docs/control.md; the modes resemble those of Copa and Nimbus, which are for senders.

use super::release::{Release, SILENT, Shown};
use crate::backoff::Backoff;
use crate::streak::Streak;
use crate::units::{Part, Rate, Span, Time};

/// Whether there are rivals, and what is done about them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rivals {
    state: State,
    /// How long everything passes before control by the queue is tried again.
    stay: Backoff,
    left_at: Time,
    /// What the link carried before rivals were recognised.
    carried: Rate,
    /// The rate that arrives, smoothed.
    total: Rate,
    /// No comparison begins before this time; `compare_wait` is the time to the next one.
    compare_at: Time,
    compare_wait: Backoff,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No rivals are known.
    Alone,
    /// Until this time it is tried whether rivals are still there; `due` is what arrived without control.
    Tried { until: Time, due: Rate, total: Rate },
    /// Everything passes.
    Measure(Release),
    /// Everything still passes.
    Yield { since: Time, short_ticks: Streak },
}

impl State {
    /// Control by the queue is tried again from now on; without control `due` arrived.
    fn tried(now: Time, due: Rate) -> State {
        State::Tried { until: now + TRIED_FOR, due, total: due }
    }
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    /// What arrived.
    pub(super) total: Rate,
    /// Whether a group would take more than it gets.
    pub(super) is_wanted: bool,
    /// Whether the queue is within its target, which is longer while other hosts fill the queue; `None` if
    /// unknown.
    pub(super) is_queue_short: Option<bool>,
}

/// What is to be done in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Control as if there were no rivals.
    Alone,
    /// Let everything pass.
    Release,
    /// Try control by the queue again, with this capacity.
    Try(Rate),
    /// The link is this host's own and carries this rate: what it carried before no longer counts.
    Accept(Rate),
}

impl Rivals {
    pub(super) fn new() -> Rivals {
        Rivals {
            state: State::Alone,
            stay: Backoff::new(STAY_MIN, STAY_MAX),
            left_at: Time::ZERO,
            carried: Rate::ZERO,
            total: Rate::ZERO,
            compare_at: Time::ZERO,
            compare_wait: Backoff::new(COMPARE_MIN, COMPARE_MAX),
        }
    }

    /// Whether rivals fill the queue, so that windows have no effect.
    pub(super) fn are_there(&self) -> bool {
        !matches!(self.state, State::Alone | State::Tried { .. })
    }

    /// There are rivals; before, the link carried `carried`.
    pub(super) fn handle_rivals(&mut self, now: Time, carried: Rate) {
        self.carried = carried;
        self.release(now, Release::beside_others(now, carried));
    }

    /// There may be rivals: with control `got` arrived. Returns whether everything passes now, to compare.
    pub(super) fn handle_doubt(&mut self, now: Time, got: Rate) -> bool {
        let is_due = now >= self.compare_at && matches!(self.state, State::Alone);
        if is_due {
            self.release(now, Release::to_compare(now, got));
        }
        is_due
    }

    fn release(&mut self, now: Time, release: Release) {
        let is_again = now.since(self.left_at) < BACK_WITHIN && self.left_at > Time::ZERO;
        match is_again {
            true => self.stay.double(),
            false => self.stay.reset(),
        }
        self.state = State::Measure(release);
    }

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Course {
        let Tick { at: now, total, is_wanted, is_queue_short } = *tick;
        self.total = self.total.smoothed(total, 5);
        match &mut self.state {
            State::Alone => Course::Alone,
            State::Tried { until, due, total: smoothed } => {
                let due = *due;
                *smoothed = smoothed.smoothed(total, 3);
                if is_wanted && *smoothed < due * GIVEN_UP {
                    // Rivals are still there; the longer they are left alone, the more they take.
                    self.stay.double();
                    return self.begin_yield(now, due);
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
            State::Yield { since, short_ticks } => {
                let short_ticks = short_ticks.count(is_queue_short == Some(true));
                if now.since(*since) > self.stay.span() || short_ticks >= SHORT_TICKS {
                    self.left_at = now;
                    let due = self.total;
                    if due < self.carried / SILENT {
                        self.state = State::Alone;
                        return Course::Alone;
                    }
                    self.state = State::tried(now, due);
                    return Course::Try(due);
                }
                Course::Release
            }
        }
    }

    fn handle_shown(&mut self, now: Time, shown: Shown) -> Course {
        match shown {
            Shown::Nothing => Course::Release,
            Shown::Due(due) => {
                self.compare_wait.reset();
                self.begin_yield(now, due)
            }
            Shown::NoMore(due) => self.end_release(now, State::tried(now, due), Course::Try(due)),
            Shown::Silence => self.end_release(now, State::Alone, Course::Alone),
            Shown::Less(rate) => self.end_release(now, State::Alone, Course::Try(rate)),
            Shown::Own(rate) => self.end_release(now, State::Alone, Course::Accept(rate)),
        }
    }

    /// No rivals were found: control resumes.
    fn end_release(&mut self, now: Time, state: State, course: Course) -> Course {
        self.compare_wait.double();
        self.compare_at = now + self.compare_wait.span();
        self.state = state;
        course
    }

    fn begin_yield(&mut self, now: Time, total: Rate) -> Course {
        self.total = total;
        self.state = State::Yield { since: now, short_ticks: Streak::default() };
        Course::Release
    }
}

/// How long everything passes; doubled each time that rivals are back within [`BACK_WITHIN`].
const STAY_MIN: Span = Span::secs(4);
const STAY_MAX: Span = Span::secs(120);
/// Ticks in a row with a short queue, which show that rivals no longer fill it.
const SHORT_TICKS: u32 = 15;
/// Least time from a comparison that found no rivals to the next one; doubled each time.
const COMPARE_MIN: Span = Span::secs(8);
const COMPARE_MAX: Span = Span::secs(120);
/// Rivals that are back within this time after the queue was tried again prolong the next stay.
const BACK_WITHIN: Span = Span::secs(10);
/// For how long control by the queue is tried again.
const TRIED_FOR: Span = Span::secs(10);
/// Rivals are still there if less than this part of the due arrives during the try.
const GIVEN_UP: Part = Part::percent(90);

#[cfg(test)]
mod tests;
