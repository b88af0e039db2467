//! Set-associative hashing: where flows go, and what that does not change.

use proptest::prelude::*;

use super::world::{plan, shares};
use crate::phantom::aggregate::{Aggregate, decide, inspect};
use crate::phantom::{Arrival, Plan, Share, Signal, Verdict};
use crate::units::{Bytes, Time};

/// A packet of a flow whose hash has chosen the leaf.
fn offer(aggregate: &mut Aggregate, plan: &Plan, at: u64, flow: u32, leaf: usize) -> Verdict {
    let arrival = Arrival { leaf, flow, size: Bytes::new(1_500), can_be_marked: false };
    decide(plan, &mut aggregate.state(), Time::from_nanos(at), arrival)
}

/// A number of which each bit is as good as random.
fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// `count` flows send packets by chance at twice the rate for some seconds. Returns what passed of each
/// in the last half, bytes.
fn shared(count: u64, seed: u64, mbit: u64) -> Vec<f64> {
    let plan = plan(mbit, 50, Signal::Soft, &Share::Flows(16));
    let mut aggregate = Aggregate::new(&plan);
    let mut passed = vec![0.0; count as usize];
    let gap = (1_500 << 24) / plan.pace.rate / 2;
    let packets = 60_000_000_000 / gap;
    for n in 0..packets {
        let flow = (mixed(n << 8 | seed) >> 24) % count;
        let hash = (mixed(seed << 32 | flow) >> 16) as u32;
        let leaf = ((u64::from(hash) * 16) >> 32) as usize;
        let verdict = offer(&mut aggregate, &plan, n * gap, hash, leaf);
        if n > packets / 2 && verdict != Verdict::Drop {
            passed[flow as usize] += 1_500.0;
        }
    }
    passed
}

fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn up_to_32_floods_in_16_queues_have_equal_shares() {
    for (count, mbit) in [(2, 10), (9, 2), (16, 10), (17, 10), (24, 2), (24, 50), (32, 10)] {
        for seed in 0..8 {
            let jain = jain(&shared(count, seed, mbit));
            assert!(jain > 0.96, "{count} flows, seed {seed}: {jain:.3}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Flows come and go at random in trees of all kinds: weights of nodes are those of their busy
    /// leaves, and no more is accepted than the rate, the spare and the queues allow.
    #[test]
    fn whatever_flows_come_nodes_add_up_and_the_bound_holds(
        share in shares(),
        packets in prop::collection::vec((0u64..40, 0u64..3_000, 0u64..400), 200..1_500),
        pause in prop_oneof![Just(0u64), 1u64..3_000],
    ) {
        let plan = plan(5, 30, Signal::Soft, &share);
        let mut aggregate = Aggregate::new(&plan);
        let (mut at, mut sum, mut least, mut most) = (0u64, 0i64, 0, 0);
        for (n, &(flow, gap, rare)) in packets.iter().enumerate() {
            at += gap * 1_000 + if rare == 0 { pause * 1_000_000 } else { 0 };
            let hash = mixed(flow) as u32;
            let leaf = (mixed(flow) >> 32) as usize % plan.leaves.len();
            let verdict = offer(&mut aggregate, &plan, at, hash, leaf);
            let ahead = |sum| sum - ((plan.pace.rate * at) >> 24) as i64;
            least = least.min(ahead(sum));
            if verdict != Verdict::Drop {
                sum += 1_500;
            }
            most = most.max(ahead(sum) - least);
            if n % 50 == 0 {
                prop_assert_eq!(inspect::wrong_weight(&mut aggregate, &plan), None);
            }
        }
        let spare = ((plan.pace.rate * 500_000_000) >> 24).max(plan.pace.limit.into());
        let queues = plan.leaves.len() as u64 * (u64::from(plan.pace.limit) + 2 * plan.pace.window_bytes);
        let starved = (at / plan.window + 1) * 1_500;
        prop_assert!(most <= (spare + queues + starved) as i64, "{most} beyond the rate");
    }
}
