//! A film during two long downloads.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{colour, label_of};

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::play::{Played, Point};
use super::super::read::{film, part, rate_between, utilization};
use super::super::{Figure, Judged};
use super::{PLAIN, bars, bars_of, chart, named_bars, over_time};

/// The least change that counts where the paper says that something is slightly better or worse.
pub(super) const SLIGHTLY: f64 = 0.001;
/// Lengths of seven films. Source: CRAB §5.2, one minute to ten; those between are ours.
const FILMS_S: [u64; 7] = [60, 120, 180, 240, 300, 420, 600];
/// Length of the film whose rates are drawn over time.
const DRAWN_S: u64 = 300;
/// Weights of the film and of the downloads.
const WEIGHTS: [(u32, u32); 3] = [(5, 1), (1, 1), (1, 5)];

/// Keys that differ from the scenario's, with their values.
pub(super) type More = &'static [(&'static str, &'static str)];

/// A film of some seconds, played with a control.
fn one(control: Control, (video, bulk): (u32, u32), seconds: u64) -> Point {
    Point::new("crab-fig9", control)
        .set("duration", format_args!("{seconds}s"))
        .set("flow.video.length", format_args!("{seconds}s"))
        .set("group.video.weight", video)
        .set("group.bulk.weight", bulk)
}

/// All films, with further overrides.
pub(super) fn all(control: Control, weights: (u32, u32), more: More) -> Vec<Point> {
    let with_more = |point: Point| more.iter().fold(point, |p, (key, value)| p.set(key, value));
    FILMS_S.iter().map(|&seconds| with_more(one(control, weights, seconds))).collect()
}

