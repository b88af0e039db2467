//! Proportional integral controller enhanced (PIE): packets are dropped at random as they arrive,
//! with a probability that follows the delay.
//!
//! Every [`UPDATE`] the probability changes by [`ALPHA`] times the difference between the delay and
//! [`TARGET`], plus [`BETA`] times the growth of the delay, scaled down while the probability is
//! small. The delay is the waiting time of the last packet that was taken out (RFC 8033 §5.2 allows
//! timestamps instead of a departure rate). For 150 ms after the queue was good nothing is dropped.
//!
//! Source: RFC 8033 §4 and §5 with the capped adjustment (§5.5) and the derandomisation (§5.4).
//! Nothing is marked, since no flow here is ECN-capable.

use fairweir_core::units::{Bytes, Span, Time};

use crate::random::SplitMix64;

/// `QDELAY_REF`. Source, as for the constants below: RFC 8033 §4 and appendix A.
const TARGET: Span = Span::millis(15);
/// `T_UPDATE`.
const UPDATE: Span = Span::millis(15);
/// `MAX_BURST`, 150 ms, in updates.
const BURST: u32 = 10;
/// In 1/s.
const ALPHA: f64 = 0.125;
/// In 1/s.
const BETA: f64 = 1.25;
/// Twice `MEAN_PKTSIZE`: nothing is dropped while fewer bytes are in the queue.
const BACKLOG_MIN: Bytes = Bytes::new(2 * 1_024);
/// Below each of these probabilities the change is divided by the second number.
const SCALES: [(f64, f64); 6] =
    [(1e-6, 2_048.0), (1e-5, 512.0), (1e-4, 128.0), (1e-3, 32.0), (1e-2, 8.0), (1e-1, 2.0)];

/// The controller; the names are those of the RFC.
#[derive(Clone, Debug)]
pub(super) struct Pie {
    drop_prob: f64,
    accu_prob: f64,
    qdelay: Span,
    qdelay_old: Span,
    /// In updates.
    burst_allowance: u32,
    /// `None` while there is nothing to update: the queue is empty and the state is as at the start.
    update_at: Option<Time>,
}

impl Pie {
    pub(super) fn new() -> Pie {
        Pie {
            drop_prob: 0.0,
            accu_prob: 0.0,
            qdelay: Span::ZERO,
            qdelay_old: Span::ZERO,
            burst_allowance: BURST,
            update_at: None,
        }
    }

    /// When [`Pie::handle_update`] is due.
    pub(super) fn next_update(&self) -> Option<Time> {
        self.update_at
    }

    /// Whether the arriving packet is dropped; `backlog` is what waits.
    pub(super) fn drops(&mut self, now: Time, backlog: Bytes, random: &mut SplitMix64) -> bool {
        self.update_at = self.update_at.or(Some(now + UPDATE));
        if self.burst_allowance > 0 {
            return false;
        }
        let is_good = self.qdelay_old < TARGET / 2 && self.drop_prob < 0.2;
        if is_good || backlog <= BACKLOG_MIN {
            return false;
        }
        if self.drop_prob == 0.0 {
            self.accu_prob = 0.0;
        }
        self.accu_prob += self.drop_prob;
        let uniform = random.fraction();
        let drops = match self.accu_prob {
            p if p < 0.85 => false,
            p if p >= 8.5 => true,
            _ => uniform < self.drop_prob,
        };
        if drops {
            self.accu_prob = 0.0;
        }
        drops
    }

    /// A packet that waited for `sojourn` was taken out and left `backlog` behind.
    pub(super) fn handle_departure(&mut self, sojourn: Span, backlog: Bytes) {
        self.qdelay = if backlog == Bytes::ZERO { Span::ZERO } else { sojourn };
    }

