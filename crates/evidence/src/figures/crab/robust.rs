//! How robust crab is: RTTs, congestion controls, many groups.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour, colour_of, label_of};

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::play::{Played, Point};
use super::super::read::{rate_between, worst_group};
use super::super::{Figure, Judged};
use super::{PLAIN, bars, bars_of, chart, named_bars};

pub(super) const FIGURE_15: Figure = Figure {
    number: "15",
    title: "weights 1:2 with different RTTs and congestion controls",
    series: true,
    points: || {
        let mut points = Vec::new();
        for control in CONTROLS {
            points.extend(RTTS_MS.map(|ms| with_rtt(control, ms)));
            points.extend(SENDERS.map(|senders| with_senders(control, senders)));
        }
        points
    },
    judge: judge_15,
};

const CONTROLS: [Control; 3] = [Control::None, Control::Crab, Control::Fairweir];
/// RTTs of the second flow.
const RTTS_MS: [u64; 8] = [1, 10, 20, 50, 100, 200, 300, 500];
/// The paper sees mismatches at RTTs above this.
const FAR_MS: u64 = 200;
/// Congestion controls of the first and of the second flow.
const SENDERS: [(&str, &str); 6] = [
    ("cubic", "cubic"),
    ("reno", "cubic"),
    ("cubic", "reno"),
    ("bbr", "cubic"),
    ("cubic", "bbr"),
    VEGAS,
];
const VEGAS: (&str, &str) = ("vegas", "cubic");
/// The second flow's share of the sum of both.
const SHARE: f64 = 2.0 / 3.0;

fn with_rtt(control: Control, ms: u64) -> Point {
    Point::new("crab-fig15", control).set("flow.f2.rtt", format_args!("{ms}ms"))
}

fn with_senders(control: Control, (first, second): (&str, &str)) -> Point {
    let point = Point::new("crab-fig15", control);
    let rtts = ["f1", "f2", "f3"];
    let point = rtts.iter().fold(point, |p, flow| p.set(&format!("flow.{flow}.rtt"), "20ms"));
    point.set("flow.f1.congestion_control", first).set("flow.f2.congestion_control", second)
}

/// The second flow's part of both flows' sum after the third has stopped.
fn second(report: &Report) -> f64 {
    let [first, second] = [0, 1].map(|group| rate_between(group, 40.0, 100.0)(report));
    second / (first + second)
}

fn judge_15(played: &Played) -> Judged {
    let off = |point: &Point| played.measure(point, second).map(|part| (part / SHARE - 1.0).abs());
    let worst = |points: &mut dyn Iterator<Item = Point>| {
        let all = points.map(|point| off(&point));
        let worst = all.reduce(|a, b| a.with(&b, f64::max));
        (worst.unwrap_or(Measured(vec![f64::NAN])), Unit::Part)
    };
    let rtts = |far: bool| RTTS_MS.into_iter().filter(move |&ms| (ms >= FAR_MS) == far);
    let crab = |ms| with_rtt(Control::Crab, ms);
    let senders_of = |control, is_vegas: bool| {
        let chosen = SENDERS.into_iter().filter(move |&pair| (pair == VEGAS) == is_vegas);
        chosen.map(move |pair| with_senders(control, pair))
    };
    let senders = |is_vegas| senders_of(Control::Crab, is_vegas);
    let mut claims = vec![
        Claim::new(
            "deviation of the second flow from its share, RTT up to 100 ms",
            "robust",
            worst(&mut rtts(false).map(crab)),
            Band::AtMost(0.05),
        ),
        Claim::new(
            "the same, RTT 200 to 500 ms",
            "slight mismatch",
            worst(&mut rtts(true).map(crab)),
            Band::AtMost(0.15),
        )
        .because(|| {
            let told = rtts(true).map(|ms| {
                let parts = played.measure(&crab(ms), second);
                format!("{} at {ms} ms", parts.text(Unit::Part))
            });
            let told: Vec<String> = told.collect();
            format!("its fraction is {}, its share 66.7 %", told.join(", "))
        }),
        Claim::new(
            "the same, any of CUBIC, Reno, BBR",
            "robust",
            worst(&mut senders(false)),
            Band::AtMost(0.05),
        ),
        Claim::new(
            "the same, Vegas beside CUBIC",
            "robust",
            worst(&mut senders(true)),
            Band::AtMost(0.05),
        )
        .because(|| {
            let first = |point: &Point| played.measure(point, rate_between(0, 40.0, 100.0));
            let free = first(&with_senders(Control::None, VEGAS));
            format!(
                "by seed f1, which is Vegas, has {} of its 10, without control {}: in a queue that \
                 CUBIC fills it slows down, which can look like a small demand",
                first(&with_senders(Control::Crab, VEGAS)).each(Unit::Mbit),
                free.text(Unit::Mbit)
            )
        }),
    ];
    let fairweir = |ms| with_rtt(Control::Fairweir, ms);
    let beside = |points: &mut dyn Iterator<Item = Point>| worst(points).0.text(Unit::Part);
    for (what, crab, measured, band) in [
        (
            "RTT up to 100 ms",
            beside(&mut rtts(false).map(crab)),
            worst(&mut rtts(false).map(fairweir)),
            Band::AtMost(0.05),
        ),
        (
            "RTT 200 to 500 ms",
            beside(&mut rtts(true).map(crab)),
            worst(&mut rtts(true).map(fairweir)),
            Band::AtMost(0.15),
        ),
        (
            "any of CUBIC, Reno, BBR",
            beside(&mut senders(false)),
            worst(&mut senders_of(Control::Fairweir, false)),
            Band::AtMost(0.05),
        ),
        (
            "Vegas beside CUBIC",
            beside(&mut senders(true)),
            worst(&mut senders_of(Control::Fairweir, true)),
            Band::AtMost(0.05),
        ),
    ] {
        let what = format!("with fairweir: deviation from the share, {what}");
        claims.push(Claim::new(what, format!("crab: {crab}"), measured, band).because(|| {
            let each = rtts(true).chain(rtts(false)).map(|ms| {
                let part = played.measure(&fairweir(ms), second).mean();
                format!("{ms} ms: {}", Unit::Part.number(part))
            });
            let each: Vec<String> = each.collect();
            let all = SENDERS.map(|pair| {
                let part = played.measure(&with_senders(Control::Fairweir, pair), second).mean();
                format!("{}, {}: {}", pair.0, pair.1, Unit::Part.number(part))
            });
            format!("its fraction in %, share 66.7: {}; {}", each.join(", "), all.join("; "))
        }));
    }
    Judged { claims, files: vec![chart_15(played)] }
}

