//! The usual policer: one bucket of tokens for all of an aggregate's traffic.
//!
//! Problem: keep an aggregate to its rate without storing a packet.
//! Method: tokens drip into a bucket at the rate until it is full; a packet takes its size in tokens
//! or is dropped.
//! Properties: in any span it passes at most the rate times the span plus a bucket. It knows no
//! flows: a flow that sends more gets more.
//!
//! Source: BC-PQP §2.2; RFC 2697 without its second bucket.

use super::{per_nano, volume};
use fairweir_core::phantom::{Arrival, Police, Verdict};
use fairweir_core::units::{Bytes, Rate, Time};

/// A token bucket. Invariant: `tokens <= size`.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// 2⁻²⁴ bytes per nanosecond.
    rate: u64,
    /// Size of the bucket, 2⁻²⁴ bytes.
    size: u64,
    tokens: u64,
    latest: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, size: Bytes) -> TokenBucket {
        let size = volume(size);
        TokenBucket { rate: per_nano(rate), size, tokens: size, latest: 0 }
    }

    /// Reads what a decision will read; see [`Slot::touch`](fairweir_core::phantom::aggregate::Slot::touch).
    #[inline]
    pub fn touch(&self) -> u64 {
        self.tokens
    }
}

impl Police for TokenBucket {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        let passed = now.as_nanos().saturating_sub(self.latest);
        self.latest += passed;
        let tokens = self.tokens.saturating_add(self.rate.saturating_mul(passed)).min(self.size);
        let wanted = volume(arrival.size);
        let is_enough = wanted <= tokens;
        self.tokens = if is_enough { tokens - wanted } else { tokens };
        if is_enough { Verdict::Pass } else { Verdict::Drop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(size: u64) -> Arrival {
        Arrival { leaf: 0, flow: 0, size: Bytes::new(size), can_be_marked: false }
    }

    #[test]
    fn a_full_bucket_passes_its_size_at_once_and_then_the_rate() {
        // 8 Mbit/s is a byte per microsecond.
        let mut bucket = TokenBucket::new(Rate::mbit(8), Bytes::new(3_000));
        let mut at = |us: u64| bucket.handle_packet(Time::from_nanos(us * 1_000), packet(1_000));
        assert_eq!([at(0), at(0), at(0), at(0)], {
            use Verdict::{Drop, Pass};
            [Pass, Pass, Pass, Drop]
        });
        assert_eq!(at(998), Verdict::Drop);
        // The rate is rounded down to 2⁻²⁴ bytes per nanosecond, so tokens may come a little late.
        assert_eq!(at(1_001), Verdict::Pass);
        assert_eq!(at(1_002), Verdict::Drop);
    }

    #[test]
    fn a_long_pause_fills_the_bucket_and_no_more() {
        let mut bucket = TokenBucket::new(Rate::mbit(200_000), Bytes::new(2_000));
        let late = Time::from_nanos(u64::MAX);
        let passed = (0..9).filter(|_| bucket.handle_packet(late, packet(500)) == Verdict::Pass);
        assert_eq!(passed.count(), 4);
    }

    #[test]
    fn a_call_in_the_past_counts_as_of_the_latest_call() {
        let mut bucket = TokenBucket::new(Rate::mbit(8), Bytes::new(1_000));
        assert_eq!(bucket.handle_packet(Time::from_nanos(5_000_000), packet(1_000)), Verdict::Pass);
        assert_eq!(bucket.handle_packet(Time::ZERO, packet(1_000)), Verdict::Drop);
        assert_eq!(bucket.handle_packet(Time::from_nanos(5_500_000), packet(600)), Verdict::Drop);
    }
}
