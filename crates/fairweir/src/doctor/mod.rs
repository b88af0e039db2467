//! `fairweir doctor`: prints which kernel features are available and what is wrong with this machine,
//! and corrects what can be corrected.

use std::io::Write;

use fairweir_config::text;
use fairweir_linux::doctor::{Finding, findings};
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::device::check_named;
use crate::questions::Questions;
use crate::words::chained;

mod fix;

use fix::Fix;

/// A finding and its fix, if there is one.
struct Checked {
    finding: Finding,
    fix: Option<Fix>,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    if args.undo {
        return undo(args);
    }
    if let Some(dev) = &args.dev {
        check_named(dev)?;
    }
    let checked = check(args);
    let out = &mut text::stdout();
    if args.json {
        let all: Vec<_> = checked.iter().map(as_json).collect();
        writeln!(out, "{}", serde_json::Value::from(all))?;
        return outcome(&checked);
    }
    for Checked { finding, fix } in &checked {
        let mark = if finding.found { "ok     " } else { "missing" };
        writeln!(out, "{mark}  {}: {}", finding.feature, finding.detail)?;
        if finding.found {
            continue;
        }
        if !finding.since.is_empty() {
            writeln!(out, "         available since {}", finding.since)?;
        }
        writeln!(out, "         does not work without it: {}", finding.lost_without)?;
        if let Some(fix) = fix.as_ref().filter(|_| !args.fix) {
            writeln!(out, "         `doctor --fix` would {fix}")?;
        }
    }
    let missing = checked.iter().filter(|c| !c.finding.found).count();
    match missing {
        0 => writeln!(out, "\nall features are available")?,
        n => writeln!(out, "\n{n} of {} features are missing", checked.len())?,
    }
    if !args.fix {
        return outcome(&checked);
    }
    fix_all(args, &checked)?;
    if outcome(&checked).is_ok() { Ok(()) } else { outcome(&check(args)) }
}

/// Fails if no daemon can work on this machine.
fn outcome(checked: &[Checked]) -> anyhow::Result<()> {
    let missing = checked.iter().filter(|c| c.finding.is_required && !c.finding.found);
    let missing: Vec<&str> = missing.map(|c| c.finding.feature.as_str()).collect();
    match missing.as_slice() {
        [] => Ok(()),
        missing => anyhow::bail!("required, and missing: {}", missing.join(", ")),
    }
}

fn check(args: &DoctorArgs) -> Vec<Checked> {
    let kernel = findings(args.dev.as_deref()).into_iter();
    let mut checked: Vec<Checked> = kernel
        .map(|finding| {
            let fix = fix::of_kernel(&finding);
            Checked { finding, fix }
        })
        .collect();
    let machine = fix::findings(args).into_iter();
    checked.extend(machine.map(|(finding, fix)| Checked { finding, fix }));
    checked
}

fn as_json(Checked { finding, fix }: &Checked) -> serde_json::Value {
    json!({
        "feature": finding.feature,
        "found": finding.found,
        "required": finding.is_required,
        "detail": finding.detail,
        "since": finding.since,
        "lost_without": finding.lost_without,
        "fix": fix.as_ref().map(ToString::to_string),
    })
}

/// Applies the available fixes, each after a question unless `--yes` is given.
fn fix_all(args: &DoctorArgs, checked: &[Checked]) -> anyhow::Result<()> {
    let mut questions = Questions { are_asked: !args.yes };
    let mut failures = Vec::new();
    let fixes: Vec<&Fix> = checked.iter().filter_map(|c| c.fix.as_ref()).collect();
    if fixes.is_empty() {
        return Ok(writeln!(text::stdout(), "there is nothing that --fix can correct")?);
    }
    for fix in fixes {
        let planned = text::escaped(&fix.to_string()).to_string();
        if !questions.confirm(&format!("This would {planned}. Do it?"), true)? {
            continue;
        }
        match fix.apply(args) {
            Ok(done) => writeln!(text::stdout(), "{done}")?,
            Err(e) => failures.push(format!("cannot {planned}: {}", chained(&e))),
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("{}", failures.join("; ")),
    }
}

/// Restores the settings that `--fix` changed.
fn undo(args: &DoctorArgs) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    let restored = fix::undo(args)?;
    for line in &restored {
        writeln!(out, "{line}")?;
    }
    if restored.is_empty() {
        writeln!(out, "doctor --fix changed no setting that is stored in {}", args.etc.display())?;
    }
    Ok(())
}
