//! Whether a rate stays the same.

use crate::units::Rate;

/// About where a rate has been, and for how many ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    about: Rate,
    ticks: u32,
}

impl Steady {
    /// Where.
    pub(super) fn about(&self) -> Rate {
        self.about
    }

    /// For how many ticks.
    pub(super) fn ticks(&self) -> u32 {
        self.ticks
    }

    /// Takes in the rate of a tick; for how many ticks it has stayed within so much of the first of them.
    pub(super) fn handle_tick(&mut self, rate: Rate, within: Rate) -> u32 {
        let is_steady = rate.as_bps().abs_diff(self.about.as_bps()) < within.as_bps();
        let steady = Steady { about: self.about, ticks: self.ticks + 1 };
        *self = if is_steady { steady } else { Steady { about: rate, ticks: 0 } };
        self.ticks
    }
}
