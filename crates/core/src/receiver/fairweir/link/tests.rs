use proptest::prelude::*;

use super::super::super::delay::{DelayEstimator, Queue};
use super::super::super::{ConnectionSample, Observation, TransitSample};
use super::super::PACKET_GUESS;
use super::super::tests::{plain, random};
use super::*;

const MS: Span = Span::millis(1);
const QUEUE: Span = Span::millis(5);

/// A link and the current time.
struct Line {
    link: Link,
    now: Time,
}

/// The data of a tick in addition to its volume.
#[derive(Clone, Copy)]
struct Heard {
    least: Span,
    value: Span,
    samples: u32,
    source: DelaySource,
    sources: u32,
    is_wanted: bool,
}

const EMPTY: Heard = Heard {
    least: Span::ZERO,
    value: Span::ZERO,
    samples: 40,
    source: DelaySource::Timestamps,
    sources: 2,
    is_wanted: false,
};
const WANTED: Heard = Heard { is_wanted: true, ..EMPTY };
const BUSY: Heard = Heard { least: Span::millis(4), value: QUEUE, ..WANTED };

impl Line {
    fn new(capacity: Option<Rate>) -> Line {
        Line { link: Link::new(capacity), now: Time::ZERO }
    }

    fn tick(&mut self, total: Rate, heard: Heard) -> Verdict {
        self.now = self.now + TICK;
        let Heard { least, value, samples, source, sources, is_wanted } = heard;
        let delay = (samples > 0).then_some(DelaySample {
            value,
            least,
            noise: Span::ZERO,
            source,
            samples,
            sources,
        });
        let (at, interval, volume) = (self.now, TICK, total * TICK);
        self.link.handle_tick(&Tick {
            at,
            interval,
            volume,
            delay,
            is_wanted,
            queue: QUEUE,
            rtt: Span::ZERO,
            latency: QUEUE,
            packet: PACKET_GUESS,
            is_held: false,
        })
    }

    fn capacity(&self) -> Rate {
        self.link.capacity().unwrap()
    }
}

#[test]
fn a_link_is_full_if_the_same_arrives_although_more_is_let_through() {
    // A connection with its own queue sees it empty, while the link is full.
    let mut line = Line::new(Some(Rate::mbit(96)));
    let verdicts: Vec<Verdict> = (0..60).map(|_| line.tick(Rate::mbit(96), WANTED)).collect();
    assert!(verdicts.contains(&Verdict::Full), "{verdicts:?}");
    assert!(line.capacity() <= Rate::mbit(96).scale(106, 100), "{:?}", line.capacity());
    // A rate that follows the estimate is what windows let through; a rate that changes by 5 % per tick is not steady.
    let mut line = Line::new(Some(Rate::mbit(96)));
    for tick in 0..60 {
        let total = match tick % 2 {
            0 => line.capacity(),
            _ => line.capacity().scale(95, 100),
        };
        assert_ne!(line.tick(total, WANTED), Verdict::Full);
    }
    // With few packets a steady rate is chance, and senders that want no more say nothing about the link.
    for (rate, heard) in [(5, WANTED), (96, EMPTY)] {
        let mut line = Line::new(Some(Rate::mbit(rate)));
        assert!((0..60).all(|_| line.tick(Rate::mbit(rate), heard) != Verdict::Full));
    }
}

#[test]
fn what_a_busy_link_carries_is_its_capacity_up_and_down_at_once() {
    let mut line = Line::new(None);
    let m = Rate::mbit;
    assert_eq!(line.tick(m(20), WANTED), Verdict::Rest, "a link that was not busy is not known");
    assert_eq!(line.link.capacity(), None);
    assert_eq!(line.tick(m(30), BUSY), Verdict::Changed(Act::Learn { to: m(30) }));
    for _ in 0..6 {
        assert_eq!(line.tick(m(30), BUSY), Verdict::Rest);
    }
    let (from, to) = (m(30), m(10));
    assert_eq!(line.tick(to, BUSY), Verdict::Changed(Act::Measured { from, to }));
    assert_eq!(line.tick(from, BUSY), Verdict::Changed(Act::Measured { from: to, to: from }));
    assert_eq!((line.capacity(), line.link.confirmed()), (m(30), Some(m(30))));
}

#[test]
fn a_fall_as_soon_as_the_capacity_is_learned_is_due_to_others() {
    let mut line = Line::new(None);
    let m = Rate::mbit;
    line.tick(m(30), BUSY);
    assert_eq!(line.tick(m(18), BUSY), Verdict::Rivals);
    assert_eq!(line.capacity(), m(30));
    let mut line = Line::new(None);
    line.tick(m(30), BUSY);
    let (from, to) = (m(30), m(21));
    assert_eq!(line.tick(to, BUSY), Verdict::Changed(Act::Measured { from, to }));
}

