use proptest::prelude::*;

use super::*;
use crate::units::Bytes;

const RTT: Span = Span::millis(100);
/// With this size, a packet per round-trip time is 120 kbit/s.
const PACKET: Bytes = Bytes::new(1_500);

fn sample(cwnd: u32) -> Sample {
    Sample {
        cwnd,
        cwnd_cut: (cwnd / 2).max(2),
        packet: PACKET,
        rtts: Span::ZERO,
        rtt_count: 0,
        rtt: RTT,
        delivered: Bytes::kb(1_000),
        phase: Phase::Avoidance,
    }
}

fn stunt(weight: u32, min_rate: Rate) -> Role {
    Role::Stunt { weight: Weight::new(weight).unwrap(), min_rate }
}

fn free(mbit: u64) -> Role {
    Role::Free(Target::Trace(Trace::constant(Rate::mbit(mbit)).unwrap()))
}

/// A bundle with one free connection of `cwnd` packets, which delegates everything, and stunts.
fn bundle(cwnd: u32, stunts: &[(Role, u32)]) -> (Bundle, MemberId, Vec<MemberId>) {
    let spec = BundleSpec { algorithm: Algorithm::OnOff, reverse: Reverse::Exact };
    let mut bundle = Bundle::new(&spec);
    let first = bundle.join(free(900)).unwrap();
    bundle.handle_sample(first, sample(cwnd));
    let mut ids = Vec::new();
    for (role, cwnd) in stunts {
        let id = bundle.join(role.clone()).unwrap();
        bundle.handle_sample(id, sample(*cwnd));
        ids.push(id);
    }
    run(&mut bundle, Time::ZERO, 3);
    (bundle, first, ids)
}

/// Ticks `ticks` times; a connection alone at a target that is never reached delegates everything.
fn run(bundle: &mut Bundle, from: Time, ticks: u64) {
    (0..ticks).for_each(|n| bundle.handle_tick(from + Span::millis(100) * n));
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::millis(ms)
}

#[test]
fn stunts_are_cut_in_turn_until_they_have_given_up_what_the_free_one_keeps() {
    let (mut bundle, free, stunts) = bundle(20, &vec![(stunt(1, Rate::ZERO), 8); 4]);
    let cut = |bundle: &mut Bundle, ms| -> Vec<Option<u32>> {
        stunts.iter().map(|&id| bundle.take_cut(at(ms), id)).collect()
    };
    // 10 packets have to be given up, and each stunt can give up 4.
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Delegated);
    assert_eq!(cut(&mut bundle, 1_000), [Some(4), Some(4), Some(6), None]);
    // Within their round-trip time the three are spared, and the fourth alone is not enough.
    assert_eq!(bundle.handle_signal(at(1_050), free), Answer::Own);
    assert_eq!(cut(&mut bundle, 1_050), [None; 4]);
    // Afterwards the turn begins with the fourth stunt.
    assert_eq!(bundle.handle_signal(at(1_200), free), Answer::Delegated);
    assert_eq!(cut(&mut bundle, 1_200), [Some(4), Some(6), None, Some(4)]);
    let Tally { signals, delegated, taken, refused, .. } = bundle.tally(free);
    assert_eq!((signals, delegated, taken, refused), (3, 2, 1, 1));
}

#[test]
fn equal_reductions_are_equal_in_rate_not_in_packets() {
    let (mut bundle, free, stunts) = bundle(20, &vec![(stunt(1, Rate::ZERO), 8); 2]);
    // The same window in a fifth of the time is five times the rate.
    bundle.handle_sample(stunts[0], Sample { rtt: RTT / 5, ..sample(8) });
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Delegated);
    assert_eq!(bundle.take_cut(at(1_000), stunts[0]), Some(6), "two packets are worth ten");
    assert_eq!(bundle.take_cut(at(1_000), stunts[1]), None, "the first one gave up enough");
}

