use proptest::prelude::*;

use super::*;
use crate::receiver::TICK;
use crate::share::Weight;
use crate::units::{Bytes, Rate, Span, Time};

const V4: u64 = 1_448;

// ------------------------------------------------------------------------------------------------
// The law

#[test]
fn worked_windows_hold() {
    // A modem of 28.8 kbit/s, 160 ms, a queue of 1440 bytes.
    let modem = Rate::bps(28_800);
    let queue = modem.time_to_send(Bytes::new(1_440));
    assert_eq!(queue, Span::millis(400));
    assert_eq!(wire_window(modem, Span::millis(160), queue), Bytes::new(2_016));
    // ADSL of 512 kbit/s, 44 ms, a queue of 3216 bytes, two connections.
    let adsl = Rate::kbit(512);
    let queue = adsl.time_to_send(Bytes::new(3_216));
    assert_eq!(wire_window(adsl / 2, Span::millis(44), queue), Bytes::new(3_016));
    // 30 Mbit/s, a queue of 18,750 bytes, three connections of unlike RTTs: 10 Mbit/s each.
    let link = Rate::mbit(30);
    let queue = link.time_to_send(Bytes::new(18_750));
    for (rtt, expected) in [(10, 18_750), (50, 68_750), (200, 256_250)] {
        let window = wire_window(link / 3, Span::millis(rtt), queue);
        assert_eq!(window, Bytes::new(expected), "{rtt} ms");
        assert_eq!(Rate::from_volume(window, Span::millis(rtt) + queue), Rate::mbit(10));
    }
}

#[test]
fn payload_is_told_from_l2_bytes() {
    let framing = Framing::ipv4(Bytes::new(V4));
    assert_eq!(framing.wire(Bytes::new(V4)), Bytes::new(1_514));
    assert_eq!(framing.payload(Bytes::new(1_514 * 10)), Bytes::new(V4 * 10));
    assert_eq!(Framing::ipv6(Bytes::new(1_428)).wire(Bytes::new(1_428)), Bytes::new(1_514));
    // The modem's window of 2016 bytes, in packets of 576: 3.4 of 590 on the wire.
    let framing = Framing::ipv4(Bytes::new(524));
    let modem = Rate::bps(28_800);
    let at = |queue| window(modem, Span::millis(160), Span::millis(queue), framing);
    assert_eq!(at(400), Bytes::new(524 * 3));
    assert_eq!(at(500), Bytes::new(524 * 4));
    // Unknown segments and a link without a rate still give a valid window.
    assert_eq!(
        window(Rate::ZERO, Span::ZERO, Span::ZERO, Framing::ipv4(Bytes::ZERO)),
        Bytes::new(2 * V4)
    );
}

/// Base RTTs of the connections of a link, in ms.
fn any_rtts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1u64..600, 1..40)
}

proptest! {
    #[test]
    fn windows_sum_to_the_bdp_and_the_queue_within_half_a_segment_each(
        kbit in 20_000u64..1_000_000, rtt in 20u64..600, queue_ms in 1u64..400, n in 1u64..20,
    ) {
        let (link, rtt, queue) = (Rate::kbit(kbit), Span::millis(rtt), Span::millis(queue_ms));
        let framing = Framing::ipv4(Bytes::new(V4));
        prop_assume!(wire_window(link / n, rtt, queue) > framing.wire(Bytes::new(V4 * SEGMENTS_MIN)));
        let sum = window(link / n, rtt, queue, framing) * n;
        let exact = framing.payload(link * (rtt + queue));
        prop_assert!(sum.as_u64().abs_diff(exact.as_u64()) <= n * (V4 / 2 + 8), "{sum} {exact}");
    }

    #[test]
    fn unlike_rtts_get_equal_rates_and_leave_the_queue_as_it_shall_be(
        rtts in any_rtts(), kbit in 1_000u64..1_000_000, queue_ms in 1u64..400,
    ) {
        // The queue is what is in flight less what the paths hold at these rates.
        let (link, queue) = (Rate::kbit(kbit), Span::millis(queue_ms));
        let n = rtts.len() as u64;
        let under_way: Bytes =
            rtts.iter().map(|&ms| wire_window(link / n, Span::millis(ms), queue)).sum();
        let on_paths: Bytes = rtts.iter().map(|&ms| (link / n) * Span::millis(ms)).sum();
        let waits = under_way.saturating_sub(on_paths);
        prop_assert!(waits.as_u64().abs_diff((link * queue).as_u64()) <= 2 * n + n * n / 8 + 1);
    }

    #[test]
    fn more_share_rtt_or_queue_never_narrows_a_window(
        kbit in 1u64..1_000_000, rtt in 0u64..1_000, queue in 0u64..500, more in 0u64..1_000,
        segment in 1u64..9_000,
    ) {
        let framing = Framing::ipv4(Bytes::new(segment));
        let at = |kbit, rtt, queue| {
            window(Rate::kbit(kbit), Span::millis(rtt), Span::millis(queue), framing)
        };
        let base = at(kbit, rtt, queue);
        prop_assert!(base >= framing.segment() * SEGMENTS_MIN);
        prop_assert_eq!(base.as_u64() % segment, 0);
        prop_assert!(at(kbit + more, rtt, queue) >= base);
        prop_assert!(at(kbit, rtt + more, queue) >= base);
        prop_assert!(at(kbit, rtt, queue + more) >= base);
    }

    #[test]
    fn payload_and_wire_are_each_others_inverse(bytes in 0u64..1 << 50, segment in 1u64..9_000) {
        let framing = Framing::ipv6(Bytes::new(segment));
        let there = framing.payload(framing.wire(Bytes::new(bytes)));
        prop_assert_eq!(there, Bytes::new(bytes));
        prop_assert!(framing.wire(framing.payload(Bytes::new(bytes))) <= Bytes::new(bytes));
    }
}

