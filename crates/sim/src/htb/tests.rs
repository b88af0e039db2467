use fairweir_core::receiver::{ClassRate, Excess};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};
use proptest::prelude::*;

use super::*;

const PACKET: u64 = 1_514;

fn htb(classes: usize) -> Htb<usize> {
    Htb::new(classes, Bytes::new(PACKET))
}

fn packet(class: usize, size: u64, body: usize) -> Packet<usize> {
    Packet { class, size: Bytes::new(size), body }
}

fn class(rate: Rate, ceil: Rate, priority: u8, weight: u32) -> ClassRate {
    ClassRate { rate, ceil, priority, weight: Weight::new(weight).unwrap(), excess: Excess::Drop }
}

/// Classes that do not borrow.
fn alone(rates: &[Rate]) -> Allocation {
    let classes = rates.iter().map(|&rate| class(rate, rate, 0, 1)).collect();
    Allocation { total: None, classes }
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::millis(n)
}

/// The packets that left, and when.
type Left = Vec<(Time, Packet<usize>)>;

/// Takes out, in time, the packets that leave until `end`.
fn drain(htb: &mut Htb<usize>, end: Time, left: &mut Left) {
    while let Some(at) = htb.next_departure().filter(|&at| at <= end) {
        while let Some(packet) = htb.poll_departure(at) {
            left.push((at, packet));
        }
    }
}

/// Keeps some classes backlogged from `begin` to `end`, and takes every packet out in time.
fn backlogged(htb: &mut Htb<usize>, classes: &[usize], begin: Time, end: Time) -> Left {
    let mut left = Left::new();
    let mut now = begin;
    while now < end {
        for &class in classes {
            while htb.backlog(class) < Bytes::new(4 * PACKET) {
                match htb.enqueue(now, packet(class, PACKET, 0)) {
                    Verdict::Pass(packet) => left.push((now, packet)),
                    Verdict::Waits => {}
                    Verdict::Dropped(_) => panic!("four packets have room"),
                }
            }
        }
        now = now + Span::micros(200);
        drain(htb, now, &mut left);
    }
    left
}

fn volume(left: &Left, class: usize, from: Time, to: Time) -> u64 {
    let within = left.iter().filter(|(at, p)| p.class == class && (from..to).contains(at));
    within.map(|(_, p)| p.size.as_u64()).sum()
}

fn rates(left: &Left, classes: usize, from: Time, to: Time) -> Vec<f64> {
    let rate = |class| Rate::from_volume(Bytes::new(volume(left, class, from, to)), to.since(from));
    (0..classes).map(|class| rate(class).as_mbit_f64()).collect()
}

#[track_caller]
fn assert_near(found: &[f64], wanted: &[f64], within: f64) {
    for (f, w) in found.iter().zip(wanted) {
        assert!((f - w).abs() <= within * w.max(0.1), "{found:?}, wanted {wanted:?}");
    }
}

#[test]
fn before_there_are_rates_everything_passes() {
    let mut htb = htb(2);
    for i in 0..1_000 {
        assert!(matches!(htb.enqueue(Time::ZERO, packet(1, PACKET, i)), Verdict::Pass(_)));
    }
    assert_eq!((htb.next_departure(), htb.drops(1)), (None, 0));
}

#[test]
fn a_backlogged_class_gets_its_rate() {
    let given = [Rate::kbit(100), Rate::kbit(3_333), Rate::mbit(20), Rate::bps(123_456_789)];
    let mut htb = htb(4);
    htb.apply(Time::ZERO, &alone(&given));
    let left = backlogged(&mut htb, &[0, 1, 2, 3], Time::ZERO, ms(22_000));
    // The slowest class needs 1.2 s for its first burst.
    let wanted = given.map(Rate::as_mbit_f64);
    assert_near(&rates(&left, 4, ms(2_000), ms(22_000)), &wanted, 0.005);
}

