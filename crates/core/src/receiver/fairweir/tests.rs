use proptest::prelude::*;

use super::group::SeenConnections;
use super::*;
use crate::receiver::{
    ConnectionSample, GroupSample, Other, ProbeSample, Told, TransitSample, Windows,
};
use crate::share::{Cap, Node, Tree, Weight};
use crate::window::SEGMENTS_MIN;

const MS: Span = Span::millis(1);
const QUEUE: Span = Span::millis(5);

/// Numbers in 0..1, the same in each run.
pub(super) fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

// ------------------------------------------------------------------------------------------------
// Group

pub(super) fn plain() -> ConnectionSample {
    ConnectionSample { segment: Bytes::new(1_448), window: Bytes::kb(64), ..Default::default() }
}

fn seen(filled: Rate, bounded: Rate) -> SeenConnections {
    SeenConnections {
        has_moved: false,
        filled,
        about_filled: filled,
        is_crowded: false,
        is_recovering: false,
        lost: None,
        old: bounded,
        bounded,
        packet: PACKET_GUESS,
    }
}

fn arrived(rate: Rate, drops: u64) -> GroupSample {
    let received = rate * TICK;
    let packets = received.as_u64().div_ceil(1_514);
    GroupSample { received, packets, drops, backlog: Bytes::ZERO }
}

/// A group that receives `rate`, by connections that fill their windows or not.
fn group_at(rate: Rate, fills: bool, ticks: u32) -> Group {
    let mut group = Group::idle();
    for _ in 0..ticks {
        run(&mut group, rate, fills);
    }
    group
}

fn run(group: &mut Group, rate: Rate, fills: bool) {
    let filled = if fills { rate } else { Rate::ZERO };
    group.handle_tick(&arrived(rate, 0), TICK, seen(filled, rate));
}

#[test]
fn who_fills_its_windows_wants_more_and_who_does_not_lends() {
    let m = Rate::mbit;
    let filled = group_at(m(10), true, 5);
    assert_eq!((filled.state, filled.demand), (GroupState::Saturating, None));
    let limited = group_at(m(10), false, 5);
    assert_eq!(limited.state, GroupState::Lending);
    let demand = limited.demand.unwrap();
    assert!(demand > m(10) && demand < m(11), "{demand}");
    assert_eq!(group_at(Rate::ZERO, false, 5).state, GroupState::Idle);
}

/// A sender nearby that waits until a burst fits counts as lending, but its windows limit it.
#[test]
fn who_may_be_waiting_for_room_is_corrected_as_who_fills_its_windows() {
    let mut group = Group::idle();
    group.share = Rate::mbit(30);
    for _ in 0..8 {
        let waiting =
            SeenConnections { about_filled: Rate::mbit(25), ..seen(Rate::ZERO, Rate::mbit(25)) };
        group.handle_tick(&arrived(Rate::mbit(25), 0), TICK, waiting);
    }
    assert_eq!(group.state, GroupState::Lending);
    assert!(group.is_steady());
    group.correct(Rate::mbit(40), Rate::mbit(40));
    assert!(group.correction > NO_CORRECTION, "{}", group.correction);
    assert!(!group_at(Rate::mbit(25), false, 8).is_steady());
}

#[test]
fn who_lends_takes_it_back_within_one_tick() {
    let mut group = group_at(Rate::mbit(10), false, 20);
    run(&mut group, Rate::mbit(11), true);
    assert_eq!((group.state, group.demand), (GroupState::Saturating, None));
}

#[test]
fn who_rises_has_room_to_double_in_the_next_tick() {
    let mut group = group_at(Rate::mbit(1), false, 5);
    run(&mut group, Rate::mbit(2), false);
    assert_eq!(group.state, GroupState::Rising);
    assert!(group.demand.unwrap() >= Rate::mbit(4));
}

