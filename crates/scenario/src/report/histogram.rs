//! Distribution of a time in bounded memory.

use fairweir_core::units::Span;

/// A log-linear histogram of times: exact to the microsecond below 32 µs, to 3 % above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u32>,
    sum: Span,
    max: Span,
}

/// Number of buckets in an octave.
const SUBS: u64 = 32;

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, span: Span) {
        let bucket = bucket(span.as_nanos() / 1_000);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.sum += span;
        self.max = self.max.max(span);
    }

    /// Adds all counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Number of times that were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&n| u64::from(n)).sum()
    }

    /// The longest time, exactly.
    pub fn max(&self) -> Span {
        self.max
    }

    /// The mean, exactly; `None` if nothing was counted.
    pub fn mean(&self) -> Option<Span> {
        let count = self.count();
        (count > 0).then(|| self.sum / count)
    }

    /// The time that a part `q` (0 to 1) of all times does not exceed, as the upper end of its
    /// bucket; `None` if nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<Span> {
        let rank = (self.count() as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return Some(Span::micros(upper_end(bucket as u64)).min(self.max));
            }
        }
        None
    }
}

/// Index of a bucket: microseconds 0 to 31 have a bucket each, every octave above has 32.
fn bucket(micros: u64) -> usize {
    if micros < SUBS {
        return micros as usize;
    }
    let octave = u64::from(micros.ilog2() - SUBS.ilog2());
    (octave * SUBS + (micros >> octave)) as usize
}

/// The first microsecond after a bucket.
fn upper_end(bucket: u64) -> u64 {
    if bucket < SUBS {
        return bucket + 1;
    }
    let octave = bucket / SUBS - 1;
    (bucket - octave * SUBS + 1) << octave
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        for micros in (0..5_000).chain([1 << 20, (1 << 30) + 7]) {
            let end = upper_end(bucket(micros) as u64);
            assert!(micros < end && end <= micros + 1 + micros / 32, "{micros} {end}");
        }
    }

    #[test]
    fn quantiles_and_mean_are_those_of_what_was_counted() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|ms| histogram.record(Span::millis(ms)));
        let near = |q: f64, ms: f64| {
            let found = histogram.quantile(q).unwrap().as_millis_f64();
            assert!((found / ms - 1.0).abs() < 0.04, "{q}: {found}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        assert_eq!(histogram.quantile(1.0), Some(Span::secs(1)));
        assert_eq!(histogram.mean(), Some(Span::micros(500_500)));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
