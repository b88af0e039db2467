use super::super::release::{GROWN, LEAST, MEASURED};
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

    /// What others leave is never the same in two ticks.
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

    /// Rivals show themselves, and what arrives then is measured: the due and the first division.
    fn measured(due: Rate) -> (Host, Rate) {
        let mut host = Host::new();
        host.shown();
        loop {
            match host.tick(due) {
                Course::Release => {}
                Course::Divide(rate) => return (host, rate),
                course => panic!("{course:?}"),
            }
        }
    }

    /// Ticks with `total` until there is another course.
    fn until_not(&mut self, course: &Course, total: Rate) -> Course {
        (0..200).map(|_| self.tick(total)).find(|next| next != course).expect("it ends")
    }

    /// Ticks with `total` until the queue is tried again: how long that takes, and the capacity.
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

/// About this rate, and how far classes are open beyond it.
fn assert_divides(course: Course, due: Rate) {
    let Course::Divide(rate) = course else { panic!("{course:?}") };
    let divided = due.scale(1_000 + SLACK_MIN, 1_000);
    assert!(rate > divided.scale(98, 100) && rate < divided.scale(102, 100), "{rate}");
}

#[test]
fn without_rivals_nothing_is_done() {
    let mut host = Host::new();
    assert!((0..500).all(|_| host.tick(Rate::mbit(10)) == Course::Alone));
    assert!(!host.rivals.are_there());
}

#[test]
fn the_due_is_what_arrives_when_senders_have_grown() {
    let mut host = Host::new();
    host.shown();
    assert!(host.rivals.are_there());
    let begun = host.now;
    let divided = loop {
        // Little at first, 20 from the moment on at which it counts.
        let has_grown = host.now.since(begun) + TICK >= GROWN;
        match host.tick(Rate::mbit(if has_grown { 20 } else { 2 })) {
            Course::Release => {}
            course => break course,
        }
    };
    assert_eq!(host.now.since(begun), MEASURED + GROWN);
    assert_divides(divided, Rate::mbit(20));
}

#[test]
fn nothing_is_divided_while_more_and_more_arrives() {
    let mut host = Host::new();
    host.shown();
    let begun = host.now;
    let mut total = Rate::mbit(10);
    let divided = loop {
        // A twelfth more each second, until it has doubled.
        if total < Rate::mbit(20) {
            total = total.scale(61, 60);
        }
        match host.tick(total) {
            Course::Release => {}
            course => break course,
        }
    };
    assert!(host.now.since(begun) > Span::secs(8));
    assert_divides(divided, total);
}

#[test]
fn the_due_follows_a_total_that_exceeds_it() {
    let (mut host, mut divided) = Host::measured(Rate::mbit(20));
    for _ in 0..60 {
        // All that passes arrives, up to 30.
        let total = divided.min(Rate::mbit(30));
        let Course::Divide(rate) = host.tick(total) else { panic!("it is tried too soon") };
        divided = rate;
    }
    assert!(divided > Rate::mbit(22), "{divided}");
}

#[test]
fn the_due_is_a_part_of_what_the_link_carried_at_least() {
    let (_, divided) = Host::measured(Rate::mbit(3));
    let least = CARRIED * LEAST;
    assert_eq!(divided, least.scale(1_000 + SLACK_MIN, 1_000));
}

#[test]
fn classes_are_opened_until_the_due_arrives_and_no_further() {
    let due = Rate::mbit(20);
    let (mut host, mut divided) = Host::measured(due);
    let mut arrived = Vec::new();
    for _ in 0..80 {
        // Rivals take a fifth of what passes.
        let total = divided.scale(4, 5);
        arrived.push(total);
        let Course::Divide(rate) = host.tick(total) else { panic!("it is tried too soon") };
        divided = rate;
    }
    assert!(arrived[0] < due.scale(85, 100));
    let settled = &arrived[40..];
    let (least, most) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
    assert!(*least >= due.scale(94, 100) && *most <= due.scale(104, 100), "{least} {most}");
    // Where all that passes arrives, nothing is opened.
    let (mut host, mut divided) = Host::measured(due);
    for _ in 0..80 {
        let Course::Divide(rate) = host.tick(due) else { panic!("it is tried too soon") };
        divided = rate;
    }
    let least = due.scale(1_000 + SLACK_MIN, 1_000);
    assert!(divided >= least && divided < least.scale(101, 100), "{divided}");
}