#[test]
fn silence_of_half_a_minute_makes_idle() {
    let mut group = group_at(Rate::mbit(10), true, 5);
    for _ in 0..151 {
        run(&mut group, Rate::ZERO, false);
    }
    assert_eq!((group.state, group.demand), (GroupState::Idle, Some(Rate::ZERO)));
}

/// The state after two seconds of drops, alternating between these rates, with this part of them bounded.
fn defying(rates: &[Rate], bounded_percent: u64) -> GroupState {
    let mut group = Group::idle();
    group.ceil = Rate::mbit(5);
    for tick in 0..20 {
        let rate = rates[tick % rates.len()];
        let seen = seen(Rate::ZERO, rate.scale(bounded_percent, 100));
        group.handle_tick(&arrived(rate, 10), TICK, seen);
    }
    group.state
}

#[test]
fn defiance_needs_a_constant_rate_above_the_ceil_that_no_window_bounds() {
    let m = Rate::mbit;
    assert_eq!(defying(&[m(20)], 0), GroupState::Unresponsive);
    assert_eq!(defying(&[m(20), m(18)], 0), GroupState::Unresponsive);
    assert_eq!(defying(&[m(20), m(14)], 0), GroupState::Saturating, "it is not constant");
    assert_eq!(defying(&[m(20)], 60), GroupState::Saturating, "windows bound it");
    assert_eq!(defying(&[m(5)], 0), GroupState::Saturating, "it keeps to its class");
    let growing: Vec<Rate> =
        (0..20).map(|i| m(8).scale(108u64.pow(i / 3), 100u64.pow(i / 3))).collect();
    assert_eq!(defying(&growing, 0), GroupState::Saturating, "it takes what it is left");
}

#[test]
fn noise_does_not_make_all_corrections_drift_together() {
    let shares = [Rate::mbit(25), Rate::mbit(5)];
    let mut groups: Vec<Group> = shares.iter().map(|&share| group_at(share, true, 10)).collect();
    for (group, share) in groups.iter_mut().zip(shares) {
        group.share = share;
    }
    let mut state = 7;
    for _ in 0..18_000 {
        let mean = (groups[0].correction * 25 + groups[1].correction * 5) / 30;
        assert!((990..=1_010).contains(&mean), "{mean}");
        for (group, share) in groups.iter_mut().zip(shares) {
            // The rate that the windows let through of a full link, with the noise of whole packets.
            let noise = 950 + (random(&mut state) * 100.0) as u64;
            run(group, share.scale(group.correction * noise, mean * 1_000), true);
        }
        let rates: Rate = groups.iter().map(|g| g.rate).sum();
        for group in &mut groups {
            group.correct(Rate::mbit(30), rates);
        }
        group::centre_corrections(&mut groups);
    }
}

// ------------------------------------------------------------------------------------------------
// The control

pub(super) fn control(weights: &[u32], remembered: Option<Rate>) -> Fairweir {
    let weights = weights.iter().map(|&w| Weight::new(w).unwrap()).collect::<Vec<_>>();
    Fairweir::new(FairweirSpec {
        weights: weights.into(),
        remembered,
        enforce: Enforce::Auto,
        latency: QUEUE,
    })
}

/// A tick in which each group has one connection, which fills its window, behind a queue of 4 ms.
pub(super) fn busy_tick(tick: u64, rates: &[Rate], queue: Span) -> Observation {
    let connections = rates.iter().enumerate().map(|(i, &rate)| {
        let received = rate * TICK;
        let segments = received.as_u64() / 1_448;
        let min_ns = queue.as_nanos() as i64;
        let transit = Some(TransitSample { min_ns, mean_ns: min_ns, samples: 40 });
        let window = rate * Span::millis(40) + Bytes::new(1_448);
        let rtt = Some(Span::millis(40));
        ConnectionSample {
            id: i as u64,
            group: i,
            received,
            segments,
            transit,
            window,
            rtt,
            ..plain()
        }
    });
    let connections = connections.collect();
    let groups = rates.iter().map(|&rate| arrived(rate.scale(1_514, 1_448), 0)).collect();
    Observation {
        at: Time::ZERO + TICK * tick,
        interval: TICK,
        groups,
        connections,
        ..Default::default()
    }
}