#[test]
fn a_rate_that_divides_nothing_evenly_is_exact_over_an_hour() {
    let rate = Rate::bps(7_777_777);
    let mut htb = htb(1);
    htb.apply(Time::ZERO, &alone(&[rate]));
    let (mut sent, mut now) = (0u64, Time::ZERO);
    while now < ms(3_600_000) {
        match htb.enqueue(now, packet(0, 997, 0)) {
            Verdict::Pass(_) => {}
            Verdict::Waits => {
                now = htb.next_departure().unwrap();
                htb.poll_departure(now).unwrap();
            }
            Verdict::Dropped(_) => panic!("one packet has room"),
        }
        sent += 997;
    }
    let ideal = (rate * now.since(Time::ZERO)).as_u64() + ClassSpec::burst(rate).as_u64();
    assert!(sent.abs_diff(ideal) <= 997 + ideal / 100_000_000, "{sent} {ideal}");
}

#[test]
fn no_window_of_any_length_has_more_than_a_burst_and_a_packet() {
    let rate = Rate::mbit(12);
    let mut htb = htb(1);
    htb.apply(Time::ZERO, &alone(&[rate]));
    let mut left = Left::new();
    // The pauses are 1 to 40 ms, so that the burst is found full, half full and empty.
    for (i, pause) in [1, 40, 3, 15, 7, 2, 30, 5].into_iter().cycle().take(60).enumerate() {
        let now = ms(45 * i as u64 + pause);
        drain(&mut htb, now, &mut left);
        for body in 0..20 {
            if let Verdict::Pass(packet) = htb.enqueue(now, packet(0, 1_000 + i as u64, body)) {
                left.push((now, packet));
            }
        }
    }
    drain(&mut htb, ms(10_000), &mut left);
    let burst = ClassSpec::burst(rate).as_u64();
    let (mut fullest, mut sizes) = (0, 0);
    for (i, (begin, _)) in left.iter().enumerate() {
        let mut sum = 0;
        for (at, packet) in &left[i..] {
            sum += packet.size.as_u64();
            sizes = sizes.max(packet.size.as_u64());
            fullest = fullest.max(sum.saturating_sub((rate * at.since(*begin)).as_u64()));
        }
    }
    assert!(fullest <= burst + sizes + 1, "{fullest} {burst}");
    assert!(fullest > burst, "the burst was never used: {fullest}");
}

#[test]
fn a_queue_takes_100_ms_and_then_drops_what_comes() {
    let mut htb = htb(2);
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(8), Rate::kbit(100)]));
    let mut verdicts = |class| {
        let all: Vec<_> =
            (0..200).map(|i| htb.enqueue(Time::ZERO, packet(class, 1_000, i))).collect();
        let dropped = all.iter().filter(|v| matches!(v, Verdict::Dropped(_))).count();
        (htb.backlog(class).as_u64(), htb.drops(class), dropped)
    };
    // 15 packets pass from the burst, and one more because there is no debt yet.
    assert_eq!(verdicts(0), (100_000, 84, 84));
    assert_eq!(verdicts(1), (9_000, 175, 175));
}

#[test]
fn a_change_of_rates_loses_nothing_that_waits_and_keeps_a_debt_as_time() {
    let mut htb = htb(1);
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(8)]));
    for i in 0..116 {
        let _ = htb.enqueue(Time::ZERO, packet(0, 1_000, i));
    }
    assert_eq!(htb.backlog(0), Bytes::kb(100));
    let due = htb.next_departure();
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(1)]));
    assert_eq!((htb.backlog(0), htb.next_departure()), (Bytes::kb(100), due));
    assert!(matches!(htb.enqueue(Time::ZERO, packet(0, 1_000, 0)), Verdict::Dropped(_)));
    let mut left = Left::new();
    drain(&mut htb, ms(1_000_000), &mut left);
    assert_eq!(left.len(), 100);
    // First the debt of one packet at 8 Mbit/s is paid, then 99 packets go at 1 Mbit/s.
    assert_eq!(left[99].0, ms(1 + 99 * 8));
}

