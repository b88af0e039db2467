//! Figures with packets: a bundle and 20 other connections in the simulator.

use fairweir_core::units::Rate;
use fairweir_scenario::Control;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};
use fairweir_scenario::report::{BundledFree, Report};

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::draw::chart;
use super::super::play::{Played, Point};
use super::super::{Figure, Judged};

/// Three targets (§V-A).
pub(super) const FIGURE_4: Figure = Figure {
    number: "4",
    title: "three traces with 10 stunts and 20 others, packets",
    series: false,
    points: || TRACES.iter().flat_map(|t| CONTROLLERS.map(|c| traced(t, c))).collect(),
    judge: judge_4,
};
/// The number of stunts (§V-B).
pub(super) const FIGURE_5: Figure = Figure {
    number: "5",
    title: "the number of stunts, packets",
    series: false,
    points: || CONTROLLERS.iter().flat_map(|c| STUNTS.map(|n| of_stunts(n, c))).collect(),
    judge: judge_5,
};
/// Rates over time with few and many stunts (§V-B).
pub(super) const FIGURE_6: Figure = Figure {
    number: "6",
    title: "2, 10 and 20 stunts over time, packets",
    series: false,
    points: || CONTROLLERS.iter().flat_map(|c| SHOWN.map(|n| of_stunts(n, c))).collect(),
    judge: judge_6,
};
/// Cross-traffic that comes and goes (§V-C).
pub(super) const FIGURE_7: Figure = Figure {
    number: "7",
    title: "others that come and go beside 10 stunts, packets",
    series: false,
    points: || CONTROLLERS.iter().flat_map(|c| DYNAMIC.map(|n| dynamic(n, c))).collect(),
    judge: judge_7,
};
/// Whether targets are held, and which connections pay: beyond the paper.
pub(super) const FIGURE_TARGETS: Figure = Figure {
    number: "targets",
    title: "0.5 to 2.5 times the fair share, a step, a ramp and a sine with `track`, packets",
    series: false,
    points: || {
        let bundles = SENDERS.iter().flat_map(|s| BUNDLES.map(|n| plain_and_all(s, n)));
        bundles.flatten().collect()
    },
    judge: judge_targets,
};

