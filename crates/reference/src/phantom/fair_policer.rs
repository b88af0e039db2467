//! FairPolicer: a token bucket whose tokens are dealt out to the flows in equal parts.
//!
//! Problem: at a single bucket, the flow that sends most gets most. Method: each flow has a bucket
//! of its own within the main one. New tokens are dealt out in equal parts to the buckets of active
//! flows, whose buckets are not full. The capacity of a flow's bucket is the number of tokens that
//! remain in the main bucket, so that with n busy flows each has an (n + 1)-th of it. A packet
//! takes its size from both buckets or is dropped. This code counts what is missing in a flow's
//! bucket: its debt. A flow is active while it has a debt; tokens pay debts off in equal parts; the
//! main bucket holds its size minus all debts; a packet is accepted if its flow's debt is then at
//! most that. So this is plain phantom queues that share one buffer by a dynamic threshold.
//! Properties: in any span it passes at most the rate times the span plus the main bucket. Tokens
//! are shared by weight, but buckets are not: they have one size, whatever the weights are. A flow
//! alone bursts up to half of the main bucket. Cost: tokens are dealt out lazily, as phantom queues
//! are drained; a loop over all flows at each packet, as BC-PQP §6.3 describes it, would cost more
//! and decide the same.
//!
//! This is our reading of BC-PQP's description (§2.2, §6.3 and, for weights, §6.4.2). Original:
//! Shan et al., Towards the Fairness of Traffic Policer, INFOCOM 2021.

use super::fluid::{Fluid, QUEUE_MAX};
use super::volume;
use fairweir_core::phantom::{Arrival, Police, Verdict};
use fairweir_core::units::{Bytes, Rate, Time};

/// FairPolicer. Invariant: the sum of all debts is at most `size`.
#[derive(Clone, Debug)]
pub struct FairPolicer {
    /// Size of the main bucket, 2⁻²⁴ bytes.
    size: u64,
    debts: Fluid,
}

impl FairPolicer {
    /// A full main bucket with flows of these weights; equal weights are FairPolicer as published.
    ///
    /// # Panics
    /// If there are no weights or more than a plan has, a weight is out of a plan's range, or the
    /// bucket is 4 GiB or more.
    pub fn new(rate: Rate, size: Bytes, weights: &[u16]) -> FairPolicer {
        assert!(size.as_u64() <= QUEUE_MAX, "a bucket holds less than 4 GiB");
        FairPolicer { size: volume(size), debts: Fluid::new(rate, weights) }
    }

    /// Reads what a decision will read; see [`Slot::touch`](fairweir_core::phantom::aggregate::Slot::touch).
    #[inline]
    pub fn touch(&self, leaf: usize) -> u64 {
        self.debts.touch(leaf)
    }
}

impl Police for FairPolicer {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        self.debts.drain(now);
        let size = volume(arrival.size);
        let capacity = self.size - self.debts.total();
        if self.debts.backlog(arrival.leaf).saturating_add(size) > capacity {
            return Verdict::Drop;
        }
        self.debts.add(arrival.leaf, size);
        Verdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers each flow's rate, in Mbit/s, in packets of 1,000 bytes for `seconds`; returns the
    /// rates that passed in the second half.
    fn rates(policer: &mut FairPolicer, offered: &[f64], seconds: f64) -> Vec<f64> {
        let mut events: Vec<(u64, usize)> = Vec::new();
        for (leaf, mbit) in offered.iter().enumerate().filter(|(_, mbit)| **mbit > 0.0) {
            let gap = 8_000_000.0 / mbit;
            events
                .extend((0..(seconds * 1e9 / gap) as u64).map(|i| ((i as f64 * gap) as u64, leaf)));
        }
        events.sort_unstable();
        let mut bytes = vec![0.0; offered.len()];
        for (at, leaf) in events {
            let arrival =
                Arrival { leaf, flow: leaf as u32, size: Bytes::new(1_000), can_be_marked: false };
            let verdict = policer.handle_packet(Time::from_nanos(at), arrival);
            if verdict == Verdict::Pass && at as f64 > seconds * 5e8 {
                bytes[leaf] += 1_000.0;
            }
        }
        bytes.iter().map(|bytes| bytes * 8e-6 / (seconds / 2.0)).collect()
    }