#[test]
fn a_release_lets_everything_out_at_once_and_rates_hold_again_after_it() {
    let mut htb = htb(2);
    let rates = alone(&[Rate::mbit(1); 2]);
    htb.apply(Time::ZERO, &rates);
    for i in 0..24 {
        let _ = htb.enqueue(Time::ZERO, packet(i % 2, PACKET, i));
    }
    assert!(htb.backlog(0) > Bytes::ZERO && htb.backlog(1) > Bytes::ZERO);
    htb.release(ms(1));
    // A packet keeps its place behind those that wait, and no number of packets is too large.
    assert_eq!(htb.enqueue(ms(1), packet(0, 1_000_000, 99)), Verdict::Waits);
    assert_eq!(htb.next_departure(), Some(ms(1)));
    let out: Vec<_> = std::iter::from_fn(|| htb.poll_departure(ms(1))).collect();
    let of_0 = out.iter().filter(|p| p.class == 0).map(|p| p.body).collect::<Vec<_>>();
    assert!(of_0.is_sorted() && of_0.last() == Some(&99), "{of_0:?}");
    assert_eq!((htb.backlog(0), htb.backlog(1), htb.next_departure()), <_>::default());
    assert!(matches!(htb.enqueue(ms(1), packet(1, PACKET, 0)), Verdict::Pass(_)));
    htb.apply(ms(1), &rates);
    assert_eq!(
        htb.enqueue(ms(1), packet(0, PACKET, 0)),
        Verdict::Waits,
        "the debt is not forgotten"
    );
}

/// Classes as the control `borrow` sets them up: shares of 20 Mbit/s, each may have everything.
fn borrowing(weights: &[u32]) -> Allocation {
    let total = Rate::mbit(20);
    let sum: u32 = weights.iter().sum();
    let share = |w: u32| total.scale(w.into(), sum.into());
    let classes = weights.iter().map(|&w| class(share(w), total, 0, w)).collect();
    Allocation { total: Some(total), classes }
}

#[test]
fn what_nobody_uses_is_borrowed_by_quantum() {
    let mut htb = htb(4);
    htb.apply(Time::ZERO, &borrowing(&[5, 3, 1, 1]));
    // Class 0 is idle: the others divide its 10 Mbit/s by 3:1:1 in addition to their own rates.
    let left = backlogged(&mut htb, &[1, 2, 3], Time::ZERO, ms(10_000));
    assert_near(&rates(&left, 4, ms(1_000), ms(10_000)), &[0.0, 12.0, 4.0, 4.0], 0.01);
}

#[test]
fn alone_a_class_borrows_everything_and_all_together_have_no_more_than_the_total() {
    let mut htb = htb(3);
    htb.apply(Time::ZERO, &borrowing(&[5, 3, 1]));
    let left = backlogged(&mut htb, &[2], Time::ZERO, ms(3_000));
    assert_near(&rates(&left, 3, ms(1_000), ms(3_000)), &[0.0, 0.0, 20.0], 0.005);
    let left = backlogged(&mut htb, &[0, 1, 2], ms(3_000), ms(6_000));
    let found = rates(&left, 3, ms(4_000), ms(6_000));
    assert_near(&found, &[11.111, 6.667, 2.222], 0.005);
    assert_near(&[found.iter().sum()], &[20.0], 0.005);
}

/// Classes as the control `chokepoint` sets them up with strict priority.
fn strict(classes: usize) -> Allocation {
    let total = Rate::mbit(25);
    let class = |i| class(total / 1_000, total, i as u8, 1);
    Allocation { total: Some(total), classes: (0..classes).map(class).collect() }
}

#[test]
fn a_strict_priority_starves_the_lower_ones_to_what_they_own() {
    let mut htb = htb(3);
    htb.apply(Time::ZERO, &strict(3));
    let left = backlogged(&mut htb, &[0, 1, 2], Time::ZERO, ms(20_000));
    // A class of 25 kbit/s needs 5 s to pay for its first burst of 15 kB.
    assert_near(&rates(&left, 3, ms(6_000), ms(20_000)), &[24.95, 0.025, 0.025], 0.02);
    let left = backlogged(&mut htb, &[1, 2], ms(20_000), ms(30_000));
    assert_near(&rates(&left, 3, ms(22_000), ms(30_000)), &[0.0, 24.975, 0.025], 0.03);
}

