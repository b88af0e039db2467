use super::*;
use crate::receiver::TICK;

const LATENCY: Span = Span::millis(5);

struct Host {
    contest: Contest,
    now: Time,
    doubts: u32,
}

impl Host {
    /// On a link of 100 Mbit/s for some time.
    fn new() -> Host {
        let mut host = Host { contest: Contest::new(), now: Time::ZERO, doubts: 0 };
        host.ticks(50, Rate::mbit(100));
        host
    }

    fn tick(&mut self, capacity: Rate, is_lossy: bool) -> Span {
        self.doubts += u32::from(self.doubted(capacity, LATENCY, is_lossy).is_some());
        self.contest.stretched(LATENCY)
    }

    /// Returns what the host had before, if that is doubted.
    fn doubted(&mut self, capacity: Rate, queue: Span, is_lossy: bool) -> Option<Rate> {
        self.observe(capacity, capacity, queue, is_lossy)
    }

    fn observe(
        &mut self,
        capacity: Rate,
        arrived: Rate,
        queue: Span,
        is_lossy: bool,
    ) -> Option<Rate> {
        self.now = self.now + TICK;
        let (capacity, queue, rtt) = (Some(capacity), Some(queue), Span::millis(40));
        let tick = Tick { at: self.now, capacity, arrived, queue, target: LATENCY, is_lossy, rtt };
        self.contest.handle_tick(&tick)
    }

    /// Other hosts take a twentieth of the rest in each tick, and leave it again; returns what is doubted.
    fn beside_takers(&mut self, ticks: u32, queue: Span, is_lossy: bool) -> Vec<Rate> {
        self.beside_takers_from(88, ticks, queue, is_lossy)
    }

    /// The same, starting from the rate `most`, in Mbit/s.
    fn beside_takers_from(
        &mut self,
        most: u64,
        ticks: u32,
        queue: Span,
        is_lossy: bool,
    ) -> Vec<Rate> {
        let left = |tick: u32| Rate::mbit(most).scale(95_u64.pow(tick % 5), 100_u64.pow(tick % 5));
        (0..ticks).filter_map(|tick| self.doubted(left(tick), queue, is_lossy)).collect()
    }

    fn ticks(&mut self, count: u32, capacity: Rate) -> Span {
        (0..count).map(|_| self.tick(capacity, false)).last().expect("at least one tick")
    }
}

/// A sender elsewhere that takes part of the remaining capacity in each tick in which the queue is short.
fn beside_a_growing_sender(is_lossy: bool) -> (Rate, Span) {
    let mut host = Host::new();
    let mut capacity = Rate::mbit(100);
    let mut queue = LATENCY;
    for _ in 0..300 {
        let buffer = Span::millis(40);
        capacity = if queue < buffer { capacity.scale(97, 100) } else { capacity.scale(103, 100) };
        queue = host.tick(capacity, is_lossy);
    }
    (capacity, queue)
}

#[test]
fn the_queue_is_as_the_user_wants_while_nothing_is_lost() {
    let mut host = Host::new();
    let about = [99, 102, 98, 100, 101];
    for tick in 0..500 {
        assert_eq!(host.tick(Rate::mbit(about[tick % about.len()]), true), LATENCY, "tick {tick}");
    }
    assert!(!host.contest.is_on());
}

#[test]
fn a_link_that_became_slower_has_a_short_queue_at_once_and_stays() {
    let mut host = Host::new();
    for tick in 0..100 {
        assert_eq!(host.tick(Rate::mbit(40), false), LATENCY, "tick {tick}");
    }
    assert_eq!(host.contest.level, Rate::mbit(40));
}

#[test]
fn the_queue_is_longer_the_more_others_take() {
    let (with_losses, queue) = beside_a_growing_sender(true);
    assert!(queue > LATENCY * 4, "{queue}");
    assert!(with_losses > Rate::mbit(30), "{with_losses}");
}

#[test]
fn without_losses_it_is_not_much_longer() {
    let mut host = Host::new();
    let mut longest = Span::ZERO;
    for percent in (5..100).rev() {
        longest = longest.max(host.tick(Rate::mbit(percent), false));
    }
    assert_eq!(longest, LATENCY * 4);
}

