//! `fairweir campaign`: its output and files. These tests need no privilege.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{fairweir, only_error_line};

/// Plays two seeds; returns the output.
fn play(out: &Path, more: &[&str]) -> String {
    let mut args = vec!["campaign", "--seed", "24..25", "--out", out.to_str().unwrap()];
    args.extend(more);
    let output = fairweir(&args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_campaign_gives_tables_files_that_can_be_played_and_the_same_numbers_again() {
    let dir = tempfile::tempdir().unwrap();
    let document = dir.path().join("campaign.md");
    fs::write(&document, "# C\n<!-- figures: begin -->\n<!-- figures: end -->\n").unwrap();
    let write_docs = ["--control", "none", "--write-docs", document.to_str().unwrap()];
    let text = play(dir.path(), &write_docs);
    for part in
        ["none: median, p90 (p10) and worst (seed) of 2 scenarios", "failures", "targets met"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let written = fs::read_to_string(&document).unwrap();
    assert!(written.starts_with("# C\n") && written.contains("| target | control |"), "{written}");
    assert!(dir.path().join("pictures/campaign.svg").is_file());

    let json: Value =
        serde_json::from_str(&play(dir.path(), &["--control", "none", "--json"])).unwrap();
    let outcomes = json["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 4, "wfq and none of two seeds");
    let saved = fs::read_to_string(dir.path().join("campaign.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap(), json);

    // A number that `sim run` gives for the saved file is the same as in the campaign.
    play(dir.path(), &["--control", "crab", "--jobs", "1"]);
    let crab: Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("campaign.json")).unwrap())
            .unwrap();
    let mine = crab["outcomes"].as_array().unwrap().iter();
    let failed =
        mine.filter(|o| o["control"] == "crab" && !o["failures"].as_array().unwrap().is_empty());
    let outcome = failed.into_iter().next().expect("one of the two fails with crab");
    let file = dir.path().join(format!("campaign-{}.toml", outcome["seed"]));
    let output = fairweir(&["sim", "run", file.to_str().unwrap(), "--control", "crab", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let queue = &report["summary"]["isp_queue_ms"]["mean"];
    assert_eq!((queue, queue.is_number()), (&outcome["queue_mean_ms"], true));
}

#[test]
fn a_wrong_class_or_document_is_told_before_anything_is_played() {
    let error = |args: &[&str]| {
        let output = fairweir(args);
        assert!(!output.status.success());
        output
    };
    let unknown = error(&["campaign", "--class", "wifi"]);
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.contains("unknown class `wifi`; allowed: plain, late, apps"), "{text}");
    let missing = error(&["campaign", "--write-docs", "/nonexistent/campaign.md"]);
    assert!(only_error_line(&missing).contains("cannot read /nonexistent/campaign.md"));
}