#[test]
fn a_due_that_is_not_reached_with_all_classes_open_falls() {
    let (mut host, _) = Host::measured(Rate::mbit(20));
    let mut divided = Vec::new();
    for _ in 0..90 {
        let Course::Divide(rate) = host.tick(Rate::mbit(6)) else { panic!("it is tried too soon") };
        divided.push(rate);
    }
    let most = divided.iter().max().unwrap();
    assert!(*most <= Rate::mbit(20).scale(1_000 + SLACK_MAX, 1_000), "{most}");
    assert!(divided.last().unwrap() < &most.scale(8, 10), "{divided:?}");
    assert!(divided.last().unwrap() >= &Rate::mbit(6));
}

#[test]
fn the_queue_is_tried_again_after_a_stay_that_doubles_while_rivals_stay() {
    let (mut host, _) = Host::measured(Rate::mbit(20));
    for stay in [20, 40, 80, 120, 120].map(Span::secs) {
        let (waited, capacity) = host.until_tried(Rate::mbit(18));
        assert!(waited >= stay && waited <= stay + TICK * 2, "{waited} instead of {stay}");
        let near = Rate::mbit(18);
        assert!(capacity >= near.scale(99, 100) && capacity <= near.scale(101, 100), "{capacity}");
        assert!(!host.rivals.are_there());
        assert_eq!(host.tick(Rate::mbit(18)), Course::Alone);
        // They are there again soon.
        host.shown();
        while host.tick(Rate::mbit(18)) == Course::Release {}
    }
    host.until_tried(Rate::mbit(18));
    // They come back late.
    host.now = host.now + BACK_WITHIN;
    host.shown();
    while host.tick(Rate::mbit(18)) == Course::Release {}
    let (waited, _) = host.until_tried(Rate::mbit(18));
    assert!(waited <= STAY_MIN + TICK * 2, "{waited}");
}

#[test]
fn what_rivals_take_while_the_queue_is_tried_is_not_measured_anew() {
    let (mut host, _) = Host::measured(Rate::mbit(20));
    host.until_tried(Rate::mbit(20));
    let begun = host.now;
    let divided = loop {
        match host.tick(Rate::mbit(8)) {
            Course::Alone => {}
            course => break course,
        }
    };
    assert!(host.now.since(begun) <= TICK * 3, "{}", host.now.since(begun));
    let Course::Divide(rate) = divided else { panic!("{divided:?}") };
    assert!(rate >= Rate::mbit(20), "{rate}");
    // It is tried again, later than before.
    let (waited, _) = host.until_tried(Rate::mbit(20));
    assert!(waited >= STAY_MIN * 2, "{waited}");
    // What no rival takes for long enough is this host's.
    while host.now.since(begun) < Span::secs(100) {
        assert_eq!(host.tick(Rate::mbit(20)), Course::Alone);
    }
    assert_eq!(host.tick(Rate::mbit(8)), Course::Alone);
}

#[test]
fn a_queue_that_stays_short_is_nobodys() {
    let (mut host, _) = Host::measured(Rate::mbit(20));
    let rippled = |tick: u32| Rate::mbit(20 + u64::from(tick % 2));
    // Between two losses of theirs it is short for a while.
    for tick in 0..80 {
        let course = host.tick_beside(rippled(tick), tick % 20 < SHORT_TICKS - 1);
        assert!(matches!(course, Course::Divide(_)), "{course:?}");
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
    let divided = host.until_not(&Course::Alone, CARRIED.scale(80, 100));
    let Course::Divide(rate) = divided else { panic!("{divided:?}") };
    assert!(rate >= CARRIED, "{rate}");
}

#[test]
fn a_comparison_that_finds_more_is_divided() {
    let mut host = Host::new();
    assert!(host.rivals.handle_doubt(host.now, CARRIED / 2));
    assert!(!host.rivals.handle_doubt(host.now, CARRIED / 2), "one at a time");
    let divided = host.until_not(&Course::Release, CARRIED);
    assert_divides(divided, CARRIED);
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

#[test]
fn classes_that_hold_nothing_back_on_a_link_of_its_own_are_given_up() {
    let (mut host, _) = Host::measured(Rate::mbit(20));
    let begun = host.now;
    let course = loop {
        match host.tick_beside(Rate::mbit(6), false) {
            Course::Divide(_) => {}
            course => break course,
        }
    };
    assert_eq!(course, Course::Accept(Rate::mbit(6)));
    assert!(
        host.now.since(begun) <= TICK * u64::from(DIVIDED_OWN_TICKS + 6),
        "{}",
        host.now.since(begun)
    );
}
