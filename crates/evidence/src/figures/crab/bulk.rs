//! Downloads that want all they can have, or a limited rate.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::colour;

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::play::{Played, Point};
use super::super::read::{carries_after, error, misshared, rate_between, right_after, utilization};
use super::super::{Figure, Judged};
use super::{PLAIN, bars, chart, named_bars, over_time};

pub(super) const FIGURE_7: Figure = Figure {
    number: "7",
    title: "four flows with weights 1:2:3:4 start, stop and reduce their demand",
    series: true,
    points: || {
        let mut points: Vec<Point> = Control::ALL.map(|c| Point::new("crab-fig7", c)).into();
        points.extend([unequal_rtts(), longer_windows()]);
        points
    },
    judge: judge_7,
};

/// RTTs with which the paper's loop fails.
fn unequal_rtts() -> Point {
    let rtts = [("f1", "200ms"), ("f2", "10ms"), ("f3", "100ms"), ("f4", "50ms")];
    let point = Point::new("crab-fig7", Control::Crab);
    rtts.iter().fold(point, |p, (flow, rtt)| p.set(&format!("flow.{flow}.rtt"), rtt))
}

/// The same with windows twice as long.
fn longer_windows() -> Point {
    unequal_rtts().set("control.window_ticks", 10)
}

/// Why a claim is open: the values of all seeds.
fn by_seed(measured: &Measured, unit: Unit) -> String {
    format!("by seed {}", measured.each(unit))
}

