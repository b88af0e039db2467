use proptest::prelude::*;

use super::*;
use crate::receiver::TICK;

const QUEUE: Span = Span::millis(5);

/// The data of a tick in addition to the rate.
#[derive(Clone, Copy, Debug)]
struct Heard {
    lossy: u32,
    queue: Option<Span>,
    is_wanted: bool,
    shown: Option<Rate>,
}

const CLEAN: Heard = Heard { lossy: 0, queue: Some(Span::ZERO), is_wanted: true, shown: None };
const LOSSY: Heard = Heard { lossy: 2, ..CLEAN };
const DEEP: Heard = Heard { queue: Some(Span::millis(40)), ..CLEAN };

/// A line with losses, and the capacity that is believed.
struct Line {
    losses: Losses,
    now: Time,
    capacity: Option<Rate>,
}

impl Line {
    fn new(capacity: Option<Rate>) -> Line {
        Line { losses: Losses::new(), now: Time::ZERO, capacity }
    }

    fn tick(&mut self, rate: Rate, heard: Heard) -> LossVerdict {
        self.now = self.now + TICK;
        let Heard { lossy, queue, is_wanted, shown } = heard;
        let (at, active, queue_target) = (self.now, 5, QUEUE);
        let interval = Interval { at, rate, active, lossy, queue, queue_target, is_wanted, shown };
        let verdict = self.losses.handle_interval(interval, self.capacity);
        self.capacity = match verdict {
            LossVerdict::None => self.capacity,
            LossVerdict::Limit(rate) => Some(rate),
            LossVerdict::Back(capacity) => capacity,
        };
        verdict
    }

    /// A tick behind a policer, which drops packets whenever more than `plan` is let through.
    fn policed(&mut self, plan: Rate) -> LossVerdict {
        let sent = self.capacity.unwrap_or(plan * 3);
        let heard = if sent > plan { LOSSY } else { CLEAN };
        self.tick(sent.min(plan), heard)
    }

    /// Ticks behind the policer until there is a ceiling.
    fn limited(plan: Rate) -> Line {
        let mut line = Line::new(None);
        while !line.losses.is_limiting() || line.losses.is_testing() {
            line.policed(plan);
            assert!(line.now < Time::ZERO + Span::secs(20), "there is no ceiling");
        }
        line
    }
}

const PLAN: Rate = Rate::mbit(30);

#[test]
fn losses_that_end_below_a_policers_rate_make_that_the_ceiling() {
    let mut line = Line::new(None);
    for tick in 1..STEADY_TICKS {
        assert_eq!(line.policed(PLAN), LossVerdict::None, "tick {tick}");
    }
    let tested = PLAN.scale(93, 100);
    assert_eq!(line.policed(PLAN), LossVerdict::Limit(tested));
    assert!(line.losses.is_testing());
    let begun = line.now;
    while line.losses.is_testing() {
        assert_eq!(line.policed(PLAN), LossVerdict::Limit(tested));
    }
    assert!(line.losses.is_limiting());
    assert!(line.now.since(begun) <= TEST + TICK, "{}", line.now.since(begun));
}

#[test]
fn a_ceiling_is_raised_until_packets_are_lost_and_cut_to_what_was_good_with_double_holds() {
    let mut line = Line::limited(PLAN);
    let (mut raised, mut held, mut cut_at) = (false, Vec::new(), None);
    let mut lossy_ticks = 0;
    for _ in 0..5 * 600 {
        let before = line.capacity.unwrap();
        line.policed(PLAN);
        let now = line.capacity.unwrap();
        assert!(now <= PLAN.scale(103, 100), "{now}");
        lossy_ticks += u32::from(before > PLAN);
        if now > before {
            raised = true;
            if let Some(cut_at) = cut_at.take() {
                held.push(line.now.since(cut_at));
            }
        } else if now < before {
            // No packets are lost at the lowered ceiling, which is little below the plan.
            assert!(now <= PLAN && now >= PLAN.scale(90, 100), "{now}");
            cut_at = Some(line.now);
        }
    }
    assert!(raised);
    let doubled: Vec<Span> = (1..=5).map(|i| (HOLD_MIN * (1 << i)).min(HOLD_MAX)).collect();
    assert!(held.len() > doubled.len(), "{held:?}");
    for (held, doubled) in held.iter().zip(&doubled) {
        assert!(*held >= *doubled && *held <= *doubled + TICK * 2, "{held} instead of {doubled}");
    }
    assert!(lossy_ticks < 60, "{lossy_ticks} of 3000 ticks have losses");
}

