//! Bars and lines in panels side by side under one legend, as an SVG.
//!
//! Values that are not numbers are left out.

use std::fmt::Write;

use crate::Control;

use super::svg::{self, CHARACTER, Legend, line, page, polyline, text, ticks};

/// A chart with one or more panels.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// The panels from left to right, two to a row.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// The bars or lines between the axes.
    pub marks: Marks,
}

/// What a panel shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Marks {
    /// One bar of each kind in each category.
    Bars {
        /// Labels under the bars.
        categories: Vec<String>,
        /// The kinds, with a value for each category.
        kinds: Vec<Bars>,
    },
    /// Lines through points.
    Lines {
        /// Whether equal ratios of `x` have equal lengths.
        logarithmic: bool,
        /// The lines to draw.
        lines: Vec<Line>,
    },
}

/// Bars of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Its name in the legend.
    pub name: String,
    /// Its colour in SVG notation.
    pub colour: &'static str,
    /// One value for each category; `None` leaves the bar out.
    pub values: Vec<Option<Value>>,
}

/// A mean over some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Height of the bar.
    pub mean: f64,
    /// Length of the whiskers in each direction.
    pub spread: f64,
}

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its colour in SVG notation.
    pub colour: &'static str,
    /// Whether it is drawn dashed, to show the ideal.
    pub dashed: bool,
    /// The points, in order of `x`.
    pub points: Vec<(f64, f64)>,
}

/// The colour that a control has in every chart.
pub fn colour_of(control: Control) -> &'static str {
    match control {
        Control::None => "#999999",
        Control::Static => svg::colour(3),
        Control::Borrow => svg::colour(4),
        Control::Wfq => svg::colour(2),
        Control::Chokepoint => svg::colour(5),
        Control::Rbm => svg::colour(6),
        Control::Crab => svg::colour(0),
        Control::CrabPrinted => "#7f4f24",
        Control::Fairweir => svg::colour(1),
    }
}

/// The name that a control has in every picture.
pub fn label_of(control: Control) -> &'static str {
    match control {
        Control::None => "none (status quo)",
        Control::Static => "static (fixed shares)",
        Control::Borrow => "borrow (HTB with borrowing)",
        Control::Wfq => "wfq (at the ISP)",
        Control::Chokepoint => "chokepoint",
        Control::Rbm => "rbm",
        Control::Crab => "crab",
        Control::CrabPrinted => "crab-printed (as the paper prints it)",
        Control::Fairweir => "fairweir (default)",
    }
}

/// The colour of the `i`th of several things that are not controls.
pub fn colour(i: usize) -> &'static str {
    svg::colour(i)
}

const WIDTH: f64 = 860.0;
const PANEL: f64 = 210.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
/// Distance between rows of panels: labels of the upper row, values above the bars of the lower.
const GAP: f64 = 74.0;
const BOTTOM: f64 = 60.0;
const COLUMNS: usize = 2;
/// Smallest width of a bar that has room for its value.
const LABELLED_BAR: f64 = 20.0;
const GRID: &str = "#e5e5e5";
const AXIS: &str = "#999";

impl Chart {
    /// Draws the chart.
    pub fn svg(&self) -> String {
        let (legend, rows) = self.legend();
        let top = TOP + rows + 38.0;
        let columns = self.panels.len().clamp(1, COLUMNS);
        let panel_rows = self.panels.len().div_ceil(columns) as f64;
        let height = top + panel_rows * (PANEL + GAP) - GAP + BOTTOM;
        page(WIDTH, height, |svg| {
            text(svg, LEFT, 22.0, "font-size=\"15\" font-weight=\"bold\"", &self.title);
            svg.push_str(&legend);
            let width = WIDTH / columns as f64;
            for (i, panel) in self.panels.iter().enumerate() {
                let frame = Frame {
                    left: (i % columns) as f64 * width + LEFT,
                    width: width - LEFT - RIGHT,
                    top: top + (i / columns) as f64 * (PANEL + GAP),
                };
                panel.draw(svg, frame);
            }
        })
    }

    /// Every kind of mark once, and the height of the rows after the first.
    fn legend(&self) -> (String, f64) {
        let mut entries: Vec<(&str, &str, &str)> = Vec::new();
        for panel in &self.panels {
            let of_panel: Vec<(&str, &str, &str)> = match &panel.marks {
                Marks::Bars { kinds, .. } => {
                    kinds.iter().map(|k| (k.name.as_str(), k.colour, THICK)).collect()
                }
                Marks::Lines { lines, .. } => {
                    lines.iter().map(|l| (l.name.as_str(), l.colour, l.style())).collect()
                }
            };
            entries.extend(of_panel.into_iter().filter(|(name, ..)| !name.is_empty()));
        }
        let mut legend = Legend::new(LEFT, WIDTH - RIGHT, TOP);
        for (i, &(name, colour, style)) in entries.iter().enumerate() {
            if entries[..i].iter().all(|(before, ..)| *before != name) {
                legend.add(name, colour, style);
            }
        }
        legend.finish()
    }
}