fn chart_15(played: &Played) -> super::File {
    let controls = CONTROLS;
    let mut lines: Vec<Line> = controls
        .map(|control| {
            let at = |ms: u64| (ms as f64, played.measure(&with_rtt(control, ms), second).mean());
            let points = RTTS_MS.map(at).into();
            let name = label_of(control).to_owned();
            Line { name, colour: colour_of(control), dashed: false, points }
        })
        .into();
    let ends = [RTTS_MS[0], RTTS_MS[RTTS_MS.len() - 1]];
    lines.push(Line {
        name: "share by weight".to_owned(),
        colour: "#333",
        dashed: true,
        points: ends.map(|ms| (ms as f64, SHARE)).into(),
    });
    let kinds = controls.map(|control| {
        let part = |pair| Some(played.measure(&with_senders(control, pair), second));
        bars_of(control, SENDERS.map(part))
    });
    let panels = vec![
        Panel {
            x: "RTT of the second flow, ms (first flow: 1 ms)".to_owned(),
            y: "fraction of the second flow".to_owned(),
            marks: Marks::Lines { logarithmic: true, lines },
        },
        bars(
            "congestion control of the first and the second flow",
            "fraction of the second flow",
            &SENDERS.map(|(a, b)| format!("{a}, {b}")),
            kinds.to_vec(),
        ),
    ];
    chart("figure-15", "Figures 15a and 15b: two flows with weights 1 : 2", panels)
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_15C: Figure = Figure {
    number: "15c",
    title: "3 to 24 groups with weights 3:2:1 on 60 Mbit/s",
    series: false,
    points: || COUNTS.map(many).into(),
    judge: judge_15c,
};

const COUNTS: [(usize, &str); 4] =
    [(3, "crab-fig15c-3"), (6, "crab-fig15c-6"), (12, "crab-fig15c-12"), (24, "crab-fig15c-24")];

fn many((_, scenario): (usize, &'static str)) -> Point {
    Point::new(scenario, Control::Crab)
}

fn judge_15c(played: &Played) -> Judged {
    let claims = COUNTS.map(|(count, scenario)| {
        let worst = played.measure(&many((count, scenario)), worst_group);
        Claim::new(
            format!("{count} groups: largest deviation from a share"),
            "the shares by weight",
            (worst, Unit::Part),
            Band::AtMost(0.1),
        )
    });
    // The groups of the same weight are neighbours, the heaviest first.
    let kinds = [3, 2, 1].map(|weight: usize| {
        let mean = |count: (usize, &'static str)| {
            let each = count.0 / 3;
            let first = (3 - weight) * each;
            let rate = move |r: &Report| {
                let groups = &r.summary.groups[first..first + each];
                groups.iter().map(|g| g.rate.as_mbit_f64()).sum::<f64>() / each as f64
            };
            Some(played.measure(&many(count), rate))
        };
        named_bars(&format!("weight {weight}"), colour(3 - weight), COUNTS.map(mean))
    });
    let worst = COUNTS.map(|count| Some(played.measure(&many(count), worst_group)));
    let panels = vec![
        bars("groups", "mean of a group, Mbit/s", &COUNTS.map(|c| c.0), kinds.to_vec()),
        bars(
            "groups",
            "largest deviation from a share",
            &COUNTS.map(|c| c.0),
            vec![named_bars("", PLAIN, worst)],
        ),
    ];
    let title = "Figure 15c: many groups with weights 3 : 2 : 1 on 60 Mbit/s";
    Judged { claims: claims.into(), files: vec![chart("figure-15c", title, panels)] }
}
