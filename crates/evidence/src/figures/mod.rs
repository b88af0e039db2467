//! `fairweir figures`: plays the experiments of a paper, or the tests for the default control, in
//! virtual time and reports which results hold.
//!
//! A [`Figure`] consists of runs ([`play::Point`]s: a scenario, overrides of its file, a control)
//! and a judgement ([`claim::Claim`]s, charts). All points of all figures are played once, with
//! every seed, over all cores; the same seeds give the same table and files to the byte.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use fairweir_config::{output, text};
use fairweir_scenario::play::Seeds;
use fairweir_scenario::report::Report;
use nix::unistd::{AccessFlags, access};

use crate::Players;
use crate::cli::{FiguresArgs, FiguresCommand};
use crate::document::Document;

mod bcpqp;
mod claim;
mod control;
mod crab;
mod draw;
mod fs;
mod myob;
mod play;
mod rbm;
mod read;

use claim::{Claim, Outcome, Verdict, markdown, plain};
use play::{Played, Point, ToPlay};

/// The experiments that one document reports.
struct Collection {
    /// Its name in the command.
    name: &'static str,
    document: &'static str,
    /// The source of the values that claims are compared with.
    beside: &'static str,
    figures: &'static [Figure],
    /// Further parts of the document.
    appendix: Option<Appendix>,
}

/// Parts of a document besides its claims.
struct Appendix {
    /// Pictures that are kept in the folder `pictures` next to the document.
    pictures: &'static [&'static str],
    /// Makes a table of everything that was played.
    table: fn(&[Point], &Played) -> String,
}

const CRAB: Collection = Collection {
    name: "crab",
    document: "docs/research/papers/crab.md",
    beside: "the paper",
    figures: &crab::FIGURES,
    appendix: None,
};
const RBM: Collection = Collection {
    name: "rbm",
    document: "docs/research/papers/rbm.md",
    beside: "the paper",
    figures: &rbm::FIGURES,
    appendix: None,
};
const BCPQP: Collection = Collection {
    name: "bcpqp",
    document: "docs/research/papers/bcpqp.md",
    beside: "the paper",
    figures: &bcpqp::FIGURES,
    appendix: Some(Appendix { pictures: &[], table: bcpqp::table }),
};
const FS: Collection = Collection {
    name: "fs",
    document: "docs/research/papers/free-and-stunts.md",
    beside: "the paper",
    figures: &fs::FIGURES,
    appendix: None,
};
const MYOB: Collection = Collection {
    name: "myob",
    document: "docs/research/papers/myob.md",
    beside: "the paper",
    figures: &myob::FIGURES,
    appendix: None,
};
const CONTROL: Collection = Collection {
    name: "control",
    document: "docs/control.md",
    beside: "with crab",
    figures: &control::FIGURES,
    appendix: Some(Appendix { pictures: &control::PICTURES, table: control::side_by_side }),
};

/// A figure of a collection.
struct Figure {
    /// Its number in the paper, or a name.
    number: &'static str,
    title: &'static str,
    /// Whether it needs rates over time.
    series: bool,
    /// The points that are played for it.
    points: fn() -> Vec<Point>,
    judge: fn(&Played) -> Judged,
}

/// The results of a figure.
struct Judged {
    claims: Vec<Claim>,
    files: Vec<File>,
}

/// A file to be written.
struct File {
    name: String,
    text: String,
}

impl File {
    fn new(name: String, text: String) -> File {
        File { name, text }
    }
}

pub(crate) fn run(command: &FiguresCommand, players: &dyn Players) -> anyhow::Result<()> {
    match command {
        FiguresCommand::Crab(args) => figures(args, &CRAB, players),
        FiguresCommand::Rbm(args) => figures(args, &RBM, players),
        FiguresCommand::Bcpqp(args) => figures(args, &BCPQP, players),
        FiguresCommand::Fs(args) => figures(args, &FS, players),
        FiguresCommand::Myob(args) => figures(args, &MYOB, players),
        FiguresCommand::Control(args) => figures(args, &CONTROL, players),
    }
}

