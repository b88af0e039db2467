//! When a probe sends requests, and the fate of these requests.
//!
//! The problem: an active probe of the access link has to ask often while the link is in use, seldom
//! while it is not, and less often if the reflector limits how often it answers. The method: a
//! state machine without sockets. The caller sends when [`Prober::next_send`] says so, reports what was
//! sent and answered, and takes a [`ProbeSample`] every tick. The daemon and the simulator use the
//! same prober.
//!
//! Terms: a request is *open* until it is answered or, after [`TIMEOUT`], *lost*.

use std::collections::VecDeque;

use crate::receiver::ProbeSample;
use crate::units::{Span, Time};

/// Time without an answer after which a request is lost. Source: access links have queues below a second;
/// an answer that comes later says nothing about now.
pub const TIMEOUT: Span = Span::secs(1);

/// From one request to the next while the link is in use: four answers in a tick, at 12 kbit/s.
pub const INTERVAL: Span = Span::millis(50);

/// The same while it is idle: the delay without a queue changes rarely.
pub const INTERVAL_IDLE: Span = Span::secs(1);

/// The shortest interval: a probe must not load the link.
pub const INTERVAL_MIN: Span = Span::millis(10);

/// The most open requests: [`TIMEOUT`] at [`INTERVAL_MIN`], with some margin.
const OPEN_MAX: usize = 128;

/// How often to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// From one request to the next while the link is in use; at least [`INTERVAL_MIN`].
    pub in_use: Span,
    /// The same while it is idle; at least [`INTERVAL_MIN`].
    pub idle: Span,
}

impl Default for Intervals {
    fn default() -> Intervals {
        Intervals { in_use: INTERVAL, idle: INTERVAL_IDLE }
    }
}

/// The schedule of a probe and the fate of its requests. `K` identifies a request, `A` the host that answers.
///
/// Invariant: every request that was sent to this reflector is open, answered or lost, and exactly one of
/// these.
#[derive(Debug)]
pub struct Prober<K, A> {
    intervals: Intervals,
    is_in_use: bool,
    /// Set if the reflector may limit how often it answers.
    pace: Option<Pace>,
    send_at: Time,
    /// Oldest first.
    open: VecDeque<(K, Time)>,
    sent: u32,
    answered: u32,
    rtt_min: Span,
    rtt_sum: Span,
    /// How often the answering reflector has changed.
    reflector: u32,
    answered_by: Option<A>,
    totals: Totals<A>,
}

/// Totals since the probe's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals<A> {
    /// Requests that were answered or lost.
    pub sent: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Round-trip time of the newest answer.
    pub rtt_last: Option<Span>,
    /// The host that gave it.
    pub from: Option<A>,
    /// Requests lost since that answer.
    pub lost_in_a_row: u32,
}

impl<K, A: Copy + PartialEq> Prober<K, A> {
    /// A probe whose first request is due at `now`; the link counts as idle.
    ///
    /// # Panics
    /// If an interval is below [`INTERVAL_MIN`].
    pub fn new(intervals: Intervals, now: Time) -> Prober<K, A> {
        assert!(intervals.in_use >= INTERVAL_MIN && intervals.idle >= INTERVAL_MIN);
        Prober {
            intervals,
            is_in_use: false,
            pace: None,
            send_at: now,
            open: VecDeque::new(),
            sent: 0,
            answered: 0,
            rtt_min: Span::ZERO,
            rtt_sum: Span::ZERO,
            reflector: 0,
            answered_by: None,
            totals: Totals { sent: 0, answered: 0, rtt_last: None, from: None, lost_in_a_row: 0 },
        }
    }

    // --------------------------------------------------------------------------------------------
    // When to ask

    /// Sets whether the link is in use from now on. The next request moves to an earlier time if the new
    /// interval is shorter.
    pub fn handle_use(&mut self, now: Time, is_in_use: bool) {
        self.is_in_use = is_in_use;
        self.send_at = self.send_at.min(now + self.interval());
    }

    /// Whether the link is in use.
    pub fn is_in_use(&self) -> bool {
        self.is_in_use
    }

    /// When the next request is due.
    pub fn next_send(&self) -> Time {
        self.send_at
    }

