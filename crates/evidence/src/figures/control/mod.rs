//! The default control compared with the other controls.
//!
//! The bands are our own limits. Each measurement is shown beside the same one with `crab`, the
//! best control before this one.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour, colour_of, label_of};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::{bars, bars_of, chart, named_bars, over_time};
use super::play::{Played, Point};
use super::read::{
    carries_after, drops, error, film, load_median, loads, queue_mean, queue_p99, right_after,
    scored_utilization, utilization,
};
use super::{Figure, Judged};

mod limits;
mod table;

pub(super) use table::side_by_side;

/// Every figure, in the document's order.
pub(super) const FIGURES: [Figure; 10] = [
    Figure {
        number: "7",
        title: "four flows with weights 1:2:3:4 start, stop and reduce their demand",
        series: true,
        points: || CONTROLS.map(|c| Point::new("crab-fig7-short", c)).into(),
        judge: judge_7,
    },
    Figure {
        number: "8",
        title: "two flows with weights 2:1 while demand and capacity change",
        series: true,
        points: || CONTROLS.map(|c| Point::new("crab-fig8-short", c)).into(),
        judge: judge_8,
    },
    Figure {
        number: "rtts",
        title: "equal weights, RTTs from 10 to 200 ms",
        series: false,
        points: || all_of(&RTTS),
        judge: judge_rtts,
    },
    Figure {
        number: "steps",
        title: "changing capacities, a wrong stored capacity, and silence",
        series: true,
        points: || all_of(&STEPS),
        judge: judge_steps,
    },
    Figure {
        number: "senders",
        title: "CUBIC and BBR, one connection against four",
        series: false,
        points: || all_of(&SENDERS),
        judge: judge_senders,
    },
    Figure {
        number: "film",
        title: "a video beside four downloads, weights 5:1",
        series: false,
        points: || CONTROLS.map(usual_film).into_iter().chain(CONTROLS.map(long_film)).collect(),
        judge: judge_film,
    },
    Figure {
        number: "web",
        title: "web pages beside two downloads on 10 Mbit/s, weights 7:3",
        series: false,
        points: || CONTROLS.map(web).into(),
        judge: judge_web,
    },
    limits::LATENCY,
    limits::ENFORCE,
    limits::LIMITS,
];

/// The pictures that `docs/pictures/` keeps.
pub(super) const PICTURES: [&str; 6] = [
    "figure-7.svg",
    "figure-7-queue.svg",
    "figure-8.svg",
    "figure-steps.svg",
    "figure-web.svg",
    "figure-enforce.svg",
];

/// Controls with which the scenarios are played; charts over time show fewer.
const CONTROLS: [Control; 6] = [
    Control::None,
    Control::Static,
    Control::Chokepoint,
    Control::Wfq,
    Control::Crab,
    Control::Fairweir,
];
const DRAWN: [Control; 3] = [Control::None, Control::Crab, Control::Fairweir];

const RTTS: [&str; 2] = ["rtts", "rtts-first-200"];
const STEPS: [&str; 5] = ["step-10", "step-27", "step-28.5", "remembered-high", "idle-then-load"];
const SENDERS: [&str; 7] = [
    "weights-5-1",
    "weights-1-5",
    "weights-5-1-bbr",
    "weights-1-5-bbr",
    "weights-5-1-mixed",
    "weights-1-5-mixed",
    "mix-cubic-bbr",
];

/// Several scenarios with every control.
fn all_of(scenarios: &[&'static str]) -> Vec<Point> {
    scenarios.iter().flat_map(|s| CONTROLS.map(|control| Point::new(s, control))).collect()
}

fn usual_film(control: Control) -> Point {
    Point::new("video-vs-bulk", control)
}

fn long_film(control: Control) -> Point {
    usual_film(control).set("duration", "300s")
}

fn web(control: Control) -> Point {
    Point::new("web-7-3", control).set("duration", "900s")
}

// ------------------------------------------------------------------------------------------------

/// The claims about a scenario with each control.
struct Claims<'p, F> {
    played: &'p Played,
    point: F,
    prefix: &'p str,
    claims: Vec<Claim>,
}

