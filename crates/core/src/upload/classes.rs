//! The classes of an upload: the guaranteed rate of each group, and what it may borrow.

use crate::receiver::{ClassRate, ClassSpec, Excess};
use crate::share::{Claims, Node, Tree, Weight};
use crate::units::{Bytes, Rate, Span};

/// The classes of all groups, beneath one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadClasses {
    /// The rate that all may send together.
    pub parent: ClassSpec,
    /// Small ICMP, including the probe.
    pub icmp: ClassSpec,
    /// Acknowledgements without payload. They wait a few milliseconds; the oldest is dropped, since later ones carry
    /// the same information.
    pub acks: ClassSpec,
    /// The groups, in the policy's order.
    pub groups: Vec<UploadClass>,
    /// The classes that contain groups, outer ones first.
    pub branches: Vec<UploadClass>,
}

/// A class, and the branch that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadClass {
    /// Its rates.
    pub spec: ClassSpec,
    /// Index of the branch that contains it; `None` means the parent of all.
    pub within: Option<usize>,
}

/// Divides `total` by weight and demand. A demand is what a group recently had to send, in the policy's order, or
/// `None` if it wants more than it gets. `first` is the measured rate of traffic with priority, and `packet` the
/// largest packet of the device in L2 bytes.
///
/// Small ICMP has up to 1/20 of the total, so that the probe never waits for acknowledgements. Acknowledgements have
/// a fifth more than the priority traffic sends, from 1/20 to 1/2, and never borrow: a flood of packets that look
/// like acknowledgements leaves half of the link. The groups have the rest by weight, and borrow what others leave,
/// again by weight: from their siblings first.
///
/// Properties: the rates of all classes sum to the total, except for what HTB needs as a minimum; no class
/// may send more than the total; rates are in proportion to weights within 1 bit/s.
///
/// # Panics
/// If `weights` is empty, or the numbers of leaves and demands differ.
pub fn classes(
    total: Rate,
    first: Rate,
    (weights, demands): (&Tree, &[Option<Rate>]),
    packet: Bytes,
) -> UploadClasses {
    assert!(!weights.is_empty(), "a policy has at least its default group");
    assert_eq!(weights.len(), demands.len(), "each group has a demand");
    let weight_min = smallest(weights.nodes());
    let first_class = |rate, ceil| leaf(rate, ceil, (0, weight_min), (weight_min, packet));
    let icmp = first_class(total / ICMP_PARTS, total / FIRST_PARTS_MIN);
    let acks = first.scale(6, 5).clamp(total / FIRST_PARTS_MIN, total / FIRST_PARTS_MAX);
    let acks = ClassSpec {
        queue: Some((acks * ACKS_SPAN).max(ACK * ACKS_MIN)),
        ..first_class(acks, acks)
    };
    let mut classes = UploadClasses {
        parent: ClassSpec::parent(Some(total)),
        icmp,
        acks,
        groups: Vec::new(),
        branches: Vec::new(),
    };
    let left = total.saturating_sub(icmp.rate + acks.rate);
    let rates = weights.divide(left, Claims { demands, taken: &[] });
    classes.add(weights.nodes(), &mut rates.into_iter(), (total, packet), None);
    classes
}

impl UploadClasses {
    /// Adds the classes of one level, whose leaves have the next `rates` and may have `ceil`; returns the sum
    /// of their rates.
    fn add(
        &mut self,
        nodes: &[Node],
        rates: &mut dyn Iterator<Item = Rate>,
        (ceil, packet): (Rate, Bytes),
        within: Option<usize>,
    ) -> Rate {
        let weight_min = smallest(nodes);
        let spec =
            |node: &Node, rate| leaf(rate, ceil, (PRIORITY, node.weight()), (weight_min, packet));
        let mut sum = Rate::ZERO;
        for node in nodes {
            sum += match node {
                Node::Leaf(_) => {
                    let rate = rates.next().unwrap_or_default();
                    self.groups.push(UploadClass { spec: spec(node, rate), within });
                    rate
                }
                Node::Branch(_, beneath) => {
                    let branch = self.branches.len();
                    self.branches.push(UploadClass { spec: spec(node, Rate::ZERO), within });
                    let rate = self.add(beneath, rates, (ceil, packet), Some(branch));
                    self.branches[branch].spec = ClassSpec { queue: None, ..spec(node, rate) };
                    rate
                }
            };
        }
        sum
    }
}

fn smallest(nodes: &[Node]) -> Weight {
    nodes.iter().map(Node::weight).min().unwrap_or(Weight::ONE)
}

fn leaf(
    rate: Rate,
    ceil: Rate,
    (priority, weight): (u8, Weight),
    (weight_min, packet): (Weight, Bytes),
) -> ClassSpec {
    let class = ClassRate { rate, ceil, priority, weight, excess: Excess::Drop };
    let spec = ClassSpec::leaf(&class, weight_min, packet);
    ClassSpec { quantum: spec.quantum.min(packet * QUANTUM_PACKETS_MAX), ..spec }
}

/// How much a class may send at once at `rate` after a pause: 1 ms, since a burst waits in the
/// queue that has to stay empty, but at least two packets.
pub fn burst(rate: Rate, packet: Bytes) -> Bytes {
    (rate * BURST_SPAN).max(packet * 2)
}

/// Order of borrowing of groups.
const PRIORITY: u8 = 1;
/// The longest queue of acknowledgements: 20 ms, but at least 16 packets.
const ACKS_SPAN: Span = Span::millis(20);
const ACKS_MIN: u64 = 16;
/// TCP on Ethernet without payload, with timestamps.
pub const ACK: Bytes = Bytes::new(66);
/// The guaranteed part of ICMP is small: what it does not use would be borrowed, too much of it by a branch.
const ICMP_PARTS: u64 = 64;
/// Acknowledgements have from 1/20 to 1/2 of the total.
const FIRST_PARTS_MIN: u64 = 20;
const FIRST_PARTS_MAX: u64 = 2;
/// The most packets that a borrowing group sends in its turn: 24 ms at 10 Mbit/s, during which the
/// other borrowing groups wait.
const QUANTUM_PACKETS_MAX: u64 = 20;
const BURST_SPAN: Span = Span::millis(1);
