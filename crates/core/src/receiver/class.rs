//! What an enforcer derives from an [`Allocation`]: the sizes of the bursts, queues and quanta of its
//! classes.
//!
//! The problem: a hierarchical token bucket needs more parameters for a class than its rate. The method:
//! fixed times and numbers of packets, in one place for every enforcer: the kernel and the model
//! of it. Terms as in tc(8): rate, ceil, quantum, burst. Source: tc-htb(8), CRAB §4.

use super::{Allocation, ClassRate, Excess};
use crate::share::Weight;
use crate::units::{Bytes, Rate, Span};

/// The parameters of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// The rate that the class is guaranteed.
    pub rate: Rate,
    /// The rate that the class may reach by borrowing; never below `rate`.
    pub ceil: Rate,
    /// Order of borrowing: 0 is the highest priority, 7 the lowest.
    pub priority: u8,
    /// How much borrowed traffic the class sends before the next class has its turn.
    pub quantum: Bytes,
    /// The capacity of the class's queue; `None` for the parent, which has no queue.
    pub queue: Option<Bytes>,
}

impl ClassSpec {
    /// The parent of all classes.
    pub fn parent(total: Option<Rate>) -> ClassSpec {
        let rate = total.unwrap_or(RATE_UNBOUNDED).clamp(RATE_MIN, RATE_UNBOUNDED);
        ClassSpec { rate, ceil: rate, priority: 0, quantum: QUANTUM_MAX, queue: None }
    }

    /// A flow group's class; `weight_min` is the smallest weight of all groups, and `packet` the
    /// largest packet of the device in L2 bytes.
    pub fn leaf(class: &ClassRate, weight_min: Weight, packet: Bytes) -> ClassSpec {
        let rate = class.rate.clamp(RATE_MIN, RATE_UNBOUNDED);
        let ceil = class.ceil.clamp(rate, RATE_UNBOUNDED);
        // With a quantum below one packet, HTB would need several rounds for each packet.
        let ratio = u64::from(class.weight.as_u32()) / u64::from(weight_min.as_u32());
        let quantum = (packet * ratio.max(1)).min(QUANTUM_MAX).max(packet);
        let short = (ceil * QUEUE_DELAY * 2).max(packet * QUEUE_PACKETS_MIN);
        let queue = match class.excess {
            Excess::Drop => short,
            Excess::Delay => {
                (ceil * LONG_DELAY).max(packet * LONG_PACKETS_MIN).min(LONG_MAX).max(short)
            }
        };
        ClassSpec { rate, ceil, priority: class.priority.min(7), quantum, queue: Some(queue) }
    }

    /// How much a class may send at once at `rate` after a pause.
    pub fn burst(rate: Rate) -> Bytes {
        (rate * BURST_SPAN).max(BURST_MIN)
    }
}

impl Allocation {
    /// The classes of the groups, in their order; `packet` is the largest packet of the device in
    /// L2 bytes.
    pub fn leaves(&self, packet: Bytes) -> impl Iterator<Item = ClassSpec> {
        let weight_min = self.classes.iter().map(|c| c.weight).min().unwrap_or(Weight::ONE);
        self.classes.iter().map(move |class| ClassSpec::leaf(class, weight_min, packet))
    }
}

/// HTB refuses zero.
const RATE_MIN: Rate = Rate::kbit(8);
/// In effect unbounded: the highest rate that fits the kernel's 32 bits of bytes/s, rounded.
pub(super) const RATE_UNBOUNDED: Rate = Rate::mbit(34_000);
/// A leaf holds 2·ceil·50 ms. Source: CRAB §4, `2·C·RTT` of a common RTT.
const QUEUE_DELAY: Span = Span::millis(50);
/// A TCP flow with less than six packets cannot recover by fast retransmit. Source: CRAB §4.
const QUEUE_PACKETS_MIN: u64 = 6;
/// A queue that must not overflow holds 2 s at the ceil, and at least the first windows of some connections.
const LONG_DELAY: Span = Span::secs(2);
const LONG_PACKETS_MIN: u64 = 64;
/// It holds no more than this, unless 100 ms at the ceil are more: the kernel's memory is bounded.
const LONG_MAX: Bytes = Bytes::new(4_000_000);
/// Measured: with bursts below 15 KB, or 50 KB at 200 Mbit/s, HTB stays under the rate, since its timer
/// does not fire often enough.
const BURST_MIN: Bytes = Bytes::kb(15);
const BURST_SPAN: Span = Span::millis(2);
/// HTB warns about a quantum above this.
const QUANTUM_MAX: Bytes = Bytes::new(200_000);

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Bytes = Bytes::new(1_514);

    fn leaf(rate: Rate, ceil: Rate, weight: u32) -> ClassSpec {
        with_excess(Excess::Drop, rate, ceil, weight)
    }

    fn with_excess(excess: Excess, rate: Rate, ceil: Rate, weight: u32) -> ClassSpec {
        let weight = Weight::new(weight).unwrap();
        let class = ClassRate { rate, ceil, priority: 9, weight, excess };
        ClassSpec::leaf(&class, Weight::ONE, PACKET)
    }

    #[test]
    fn a_queue_holds_100_ms_at_the_ceil_but_six_packets_at_least() {
        let queue = |ceil| leaf(Rate::kbit(1), ceil, 1).queue;
        assert_eq!(queue(Rate::mbit(25)), Some(Bytes::new(312_500)));
        assert_eq!(queue(Rate::kbit(100)), Some(Bytes::new(6 * 1_514)));
    }

    #[test]
    fn a_queue_of_what_has_windows_does_not_overflow_and_is_bounded() {
        let queue = |ceil| with_excess(Excess::Delay, Rate::kbit(1), ceil, 1).queue;
        assert_eq!(queue(Rate::kbit(100)), Some(Bytes::new(64 * 1_514)));
        assert_eq!(queue(Rate::mbit(10)), Some(Bytes::new(2_500_000)));
        assert_eq!(queue(Rate::mbit(100)), Some(Bytes::new(4_000_000)));
        assert_eq!(queue(Rate::mbit(1_000)), Some(Bytes::new(12_500_000)), "100 ms");
    }

    #[test]
    fn quanta_follow_the_weights_within_a_packet_and_what_htb_takes() {
        let quantum = |weight| leaf(Rate::mbit(1), Rate::mbit(1), weight).quantum;
        assert_eq!(quantum(1), PACKET);
        assert_eq!(quantum(5), PACKET * 5);
        assert_eq!(quantum(10_000), QUANTUM_MAX);
    }

    #[test]
    fn what_htb_refuses_is_never_asked_for() {
        let class = leaf(Rate::ZERO, Rate::ZERO, 1);
        assert_eq!((class.rate, class.ceil, class.priority), (RATE_MIN, RATE_MIN, 7));
        assert_eq!(leaf(Rate::mbit(9), Rate::mbit(4), 1).ceil, Rate::mbit(9));
        assert_eq!(leaf(Rate::MAX, Rate::MAX, 1).rate, RATE_UNBOUNDED);
        assert_eq!(ClassSpec::parent(None).rate, RATE_UNBOUNDED);
    }

    #[test]
    fn a_burst_lasts_2_ms_but_is_ten_packets_at_least() {
        assert_eq!(ClassSpec::burst(Rate::mbit(30)), Bytes::kb(15));
        assert_eq!(ClassSpec::burst(Rate::mbit(200)), Bytes::kb(50));
    }
}
