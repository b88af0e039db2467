//! A hashed timing wheel: many timers, each set and fired in O(1).
//!
//! Method: time is divided into ticks, and a timer goes into the slot of its tick, modulo the
//! number of slots; a timer of a later round stays in its slot until its tick has come. A timer
//! fires at the end of its tick, so at most [`TICK`] late and never early. One bit for each slot
//! and one for each 64 slots serve to find the next slot with a timer.
//!
//! Source: Varghese and Lauck, Hashed and hierarchical timing wheels, SOSP 1987, scheme 6.

use super::ones;
use fairweir_core::units::{Span, Time};

/// The most that a timer may be late: a 15th of the time of an MSS at 200 Mbit/s.
pub(super) const TICK: Span = Span::nanos(1 << TICK_BITS);
const TICK_BITS: u32 = 12;
/// A round takes 17 ms, the time of an MSS at 0.7 Mbit/s.
const SLOTS: u64 = 64 * 64;

/// Timers by number. Invariant: a timer that is set is in the list of `ready` or of its slot.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// First timer of each slot, [`NONE`] if there is none.
    heads: Vec<u32>,
    /// Bits of the slots that have timers; below, bits of the words of this that are not zero.
    occupied: [u64; 64],
    occupied_words: u64,
    /// All timers before this tick have fired or are ready to fire.
    tick: u64,
    /// First timer whose tick has come.
    ready: u32,
    timers: Vec<Timer>,
}

#[derive(Clone, Debug)]
struct Timer {
    tick: u64,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Wheel {
    /// Timers `0..count`, all unset.
    pub(super) fn new(count: usize) -> Wheel {
        assert!(count < NONE as usize, "timers are numbered by 32 bits");
        Wheel {
            heads: vec![NONE; SLOTS as usize],
            occupied: [0; 64],
            occupied_words: 0,
            tick: 0,
            ready: NONE,
            timers: vec![Timer { tick: 0, next: NONE }; count],
        }
    }

    /// Sets a timer that is not set.
    pub(super) fn set(&mut self, timer: usize, at: Time) {
        let tick = at.as_nanos().div_ceil(TICK.as_nanos());
        let list = if tick < self.tick { &mut self.ready } else { self.list_of(tick) };
        let next = std::mem::replace(list, timer as u32);
        self.timers[timer] = Timer { tick, next };
    }

    /// A timer whose time has come, if there is one.
    pub(super) fn poll(&mut self, now: Time) -> Option<usize> {
        if self.ready == NONE {
            self.advance(now.as_nanos() >> TICK_BITS);
        }
        let timer = (self.ready != NONE).then_some(self.ready as usize)?;
        self.ready = self.timers[timer].next;
        Some(timer)
    }

    /// When the next timer fires.
    pub(super) fn next(&self) -> Option<Time> {
        if self.ready != NONE {
            return Some(Time::from_nanos((self.tick - 1) << TICK_BITS));
        }
        let mut earliest = None;
        let mut from = self.tick;
        while let Some(tick) = self.occupied_from(from, self.tick + SLOTS) {
            let first = self.chain(self.heads[slot(tick)]).map(|timer| timer.tick).min();
            earliest = earliest.into_iter().chain(first).min();
            if first == Some(tick) {
                break;
            }
            from = tick + 1;
        }
        earliest.map(|tick| Time::from_nanos(tick << TICK_BITS))
    }

    /// Makes the timers of the next slot that has any, up to `until`, ready.
    fn advance(&mut self, until: u64) {
        let end = (until + 1).min(self.tick + SLOTS);
        while self.ready == NONE && self.tick <= until {
            let Some(tick) = self.occupied_from(self.tick, end) else { break };
            self.tick = tick + 1;
            self.split(slot(tick), until);
        }
        if self.ready == NONE {
            self.tick = self.tick.max(until + 1);
        }
    }

    /// Moves the timers of a slot whose tick has come by `until` to the ready ones.
    fn split(&mut self, slot: usize, until: u64) {
        let mut at = std::mem::replace(&mut self.heads[slot], NONE);
        let mut later = NONE;
        while at != NONE {
            let timer = &mut self.timers[at as usize];
            let list = if timer.tick <= until { &mut self.ready } else { &mut later };
            let next = std::mem::replace(&mut timer.next, *list);
            *list = at;
            at = next;
        }
        self.heads[slot] = later;
        if later == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
            if self.occupied[slot / 64] == 0 {
                self.occupied_words &= !(1 << (slot / 64));
            }
        }
    }

