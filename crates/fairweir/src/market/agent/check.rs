//! `fairweir check` of an agent's file.

use std::path::Path;

use fairweir_config::FileKind;
use fairweir_config::agent::{AgentFile, KINDS};
use fairweir_core::market::preferences::{self, Preferences};
use serde_json::{Value, json};
use tracing::warn;

use crate::market::say;

/// Prints the settings of an agent's file.
pub(crate) fn check(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let AgentFile { preferences: Preferences { always, times }, warnings, .. } =
        AgentFile::load(path)?;
    if as_json {
        let times: Vec<Value> = times.iter().map(time_in_json).collect();
        let said = json!({
            "kind": FileKind::Agent.to_string(),
            "files": [path],
            "kinds": KINDS,
            "always": always,
            "times": times,
            "warnings": warnings,
        });
        return say(&said.to_string());
    }
    for warning in warnings {
        warn!("{warning}");
    }
    let words = |importance: [Option<u8>; 4]| {
        let said =
            KINDS.iter().zip(importance).filter_map(|(kind, n)| Some(format!("{kind} {}", n?)));
        said.collect::<Vec<_>>().join(", ")
    };
    say(&format!("always: {}", words(always.map(Some))))?;
    times.iter().try_for_each(|time| say(&format!("{}: {}", time.name, words(time.importance))))
}

/// A time of the week as printed by status and `check --json`.
pub(super) fn time_in_json(time: &preferences::Time) -> Value {
    json!({
        "name": time.name,
        "days": time.window.days,
        "from_min": time.window.from,
        "to_min": time.window.to,
        "importance": time.importance,
    })
}
