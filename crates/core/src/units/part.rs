use std::ops::Mul;

use super::{Rate, Span};

/// A fixed part of something, or a factor: 7 %, an eighth, 5/4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    numerator: u64,
    denominator: u64,
}

impl Part {
    /// `numerator / denominator`.
    ///
    /// # Panics
    /// If `denominator` is zero.
    pub const fn of(numerator: u64, denominator: u64) -> Part {
        assert!(denominator > 0, "a part has a positive denominator");
        Part { numerator, denominator }
    }

    /// Hundredths.
    pub const fn percent(percent: u64) -> Part {
        Part::of(percent, 100)
    }

    /// Thousandths.
    pub const fn permille(permille: u64) -> Part {
        Part::of(permille, 1_000)
    }

    /// `denominator / numerator`.
    ///
    /// # Panics
    /// If the part is zero.
    pub const fn inverse(self) -> Part {
        Part::of(self.denominator, self.numerator)
    }

    /// Whether `amount` is at least this part of `whole`, exactly.
    pub const fn is_reached(self, amount: u64, whole: u64) -> bool {
        amount as u128 * self.denominator as u128 >= whole as u128 * self.numerator as u128
    }

    /// Whether `amount` is more than this part of `whole`, exactly.
    pub const fn is_exceeded(self, amount: u64, whole: u64) -> bool {
        amount as u128 * self.denominator as u128 > whole as u128 * self.numerator as u128
    }
}

/// Rounded down.
impl Mul<Part> for u64 {
    type Output = u64;
    fn mul(self, part: Part) -> u64 {
        let scaled = u128::from(self) * u128::from(part.numerator) / u128::from(part.denominator);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Rounded down.
impl Mul<Part> for Rate {
    type Output = Rate;
    fn mul(self, part: Part) -> Rate {
        Rate::bps(self.as_bps() * part)
    }
}

/// Rounded down.
impl Mul<Part> for Span {
    type Output = Span;
    fn mul(self, part: Part) -> Span {
        Span::nanos(self.as_nanos() * part)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_rounded_down_and_never_overflow() {
        assert_eq!(Rate::bps(199) * Part::percent(50), Rate::bps(99));
        assert_eq!(Span::nanos(10) * Part::of(2, 3), Span::nanos(6));
        assert_eq!(u64::MAX * Part::of(4, 1), u64::MAX);
        assert_eq!(1_000 * Part::permille(985), 985);
        assert_eq!(100 * Part::percent(80).inverse(), 125);
    }

    proptest! {
        #[test]
        fn a_part_is_reached_by_itself(whole: u64, numerator in 0..2_000u64) {
            let part = Part::permille(numerator);
            let amount = whole * part;
            prop_assert!(!part.is_exceeded(amount, whole));
            prop_assert!(amount == u64::MAX || part.is_exceeded(amount + 1, whole));
            prop_assert!(part.is_reached(amount.saturating_add(1), whole) || amount >= u64::MAX - 1);
            prop_assert_eq!(Rate::bps(whole) * part, Rate::bps(whole).scale(numerator, 1_000));
        }
    }
}