const THICK: &str = "stroke-width=\"8\"";

impl Line {
    fn style(&self) -> &'static str {
        if self.dashed {
            "stroke-width=\"1.5\" stroke-dasharray=\"5 4\""
        } else {
            "stroke-width=\"2\" stroke-linejoin=\"round\""
        }
    }
}

/// Where a panel's axes lie on the page.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    width: f64,
    top: f64,
}

impl Frame {
    fn bottom(self) -> f64 {
        self.top + PANEL
    }

    fn right(self) -> f64 {
        self.left + self.width
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, frame: Frame) {
        let y_max = self.y_max();
        let y = |value: f64| frame.top + PANEL * (1.0 - (value / y_max).clamp(0.0, 1.0));
        for tick in ticks(y_max, 4) {
            line(svg, (frame.left, y(tick)), (frame.right(), y(tick)), GRID, "");
            let label = format!("{tick}");
            text(svg, frame.left - 8.0, y(tick) + 4.0, "text-anchor=\"end\"", &label);
        }
        let (middle, turn) = (frame.top + PANEL / 2.0, frame.left - 46.0);
        let turned =
            format!("text-anchor=\"middle\" transform=\"rotate(-90 {turn:.1} {middle:.1})\"");
        text(svg, turn, middle, &turned, &self.y);
        let centre = frame.left + frame.width / 2.0;
        text(svg, centre, frame.bottom() + 48.0, "text-anchor=\"middle\"", &self.x);
        match &self.marks {
            Marks::Bars { categories, kinds } => bars(svg, frame, &y, categories, kinds),
            Marks::Lines { logarithmic, lines } => draw_lines(svg, frame, &y, *logarithmic, lines),
        }
        line(svg, (frame.left, frame.bottom()), (frame.right(), frame.bottom()), AXIS, "");
    }

    /// Top of the vertical axis, a little above all values.
    fn y_max(&self) -> f64 {
        let highest = match &self.marks {
            Marks::Bars { kinds, .. } => {
                let values = kinds.iter().flat_map(|k| k.values.iter().flatten());
                values.map(|v| v.mean + v.spread).fold(0.0, f64::max)
            }
            Marks::Lines { lines, .. } => {
                lines.iter().flat_map(|l| &l.points).map(|p| p.1).fold(0.0, f64::max)
            }
        };
        highest.max(1e-3) * 1.04
    }
}

fn bars(
    svg: &mut String,
    frame: Frame,
    y: &impl Fn(f64) -> f64,
    categories: &[String],
    kinds: &[Bars],
) {
    let slot = frame.width / categories.len().max(1) as f64;
    let bar = slot * 0.78 / kinds.len().max(1) as f64;
    for (i, category) in categories.iter().enumerate() {
        let left = frame.left + slot * i as f64;
        for (k, kind) in kinds.iter().enumerate() {
            let value = kind.values.get(i).copied().flatten();
            let Some(value) = value.filter(|v| v.mean.is_finite()) else { continue };
            let x = left + slot * 0.11 + bar * k as f64;
            let top = y(value.mean);
            svg::bar(svg, (x, top), (bar * 0.92, frame.bottom() - top), kind.colour);
            let middle = x + bar * 0.46;
            let (low, high) = (y(value.mean - value.spread), y(value.mean + value.spread));
            if value.spread > 0.0 {
                line(svg, (middle, low), (middle, high), "#333", "");
            }
            if bar >= LABELLED_BAR {
                let style = "text-anchor=\"middle\" font-size=\"9\" fill=\"#666\"";
                text(svg, middle, high - 4.0, style, &three_digits(value.mean));
            }
        }
        for (row, words) in wrapped(category, slot).iter().enumerate() {
            let y = frame.bottom() + 15.0 + 13.0 * row as f64;
            text(svg, left + slot / 2.0, y, "text-anchor=\"middle\" font-size=\"11\"", words);
        }
    }
}

