//! `fairweir lab`: plays scenario files in an emulated home.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{env, thread};

use anyhow::{Context, bail};
use fairweir_core::receiver::Control;
use fairweir_lab::{Options, Progress, run_all};
use fairweir_sim::report::{self, Report};
use fairweir_sim::scenario::Scenario;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{AccessFlags, access};

use crate::cli::{LabCheckArgs, LabCommand, LabRunArgs};

pub(crate) fn run(command: &LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run(args) => play(args),
        LabCommand::Check(args) => check(args),
    }
}

fn check(args: &LabCheckArgs) -> anyhow::Result<()> {
    let scenario = read(&args.file)?;
    let out = &mut io::stdout().lock();
    let flows = scenario.flows.len();
    writeln!(out, "{}: {} groups, {flows} flows", scenario.name, scenario.groups.len())?;
    for event in scenario.events() {
        writeln!(out, "{:>8.1} s  {}", event.at.as_secs_f64(), event.what)?;
    }
    Ok(())
}

fn play(args: &LabRunArgs) -> anyhow::Result<()> {
    let scenario = read(&args.file)?;
    for (i, control) in args.control.iter().enumerate() {
        if args.control[..i].contains(control) {
            bail!("the control `{control}` is asked for twice");
        }
    }
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        // Not only after minutes of play.
        access(dir, AccessFlags::W_OK)
            .with_context(|| format!("cannot write to {}", dir.display()))?;
    }
    let options = Options {
        executable: env::current_exe().context("cannot tell where this program lies")?,
        with_daemon: true,
        parallel: args.parallel,
        cancel: cancelled_by_signal()?,
    };
    let shown = Shown::default();
    let played = run_all(&scenario, &args.control, &options, &|progress| shown.show(progress));
    shown.end();
    let mut reports = played?;
    if let Some(dir) = &args.out {
        write_files(dir, &scenario, &reports)?;
    }
    if !args.series {
        reports.iter_mut().for_each(|report| report.series = None);
    }
    let out = &mut io::stdout().lock();
    match (args.json, reports.as_slice()) {
        (false, all) => write!(out, "{}", report::table(all))?,
        (true, [one]) => writeln!(out, "{}", serde_json::to_string(one)?)?,
        (true, all) => writeln!(out, "{}", serde_json::to_string(all)?)?,
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Scenario> {
    let file = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    Ok(Scenario::parse_with(&text, &file, &[], &|trace| fs::read_to_string(trace))?)
}

/// A picture of all controls, and the numbers behind it.
fn write_files(dir: &Path, scenario: &Scenario, reports: &[Report]) -> anyhow::Result<()> {
    let write = |name: String, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let name = &scenario.name;
    write(format!("{name}.svg"), report::picture(scenario, reports))?;
    write(format!("{name}.json"), serde_json::to_string(reports)?)?;
    for report in reports {
        write(format!("{name}-{}.csv", report.control), report::csv(scenario, report))?;
    }
    let _ = writeln!(io::stderr(), "wrote {}", dir.join(format!("{name}.svg")).display());
    Ok(())
}

/// Set by SIGINT or SIGTERM, so that the lab is taken down in order.
fn cancelled_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGINT);
    heard.add(Signal::SIGTERM);
    // Threads that start later inherit the block, so the one below is the only one who hears.
    heard.thread_block().context("cannot block signals")?;
    let set = Arc::clone(&cancel);
    thread::spawn(move || {
        while heard.wait().is_ok() {
            set.store(true, Ordering::Relaxed);
        }
    });
    Ok(cancel)
}

/// How far each control is, on one line of a terminal.
#[derive(Default)]
struct Shown {
    at: Mutex<BTreeMap<Control, u64>>,
}

impl Shown {
    fn show(&self, progress: Progress) {
        let percent = (100.0 * progress.at.as_secs_f64() / progress.of.as_secs_f64()) as u64;
        let percent = percent.min(100);
        let mut at = self.at.lock().unwrap_or_else(|e| e.into_inner());
        let before = at.insert(progress.control, percent);
        if !io::stderr().is_terminal() {
            // A log gets a line when a control begins and when it is done.
            if before.is_none() || (percent == 100 && before != Some(100)) {
                let _ = writeln!(io::stderr(), "{}: {percent} %", progress.control);
            }
        } else if before != Some(percent) {
            let text: Vec<_> = at.iter().map(|(c, p)| format!("{c} {p:>3} %")).collect();
            let _ = write!(io::stderr(), "\r{}", text.join("  "));
        }
    }

    fn end(&self) {
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
    }
}
