//! Films and web pages behind the policer.

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::read::{film, load_median, loads};
use super::{
    BC_PQP, Band, By, Claim, Figure, Judged, POLICER, Played, Point, SHAPER, Unit, bars, chart,
    line, lines, named_bars, scenario,
};

/// A shaper with one queue for all, which operators have today.
const ONE_QUEUE: By = By { name: "one queue", algorithm: "shaper", size: None };
const ALL: [By; 4] = [POLICER, ONE_QUEUE, SHAPER, BC_PQP];

/// Who sends the film, and as whom.
const SENDERS: [(&str, &str); 2] = [("bbr", "YouTube"), ("reno", "Netflix")];

pub(super) const FIGURE_9A: Figure = Figure {
    number: "9a",
    title: "a video beside downloads, 1:1 within 3 Mbit/s and 4:1 within 10 Mbit/s",
    series: false,
    points: || {
        let all = PLANS.into_iter().flat_map(|plan| {
            SENDERS.into_iter().flat_map(move |(cc, _)| ALL.map(|by| watching(by, cc, plan)))
        });
        all.collect()
    },
    judge: judge_9a,
};

/// Rate in Mbit/s, and the film's weight to that of the rest.
const PLANS: [(u64, u64); 2] = [(3, 1), (10, 4)];

fn watching(by: By, congestion_control: &str, (mbit, weight): (u64, u64)) -> Point {
    let point = scenario("bcpqp-fig9-video")
        .set("police.0.rate", format_args!("{mbit}mbit"))
        .set("police.0.class.video.weight", weight)
        .set("flow.video.congestion_control", congestion_control);
    by.at(one_queue(by, point), 0)
}

/// With one queue there are no classes.
fn one_queue(by: By, point: Point) -> Point {
    if by == ONE_QUEUE { point.set("police.0.queue_by", "one") } else { point }
}

fn judge_9a(played: &Played) -> Judged {
    let quality = |by, cc: &str, plan| played.measure(&watching(by, cc, plan), film);
    let part = |by, cc: &str, plan| {
        played.measure(&watching(by, cc, plan), |report: &Report| {
            let rates = report.summary.groups.iter().map(|g| g.rate.as_mbit_f64());
            report.summary.groups[0].rate.as_mbit_f64() / rates.sum::<f64>()
        })
    };
    let mut claims = Vec::new();
    for (cc, name) in SENDERS {
        claims.push(Claim::new(
            format!("{name} ({cc}), 3 Mbit/s 1:1: its fraction of the rate, BC-PQP"),
            "fair",
            (part(BC_PQP, cc, PLANS[0]), Unit::Part),
            Band::Within(0.4, 0.55),
        ));
        for plan in PLANS {
            let (mbit, weight) = plan;
            claims.push(Claim::new(
                format!("{name}, {mbit} Mbit/s {weight}:1: video, BC-PQP relative to the shaper"),
                "as high, or higher",
                (quality(BC_PQP, cc, plan).by(&quality(SHAPER, cc, plan)), Unit::Part),
                Band::AtLeast(0.9),
            ));
        }
    }
    claims.push(Claim::new(
        "Netflix, 10 Mbit/s 4:1: video, BC-PQP relative to one queue",
        "higher",
        (quality(BC_PQP, "reno", PLANS[1]).by(&quality(ONE_QUEUE, "reno", PLANS[1])), Unit::Part),
        Band::AtLeast(1.0),
    ));
    let names = SENDERS.map(|(cc, name)| format!("{name} ({cc})"));
    let panels = PLANS.map(|plan| {
        let kinds = ALL.into_iter().enumerate().map(|(i, by)| {
            named_bars(by.name, colour(i), SENDERS.map(|(cc, _)| Some(quality(by, cc, plan))))
        });
        let y = format!("video at {} Mbit/s {}:1, Mbit/s", plan.0, plan.1);
        bars("", &y, &names, kinds.collect())
    });
    let title = "Figures 9a and 9b: a video beside downloads";
    Judged { claims, files: vec![chart("figure-9a", title, panels.into())] }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_9C: Figure = Figure {
    number: "9c",
    title: "web pages beside a download, 1:1 within 20 Mbit/s",
    series: false,
    points: || ALL.map(browsing).into(),
    judge: judge_9c,
};

fn browsing(by: By) -> Point {
    by.at(one_queue(by, scenario("bcpqp-fig9-web")), 0)
}

fn judge_9c(played: &Played) -> Judged {
    let load = |by| played.measure(&browsing(by), load_median);
    let claims = vec![
        Claim::new(
            "median page load time, one queue relative to BC-PQP",
            "up to 2 times",
            (load(ONE_QUEUE).by(&load(BC_PQP)), Unit::Times),
            Band::AtLeast(1.1),
        )
        .because(|| seconds(played)),
        Claim::new(
            "the policer, relative to BC-PQP",
            "up to 2 times",
            (load(POLICER).by(&load(BC_PQP)), Unit::Times),
            Band::AtLeast(1.0),
        )
        .because(|| seconds(played)),
        Claim::new(
            "BC-PQP, relative to the shaper",
            "-",
            (load(BC_PQP).by(&load(SHAPER)), Unit::Times),
            Band::AtMost(1.25),
        )
        .because(|| seconds(played)),
    ];
    let drawn = ALL.into_iter().enumerate();
    let drawn = drawn.map(|(i, by)| line(by.name, i, loads(played.of(&browsing(by)))));
    let panel = lines("load time, s", "fraction of pages", false, drawn.collect());
    let title = "Figure 9c: web pages beside a download, 20 Mbit/s";
    Judged { claims, files: vec![chart("figure-9c", title, vec![panel])] }
}

fn seconds(played: &Played) -> String {
    let each = ALL.map(|by| {
        let median = played.measure(&browsing(by), load_median);
        format!("{} {}", by.name, median.text(Unit::Seconds))
    });
    each.join(", ")
}