// ------------------------------------------------------------------------------------------------
// Classes

/// A connection that is fed tick by tick.
struct Fed {
    now: Time,
    behaviour: Behaviour,
    bounds: Bounds,
}

impl Fed {
    fn new(port: u16, capacity: Rate) -> Fed {
        let bounds = Bounds::for_capacity(Some(capacity));
        Fed { now: Time::ZERO, behaviour: Behaviour::new(Time::ZERO, port), bounds }
    }

    fn tick(&mut self, has_sent: bool, received: u64) -> Class {
        self.now = self.now + TICK;
        self.behaviour.handle_tick(self.now, has_sent, Bytes::new(received));
        self.behaviour.class(self.now, self.bounds)
    }
}

const MODEM: Rate = Rate::bps(28_800);

#[test]
fn on_the_papers_modem_the_bounds_are_the_papers() {
    let paper = Bounds { short: Bytes::kb(2), long: Bytes::kb(8) };
    assert_eq!(Bounds::for_capacity(Some(MODEM)), paper);
    assert_eq!(Bounds::for_capacity(None), paper);
}

#[test]
fn a_download_passes_through_all_classes() {
    let mut fed = Fed::new(443, MODEM);
    assert_eq!(fed.tick(true, 0), Class::Interactive);
    let classes: Vec<Class> = (0..12).map(|_| fed.tick(false, 720)).collect();
    use Class::{Interactive as I, Long as L, Short as S};
    assert_eq!(classes, [I, I, S, S, S, S, S, S, S, S, S, L]);
}

#[test]
fn keystrokes_and_their_echoes_stay_interactive() {
    let mut fed = Fed::new(23, MODEM);
    for _ in 0..500 {
        assert_eq!(fed.tick(true, 80), Class::Interactive);
    }
}

#[test]
fn the_next_request_on_a_connection_begins_anew() {
    let mut fed = Fed::new(443, Rate::mbit(10));
    for _ in 0..5 {
        fed.tick(false, 100_000);
    }
    assert_eq!(fed.tick(false, 100_000), Class::Long);
    // Within one tick, the request came before its answer.
    assert_eq!(fed.tick(true, 10_000), Class::Interactive);
    assert_eq!(fed.tick(true, 20_000), Class::Short);
    assert_eq!(fed.tick(true, 0), Class::Interactive);
}

#[test]
fn the_next_piece_of_a_download_is_long_and_what_comes_after_a_short_answer_is_not() {
    let mut fed = Fed::new(443, Rate::mbit(10));
    for _ in 0..3 {
        fed.tick(true, 100_000);
        assert_eq!(fed.tick(false, 100_000), Class::Long);
        // A request whose answer is slow, and one that is sent in two parts.
        fed.tick(true, 0);
        assert_eq!(fed.tick(true, 0), Class::Interactive);
        assert_eq!(fed.tick(false, 20_000), Class::Long);
        assert_eq!(fed.tick(false, 200_000), Class::Long);
    }
    assert_eq!(fed.tick(true, 20_000), Class::Long);
    assert_eq!(fed.tick(true, 20_000), Class::Short);
}