impl<'p, F: Fn(Control) -> Point> Claims<'p, F> {
    fn new(played: &'p Played, prefix: &'p str, point: F) -> Claims<'p, F> {
        Claims { played, point, prefix, claims: Vec::new() }
    }

    fn measure(&self, control: Control, of: &dyn Fn(&Report) -> f64) -> Measured {
        self.played.measure(&(self.point)(control), of)
    }

    fn that(
        &mut self,
        what: &str,
        unit: Unit,
        of: &dyn Fn(&Report) -> f64,
        band: Band,
    ) -> &mut Self {
        let [crab, fairweir] = [Control::Crab, Control::Fairweir].map(|c| self.measure(c, of));
        let what = match self.prefix {
            "" => what.to_owned(),
            prefix => format!("{prefix}: {what}"),
        };
        self.claims.push(Claim::new(what, crab.text(unit), (fairweir, unit), band));
        self
    }

    /// Adds the reason to the last claim, if that was missed.
    fn because(&mut self, why: impl FnOnce() -> String) {
        let last = self.claims.pop();
        self.claims.extend(last.map(|claim| claim.because(why)));
    }

    /// Claims about the shares and the link's utilisation.
    fn shares(&mut self, error_max: f64, used_min: f64) {
        self.that("error", Unit::Error, &error, Band::AtMost(error_max));
        let used = Band::AtLeast(used_min);
        self.that("utilisation", Unit::Part, &scored_utilization, used);
    }

    /// Claims about the queue at the ISP, and about its drops divided by those with crab.
    fn queue(&mut self) {
        let unit = Unit::Milliseconds;
        self.that("ISP queue, mean", unit, &queue_mean, Band::AtMost(0.006));
        self.that("ISP queue, 99th percentile", unit, &queue_p99, Band::AtMost(0.02));
        let [crab, mine] = [Control::Crab, Control::Fairweir].map(|c| self.measure(c, &drops));
        let (told, by) = (crab.text(Unit::Packets), mine.mean() / crab.mean());
        let what = "ISP drops, relative to crab";
        let measured = (Measured(vec![by]), Unit::Part);
        self.claims.push(Claim::new(what, told, measured, Band::AtMost(0.01)));
    }
}

fn judge_7(played: &Played) -> Judged {
    let point = |control| Point::new("crab-fig7-short", control);
    let mut claims = Claims::new(played, "", point);
    claims.shares(0.006, 0.985);
    claims.queue();
    let mut files = over_time("figure-7", &DRAWN.map(point), played);
    files.push(queues(
        played,
        "figure-7-queue",
        "Queue of the ISP in crab-fig7-short, 30 Mbit/s: delay and drops",
        point,
    ));
    Judged { claims: claims.claims, files }
}

/// The queue of every control, as bars.
fn queues(
    played: &Played,
    name: &str,
    title: &str,
    point: impl Fn(Control) -> Point,
) -> super::File {
    let by_ms = |c, of: fn(&Report) -> f64| Some(played.measure(&point(c), of).map(|s| s * 1e3));
    let kinds = CONTROLS.map(|c| bars_of(c, [by_ms(c, queue_mean), by_ms(c, queue_p99)]));
    let lost = CONTROLS.map(|c| bars_of(c, [Some(played.measure(&point(c), drops))]));
    let panels = vec![
        bars("", "queueing delay at the ISP, ms", &["mean", "99th percentile"], kinds.to_vec()),
        bars("", "packets dropped at the ISP", &[""], lost.to_vec()),
    ];
    chart(name, title, panels)
}

fn judge_8(played: &Played) -> Judged {
    let point = |control| Point::new("crab-fig8-short", control);
    let mut claims = Claims::new(played, "", point);
    claims.shares(0.006, 0.985);
    let seconds: [(&str, usize, f64, f64); 4] = [
        ("right after f2 starts (15 s)", 1, 30.0, 3.0),
        ("right after f1 wants its share back (30 s)", 2, 45.0, 2.0),
        ("right after 30 → 10 Mbit/s (45 s)", 3, 62.0, 3.0),
        ("right after 10 → 30 Mbit/s (62 s)", 4, 77.0, 2.0),
    ];
    for (what, event, next_s, most) in seconds {
        let of = right_after(event, next_s);
        claims.that(what, Unit::Seconds, &of, Band::AtMost(most));
    }
    let filled = carries_after(27.0, 15.0);
    let most = Band::AtMost(3.0);
    claims.that("time to 27 of 30 Mbit/s after f2 starts", Unit::Seconds, &filled, most);
    claims.queue();
    let files = over_time("figure-8", &DRAWN.map(point), played);
    Judged { claims: claims.claims, files }
}

fn judge_rtts(played: &Played) -> Judged {
    let mut all = Vec::new();
    for scenario in RTTS {
        let mut claims = Claims::new(played, scenario, |c| Point::new(scenario, c));
        claims.shares(0.03, 0.95);
        all.extend(claims.claims);
    }
    let rates = |scenario, group: usize| {
        let of = move |r: &Report| r.summary.groups[group].rate.as_mbit_f64();
        DRAWN.map(|c| Some(played.measure(&Point::new(scenario, c), of)))
    };
    let names = DRAWN.map(label_of);
    let group =
        |(group, name): (usize, &&str)| named_bars(name, colour(group), rates("rtts", group));
    let kinds = ["10 ms", "30 ms", "60 ms", "120 ms", "200 ms"].iter().enumerate().map(group);
    let panels = vec![bars("", "Mbit/s (fair: 6)", &names, kinds.collect())];
    let title = "Five downloads with equal weights, by RTT, 30 Mbit/s";
    Judged { claims: all, files: vec![chart("figure-rtts", title, panels)] }
}