    /// A request went out at `at`, identified by `key`.
    pub fn handle_sent(&mut self, key: K, at: Time) {
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
            self.lose();
        }
        self.open.push_back((key, at));
    }

    /// The request that was due was handled, sent or not: the next one is due an interval later, but at least
    /// [`INTERVAL_MIN`] from now if the caller is late.
    pub fn schedule_next(&mut self, now: Time) {
        self.send_at = (self.send_at + self.interval()).max(now + INTERVAL_MIN);
    }

    /// Another reflector is asked from `now` on, for the first time an interval later; open requests are
    /// forgotten. If `is_router`, the interval grows if a quarter of the answers is missing, since routers
    /// limit how often they answer.
    pub fn handle_reflector(&mut self, now: Time, is_router: bool) {
        let Totals { sent, answered, .. } = self.totals;
        self.pace = is_router.then_some(Pace { factor: 1, begin: (sent, answered) });
        self.open.clear();
        if self.answered_by.take().is_some() {
            self.begin_reflector();
        }
        (self.totals.from, self.totals.lost_in_a_row) = (None, 0);
        self.send_at = now + self.interval();
    }

    /// Whether the reflector is asked less often because it leaves too many requests unanswered.
    pub fn is_slowed(&self) -> bool {
        self.pace.is_some_and(|pace| pace.factor > 1)
    }

    fn interval(&self) -> Span {
        if !self.is_in_use {
            return self.intervals.idle;
        }
        let factor = self.pace.map_or(1, |pace| pace.factor);
        (self.intervals.in_use * factor).min(self.intervals.idle.max(self.intervals.in_use))
    }

    // --------------------------------------------------------------------------------------------
    // What became of requests

    /// Takes in what may be an answer at `at`; `false` if it answers no open request.
    pub fn handle_answer(&mut self, at: Time, from: A, is_answered: impl Fn(&K) -> bool) -> bool {
        self.handle_time(at);
        let Some(i) = self.open.iter().position(|(key, _)| is_answered(key)) else { return false };
        let Some((_, sent_at)) = self.open.remove(i) else { return false };
        self.take_in(from, at.since(sent_at));
        true
    }

    fn take_in(&mut self, from: A, rtt: Span) {
        if self.answered_by.replace(from).is_some_and(|before| before != from) {
            self.begin_reflector();
        }
        self.rtt_min = if self.answered == 0 { rtt } else { self.rtt_min.min(rtt) };
        self.rtt_sum += rtt;
        self.sent += 1;
        self.answered += 1;
        self.totals.sent += 1;
        self.totals.answered += 1;
        self.totals.rtt_last = Some(rtt);
        self.totals.from = Some(from);
        self.totals.lost_in_a_row = 0;
        self.keep_pace();
    }

    /// The round-trip times of the old reflector say nothing about those of the next one.
    fn begin_reflector(&mut self) {
        self.reflector += 1;
        (self.answered, self.rtt_sum) = (0, Span::ZERO);
    }

    /// Gives up requests that have waited longer than [`TIMEOUT`] at `now`.
    pub fn handle_time(&mut self, now: Time) {
        while self.open.front().is_some_and(|(_, at)| now.since(*at) > TIMEOUT) {
            self.open.pop_front();
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.sent += 1;
        self.totals.sent += 1;
        self.totals.lost_in_a_row += 1;
        self.keep_pace();
    }

    fn keep_pace(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.handle(self.totals.sent, self.totals.answered);
        }
    }

    /// The requests decided since the last call, up to `now`.
    pub fn take_sample(&mut self, now: Time) -> ProbeSample {
        self.handle_time(now);
        let sample = ProbeSample {
            sent: self.sent,
            answered: self.answered,
            rtt_min: self.rtt_min,
            rtt_mean: self.rtt_sum / u64::from(self.answered.max(1)),
            reflector: self.reflector,
        };
        (self.sent, self.answered) = (0, 0);
        (self.rtt_min, self.rtt_sum) = (Span::ZERO, Span::ZERO);
        sample
    }

    /// The requests decided since the start.
    pub fn totals(&self) -> Totals<A> {
        self.totals
    }
}

/// How much less often than configured a router is asked.
#[derive(Clone, Copy, Debug)]
struct Pace {
    factor: u64,
    /// The totals at the beginning of the window.
    begin: (u64, u64),
}

impl Pace {
    /// Takes in the totals; after every [`PACE_WINDOW`] requests the interval doubles if a quarter
    /// of them was lost.
    fn handle(&mut self, sent: u64, answered: u64) {
        let (sent_before, answered_before) = self.begin;
        let (sent_now, answered_now) = (sent - sent_before, answered - answered_before);
        if sent_now < PACE_WINDOW {
            return;
        }
        if answered_now * 4 < sent_now * 3 {
            self.factor = (self.factor * 2).min(PACE_FACTOR_MAX);
        }
        self.begin = (sent, answered);
    }
}

