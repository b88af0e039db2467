//! A household's rate divided among kinds of use by the users' priorities (MYOB eq. (10), level 2).
//!
//! Problem: which parts μₖ of a rate maximise Σ gₖ·uₖ(μₖ·rate)? Method: at the optimum all slopes
//! gₖ·uₖ′ are equal; bisection on that slope, whose inverses have closed forms. The paper's eq. (10)
//! has no weights gₖ; with all equal this is the paper's. Properties, tested: the parts sum to 1 and
//! the rates to the rate exactly; no move of rate between two kinds is better; a higher weight or a
//! higher rate makes no kind slower.

use super::root;
use super::utility::{Kind, rate_of_kind};
use crate::share::{Claim, divide};
use crate::units::Rate;

/// The parts of `mbit` that kinds of use with these weights get; they sum to 1. If no weight is positive
/// all parts are equal.
pub fn parts(mbit: f64, weights: [f64; 4]) -> [f64; 4] {
    let weights = weights.map(|g| if g.is_finite() { g.max(0.0) } else { 0.0 });
    let most = weights.iter().copied().fold(0.0, f64::max);
    if most == 0.0 {
        return [0.25; 4];
    }
    let mbit = if mbit.is_nan() { MBIT_MIN } else { mbit.clamp(MBIT_MIN, MBIT_MAX) };
    // Only ratios matter; too small ones would exceed the range of the bisection.
    let weights = weights.map(|g| if g < most * RATIO_MIN { 0.0 } else { g / most });
    let rates = |slope: f64| {
        Kind::ALL.map(|kind| match weights[kind as usize] {
            0.0 => 0.0,
            g => rate_of_kind(kind, slope / g),
        })
    };
    let sum = |z: f64| rates(z.exp()).iter().sum::<f64>();
    let log = mbit.ln();
    let z = root::falling(LOG_SLOPES, 0.0, EPSILON, |z| {
        let step = 1e-6;
        let value = sum(z).max(f64::MIN_POSITIVE).ln();
        let beyond = sum(z + step).max(f64::MIN_POSITIVE).ln();
        (value - log, (beyond - value) / step)
    });
    let rates = rates(z.exp());
    let sum: f64 = rates.iter().sum();
    rates.map(|rate| rate / sum)
}

/// `rate` divided among kinds of use; the parts sum to it exactly.
pub fn divided(rate: Rate, weights: [f64; 4]) -> [Rate; 4] {
    let shares =
        parts(rate.as_mbit_f64(), weights).map(|part| Share((part * SHARES).round() as u64));
    let rates = divide(rate.as_bps(), &shares);
    [0, 1, 2, 3].map(|k| Rate::bps(rates[k]))
}

/// A part in whole units.
struct Share(u64);

impl Claim for Share {
    fn weight(&self) -> u64 {
        self.0
    }

    fn demand(&self) -> Option<u64> {
        None
    }
}

/// The number of units in a whole.
const SHARES: f64 = 1e12;

/// Tolerance of the logarithm of the rate.
const EPSILON: f64 = 1e-13;

/// The range to which rates are clamped, in Mbit/s.
const MBIT_MIN: f64 = 1e-6;
const MBIT_MAX: f64 = 1e7;

/// A kind whose weight is below this part of the largest weight gets nothing.
const RATIO_MIN: f64 = 1e-6;

/// Logarithms of the slopes of the least and the largest rate with weights from [`RATIO_MIN`] to 1.
const LOG_SLOPES: (f64, f64) = (-60.0, 40.0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::market::utility::Utility;
    use proptest::prelude::*;

    #[test]
    fn odd_weights_and_rates_divide_to_whole_rates() {
        let odd = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300, 1.0];
        for a in odd {
            for b in odd {
                for rate in [Rate::ZERO, Rate::bps(1), Rate::mbit(10), Rate::MAX] {
                    let rates = divided(rate, [a, b, 0.0, 1.0]);
                    assert_eq!(rates.iter().copied().sum::<Rate>(), rate, "{a} {b} {rate}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_other_division_is_better(
            weights in prop::array::uniform4(0.0..10.0_f64), mbit in 0.01..200.0_f64,
            from in 0..4_usize, to in 0..4_usize, moved in 0.0..1.0_f64,
        ) {
            let value = |parts: [f64; 4]| -> f64 {
                Kind::ALL
                    .map(|k| Utility::only(k, weights[k as usize]).value(parts[k as usize] * mbit))
                    .iter()
                    .sum()
            };
            let best = parts(mbit, weights);
            prop_assert!((best.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            let mut other = best;
            other[to] += moved * best[from];
            other[from] -= moved * best[from];
            prop_assert!(value(other) <= value(best) * (1.0 + 1e-9));
        }

        #[test]
        fn more_weight_or_more_rate_makes_no_kind_slower(
            weights in prop::array::uniform4(0.1..10.0_f64), mbit in 0.1..200.0_f64,
            kind in 0..4_usize, more in 1.0..5.0_f64,
        ) {
            let before = parts(mbit, weights);
            let mut heavier = weights;
            heavier[kind] *= more;
            prop_assert!(parts(mbit, heavier)[kind] >= before[kind] - 1e-9);
            let faster = parts(mbit * more, weights);
            for k in 0..4 {
                prop_assert!(faster[k] * more >= before[k] - 1e-9);
            }
        }
    }
}
