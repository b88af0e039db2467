//! The target rate of a free connection over time, and whether TCP can follow it.
//!
//! Problem: a window grows by one packet per round-trip time, so a rate cannot rise faster than
//! packet ÷ RTT² per second, and the stunts cannot give up more than they have. Method: a trace is
//! piecewise linear, and two points at the same time are a step. [`Trace::feasible`] returns the largest
//! trace that is nowhere above the requested one, rises no faster than the window can and stays below
//! the region. A step up becomes a ramp that begins at the step.
//!
//! Properties, all tested: the feasible trace is never above the requested one; checking it again
//! changes nothing; every segment obeys both bounds. Source: Free and Stunts §III-A, eq. (1), (2).

use crate::units::{Bytes, Rate, Span, Time};

/// The most points of a trace.
pub const TRACE_POINTS_MAX: usize = 10_000;
/// The largest rate of a trace: 1 Tbit/s. With it no product overflows.
pub const TRACE_RATE_MAX: Rate = Rate::mbit(1_000_000);
/// The latest time of a trace: 30 days.
pub const TRACE_TIME_MAX: Time = Time::from_nanos(30 * 24 * 3_600 * 1_000_000_000);
/// Points of a sine per period: linear interpolation is then off by at most 0.5 % of the amplitude.
const SINE_POINTS: u64 = 32;

/// A rate at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The time of the point.
    pub at: Time,
    /// The rate that is requested then.
    pub rate: Rate,
}

/// A target over time: linear between its points, constant before the first and after the last.
///
/// Invariant: at least one point, times do not decrease, rates are from 1 bit/s to
/// [`TRACE_RATE_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(Vec<Point>);

/// How a trace goes from one point to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// It keeps the rate of the first point, then steps.
    Step,
    /// A straight line.
    Linear,
}

/// Why points are not a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// There is no point.
    #[error("the trace is empty; expected at least one point")]
    Empty,
    /// There are more points than [`TRACE_POINTS_MAX`].
    #[error("the trace has {0} points; allowed are at most {TRACE_POINTS_MAX}")]
    TooLong(usize),
    /// A point is not after the one before it.
    #[error("point {0} of the trace is not after point {before}", before = .0 - 1)]
    Order(usize),
    /// A rate is zero or above [`TRACE_RATE_MAX`].
    #[error("rate {0} of the trace is out of range (1bit to {TRACE_RATE_MAX})")]
    Rate(Rate),
    /// A time is after [`TRACE_TIME_MAX`].
    #[error("point {0} of the trace is later than 30 days")]
    TooLate(usize),
    /// A sine reaches zero, or has no period.
    #[error("amplitude {amplitude} and period {period} are not a sine around {mean}")]
    Sine {
        /// Its mean.
        mean: Rate,
        /// Its largest distance from the mean.
        amplitude: Rate,
        /// The time from one maximum to the next.
        period: Span,
    },
}

/// The bounds within which a free connection can follow a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A full packet, as rates count it.
    pub packet: Bytes,
    /// Its round-trip time.
    pub rtt: Span,
    /// The rate of all stunts together on average: eq. (2).
    pub region: Rate,
}

/// A point at which the feasible trace is below the requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The time of the point.
    pub at: Time,
    /// The rate that was requested.
    pub requested: Rate,
    /// The rate that is feasible.
    pub feasible: Rate,
    /// The check that failed.
    pub why: Why,
}

/// A check of the preprocessing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The rate rises by more than one packet per round-trip time in a round-trip time.
    Slope,
    /// The rate is above that of the stunts.
    Region,
}

impl Bounds {
    /// By how much a rate can rise in `span`, rounded down: packet ÷ RTT² · span.
    ///
    /// # Panics
    /// If the round-trip time is zero.
    pub fn rise(&self, span: Span) -> Rate {
        let rtt = u128::from(self.rtt.as_nanos());
        assert!(rtt > 0, "a round-trip time is positive");
        // Below 2^80: a packet is below 2^20 bytes, a trace ends before 2^52 ns.
        let packets = u128::from(span.as_nanos()) * 8_000_000_000;
        let packet = u128::from(self.packet.as_u64().min(1 << 20));
        let rise = packets * packet / (rtt * rtt);
        Rate::bps(rise.min(u128::from(TRACE_RATE_MAX.as_bps())) as u64)
    }
}

impl Trace {
    /// A trace with a constant rate.
    ///
    /// # Errors
    /// [`TraceError::Rate`].
    pub fn constant(rate: Rate) -> Result<Trace, TraceError> {
        Trace::new(&[Point { at: Time::ZERO, rate }], Shape::Step)
    }

