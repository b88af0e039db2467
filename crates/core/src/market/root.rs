//! Roots of decreasing functions of a positive variable.

/// The `z` in the bracket at which a decreasing `f` is zero, searched from `start` on; an end of the bracket if `f`
/// does not change its sign. `f` returns its value and slope. Takes Newton's steps while each halves the value, else
/// bisects. Takes one more step from a value of at most `epsilon`, which leaves about its square; an `epsilon` below
/// the rounding of `f` would end in bisection of the whole bracket.
pub(super) fn falling(
    (mut low, mut high): (f64, f64),
    start: f64,
    epsilon: f64,
    mut f: impl FnMut(f64) -> (f64, f64),
) -> f64 {
    let mut z = start.clamp(low, high);
    let mut before = f64::INFINITY;
    for _ in 0..STEPS_MAX {
        let (value, slope) = f(z);
        if value > 0.0 {
            low = z;
        } else {
            high = z;
        }
        let newton = z - value / slope;
        let is_within = newton > low && newton < high;
        if value.abs() <= epsilon || high - low <= EPSILON * z.abs().max(1.0) {
            return if is_within { newton } else { z };
        }
        let is_good = is_within && value.abs() <= 0.5 * before;
        before = value.abs();
        z = if is_good { newton } else { 0.5 * (low + high) };
    }
    z
}

/// Bisection alone narrows any bracket used here to [`EPSILON`] in half of these steps.
const STEPS_MAX: usize = 120;
const EPSILON: f64 = 1e-15;
