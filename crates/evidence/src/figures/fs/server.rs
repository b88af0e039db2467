//! The paper's experiments with a server behind a slow first hop (§VI), in the simulator: on/off, one free connection,
//! 7 stunts, 10 Mbit/s with drop-tail. The results with Linux are in `docs/research/papers`.

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour};

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::draw::chart;
use super::super::play::{Played, Point};
use super::super::{Figure, Judged};
use super::packets::{START_S, by_target, error_rms, free, with_target};
use super::scenes::{Scene, bulk};

/// Two traces (§VI-A).
pub(super) const FIGURE_10: Figure = Figure {
    number: "10",
    title: "a server's bundle alone at 10 Mbit/s, two traces, packets",
    series: false,
    points: || TRACES.iter().flat_map(|t| PLAYED.map(|how| alone(t, how))).collect(),
    judge: judge_10,
};
/// Other connections come for 50 s (§VI-A).
pub(super) const FIGURE_11: Figure = Figure {
    number: "11",
    title: "others come to a server's bundle from 330 to 380 s, packets",
    series: false,
    points: || PLAYED.map(beside).to_vec(),
    judge: judge_11,
};
/// Reverse delegation (§VI-B).
pub(super) const FIGURE_12: Figure = Figure {
    number: "12",
    title: "exact and plain reverse delegation, packets",
    series: false,
    points: || TRACES.iter().flat_map(|t| [PAPER, EXACT].map(|how| alone(t, how))).collect(),
    judge: judge_12,
};

/// A controller, and how a free connection answers a stunt's signal.
type How = (&'static str, &'static str);
const PAPER: How = ("on-off", "own");
const EXACT: How = ("on-off", "exact");
const TRACK: How = ("track", "exact");
const PLAYED: [How; 2] = [PAPER, TRACK];
/// The paper's traces have no numbers; these go from 0.6 to 2.4 times the fair share of 1.25 Mbit/s.
const TRACES: [(&str, &str, &str); 2] = [
    (
        "steps",
        "trace",
        r#"[{ at = "100s", rate = "1.25mbit" }, { at = "101s", rate = "2.5mbit" }, { at = "180s", rate = "2.5mbit" }, { at = "180.001s", rate = "0.8mbit" }, { at = "260s", rate = "0.8mbit" }, { at = "261s", rate = "1.8mbit" }, { at = "340s", rate = "1.8mbit" }, { at = "340.001s", rate = "1mbit" }]"#,
    ),
    ("sine", "sine", r#"{ mean = "2mbit", amplitude = "1mbit", period = "100s", from = "50s" }"#),
];
/// Number of runs over which the paper's figures 10 and 12 average.
const RUNS: usize = 4;
/// The time in which others are there, in seconds (§VI-A).
const OTHERS: std::ops::Range<f64> = 330.0..380.0;
/// Number of downloads of videos.
const VIDEOS: u32 = 5;

fn server(scene: &Scene, how: How) -> Point {
    let point = scene.on("fs-kernel").set("duration", "450s").set("settle", "40s");
    point.set("bundle.0.controller", how.0).set("bundle.0.reverse", how.1)
}

fn bundle() -> Scene {
    let each = bulk("reno", "20ms");
    Scene::default().with("free", 1, &each).with("stunts", 1, &format!("{each}, connections = 7"))
}

fn alone(&(_, key, value): &(&str, &str, &str), how: How) -> Point {
    with_target(server(&bundle(), how), key, value)
}

fn beside(how: How) -> Point {
    let each = bulk("reno", "20ms");
    let times = format!("start = \"{}s\", stop = \"{}s\"", OTHERS.start, OTHERS.end);
    let others = format!("{each}, connections = {VIDEOS}, {times}");
    let (_, key, value) = TRACES[1];
    with_target(server(&bundle().with("cross", 1, &others), how), key, value)
}

/// For each second that counts: time, target and rate in Mbit/s.
fn seconds(report: &Report) -> Vec<(f64, f64, f64)> {
    let series = free(report).map(|free| free.over_time.as_slice()).unwrap_or_default();
    let known = series.iter().filter(|(t, ..)| *t >= START_S);
    known
        .filter_map(|(t, target, rate)| Some((*t, (*target)?.as_mbit_f64(), rate.as_mbit_f64())))
        .collect()
}

/// The mean over several runs, second by second.
fn together(reports: &[Report]) -> Vec<(f64, f64, f64)> {
    let runs: Vec<_> = reports.iter().map(seconds).collect();
    let Some(first) = runs.first() else { return Vec::new() };
    let mean = |n: usize| runs.iter().filter_map(|run| Some(run.get(n)?.2)).sum::<f64>();
    let count = runs.len() as f64;
    first.iter().enumerate().map(|(n, (t, target, _))| (*t, *target, mean(n) / count)).collect()
}

fn rms(seconds: &[(f64, f64, f64)]) -> f64 {
    let count = seconds.len() as f64;
    let squares: f64 = seconds.iter().map(|(_, target, rate)| (rate - target).powi(2)).sum();
    (squares / count).sqrt() / (seconds.iter().map(|(_, target, _)| target).sum::<f64>() / count)
}

fn panel(y: String, seconds: &[(f64, f64, f64)], peak: f64) -> Panel {
    let line = |name: &str, i, dashed, of: &dyn Fn(&(f64, f64, f64)) -> f64| Line {
        name: name.to_owned(),
        colour: colour(i),
        dashed,
        points: seconds.iter().map(|second| (second.0, of(second))).collect(),
    };
    let lines = vec![
        line("free", 0, false, &|s| s.2),
        line("target", 3, true, &|s| s.1),
        line("adjusted target", 2, true, &|s| s.1 * peak),
    ];
    Panel { x: "time, s".to_owned(), y, marks: Marks::Lines { logarithmic: false, lines } }
}

/// 4/3 of the target: if the window is halved at this peak, its mean is the target.
const PEAK: f64 = 4.0 / 3.0;

fn first_runs<'p>(played: &'p Played, point: &Point) -> &'p [Report] {
    let all = played.of(point);
    &all[..all.len().min(RUNS)]
}

