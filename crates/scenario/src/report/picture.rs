//! Rates over time against the fair shares, as an SVG.

use fairweir_core::units::{Rate, Span, Time};

use super::chart::label_of;
use super::svg::{Legend, colour, line, page, polyline, text, ticks};
use super::{BIN, Report};
use crate::Scenario;
use crate::link::{Buffer, Capacity};

const WIDTH: f64 = 860.0;
const PANEL: f64 = 170.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 20.0;
/// Position of the first row of the legend; below, the distance of its last row to the first panel.
const LEGEND: f64 = 61.0;
const LEGEND_GAP: f64 = 41.0;
const GAP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

const DASHED: &str = "stroke-width=\"1.4\" stroke-dasharray=\"5 4\" stroke-opacity=\"0.9\"";

/// One panel per report, one below the other: the rate of each group (solid) and its fair share
/// (dashed). The reports need their series.
pub fn picture(scenario: &Scenario, reports: &[Report]) -> String {
    let panels = reports.len() as f64;
    let (legend, rows) = legend(scenario);
    let first = LEGEND + rows + LEGEND_GAP;
    let height = first + panels * (PANEL + GAP) - GAP + BOTTOM;
    page(WIDTH, height, |svg| {
        let world = match reports.first().map(|report| report.world) {
            Some("lab") => ", in the lab (real TCP)",
            Some("sim") => ", simulated",
            _ => "",
        };
        let title = format!("{}: rate of each flow group{world}", scenario.name);
        text(svg, LEFT, 22.0, "font-size=\"15\" font-weight=\"bold\"", &title);
        text(svg, LEFT, 40.0, "fill=\"#666\"", &link(scenario));
        svg.push_str(&legend);
        let plot = Plot::new(scenario, reports);
        for (i, report) in reports.iter().enumerate() {
            let top = first + i as f64 * (PANEL + GAP);
            plot.panel(svg, top, report, i + 1 == reports.len());
        }
    })
}

/// A description of the link.
fn link(scenario: &Scenario) -> String {
    let link = &scenario.link;
    let rate = |rate: Rate| match rate.as_mbit_f64() {
        mbit if mbit < 1.0 => format!("{} kbit/s", mbit * 1e3),
        mbit => format!("{mbit} Mbit/s"),
    };
    let steps: Vec<_> = link.capacity.steps().iter().map(|step| step.rate).collect();
    let capacity = match (&link.capacity, steps.iter().min(), steps.iter().max()) {
        (Capacity::Trace(_), ..) => format!("recorded, mean {}", rate(link.capacity.nominal())),
        (_, Some(least), Some(most)) if least < most => {
            format!("{} to {}", rate(*least), rate(*most))
        }
        _ => rate(link.capacity.nominal()),
    };
    let buffer = match link.buffer {
        Buffer::Time(time) => format!("{} ms", time.as_millis_f64()),
        Buffer::Bytes(bytes) => bytes.to_string(),
        Buffer::Packets(packets) => format!("{packets} packets"),
    };
    let plan = scenario.agreed().map_or(String::new(), |plan| format!("Plan {}. ", rate(plan)));
    format!(
        "{plan}Downlink {capacity}, buffer {buffer}. Solid: rate in intervals of {} ms. Dashed: weighted \
         max-min fair share.",
        BIN.as_millis_f64()
    )
}

/// The legend, and the height of its rows after the first.
fn legend(scenario: &Scenario) -> (String, f64) {
    let mut legend = Legend::new(LEFT, WIDTH - RIGHT, LEGEND);
    for (i, group) in scenario.groups.iter().enumerate() {
        let label = format!("{} (weight {})", group.name, group.weight);
        legend.add(&label, colour(i), "stroke-width=\"2.5\"");
    }
    legend.add("fair share", "#333", DASHED);
    legend.finish()
}

/// Scales of time and rate on the page.
struct Plot<'s> {
    scenario: &'s Scenario,
    seconds: f64,
    /// The top of the axis, in its unit.
    rate_max: f64,
    /// The unit of the axis, and its number of units in 1 Mbit/s.
    unit: (&'static str, f64),
}

