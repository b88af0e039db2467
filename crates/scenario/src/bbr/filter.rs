//! The maximum over the last rounds.

/// The largest value that was put in during the last [`ROUNDS`] rounds. Old values leave only when
/// a new one is put in, so that a silence forgets nothing.
#[derive(Clone, Debug, Default)]
pub struct MaxFilter {
    /// The number and the largest value of each round.
    rounds: [(u32, f64); ROUNDS],
    newest: u32,
    max: f64,
}

impl MaxFilter {
    /// A filter with nothing in it, whose maximum is 0.
    pub fn new() -> MaxFilter {
        MaxFilter { rounds: [(0, 0.0); ROUNDS], newest: 0, max: 0.0 }
    }

    /// The largest value of the last rounds.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// Puts in a value of `round`, which is the newest round or a later one.
    pub fn put(&mut self, round: u32, value: f64) {
        let slot = &mut self.rounds[round as usize % ROUNDS];
        *slot = if slot.0 == round { (round, slot.1.max(value)) } else { (round, value) };
        if round == self.newest {
            self.max = self.max.max(value);
            return;
        }
        self.newest = round;
        let is_recent = |&&(r, _): &&(u32, f64)| round.wrapping_sub(r) < ROUNDS as u32;
        self.max = self.rounds.iter().filter(is_recent).map(|r| r.1).fold(0.0, f64::max);
    }
}

/// The gain cycle's eight phases and two rounds more (draft-cardwell-iccrg-bbr-congestion-control-00
/// §4.1.1.3).
const ROUNDS: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_maximum_is_that_of_the_last_ten_rounds(
            puts in prop::collection::vec((0u32..4, 0.0f64..100.0), 1..200),
        ) {
            let mut filter = MaxFilter::new();
            let (mut round, mut history) = (0, Vec::new());
            for (skip, value) in puts {
                round += skip;
                filter.put(round, value);
                history.push((round, value));
                let recent = history.iter().filter(|(r, _)| round - r < 10).map(|r| r.1);
                prop_assert_eq!(filter.max(), recent.fold(0.0, f64::max));
            }
        }
    }
}
