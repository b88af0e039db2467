use proptest::prelude::*;

use super::*;

/// Entries from (weight, demand in kbit/s); a negative demand means unlimited.
fn entries(of: &[(u32, i64)]) -> Vec<Entry> {
    of.iter()
        .map(|&(weight, demand)| Entry {
            weight: Weight::new(weight).unwrap(),
            demand: u64::try_from(demand).ok().map(Rate::kbit),
        })
        .collect()
}

/// Progressive filling in O(n²) with exact rationals (numerator, denominator), rounded down at the
/// end: raise all unfilled entries together by weight until one is full or nothing is left.
fn filled_progressively(capacity: Rate, entries: &[Entry]) -> Vec<u128> {
    let mut full = vec![false; entries.len()];
    loop {
        let taken: u128 = entries
            .iter()
            .zip(&full)
            .filter(|(_, full)| **full)
            .map(|(e, _)| u128::from(e.demand.unwrap().as_bps()))
            .sum();
        let left = u128::from(capacity.as_bps()) - taken;
        let weights: u128 = entries
            .iter()
            .zip(&full)
            .filter(|(_, full)| !**full)
            .map(|(e, _)| u128::from(e.weight.as_u32()))
            .sum();
        let newly: Vec<usize> = (0..entries.len())
            .filter(|&i| {
                !full[i]
                    && entries[i].demand.is_some_and(|d| {
                        u128::from(d.as_bps()) * weights
                            <= left * u128::from(entries[i].weight.as_u32())
                    })
            })
            .collect();
        // Only the smallest demand per weight is certain to be filled first.
        let first =
            newly.into_iter().min_by(|&i, &j| by_demand_per_weight(&entries[i], &entries[j]));
        match first {
            Some(i) => full[i] = true,
            None => {
                return (0..entries.len())
                    .map(|i| {
                        if full[i] {
                            u128::from(entries[i].demand.unwrap().as_bps())
                        } else {
                            left * u128::from(entries[i].weight.as_u32()) / weights
                        }
                    })
                    .collect();
            }
        }
    }
}

#[test]
fn worked_numbers_hold() {
    type Case = (u64, &'static [(u32, i64)], &'static [f64]);
    let cases: &[Case] = &[
        (30, &[(1, -1), (2, -1), (3, -1), (4, -1)], &[3.0, 6.0, 9.0, 12.0]),
        (30, &[(1, -1), (2, -1), (3, -1), (4, 0)], &[5.0, 10.0, 15.0, 0.0]),
        (30, &[(1, -1), (2, -1), (3, 10_500), (4, 0)], &[6.5, 13.0, 10.5, 0.0]),
        (30, &[(1, -1), (2, 10_500), (3, 10_500), (4, 0)], &[9.0, 10.5, 10.5, 0.0]),
        (30, &[(5, 10_250), (1, -1)], &[10.25, 19.75]),
        (10, &[(2, -1), (1, -1)], &[6.666_667, 3.333_333]),
        (
            60,
            &[(3, 4_000), (2, -1), (1, 9_000), (1, -1), (5, 1_000)],
            &[4.0, 30.666_667, 9.0, 15.333_333, 1.0],
        ),
        (30, &[(1, 5_000), (2, 5_000), (3, 5_000)], &[5.0, 5.0, 5.0]),
    ];
    for (capacity, of, expected) in cases {
        let parts = fair(Rate::mbit(*capacity), &entries(of));
        for (part, expected) in parts.iter().zip(*expected) {
            assert!((part.as_mbit_f64() - expected).abs() < 2e-6, "{of:?}: {parts:?}");
        }
    }
}

#[test]
fn nobody_and_nothing_are_divided_without_fuss() {
    assert_eq!(fair(Rate::mbit(1), &[]), vec![]);
    assert_eq!(fair(Rate::ZERO, &entries(&[(1, -1), (1, 5)])), vec![Rate::ZERO; 2]);
}