const CONTROLLERS: [&str; 2] = ["pi", "track"];
const SENDERS: [&str; 2] = ["reno", "cubic"];
const STUNTS: [u32; 9] = [2, 3, 4, 5, 6, 8, 10, 14, 20];
const SHOWN: [u32; 3] = [2, 10, 20];
/// The numbers of stunts with which targets are tried.
const BUNDLES: [u32; 3] = [4, 7, 10];
/// Numbers of connections, out of 20 others, that come and go.
const DYNAMIC: [u32; 5] = [0, 5, 10, 15, 19];
/// Groups of the scenario.
const FREE: usize = 0;
const STUNT: usize = 1;
const CROSS: usize = 2;
/// The paper's traces have no numbers; these go from 0.6 to 2.3 times the fair share.
const TRACES: [(&str, &str, &str); 3] = [
    (
        "step",
        "trace",
        r#"[{ at = "0s", rate = "1.4mbit" }, { at = "70s", rate = "1.41mbit" }, { at = "71s", rate = "2.8mbit" }, { at = "110s", rate = "2.8mbit" }, { at = "110.001s", rate = "0.9mbit" }]"#,
    ),
    ("ramp", "trace", r#"[{ at = "45s", rate = "0.8mbit" }, { at = "140s", rate = "3.3mbit" }]"#),
    ("sine", "sine", r#"{ mean = "2mbit", amplitude = "1.1mbit", period = "60s", from = "30s" }"#),
];
/// Rate of each connection if none has a target, in Mbit/s.
fn fair(stunts: u32) -> f64 {
    40.0 / f64::from(1 + stunts + 20)
}

/// The constant targets divided by the fair share.
const CONSTANT: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 2.5];

fn bundle() -> Point {
    Point::new("fs-bundle", Control::None)
}

pub(super) fn with_target(point: Point, key: &str, value: &str) -> Point {
    point.set("bundle.0.free", format!("[{{ group = \"free\", {key} = {value} }}]"))
}

fn traced(&(_, key, value): &(&str, &str, &str), controller: &str) -> Point {
    let point = bundle().set("flow.1.connections", 10).set("bundle.0.controller", controller);
    with_target(point, key, value)
}

fn of_stunts(count: u32, controller: &str) -> Point {
    let point = bundle().set("flow.1.connections", count).set("bundle.0.controller", controller);
    let (_, key, value) = TRACES[2];
    with_target(point, key, value)
}

/// Periods of 10 s on average; the paper's are uniform, these are Pareto distributed.
fn dynamic(count: u32, controller: &str) -> Point {
    let point = Point::new("fs-dynamic", Control::None).set("bundle.0.controller", controller);
    (2..2 + count).fold(point, |point, flow| {
        let point = point.set(&format!("flow.{flow}.kind"), "on-off");
        point.set(&format!("flow.{flow}.on"), "10s").set(&format!("flow.{flow}.off"), "10s")
    })
}

fn senders(name: &str, stunts: u32) -> Point {
    let bundle = bundle().set("flow.1.connections", stunts);
    (0..3).fold(bundle, |point, flow| point.set(&format!("flow.{flow}.congestion_control"), name))
}

/// A point without delegation.
fn plain(name: &str, stunts: u32) -> Point {
    senders(name, stunts).set("bundle.0.controller", "none")
}

fn targets(name: &str, stunts: u32) -> Vec<Point> {
    let constant = |times: f64| {
        let rate = format!("\"{}\"", Rate::bps((fair(stunts) * times * 1e6) as u64));
        with_target(senders(name, stunts), "target", &rate)
    };
    let traced = TRACES.map(|(_, key, value)| with_target(senders(name, stunts), key, value));
    CONSTANT.map(constant).into_iter().chain(traced).collect()
}

fn plain_and_all(name: &str, stunts: u32) -> Vec<Point> {
    [plain(name, stunts)].into_iter().chain(targets(name, stunts)).collect()
}

pub(super) fn free(report: &Report) -> Option<&BundledFree> {
    report.summary.bundled.first()?.free.first()
}

/// Mean rate divided by mean target.
pub(super) fn by_target(report: &Report) -> f64 {
    let ratio = |free: &BundledFree| Some(free.rate.as_mbit_f64() / free.target?.as_mbit_f64());
    free(report).and_then(ratio).unwrap_or(f64::NAN)
}

pub(super) fn error_rms(report: &Report) -> f64 {
    free(report).and_then(|free| free.error_rms).unwrap_or(f64::NAN)
}

fn rate(group: usize) -> impl Fn(&Report) -> f64 {
    move |report| report.summary.groups[group].rate.as_mbit_f64()
}

fn total(report: &Report) -> f64 {
    rate(FREE)(report) + rate(STUNT)(report)
}

/// V⁺, V⁻ and V* of eq. (16) to (19) over seconds after the start, in (Mbit/s)²; without samples on
/// one side δ is 1.
fn variances(report: &Report) -> [f64; 3] {
    let Some(free) = free(report) else { return [f64::NAN; 3] };
    let errors: Vec<f64> = free
        .over_time
        .iter()
        .filter(|(t_s, ..)| *t_s >= START_S)
        .filter_map(|(_, target, rate)| Some(rate.as_mbit_f64() - (*target)?.as_mbit_f64()))
        .collect();
    let mean = |of: &dyn Fn(f64) -> bool| {
        let squares: Vec<f64> = errors.iter().filter(|e| of(**e)).map(|e| e * e).collect();
        (!squares.is_empty()).then(|| squares.iter().sum::<f64>() / squares.len() as f64)
    };
    let (above, below) = (mean(&|e| e > 0.0), mean(&|e| e < 0.0));
    let all = mean(&|e| e != 0.0).unwrap_or(f64::NAN);
    let delta = match (above, below) {
        (Some(a), Some(b)) if a.min(b) > 0.0 => a.max(b) / a.min(b),
        _ => 1.0,
    };
    [above.unwrap_or(0.0), below.unwrap_or(0.0), delta * all]
}

/// Time by which stunts have delivered 1 MB, in seconds.
pub(super) const START_S: f64 = 40.0;

fn judge_4(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for trace in &TRACES {
        for controller in CONTROLLERS {
            let point = traced(trace, controller);
            let miss = played.measure(&point, |r| (by_target(r) - 1.0).abs());
            claims.push(Claim::new(
                format!("{}, `{controller}`: distance of the mean rate from the target", trace.0),
                "fairly good",
                (miss, Unit::Part),
                Band::AtMost(0.03),
            ));
            claims.push(Claim::new(
                format!("{}, `{controller}`: RMS error over 1 s", trace.0),
                "-",
                (played.measure(&point, error_rms), Unit::Part),
                Band::AtMost(0.1),
            ));
            if let Some(first) = played.of(&point).first() {
                panels.push(over_time(&format!("{}, {controller}: Mbit/s", trace.0), first));
            }
        }
    }
    let title = "Figure 4: the free connection's rate over seconds, first seed";
    Judged { claims, files: vec![chart("figure-4", title, panels)] }
}

pub(super) fn over_time(y: &str, report: &Report) -> Panel {
    let series = free(report).map(|free| free.over_time.as_slice()).unwrap_or_default();
    let rates = series.iter().map(|(t, _, rate)| (*t, rate.as_mbit_f64())).collect();
    let targets = series.iter().filter_map(|(t, target, _)| Some((*t, (*target)?.as_mbit_f64())));
    let line = |name: &str, i, dashed, points| Line {
        name: name.to_owned(),
        colour: colour(i),
        dashed,
        points,
    };
    let lines = vec![line("free", 0, false, rates), line("target", 3, true, targets.collect())];
    let marks = Marks::Lines { logarithmic: false, lines };
    Panel { x: "time, s".to_owned(), y: y.to_owned(), marks }
}

fn judge_5(played: &Played) -> Judged {
    let value = |count, controller: &str, which: usize| {
        played.measure(&of_stunts(count, controller), |r| variances(r)[which])
    };
    let mut claims = Vec::new();
    let mut lines = Vec::new();
    for (i, controller) in CONTROLLERS.into_iter().enumerate() {
        let all: Vec<(u32, f64)> =
            STUNTS.iter().map(|&n| (n, value(n, controller, 2).mean())).collect();
        let least = all.iter().filter(|(_, v)| v.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1));
        let least = least.map_or(f64::NAN, |(count, _)| f64::from(*count));
        claims.push(Claim::new(
            format!("`{controller}`: stunts with the least mean V*"),
            "5 or 6",
            (Measured(vec![least]), Unit::Count),
            Band::Within(4.0, 8.0),
        ));
        let ratio = value(2, controller, 2).by(&value(6, controller, 2));
        claims.push(Claim::new(
            format!("`{controller}`: V* with 2 stunts by V* with 6"),
            "noticeably worse",
            (ratio, Unit::Times),
            Band::AtLeast(1.5),
        ));
        let points = all.iter().map(|&(n, v)| (f64::from(n), v)).collect();
        let name = format!("V*, {controller}");
        lines.push(Line { name, colour: colour(i), dashed: false, points });
    }
    let marks = Marks::Lines { logarithmic: false, lines };
    let panel = Panel { x: "stunts".to_owned(), y: "V*, (Mbit/s)²".to_owned(), marks };
    let title = "Figure 5: weighted variance with a sine as the target";
    Judged { claims, files: vec![chart("figure-5", title, vec![panel])] }
}

