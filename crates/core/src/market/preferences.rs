//! What a household wants, by kind of use and time of the week.
//!
//! People state an importance of 0 to 3 for each kind of use, and others for certain times of the week. An
//! agent plans with utilities, whose weights double with each step of importance. Times are local
//! minutes of the week; the caller knows the time zone.

use super::utility::{Kind, Utility};
use crate::calendar::{DAY_MIN, Moment, Window};

/// How important a kind of use is: 0 (not at all) to [`IMPORTANCE_MAX`].
pub type Importance = u8;

/// The highest importance that can be stated ahead.
pub const IMPORTANCE_MAX: Importance = 3;

/// Above all importances stated ahead: a user has asked for it now.
pub const BOOSTED: Importance = IMPORTANCE_MAX + 1;

/// A time on some days of the week, with other importances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Time {
    /// The name that users see.
    pub name: String,
    /// The window of the week.
    pub window: Window,
    /// Importances in the order of [`Kind::ALL`]; `None` leaves the importance from elsewhere.
    pub importance: [Option<Importance>; 4],
}

/// What a household wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preferences {
    /// The importances outside of all times, in the order of [`Kind::ALL`].
    pub always: [Importance; 4],
    /// Times; a later one overrides an earlier one.
    pub times: Vec<Time>,
}

/// What is wanted at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The importances, in the order of [`Kind::ALL`].
    pub importance: [Importance; 4],
    /// The times that determine them, by index.
    pub times: Vec<usize>,
}

impl Preferences {
    /// What is wanted within `minutes` from a moment: for each kind the highest importance of any minute.
    pub fn wanted(&self, from: Moment, minutes: u64) -> Wanted {
        let mut wanted = Wanted::default();
        for minute in 0..minutes.clamp(1, u64::from(DAY_MIN)) {
            let at = from.after(minute);
            for kind in 0..Kind::ALL.len() {
                let said = self.times.iter().enumerate().rev();
                let said = said.filter(|(_, time)| time.window.includes(at));
                let said =
                    said.filter_map(|(i, time)| Some((time.importance[kind]?, Some(i)))).next();
                let (importance, by) = said.unwrap_or((self.always[kind], None));
                wanted.importance[kind] = wanted.importance[kind].max(importance);
                wanted.times.extend(by.filter(|by| !wanted.times.contains(by)));
            }
        }
        wanted
    }
}

impl Wanted {
    /// The utility of rates then: the weight of a kind doubles with each step of importance, from 1.
    pub fn utility(&self) -> Utility {
        let weight = |importance: Importance| match importance {
            0 => 0.0,
            n => f64::from(1_u32 << (n.min(BOOSTED) - 1)),
        };
        Utility { weights: self.importance.map(weight) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRIDAY: u8 = 4;

    fn preferences() -> Preferences {
        let time = |name: &str, days, from, to, importance| Time {
            name: name.to_owned(),
            window: Window { days, from, to },
            importance,
        };
        let mut friday = [false; 7];
        friday[usize::from(FRIDAY)] = true;
        Preferences {
            always: [0, 0, 0, 1],
            times: vec![
                time("evening", [true; 7], 18 * 60, 23 * 60, [Some(1), None, None, Some(2)]),
                time("film night", friday, 22 * 60, 60, [Some(3), None, None, None]),
            ],
        }
    }

    fn at(weekday: u8, hour: u16, minute: u16) -> Moment {
        Moment { weekday, minute: hour * 60 + minute }
    }

    #[test]
    fn the_last_time_that_includes_a_minute_counts_for_each_kind() {
        let all = preferences();
        let wanted = |at| all.wanted(at, 30);
        assert_eq!(wanted(at(0, 3, 0)), Wanted { importance: [0, 0, 0, 1], times: vec![] });
        assert_eq!(wanted(at(0, 22, 0)), Wanted { importance: [1, 0, 0, 2], times: vec![0] });
        assert_eq!(
            wanted(at(FRIDAY, 22, 0)),
            Wanted { importance: [3, 0, 0, 2], times: vec![1, 0] }
        );
        // Beyond midnight the time still belongs to Friday; likewise from Sunday to Monday.
        assert_eq!(wanted(at(FRIDAY + 1, 0, 30)).importance, [3, 0, 0, 1]);
        assert_eq!(wanted(at(FRIDAY + 1, 1, 0)).importance, [0, 0, 0, 1]);
        assert_eq!(at(6, 23, 59).after(1), at(0, 0, 0));
        // A slot that overlaps a time only partly counts.
        assert_eq!(wanted(at(0, 17, 31)).importance, [1, 0, 0, 2]);
        assert_eq!(wanted(at(0, 17, 30)).importance, [0, 0, 0, 1]);
    }

    #[test]
    fn weights_double_with_importance() {
        let weights = |importance| Wanted { importance, times: vec![] }.utility().weights;
        assert_eq!(weights([0, 1, 2, 3]), [0.0, 1.0, 2.0, 4.0]);
        assert_eq!(weights([BOOSTED, u8::MAX, 0, 0]), [8.0, 8.0, 0.0, 0.0]);
    }
}
