//! Limits of groups that follow the calendar: weekly schedules, and quotas by day, week or month.
//!
//! Problem: "at most 2 Mbit/s on weekdays from 8 to 18" and "50 GB per month, then 1 Mbit/s" refer to the
//! local clock, which repeats or skips an hour twice a year, and which may be wrong and corrected.
//!
//! Method: the caller knows the time zone and turns the time into a [`Local`]; everything here is a function
//! of that. A schedule depends only on the minute of the week, so it is in force twice in an hour
//! that is repeated, and not in one that is skipped. A quota counts each byte in one period, the period
//! of the clock when the byte was counted, and remembers the last [`PERIODS_MAX`] periods, so that
//! setting the clock and setting it back neither takes nor gives anything.
//!
//! Properties, all tested: the periods sum exactly to the bytes received, while no more periods occur than are
//! remembered; only a reset reduces what was used in a period; a clock behind the current period begins no new
//! one until the current one has lasted as long as a period can.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::Group;
use crate::share::Weight;
use crate::units::{Bytes, Rate, Span};

/// Minutes of a day.
pub const DAY_MIN: u16 = 24 * 60;

/// The days of the week as users write them, from Monday.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// The most periods of a quota that are remembered.
pub const PERIODS_MAX: usize = 4;

/// A minute of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// 0 is Monday, below 7.
    pub weekday: u8,
    /// Minutes since midnight, below [`DAY_MIN`].
    pub minute: u16,
}

impl Moment {
    /// The moment this many minutes later.
    pub fn after(self, minutes: u64) -> Moment {
        let day = u64::from(DAY_MIN);
        let all = u64::from(self.weekday) * day + u64::from(self.minute) + minutes % (7 * day);
        Moment { weekday: (all / day % 7) as u8, minute: (all % day) as u16 }
    }
}

/// A local time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Days of the calendar since 1970-01-01.
    pub day: i64,
    /// Day of the month, from 1.
    pub day_of_month: u8,
    /// Minutes since midnight, below [`DAY_MIN`].
    pub minute: u16,
}

impl Local {
    /// The moment of the week. 1970-01-01 was a Thursday.
    pub fn moment(self) -> Moment {
        Moment { weekday: (self.day + 3).rem_euclid(7) as u8, minute: self.minute }
    }
}

/// The same time on some days of the week. Text form: `mon-fri 08:00-18:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it begins, from Monday.
    pub days: [bool; 7],
    /// The first minute, below [`DAY_MIN`].
    pub from: u16,
    /// The minute after the last; if it is not after `from`, it belongs to the next day.
    pub to: u16,
}

impl Window {
    /// Whether the window includes a moment.
    pub fn includes(&self, at: Moment) -> bool {
        let is_day = |weekday: u8| self.days[usize::from(weekday % 7)];
        if self.from < self.to {
            return is_day(at.weekday) && (self.from..self.to).contains(&at.minute);
        }
        (is_day(at.weekday) && at.minute >= self.from)
            || (is_day(at.weekday + 6) && at.minute < self.to)
    }

    /// The moments at which the window begins and ends.
    fn edges(&self) -> impl Iterator<Item = Moment> {
        let next_day = if self.from < self.to { 0 } else { DAY_MIN };
        let length = u64::from(self.to + next_day - self.from);
        let on = |weekday: usize| Moment { weekday: weekday as u8, minute: self.from };
        let begins = (0..7).filter(|&day| self.days[day]).map(on);
        begins.flat_map(move |at| [at, at.after(length)])
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut days: Vec<String> = Vec::new();
        let mut day = 0;
        while day < 7 {
            let end = (day..7).find(|&end| !self.days[end]).unwrap_or(7);
            match end - day {
                0 => {}
                1 => days.push(DAYS[day].to_owned()),
                _ => days.push(format!("{}-{}", DAYS[day], DAYS[end - 1])),
            }
            day = end.max(day + 1);
        }
        let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(f, "{} {}-{}", days.join(","), clock(self.from), clock(self.to))
    }
}

/// Settings of a group during a window; `None` leaves the setting from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The window in which they are in force.
    pub window: Window,
    /// Its weight.
    pub weight: Option<Weight>,
    /// What it may receive at most.
    pub max: Option<Rate>,
    /// What it receives at least if it wants that much.
    pub min: Option<Rate>,
}