#[test]
fn a_stunt_keeps_its_floor_and_one_of_twice_the_weight_is_cut_half_as_often() {
    let floor = Rate::kbit(6 * 120);
    let (mut bundle, free, stunts) =
        bundle(4, &[(stunt(1, floor), 8), (stunt(1, Rate::ZERO), 8), (stunt(2, Rate::ZERO), 8)]);
    let mut cuts = [0; 3];
    for n in 0..60 {
        let now = at(1_000 + 200 * n);
        assert_eq!(bundle.handle_signal(now, free), Answer::Delegated);
        for (id, cuts) in stunts.iter().zip(&mut cuts) {
            if let Some(cwnd) = bundle.take_cut(now, *id) {
                assert!(cwnd >= if *id == stunts[0] { 6 } else { 4 }, "the first one keeps six");
                *cuts += 1;
            }
        }
    }
    assert_eq!(cuts[1], 2 * cuts[2], "{cuts:?}");
}

#[test]
fn short_transfers_and_slow_start_are_no_stunts() {
    for other in [
        Sample { delivered: Bytes::kb(999), ..sample(100) },
        Sample { phase: Phase::SlowStart, ..sample(100) },
        Sample { phase: Phase::Recovery, ..sample(100) },
    ] {
        let (mut bundle, free, stunts) = bundle(10, &[(stunt(1, Rate::ZERO), 100)]);
        bundle.handle_sample(stunts[0], other);
        assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Own);
        bundle.handle_sample(stunts[0], sample(100));
        assert_eq!(bundle.handle_signal(at(1_200), free), Answer::Delegated);
    }
}

#[test]
fn a_free_connection_above_its_target_answers_for_stunts() {
    for (reverse, left) in [(Reverse::Exact, 36), (Reverse::Own, 20)] {
        let spec = BundleSpec { algorithm: Algorithm::OnOff, reverse };
        let mut bundle = Bundle::new(&spec);
        // 40 packets are 4.8 Mbit/s.
        let first = bundle.join(free(2)).unwrap();
        let other = bundle.join(stunt(1, Rate::ZERO)).unwrap();
        bundle.handle_sample(first, sample(40));
        bundle.handle_sample(other, sample(8));
        run(&mut bundle, Time::ZERO, 3);
        assert_eq!(bundle.handle_signal(at(1_000), other), Answer::Delegated);
        let cut = bundle.take_cut(at(1_001), first).unwrap();
        assert!((left - 1..=left).contains(&cut), "{reverse:?} {cut}");
        // Only once in a round-trip time.
        assert_eq!(bundle.handle_signal(at(1_050), other), Answer::Own);
        // For a stunt that has more it answers in part: 20 of 40 packets, and the stunt 20.
        bundle.handle_sample(first, sample(40));
        bundle.handle_sample(other, sample(80));
        let Answer::Shared(cwnd) = bundle.handle_signal(at(2_000), other) else {
            panic!("the free connection has less than the stunt");
        };
        assert!((58..=60).contains(&cwnd), "{cwnd}");
        assert_eq!(bundle.take_cut(at(2_001), first), Some(20));
    }
}

#[test]
fn a_tracking_connection_goes_down_to_its_aim_and_stunts_give_up_the_rest() {
    let spec = BundleSpec { algorithm: Algorithm::Track, reverse: Reverse::Exact };
    let mut bundle = Bundle::new(&spec);
    // 30 packets are 3.6 Mbit/s; it has 40 packets, and would keep 20 of them.
    let target = Target::Trace(Trace::constant(Rate::kbit(3_600)).unwrap());
    let first = bundle.join(Role::Free(target)).unwrap();
    let other = bundle.join(stunt(1, Rate::ZERO)).unwrap();
    for n in 0..2 {
        let delivered = Bytes::kb(1_000) + Rate::kbit(3_600) * Span::millis(100) * n;
        bundle.handle_sample(first, Sample { delivered, ..sample(40) });
        bundle.handle_sample(other, sample(30));
        bundle.handle_tick(at(100 * n));
    }
    let Answer::Shared(cwnd) = bundle.handle_signal(at(1_000), first) else {
        panic!("it answers in part");
    };
    assert!((30..=31).contains(&cwnd), "{cwnd}");
    assert_eq!(bundle.take_cut(at(1_001), other), Some(20), "ten of the twenty");
    // After a timeout there is nothing to give up.
    bundle.handle_sample(first, Sample { cwnd: 1, ..sample(2) });
    assert_eq!(bundle.handle_signal(at(1_500), first), Answer::Own);
    // Below its aim it gives up nothing, neither for itself nor for a stunt.
    bundle.handle_sample(first, sample(24));
    assert_eq!(bundle.handle_signal(at(2_000), other), Answer::Own);
    bundle.handle_sample(other, sample(60));
    assert_eq!(bundle.handle_signal(at(3_000), first), Answer::Delegated);
}

