//! Whether a rate stays the same.

use super::super::TICK;
use super::PACKET_GUESS;
use crate::units::Rate;

/// About where a rate has been, and for how many ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    about: Rate,
    ticks: u32,
}

impl Steady {
    /// For how many ticks.
    pub(super) fn ticks(&self) -> u32 {
        self.ticks
    }

    /// Takes in what the link is believed to carry, which is the same to a thirtieth.
    pub(super) fn handle_capacity(&mut self, capacity: Rate) {
        self.handle_tick(capacity, self.about / CAPACITY_PARTS);
    }

    /// Takes in what arrived, of which a link without other hosts carries the same in every tick; for how
    /// many ticks it did.
    pub(super) fn handle_total(&mut self, total: Rate) -> u32 {
        let ripple = Rate::from_volume(PACKET_GUESS * 3 / 2, TICK);
        self.handle_tick(total, total / TOTAL_PARTS + ripple);
        self.ticks
    }

    /// Takes in a rate, which is the same if it differs from the first one by less than `within`.
    fn handle_tick(&mut self, rate: Rate, within: Rate) {
        let is_steady = rate.as_bps().abs_diff(self.about.as_bps()) < within.as_bps();
        let steady = Steady { about: self.about, ticks: self.ticks + 1 };
        *self = if is_steady { steady } else { Steady { about: rate, ticks: 0 } };
    }
}

/// The same is what differs by less than one of so many parts; what arrives also by one and a half packets.
const CAPACITY_PARTS: u64 = 30;
const TOTAL_PARTS: u64 = 200;
