//! What a link does without control and with it, from counters that are read every half second.
//!
//! Only what happens while the link is busy is compared: an idle link has neither a queue nor shares. Of each stretch
//! the beginning is left out, in which the queue fills or the control finds the shares.

use std::collections::BTreeMap;
use std::io::{self, Write};

use fairweir_core::policy::PATH_SEPARATOR;
use fairweir_core::units::Rate;

use super::super::wire::Status;
use crate::table::{self, Align};

/// A link is busy while it carries this part of its capacity.
const BUSY: f64 = 0.5;
/// The least time of a busy link that is compared, in seconds.
const BUSY_MIN_S: f64 = 5.0;

/// What was counted when a status was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// By any clock that goes on.
    at_s: f64,
    /// L2 bytes by device or group, as the configuration lists them.
    received: BTreeMap<String, u64>,
    answered: u64,
    round_trip_ms: Option<f64>,
}

impl Reading {
    pub(super) fn of(status: &Status) -> Reading {
        let mut received: BTreeMap<String, u64> = BTreeMap::new();
        for group in &status.groups {
            let name = group.name.split(PATH_SEPARATOR).next().unwrap_or_default();
            *received.entry(name.to_owned()).or_default() += group.received_bytes.as_u64();
        }
        let probe = status.probe.as_ref();
        Reading {
            at_s: status.since_s,
            received,
            answered: probe.map_or(0, |probe| probe.answered),
            round_trip_ms: probe.and_then(|probe| probe.rtt_last_ms),
        }
    }

    fn total(&self) -> u64 {
        self.received.values().sum()
    }
}

/// Readings in a row with the same control.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stretch {
    /// Seconds of the beginning that are left out.
    pub(super) settles_s: f64,
    pub(super) readings: Vec<Reading>,
}

/// What was measured while the link was busy.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    /// All that was looked at, in seconds, and of it what the rest is of.
    all_s: f64,
    busy_s: f64,
    received: BTreeMap<String, u64>,
    round_trips_ms: Vec<f64>,
}

impl Measured {
    fn of(stretches: &[Stretch], capacity: Rate) -> Measured {
        let mut measured = Measured::default();
        for stretch in stretches {
            let Some(first) = stretch.readings.first() else { continue };
            let is_settled = |pair: &&[Reading]| pair[0].at_s - first.at_s >= stretch.settles_s;
            for pair in stretch.readings.windows(2).filter(is_settled) {
                let [before, after] = pair else { continue };
                let (span, bytes) =
                    (after.at_s - before.at_s, after.total().saturating_sub(before.total()));
                measured.all_s += span.max(0.0);
                if span <= 0.0 || bytes as f64 * 8.0 / span < capacity.as_bps() as f64 * BUSY {
                    continue;
                }
                measured.busy_s += span;
                for (name, received) in &after.received {
                    let more = received
                        .saturating_sub(before.received.get(name).copied().unwrap_or(*received));
                    *measured.received.entry(name.clone()).or_default() += more;
                }
                let is_new = after.answered != before.answered;
                measured.round_trips_ms.extend(after.round_trip_ms.filter(|_| is_new));
            }
        }
        measured.round_trips_ms.sort_by(f64::total_cmp);
        measured
    }

    fn total(&self) -> u64 {
        self.received.values().sum()
    }

    fn mbit(&self, bytes: u64) -> f64 {
        if self.busy_s > 0.0 { bytes as f64 * 8e-6 / self.busy_s } else { 0.0 }
    }

    /// The round trip that this part of them does not exceed.
    fn quantile(&self, part: f64) -> Option<f64> {
        let last = self.round_trips_ms.len().checked_sub(1)?;
        self.round_trips_ms.get((last as f64 * part).round() as usize).copied()
    }

    /// The rate of a device, and its part of all.
    fn share(&self, name: &str) -> String {
        let bytes = self.received.get(name).copied().unwrap_or(0);
        let part = if bytes == 0 { 0.0 } else { bytes as f64 / self.total() as f64 };
        format!("{:.2} ({:.0} %)", self.mbit(bytes), part * 100.0)
    }
}

