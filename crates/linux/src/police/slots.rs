//! Which slots, plan numbers and places are in use. A program on another CPU may still use a number
//! that was just given back, so the number rests before it is assigned again.

use std::collections::VecDeque;

use fairweir_core::units::{Span, Time};

use super::abi::{CHUNK, CHUNKS, CLASS_SHIFT, CLASSES, INDEX_MASK, TALLIED};
use crate::clock::monotonic_now;

/// Numbers below a bound, lent and given back.
#[derive(Debug)]
pub(super) struct Numbers {
    next: u32,
    end: u32,
    resting: VecDeque<(Time, u32)>,
}

/// A number that was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lent {
    pub(super) number: u32,
    /// Whether it was lent before.
    pub(super) is_used: bool,
}

impl Numbers {
    /// The numbers from `first` to below `end`.
    pub(super) fn new(first: u32, end: u32) -> Numbers {
        Numbers { next: first, end, resting: VecDeque::new() }
    }

    /// Makes the numbers from `next` on available; those below must be given back first.
    pub(super) fn beginning(&mut self, next: u32) {
        self.next = next;
    }

    /// A free number, or `None` if there is none now.
    pub(super) fn lend(&mut self) -> Option<Lent> {
        self.lend_at(monotonic_now())
    }

    fn lend_at(&mut self, now: Time) -> Option<Lent> {
        if self.resting.front().is_some_and(|&(since, _)| now.since(since) >= REST) {
            let (_, number) = self.resting.pop_front()?;
            return Some(Lent { number, is_used: true });
        }
        let number = self.next;
        (number < self.end).then(|| {
            self.next += 1;
            Lent { number, is_used: false }
        })
    }

    /// Takes a number back.
    pub(super) fn give_back(&mut self, number: u32) {
        self.resting.push_back((monotonic_now(), number));
    }

    /// Undoes the last lending of a number that was never lent before.
    pub(super) fn lend_never(&mut self) {
        self.next -= 1;
    }

    /// Whether waiting may help: some numbers are resting.
    pub(super) fn is_any_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// All numbers that were ever lent are below this value.
    pub(super) fn high_water(&self) -> u32 {
        self.next
    }
}

/// A set of size classes of slots, and clients, whose number is [`Classes::CLIENTS`]. The verifier takes long for the code of each class, and skips the code of
/// classes that are not in the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Classes(u32);

impl Classes {
    /// The number of clients' classes.
    pub(super) const CLIENTS: usize = CLASSES;

    /// All classes.
    pub(super) const ALL: Classes = Classes((1 << (CLASSES + 1)) - 1);

    /// All classes of slots, without clients.
    pub(super) const SLOTS: Classes = Classes((1 << CLASSES) - 1);

    /// These classes, and one more.
    pub(super) fn with(self, class: usize) -> Classes {
        Classes(self.0 | 1 << class)
    }

    /// The set as bits, one for each class.
    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// The kind of slots that the subscribers of a plan have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKind {
    /// The size class.
    pub(super) class: usize,
    /// Whether the plan's classes are counted separately.
    pub(super) is_tallied: bool,
}

/// The number of the slot of this kind and index.
pub(super) fn slot(kind: SlotKind, index: u32) -> u32 {
    let tallied = if kind.is_tallied { TALLIED } else { 0 };
    (kind.class as u32) << CLASS_SHIFT | tallied | index
}

pub(super) fn kind_of(slot: u32) -> SlotKind {
    SlotKind { class: class_of(slot), is_tallied: slot & TALLIED != 0 }
}

pub(super) fn class_of(slot: u32) -> usize {
    (slot >> CLASS_SHIFT) as usize
}

pub(super) fn index_of(slot: u32) -> u32 {
    slot & INDEX_MASK
}

/// The most slots of a class.
pub(super) const SLOTS_MAX: u32 = CHUNK * CHUNKS;
/// The time for which a number rests before it is lent again: a program runs for microseconds, and
/// no interruption takes this long.
const REST: Span = Span::secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_rests_before_it_is_lent_again() {
        let mut numbers = Numbers::new(1, 4);
        let fresh = |number| Some(Lent { number, is_used: false });
        assert_eq!((numbers.lend(), numbers.lend()), (fresh(1), fresh(2)));
        numbers.give_back(1);
        assert_eq!((numbers.lend(), numbers.lend()), (fresh(3), None), "1 rests, and 4 is the end");
        let later = Time::from_nanos(monotonic_now().as_nanos() + REST.as_nanos());
        assert_eq!(numbers.lend_at(later), Some(Lent { number: 1, is_used: true }));
        assert_eq!(numbers.lend_at(later), None);
    }

    #[test]
    fn a_slot_knows_its_kind_and_index() {
        for class in 0..CLASSES {
            for is_tallied in [false, true] {
                let kind = SlotKind { class, is_tallied };
                let slot = slot(kind, SLOTS_MAX - 1);
                assert_eq!((kind_of(slot), index_of(slot)), (kind, SLOTS_MAX - 1));
            }
        }
    }
}
