//! Bottlenecks that drop before they delay: policers, and buffers of a few milliseconds.
//!
//! The problem: a policer has no queue, and a short buffer is full before the queue can be seen. The
//! capacity cannot be learned from delays there. The method: packets that are lost while nothing
//! queues mean either that more was sent than the bottleneck lets through, or noise of the path.
//! Which of the two a *test* tells: for a few seconds a little less is let through than what
//! arrived. If the losses end, what arrived was the *ceiling*; if they go on, they are noise, and
//! everything is as before.
//!
//! Below the ceiling no packet is lost. From time to time it is raised until packets are lost
//! again; each time that confirms it, the next waits longer, since a loss costs the sender that has
//! it half of its rate. Source: docs/control.md; the idea of the capacity between losses: long-term
//! sampling in Linux' BBR.

use std::collections::VecDeque;

use crate::units::{Rate, Span, Time};

/// What is known of losses.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    recent: VecDeque<Interval>,
    state: State,
    /// After how long a test that found noise is repeated.
    patience: Span,
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) at: Time,
    /// What arrived.
    pub(super) rate: Rate,
    /// Connections that received anything, and those of them to which packets were lost.
    pub(super) active: u32,
    pub(super) lossy: u32,
    /// How long packets waited on average, and for how long they may; `None` if it is not known.
    pub(super) queue: Option<Span>,
    pub(super) queue_target: Span,
    /// Whether somebody would take more.
    pub(super) is_wanted: bool,
    /// What a queue has shown the link to carry.
    pub(super) shown: Option<Rate>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Losses mean nothing until then.
    Watch { from: Time },
    /// A little less is let through than what arrived, to see whether losses end.
    Test(Test),
    /// The bottleneck drops what exceeds this.
    Limit(Ceiling),
}

#[derive(Clone, Copy, Debug)]
struct Test {
    since: Time,
    to: Rate,
    /// In how many of a thousand ticks of connections packets were lost before.
    lossy_before: u64,
    /// What arrived before, and what was believed.
    rate_before: Rate,
    before: Option<Rate>,
    repeats: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ceiling {
    rate: Rate,
    /// Since when there is one, and what arrived before that.
    since: Time,
    rate_before: Rate,
    /// The last at which nothing was lost for a whole hold.
    good: Option<Rate>,
    /// The last to which it was raised until packets were lost.
    top: Option<Rate>,
    /// It is not raised until then.
    held_until: Time,
    hold: Span,
    /// By how many thousandths it rises in a second.
    step: u64,
    cut_at: Time,
    /// Holds in a row in which packets were lost all the same.
    strikes: u32,
    /// What was believed before the first of them.
    before: Option<Rate>,
    /// Ticks in a row in which it seemed to cost too much.
    harmed_ticks: u32,
}

/// What a tick means for the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossVerdict {
    /// Losses say nothing; delays may.
    None,
    /// This much may pass, whatever delays say.
    Limit(Rate),
    /// What was let through was too little: as before the test.
    Back(Option<Rate>),
}

impl Ceiling {
    /// Lowers it, and holds it there.
    fn cut(&mut self, now: Time, rate: Rate, hold: Span) {
        self.rate = rate.max(RATE_MIN);
        (self.cut_at, self.held_until) = (now, now + hold);
        (self.hold, self.step) = (hold, STEP_MIN);
    }
}

impl Losses {
    pub(super) fn new() -> Losses {
        Losses {
            recent: VecDeque::with_capacity(RECENT),
            state: State::Watch { from: Time::ZERO },
            patience: PATIENCE_MIN,
        }
    }

    /// Whether the bottleneck drops before it delays, or that is being tested: then shares hold by
    /// classes, since windows have no queue to be measured by.
    pub(super) fn is_limiting(&self) -> bool {
        !matches!(self.state, State::Watch { .. })
    }

    /// Whether that is only being tested.
    pub(super) fn is_testing(&self) -> bool {
        matches!(self.state, State::Test(_))
    }