#[test]
fn a_stunts_own_signal_comes_before_what_it_owes() {
    let (mut bundle, free, stunts) = bundle(10, &[(stunt(1, Rate::ZERO), 40)]);
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Delegated);
    assert_eq!(bundle.handle_signal(at(1_001), stunts[0]), Answer::Own);
    bundle.handle_sample(stunts[0], sample(20));
    assert_eq!(bundle.take_cut(at(1_050), stunts[0]), None);
    // Five packets for the free connection, in addition to the twenty for its own signal.
    assert_eq!(bundle.take_cut(at(1_101), stunts[0]), Some(15));
    assert_eq!(bundle.take_cut(at(1_201), stunts[0]), None);
}

#[test]
fn what_a_stunt_owes_and_cannot_give_up_at_once_it_gives_up_later() {
    let (mut bundle, free, stunts) = bundle(20, &[(stunt(1, Rate::ZERO), 20)]);
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Delegated);
    assert_eq!(bundle.handle_signal(at(1_001), stunts[0]), Answer::Own);
    bundle.handle_sample(stunts[0], sample(10));
    assert_eq!(bundle.take_cut(at(1_101), stunts[0]), Some(5), "half of ten");
    bundle.handle_sample(stunts[0], sample(5));
    assert_eq!(bundle.take_cut(at(1_150), stunts[0]), None, "once in a round-trip time");
    bundle.handle_sample(free, sample(20));
    assert_eq!(bundle.handle_signal(at(1_151), free), Answer::Own, "it owes, and is not asked");
    bundle.handle_sample(stunts[0], sample(6));
    assert_eq!(bundle.take_cut(at(1_201), stunts[0]), Some(3));
    bundle.handle_sample(stunts[0], sample(8));
    assert_eq!(bundle.take_cut(at(1_301), stunts[0]), Some(6), "ten in all");
    assert_eq!(bundle.take_cut(at(1_401), stunts[0]), None);
}

#[test]
fn a_signal_right_after_a_cut_for_others_is_of_the_window_before_that_cut() {
    let (mut bundle, free, stunts) = bundle(10, &[(stunt(1, Rate::ZERO), 40)]);
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Delegated);
    assert_eq!(bundle.take_cut(at(1_001), stunts[0]), Some(35));
    // With 40 packets it would have given up 20; with 35 it gives up 17 or 18, and owes the rest.
    bundle.handle_sample(stunts[0], sample(35));
    assert_eq!(bundle.handle_signal(at(1_050), stunts[0]), Answer::Own);
    bundle.handle_sample(stunts[0], sample(17));
    assert_eq!(bundle.take_cut(at(1_149), stunts[0]), None, "once in a round-trip time");
    assert_eq!(bundle.take_cut(at(1_150), stunts[0]), Some(14));
    // Later signals concern the current window.
    bundle.handle_sample(stunts[0], sample(14));
    assert_eq!(bundle.handle_signal(at(1_300), stunts[0]), Answer::Own);
    bundle.handle_sample(stunts[0], sample(7));
    assert_eq!(bundle.take_cut(at(1_400), stunts[0]), None);
}

