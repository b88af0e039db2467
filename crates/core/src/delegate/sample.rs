//! What a sender knows of one connection.

use crate::units::{Bytes, Rate, Span};

/// What a sender knows of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its window in packets.
    pub cwnd: u32,
    /// What its own congestion control would leave of that at a signal.
    pub cwnd_cut: u32,
    /// A full packet, as rates count it.
    pub packet: Bytes,
    /// The smoothed round-trip time.
    pub rtt: Span,
    /// The round-trip times of the newest packets of all its ACKs together.
    pub rtts: Span,
    /// How many these are.
    pub rtt_count: u64,
    /// What it has delivered in all, as rates count it.
    pub delivered: Bytes,
    /// What its window does.
    pub phase: Phase,
}

/// What a window does.
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

    /// What a signal of its own costs it.
    pub(super) fn own_cut(&self) -> Rate {
        self.rate_floor(self.cwnd.saturating_sub(self.cwnd_cut)) + Rate::bps(1)
    }

    /// How many packets per round-trip time a rate is, rounded up unless that is for one bit/s.
    pub(super) fn packets_ceil(&self, rate: Rate) -> u32 {
        let packet = self.packet.as_u64().max(1);
        // One byte for what the product rounds off.
        let packets = ((rate * self.rtt).as_u64() + 1).div_ceil(packet);
        let packets = packets.min(u32::MAX.into()) as u32;
        let fewer = packets.saturating_sub(1);
        if self.rate_floor(fewer) + Rate::bps(1) >= rate { fewer } else { packets }
    }
}