    /// Somebody says that the bottleneck lets another rate through from `now` on. What was lost before says
    /// nothing of that, so it is tested anew if packets are lost then.
    pub(super) fn suppose_another(&mut self, now: Time) {
        if self.is_limiting() {
            self.state = State::Watch { from: now + SETTLE };
        }
        self.recent.clear();
    }

    /// Takes in a tick in which `capacity` was in force.
    pub(super) fn handle_interval(&mut self, now: Interval, capacity: Option<Rate>) -> LossVerdict {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        match self.state {
            State::Watch { from } => self.watch(&now, from, capacity),
            State::Test(test) => self.test(&now, test),
            State::Limit(ceiling) => self.keep(&now, ceiling),
        }
    }

    fn watch(&mut self, now: &Interval, from: Time, capacity: Option<Rate>) -> LossVerdict {
        if now.at < from || self.recent.len() < RECENT_MIN || !self.is_without_queue() {
            return LossVerdict::None;
        }
        let lossy = self.recent.iter().filter(|i| i.lossy > 0).count();
        let rate_before = self.mean_rate(RATE_TICKS);
        let to = rate_before.scale(TESTED.0, TESTED.1);
        if lossy < LOSSY_MIN || now.lossy == 0 || to < RATE_MIN {
            return LossVerdict::None;
        }
        if now.shown.is_some_and(|shown| rate_before < shown.scale(BELOW.0, BELOW.1)) {
            // The link can carry more, and has a queue.
            return LossVerdict::None;
        }
        let lossy_before = self.lossy_part();
        self.recent.clear();
        let test =
            Test { since: now.at, to, lossy_before, rate_before, before: capacity, repeats: 0 };
        self.state = State::Test(test);
        LossVerdict::Limit(to)
    }

    fn test(&mut self, now: &Interval, mut test: Test) -> LossVerdict {
        let passed = now.at.since(test.since);
        if self.is_queue_deep() {
            // There is a queue after all.
            return self.back_off(now.at, test.before);
        }
        if passed < SETTLE {
            self.recent.clear();
        } else if passed >= TEST {
            let arrived = self.mean_rate(RECENT);
            if self.lossy_part() * 4 <= test.lossy_before {
                self.state = State::Limit(Ceiling {
                    rate: test.to,
                    since: now.at,
                    rate_before: test.rate_before,
                    good: None,
                    top: None,
                    held_until: now.at,
                    hold: HOLD_MIN,
                    step: STEP_MIN,
                    cut_at: now.at,
                    strikes: 0,
                    before: test.before,
                    harmed_ticks: 0,
                });
                return LossVerdict::Limit(test.to);
            }
            // Perhaps more was let through than the bottleneck carries: a bucket was full before.
            if test.repeats == TESTS_MAX {
                return self.back_off(now.at, test.before);
            }
            test.rate_before = arrived;
            test.to = arrived.scale(TESTED.0, TESTED.1).max(RATE_MIN);
            (test.since, test.repeats) = (now.at, test.repeats + 1);
            self.recent.clear();
        }
        self.state = State::Test(test);
        LossVerdict::Limit(test.to)
    }

