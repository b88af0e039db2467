//! The figures of Receiver Based Management (INFOCOM 2000), and its law on a present-day link.
//!
//! Figure 1 is the unmanaged half of figure 2.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;
use fairweir_scenario::report::chart::{Line, Marks, Panel, colour_of, label_of};

use super::claim::{Band, Claim, Measured, Unit};
use super::draw::{bars, bars_of, chart, over_time};
use super::play::{Played, Point};
use super::read::{
    drops, load_median, loads, queue_mean, rate_between, rtt_median, rtt_p95, utilization,
};
use super::{Figure, Judged};

/// Every figure, in the paper's order.
pub(super) const FIGURES: [Figure; 5] = [
    Figure {
        number: "2",
        title: "a terminal beside a download on a modem",
        series: true,
        points: || CONTROLS.map(modem).into(),
        judge: judge_2,
    },
    Figure {
        number: "3",
        title: "the same with a server far away",
        series: true,
        points: || CONTROLS.map(far).into(),
        judge: judge_3,
    },
    Figure {
        number: "4",
        title: "web pages beside a long download on a modem",
        series: false,
        points: || CONTROLS.into_iter().flat_map(|c| [web(c), web_alone(c)]).collect(),
        judge: judge_4,
    },
    Figure {
        number: "5",
        title: "two transfers on ADSL with a buffer of ten packets",
        series: true,
        points: || CONTROLS.map(adsl).into(),
        judge: judge_5,
    },
    Figure {
        number: "today",
        title: "a ping beside a download on 30 Mbit/s with a buffer of 250 ms",
        series: true,
        points: || CONTROLS.map(broadband).into(),
        judge: judge_today,
    },
];

const CONTROLS: [Control; 2] = [Control::None, Control::Rbm];
/// Group that downloads beside the terminal or the ping.
const DOWNLOAD: usize = 1;

/// Only what the terminal experiences during the download counts.
fn modem(control: Control) -> Point {
    let point = Point::new("rbm-fig1", control);
    point.set("flow.telnet.start", "15s").set("flow.telnet.stop", "85s")
}

fn far(control: Control) -> Point {
    let point = Point::new("rbm-fig3", control);
    point.set("flow.telnet.start", "20s").set("flow.telnet.stop", "49s")
}

fn web(control: Control) -> Point {
    Point::new("rbm-fig4", control)
}

/// The download begins only at the end of the run.
fn web_alone(control: Control) -> Point {
    web(control).set("flow.1.start", "1799s")
}

fn adsl(control: Control) -> Point {
    Point::new("rbm-fig5", control)
}

fn broadband(control: Control) -> Point {
    Point::new("rbm-broadband", control).set("flow.ping.start", "8s")
}

/// A number with each control.
fn both(
    played: &Played,
    point: fn(Control) -> Point,
    of: impl Fn(&Report) -> f64,
) -> [Measured; 2] {
    CONTROLS.map(|control| played.measure(&point(control), &of))
}

/// Round-trip times and the rate of the download, as bars.
fn latency_panels(
    played: &Played,
    point: fn(Control) -> Point,
    rate: impl Fn(&Report) -> f64,
) -> Vec<Panel> {
    let measured = |control, of: &dyn Fn(&Report) -> f64| Some(played.measure(&point(control), of));
    vec![
        bars(
            "",
            "round-trip time, s",
            &["median", "95 of 100"],
            CONTROLS
                .map(|c| bars_of(c, [measured(c, &rtt_median), measured(c, &rtt_p95)]))
                .to_vec(),
        ),
        bars(
            "",
            "the download, Mbit/s",
            &[""],
            CONTROLS.map(|c| bars_of(c, [measured(c, &rate)])).to_vec(),
        ),
    ]
}

fn judge_2(played: &Played) -> Judged {
    let [none, rbm] = both(played, modem, rtt_p95);
    let [_, median] = both(played, modem, rtt_median);
    let rate = rate_between(DOWNLOAD, 15.0, 85.0);
    let [rate_none, rate_rbm] = both(played, modem, &rate);
    let [_, lost] = both(played, modem, drops);
    let claims = vec![
        Claim::new(
            "95th percentile of the RTT of the terminal, none",
            "over 4 s",
            (none.clone(), Unit::Milliseconds),
            Band::AtLeast(4.0),
        ),
        Claim::new(
            "median round trip of the terminal, rbm",
            "0.6 s",
            (median, Unit::Milliseconds),
            Band::AtMost(0.6),
        ),
        Claim::new(
            "95th percentile of the RTT, rbm",
            "0.6 s",
            (rbm.clone(), Unit::Milliseconds),
            Band::AtMost(0.7),
        ),
        Claim::new(
            "no control relative to rbm",
            "7 times",
            (none.by(&rbm), Unit::Times),
            Band::AtLeast(7.0),
        ),
        Claim::new(
            "the download, rbm relative to no control",
            "94-96 %",
            (rate_rbm.by(&rate_none), Unit::Part),
            Band::AtLeast(0.94),
        ),
        Claim::new("packets lost, rbm", "none", (lost, Unit::Packets), Band::AtMost(0.0)),
    ];
    let title = "Figure 2: a terminal beside a download, 28.8 kbit/s";
    let mut files = vec![chart("figure-2", title, latency_panels(played, modem, &rate))];
    files.extend(over_time("figure-2-rates", &CONTROLS.map(modem), played));
    Judged { claims, files }
}

