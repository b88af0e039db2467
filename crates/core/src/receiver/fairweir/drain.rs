//! Drains: the queue is emptied on purpose to see delays without it.

use super::super::delay::Queue;
use super::super::{Beside, Enforce, TICK};
use super::Fairweir;
use crate::streak::Streak;
use crate::units::{Rate, Span, Time};

/// The state of drains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drain {
    /// Ticks left of the current drain.
    pub(super) ticks_left: u32,
    /// When the last drain began.
    pub(super) last_at: Time,
    /// Whether the drain is to be repeated soon.
    pub(super) is_urgent: bool,
    /// Whether the drain ends with the next answer of a reflector that answers rarely.
    pub(super) awaits_answer: bool,
    /// Urgent drains in a row.
    pub(super) urgent: Streak,
    /// Whether the link has never been seen without a queue.
    pub(super) is_deep: bool,
    /// Whether another host announced in the last tick that all hosts drain.
    pub(super) is_told: bool,
}

impl Fairweir {
    /// What is known of the queue in an interval in which `total` arrived; `is_answered` says whether a
    /// reflector answered.
    pub(super) fn finish_drain(&mut self, total: Rate, is_answered: bool) -> Queue {
        let was_quiet = self.total_last.is_some_and(|total| {
            let little = self.link.capacity().map_or(QUIET_MAX, |c| c / 10);
            total <= little
        });
        if self.drain.ticks_left == 0 {
            return if was_quiet { Queue::WasEmpty } else { Queue::Unknown };
        }
        self.drain.ticks_left -= 1;
        // The answer has seen an empty queue if the probe left a round trip after the drain began.
        let has_emptied = u64::from(self.drain.ticks_left) + self.drain_ticks() < ANSWER_TICKS;
        if self.drain.awaits_answer && is_answered && has_emptied {
            self.drain.ticks_left = 0;
        }
        if self.drain.ticks_left > 0 {
            return Queue::Unknown;
        }
        // The drain has worked if less arrives than the link carries.
        let worked = self.link.capacity().is_some_and(|c| total < c.scale(95, 100));
        if worked { Queue::Drained } else { Queue::Unknown }
    }

    pub(super) fn start_drain(&mut self, now: Time) {
        let is_urgent = self.drain.is_urgent
            || self.delay.is_unsettled(now)
            || self.beside.disagrees(self.queue_last, self.short_queue());
        // A drain that waits for an answer costs several times as much as another one.
        let is_costly = self.drain.awaits_answer && self.delay.is_rarely_answered(now);
        let longest = if is_costly { DRAIN_INTERVAL_COSTLY } else { DRAIN_INTERVAL };
        // Drains that do not help become rarer.
        let soon = DRAIN_SOON * (1 << self.drain.urgent.length().min(6));
        let interval = if is_urgent { soon.min(longest) } else { longest };
        if let Some(told) = self.told() {
            // A limit, in case a host announces drains all the time.
            let is_soon = now.since(self.drain.last_at) < TOLD_DRAINS;
            if told.drains && !self.drain.is_told && !is_soon {
                self.begin_drain(now, true);
            }
            self.drain.is_told = told.drains;
            return;
        }
        let bounds = !self.contest.is_on()
            && self.link.capacity().is_some()
            && self.enforce != Enforce::Htb
            && self.is_queue_ours();
        if self.drain.ticks_left > 0 || !self.is_wanted() || !bounds {
            return;
        }
        if now.since(self.drain.last_at) >= interval {
            self.begin_drain(now, is_urgent);
        }
    }

    /// Whether a drain is under way.
    pub(in super::super) fn drains(&self) -> bool {
        self.drain.ticks_left > 0
    }

    /// The ticks that a round trip takes.
    pub(super) fn drain_ticks(&self) -> u64 {
        let rtt = self.delay.rtt_base_max().unwrap_or(Span::ZERO);
        (rtt.as_nanos() / TICK.as_nanos() + 1).min(DRAIN_TICKS_MAX)
    }

    /// Begins a drain that lasts a round trip, or until a reflector answers.
    pub(super) fn begin_drain(&mut self, now: Time, is_urgent: bool) {
        let awaits_answer = self.delay.is_rarely_answered(now);
        let ticks = if awaits_answer { ANSWER_TICKS } else { self.drain_ticks() };
        // The other hosts hear of the drain in their next tick.
        let ticks = if self.beside == Beside::Nobody { ticks } else { ticks + 1 };
        let mut urgent = self.drain.urgent;
        urgent.count(is_urgent);
        self.drain = Drain {
            ticks_left: ticks as u32,
            awaits_answer,
            last_at: now,
            is_urgent: false,
            urgent,
            is_deep: self.assumption.began_busy() && !self.delay.is_settled(now),
            is_told: self.drain.is_told,
        };
    }
}

/// Below this rate a link of unknown capacity is quiet.
const QUIET_MAX: Rate = Rate::kbit(250);
/// Time between two drains.
const DRAIN_INTERVAL: Span = Span::secs(10);
/// The same where a drain waits for an answer of a reflector.
const DRAIN_INTERVAL_COSTLY: Span = Span::secs(60);
/// The same while base RTTs are not known; doubled with each such drain.
const DRAIN_SOON: Span = Span::secs(1);
/// Least time between two drains that another host announced.
const TOLD_DRAINS: Span = Span::millis(1_500);
/// Longest drain, in ticks.
const DRAIN_TICKS_MAX: u64 = 5;
/// Ticks of a drain that waits for an answer: a little more than the second between two answers.
const ANSWER_TICKS: u64 = 7;