fn judge_6(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for controller in CONTROLLERS {
        let error = |count| played.measure(&of_stunts(count, controller), error_rms);
        for (count, paper, least) in [(2, "noticeably worse", 1.2), (20, "worse again", 1.0)] {
            claims.push(Claim::new(
                format!("`{controller}`: RMS error over 1 s with {count} stunts by that with 10"),
                paper,
                (error(count).by(&error(10)), Unit::Times),
                Band::AtLeast(least),
            ));
        }
        for count in SHOWN {
            if let Some(first) = played.of(&of_stunts(count, controller)).first() {
                panels.push(over_time(&format!("{count} stunts, {controller}: Mbit/s"), first));
            }
        }
    }
    let title = "Figure 6: the free connection's rate with 2, 10 and 20 stunts, first seed";
    Judged { claims, files: vec![chart("figure-6", title, panels)] }
}

fn judge_7(played: &Played) -> Judged {
    let value = |count, controller: &str, which: usize| {
        played.measure(&dynamic(count, controller), |r| variances(r)[which])
    };
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for controller in CONTROLLERS {
        let by_none = |which| {
            let none = value(0, controller, which).mean();
            value(19, controller, which).map(|variance| variance / none)
        };
        claims.push(Claim::new(
            format!("`{controller}`: mean V+ with 19 that come and go by that with none"),
            "grows",
            (by_none(0), Unit::Times),
            Band::AtLeast(1.0),
        ));
        claims.push(Claim::new(
            format!("`{controller}`: mean V- with 19 that come and go by that with none"),
            "shrinks",
            (by_none(1), Unit::Times),
            Band::AtMost(1.0),
        ));
        claims.push(Claim::new(
            format!("`{controller}`: mean rate by target with 19 that come and go"),
            "above",
            (played.measure(&dynamic(19, controller), by_target), Unit::Part),
            Band::AtLeast(1.0),
        ));
        let line = |(i, name): (usize, &str)| Line {
            name: name.to_owned(),
            colour: colour(i),
            dashed: false,
            points: DYNAMIC.map(|n| (f64::from(n), value(n, controller, i).mean())).to_vec(),
        };
        let lines = ["V+", "V-", "V*"].into_iter().enumerate().map(line).collect();
        let marks = Marks::Lines { logarithmic: false, lines };
        let (x, y) = ("others that come and go".to_owned(), format!("{controller}, (Mbit/s)²"));
        panels.push(Panel { x, y, marks });
    }
    let title = "Figure 7: variances beside others that come and go";
    Judged { claims, files: vec![chart("figure-7", title, panels)] }
}

