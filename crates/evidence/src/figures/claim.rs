//! Claims: the wanted value, the measured value, and whether they match.
//!
//! A claim is about the mean over all seeds, for which the seeds that were played give an interval.
//! It holds if the 95 % interval by Student's t is inside the band, and is missed if it is outside.
//! If the interval contains a bound, more seeds are needed to decide: the claim is open. One seed
//! gives no interval, so the value decides; tables say so.

use std::fmt::{self, Write};

use serde::{Serialize, Serializer};

/// One number for each seed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured(pub(super) Vec<f64>);

impl Measured {
    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Standard deviation over the seeds; zero for a single one.
    pub(super) fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|v| (v - mean) * (v - mean)).sum();
        (squares / (self.0.len() as f64 - 1.0).max(1.0)).sqrt()
    }

    /// Half the length of the 95 % interval of the mean; `None` for a single seed.
    ///
    /// Source: Student's t for the mean of this number of independent seeds.
    fn half_interval(&self) -> Option<f64> {
        let count = self.0.len();
        (count > 1).then(|| student_t(count - 1) * self.spread() / (count as f64).sqrt())
    }

    /// The ratio to another measurement, seed by seed.
    pub(super) fn by(&self, other: &Measured) -> Measured {
        self.with(other, |a, b| a / b)
    }

    /// A function of two measurements, seed by seed.
    pub(super) fn with(&self, other: &Measured, f: impl Fn(f64, f64) -> f64) -> Measured {
        Measured(self.0.iter().zip(&other.0).map(|(&a, &b)| f(a, b)).collect())
    }

    /// A function of each value.
    pub(super) fn map(&self, f: impl Fn(f64) -> f64) -> Measured {
        Measured(self.0.iter().map(|&v| f(v)).collect())
    }

    /// The values of all seeds, as text: `5.0, 16.9, 5.1 Mbit/s`.
    pub(super) fn each(&self, unit: Unit) -> String {
        let numbers: Vec<String> = self.0.iter().map(|&value| unit.number(value)).collect();
        format!("{}{unit}", numbers.join(", "))
    }

    /// Text such as `98.4 ± 0.3 %`: the mean and half its 95 % interval.
    pub(super) fn text(&self, unit: Unit) -> String {
        let number = |value: f64| unit.number(value);
        if self.mean().is_nan() {
            return "nothing".to_owned();
        }
        match self.half_interval() {
            None => format!("{}{unit}", number(self.mean())),
            Some(half) => format!("{} ± {}{unit}", number(self.mean()), number(half)),
        }
    }
}

/// The value that Student's t with these degrees of freedom does not exceed with probability 97.5 %.
///
/// The first values come from a table; from ten on, from the expansion of Abramowitz and Stegun,
/// 26.7.5, whose error is below 0.001.
fn student_t(freedom: usize) -> f64 {
    const FEW: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
    const NORMAL: f64 = 1.959_964;
    if let Some(few) = freedom.checked_sub(1).and_then(|i| FEW.get(i)) {
        return *few;
    }
    let (z, v) = (NORMAL, freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / v + second / v.powi(2) + third / v.powi(3)
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A part of something, shown in percent.
    Part,
    /// A ratio of two values.
    Times,
    /// An allocation error, or another small part that is shown as it is.
    Error,
    Mbit,
    /// For a number in seconds.
    Seconds,
    /// For a number in seconds that is shown in milliseconds.
    Milliseconds,
    Packets,
    /// A count of what the claim names.
    Count,
}

impl Unit {
    /// The number without its unit; a dash if it was not measured.
    pub(super) fn number(self, value: f64) -> String {
        if value.is_nan() {
            return "–".to_owned();
        }
        match self {
            Unit::Part => format!("{:.1}", value * 100.0),
            Unit::Error => format!("{value:.3}"),
            Unit::Times | Unit::Mbit => format!("{value:.2}"),
            Unit::Seconds | Unit::Packets => format!("{value:.1}"),
            Unit::Count => format!("{value:.0}"),
            Unit::Milliseconds => format!("{:.0}", value * 1e3),
        }
    }
}

/// The text after a number.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Part => " %",
            Unit::Times => " ×",
            Unit::Error | Unit::Count => "",
            Unit::Mbit => " Mbit/s",
            Unit::Seconds => " s",
            Unit::Milliseconds => " ms",
            Unit::Packets => " packets",
        })
    }
}

/// The range in which the interval of a mean must lie for the claim to hold; both ends are included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Band {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

impl Band {
    fn ends(self) -> (f64, f64) {
        match self {
            Band::AtLeast(least) => (least, f64::INFINITY),
            Band::AtMost(most) => (f64::NEG_INFINITY, most),
            Band::Within(least, most) => (least, most),
        }
    }

    /// The verdict on an interval; NaN is missed.
    fn judge(self, mean: f64, half: f64) -> Verdict {
        let (least, most) = self.ends();
        let (low, high) = (mean - half, mean + half);
        if low >= least && high <= most {
            Verdict::Met
        } else if high >= least && low <= most {
            Verdict::Open
        } else {
            Verdict::Missed
        }
    }