impl<'s> Plot<'s> {
    fn new(scenario: &'s Scenario, reports: &[Report]) -> Plot<'s> {
        let capacity = scenario.link.capacity.max(scenario.end());
        let capacity = scenario.agreed().map_or(capacity, |plan| plan.min(capacity));
        let seen = reports.iter().flat_map(|r| r.series.iter().flatten()).map(|p| p.rate).max();
        // A burst out of the buffer after a step may exceed the range worth showing.
        let top = seen.unwrap_or(capacity).clamp(capacity, capacity.scale(11, 10));
        let mbit = top.as_mbit_f64().max(0.001) * 1.02;
        let unit = if mbit < 1.0 { ("kbit/s", 1e3) } else { ("Mbit/s", 1.0) };
        let seconds = scenario.duration.as_secs_f64();
        Plot { scenario, seconds, rate_max: mbit * unit.1, unit }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds
    }

    /// The position of a number in the axis's unit.
    fn y(&self, top: f64, rate: f64) -> f64 {
        top + PANEL * (1.0 - (rate / self.rate_max).clamp(0.0, 1.0))
    }

    fn y_of(&self, top: f64, rate: Rate) -> f64 {
        self.y(top, rate.as_mbit_f64() * self.unit.1)
    }

    fn panel(&self, svg: &mut String, top: f64, report: &Report, is_last: bool) {
        let bottom = top + PANEL;
        for tick in ticks(self.rate_max, 4) {
            let y = self.y(top, tick);
            line(svg, (LEFT, y), (WIDTH - RIGHT, y), "#e5e5e5", "");
            text(svg, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &format!("{tick}"));
        }
        for second in ticks(self.seconds, 8) {
            let x = self.x(second);
            line(svg, (x, bottom), (x, bottom + 4.0), "#999", "");
            if is_last {
                text(svg, x, bottom + 18.0, "text-anchor=\"middle\"", &format!("{second}"));
            }
        }
        line(svg, (LEFT, bottom), (WIDTH - RIGHT, bottom), "#999", "");
        let turned =
            format!("text-anchor=\"middle\" transform=\"rotate(-90 16 {})\"", top + PANEL / 2.0);
        text(svg, 16.0, top + PANEL / 2.0, &turned, self.unit.0);
        if is_last {
            let middle = (LEFT + WIDTH - RIGHT) / 2.0;
            text(svg, middle, bottom + 36.0, "text-anchor=\"middle\"", "time, s");
        }
        text(svg, LEFT, top - 7.0, "font-weight=\"bold\"", label_of(report.control));
        let parts = [
            report.summary.allocation_error.map(|error| format!("allocation error {error:.3}")),
            report.summary.utilization.map(|part| format!("utilisation {:.1} %", part * 100.0)),
        ];
        let verdict = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        text(svg, WIDTH - RIGHT, top - 7.0, "text-anchor=\"end\" fill=\"#666\"", &verdict);
        for group in 0..self.scenario.groups.len() {
            self.rate_line(svg, top, report, group);
        }
        for group in 0..self.scenario.groups.len() {
            self.fair_line(svg, top, group);
        }
    }

    fn rate_line(&self, svg: &mut String, top: f64, report: &Report, group: usize) {
        let groups = self.scenario.groups.len();
        let series = report.series.iter().flatten().skip(group).step_by(groups);
        let bin = BIN.as_secs_f64();
        let points = series.map(|p| (self.x(p.t_s + bin / 2.0), self.y_of(top, p.rate)));
        let style = "stroke-width=\"1.8\" stroke-linejoin=\"round\"";
        polyline(svg, points, colour(group), style);
    }

    /// A step line: a share lasts from one event to the next, under a trace for a second. The line
    /// has gaps where the shares cannot be known.
    fn fair_line(&self, svg: &mut String, top: f64, group: usize) {
        let ends = [Span::ZERO, self.scenario.duration].map(|s| Time::ZERO + s);
        let mut times: Vec<Time> = self.scenario.events().iter().map(|e| e.at).collect();
        times.extend(ends);
        if let Capacity::Trace(_) = self.scenario.link.capacity {
            times.extend((1..self.seconds as u64).map(|s| Time::ZERO + Span::secs(s)));
        }
        times.sort();
        times.dedup();
        let steps: Vec<Option<[(f64, f64); 2]>> = times
            .windows(2)
            .map(|w| {
                let y = self.y_of(top, self.scenario.fair_shares_at(w[0])?[group]);
                Some([(self.x(w[0].as_secs_f64()), y), (self.x(w[1].as_secs_f64()), y)])
            })
            .collect();
        for known in steps.split(Option::is_none).filter(|known| !known.is_empty()) {
            polyline(svg, known.iter().flatten().flatten().copied(), colour(group), DASHED);
        }
    }
}