    /// Updates the drop probability from the delay.
    pub(super) fn handle_update(&mut self, now: Time, backlog: Bytes) {
        let secs = |span: Span| span.as_secs_f64();
        let off = secs(self.qdelay) - secs(TARGET);
        let grown = secs(self.qdelay) - secs(self.qdelay_old);
        let scale = SCALES.iter().find(|(below, _)| self.drop_prob < *below).map_or(1.0, |s| s.1);
        let mut change = (ALPHA * off + BETA * grown) / scale;
        if self.drop_prob >= 0.1 {
            change = change.min(0.02);
        }
        self.drop_prob += change;
        if self.qdelay == Span::ZERO && self.qdelay_old == Span::ZERO {
            self.drop_prob *= 0.98;
        }
        self.drop_prob = self.drop_prob.clamp(0.0, 1.0);
        self.burst_allowance = self.burst_allowance.saturating_sub(1);
        let was_good = self.qdelay < TARGET / 2 && self.qdelay_old < TARGET / 2;
        if self.drop_prob == 0.0 && was_good {
            self.burst_allowance = BURST;
        }
        self.qdelay_old = self.qdelay;
        let is_at_rest = self.burst_allowance == BURST && backlog == Bytes::ZERO;
        self.update_at = (!is_at_rest).then_some(now + UPDATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller that has seen these delays at its updates.
    fn after(delays_ms: &[f64]) -> Pie {
        let mut pie = Pie::new();
        for (i, ms) in delays_ms.iter().enumerate() {
            pie.handle_departure(Span::nanos((ms * 1e6) as u64), Bytes::kb(30));
            pie.handle_update(Time::ZERO + UPDATE * i as u64, Bytes::kb(30));
        }
        pie
    }

    /// The RFC's `calculate_drop_prob`, in its own words and units.
    fn printed(delays_s: &[f64]) -> (f64, f64) {
        let (mut prob, mut old, mut burst) = (0.0f64, 0.0f64, 0.150f64);
        for &delay in delays_s {
            let mut p = 0.125 * (delay - 0.015) + 1.25 * (delay - old);
            if prob < 0.000001 {
                p /= 2048.0;
            } else if prob < 0.00001 {
                p /= 512.0;
            } else if prob < 0.0001 {
                p /= 128.0;
            } else if prob < 0.001 {
                p /= 32.0;
            } else if prob < 0.01 {
                p /= 8.0;
            } else if prob < 0.1 {
                p /= 2.0;
            }
            if prob >= 0.1 && p > 0.02 {
                p = 0.02;
            }
            prob += p;
            if delay == 0.0 && old == 0.0 {
                prob *= 0.98;
            }
            prob = prob.clamp(0.0, 1.0);
            burst = (burst - 0.015).max(0.0);
            if prob == 0.0 && delay < 0.0075 && old < 0.0075 {
                burst = 0.150;
            }
            old = delay;
        }
        (prob, burst)
    }

    #[test]
    fn the_probability_and_the_burst_allowance_follow_the_printed_code() {
        let mut random = SplitMix64::new(3);
        let mut delays: Vec<f64> = Vec::new();
        for i in 0..400 {
            let most = [5, 40, 200, 0][i / 100];
            delays.push(random.below(most + 1) as f64);
            let (prob, burst) = printed(&delays.iter().map(|ms| ms / 1e3).collect::<Vec<_>>());
            let pie = after(&delays);
            assert!((pie.drop_prob - prob).abs() < 1e-9, "{i}: {} of {prob}", pie.drop_prob);
            assert_eq!(f64::from(pie.burst_allowance), (burst / 0.015).round(), "{i}");
        }
    }

    #[test]
    fn for_150_ms_nothing_is_dropped_and_then_by_the_probability() {
        let dropped = |updates: usize| {
            let mut pie = after(&vec![100.0; updates]);
            let probability = pie.drop_prob;
            let mut random = SplitMix64::new(5);
            let drops = (0..20_000).filter(|_| pie.drops(Time::ZERO, Bytes::kb(30), &mut random));
            (drops.count() as f64 / 20_000.0, probability)
        };
        assert_eq!(dropped(9).0, 0.0);
        let (share, probability) = dropped(40);
        // Derandomised, a gap begins with packets up to a sum of 0.85, then takes 1 / p on average.
        let expected = 1.0 / ((0.85 / probability).ceil() - 1.0 + 1.0 / probability);
        assert!(probability > 0.05 && (share / expected - 1.0).abs() < 0.05, "{share} {expected}");
    }

    #[test]
    fn a_short_queue_is_never_dropped_from() {
        let mut pie = after(&[100.0; 40]);
        let mut random = SplitMix64::new(5);
        assert!((0..1_000).all(|_| !pie.drops(Time::ZERO, BACKLOG_MIN, &mut random)));
    }

    #[test]
    fn an_idle_link_needs_no_updates() {
        let mut pie = after(&[100.0; 40]);
        let mut at = Time::ZERO;
        pie.handle_departure(Span::ZERO, Bytes::ZERO);
        for _ in 0..2_000 {
            at = at + UPDATE;
            pie.handle_update(at, Bytes::ZERO);
        }
        assert_eq!((pie.drop_prob, pie.next_update()), (0.0, None));
    }
}