fn judge_3(played: &Played) -> Judged {
    let [none, rbm] = both(played, far, rtt_p95);
    let rate = rate_between(DOWNLOAD, 20.0, 49.0);
    let [rate_none, rate_rbm] = both(played, far, &rate);
    let claims = vec![
        Claim::new(
            "95th percentile of the RTT of the terminal, rbm relative to no control",
            "gracefully",
            (rbm.by(&none), Unit::Part),
            Band::AtMost(0.25),
        ),
        Claim::new(
            "the download, rbm relative to no control",
            "2.7 and 2.7 kB/s",
            (rate_rbm.by(&rate_none), Unit::Part),
            Band::AtLeast(0.94),
        ),
    ];
    let title = "Figure 3: a terminal beside a download from far away, 28.8 kbit/s";
    let files = vec![chart("figure-3", title, latency_panels(played, far, &rate))];
    Judged { claims, files }
}

fn judge_4(played: &Played) -> Judged {
    let [none, rbm] = both(played, web, load_median);
    let [_, used] = both(played, web, utilization);
    let claims = vec![
        Claim::new(
            "median load time of a page, no control relative to rbm",
            "3 times; a factor of two",
            (none.by(&rbm), Unit::Times),
            Band::AtLeast(2.0),
        )
        .because(|| {
            let [alone_none, alone_rbm] = both(played, web_alone, load_median);
            let [none, rbm, alone_none, alone_rbm] =
                [&none, &rbm, &alone_none, &alone_rbm].map(|m| m.text(Unit::Seconds));
            format!(
                "{none} and {rbm}; without the download {alone_none} and {alone_rbm}, so six \
                 connections have most of the link without control as well"
            )
        }),
        Claim::new("utilisation, rbm", "not given", (used, Unit::Part), Band::AtLeast(0.94)),
    ];
    let lines = CONTROLS.map(|control| Line {
        name: label_of(control).to_owned(),
        colour: colour_of(control),
        dashed: false,
        points: loads(played.of(&web(control))),
    });
    let panel = Panel {
        x: "load time, s".to_owned(),
        y: "fraction of pages".to_owned(),
        marks: Marks::Lines { logarithmic: false, lines: lines.into() },
    };
    let title = "Figure 4: web pages beside a long download, 28.8 kbit/s";
    Judged { claims, files: vec![chart("figure-4", title, vec![panel])] }
}

/// Number of packets of 576 bytes, plus Ethernet's header, that 512 kbit/s carry in a second.
const PACKETS_PER_S: f64 = 512_000.0 / 8.0 / 590.0;

fn judge_5(played: &Played) -> Judged {
    let [lost_none, lost] = both(played, adsl, drops);
    let queue = |report: &Report| queue_mean(report) * PACKETS_PER_S;
    let [_, waiting] = both(played, adsl, queue);
    let second_by_first = |report: &Report| {
        let of = |group| rate_between(group, 2.0, 30.0)(report);
        of(1) / of(0)
    };
    let [_, fair] = both(played, adsl, second_by_first);
    let [used_none, used] = both(played, adsl, utilization);
    let claims = vec![
        Claim::new("packets lost, none", "many", (lost_none, Unit::Packets), Band::AtLeast(10.0)),
        Claim::new("packets lost, rbm", "none", (lost.clone(), Unit::Packets), Band::AtMost(0.0))
            .because(|| {
                let each = lost.each(Unit::Packets);
                format!("by seed {each}: a tick can pass before the second transfer is observed")
            }),
        Claim::new(
            "packets in the queue, rbm",
            "around 6",
            (waiting, Unit::Packets),
            Band::Within(4.0, 7.0),
        ),
        Claim::new(
            "the second transfer by the first, rbm",
            "reasonably fair",
            (fair, Unit::Part),
            Band::Within(0.9, 1.1),
        ),
        Claim::new(
            "utilisation, rbm relative to no control",
            "similar",
            (used.by(&used_none), Unit::Part),
            Band::AtLeast(0.97),
        ),
    ];
    let measured = |control, of: fn(&Report) -> f64| Some(played.measure(&adsl(control), of));
    let panels = vec![
        bars(
            "",
            "packets lost",
            &[""],
            CONTROLS.map(|c| bars_of(c, [measured(c, drops)])).to_vec(),
        ),
        bars(
            "",
            "mean time in the queue, s",
            &[""],
            CONTROLS.map(|c| bars_of(c, [measured(c, queue_mean)])).to_vec(),
        ),
    ];
    let mut files = vec![chart("figure-5", "Figure 5: two transfers, 512 kbit/s", panels)];
    files.extend(over_time("figure-5-rates", &CONTROLS.map(adsl), played));
    Judged { claims, files }
}

fn judge_today(played: &Played) -> Judged {
    let [none, rbm] = both(played, broadband, rtt_p95);
    let rate = rate_between(DOWNLOAD, 8.0, 25.0);
    let [rate_none, rate_rbm] = both(played, broadband, &rate);
    let [_, lost] = both(played, broadband, drops);
    let claims = vec![
        Claim::new(
            "95th percentile of the RTT of the ping, none",
            "-",
            (none, Unit::Milliseconds),
            Band::AtLeast(0.2),
        ),
        Claim::new(
            "95th percentile of the RTT, rbm (30 ms + 5 ms of queue)",
            "-",
            (rbm, Unit::Milliseconds),
            Band::AtMost(0.037),
        ),
        Claim::new(
            "the download, rbm relative to no control",
            "-",
            (rate_rbm.by(&rate_none), Unit::Part),
            Band::AtLeast(0.97),
        ),
        Claim::new("packets lost, rbm", "-", (lost, Unit::Packets), Band::AtMost(0.0)),
    ];
    let title = "A ping beside a download, 30 Mbit/s";
    let files = vec![chart("figure-today", title, latency_panels(played, broadband, &rate))];
    Judged { claims, files }
}
