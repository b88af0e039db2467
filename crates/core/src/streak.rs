//! How many times in a row a condition held.

/// A count that restarts at zero when it is interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streak(u32);

impl Streak {
    /// A count that has already reached `length`.
    pub const fn of(length: u32) -> Streak {
        Streak(length)
    }

    /// Adds one if `holds`, else restarts at zero; returns the length.
    pub const fn count(&mut self, holds: bool) -> u32 {
        self.0 = if holds { self.0.saturating_add(1) } else { 0 };
        self.0
    }

    /// The current length.
    pub const fn length(self) -> u32 {
        self.0
    }

    /// Restarts at zero.
    pub const fn end(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_ends_when_it_is_interrupted() {
        let mut streak = Streak::default();
        let lengths = [true, true, false, true].map(|holds| streak.count(holds));
        assert_eq!((lengths, streak.length()), ([1, 2, 0, 1], 1));
        streak.end();
        assert_eq!(streak, Streak::of(0));
        assert_eq!(Streak::of(u32::MAX).count(true), u32::MAX);
    }
}