    fn list_of(&mut self, tick: u64) -> &mut u32 {
        let slot = slot(tick);
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.occupied_words |= 1 << (slot / 64);
        &mut self.heads[slot]
    }

    fn chain(&self, first: u32) -> impl Iterator<Item = &Timer> {
        let existing = |at: u32| self.timers.get(at as usize);
        std::iter::successors(existing(first), move |timer| existing(timer.next))
    }

    /// The first tick of `from..end`, at most a round, whose slot has timers.
    fn occupied_from(&self, from: u64, end: u64) -> Option<u64> {
        let slot = slot(from);
        let (word, bit) = (slot / 64, slot % 64);
        // The rest of this word, the words after it and, from the first on, those up to this one.
        let here = self.occupied[word] & (u64::MAX << bit);
        let after = self.occupied_words.rotate_right(word as u32) & !1;
        let found = ones(here).next().map(|bit| word * 64 + bit).or_else(|| {
            let word = ones(after).next().map_or(word, |ahead| (word + ahead) % 64);
            ones(self.occupied[word]).next().map(|bit| word * 64 + bit)
        })?;
        let tick = from + (found as u64).wrapping_sub(slot as u64) % SLOTS;
        (tick < end).then_some(tick)
    }
}

fn slot(tick: u64) -> usize {
    (tick % SLOTS) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(tick: u64) -> Time {
        Time::from_nanos(tick << TICK_BITS)
    }

    #[test]
    fn a_timer_fires_at_the_end_of_its_tick_and_not_before() {
        let mut wheel = Wheel::new(2);
        assert_eq!((wheel.next(), wheel.poll(at(9))), (None, None));
        let due = Time::from_nanos((20 << TICK_BITS) - 5);
        wheel.set(1, due);
        assert_eq!(wheel.next(), Some(at(20)));
        assert_eq!(wheel.poll(due), None);
        assert_eq!(wheel.poll(at(20)), Some(1));
        assert_eq!((wheel.next(), wheel.poll(at(99))), (None, None));
    }

    #[test]
    fn a_timer_in_the_past_fires_at_once() {
        let mut wheel = Wheel::new(1);
        assert_eq!(wheel.poll(at(50)), None);
        wheel.set(0, at(3));
        assert!(wheel.next().unwrap() <= at(50));
        assert_eq!(wheel.poll(at(50)), Some(0));
    }

    proptest::proptest! {
        /// The reference is a sorted set.
        #[test]
        fn timers_fire_in_their_ticks_whatever_the_round(
            steps in proptest::collection::vec((0u64..3 * SLOTS, 0u64..2 * SLOTS, 0u8..3), 1..200),
        ) {
            let mut wheel = Wheel::new(steps.len());
            let mut due = BTreeSet::new();
            let mut now = 0;
            for (timer, (ahead, pause, scale)) in steps.into_iter().enumerate() {
                wheel.set(timer, at(now + ahead));
                due.insert((now + ahead, timer));
                now += pause >> (6 * scale);
                while let Some(timer) = wheel.poll(at(now)) {
                    let tick = due.iter().find(|(_, other)| *other == timer).unwrap().0;
                    proptest::prop_assert!(tick <= now, "{} fired at {}", tick, now);
                    due.remove(&(tick, timer));
                }
                let next = due.first().map(|(tick, _)| *tick);
                proptest::prop_assert!(next.is_none_or(|tick| tick > now), "{:?} at {}", next, now);
                proptest::prop_assert_eq!(wheel.next(), next.map(at));
            }
        }
    }
}
