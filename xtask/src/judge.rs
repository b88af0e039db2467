//! The table at the end of `make test`: what became of the claims about real packets.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root;

/// Claims that may be repeated in a suite although nothing disturbed them.
const UNEXPLAINED_MAX: usize = 3;
/// From here on a disturbance explains that a valid run failed: a standstill of the machine, the part of it that
/// the hypervisor took, and how late the emulated link was (p99).
const DISTURBED: [(&str, f64); 3] =
    [("standstill_ms", 50.0), ("steal_percent", 1.0), ("lateness_ms", 0.5)];
const SLOWEST: usize = 15;
/// How often claims that were not judged are played again, each time with the judge's whole patience.
const PASSES: usize = 3;

/// Prints the table of a record, `target/judge.jsonl` without a name, and fails if the suite must not be believed.
pub(crate) fn run(file: Option<&str>) -> Result<()> {
    let path = file.map_or_else(default_record, Into::into);
    let (table, faults) = table(&read(&path)?);
    print!("{table}");
    ensure!(faults.is_empty(), "judge: {}", faults.join("; "));
    Ok(())
}

/// Plays the claims of the record that were not judged, one after the other, until they are; then [`run`].
pub(crate) fn again() -> Result<()> {
    let path = default_record();
    for pass in 1..=PASSES {
        let claims = read(&path)?;
        let left: Vec<&str> = claims
            .iter()
            .filter(|claim| claim["verdict"] == "not judged")
            .filter_map(|claim| claim["claim"].as_str()?.split(' ').next_back())
            .collect();
        if left.is_empty() {
            break;
        }
        println!(
            "judge: plays {} claims again ({pass} of {PASSES}): {}",
            left.len(),
            left.join(", ")
        );
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root()).env("FAIRWEIR_JUDGE", &path).env_remove("FAIRWEIR_LATER");
        cargo.args("test --quiet --locked --workspace --features fairweir/evidence".split(' '));
        cargo.args("--no-fail-fast --tests -- --test-threads 1 --exact".split(' ')).args(left);
        // The record has what became of them.
        cargo.status().context("running cargo")?;
    }
    run(None)
}

fn default_record() -> PathBuf {
    root().join("target/judge.jsonl")
}

/// The claims of a record, each once: with all runs of its lines, and the verdict of the last.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    Ok(merged(lines.with_context(|| format!("reading {}", path.display()))?))
}

fn merged(lines: Vec<Value>) -> Vec<Value> {
    let mut claims: Vec<Value> = Vec::new();
    for mut line in lines {
        let Some(before) = claims.iter_mut().find(|claim| claim["claim"] == line["claim"]) else {
            claims.push(line);
            continue;
        };
        let seconds = |line: &Value| line["seconds"].as_f64().unwrap_or(0.0);
        let mut runs = before["runs"].as_array().cloned().unwrap_or_default();
        runs.extend(line["runs"].as_array_mut().map(std::mem::take).unwrap_or_default());
        line["seconds"] = (seconds(before) + seconds(&line)).into();
        line["runs"] = runs.into();
        *before = line;
    }
    claims
}