fn drained(control: &mut Fairweir) -> Vec<Command> {
    std::iter::from_fn(|| control.poll_command()).collect()
}

/// A control that has seen two seconds of light traffic and then, by the same connections, a busy
/// link of 30 Mbit/s.
fn learned() -> Fairweir {
    learned_by(&[5, 1], &[Rate::mbit(20), Rate::mbit(10)])
}

/// The same with groups of these weights, which get `rates` of the busy link.
pub(super) fn learned_by(weights: &[u32], rates: &[Rate]) -> Fairweir {
    let mut control = control(weights, None);
    let light = vec![Rate::kbit(50); rates.len()];
    for tick in 1..=10 {
        control.handle_observation(&busy_tick(tick, &light, Span::ZERO));
    }
    for tick in 11..=LEARNED_TICKS {
        control.handle_observation(&busy_tick(tick, rates, MS * 4));
    }
    control
}

pub(super) const LEARNED_TICKS: u64 = 16;

#[test]
fn nothing_is_enforced_before_the_link_was_busy() {
    let mut control = control(&[5, 1], None);
    assert_eq!(drained(&mut control), []);
    control.handle_observation(&busy_tick(1, &[Rate::kbit(50), Rate::kbit(50)], Span::ZERO));
    for tick in 2..=50 {
        control.handle_observation(&busy_tick(tick, &[Rate::mbit(10), Rate::mbit(2)], Span::ZERO));
        assert_eq!(drained(&mut control), []);
        let decision = control.decision();
        assert!(!decision.enforcing && decision.capacity.is_none(), "{decision:?}");
        assert_eq!((decision.act, control.learned_capacity()), (Act::Bootstrap, None));
    }
}

#[test]
fn what_is_told_exactly_is_divided_from_the_first_tick_on_whatever_arrives() {
    let mut control = control(&[5, 1], None);
    for (tick, told) in [(1, 60), (2, 60), (3, 12), (4, 90)] {
        let seen = busy_tick(tick, &[Rate::mbit(10), Rate::mbit(20)], MS * 4);
        control.handle_observation(&Observation { exact: Some(Rate::mbit(told)), ..seen });
        let decision = control.decision();
        assert_eq!((decision.capacity, decision.enforcing), (Some(Rate::mbit(told)), true));
        let shares: Rate = decision.groups.iter().map(|g| g.share).sum();
        assert!(shares <= Rate::mbit(told), "{shares}");
    }
}

#[test]
fn while_the_capacity_is_unknown_a_guarantee_enforces_nothing() {
    let weights = vec![Weight::new(1).unwrap()];
    let spec = |remembered| FairweirSpec {
        weights: weights.clone().into(),
        remembered,
        enforce: Enforce::Auto,
        latency: QUEUE,
    };
    let step = crate::market::guarantee::Step {
        from: None,
        to: Some(Rate::mbit(28)),
        equal: Rate::mbit(10),
    };
    let mut control = Fairweir::new(spec(None));
    control.handle_guarantee(&step, Time::ZERO);
    assert_eq!((control.link.capacity(), control.poll_command()), (None, None));
    let mut control = Fairweir::new(spec(Some(Rate::mbit(10))));
    control.handle_guarantee(&step, Time::ZERO);
    assert_eq!(control.link.capacity(), Some(Rate::mbit(28)));
    assert!(control.poll_command().is_some());
}

/// The last allocation that was commanded, unless everything was released.
fn allocated(control: &mut Fairweir) -> Option<Allocation> {
    let mut last = None;
    while let Some(command) = control.poll_command() {
        match command {
            Command::SetRates(allocation) => last = Some(allocation),
            Command::Release => last = None,
            Command::SetWindows(_) => {}
        }
    }
    last
}

