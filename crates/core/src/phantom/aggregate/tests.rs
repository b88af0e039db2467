//! What the policer promises, on small examples. The oracles' tests are in `phantom/tests`.

use super::*;
use crate::phantom::{Class, PlanSpec, Share};
use crate::units::{Bytes, Rate, Span};

fn plan(rate: Rate, signal: Signal, share: Share) -> Plan {
    Plan::new(&PlanSpec { rate, rtt_max: Span::millis(100), signal, share }).unwrap()
}

fn class(name: &str, weight: u16, share: Share) -> Class {
    let matches = match share {
        Share::Flows(_) => vec![crate::phantom::Criterion::Dscp(name.len() as u8)],
        _ => Vec::new(),
    };
    Class { name: name.into(), weight, matches, share }
}

/// Makes `class` the last leaf class, which takes all packets that match no other.
fn rest(mut class: Class) -> Class {
    class.matches.clear();
    class
}

/// Backlogs that remain of `backlogs` after `served` bytes of service in all.
fn drained(plan: &Plan, backlogs: &[u64], served: u64) -> Vec<f64> {
    let mut aggregate = Aggregate::new(plan);
    let mut state = aggregate.state();
    for (leaf, bytes) in backlogs.iter().enumerate() {
        state.put(plan, leaf, *bytes);
    }
    state.settle_all(plan, (served << UNIT_BITS) / plan.pace.rate);
    let left = |leaf: usize| {
        let spec = &plan.leaves[leaf];
        let parent = &state.inners[usize::from(spec.parent)];
        let is_busy = parent.is_busy(spec.child);
        let ahead = state.leaves[leaf].finish.wrapping_sub(parent.v);
        if is_busy {
            (u64::from(state.weight(plan, leaf)) * ahead) as f64 / 2f64.powi(24)
        } else {
            0.0
        }
    };
    (0..backlogs.len()).map(left).collect()
}

fn assert_near(left: &[f64], wanted: &[f64]) {
    for (left, wanted) in left.iter().zip(wanted) {
        assert!((left - wanted).abs() < 0.1, "{left} instead of {wanted}");
    }
}

#[test]
fn the_drain_is_fluid_by_weight() {
    let classes = vec![
        class("a", 1, Share::Flows(1)),
        class("bb", 2, Share::Flows(1)),
        rest(class("ccc", 3, Share::Flows(1))),
    ];
    let plan = plan(Rate::mbit(8), Signal::Hard, Share::Weighted(classes));
    let left = drained(&plan, &[3_000, 5_000, 1_000], 6_000);
    assert_near(&left, &[3_000.0 - 1_666.67, 5_000.0 - 3_333.33, 0.0]);
}

#[test]
fn the_drain_is_fluid_in_nested_nodes() {
    let a = vec![class("x", 1, Share::Flows(1)), class("yy", 3, Share::Flows(1))];
    let b = vec![class("ppp", 1, Share::Flows(1)), rest(class("q", 1, Share::Flows(1)))];
    let classes = vec![class("A", 2, Share::Weighted(a)), class("B", 1, Share::Priority(b))];
    let plan = plan(Rate::mbit(8), Signal::Hard, Share::Weighted(classes));
    assert_eq!((plan.inners.len(), plan.leaves.len()), (5, 4));
    let left = drained(&plan, &[4_000, 1_500, 500, 9_000], 6_000);
    assert_near(&left, &[1_500.0, 0.0, 0.0, 7_500.0]);
}

/// Bytes accepted for each leaf when each `(leaf, rate)` of `senders` sends `rate` packets of 1500
/// bytes a second, evenly from 0 to `seconds`.
fn accepted(plan: &Plan, senders: &[(usize, u64)], seconds: u64) -> Vec<u64> {
    let mut arrivals: Vec<(u64, usize)> = senders
        .iter()
        .enumerate()
        .flat_map(|(i, (leaf, rate))| {
            (0..rate * seconds).map(move |n| (n * 1_000_000_000 / rate + i as u64, *leaf))
        })
        .collect();
    arrivals.sort_unstable();
    let mut police = BcPqp::new(plan.clone());
    let mut sums = vec![0; plan.leaves.len()];
    for (at, leaf) in arrivals {
        let arrival =
            Arrival { leaf, flow: leaf as u32, size: Bytes::new(1_500), can_be_marked: false };
        if police.handle_packet(Time::from_nanos(at), arrival) == Verdict::Pass {
            sums[leaf] += 1_500;
        }
    }
    sums
}

#[test]
fn a_flood_gets_the_rate() {
    for signal in [Signal::Hard, Signal::Soft] {
        for mbit in [2, 10, 100] {
            let rate = Rate::mbit(mbit);
            let plan = plan(rate, signal, Share::Flows(16));
            let flood = 3 * rate.as_bps() / 12_000;
            let sum: u64 = accepted(&plan, &[(3, flood), (5, flood)], 10).iter().sum();
            let ratio = sum as f64 * 8.0 / 10.0 / rate.as_bps() as f64;
            assert!((0.99..1.2).contains(&ratio), "{signal} {rate}: {ratio:.3}");
        }
    }
}

#[test]
fn backlogged_leaves_share_by_weight() {
    let classes = (1..=4).map(|i| class(&"x".repeat(i), i as u16, Share::Flows(1)));
    let mut classes: Vec<Class> = classes.collect();
    classes[3].matches.clear();
    let plan = plan(Rate::mbit(20), Signal::Soft, Share::Weighted(classes));
    let sums = accepted(&plan, &[(0, 2_000), (1, 2_000), (2, 2_000), (3, 2_000)], 20);
    for (i, sum) in sums.iter().enumerate() {
        let ratio = *sum as f64 / sums[0] as f64 / (i + 1) as f64;
        assert!((0.85..1.05).contains(&ratio), "{sums:?}");
    }
}
