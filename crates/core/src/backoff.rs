//! Pauses that grow: twice as long each time, up to a bound.

use crate::units::Span;

/// A pause that lies between a minimum and a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Span,
    max: Span,
    now: Span,
}

impl Backoff {
    /// A pause that begins at `min`.
    pub const fn new(min: Span, max: Span) -> Backoff {
        Backoff { min, max, now: min }
    }

    /// The current pause.
    pub const fn span(&self) -> Span {
        self.now
    }

    /// Doubles the pause.
    pub fn double(&mut self) {
        self.grow(2);
    }

    /// Multiplies the pause by `factor`.
    pub fn grow(&mut self, factor: u64) {
        self.now = (self.now * factor).min(self.max);
    }

    /// Resets the pause to the minimum.
    pub fn reset(&mut self) {
        self.now = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_its_bound_and_begins_again() {
        let mut pause = Backoff::new(Span::secs(2), Span::secs(9));
        let mut spans = Vec::new();
        for _ in 0..4 {
            spans.push(pause.span());
            pause.double();
        }
        assert_eq!(spans, [2, 4, 8, 9].map(Span::secs));
        pause.reset();
        pause.grow(3);
        assert_eq!(pause.span(), Span::secs(6));
    }
}
