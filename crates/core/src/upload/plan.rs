//! The classes of an upload: what each group has of its own, and what it may borrow.

use crate::receiver::{ClassRate, ClassSpec};
use crate::share::{Entry, Weight, fair};
use crate::units::{Bytes, Rate, Span};

/// The classes of all groups, beneath one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadPlan {
    /// What all may send together.
    pub parent: ClassSpec,
    /// Acknowledgements and small ICMP, which go first.
    pub first: ClassSpec,
    /// The groups, in the policy's order.
    pub groups: Vec<ClassSpec>,
}

/// Divides `total` by weight. `first` is the rate of what goes first, as measured, and `packet` the
/// largest packet of the device in L2 bytes.
///
/// What goes first has a fifth more than it sends, from 1/20 to 1/2 of the total, and never borrows:
/// a flood of packets that look like acknowledgements leaves half of the link. The groups have the rest
/// by weight, and borrow what others leave, again by weight.
///
/// Properties: the rates of all classes sum to the total, up to what HTB needs as a minimum; no class
/// may send more than the total; rates are in proportion to weights within 1 bit/s.
///
/// # Panics
/// If `weights` is empty.
pub fn plan(total: Rate, first: Rate, weights: &[Weight], packet: Bytes) -> UploadPlan {
    assert!(!weights.is_empty(), "a policy has at least its default group");
    let first = first.scale(6, 5).clamp(total / FIRST_PARTS_MIN, total / FIRST_PARTS_MAX);
    let entries: Vec<Entry> =
        weights.iter().map(|&weight| Entry { weight, demand: None }).collect();
    let rates = fair(total.saturating_sub(first), &entries);
    let weight_min = weights.iter().copied().min().unwrap_or(Weight::ONE);
    let leaf = |rate: Rate, ceil: Rate, priority: u8, weight: Weight| {
        let class = ClassRate { rate, ceil, priority, weight };
        let mut spec = ClassSpec::leaf(&class, weight_min, packet);
        spec.quantum = spec.quantum.min(packet * QUANTUM_PACKETS_MAX);
        spec
    };
    UploadPlan {
        parent: ClassSpec::parent(Some(total)),
        first: leaf(first, first, 0, weight_min),
        groups: rates.into_iter().zip(weights).map(|(rate, &w)| leaf(rate, total, 1, w)).collect(),
    }
}

/// How much may be sent at once at one of the rates of an upload, after a pause: 1 ms, since what is
/// sent at once waits in the queue that is to stay empty, but two packets at least.
pub fn burst(rate: Rate, packet: Bytes) -> Bytes {
    (rate * BURST_SPAN).max(packet * 2)
}

/// What goes first has from 1/20 to 1/2 of the total.
const FIRST_PARTS_MIN: u64 = 20;
const FIRST_PARTS_MAX: u64 = 2;
/// A group that borrows sends at most so many packets in its turn: 24 ms at 10 Mbit/s, in which the
/// other groups that borrow wait.
const QUANTUM_PACKETS_MAX: u64 = 20;
const BURST_SPAN: Span = Span::millis(1);