    /// A trace through `points`.
    ///
    /// # Errors
    /// [`TraceError`] if there are no points or too many, a point is not after the one before, or a rate or
    /// time is out of range.
    pub fn new(points: &[Point], shape: Shape) -> Result<Trace, TraceError> {
        if points.is_empty() {
            return Err(TraceError::Empty);
        }
        if points.len() > TRACE_POINTS_MAX {
            return Err(TraceError::TooLong(points.len()));
        }
        let mut all: Vec<Point> = Vec::with_capacity(points.len());
        for (i, point) in points.iter().enumerate() {
            if point.rate == Rate::ZERO || point.rate > TRACE_RATE_MAX {
                return Err(TraceError::Rate(point.rate));
            }
            if point.at > TRACE_TIME_MAX {
                return Err(TraceError::TooLate(i));
            }
            if let Some(last) = all.last().copied() {
                if last.at >= point.at {
                    return Err(TraceError::Order(i));
                }
                if shape == Shape::Step {
                    all.push(Point { at: point.at, rate: last.rate });
                }
            }
            all.push(*point);
        }
        Ok(Trace(all))
    }

    /// The mean rate until `from`, then a sine around it that falls first, until `end`.
    ///
    /// # Errors
    /// [`TraceError`] if the sine reaches zero, or the period is too short for the trace's length.
    pub fn sine(
        mean: Rate,
        amplitude: Rate,
        period: Span,
        from: Time,
        end: Time,
    ) -> Result<Trace, TraceError> {
        let step = period / SINE_POINTS;
        if amplitude >= mean || step == Span::ZERO {
            return Err(TraceError::Sine { mean, amplitude, period });
        }
        let count = end.since(from).as_nanos() / step.as_nanos() + 2;
        if count > TRACE_POINTS_MAX as u64 {
            return Err(TraceError::TooLong(count as usize));
        }
        let (mean, amplitude) = (mean.as_bps() as f64, amplitude.as_bps() as f64);
        let point = |n: u64| {
            let turn = n as f64 / SINE_POINTS as f64 * std::f64::consts::TAU;
            let rate = Rate::bps((mean - amplitude * turn.sin()).round() as u64);
            Point { at: from + step * n, rate }
        };
        Trace::new(&(0..count).map(point).collect::<Vec<_>>(), Shape::Linear)
    }

    /// The rate at a time; at a step the one after it.
    pub fn at(&self, time: Time) -> Rate {
        let after = self.0.partition_point(|p| p.at <= time);
        match (after.checked_sub(1).map(|i| self.0[i]), self.0.get(after)) {
            (Some(a), Some(b)) => between(a, *b, time),
            (Some(only), None) => only.rate,
            (None, _) => self.0[0].rate,
        }
    }

    /// The largest trace that is nowhere above this one and obeys `bounds`, and each point that differs,
    /// with the reason.
    ///
    /// # Panics
    /// If the round-trip time or the region is zero.
    pub fn feasible(&self, bounds: &Bounds) -> (Trace, Vec<Change>) {
        assert!(bounds.region > Rate::ZERO, "the stunts have a rate");
        let region = bounds.region.min(TRACE_RATE_MAX);
        let below = self.clipped(region);
        let mut made: Vec<Point> = vec![below[0]];
        for pair in below.windows(2) {
            ramp(&mut made, pair[0], pair[1], bounds);
        }
        // A ramp may end after the last point; a ramp longer than any trace is cut off.
        let last = below[below.len() - 1];
        let end = Point { at: last.at + TRACE_TIME_MAX.since(Time::ZERO), ..last };
        if made[made.len() - 1].rate < last.rate {
            ramp(&mut made, last, end, bounds);
            made.truncate(made.iter().take_while(|p| p.at < end.at).count().max(1));
        }
        let made = Trace(made);
        let mut changes: Vec<Change> = Vec::new();
        for &Point { at, .. } in &made.0 {
            // The rates just before and just after a step.
            let pairs = [(self.just_before(at), made.just_before(at)), (self.at(at), made.at(at))];
            let is_new = changes.last().is_none_or(|last| last.at != at);
            let lower = pairs.into_iter().find(|(requested, feasible)| feasible < requested);
            if let Some((requested, feasible)) = lower.filter(|_| is_new) {
                let why = if feasible == region { Why::Region } else { Why::Slope };
                changes.push(Change { at, requested, feasible, why });
            }
        }
        (made, changes)
    }

