//! Films and web pages behind the policer.

use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::File;
use super::super::draw::over_time;
use super::super::read::{film, jain, load_median, loads};
use super::{
    BC_PQP, Band, By, Claim, Figure, Judged, Measured, POLICER, Played, Point, SHAPER, Unit, bars,
    chart, larger, line, lines, named_bars, scenario,
};

/// A shaper with one queue for all traffic, as operators have today.
const ONE_QUEUE: By = By { name: "one queue", algorithm: "shaper", size: None };
const ALL: [By; 4] = [POLICER, ONE_QUEUE, SHAPER, BC_PQP];

/// The senders of the film, and their names.
const SENDERS: [(&str, &str); 2] = [("bbr", "YouTube"), ("reno", "Netflix")];

pub(super) const FIGURE_9A: Figure = Figure {
    number: "9a",
    title: "a video beside downloads, 1:1 within 3 Mbit/s",
    series: false,
    points: || all_with(PLANS[0]),
    judge: judge_9a,
};

pub(super) const FIGURE_9B: Figure = Figure {
    number: "9b",
    title: "a video beside downloads, 4:1 within 10 Mbit/s",
    series: false,
    points: || all_with(PLANS[1]),
    judge: judge_9b,
};

/// Rate in Mbit/s, and the film's weight relative to the rest.
type Plan = (u64, u64);
const PLANS: [Plan; 2] = [(3, 1), (10, 4)];
/// "Netflix caps the video quality at 720p on web browsers" (§6.5.1): the rungs up to that.
const NETFLIX: &str = r#"["300kbit", "750kbit", "1.2mbit", "2.5mbit"]"#;

fn all_with(plan: Plan) -> Vec<Point> {
    SENDERS.into_iter().flat_map(|(cc, _)| ALL.map(|by| watching(by, cc, plan))).collect()
}

fn watching(by: By, congestion_control: &str, (mbit, weight): Plan) -> Point {
    let point = scenario("bcpqp-fig9-video")
        .set("police.0.rate", format_args!("{mbit}mbit"))
        .set("police.0.class.video.weight", weight)
        .set("flow.video.congestion_control", congestion_control);
    let is_netflix = congestion_control == SENDERS[1].0;
    let point = if is_netflix { point.set("flow.video.ladder", NETFLIX) } else { point };
    by.at(one_queue(by, point), 0)
}

/// Turns classes off for a shaper with one queue.
fn one_queue(by: By, point: Point) -> Point {
    if by == ONE_QUEUE { point.set("police.0.queue_by", "one") } else { point }
}

/// The video's part of the sum of both groups' rates.
fn part(report: &Report) -> f64 {
    let rates = report.summary.groups.iter().map(|g| g.rate.as_mbit_f64());
    report.summary.groups[0].rate.as_mbit_f64() / rates.sum::<f64>()
}

/// Jain's index of the rates of the video and the rest.
fn fairness(report: &Report) -> f64 {
    jain(&report.summary.groups.iter().map(|g| g.rate.as_mbit_f64()).collect::<Vec<_>>())
}

/// The video's results with each way of enforcing the rate.
fn all_ways(played: &Played, cc: &str, plan: Plan) -> String {
    let each = ALL.map(|by| {
        let of = |of: fn(&Report) -> f64| played.measure(&watching(by, cc, plan), of);
        format!(
            "{} {} ({} of the rate)",
            by.name,
            of(film).text(Unit::Mbit),
            of(part).text(Unit::Part)
        )
    });
    each.join(", ")
}

fn judge_9a(played: &Played) -> Judged {
    let plan = PLANS[0];
    let of = |by, cc: &str, of: fn(&Report) -> f64| played.measure(&watching(by, cc, plan), of);
    let mut claims = Vec::new();
    for (cc, name) in SENDERS {
        let why = || all_ways(played, cc, plan);
        for (by, told, band) in [
            (BC_PQP, "fair", Band::AtLeast(0.95)),
            (SHAPER, "fair", Band::AtLeast(0.95)),
            (ONE_QUEUE, "not fair", Band::AtMost(0.9)),
            (POLICER, "not fair", Band::AtMost(0.9)),
        ] {
            let what = format!("{name} ({cc}), {}: Jain's index of video and rest", by.name);
            let measured = (of(by, cc, fairness), Unit::Error);
            claims.push(Claim::new(what, told, measured, band).because(why));
        }
        claims.push(
            Claim::new(
                format!("{name}: video, BC-PQP relative to the shaper"),
                "as high, or higher",
                (of(BC_PQP, cc, film).by(&of(SHAPER, cc, film)), Unit::Part),
                Band::AtLeast(0.9),
            )
            .because(why),
        );
    }
    let (youtube, name) = SENDERS[0];
    claims.push(
        Claim::new(
            format!("{name}: video, the shaper relative to BC-PQP"),
            "suffers",
            (of(SHAPER, youtube, film).by(&of(BC_PQP, youtube, film)), Unit::Part),
            Band::AtMost(0.9),
        )
        .because(|| all_ways(played, youtube, plan)),
    );
    let title = "Figure 9a: a video beside downloads, 1:1 within 3 Mbit/s";
    Judged { claims, files: vec![draw_9(played, "figure-9a", title, plan)] }
}