    #[test]
    fn flows_share_equally_however_much_they_send() {
        let mut policer = FairPolicer::new(Rate::mbit(12), Bytes::kb(60), &[1; 4]);
        let got = rates(&mut policer, &[20.0, 10.0, 1.0, 30.0], 8.0);
        for (got, fair) in got.iter().zip([11.0 / 3.0, 11.0 / 3.0, 1.0, 11.0 / 3.0]) {
            assert!((got / fair - 1.0).abs() < 0.03, "{got} of {fair}");
        }
    }

    #[test]
    fn tokens_are_shared_by_weight() {
        let mut policer = FairPolicer::new(Rate::mbit(12), Bytes::kb(60), &[1, 2, 3]);
        let got = rates(&mut policer, &[12.0, 12.0, 12.0], 8.0);
        for (got, fair) in got.iter().zip([2.0, 4.0, 6.0]) {
            assert!((got / fair - 1.0).abs() < 0.03, "{got} of {fair}");
        }
    }

    #[test]
    fn buckets_have_one_size_whatever_the_weights() {
        let mut policer = FairPolicer::new(Rate::mbit(1), Bytes::kb(400), &[1, 7, 1]);
        let mut bytes = [0; 3];
        for i in 0..3_000 {
            let arrival = Arrival {
                leaf: i % 3,
                flow: i as u32 % 3,
                size: Bytes::new(1_000),
                can_be_marked: false,
            };
            if policer.handle_packet(Time::ZERO, arrival) == Verdict::Pass {
                bytes[i % 3] += 1_000;
            }
        }
        assert_eq!(bytes, [100_000; 3], "a quarter each, and a quarter remains");
    }

    #[test]
    fn a_flow_that_falls_silent_leaves_its_part_to_the_others() {
        let mut policer = FairPolicer::new(Rate::mbit(12), Bytes::kb(60), &[1; 2]);
        let mut got = 0;
        for at in (0..4_000u64).map(|i| i * 500_000) {
            for leaf in 0..2 {
                if leaf == 1 && at > 1_000_000_000 {
                    continue;
                }
                let arrival = Arrival {
                    leaf,
                    flow: leaf as u32,
                    size: Bytes::new(1_000),
                    can_be_marked: false,
                };
                let verdict = policer.handle_packet(Time::from_nanos(at), arrival);
                got += u64::from(leaf == 0 && verdict == Verdict::Pass && at > 1_200_000_000);
            }
        }
        // 1,200 packets of 1,000 bytes take 0.8 s at 12 Mbit/s.
        assert!(got.abs_diff(1_200) < 30, "{got} packets");
    }

    proptest::proptest! {
        #[test]
        fn no_span_gets_more_than_the_rate_and_the_bucket(
            events in proptest::collection::vec((0u64..20_000_000, 0usize..5, 40u64..1_600), 1..300),
        ) {
            let mut policer = FairPolicer::new(Rate::mbit(8), Bytes::kb(20), &[1, 2, 3, 4, 5]);
            let (mut at, mut accepted) = (0, Vec::new());
            for (gap, leaf, size) in events {
                at += gap / 20;
                let arrival = Arrival { leaf, flow: leaf as u32, size: Bytes::new(size), can_be_marked: true };
                if policer.handle_packet(Time::from_nanos(at), arrival) == Verdict::Pass {
                    accepted.push((at, size));
                }
                proptest::prop_assert!(policer.debts.total() <= policer.size);
            }
            for first in 0..accepted.len() {
                let mut sum = 0;
                for &(at, size) in &accepted[first..] {
                    sum += size;
                    let span = at - accepted[first].0;
                    proptest::prop_assert!(sum <= 20_000 + span / 1_000 + 1);
                }
            }
        }
    }
}