#[test]
fn what_a_class_owns_is_never_taken_by_a_higher_priority() {
    let mut htb = htb(2);
    let total = Rate::mbit(20);
    let classes = vec![class(Rate::mbit(5), total, 0, 1), class(Rate::mbit(8), total, 1, 1)];
    htb.apply(Time::ZERO, &Allocation { total: Some(total), classes });
    let left = backlogged(&mut htb, &[0, 1], Time::ZERO, ms(5_000));
    assert_near(&rates(&left, 2, ms(1_000), ms(5_000)), &[12.0, 8.0], 0.005);
}

#[test]
fn a_late_poll_makes_up_for_a_burst_and_no_more() {
    let mut htb = htb(1);
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(8)]));
    for i in 0..116 {
        let _ = htb.enqueue(Time::ZERO, packet(0, 1_000, i));
    }
    let out = std::iter::from_fn(|| htb.poll_departure(ms(60))).count();
    assert_eq!(out, 16, "15 kB and the packet that makes a debt");
}

/// A step of a caller: it waits some µs, then hands in a packet (class and size).
type Step = (u64, usize, u64);

fn steps(classes: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0u64..1_500, 0..classes, 60u64..=PACKET), 1..400)
}

/// The packets that left, in order, and those that were dropped.
fn play(allocation: &Allocation, steps: &[Step]) -> (Left, Vec<usize>) {
    let mut htb = htb(3);
    htb.apply(Time::ZERO, allocation);
    let (mut left, mut dropped, mut now) = (Left::new(), Vec::new(), Time::ZERO);
    for (i, &(gap, class, size)) in steps.iter().enumerate() {
        now = now + Span::micros(gap);
        drain(&mut htb, now, &mut left);
        match htb.enqueue(now, packet(class, size, i)) {
            Verdict::Pass(packet) => left.push((now, packet)),
            Verdict::Waits => {}
            Verdict::Dropped(packet) => dropped.push(packet.body),
        }
    }
    drain(&mut htb, now + Span::secs(100), &mut left);
    assert_eq!(htb.next_departure(), None);
    (left, dropped)
}

