//! Parameters of a sender.

use fairweir_core::units::Bytes;
use fairweir_scenario::CongestionControl;

/// Parameters of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSpec {
    /// The algorithm that sets its window.
    pub congestion_control: CongestionControl,
    /// Payload of a full packet; below 64 KiB.
    pub segment: Bytes,
    /// Whether packets are paced as by the fq qdisc; BBR always paces.
    pub paced: bool,
    /// Seed of randomness: the phase in which BBR begins its cycle.
    pub seed: u64,
}
