//! The place where shares are enforced, the length of the queue, and limits of the control.

use fairweir_core::receiver::Enforce;
use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{colour, label_of};

use super::super::claim::{Band, Claim, Unit};
use super::super::draw::{bars, chart, named_bars};
use super::super::play::{Played, Point};
use super::super::read::{error, queue_mean, queue_p99, scored_utilization};
use super::super::{Figure, Judged};
use super::{Claims, DRAWN, all_of};

pub(super) const LATENCY: Figure = Figure {
    number: "latency",
    title: "queue targets and path jitter",
    series: false,
    points: || LATENCIES.map(latency).into_iter().chain(JITTERS.map(jitter)).collect(),
    judge: judge_latency,
};

pub(super) const ENFORCE: Figure = Figure {
    number: "enforce",
    title: "enforcement by windows, by classes and by both",
    series: false,
    points: || ENFORCED.iter().flat_map(|s| Enforce::ALL.map(|by| enforced(s, by))).collect(),
    judge: judge_enforce,
};

pub(super) const LIMITS: Figure = Figure {
    number: "limits",
    title: "traffic without windows, and too many connections",
    series: false,
    points: points_limits,
    judge: judge_limits,
};

const ENFORCED: [&str; 5] =
    ["crab-fig7-short", "crab-fig8-short", "rtts", "weights-5-1-bbr", "quic-vs-tcp"];

fn enforced(scenario: &'static str, by: Enforce) -> Point {
    Point::new(scenario, Control::Fairweir).set("control.enforce", by.name())
}

const LATENCIES: [&str; 5] = ["1ms", "2ms", "5ms", "20ms", "50ms"];
const JITTERS: [&str; 2] = ["2ms", "5ms"];

fn latency(latency: &str) -> Point {
    Point::new("crab-fig7-short", Control::Fairweir).set("control.latency", latency)
}

fn jitter(jitter: &str) -> Point {
    Point::new("crab-fig7-short", Control::Fairweir).set("link.jitter", jitter)
}

/// Five connections on a slow link.
fn slow(control: Control) -> Point {
    Point::new("weights-5-1", control).set("link.rate", "5mbit")
}

/// Two segments for each of these connections are far more than the link can hold.
fn crowd(control: Control) -> Point {
    let point = Point::new("weights-5-1", control).set("link.rate", "2mbit");
    point.set("flow.bulk.connections", 32).set("link.buffer", "1s")
}

/// The ACKs of 30 Mbit/s need more than this rate.
fn narrow_uplink(control: Control) -> Point {
    Point::new("crab-fig7-short", control).set("link.up_rate", "500kbit")
}

fn points_limits() -> Vec<Point> {
    let mut points = all_of(&["quic-vs-tcp", "udp-flood"]);
    for point in [slow, crowd, narrow_uplink] {
        points.extend([Control::None, Control::Wfq, Control::Crab, Control::Fairweir].map(point));
    }
    points
}

// ------------------------------------------------------------------------------------------------

fn judge_enforce(played: &Played) -> Judged {
    let of = |scenario, by, of: fn(&Report) -> f64| played.measure(&enforced(scenario, by), of);
    let told = |scenario, unit: Unit, what: fn(&Report) -> f64| {
        format!("htb {}", of(scenario, Enforce::Htb, what).text(unit))
    };
    let queue = |scenario, by| of(scenario, by, queue_mean);
    let mut claims = Vec::new();
    for scenario in &ENFORCED[..4] {
        let by_htb = queue(scenario, Enforce::Window).by(&queue(scenario, Enforce::Htb));
        claims.push(Claim::new(
            format!("{scenario}: ISP queue, windows relative to classes"),
            told(scenario, Unit::Milliseconds, queue_mean),
            (by_htb, Unit::Part),
            Band::AtMost(0.75),
        ));
    }
    claims.push(Claim::new(
        "quic-vs-tcp: error, windows alone",
        told("quic-vs-tcp", Unit::Error, error),
        (of("quic-vs-tcp", Enforce::Window, error), Unit::Error),
        Band::AtLeast(0.1),
    ));
    claims.push(Claim::new(
        "quic-vs-tcp: error, both",
        told("quic-vs-tcp", Unit::Error, error),
        (of("quic-vs-tcp", Enforce::Auto, error), Unit::Error),
        Band::AtMost(0.01),
    ));
    let panel = |y: &str, unit: f64, what: fn(&Report) -> f64| {
        let kinds = Enforce::ALL.iter().enumerate().map(|(i, &by)| {
            let values = ENFORCED.map(|s| Some(of(s, by, what).map(|v| v * unit)));
            named_bars(by.name(), colour(i), values)
        });
        bars("", y, &ENFORCED.map(|s| s.trim_start_matches("crab-")), kinds.collect())
    };
    let panels =
        vec![panel("ISP queue, mean, ms", 1e3, queue_mean), panel("allocation error", 1.0, error)];
    let title = "Shares enforced by windows, by classes (htb) or by both (auto)";
    Judged { claims, files: vec![chart("figure-enforce", title, panels)] }
}

