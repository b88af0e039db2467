//! What a sender knows of one connection.

use crate::units::{Bytes, Rate, Span};

/// What a sender knows of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its window in packets.
    pub cwnd: u32,
    /// The window that its own congestion control would leave at a signal, in packets.
    pub cwnd_cut: u32,
    /// A full packet, as rates count it.
    pub packet: Bytes,
    /// The smoothed round-trip time.
    pub rtt: Span,
    /// The sum of the round-trip times of the newest packets of all its ACKs.
    pub rtts: Span,
    /// The number of these round-trip times.
    pub rtt_count: u64,
    /// The volume that it has delivered in all, as rates count it.
    pub delivered: Bytes,
    /// The state of its window.
    pub phase: Phase,
}

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It grows by slow start.
    SlowStart,
    /// It grows by congestion avoidance.
    Avoidance,
    /// It is being reduced, or a timeout has passed.
    Recovery,
}

impl Sample {
    /// The rate of `packets` per round-trip time, rounded down.
    pub(super) fn rate_floor(&self, packets: u32) -> Rate {
        Rate::from_volume(self.packet * u64::from(packets), self.rtt)
    }

    /// The rate that its own signal costs it.
    pub(super) fn own_cut(&self) -> Rate {
        self.rate_floor(self.cwnd.saturating_sub(self.cwnd_cut)) + Rate::bps(1)
    }

    /// The packets per round-trip time of a rate, rounded up unless only for one bit/s.
    pub(super) fn packets_ceil(&self, rate: Rate) -> u32 {
        let packet = self.packet.as_u64().max(1);
        // One byte for the rounding of the product.
        let packets = ((rate * self.rtt).as_u64() + 1).div_ceil(packet);
        let packets = packets.min(u32::MAX.into()) as u32;
        let fewer = packets.saturating_sub(1);
        if self.rate_floor(fewer) + Rate::bps(1) >= rate { fewer } else { packets }
    }
}
