//! The drain without burst control: the policer is then a shaper that stores nothing.

use proptest::prelude::*;

use super::oracle::{Fit, FluidShaper, Node, coarse, fine};
use super::world::{Packet, Step, named, packets, plan, shares, steps, without_burst_control};
use crate::phantom::aggregate::{Aggregate, decide, inspect};
use crate::phantom::plan::limit_for;
use crate::phantom::{Arrival, Class, Plan, Share, Signal, Verdict};
use crate::units::{Bytes, Rate, Span, Time};

/// Largest effect of rounding on a backlog, bytes. The promise is an MSS.
const SLACK: u64 = 4;

const LIMIT: u32 = 40_000;

fn offer(aggregate: &mut Aggregate, plan: &Plan, packet: Packet) -> Verdict {
    let Packet { at, leaf, size } = packet;
    let arrival = Arrival { leaf, flow: leaf as u32, size: Bytes::new(size), can_be_marked: false };
    decide(plan, &mut aggregate.state(), Time::from_nanos(at), arrival)
}

fn backlogs(aggregate: &Aggregate, plan: &Plan, at: u64) -> Vec<f64> {
    let leaves = inspect::leaves(aggregate, plan, Time::from_nanos(at));
    leaves.iter().map(|leaf| leaf.backlog as f64 / 2f64.powi(24)).collect()
}

fn hard(mbit: u64, share: &Share) -> Plan {
    without_burst_control(plan(mbit, 50, Signal::Hard, share), LIMIT)
}

