//! Random times and sizes.
//!
//! The same seed gives the same values on machines whose logarithms are rounded alike.

use std::f64::consts::TAU;

use fairweir_core::units::{Bytes, Span};

use crate::random::SplitMix64;

/// A source of random numbers for one flow.
#[derive(Clone, Debug)]
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    /// A whole number from 0 to `end - 1`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Exponentially distributed: the time between events of a Poisson process.
    pub(super) fn exponential(&mut self, mean: Span) -> Span {
        times(mean, -self.uniform().ln())
    }

    /// Pareto distributed with shape [`PARETO_SHAPE`].
    pub(super) fn pareto(&mut self, mean: Span) -> Span {
        let least = (PARETO_SHAPE - 1.0) / PARETO_SHAPE;
        times(mean, least * self.uniform().powf(-1.0 / PARETO_SHAPE))
    }

    /// Lognormally distributed, from one byte to `max`; `sigma` is the standard deviation of the
    /// logarithm. Source: Box and Muller, Annals of Mathematical Statistics 29, 1958.
    pub(super) fn lognormal(&mut self, median: Bytes, sigma: f64, max: Bytes) -> Bytes {
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos();
        let size = median.as_u64() as f64 * (sigma * normal).exp();
        Bytes::new((size.round() as u64).clamp(1, max.as_u64()))
    }

    /// Uniform in (0, 1], so that its logarithm is finite.
    fn uniform(&mut self) -> f64 {
        const STEPS: u64 = 1 << f64::MANTISSA_DIGITS;
        (self.below(STEPS) + 1) as f64 / STEPS as f64
    }
}

/// Heavy-tailed: finite mean, infinite variance, as measured for the on and off times of hosts.
/// Source: Willinger, Taqqu, Sherman and Wilson, SIGCOMM 1995.
const PARETO_SHAPE: f64 = 1.5;

fn times(span: Span, factor: f64) -> Span {
    Span::nanos((span.as_nanos() as f64 * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(count: u64, mut next: impl FnMut() -> f64) -> f64 {
        (0..count).map(|_| next()).sum::<f64>() / count as f64
    }

    #[test]
    fn pareto_and_exponential_means_converge() {
        let mut random = Random::new(7);
        let pareto = mean(1_000_000, || random.pareto(Span::secs(2)).as_secs_f64());
        // Sums with infinite variance converge slowly, as n^(-1/3).
        assert!((pareto / 2.0 - 1.0).abs() < 0.05, "{pareto}");
        let exponential = mean(100_000, || random.exponential(Span::secs(2)).as_secs_f64());
        assert!((exponential / 2.0 - 1.0).abs() < 0.01, "{exponential}");
    }

    #[test]
    fn no_pareto_time_is_below_a_third_of_the_mean_and_an_eighth_is_above_four_thirds() {
        let mut random = Random::new(8);
        let times: Vec<Span> = (0..100_000).map(|_| random.pareto(Span::secs(3))).collect();
        assert!(times.iter().all(|&t| t >= Span::secs(1)));
        // P(X > 4 x_m) = 4^-1.5.
        let long = times.iter().filter(|&&t| t > Span::secs(4)).count();
        assert!((12_000..13_000).contains(&long), "{long}");
    }

    #[test]
    fn half_of_all_sizes_are_below_the_median_and_sigma_is_theirs() {
        let mut random = Random::new(9);
        let max = Bytes::new(u64::MAX);
        let mut logs: Vec<f64> = (0..100_000)
            .map(|_| (random.lognormal(Bytes::kb(15), 1.3, max).as_u64() as f64).ln())
            .collect();
        logs.sort_by(f64::total_cmp);
        assert!((logs[50_000].exp() / 15e3 - 1.0).abs() < 0.02, "{}", logs[50_000].exp());
        // 84.13 % of the values lie below one sigma above the median.
        assert!((logs[84_134] - logs[50_000] - 1.3).abs() < 0.02, "{}", logs[84_134]);
        assert_eq!(random.lognormal(Bytes::kb(15), 0.0, max), Bytes::kb(15));
        assert!(random.lognormal(Bytes::kb(15), 4.0, Bytes::new(1)) == Bytes::new(1));
    }
}
