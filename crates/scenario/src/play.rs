//! The runs that one command plays: a scenario with several controls and seeds.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::{Control, Scenario};

/// The most runs of one command.
pub const RUNS_MAX: usize = 10_000;

/// A control and a seed with which a scenario is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The control that divides the link.
    pub control: Control,
    /// Seed of all randomness.
    pub seed: u64,
}

/// A run together with its scenario, which may differ from those of other jobs.
#[derive(Clone, Debug)]
pub struct Job<'s> {
    /// The scenario that is played.
    pub scenario: &'s Scenario,
    /// Control and seed.
    pub run: Run,
    /// Its name in the progress display.
    pub label: String,
    /// Whether the report keeps its rates over time, which take much memory in many long runs.
    pub keeps_series: bool,
}

/// Seeds as on the command line: `3`, or `1..20`, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    last: u64,
}

/// A text that is not [`Seeds`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found `{0}`, wanted a whole number such as 3, or a range such as 1..20")]
pub struct BadSeeds(String);

/// Runs that cannot be played by one command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRuns {
    /// A range of seeds is too long.
    #[error("`--seed {0}`: more than {RUNS_MAX} runs")]
    TooManySeeds(Seeds),
    /// Controls times seeds are too many.
    #[error("{0} runs: more than {RUNS_MAX} runs")]
    TooMany(usize),
    /// The same seed appears twice.
    #[error("duplicate seed {0}")]
    DuplicateSeed(u64),
    /// The same control appears twice.
    #[error("duplicate control `{0}`")]
    DuplicateControl(Control),
}

impl FromStr for Seeds {
    type Err = BadSeeds;

    fn from_str(text: &str) -> Result<Seeds, BadSeeds> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        // The largest number that a scenario file can contain is allowed.
        let number = |text: &str| text.parse().ok().filter(|&n| n <= i64::MAX as u64);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Seeds { first, last }),
            _ => Err(BadSeeds(text.to_owned())),
        }
    }
}

impl Seeds {
    /// All seeds of the range.
    ///
    /// # Errors
    /// [`BadRuns::TooManySeeds`] if there are more than [`RUNS_MAX`].
    pub fn all(&self) -> Result<RangeInclusive<u64>, BadRuns> {
        if self.last - self.first >= RUNS_MAX as u64 {
            return Err(BadRuns::TooManySeeds(self.clone()));
        }
        Ok(self.first..=self.last)
    }
}

/// Written as on the command line.
impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}..{}", self.first, self.last),
        }
    }
}

/// The number of cores that computations may use; 1 if it is unknown.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Computes a result for each index in `order` on some threads, starting with the first ones. The
/// results are in the order of the indices.
pub fn over_threads<T: Send>(
    order: &[usize],
    threads: usize,
    one: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::with_capacity(order.len()));
    let work = || {
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = one(i);
            found.lock().unwrap_or_else(|e| e.into_inner()).push((i, one));
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().map(|(_, one)| one).collect()
}

/// Each control with each seed, in the order given; without seeds, the scenario's seed is used.
///
/// # Errors
/// [`BadRuns`] if a control or a seed appears twice, or there are more than [`RUNS_MAX`] runs.
pub fn runs(
    controls: &[Control],
    seed: &[Seeds],
    scenario: &Scenario,
) -> Result<Vec<Run>, BadRuns> {
    let mut seeds = Vec::new();
    for range in seed {
        seeds.extend(range.all()?);
    }
    if seeds.is_empty() {
        seeds.push(scenario.seed);
    }
    if let Some(seed) = duplicate(&seeds) {
        return Err(BadRuns::DuplicateSeed(*seed));
    }
    if let Some(control) = duplicate(controls) {
        return Err(BadRuns::DuplicateControl(*control));
    }
    let count = seeds.len() * controls.len();
    if count > RUNS_MAX {
        return Err(BadRuns::TooMany(count));
    }
    let of = |&control| seeds.iter().map(move |&seed| Run { control, seed });
    Ok(controls.iter().flat_map(of).collect())
}

/// The first element that is equal to an earlier one.
fn duplicate<T: Ord>(all: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    all.iter().find(|one| !seen.insert(*one))
}

/// The name of each run: its control, and its seed if there are several.
pub fn labels(runs: &[Run]) -> Vec<String> {
    let several = runs.iter().any(|run| run.seed != runs[0].seed);
    let label = |run: &Run| match several {
        true => format!("{} seed {}", run.control, run.seed),
        false => run.control.to_string(),
    };
    runs.iter().map(label).collect()
}