fn judge_targets(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for (name, stunts) in SENDERS.iter().flat_map(|s| BUNDLES.map(|n| (*s, n))) {
        let points = targets(name, stunts);
        let of = format!("{name}, {stunts} stunts");
        let worst = |of: &dyn Fn(&Point) -> Measured, pick: fn(f64, f64) -> f64| {
            let all: Vec<Measured> = points.iter().map(of).collect();
            all.into_iter().reduce(|a, b| a.with(&b, pick)).unwrap_or(Measured(Vec::new()))
        };
        let mean_miss = |p: &Point| {
            let mean = played.measure(p, by_target).mean();
            Measured(vec![(mean - 1.0).abs()])
        };
        let mean_rms = |p: &Point| Measured(vec![played.measure(p, error_rms).mean()]);
        let against = |of: &dyn Fn(&Report) -> f64, p: &Point| {
            let without = played.measure(&plain(name, stunts), of).mean();
            Measured(vec![played.measure(p, of).mean() / without])
        };
        claims.push(Claim::new(
            format!("{of}: worst distance of the mean rate from the target"),
            "-",
            (worst(&mean_miss, f64::max), Unit::Part),
            Band::AtMost(0.03),
        ));
        claims.push(Claim::new(
            format!("{of}: worst RMS error over 1 s"),
            "-",
            (worst(&mean_rms, f64::max), Unit::Part),
            Band::AtMost(0.1),
        ));
        claims.push(Claim::new(
            format!("{of}: others by what they have beside plain connections, least"),
            "not affected",
            (worst(&|p| against(&rate(CROSS), p), f64::min), Unit::Part),
            Band::AtLeast(0.97),
        ));
        claims.push(Claim::new(
            format!("{of}: the bundle's total by that of plain connections, least"),
            "-",
            (worst(&|p| against(&total, p), f64::min), Unit::Part),
            Band::Within(0.97, 1.03),
        ));
        if stunts == 7 {
            panels.push(by_times(name, played));
        }
    }
    let title = "Targets: rates per connection by the fair share, `track`, 7 stunts";
    Judged { claims, files: vec![chart("figure-targets", title, panels)] }
}

/// The rates of a free connection, a stunt and another connection with each constant target.
fn by_times(name: &str, played: &Played) -> Panel {
    let points = targets(name, 7);
    let line = |title: &str, i: usize, group: usize, count: f64| Line {
        name: title.to_owned(),
        colour: colour(i),
        dashed: false,
        points: CONSTANT
            .iter()
            .zip(&points)
            .map(|(times, p)| (*times, played.measure(p, rate(group)).mean() / count / fair(7)))
            .collect(),
    };
    let lines = vec![
        line("free", 0, FREE, 1.0),
        line("stunts", 1, STUNT, 7.0),
        line("others", 2, CROSS, 20.0),
    ];
    let marks = Marks::Lines { logarithmic: false, lines };
    Panel { x: format!("target by fair share, {name}"), y: "rate by fair share".to_owned(), marks }
}
