//! Compares a link without control and with it, from counters that are read every half second.
//!
//! Only times when the link is busy are compared: an idle link has neither a queue nor shares. The beginning of each
//! stretch is left out, because the queue fills or the control finds the shares then.

use std::collections::BTreeMap;
use std::io::{self, Write};

use fairweir_core::units::Rate;
use serde::Serialize;

use super::super::wire::{GroupStatus, Status};
use crate::table::{self, Align};
use crate::words::mbit;

/// A link is busy while it carries at least this fraction of its capacity.
const BUSY: f64 = 0.5;
/// The number of readings that are judged together (2 s). Counters are only as recent as the last
/// tick; leaving out single readings that merely seem idle would raise the rates.
const BLOCK: usize = 4;
/// The least time of a busy link that is enough to compare, in seconds.
const BUSY_MIN_S: f64 = 5.0;

/// The devices or groups as the configuration lists them, with the weights in force.
pub(super) fn weights(status: &Status) -> Vec<(String, u32)> {
    let each = |group: &GroupStatus| (group.top().to_owned(), group.top_weight().as_u32());
    let mut all: Vec<_> = status.groups.iter().map(each).collect();
    all.dedup();
    all
}

/// The counters at the time when a status was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// The time of the reading, by any monotonic clock.
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
            *received.entry(group.top().to_owned()).or_default() += group.received_bytes.as_u64();
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

/// Consecutive readings with the same control.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stretch {
    /// The length of the beginning that is left out, in seconds.
    pub(super) settles_s: f64,
    pub(super) readings: Vec<Reading>,
}

/// What was measured while the link was busy.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    /// The time of all readings, in seconds, and the busy time, to which the other values refer.
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
            let is_early = |reading: &&Reading| reading.at_s - first.at_s < stretch.settles_s;
            let readings: Vec<_> = stretch.readings.iter().skip_while(is_early).collect();
            for begin in (0..readings.len().saturating_sub(1)).step_by(BLOCK) {
                let end = (begin + BLOCK).min(readings.len() - 1);
                measured.add(&readings[begin..=end], capacity);
            }
        }
        measured.round_trips_ms.sort_by(f64::total_cmp);
        measured
    }

    /// Adds what was received between the first reading and the last, if the link was busy.
    fn add(&mut self, readings: &[&Reading], capacity: Rate) {
        let [before, .., after] = readings else { return };
        let span = after.at_s - before.at_s;
        let bytes = after.total().saturating_sub(before.total());
        self.all_s += span.max(0.0);
        if span <= 0.0 || bytes as f64 * 8.0 / span < capacity.as_bps() as f64 * BUSY {
            return;
        }
        self.busy_s += span;
        for (name, received) in &after.received {
            let before = before.received.get(name).unwrap_or(received);
            let sum = self.received.entry(name.clone()).or_default();
            *sum += received.saturating_sub(*before);
        }
        let new = readings.windows(2).filter(|pair| pair[1].answered != pair[0].answered);
        self.round_trips_ms.extend(new.filter_map(|pair| pair[1].round_trip_ms));
    }

    fn total(&self) -> u64 {
        self.received.values().sum()
    }

    fn rate(&self, bytes: u64) -> Rate {
        let bps = if self.busy_s > 0.0 { bytes as f64 * 8.0 / self.busy_s } else { 0.0 };
        Rate::bps(bps as u64)
    }

    /// The round trip that this fraction of the round trips does not exceed.
    fn quantile(&self, part: f64) -> Option<f64> {
        let last = self.round_trips_ms.len().checked_sub(1)?;
        self.round_trips_ms.get((last as f64 * part).round() as usize).copied()
    }

    fn side(&self, weights: &[(String, u32)]) -> Side {
        let total = self.total().max(1) as f64;
        let share = |(name, weight): &(String, u32)| {
            let bytes = self.received.get(name).copied().unwrap_or(0);
            let (name, weight) = (name.clone(), *weight);
            Share { name, weight, rate_bps: self.rate(bytes), of_all: bytes as f64 / total }
        };
        let median = self.quantile(0.5);
        Side {
            seen_s: self.all_s,
            busy_s: self.busy_s,
            rate_bps: self.rate(self.total()),
            round_trip_least_ms: self.quantile(0.0),
            round_trip_median_ms: median,
            round_trip_95_ms: self.quantile(0.95),
            round_trips_per_minute: median.filter(|ms| *ms > 0.0).map(|ms| (60_000.0 / ms) as u64),
            shares: weights.iter().map(share).collect(),
        }
    }
}