fn judge_9b(played: &Played) -> Judged {
    let plan = PLANS[1];
    let quality = |by, cc: &str| played.measure(&watching(by, cc, plan), film);
    let [(youtube, _), (netflix, _)] = SENDERS;
    let mut claims = Vec::new();
    for by in [POLICER, ONE_QUEUE, SHAPER] {
        claims.push(
            Claim::new(
                format!("Netflix: video, {} relative to BC-PQP", by.name),
                "similar",
                (quality(by, netflix).by(&quality(BC_PQP, netflix)), Unit::Part),
                Band::Within(0.95, 1.05),
            )
            .because(|| all_ways(played, netflix, plan)),
        );
    }
    for by in [POLICER, ONE_QUEUE, SHAPER] {
        claims.push(
            Claim::new(
                format!("YouTube: video, BC-PQP relative to {}", by.name),
                "higher",
                (quality(BC_PQP, youtube).by(&quality(by, youtube)), Unit::Part),
                Band::AtLeast(1.0),
            )
            .because(|| all_ways(played, youtube, plan)),
        );
    }
    let title = "Figure 9b: a video beside downloads, 4:1 within 10 Mbit/s";
    Judged { claims, files: vec![draw_9(played, "figure-9b", title, plan)] }
}

fn draw_9(played: &Played, name: &str, title: &str, plan: Plan) -> File {
    let names = SENDERS.map(|(cc, name)| format!("{name} ({cc})"));
    let panel = |y: &str, of: fn(&Report) -> f64| {
        let kinds = ALL.into_iter().enumerate().map(|(i, by)| {
            let of = SENDERS.map(|(cc, _)| Some(played.measure(&watching(by, cc, plan), of)));
            named_bars(by.name, colour(i), of)
        });
        bars("", y, &names, kinds.collect())
    };
    let panels =
        vec![panel("video, Mbit/s", film), panel("Jain's index of video and rest", fairness)];
    chart(name, title, panels)
}

// ------------------------------------------------------------------------------------------------

/// One YouTube video over time (appendix B).
pub(super) const FIGURE_10: Figure = Figure {
    number: "10",
    title: "a video of YouTube over time, 3 Mbit/s",
    series: true,
    points: || ALL.map(|by| watching(by, SENDERS[0].0, PLANS[0])).into(),
    judge: |played| judge_over_time(played, "figure-10", PLANS[0]),
};

pub(super) const FIGURE_11: Figure = Figure {
    number: "11",
    title: "a video of YouTube over time, 10 Mbit/s",
    series: true,
    points: || ALL.map(|by| watching(by, SENDERS[0].0, PLANS[1])).into(),
    judge: |played| judge_over_time(played, "figure-11", PLANS[1]),
};

fn judge_over_time(played: &Played, name: &str, plan: Plan) -> Judged {
    let cc = SENDERS[0].0;
    let of = |by, of: fn(&Report) -> f64| played.measure(&watching(by, cc, plan), of);
    let why = || all_ways(played, cc, plan);
    let claims = vec![
        Claim::new(
            "the policer: the video's part of the rate",
            "hogs most of it",
            (of(POLICER, part), Unit::Part),
            Band::AtLeast(0.5),
        )
        .because(why),
        Claim::new(
            "the policer: video, relative to BC-PQP",
            "high quality",
            (of(POLICER, film).by(&of(BC_PQP, film)), Unit::Part),
            Band::AtLeast(0.9),
        )
        .because(why),
        Claim::new(
            "one queue: the video's part of the rate, relative to the policer",
            "not as aggressive",
            (of(ONE_QUEUE, part).by(&of(POLICER, part)), Unit::Part),
            Band::AtMost(0.9),
        )
        .because(why),
        Claim::new(
            "the shaper: video, relative to BC-PQP",
            "still suffers",
            (of(SHAPER, film).by(&of(BC_PQP, film)), Unit::Part),
            Band::AtMost(0.9),
        )
        .because(why),
    ];
    let drawn = |by: By| {
        let name = format!("{name}-{}", by.name.replace(' ', "-"));
        over_time(&name, &[watching(by, cc, plan)], played)
    };
    Judged { claims, files: ALL.into_iter().flat_map(drawn).collect() }
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

/// A percentile of the load times of pages.
fn load_percentile(percent: usize) -> impl Fn(&Report) -> f64 {
    move |report| {
        let all = loads(std::slice::from_ref(report));
        let index = crate::rank(all.len(), percent as f64 / 100.0).checked_sub(1);
        index.and_then(|i| all.get(i)).map_or(f64::NAN, |(load, _)| *load)
    }
}

/// By how much a baseline is slower at most, over the 10th to the 90th percentile.
fn slower_at_most(played: &Played, by: By) -> Measured {
    let each = [10, 20, 30, 40, 50, 60, 70, 80, 90].map(|percent| {
        let of = |by| played.measure(&browsing(by), load_percentile(percent));
        of(by).by(&of(BC_PQP))
    });
    each.into_iter().reduce(|a, b| a.with(&b, larger)).unwrap_or(Measured(Vec::new()))
}

fn judge_9c(played: &Played) -> Judged {
    let load = |by| played.measure(&browsing(by), load_median);
    let mut claims = Vec::new();
    for (by, least) in [(ONE_QUEUE, 1.1), (POLICER, 1.0)] {
        claims.push(
            Claim::new(
                format!("median page load time, {} relative to BC-PQP", by.name),
                "up to 2 times",
                (load(by).by(&load(BC_PQP)), Unit::Times),
                Band::AtLeast(least),
            )
            .because(|| seconds(played)),
        );
        claims.push(
            Claim::new(
                format!("{} relative to BC-PQP, the percentile of 10 to 90 with the most", by.name),
                "up to 2 times",
                (slower_at_most(played, by), Unit::Times),
                Band::AtLeast(2.0),
            )
            .because(|| seconds(played)),
        );
    }
    claims.push(
        Claim::new(
            "median page load time, BC-PQP relative to the shaper",
            "-",
            (load(BC_PQP).by(&load(SHAPER)), Unit::Times),
            Band::AtMost(1.25),
        )
        .because(|| seconds(played)),
    );
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