#[test]
fn a_single_source_lowers_the_capacity_to_half_until_the_received_rate_confirms_less() {
    let m = Rate::mbit;
    let lone = Heard { sources: 1, ..BUSY };
    let mut line = Line::new(None);
    line.tick(m(32), lone);
    assert_eq!(line.capacity(), m(32), "the first estimate may be one source's");
    for _ in 0..3 {
        line.tick(m(1), lone);
        assert_eq!(line.capacity(), m(16));
        assert_eq!(line.link.confirmed(), Some(m(32)), "nothing less is remembered");
    }
    // Half of the capacity arrives: so the link carries that, and a lone source lowers it no further.
    for _ in 0..20 {
        line.tick(m(16), lone);
        assert_eq!(line.capacity(), m(16));
    }
    // Less arrives than the windows let through: the link really carries less.
    for _ in 0..20 {
        line.tick(m(3), lone);
    }
    assert_eq!(line.capacity(), m(3));
    // Two sources are believed at once.
    let mut line = Line::new(Some(m(32)));
    line.tick(m(3), BUSY);
    assert_eq!(line.capacity(), m(3));
}

#[test]
fn a_capacity_that_somebody_said_is_corrected_by_what_is_measured() {
    let m = Rate::mbit;
    // A single source lowers it to half of the trusted capacity, which is not the supposed one.
    let mut line = Line::new(Some(m(10)));
    line.link.suppose(m(80));
    assert_eq!((line.capacity(), line.link.confirmed()), (m(80), None));
    line.tick(m(9), Heard { sources: 1, ..BUSY });
    assert_eq!(line.capacity(), m(9));
    // The supposed capacity is right.
    line.link.suppose(m(28));
    line.tick(m(28), BUSY);
    assert_eq!((line.capacity(), line.link.confirmed()), (m(28), Some(m(28))));
}

#[test]
fn changes_by_less_than_a_twentieth_are_followed_but_are_no_news() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    for total in [Rate::mbit(29), Rate::mbit(30)] {
        assert_eq!(line.tick(total, BUSY), Verdict::Rest);
        assert_eq!(line.capacity(), total);
    }
}

#[test]
fn few_packets_are_gathered_and_none_for_a_second_conclude_nothing() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    let few = Heard { samples: 6, ..BUSY };
    for _ in 0..3 {
        assert_eq!(line.tick(Rate::mbit(10), few), Verdict::Gather);
    }
    assert!(matches!(line.tick(Rate::mbit(10), few), Verdict::Changed(Act::Measured { .. })));
    let nothing = Heard { samples: 0, ..WANTED };
    for _ in 0..5 {
        line.tick(Rate::ZERO, nothing);
    }
    assert!(line.capacity() >= Rate::mbit(10));
}

#[test]
fn one_moment_without_a_queue_is_enough_to_say_that_the_link_was_not_busy() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    for _ in 0..3 {
        line.tick(Rate::mbit(10), Heard { samples: 5, ..BUSY });
    }
    line.tick(Rate::mbit(10), Heard { samples: 5, least: Span::ZERO, ..BUSY });
    assert!(line.capacity() >= Rate::mbit(30));
}

#[test]
fn a_probe_alone_lowers_nothing_while_nobody_wants_more() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    let probe = Heard { source: DelaySource::Probe, is_wanted: false, ..BUSY };
    assert_eq!(line.tick(Rate::mbit(5), probe), Verdict::Rest);
    assert_eq!(line.capacity(), Rate::mbit(30));
}

#[test]
fn the_estimate_creeps_only_while_somebody_wants_and_nothing_queues() {
    let m = Rate::mbit;
    let hears = |heard: Heard| {
        let mut line = Line::new(None);
        line.tick(m(30), BUSY);
        // The estimate does not rise right after the link was busy.
        for _ in 0..2 {
            line.tick(m(29), heard);
            assert_eq!(line.capacity(), m(30));
        }
        for _ in 0..10 {
            // Windows let through the believed capacity.
            line.tick(line.capacity().scale(99, 100), heard);
        }
        line.capacity()
    };
    assert_eq!(hears(Heard { value: QUEUE / 2, ..WANTED }), m(30));
    let mut line = Line::new(Some(m(30)));
    for heard in [EMPTY, WANTED] {
        for _ in 0..20 {
            line.tick(m(25), heard);
        }
        assert_eq!(line.capacity(), m(30), "less arrives than is believed");
    }
    let crept = hears(WANTED);
    assert!(crept > m(31) && crept < m(60), "{crept}");
}

#[test]
fn an_estimate_that_was_lowered_expires_and_later_each_time_that_it_was_right() {
    let m = Rate::mbit;
    let mut line = Line::new(None);
    for _ in 0..10 {
        line.tick(m(30), BUSY);
    }
    let mut stands = |heard: Heard| {
        line.tick(m(12), BUSY);
        let at = (0..200).position(|_| {
            line.tick(m(8), heard);
            line.capacity() == m(30)
        });
        at.map(|ticks| TICK * (ticks as u64 + 1))
    };
    let bounds = [(2, 3), (4, 5), (8, 9), (16, 17), (16, 17)];
    for (least, most) in bounds.map(|(least, most)| (Span::secs(least), Span::secs(most))) {
        let stood = stands(WANTED).unwrap();
        assert!(stood > least && stood < most, "{stood} instead of {least} to {most}");
    }
    assert_eq!(stands(EMPTY), None, "it is not needed");
}