/// A bundle whose second stunt is behind another queue, after `seconds` of 100 ms ticks.
fn apart_after(seconds: u64) -> (Bundle, MemberId, Vec<MemberId>) {
    let (mut bundle, free, stunts) = bundle(20, &vec![(stunt(1, Rate::ZERO), 20); 2]);
    let mut rtts = [Span::ZERO; 2];
    for n in 0..seconds * 10 {
        // Two queues that fill for 1.6 s and for 2.3 s.
        rtts =
            [rtts[0] + Span::millis(40 + 4 * (n % 16)), rtts[1] + Span::millis(40 + 4 * (n % 23))];
        for (id, queue) in [(free, 0), (stunts[0], 0), (stunts[1], 1)] {
            let rtts = rtts[queue];
            bundle.handle_sample(id, Sample { rtts, rtt_count: n + 1, ..sample(20) });
        }
        bundle.handle_tick(at(1_000 + n * 100));
    }
    (bundle, free, stunts)
}

#[test]
fn who_does_not_share_the_bottleneck_is_not_asked() {
    let (mut bundle, free, stunts) = apart_after(120);
    assert_eq!(stunts.iter().map(|s| bundle.is_apart(*s, free)).collect::<Vec<_>>(), [false, true]);
    assert_eq!(bundle.status(free).unwrap().apart, 1);
    let now = at(200_000);
    assert_eq!(bundle.handle_signal(now, free), Answer::Delegated);
    assert_eq!(bundle.take_cut(now, stunts[0]), Some(10));
    assert_eq!(bundle.take_cut(now, stunts[1]), None);
    // The other stunt alone is not enough, although the one that is apart could give up the rest.
    bundle.handle_sample(free, sample(60));
    assert_eq!(bundle.handle_signal(at(201_000), free), Answer::Own);
    // A connection that takes the free connection's place is not judged by its predecessor.
    bundle.leave(free);
    let target = Target::Trace(Trace::constant(Rate::mbit(900)).unwrap());
    assert_eq!(bundle.join(Role::Free(target)), Some(free));
    assert!(!bundle.is_apart(stunts[1], free));
}

#[test]
fn nothing_is_judged_before_it_is_known() {
    let (bundle, free, stunts) = apart_after(9);
    assert!(!stunts.iter().any(|stunt| bundle.is_apart(*stunt, free)));
}

#[test]
fn an_unreachable_target_is_called_so_with_the_reason() {
    let verdict = |stunts: &[(Role, u32)], each_tick: Bytes| {
        let (mut bundle, free, _) = bundle(10, stunts);
        for n in 0..200 {
            let delivered = Bytes::kb(1_000) + each_tick * n;
            bundle.handle_sample(free, Sample { delivered, ..sample(10) });
            bundle.handle_tick(at(1_000 + n * 100));
        }
        bundle.status(free).unwrap().verdict
    };
    // The target is 900 Mbit/s: 11.25 MB in 100 ms.
    assert_eq!(verdict(&[], Bytes::kb(10)), Verdict::Unreachable(Reason::NoStunts));
    let poor = [(stunt(1, Rate::ZERO), 8)];
    assert_eq!(verdict(&poor, Bytes::kb(10)), Verdict::Unreachable(Reason::StuntsAtFloor));
    assert_eq!(verdict(&poor, Bytes::kb(11_250)), Verdict::Held);
}

#[test]
fn a_target_of_so_many_connections_is_so_many_mean_rates() {
    let spec = BundleSpec { algorithm: Algorithm::Pi, reverse: Reverse::Exact };
    let mut bundle = Bundle::new(&spec);
    let two = Target::Connections(Weight::new(2).unwrap());
    let ids = [
        bundle.join(Role::Free(two)).unwrap(),
        bundle.join(stunt(1, Rate::ZERO)).unwrap(),
        bundle.join(stunt(1, Rate::ZERO)).unwrap(),
    ];
    for n in 0..100 {
        for (id, mbit) in ids.into_iter().zip([3, 1, 2]) {
            let delivered = Rate::mbit(mbit) * Span::millis(100) * n;
            bundle.handle_sample(id, Sample { delivered, ..sample(10) });
        }
        bundle.handle_tick(at(n * 100));
    }
    let target = bundle.status(ids[0]).unwrap().target.as_mbit_f64();
    assert!((target - 4.0).abs() < 0.01, "{target}");
}

