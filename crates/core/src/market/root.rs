//! Roots of decreasing functions of a positive variable.

/// The `z` in `[low, high]` at which a decreasing `f` is zero within `epsilon`; an end if it has no sign change.
/// `epsilon` must be more than the rounding of `f`: below that Newton's steps no longer help, and bisection of
/// the whole bracket takes ten times as long.
/// `f` returns its value and slope. Newton's steps while each halves the value, else bisection.
pub(super) fn falling(
    low: f64,
    high: f64,
    epsilon: f64,
    mut f: impl FnMut(f64) -> (f64, f64),
) -> f64 {
    let (mut low, mut high) = (low, high);
    let mut z = 0.0_f64.clamp(low, high);
    let mut before = f64::INFINITY;
    for _ in 0..STEPS_MAX {
        let (value, slope) = f(z);
        if value > 0.0 {
            low = z;
        } else {
            high = z;
        }
        if value.abs() <= epsilon || high - low <= EPSILON * z.abs().max(1.0) {
            return z;
        }
        let newton = z - value / slope;
        let is_good = newton > low && newton < high && value.abs() <= 0.5 * before;
        before = value.abs();
        z = if is_good { newton } else { 0.5 * (low + high) };
    }
    z
}

/// Bisection alone narrows any bracket here to [`EPSILON`] in half as many steps.
const STEPS_MAX: usize = 120;
const EPSILON: f64 = 1e-15;
