//! Shares of other connections with and without delegation, and cross-traffic with heavy tails.

use fairweir_core::units::Rate;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::draw::chart;
use super::super::play::{Played, Point};
use super::super::read::jain;
use super::super::{Figure, Judged};
use super::packets::{START_S, free, over_time, with_target};
use super::scenes::{Scene, bulk};

/// Elephants and mice (§V-D).
pub(super) const FIGURE_8: Figure = Figure {
    number: "8",
    title: "elephants and mice: all connections come and go, packets",
    series: false,
    points: || HEAVY.iter().flat_map(|heavy| CONTROLLERS.map(|c| heavy.point(c))).collect(),
    judge: judge_8,
};

/// Jain's index and the mean share of connections outside the bundle: beyond the paper.
pub(super) const FIGURE_OTHERS: Figure = Figure {
    number: "others",
    title: "what others have with and without delegation, packets",
    series: false,
    points: || CROSSED.iter().flat_map(Crossed::points).collect(),
    judge: judge_others,
};

const CONTROLLERS: [&str; 2] = ["pi", "track"];

/// One half of figure 8.
struct Heavy {
    name: &'static str,
    stunts: usize,
    /// Numbers of long connections outside the bundle, and of short ones.
    elephants: usize,
    mice: usize,
    /// Mean periods of long connections, and of short ones.
    long: &'static str,
    short: &'static str,
    /// Rate of a short connection while it is on: all short ones have a fifth of the bytes. The
    /// paper gives no rate.
    short_rate: &'static str,
}

/// Left: 1 + 3 + 4 elephants and 24 mice. Right: 10 elephants of which 4 are stunts, 50 mice, and a
/// free connection that is on and off as often as they are.
const HEAVY: [Heavy; 2] = [
    Heavy {
        name: "left",
        stunts: 3,
        elephants: 4,
        mice: 24,
        long: "on = \"120s\", off = \"5s\"",
        short: "on = \"1s\", off = \"5s\"",
        short_rate: "500kbit",
    },
    Heavy {
        name: "right",
        stunts: 4,
        elephants: 6,
        mice: 50,
        long: "on = \"10s\", off = \"5s\"",
        short: "on = \"300ms\", off = \"13s\"",
        short_rate: "2500kbit",
    },
];
/// The RTT: 10 ms, and 2 ms on each side, in both directions.
const HEAVY_RTT: &str = "28ms";
const HEAVY_TRACE: &str =
    r#"{ mean = "1.3mbit", amplitude = "0.6mbit", period = "100s", from = "60s" }"#;
const MICE: usize = 3;

impl Heavy {
    fn point(&self, controller: &str) -> Point {
        let flow = |periods: &str| {
            format!(
                "kind = \"on-off\", congestion_control = \"reno\", rtt = \"{HEAVY_RTT}\", {periods}"
            )
        };
        let mice = format!("{}, demand = \"{}\"", flow(self.short), self.short_rate);
        let scene = Scene::default()
            .with("free", 1, &flow(self.long))
            .with("stunts", self.stunts, &flow(self.long))
            .with("elephants", self.elephants, &flow(self.long))
            .with("mice", self.mice, &mice);
        let point = scene.on("fs-bundle").set("link.rate", "10mbit").set("link.up_rate", "10mbit");
        let point = point.set("duration", "400s").set("bundle.0.controller", controller);
        with_target(point, "sine", HEAVY_TRACE)
    }
}

/// Rates and targets of seconds in which, and next to which, the free connection sends.
fn while_on(report: &Report) -> Vec<(f64, f64)> {
    let series = free(report).map(|free| free.over_time.as_slice()).unwrap_or_default();
    let sends = |three: &&[(f64, Option<Rate>, Rate)]| {
        three[0].0 >= START_S && three.iter().all(|(.., rate)| *rate > Rate::ZERO)
    };
    let pair = |three: &[(f64, Option<Rate>, Rate)]| {
        Some((three[1].2.as_mbit_f64(), three[1].1?.as_mbit_f64()))
    };
    series.windows(3).filter(sends).filter_map(pair).collect()
}

fn on_by_target(report: &Report) -> f64 {
    let pairs = while_on(report);
    pairs.iter().map(|(rate, _)| rate).sum::<f64>() / pairs.iter().map(|(_, t)| t).sum::<f64>()
}

fn on_error_rms(report: &Report) -> f64 {
    let pairs = while_on(report);
    let squares = pairs.iter().map(|(rate, target)| (rate - target) * (rate - target)).sum::<f64>();
    let count = pairs.len() as f64;
    (squares / count).sqrt() / (pairs.iter().map(|(_, t)| t).sum::<f64>() / count)
}

/// The part of all bytes that elephants send.
fn elephants(report: &Report) -> f64 {
    let bytes = |group: usize| report.summary.groups[group].delivered.as_u64() as f64;
    let all: f64 = (0..=MICE).map(bytes).sum();
    (all - bytes(MICE)) / all
}

fn judge_8(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for heavy in &HEAVY {
        let name = heavy.name;
        claims.push(Claim::new(
            format!("{name}: bytes of elephants by all"),
            "80 %",
            (played.measure(&heavy.point("track"), elephants), Unit::Part),
            Band::Within(0.75, 0.85),
        ));
        for controller in CONTROLLERS {
            let point = heavy.point(controller);
            claims.push(Claim::new(
                format!("{name}, `{controller}`: mean rate by target while it sends"),
                "good matching",
                (played.measure(&point, on_by_target), Unit::Part),
                Band::Within(0.95, 1.05),
            ));
            claims.push(Claim::new(
                format!("{name}, `{controller}`: RMS error over 1 s while it sends"),
                "good matching",
                (played.measure(&point, on_error_rms), Unit::Part),
                Band::AtMost(0.2),
            ));
            if let Some(first) = played.of(&point).first() {
                panels.push(over_time(&format!("{name}, {controller}: Mbit/s"), first));
            }
        }
    }
    let title = "Figure 8: beside elephants and mice, first seed";
    Judged { claims, files: vec![chart("figure-8", title, panels)] }
}