    fn keep(&mut self, now: &Interval, mut ceiling: Ceiling) -> LossVerdict {
        if self.is_queue_deep() {
            // Another bottleneck, with a queue, has taken over.
            self.state = State::Watch { from: now.at + HOLD_MIN };
            return LossVerdict::None;
        }
        let passed = now.at.since(ceiling.since);
        let arrived = self.mean_rate(RECENT);
        let harmless = ceiling.rate_before.scale(HARMLESS.0, HARMLESS.1);
        let is_harmful = arrived < harmless && ceiling.rate < harmless;
        let is_judged = (JUDGED_FROM..JUDGED_UNTIL).contains(&passed) && now.is_wanted;
        ceiling.harmed_ticks = if is_judged && is_harmful { ceiling.harmed_ticks + 1 } else { 0 };
        if ceiling.harmed_ticks >= HARMED_TICKS {
            return self.back_off(now.at, ceiling.before);
        }
        let is_held = now.at < ceiling.held_until;
        let is_settling = now.at.since(ceiling.cut_at) < SETTLE;
        let arrived = self.mean_rate(RATE_TICKS);
        let is_below = arrived < ceiling.rate.scale(BELOW.0, BELOW.1)
            && ceiling.top.is_none()
            && passed < JUDGED_FROM;
        if now.lossy > 0 && (is_settling || is_below) {
            // It was lost before the cut, or by what limits one connection.
        } else if now.lossy > 0 && is_held {
            if ceiling.strikes == 0 && ceiling.good.is_some() {
                ceiling.before = Some(ceiling.rate);
            }
            ceiling.strikes += 1;
            if ceiling.strikes > STRIKES_MAX {
                return self.back_off(now.at, ceiling.before);
            }
            let least =
                ceiling.rate.scale(STRIKE_LEAST.0, STRIKE_LEAST.1).max(self.floor(&ceiling));
            let rate = arrived.min(ceiling.rate.scale(CUT.0, CUT.1)).max(least);
            ceiling.cut(now.at, rate, HOLD_MIN);
        } else if now.lossy > 0 {
            // It was raised until packets were lost.
            ceiling.top = Some(ceiling.rate);
            let cut = ceiling.rate.scale(CUT.0, CUT.1);
            let good = ceiling.good.max(self.earlier_rate()).unwrap_or(cut).min(cut);
            let is_near = good >= ceiling.rate.scale(NEAR.0, NEAR.1);
            let lowered = if is_near { good } else { (good + cut) / 2 };
            let hold = if is_near { (ceiling.hold * 2).min(HOLD_MAX) } else { HOLD_MIN };
            ceiling.cut(now.at, lowered.max(self.floor(&ceiling)), hold);
        } else if !is_held {
            if ceiling.step == STEP_MIN {
                ceiling.good = Some(ceiling.rate);
                ceiling.strikes = 0;
                self.patience = PATIENCE_MIN;
            }
            let is_used = now.rate >= ceiling.rate.scale(90, 100);
            if now.is_wanted && is_used {
                ceiling.rate = ceiling.rate + ceiling.rate.scale(ceiling.step, 5_000);
                let is_near_top = ceiling.top.is_some_and(|top| {
                    (top.scale(94, 100)..=top.scale(106, 100)).contains(&ceiling.rate)
                });
                ceiling.step = match is_near_top {
                    true => STEP_MIN + 1,
                    false => (ceiling.step + ceiling.step / 8 + 5).min(STEP_MAX),
                };
            }
        }
        self.state = State::Limit(ceiling);
        LossVerdict::Limit(ceiling.rate)
    }

    /// One connection of several does not lower the ceiling to less than half of what arrived before:
    /// a server can leave out segments of its own.
    fn floor(&self, ceiling: &Ceiling) -> Rate {
        let several = |of: fn(&Interval) -> u32| self.recent.iter().any(|i| of(i) > 1);
        match several(|i| i.active) && !several(|i| i.lossy) {
            true => (ceiling.rate_before / 2).min(ceiling.rate),
            false => Rate::ZERO,
        }
    }

    /// Losses are noise: for some time they mean nothing.
    fn back_off(&mut self, now: Time, before: Option<Rate>) -> LossVerdict {
        self.state = State::Watch { from: now + self.patience };
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.recent.clear();
        LossVerdict::Back(before)
    }

    /// Whether packets did not wait, as far as is known.
    fn is_without_queue(&self) -> bool {
        // Where there was a queue before, it takes longer to believe that there is none.
        let is_shown = self.recent.back().is_some_and(|i| i.shown.is_some());
        let ticks = if is_shown { RECENT } else { RECENT_MIN };
        let mut last = self.recent.iter().rev().take(ticks);
        last.len() == ticks && last.all(|i| i.queue.is_none_or(|queue| queue < i.queue_target))
    }