#[test]
fn a_short_answer_that_has_ended_holds_nobody_back() {
    let mut fed = Fed::new(443, Rate::mbit(10));
    assert_eq!(fed.tick(true, 50_000), Class::Short);
    let classes: Vec<Class> = (0..6).map(|_| fed.tick(false, 0)).collect();
    assert_eq!(classes[..5], [Class::Short; 5]);
    assert_eq!(classes[5], Class::Interactive);
}

#[test]
fn after_30_s_without_payload_a_connection_is_idle_and_the_next_packet_wakes_it() {
    let mut fed = Fed::new(443, Rate::mbit(10));
    fed.tick(false, 1_000_000);
    let ticks = (0..200).take_while(|_| fed.tick(false, 0) == Class::Long).count();
    assert_eq!(TICK * (ticks as u64 + 1), Span::secs(30));
    assert_eq!(fed.tick(false, 0), Class::Idle);
    assert_eq!(fed.tick(false, 100), Class::Long);
}

#[test]
fn a_port_says_what_a_connection_is_until_it_sends() {
    let mut fed = Fed::new(20, MODEM);
    assert_eq!(fed.tick(false, 0), Class::Long);
    assert_eq!(fed.tick(false, 100), Class::Long);
    assert_eq!(fed.tick(true, 100), Class::Interactive);
}

#[test]
fn web_objects_are_short_and_downloads_long_at_every_capacity() {
    // (kbit/s, the size of an object, the size of an answer that is no longer an object).
    let cases = [
        (28, 6_000, 10_000),
        (500, 50_000, 100_000),
        (10_000, 100_000, 200_000),
        (100_000, 1_000_000, 2_000_000),
    ];
    for (kbit, object, download) in cases {
        let bounds = Bounds::for_capacity(Some(Rate::kbit(kbit)));
        assert!(bounds.short < Bytes::new(object), "{kbit}: {bounds:?}");
        assert!(bounds.long >= Bytes::new(object), "{kbit}: {bounds:?}");
        assert!(bounds.long < Bytes::new(download), "{kbit}: {bounds:?}");
    }
}

proptest! {
    #[test]
    fn a_faster_link_never_calls_less_a_download(bps in 1u64..10_000_000_000, more in 0u64..1 << 32) {
        let slow = Bounds::for_capacity(Some(Rate::bps(bps)));
        let fast = Bounds::for_capacity(Some(Rate::bps(bps + more)));
        prop_assert!(slow.short < slow.long);
        prop_assert!(fast.short >= slow.short && fast.long >= slow.long);
        // No bound delays a download for longer than on the paper's modem.
        if slow.long > Bytes::kb(2) {
            prop_assert!(Rate::bps(bps).time_to_send(slow.long) <= Span::millis(2_223));
        }
    }
}

// ------------------------------------------------------------------------------------------------
// Division

fn member(class: Class, demand: Option<u64>, floor: u64) -> Member {
    Member { weight: Weight::ONE, class, demand: demand.map(Rate::kbit), floor: Rate::kbit(floor) }
}

fn divided(share: u64, members: &[Member]) -> Vec<u64> {
    divide(Rate::kbit(share), members).iter().map(|part| part.as_bps() / 1_000).collect()
}

#[test]
fn long_ones_hold_their_least_windows_beside_a_short_one_and_come_back_after_it() {
    let long = member(Class::Long, None, 50);
    let short = member(Class::Short, None, 50);
    let idle = member(Class::Idle, None, 50);
    assert_eq!(divided(1_000, &[long, short, long, idle]), [50, 900, 50, 0]);
    assert_eq!(divided(1_000, &[long, short, short]), [50, 475, 475]);
    assert_eq!(divided(1_000, &[long, idle, long]), [500, 0, 500]);
}

#[test]
fn the_interactive_get_what_they_need_and_do_not_hold_the_long_ones_back() {
    let typing = member(Class::Interactive, Some(10), 50);
    let fresh = member(Class::Interactive, None, 50);
    let long = member(Class::Long, None, 50);
    assert_eq!(divided(1_000, &[typing, long]), [10, 990]);
    assert_eq!(divided(1_000, &[typing, long, fresh]), [10, 495, 495]);
    let short = member(Class::Short, None, 50);
    assert_eq!(divided(1_000, &[typing, long, short]), [10, 50, 940]);
}