fn judge_steps(played: &Played) -> Judged {
    let mut all = Vec::new();
    for scenario in STEPS {
        let mut claims = Claims::new(played, scenario, |c| Point::new(scenario, c));
        claims.shares(0.006, 0.985);
        let seconds: &[(&str, usize, f64)] = match scenario {
            "step-10" => {
                &[("right after 30 → 10 Mbit/s", 1, 26.0), ("right after 10 → 30 Mbit/s", 2, 40.0)]
            }
            "step-27" | "step-28.5" => &[("right after the fall", 1, 60.0)],
            _ => &[],
        };
        for &(what, event, next_s) in seconds {
            let of = right_after(event, next_s);
            claims.that(what, Unit::Seconds, &of, Band::AtMost(3.0));
        }
        all.extend(claims.claims);
    }
    let drawn = DRAWN.map(|c| Point::new("step-10", c));
    Judged { claims: all, files: over_time("figure-steps", &drawn, played) }
}

fn judge_senders(played: &Played) -> Judged {
    let mut all = Vec::new();
    for scenario in SENDERS {
        let mut claims = Claims::new(played, scenario, |c| Point::new(scenario, c));
        let is_cubic = matches!(scenario, "weights-5-1" | "weights-1-5");
        let (error_max, used_min) = if is_cubic { (0.006, 0.985) } else { (0.04, 0.96) };
        claims.shares(error_max, used_min);
        all.extend(claims.claims);
    }
    let of = |c, of: fn(&Report) -> f64| {
        SENDERS.map(|scenario| Some(played.measure(&Point::new(scenario, c), of)))
    };
    let short = SENDERS.map(|scenario| scenario.trim_start_matches("weights-"));
    let kinds = DRAWN.map(|c| bars_of(c, of(c, error)));
    let panels = vec![bars("", "allocation error", &short, kinds.to_vec())];
    let title = "Allocation error by weights and congestion control, one connection beside four";
    Judged { claims: all, files: vec![chart("figure-senders", title, panels)] }
}

fn judge_film(played: &Played) -> Judged {
    let by_wfq = |control, point: fn(Control) -> Point| {
        let film = |c| played.measure(&point(c), film);
        film(control).by(&film(Control::Wfq))
    };
    let both = |point| [Control::Crab, Control::Fairweir].map(|c| by_wfq(c, point));
    let used = |c| played.measure(&long_film(c), utilization);
    let claim = |what: &str, [crab, mine]: [Measured; 2], band| {
        Claim::new(what, crab.text(Unit::Part), (mine, Unit::Part), band)
    };
    let claims = vec![
        claim("video quality relative to wfq", both(usual_film), Band::AtLeast(0.98)).because(|| {
            let quality = |c| played.measure(&usual_film(c), film).text(Unit::Mbit);
            format!(
                "{} and {} with wfq: most of the difference is in the first minute; see the next row",
                quality(Control::Fairweir),
                quality(Control::Wfq)
            )
        }),
        claim("the same, 300 s", both(long_film), Band::AtLeast(0.98)),
        claim(
            "utilisation, 300 s",
            [used(Control::Crab), used(Control::Fairweir)],
            Band::AtLeast(0.9),
        ),
    ];
    let of = |c, of: fn(&Report) -> f64| Some(played.measure(&long_film(c), of));
    let panels = vec![
        bars("", "video, Mbit/s", &[""], CONTROLS.map(|c| bars_of(c, [of(c, film)])).to_vec()),
        bars("", "utilisation", &[""], CONTROLS.map(|c| bars_of(c, [of(c, utilization)])).to_vec()),
    ];
    let title = "A video of 300 s beside four downloads, 30 Mbit/s";
    Judged { claims, files: vec![chart("figure-film", title, panels)] }
}

fn judge_web(played: &Played) -> Judged {
    let median = |c| played.measure(&web(c), load_median);
    let used = |c| played.measure(&web(c), utilization);
    let by = |c, other| median(c).by(&median(other));
    let claim = |what: &str, of: &dyn Fn(Control) -> Measured, band| {
        let beside = of(Control::Crab).text(Unit::Part);
        Claim::new(what, beside, (of(Control::Fairweir), Unit::Part), band)
    };
    let claims = vec![
        claim("median load time relative to wfq", &|c| by(c, Control::Wfq), Band::AtMost(1.05)),
        claim(
            "median load time relative to no control",
            &|c| by(c, Control::None),
            Band::AtMost(0.65),
        ),
        claim("utilisation", &used, Band::AtLeast(0.95)),
    ];
    let lines = CONTROLS.map(|control| Line {
        name: label_of(control).to_owned(),
        colour: colour_of(control),
        dashed: control == Control::Wfq,
        points: loads(played.of(&web(control))),
    });
    let panel = Panel {
        x: "load time, s".to_owned(),
        y: "fraction of pages".to_owned(),
        marks: Marks::Lines { logarithmic: false, lines: lines.into() },
    };
    let bars_used = CONTROLS.map(|c| bars_of(c, [Some(used(c))])).to_vec();
    let panels = vec![panel, bars("", "utilisation", &[""], bars_used)];
    let title = "Web pages beside two downloads, 10 Mbit/s, weights 7 : 3";
    Judged { claims, files: vec![chart("figure-web", title, panels)] }
}