#[test]
fn places_are_used_anew_and_bounded() {
    let (mut bundle, free, stunts) = bundle(10, &[(stunt(1, Rate::ZERO), 40)]);
    bundle.leave(stunts[0]);
    assert_eq!(bundle.handle_signal(at(1_000), free), Answer::Own);
    assert_eq!(bundle.join(stunt(1, Rate::ZERO)), Some(stunts[0]));
    for _ in 2..MEMBERS_MAX {
        bundle.members.push(None);
    }
    bundle.members.iter_mut().for_each(|m| *m = m.take().or(bundle_member()));
    assert_eq!(bundle.join(stunt(1, Rate::ZERO)), None);
}

fn bundle_member() -> Option<Member> {
    let (bundle, _, _) = bundle(10, &[]);
    bundle.members.into_iter().next().flatten()
}

#[test]
fn a_timeout_is_answered_by_who_has_delivered_since_and_by_nobody_if_the_way_is_closed() {
    let (mut bundle, free, stunts) = bundle(20, &vec![(stunt(1, Rate::ZERO), 40); 2]);
    let deliver = |bundle: &mut Bundle, id, kb, cwnd| {
        bundle.handle_sample(id, Sample { delivered: Bytes::kb(kb), ..sample(cwnd) });
    };
    deliver(&mut bundle, free, 1_001, 20);
    // A sample without progress, as after its own timeout, does not show that the path is open.
    deliver(&mut bundle, stunts[0], 1_000, 40);
    assert_eq!(bundle.handle_timeout(at(1_000), free), Answer::Own, "nobody was heard since");
    assert!(stunts.iter().all(|&id| bundle.take_cut(at(1_000), id).is_none()));
    assert_eq!(bundle.tally(free).refused, 1);
    deliver(&mut bundle, stunts[1], 1_002, 40);
    assert_eq!(bundle.handle_timeout(at(2_000), free), Answer::Delegated);
    assert_eq!(bundle.take_cut(at(2_000), stunts[0]), None, "it was not heard since");
    assert_eq!(bundle.take_cut(at(2_000), stunts[1]), Some(30), "half of the twenty");
    // A loss is noticed by the connection's own ACK, so any stunt that can answers it.
    deliver(&mut bundle, free, 1_003, 20);
    assert_eq!(bundle.handle_signal(at(3_000), free), Answer::Delegated);
}

/// What happens to a connection: an ACK with its window, or a signal.
#[derive(Clone, Debug)]
struct Happening {
    member: usize,
    after: Span,
    cwnd: u32,
    rtt: Span,
    what: What,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Ack,
    Signal,
    /// A timeout without an ACK before it.
    Timeout,
}

fn happenings(members: usize) -> impl Strategy<Value = Vec<Happening>> {
    let phase = prop_oneof![8 => Just(Phase::Avoidance), 1 => Just(Phase::SlowStart),
        1 => Just(Phase::Recovery)];
    let one = (0..members, 0u64..30, 2u32..200, 5u64..300, 0..5usize, phase);
    let what = [What::Ack, What::Ack, What::Signal, What::Signal, What::Timeout];
    let make = move |(member, ms, cwnd, rtt_ms, nth, phase): (_, _, _, _, usize, _)| Happening {
        member,
        after: Span::millis(ms),
        cwnd,
        rtt: Span::millis(rtt_ms),
        what: what[nth],
        phase,
    };
    prop::collection::vec(one.prop_map(make), 1..300)
}