#[test]
fn a_queue_that_others_fill_during_a_trial_is_doubted() {
    let doubts = Host::new().beside_takers(50, LATENCY * 4, false);
    assert!(!doubts.is_empty());
    assert!(doubts.iter().all(|&before| before > Rate::mbit(70) && before < Rate::mbit(90)));
    assert_eq!(Host::new().beside_takers(200, LATENCY * 2, false), [], "it became short");
}

#[test]
fn what_falls_further_after_much_was_lost_is_doubted_however_short_the_queue_is() {
    let doubts = |most: u64| Host::new().beside_takers_from(most, 50, LATENCY, false);
    assert_eq!(doubts(88), []);
    assert!(!doubts(65).is_empty());
}

#[test]
fn others_who_leave_the_queue_short_are_doubted_from_the_third_trial_on_if_packets_are_lost() {
    assert_eq!(Host::new().beside_takers(50, LATENCY, true), []);
    assert!(!Host::new().beside_takers(500, LATENCY, true).is_empty());
}

#[test]
fn a_link_that_became_slower_is_not_doubted() {
    let mut host = Host::new();
    host.ticks(100, Rate::mbit(40));
    host.ticks(100, Rate::mbit(20));
    assert_eq!(host.doubts, 0);
    // The estimate follows in steps, and the queue is long until it has.
    let found = [70, 50, 35, 25, 18, 13, 10, 10, 10].map(Rate::mbit);
    let mut host = Host::new();
    let mut doubts =
        found.map(|capacity| host.observe(capacity, Rate::mbit(10), LATENCY * 9, true));
    assert!(doubts.iter_mut().all(|doubt| doubt.is_none()));
}

#[test]
fn what_others_leave_again_ends_it() {
    let mut host = Host::new();
    for percent in (20..100).rev() {
        host.tick(Rate::mbit(percent), true);
    }
    assert!(host.contest.is_on());
    assert_eq!(host.ticks(1, Rate::mbit(100)), LATENCY);
}

#[test]
fn trials_that_fail_become_rare() {
    let mut host = Host::new();
    let mut trials = 0;
    let mut capacity = Rate::mbit(80);
    for tick in 0..3_000 {
        let was_on = host.contest.trial.is_some();
        // In each trial other hosts take a tenth per tick, and leave it again.
        let about = Rate::mbit(if tick % 2 == 0 { 48 } else { 52 });
        capacity = if was_on { capacity.scale(9, 10) } else { about };
        host.tick(capacity, true);
        trials += u32::from(!was_on && host.contest.trial.is_some());
    }
    // Trials in ten minutes: after 4, 8, 16, 32 and 64 s, then every 64 s.
    assert!((8..=16).contains(&trials), "{trials}");
    assert_eq!(host.contest.level, Rate::mbit(100));
}

#[test]
fn nothing_is_remembered_once_windows_do_not_bound_what_arrives() {
    let mut host = Host::new();
    host.now = host.now + TICK;
    let (at, rtt) = (host.now, Span::ZERO);
    let (arrived, queue, target) = (Rate::ZERO, None, LATENCY);
    let tick = Tick { at, capacity: None, arrived, queue, target, is_lossy: false, rtt };
    host.contest.handle_tick(&tick);
    assert_eq!(host.ticks(1, Rate::mbit(10)), LATENCY);
    assert_eq!(host.contest.level, Rate::mbit(10));
}

#[test]
fn absurd_capacities_are_bounded() {
    let mut host = Host::new();
    for capacity in [Rate::bps(1), Rate::bps(u64::MAX), Rate::bps(1), Rate::ZERO] {
        for _ in 0..40 {
            assert!(host.tick(capacity, true) <= LATENCY * 40);
        }
    }
}

#[test]
fn a_capacity_that_does_not_change_is_tried_at_once() {
    let mut host = Host::new();
    // The capacity falls for so long that trials have become rare.
    for percent in (30..100).rev() {
        host.ticks(2, Rate::mbit(percent));
    }
    assert!(host.contest.is_on());
    host.ticks(TRIAL_STEADY_TICKS + 2, Rate::mbit(30));
    assert_eq!(host.ticks(20, Rate::mbit(30)), LATENCY);
    assert_eq!(host.contest.level, Rate::mbit(30));
}