/// The part of the utilisation of `against` that `of` lacks.
fn loss(of: &Measured, against: &Measured) -> Measured {
    of.by(against).map(|ratio| 1.0 - ratio)
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_3: Figure = Figure {
    number: "3",
    title: "a video beside two downloads on 30 Mbit/s, weights 5:1",
    series: true,
    points: || {
        let mut points: Vec<Point> = FIGURE_3_CONTROLS.map(drawn).into();
        points.push(alone());
        points
    },
    judge: judge_3,
};

const FIGURE_3_CONTROLS: [Control; 5] =
    [Control::None, Control::Wfq, Control::Borrow, Control::Static, Control::Crab];

fn drawn(control: Control) -> Point {
    one(control, (5, 1), DRAWN_S)
}

fn alone() -> Point {
    Point::new("crab-fig3-alone", Control::None)
}

fn judge_3(played: &Played) -> Judged {
    let quality = |control| played.measure(&drawn(control), film);
    let used = |control| played.measure(&drawn(control), utilization);
    let none = quality(Control::None);
    let alone = played.measure(&alone(), film);
    let delivered = |control, group: usize| {
        played.measure(&drawn(control), |r: &Report| {
            r.summary.groups[group].delivered.as_u64() as f64 * 8.0 / 1e6 / DRAWN_S as f64
        })
    };
    let fixed_loss = loss(&used(Control::Static), &used(Control::None));
    let crab_loss = loss(&used(Control::Crab), &used(Control::None));
    let idle_part = played.measure(&drawn(Control::Static), |r: &Report| 1.0 - utilization(r));
    let filling = |control| {
        played.measure(&drawn(control), rate_between(1, 10.0, 60.0)).map(|mbit| mbit / 5.0)
    };
    // The time in which the film's buffer is full and the film is not over.
    let lent = |control| played.measure(&drawn(control), rate_between(1, 110.0, 240.0));
    let claims = vec![
        Claim::new(
            "video without control, relative to the video alone",
            "very low",
            (none.by(&alone), Unit::Part),
            Band::AtMost(0.6),
        ),
        Claim::new(
            "the downloads with wfq, of their 5 Mbit/s, while the video fills its buffer",
            "at least 5 Mbit/s",
            (filling(Control::Wfq), Unit::Part),
            Band::AtLeast(0.98),
        ),
        Claim::new(
            "video with fixed shares, relative to wfq",
            "high quality",
            (quality(Control::Static).by(&quality(Control::Wfq)), Unit::Part),
            Band::AtLeast(0.9),
        ),
        Claim::new(
            "utilisation with crab, relative to fixed shares",
            "2 times",
            (used(Control::Crab).by(&used(Control::Static)), Unit::Times),
            Band::AtLeast(2.0),
        )
        .because(|| {
            format!(
                "fixed shares leave {} of the link unused, so that there are not two times to win",
                idle_part.text(Unit::Part)
            )
        }),
        Claim::new(
            "video with wfq at the ISP, relative to the video alone",
            "the highest quality",
            (quality(Control::Wfq).by(&alone), Unit::Part),
            Band::AtLeast(0.9),
        )
        .because(|| {
            format!(
                "alone it plays {} and can use the whole link for a moment, beside others {} of at \
                 most 25 Mbit/s",
                alone.text(Unit::Mbit),
                quality(Control::Wfq).text(Unit::Mbit)
            )
        }),
        Claim::new(
            "video with borrowing, relative to no control",
            "the same outcome",
            (quality(Control::Borrow).by(&none), Unit::Part),
            Band::Within(0.9, 1.1),
        ),
        Claim::new(
            "utilisation lost with fixed shares",
            "46 %",
            (fixed_loss, Unit::Part),
            Band::Within(0.36, 0.56),
        )
        .because(|| {
            format!(
                "the video takes {} of its 25, the downloads have their 5, and {} of the link is \
                 unused; the paper's 46 % correspond to a video of 11.2 Mbit/s",
                delivered(Control::Static, 0).text(Unit::Mbit),
                idle_part.text(Unit::Part)
            )
        }),
        Claim::new(
            "utilisation lost with crab",
            "19 %",
            (crab_loss.clone(), Unit::Part),
            Band::AtMost(0.19),
        ),
        Claim::new("the same, our own bar", "-", (crab_loss, Unit::Part), Band::AtMost(0.1))
            .because(|| {
                format!(
                    "while the video goes on and off (110 to 240 s) the downloads have {}, with \
                     fixed shares {}, with wfq {}: its pauses are shorter than a loan takes",
                    lent(Control::Crab).text(Unit::Mbit),
                    lent(Control::Static).text(Unit::Mbit),
                    lent(Control::Wfq).text(Unit::Mbit)
                )
            }),
        Claim::new(
            "video with crab, relative to wfq",
            "the desired shares",
            (quality(Control::Crab).by(&quality(Control::Wfq)), Unit::Part),
            Band::AtLeast(0.9),
        ),
    ];
    Judged { claims, files: over_time("figure-3", &FIGURE_3_CONTROLS.map(drawn), played) }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_9: Figure = Figure {
    number: "9",
    title: "seven videos beside downloads",
    series: false,
    points: || {
        let mut points = all(Control::None, (5, 1), &[]);
        for weights in WEIGHTS {
            points.extend(all(Control::Wfq, weights, &[]));
            points.extend(all(Control::Crab, weights, &[]));
        }
        points.extend(all(Control::None, (5, 1), DEEP));
        points.extend(all(Control::Crab, (5, 1), DEEP));
        points
    },
    judge: judge_9,
};

/// The paper does not give the ISP's buffer; this shows the effect of a deep one on the film.
const DEEP: More = &[("link.buffer", "400ms")];

fn judge_9(played: &Played) -> Judged {
    let mean =
        |control, weights, of: fn(&Report) -> f64| played.mean(&all(control, weights, &[]), of);
    let none = mean(Control::None, (5, 1), film);
    let none_used = mean(Control::None, (5, 1), utilization);
    let video_part = |control| played.mean(&all(control, (5, 1), &[]), part(0));
    let deep = |control, of: &dyn Fn(&Report) -> f64| played.mean(&all(control, (5, 1), DEEP), of);
    let least = mean(Control::Crab, (1, 5), film);
    let why_none = || {
        format!(
            "without control one connection of BBR takes {} of the volume against two of CUBIC in \
             a buffer of 100 ms; with 400 ms it takes {} and plays {}",
            video_part(Control::None).text(Unit::Part),
            deep(Control::None, &part(0)).text(Unit::Part),
            deep(Control::None, &film).text(Unit::Mbit),
        )
    };
    let mut claims = Vec::new();
    for (video, bulk) in WEIGHTS {
        let [crab, wfq] = [Control::Crab, Control::Wfq].map(|c| mean(c, (video, bulk), film));
        claims.push(Claim::new(
            format!("video with crab, relative to wfq, {video}:{bulk}"),
            "92-94 %",
            (crab.by(&wfq), Unit::Part),
            Band::AtLeast(0.92),
        ));
    }
    for (video, bulk) in WEIGHTS {
        let crab = mean(Control::Crab, (video, bulk), utilization);
        claims.push(Claim::new(
            format!("utilisation lost with crab, {video}:{bulk}"),
            "15-20 %",
            (loss(&crab, &none_used), Unit::Part),
            Band::AtMost(0.2),
        ));
    }
    claims.extend([
        Claim::new(
            "the same at 5:1, our own bar",
            "-",
            (loss(&mean(Control::Crab, (5, 1), utilization), &none_used), Unit::Part),
            Band::AtMost(0.1),
        )
        .because(|| "see figure 3".to_owned()),
        Claim::new(
            "the video's fraction of the volume, none",
            "below 17 %",
            (video_part(Control::None), Unit::Part),
            Band::AtMost(0.17),
        )
        .because(why_none),
        Claim::new(
            "the same",
            "3 %",
            (video_part(Control::None), Unit::Part),
            Band::Within(0.02, 0.04),
        )
        .because(|| "see the previous row".to_owned()),
        Claim::new(
            "video without control, relative to crab at 1:5",
            "worse",
            (none.by(&least), Unit::Part),
            Band::AtMost(1.0),
        )
        .because(|| "see the rows above".to_owned()),
        Claim::new(
            "video with crab at 5:1, relative to no control",
            "2.5-3 ×",
            (mean(Control::Crab, (5, 1), film).by(&none), Unit::Times),
            Band::AtLeast(2.5),
        )
        .because(|| "see the rows above".to_owned()),
        Claim::new(
            "the same, a buffer of 400 ms at the ISP",
            "2.5-3 ×",
            (deep(Control::Crab, &film).by(&deep(Control::None, &film)), Unit::Times),
            Band::AtLeast(2.5),
        ),
    ]);
    for control in [Control::Wfq, Control::Crab] {
        claims.push(Claim::new(
            format!("the video's fraction of the volume, {control}"),
            "almost half",
            (video_part(control), Unit::Part),
            Band::Within(0.4, 0.6),
        ));
    }
    Judged { claims, files: vec![chart_9(played)] }
}

fn chart_9(played: &Played) -> super::File {
    let names = WEIGHTS.map(|(video, bulk)| format!("{video} : {bulk}"));
    let kinds = |of: fn(&Report) -> f64| {
        let measured = |control: Control| {
            // Without control, weights have no effect.
            WEIGHTS.map(|weights| {
                let weights = if control == Control::None { (5, 1) } else { weights };
                Some(played.mean(&all(control, weights, &[]), of))
            })
        };
        [Control::None, Control::Wfq, Control::Crab].map(|c| bars_of(c, measured(c))).to_vec()
    };
    let megabytes = |control, group: usize| {
        let of = move |r: &Report| r.summary.groups[group].delivered.as_u64() as f64 / 1e9;
        played.mean(&all(control, (5, 1), &[]), of).map(|mean| mean * FILMS_S.len() as f64)
    };
    let controls = [Control::None, Control::Wfq, Control::Crab];
    let volume = |group| controls.map(|control| Some(megabytes(control, group)));
    let panels = vec![
        bars("weights, video : downloads", "video, Mbit/s", &names, kinds(film)),
        bars("weights, video : downloads", "utilisation", &names, kinds(utilization)),
        bars(
            "volume of all videos and of the downloads at 5 : 1",
            "gigabytes",
            &controls.map(label_of),
            vec![
                named_bars("volume of the videos", colour(1), volume(0)),
                named_bars("volume of the downloads", colour(5), volume(1)),
            ],
        ),
    ];
    chart("figure-9", "Figure 9: videos beside two downloads on 30 Mbit/s", panels)
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_11A: Figure = Figure {
    number: "11a",
    title: "a video with priority, with and without a choke point",
    series: false,
    points: || {
        let mut points = all(Control::None, (5, 1), &[]);
        points.extend(all(Control::Crab, (5, 1), KNOWN));
        points.extend(all(Control::Chokepoint, (5, 1), FIRST));
        points.extend(all(Control::Chokepoint, (5, 1), FIRST_UNTHROTTLED));
        points
    },
    judge: judge_11a,
};

/// "We also disable bandwidth estimation in the original CRAB implementation" (§5.4).
const KNOWN: More = &[("control.remembered", "30mbit"), ("control.estimate", "false")];
const FIRST: More = &[("control.strict_priority", "true")];
/// A choke point of twice the capacity chokes nothing.
const FIRST_UNTHROTTLED: More =
    &[("control.strict_priority", "true"), ("control.capacity", "72mbit")];

fn judge_11a(played: &Played) -> Judged {
    let ways: [(&str, Control, More); 4] = [
        ("none", Control::None, &[]),
        ("priority", Control::Chokepoint, FIRST_UNTHROTTLED),
        ("priority, 25 Mbit/s", Control::Chokepoint, FIRST),
        ("crab, 30 Mbit/s", Control::Crab, KNOWN),
    ];
    let measure = |of: fn(&Report) -> f64| {
        ways.map(|(_, control, more)| played.mean(&all(control, (5, 1), more), of))
    };
    let [none, loose, choked, crab] = measure(film);
    let [_, _, choked_used, crab_used] = measure(utilization);
    let claims = vec![
        Claim::new(
            "video with priority unthrottled, relative to no control",
            "not very effective",
            (loose.by(&none), Unit::Part),
            Band::Within(0.9, 1.1),
        ),
        Claim::new(
            "video with priority behind 25 Mbit/s, relative to crab",
            "slightly higher",
            (choked.by(&crab), Unit::Part),
            Band::Within(1.0 + SLIGHTLY, 1.1),
        )
        .because(|| format!("{} and {}", choked.text(Unit::Mbit), crab.text(Unit::Mbit))),
        Claim::new(
            "its utilisation, relative to crab",
            "slightly lower",
            (choked_used.by(&crab_used), Unit::Part),
            Band::Within(0.9, 1.0 - SLIGHTLY),
        )
        .because(|| format!("{} and {}", choked_used.text(Unit::Part), crab_used.text(Unit::Part))),
    ];
    let names = ways.map(|(name, ..)| name);
    let one_kind = |of| vec![named_bars("", PLAIN, measure(of).map(Some))];
    let panels = vec![
        bars("", "video, Mbit/s", &names, one_kind(film)),
        bars("", "utilisation", &names, one_kind(utilization)),
    ];
    let title = "Figure 11a: a video with priority, with and without a choke point";
    Judged { claims, files: vec![chart("figure-11a", title, panels)] }
}
