//! Which of many sources of events is due first.

use fairweir_core::units::Time;

/// At most one deadline for each source; the earliest comes first, and of equal ones that of the
/// source that was added first.
///
/// A binary heap of sources in which each source knows its place, so that moving a deadline costs
/// O(log n) and leaves nothing behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// Sources with a deadline, a parent never after its children.
    heap: Vec<u32>,
    /// Deadline of each source; `NEVER` is none.
    at: Vec<u64>,
    /// Where in the heap each source is; `NOWHERE` without a deadline.
    place: Vec<u32>,
}

const NEVER: u64 = u64::MAX;
const NOWHERE: u32 = u32::MAX;

impl Deadlines {
    /// A new source, without a deadline.
    pub(super) fn add(&mut self) -> usize {
        self.at.push(NEVER);
        self.place.push(NOWHERE);
        self.at.len() - 1
    }

    /// The earliest deadline and its source.
    pub(super) fn first(&self) -> Option<(Time, usize)> {
        let source = *self.heap.first()? as usize;
        Some((Time::from_nanos(self.at[source]), source))
    }

    /// The deadline of a source.
    pub(super) fn of(&self, source: usize) -> Option<Time> {
        Some(self.at[source]).filter(|&at| at != NEVER).map(Time::from_nanos)
    }

    /// Sets or removes the deadline of a source.
    pub(super) fn set(&mut self, source: usize, deadline: Option<Time>) {
        let at = deadline.map_or(NEVER, Time::as_nanos);
        if self.at[source] == at {
            return;
        }
        let before = std::mem::replace(&mut self.at[source], at);
        let place = self.place[source];
        if at == NEVER {
            self.remove(place as usize);
        } else if place == NOWHERE {
            self.heap.push(source as u32);
            self.place[source] = self.heap.len() as u32 - 1;
            self.rise(self.heap.len() - 1);
        } else if at < before {
            self.rise(place as usize);
        } else {
            self.sink(place as usize);
        }
    }

    fn remove(&mut self, place: usize) {
        let gone = self.heap.swap_remove(place);
        self.place[gone as usize] = NOWHERE;
        if let Some(&moved) = self.heap.get(place) {
            self.place[moved as usize] = place as u32;
            self.rise(place);
            self.sink(self.place[moved as usize] as usize);
        }
    }

    fn is_before(&self, a: u32, b: u32) -> bool {
        (self.at[a as usize], a) < (self.at[b as usize], b)
    }

    fn rise(&mut self, mut place: usize) {
        let source = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            let above = self.heap[parent];
            if !self.is_before(source, above) {
                break;
            }
            self.put(above, place);
            place = parent;
        }
        self.put(source, place);
    }

    fn sink(&mut self, mut place: usize) {
        let source = self.heap[place];
        loop {
            let mut child = 2 * place + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.is_before(self.heap[child + 1], self.heap[child])
            {
                child += 1;
            }
            let below = self.heap[child];
            if !self.is_before(below, source) {
                break;
            }
            self.put(below, place);
            place = child;
        }
        self.put(source, place);
    }

    fn put(&mut self, source: u32, place: usize) {
        self.heap[place] = source;
        self.place[source as usize] = place as u32;
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
