//! Distributions over the cases of a campaign, the targets, clusters of failures, and worst cases.

use std::collections::BTreeMap;

use fairweir_scenario::Control;
use serde::Serialize;

use super::class::Class;
use super::score::{Bound, Outcome, REFERENCE_ERROR_MAX, Score};

/// One number of each case, with the seed of the case.
pub(super) struct Values(Vec<(f64, u64)>);

impl Values {
    /// Values of some outcomes; outcomes without the number are left out.
    pub(super) fn of<'o>(
        outcomes: impl IntoIterator<Item = &'o Outcome>,
        value: impl Fn(&Score) -> Option<f64>,
    ) -> Values {
        let outcomes = outcomes.into_iter();
        let mut all: Vec<_> = outcomes.filter_map(|o| Some((value(&o.score)?, o.seed))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Values(all)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The least value that a part `q` of all values does not exceed.
    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        self.0.get(crate::rank(self.len(), q) - 1).map(|(value, _)| *value)
    }

    pub(super) fn least(&self) -> Option<(f64, u64)> {
        self.0.first().copied()
    }

    pub(super) fn most(&self) -> Option<(f64, u64)> {
        self.0.last().copied()
    }

    /// Rising values, each with the part of all values that do not exceed it.
    pub(super) fn cumulative(&self) -> Vec<(f64, f64)> {
        let count = self.len() as f64;
        self.0.iter().zip(1..).map(|((value, _), n)| (*value, f64::from(n) / count)).collect()
    }
}

/// The statistics that a column shows.
#[derive(Clone, Copy)]
enum Column {
    /// Median, 90th percentile and maximum.
    Most(fn(&Score) -> Option<f64>, usize),
    /// Median, 10th percentile and minimum.
    Least(fn(&Score) -> Option<f64>, usize),
    /// Number of events that are right, and number of events.
    Right,
}

/// The columns of the table of a control.
const COLUMNS: [(&str, Column); 10] = [
    ("error", Column::Most(|s| s.error, 3)),
    ("beyond bound", Column::Most(|s| s.excess, 3)),
    ("used / wfq", Column::Least(|s| s.used_by_wfq, 2)),
    ("total / none", Column::Least(|s| s.total_by_none, 2)),
    ("right", Column::Right),
    ("queue, ms", Column::Most(|s| s.queue_mean_ms, 1)),
    ("video / wfq", Column::Least(|s| s.video_by_wfq, 2)),
    ("pages / wfq", Column::Most(|s| s.pages_by_wfq, 2)),
    ("shorts / none", Column::Most(|s| s.shorts_by_none, 2)),
    ("ping p95, ms", Column::Most(|s| s.ping_p95_ms, 0)),
];

/// The distribution of a control's scores: a row for each class and one for all. A cell is the
/// median, the 90th (10th) percentile and the worst with its seed.
pub(super) fn distribution(outcomes: &[&Outcome]) -> Vec<Vec<String>> {
    let mut head = vec!["class".to_owned(), "n".to_owned()];
    head.extend(COLUMNS.iter().map(|(name, _)| (*name).to_owned()));
    let mut rows = vec![head];
    let row = |name: &str, of: &[&Outcome]| {
        let cells = COLUMNS.iter().map(|(_, column)| cell(*column, of));
        [name.to_owned(), of.len().to_string()].into_iter().chain(cells).collect()
    };
    for class in Class::ALL {
        let of: Vec<&Outcome> = outcomes.iter().copied().filter(|o| o.class == *class).collect();
        if !of.is_empty() {
            rows.push(row(class.name(), &of));
        }
    }
    rows.push(row("all", outcomes));
    rows
}

fn cell(column: Column, of: &[&Outcome]) -> String {
    let three = |values: Values, q: f64, worst: Option<(f64, u64)>, decimals: usize| {
        let parts = (values.quantile(0.5), values.quantile(q), worst);
        let (Some(median), Some(edge), Some((worst, seed))) = parts else { return "-".to_owned() };
        format!("{median:.decimals$} {edge:.decimals$} {worst:.decimals$} ({seed})")
    };
    let outcomes = || of.iter().copied();
    match column {
        Column::Most(value, decimals) => {
            let values = Values::of(outcomes(), value);
            let worst = values.most();
            three(values, 0.9, worst, decimals)
        }
        Column::Least(value, decimals) => {
            let values = Values::of(outcomes(), value);
            let worst = values.least();
            three(values, 0.1, worst, decimals)
        }
        Column::Right => {
            let (right, events) = events(outcomes());
            if events == 0 { "-".to_owned() } else { format!("{right} of {events}") }
        }
    }
}

