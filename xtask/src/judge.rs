//! The table at the end of `make test`: the verdicts on claims about real packets.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root;

/// Maximum number of claims in a suite that may be repeated although nothing disturbed them.
const UNEXPLAINED_MAX: usize = 3;
/// A disturbance of at least this size explains a failed valid run: a standstill of the machine,
/// the part of its time that the hypervisor took, and the lateness of the emulated link (p99).
const DISTURBED: [(&str, f64); 3] =
    [("standstill_ms", 50.0), ("steal_percent", 1.0), ("lateness_ms", 0.5)];
const SLOWEST: usize = 15;
/// The time within which further passes over unjudged claims may begin. A hypervisor takes a
/// machine away for minutes at a time.
const PASSES_FOR: Duration = Duration::from_secs(35 * 60);

/// Prints the table of a record (by default `target/judge.jsonl`), and fails if the suite is not to be trusted.
pub(crate) fn run(file: Option<&str>) -> Result<()> {
    let path = file.map_or_else(default_record, Into::into);
    let (table, faults) = table(&read(&path)?);
    print!("{table}");
    ensure!(faults.is_empty(), "judge: {}", faults.join("; "));
    Ok(())
}

/// Plays the claims of the record that were not judged, one after the other, until they are judged;
/// then [`run`]. `tests` are the arguments with which cargo runs all tests.
pub(crate) fn again(tests: &[&str]) -> Result<()> {
    let (path, begun) = (default_record(), Instant::now());
    for pass in 2.. {
        let claims = read(&path)?;
        let not_judged = claims.iter().filter(|claim| claim["verdict"] == "not judged");
        let left: BTreeSet<&str> = not_judged
            .filter_map(|claim| claim["claim"].as_str()?.split(' ').next_back())
            .collect();
        if left.is_empty() || begun.elapsed() > PASSES_FOR {
            break;
        }
        let names = left.iter().copied().collect::<Vec<_>>().join(", ");
        println!("judge: pass {pass} plays {} claims again: {names}", left.len());
        let mut cargo = crate::cargo();
        cargo.args(tests).env("FAIRWEIR_JUDGE", &path).env("FAIRWEIR_PASS", pass.to_string());
        cargo.args(["--", "--test-threads", "1", "--include-ignored", "--exact"]).args(left);
        // The record has the verdicts, so the exit status is not needed.
        cargo.status().context("running cargo")?;
        let claims = read(&path)?;
        let unplayed = unplayed(&claims, pass);
        ensure!(unplayed.is_empty(), "judge: pass {pass} did not play: {}", unplayed.join(", "));
    }
    run(None)
}

/// The claims that are still not judged and that a pass did not play.
fn unplayed(claims: &[Value], pass: u32) -> Vec<&str> {
    let is_left = |claim: &&Value| {
        claim["verdict"] == "not judged" && claim["pass"].as_u64().unwrap_or(1) < u64::from(pass)
    };
    claims.iter().filter(is_left).filter_map(|claim| claim["claim"].as_str()).collect()
}

fn default_record() -> PathBuf {
    root().join("target/judge.jsonl")
}

/// The judgements of a record that count.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    Ok(of_last_pass(lines.with_context(|| format!("reading {}", path.display()))?))
}

/// The judgements of each claim in the last pass that played it; a test may judge several claims.
/// Counts of earlier passes are added to the first of them.
fn of_last_pass(lines: Vec<Value>) -> Vec<Value> {
    let pass = |line: &Value| line["pass"].as_u64().unwrap_or(1);
    let seconds = |line: &Value| line["seconds"].as_f64().unwrap_or(0.0);
    let mut kept: Vec<Value> = Vec::new();
    for mut line in lines {
        let (earlier, others) = kept.into_iter().partition::<Vec<_>, _>(|before| {
            before["claim"] == line["claim"] && pass(before) < pass(&line)
        });
        kept = others;
        for mut before in earlier {
            let mut runs = before["runs"].as_array_mut().map(std::mem::take).unwrap_or_default();
            runs.extend(line["runs"].as_array_mut().map(std::mem::take).unwrap_or_default());
            line["seconds"] = (seconds(&before) + seconds(&line)).into();
            line["runs"] = runs.into();
        }
        kept.push(line);
    }
    kept
}

/// The table, and the reasons not to trust the suite.
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

    fn in_pass(pass: u32, mut line: Value) -> Value {
        line["pass"] = pass.into();
        line
    }

    #[test]
    fn a_claim_that_was_played_again_has_the_last_verdict_and_all_runs() {
        let claims = of_last_pass(vec![
            in_pass(1, claim("a", "not judged", &["void", "void"], 200.0)),
            in_pass(1, claim("b", "held", &["held"], 1.0)),
            in_pass(2, claim("a", "held", &["held"], 1.0)),
        ]);
        assert_eq!(claims.len(), 2);
        assert_eq!((&claims[1]["verdict"], &claims[1]["seconds"]), (&"held".into(), &6.0.into()));
        assert_eq!(claims[1]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(table(&claims).1, [""; 0]);
    }

    #[test]
    fn a_pass_that_does_not_play_a_claim_is_told() {
        let claims = of_last_pass(vec![
            in_pass(1, claim("a", "not judged", &["void"], 200.0)),
            in_pass(1, claim("b", "not judged", &["void"], 200.0)),
            in_pass(2, claim("b", "not judged", &["void"], 200.0)),
        ]);
        assert_eq!(unplayed(&claims, 2), ["a"]);
    }

    #[test]
    fn a_test_that_judges_twice_does_not_hide_the_first_by_the_second() {
        let not_judged = || claim("a", "not judged", &["void"], 200.0);
        let held = || claim("a", "held", &["held"], 1.0);
        let first = [in_pass(1, not_judged()), in_pass(1, held())];
        assert_eq!(table(&of_last_pass(first.to_vec())).1, ["not judged: a"]);
        let again = |line| [&first[..], &[in_pass(2, line), in_pass(2, held())]].concat();
        assert_eq!(table(&of_last_pass(again(not_judged()))).1, ["not judged: a"]);
        let claims = of_last_pass(again(held()));
        assert_eq!((claims.len(), &table(&claims).1), (2, &vec![]));
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
