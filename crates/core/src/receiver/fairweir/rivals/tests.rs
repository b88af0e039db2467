use super::super::release::{GROWN, MEASURED};
use super::*;
use crate::receiver::TICK;

const CARRIED: Rate = Rate::mbit(30);

struct Host {
    rivals: Rivals,
    now: Time,
    is_odd: bool,
}

impl Host {
    fn new() -> Host {
        Host { rivals: Rivals::new(), now: Time::ZERO + Span::secs(60), is_odd: false }
    }

    /// The part that rivals leave is never the same in two ticks.
    fn tick(&mut self, total: Rate) -> Course {
        self.is_odd = !self.is_odd;
        self.tick_beside(total.scale(if self.is_odd { 102 } else { 98 }, 100), false)
    }

    fn tick_beside(&mut self, total: Rate, is_queue_short: bool) -> Course {
        self.now = self.now + TICK;
        let (at, is_wanted) = (self.now, true);
        self.rivals.handle_tick(&Tick {
            at,
            total,
            is_wanted,
            is_queue_short: Some(is_queue_short),
        })
    }

    fn shown(&mut self) {
        self.rivals.handle_rivals(self.now, CARRIED);
    }

    /// Rivals are recognised, and the rate that then arrives is measured.
    fn measured(due: Rate) -> Host {
        let mut host = Host::new();
        host.shown();
        host.until_measured(|_| due);
        host
    }

    /// Ticks until the due is measured; returns how long that takes.
    fn until_measured(&mut self, mut total: impl FnMut(Span) -> Rate) -> Span {
        let begun = self.now;
        while matches!(self.rivals.state, State::Measure(_)) {
            let total = total(self.now.since(begun));
            assert_eq!(self.tick(total), Course::Release);
        }
        self.now.since(begun)
    }

    /// Ticks with `total` until the course changes.
    fn until_not(&mut self, course: &Course, total: Rate) -> Course {
        (0..200).map(|_| self.tick(total)).find(|next| next != course).expect("it ends")
    }

    /// Ticks with `total` until the queue is tried again; returns how long that takes, and the capacity.
    fn until_tried(&mut self, total: Rate) -> (Span, Rate) {
        let begun = self.now;
        loop {
            if let Course::Try(capacity) = self.tick(total) {
                return (self.now.since(begun), capacity);
            }
            assert!(self.now.since(begun) < STAY_MAX * 2, "it is never tried again");
        }
    }
}

#[test]
fn without_rivals_nothing_is_done() {
    let mut host = Host::new();
    assert!((0..500).all(|_| host.tick(Rate::mbit(10)) == Course::Alone));
    assert!(!host.rivals.are_there());
}

#[test]
fn everything_passes_while_rivals_are_there() {
    let mut host = Host::new();
    host.shown();
    assert!(host.rivals.are_there());
    // Little arrives at first, and 20 Mbit/s from the moment on at which the measurement begins.
    let grown = |passed: Span| Rate::mbit(if passed + TICK >= GROWN { 20 } else { 2 });
    assert_eq!(host.until_measured(grown), MEASURED + GROWN);
    for _ in 0..18 {
        assert_eq!(host.tick(Rate::mbit(20)), Course::Release);
        assert!(host.rivals.are_there());
    }
}

#[test]
fn what_arrives_is_measured_while_it_grows() {
    let mut host = Host::new();
    host.shown();
    let mut total = Rate::mbit(10);
    // A twelfth more each second, until it has doubled.
    let passed = host.until_measured(|_| {
        total = if total < Rate::mbit(20) { total.scale(61, 60) } else { total };
        total
    });
    assert!(passed > Span::secs(8));
}

#[test]
fn the_queue_is_tried_again_after_a_stay_that_doubles_while_rivals_stay() {
    let mut host = Host::measured(Rate::mbit(20));
    for stay in [4, 8, 16, 32, 64, 120, 120].map(Span::secs) {
        let (waited, capacity) = host.until_tried(Rate::mbit(18));
        assert!(waited >= stay && waited <= stay + TICK * 2, "{waited} instead of {stay}");
        let near = Rate::mbit(18);
        assert!(capacity >= near.scale(99, 100) && capacity <= near.scale(101, 100), "{capacity}");
        assert!(!host.rivals.are_there());
        assert_eq!(host.tick(Rate::mbit(18)), Course::Alone);
        // Rivals are back soon.
        host.shown();
        host.until_measured(|_| Rate::mbit(18));
    }
    host.until_tried(Rate::mbit(18));
    // Rivals come back late.
    host.now = host.now + BACK_WITHIN;
    host.shown();
    host.until_measured(|_| Rate::mbit(18));
    let (waited, _) = host.until_tried(Rate::mbit(18));
    assert!(waited <= STAY_MIN + TICK * 2, "{waited}");
}