/// Departures of one class from a bucket that is filled each microsecond.
fn oracle(rate: Rate, steps: &[Step], class: usize) -> Vec<(u64, usize)> {
    let per_us = rate.as_bps() as f64 / 8e6;
    let depth = ClassSpec::burst(rate).as_u64() as f64;
    let (mut tokens, mut waiting, mut left) = (depth, VecDeque::new(), Vec::new());
    let mut arrivals = steps
        .iter()
        .enumerate()
        .scan(0, |at, (i, &(gap, class, size))| {
            *at += gap;
            Some((*at, class, size, i))
        })
        .filter(|&(_, of, _, _)| of == class)
        .peekable();
    let mut us = 0u64;
    while arrivals.peek().is_some() || !waiting.is_empty() {
        while let Some((_, _, size, i)) = arrivals.next_if(|a| a.0 <= us) {
            waiting.push_back((size, i));
        }
        // The rounding error of a sum of floats must not delay a packet by a microsecond.
        while tokens > -1e-6 {
            let Some((size, i)) = waiting.pop_front() else { break };
            tokens -= size as f64;
            left.push((us, i));
        }
        tokens = (tokens + per_us).min(depth);
        us += 1;
    }
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn without_borrowing_each_class_is_a_token_bucket_of_its_own(
        steps in steps(3), kbit in proptest::collection::vec(3_000u64..40_000, 3),
    ) {
        let given: Vec<Rate> = kbit.iter().map(|&k| Rate::kbit(k)).collect();
        let (left, dropped) = play(&alone(&given), &steps);
        prop_assume!(dropped.is_empty());
        for (class, &rate) in given.iter().enumerate() {
            let found = left.iter().filter(|(_, p)| p.class == class);
            let found: Vec<_> = found.map(|(at, p)| (at.as_nanos(), p.body)).collect();
            let wanted = oracle(rate, &steps, class);
            prop_assert_eq!(found.len(), wanted.len());
            for ((ns, body), (us, wanted)) in found.into_iter().zip(wanted) {
                prop_assert_eq!(body, wanted);
                prop_assert!(ns.abs_diff(us * 1_000) <= 1_001, "{} ns, not {} us", ns, us);
            }
        }
    }

    #[test]
    fn what_comes_in_leaves_once_or_is_dropped_once_in_the_order_of_its_class(
        steps in steps(3), which in 0usize..3,
    ) {
        let command = [borrowing(&[5, 2, 1]), strict(3), alone(&[Rate::mbit(1); 3])][which].clone();
        let (left, dropped) = play(&command, &steps);
        for class in 0..3 {
            let of_class = left.iter().filter(|(_, p)| p.class == class);
            prop_assert!(of_class.map(|(_, p)| p.body).is_sorted());
        }
        prop_assert!(left.is_sorted_by_key(|(at, _)| *at));
        let mut all: Vec<usize> =
            left.iter().map(|(_, p)| p.body).chain(dropped.iter().copied()).collect();
        all.sort();
        prop_assert_eq!(all, (0..steps.len()).collect::<Vec<_>>());
        prop_assert_eq!(play(&command, &steps), (left, dropped));
    }

    #[test]
    fn borrowers_never_exceed_the_total_by_more_than_the_bursts(steps in steps(3)) {
        let (left, _) = play(&borrowing(&[5, 2, 1]), &steps);
        let mut sum = 0;
        for (at, packet) in &left {
            sum += packet.size.as_u64();
            // Each class may have its own burst in addition to the parent's.
            let most = (Rate::mbit(20) * at.since(Time::ZERO)).as_u64() + 4 * (15_000 + PACKET);
            prop_assert!(sum <= most, "{} of {}", sum, most);
        }
    }
}

#[test]
fn what_is_moved_to_another_class_leaves_behind_what_waits_there_in_its_order() {
    let mut htb = htb(2);
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(1), Rate::mbit(8)]));
    // Fills both classes until neither may send.
    for class in [0, 1] {
        while htb.enqueue(Time::ZERO, packet(class, 1_000, 0)) != Verdict::Waits {}
    }
    for body in 1..=4 {
        assert_eq!(htb.enqueue(Time::ZERO, packet(0, 1_000, body)), Verdict::Waits);
    }
    let backlogs = |htb: &Htb<usize>| [0, 1].map(|class| htb.backlog(class).as_u64());
    assert_eq!(backlogs(&htb), [5_000, 1_000]);
    htb.reclassify(Time::ZERO, 0, 1, |body| body % 2 == 1);
    assert_eq!(backlogs(&htb), [3_000, 3_000]);
    let mut left = Left::default();
    drain(&mut htb, ms(1_000), &mut left);
    let of = |class| {
        let all = left.iter().filter(|(_, packet)| packet.class == class);
        all.map(|(_, packet)| packet.body).collect::<Vec<_>>()
    };
    assert_eq!([of(0), of(1)], [vec![0, 2, 4], vec![0, 1, 3]]);
    assert_eq!((htb.len(), backlogs(&htb)), (0, [0, 0]));
}

#[test]
fn a_class_of_which_all_is_moved_holds_nothing_back() {
    let mut htb = htb(2);
    htb.apply(Time::ZERO, &alone(&[Rate::mbit(1), Rate::mbit(8)]));
    while htb.enqueue(Time::ZERO, packet(0, 1_000, 7)) != Verdict::Waits {}
    htb.reclassify(Time::ZERO, 0, 1, |_| true);
    assert_eq!(htb.next_departure(), Some(Time::ZERO), "the other class has tokens");
    assert_eq!(htb.poll_departure(Time::ZERO).map(|packet| packet.body), Some(7));
    assert_eq!(htb.next_departure(), None);
}
