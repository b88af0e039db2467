//! Shares, total and events of a home whose plan the ISP divides as its host asks, with many kinds of senders.
//!
//! Each play of 22 s begins with all groups. The first group is idle from 12 s to 16 s.

use std::fs;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use fairweir_testing::{note, one_at_a_time, privileged, valid};
use serde_json::Value;

use super::are_right;
use crate::common::played;

/// The weights of the groups. The n-th group has n connections.
const WEIGHTS: [&[u32]; 3] = [&[5, 1], &[4, 2, 1], &[10, 3, 1]];
/// When the first group ends, when it is back, and the end of the play, in s.
const STOP: usize = 12;
const BACK: usize = 16;
const END: usize = 22;
/// The times between events, in s.
const PHASES: [Range<usize>; 3] = [0..STOP, STOP..BACK, BACK..END];
/// Up to this rate, two cells are played at the same time.
const PARALLEL_MBIT_MAX: u32 = 30;
/// Points of a series in a second.
const POINTS: usize = 5;
/// The lengths of the references' queues.
const QUEUES: [&str; 2] = ["100ms", "10ms"];
/// Longest time that an event may take with the reference to be counted, in s.
const REFERENCE_MAX: f64 = 5.0;

#[derive(Clone, Copy, Debug)]
enum Senders {
    Cubic,
    Bbr,
    Mixed,
    Quic,
}

impl Senders {
    /// Kind and congestion control of the n-th group's flows.
    fn of(self, n: usize) -> [&'static str; 2] {
        match self {
            Senders::Mixed if n % 2 == 1 => ["bulk", "bbr"],
            Senders::Cubic | Senders::Mixed => ["bulk", "cubic"],
            Senders::Bbr => ["bulk", "bbr"],
            Senders::Quic => ["quic", "cubic"],
        }
    }