fn accepts(plan: &Plan, aggregate: &mut Aggregate, packets: &[Packet]) -> Vec<bool> {
    packets.iter().map(|packet| offer(aggregate, plan, *packet) != Verdict::Drop).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_drain_is_event_driven_gps_and_a_bytewise_one_within_rounding(
        share in shares(),
        backlog in prop::collection::vec(prop_oneof![Just(0u64), 1u64..5_000], 64),
        served in prop::collection::vec(1u64..6_000, 1..5),
    ) {
        let plan = hard(8, &share);
        let tree = Node::new(&share, &plan);
        let mut aggregate = Aggregate::new(&plan);
        let leaves = plan.leaves.len();
        for (leaf, bytes) in backlog.iter().take(leaves).enumerate() {
            inspect::put(&mut aggregate, &plan, leaf, *bytes);
        }
        let mut gps: Vec<u128> = backlog.iter().take(leaves).map(|bytes| fine(*bytes)).collect();
        let mut euler: Vec<f64> = backlog.iter().take(leaves).map(|bytes| *bytes as f64).collect();
        let mut total = 0;
        for served in served {
            total += served;
            tree.serve(&mut gps, fine(served));
            tree.serve_bytewise(&mut euler, served);
            let ours = backlogs(&aggregate, &plan, (total << 24) / plan.pace.rate);
            for ((ours, gps), euler) in ours.iter().zip(&gps).zip(&euler) {
                let gps = coarse(*gps);
                prop_assert!((ours - gps).abs() < SLACK as f64, "{ours} is not GPS' {gps}");
                prop_assert!((ours - euler).abs() < 1_500.0, "{ours} is not {euler} by bytes");
            }
        }
    }

    #[test]
    fn the_same_packets_are_accepted_as_by_a_shaper_with_the_same_buffers(
        share in shares(),
        steps in steps(240),
        mbit in prop_oneof![Just(2u64), Just(25), Just(1_000)],
    ) {
        let plan = hard(mbit, &share);
        let mut shaper = FluidShaper::new(Node::new(&share, &plan), &plan);
        let mut aggregate = Aggregate::new(&plan);
        let (mut barely, mut count, mut past, mut last_at) = (0, 0, 0, 0);
        for packet in packets(&plan, &steps) {
            last_at = packet.at;
            shaper.advance(packet.at);
            let is_accepted = offer(&mut aggregate, &plan, packet) == Verdict::Pass;
            match shaper.fit(packet.leaf, packet.size, SLACK) {
                Fit::Yes => prop_assert!(is_accepted, "{packet:?}"),
                Fit::No if is_accepted => {
                    // A class below others sends a packet past its queue, and past the shaper.
                    past += 1;
                    continue;
                }
                Fit::No => {}
                Fit::Barely => barely += 1,
            }
            count += 1;
            if is_accepted {
                shaper.accept(packet.leaf, packet.size);
            }
            // Service that the lazy way deferred is made up for when the backlog is read.
            for (ours, left) in backlogs(&aggregate, &plan, packet.at).iter().zip(&shaper.left) {
                prop_assert!((ours - coarse(*left)).abs() < SLACK as f64);
            }
        }
        let classes = plan.inners.iter().filter(|inner| inner.is_priority).count() as u64 * 4;
        prop_assert!(past <= (last_at / plan.window + 1) * classes, "{past} past their queues");
        prop_assert!(barely * 20 <= count, "{barely} of {count} packets prove nothing");
    }

    #[test]
    fn no_service_is_lost_while_anything_waits(share in shares(), steps in steps(150)) {
        let plan = hard(10, &share);
        let mut aggregate = Aggregate::new(&plan);
        let (mut latest, mut total) = (0, 0.0f64);
        for packet in packets(&plan, &steps) {
            let service = (plan.pace.rate * (packet.at - latest)) as f64 / 2f64.powi(24);
            total = (total - service).max(0.0);
            let waits: f64 = backlogs(&aggregate, &plan, packet.at).iter().sum();
            let leaves = plan.leaves.len() as f64;
            prop_assert!((waits - total).abs() < leaves + 2.0, "{waits} wait, not {total}");
            total = waits;
            if offer(&mut aggregate, &plan, packet) == Verdict::Pass {
                total += packet.size as f64;
            }
            latest = packet.at;
        }
    }

    /// A leaf that is surely busy and has room is not settled; else only the path to it is settled.
    #[test]
    fn putting_service_off_changes_no_verdict_and_no_backlog(
        share in shares(),
        signal in prop_oneof![Just(Signal::Hard), Just(Signal::Soft)],
        (mbit, rtt) in prop_oneof![Just((2, 10)), Just((10, 50)), Just((200, 20))],
        steps in steps(400),
    ) {
        let plan = plan(mbit, rtt, signal, &share);
        let (mut lazy, mut eager) = (Aggregate::new(&plan), Aggregate::new(&plan));
        for packet in packets(&plan, &steps) {
            inspect::settle(&mut eager, &plan, Time::from_nanos(packet.at));
            let verdicts = [&mut lazy, &mut eager].map(|one| offer(one, &plan, packet));
            prop_assert_eq!(verdicts[0], verdicts[1], "{:?}", packet);
            let now = Time::from_nanos(packet.at);
            let [lazy, eager] = [&lazy, &eager].map(|one| inspect::leaves(one, &plan, now));
            for (lazy, eager) in lazy.iter().zip(&eager) {
                // A service that is divided in two steps may leave another remainder.
                prop_assert!(lazy.backlog.abs_diff(eager.backlog) < 1 << 20);
            }
        }
    }

    #[test]
    fn verdicts_do_not_depend_on_the_numbers_of_leaves(
        (count, order) in (2usize..=64).prop_flat_map(|n| {
            (Just(n), Just((0..n).collect::<Vec<_>>()).prop_shuffle())
        }),
        signal in prop_oneof![Just(Signal::Hard), Just(Signal::Soft)],
        steps in steps(300),
    ) {
        let plan = plan(10, 50, signal, &Share::Flows(count as u8));
        let straight = packets(&plan, &steps);
        let moved = |packet: &Packet| Packet { leaf: order[packet.leaf], ..*packet };
        let moved: Vec<_> = straight.iter().map(moved).collect();
        prop_assert_eq!(
            accepts(&plan, &mut Aggregate::new(&plan), &straight),
            accepts(&plan, &mut Aggregate::new(&plan), &moved)
        );
    }

    #[test]
    fn verdicts_do_not_depend_on_the_order_of_classes(
        weights in prop::collection::vec(1u16..=256, 2..12),
        signal in prop_oneof![Just(Signal::Hard), Just(Signal::Soft)],
        steps in steps(300),
    ) {
        let class = |(at, weight): (usize, &u16)| Class {
            name: format!("class {at}"),
            weight: *weight,
            matches: vec![crate::phantom::Criterion::Dscp(at as u8)],
            share: Share::Flows(1),
        };
        let mut classes: Vec<Class> = weights.iter().enumerate().map(class).collect();
        classes[0].matches.clear();
        let count = classes.len();
        let straight = plan(10, 50, signal, &Share::Weighted(classes.clone()));
        classes.reverse();
        let reversed = plan(10, 50, signal, &Share::Weighted(classes));
        let there = packets(&straight, &steps);
        let back = |packet: &Packet| Packet { leaf: count - 1 - packet.leaf, ..*packet };
        let back: Vec<_> = there.iter().map(back).collect();
        prop_assert_eq!(
            accepts(&straight, &mut Aggregate::new(&straight), &there),
            accepts(&reversed, &mut Aggregate::new(&reversed), &back)
        );
    }

    #[test]
    fn verdicts_do_not_depend_on_where_virtual_time_begins(
        share in shares(),
        signal in prop_oneof![Just(Signal::Hard), Just(Signal::Soft)],
        steps in steps(300),
        before in 0u64..1 << 41,
    ) {
        // In whole bytes per weight: windows count in them.
        let plan = plan(10, 50, signal, &share);
        let packets = packets(&plan, &steps);
        let mut wrapping = Aggregate::new(&plan);
        inspect::begin_virtual_time(&mut wrapping, (before >> 24 << 24).wrapping_neg());
        let fresh = accepts(&plan, &mut Aggregate::new(&plan), &packets);
        prop_assert_eq!(fresh, accepts(&plan, &mut wrapping, &packets));
    }

    #[test]
    fn who_comes_after_gets_nothing_while_who_comes_before_waits(steps in steps(240)) {
        let weighted = [5, 1, 3].map(|weight| Class {
            name: String::new(),
            weight,
            matches: Vec::new(),
            share: Share::Flows(1),
        });
        let ranks = [Share::Weighted(weighted.to_vec()), Share::Flows(3), Share::Flows(1)];
        let rank = |share| Class { name: String::new(), weight: 1, matches: Vec::new(), share };
        let share = named(Share::Priority(ranks.map(rank).to_vec()));
        let plan = plan(10, 50, Signal::Soft, &share);
        // Leaves are numbered node by node; the leaves of the highest rank come first.
        let ranks = [0..3, 3..6, 6..7];
        let mut aggregate = Aggregate::new(&plan);
        let (mut before, mut tried) = (vec![0.0; plan.leaves.len()], 0);
        for packet in packets(&plan, &steps) {
            let after = backlogs(&aggregate, &plan, packet.at);
            let busy = ranks.iter().position(|rank| after[rank.clone()].iter().any(|b| *b > 1.0));
            // A backlog of now was there at the packet before, too, as none came between.
            for rank in ranks.iter().skip(busy.map_or(3, |busy| busy + 1)) {
                for leaf in rank.clone() {
                    let served = before[leaf] - after[leaf];
                    // The end of a window takes magic away, which does not count as service.
                    let is_same = inspect::window_at(&aggregate).as_nanos() + plan.window > packet.at;
                    prop_assert!(served.abs() < 1.0 || !is_same, "{served} bytes for {leaf}");
                    tried += 1;
                }
            }
            offer(&mut aggregate, &plan, packet);
            before = backlogs(&aggregate, &plan, packet.at);
        }
        prop_assert!(tried > 50, "only {tried} times was there anything to see");
    }
}