#[test]
fn what_a_limited_sender_leaves_goes_to_the_others() {
    let slow = member(Class::Long, Some(100), 50);
    let long = member(Class::Long, None, 50);
    assert_eq!(divided(1_000, &[slow, long, long]), [100, 450, 450]);
    // A short connection that cannot use its part leaves the rest to the long ones.
    let short = member(Class::Short, Some(300), 50);
    assert_eq!(divided(1_000, &[short, long, long]), [300, 350, 350]);
    let trickle = member(Class::Long, Some(10), 50);
    let greedy = member(Class::Short, None, 50);
    assert_eq!(divided(1_000, &[greedy, trickle]), [990, 10]);
}

#[test]
fn where_least_windows_are_more_than_the_link_all_share_alike() {
    let long = member(Class::Long, None, 50);
    let short = member(Class::Short, None, 50);
    assert_eq!(divided(100, &[long, long, long, short]), [25, 25, 25, 25]);
    assert_eq!(divided(100, &[]), [0; 0]);
}

fn any_members() -> impl Strategy<Value = Vec<Member>> {
    let class =
        prop::sample::select(vec![Class::Interactive, Class::Short, Class::Long, Class::Idle]);
    let demand = prop::option::of(0u64..20_000_000);
    let weight = (1u32..=10_000).prop_map(|n| Weight::new(n).unwrap());
    let one = (weight, class, demand, 1u64..2_000_000);
    let one = one.prop_map(|(weight, class, demand, floor)| Member {
        weight,
        class,
        demand: demand.map(Rate::bps),
        floor: Rate::bps(floor),
    });
    prop::collection::vec(one, 0..30)
}

proptest! {
    #[test]
    fn parts_use_all_of_the_share_that_anybody_wants_and_no_more(
        bps in 0u64..100_000_000, members in any_members()
    ) {
        let parts = divide(Rate::bps(bps), &members);
        let active = members.iter().filter(|m| m.class != Class::Idle);
        let wanted = active.clone().try_fold(Rate::ZERO, |sum, m| m.demand.map(|d| sum + d));
        let expected = wanted.map_or(Rate::bps(bps), |wanted| wanted.min(Rate::bps(bps)));
        prop_assert_eq!(parts.iter().copied().sum::<Rate>(), expected);
        for (part, member) in parts.iter().zip(&members) {
            prop_assert!(member.demand.is_none_or(|d| *part <= d));
            prop_assert!(member.class != Class::Idle || *part == Rate::ZERO);
        }
    }

    #[test]
    fn no_short_one_has_less_than_a_long_one_unless_it_wants_less(
        bps in 0u64..100_000_000, mut members in any_members()
    ) {
        for member in &mut members {
            member.weight = Weight::ONE;
        }
        let parts = divide(Rate::bps(bps), &members);
        let of = |class: Class| {
            members.iter().zip(&parts).filter(move |(m, _)| m.class == class)
        };
        for (short, part) in of(Class::Short) {
            let has_all = short.demand.is_some_and(|demand| *part == demand);
            let most = of(Class::Long).map(|(_, part)| part.as_bps()).max().unwrap_or(0);
            prop_assert!(has_all || part.as_bps() + members.len() as u64 >= most);
        }
    }

    #[test]
    fn order_does_not_matter_and_more_for_all_is_less_for_no_class(
        bps in 0u64..100_000_000, more in 0u64..10_000_000, members in any_members()
    ) {
        let parts = divide(Rate::bps(bps), &members);
        let slack = 2 * members.len() as u64;
        let mut backwards: Vec<Member> = members.clone();
        backwards.reverse();
        let mirrored = divide(Rate::bps(bps), &backwards);
        for (a, b) in parts.iter().zip(mirrored.iter().rev()) {
            prop_assert!(a.as_bps().abs_diff(b.as_bps()) <= slack);
        }
        let richer = divide(Rate::bps(bps + more), &members);
        for class in [Class::Interactive, Class::Short, Class::Long] {
            let of = |parts: &[Rate]| -> u64 {
                let all = members.iter().zip(parts);
                all.filter(|(m, _)| m.class == class).map(|(_, part)| part.as_bps()).sum()
            };
            prop_assert!(of(&richer) + slack >= of(&parts));
        }
    }
}
