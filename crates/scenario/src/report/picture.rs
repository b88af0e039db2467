//! Rates over time against the fair shares, as an SVG.

use fairweir_core::units::{Span, Time};

use super::svg::{CHARACTER, colour, line, page, polyline, text, ticks};
use super::{BIN, Report};
use crate::Scenario;
use crate::link::Capacity;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 170.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 82.0;
const GAP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

/// One panel per report, one below the other: the rate of each group (solid) and its fair share
/// (dashed). The reports need their series.
pub fn picture(scenario: &Scenario, reports: &[Report]) -> String {
    let panels = reports.len() as f64;
    let height = TOP + panels * (PANEL + GAP) - GAP + BOTTOM;
    page(WIDTH, height, |svg| {
        legend(svg, scenario);
        let plot = Plot::new(scenario, reports);
        for (i, report) in reports.iter().enumerate() {
            let top = TOP + i as f64 * (PANEL + GAP);
            plot.panel(svg, top, report, i + 1 == reports.len());
        }
    })
}

fn legend(svg: &mut String, scenario: &Scenario) {
    text(svg, LEFT, 22.0, "font-size=\"15\" font-weight=\"bold\"", &scenario.name);
    let mut x = LEFT;
    for (i, group) in scenario.groups.iter().enumerate() {
        let label = format!("{} (weight {})", group.name, group.weight);
        line(svg, (x, 41.0), (x + 22.0, 41.0), colour(i), "stroke-width=\"2.5\"");
        text(svg, x + 28.0, 45.0, "", &label);
        x += 48.0 + CHARACTER * label.chars().count() as f64;
    }
    line(svg, (x, 41.0), (x + 22.0, 41.0), "#333", "stroke-width=\"1.5\" stroke-dasharray=\"5 4\"");
    text(svg, x + 28.0, 45.0, "", "fair share");
}

/// Where time and rate lie on the page.
struct Plot<'s> {
    scenario: &'s Scenario,
    seconds: f64,
    rate_max: f64,
}

impl<'s> Plot<'s> {
    fn new(scenario: &'s Scenario, reports: &[Report]) -> Plot<'s> {
        let capacity = scenario.link.capacity.max(scenario.end());
        let seen = reports.iter().flat_map(|r| r.series.iter().flatten()).map(|p| p.rate).max();
        // A burst out of the buffer after a step may exceed what is worth showing.
        let top = seen.unwrap_or(capacity).clamp(capacity, capacity.scale(11, 10));
        Plot {
            scenario,
            seconds: scenario.duration.as_secs_f64(),
            rate_max: top.as_mbit_f64().max(0.001) * 1.02,
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds
    }

    fn y(&self, top: f64, mbit: f64) -> f64 {
        top + PANEL * (1.0 - (mbit / self.rate_max).clamp(0.0, 1.0))
    }

    fn panel(&self, svg: &mut String, top: f64, report: &Report, is_last: bool) {
        let bottom = top + PANEL;
        for mbit in ticks(self.rate_max, 4) {
            let y = self.y(top, mbit);
            line(svg, (LEFT, y), (WIDTH - RIGHT, y), "#e5e5e5", "");
            text(svg, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &format!("{mbit}"));
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
        text(svg, 16.0, top + PANEL / 2.0, &turned, "Mbit/s");
        if is_last {
            let middle = (LEFT + WIDTH - RIGHT) / 2.0;
            text(svg, middle, bottom + 36.0, "text-anchor=\"middle\"", "seconds");
        }
        text(svg, LEFT, top - 7.0, "font-weight=\"bold\"", report.control.name());
        if let Some(error) = report.summary.allocation_error {
            let verdict = format!("allocation error {error:.3}");
            text(svg, WIDTH - RIGHT, top - 7.0, "text-anchor=\"end\" fill=\"#666\"", &verdict);
        }
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
        let points = series.map(|p| (self.x(p.t_s + bin / 2.0), self.y(top, p.rate.as_mbit_f64())));
        let style = "stroke-width=\"1.8\" stroke-linejoin=\"round\"";
        polyline(svg, points, colour(group), style);
    }

    /// A step line: the share holds from one event to the next, under a trace for a second. It has
    /// gaps where the shares cannot be known.
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
                let share = self.scenario.fair_shares_at(w[0])?[group].as_mbit_f64();
                let y = self.y(top, share);
                Some([(self.x(w[0].as_secs_f64()), y), (self.x(w[1].as_secs_f64()), y)])
            })
            .collect();
        let style = "stroke-width=\"1.4\" stroke-dasharray=\"5 4\" stroke-opacity=\"0.9\"";
        for known in steps.split(Option::is_none).filter(|known| !known.is_empty()) {
            polyline(svg, known.iter().flatten().flatten().copied(), colour(group), style);
        }
    }
}