const PACE_WINDOW: u64 = 16;
const PACE_FACTOR_MAX: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::millis(ms)
    }

    fn prober() -> Prober<u32, char> {
        Prober::new(Intervals::default(), at(0))
    }

    #[test]
    fn requests_leave_every_interval_and_a_late_caller_does_not_catch_up() {
        let mut prober = prober();
        assert_eq!(prober.next_send(), at(0));
        prober.schedule_next(at(0));
        assert_eq!(prober.next_send(), at(1_000), "idle");
        prober.handle_use(at(300), true);
        assert_eq!(prober.next_send(), at(350), "in use: an interval from now");
        prober.schedule_next(at(350));
        assert_eq!(prober.next_send(), at(400));
        prober.schedule_next(at(900));
        assert_eq!(prober.next_send(), at(910));
        prober.handle_use(at(905), false);
        assert_eq!(prober.next_send(), at(910), "what is due stays due");
        prober.schedule_next(at(910));
        assert_eq!(prober.next_send(), at(1_910));
    }

    #[test]
    fn a_sample_holds_what_was_decided_in_its_interval() {
        let mut prober = prober();
        for i in 0..4 {
            prober.handle_sent(i, at(50 * u64::from(i)));
        }
        for (i, late) in [(0, 20), (2, 40), (1, 120)] {
            assert!(prober.handle_answer(at(50 * u64::from(i) + late), 'a', |&key| key == i));
        }
        let sample = prober.take_sample(at(200));
        assert_eq!((sample.sent, sample.answered), (3, 3), "the fourth is open");
        assert_eq!((sample.rtt_min, sample.rtt_mean), (Span::millis(20), Span::millis(60)));
        assert_eq!(prober.take_sample(at(200)), ProbeSample::default());
        let sample = prober.take_sample(at(1_151));
        assert_eq!((sample.sent, sample.answered), (1, 0), "the fourth is lost");
        assert_eq!((prober.totals().sent, prober.totals().answered), (4, 3));
        assert_eq!(prober.totals().lost_in_a_row, 1);
    }

    #[test]
    fn a_second_and_a_late_answer_are_ignored() {
        let mut prober = prober();
        prober.handle_sent(1, at(0));
        assert!(!prober.handle_answer(at(1), 'a', |&key| key == 2), "no such request");
        assert!(prober.handle_answer(at(30), 'a', |&key| key == 1));
        assert!(!prober.handle_answer(at(31), 'a', |&key| key == 1), "the second");
        prober.handle_sent(2, at(100));
        assert!(!prober.handle_answer(at(1_101), 'a', |&key| key == 2), "too late");
        assert_eq!((prober.totals().sent, prober.totals().answered), (2, 1));
    }

    #[test]
    fn answers_of_another_reflector_begin_a_new_sample() {
        let mut prober = prober();
        prober.handle_sent(1, at(0));
        prober.handle_sent(2, at(0));
        assert!(prober.handle_answer(at(30), 'a', |&key| key == 1));
        assert!(prober.handle_answer(at(90), 'b', |&key| key == 2));
        let sample = prober.take_sample(at(100));
        assert_eq!((sample.reflector, sample.answered), (1, 1));
        assert_eq!((sample.rtt_min, sample.rtt_mean), (Span::millis(90), Span::millis(90)));
        assert_eq!(prober.totals().from, Some('b'));
    }

    #[test]
    fn a_router_that_answers_seldom_is_asked_seldom() {
        let mut prober = prober();
        prober.handle_use(at(0), true);
        prober.handle_reflector(at(0), true);
        let mut ask = |answers: u32| {
            for i in 0..16 {
                prober.handle_sent(i, at(0));
                if i < answers {
                    assert!(prober.handle_answer(at(1), 'a', |&key| key == i));
                }
            }
            prober.handle_time(at(0) + TIMEOUT * 2);
            prober.interval()
        };
        assert_eq!(ask(16), INTERVAL);
        assert_eq!(ask(12), INTERVAL, "a full queue drops some");
        assert_eq!(ask(11), INTERVAL * 2);
        assert_eq!(ask(1), INTERVAL * 4);
        assert_eq!(ask(16), INTERVAL * 4);
    }

    #[test]
    fn what_another_reflector_left_unanswered_does_not_slow_the_next_one() {
        let mut prober = prober();
        prober.handle_reflector(at(0), true);
        (0..16).for_each(|i| prober.handle_sent(i, at(0)));
        prober.handle_reflector(at(800), true);
        prober.handle_time(at(9_000));
        assert!(!prober.is_slowed() && prober.totals().sent == 0);
        (0..16).for_each(|i| prober.handle_sent(i, at(9_000)));
        prober.handle_time(at(11_000));
        assert!(prober.is_slowed());
    }

    proptest! {
        #[test]
        fn every_request_is_counted_once(
            steps in proptest::collection::vec((0u64..400, any::<bool>(), 0u32..300), 1..600)
        ) {
            let (mut prober, mut now, mut sent, mut seen) = (prober(), at(0), 0u32, 0u64);
            for (pause, answers, key) in steps {
                now = now + Span::millis(pause);
                if answers {
                    prober.handle_answer(now, 'a', |&k| k == key);
                } else {
                    prober.handle_sent(sent, now);
                    sent += 1;
                }
                prop_assert!(prober.open.len() <= OPEN_MAX);
                seen += u64::from(prober.take_sample(now).sent);
                prop_assert_eq!(prober.totals().sent + prober.open.len() as u64, u64::from(sent));
                prop_assert_eq!(prober.totals().sent, seen);
            }
        }
    }
}