#[test]
fn a_bound_holds_an_unknown_link_and_lets_go_when_it_ends() {
    let m = Rate::mbit;
    for enforce in Enforce::ALL {
        let mut control = control(&[3, 1], None);
        control.handle_spec(enforce, QUEUE);
        assert!(control.hold(Some(m(8)), Time::ZERO));
        assert!(!control.hold(Some(m(8)), Time::ZERO), "the same once more");
        let allocation = allocated(&mut control).unwrap();
        assert_eq!(allocation.total, Some(m(8)), "{enforce:?}");
        assert!(allocation.classes.iter().all(|class| class.ceil <= m(8)), "{allocation:?}");
        control.handle_observation(&busy_tick(1, &[m(6), m(2)], Span::ZERO));
        let decision = control.decision().clone();
        assert_eq!((decision.capacity, decision.act), (Some(m(8)), Act::Hold));
        // The household has bought more for the next slot.
        control.hold(Some(m(20)), Time::ZERO);
        assert_eq!(allocated(&mut control).unwrap().total, Some(m(20)));
        control.hold(None, Time::ZERO);
        assert_eq!(allocated(&mut control), None, "{enforce:?}");
        control.handle_observation(&busy_tick(2, &[m(6), m(2)], Span::ZERO));
        let decision = control.decision();
        assert_eq!((decision.capacity, decision.enforcing), (None, false));
    }
}

#[test]
fn a_bound_that_ends_leaves_what_was_known_or_was_measured_beneath_it() {
    let m = Rate::mbit;
    let mut control = learned();
    let before = control.link.capacity();
    control.hold(Some(m(8)), Time::ZERO);
    assert_eq!(control.link.capacity(), Some(m(8)));
    control.hold(Some(m(2)), Time::ZERO);
    control.hold(None, Time::ZERO);
    assert_eq!(control.link.capacity(), before);
    control.hold(Some(m(28)), Time::ZERO);
    // At the latest until the next drain, which such a queue would not follow.
    for tick in LEARNED_TICKS + 1..LEARNED_TICKS + 20 {
        control.handle_observation(&busy_tick(tick, &[m(9), m(3)], MS * 12));
    }
    let measured = control.link.capacity();
    assert!(measured.is_some_and(|c| c < m(20)), "{measured:?}");
    control.hold(None, Time::ZERO);
    assert_eq!(control.link.capacity(), measured);
    // The value that was measured before may be wrong.
    control.hold(Some(m(1_000)), Time::ZERO);
    assert_eq!(control.link.capacity(), measured.map(|known| known * 8));
}

/// Holds for anything that arrives and anything else that the control concludes.
#[test]
fn under_a_bound_nothing_more_is_believed_or_let_through() {
    let m = Rate::mbit;
    let mut state = 7;
    let mut number = |below: u64| (random(&mut state) * below as f64) as u64;
    for known in [None, Some(m(5)), Some(m(60))] {
        let mut control = control(&[5, 1], known);
        control.hold(Some(m(12)), Time::ZERO);
        allocated(&mut control);
        for tick in 1..3_000 {
            let rates = [0, 1].map(|_| Rate::kbit(number(40_000)));
            let queue = MS * (number(3) * 20);
            control.handle_observation(&busy_tick(tick, &rates, queue));
            let capacity = control.decision().capacity;
            assert!(capacity.is_some_and(|c| c <= m(12)), "tick {tick}: {capacity:?}");
            assert_eq!(allocated(&mut control).unwrap().total, Some(m(12)), "tick {tick}");
        }
    }
}