#[test]
fn what_rivals_take_while_the_queue_is_tried_is_not_measured_anew() {
    let mut host = Host::measured(Rate::mbit(20));
    host.until_tried(Rate::mbit(20));
    let begun = host.now;
    assert_eq!(host.until_not(&Course::Alone, Rate::mbit(8)), Course::Release);
    assert!(host.now.since(begun) <= TICK * 3, "{}", host.now.since(begun));
    assert!(matches!(host.rivals.state, State::Yield { .. }));
    // The queue is tried again, later than before.
    let (waited, _) = host.until_tried(Rate::mbit(20));
    assert!(waited >= STAY_MIN * 2, "{waited}");
    // If no rival takes the capacity for long enough, it is this host's.
    while host.now.since(begun) < Span::secs(60) {
        assert_eq!(host.tick(Rate::mbit(20)), Course::Alone);
    }
    assert_eq!(host.tick(Rate::mbit(8)), Course::Alone);
}

#[test]
fn a_queue_that_stays_short_is_nobodys() {
    let mut host = Host::measured(Rate::mbit(20));
    let rippled = |tick: u32| Rate::mbit(20 + u64::from(tick % 2));
    // Between two losses of the rivals the queue is short for a while.
    for tick in 0..18 {
        let course = host.tick_beside(rippled(tick), tick % 20 < SHORT_TICKS - 1);
        assert_eq!(course, Course::Release);
    }
    let mut courses = (0..SHORT_TICKS).map(|tick| host.tick_beside(rippled(tick), true));
    assert!(courses.any(|course| matches!(course, Course::Try(_))));
    assert!(!host.rivals.are_there());
}

#[test]
fn a_comparison_that_finds_no_more_ends_and_comes_later_and_later() {
    let mut host = Host::new();
    let mut waits = vec![];
    for _ in 0..6 {
        let begun = host.now;
        while !host.rivals.handle_doubt(host.now, CARRIED) {
            assert_eq!(host.tick(CARRIED), Course::Alone);
        }
        waits.push(host.now.since(begun));
        let tried = host.until_not(&Course::Release, CARRIED.scale(110, 100));
        let Course::Try(rate) = tried else { panic!("{tried:?}") };
        assert!(
            rate < CARRIED.scale(113, 100) && rate > CARRIED.scale(107, 100),
            "a tenth more is none"
        );
        assert!(!host.rivals.are_there());
    }
    assert_eq!(waits, [0, 16, 32, 64, 120, 120].map(Span::secs));
}

#[test]
fn what_is_lost_right_after_a_comparison_that_found_no_more_is_lost_to_rivals() {
    let mut host = Host::new();
    assert!(host.rivals.handle_doubt(host.now, CARRIED));
    host.until_not(&Course::Release, CARRIED);
    assert_eq!(host.until_not(&Course::Alone, CARRIED.scale(80, 100)), Course::Release);
    assert!(host.rivals.are_there());
}

#[test]
fn a_comparison_that_finds_more_lets_go() {
    let mut host = Host::new();
    assert!(host.rivals.handle_doubt(host.now, CARRIED / 2));
    assert!(!host.rivals.handle_doubt(host.now, CARRIED / 2), "one at a time");
    host.until_measured(|_| CARRIED);
    assert!(host.rivals.are_there());
}

/// A neighbour who fills the link for some seconds takes the control away for no longer than a release.
#[test]
fn a_link_that_nobody_shares_is_this_hosts_own_again_after_a_release() {
    let slower = CARRIED / 3;
    for is_doubted in [true, false] {
        let mut host = Host::new();
        match is_doubted {
            true => assert!(host.rivals.handle_doubt(host.now, slower)),
            false => host.shown(),
        }
        let begun = host.now;
        let course = loop {
            match host.tick_beside(slower, false) {
                Course::Release => {}
                course => break course,
            }
        };
        assert_eq!(course, Course::Accept(slower));
        assert!(host.now.since(begun) <= Span::millis(2_400), "{}", host.now.since(begun));
        assert!(!host.rivals.are_there());
    }
}

/// The low rate of a host without downloads must not be tried as capacity: that would limit the next download.
#[test]
fn a_host_that_stopped_its_downloads_is_alone_again_with_what_it_knew() {
    let mut host = Host::measured(Rate::mbit(20));
    let course = host.until_not(&Course::Release, Rate::kbit(100));
    assert_eq!(course, Course::Alone);
    assert!(!host.rivals.are_there());
}
