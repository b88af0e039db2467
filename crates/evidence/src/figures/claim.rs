//! What is wanted, what was measured, and whether the one is the other.

use std::fmt::{self, Write};

use serde::{Serialize, Serializer};

/// A number of each seed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured(pub(super) Vec<f64>);

impl Measured {
    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Standard deviation of the seeds; zero of one.
    pub(super) fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|v| (v - mean) * (v - mean)).sum();
        (squares / (self.0.len() as f64 - 1.0).max(1.0)).sqrt()
    }

    /// The ratio to another one, seed by seed.
    pub(super) fn by(&self, other: &Measured) -> Measured {
        self.with(other, |a, b| a / b)
    }

    /// Computes something of two, seed by seed.
    pub(super) fn with(&self, other: &Measured, f: impl Fn(f64, f64) -> f64) -> Measured {
        Measured(self.0.iter().zip(&other.0).map(|(&a, &b)| f(a, b)).collect())
    }

    /// Computes something of each.
    pub(super) fn map(&self, f: impl Fn(f64) -> f64) -> Measured {
        Measured(self.0.iter().map(|&v| f(v)).collect())
    }

    /// Every seed's, for people: `5.0, 16.9, 5.1 Mbit/s`.
    pub(super) fn each(&self, unit: Unit) -> String {
        let numbers: Vec<String> = self.0.iter().map(|&value| unit.number(value)).collect();
        format!("{}{unit}", numbers.join(", "))
    }

    /// For people: `98.4 ± 0.3 %`.
    pub(super) fn text(&self, unit: Unit) -> String {
        let number = |value: f64| unit.number(value);
        if self.mean().is_nan() {
            return "nothing".to_owned();
        }
        match self.0.len() {
            1 => format!("{}{unit}", number(self.mean())),
            _ => format!("{} ± {}{unit}", number(self.mean()), number(self.spread())),
        }
    }
}

/// What a number is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A part of something, shown in percent.
    Part,
    /// How often one thing goes into another.
    Times,
    /// An allocation error, or another small part that is shown as it is.
    Error,
    Mbit,
    /// Of a number in seconds.
    Seconds,
    /// Of a number in seconds as well.
    Milliseconds,
    Packets,
    /// How many there are of what the claim names.
    Count,
}

impl Unit {
    /// Without the unit.
    pub(super) fn number(self, value: f64) -> String {
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

/// Where a mean must lie for the claim to hold; ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Band {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

impl Band {
    fn holds(self, mean: f64) -> bool {
        match self {
            Band::AtLeast(least) => mean >= least,
            Band::AtMost(most) => mean <= most,
            Band::Within(least, most) => (least..=most).contains(&mean),
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

/// Without decimals that say nothing.
fn short(unit: Unit, value: f64) -> String {
    let text = unit.number(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Claim {
    /// What was looked at.
    what: String,
    /// What the paper says of it, or what another control came to.
    beside: String,
    #[serde(serialize_with = "as_text")]
    measured: Measurement,
    mean: f64,
    spread: f64,
    wanted: String,
    pub(super) verdict: Verdict,
    /// Why it was missed, by another measurement.
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
}

impl Claim {
    pub(super) fn new(
        what: impl Into<String>,
        beside: impl Into<String>,
        (measured, unit): (Measured, Unit),
        wanted: Band,
    ) -> Claim {
        let mean = measured.mean();
        Claim {
            what: what.into(),
            beside: beside.into(),
            measured: Measurement(measured.text(unit)),
            mean,
            spread: measured.spread(),
            wanted: wanted.text(unit),
            verdict: if wanted.holds(mean) { Verdict::Met } else { Verdict::Missed },
            why: None,
        }
    }

    /// Says why, if it was missed.
    pub(super) fn because(mut self, why: impl FnOnce() -> String) -> Claim {
        if self.verdict == Verdict::Missed {
            self.why = Some(why());
        }
        self
    }

    fn verdict_text(&self) -> String {
        match (self.verdict, &self.why) {
            (Verdict::Met, _) => format!("met: {}", self.wanted),
            (Verdict::Missed, None) => format!("**missed**: wanted {}", self.wanted),
            (Verdict::Missed, Some(why)) => format!("**missed**: wanted {}; {why}", self.wanted),
        }
    }
}

/// What a figure came to.
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

/// The same for a terminal.
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
            };
            let Claim { what, beside, measured, wanted, .. } = claim;
            let _ = writeln!(
                text,
                "  {verdict:<6}  {what:<a$}  {:<b$}  wanted {wanted:<c$}  {beside_what}: {beside}",
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
        assert_eq!(measured.text(Unit::Part), "100.0 ± 10.0 %");
        assert_eq!(Measured(vec![0.5]).text(Unit::Mbit), "0.50 Mbit/s");
        let doubled = measured.map(|v| v * 2.0);
        assert!(doubled.by(&measured).0.iter().all(|ratio| (ratio - 2.0).abs() < 1e-12));
    }

    #[test]
    fn a_claim_holds_within_its_band_and_says_why_it_does_not() {
        let claim = |band| {
            let measured = (Measured(vec![0.15]), Unit::Part);
            Claim::new("loss", "15-20 %", measured, band).because(|| "of that".to_owned())
        };
        let met = claim(Band::AtMost(0.2));
        assert_eq!((met.verdict_text().as_str(), met.why), ("met: ≤ 20 %", None));
        let missed = claim(Band::AtMost(0.1));
        assert_eq!(missed.verdict_text(), "**missed**: wanted ≤ 10 %; of that");
        assert_eq!(claim(Band::Within(0.15, 0.2)).verdict, Verdict::Met);
        assert_eq!(claim(Band::AtLeast(0.151)).verdict, Verdict::Missed);
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        let nothing = (Measured(vec![f64::NAN]), Unit::Mbit);
        let claim = Claim::new("film", "high", nothing, Band::AtLeast(0.0));
        assert_eq!((claim.verdict, claim.measured.0.as_str()), (Verdict::Missed, "nothing"));
    }
}