/// What a quota is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Period {
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
}

impl Period {
    /// Every period.
    pub const ALL: [Period; 3] = [Period::Day, Period::Week, Period::Month];

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }

    /// The first day of the period that includes `at`, since 1970-01-01.
    pub fn first_day(self, at: Local) -> i64 {
        match self {
            Period::Day => at.day,
            Period::Week => at.day - i64::from(at.moment().weekday),
            Period::Month => at.day - i64::from(at.day_of_month) + 1,
        }
    }

    /// The longest that a period can last, plus an hour that is repeated.
    const fn longest(self) -> Span {
        let days = match self {
            Period::Day => 1,
            Period::Week => 7,
            Period::Month => 31,
        };
        Span::secs((days * 24 + 1) * 3_600)
    }
}

/// The volume that a group may receive in a period before a further limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The volume, in L2 bytes.
    pub amount: Bytes,
    /// The period for which it is allowed.
    pub per: Period,
    /// The rate limit when the volume is used up.
    pub then: Rate,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}, then {}", self.amount, self.per.name(), self.then)
    }
}

impl fmt::Display for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            self.weight.map(|weight| format!("weight {weight}")),
            self.max.map(|max| format!("max {max}")),
            self.min.map(|min| format!("min {min}")),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        write!(f, "{}: {}", self.window, all.join(", "))
    }
}

/// The settings of a group that follow the calendar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The quota, if any.
    pub quota: Option<Quota>,
    /// A later entry overrides an earlier one.
    pub schedule: Vec<Scheduled>,
}

impl Plan {
    /// Whether a limit besides weights may be in force at some time.
    pub fn has_limits(&self) -> bool {
        let has = |entry: &Scheduled| entry.max.is_some() || entry.min.is_some();
        self.quota.is_some() || self.schedule.iter().any(has)
    }

    /// The entries in force at `at`.
    pub fn in_force(&self, at: Moment) -> impl Iterator<Item = &Scheduled> {
        self.schedule.iter().filter(move |entry| entry.window.includes(at))
    }

    /// Applies what is in force at `at` to a group; `is_used_up` says whether its quota is used up.
    pub fn apply(&self, group: &mut Group, at: Moment, is_used_up: bool) {
        for entry in self.in_force(at) {
            group.weight = entry.weight.unwrap_or(group.weight);
            group.max = entry.max.or(group.max);
            group.min = entry.min.or(group.min);
        }
        if let Some(quota) = self.quota.filter(|_| is_used_up) {
            let max = group.max.map_or(quota.then, |max| max.min(quota.then));
            group.max = Some(max);
            group.min = group.min.map(|min| min.min(max));
        }
    }
}

/// What was received in the periods of a quota.
///
/// Invariant: at most [`PERIODS_MAX`] periods, each once; the last one is the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    periods: Vec<Counted>,
    /// For how long the last period has been counted without an interruption by the clock.
    elapsed: Span,
}

/// The volume received in a period. serde form: as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The first day, as in [`Period::first_day`].
    pub first_day: i64,
    /// L2 bytes.
    pub bytes: Bytes,
}

impl Usage {
    /// The usage as it was stored, the newest period last.
    pub fn new(periods: &[Counted], elapsed: Span) -> Usage {
        let mut usage = Usage { periods: Vec::new(), elapsed };
        for (i, period) in periods.iter().enumerate() {
            let is_known = |other: &Counted| other.first_day == period.first_day;
            if !periods[i + 1..].iter().any(is_known) {
                usage.push(*period);
            }
        }
        usage
    }

    /// The periods that are remembered; the last one is the current one.
    pub fn periods(&self) -> &[Counted] {
        &self.periods
    }

    /// For how long the current period has been counted.
    pub fn elapsed(&self) -> Span {
        self.elapsed
    }

    /// The volume used in the current period.
    pub fn used(&self) -> Bytes {
        self.periods.last().map_or(Bytes::ZERO, |last| last.bytes)
    }

