//! Whether a rate stays the same.

use super::super::TICK;
use super::PACKET_GUESS;
use crate::streak::Streak;
use crate::units::Rate;

/// The rate about which another rate has stayed, and for how many ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    about: Rate,
    ticks: Streak,
}

impl Steady {
    /// Ticks in which the rate stayed the same.
    pub(super) fn ticks(&self) -> u32 {
        self.ticks.length()
    }

    /// Takes in the believed capacity of the link.
    pub(super) fn handle_capacity(&mut self, capacity: Rate) {
        self.handle_tick(capacity, self.about / CAPACITY_PARTS);
    }

    /// Takes in the rate that arrived, which is the same in every tick on a link without other hosts. Returns
    /// for how many ticks it has been the same.
    pub(super) fn handle_total(&mut self, total: Rate) -> u32 {
        let ripple = Rate::from_volume(PACKET_GUESS * 3 / 2, TICK);
        self.handle_tick(total, total / TOTAL_PARTS + ripple);
        self.ticks.length()
    }

    /// Takes in a rate; it counts as the same if it differs by less than `within` from the first one.
    fn handle_tick(&mut self, rate: Rate, within: Rate) {
        let is_steady = rate.as_bps().abs_diff(self.about.as_bps()) < within.as_bps();
        if self.ticks.count(is_steady) == 0 {
            self.about = rate;
        }
    }
}

/// A capacity counts as the same if it differs by less than one part in this many.
const CAPACITY_PARTS: u64 = 30;
/// A total counts as the same if it differs by less than one part in this many plus one and a half packets.
const TOTAL_PARTS: u64 = 200;
