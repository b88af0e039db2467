//! Bottlenecks that drop before they delay: policers, and buffers of a few milliseconds.
//!
//! The problem: a policer has no queue, and a short buffer is full before the queue can be seen, so
//! delays do not show the capacity. The method: packets that are lost while nothing queues mean
//! either that more was sent than the bottleneck lets through, or that the path loses packets at random.
//! A *test* finds out which: for a few seconds a little less is let through than arrived. If the
//! losses end, what arrived was the *ceiling*; if they continue, they are noise, and nothing changes.
//!
//! Below the ceiling no packet is lost. From time to time the ceiling is raised until packets are lost
//! again. After each confirmation the next raise waits longer, since a loss costs a sender half of
//! its rate. Source: docs/control.md; the idea of the capacity between losses: long-term
//! sampling in Linux' BBR.

use std::collections::VecDeque;

use crate::backoff::Backoff;
use crate::streak::Streak;
use crate::units::{Part, Rate, Span, Time};

/// What is known of losses.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    recent: VecDeque<Interval>,
    state: State,
    /// Pause after a test that found noise.
    patience: Backoff,
}

/// One tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) at: Time,
    /// What arrived.
    pub(super) rate: Rate,
    /// Connections that received anything, and how many of them lost packets.
    pub(super) active: u32,
    pub(super) lossy: u32,
    /// How long packets waited on average (`None` if unknown), and how long they may wait.
    pub(super) queue: Option<Span>,
    pub(super) queue_target: Span,
    /// Whether a group would take more.
    pub(super) is_wanted: bool,
    /// The capacity of the link that a queue has shown.
    pub(super) shown: Option<Rate>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Losses are ignored before this time.
    Watch { from: Time },
    /// A little less is let through than what arrived, to see whether losses end.
    Test(Test),
    /// The bottleneck drops what exceeds this ceiling.
    Limit(Ceiling),
}

#[derive(Clone, Copy, Debug)]
struct Test {
    since: Time,
    to: Rate,
    /// Part of connection ticks with losses before the test, in thousandths.
    lossy_before: u64,
    /// The rate that arrived before the test, and the capacity that was believed.
    rate_before: Rate,
    before: Option<Rate>,
    repeats: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ceiling {
    rate: Rate,
    /// When the ceiling was found, and the rate that arrived before that.
    since: Time,
    rate_before: Rate,
    /// The last rate at which nothing was lost for a whole hold.
    good: Option<Rate>,
    /// The last rate at which packets were lost after the ceiling was raised to it.
    top: Option<Rate>,
    /// The ceiling is not raised before this time.
    held_until: Time,
    hold: Backoff,
    /// Thousandths by which it rises per second.
    step: u64,
    cut_at: Time,
    /// Holds in which packets were lost although the ceiling was not raised.
    strikes: Streak,
    /// The capacity that was believed before the first of these holds.
    before: Option<Rate>,
    /// Ticks in which the ceiling seemed to cost too much, or was not reached.
    harmed_ticks: Streak,
}

/// What a tick means for the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossVerdict {
    /// Losses say nothing about the capacity; delays may.
    None,
    /// At most this rate may pass, whatever delays say.
    Limit(Rate),
    /// The rate that was let through was too low: return to the capacity from before the test.
    Back(Option<Rate>),
}

impl Ceiling {
    /// Lowers the ceiling to `rate` and holds it there.
    fn cut(&mut self, now: Time, rate: Rate) {
        self.rate = rate.max(LOSS_RATE_MIN);
        (self.cut_at, self.held_until) = (now, now + self.hold.span());
        self.step = STEP_MIN;
    }
}

impl Losses {
    pub(super) fn new() -> Losses {
        Losses {
            recent: VecDeque::with_capacity(RECENT),
            state: State::Watch { from: Time::ZERO },
            patience: Backoff::new(PATIENCE_MIN, PATIENCE_MAX),
        }
    }

    /// Whether the bottleneck drops before it delays, or this is being tested. Classes then hold the shares,
    /// since there is no queue by which windows could be measured.
    pub(super) fn is_limiting(&self) -> bool {
        !matches!(self.state, State::Watch { .. })
    }

    /// Whether this is only being tested.
    pub(super) fn is_testing(&self) -> bool {
        matches!(self.state, State::Test(_))
    }

    /// The bottleneck is said to let another rate through from `now` on. Earlier losses say nothing about
    /// that rate, so a new test is made if packets are lost.
    pub(super) fn suppose_another(&mut self, now: Time) {
        if self.is_limiting() {
            self.state = State::Watch { from: now + SETTLE };
        }
        self.recent.clear();
    }