fn events<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> (u32, u32) {
    outcomes
        .fold((0, 0), |(right, events), o| (right + o.score.events_right, events + o.score.events))
}

// ------------------------------------------------------------------------------------------------

/// A goal for a control, and whether it is met.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Target {
    pub(super) control: Control,
    pub(super) what: String,
    pub(super) wanted: String,
    /// The value found; `None` if no case has the number.
    pub(super) found: Option<f64>,
    pub(super) cases: usize,
    pub(super) met: Option<bool>,
    /// The seed of the worst case.
    pub(super) worst_seed: Option<u64>,
}

/// Position of the compared value among the sorted values.
#[derive(Clone, Copy)]
enum At {
    Quantile(f64),
    Least,
    Most,
}

#[derive(Clone, Copy)]
enum Band {
    AtLeast(f64),
    AtMost(f64),
}

/// Collects the targets of one control.
struct Targets<'o> {
    control: Control,
    outcomes: Vec<&'o Outcome>,
    targets: Vec<Target>,
}

impl<'o> Targets<'o> {
    fn of(&self, classes: &[Class]) -> Vec<&'o Outcome> {
        let is_of = |o: &&Outcome| classes.is_empty() || classes.contains(&o.class);
        self.outcomes.iter().copied().filter(is_of).collect()
    }

    fn add(&mut self, what: &str, values: Values, at: At, band: Band) {
        let found = match at {
            At::Quantile(q) => values.quantile(q),
            At::Least => values.least().map(|(value, _)| value),
            At::Most => values.most().map(|(value, _)| value),
        };
        let (wanted, met, worst) = match band {
            Band::AtLeast(least) => {
                (format!("≥ {least}"), found.map(|f| f >= least), values.least())
            }
            Band::AtMost(most) => (format!("≤ {most}"), found.map(|f| f <= most), values.most()),
        };
        self.targets.push(Target {
            control: self.control,
            what: what.to_owned(),
            wanted,
            found,
            cases: values.len(),
            met,
            worst_seed: worst.map(|(_, seed)| seed),
        });
    }
}

/// The targets of a control; on slow links it is compared with `crab`, if that was played.
pub(super) fn targets(control: Control, outcomes: &[Outcome]) -> Vec<Target> {
    let mine = outcomes.iter().filter(|o| o.control == control).collect();
    let mut all = Targets { control, outcomes: mine, targets: Vec::new() };
    shares(&mut all);
    applications(&mut all);
    classes(&mut all);
    slow(&mut all, outcomes);
    all.targets
}

/// The error, only where the reference reaches the shares.
fn where_wfq_reaches(score: &Score, value: Option<f64>) -> Option<f64> {
    value.filter(|_| score.reference_error.is_some_and(|error| error < REFERENCE_ERROR_MAX))
}

fn shares(all: &mut Targets<'_>) {
    let every = all.of(&[]);
    let values = |value: fn(&Score) -> Option<f64>| Values::of(every.iter().copied(), value);
    let error = || values(|s| where_wfq_reaches(s, s.error));
    all.add("error, median", error(), At::Quantile(0.5), Band::AtMost(0.015));
    all.add("error, p90", error(), At::Quantile(0.9), Band::AtMost(0.06));
    let excess = values(|s| where_wfq_reaches(s, s.excess));
    all.add("error beyond the bound, p95", excess, At::Quantile(0.95), Band::AtMost(0.04));
    let used = || values(|s| s.used_by_wfq);
    all.add("used by wfq's, median", used(), At::Quantile(0.5), Band::AtLeast(0.97));
    all.add("used by wfq's, p10", used(), At::Quantile(0.1), Band::AtLeast(0.92));
    let least = values(|s| s.used.filter(|_| s.none_used.is_some_and(|none| none >= 0.95)));
    all.add("used where none has 95 %, least", least, At::Least, Band::AtLeast(0.8));
    let total = || values(|s| s.total_by_none);
    all.add("host total by none's, p10", total(), At::Quantile(0.1), Band::AtLeast(0.95));
    let (right, events) = events(every.iter().copied());
    let part = (events > 0).then(|| f64::from(right) / f64::from(events));
    let least_right =
        values(|s| (s.events > 0).then(|| f64::from(s.events_right) / f64::from(s.events)));
    all.targets.push(Target {
        control: all.control,
        what: "events right within max(2 s, 1.5 × wfq)".to_owned(),
        wanted: "≥ 0.9".to_owned(),
        found: part,
        cases: events as usize,
        met: part.map(|part| part >= 0.9),
        worst_seed: least_right.least().map(|(_, seed)| seed),
    });
    let private = every.iter().copied().filter(|o| o.class != Class::Neighbours);
    let queue = Values::of(private, |s| s.queue_mean_ms);
    all.add(
        "queue mean without neighbours, ms, median",
        queue,
        At::Quantile(0.5),
        Band::AtMost(6.0),
    );
}

