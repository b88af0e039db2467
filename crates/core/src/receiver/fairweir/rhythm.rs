//! Groups that pause and come back, as pages and short answers do.
//!
//! The problem: the rate of such a group in a single tick is random. If the others' windows follow it, they are still
//! narrow when it has paused and still wide when it is back; with round trips longer than its pauses part of it is
//! never used. The method: a group that recently paused and came back is taken to want its mean rate, also in a pause.
//! Its own windows have room for its whole share, and once it has filled them for a second it wants all it can get.

use crate::streak::Streak;
use crate::units::Rate;

/// When a group was active recently.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    /// The rate that it takes, smoothed over two seconds.
    usual: Rate,
    /// One bit for each of the last ticks, newest in the lowest bit: whether it was active.
    active: u32,
    filled_ticks: Streak,
}

impl Rhythm {
    /// Takes in a tick, and whether the group filled its windows. Returns its mean rate if it pauses and comes back.
    pub(super) fn handle_tick(&mut self, rate: Rate, is_filled: bool) -> Option<Rate> {
        self.usual = self.usual.smoothed(rate, USUAL_TICKS);
        self.active =
            (self.active << 1 | u32::from(rate * PAUSED_BELOW > self.usual)) & RHYTHM_TICKS;
        let filled_ticks = self.filled_ticks.count(is_filled);
        (filled_ticks < LASTING_TICKS && self.has_paused()).then_some(self.usual)
    }

    /// Whether it was active before and after a pause.
    fn has_paused(&self) -> bool {
        let since_active = self.active.checked_shr(self.active.trailing_zeros()).unwrap_or(0);
        // A number whose ones have no zero among them is one less than a power of two.
        since_active & (since_active + 1) != 0
    }
}

/// Ticks over which a group's rate is smoothed.
const USUAL_TICKS: u64 = 10;
/// A mask of the ticks (4 s) in which a group counts as having paused.
const RHYTHM_TICKS: u32 = (1 << 20) - 1;
/// A group pauses while it takes less than what it usually takes divided by this.
const PAUSED_BELOW: u64 = 4;
/// Ticks in a row with filled windows after which a group no longer counts as one that pauses.
const LASTING_TICKS: u32 = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The mean that it is taken to want after `ticks` in each of which it takes a rate or nothing.
    fn after(ticks: impl IntoIterator<Item = bool>) -> Option<Rate> {
        let mut rhythm = Rhythm::default();
        let rate = |is_active| if is_active { Rate::mbit(8) } else { Rate::ZERO };
        ticks.into_iter().map(|active| rhythm.handle_tick(rate(active), active)).last().flatten()
    }

    #[test]
    fn who_pauses_and_comes_back_wants_its_mean_also_while_it_pauses() {
        for last in [true, false] {
            let wants = after((0..60).map(|tick| (tick % 4 < 2) == last)).unwrap();
            assert!(wants > Rate::mbit(3) && wants < Rate::mbit(7), "{last}: {wants}");
        }
    }

    #[test]
    fn downloads_and_what_ended_have_no_rhythm() {
        assert_eq!(after([true; 40]), None);
        assert_eq!(after([true; 10].into_iter().chain([false; 5])), None, "it ended");
        let back = [true, false, true, true, true, true];
        assert!(after(back).is_some());
        assert_eq!(after(back.into_iter().chain([true])), None, "it lasts");
        assert_eq!(after(back.into_iter().chain([false; 25])), None, "that was long ago");
    }

    proptest! {
        #[test]
        fn the_mean_is_not_above_the_most_that_was_taken(
            kbit in prop::collection::vec(0u64..90_000, 1..80)
        ) {
            let mut rhythm = Rhythm::default();
            let most = Rate::kbit(*kbit.iter().max().unwrap());
            for rate in kbit {
                let mean = rhythm.handle_tick(Rate::kbit(rate), rate % 2 == 0);
                prop_assert!(mean.is_none_or(|mean| mean <= most));
            }
        }
    }
}
