//! How much round trips vary without a queue of this host.
//!
//! Problem: on Wi-Fi, LTE and cable a round trip varies by 5 to 50 ms from one packet to the next. If this
//! were taken for a queue, the upload would be limited again and again.
//!
//! Signal: how much longer than their base round trips were in rests, and in ticks that were taken for a
//! queue that did not become shorter when less was sent.
//!
//! Method: the larger of the 90th percentiles of the last values of both kinds.

use std::collections::VecDeque;

use crate::units::{Span, Time};

/// The noise, see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Noise {
    rests: VecDeque<Span>,
    refuted: VecDeque<(Time, Span)>,
}

impl Noise {
    /// A tick in which almost nothing was sent.
    pub(super) fn handle_rest(&mut self, queue: Span) {
        keep(&mut self.rests, queue);
    }

    /// Ticks that were wrongly taken for a queue of this host.
    pub(super) fn handle_refuted(&mut self, at: Time, queues: impl Iterator<Item = Span>) {
        for queue in queues {
            keep(&mut self.refuted, (at, queue));
        }
    }

    /// Forgets old values, and returns how much round trips vary.
    pub(super) fn span(&mut self, at: Time) -> Span {
        self.refuted.retain(|&(then, _)| at.since(then) < REFUTED_AGE_MAX);
        let refuted = percentile(self.refuted.iter().map(|&(_, queue)| queue).collect());
        percentile(self.rests.iter().copied().collect()).max(refuted).min(NOISE_MAX)
    }
}

fn keep<T>(samples: &mut VecDeque<T>, sample: T) {
    if samples.len() == SAMPLES {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// The 90th percentile; zero if there is no sample.
fn percentile(mut samples: Vec<Span>) -> Span {
    samples.sort_unstable();
    let at = (samples.len() * 9 / 10).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or_default()
}

const SAMPLES: usize = 32;
/// Upper limit: a longer delay is rather taken for a queue again and again than never.
const NOISE_MAX: Span = Span::millis(60);
/// Other hosts may have filled the queue, so it is examined again after this time.
const REFUTED_AGE_MAX: Span = Span::secs(120);