fn applications(all: &mut Targets<'_>) {
    let every = all.of(&[]);
    let values = |value: fn(&Score) -> Option<f64>| Values::of(every.iter().copied(), value);
    let video = || values(|s| s.video_by_wfq);
    all.add("video by wfq's, median", video(), At::Quantile(0.5), Band::AtLeast(0.97));
    all.add("video by wfq's, p10", video(), At::Quantile(0.1), Band::AtLeast(0.9));
    let pages = values(|s| s.pages_by_wfq);
    all.add("page loads by wfq's, median", pages, At::Quantile(0.5), Band::AtMost(1.05));
    let shorts = values(|s| s.shorts_by_none);
    all.add("short downloads' p95 by none's, median", shorts, At::Quantile(0.5), Band::AtMost(1.0));
}

fn classes(all: &mut Targets<'_>) {
    let error: fn(&Score) -> Option<f64> = |s| where_wfq_reaches(s, s.error);
    let excess: fn(&Score) -> Option<f64> = |s| where_wfq_reaches(s, s.excess);
    let used: fn(&Score) -> Option<f64> = |s| s.used;
    let total: fn(&Score) -> Option<f64> = |s| s.total_by_none;
    let p90 = At::Quantile(0.9);
    let p10 = At::Quantile(0.1);
    use Band::{AtLeast, AtMost};
    let rows = [
        (Class::Policed, "policed: used of the plan, p10", used, p10, AtLeast(0.95)),
        (Class::Policed, "policed: error, p90", error, p90, AtMost(0.04)),
        (Class::Shallow, "shallow: error, p90", error, p90, AtMost(0.03)),
        (Class::Aqm, "CoDel, FQ-CoDel, PIE: error, p90", error, p90, AtMost(0.03)),
        (Class::Cold, "cold start: used, worst", used, At::Least, AtLeast(0.8)),
        (Class::Neighbours, "neighbours: total by none's, p10", total, p10, AtLeast(0.95)),
        (Class::Neighbours, "neighbours: own error, p90", error, p90, AtMost(0.03)),
        (
            Class::Neighbours,
            "neighbours: the same beyond the bound, p90",
            excess,
            p90,
            AtMost(0.03),
        ),
        (
            Class::Hosts,
            "two hosts: the lesser by the greater, p10",
            |s| s.evenness,
            p10,
            AtLeast(0.8),
        ),
        (Class::Hosts, "two hosts: queue mean, ms, p90", |s| s.queue_mean_ms, p90, AtMost(10.0)),
        (Class::Jitter, "jitter: used, p10", used, p10, AtLeast(0.92)),
        (Class::Jitter, "jitter: error, p90", error, p90, AtMost(0.04)),
        (Class::Rtts, "RTT 1-500 ms: error, p90", error, p90, AtMost(0.02)),
        (Class::Far, "RTT 200-500 ms: error, p90", error, p90, AtMost(0.02)),
        (Class::Slow, "slow: error beyond the bound, worst", excess, At::Most, AtMost(0.03)),
        (Class::Call, "ping in a busy group: p95, ms, p90", |s| s.ping_p95_ms, p90, AtMost(20.0)),
    ];
    for (class, what, value, at, band) in rows {
        let values = Values::of(all.of(&[class]), value);
        all.add(what, values, at, band);
    }
}

/// On slow links the control is compared with `crab`, if `crab` was played.
fn slow(all: &mut Targets<'_>, outcomes: &[Outcome]) {
    if all.control == Control::Crab {
        return;
    }
    let crab: BTreeMap<u64, f64> = outcomes
        .iter()
        .filter(|o| o.control == Control::Crab && o.class == Class::Slow)
        .filter_map(|o| Some((o.seed, o.score.error?)))
        .collect();
    let beyond = |o: &&Outcome| {
        Some((where_wfq_reaches(&o.score, o.score.error)? - crab.get(&o.seed)?, o.seed))
    };
    let mut values: Vec<(f64, u64)> = all.of(&[Class::Slow]).iter().filter_map(beyond).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.add("slow: error less crab's, p90", Values(values), At::Quantile(0.9), Band::AtMost(0.0));
}

