//! Compares the optimum of a market with a generic solver.

use fairweir_core::market::utility::Utility;
use fairweir_reference::market::even::best_rates;
use fairweir_reference::market::optimum::{Household, optimum};
use proptest::prelude::*;

use crate::clarabel::solved;

/// A household that begins with `balance` credits and has these weights in its first slots.
fn household(balance: f64, weights: &[[f64; 4]]) -> Household {
    let utilities = weights.iter().map(|&weights| Utility { weights }).collect();
    Household { balance, utilities, copies: 1 }
}

fn assert_found(ours: f64, generic: Option<f64>) -> Result<(), TestCaseError> {
    prop_assume!(generic.is_some());
    let generic = generic.unwrap_or_default();
    prop_assert!((ours / generic - 1.0).abs() < 1e-6, "{ours} and {generic}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_generic_solver_finds_the_same_value(
        with in prop::collection::vec(
            (5.0..15.0_f64, prop::collection::vec(prop::array::uniform4(0.05..4.0_f64), 6)), 2..7),
        slots in 1..7_usize,
        cap in prop::option::of(20.0..30.0_f64),
    ) {
        let home = |(balance, weights): &(f64, Vec<_>)| household(*balance, &weights[..slots]);
        let homes: Vec<Household> = with.iter().map(home).collect();
        let ours = optimum(&homes, cap).expect("it converges").value;
        assert_found(ours, solved(&homes, cap, false))?;
    }

    #[test]
    fn a_generic_solver_finds_the_same_value_if_the_rest_is_divided(
        with in prop::collection::vec(
            prop::collection::vec(prop::array::uniform4(0.05..4.0_f64), 6), 2..7),
        slots in 1..7_usize,
        cap in 11.0..30.0_f64,
    ) {
        let homes: Vec<Household> =
            with.iter().map(|weights| household(10.0, &weights[..slots])).collect();
        let utilities: Vec<Vec<Utility>> = homes.iter().map(|home| home.utilities.clone()).collect();
        let rates = best_rates(&utilities, 10.0, cap).expect("it converges");
        let pairs = utilities.iter().flatten().zip(rates.iter().flatten());
        let ours: f64 = pairs.map(|(utility, &rate)| utility.value(rate)).sum();
        assert_found(ours, solved(&homes, Some(cap), true))?;
    }
}
