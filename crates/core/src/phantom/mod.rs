//! Rate limits with rich policies at a policer's cost: phantom queues with burst control (BC-PQP).
//!
//! Problem: a policer keeps an aggregate, one subscriber's traffic, to its rate without storing a
//! packet, but knows no policy and bursts; a shaper knows both and pays with memory and cycles.
//! Method: count, for each queue that a shaper would have, the bytes that would wait in it; accept a
//! packet if it would fit, and send it on at once. The counters drain as the shaper's queues would,
//! by weight and priority, exactly as fluid. Queues have to be large (BDP²) to keep a rate; so that
//! no flow bursts into an empty one, it is filled with magic bytes as soon as the flow is faster than
//! its share allows.
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

/// Volumes and virtual times are counted in 2⁻²⁴ bytes. Then a rate, in 2⁻²⁴ bytes per nanosecond,
/// times a time is exact, and a plan of 64 kbit/s is right within .2 %.
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

/// A packet before the policer.
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
    /// It goes nowhere.
    Drop,
}

/// Decides about packets at once, without storing any.
pub trait Police {
    /// Decides about a packet. Calls in the past count as of the latest call.
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict;
}