    /// The largest mean error of the shares.
    fn error_max(self) -> f64 {
        if matches!(self, Senders::Quic) { 0.03 } else { 0.02 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    weights: &'static [u32],
    senders: Senders,
    rtt_ms: u32,
    mbit: u32,
}

/// What was measured in a play.
struct Played {
    /// Mean error over the 10 s from 2 s on.
    error: f64,
    /// The largest error over 2 s, from 2 s after an event.
    error_max: f64,
    /// The largest part of the plan over such 2 s that groups lacked to their shares of the plan.
    lacks: f64,
    /// Part of the plan that was used from 2 s on.
    used: f64,
    /// For each event the seconds until all groups were right.
    right: Vec<Option<f64>>,
    /// For each event the seconds until all groups were right and stayed so.
    steady: Vec<Option<f64>>,
}

/// Plays of a cell: divided as agreed, by the same plan without an agreement, and with the references: a shaper
/// that knows the weights, whose queue is long or as short as that of a policer nearly is.
struct Measured {
    divided: Played,
    without: Played,
    references: [Played; 2],
}

impl Cell {
    fn all(mbit: u32, rtt_ms: u32) -> Vec<Cell> {
        let of = |senders, weights| Cell { weights, senders, rtt_ms, mbit };
        let tcp = [Senders::Cubic, Senders::Bbr, Senders::Mixed];
        let of_tcp = tcp.into_iter().flat_map(|tcp| WEIGHTS.map(|weights| of(tcp, weights)));
        of_tcp.chain([of(Senders::Quic, &[4, 1])]).collect()
    }

    /// The scenario behind the ISP's policer, or behind a link that has the plan's rate and this queue.
    fn scenario(&self, queue: Option<&str>) -> String {
        let Cell { weights, senders, rtt_ms, mbit } = self;
        let rate = if queue.is_some() { *mbit } else { 2 * mbit };
        let buffer = queue.unwrap_or(QUEUES[0]);
        let mut text = format!(
            "version = 1\nname = \"cell\"\nduration = \"{END}s\"\nsettle = \"2s\"\n[link]\nrate = \"{rate}mbit\"\n\
             buffer = \"{buffer}\"\n"
        );
        if queue.is_none() {
            text +=
                &format!("[[police]]\nname = \"isp\"\nrate = \"{mbit}mbit\"\nby = \"agreement\"\n");
        }
        for (n, weight) in weights.iter().enumerate() {
            let [kind, cc] = senders.of(n);
            let flow = |times| {
                format!(
                    "[[flow]]\ngroup = \"{n}\"\nkind = \"{kind}\"\ncongestion_control = \"{cc}\"\n\
                     rtt = \"{rtt_ms}ms\"\nconnections = {}\n{times}",
                    n + 1
                )
            };
            text += &format!("[[group]]\nname = \"{n}\"\nweight = {weight}\n");
            text += &match n {
                0 => {
                    flow(format!("stop = \"{STOP}s\"\n")) + &flow(format!("start = \"{BACK}s\"\n"))
                }
                _ => flow(String::new()),
            };
        }
        text
    }

    fn play(&self) -> Measured {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cell.toml").display().to_string();
        let play = |queue, args: &[&str]| {
            fs::write(&file, self.scenario(queue)).unwrap();
            let [world, args @ ..] = args else { unreachable!() };
            played::reports(&[&[world, "run", &file, "--series"], args].concat())
        };
        let controls = ["--control", "fairweir", "--control", "none", "--parallel", "1"];
        let policed = play(None, &[&["lab"], &controls[..]].concat());
        let wfq = |queue| self.read(&play(Some(queue), &["sim", "--control", "wfq"])[0]);
        Measured {
            divided: self.read(&policed[0]),
            without: self.read(&policed[1]),
            references: QUEUES.map(wfq),
        }
    }

    fn read(&self, report: &Value) -> Played {
        let rates = self.rates(report);
        let spans = PHASES.into_iter().flat_map(|Range { start, end }| {
            let begins = (start + 2) * POINTS..=(end - 2) * POINTS;
            begins.map(|begin| begin..begin + 2 * POINTS)
        });
        let spans: Vec<_> = spans.collect();
        let max =
            |of: &dyn Fn(Range<usize>) -> f64| spans.iter().cloned().map(of).fold(0.0, f64::max);
        Played {
            error: self.error(&rates, 2 * POINTS..STOP * POINTS),
            error_max: max(&|span| self.error(&rates, span)),
            lacks: max(&|span| self.lacks(&rates, span)),
            used: self.used(&rates[2 * POINTS..]),
            right: self.right_after(&rates),
            steady: steady_after(report),
        }
    }

    /// The rates of the groups at each point of the series, in bit/s.
    fn rates(&self, report: &Value) -> Vec<Vec<f64>> {
        let series = report["series"].as_array().unwrap();
        let rates: Vec<f64> = series.iter().map(|p| p["rate_bps"].as_f64().unwrap()).collect();
        rates.chunks(self.weights.len()).map(<[f64]>::to_vec).collect()
    }

    /// The part of each group between the points, and its share.
    fn parts(&self, rates: &[Vec<f64>], points: Range<usize>) -> Vec<[f64; 2]> {
        let is_idle = PHASES[1].contains(&(points.start / POINTS));
        let sent = |n: usize| rates[points.clone()].iter().map(|point| point[n]).sum::<f64>();
        let weight = |n: usize| if is_idle && n == 0 { 0.0 } else { f64::from(self.weights[n]) };
        let of_all = |of: &dyn Fn(usize) -> f64| (0..self.weights.len()).map(of).sum::<f64>();
        let [all, weights] = [of_all(&sent), of_all(&weight)];
        (0..self.weights.len()).map(|n| [sent(n) / all, weight(n) / weights]).collect()
    }

    /// Half the sum of the differences between the parts of the groups and their shares.
    fn error(&self, rates: &[Vec<f64>], points: Range<usize>) -> f64 {
        let parts = self.parts(rates, points);
        parts.iter().map(|[part, share]| (part - share).abs()).sum::<f64>() / 2.0
    }

    /// What groups lacked to their shares of the plan, as a part of the plan.
    fn lacks(&self, rates: &[Vec<f64>], points: Range<usize>) -> f64 {
        let used = self.used(&rates[points.clone()]);
        let parts = self.parts(rates, points);
        parts.iter().map(|[part, share]| (share - part * used).max(0.0)).sum()
    }

    /// For each event the seconds until the end of the first second in which no part was off by more than a
    /// tenth of its share, or a hundredth of all.
    fn right_after(&self, rates: &[Vec<f64>]) -> Vec<Option<f64>> {
        let is_right = |begin: usize| {
            let parts = self.parts(rates, begin..begin + POINTS);
            are_right(parts.into_iter().map(|[part, share]| (part, share)))
        };
        let first = |phase: Range<usize>| {
            let mut begins = phase.start * POINTS..=(phase.end - 1) * POINTS;
            let begin = begins.find(|&begin| is_right(begin))?;
            Some((begin + POINTS) as f64 / POINTS as f64 - phase.start as f64)
        };
        PHASES.map(first).to_vec()
    }

    /// The part of the plan that was used.
    fn used(&self, rates: &[Vec<f64>]) -> f64 {
        let sum: f64 = rates.iter().flatten().sum();
        sum / rates.len() as f64 / (f64::from(self.mbit) * 1e6)
    }
}

/// For each event the seconds until all groups were right and stayed so.
fn steady_after(report: &Value) -> Vec<Option<f64>> {
    let events = report["summary"]["right_after_s"].as_array().unwrap();
    events.iter().map(|event| event["seconds"].as_f64()).collect()
}

/// For each event that the reference has right, whether it is right in time.
fn in_time(divided: &[Option<f64>], reference: &[Option<f64>]) -> Vec<bool> {
    let counted = |(divided, reference): (&Option<f64>, &Option<f64>)| {
        let reference = reference.filter(|time| *time <= REFERENCE_MAX)?;
        Some(divided.is_some_and(|divided| divided <= (1.5 * reference).max(2.0)))
    };
    divided.iter().zip(reference).filter_map(counted).collect()
}

impl Measured {
    /// The bars that the cell misses.
    fn missed(&self, senders: Senders) -> Vec<&'static str> {
        let Played { error, error_max, used, .. } = self.divided;
        let missed = [
            (error > senders.error_max(), "mean error"),
            (error_max > 0.1, "error over 2 s"),
            (used < 0.98 * self.without.used, "total"),
        ];
        missed.into_iter().filter_map(|(is_missed, what)| is_missed.then_some(what)).collect()
    }

    fn line(&self, cell: &Cell) -> String {
        let Cell { weights, senders, rtt_ms, mbit } = cell;
        let all = [&self.divided, &self.without, &self.references[0], &self.references[1]];
        let number = |of: fn(&Played) -> f64| all.map(|p| format!("{:.3}", of(p))).join(" ");
        let times = |of: fn(&Played) -> &[Option<f64>]| {
            let time = |time: &Option<f64>| time.map_or("-".to_owned(), |t| format!("{t:.1}"));
            let play = |p| of(p).iter().map(time).collect::<Vec<_>>().join("/");
            [all[0], all[2], all[3]].map(play).join(" ")
        };
        format!(
            "{mbit} Mbit/s, {rtt_ms} ms, {senders:?}, {weights:?}: error {}; over 2 s {}; lacks {}; used {}; right \
             after {}; steady after {}; missed: {}",
            number(|p| p.error),
            number(|p| p.error_max),
            number(|p| p.lacks),
            number(|p| p.used),
            times(|p| &p.right),
            times(|p| &p.steady),
            self.missed(*senders).join(", ")
        )
    }
}

/// Plays all cells with this plan and round-trip time, and prints a line for each: divided, without an agreement
/// (not for times), and with both references.
fn play_all(mbit: u32, rtt_ms: u32) {
    if !privileged() {
        return;
    }
    let (cells, measured) =
        (Mutex::new(Cell::all(mbit, rtt_ms).into_iter()), Mutex::new(Vec::new()));
    let next = || cells.lock().unwrap().next();
    let work = || {
        while let Some(cell) = next() {
            let played = (0..3).find_map(|_| valid(|| cell.play()));
            note(&played.as_ref().map_or(format!("{cell:?}: void"), |played| played.line(&cell)));
            measured.lock().unwrap().push((cell, played));
        }
    };
    let beside = if mbit <= PARALLEL_MBIT_MAX { 2 } else { 1 };
    one_at_a_time(|| {
        thread::scope(|scope| (0..beside).for_each(|_| drop(scope.spawn(work))));
    });
    let measured = measured.into_inner().unwrap();
    let judged = || measured.iter().filter_map(|(cell, m)| Some((cell, m.as_ref()?)));
    let missed: Vec<_> = judged().filter(|(c, m)| !m.missed(c.senders).is_empty()).collect();
    let part = |of: fn(&Played) -> &[Option<f64>], queue: usize| {
        let events = |(_, m): (_, &Measured)| in_time(of(&m.divided), of(&m.references[queue]));
        let events: Vec<bool> = judged().flat_map(events).collect();
        let right = events.iter().filter(|is_right| **is_right).count();
        (right as f64 / events.len() as f64, events.len())
    };
    let right = [0, 1].map(|queue| part(|p| &p.right, queue));
    let what = format!(
        "{} of {} cells miss a bar; events right in time, of those so with queues of {QUEUES:?}: {right:.3?}, \
         steadily {:.3?}",
        missed.len(),
        judged().count(),
        [0, 1].map(|queue| part(|p| &p.steady, queue))
    );
    note(&what);
    assert!(
        judged().count() == measured.len() && missed.is_empty() && right[1].0 >= 0.95,
        "{what}"
    );
}

macro_rules! tables {
    ($($name:ident: $mbit:literal, $rtt_ms:literal;)*) => {$(
        #[test]
        #[ignore = "long: 5 to 9 min"]
        fn $name() {
            play_all($mbit, $rtt_ms);
        }
    )*};
}

tables! {
    shares_at_20_mbit_and_1_ms: 20, 1;
    shares_at_20_mbit_and_20_ms: 20, 20;
    shares_at_20_mbit_and_40_ms: 20, 40;
    shares_at_20_mbit_and_100_ms: 20, 100;
    shares_at_100_mbit_and_1_ms: 100, 1;
    shares_at_100_mbit_and_20_ms: 100, 20;
    shares_at_100_mbit_and_40_ms: 100, 40;
    shares_at_100_mbit_and_100_ms: 100, 100;
}
