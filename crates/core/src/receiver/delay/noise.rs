//! Random delay of the path, which is not a queue.
//!
//! The queue of a link changes within an interval as senders burst, but in some of the last intervals it
//! hardly changes. So the smallest distances between mean and least in the last intervals are the
//! noise of the path. Source: docs/control.md.

use std::collections::VecDeque;

use super::{BASE_SAMPLES_MIN, Estimate};

/// How much the path delays packets at random.
#[derive(Clone, Debug, Default)]
pub(super) struct Noise {
    /// Spreads of the last intervals, in ns, oldest first.
    spreads: VecDeque<i64>,
    /// The last answers of a probe that is answered rarely, in ns, oldest first.
    rare: VecDeque<i64>,
}

impl Noise {
    /// Takes in an interval.
    pub(super) fn handle_estimate(&mut self, estimate: &Estimate) {
        if estimate.samples >= BASE_SAMPLES_MIN {
            keep(&mut self.spreads, (estimate.mean - estimate.least).max(0), NOISE_TICKS);
        }
    }

    /// Takes in an answer of a rarely answered probe: the last answers together count as an interval.
    pub(super) fn handle_rare(&mut self, beyond: i64) {
        keep(&mut self.rare, beyond, RARE_ANSWERS);
        if let Some(&least) = self.rare.iter().min().filter(|_| self.rare.len() == RARE_ANSWERS) {
            let sum = self.rare.iter().fold(0, |sum: i64, &one| sum.saturating_add(one));
            keep(&mut self.spreads, (sum / RARE_ANSWERS as i64).saturating_sub(least), NOISE_TICKS);
        }
    }

    /// The delay that bursts of senders do not explain, in ns.
    pub(super) fn mean(&self) -> i64 {
        if self.spreads.len() < NOISE_TICKS_MIN {
            return 0;
        }
        let mut sorted: Vec<i64> = self.spreads.iter().copied().collect();
        sorted.sort_unstable();
        (sorted[sorted.len() / 4] - BURSTS_NS).clamp(0, NOISE_MAX)
    }
}

/// Appends `one`, and forgets the oldest if there are more than `most`.
fn keep(all: &mut VecDeque<i64>, one: i64, most: usize) {
    if all.len() == most {
        all.pop_front();
    }
    all.push_back(one);
}

/// Intervals from which noise is computed, at most and at least.
pub(super) const NOISE_TICKS: usize = 15;
const NOISE_TICKS_MIN: usize = 3;
/// Answers of a rarely answered probe from which noise is computed.
const RARE_ANSWERS: usize = 8;
/// Larger spreads, in ns, come from a queue that changes.
pub(super) const NOISE_MAX: i64 = 30_000_000;
/// By how much bursts of senders lengthen the queue for a moment, plus rounding of timestamps, in ns.
pub(super) const BURSTS_NS: i64 = 2_500_000;
