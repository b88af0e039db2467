//! Rates that pass, and the bursts in them.

use fairweir_scenario::report::Report;

use super::super::read::rate_between;
use super::{
    BC_PQP, Band, By, Claim, Figure, Judged, POLICER, POLICER_PLUS, PQP, Played, Point, SHAPER,
    Unit, bars, chart, least, line, lines, loss, loss_steady, most, named_bars, rate_ratio,
    scenario, start_up, window_p99,
};
use fairweir_scenario::report::chart::colour;

/// Reno alone at 10 Mbit/s and 100 ms.
fn reno(by: By) -> Point {
    by.at(scenario("bcpqp-one"), 0)
}

fn within_2_percent() -> Band {
    Band::Within(0.98, 1.02)
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_1: Figure = Figure {
    number: "1",
    title: "mean rate and bursts by size of the bucket",
    series: false,
    points: || {
        let sized = BUCKETS.iter().map(|(size, _)| bucket(size));
        let bursts = [POLICER, POLICER_PLUS, BC_PQP, SHAPER].map(near);
        sized.chain([reno(BC_PQP), reno(SHAPER)]).chain(bursts).collect()
    },
    judge: judge_1,
};

/// Buckets, and their sizes in kB at 10 Mbit/s and 100 ms.
const BUCKETS: [(&str, f64); 7] = [
    ("0.25bdp", 31.25),
    ("0.5bdp", 62.5),
    ("bdp", 125.0),
    ("2bdp", 250.0),
    ("1reno", 578.7),
    ("1.5reno", 868.1),
    ("3reno", 1_736.1),
];

fn bucket(size: &'static str) -> Point {
    let size = Some(("burst", size));
    reno(By { name: "policer", algorithm: "token-bucket", size })
}

/// A flow with a short round trip under a higher rate.
fn near(by: By) -> Point {
    by.at(scenario("bcpqp-one"), 0).set("police.0.rate", "50mbit").set("flow.0.rtt", "10ms")
}

fn judge_1(played: &Played) -> Judged {
    let rate = |point: &Point| (played.measure(point, rate_ratio), Unit::Part);
    let burst = |by| (played.measure(&near(by), start_up), Unit::Times);
    let claims = vec![
        Claim::new(
            "Reno, 10 Mbit/s, 100 ms: mean rate, relative to the plan, bucket of 1 BDP",
            "lower than the desired one",
            rate(&bucket("bdp")),
            Band::AtMost(0.95),
        ),
        Claim::new("bucket of 1.5 BDP²/18", "right", rate(&bucket("1.5reno")), within_2_percent()),
        Claim::new("BC-PQP", "right", rate(&reno(BC_PQP)), within_2_percent()),
        Claim::new(
            "50 Mbit/s, 10 ms: highest rate over 250 ms at the start, relative to the rate, bucket of 1.5 BDP²/18",
            "orders of magnitude",
            burst(POLICER_PLUS),
            Band::AtLeast(5.0),
        ),
        Claim::new("BC-PQP", "10 times smaller", burst(BC_PQP), Band::AtMost(3.0)),
    ];
    let by_size = |of: fn(&Report) -> f64| -> Vec<(f64, f64)> {
        let of = |(size, kb): &(&'static str, f64)| (*kb, played.measure(&bucket(size), of).mean());
        BUCKETS.iter().map(of).collect()
    };
    let flat = |by: By, i, of: fn(&Report) -> f64| {
        let value = played.measure(&reno(by), of).mean();
        line(by.name, i, vec![(BUCKETS[0].1, value), (BUCKETS[6].1, value)])
    };
    let panel = |y: &str, of: fn(&Report) -> f64| {
        let all = vec![line("policer", 0, by_size(of)), flat(BC_PQP, 1, of), flat(SHAPER, 2, of)];
        lines("bucket, kB", y, true, all)
    };
    let panels = vec![
        panel("mean rate, relative to the plan", rate_ratio),
        panel("highest rate over 250 ms at the start, relative to the rate", start_up),
    ];
    let title = "Figure 1: Reno by size of the bucket, 10 Mbit/s, 100 ms";
    Judged { claims, files: vec![chart("figure-1", title, panels)] }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_3: Figure = Figure {
    number: "3",
    title: "deviation from the plan over any time span (theorem 1)",
    series: false,
    points: || vec![queue("1000kB")],
    judge: judge_3,
};

/// Reno behind a phantom queue of this size.
fn queue(size: &'static str) -> Point {
    let size = Some(("queue", size));
    reno(By { name: "PQP", algorithm: "pqp", size }).set("duration", "120s")
}

/// The size of the queue, divided by what 10 Mbit/s carry in a second.
const QUEUE_BY_RATE: f64 = 1_000_000.0 / 1_250_000.0;

/// The largest deviation from what the rate carries, as a multiple of the queue.
fn deviation(report: &Report) -> f64 {
    let envelope = report.summary.policed.first().map(|p| p.envelope.as_slice());
    let off = |&(span, least, most): &(f64, f64, f64)| {
        f64::max(most - 1.0, 1.0 - least) * span / QUEUE_BY_RATE
    };
    let all = envelope.unwrap_or_default().iter().map(off);
    all.reduce(f64::max).unwrap_or(f64::NAN)
}

fn judge_3(played: &Played) -> Judged {
    let point = queue("1000kB");
    let claims = vec![Claim::new(
        "largest deviation over any span of 50 ms to 40 s, relative to the queue",
        "never more than 1",
        (played.measure(&point, deviation), Unit::Times),
        Band::AtMost(1.0),
    )];
    let report = played.of(&point).first();
    let policed = report.and_then(|r| r.summary.policed.first());
    let envelope = policed.map(|p| p.envelope.clone()).unwrap_or_default();
    let measured = |of: fn(&(f64, f64, f64)) -> f64| -> Vec<(f64, f64)> {
        envelope.iter().map(|e| (e.0, of(e))).collect()
    };
    let bound = |sign: f64| -> Vec<(f64, f64)> {
        let at = |e: &(f64, f64, f64)| (e.0, (1.0 + sign * QUEUE_BY_RATE / e.0).clamp(0.0, 3.0));
        envelope.iter().map(at).collect()
    };
    let dashed = |mut line: fairweir_scenario::report::chart::Line| {
        line.dashed = true;
        line
    };
    let all = vec![
        line("the most", 0, measured(|e| e.2)),
        line("the least", 1, measured(|e| e.1)),
        dashed(line("theorem 1", 2, bound(1.0))),
        dashed(line("theorem 1", 2, bound(-1.0))),
    ];
    let panel = lines("span, s", "rate over the span, relative to the plan", true, all);
    let title = "Figure 3: Reno, 10 Mbit/s, 100 ms, a phantom queue of 1000 kB";
    Judged { claims, files: vec![chart("figure-3", title, vec![panel])] }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_4: Figure = Figure {
    number: "4",
    title: "Reno behind phantom queues of different sizes",
    series: false,
    points: || SIZES.iter().chain(&PARTS.map(|(size, _)| size)).map(|size| queue(size)).collect(),
    judge: judge_4,
};

const SIZES: [&str; 3] = ["130kB", "1000kB", "4000kB"];
/// Queues in parts of BDP²/18, each with the rate divided by the plan's that a separate simulation
/// gave for a paced sender.
const PARTS: [(&str, f64); 4] =
    [("0.25reno", 0.84), ("0.5reno", 0.922), ("1reno", 0.97), ("1.5reno", 0.998)];

/// The part of the steady windows of 250 ms that end with an empty phantom queue. The queue holds what its rate
/// carries in `queue_s`: packets accepted in a window fill it, and the rate drains it.
fn empty_part(queue_s: f64) -> impl Fn(&Report) -> f64 {
    const WINDOW_S: f64 = 0.25;
    move |report| {
        let Some(policed) = report.summary.policed.first() else { return f64::NAN };
        let (mut backlog_s, mut steady, mut empty) = (0.0_f64, 0, 0);
        for (ratio, is_steady) in policed.over_time.iter().zip(&policed.is_steady) {
            backlog_s = (backlog_s + (ratio - 1.0) * WINDOW_S).clamp(0.0, queue_s);
            if *is_steady {
                steady += 1;
                empty += u32::from(backlog_s == 0.0);
            }
        }
        f64::from(empty) / f64::from(steady)
    }
}

fn judge_4(played: &Played) -> Judged {
    let rate = |size| (played.measure(&queue(size), rate_ratio), Unit::Part);
    let burst = |size| played.measure(&queue(size), start_up);
    let lost = |size| played.measure(&queue(size), loss);
    let law = 1.0 / (2.0 * 125_000.0 / 1_500.0);
    let mut claims = vec![
        Claim::new(
            "rate, relative to the plan, 130 kB",
            "too low",
            rate("130kB"),
            Band::AtMost(0.93),
        ),
        Claim::new(
            "rate, relative to the plan, 1000 kB",
            "right",
            rate("1000kB"),
            within_2_percent(),
        ),
        Claim::new(
            "rate, relative to the plan, 4000 kB",
            "right",
            rate("4000kB"),
            within_2_percent(),
        ),
        Claim::new(
            "burst at the start, 4000 kB relative to 130 kB",
            "very large",
            (burst("4000kB").by(&burst("130kB")), Unit::Times),
            Band::AtLeast(2.0),
        ),
        Claim::new(
            "loss, 1000 kB, relative to 1/(2 · BDP)",
            "-",
            (played.measure(&queue("1000kB"), |r| loss_steady(r) / law), Unit::Part),
            Band::Within(0.9, 1.1),
        ),
    ];
    for (size, queue_s, told, band) in [
        ("130kB", 0.104, "often", Band::AtLeast(0.05)),
        ("1000kB", 0.8, "never", Band::AtMost(0.0)),
        ("4000kB", 3.2, "never", Band::AtMost(0.0)),
    ] {
        let empty = played.measure(&queue(size), empty_part(queue_s));
        let what = format!("steady windows of 250 ms that end with an empty queue, {size}");
        claims.push(Claim::new(&what, format!("{told} (4b)"), (empty, Unit::Part), band));
    }
    claims.extend(["1000kB", "4000kB"].map(|size| {
        let what = format!("loss in 120 s with the start, {size} relative to 130kB");
        let ratio = (lost(size).by(&lost("130kB")), Unit::Times);
        Claim::new(&what, "higher (4d)", ratio, Band::AtLeast(1.0))
    }));
    claims.extend(PARTS.map(|(size, expected)| {
        let what =
            format!("rate, relative to the plan, {} of BDP²/18", size.trim_end_matches("reno"));
        let beside = format!("{:.1} % in another simulation", expected * 100.0);
        Claim::new(&what, &beside, rate(size), Band::Within(expected - 0.03, expected + 0.03))
    }));
    let over_time = |(i, size): (usize, &&'static str)| {
        let first = played.of(&queue(size)).first();
        let windows = first.and_then(|r| r.summary.policed.first()).map(|p| p.over_time.clone());
        let windows = windows.unwrap_or_default();
        let at = |(n, ratio): (usize, &f64)| (n as f64 * 0.25, *ratio);
        line(size, i, windows.iter().take(240).enumerate().map(at).collect())
    };
    let shown = SIZES.iter().enumerate().map(over_time).collect();
    let of_sizes = |of: fn(&Report) -> f64| {
        let bars_of = SIZES.map(|size| Some(played.measure(&queue(size), of)));
        vec![named_bars("PQP", colour(0), bars_of)]
    };
    let panels = vec![
        lines("time, s", "rate over 250 ms, relative to the plan", false, shown),
        bars("", "mean rate, relative to the plan", &SIZES, of_sizes(rate_ratio)),
        bars("", "loss while steady", &SIZES, of_sizes(loss_steady)),
        bars("", "loss with the start", &SIZES, of_sizes(loss)),
    ];
    let title = "Figure 4: Reno, 10 Mbit/s, 100 ms, phantom queues without burst control";
    Judged { claims, files: vec![chart("figure-4", title, panels)] }
}

// ------------------------------------------------------------------------------------------------

pub(super) const RATES: Figure = Figure {
    number: "rates",
    title: "one download alone, at every rate, round trip and congestion control",
    series: false,
    points: || {
        let all = [BC_PQP, POLICER, PQP].into_iter().flat_map(|by| {
            CONGESTION.into_iter().flat_map(move |cc| {
                MBIT.into_iter().flat_map(move |mbit| RTTS_MS.map(|rtt| alone(by, cc, mbit, rtt)))
            })
        });
        all.collect()
    },
    judge: judge_rates,
};

const CONGESTION: [&str; 4] = ["reno", "cubic", "bbr", "vegas"];
const MBIT: [&str; 6] = ["1.5", "7.5", "25", "50", "100", "200"];
const RTTS_MS: [u64; 3] = [2, 10, 50];

fn alone(by: By, congestion_control: &str, mbit: &str, rtt_ms: u64) -> Point {
    by.at(scenario("bcpqp-one"), 0)
        .set("duration", "40s")
        .set("police.0.queues", 16)
        .set("police.0.rate", format_args!("{mbit}mbit"))
        .set("flow.0.congestion_control", congestion_control)
        .set("flow.0.rtt", format_args!("{rtt_ms}ms"))
}

fn judge_rates(played: &Played) -> Judged {
    let of_all = |by: By, cc: &'static str| -> Vec<Point> {
        let at = |mbit: &'static str| RTTS_MS.map(|rtt| alone(by, cc, mbit, rtt));
        MBIT.into_iter().flat_map(at).collect()
    };
    let mut claims = Vec::new();
    for cc in CONGESTION {
        let points = of_all(BC_PQP, cc);
        let off = |report: &Report| (rate_ratio(report) - 1.0).abs();
        let worst = || above(played, &points, 0.02, off);
        let what = format!("{cc}: largest deviation of the mean rate from the plan");
        let off = (most(played, &points, off), Unit::Part);
        claims.push(Claim::new(&what, "accurate", off, Band::AtMost(0.02)).because(worst));
        let what =
            format!("{cc}: worst 99th percentile over windows of 250 ms, relative to the rate");
        let p99 = (most(played, &points, window_p99), Unit::Times);
        claims.push(
            Claim::new(&what, "small", p99, Band::AtMost(1.5))
                .because(|| above(played, &points, 1.5, window_p99)),
        );
        let what = format!("{cc}: highest rate over 250 ms at the start, relative to the rate");
        let start = (most(played, &points, start_up), Unit::Times);
        claims.push(Claim::new(&what, "small", start, Band::AtMost(3.0)));
    }
    let far: Vec<Point> =
        MBIT.into_iter().skip(2).map(|mbit| alone(POLICER, "reno", mbit, 50)).collect();
    claims.push(Claim::new(
        "for comparison a bucket of 1 BDP, Reno, 50 ms, from 25 Mbit/s: best mean rate, relative to the plan",
        "lower than desired",
        (most(played, &far, rate_ratio), Unit::Part),
        Band::AtMost(0.95),
    ));
    let near: Vec<Point> =
        MBIT.into_iter().skip(3).map(|mbit| alone(PQP, "cubic", mbit, 10)).collect();
    claims.push(Claim::new(
        "for comparison phantom queues without burst control, CUBIC, 10 ms, from 50 Mbit/s: least burst",
        "very large",
        (least(played, &near, start_up), Unit::Times),
        Band::AtLeast(5.0),
    ));
    let panels = CONGESTION.map(|cc| {
        let of_rtt = |(i, rtt): (usize, &u64)| {
            let at = |mbit: &&'static str| {
                let rate = played.measure(&alone(BC_PQP, cc, mbit, *rtt), rate_ratio).mean();
                (mbit.parse().unwrap_or(f64::NAN), rate)
            };
            line(&format!("{rtt} ms"), i, MBIT.iter().map(at).collect())
        };
        let all = RTTS_MS.iter().enumerate().map(of_rtt).collect();
        lines(&format!("{cc}: plan, Mbit/s"), "mean rate, relative to the plan", true, all)
    });
    let title = "One download alone behind BC-PQP";
    Judged { claims, files: vec![chart("figure-rates", title, panels.into())] }
}

/// The points above a number, the worst first, as text.
fn above(played: &Played, points: &[Point], most: f64, of: impl Fn(&Report) -> f64) -> String {
    let mean = |point: &Point| played.measure(point, &of).mean();
    let mut all: Vec<(f64, &Point)> = points.iter().map(|point| (mean(point), point)).collect();
    all.retain(|(value, _)| *value > most);
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let count = all.len();
    let shown = all.iter().take(POINTS_SHOWN).map(|(value, point)| {
        let keys = ["rate", "rtt", "connections"].into_iter().filter_map(|key| {
            let set = point.set.iter().filter_map(|set| set.split_once('='));
            let mut found = set.filter(|(k, _)| k.rsplit('.').next() == Some(key));
            found.next().map(|(_, value)| value)
        });
        format!("{}: {value:.3}", keys.collect::<Vec<_>>().join(" "))
    });
    format!("{count} of {}: {}", points.len(), shown.collect::<Vec<_>>().join(", "))
}

/// The most points that are listed: more would fill a page.
const POINTS_SHOWN: usize = 6;

// ------------------------------------------------------------------------------------------------

pub(super) const STARTS: Figure = Figure {
    number: "starts",
    title: "many flows that start at once; a flood and a new flow",
    series: true,
    points: || {
        let starts = COUNTS.into_iter().flat_map(|n| START_MBIT.map(|mbit| starting(n, mbit)));
        starts.chain([newcomer()]).collect()
    },
    judge: judge_starts,
};

const COUNTS: [u32; 3] = [1, 16, 64];
const START_MBIT: [&str; 4] = ["1.5", "7.5", "50", "200"];

fn starting(connections: u32, mbit: &str) -> Point {
    scenario("bcpqp-one")
        .set("duration", "30s")
        .set("police.0.queues", 64)
        .set("police.0.rate", format_args!("{mbit}mbit"))
        .set("flow.0.connections", connections)
        .set("flow.0.congestion_control", "cubic")
        .set("flow.0.rtt", "20ms")
}

fn newcomer() -> Point {
    scenario("bcpqp-newcomer")
}

fn judge_starts(played: &Played) -> Judged {
    let mut claims: Vec<Claim> = COUNTS
        .map(|count| {
            let points = START_MBIT.map(|mbit| starting(count, mbit));
            let what =
                format!("{count} flows at once, 1.5 to 200 Mbit/s: highest rate over 250 ms, relative to the rate");
            let most = (most(played, &points, start_up), Unit::Times);
            let why = || above(played, &points, 3.0, start_up);
            Claim::new(&what, "-", most, Band::AtMost(3.0)).because(why)
        })
        .into();
    let mbit = |group, from, to| {
        let measured = played.measure(&newcomer(), rate_between(group, from, to));
        (measured.map(|rate| rate / 10.0), Unit::Part)
    };
    let near_all = Band::Within(0.95, 1.05);
    claims.push(Claim::new(
        "a flood of 1.4 times the rate: its rate in the second second",
        "-",
        mbit(0, 1.0, 2.0),
        near_all,
    ));
    claims.push(Claim::new(
        "a new flow beside it: its rate in the second second",
        "half",
        mbit(1, 21.0, 22.0),
        Band::Within(0.45, 0.55),
    ));
    claims.push(Claim::new("after that", "half", mbit(1, 22.0, 40.0), Band::Within(0.49, 0.51)));
    let bars_of = |count: u32| {
        let of = START_MBIT.map(|mbit| Some(played.measure(&starting(count, mbit), start_up)));
        let i = COUNTS.iter().position(|c| *c == count).unwrap_or(0);
        named_bars(&format!("{count} flows"), colour(i), of)
    };
    let kinds = COUNTS.map(bars_of).into();
    let panels = vec![bars(
        "plan, Mbit/s",
        "highest rate over 250 ms, relative to the rate",
        &START_MBIT,
        kinds,
    )];
    let mut files = vec![chart("figure-starts", "Flows that start at once", panels)];
    files.extend(super::super::draw::over_time("figure-newcomer", &[newcomer()], played));
    Judged { claims, files }
}
