//! Phantom queues without burst control (PQP): one level of weighted queues.
//!
//! Problem: share an aggregate's rate by weight without storing a packet.
//! Method: count for each queue the bytes that would wait in a shaper's queue. A packet is accepted
//! if it fits, else dropped. The counters drain as the shaper's queues would, as a fluid.
//! Properties: it accepts the same arrivals as a shaper with the same queues and a fluid scheduler.
//! In any span a queue passes at most what drains from it plus its size: each new flow may burst a
//! whole queue, which has to be large (BDP²) to keep the rate.
//!
//! Source: BC-PQP §3.

use super::fluid::{Fluid, QUEUE_MAX};
use super::volume;
use fairweir_core::phantom::{Arrival, Police, Verdict};
use fairweir_core::units::{Bytes, Rate, Time};

/// Weighted phantom queues. Invariant: no queue holds more than the limit.
#[derive(Clone, Debug)]
pub struct Pqp {
    /// Size of each queue, 2⁻²⁴ bytes.
    limit: u64,
    queues: Fluid,
}

impl Pqp {
    /// Empty queues of these weights, each of `limit`.
    ///
    /// # Panics
    /// If there are no weights or more than a plan has, a weight is out of range, or the limit is 4
    /// GiB or more.
    pub fn new(rate: Rate, limit: Bytes, weights: &[u16]) -> Pqp {
        assert!(limit.as_u64() <= QUEUE_MAX, "a queue holds less than 4 GiB");
        Pqp { limit: volume(limit), queues: Fluid::new(rate, weights) }
    }

    /// Reads what a decision will read; see [`Slot::touch`](fairweir_core::phantom::aggregate::Slot::touch).
    #[inline]
    pub fn touch(&self, leaf: usize) -> u64 {
        self.queues.touch(leaf)
    }
}

impl Police for Pqp {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        self.queues.drain(now);
        let size = volume(arrival.size);
        if size > self.limit - self.queues.backlog(arrival.leaf) {
            return Verdict::Drop;
        }
        self.queues.add(arrival.leaf, size);
        Verdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_the_others_do_not() {
        let mut pqp = Pqp::new(Rate::mbit(8), Bytes::kb(3), &[1, 1]);
        let mut offer = |us: u64, leaf| {
            let arrival =
                Arrival { leaf, flow: leaf as u32, size: Bytes::new(1_000), can_be_marked: false };
            pqp.handle_packet(Time::from_nanos(us * 1_000), arrival)
        };
        let first: Vec<_> = (0..4).map(|_| offer(0, 0)).collect();
        assert_eq!(first, [Verdict::Pass, Verdict::Pass, Verdict::Pass, Verdict::Drop]);
        assert_eq!(offer(0, 1), Verdict::Pass);
        // Both queues drain one byte per microsecond in all: queue 0 has room for 1,000 bytes after 2 ms.
        assert_eq!(offer(1_998, 0), Verdict::Drop);
        assert_eq!(offer(2_002, 0), Verdict::Pass);
    }
}
