//! Selects the class whose turn it is: by time, and among borrowing classes by priority and round.

use fairweir_core::policy::GROUPS_MAX;

/// The time at which each class has to be looked at: a tournament whose winner is the earliest
/// class, and the lowest of equal ones. A change of an entry takes O(log classes).
#[derive(Clone, Debug)]
pub(super) struct Timetable {
    /// Times by class; [`NEVER`] if the class waits for nothing.
    at: Vec<i64>,
    /// Node `i` has the winner of `2i` and `2i + 1`; the last half are the classes themselves.
    winners: Vec<u16>,
}

impl Timetable {
    pub(super) fn new(classes: usize) -> Timetable {
        let places = classes.next_power_of_two();
        let mut winners: Vec<u16> = (0..places).chain(0..places).map(|i| i as u16).collect();
        for node in (1..places).rev() {
            winners[node] = winners[2 * node];
        }
        Timetable { at: vec![NEVER; places], winners }
    }

    /// The earliest time and its class; the time is [`NEVER`] if there is none.
    pub(super) fn first(&self) -> (i64, usize) {
        let class = usize::from(self.winners[1]);
        (self.at[class], class)
    }

    pub(super) fn set(&mut self, class: usize, at: i64) {
        if self.at[class] == at {
            return;
        }
        self.at[class] = at;
        let mut node = (self.at.len() + class) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            let right_wins = self.at[usize::from(right)] < self.at[usize::from(left)];
            self.winners[node] = if right_wins { right } else { left };
            node /= 2;
        }
    }
}

/// Classes that may borrow: by priority, and in a round among equal priorities.
#[derive(Clone, Debug, Default)]
pub(super) struct Borrowers {
    /// A bit for each class.
    classes: [[u64; WORDS]; PRIORITIES],
    /// A bit for each priority with a class.
    occupied: u8,
    /// The class at which the round of each priority continues.
    turn: [u16; PRIORITIES],
}

impl Borrowers {
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Adds or removes a class.
    pub(super) fn set(&mut self, priority: u8, class: usize, is_in: bool) {
        let classes = &mut self.classes[usize::from(priority)];
        let (word, bit) = (class / 64, 1 << (class % 64));
        if (classes[word] & bit != 0) == is_in {
            return;
        }
        classes[word] ^= bit;
        if classes.iter().any(|&word| word != 0) {
            self.occupied |= 1 << priority;
        } else {
            self.occupied &= !(1 << priority);
        }
    }

    /// Removes all classes; the rounds keep their positions.
    pub(super) fn clear(&mut self) {
        self.classes = Default::default();
        self.occupied = 0;
    }

    /// The class whose turn it is: the next in the round of the highest priority.
    pub(super) fn next(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let priority = self.occupied.trailing_zeros() as usize;
        let (classes, turn) = (&self.classes[priority], usize::from(self.turn[priority]));
        // Searches the rest of the turn's word, the words after it, and then from the start.
        let (first, from) = (turn / 64, turn % 64);
        let rest = classes[first] & (u64::MAX << from);
        let around = (first + 1..WORDS).chain(0..=first).map(|word| (word, classes[word]));
        let (word, bits) =
            [(first, rest)].into_iter().chain(around).find(|(_, bits)| *bits != 0)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The round continues with `class`, or with the first one after it.
    pub(super) fn set_turn(&mut self, priority: u8, class: usize) {
        self.turn[usize::from(priority)] = (class % GROUPS_MAX) as u16;
    }
}

/// A time later than all others.
pub(super) const NEVER: i64 = i64::MAX;
const PRIORITIES: usize = 8;
const WORDS: usize = GROUPS_MAX.div_ceil(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_is_first_and_the_lowest_of_equals() {
        let mut timetable = Timetable::new(5);
        assert_eq!(timetable.first().0, NEVER);
        for (class, at) in [(4, 7), (2, 9), (0, 8), (3, 7)] {
            timetable.set(class, at);
        }
        assert_eq!(timetable.first(), (7, 3));
        timetable.set(3, NEVER);
        assert_eq!(timetable.first(), (7, 4));
        timetable.set(4, 10);
        assert_eq!(timetable.first(), (8, 0));
    }

    #[test]
    fn a_round_goes_on_where_it_was_and_around_the_end() {
        let mut borrowers = Borrowers::default();
        assert_eq!(borrowers.next(), None);
        for class in [3, 70, 255] {
            borrowers.set(2, class, true);
        }
        let mut from = |class| {
            borrowers.set_turn(2, class);
            borrowers.next()
        };
        assert_eq!((from(0), from(3), from(4)), (Some(3), Some(3), Some(70)));
        assert_eq!((from(71), from(256)), (Some(255), Some(3)));
        borrowers.set(1, 9, true);
        assert_eq!(borrowers.next(), Some(9), "a higher priority comes first");
        borrowers.set(1, 9, false);
        assert_eq!(borrowers.next(), Some(3));
    }
}