/// The table, and why the suite must not be believed.
fn table(claims: &[Value]) -> (String, Vec<String>) {
    let mut text = String::new();
    let runs = |claim: &Value| claim["runs"].as_array().cloned().unwrap_or_default();
    let seconds = |claim: &Value| claim["seconds"].as_f64().unwrap_or(0.0);
    let with = |verdict: &str| claims.iter().filter(|c| c["verdict"] == verdict).count();
    let names = |all: Vec<&Value>| {
        all.iter().map(|c| c["claim"].as_str().unwrap_or_default()).collect::<Vec<_>>().join(", ")
    };
    let repeated: Vec<&Value> = claims.iter().filter(|claim| runs(claim).len() > 1).collect();
    let unexplained: Vec<&Value> =
        repeated.iter().copied().filter(|claim| runs(claim).iter().any(is_unexplained)).collect();
    let all = claims.iter().flat_map(runs).collect::<Vec<_>>();
    let void = all.iter().filter(|run| run["outcome"] == "void").count();
    let _ = writeln!(
        text,
        "judge: {} claims in {:.0} s of play: {} held, {} failed, {} not judged; {} repeated, {} of them without a \
         disturbance; {void} of {} runs void",
        claims.len(),
        claims.iter().map(seconds).sum::<f64>(),
        with("held"),
        with("failed"),
        with("not judged"),
        repeated.len(),
        unexplained.len(),
        all.len()
    );
    for claim in claims.iter().filter(|claim| claim["verdict"] != "held" || runs(claim).len() > 1) {
        line(&mut text, claim, seconds(claim));
        for run in runs(claim).iter().filter(|run| run["outcome"] != "held") {
            let number = |key: &str| run[key].as_f64().map_or("-".to_owned(), |n| format!("{n}"));
            let why = run["why"].as_str().unwrap_or_default();
            let _ = writeln!(
                text,
                "      {} (standstill {} ms, steal {} %, link late {} ms): {}",
                run["outcome"].as_str().unwrap_or_default(),
                number("standstill_ms"),
                number("steal_percent"),
                number("lateness_ms"),
                why.lines().next().unwrap_or_default()
            );
        }
    }
    let mut slowest: Vec<&Value> = claims.iter().collect();
    slowest.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    let _ = writeln!(text, "slowest:");
    for claim in slowest.into_iter().take(SLOWEST) {
        line(&mut text, claim, seconds(claim));
    }
    let mut faults = Vec::new();
    for verdict in ["not judged", "failed"] {
        let those: Vec<&Value> =
            claims.iter().filter(|claim| claim["verdict"] == verdict).collect();
        if !those.is_empty() {
            faults.push(format!("{verdict}: {}", names(those)));
        }
    }
    if unexplained.len() > UNEXPLAINED_MAX {
        faults.push(format!(
            "more than {UNEXPLAINED_MAX} claims were repeated without a recorded disturbance: {}",
            names(unexplained)
        ));
    }
    (text, faults)
}

fn line(text: &mut String, claim: &Value, seconds: f64) {
    let word = |key: &str| claim[key].as_str().unwrap_or_default();
    let runs = claim["runs"].as_array().map_or(0, Vec::len);
    let _ =
        writeln!(text, "  {seconds:6.1} s  {:10}  {runs} runs  {}", word("verdict"), word("claim"));
}

/// Whether a valid run failed although nothing disturbed it.
fn is_unexplained(run: &Value) -> bool {
    let is_disturbed =
        DISTURBED.iter().any(|(key, from)| run[key].as_f64().is_some_and(|n| n >= *from));
    run["outcome"] == "failed" && !is_disturbed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(name: &str, verdict: &str, outcomes: &[&str], standstill_ms: f64) -> Value {
        let run = |outcome: &&str| {
            json!({
                "outcome": outcome, "why": "because", "seconds": 1.0, "standstill_ms": standstill_ms,
                "steal_percent": 0.1, "lateness_ms": null,
            })
        };
        let runs: Vec<Value> = outcomes.iter().map(run).collect();
        json!({ "claim": name, "verdict": verdict, "seconds": 3.0, "runs": runs })
    }

    #[test]
    fn a_claim_that_was_not_judged_fails_the_suite_and_is_named() {
        let (text, faults) = table(&[
            claim("good", "held", &["held"], 1.0),
            claim("bad", "not judged", &["void", "void"], 200.0),
        ]);
        assert_eq!(faults, ["not judged: bad"]);
        assert!(text.contains("2 claims in 6 s of play: 1 held, 0 failed, 1 not judged"), "{text}");
        assert!(text.contains("void (standstill 200 ms, steal 0.1 %, link late - ms): because"));
    }

    #[test]
    fn a_claim_that_was_played_again_has_the_last_verdict_and_all_runs() {
        let lines = vec![
            claim("a", "not judged", &["void", "void"], 200.0),
            claim("b", "held", &["held"], 1.0),
            claim("a", "held", &["held"], 1.0),
        ];
        let claims = merged(lines);
        assert_eq!(claims.len(), 2);
        assert_eq!((&claims[0]["verdict"], &claims[0]["seconds"]), (&"held".into(), &6.0.into()));
        assert_eq!(claims[0]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(table(&claims).1, [""; 0]);
    }

    #[test]
    fn more_than_three_claims_repeated_without_a_disturbance_fail_the_suite() {
        let again =
            |name: &str, standstill| claim(name, "held", &["failed", "held", "held"], standstill);
        let mut claims = vec![again("a", 1.0), again("b", 1.0), again("c", 1.0), again("d", 60.0)];
        claims.push(claim("e", "held", &["void", "held"], 1.0));
        assert_eq!(table(&claims).1, [""; 0]);
        claims.push(again("f", 1.0));
        let (text, faults) = table(&claims);
        assert!(faults[0].ends_with("without a recorded disturbance: a, b, c, f"), "{faults:?}");
        assert!(
            text.contains("6 repeated, 4 of them without a disturbance; 1 of 17 runs void"),
            "{text}"
        );
    }
}