    /// Whether far more waits than shall.
    fn is_queue_deep(&self) -> bool {
        let last = self.recent.iter().rev().take(DEEP_TICKS);
        let deep = last.filter(|i| i.queue.is_some_and(|q| q > i.queue_target * 3)).count();
        deep == DEEP_TICKS
    }

    /// What arrived some time ago, when nothing had been lost yet, but for a hundredth: a bucket
    /// takes so long until it is empty.
    fn earlier_rate(&self) -> Option<Rate> {
        let earlier = self.recent.iter().take(RECENT - LATENT_TICKS);
        let (count, is_clean) = (earlier.len() as u64, earlier.clone().all(|i| i.lossy == 0));
        let sum: Rate = earlier.map(|i| i.rate).sum();
        (is_clean && self.recent.len() == RECENT).then(|| (sum / count).scale(99, 100))
    }

    /// In how many of a thousand ticks of connections packets were lost.
    fn lossy_part(&self) -> u64 {
        let lossy: u32 = self.recent.iter().map(|i| i.lossy).sum();
        let active: u32 = self.recent.iter().map(|i| i.active).sum();
        u64::from(lossy) * 1_000 / u64::from(active.max(1))
    }

    fn mean_rate(&self, ticks: usize) -> Rate {
        let last = self.recent.iter().rev().take(ticks);
        let sum: Rate = last.map(|i| i.rate).sum();
        sum / (self.recent.len().min(ticks) as u64).max(1)
    }
}

/// Ticks that are kept.
const RECENT: usize = 25;
/// So many without a queue there must be, and so many with losses among those that are kept.
const RECENT_MIN: usize = 6;
const LOSSY_MIN: usize = 4;
/// In so many ticks in a row a queue counts.
const DEEP_TICKS: usize = 3;
/// A policer's bucket takes so long until it is empty, if a little too much arrives.
const LATENT_TICKS: usize = 15;
/// The rate is the mean of so many ticks.
const RATE_TICKS: usize = 5;
/// What is let through of it while it is tested, for how long, and how often again if less than
/// that arrives.
const TESTED: (u64, u64) = (93, 100);
const TEST: Span = Span::millis(4_400);
const TESTS_MAX: u32 = 1;
/// What is lost so soon after a cut was sent before.
const SETTLE: Span = Span::millis(1_400);
/// For so long losses mean nothing after a test that found noise.
const PATIENCE_MIN: Span = Span::secs(15);
const PATIENCE_MAX: Span = Span::secs(600);
/// For so long a ceiling is not raised, the longer the more often it was confirmed.
const HOLD_MIN: Span = Span::millis(3_400);
const HOLD_MAX: Span = Span::secs(60);
/// And then by so many thousandths a second, the longer the faster.
const STEP_MIN: u64 = 10;
const STEP_MAX: u64 = 80;
/// If less than this part of it arrives, it is not what drops, unless that goes on.
const BELOW: (u64, u64) = (85, 100);
/// After this so much must arrive of what arrived before there was a ceiling.
const JUDGED_FROM: Span = Span::secs(12);
const JUDGED_UNTIL: Span = Span::secs(30);
const HARMLESS: (u64, u64) = (88, 100);
/// A sender that was cut to half by one loss needs so long to grow back.
const HARMED_TICKS: u32 = 25;
/// How far it is lowered by a loss.
const CUT: (u64, u64) = (98, 100);
/// What was good is as good as what was lost at from this part on.
const NEAR: (u64, u64) = (85, 100);
/// It falls no further at once.
const STRIKE_LEAST: (u64, u64) = (80, 100);
/// If packets are lost in so many holds in a row, it is noise.
const STRIKES_MAX: u32 = 4;
/// Below this losses say nothing.
const RATE_MIN: Rate = Rate::kbit(500);

#[cfg(test)]
mod tests;
