//! Pauses that grow: twice as long each time, up to a bound.

use crate::units::Span;

/// A pause between a least and a greatest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Span,
    max: Span,
    now: Span,
}

impl Backoff {
    /// Begins at `min`.
    pub const fn new(min: Span, max: Span) -> Backoff {
        Backoff { min, max, now: min }
    }

    /// The present pause.
    pub const fn span(&self) -> Span {
        self.now
    }

    /// Twice as long from now on.
    pub fn double(&mut self) {
        self.grow(2);
    }

    /// `factor` times as long from now on.
    pub fn grow(&mut self, factor: u64) {
        self.now = (self.now * factor).min(self.max);
    }

    /// The least again.
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