#[test]
fn what_does_not_arrive_of_the_capacity_is_unused_unless_it_is_little() {
    let unused = |kbit| {
        let mut line = Line::new(Some(Rate::mbit(30)));
        for _ in 0..200 {
            line.tick(Rate::kbit(kbit), Heard { value: QUEUE / 2, ..EMPTY });
        }
        line.link.unused(Rate::mbit(1))
    };
    assert_eq!([unused(14_000), unused(26_000), unused(28_500), unused(30_000)], [500, 100, 0, 0]);
    assert_eq!(Link::new(None).unused(Rate::ZERO), 0);
}

#[test]
fn a_queue_that_does_not_react_is_none() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    // The delay that looks like a queue stays, so the windows are narrowed and less arrives.
    let verdicts: Vec<Verdict> =
        (1..=8).map(|i| line.tick(Rate::mbit(30) / 10 * (10 - i), BUSY)).collect();
    let found = verdicts.iter().position(|v| *v == Verdict::NoQueue).unwrap();
    assert!((2..4).contains(&found), "{verdicts:?}");
    let mut line = Line::new(Some(Rate::mbit(30)));
    for i in 1..=found as u64 + 1 {
        line.tick(Rate::mbit(30) / 10 * (10 - i), BUSY);
    }
    assert_eq!(line.capacity(), Rate::mbit(30));
}

#[test]
fn a_capacity_that_falls_step_by_step_is_followed_if_the_queue_reacts() {
    let mut line = Line::new(Some(Rate::mbit(30)));
    for i in 1..=8 {
        let least = MS * (20 - 2 * i);
        let verdict = line.tick(Rate::mbit(30 - 3 * i), Heard { least, value: least, ..BUSY });
        assert!(i < 6 || verdict != Verdict::NoQueue || least > MS * 13, "{i}: {verdict:?}");
    }
    assert!(line.capacity() < Rate::mbit(10));
}

#[test]
fn noise_of_5_ms_does_not_make_an_idle_link_busy() {
    // Packets per tick, with exponentially distributed delays; 165 packets per tick are 10 Mbit/s.
    for (packets, bound) in [(165, 0.0), (60, 0.0), (40, 0.004), (20, 0.03)] {
        let (mut state, mut busy) = (1, 0);
        let mut delay = DelayEstimator::default();
        let mut line = Line::new(Some(Rate::mbit(30)));
        for tick in 1..=3_000 {
            let late: Vec<i64> =
                (0..packets).map(|_| (-random(&mut state).ln() * 5e6) as i64).collect();
            let min_ns = *late.iter().min().unwrap();
            let mean_ns = late.iter().sum::<i64>() / late.len() as i64;
            let transit = Some(TransitSample { min_ns, mean_ns, samples: packets });
            let segments = packets.into();
            let connections = vec![ConnectionSample { id: 1, segments, transit, ..plain() }];
            let at = Time::ZERO + TICK * tick;
            let interval = TICK;
            let seen = Observation { at, interval, connections, ..Observation::default() };
            // The first tick is the base.
            let Some(delay) = delay.handle_observation(&seen, Queue::Unknown, false) else {
                continue;
            };
            let Heard { source, .. } = EMPTY;
            let DelaySample { value, least, samples, .. } = delay;
            let total = Rate::from_volume(Bytes::new(1_514) * packets.into(), TICK);
            let heard = Heard { least, value, samples, source, sources: 2, is_wanted: false };
            if line.tick(total, heard) != Verdict::Rest {
                busy += 1;
                line = Line::new(Some(Rate::mbit(30)));
            }
        }
        let part = f64::from(busy) / 3_000.0;
        println!("{packets} packets a tick: busy in {part:.4} of the ticks");
        assert!(part <= bound, "{packets} packets a tick: {part}");
    }
}

proptest! {
    #[test]
    fn silence_and_low_demand_never_lower_the_capacity(
        ticks in prop::collection::vec((0u64..40_000, 0u64..20, 0u32..60, any::<bool>()), 1..300)
    ) {
        let mut line = Line::new(Some(Rate::mbit(30)));
        let mut before = line.capacity();
        for (kbit, value_ms, samples, is_wanted) in ticks {
            // The queue was empty at least once in each interval.
            let heard = Heard { value: Span::millis(value_ms), samples, is_wanted, ..EMPTY };
            let verdict = line.tick(Rate::kbit(kbit), heard);
            let falls = matches!(verdict, Verdict::Changed(Act::Decrease { .. } | Act::Measured { .. }));
            prop_assert!(!falls);
            prop_assert!(line.capacity() >= before);
            before = line.capacity();
        }
    }
}