/// Holds for anything that arrives and anything else that the control concludes.
#[test]
fn beneath_a_cap_nothing_more_is_let_through() {
    let m = Rate::mbit;
    let mut state = 11;
    let mut number = |below: u64| (random(&mut state) * below as f64) as u64;
    for known in [None, Some(m(5)), Some(m(60))] {
        let leaf = |w| Node::Leaf(Weight::new(w).unwrap());
        let branch = Node::Branch(Weight::new(6).unwrap(), vec![leaf(5), leaf(1)]);
        let weights = Tree::new(vec![branch, leaf(2)]);
        let caps = vec![Cap { leaves: 0..1, max: m(3) }, Cap { leaves: 0..2, max: m(7) }];
        let mut control = control(&[5, 1, 2], known);
        control.handle_policy(weights.with_caps(caps), &[Some(0), Some(1), Some(2)]);
        assert!(allocated(&mut control).is_some(), "from the first moment");
        for tick in 1..3_000 {
            let rates = [0, 1, 2].map(|_| Rate::kbit(number(40_000)));
            let queue = MS * (number(3) * 20);
            control.handle_observation(&busy_tick(tick, &rates, queue));
            let allocation = allocated(&mut control).unwrap();
            let ceils = allocation.classes.iter().map(|class| class.ceil).collect::<Vec<_>>();
            assert!(ceils[0] <= m(3) && ceils[1] <= m(7), "tick {tick}: {ceils:?}");
            let decision = control.decision();
            assert!(decision.enforcing);
            let shares = &decision.groups;
            assert!(shares[0].share <= m(3) && shares[1].share <= m(7), "{shares:?}");
        }
    }
}

/// A group at its cap leaves room: nothing about the link is concluded from it, and others' windows stay.
#[test]
fn a_capped_group_wants_nothing_of_the_link() {
    let m = Rate::mbit;
    let mut control = control(&[5, 1], Some(m(60)));
    let weights = Tree::from([5, 1].map(|w| Weight::new(w).unwrap()).to_vec());
    let caps = vec![Cap { leaves: 0..1, max: m(8) }];
    control.handle_policy(weights.with_caps(caps), &[Some(0), Some(1)]);
    let capacity = control.decision().capacity.or(control.link.capacity());
    for tick in 1..600 {
        control.handle_observation(&busy_tick(tick, &[m(8), Rate::ZERO], Span::ZERO));
    }
    let decision = control.decision();
    assert_eq!(decision.groups[0].state, GroupState::Capped);
    assert_eq!((decision.groups[0].share, decision.groups[0].ceil), (m(8), Some(m(8))));
    assert_eq!((decision.capacity, control.opening), (capacity, NO_CORRECTION));
}

#[test]
fn a_busy_link_is_learned_and_shared_by_weight() {
    let control = learned();
    let capacity = control.decision().capacity.unwrap();
    assert!(capacity > Rate::mbit(30) && capacity < Rate::mbit(33), "{capacity}");
    let shares: Vec<Rate> = control.decision().groups.iter().map(|g| g.share).collect();
    assert!(shares[0] >= shares[1].scale(49, 10), "{shares:?}");
    assert_eq!(shares[0] + shares[1], capacity);
}

#[test]
fn a_class_whose_windows_hold_falls_to_half_in_a_tick_at_most() {
    let ceils = |control: &Fairweir| -> Vec<Rate> {
        control.decision().groups.iter().map(|group| group.ceil.unwrap()).collect()
    };
    let mut control = learned();
    let m = Rate::mbit;
    // The first group is silent for long, and then takes its share back at once.
    let idle = LEARNED_TICKS + 200;
    for tick in LEARNED_TICKS + 1..idle {
        control.handle_observation(&busy_tick(tick, &[Rate::ZERO, m(29)], MS * 4));
    }
    let mut before = ceils(&control);
    assert!(before[1] > m(30), "{before:?}");
    for tick in idle..idle + 30 {
        control.handle_observation(&busy_tick(tick, &[m(25), m(5)], MS * 4));
        let after = ceils(&control);
        for (before, after) in before.iter().zip(&after) {
            assert!(*after * 2 + Rate::kbit(1) >= *before, "{before} to {after}");
        }
        before = after;
    }
    assert!(before[1] < m(8), "{before:?}");
}