    /// Takes in the time of the clock, and how long ago it was read last.
    pub fn handle_clock(&mut self, per: Period, at: Local, passed: Span) {
        self.elapsed += passed;
        let first_day = per.first_day(at);
        let Some(last) = self.periods.last() else {
            return self.begin(Counted { first_day, bytes: Bytes::ZERO });
        };
        if last.first_day == first_day {
            return;
        }
        if let Some(known) = self.periods.iter().position(|p| p.first_day == first_day) {
            let known = self.periods.remove(known);
            return self.begin(known);
        }
        // If the clock is behind, it is wrong, as after a start without a clock, or it was wrong before.
        if first_day > last.first_day || self.elapsed > per.longest() {
            self.begin(Counted { first_day, bytes: Bytes::ZERO });
        }
    }

    /// Counts what was received.
    pub fn handle_received(&mut self, received: Bytes) {
        if let Some(last) = self.periods.last_mut() {
            last.bytes += received;
        }
    }

    /// Sets the usage of the current period to zero.
    pub fn reset(&mut self) {
        if let Some(last) = self.periods.last_mut() {
            last.bytes = Bytes::ZERO;
        }
    }

    fn begin(&mut self, period: Counted) {
        self.elapsed = Span::ZERO;
        self.push(period);
    }

    fn push(&mut self, period: Counted) {
        if self.periods.len() == PERIODS_MAX {
            self.periods.remove(0);
        }
        self.periods.push(period);
    }
}

