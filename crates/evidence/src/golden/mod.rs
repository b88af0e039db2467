//! `fairweir golden`: checks that the simulator still gives the results stored in a file.
//!
//! A golden is a text file with a line for each run: the run's subject, a hash over every number of
//! its report including the rates over time, and a readable summary. The subject is a scenario of
//! the campaign with a control, or a figure with one seed. The same program gives the same file on
//! every machine and for every number of threads, so a line that differs shows a change of the
//! control, the simulator, the scoring or the scenario.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, bail};
use fairweir_config::{output, text};
use fairweir_scenario::play::cores;
use fairweir_scenario::report::Report;

use crate::campaign::Drawn;
use crate::cli::GoldenArgs;
use crate::{Players, campaign, figures};
use fairweir_core::hash::fnv1a;

/// The first lines of a golden.
const HEAD: &str = "\
# Results of the simulator: what is played, a hash of its report, a summary. See docs/campaign.md.
# Write it again with: fairweir golden FILE --write
";

/// Runs of the campaign that are played together, for each thread. The number is small for a
/// comparison, since it ends at the first batch with a difference.
const COMPARED: usize = 4;
const WRITTEN: usize = 32;

/// The subject of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Campaign(Drawn),
    Figure { collection: String, number: String },
}

/// A line of a golden.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    subject: Subject,
    /// `None` for a line that was added by hand and not written yet.
    hash: Option<u64>,
    summary: String,
}

/// Runs the command.
///
/// # Errors
/// If a result differs, or the golden could not be read, played or written.
pub(crate) fn run(args: &GoldenArgs, players: &dyn Players) -> anyhow::Result<()> {
    let begin = Instant::now();
    let file = text::escaped(&args.file.display().to_string());
    let progress = |done: usize, of: usize| {
        let _ =
            writeln!(io::stderr(), "golden: {done} of {of} runs, {} s", begin.elapsed().as_secs());
    };
    let golden = match &args.seed {
        None => read(&args.file)?,
        Some(seeds) => {
            let of = |seed| {
                args.control
                    .iter()
                    .map(move |&control| Subject::Campaign(Drawn { seed, duration: None, control }))
            };
            seeds.all()?.flat_map(of).map(Line::unwritten).collect()
        }
    };
    let out = &mut text::stdout();
    if args.write {
        let lines = play(&golden, args.jobs, players, progress)?;
        let changed = golden.iter().zip(&lines).filter(|(old, new)| old != new).count();
        let written: String = lines.iter().map(|line| format!("{line}\n")).collect();
        output::write(&args.file, format!("{HEAD}{written}"))
            .with_context(|| format!("cannot write {file}"))?;
        writeln!(out, "wrote {file}: {changed} of {} runs changed", lines.len())?;
    } else {
        compare(&golden, args.jobs, players, progress)?;
        writeln!(out, "{} runs are as in {file}", golden.len())?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    parse(&text).with_context(|| format!("cannot read {file}"))
}

/// The lines of a golden; empty lines and those that begin with `#` are skipped.
fn parse(text: &str) -> anyhow::Result<Vec<Line>> {
    let lines =
        text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let lines: anyhow::Result<Vec<Line>> = lines
        .map(|(line, n): (&str, u32)| line.parse().with_context(|| format!("line {n}: `{line}`")))
        .collect();
    let lines = lines?;
    if lines.is_empty() {
        bail!("there is no run in it");
    }
    Ok(lines)
}

/// Plays the runs of the golden until a result differs.
///
/// # Errors
/// The first line that differs, with both summaries, or the run that could not be played.
fn compare(
    golden: &[Line],
    parallel: Option<usize>,
    players: &dyn Players,
    progress: impl Fn(usize, usize),
) -> anyhow::Result<()> {
    let mut done = 0;
    for batch in batches(golden, COMPARED * parallel.unwrap_or_else(cores)) {
        let lines = play_batch(batch, parallel, players)?;
        if let Some((old, new)) = batch.iter().zip(&lines).find(|(old, new)| old != new) {
            bail!(
                "{} differs\n  golden: {}\n  now:    {}\n\
                 If the change is wanted, write the golden again and say why in the commit's message \
                 (docs/campaign.md).",
                old.subject,
                old.result(),
                new.result()
            );
        }
        done += batch.len();
        progress(done, golden.len());
    }
    Ok(())
}

/// Plays the lines together.
fn play(
    golden: &[Line],
    parallel: Option<usize>,
    players: &dyn Players,
    progress: impl Fn(usize, usize),
) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for batch in batches(golden, WRITTEN * parallel.unwrap_or_else(cores)) {
        lines.extend(play_batch(batch, parallel, players)?);
        progress(lines.len(), golden.len());
    }
    Ok(lines)
}