#[test]
fn a_long_trickle_and_a_long_flood_agree_with_the_shaper_too() {
    let share = Share::Flows(16);
    let plan = hard(100, &share);
    let mut shaper = FluidShaper::new(Node::new(&share, &plan), &plan);
    let mut aggregate = Aggregate::new(&plan);
    let mut seed = 1u64;
    let mut at = 0;
    let mut dropped = 0;
    for i in 0..60_000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += (seed >> 40) % (if i / 10_000 % 2 == 0 { 80_000 } else { 300_000 });
        let packet =
            Packet { at, leaf: (seed >> 33) as usize % 16, size: 40 + (seed >> 20) % 1_461 };
        shaper.advance(at);
        let is_accepted = offer(&mut aggregate, &plan, packet) == Verdict::Pass;
        match shaper.fit(packet.leaf, packet.size, SLACK) {
            Fit::Yes => assert!(is_accepted, "{packet:?}"),
            Fit::No => assert!(!is_accepted, "{packet:?}"),
            Fit::Barely => {}
        }
        dropped += u64::from(!is_accepted);
        if is_accepted {
            shaper.accept(packet.leaf, packet.size);
        }
    }
    assert!(dropped > 1_000, "{dropped} drops are no flood");
}

#[test]
fn queues_are_as_large_as_reno_needs() {
    for (kbit, rtt_ms, bytes) in [
        (10_000, 100, 578_704),
        (15_000, 100, 1_302_083),
        (7_500, 50, 81_380),
        (100_000, 50, 14_467_593),
    ] {
        let limit = limit_for(Rate::kbit(kbit), Span::millis(rtt_ms), 1).as_u64();
        assert!(limit.abs_diff(bytes) <= 1, "{limit} is not {bytes}");
    }
}

#[test]
fn no_queue_is_too_small_for_a_packet_or_a_round_trip() {
    // The formula alone says 130 bytes.
    let plan = plan(2, 10, Signal::Hard, &Share::Flows(1));
    assert_eq!(plan.pace.limit, 15_000 + 2_500);
}

#[test]
fn steps_are_many_enough_to_fill_queues() {
    // If no packet was ever dropped, the tests above would say nothing.
    let plan = hard(2, &Share::Flows(2));
    let burst = |leaf| Step { gap: 0, leaf, size: 1_500 };
    let steps: Vec<Step> = (0..100).map(burst).collect();
    let accepted = accepts(&plan, &mut Aggregate::new(&plan), &packets(&plan, &steps));
    assert_eq!(accepted.iter().filter(|is| **is).count(), 2 * (40_000 / 1_500));
}