fn judge_7(played: &Played) -> Judged {
    let point = |control| Point::new("crab-fig7", control);
    let errs = |control| (played.measure(&point(control), error), Unit::Error);
    let used = |point: &Point| {
        let of = |r: &Report| r.summary.utilization.unwrap_or(f64::NAN);
        (played.measure(point, of), Unit::Part)
    };
    let [none, borrow] = [Control::None, Control::Borrow].map(|c| errs(c).0);
    let rtts = unequal_rtts();
    let last = |point: &Point| played.measure(point, rate_between(0, 191.0, 215.0));
    let why = || {
        format!(
            "f1, at 200 ms and alone, gets {} of its 30 from 6 to 30 s, since its slow start takes \
             longer than the first window; with windows of 2 s it gets {}, and the error is {}",
            played.measure(&rtts, rate_between(0, 6.0, 30.0)).text(Unit::Mbit),
            played.measure(&longer_windows(), rate_between(0, 6.0, 30.0)).text(Unit::Mbit),
            played.measure(&longer_windows(), error).text(Unit::Error)
        )
    };
    let claims = vec![
        Claim::new("error without control", "arbitrary", errs(Control::None), Band::AtLeast(0.15)),
        Claim::new("error with wfq at the ISP", "perfect", errs(Control::Wfq), Band::AtMost(0.01)),
        Claim::new(
            "error with borrowing, relative to no control",
            "the same outcome",
            (borrow.by(&none), Unit::Part),
            Band::Within(0.9, 1.1),
        )
        .because(|| by_seed(&borrow.by(&none), Unit::Part)),
        Claim::new(
            "error with crab",
            "very close to wfq",
            errs(Control::Crab),
            Band::AtMost(0.036),
        ),
        Claim::new("error with crab, our own bar", "-", errs(Control::Crab), Band::AtMost(0.01))
            .because(|| {
                format!(
                    "f1 keeps {} of its 9 after 185 s, when the others want a little less than \
                     they may have, so that no probe shows that there is more",
                    last(&point(Control::Crab)).text(Unit::Mbit)
                )
            }),
        Claim::new(
            "utilisation with crab",
            "transient dips",
            used(&point(Control::Crab)),
            Band::AtLeast(0.975),
        ),
        Claim::new(
            "error with crab, RTTs 200, 10, 100, 50 ms",
            "-",
            (played.measure(&rtts, error), Unit::Error),
            Band::AtMost(0.03),
        )
        .because(why),
        Claim::new("utilisation with crab, these RTTs", "-", used(&rtts), Band::AtLeast(0.95))
            .because(|| "as above".to_owned()),
    ];
    Judged { claims, files: over_time("figure-7", &Control::ALL.map(point), played) }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_8: Figure = Figure {
    number: "8",
    title: "two flows with weights 2:1 while demand and capacity change",
    series: true,
    points: || Control::ALL.map(|c| Point::new("crab-fig8", c)).into(),
    judge: judge_8,
};

fn judge_8(played: &Played) -> Judged {
    let crab = Point::new("crab-fig8", Control::Crab);
    let measure = |of: &dyn Fn(&Report) -> f64| played.measure(&crab, of);
    let seconds = |n, next_s| (measure(&right_after(n, next_s)), Unit::Seconds);
    let errs = || (measure(&error), Unit::Error);
    let why = || {
        format!(
            "from 45 to 60 s f2 has, by seed, {} of its 20: f1's 10 are just two thirds of an \
             estimate of 15, so that it seems to want more",
            measure(&rate_between(1, 45.0, 60.0)).each(Unit::Mbit)
        )
    };
    let claims = vec![
        Claim::new(
            "time from 10 to 27 of 30 Mbit/s after 30 s",
            "finds it",
            (measure(&carries_after(27.0, 30.0)), Unit::Seconds),
            Band::AtMost(10.0),
        )
        .because(why),
        Claim::new(
            "shares right after the demand rose (60 s)",
            "reclaims",
            seconds(2, 90.0),
            Band::AtMost(10.0),
        )
        .because(|| by_seed(&seconds(2, 90.0).0, Unit::Seconds)),
        Claim::new(
            "time to 6.7 and 3.3 Mbit/s after the fall (90 s)",
            "detects it",
            seconds(3, 125.0),
            Band::AtMost(3.0),
        )
        .because(|| {
            let rates = |group| measure(&rate_between(group, 93.0, 125.0)).text(Unit::Mbit);
            format!(
                "by seed {}; a dip of f2 restarts the measurement; from 3 s on the rates are {} and {}",
                seconds(3, 125.0).0.each(Unit::Seconds),
                rates(0),
                rates(1)
            )
        }),
        Claim::new(
            "time to 27 of 30 Mbit/s after the rise (125 s)",
            "probes for more",
            (measure(&carries_after(27.0, 125.0)), Unit::Seconds),
            Band::AtMost(10.0),
        ),
        Claim::new("error with crab", "the shares by weight", errs(), Band::AtMost(0.02))
            .because(why),
        Claim::new("error with crab, our own bar", "-", errs(), Band::AtMost(0.005)).because(|| {
            let early = |r: &Report| 20.0 - rate_between(1, 36.0, 60.0)(r);
            let alone = |r: &Report| 30.0 - rate_between(1, 161.0, 185.0)(r);
            format!(
                "f2 lacks {} of its 20 from 36 to 60 s, beside one that wants 10, and {} of its 30 \
                 from 161 s on, alone",
                measure(&early).text(Unit::Mbit),
                measure(&alone).text(Unit::Mbit)
            )
        }),
    ];
    let points = Control::ALL.map(|c| Point::new("crab-fig8", c));
    Judged { claims, files: over_time("figure-8", &points, played) }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_11B: Figure = Figure {
    number: "11b",
    title: "weights 1:2:3 with and without a choke point",
    series: false,
    points: || ways_11b().map(|(_, point)| point).into(),
    judge: judge_11b,
};

fn ways_11b() -> [(&'static str, Point); 4] {
    let point = |control| Point::new("crab-fig11b", control);
    // A choke point of twice the capacity chokes nothing.
    let loose = point(Control::Chokepoint).set("control.capacity", "72mbit");
    [
        ("none", point(Control::None)),
        ("weights", loose),
        ("weights, 25 Mbit/s", point(Control::Chokepoint)),
        ("crab, 30 Mbit/s", {
            let known = point(Control::Crab).set("control.remembered", "30mbit");
            known.set("control.estimate", "false")
        }),
    ]
}

fn judge_11b(played: &Played) -> Judged {
    let ways = ways_11b();
    let off = |i: usize| played.measure(&ways[i].1, misshared(&[1.0, 2.0, 3.0]));
    let used = |i: usize| played.measure(&ways[i].1, utilization);
    let claims = vec![
        Claim::new(
            "deviation from shares, weights unthrottled, relative to no control",
            "not enforced",
            (off(1).by(&off(0)), Unit::Part),
            Band::AtLeast(0.8),
        )
        .because(|| by_seed(&off(1).by(&off(0)), Unit::Part)),
        Claim::new(
            "deviation from shares, weights behind 25 Mbit/s",
            "the desired ones",
            (off(2), Unit::Error),
            Band::AtMost(0.02),
        ),
        Claim::new(
            "deviation from shares, crab",
            "the desired ones",
            (off(3), Unit::Error),
            Band::AtMost(0.02),
        ),
        Claim::new(
            "utilisation with crab, above 25 Mbit/s by",
            "19 %",
            (used(3).by(&used(2)).map(|ratio| ratio - 1.0), Unit::Part),
            Band::AtLeast(0.17),
        ),
    ];
    let names = [0, 1, 2, 3].map(|i| ways[i].0);
    let rates = |group: usize| {
        let of = move |r: &Report| r.summary.groups[group].rate.as_mbit_f64();
        let measured = [0, 1, 2, 3].map(|i| Some(played.measure(&ways[i].1, of)));
        named_bars(&format!("f{0} (weight {0})", group + 1), colour(group), measured)
    };
    let panels = vec![
        bars("", "Mbit/s", &names, [0, 1, 2].map(rates).to_vec()),
        bars(
            "",
            "utilisation",
            &names,
            vec![named_bars("", PLAIN, [0, 1, 2, 3].map(|i| Some(used(i))))],
        ),
    ];
    let title = "Figure 11b: three flows with weights 1 : 2 : 3 on 30 Mbit/s";
    Judged { claims, files: vec![chart("figure-11b", title, panels)] }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_12: Figure = Figure {
    number: "12",
    title: "two devices behind a router, one with crab, weights 2:1 inside",
    series: true,
    points: || points_12().into(),
    judge: judge_12,
};

/// Without and with crab at the router; with fixed shares there; without any control; with fairweir
/// in place of crab: at the device alone, and at both.
fn points_12() -> [Point; 6] {
    let point = |control| Point::new("crab-fig12", control);
    let at_m1 = |point: Point, control| point.set("device.m1.control", control);
    [
        point(Control::None),
        point(Control::Crab),
        point(Control::Static),
        at_m1(point(Control::None), "none"),
        at_m1(point(Control::None), "fairweir"),
        at_m1(point(Control::Fairweir), "fairweir"),
    ]
}

/// Time after the second device has joined, without the first seconds.
const JOINED_S: (f64, f64) = (45.0, 120.0);

fn judge_12(played: &Played) -> Judged {
    let points = points_12();
    let rate = |i: usize, group, (from_s, to_s)| {
        played.measure(&points[i], rate_between(group, from_s, to_s))
    };
    let ratio = |i: usize, when| (rate(i, 0, when).by(&rate(i, 1, when)), Unit::Times);
    let m2 = |i: usize| rate(i, 2, JOINED_S);
    let told = |i: usize| {
        let rates = [0, 1, 2].map(|group| rate(i, group, JOINED_S).text(Unit::Mbit));
        format!("m1's flows have {} and {}, m2's {}", rates[0], rates[1], rates[2])
    };
    let claims = vec![
        Claim::new(
            "m1's flows before m2 starts, ratio",
            "2 : 1",
            ratio(0, (15.0, 40.0)),
            Band::Within(1.8, 2.2),
        ),
        Claim::new(
            "m1's flows after that, no control at the router",
            "no more 2 : 1",
            ratio(0, JOINED_S),
            Band::AtMost(1.8),
        )
        .because(|| told(0)),
        Claim::new(
            "m2's rate, relative to no control",
            "takes what m1 throttles",
            (m2(0).by(&m2(3)), Unit::Part),
            Band::AtLeast(1.05),
        )
        .because(|| format!("{}; without any control {}", told(0), m2(3).text(Unit::Mbit))),
        Claim::new(
            "m2's rate, crab at the router, relative to its share",
            "its share",
            (m2(1).map(|mbit| mbit / 15.0), Unit::Part),
            Band::Within(0.9, 1.1),
        )
        .because(|| told(1)),
        Claim::new(
            "m1's flows after that, crab at the router",
            "2 : 1",
            ratio(1, JOINED_S),
            Band::Within(1.8, 2.2),
        )
        .because(|| {
            format!(
                "{}; with fixed shares at the router {}: the device takes the router's probes \
                 for its own capacity",
                told(1),
                ratio(2, JOINED_S).0.text(Unit::Times)
            )
        }),
        Claim::new(
            "with fairweir: m1's flows after that, no control at the router",
            "no more 2 : 1",
            ratio(4, JOINED_S),
            Band::AtMost(1.8),
        )
        .because(|| told(4)),
        Claim::new(
            "with fairweir: m2's rate, relative to its share, fairweir at the router",
            "its share",
            (m2(5).map(|mbit| mbit / 15.0), Unit::Part),
            Band::Within(0.9, 1.1),
        )
        .because(|| told(5)),
        Claim::new(
            "with fairweir: m1's flows after that, fairweir at the router",
            "2 : 1",
            ratio(5, JOINED_S),
            Band::Within(1.8, 2.2),
        )
        .because(|| told(5)),
    ];
    Judged { claims, files: over_time("figure-12", &points[..2], played) }
}

// ------------------------------------------------------------------------------------------------

pub(super) const FIGURE_16: Figure = Figure {
    number: "16",
    title: "four flows that want 10 Mbit/s each",
    series: true,
    points: || CONTROLS_16.map(|c| Point::new("crab-fig16", c)).into(),
    judge: judge_16,
};

const CONTROLS_16: [Control; 3] = [Control::None, Control::Crab, Control::Wfq];

fn judge_16(played: &Played) -> Judged {
    let points = CONTROLS_16.map(|c| Point::new("crab-fig16", c));
    let crab = &points[1];
    let used = |r: &Report| r.summary.utilization.unwrap_or(f64::NAN);
    let claims = vec![
        Claim::new(
            "time to 28.5 of 30 Mbit/s after the others start (30 s)",
            "quickly",
            (played.measure(crab, carries_after(28.5, 30.0)), Unit::Seconds),
            Band::AtMost(10.0),
        ),
        Claim::new(
            "utilisation while demand exceeds the capacity",
            "finds the capacity",
            (played.measure(crab, used), Unit::Part),
            Band::AtLeast(0.95),
        ),
        Claim::new(
            "error with crab",
            "divided equally",
            (played.measure(crab, error), Unit::Error),
            Band::AtMost(0.03),
        ),
    ];
    Judged { claims, files: over_time("figure-16", &points, played) }
}
