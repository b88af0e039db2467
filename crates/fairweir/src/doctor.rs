//! `fairweir doctor`: prints which kernel features are available.

use std::io::Write;

use fairweir_linux::doctor::{Finding, findings};

use crate::cli::DoctorArgs;
use fairweir_config::text;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let findings = findings(args.dev.as_deref());
    let out = &mut text::stdout();
    if args.json {
        let as_json = |f: &Finding| {
            serde_json::json!({
                "feature": f.feature,
                "found": f.found,
                "detail": f.detail,
                "since": f.since,
                "lost_without": f.lost_without,
            })
        };
        let all: Vec<_> = findings.iter().map(as_json).collect();
        writeln!(out, "{}", serde_json::Value::from(all))?;
        return Ok(());
    }
    for finding in &findings {
        let mark = if finding.found { "ok     " } else { "missing" };
        writeln!(out, "{mark}  {}: {}", finding.feature, finding.detail)?;
        if !finding.found {
            if !finding.since.is_empty() {
                writeln!(out, "         available since {}", finding.since)?;
            }
            writeln!(out, "         does not work without it: {}", finding.lost_without)?;
        }
    }
    let missing = findings.iter().filter(|f| !f.found).count();
    match missing {
        0 => writeln!(out, "\nall features are available")?,
        n => writeln!(out, "\n{n} of {} features are missing", findings.len())?,
    }
    Ok(())
}