#[test]
fn a_loss_within_a_hold_lowers_the_ceiling_and_a_few_such_holds_are_noise() {
    let mut line = Line::limited(PLAN);
    // Losses after the test that no ceiling ends.
    let mut ceilings = vec![line.capacity.unwrap()];
    for _ in 0..5 * 60 {
        let capacity = line.capacity.unwrap_or(PLAN);
        if let LossVerdict::Back(before) = line.tick(capacity, LOSSY) {
            assert_eq!(before, None, "as before the test");
            break;
        }
        ceilings.push(line.capacity.unwrap());
    }
    assert!(!line.losses.is_limiting(), "{ceilings:?}");
    assert!(ceilings.is_sorted_by(|a, b| a >= b), "{ceilings:?}");
    assert!(ceilings.last().unwrap() < &ceilings[0]);
}

/// If something else limits the senders, the ceiling does not cause the losses.
#[test]
fn a_ceiling_that_is_wanted_and_far_from_reached_is_given_up() {
    let mut line = Line::limited(PLAN);
    let half = line.capacity.unwrap() / 2;
    let begun = line.now;
    while line.losses.is_limiting() {
        line.tick(half, CLEAN);
        assert!(line.now.since(begun) <= TICK * 40, "it is kept");
    }
    // A ceiling that senders do not ask for is kept.
    let mut line = Line::limited(PLAN);
    for _ in 0..300 {
        line.tick(half, Heard { is_wanted: false, ..CLEAN });
    }
    assert!(line.losses.is_limiting());
}

#[test]
fn losses_that_go_on_are_noise_and_mean_nothing_the_longer_the_more_often() {
    let believed = Some(Rate::mbit(40));
    let mut line = Line::new(believed);
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..5 * 3_000 {
        let was_limiting = line.losses.is_limiting();
        // A sender that random losses limit to 20 Mbit/s, or to what is let through.
        let rate = Rate::mbit(20).min(line.capacity.unwrap_or(Rate::mbit(20)));
        let verdict = line.tick(rate, LOSSY);
        match (was_limiting, line.losses.is_limiting()) {
            (false, true) => begun.push(line.now),
            (true, false) => {
                assert_eq!(verdict, LossVerdict::Back(believed), "everything as before");
                ended.push(line.now);
            }
            (true, true) => {
                let LossVerdict::Limit(limit) = verdict else { panic!("{verdict:?}") };
                let least = Rate::mbit(20) * TESTED * TESTED;
                assert!(limit >= least, "{limit}");
            }
            (false, false) => assert_eq!(verdict, LossVerdict::None),
        }
    }
    let patience: Vec<Span> =
        begun[1..].iter().zip(&ended).map(|(begun, ended)| begun.since(*ended)).collect();
    assert!(patience.len() >= 6, "{patience:?}");
    for (i, waited) in patience.iter().enumerate() {
        let least = (PATIENCE_MIN * (1 << i.min(6))).min(PATIENCE_MAX);
        assert!(*waited >= least && *waited <= least + Span::secs(1), "{i}: {waited}, {least}");
    }
}

#[test]
fn a_deep_queue_ends_a_test_and_a_ceiling() {
    let mut line = Line::new(Some(Rate::mbit(50)));
    while !line.losses.is_testing() {
        line.tick(Rate::mbit(30), LOSSY);
    }
    let begun = line.now;
    let ended = loop {
        match line.tick(Rate::mbit(27), DEEP) {
            LossVerdict::Limit(_) => assert!(line.now.since(begun) < TEST, "it goes on"),
            verdict => break verdict,
        }
    };
    assert_eq!(ended, LossVerdict::Back(Some(Rate::mbit(50))));
    // A queue that was there before the test counts only after it has settled.
    assert!(line.now.since(begun) <= SETTLE + TICK * DEEP_TICKS as u64);
    assert!(!line.losses.is_limiting());

    let mut line = Line::limited(PLAN);
    for _ in 1..DEEP_TICKS {
        assert!(matches!(line.tick(Rate::mbit(27), DEEP), LossVerdict::Limit(_)));
    }
    assert_eq!(line.tick(Rate::mbit(27), DEEP), LossVerdict::None);
    assert!(!line.losses.is_limiting());
}

#[test]
fn a_queue_or_a_link_that_carried_more_explains_losses() {
    let m = Rate::mbit;
    for heard in [
        Heard { queue: Some(QUEUE), ..LOSSY },
        Heard { shown: Some(m(40)), ..LOSSY },
        Heard { lossy: 0, ..LOSSY },
    ] {
        let mut line = Line::new(None);
        for _ in 0..200 {
            assert_eq!(line.tick(m(30), heard), LossVerdict::None);
        }
    }
    // The same without the queue, and with a link that carries no more.
    for heard in [Heard { queue: None, ..LOSSY }, Heard { shown: Some(m(31)), ..LOSSY }] {
        let mut line = Line::new(None);
        assert!((0..200).any(|_| line.tick(m(30), heard) != LossVerdict::None));
    }
}