/// The effect of the control on a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// The interface that faces the Internet.
    pub(super) dev: String,
    /// The estimated capacity of the link.
    capacity_bps: Option<Rate>,
    /// The reason if the comparison has no result: there was too little traffic; null otherwise.
    too_little: Option<String>,
    without: Side,
    with: Side,
}

/// Measurements without control, or with it, while the link was at least half full.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
struct Side {
    /// The time of all readings, in seconds, and the busy time, to which the other values refer.
    seen_s: f64,
    busy_s: f64,
    rate_bps: Rate,
    /// The lowest round trip of the probe; null if no host answers it.
    round_trip_least_ms: Option<f64>,
    round_trip_median_ms: Option<f64>,
    round_trip_95_ms: Option<f64>,
    /// How many round trips of the median length fit into a minute.
    round_trips_per_minute: Option<u64>,
    /// In the order of the configuration.
    shares: Vec<Share>,
}

/// What a device or a group received.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
struct Share {
    name: String,
    weight: u32,
    rate_bps: Rate,
    /// Its fraction of all that arrived, 0 to 1.
    of_all: f64,
}

impl Comparison {
    /// Compares readings without control and with it; `weights` has the devices or groups in their order.
    pub(super) fn new(
        dev: String,
        weights: &[(String, u32)],
        capacity: Option<Rate>,
        stretches: [&[Stretch]; 2],
    ) -> Comparison {
        // If the capacity is unknown, no time counts as busy.
        let least = capacity.unwrap_or(Rate::bps(u64::MAX));
        let [without, with] =
            stretches.map(|stretches| Measured::of(stretches, least).side(weights));
        let too_little = match capacity {
            None => Some("the link was never full, so that its capacity is not known".to_owned()),
            Some(capacity) if without.busy_s.min(with.busy_s) < BUSY_MIN_S => Some(format!(
                "at least half of {} arrived for {} without control and {} with it; {BUSY_MIN_S} s of each are needed",
                mbit(capacity.as_bps()),
                without.busy(),
                with.busy(),
            )),
            Some(_) => None,
        };
        Comparison { dev, capacity_bps: capacity, too_little, without, with }
    }

    fn both(&self, of: impl Fn(&Side) -> String) -> [String; 2] {
        [of(&self.without), of(&self.with)]
    }

    /// # Errors
    /// Errors of `out`.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(why) = &self.too_little {
            return writeln!(out, "Too little traffic to compare: {why}.");
        }
        let ms = |ms: Option<f64>| ms.map_or("not measured".to_owned(), |ms| format!("{ms:.1} ms"));
        let per_minute = |side: &Side| {
            side.round_trips_per_minute.map_or("-".to_owned(), |number| number.to_string())
        };
        let mut rows: Vec<(String, [String; 2])> = vec![
            ("link busy".to_owned(), self.both(Side::busy)),
            ("rate".to_owned(), self.both(|side| mbit(side.rate_bps.as_bps()))),
            ("round trip, least".to_owned(), self.both(|side| ms(side.round_trip_least_ms))),
            ("round trip, median".to_owned(), self.both(|side| ms(side.round_trip_median_ms))),
            ("round trip, 95 %".to_owned(), self.both(|side| ms(side.round_trip_95_ms))),
            ("round trips per minute".to_owned(), self.both(per_minute)),
        ];
        for i in self.received() {
            let Share { name, weight, .. } = &self.without.shares[i];
            let share = |side: &Side| {
                let Share { rate_bps, of_all, .. } = &side.shares[i];
                format!("{} ({:.0} %)", mbit(rate_bps.as_bps()), of_all * 100.0)
            };
            rows.push((format!("{name}, weight {weight}"), self.both(share)));
        }
        let rows: Vec<Vec<String>> =
            rows.into_iter().map(|(what, [a, b])| vec![what, a, b]).collect();
        let headings =
            [("", Align::Left), ("WITHOUT", Align::Right), ("WITH CONTROL", Align::Right)];
        table::print(out, &headings, &rows)
    }

    /// The indices of the devices or groups that received something.
    fn received(&self) -> impl Iterator<Item = usize> {
        let (without, with) = (&self.without.shares, &self.with.shares);
        (0..without.len()).filter(|i| without[*i].rate_bps.max(with[*i].rate_bps) > Rate::ZERO)
    }

    /// An SVG with rates and round trips side by side.
    #[cfg(feature = "lab")]
    pub(super) fn picture(&self) -> String {
        use fairweir_scenario::report::chart::{Bars, Chart, Marks, Panel, Value, colour};
        type Of<'o> = &'o dyn Fn(&Side) -> Vec<Option<f64>>;
        let panel = |x: &str, y: &str, categories: Vec<String>, of: Of<'_>| {
            let value = |mean: Option<f64>| mean.map(|mean| Value { mean, spread: 0.0 });
            let kind = |(name, colour, side): (&str, _, &Side)| Bars {
                name: name.to_owned(),
                colour,
                values: of(side).into_iter().map(value).collect(),
            };
            let sides = [
                ("without control", "#999999", &self.without),
                ("with control", colour(1), &self.with),
            ];
            let marks = Marks::Bars { categories, kinds: sides.map(kind).to_vec() };
            Panel { x: x.to_owned(), y: y.to_owned(), marks }
        };
        let name = |i: usize| {
            format!("{} ({})", self.without.shares[i].name, self.without.shares[i].weight)
        };
        let rates = |side: &Side| {
            self.received().map(|i| Some(side.shares[i].rate_bps.as_mbit_f64())).collect()
        };
        let trips = |side: &Side| {
            vec![side.round_trip_least_ms, side.round_trip_median_ms, side.round_trip_95_ms]
        };
        let words = ["least", "median", "95 %"].map(str::to_owned).to_vec();
        Chart {
            title: "A full link without fairweir and with it".to_owned(),
            panels: vec![
                panel("by name (weight)", "Mbit/s", self.received().map(name).collect(), &rates),
                panel("round trip", "ms", words, &trips),
            ],
        }
        .svg()
    }
}

