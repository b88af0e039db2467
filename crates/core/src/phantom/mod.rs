//! Rate limits with rich policies at a policer's cost: phantom queues with burst control (BC-PQP).
//!
//! Problem: a policer keeps an aggregate, one subscriber's traffic, to its rate without storing a
//! packet, but it knows no policy and lets bursts through; a shaper has neither fault, but costs
//! memory and cycles. Method: for each queue that a shaper would have, count the bytes that would
//! wait in it. Accept a packet if it would fit, and send it on at once. The counters drain as the
//! shaper's queues would, by weight and priority, exactly as in a fluid model. Queues have to be
//! large (BDP²) to keep a rate. So that no flow bursts into an empty one, a queue is filled with
//! magic bytes as soon as its flow is faster than its share allows.
//!
//! | module | its job |
//! |---|---|
//! | [`plan`] | what a subscriber has bought, checked and worked out |
//! | [`flow`] | which leaf a packet goes to |
//! | [`segment`] | a capacity that subscribers share |
//! | [`aggregate`] | the policer of one subscriber: the specification |
//!
//! Source: BC-PQP (docs/research/papers/bcpqp.md).

use crate::units::{Bytes, Time};

/// Volumes and virtual times are counted in 2⁻²⁴ bytes. A rate in 2⁻²⁴ bytes per nanosecond times a
/// time is then exact, and a plan of 64 kbit/s is accurate to .2 %.
pub const UNIT_BITS: u32 = 24;

pub mod aggregate;
pub mod flow;
pub mod plan;
pub mod segment;
#[cfg(test)]
mod tests;

pub use aggregate::{Aggregate, BcPqp, Bundle, BundleError, BundleSpec, Bundled};
pub use flow::Flow;
pub use plan::{Class, Criterion, Plan, PlanError, PlanSpec, Share, Signal};

/// A packet that arrives at the policer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Which leaf of the plan it goes to; see [`Plan::leaf_of`]. A policer that knows flows may choose
    /// another of the same class.
    pub leaf: usize,
    /// A hash of its flow, whose high bits have chosen the leaf.
    pub flow: u32,
    /// In L2 bytes.
    pub size: Bytes,
    /// Whether its sender understands a mark (ECT) instead of a drop.
    pub can_be_marked: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on at once.
    Pass,
    /// It goes on at once, marked: its sender has to slow down.
    Mark,
    /// It is discarded.
    Drop,
}

/// Decides about packets at once, without storing any.
pub trait Police {
    /// Decides about a packet. A time in the past counts as the time of the latest call.
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict;
}