fn draw_lines(
    svg: &mut String,
    frame: Frame,
    y: &impl Fn(f64) -> f64,
    logarithmic: bool,
    lines: &[Line],
) {
    let all = || lines.iter().flat_map(|l| &l.points).map(|p| p.0);
    let x_max = all().fold(0.0, f64::max).max(1e-3);
    let x_min = if logarithmic { all().fold(x_max, f64::min).max(1e-3) } else { 0.0 };
    let x = |value: f64| {
        let part = if logarithmic {
            (value.max(x_min) / x_min).ln() / (x_max / x_min).ln().max(1e-9)
        } else {
            value / x_max
        };
        frame.left + frame.width * part.clamp(0.0, 1.0)
    };
    let marked: Vec<f64> =
        if logarithmic { decades(x_min, x_max) } else { ticks(x_max, 5).collect() };
    for tick in marked {
        line(svg, (x(tick), frame.bottom()), (x(tick), frame.bottom() + 4.0), AXIS, "");
        let style = "text-anchor=\"middle\"";
        text(svg, x(tick), frame.bottom() + 18.0, style, &format!("{tick}"));
    }
    for drawn in lines {
        let numbers = drawn.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite());
        let points = numbers.map(|p| (x(p.0), y(p.1)));
        polyline(svg, points, drawn.colour, drawn.style());
    }
}

/// 1, 2, 5, 10, 20 … from `min` to `max`.
fn decades(min: f64, max: f64) -> Vec<f64> {
    let powers = min.log10().floor() as i32..=max.log10().ceil() as i32;
    let all = powers.flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p)));
    all.filter(|v| (min * 0.999..=max * 1.001).contains(v)).collect()
}

fn three_digits(value: f64) -> String {
    let mut text = String::new();
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    let _ = write!(text, "{value:.decimals$}");
    text
}

/// The words of a label in rows that are not wider than `width`, unless a single word is.
fn wrapped(label: &str, width: f64) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in label.split_whitespace() {
        match rows.last_mut() {
            Some(row) if (row.len() + 1 + word.len()) as f64 * CHARACTER * 0.9 <= width => {
                row.push(' ');
                row.push_str(word);
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[f64]) -> Panel {
        let values = values.iter().map(|&mean| Some(Value { mean, spread: 0.5 })).collect();
        let kinds = vec![Bars { name: "crab".into(), colour: colour_of(Control::Crab), values }];
        let categories = vec!["5 : 1".into(), "1 : 1".into()];
        Panel { x: "weights".into(), y: "Mbit/s".into(), marks: Marks::Bars { categories, kinds } }
    }

    fn heights(svg: &str) -> Vec<f64> {
        let height = |rest: &str| rest.split('"').next()?.parse().ok();
        svg.split("height=\"").skip(1).filter_map(height).collect()
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let svg = Chart { title: "t".into(), panels: vec![bars(&[16.0, 4.0])] }.svg();
        let drawn = heights(&svg);
        let (first, second) = (drawn[drawn.len() - 2], drawn[drawn.len() - 1]);
        assert!((first / second - 4.0).abs() < 0.05, "{drawn:?}");
        for label in ["crab", "5 : 1", "weights", "Mbit/s"] {
            assert!(svg.contains(&format!(">{label}</text>")), "{label}");
        }
    }

    #[test]
    fn a_name_stands_once_in_the_legend() {
        let chart = Chart { title: "t".into(), panels: vec![bars(&[1.0, 2.0]), bars(&[3.0, 4.0])] };
        assert_eq!(chart.svg().matches(">crab</text>").count(), 1);
    }

    #[test]
    fn equal_ratios_are_equally_far_on_a_logarithmic_axis() {
        let points = vec![(1.0, 1.0), (10.0, 1.0), (100.0, 1.0)];
        let lines = vec![Line { name: "a".into(), colour: colour(0), dashed: false, points }];
        let marks = Marks::Lines { logarithmic: true, lines };
        let panel = Panel { x: "RTT, ms".into(), y: "share".into(), marks };
        let svg = Chart { title: "t".into(), panels: vec![panel] }.svg();
        let points = svg.split("points=\"").nth(1).and_then(|s| s.split('"').next());
        let xs: Vec<f64> = points
            .into_iter()
            .flat_map(str::split_whitespace)
            .filter_map(|p| p.split(',').next()?.parse().ok())
            .collect();
        assert!((xs[2] - xs[1] - (xs[1] - xs[0])).abs() < 0.2, "{xs:?}");
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let with_a_gap = Chart { title: "t".into(), panels: vec![bars(&[16.0, f64::NAN])] }.svg();
        assert!(!with_a_gap.contains("NaN"), "{with_a_gap}");
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        let empty = |marks| Panel { x: String::new(), y: String::new(), marks };
        let panels = vec![
            empty(Marks::Bars { categories: vec![], kinds: vec![] }),
            empty(Marks::Lines { logarithmic: true, lines: vec![] }),
        ];
        let svg = Chart { title: "a < b".into(), panels }.svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
