//! Losses of senders: one drop per epoch instead of a round trip's excess.

use super::{
    Band, Claim, Figure, Judged, Measured, Played, Point, Unit, bars, chart, loss_steady,
    named_bars, rate_ratio, scenario,
};
use fairweir_scenario::report::chart::colour;

pub(super) const LOSSES: Figure = Figure {
    number: "losses",
    title: "losses with soft and hard signalling, 10 Mbit/s, 100 ms, connections in one queue",
    series: false,
    points: || {
        let one_by_one = CONGESTION.into_iter().flat_map(|cc| {
            COUNTS.into_iter().flat_map(move |n| SIGNALS.map(|signal| sharing(cc, n, signal)))
        });
        one_by_one.chain(OTHERS.into_iter().flat_map(|o| SIGNALS.map(|s| other(o, s)))).collect()
    },
    judge,
};

const CONGESTION: [&str; 3] = ["reno", "cubic", "bbr"];
const COUNTS: [u32; 3] = [1, 4, 16];
const SIGNALS: [&str; 2] = ["hard", "soft"];
/// Congestion control, plan in Mbit/s and round trip in ms for which it does not help much.
const OTHERS: [(&str, &str, u64); 3] =
    [("reno", "1.5", 10), ("reno", "7.5", 50), ("reno", "50", 20)];

/// Several connections in one queue.
fn sharing(congestion_control: &str, connections: u32, signal: &str) -> Point {
    scenario("bcpqp-one")
        .set("duration", "120s")
        .set("flow.0.congestion_control", congestion_control)
        .set("flow.0.connections", connections)
        .set("police.0.signal", signal)
}

fn other((congestion_control, mbit, rtt): (&str, &str, u64), signal: &str) -> Point {
    sharing(congestion_control, 1, signal)
        .set("police.0.rate", format_args!("{mbit}mbit"))
        .set("flow.0.rtt", format_args!("{rtt}ms"))
}

fn judge(played: &Played) -> Judged {
    let loss = |point: &Point| played.measure(point, loss_steady);
    let mut claims = Vec::new();
    for (count, most) in COUNTS.into_iter().zip([0.1, 0.5, 1.0]) {
        for cc in ["reno", "cubic"] {
            let [hard, soft] = SIGNALS.map(|signal| loss(&sharing(cc, count, signal)));
            let what = format!("{cc}, {count} in one queue: losses, soft relative to hard");
            let ratio = (soft.by(&hard), Unit::Part);
            let why = || format!("{} and {}", percent(&soft), percent(&hard));
            claims.push(Claim::new(&what, "-", ratio, Band::AtMost(most)).because(why));
            let what = format!("{cc}, {count} in one queue, soft: rate, relative to the plan");
            let rate = (played.measure(&sharing(cc, count, "soft"), rate_ratio), Unit::Part);
            claims.push(Claim::new(&what, "-", rate, Band::AtLeast(0.99)));
        }
    }
    let names: Vec<String> = COUNTS.iter().map(ToString::to_string).collect();
    let panel = |cc: &'static str| {
        let kinds = SIGNALS.iter().enumerate().map(|(i, signal)| {
            let of = COUNTS.map(|n| Some(loss(&sharing(cc, n, signal)).map(|v| v * 100.0)));
            named_bars(signal, colour(i), of)
        });
        let x = format!("{cc}, connections in one queue");
        bars(&x, "loss, %", &names, kinds.collect())
    };
    let mut panels: Vec<_> = CONGESTION.into_iter().map(panel).collect();
    let kinds = SIGNALS.iter().enumerate().map(|(i, signal)| {
        let of = OTHERS.map(|o| Some(loss(&other(o, signal)).map(|v| v * 100.0)));
        named_bars(signal, colour(i), of)
    });
    let names = OTHERS.map(|(cc, mbit, rtt)| format!("{cc} {mbit} Mbit/s {rtt} ms"));
    panels.push(bars("alone", "loss, %", &names, kinds.collect()));
    let title = "Losses with soft and hard signalling";
    Judged { claims, files: vec![chart("figure-losses", title, panels)] }
}

fn percent(measured: &Measured) -> String {
    let mean = measured.mean();
    if mean.is_nan() { "nothing".to_owned() } else { format!("{:.3} %", mean * 100.0) }
}
