//! The utility of a rate to a household: a sum over four kinds of use (MYOB eq. (8), §VI).
//!
//! All four are zero at rate zero, increasing and concave. With y = 25 · rate in Mbit/s:
//! streaming 2·y^.3/.3, social y^.5/.5, downloads 1.25·((y+1)^.8 − 1), web 7.5·(1 − (y+1)^−2).

/// A kind of use, in the order of §VI. (The example of §III has another order.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Films and music.
    Streaming,
    /// Social networks.
    Social,
    /// Files.
    Downloads,
    /// Pages.
    Web,
}

impl Kind {
    /// All, in order.
    pub const ALL: [Kind; 4] = [Kind::Streaming, Kind::Social, Kind::Downloads, Kind::Web];
}

/// The utility of rates: Σ cₖ·uₖ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utility {
    /// cₖ = γ·pₖ of each [`Kind`], finite and not negative.
    pub weights: [f64; 4],
}

impl Utility {
    /// The utility of one kind alone.
    pub fn only(kind: Kind, weight: f64) -> Utility {
        let mut weights = [0.0; 4];
        weights[kind as usize] = weight;
        Utility { weights }
    }

    /// Whether no rate is worth anything.
    pub fn is_zero(&self) -> bool {
        self.weights.iter().all(|&c| c <= 0.0)
    }

    /// The utility of `mbit`.
    pub fn value(&self, mbit: f64) -> f64 {
        let y = SCALE * if mbit < 0.0 { 0.0 } else { mbit };
        let [streaming, social, downloads, web] = self.weights;
        streaming * (2.0 / 0.3) * y.powf(0.3)
            + social * 2.0 * y.sqrt()
            + downloads * 1.25 * ((y + 1.0).powf(0.8) - 1.0)
            + web * 7.5 * (1.0 - (y + 1.0).powi(-2))
    }

    /// The utility of one more Mbit/s at `mbit`; below [`RATE_MIN`] the value at that rate.
    pub fn slope(&self, mbit: f64) -> f64 {
        self.at(mbit).1
    }

    /// Value, slope, and second derivative; below [`RATE_MIN`] the values at that rate.
    pub fn at(&self, mbit: f64) -> (f64, f64, f64) {
        let y = SCALE * mbit.max(RATE_MIN);
        let [streaming, social, downloads, web] = self.weights;
        let (mut value, mut slope, mut bend) = (0.0, 0.0, 0.0);
        // Adds a kind with the value weight · (z^power − 1) / power, up to a constant; `falls` is z^(power − 1).
        let mut add = |z: f64, power: f64, least: f64, weight: f64, falls: f64| {
            value += weight * (z * falls - least) / power;
            slope += SCALE * weight * falls;
            bend += SCALE * SCALE * weight * (power - 1.0) * falls / z;
        };
        if streaming > 0.0 {
            add(y, 0.3, 0.0, 2.0 * streaming, y.powf(-0.7));
        }
        if social > 0.0 {
            add(y, 0.5, 0.0, social, y.sqrt().recip());
        }
        if downloads > 0.0 {
            add(y + 1.0, 0.8, 1.0, downloads, (y + 1.0).powf(-0.2));
        }
        if web > 0.0 {
            add(y + 1.0, -2.0, 1.0, 15.0 * web, (y + 1.0).powi(-3));
        }
        (value, slope, bend)
    }

    /// The logarithm of the slope at the logarithm of a rate, and its derivative.
    pub(super) fn log_slope(&self, log_mbit: f64) -> (f64, f64) {
        let mbit = log_mbit.exp();
        let (_, slope, bend) = self.at(mbit);
        (slope.ln(), mbit * bend / slope)
    }
}

/// The rate at which the slope of a single kind with weight 1 is `slope`, in closed form.
pub(super) fn rate_of_kind(kind: Kind, slope: f64) -> f64 {
    let y = match kind {
        Kind::Streaming => (2.0 * SCALE / slope).powf(1.0 / 0.7),
        Kind::Social => (SCALE / slope).powi(2),
        Kind::Downloads => ((SCALE / slope).powi(5) - 1.0).max(0.0),
        Kind::Web => ((15.0 * SCALE / slope).cbrt() - 1.0).max(0.0),
    };
    y / SCALE
}

/// The slopes of streaming and social are infinite at rate zero; below this rate, in Mbit/s, the slope
/// at this rate is used.
pub const RATE_MIN: f64 = 1e-6;

/// Upper bound of a household's rate, in Mbit/s.
pub const RATE_MAX: f64 = 1e7;

/// §VI.
const SCALE: f64 = 25.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slopes_are_those_of_the_values_and_fall(
            weights in prop::array::uniform4(0.01..10.0_f64), x in 0.01..100.0_f64,
        ) {
            let u = Utility { weights };
            let h = 1e-5 * x;
            let (value, slope, bend) = u.at(x);
            let by_value = (u.value(x + h) - u.value(x - h)) / (2.0 * h);
            let by_slope = (u.slope(x + h) - u.slope(x - h)) / (2.0 * h);
            prop_assert!((value / u.value(x) - 1.0).abs() < 1e-12);
            prop_assert!((slope / by_value - 1.0).abs() < 1e-5);
            prop_assert!((bend / by_slope - 1.0).abs() < 1e-5 && bend < 0.0);
        }

        #[test]
        fn the_closed_forms_are_inverses(x in 0.001..1000.0_f64) {
            for kind in Kind::ALL {
                let slope = Utility::only(kind, 1.0).slope(x);
                prop_assert!((rate_of_kind(kind, slope) / x - 1.0).abs() < 1e-6, "{:?}", kind);
            }
        }
    }
}
