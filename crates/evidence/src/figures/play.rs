//! Plays every run that the figures need, once, over all cores.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use fairweir_config::{ConfigError, Override, Text};
use fairweir_scenario::play::{Job, Run};
use fairweir_scenario::report::Report;
use fairweir_scenario::{Control, Scenario};

use super::claim::Measured;
use crate::Players;

/// A scenario with a control, as it is played with every seed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    /// Name of a file in `scenarios/`.
    pub(super) scenario: &'static str,
    /// Overrides of the file, as `--set` takes them.
    pub(super) set: Vec<String>,
    pub(super) control: Control,
}

impl Point {
    pub(super) fn new(scenario: &'static str, control: Control) -> Point {
        Point { scenario, set: Vec::new(), control }
    }

    /// The point with another value for a key of the file.
    pub(super) fn set(mut self, key: &str, value: impl ToString) -> Point {
        self.set.push(format!("{key}={}", value.to_string()));
        self
    }

    /// The scenario that it plays.
    ///
    /// # Errors
    /// If the scenario is missing or invalid.
    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        let (_, text) = SCENARIOS
            .iter()
            .find(|(name, _)| *name == self.scenario)
            .with_context(|| format!("there is no scenario {}", self.scenario))?;
        let set: Result<Vec<Override>, _> = self.set.iter().map(|text| text.parse()).collect();
        let file = format!("scenarios/{}.toml", self.scenario);
        let load = |path: &Path| Err(ConfigError::whole_file(path, "not part of the program"));
        Ok(Scenario::parse_with(&Text::new(*text, file), &set?, &load)?)
    }
}

macro_rules! scenarios {
    ($($name:literal)*) => {
        /// The scenarios of the figures by name, so that the command works anywhere.
        const SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))),*];
    };
}

scenarios! {
    "crab-fig3-alone" "crab-fig7" "crab-fig8" "crab-fig9" "crab-fig10" "crab-fig11b" "crab-fig12"
    "crab-fig15" "crab-fig15c-3" "crab-fig15c-6" "crab-fig15c-12" "crab-fig15c-24" "crab-fig16"
    "rbm-fig1" "rbm-fig3" "rbm-fig4" "rbm-fig5" "rbm-broadband"
    "bcpqp-one" "bcpqp-fig5" "bcpqp-fig6" "bcpqp-fig8-weights" "bcpqp-fig8-nested"
    "bcpqp-fig9-video" "bcpqp-fig9-web" "bcpqp-newcomer"
    "fs-bundle" "fs-dynamic" "fs-kernel" "crab-fig7-short" "crab-fig8-short" "rtts" "rtts-first-200" "step-10" "step-27" "step-28.5"
    "remembered-high" "idle-then-load" "weights-5-1" "weights-1-5" "weights-5-1-bbr"
    "weights-1-5-bbr" "weights-5-1-mixed" "weights-1-5-mixed" "mix-cubic-bbr" "video-vs-bulk"
    "web-7-3" "quic-vs-tcp" "udp-flood"
}

/// The points to play, and whether their rates over time are needed.
pub(super) type ToPlay = BTreeMap<Point, bool>;

/// The reports of everything that was played, one for each seed.
#[derive(Debug, Default)]
pub(super) struct Played {
    reports: BTreeMap<Point, Vec<Report>>,
    /// The seeds of the command, in rising order.
    pub(super) seeds: Vec<u64>,
}

impl Played {
    /// The results of some points with one seed.
    #[cfg(test)]
    pub(super) fn from<'p>(
        points: impl IntoIterator<Item = &'p Point>,
        of: impl Fn(&Point) -> Vec<Report>,
    ) -> Played {
        let reports = points.into_iter().map(|point| (point.clone(), of(point))).collect();
        Played { reports, seeds: vec![1] }
    }

    /// The reports of a point, in the order of the seeds.
    ///
    /// # Panics
    /// If it was not planned.
    pub(super) fn of(&self, point: &Point) -> &[Report] {
        self.reports.get(point).expect("invariant: a figure judges only what it plans")
    }

    /// A number of a point.
    pub(super) fn measure(&self, point: &Point, of: impl Fn(&Report) -> f64) -> Measured {
        Measured(self.of(point).iter().map(of).collect())
    }

    /// The mean of a number over several points.
    pub(super) fn mean(&self, points: &[Point], of: impl Fn(&Report) -> f64) -> Measured {
        let all: Vec<Measured> = points.iter().map(|p| self.measure(p, &of)).collect();
        let seeds = all.first().map_or(0, |m| m.0.len());
        let mean = |seed: usize| all.iter().map(|m| m.0[seed]).sum::<f64>() / all.len() as f64;
        Measured((0..seeds).map(mean).collect())
    }
}

/// Plays everything with every seed.
///
/// # Errors
/// If a scenario is not valid, or the user interrupted it.
pub(super) fn play(
    wanted: &ToPlay,
    seeds: &[u64],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<Played> {
    let mut points = Vec::new();
    for (point, &keeps_series) in wanted {
        points.push((point, point.scenario()?, keeps_series));
    }
    let mut jobs = Vec::new();
    for (point, scenario, keeps_series) in &points {
        jobs.extend(seeds.iter().map(|&seed| Job {
            scenario,
            run: Run { control: point.control, seed },
            label: point.scenario.to_owned(),
            keeps_series: *keeps_series,
        }));
    }
    let mut reports = players.simulate(&jobs, parallel)?.into_iter();
    let mut of = |(point, ..): &(&Point, _, _)| {
        (Point::clone(point), reports.by_ref().take(seeds.len()).collect())
    };
    Ok(Played { reports: points.iter().map(&mut of).collect(), seeds: seeds.to_vec() })
}