impl Side {
    fn busy(&self) -> String {
        format!("{:.0} of {:.0} s", self.busy_s, self.seen_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings every half second with these rates of tv and desk, in Mbit/s, and this round trip.
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

    fn compared(capacity: Option<u64>, without: &[Stretch], with: &[Stretch]) -> Comparison {
        let weights = [("tv".to_owned(), 4), ("desk".to_owned(), 1), ("gone".to_owned(), 1)];
        Comparison::new("wan".to_owned(), &weights, capacity.map(Rate::mbit), [without, with])
    }

    fn said(capacity: Option<u64>, without: &[Stretch], with: &[Stretch]) -> String {
        let mut out = Vec::new();
        compared(capacity, without, with).print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn rates_shares_and_round_trips_are_of_the_busy_and_settled_part() {
        // A link of 28 Mbit/s with two stretches without control; the second one is half idle.
        let idle = stretch(10, [1.0, 0.5], 20.0);
        let without = [stretch(13, [10.0, 18.0], 95.0), stretch(8, [10.0, 18.0], 95.0), idle];
        let with = [stretch(103, [22.4, 5.6], 25.0)];
        assert_eq!(
            said(Some(28), &without, &with),
            "WITHOUT WITH CONTROL\n\
             link busy 15 of 22 s 100 of 100 s\n\
             rate 28.00 Mbit/s 28.00 Mbit/s\n\
             round trip, least 95.0 ms 25.0 ms\n\
             round trip, median 95.0 ms 25.0 ms\n\
             round trip, 95 % 95.0 ms 25.0 ms\n\
             round trips per minute 631 2400\n\
             tv, weight 4 10.00 Mbit/s (36 %) 22.40 Mbit/s (80 %)\n\
             desk, weight 1 18.00 Mbit/s (64 %) 5.60 Mbit/s (20 %)"
        );
        #[cfg(feature = "lab")]
        {
            let picture = compared(Some(28), &without, &with).picture();
            for text in ["<svg ", "tv (4)", "22.4", "25.0", "without control", "Mbit/s"] {
                assert!(picture.contains(text), "{text}: {picture}");
            }
            assert!(!picture.contains("gone"), "{picture}");
        }
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
    fn a_reading_that_comes_late_changes_no_rate() {
        let exact = stretch(23, [20.0, 8.0], 90.0);
        let mut late = exact.clone();
        for i in [9, 18, 27] {
            late.readings[i].received = late.readings[i - 1].received.clone();
        }
        let with = [stretch(23, [20.0, 8.0], 20.0)];
        assert_eq!(said(Some(28), &[late], &with), said(Some(28), &[exact], &with));
    }

    #[test]
    fn a_probe_without_answers_is_no_round_trip() {
        let mut silent = stretch(20, [20.0, 8.0], 90.0);
        silent.readings.iter_mut().for_each(|reading| reading.answered = 0);
        let said = said(Some(28), &[silent], &[stretch(20, [20.0, 8.0], 20.0)]);
        assert!(said.contains("round trip, median not measured 20.0 ms"), "{said}");
    }
}