#[test]
fn below_the_least_rate_nothing_happens() {
    let mut line = Line::new(None);
    for _ in 0..5 * 120 {
        assert_eq!(line.tick(LOSS_RATE_MIN, LOSSY), LossVerdict::None);
    }
    assert!(!line.losses.is_limiting());
}

#[test]
fn a_ceiling_is_cut_to_no_less_than_the_least_rate() {
    let mut line = Line::limited(LOSS_RATE_MIN.scale(108, 100));
    for _ in 0..5 * 30 {
        let rate = line.capacity.unwrap_or(LOSS_RATE_MIN);
        let verdict = line.tick(rate, LOSSY);
        let is_fine = match verdict {
            LossVerdict::Limit(limit) => limit >= LOSS_RATE_MIN,
            LossVerdict::None | LossVerdict::Back(_) => true,
        };
        assert!(is_fine, "{verdict:?}");
    }
}

fn any_heard() -> impl Strategy<Value = Heard> {
    let lossy = prop_oneof![3 => Just(0u32), 2 => 0u32..6];
    let queue = prop_oneof![
        8 => (0u64..4).prop_map(|ms| Some(Span::millis(ms))),
        1 => Just(None),
        1 => (0u64..400).prop_map(|ms| Some(Span::millis(ms))),
    ];
    let shown =
        prop_oneof![4 => Just(None), 1 => (0u64..100_000).prop_map(|k| Some(Rate::kbit(k)))];
    (lossy, queue, prop::bool::weighted(0.8), shown)
        .prop_map(|(lossy, queue, is_wanted, shown)| Heard { lossy, queue, is_wanted, shown })
}

/// Ticks of one kind: behind a policer of some kbit/s, with losses, without, or with any data.
type Phase = (u64, u8, Vec<(u64, Heard)>);

fn any_phase() -> impl Strategy<Value = Phase> {
    let kbit = prop_oneof![400u64..2_000, 200u64..100_000];
    let ticks = prop::collection::vec((50u64..150, any_heard()), 1..120);
    (kbit, 0u8..4, ticks)
}

/// The rate that arrives in a tick of a phase, and its other data.
fn drawn(line: &Line, kbit: u64, kind: u8, (percent, heard): (u64, Heard)) -> (Rate, Heard) {
    let rate = Rate::kbit(kbit * percent / 100);
    let sent = line.capacity.unwrap_or(Rate::mbit(1_000));
    match kind {
        0 if sent > Rate::kbit(kbit) => (Rate::kbit(kbit), LOSSY),
        0 => (sent, CLEAN),
        1 => (rate, LOSSY),
        2 => (rate, CLEAN),
        _ => (rate, heard),
    }
}

proptest! {
    #[test]
    fn whatever_is_heard_no_limit_is_tiny_nor_above_what_arrived(
        phases in prop::collection::vec(any_phase(), 1..8)
    ) {
        let mut line = Line::new(None);
        let mut highest = LOSS_RATE_MIN;
        let mut limit_last = None;
        let ticks = phases.into_iter().flat_map(|(kbit, kind, ticks)| {
            ticks.into_iter().map(move |tick| (kbit, kind, tick))
        });
        for (kbit, kind, tick) in ticks {
            let (rate, heard) = drawn(&line, kbit, kind, tick);
            highest = highest.max(rate);
            let verdict = line.tick(rate, heard);
            let LossVerdict::Limit(limit) = verdict else {
                limit_last = None;
                continue;
            };
            prop_assert!(limit >= LOSS_RATE_MIN, "{limit}");
            let last = limit_last.unwrap_or(limit);
            if limit > last && !line.losses.is_testing() {
                // The limit grows only while it is used and nothing is lost, and only a little.
                prop_assert!(heard.is_wanted && heard.lossy == 0 && rate >= last.scale(9, 10));
                prop_assert!(limit <= last.scale(5_000 + STEP_MAX, 5_000), "{last}, {limit}");
            } else {
                prop_assert!(limit <= last.max(highest.scale(11, 10)), "{limit} of {highest}");
                prop_assert!(limit_last.is_some() || limit <= highest, "{limit} of {highest}");
            }
            limit_last = Some(limit);
        }
    }
}

#[test]
fn one_server_of_several_that_leaves_out_segments_lowers_the_ceiling_to_half_at_most() {
    let mut line = Line::limited(PLAN);
    let mut before = line.capacity;
    for _ in 0..40_000 {
        // Whenever the ceiling is raised, the server leaves out a packet.
        let lossy = u32::from(line.capacity > before);
        before = line.capacity;
        let sent = line.capacity.unwrap_or(PLAN);
        line.tick(sent.min(PLAN), Heard { lossy, ..CLEAN });
        assert!(sent >= PLAN.scale(4, 10), "{sent}");
    }
}