fn figures(
    args: &FiguresArgs,
    collection: &Collection,
    players: &dyn Players,
) -> anyhow::Result<()> {
    let chosen = choose(collection.figures, &args.figure)?;
    let document = args.write_docs.as_deref().map(Document::read).transpose()?;
    let usual = || Path::new("evidence/figures").join(collection.name);
    let dir = &args.out.clone().unwrap_or_else(usual);
    output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    access(dir, AccessFlags::W_OK).with_context(|| format!("cannot write to {}", dir.display()))?;
    let seeds: Vec<u64> = args.seed.all()?.collect();
    let played = play::play(&to_play(&chosen), &seeds, None, players)?;
    let outcomes = judge(&chosen, &played, dir)?;
    let mut table = markdown(&outcomes, collection.beside);
    if let Some(appendix) = &collection.appendix {
        let _ = write!(table, "\n{}", (appendix.table)(&points(&chosen), &played));
    }
    write(dir, "table.md", &table)?;
    if let Some(document) = document {
        document.write(&section(collection, &outcomes, &args.seed, &table))?;
        if let Some(appendix) = &collection.appendix {
            document.keep(appendix.pictures, dir, collection.name)?;
        }
    }
    let _ = writeln!(io::stderr(), "wrote {}", text::escaped(&dir.display().to_string()));
    let out = &mut text::stdout();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&outcomes)?)?,
        false => write!(out, "{}{}", plain(&outcomes, collection.beside), count(&outcomes))?,
    }
    Ok(())
}

/// For each requested figure, every number of its reports and its claims as JSON, and the number of
/// claims that hold; with seed 1, in the order of `numbers`.
///
/// # Errors
/// If there is no such collection or figure, or the user interrupted it.
pub(crate) fn results(
    collection: &str,
    numbers: &[String],
    parallel: Option<usize>,
    players: &dyn Players,
) -> anyhow::Result<Vec<(String, String)>> {
    let known = [CRAB, RBM, BCPQP, FS, MYOB, CONTROL];
    let Some(collection) = known.iter().find(|c| c.name == collection) else {
        bail!("there are no figures `{collection}`");
    };
    choose(collection.figures, numbers)?;
    let of = |number: &String| collection.figures.iter().find(|figure| figure.number == number);
    let chosen: Vec<&Figure> = numbers.iter().filter_map(of).collect();
    let played = play::play(&to_play(&chosen), &[1], parallel, players)?;
    let result = |&&Figure { number, title, points, judge, .. }: &&Figure| {
        let points = points();
        let reports: Vec<&Report> = points.iter().flat_map(|point| played.of(point)).collect();
        let outcome = Outcome { figure: number, title, claims: judge(&played).claims };
        let json = serde_json::to_string(&(reports, &outcome))?;
        let count = count(&[outcome]);
        // Removes the note that each claim has only one value, which is expected here.
        Ok((json, count.split(';').next().unwrap_or_default().trim_end().to_owned()))
    };
    chosen.iter().map(result).collect()
}

