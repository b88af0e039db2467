//! Priorities of connections by the kind of their use (MYOB eq. (10), level 2).
//!
//! The paper divides a household's rate among four kinds of use so that the users' utility is maximal,
//! and gives each connection a part of its class in proportion to its kind's part.

use super::Alpha;
use crate::market::division::parts;
use crate::units::Rate;

/// The alphas of connections of each [`Kind`](crate::market::utility::Kind), in order, in a class of
/// `rate`, if all kinds are in use with these weights; the largest alpha is 255.
pub fn alphas(rate: Rate, weights: [f64; 4]) -> [Alpha; 4] {
    let parts = parts(rate.as_mbit_f64(), weights);
    let most = parts.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    parts.map(|part| {
        let alpha = (part / most * f64::from(u8::MAX)).round() as u8;
        Alpha::new(alpha.max(1)).expect("invariant: at least 1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphas_are_the_worked_parts() {
        // Parts of equal weights: .20418, .10713, .62417, .06452 and .05073, .03503, .90407, .01016.
        for (kbit, wanted) in [(1_250, [83, 44, 255, 26]), (10_000, [14, 10, 255, 3])] {
            assert_eq!(alphas(Rate::kbit(kbit), [1.0; 4]).map(Alpha::as_u8), wanted);
        }
        let films = alphas(Rate::mbit(10), [1_000.0, 1.0, 1.0, 0.0]).map(Alpha::as_u8);
        assert_eq!((films[0], films[3]), (255, 1), "{films:?}");
    }
}
