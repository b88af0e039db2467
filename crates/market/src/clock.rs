//! Whether this host's clock can be trusted.
//!
//! Problem: a slot that is closed too early stays closed, and a clock that is a month ahead closes a month of
//! slots at once. Method: at its start a server compares its clock with the database's clock and with the end of
//! the last closed slot. From then on it compares the clock with the time that has passed since the start, by a
//! clock that is never set. While they differ the server closes no slot and takes no changes. It resumes by
//! itself when they agree again.

use fairweir_core::units::Time;

use crate::book::{AHEAD, Rules};

/// Two clocks agree if they differ by at most this many seconds, or by at most a slot if that is longer.
const TOLERANCE_S: u64 = 60;

/// What the clocks show at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The host's time, in seconds of Unix time.
    pub now_s: u64,
    /// The time by a clock that is never set.
    pub passed: Time,
    /// The database's time, in seconds of Unix time, if it has a clock of its own.
    pub database_s: Option<u64>,
}

/// Decides whether the host's clock is trusted; see the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The first reading at which the host's clock was trusted.
    believed: Option<Reading>,
}

impl Clock {
    /// The operator states that the host's clock is right.
    pub fn accept(&mut self, now: Reading) {
        self.believed = Some(now);
    }

    /// Whether the host's clock has been trusted at least once.
    pub fn is_believed(&self) -> bool {
        self.believed.is_some()
    }

    /// Checks whether the host's clock is trusted now. `open` is the first slot that is not closed.
    ///
    /// # Errors
    /// Which clock differs, in which direction and by how much.
    pub fn check(&mut self, rules: &Rules, open: u64, now: Reading) -> Result<(), String> {
        let doubt = match self.believed {
            Some(then) => doubt_since(rules, then, now),
            None => doubt_at_start(rules, open, now),
        };
        match doubt {
            Some(doubt) => Err(doubt),
            None => {
                self.believed.get_or_insert(now);
                Ok(())
            }
        }
    }
}

/// After a time without a running server, at most this number of slots is closed; or as many as end within
/// [`TOLERANCE_S`] if that is more.
const AWAY_MAX: u64 = AHEAD;

fn doubt_since(rules: &Rules, then: Reading, now: Reading) -> Option<String> {
    let passed_s = now.passed.since(then.passed).as_nanos() / 1_000_000_000;
    let wanted_s = then.now_s.saturating_add(passed_s);
    differs(now.now_s, wanted_s, tolerance_s(rules), "what has passed since the server started")
}

fn doubt_at_start(rules: &Rules, open: u64, now: Reading) -> Option<String> {
    let tolerance_s = tolerance_s(rules);
    let by_database = now.database_s.and_then(|database_s| {
        differs(now.now_s, database_s, tolerance_s, "the clock of the database")
    });
    let next_s = rules.closes_s(open);
    let last_s = next_s.saturating_sub(rules.slot_s);
    let away_s = AWAY_MAX.saturating_mul(rules.slot_s).max(TOLERANCE_S);
    let is_behind = now.now_s.saturating_add(tolerance_s) < last_s;
    let is_ahead = now.now_s > next_s.saturating_add(away_s);
    let by_book = (is_behind || is_ahead)
        .then(|| differs(now.now_s, last_s, 0, "the end of the last closed slot"));
    by_database.or(by_book.flatten())
}

fn tolerance_s(rules: &Rules) -> u64 {
    rules.slot_s.max(TOLERANCE_S)
}

/// Describes the difference in words, if it is more than `tolerance_s`.
fn differs(now_s: u64, wanted_s: u64, tolerance_s: u64, what: &str) -> Option<String> {
    let by_s = now_s.abs_diff(wanted_s);
    let side = if now_s > wanted_s { "ahead of" } else { "behind" };
    (by_s > tolerance_s).then(|| format!("the host's clock is {} {side} {what}", in_words(by_s)))
}