fn judge_latency(played: &Played) -> Judged {
    let mut claims = Vec::new();
    for text in LATENCIES {
        let of = |of: fn(&Report) -> f64| played.measure(&latency(text), of);
        let wanted: f64 = text.trim_end_matches("ms").parse().unwrap_or(f64::NAN);
        let ratio = of(queue_mean).map(|mean| mean * 1e3 / wanted);
        let queue = Band::Within(0.85, 1.1);
        claims.push(Claim::new(
            format!("latency {text}: mean ISP queue relative to it"),
            "-",
            (ratio, Unit::Part),
            queue,
        ));
        let errs = (of(error), Unit::Error);
        claims.push(Claim::new(format!("latency {text}: error"), "-", errs, Band::AtMost(0.01)));
    }
    for text in JITTERS {
        let of = |of: fn(&Report) -> f64| played.measure(&jitter(text), of);
        let errs = (of(error), Unit::Error);
        claims.push(Claim::new(format!("jitter {text}: error"), "-", errs, Band::AtMost(0.01)));
        let used = (of(scored_utilization), Unit::Part);
        let what = format!("jitter {text}: utilisation");
        claims.push(Claim::new(what, "-", used, Band::AtLeast(0.985)));
    }
    let ms = |of: fn(&Report) -> f64| {
        LATENCIES.map(|text| Some(played.measure(&latency(text), of).map(|s| s * 1e3)))
    };
    let kinds = vec![
        named_bars("mean", colour(0), ms(queue_mean)),
        named_bars("99th percentile", colour(1), ms(queue_p99)),
    ];
    let panels = vec![bars("`latency`", "time in the ISP's queue, ms", &LATENCIES, kinds)];
    let title = "Queue of the ISP in crab-fig7-short, 30 Mbit/s, by the setting latency";
    Judged { claims, files: vec![chart("figure-latency", title, panels)] }
}

fn judge_limits(played: &Played) -> Judged {
    let mut all = Vec::new();
    let mut quic = Claims::new(played, "quic-vs-tcp", |c| Point::new("quic-vs-tcp", c));
    quic.shares(0.01, 0.985);
    all.extend(quic.claims);
    let mut flood = Claims::new(played, "udp-flood", |c| Point::new("udp-flood", c));
    let rate = |group: usize| move |r: &Report| r.summary.groups[group].rate.as_mbit_f64();
    let two_to_one = |r: &Report| rate(0)(r) / rate(1)(r);
    let wanted = Band::Within(1.9, 2.1);
    flood.that("ratio of the others, 2:1", Unit::Times, &two_to_one, wanted);
    let taken = Band::AtMost(6.2);
    flood
        .that("rate of the flood (its share: 6.2)", Unit::Mbit, &rate(2), taken)
        .because(|| "packets dropped behind the ISP's queue have already passed it".to_owned());
    all.extend(flood.claims);
    let mut five = Claims::new(played, "5 connections on 5 Mbit/s", slow);
    five.that("error", Unit::Error, &error, Band::AtMost(0.04)).because(|| {
        "a sixth of the link for four connections is less than their least windows".to_owned()
    });
    all.extend(five.claims);
    let mut many = Claims::new(played, "33 connections on 2 Mbit/s", crowd);
    many.that("error", Unit::Error, &error, Band::AtMost(0.04))
        .because(|| "33 least windows of two segments are 100 kB, 0.4 s of the link".to_owned());
    many.that("ISP queue, mean", Unit::Milliseconds, &queue_mean, Band::AtMost(0.05));
    all.extend(many.claims);
    let mut up = Claims::new(played, "uplink of 0.5 Mbit/s", narrow_uplink);
    up.that("error", Unit::Error, &error, Band::AtMost(0.04)).because(|| {
        let wfq = played.measure(&narrow_uplink(Control::Wfq), error).text(Unit::Error);
        format!("ACKs are late or lost, so that windows are not filled; with wfq {wfq}")
    });
    up.that("ISP queue, mean", Unit::Milliseconds, &queue_mean, Band::AtMost(0.006));
    all.extend(up.claims);
    let names = DRAWN.map(label_of);
    let kinds = ["tcp (weight 5)", "quic (weight 1)"].iter().enumerate().map(|(group, name)| {
        let of = |c| Some(played.measure(&Point::new("quic-vs-tcp", c), rate(group)));
        named_bars(name, colour(group), DRAWN.map(of))
    });
    let panels = vec![bars("", "Mbit/s", &names, kinds.collect())];
    let title = "A download over TCP beside one over QUIC, 30 Mbit/s";
    Judged { claims: all, files: vec![chart("figure-limits", title, panels)] }
}