/// The requested figures, in the paper's order; all figures if none is named.
fn choose(all: &'static [Figure], asked: &[String]) -> anyhow::Result<Vec<&'static Figure>> {
    if let Some(unknown) = asked.iter().find(|n| all.iter().all(|f| f.number != n.as_str())) {
        let numbers: Vec<&str> = all.iter().map(|figure| figure.number).collect();
        bail!("there is no figure `{unknown}`; there are {}", numbers.join(", "));
    }
    let is_asked = |f: &&Figure| asked.is_empty() || asked.iter().any(|n| n == f.number);
    Ok(all.iter().filter(is_asked).collect())
}

/// Everything that the figures need, each point once.
fn to_play(figures: &[&Figure]) -> ToPlay {
    let mut points = BTreeMap::new();
    for figure in figures {
        for point in (figure.points)() {
            *points.entry(point).or_insert(false) |= figure.series;
        }
    }
    points
}

/// The points of the figures, in their order, each once.
fn points(figures: &[&Figure]) -> Vec<Point> {
    let mut points = Vec::new();
    for point in figures.iter().flat_map(|figure| (figure.points)()) {
        if !points.contains(&point) {
            points.push(point);
        }
    }
    points
}

/// Judges every figure and writes its files.
fn judge(figures: &[&Figure], played: &Played, dir: &Path) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for &&Figure { number, title, points, judge, .. } in figures {
        let judged = judge(played);
        write(dir, &format!("figure-{number}.csv"), &numbers(&points(), played))?;
        for file in &judged.files {
            write(dir, &file.name, &file.text)?;
        }
        outcomes.push(Outcome { figure: number, title, claims: judged.claims });
    }
    Ok(outcomes)
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    output::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Every number of every run, one per line.
fn numbers(points: &[Point], played: &Played) -> String {
    let mut text = String::from("scenario,set,control,seed,measure,of,value\n");
    for point in points {
        let set = point.set.join(" ");
        for report in played.of(point) {
            let run = format!("{},{set},{},{}", point.scenario, point.control, report.seed);
            for (measure, of, value) in measures(report) {
                let _ = writeln!(text, "{run},{measure},{of},{value}");
            }
        }
    }
    text
}

/// The numbers of a report, each with the group to which it belongs.
fn measures(report: &Report) -> Vec<(&'static str, &str, f64)> {
    let summary = &report.summary;
    let mut all = vec![
        ("link_utilization", "", summary.link_utilization),
        ("isp_drops", "", summary.isp_drops as f64),
    ];
    let parts = [
        ("allocation_error", summary.allocation_error),
        ("transient_error", summary.transient_error),
        ("utilization", summary.utilization),
        ("isp_queue_ms_mean", summary.isp_queue_ms.map(|q| q.mean)),
        ("isp_queue_ms_p99", summary.isp_queue_ms.map(|q| q.p99)),
    ];
    all.extend(parts.into_iter().filter_map(|(name, value)| Some((name, "", value?))));
    for group in &summary.groups {
        all.push(("rate_bps", &group.name, group.rate.as_bps() as f64));
        all.push(("delivered_bytes", &group.name, group.delivered.as_u64() as f64));
        all.extend(group.fair.map(|fair| ("fair_bps", &*group.name, fair.as_bps() as f64)));
    }
    for video in &summary.videos {
        let quality = video.quality.map(|q| ("film_bps", &*video.group, q.as_bps() as f64));
        all.extend(quality);
        all.push(("stalled_s", &video.group, video.stalled_s));
    }
    for ping in &summary.pings {
        all.extend(ping.rtt_ms_median.map(|ms| ("rtt_ms_median", &*ping.group, ms)));
        all.extend(ping.rtt_ms_p95.map(|ms| ("rtt_ms_p95", &*ping.group, ms)));
    }
    for pages in &summary.pages {
        let loads = pages.loads.iter().map(|load| ("load_ms", &*pages.group, load.as_millis_f64()));
        all.extend(loads);
    }
    for police in &summary.policed {
        let of = &*police.name;
        let parts = [
            ("police_rate_ratio", police.rate_ratio),
            ("police_p99", police.steady.map(|w| w.p99)),
            ("police_max", police.steady.map(|w| w.max)),
            ("police_start_up_max", police.start_up.map(|w| w.max)),
            ("police_loss_steady", police.loss_steady),
            ("police_loss", police.loss),
            ("police_jain", police.jain),
        ];
        all.extend(parts.into_iter().filter_map(|(name, value)| Some((name, of, value?))));
    }
    for right in &summary.right_after_s {
        all.extend(right.seconds.map(|seconds| ("right_after_s", "", seconds)));
    }
    all
}

/// A line that says how many claims hold.
fn count(outcomes: &[Outcome]) -> String {
    let claims = || outcomes.iter().flat_map(|o| &o.claims);
    let of = |verdict| claims().filter(|c| c.verdict == verdict).count();
    let [met, missed, open] = [Verdict::Met, Verdict::Missed, Verdict::Open].map(of);
    let one = claims().filter(|c| c.is_of_one_value()).count();
    let one = if one == 0 { String::new() } else { format!("; {one} judged by one value") };
    format!("{met} of {} claims met, {missed} missed, {open} open{one}\n", claims().count())
}

/// The section of a document about the figures.
fn section(
    &Collection { name, document, .. }: &Collection,
    outcomes: &[Outcome],
    seeds: &Seeds,
    table: &str,
) -> String {
    format!(
        "Made by `fairweir figures {name} --seed {seeds} --write-docs {document}`: means over the \
         seeds, ± half\ntheir 95 % interval (Student's t). A claim is met if the interval is inside \
         what is wanted, missed if it is\noutside, and open if it contains a bound. {}.\n\n{table}",
        count(outcomes).trim_end()
    )
}

#[cfg(test)]
mod tests {
    use fairweir_core::receiver::{Controller, ControllerSpec, CrabTuning};
    use fairweir_scenario::report::{Run, Samples};

    use std::fs;

    use super::*;

    /// Every figure of every collection.
    fn all() -> Vec<&'static Figure> {
        [CRAB, RBM, BCPQP, FS, MYOB, CONTROL]
            .into_iter()
            .flat_map(|collection| collection.figures)
            .collect()
    }

    #[test]
    fn pictures_are_kept_beside_the_document_and_are_those_that_figures_draw() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doc.md");
        fs::write(&path, "<!-- figures: begin -->\n<!-- figures: end -->\n").unwrap();
        fs::write(dir.path().join("a.svg"), "<svg/>").unwrap();
        let document = Document::read(&path).unwrap();
        document.keep(&["a.svg"], dir.path(), "x").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("pictures/x-a.svg")).unwrap(), "<svg/>");
        assert!(document.keep(&["b.svg"], dir.path(), "x").is_err());

        let played = Played::from(to_play(&all()).keys(), nothing_arrived);
        let judged = || CONTROL.figures.iter().flat_map(|figure| (figure.judge)(&played).files);
        for picture in CONTROL.appendix.unwrap().pictures {
            assert!(judged().any(|file| file.name == *picture), "{picture}");
        }
    }

    #[test]
    fn every_point_can_be_played_with_its_control() {
        for (point, _) in to_play(&all()) {
            let scenario = point.scenario().unwrap_or_else(|e| panic!("{point:?}: {e:#}"));
            // CRAB as printed has no parameters to check.
            let Some(control) = point.control.at_home() else { continue };
            let spec =
                ControllerSpec::new(control, Some(scenario.link.capacity.nominal())).unwrap();
            let tuning = scenario.control.tuning.applied_to(CrabTuning::HOST);
            let weights: Vec<_> = scenario.groups.iter().map(|g| g.weight).collect();
            let made = Controller::new(&spec.with_tuning(tuning), weights, None);
            assert!(made.is_ok(), "{point:?}");
        }
    }

    /// The report of a run in which nothing was received.
    fn nothing_arrived(point: &Point) -> Vec<Report> {
        let scenario = point.scenario().unwrap();
        let run = Run {
            scenario: &scenario,
            world: "sim",
            control: point.control,
            valid: true,
            samples: &Samples::new(&scenario),
            pings: vec![],
            videos: vec![],
            pages: vec![],
            shorts: vec![],
            policed: vec![],
            bundled: vec![],
            daemon_cpu_cores: None,
            lateness: None,
        };
        vec![run.score()]
    }

    /// A figure that used a point it did not plan would end the command after minutes.
    #[test]
    fn every_figure_judges_what_it_plans_and_nothing_that_was_not_measured() {
        for figure in all() {
            let played = Played::from(to_play(&[figure]).keys(), nothing_arrived);
            let judged = (figure.judge)(&played);
            assert!(!judged.claims.is_empty() && !judged.files.is_empty(), "{}", figure.number);
            for file in judged.files.iter().filter(|f| f.name.ends_with(".svg")) {
                assert!(!file.text.contains("NaN") && !file.text.contains("inf"), "{}", file.name);
            }
            let outcome = Outcome { figure: figure.number, title: "", claims: judged.claims };
            assert!(!markdown(&[outcome], "").contains("NaN"), "{}", figure.number);
        }
    }
}