/// A duration in words, such as "30 days", "1.5 hours" or "90 s".
fn in_words(seconds: u64) -> String {
    let (unit_s, unit) = match seconds {
        172_800.. => (86_400, "days"),
        7_200.. => (3_600, "hours"),
        _ => return format!("{seconds} s"),
    };
    let text = format!("{:.1}", seconds as f64 / f64::from(unit_s));
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairweir_core::units::Span;

    const HOUR_S: u64 = 3_600;
    const DAY_S: u64 = 24 * HOUR_S;
    /// When slot 0 begins, in seconds of Unix time.
    const EPOCH_S: u64 = 1_800_000_000;

    fn rules(slot_s: u64) -> Rules {
        let rules = serde_json::json!({
            "terms": { "mode": "float", "capacity": 40_000_000, "floor_percent": 10 },
            "share": "10000000", "cap": "32000000", "slot_s": slot_s, "close_before_s": 0,
            "epoch_s": EPOCH_S,
        });
        serde_json::from_value(rules).unwrap()
    }

    /// A reading `after_s` seconds after the server's start, with a host clock that is wrong by `by_s` seconds.
    fn reading(after_s: u64, by_s: i64) -> Reading {
        Reading {
            now_s: (EPOCH_S + 100 * 1_800 + after_s).strict_add_signed(by_s),
            passed: Time::ZERO + Span::secs(77 + after_s),
            database_s: None,
        }
    }

    #[test]
    fn a_clock_that_is_set_while_the_server_runs_is_doubted_until_it_is_right_again() {
        for (slot_s, tolerance_s) in [(1_800, 1_800), (2, 60)] {
            let (rules, open) = (rules(slot_s), 100 * 1_800 / slot_s);
            let mut clock = Clock::default();
            assert_eq!(clock.check(&rules, open, reading(0, 0)), Ok(()));
            let month_s = 30 * DAY_S as i64;
            for by_s in [month_s, -month_s, HOUR_S as i64, -(HOUR_S as i64)] {
                let error = clock.check(&rules, open, reading(10, by_s)).unwrap_err();
                let side = if by_s > 0 { "ahead of" } else { "behind" };
                assert!(error.contains(side), "{error}");
                // The clock is corrected.
                assert_eq!(clock.check(&rules, open, reading(20, 0)), Ok(()));
            }
            // The bound is exact, and several steps cannot add up to more than the bound.
            for by_s in [tolerance_s, -tolerance_s] {
                assert_eq!(clock.check(&rules, open, reading(30, by_s)), Ok(()));
                let beyond = by_s + by_s.signum();
                assert!(clock.check(&rules, open, reading(40, beyond)).is_err(), "{beyond}");
            }
            // Holds however long the server runs, even if the database was unavailable all the time.
            assert_eq!(clock.check(&rules, open, reading(400 * DAY_S, 0)), Ok(()));
        }
    }

    #[test]
    fn a_start_catches_up_with_48_slots_and_doubts_more_or_a_clock_that_is_behind() {
        let rules = rules(1_800);
        let check = |by_s: i64| Clock::default().check(&rules, 100, reading(0, by_s));
        // Slot 99 was closed at its beginning, half an hour ago.
        for by_s in [0, HOUR_S as i64, 48 * 1_800, -3_600] {
            assert_eq!(check(by_s), Ok(()), "{by_s}");
        }
        for (by_s, wanted) in [
            (48 * 1_800 + 1, "24.5 hours ahead of the end of the last closed slot"),
            (30 * DAY_S as i64, "30 days ahead of the end"),
            (-3_601, "1801 s behind the end"),
            (-30 * DAY_S as i64, "30 days behind the end"),
        ] {
            let error = check(by_s).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        // A corrected clock is trusted without a restart; the operator's word takes effect at once.
        let mut clock = Clock::default();
        let month_s = 30 * DAY_S as i64;
        assert!(clock.check(&rules, 100, reading(0, month_s)).is_err());
        assert!(!clock.is_believed());
        assert_eq!(clock.check(&rules, 100, reading(5, 0)), Ok(()));
        assert!(clock.check(&rules, 100, reading(9, month_s)).is_err());
        let mut clock = Clock::default();
        clock.accept(reading(0, month_s));
        assert_eq!(clock.check(&rules, 100, reading(5, month_s)), Ok(()));
        assert!(clock.check(&rules, 100, reading(5, 0)).is_err());
    }

    #[test]
    fn a_start_believes_no_clock_that_differs_from_the_database() {
        let rules = rules(1_800);
        for (by_s, is_good) in [(0, true), (1_800, true), (1_801, false), (-1_801, false)] {
            let right = reading(0, 0);
            let database_s = Some(right.now_s.strict_add_signed(by_s));
            let done = Clock::default().check(&rules, 100, Reading { database_s, ..right });
            assert_eq!(done.is_ok(), is_good, "{by_s}: {done:?}");
        }
    }

    #[test]
    fn no_clock_and_no_rules_overflow() {
        for slot_s in [1, 86_400] {
            let (rules, day) = (rules(slot_s), reading(0, 0));
            for now_s in [0, 1, u64::MAX] {
                for open in [0, 1, u64::MAX] {
                    let now = Reading { now_s, database_s: Some(u64::MAX - now_s), ..day };
                    let mut clock = Clock::default();
                    let _ = clock.check(&rules, open, now);
                    clock.accept(now);
                    let _ = clock.check(&rules, open, Reading { passed: Time::ZERO, ..now });
                }
            }
        }
    }
}