/// A bottleneck with other connections, each of which has a group of its own.
struct Crossed {
    name: &'static str,
    scenario: &'static str,
    congestion_control: &'static str,
    rtt: &'static str,
    others: usize,
    capacity_mbit: f64,
}

const CROSSED: [Crossed; 4] = [
    Crossed::red("RED, reno", "reno"),
    Crossed::red("RED, cubic", "cubic"),
    Crossed::drop_tail("drop-tail, reno", "reno"),
    Crossed::drop_tail("drop-tail, cubic", "cubic"),
];
const STUNTS: usize = 7;
/// Index of the first other group; before it come the free one and the stunts.
const OTHERS_FROM: usize = 2;
/// Targets divided by the fair share.
const TIMES: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 2.5];

impl Crossed {
    const fn red(name: &'static str, congestion_control: &'static str) -> Crossed {
        Crossed {
            name,
            scenario: "fs-bundle",
            congestion_control,
            rtt: "80ms",
            others: 20,
            capacity_mbit: 40.0,
        }
    }

    const fn drop_tail(name: &'static str, congestion_control: &'static str) -> Crossed {
        Crossed {
            name,
            scenario: "fs-kernel",
            congestion_control,
            rtt: "20ms",
            others: 8,
            capacity_mbit: 10.0,
        }
    }

    fn fair(&self) -> f64 {
        self.capacity_mbit / (1 + STUNTS + self.others) as f64
    }

    fn plain(&self) -> Point {
        let each = bulk(self.congestion_control, self.rtt);
        let scene = Scene::default().with("free", 1, &each).with("stunts", STUNTS, &each);
        let others = (0..self.others).fold(scene, |s, n| s.with(&format!("other-{n}"), 1, &each));
        let point = others.on(self.scenario).set("duration", "150s").set("settle", "40s");
        point.set("bundle.0.controller", "none")
    }

    fn with(&self, times: f64) -> Point {
        let rate = format!("\"{}\"", Rate::bps((self.fair() * times * 1e6) as u64));
        with_target(self.plain().set("bundle.0.controller", "track"), "target", &rate)
    }

    fn points(&self) -> Vec<Point> {
        [self.plain()].into_iter().chain(TIMES.map(|times| self.with(times))).collect()
    }
}

fn of_others(report: &Report) -> Vec<f64> {
    report.summary.groups[OTHERS_FROM..].iter().map(|group| group.rate.as_mbit_f64()).collect()
}

fn mean_of_others(report: &Report) -> f64 {
    let rates = of_others(report);
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn jain_of_others(report: &Report) -> f64 {
    jain(&of_others(report))
}

fn judge_others(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let (mut shares, mut jains) = (Vec::new(), Vec::new());
    for (i, crossed) in CROSSED.iter().enumerate() {
        let name = crossed.name;
        let plain_rate = played.measure(&crossed.plain(), mean_of_others).mean();
        let plain_jain = played.measure(&crossed.plain(), jain_of_others).mean();
        let by_plain = |times: f64, of: fn(&Report) -> f64, plain: f64| {
            played.measure(&crossed.with(times), of).map(|value| value / plain)
        };
        let least = |of: fn(&Report) -> f64, plain: f64| {
            let all = TIMES.map(|times| (times, by_plain(times, of, plain)));
            all.into_iter().reduce(|a, b| if b.1.mean() < a.1.mean() { b } else { a })
        };
        let none = || (f64::NAN, Measured(Vec::new()));
        let (times, rates) = least(mean_of_others, plain_rate).unwrap_or_else(none);
        claims.push(Claim::new(
            format!(
                "{name}: others by what they have without delegation, least (at {times} times)"
            ),
            "not affected",
            (rates, Unit::Part),
            Band::AtLeast(0.97),
        ));
        let (times, indices) = least(jain_of_others, plain_jain).unwrap_or_else(none);
        claims.push(Claim::new(
            format!("{name}: Jain's index of others by that without, least (at {times} times)"),
            "not affected",
            (indices, Unit::Part),
            Band::AtLeast(0.98),
        ));
        let line = |dashed: bool, of: &dyn Fn(f64) -> f64| Line {
            name: if dashed { format!("{name}, without") } else { name.to_owned() },
            colour: colour(i),
            dashed,
            points: TIMES.map(|times| (times, of(times))).to_vec(),
        };
        let fair = crossed.fair();
        let rate = |t: f64| by_plain(t, mean_of_others, fair).mean();
        let jain = |t: f64| by_plain(t, jain_of_others, 1.0).mean();
        shares.extend([line(false, &rate), line(true, &|_| plain_rate / fair)]);
        jains.extend([line(false, &jain), line(true, &|_| plain_jain)]);
    }
    let panel = |y: &str, lines| Panel {
        x: "target by fair share".to_owned(),
        y: y.to_owned(),
        marks: Marks::Lines { logarithmic: false, lines },
    };
    let panels =
        vec![panel("others' mean rate by fair share", shares), panel("Jain's index", jains)];
    let title = "Others, with and without delegation (dashed), `track`, 7 stunts";
    Judged { claims, files: vec![chart("figure-others", title, panels)] }
}