fn any_entries() -> impl Strategy<Value = Vec<Entry>> {
    let demand = prop_oneof![
        1 => Just(Some(Rate::ZERO)),
        2 => Just(None),
        5 => (0u64..100_000_000).prop_map(|bps| Some(Rate::bps(bps))),
        2 => (0u64..50).prop_map(|bps| Some(Rate::bps(bps))),
    ];
    let entry = (1u32..=100, demand)
        .prop_map(|(weight, demand)| Entry { weight: Weight::new(weight).unwrap(), demand });
    prop::collection::vec(entry, 1..24)
}

fn any_capacity() -> impl Strategy<Value = Rate> {
    prop_oneof![0u64..1_000, 0u64..2_000_000_000].prop_map(Rate::bps)
}

proptest! {
    #[test]
    fn parts_sum_to_capacity_or_demand_and_none_exceeds_its_demand(
        capacity in any_capacity(), entries in any_entries()
    ) {
        let parts = fair(capacity, &entries);
        let wanted = entries.iter().try_fold(Rate::ZERO, |sum, e| e.demand.map(|d| sum + d));
        let expected = wanted.map_or(capacity, |wanted| wanted.min(capacity));
        prop_assert_eq!(parts.iter().copied().sum::<Rate>(), expected);
        for (part, entry) in parts.iter().zip(&entries) {
            prop_assert!(entry.demand.is_none_or(|d| *part <= d));
        }
    }

    #[test]
    fn parts_agree_with_progressive_filling(capacity in any_capacity(), entries in any_entries()) {
        let parts = fair(capacity, &entries);
        for (part, exact) in parts.iter().zip(filled_progressively(capacity, &entries)) {
            prop_assert!(u128::from(part.as_bps()).abs_diff(exact) <= 1, "{:?}", parts);
        }
    }

    #[test]
    fn whoever_lacks_has_no_less_per_weight_than_anybody(
        capacity in any_capacity(), entries in any_entries()
    ) {
        let parts = fair(capacity, &entries);
        for (lacking, entry) in parts.iter().zip(&entries) {
            if entry.demand.is_some_and(|d| *lacking >= d) {
                continue;
            }
            for (part, other) in parts.iter().zip(&entries) {
                let mine = u128::from(lacking.as_bps() + 1) * u128::from(other.weight.as_u32());
                let theirs =
                    u128::from(part.as_bps().saturating_sub(1)) * u128::from(entry.weight.as_u32());
                prop_assert!(mine >= theirs, "{:?} of {:?}", parts, entries);
            }
        }
    }

    #[test]
    fn permutation_monotony_and_idempotence_hold_within_one_bit(
        capacity in any_capacity(), entries in any_entries(), more in 0u64..1_000_000
    ) {
        let parts = fair(capacity, &entries);
        let reversed: Vec<Entry> = entries.iter().rev().copied().collect();
        for (a, b) in parts.iter().zip(fair(capacity, &reversed).iter().rev()) {
            prop_assert!(a.as_bps().abs_diff(b.as_bps()) <= 1);
        }
        for (a, b) in parts.iter().zip(fair(capacity + Rate::bps(more), &entries)) {
            prop_assert!(a.as_bps() <= b.as_bps() + 1);
        }
        let again: Vec<Entry> = entries
            .iter()
            .zip(&parts)
            .map(|(e, part)| Entry { weight: e.weight, demand: Some(*part) })
            .collect();
        prop_assert_eq!(fair(capacity, &again), parts);
    }

    #[test]
    fn scaling_weights_changes_nothing(capacity in any_capacity(), entries in any_entries()) {
        let scaled: Vec<Entry> = entries
            .iter()
            .map(|e| Entry { weight: Weight::new(e.weight.as_u32() * 7).unwrap(), ..*e })
            .collect();
        for (a, b) in fair(capacity, &entries).iter().zip(fair(capacity, &scaled)) {
            prop_assert!(a.as_bps().abs_diff(b.as_bps()) <= 1);
        }
    }
}