    /// The rate just before a time.
    fn just_before(&self, time: Time) -> Rate {
        let first = self.0.partition_point(|p| p.at < time);
        match (first.checked_sub(1).map(|i| self.0[i]), self.0.get(first)) {
            (Some(a), Some(b)) => between(a, *b, time),
            (Some(only), None) => only.rate,
            (None, _) => self.0[0].rate,
        }
    }

    /// The points of the minimum of this trace and `most`.
    fn clipped(&self, most: Rate) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for (i, &point) in self.0.iter().enumerate() {
            if let Some(before) = i.checked_sub(1).map(|i| self.0[i]) {
                let crosses = (before.rate > most) != (point.rate > most);
                if crosses && before.at < point.at {
                    let at = crossing(before, point, most);
                    points.push(Point { at, rate: between(before, point, at).min(most) });
                }
            }
            points.push(Point { rate: point.rate.min(most), ..point });
        }
        points.dedup();
        points
    }
}

/// Continues from the last point made along the line from `a` to `b`, or below it as steeply as
/// allowed.
fn ramp(made: &mut Vec<Point>, a: Point, b: Point, bounds: &Bounds) {
    let last = made[made.len() - 1];
    if a.at == b.at {
        // A step down takes effect at once.
        if b.rate < last.rate {
            made.push(b);
        }
        return;
    }
    let reach = |from: Point, at: Time| from.rate + bounds.rise(at.since(from.at));
    let mut from = last;
    if last.rate < a.rate {
        // The first time, to the nanosecond, at which the ramp has reached the line.
        let (mut low, mut high) = (a.at.as_nanos(), b.at.as_nanos());
        if reach(last, b.at) < b.rate {
            made.push(Point { at: b.at, rate: reach(last, b.at) });
            return;
        }
        while low < high {
            let middle = Time::from_nanos(low + (high - low) / 2);
            match reach(last, middle) >= between(a, b, middle) {
                true => high = middle.as_nanos(),
                false => low = middle.as_nanos() + 1,
            }
        }
        let at = Time::from_nanos(low);
        from = Point { at, rate: between(a, b, at) };
        made.push(from);
    }
    if from.at < b.at {
        made.push(Point { at: b.at, rate: b.rate.min(reach(from, b.at)) });
    }
}

/// The rate at a time on the line between two points, rounded down.
fn between(a: Point, b: Point, at: Time) -> Rate {
    if a.at == b.at || at >= b.at {
        return b.rate;
    }
    let (whole, part) = (i128::from(b.at.since(a.at).as_nanos()), at.since(a.at).as_nanos());
    let rise = i128::from(b.rate.as_bps()) - i128::from(a.rate.as_bps());
    let rate = i128::from(a.rate.as_bps()) + (rise * i128::from(part)).div_euclid(whole);
    Rate::bps(rate as u64)
}