    fn text(self, unit: Unit) -> String {
        match self {
            Band::AtLeast(least) => format!("≥ {}{unit}", short(unit, least)),
            Band::AtMost(most) => format!("≤ {}{unit}", short(unit, most)),
            Band::Within(a, b) => format!("{} to {}{unit}", short(unit, a), short(unit, b)),
        }
    }
}

/// The number without decimals that are zero.
fn short(unit: Unit, value: f64) -> String {
    let text = unit.number(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// One claim, a line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Claim {
    /// What was measured.
    what: String,
    /// The paper's value, or the value of another control.
    beside: String,
    #[serde(serialize_with = "as_text")]
    measured: Measurement,
    mean: f64,
    /// Standard deviation over the seeds.
    spread: f64,
    /// Half the 95 % interval of the mean; `None` for a single value.
    half_interval: Option<f64>,
    /// Number of values, usually one for each seed.
    values: usize,
    wanted: String,
    pub(super) verdict: Verdict,
    /// Why it is not met, from another measurement.
    why: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Measurement(String);

fn as_text<S: Serializer>(measurement: &Measurement, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&measurement.0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Met,
    Missed,
    /// The interval contains a bound.
    Open,
}

impl Claim {
    pub(super) fn new(
        what: impl Into<String>,
        beside: impl Into<String>,
        (measured, unit): (Measured, Unit),
        wanted: Band,
    ) -> Claim {
        let (mean, half_interval) = (measured.mean(), measured.half_interval());
        Claim {
            what: what.into(),
            beside: beside.into(),
            measured: Measurement(measured.text(unit)),
            mean,
            spread: measured.spread(),
            half_interval,
            values: measured.0.len(),
            wanted: wanted.text(unit),
            verdict: wanted.judge(mean, half_interval.unwrap_or(0.0)),
            why: None,
        }
    }

    /// Adds the reason, if the claim is not met.
    pub(super) fn because(mut self, why: impl FnOnce() -> String) -> Claim {
        if self.verdict != Verdict::Met {
            self.why = Some(why());
        }
        self
    }

    /// Whether there is only one value, so that no interval can decide.
    pub(super) fn is_of_one_value(&self) -> bool {
        self.half_interval.is_none()
    }

    fn verdict_text(&self) -> String {
        let mut text = match self.verdict {
            Verdict::Met => format!("met: {}", self.wanted),
            Verdict::Missed => format!("**missed**: wanted {}", self.wanted),
            Verdict::Open => format!("**open**: wanted {}", self.wanted),
        };
        if self.is_of_one_value() {
            text.push_str(ONE_VALUE);
        }
        if let Some(why) = &self.why {
            let _ = write!(text, "; {why}");
        }
        text
    }
}

/// Mark of a claim that no interval decides.
const ONE_VALUE: &str = " (one value)";

/// The result of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) figure: &'static str,
    pub(super) title: &'static str,
    pub(super) claims: Vec<Claim>,
}

/// All claims as a table in Markdown.
pub(super) fn markdown(outcomes: &[Outcome], beside_what: &str) -> String {
    let mut text =
        format!("| figure | what | {beside_what} | measured | verdict |\n|---|---|---|---|---|\n");
    for outcome in outcomes {
        for (i, claim) in outcome.claims.iter().enumerate() {
            let figure = if i == 0 { outcome.figure } else { "" };
            let verdict = claim.verdict_text();
            let Claim { what, beside, measured, .. } = claim;
            let _ = writeln!(text, "| {figure} | {what} | {beside} | {} | {verdict} |", measured.0);
        }
    }
    text
}

/// All claims as text for a terminal.
pub(super) fn plain(outcomes: &[Outcome], beside_what: &str) -> String {
    let mut text = String::new();
    let claims = || outcomes.iter().flat_map(|o| &o.claims);
    let width = |of: &dyn Fn(&Claim) -> &str| {
        claims().map(|claim| of(claim).chars().count()).max().unwrap_or(0)
    };
    let widths = [width(&|c| &c.what), width(&|c| &c.measured.0), width(&|c| &c.wanted)];
    for outcome in outcomes {
        let _ = writeln!(text, "figure {}: {}", outcome.figure, outcome.title);
        for claim in &outcome.claims {
            let verdict = match claim.verdict {
                Verdict::Met => "met",
                Verdict::Missed => "MISSED",
                Verdict::Open => "OPEN",
            };
            let one = if claim.is_of_one_value() { ONE_VALUE } else { "" };
            let Claim { what, beside, measured, wanted, .. } = claim;
            let _ = writeln!(
                text,
                "  {verdict:<6}  {what:<a$}  {:<b$}  wanted {wanted:<c$}{one}  {beside_what}: {beside}",
                measured.0,
                a = widths[0],
                b = widths[1],
                c = widths[2],
            );
            if let Some(why) = &claim.why {
                let _ = writeln!(text, "          {why}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_spread_are_those_of_the_seeds() {
        let measured = Measured(vec![0.9, 1.0, 1.1]);
        assert!((measured.mean() - 1.0).abs() < 1e-12 && (measured.spread() - 0.1).abs() < 1e-12);
        // Half an interval is 4.303 · 0.1 / √3.
        assert_eq!(measured.text(Unit::Part), "100.0 ± 24.8 %");
        assert_eq!(Measured(vec![0.5]).text(Unit::Mbit), "0.50 Mbit/s");
        let doubled = measured.map(|v| v * 2.0);
        assert!(doubled.by(&measured).0.iter().all(|ratio| (ratio - 2.0).abs() < 1e-12));
    }

    #[test]
    fn student_t_is_that_of_tables() {
        let wanted = [(1, 12.706), (4, 2.776), (9, 2.262), (10, 2.228), (19, 2.093), (39, 2.023)];
        for (freedom, t) in wanted {
            assert!((student_t(freedom) - t).abs() < 0.001, "{freedom}: {}", student_t(freedom));
        }
        assert!((student_t(100_000) - 1.96).abs() < 0.001);
    }

    #[test]
    fn a_claim_holds_within_its_band_and_says_why_it_does_not() {
        let claim = |band| {
            let measured = (Measured(vec![0.15]), Unit::Part);
            Claim::new("loss", "15-20 %", measured, band).because(|| "of that".to_owned())
        };
        let met = claim(Band::AtMost(0.2));
        assert_eq!((met.verdict_text().as_str(), met.why), ("met: ≤ 20 % (one value)", None));
        let missed = claim(Band::AtMost(0.1));
        assert_eq!(missed.verdict_text(), "**missed**: wanted ≤ 10 % (one value); of that");
        assert_eq!(claim(Band::Within(0.15, 0.2)).verdict, Verdict::Met);
        assert_eq!(claim(Band::AtLeast(0.151)).verdict, Verdict::Missed);
    }

    #[test]
    fn a_claim_whose_interval_contains_a_bound_is_open_whichever_side_its_mean_is() {
        // The mean is 1.00, half an interval 0.159.
        let claim = |band| {
            let measured = (Measured(vec![0.9, 1.0, 1.0, 1.1, 1.2, 0.8]), Unit::Times);
            Claim::new("burst", "-", measured, band).because(|| "of that".to_owned())
        };
        let half = claim(Band::AtMost(2.0)).half_interval.unwrap();
        assert!((half - 2.571 * 0.02_f64.sqrt() / 6.0_f64.sqrt()).abs() < 1e-9, "{half}");
        let verdict = |band| claim(band).verdict;
        for bound in [1.14, 0.86] {
            assert_eq!(verdict(Band::AtMost(bound)), Verdict::Open, "{bound}");
            assert_eq!(verdict(Band::AtLeast(bound)), Verdict::Open, "{bound}");
        }
        assert_eq!(verdict(Band::AtMost(1.16)), Verdict::Met);
        assert_eq!(verdict(Band::AtMost(0.84)), Verdict::Missed);
        assert_eq!(verdict(Band::AtLeast(0.84)), Verdict::Met);
        assert_eq!(verdict(Band::AtLeast(1.16)), Verdict::Missed);
        assert_eq!(verdict(Band::Within(0.84, 1.16)), Verdict::Met);
        assert_eq!(verdict(Band::Within(0.9, 1.16)), Verdict::Open);
        assert_eq!(verdict(Band::Within(0.99, 1.01)), Verdict::Open, "both ends are inside");
        assert_eq!(verdict(Band::Within(1.2, 2.0)), Verdict::Missed);
        let open = claim(Band::AtMost(1.1));
        assert_eq!(open.verdict_text(), "**open**: wanted ≤ 1.1 ×; of that");
        assert_eq!(serde_json::to_value(&open).unwrap()["verdict"], "open");
        let outcome = [Outcome { figure: "1", title: "", claims: vec![open] }];
        assert!(plain(&outcome, "-").contains("  OPEN    burst  1.00 ± 0.15 ×  wanted ≤ 1.1 ×  "));
        assert!(markdown(&outcome, "-").contains("| 1.00 ± 0.15 × | **open**: wanted"));
    }

    #[test]
    fn seeds_that_agree_decide_at_the_bound() {
        let claim = |band| Claim::new("lost", "-", (Measured(vec![0.0; 5]), Unit::Packets), band);
        assert_eq!(claim(Band::AtMost(0.0)).verdict, Verdict::Met);
        assert_eq!(claim(Band::AtLeast(0.1)).verdict, Verdict::Missed);
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        for values in [vec![f64::NAN], vec![1.0, f64::NAN], vec![]] {
            let nothing = (Measured(values), Unit::Mbit);
            let claim = Claim::new("film", "high", nothing, Band::AtLeast(0.0));
            assert_eq!((claim.verdict, claim.measured.0.as_str()), (Verdict::Missed, "nothing"));
        }
    }
}
