//! What a sender is made from.

use fairweir_core::units::Bytes;
use fairweir_scenario::CongestionControl;

/// What a sender is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSpec {
    /// How large its window is.
    pub congestion_control: CongestionControl,
    /// Payload of a full packet; below 64 KiB.
    pub segment: Bytes,
    /// Whether packets are paced as by the fq qdisc; BBR's are always.
    pub paced: bool,
    /// Where randomness comes from: in which phase BBR begins its cycle.
    pub seed: u64,
}
