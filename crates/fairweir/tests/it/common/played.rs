//! Plays of scenarios, and whether the lab declares them valid.

use fairweir_testing::{record_lateness, void};
use serde_json::Value;

use super::fairweir;

/// The path of one of the project's scenario files.
pub fn file(scenario: &str) -> String {
    format!("{}/../../scenarios/{scenario}.toml", env!("CARGO_MANIFEST_DIR"))
}

/// The reports of `fairweir ARGS --json`, one for each control.
///
/// # Panics
/// If it fails. A play is void, before anything else is checked, if the machine was too busy for the lab's link.
pub fn reports(args: &[&str]) -> Vec<Value> {
    let output = fairweir(&[args, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let reports = match report {
        Value::Array(reports) => reports,
        one => vec![one],
    };
    for report in &reports {
        // A comparison of the two worlds contains the lab's report.
        let lab = report.get("lab").unwrap_or(report);
        if let Some(ms) = lab["lateness"]["p99_ms"].as_f64() {
            record_lateness(ms);
        }
        if report["valid"] == false {
            void("the machine was too busy to emulate the link in time");
        }
    }
    reports
}

/// The report of a play with one control.
pub fn report(args: &[&str]) -> Value {
    reports(args).remove(0)
}