/// Prints what `without` and `with` control differ in; `weights` are the devices or groups in their order.
///
/// # Errors
/// That of `out`.
pub(super) fn print(
    out: &mut impl Write,
    weights: &[(String, u32)],
    capacity: Option<Rate>,
    [without, with]: [&[Stretch]; 2],
) -> io::Result<()> {
    let Some(capacity) = capacity else {
        return writeln!(
            out,
            "Too little traffic to compare: the link was never full, so that its capacity is not known."
        );
    };
    let [without, with] = [without, with].map(|stretches| Measured::of(stretches, capacity));
    let busy = |m: &Measured| format!("{:.0} of {:.0} s", m.busy_s, m.all_s);
    if without.busy_s.min(with.busy_s) < BUSY_MIN_S {
        return writeln!(
            out,
            "Too little traffic to compare: at least half of {:.2} Mbit/s arrived for {} without control and {} with \
             it; {BUSY_MIN_S} s of each are needed.",
            capacity.as_mbit_f64(),
            busy(&without),
            busy(&with),
        );
    }
    let both = |of: &dyn Fn(&Measured) -> String| [of(&without), of(&with)];
    let ms = |part: f64| {
        both(&|m| m.quantile(part).map_or("not measured".to_owned(), |ms| format!("{ms:.1} ms")))
    };
    let per_minute = both(&|m| {
        let median = m.quantile(0.5).filter(|ms| *ms > 0.0);
        median.map_or("-".to_owned(), |ms| format!("{:.0}", 60_000.0 / ms))
    });
    let mut rows: Vec<(&str, [String; 2])> = vec![
        ("link busy", both(&busy)),
        ("Mbit/s", both(&|m| format!("{:.2}", m.mbit(m.total())))),
        ("round trip, median", ms(0.5)),
        ("round trip, 95 %", ms(0.95)),
        ("round trips per minute", per_minute),
    ];
    let names: Vec<String> =
        weights.iter().map(|(name, weight)| format!("{name}, weight {weight}")).collect();
    for ((name, _), label) in weights.iter().zip(&names) {
        if without.received.get(name).max(with.received.get(name)).is_some_and(|bytes| *bytes > 0) {
            rows.push((label, both(&|m| m.share(name))));
        }
    }
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(what, [a, b])| vec![what.to_owned(), a, b]).collect();
    let headings = [("", Align::Left), ("WITHOUT", Align::Right), ("WITH CONTROL", Align::Right)];
    table::print(out, &headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings every half second at these rates of tv and desk, in Mbit/s, and this round trip.
    fn stretch(seconds: u32, mbit: [f64; 2], round_trip_ms: f64) -> Stretch {
        let reading = |i: u32| {
            let at_s = f64::from(i) / 2.0;
            let bytes = |mbit: f64| (mbit * 125_000.0 * at_s) as u64;
            let [tv, desk] = mbit;
            Reading {
                at_s,
                received: [("tv".to_owned(), bytes(tv)), ("desk".to_owned(), bytes(desk))].into(),
                answered: u64::from(i / 2),
                round_trip_ms: Some(round_trip_ms + f64::from(i % 20 / 19) * 100.0),
            }
        };
        Stretch { settles_s: 3.0, readings: (0..=seconds * 2).map(reading).collect() }
    }

    fn said(capacity: Option<u64>, without: &[Stretch], with: &[Stretch]) -> String {
        let weights = [("tv".to_owned(), 4), ("desk".to_owned(), 1), ("gone".to_owned(), 1)];
        let mut out = Vec::new();
        print(&mut out, &weights, capacity.map(Rate::mbit), [without, with]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn rates_shares_and_round_trips_are_of_the_busy_and_settled_part() {
        // A link of 28 Mbit/s; two stretches without, of which the second is half idle.
        let idle = stretch(10, [1.0, 0.5], 20.0);
        let without = [stretch(13, [10.0, 18.0], 95.0), stretch(8, [10.0, 18.0], 95.0), idle];
        let with = [stretch(103, [22.4, 5.6], 25.0)];
        assert_eq!(
            said(Some(28), &without, &with),
            "WITHOUT WITH CONTROL\n\
             link busy 15 of 22 s 100 of 100 s\n\
             Mbit/s 28.00 28.00\n\
             round trip, median 95.0 ms 25.0 ms\n\
             round trip, 95 % 95.0 ms 25.0 ms\n\
             round trips per minute 632 2400\n\
             tv, weight 4 10.00 (36 %) 22.40 (80 %)\n\
             desk, weight 1 18.00 (64 %) 5.60 (20 %)"
        );
    }

    #[test]
    fn too_little_traffic_is_said_and_nothing_is_compared() {
        let busy = [stretch(20, [20.0, 8.0], 90.0)];
        let idle = [stretch(20, [1.0, 1.0], 20.0)];
        let short = [stretch(7, [20.0, 8.0], 90.0)];
        for (capacity, without, with, says) in [
            (None, &busy, &busy, "its capacity is not known"),
            (Some(28), &idle, &busy, "for 0 of 17 s without control and 17 of 17 s with it"),
            (Some(28), &busy, &idle, "for 17 of 17 s without control and 0 of 17 s with it"),
            (Some(28), &short, &busy, "for 4 of 4 s without"),
        ] {
            let said = said(capacity, without, with);
            assert!(said.contains(says) && !said.contains("WITHOUT"), "{said}");
        }
        assert!(said(Some(28), &[], &[]).contains("Too little traffic"));
    }

    #[test]
    fn a_probe_without_answers_is_no_round_trip() {
        let mut silent = stretch(20, [20.0, 8.0], 90.0);
        silent.readings.iter_mut().for_each(|reading| reading.answered = 0);
        let said = said(Some(28), &[silent], &[stretch(20, [20.0, 8.0], 20.0)]);
        assert!(said.contains("round trip, median not measured 20.0 ms"), "{said}");
    }
}
