use super::*;
use crate::receiver::TICK;

const LATENCY: Span = Span::millis(5);

struct Host {
    contest: Contest,
    now: Time,
}

impl Host {
    /// On a link of 100 Mbit/s for some time.
    fn new() -> Host {
        let mut host = Host { contest: Contest::new(), now: Time::ZERO };
        host.ticks(50, Rate::mbit(100));
        host
    }

    fn tick(&mut self, capacity: Rate, is_lossy: bool) -> Span {
        self.now = self.now + TICK;
        let rtt = Span::millis(40);
        let tick = Tick { at: self.now, capacity: Some(capacity), is_lossy, rtt };
        self.contest.handle_tick(&tick);
        self.contest.stretched(LATENCY)
    }

    fn ticks(&mut self, count: u32, capacity: Rate) -> Span {
        (0..count).map(|_| self.tick(capacity, false)).last().expect("at least one tick")
    }
}

/// A sender elsewhere that takes a part of what is left in each tick in which the queue is short.
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
        // In each trial others take a tenth a tick, and leave it again.
        let about = Rate::mbit(if tick % 2 == 0 { 48 } else { 52 });
        capacity = if was_on { capacity.scale(9, 10) } else { about };
        host.tick(capacity, true);
        trials += u32::from(!was_on && host.contest.trial.is_some());
    }
    // In ten minutes: 4, 8, 16, 32, 64 s, and every 64 s.
    assert!((8..=16).contains(&trials), "{trials}");
    assert_eq!(host.contest.level, Rate::mbit(100));
}

#[test]
fn nothing_is_remembered_once_windows_do_not_bound_what_arrives() {
    let mut host = Host::new();
    host.now = host.now + TICK;
    let (at, rtt) = (host.now, Span::ZERO);
    host.contest.handle_tick(&Tick { at, capacity: None, is_lossy: false, rtt });
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
    // It falls for so long that trials have become rare.
    for percent in (30..100).rev() {
        host.ticks(2, Rate::mbit(percent));
    }
    assert!(host.contest.is_on());
    host.ticks(STEADY_TICKS + 2, Rate::mbit(30));
    assert_eq!(host.ticks(20, Rate::mbit(30)), LATENCY);
    assert_eq!(host.contest.level, Rate::mbit(30));
}
