//! Random early detection: packets are dropped at random before the buffer is full, the more the
//! longer the queue has been on average.
//!
//! The average follows the queue by an exponential filter at each arrival, and falls while the link
//! is idle as if small gaps were arrivals. Between the thresholds `min` and `max` a packet is
//! dropped with a probability that rises from 0 to `max_p`, then ("gentle") on to 1 at twice `max`.
//! The gaps between drops are made uniform, not geometric, so that drops do not come in clusters.
//!
//! Property, tested: at a constant average of drop probability p, gaps are uniform from 1 to 1/p.
//! Source: Floyd and Jacobson, IEEE/ACM ToN 1(4), 1993; gentle: Floyd, "Recommendation on using the
//! gentle variant of RED", 2000. Sizes of packets do not matter (RFC 7141).

use fairweir_core::units::{Bytes, Rate, Time};

use crate::random::SplitMix64;

/// When packets are dropped early; ratios are in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Below this share of the buffer, on average, nothing is dropped.
    pub min_ppm: u32,
    /// From this share on the probability rises from `max_p` to 1; above `min_ppm`.
    pub max_ppm: u32,
    /// Probability of a drop at `max_ppm`.
    pub max_p_ppm: u32,
    /// Weight of one arrival in the average.
    pub wq_ppm: u32,
}

impl Default for Red {
    /// Thresholds a factor of three apart and a weight of 0.002 as in Floyd and Jacobson, §7. The
    /// gentle slope reaches 1 where the buffer ends; `max_p` is 0.1 as Floyd later advised.
    fn default() -> Red {
        Red { min_ppm: 166_667, max_ppm: 500_000, max_p_ppm: 100_000, wq_ppm: 2_000 }
    }
}

/// While the link is idle, packets of this size are taken to arrive one after the other.
const IDLE_PACKET: Bytes = Bytes::new(1_514);

/// The average queue and the drop history.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    red: Red,
    average: f64,
    /// Packets since the last drop, or since the average rose above `min`.
    passed: u64,
    /// Time since which the link is idle; `None` while it is busy.
    idle_since: Option<Time>,
}

/// The queue at an arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Backlog, in the unit of the buffer.
    pub(super) queued: u64,
    /// Size of the buffer.
    pub(super) room: u64,
    /// Rate at which the queue is served.
    pub(super) rate: Rate,
}

impl Detector {
    pub(super) fn new(red: Red) -> Detector {
        Detector { red, average: 0.0, passed: 0, idle_since: Some(Time::ZERO) }
    }

    /// The link has nothing more to send.
    pub(super) fn handle_idle(&mut self, now: Time) {
        self.idle_since = Some(now);
    }

    /// Whether the arriving packet is dropped.
    pub(super) fn drops(&mut self, now: Time, seen: Seen, random: &mut SplitMix64) -> bool {
        self.follow(now, seen);
        let p = self.probability(seen.room);
        if p <= 0.0 {
            self.passed = 0;
            return false;
        }
        // In a gap the first packet is dropped with probability p, the second with p / (1 - p), …
        let rest = 1.0 - self.passed as f64 * p;
        let uniform = random.fraction();
        let drops = rest <= p || uniform < p / rest;
        self.passed = if drops { 0 } else { self.passed + 1 };
        drops
    }

    fn follow(&mut self, now: Time, seen: Seen) {
        let weight = f64::from(self.red.wq_ppm) * 1e-6;
        if let Some(since) = self.idle_since.take() {
            let packet = seen.rate.time_to_send(IDLE_PACKET).as_nanos().max(1);
            self.average *= power(1.0 - weight, now.since(since).as_nanos() / packet);
        }
        self.average += weight * (seen.queued as f64 - self.average);
    }

    /// The probability of a drop at this average, before gaps are made uniform.
    fn probability(&self, room: u64) -> f64 {
        let ratio = |ppm: u32| f64::from(ppm) * 1e-6;
        let (min, max) = (ratio(self.red.min_ppm), ratio(self.red.max_ppm));
        let max_p = ratio(self.red.max_p_ppm);
        let filled = self.average / room as f64;
        if filled < min {
            0.0
        } else if filled < max {
            max_p * (filled - min) / (max - min)
        } else {
            (max_p + (1.0 - max_p) * (filled - max) / max).min(1.0)
        }
    }
}

/// Power by squaring, since the result of the standard library may differ from machine to machine.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use fairweir_core::units::Span;

    use super::*;

    /// Gaps between drops at a constant queue in a buffer of 600.
    fn gaps(red: Red, queued: u64, packets: u64) -> Vec<u64> {
        let mut detector = Detector::new(red);
        detector.average = queued as f64;
        detector.idle_since = None;
        let mut random = SplitMix64::new(7);
        let seen = Seen { queued, room: 600, rate: Rate::mbit(10) };
        let mut gaps = vec![0];
        for _ in 0..packets {
            *gaps.last_mut().unwrap() += 1;
            if detector.drops(Time::ZERO, seen, &mut random) {
                gaps.push(0);
            }
        }
        gaps.pop();
        gaps
    }

    #[test]
    fn drops_follow_the_formula_between_the_thresholds() {
        assert!(gaps(Red::default(), 99, 100_000).is_empty(), "below the lower threshold");
        for (queued, p) in [(120, 0.01), (200, 0.05), (280, 0.09), (300, 0.1), (450, 0.55)] {
            let gaps = gaps(Red::default(), queued, 200_000);
            let longest = *gaps.iter().max().unwrap() as f64;
            assert!(longest <= 1.0 / p + 1.001, "{queued}: {longest}");
            // Uniform from 1 to 1/p, so the mean is half their sum; tolerance: six standard errors.
            let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
            let expected = expected_gap(p);
            let tolerance = 6.0 * (1.0 / p) / 12f64.sqrt() / (gaps.len() as f64).sqrt();
            assert!((mean - expected).abs() < tolerance, "{queued}: {mean} of {expected}");
        }
        let all = gaps(Red::default(), 600, 1_000);
        assert_eq!(all.len(), 1_000, "at twice the upper threshold every packet goes");
    }

    /// Each gap below 1/p has probability p; the next gap has the rest of the probability.
    fn expected_gap(p: f64) -> f64 {
        let whole = (1.0 / p + 1e-9).floor();
        p * whole * (whole + 1.0) / 2.0 + (1.0 - p * whole) * (whole + 1.0)
    }

    #[test]
    fn the_average_forgets_while_the_link_rests() {
        let mut detector = Detector::new(Red { wq_ppm: 10_000, ..Red::default() });
        let mut random = SplitMix64::new(1);
        let seen = |queued| Seen { queued, room: 600, rate: Rate::kbit(12_112) };
        let now = Time::ZERO;
        for _ in 0..1_000 {
            detector.drops(now, seen(100), &mut random);
        }
        assert!((detector.average - 100.0).abs() < 0.1, "{}", detector.average);
        detector.handle_idle(now);
        detector.drops(now + Span::millis(69), seen(0), &mut random);
        // The expected average contains 0.99 to the 70th power.
        assert!((detector.average - 49.48).abs() < 0.1, "{}", detector.average);
    }
}