#[test]
fn a_policy_change_keeps_what_was_learned() {
    let mut control = learned();
    let before = control.decision().capacity;
    // A third group in front, and the two others have changed their places.
    let weights = [2, 1, 1].map(|w| Weight::new(w).unwrap()).to_vec();
    control.handle_policy(weights.into(), &[None, Some(1), Some(0)]);
    let m = Rate::mbit;
    control.handle_observation(&busy_tick(LEARNED_TICKS + 1, &[Rate::ZERO, m(10), m(20)], MS * 4));
    assert_eq!((control.decision().capacity, control.learned_capacity()), (before, before));
    assert_eq!(control.decision().groups.len(), 3);
    assert_eq!(control.groups[0].state, GroupState::Idle);
}

#[test]
fn the_last_command_that_is_drained_is_the_newest() {
    let mut control = learned();
    // The commands of earlier ticks were not drained.
    control.handle_policy(vec![Weight::ONE].into(), &[Some(0)]);
    let commands = drained(&mut control);
    let rates = commands.iter().rev().find_map(|command| match command {
        Command::SetRates(allocation) => Some(allocation.classes.len()),
        _ => None,
    });
    assert_eq!(rates, Some(1), "the newest has one class");
}

#[test]
fn after_a_sleep_nothing_is_concluded_and_nothing_forgotten() {
    let mut control = learned();
    let before = control.decision().capacity;
    drained(&mut control);
    for interval in [Span::millis(5), Span::secs(3_600)] {
        let slept = Observation { interval, ..busy_tick(20_000, &[Rate::mbit(1); 2], MS * 4) };
        control.handle_observation(&slept);
        assert_eq!((control.decision().act, control.decision().capacity), (Act::Measure, before));
        assert_eq!(drained(&mut control), []);
    }
    control.handle_observation(&busy_tick(20_001, &[Rate::mbit(20), Rate::mbit(10)], MS * 4));
    assert_eq!(control.decision().capacity, before);
}

/// Any sample of a connection; the map supplies the ids.
fn any_connection() -> impl Strategy<Value = ConnectionSample> {
    let transit = prop::option::of((
        -1_000_000_000_000i64..1_000_000_000_000,
        0i64..10_000_000_000,
        1u32..500,
    ));
    let rest = (0u64..60_000, any::<bool>(), any::<u16>());
    (0usize..3, 0u64..50_000_000, prop::option::of(0u64..100_000), transit, 0u64..10_000_000, rest)
        .prop_map(|(group, received, rtt, transit, window, (segment, has_sent, port))| {
            let transit = transit.map(|(min_ns, more, samples)| TransitSample {
                min_ns,
                mean_ns: min_ns + more,
                samples,
            });
            ConnectionSample {
                asked: None,
                id: 0,
                group,
                received: Bytes::new(received),
                segments: received / 1_448,
                holes: 0,
                has_sent,
                rtt: rtt.map(Span::millis),
                rtt_sent: rtt.map(|ms| Span::millis(ms / 3 * u64::from(port % 5))),
                transit,
                window: Bytes::new(window),
                advertised: Bytes::new(window / 3),
                segment: Bytes::new(segment),
                port,
            }
        })
}

/// Anything that other hosts of the network may say.
fn any_beside() -> impl Strategy<Value = Beside> {
    let rate = || prop_oneof![any::<u64>(), 0..100_000_000u64].prop_map(Rate::bps);
    let queue = prop::option::of(any::<u64>().prop_map(Span::nanos));
    let other = (rate(), prop::option::of(rate()), queue).prop_map(|(rate, wants, queue)| Other {
        rate,
        wants,
        queue,
    });
    let told = (rate(), rate(), rate(), any::<bool>())
        .prop_map(|(part, link, carried, drains)| Told { part, link, carried, drains });
    prop_oneof![
        4 => Just(Beside::Nobody),
        1 => prop::collection::vec(other, 0..4).prop_map(Beside::Led),
        1 => told.prop_map(Beside::Told),
    ]
}

