//! What round trips vary by without any queue of ours.
//!
//! Problem: on Wi-Fi, LTE and cable a round trip varies by 5 to 50 ms from one packet to the next. Taken
//! for a queue, it would limit the upload again and again.
//!
//! Signal: how much longer than the base round trips were in rests, and in ticks that were taken for a
//! queue and did not become shorter when less was sent.
//!
//! Method: the 90th percentile of the last of each, the greater one.

use std::collections::VecDeque;

use crate::units::{Span, Time};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Noise {
    rests: VecDeque<Span>,
    refuted: VecDeque<(Time, Span)>,
}

impl Noise {
    /// A tick in which hardly anything was sent.
    pub(super) fn handle_rest(&mut self, queue: Span) {
        keep(&mut self.rests, queue);
    }

    /// Ticks that were wrongly taken for a queue of this host.
    pub(super) fn handle_refuted(&mut self, at: Time, queues: impl Iterator<Item = Span>) {
        for queue in queues {
            keep(&mut self.refuted, (at, queue));
        }
    }

    /// Forgets what is old, and returns by how much a round trip varies.
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

/// The 90th; zero if there is no sample.
fn percentile(mut samples: Vec<Span>) -> Span {
    samples.sort_unstable();
    let at = (samples.len() * 9 / 10).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or_default()
}

const SAMPLES: usize = 32;
/// What is longer is taken for a queue again and again, rather than never.
const NOISE_MAX: Span = Span::millis(60);
/// Others may have filled the queue: looked at again after a while.
const REFUTED_AGE_MAX: Span = Span::secs(120);