fn judge_10(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for trace in &TRACES {
        for how in PLAYED {
            let (point, of) = (alone(trace, how), format!("{}, `{}`", trace.0, how.0));
            claims.push(Claim::new(
                format!("{of}: mean rate by target"),
                "very close",
                (played.measure(&point, by_target), Unit::Part),
                Band::Within(0.95, 1.05),
            ));
            claims.push(Claim::new(
                format!("{of}: RMS error over 1 s of each run"),
                "-",
                (played.measure(&point, error_rms), Unit::Part),
                Band::AtMost(0.1),
            ));
            let runs = together(first_runs(played, &point));
            claims.push(Claim::new(
                format!("{of}: RMS error over 1 s of the mean of four runs"),
                "very close",
                (Measured(vec![rms(&runs)]), Unit::Part),
                Band::AtMost(0.1),
            ));
            panels.push(panel(format!("{}, {}: Mbit/s", trace.0, how.0), &runs, PEAK));
        }
    }
    let title = "Figure 10: the free connection's rate, mean of the first four seeds";
    Judged { claims, files: vec![chart("figure-10", title, panels)] }
}

/// Seconds with others, and the seconds before them.
fn parts(report: &Report) -> [Vec<(f64, f64, f64)>; 2] {
    let of = |range: &std::ops::Range<f64>| {
        seconds(report).into_iter().filter(|(t, ..)| range.contains(t)).collect()
    };
    [of(&OTHERS), of(&(START_S..OTHERS.start))]
}

fn judge_11(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for how in PLAYED {
        let (point, name) = (beside(how), how.0);
        let ratio = |seconds: &[(f64, f64, f64)]| {
            seconds.iter().map(|s| s.2).sum::<f64>() / seconds.iter().map(|s| s.1).sum::<f64>()
        };
        for (nth, when) in [(1, "before the others"), (0, "beside the others")] {
            claims.push(Claim::new(
                format!("`{name}`: mean rate by target {when}"),
                "relatively well",
                (played.measure(&point, |r| ratio(&parts(r)[nth])), Unit::Part),
                Band::Within(0.9, 1.1),
            ));
        }
        claims.push(Claim::new(
            format!("`{name}`: RMS error beside the others by that before them"),
            "few misses",
            (played.measure(&point, |r| rms(&parts(r)[0]) / rms(&parts(r)[1])), Unit::Times),
            Band::AtLeast(1.0),
        ));
        if let Some(first) = played.of(&point).first() {
            panels.push(panel(format!("{name}: Mbit/s"), &seconds(first), PEAK));
        }
    }
    let title = "Figure 11: others from 330 to 380 s, first seed";
    Judged { claims, files: vec![chart("figure-11", title, panels)] }
}

/// How far the rate is above the target, divided by the mean target, in seconds in which the target
/// has fallen and the rate has to be reduced.
fn error_where_it_falls(report: &Report) -> f64 {
    let seconds = seconds(report);
    // Counts ten seconds after a fall, which is time for several losses.
    let falls = |n: usize| seconds[n.saturating_sub(10)].1 > seconds[n].1 * 1.02;
    let chosen: Vec<_> = (0..seconds.len()).filter(|n| falls(*n)).map(|n| seconds[n]).collect();
    let sum = |of: fn(&(f64, f64, f64)) -> f64| chosen.iter().map(of).sum::<f64>();
    sum(|s| s.2 - s.1) / sum(|s| s.1)
}

fn judge_12(played: &Played) -> Judged {
    let mut claims = Vec::new();
    let mut panels = Vec::new();
    for trace in &TRACES {
        let of = |how| played.measure(&alone(trace, how), error_where_it_falls);
        let more = of(EXACT).with(&of(PAPER), |exact, own| exact - own);
        claims.push(Claim::new(
            format!("{}: mean error where the target falls, exact minus plain", trace.0),
            "higher",
            (more, Unit::Part),
            Band::AtLeast(0.0),
        ));
        let away = |how| of(how).map(|error| (error - (PEAK - 1.0)).abs());
        let nearer = away(EXACT).with(&away(PAPER), |exact, own| exact - own);
        claims.push(Claim::new(
            format!("{}: distance from the adjusted target there, exact minus plain", trace.0),
            "closer",
            (nearer, Unit::Part),
            Band::AtMost(0.0),
        ));
        let line = |name: &str, i, how| Line {
            name: name.to_owned(),
            colour: colour(i),
            dashed: false,
            points: together(first_runs(played, &alone(trace, how)))
                .iter()
                .map(|(t, target, rate)| (*t, rate - target))
                .collect(),
        };
        let lines = vec![line("exact", 0, EXACT), line("plain", 1, PAPER)];
        let y = format!("{}: rate - target, Mbit/s", trace.0);
        let marks = Marks::Lines { logarithmic: false, lines };
        panels.push(Panel { x: "time, s".to_owned(), y, marks });
    }
    let title = "Figure 12: error with exact and plain reverse delegation, mean of four seeds";
    Judged { claims, files: vec![chart("figure-12", title, panels)] }
}