fn any_tick() -> impl Strategy<Value = Observation> {
    let group = (0u64..100_000_000, 0u64..100_000, 0u64..1_000, 0u64..10_000_000);
    let groups = prop::collection::vec(group, 3);
    let connections = prop::collection::btree_map(any::<u64>(), any_connection(), 0..6);
    let probe = prop::option::of((0u32..9, 0u64..5_000));
    let interval = prop_oneof![8 => Just(TICK), 1 => (0u64..5_000).prop_map(Span::millis)];
    let tick = (groups, connections, probe, interval, any_beside());
    tick.prop_map(|(groups, connections, probe, interval, beside)| {
        let groups = groups.into_iter().map(|(received, packets, drops, backlog)| GroupSample {
            received: Bytes::new(received),
            packets,
            drops,
            backlog: Bytes::new(backlog),
        });
        let connections = connections.into_iter().map(|(id, c)| ConnectionSample { id, ..c });
        let probe = probe.map(|(answered, ms)| {
            let rtt = Span::millis(if answered == 0 { 0 } else { ms });
            ProbeSample { sent: 8, answered, rtt_min: rtt, rtt_mean: rtt, reflector: 0 }
        });
        let (groups, connections) = (groups.collect(), connections.collect());
        Observation { at: Time::ZERO, interval, groups, connections, probe, exact: None, beside }
    })
}

/// Windows have at least two segments, and are those of the connections that were observed.
fn check_windows(windows: &Windows, seen: &Observation) -> Result<(), TestCaseError> {
    let ids: Vec<u64> = windows.connections.iter().map(|c| c.id).collect();
    let observed: Vec<u64> = seen.connections.iter().map(|c| c.id).collect();
    prop_assert_eq!(ids, observed);
    for (bound, sample) in windows.connections.iter().zip(&seen.connections) {
        let least = sample.framing().segment() * SEGMENTS_MIN;
        prop_assert!(bound.window >= least, "{bound:?} {sample:?}");
    }
    prop_assert_eq!(windows.initial.len(), seen.groups.len());
    Ok(())
}

proptest! {
    #[test]
    fn whatever_is_observed_shares_fit_into_the_capacity_and_windows_hold_two_segments(
        remembered in prop::option::of(100u64..1_000_000),
        way in 0usize..3,
        ticks in prop::collection::vec(any_tick(), 1..60),
    ) {
        let weights = [5, 1, 3].map(|w| Weight::new(w).unwrap()).to_vec();
        let remembered = remembered.map(Rate::kbit);
        let (enforce, latency) = (Enforce::ALL[way], QUEUE);
        let mut control = Fairweir::new(FairweirSpec { weights: weights.into(), remembered, enforce, latency });
        drained(&mut control);
        let mut at = Time::ZERO;
        for tick in ticks {
            at = at + tick.interval;
            let tick = Observation { at, ..tick };
            control.handle_observation(&tick);
            let decision = control.decision().clone();
            let shares: Rate = decision.groups.iter().map(|g| g.share).sum();
            prop_assert!(shares <= decision.capacity.unwrap_or(Rate::ZERO), "{decision:?}");
            let commands = drained(&mut control);
            let lets_go = commands.iter().all(|command| *command == Command::Release);
            prop_assert!(decision.enforcing || lets_go, "{commands:?}");
            for command in commands {
                match command {
                    Command::SetRates(allocation) => {
                        prop_assert!(enforce != Enforce::Window);
                        prop_assert!(allocation.classes.iter().all(|c| c.ceil >= CEIL_MIN));
                    }
                    Command::SetWindows(windows) => {
                        prop_assert!(enforce != Enforce::Htb);
                        check_windows(&windows, &tick)?;
                    }
                    Command::Release => {}
                }
            }
        }
    }
}
