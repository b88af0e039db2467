//! Common parts of `fairweir lab` and `fairweir sim`: reading the scenario and writing the results.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use fairweir_config::file::{SCENARIO, TRACE};
use fairweir_config::{Override, Text, output};
use fairweir_scenario::Scenario;
use fairweir_scenario::play::{Run, labels};
use fairweir_scenario::report::{self, Report};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{AccessFlags, access};

use crate::cli::{PlayArgs, ScenarioArgs, ScenarioCheckArgs};
use crate::words::count;
use fairweir_config::text;

/// Reads a scenario file and applies the overrides.
///
/// # Errors
/// If the file cannot be read, or it or an override is not valid.
pub(crate) fn read(args: &ScenarioArgs) -> anyhow::Result<Scenario> {
    read_file(&args.file, &args.set)
}

/// Reads a scenario file and applies the overrides.
///
/// # Errors
/// If the file cannot be read, or it or an override is not valid.
pub(crate) fn read_file(path: &Path, set: &[Override]) -> anyhow::Result<Scenario> {
    let text = Text::read(path, &SCENARIO)?;
    Ok(Scenario::parse_with(&text, set, &|trace| Text::read(trace, &TRACE))?)
}

/// `lab check` and `sim check`.
///
/// # Errors
/// If the scenario is not valid; the error says why.
pub(crate) fn check(args: &ScenarioCheckArgs) -> anyhow::Result<()> {
    let scenario = read(&args.scenario)?;
    let out = &mut text::stdout();
    if args.json {
        let events = scenario
            .events()
            .into_iter()
            .map(|event| serde_json::json!({ "at_s": event.at.as_secs_f64(), "what": event.what }));
        let events: Vec<_> = events.collect();
        let checked = serde_json::json!({
            "kind": "scenario",
            "name": scenario.name,
            "groups": scenario.groups.len(),
            "flows": scenario.flows.len(),
            "duration_s": scenario.duration.as_secs_f64(),
            "events": events,
        });
        return Ok(writeln!(out, "{checked}")?);
    }
    let flows = scenario.flows.len();
    let groups = scenario.groups.len();
    let counted = format!("{}, {}", count(groups, "group"), count(flows, "flow"));
    writeln!(out, "{}: {counted}", scenario.name)?;
    for event in scenario.events() {
        writeln!(out, "{:>8.1} s  {}", event.at.as_secs_f64(), event.what)?;
    }
    Ok(())
}

/// Creates the output directory before playing: a failure after minutes would be too late.
///
/// # Errors
/// If the directory cannot be created or written to.
pub(crate) fn make_directory(args: &PlayArgs) -> anyhow::Result<()> {
    let Some(dir) = &args.out else { return Ok(()) };
    output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    access(dir, AccessFlags::W_OK).with_context(|| format!("cannot write to {}", dir.display()))
}

/// Whether any requested output shows rates over time.
pub(crate) fn wants_series(args: &PlayArgs) -> bool {
    args.series || args.out.is_some()
}

/// Writes and prints the requested output.
///
/// # Errors
/// If the output cannot be written.
pub(crate) fn hand_over(
    args: &PlayArgs,
    scenario: &Scenario,
    runs: &[Run],
    mut reports: Vec<Report>,
) -> anyhow::Result<()> {
    if let Some(dir) = &args.out {
        write_files(dir, scenario, runs, &reports)?;
    }
    if !args.series {
        reports.iter_mut().for_each(|report| report.series = None);
    }
    let out = &mut text::stdout();
    match (args.json, reports.as_slice()) {
        (false, all) => write!(out, "{}", report::table(all))?,
        (true, [one]) => writeln!(out, "{}", serde_json::to_string(one)?)?,
        (true, all) => writeln!(out, "{}", serde_json::to_string(all)?)?,
    }
    Ok(())
}

/// Writes a chart of all controls with the first seed, and the numbers of all runs.
fn write_files(
    dir: &Path,
    scenario: &Scenario,
    runs: &[Run],
    reports: &[Report],
) -> anyhow::Result<()> {
    let write = |name: String, text: String| {
        let path = dir.join(name);
        output::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let name = &scenario.name;
    let first = runs.iter().zip(reports).filter(|(run, _)| run.seed == runs[0].seed);
    let shown: Vec<Report> = first.map(|(_, report)| report.clone()).collect();
    write(format!("{name}.svg"), report::picture(scenario, &shown))?;
    write(format!("{name}.json"), serde_json::to_string(reports)?)?;
    for (label, report) in labels(runs).iter().zip(reports) {
        let label = label.replace(' ', "-");
        write(format!("{name}-{label}.csv"), report::csv(scenario, report))?;
    }
    let _ = writeln!(io::stderr(), "wrote {}", dir.join(format!("{name}.svg")).display());
    Ok(())
}

/// A flag that SIGINT or SIGTERM sets, so that everything can be taken down in order.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn cancelled_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGINT);
    heard.add(Signal::SIGTERM);
    // Threads that start later inherit the blocked signals, so only the thread below receives them.
    heard.thread_block().context("cannot block signals")?;
    let set = Arc::clone(&cancel);
    thread::spawn(move || {
        while heard.wait().is_ok() {
            set.store(true, Ordering::Relaxed);
        }
    });
    Ok(cancel)
}
