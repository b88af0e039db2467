//! Finds which of many sources of events is due first.

use fairweir_core::units::Time;

/// At most one deadline for each source. The earliest comes first; of equal deadlines, the one of
/// the source that was added first.
///
/// A binary heap of sources in which each source knows its place, so that moving a deadline costs
/// O(log n) and leaves nothing behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// Sources with their deadlines; a parent is never later than its children.
    heap: Vec<Entry>,
    /// Place of each source in the heap; `NOWHERE` without a deadline.
    place: Vec<u32>,
}

/// Entries are ordered by deadline, then by source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Time,
    source: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Deadlines {
    /// A new source, without a deadline.
    pub(super) fn add(&mut self) -> usize {
        self.place.push(NOWHERE);
        self.place.len() - 1
    }

    /// The earliest deadline and its source.
    pub(super) fn first(&self) -> Option<(Time, usize)> {
        self.heap.first().map(|entry| (entry.at, entry.source as usize))
    }

    /// The deadline of a source.
    pub(super) fn of(&self, source: usize) -> Option<Time> {
        self.heap.get(self.place[source] as usize).map(|entry| entry.at)
    }

    /// Sets or removes the deadline of a source.
    pub(super) fn set(&mut self, source: usize, deadline: Option<Time>) {
        let place = self.place[source] as usize;
        let Some(at) = deadline else { return self.remove(place) };
        let entry = Entry { at, source: source as u32 };
        match self.heap.get(place).copied() {
            None => {
                self.heap.push(entry);
                self.rise(self.heap.len() - 1, entry);
            }
            Some(before) if entry < before => self.rise(place, entry),
            Some(before) if entry > before => self.sink(place, entry),
            Some(_) => {}
        }
    }

    fn remove(&mut self, place: usize) {
        let Some(gone) = self.heap.get(place).copied() else { return };
        self.place[gone.source as usize] = NOWHERE;
        let last = self.heap.pop().filter(|last| last.source != gone.source);
        match last {
            Some(moved) if moved < gone => self.rise(place, moved),
            Some(moved) => self.sink(place, moved),
            None => {}
        }
    }

    /// Puts an entry at a place or above it.
    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / 2;
            let above = self.heap[parent];
            if above < entry {
                break;
            }
            self.put(above, place);
            place = parent;
        }
        self.put(entry, place);
    }

    /// Puts an entry at a place or below it.
    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let child = 2 * place + 1;
            let below = match self.heap.get(child..) {
                Some([left, right, ..]) if right < left => (child + 1, *right),
                Some([left, ..]) => (child, *left),
                Some([]) | None => break,
            };
            if entry < below.1 {
                break;
            }
            self.put(below.1, place);
            place = below.0;
        }
        self.put(entry, place);
    }

    fn put(&mut self, entry: Entry, place: usize) {
        self.heap[place] = entry;
        self.place[entry.source as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_always_the_earliest(
            changes in prop::collection::vec((0..12usize, prop::option::of(0..50u64)), 1..200)
        ) {
            let mut deadlines = Deadlines::default();
            for _ in 0..12 {
                deadlines.add();
            }
            let mut oracle: BTreeSet<(u64, usize)> = BTreeSet::new();
            for (source, at) in changes {
                deadlines.set(source, at.map(Time::from_nanos));
                oracle.retain(|(_, s)| *s != source);
                oracle.extend(at.map(|at| (at, source)));
                let first = oracle.first().map(|&(at, s)| (Time::from_nanos(at), s));
                prop_assert_eq!(deadlines.first(), first);
                prop_assert_eq!(deadlines.of(source), at.map(Time::from_nanos));
            }
        }
    }
}
