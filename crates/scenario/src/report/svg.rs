//! Marks on a page, as SVG elements.
//!
//! Written by hand rather than by a plotting library: a few lines and labels need no fonts from the
//! machine that draws them, and the file is small and the same everywhere.

use std::fmt::Write;

/// Okabe and Ito's colours, which people with any colour vision can tell apart.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Upper bound of a character's mean width in a text: digits and capitals of Arial at 12 px.
pub(super) const CHARACTER: f64 = 7.0;
/// Distance between two rows of a legend.
const LEGEND_ROW: f64 = 20.0;
/// Width of an entry's mark, and of the gap next to its text.
const SAMPLE: f64 = 22.0;
const SAMPLE_GAP: f64 = 6.0;
const ENTRY_GAP: f64 = 20.0;

/// A page with the elements that `draw` adds.
pub(super) fn page(width: f64, height: f64, draw: impl FnOnce(&mut String)) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    draw(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

/// The colour of the `i`th of several things.
pub(super) fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// Round numbers from zero to `max`, about `count` of them.
pub(super) fn ticks(max: f64, count: usize) -> impl Iterator<Item = f64> {
    let raw = max / count as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|r| r * magnitude >= raw * 0.999);
    let step = round.unwrap_or(10.0) * magnitude;
    (0..=(max / step) as usize).map(move |i| (i as f64 * step * 1e6).round() / 1e6)
}

pub(super) fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str, more: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" {more}/>",
        from.0, from.1, to.0, to.1
    );
}

pub(super) fn polyline(
    svg: &mut String,
    points: impl Iterator<Item = (f64, f64)>,
    stroke: &str,
    more: &str,
) {
    let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{stroke}\" {more} points=\"");
    for (x, y) in points {
        let _ = write!(svg, "{x:.1},{y:.1} ");
    }
    svg.push_str("\"/>\n");
}

pub(super) fn bar(svg: &mut String, at: (f64, f64), size: (f64, f64), fill: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
        at.0, at.1, size.0, size.1
    );
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, more: &str, text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {more}>{escaped}</text>");
}

/// Entries side by side, in as many rows as they need.
pub(super) struct Legend {
    svg: String,
    left: f64,
    right: f64,
    x: f64,
    /// Position of the current row; below, of the first row.
    y: f64,
    top: f64,
}

impl Legend {
    /// A legend between `left` and `right`, with its first row at `y`.
    pub(super) fn new(left: f64, right: f64, y: f64) -> Legend {
        Legend { svg: String::new(), left, right, x: left, y, top: y }
    }

    /// Adds an entry; a label longer than a row is shortened.
    pub(super) fn add(&mut self, label: &str, stroke: &str, style: &str) {
        let room = ((self.right - self.left - SAMPLE - SAMPLE_GAP) / CHARACTER) as usize;
        let label = match label.char_indices().nth(room) {
            Some(_) => label.chars().take(room - 1).chain(['…']).collect(),
            None => label.to_owned(),
        };
        let width = SAMPLE + SAMPLE_GAP + CHARACTER * label.chars().count() as f64;
        if self.x > self.left && self.x + width > self.right {
            (self.x, self.y) = (self.left, self.y + LEGEND_ROW);
        }
        line(&mut self.svg, (self.x, self.y), (self.x + SAMPLE, self.y), stroke, style);
        text(&mut self.svg, self.x + SAMPLE + SAMPLE_GAP, self.y + 4.0, "", &label);
        self.x += width + ENTRY_GAP;
    }

    /// The SVG elements, and the height of the rows after the first.
    pub(super) fn finish(self) -> (String, f64) {
        (self.svg, self.y - self.top)
    }
}