/// Lines that are played together: figures of the same collection share runs.
fn batches(golden: &[Line], most: usize) -> impl Iterator<Item = &[Line]> {
    golden.chunk_by(|a, b| a.subject.collection() == b.subject.collection()).flat_map(
        move |batch| match batch[0].subject {
            Subject::Campaign(_) => batch.chunks(most),
            Subject::Figure { .. } => batch.chunks(batch.len()),
        },
    )
}

fn play_batch(
    batch: &[Line],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<Vec<Line>> {
    let (mut runs, mut numbers) = (Vec::new(), Vec::new());
    for line in batch {
        match &line.subject {
            Subject::Campaign(drawn) => runs.push(*drawn),
            Subject::Figure { number, .. } => numbers.push(number.clone()),
        }
    }
    let results: Vec<(String, String)> = match batch[0].subject.collection() {
        None => {
            let reports = campaign::reports(&runs, parallel, players)?;
            let result = |(drawn, report): (&Drawn, &Report)| {
                let summary = format!("{}: {}", campaign::class(drawn.seed), summary(report));
                Ok((serde_json::to_string(report)?, summary))
            };
            runs.iter().zip(&reports).map(result).collect::<anyhow::Result<_>>()?
        }
        Some(collection) => figures::results(collection, &numbers, parallel, players)?,
    };
    let line = |(line, (json, summary)): (&Line, (String, String))| Line {
        subject: line.subject.clone(),
        hash: Some(fnv1a(json.as_bytes())),
        summary,
    };
    Ok(batch.iter().zip(results).map(line).collect())
}

/// The main numbers of a report, for people.
fn summary(report: &Report) -> String {
    let summary = &report.summary;
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    let right = summary.right_after_s.iter().map(|right| number(right.seconds));
    format!(
        "error {}, used {}, queue {} ms, right after [{}] s, {} drops, carried {}",
        number(summary.allocation_error),
        number(summary.utilization),
        number(summary.isp_queue_ms.map(|queue| queue.mean)),
        right.collect::<Vec<_>>().join(" "),
        summary.isp_drops,
        summary.link_utilization,
    )
}

impl Subject {
    /// The collection of a figure; figures of the same collection are played together.
    fn collection(&self) -> Option<&str> {
        match self {
            Subject::Campaign(_) => None,
            Subject::Figure { collection, .. } => Some(collection),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Campaign(Drawn { seed, duration: None, control }) => {
                write!(f, "campaign {seed} {control}")
            }
            Subject::Campaign(Drawn { seed, duration: Some(duration), control }) => {
                write!(f, "campaign {seed}/{duration} {control}")
            }
            Subject::Figure { collection, number } => write!(f, "figures {collection} {number}"),
        }
    }
}

impl Line {
    fn unwritten(subject: Subject) -> Line {
        Line { subject, hash: None, summary: String::new() }
    }

    fn result(&self) -> String {
        match self.hash {
            Some(hash) => format!("{hash:016x}  {}", self.summary),
            None => "not written yet".to_owned(),
        }
    }
}

/// Written as in the file.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<26} {}", self.subject.to_string(), self.result())
    }
}

impl FromStr for Line {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Line> {
        let mut words = text.split_whitespace();
        let subject = match [words.next(), words.next(), words.next()] {
            [Some("campaign"), Some(seed), Some(control)] => {
                let (seed, duration) = match seed.split_once('/') {
                    Some((seed, duration)) => (seed, Some(duration.parse()?)),
                    None => (seed, None),
                };
                Subject::Campaign(Drawn {
                    seed: seed.parse()?,
                    duration,
                    control: control.parse()?,
                })
            }
            [Some("figures"), Some(collection), Some(number)] => {
                let (collection, number) = (collection.to_owned(), number.to_owned());
                Subject::Figure { collection, number }
            }
            _ => bail!("expected `campaign SEED[/DURATION] CONTROL` or `figures NAME NUMBER`"),
        };
        let hash = words.next().map(|hash| u64::from_str_radix(hash, 16)).transpose()?;
        Ok(Line { subject, hash, summary: words.collect::<Vec<_>>().join(" ") })
    }
}

#[cfg(test)]
mod tests;
