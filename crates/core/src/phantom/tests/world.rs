//! Plans and arrivals at random, small enough that a failure can be read.

use proptest::prelude::*;

use crate::phantom::{Class, Criterion, Plan, PlanSpec, Share, Signal};
use crate::units::{Rate, Span};

pub(super) fn plan(mbit: u64, rtt_ms: u64, signal: Signal, share: &Share) -> Plan {
    let spec = PlanSpec {
        rate: Rate::mbit(mbit),
        rtt_max: Span::millis(rtt_ms),
        signal,
        share: share.clone(),
    };
    Plan::new(&spec).unwrap()
}

/// The same plan with queues of `limit` bytes and a burst control that never acts.
pub(super) fn without_burst_control(mut plan: Plan, limit: u32) -> Plan {
    plan.pace.limit = limit;
    plan.pace.gate_slack = 1 << 63;
    plan.window = 1 << 62;
    plan.pace.window_bytes = 1 << 40;
    let backlog = plan.leaves.len() as u64 * (u64::from(limit) + 2_000);
    plan.pace.idle_after = (backlog << 24) / plan.pace.rate + 1;
    plan
}

/// Trees of all kinds, up to three deep.
pub(super) fn shares() -> impl Strategy<Value = Share> {
    let weight = || 1u16..=20;
    let flat = (1u8..=16).prop_map(Share::Flows);
    let weighted = prop::collection::vec((weight(), 1u8..=3), 2..5).prop_map(|parts| {
        // At most four of the parts have several queues, as the root is an inner node too.
        Share::Weighted(parts.into_iter().map(|(w, n)| class(w, Share::Flows(n))).collect())
    });
    let priority = prop::collection::vec(1u8..=4, 2..5).prop_map(|parts| {
        Share::Priority(parts.into_iter().map(|n| class(1, Share::Flows(n))).collect())
    });
    let under_priority =
        (prop::collection::vec(weight(), 2..6), 1u8..=6).prop_map(|(high, low)| {
            let high = high.into_iter().map(|w| class(w, Share::Flows(1))).collect();
            Share::Priority(vec![class(1, Share::Weighted(high)), class(1, Share::Flows(low))])
        });
    let nested = (weight(), weight(), prop::collection::vec(weight(), 2..6)).prop_map(
        |(first, second, leaves)| {
            let inside = leaves.into_iter().map(|w| class(w, Share::Flows(1))).collect();
            let ranks = vec![class(1, Share::Flows(1)), class(1, Share::Flows(2))];
            Share::Weighted(vec![
                class(first, Share::Weighted(inside)),
                class(second, Share::Priority(ranks)),
            ])
        },
    );
    prop_oneof![flat, weighted, priority, under_priority, nested].prop_map(named)
}

pub(super) fn class(weight: u16, share: Share) -> Class {
    Class { name: String::new(), weight, matches: Vec::new(), share }
}

/// Gives the classes names, and a match to all classes with queues except the last.
pub(super) fn named(mut share: Share) -> Share {
    let mut count = 0;
    name(&mut share, &mut count);
    if let Share::Weighted(classes) | Share::Priority(classes) = &mut share {
        clear_last(classes);
    }
    share
}

fn name(share: &mut Share, count: &mut u8) {
    let (Share::Weighted(classes) | Share::Priority(classes)) = share else { return };
    for class in classes {
        *count += 1;
        class.name = format!("class {count}");
        if matches!(class.share, Share::Flows(_)) {
            class.matches = vec![Criterion::Dscp(*count)];
        }
        name(&mut class.share, count);
    }
}

fn clear_last(classes: &mut [Class]) {
    let last = classes.last_mut().unwrap();
    last.matches.clear();
    if let Share::Weighted(classes) | Share::Priority(classes) = &mut last.share {
        clear_last(classes);
    }
}

/// A packet of a test: the time since the packet before, in thousandths of the time that 1,500
/// bytes take, the leaf (modulo the number of leaves), and the size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub gap: u64,
    pub leaf: usize,
    pub size: u64,
}

/// A packet with its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub at: u64,
    pub leaf: usize,
    pub size: u64,
}

/// Bursts, floods, trickles and pauses.
pub(super) fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        3 => Just(0u64),
        6 => 0u64..800,
        4 => 500u64..3_000,
        1 => 3_000u64..60_000,
    ];
    let size = prop_oneof![3 => Just(1_500u64), 2 => 40u64..1_500, 1 => Just(64u64)];
    // A burst for one leaf, then another: the case that queues exist for.
    let burst = (gap, 0usize..64, size, 1usize..6).prop_map(|(gap, leaf, size, repeat)| {
        (0..repeat).map(|_| Step { gap, leaf, size }).collect::<Vec<_>>()
    });
    prop::collection::vec(burst, count / 3..count / 3 + 1).prop_map(|bursts| bursts.concat())
}

/// The packets of these steps, with the leaves of a plan and their arrival times.
pub(super) fn packets(plan: &Plan, steps: &[Step]) -> Vec<Packet> {
    let mss_time = (1_500 << 24) / plan.pace.rate;
    let mut at = 0;
    let packet = |step: &Step| {
        at += step.gap * mss_time / 1_000;
        Packet { at, leaf: step.leaf % plan.leaves.len(), size: step.size }
    };
    steps.iter().map(packet).collect()
}