    /// Takes in a tick during which `capacity` was in force.
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
        let to = rate_before * TESTED;
        if lossy < LOSSY_MIN || now.lossy == 0 || to < LOSS_RATE_MIN {
            return LossVerdict::None;
        }
        if now.shown.is_some_and(|shown| rate_before < shown * CEILING_BELOW) {
            // The link can carry more, and has a queue.
            return LossVerdict::None;
        }
        if !self.is_steady(rate_before) {
            // Senders that grow also find their rate by losses, so there is no steady rate to compare with.
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
                    hold: Backoff::new(HOLD_MIN, HOLD_MAX),
                    step: STEP_MIN,
                    cut_at: now.at,
                    strikes: Streak::default(),
                    before: test.before,
                    harmed_ticks: Streak::default(),
                });
                return LossVerdict::Limit(test.to);
            }
            // Perhaps more was let through than the bottleneck carries, because its token bucket was full.
            if test.repeats == TESTS_MAX {
                return self.back_off(now.at, test.before);
            }
            test.rate_before = arrived;
            test.to = (arrived * TESTED).max(LOSS_RATE_MIN);
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
        let harmless = ceiling.rate_before * HARMLESS;
        let is_harmful = arrived < harmless && ceiling.rate < harmless;
        let is_judged = (JUDGED_FROM..JUDGED_UNTIL).contains(&passed);
        // If the rate stays far below the ceiling, nothing shows that it still exists: something else limits it.
        let is_unused = arrived < ceiling.rate * CEILING_BELOW;
        let is_refuted = now.is_wanted && (is_unused || is_judged && is_harmful);
        if ceiling.harmed_ticks.count(is_refuted) >= HARMED_TICKS {
            return self.back_off(now.at, ceiling.before);
        }
        let is_held = now.at < ceiling.held_until;
        let is_settling = now.at.since(ceiling.cut_at) < SETTLE;
        let arrived = self.mean_rate(RATE_TICKS);
        let is_below =
            arrived < ceiling.rate * CEILING_BELOW && ceiling.top.is_none() && passed < JUDGED_FROM;
        if now.lossy > 0 && (is_settling || is_below) {
            // These packets were lost before the cut, or by something that limits only one connection.
        } else if now.lossy > 0 && is_held {
            if ceiling.strikes == Streak::default() && ceiling.good.is_some() {
                ceiling.before = Some(ceiling.rate);
            }
            if ceiling.strikes.count(true) > STRIKES_MAX {
                return self.back_off(now.at, ceiling.before);
            }
            let least = (ceiling.rate * STRIKE_LEAST).max(self.floor(&ceiling));
            let rate = arrived.min(ceiling.rate * CUT).max(least);
            ceiling.hold.reset();
            ceiling.cut(now.at, rate);
        } else if now.lossy > 0 {
            // The ceiling was raised until packets were lost.
            ceiling.top = Some(ceiling.rate);
            let cut = ceiling.rate * CUT;
            let good = ceiling.good.max(self.earlier_rate()).unwrap_or(cut).min(cut);
            let is_near = good >= ceiling.rate * GOOD_NEAR;
            let lowered = if is_near { good } else { (good + cut) / 2 };
            match is_near {
                true => ceiling.hold.double(),
                false => ceiling.hold.reset(),
            }
            ceiling.cut(now.at, lowered.max(self.floor(&ceiling)));
        } else if !is_held {
            if ceiling.step == STEP_MIN {
                ceiling.good = Some(ceiling.rate);
                ceiling.strikes.end();
                self.patience.reset();
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

    /// The lowest ceiling that losses may lead to. If only one connection of several loses packets, this is
    /// half of what arrived before: a server can omit segments of its own to feign losses.
    fn floor(&self, ceiling: &Ceiling) -> Rate {
        let several = |of: fn(&Interval) -> u32| self.recent.iter().any(|i| of(i) > 1);
        match several(|i| i.active) && !several(|i| i.lossy) {
            true => (ceiling.rate_before / 2).min(ceiling.rate),
            false => Rate::ZERO,
        }
    }

    /// The losses are noise and are ignored for some time.
    fn back_off(&mut self, now: Time, before: Option<Rate>) -> LossVerdict {
        self.state = State::Watch { from: now + self.patience.span() };
        self.patience.double();
        self.recent.clear();
        LossVerdict::Back(before)
    }

    /// Whether no packets waited, as far as that is known.
    fn is_without_queue(&self) -> bool {
        // If a queue has shown a capacity before, it takes more ticks to conclude that there is no queue.
        let is_shown = self.recent.back().is_some_and(|i| i.shown.is_some());
        let ticks = if is_shown { RECENT } else { RECENT_MIN };
        let mut last = self.recent.iter().rev().take(ticks);
        last.len() == ticks && last.all(|i| i.queue.is_none_or(|queue| queue < i.queue_target))
    }

    /// Whether the queue is far above its target.
    fn is_queue_deep(&self) -> bool {
        let last = self.recent.iter().rev().take(DEEP_TICKS);
        let deep = last.filter(|i| i.queue.is_some_and(|q| q > i.queue_target * 3)).count();
        deep == DEEP_TICKS
    }

    /// 99 % of the mean rate more than [`LATENT_TICKS`] ago, if no packets were lost then: a policer's token
    /// bucket is empty only after that time.
    fn earlier_rate(&self) -> Option<Rate> {
        let earlier = self.recent.iter().take(RECENT - LATENT_TICKS);
        let (count, is_clean) = (earlier.len() as u64, earlier.clone().all(|i| i.lossy == 0));
        let sum: Rate = earlier.map(|i| i.rate).sum();
        (is_clean && self.recent.len() == RECENT).then(|| (sum / count).scale(99, 100))
    }

    /// Part of connection ticks with losses, in thousandths.
    fn lossy_part(&self) -> u64 {
        let lossy: u32 = self.recent.iter().map(|i| i.lossy).sum();
        let active: u32 = self.recent.iter().map(|i| i.active).sum();
        u64::from(lossy) * 1_000 / u64::from(active.max(1))
    }

    /// Whether about the same rate has arrived for some time.
    fn is_steady(&self, rate: Rate) -> bool {
        let near = rate * STEADY.0..=rate * STEADY.1;
        let mut last = self.recent.iter().rev().take(STEADY_TICKS);
        last.len() == STEADY_TICKS && last.all(|i| near.contains(&i.rate))
    }

    fn mean_rate(&self, ticks: usize) -> Rate {
        let last = self.recent.iter().rev().take(ticks);
        let sum: Rate = last.map(|i| i.rate).sum();
        sum / (self.recent.len().min(ticks) as u64).max(1)
    }
}

/// Ticks whose data are kept.
const RECENT: usize = 25;
/// Ticks without a queue before losses count.
const RECENT_MIN: usize = 6;
/// Ticks with losses, among those that are kept, before losses count.
const LOSSY_MIN: usize = 4;
/// Ticks in a row with a deep queue before the queue counts.
const DEEP_TICKS: usize = 3;
/// Ticks until a policer's token bucket is empty if a little too much arrives.
const LATENT_TICKS: usize = 15;
/// Ticks whose mean counts as the rate that arrives.
const RATE_TICKS: usize = 5;
/// A rate is steady if it stays between these parts of itself for twelve ticks.
const STEADY: (Part, Part) = (Part::percent(85), Part::percent(115));
const STEADY_TICKS: usize = 12;
/// Part of the rate that is let through in a test.
const TESTED: Part = Part::percent(93);
/// How long a test lasts.
const TEST: Span = Span::millis(4_400);
/// How often a test is repeated, each time with the rate that arrived in the test before.
const TESTS_MAX: u32 = 1;
/// Packets that are lost within this time after a cut were sent before it.
const SETTLE: Span = Span::millis(1_400);
/// How long losses are ignored after a test that found noise.
const PATIENCE_MIN: Span = Span::secs(15);
const PATIENCE_MAX: Span = Span::secs(600);
/// How long a ceiling is not raised; doubled with each confirmation.
const HOLD_MIN: Span = Span::millis(3_400);
const HOLD_MAX: Span = Span::secs(60);
/// Thousandths per second by which the ceiling then rises; faster the longer it rises.
const STEP_MIN: u64 = 10;
const STEP_MAX: u64 = 80;
/// Losses at less than this part of the ceiling are not due to the ceiling, unless they continue.
const CEILING_BELOW: Part = Part::percent(85);
/// The ceiling is judged by what arrives from the first to the second time after it was found.
const JUDGED_FROM: Span = Span::secs(12);
const JUDGED_UNTIL: Span = Span::secs(30);
/// The ceiling is harmless if at least this part of the earlier rate arrives.
const HARMLESS: Part = Part::percent(88);
/// Ticks in a row of harm, or far below it, until a ceiling is given up; after a loss a sender grows back in less time.
const HARMED_TICKS: u32 = 25;
/// Part of the ceiling that is left after a loss.
const CUT: Part = Part::percent(98);
/// If the last good rate is at least this part of the ceiling, the ceiling is lowered to it.
const GOOD_NEAR: Part = Part::percent(85);
/// The ceiling keeps at least this part of itself after a loss within a hold.
const STRIKE_LEAST: Part = Part::percent(80);
/// If more holds in a row than this have losses, the losses are noise.
const STRIKES_MAX: u32 = 4;
/// Lowest rate at which losses count: a few packets say little.
const LOSS_RATE_MIN: Rate = Rate::kbit(500);

#[cfg(test)]
mod tests;