/// The moments at which schedules may change what is in force: the beginning and end of each entry.
pub fn changes<'p>(plans: impl Iterator<Item = &'p Plan>) -> Vec<Moment> {
    let entries = plans.flat_map(|plan| &plan.schedule);
    let edges = entries.flat_map(|entry| entry.window.edges());
    let minutes: BTreeSet<(u8, u16)> = edges.map(|m| (m.weekday, m.minute)).collect();
    minutes.into_iter().map(|(weekday, minute)| Moment { weekday, minute }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(days: &[usize], from: u16, to: u16) -> Window {
        let mut all = [false; 7];
        days.iter().for_each(|&day| all[day] = true);
        Window { days: all, from, to }
    }

    #[test]
    fn windows_are_written_as_they_are_read_and_may_end_on_the_next_day() {
        for (window, text) in [
            (window(&[0, 1, 2, 3, 4], 480, 1_080), "mon-fri 08:00-18:00"),
            (window(&[0, 2, 5, 6], 0, 1_440), "mon,wed,sat-sun 00:00-24:00"),
            (window(&[6], 1_320, 360), "sun 22:00-06:00"),
        ] {
            assert_eq!(window.to_string(), text);
        }
        let night = window(&[6], 1_320, 360);
        let is_in = |weekday, minute| night.includes(Moment { weekday, minute });
        assert!(is_in(6, 1_320) && is_in(0, 0) && is_in(0, 359) && !is_in(0, 360));
        assert!(!is_in(6, 1_319) && !is_in(6, 359) && !is_in(1, 0));
    }

    #[test]
    fn periods_begin_at_midnight_on_monday_and_on_the_first() {
        // 2026-11-30 is a Monday, 20,787 days after 1970-01-01.
        let at = |day: i64, day_of_month| Local { day, day_of_month, minute: 0 };
        assert_eq!(at(20_787, 30).moment().weekday, 0);
        let first = |local| Period::ALL.map(|per| per.first_day(local));
        assert_eq!(first(at(20_787, 30)), [20_787, 20_787, 20_758]);
        assert_eq!(first(at(20_786, 29)), [20_786, 20_780, 20_758]);
        assert_eq!(first(at(20_788, 1)), [20_788, 20_787, 20_788]);
        assert_eq!(first(at(-1, 31)), [-1, -3, -31]);
    }

    #[test]
    fn the_last_entry_in_force_wins_and_a_quota_lowers_what_it_says() {
        let (mbit, weight) = (|n| Some(Rate::mbit(n)), |n| Weight::new(n).unwrap());
        let entry = |from, to, weight, max, min| Scheduled {
            window: window(&[0], from, to),
            weight,
            max,
            min,
        };
        let schedule = vec![
            entry(0, 1_440, Some(weight(7)), mbit(20), None),
            entry(60, 120, None, mbit(30), mbit(9)),
        ];
        let quota = Quota { amount: Bytes::new(1), per: Period::Day, then: Rate::mbit(2) };
        let plan = Plan { quota: Some(quota), schedule };
        let at = |minute, is_used_up| {
            let mut group = Group::new("a", weight(1), Vec::new());
            group.min = mbit(5);
            plan.apply(&mut group, Moment { weekday: 0, minute }, is_used_up);
            (group.weight.as_u32(), group.max, group.min)
        };
        assert_eq!(at(59, false), (7, mbit(20), mbit(5)));
        assert_eq!(at(60, false), (7, mbit(30), mbit(9)));
        assert_eq!(at(60, true), (7, mbit(2), mbit(2)));
        let mut other = Group::new("a", weight(1), Vec::new());
        plan.apply(&mut other, Moment { weekday: 1, minute: 60 }, false);
        assert_eq!(other, Group::new("a", weight(1), Vec::new()));
        let edges = changes([&plan].into_iter());
        let edges: Vec<_> = edges.iter().map(|m| (m.weekday, m.minute)).collect();
        assert_eq!(edges, [(0, 0), (0, 60), (0, 120), (1, 0)]);
    }

    fn day(day: i64) -> Local {
        Local { day, day_of_month: 1, minute: 0 }
    }

    #[test]
    fn a_clock_that_is_behind_begins_no_period_until_one_has_passed() {
        let mut usage = Usage::default();
        usage.handle_received(Bytes::new(1));
        usage.handle_clock(Period::Day, day(100), Span::ZERO);
        usage.handle_received(Bytes::new(7));
        // As after a start without a clock.
        usage.handle_clock(Period::Day, day(0), Span::secs(3_600));
        usage.handle_received(Bytes::new(2));
        assert_eq!((usage.used(), usage.periods().len()), (Bytes::new(9), 1));
        usage.handle_clock(Period::Day, day(0), Span::secs(25 * 3_600));
        assert_eq!((usage.used(), usage.periods().len()), (Bytes::ZERO, 2));
        // On the right day the earlier usage counts again.
        usage.handle_clock(Period::Day, day(100), Span::secs(1));
        assert_eq!(usage.used(), Bytes::new(9));
        usage.reset();
        assert_eq!(usage.used(), Bytes::ZERO);
    }

    proptest! {
        /// A clock that is a day ahead or behind for a while, and starts in between.
        #[test]
        fn periods_sum_to_what_was_received_and_nothing_is_taken_back(
            steps in proptest::collection::vec((-1..2i64, 0..5_000u64, any::<bool>()), 1..60),
        ) {
            let (mut usage, mut sum) = (Usage::default(), 0);
            for (error, received, starts) in steps {
                if starts {
                    usage = Usage::new(usage.periods(), usage.elapsed());
                }
                let before = usage.clone();
                usage.handle_clock(Period::Day, day(100 + error), Span::secs(60));
                usage.handle_received(Bytes::new(received));
                sum += received;
                let all: Bytes = usage.periods().iter().map(|p| p.bytes).sum();
                prop_assert_eq!(all, Bytes::new(sum));
                for old in before.periods() {
                    let new = usage.periods().iter().find(|p| p.first_day == old.first_day);
                    prop_assert!(new.is_some_and(|new| new.bytes >= old.bytes));
                }
            }
        }

        /// Whatever the clock does, there are few periods, each once, and one is counted.
        #[test]
        fn whatever_the_clock_does_periods_are_few(
            steps in proptest::collection::vec((any::<i32>(), 0..90_000u64), 1..60),
        ) {
            let mut usage = Usage::default();
            for (at, passed) in steps {
                usage.handle_clock(Period::Week, day(at.into()), Span::secs(passed));
                usage.handle_received(Bytes::new(u64::MAX / 2));
                let days: BTreeSet<i64> = usage.periods().iter().map(|p| p.first_day).collect();
                prop_assert_eq!(days.len(), usage.periods().len());
                prop_assert!((1..=PERIODS_MAX).contains(&days.len()));
                prop_assert_eq!(Usage::new(usage.periods(), usage.elapsed()), usage.clone());
            }
        }
    }
}
