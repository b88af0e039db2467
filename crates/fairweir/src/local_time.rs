//! Local time.

use std::fs;

use fairweir_core::calendar::{Local, Period};
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// The file with OpenWrt's time zone rule, such as `CET-1CET,M3.5.0,M10.5.0/3`.
const OPENWRT_ZONE: &str = "/etc/TZ";

const EPOCH: Date = date(1970, 1, 1);

/// The time zone of this machine: from TZ, /etc/localtime, or OpenWrt's file; otherwise UTC.
pub(crate) fn zone() -> TimeZone {
    let system = TimeZone::try_system().ok();
    let rule = || TimeZone::posix(fs::read_to_string(OPENWRT_ZONE).ok()?.trim()).ok();
    system.or_else(rule).unwrap_or(TimeZone::UTC)
}

/// The local time at `at_s`, in seconds since 1970.
pub(crate) fn local(at_s: u64, zone: &TimeZone) -> Local {
    let at = i64::try_from(at_s).ok().and_then(|at| Timestamp::from_second(at).ok());
    let at = at.unwrap_or_default().to_zoned(zone.clone());
    let days = at.date().since(EPOCH).map(|span| span.get_days()).unwrap_or_default();
    Local {
        day: days.into(),
        day_of_month: at.day() as u8,
        minute: at.hour() as u16 * 60 + at.minute() as u16,
    }
}

/// When the period that includes `at` ends, in seconds since 1970.
pub(crate) fn end_s(per: Period, at: Local, zone: &TimeZone) -> Option<u64> {
    let first = EPOCH.checked_add(Span::new().try_days(per.first_day(at)).ok()?).ok()?;
    let span = match per {
        Period::Day => Span::new().days(1),
        Period::Week => Span::new().weeks(1),
        Period::Month => Span::new().months(1),
    };
    let next = first.checked_add(span).ok()?.to_zoned(zone.clone()).ok()?;
    u64::try_from(next.timestamp().as_second()).ok()
}

#[cfg(test)]
mod tests {
    use fairweir_core::calendar::Usage;
    use fairweir_core::calendar::Window;
    use fairweir_core::units::{Bytes, Span};
    use proptest::prelude::*;

    use super::*;

    /// Berlin; New York; Havana, where the spring change is at midnight; Lord Howe, which changes by half an hour.
    const ZONES: [&str; 4] = [
        "CET-1CEST,M3.5.0,M10.5.0/3",
        "EST5EDT,M3.2.0,M11.1.0",
        "CST5CDT,M3.2.0/0,M11.1.0/1",
        "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
    ];

    fn zones() -> [TimeZone; 4] {
        ZONES.map(|rule| TimeZone::posix(rule).unwrap())
    }

    /// Seconds since 1970 of a local time.
    fn at(zone: &TimeZone, text: &str) -> u64 {
        let civil: jiff::civil::DateTime = text.parse().unwrap();
        civil.to_zoned(zone.clone()).unwrap().timestamp().as_second() as u64
    }

    /// Minutes of a local day in which a window is in force.
    fn minutes_in(zone: &TimeZone, window: &Window, day: &str) -> usize {
        let start = at(zone, day);
        let wanted = local(start, zone).day;
        let minutes = (0..26 * 60).map(|minute| local(start + minute * 60, zone));
        minutes.filter(|at| at.day == wanted && window.includes(at.moment())).count()
    }

    #[test]
    fn an_hour_that_is_left_out_is_not_in_force_and_one_that_is_repeated_is_so_twice() {
        let [berlin, new_york, ..] = zones();
        let window = |from, to| Window { days: [true; 7], from, to };
        let (office, night, all) = (window(480, 1_080), window(90, 210), window(0, 1_440));
        for (zone, spring, autumn) in
            [(&berlin, "2026-03-29", "2026-10-25"), (&new_york, "2026-03-08", "2026-11-01")]
        {
            let in_force = |day: &str| [&office, &all].map(|of| minutes_in(zone, of, day));
            assert_eq!(in_force("2026-06-01T00:00"), [600, 1_440]);
            assert_eq!(in_force(&format!("{spring}T00:00")), [600, 1_380]);
            assert_eq!(in_force(&format!("{autumn}T00:00")), [600, 1_500]);
        }
        // The window is 01:30 to 03:30. In spring 02:00 is skipped; in autumn an hour is repeated.
        assert_eq!(minutes_in(&berlin, &night, "2026-03-29T00:00"), 60);
        assert_eq!(minutes_in(&berlin, &night, "2026-10-25T00:00"), 180);
    }

    #[test]
    fn a_month_ends_at_local_midnight() {
        let [berlin, new_york, ..] = zones();
        for (zone, utc) in [(&berlin, "2026-11-30T23:00Z"), (&new_york, "2026-12-01T05:00Z")] {
            let end = utc.parse::<Timestamp>().unwrap().as_second() as u64;
            let months = [end - 1, end].map(|at| Period::Month.first_day(local(at, zone)));
            assert_eq!(months[1] - months[0], 30);
            assert_eq!(end_s(Period::Month, local(end - 1, zone), zone), Some(end));
            assert_eq!(end_s(Period::Month, local(end - 29 * 86_400, zone), zone), Some(end));
            // Bytes that are counted each second are assigned to the right month.
            let mut usage = Usage::default();
            for second in end - 5..end + 5 {
                usage.handle_clock(Period::Month, local(second, zone), Span::secs(1));
                usage.handle_received(Bytes::new(10));
            }
            let bytes: Vec<u64> = usage.periods().iter().map(|p| p.bytes.as_u64()).collect();
            assert_eq!(bytes, [50, 50]);
        }
    }

    proptest! {
        /// For any time of 60 years, a period ends when the next begins, and lasts at most its greatest length.
        #[test]
        fn a_period_ends_where_the_next_begins(
            at_s in 0..1_900_000_000u64, zone in 0..ZONES.len(), per in 0..3usize,
        ) {
            let (zone, per) = (&zones()[zone], Period::ALL[per]);
            let now = local(at_s, zone);
            let end = end_s(per, now, zone).unwrap();
            let first = |at| per.first_day(local(at, zone));
            prop_assert!(end > at_s && first(end - 1) == first(at_s) && first(end) > first(at_s));
            let days = match per { Period::Day => 1, Period::Week => 7, Period::Month => 31 };
            prop_assert!(end - at_s <= (days * 24 + 1) * 3_600);
            prop_assert!(now.minute < 1_440 && (1..=31).contains(&now.day_of_month));
        }
    }
}