proptest! {
    #[test]
    fn delegation_keeps_its_promises(
        happenings in happenings(9),
        floors in prop::collection::vec(0u64..3_000_000, 6),
        weights in prop::collection::vec(1u32..4, 6),
        algorithm in 0..3usize,
    ) {
        let algorithm = Algorithm::ALL[algorithm].1;
        let mut bundle = Bundle::new(&BundleSpec { algorithm, reverse: Reverse::Exact });
        let mut ids: Vec<MemberId> =
            [1, 8, 60].map(|mbit| bundle.join(free(mbit)).unwrap()).to_vec();
        for (floor, weight) in floors.iter().zip(&weights) {
            ids.push(bundle.join(stunt(*weight, Rate::bps(*floor))).unwrap());
        }
        let (mut now, mut ticked) = (at(0), at(0));
        let mut cut_at = vec![None; ids.len()];
        let mut delivered = Bytes::kb(1_000);
        let mut heard = vec![delivered; ids.len()];
        for happening in happenings {
            let Happening { member, after, cwnd, rtt, what, phase } = happening;
            now = now + after;
            let id = ids[member];
            if what != What::Timeout {
                // The sum over all connections, so that it also shows which one was heard later.
                delivered += PACKET;
                heard[member] = delivered;
                bundle.handle_sample(id, Sample { rtt, phase, delivered, ..sample(cwnd) });
            } else if bundle.members[id.0].as_ref().unwrap().sample.is_none() {
                continue;
            }
            if what != What::Ack {
                let before = bundle.clone();
                let answer = match what {
                    What::Timeout => bundle.handle_timeout(now, id),
                    _ => bundle.handle_signal(now, id),
                };
                let asked = ids.iter().filter(|id| {
                    let debt = |b: &Bundle| b.members[id.0].as_ref().unwrap().debt;
                    **id != ids[member] && debt(&before) != debt(&bundle)
                });
                for id in asked {
                    let is_later = heard[id.0] > heard[member];
                    prop_assert!(what == What::Signal || is_later, "asked, and not heard since");
                }
                if answer != Answer::Delegated {
                    cut_at[member] = Some(now);
                }
                check_reductions(&before, &bundle, id, answer)?;
            } else if let Some(to) = bundle.take_cut(now, id) {
                prop_assert!(to >= 2 && to <= cwnd.max(2));
                let is_late = cut_at[member].is_none_or(|at| now.since(at) >= rtt);
                prop_assert!(is_late, "two cuts within a round-trip time");
                cut_at[member] = Some(now);
            }
            if now >= ticked {
                bundle.handle_tick(now);
                ticked = bundle.next_tick(now);
            }
            for &id in &ids {
                let Tally { signals, delegated, taken, refused, .. } = bundle.tally(id);
                prop_assert_eq!(signals, delegated + taken);
                prop_assert!(refused <= taken);
                if let Some(status) = bundle.status(id) {
                    prop_assert!(status.gain.as_f64().abs() <= 1.0);
                }
            }
        }
    }
}

/// Compares the debts that one signal caused with what the connection itself would have given up.
fn check_reductions(
    before: &Bundle,
    after: &Bundle,
    id: MemberId,
    answer: Answer,
) -> Result<(), TestCaseError> {
    let members = before.members.iter().flatten().zip(after.members.iter().flatten()).enumerate();
    let given: Vec<f64> = members
        .filter(|(index, (a, b))| *index != id.0 && a.debt != b.debt)
        .map(|(_, (_, member))| {
            let sample = member.sample.unwrap();
            let packets = f64::from(member.debt);
            packets * PACKET.as_u64() as f64 * 8.0 / sample.rtt.as_secs_f64()
        })
        .collect();
    let member = after.members[id.0].as_ref().unwrap();
    let sample = member.sample.unwrap();
    let packets = f64::from(sample.cwnd - sample.cwnd_cut);
    let need = packets * PACKET.as_u64() as f64 * 8.0 / sample.rtt.as_secs_f64();
    let sum: f64 = given.iter().sum();
    let own = match answer {
        Answer::Own => {
            prop_assert!(given.is_empty());
            return Ok(());
        }
        Answer::Shared(cwnd) => {
            prop_assert!(cwnd >= sample.cwnd_cut && cwnd <= sample.cwnd);
            f64::from(sample.cwnd - cwnd) * PACKET.as_u64() as f64 * 8.0 / sample.rtt.as_secs_f64()
        }
        Answer::Delegated => 0.0,
    };
    // Rates are rounded to whole bits per second, once for each stunt.
    prop_assert!(sum + own >= need - 10.0, "{sum} {own} {need}");
    if matches!(member.part, Part::Free(_)) {
        let need = need - own;
        let largest = given.iter().copied().fold(0.0, f64::max);
        prop_assert!(sum - need < largest + 10.0, "{given:?} {need}");
    } else {
        prop_assert_eq!(given.len(), usize::from(packets > 0.0), "one free connection answers");
    }
    Ok(())
}