/// The targets as rows.
pub(super) fn target_rows(targets: &[Target]) -> Vec<Vec<String>> {
    let head = ["target", "control", "wanted", "found", "", "cases", "worst seed"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for target in targets {
        let verdict = match target.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "-",
        };
        rows.push(vec![
            target.what.clone(),
            target.control.to_string(),
            target.wanted.clone(),
            target.found.map_or("-".to_owned(), |found| format!("{found:.3}")),
            verdict.to_owned(),
            target.cases.to_string(),
            target.worst_seed.map_or("-".to_owned(), |seed| seed.to_string()),
        ]);
    }
    rows
}

// ------------------------------------------------------------------------------------------------

/// Failures of one kind in one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cluster {
    pub(super) control: Control,
    pub(super) bound: Bound,
    pub(super) class: Class,
    /// Number of cases that break the bound.
    pub(super) cases: usize,
    /// Number of cases in the class.
    pub(super) of: usize,
    /// The greatest amount; below, its seed.
    pub(super) worst: f64,
    pub(super) worst_seed: u64,
}

/// The failures of all outcomes by control, bound and class, the largest total amounts first.
pub(super) fn clusters(outcomes: &[Outcome]) -> Vec<Cluster> {
    let mut of: BTreeMap<(Control, Class), usize> = BTreeMap::new();
    let mut found: BTreeMap<(Control, Bound, Class), (f64, Cluster)> = BTreeMap::new();
    for outcome in outcomes {
        let &Outcome { control, class, seed, .. } = outcome;
        *of.entry((control, class)).or_default() += 1;
        for failure in &outcome.failures {
            let (bound, amount) = (failure.bound, failure.amount);
            let (sum, cluster) = found.entry((control, bound, class)).or_insert_with(|| {
                let (worst, worst_seed) = (amount, seed);
                (0.0, Cluster { control, bound, class, cases: 0, of: 0, worst, worst_seed })
            });
            *sum += amount;
            cluster.cases += 1;
            if amount > cluster.worst {
                (cluster.worst, cluster.worst_seed) = (amount, seed);
            }
        }
    }
    let mut all: Vec<(f64, Cluster)> = found.into_values().collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let counted = |(_, cluster): (f64, Cluster)| {
        let of = of.get(&(cluster.control, cluster.class)).copied().unwrap_or_default();
        Cluster { of, ..cluster }
    };
    all.into_iter().map(counted).collect()
}

pub(super) fn cluster_rows(clusters: &[Cluster]) -> Vec<Vec<String>> {
    let head = ["bound", "class", "control", "cases", "of", "worst", "seed"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for cluster in clusters {
        rows.push(vec![
            cluster.bound.name().to_owned(),
            cluster.class.to_string(),
            cluster.control.to_string(),
            cluster.cases.to_string(),
            cluster.of.to_string(),
            format!("{:.2}", cluster.worst),
            cluster.worst_seed.to_string(),
        ]);
    }
    rows
}

/// The worst outcomes of a control.
pub(super) fn worst<'o>(outcomes: &[&'o Outcome], count: usize) -> Vec<&'o Outcome> {
    let mut all: Vec<&Outcome> =
        outcomes.iter().copied().filter(|o| !o.failures.is_empty()).collect();
    all.sort_by(|a, b| b.badness().total_cmp(&a.badness()).then(a.seed.cmp(&b.seed)));
    all.truncate(count);
    all
}

pub(super) fn worst_rows(worst: &[&Outcome]) -> Vec<Vec<String>> {
    let head = ["seed", "class", "error", "bound", "used / wfq", "total / none", "right", "broken"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
    };
    for outcome in worst {
        let score = &outcome.score;
        let broken = outcome.failures.iter();
        let broken: Vec<String> =
            broken.map(|f| format!("{} {:.2}", f.bound.name(), f.amount)).collect();
        rows.push(vec![
            outcome.seed.to_string(),
            outcome.class.to_string(),
            number(score.error, 3),
            number(Some(outcome.bound), 3),
            number(score.used_by_wfq, 2),
            number(score.total_by_none, 2),
            cell(Column::Right, &[outcome]),
            broken.join(", "),
        ]);
    }
    rows
}

/// Rows as a table in Markdown.
pub(super) fn markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
        if i == 0 {
            text.push_str(&format!("|{}\n", "---|".repeat(row.len())));
        }
    }
    text
}