/// The time, to the nanosecond, at which the line between two points, one of them above `rate`, leaves
/// the first point's side of `rate`.
fn crossing(a: Point, b: Point, rate: Rate) -> Time {
    let (mut low, mut high) = (a.at.as_nanos(), b.at.as_nanos());
    let was_above = a.rate > rate;
    while low < high {
        let middle = low + (high - low) / 2;
        let here = between(a, b, Time::from_nanos(middle));
        let has_crossed = if was_above { here <= rate } else { here >= rate };
        match has_crossed {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Time::from_nanos(low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64, kbit: u64) -> Point {
        Point { at: Time::ZERO + Span::millis(ms), rate: Rate::kbit(kbit) }
    }

    /// With 12 kbit per packet and 100 ms a rate can rise by 1.2 Mbit/s per second.
    fn bounds(region_kbit: u64) -> Bounds {
        Bounds {
            packet: Bytes::new(1_500),
            rtt: Span::millis(100),
            region: Rate::kbit(region_kbit),
        }
    }

    #[test]
    fn a_step_holds_and_a_line_rises() {
        let points = [at(0, 1_000), at(1_000, 3_000)];
        let step = Trace::new(&points, Shape::Step).unwrap();
        let line = Trace::new(&points, Shape::Linear).unwrap();
        let rates = |trace: &Trace| {
            [0, 500, 1_000, 9_000].map(|ms| trace.at(Time::ZERO + Span::millis(ms)).as_bps())
        };
        assert_eq!(rates(&step), [1_000_000, 1_000_000, 3_000_000, 3_000_000]);
        assert_eq!(rates(&line), [1_000_000, 2_000_000, 3_000_000, 3_000_000]);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let refused = |points: &[Point]| Trace::new(points, Shape::Linear).unwrap_err();
        assert_eq!(refused(&[]), TraceError::Empty);
        assert_eq!(refused(&[at(1, 1), at(1, 2)]), TraceError::Order(1));
        assert_eq!(refused(&[at(2, 1), at(1, 2)]), TraceError::Order(1));
        assert_eq!(refused(&[at(0, 0)]), TraceError::Rate(Rate::ZERO));
        let absurd = Point { at: Time::ZERO, rate: Rate::MAX };
        assert_eq!(refused(&[absurd]), TraceError::Rate(Rate::MAX));
        let late = Point { at: Time::from_nanos(u64::MAX), rate: Rate::mbit(1) };
        assert_eq!(refused(&[late]), TraceError::TooLate(0));
        let many: Vec<Point> = (0..=TRACE_POINTS_MAX as u64).map(|n| at(n, 1)).collect();
        assert_eq!(refused(&many), TraceError::TooLong(TRACE_POINTS_MAX + 1));
        let end = Time::ZERO + Span::secs(60);
        let sine = |amplitude, period| {
            Trace::sine(Rate::mbit(2), Rate::mbit(amplitude), period, Time::ZERO, end)
        };
        assert!(sine(2, Span::secs(5)).is_err(), "it would reach zero");
        assert!(sine(1, Span::nanos(3)).is_err());
        assert!(sine(1, Span::millis(1)).is_err());
        let quarter = sine(1, Span::secs(20)).unwrap().at(Time::ZERO + Span::secs(5));
        assert_eq!(quarter, Rate::mbit(1));
    }

    #[test]
    fn a_step_up_becomes_a_ramp_and_says_so() {
        let trace = Trace::new(&[at(0, 1_000), at(10_000, 2_200)], Shape::Step).unwrap();
        let (feasible, changes) = trace.feasible(&bounds(100_000));
        assert_eq!(feasible.0, [at(0, 1_000), at(10_000, 1_000), at(11_000, 2_200)]);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].at, changes[0].why), (at(10_000, 0).at, Why::Slope));
        assert_eq!(changes[0].requested, Rate::kbit(2_200));
    }

    #[test]
    fn what_the_stunts_do_not_have_is_cut_off() {
        let trace = Trace::new(&[at(0, 1_000), at(10_000, 3_000)], Shape::Linear).unwrap();
        let (feasible, changes) = trace.feasible(&bounds(2_000));
        assert_eq!(feasible.0, [at(0, 1_000), at(5_000, 2_000), at(10_000, 2_000)]);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].why, changes[0].feasible), (Why::Region, Rate::kbit(2_000)));
        let (same, none) = trace.feasible(&bounds(3_000));
        assert_eq!((same, none), (trace, Vec::new()));
    }

    fn traces() -> impl Strategy<Value = Trace> {
        let steps = prop::collection::vec((1u64..5_000_000_000, 1u64..20_000_000), 1..12);
        (steps, any::<bool>()).prop_map(|(steps, is_linear)| {
            let mut at = Time::ZERO;
            let mut point = |(gap, bps)| {
                at = at + Span::nanos(gap);
                Point { at, rate: Rate::bps(bps) }
            };
            let points: Vec<Point> = steps.into_iter().map(&mut point).collect();
            let shape = if is_linear { Shape::Linear } else { Shape::Step };
            Trace::new(&points, shape).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_feasible_trace_obeys_its_bounds_and_is_its_own(
            trace in traces(),
            rtt_us in 1_000u64..1_000_000,
            region in 1u64..30_000_000,
            times in prop::collection::vec(0u64..60_000_000_000, 8),
        ) {
            let rtt = Span::micros(rtt_us);
            let bounds = Bounds { packet: Bytes::new(1_514), rtt, region: Rate::bps(region) };
            let (feasible, changes) = trace.feasible(&bounds);
            for time in times.into_iter().map(Time::from_nanos) {
                // A line between rounded points may round the other way.
                prop_assert!(feasible.at(time).as_bps() <= trace.at(time).as_bps() + 1);
            }
            for pair in feasible.0.windows(2) {
                prop_assert!(pair[0].at <= pair[1].at);
                let most = pair[0].rate + bounds.rise(pair[1].at.since(pair[0].at));
                prop_assert!(pair[1].rate <= most, "{pair:?}");
            }
            prop_assert!(feasible.0.iter().all(|p| p.rate <= bounds.region));
            let (again, none) = feasible.feasible(&bounds);
            prop_assert_eq!(&again, &feasible);
            prop_assert_eq!(none, Vec::new());
            prop_assert_eq!(changes.is_empty(), feasible == trace);
        }
    }
}
