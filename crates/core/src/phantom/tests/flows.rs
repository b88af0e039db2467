//! Set-associative hashing: where flows go, and what the hashing leaves unchanged.

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

/// A number whose bits are as good as random.
fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// `count` flows send packets at random, at twice the rate, for some seconds. Returns the bytes of
/// each flow that passed in the last half.
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

    /// Flows come and go at random in trees of all kinds: the weight of a node is that of its busy
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

/// Sixteen floods of full packets and, at `load` of the rate, packets of `size` bytes in `tuples`
/// flows by turns. Returns what passes of the floods and of the other flows, relative to the rate,
/// in the last 40 of 60 s, and the most that passes of both together in 250 ms.
fn beside_floods(tuples: u64, size: u64, load: f64) -> [f64; 3] {
    let plan = plan(20, 50, Signal::Soft, &Share::Flows(16));
    let mut aggregate = Aggregate::new(&plan);
    let rate = plan.pace.rate as f64 / f64::from(1 << 24);
    let gaps = [1_500.0 / rate, size as f64 / rate / load];
    let (mut next, mut counts) = ([0.0, 0.0], [0; 2]);
    let (mut passed, mut windows) = ([0.0; 2], vec![0.0; 240]);
    while next[0] < 60e9 {
        let who = usize::from(next[1] < next[0]);
        let at = next[who];
        next[who] += gaps[who];
        counts[who] += 1;
        let flow = [mixed(counts[0] << 8) % 16, 16 + counts[1] % tuples][who];
        let hash = (mixed(7 << 32 | flow) >> 16) as u32;
        let arrival = Arrival {
            leaf: ((u64::from(hash) * 16) >> 32) as usize,
            flow: hash,
            size: Bytes::new([1_500, size][who]),
            can_be_marked: false,
        };
        let verdict = decide(&plan, &mut aggregate.state(), Time::from_nanos(at as u64), arrival);
        if verdict != Verdict::Drop {
            windows[(at / 250e6) as usize] += [1_500.0, size as f64][who] / (rate * 250e6);
            passed[who] +=
                if at >= 20e9 { [1_500.0, size as f64][who] / (rate * 40e9) } else { 0.0 };
        }
    }
    let most = windows[80..].iter().copied().fold(0.0, f64::max);
    [passed[0], passed[1], most]
}

/// The floods get at least what they got before thin flows were spared, within a tenth: a flow that
/// is split into many must not count as many thin ones.
#[test]
fn who_splits_into_many_flows_does_not_exceed_the_plan_or_take_the_others_parts() {
    const NEW: u64 = u64::MAX;
    for (load, tuples, size, least) in [
        (0.02, 16, 250, 0.99),
        (0.02, 200, 1_500, 0.95),
        (0.02, NEW, 250, 0.97),
        (0.5, 1, 1_500, 0.99),
        (0.5, 200, 250, 0.52),
        (0.5, NEW, 60, 0.52),
        (1.0, 200, 1_500, 0.37),
        (1.0, NEW, 1_500, 0.44),
        (3.0, 200, 1_500, 0.18),
        (3.0, NEW, 1_500, 0.18),
    ] {
        let [floods, others, most] = beside_floods(tuples, size, load);
        let what = format!("{load} in {tuples} flows of {size} bytes: {floods:.3}, {others:.3}");
        assert!(floods >= least, "{what}");
        assert!(floods + others <= 1.06 && most <= 1.12, "{what}, at most {most:.3}");
    }
}
