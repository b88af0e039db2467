//! A path of constant delay: first in, first out.

use std::collections::VecDeque;

use fairweir_core::units::{Span, Time};

/// All items that are under way on a path.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    delay: Span,
    under_way: VecDeque<(Time, T)>,
}

impl<T> Line<T> {
    pub(super) fn new(delay: Span) -> Line<T> {
        Line { delay, under_way: VecDeque::new() }
    }

    pub(super) fn delay(&self) -> Span {
        self.delay
    }

    /// Number of items under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Number of items that fit without more memory.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.under_way.capacity()
    }

    pub(super) fn send(&mut self, now: Time, what: T) {
        self.under_way.push_back((now + self.delay, what));
    }

    pub(super) fn next_arrival(&self) -> Option<Time> {
        self.under_way.front().map(|(at, _)| *at)
    }

    pub(super) fn poll_arrival(&mut self, now: Time) -> Option<T> {
        if self.next_arrival()? > now {
            return None;
        }
        self.under_way.pop_front().map(|(_, what)| what)
    }
}
