//! Plays every scenario in the lab and writes `docs/measured.md` and `docs/pictures/` anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root;

/// What is played, with which controls, and whether its picture is kept.
const PLAYED: &[(&str, &[&str], bool)] = &[
    ("demo", &["none", "crab", "wfq"], true),
    ("crab-fig7-short", &["none", "borrow", "static", "chokepoint", "crab", "wfq"], true),
    ("crab-fig8-short", &["none", "borrow", "static", "chokepoint", "crab", "wfq"], true),
    ("crab-fig3", &["none", "crab", "wfq"], false),
    ("crab-fig7", &["crab", "wfq"], true),
    ("crab-fig8", &["crab", "wfq"], true),
    ("weights-5-1", &["none", "crab"], false),
    ("weights-1-5", &["none", "crab"], false),
    ("weights-5-1-bbr", &["none", "crab"], false),
    ("weights-1-5-bbr", &["none", "crab"], false),
    ("weights-5-1-mixed", &["none", "crab"], false),
    ("weights-1-5-mixed", &["none", "crab"], false),
    ("weights-5-1-ipv6", &["none", "crab"], false),
    ("weights-1-5-ipv6", &["none", "crab"], false),
    ("weights-5-1-bbr-ipv6", &["none", "crab"], false),
    ("weights-1-5-bbr-ipv6", &["none", "crab"], false),
    ("weights-5-1-mixed-ipv6", &["none", "crab"], false),
    ("weights-1-5-mixed-ipv6", &["none", "crab"], false),
    ("rtts", &["none", "crab"], true),
    ("rtts-first-200", &["none", "crab"], false),
    ("step-28.5", &["crab"], false),
    ("step-27", &["crab"], false),
    ("remembered-high", &["crab"], false),
    ("idle-then-load", &["crab"], false),
    ("by-app", &["none", "crab"], false),
];

const HEAD: &str = "# Measured in the lab

Real TCP stacks over the emulated link, one run each; what each scenario shows is in its file in
`scenarios/`. *error* is half the L1 distance between the groups' rates and their weighted max-min
fair shares, by capacity, outside the settling time after each event; *in transients* the same inside
it. *right after* is, for each event, how many seconds it took until every group stayed within 10 % of
its share until the next event (`–`: never; a single second off is enough for that).

| scenario | control | error | in transients | utilisation | ISP queue mean / p99, ms | drops | rates, Mbit/s (fair) | right after, s |
|---|---|---:|---:|---:|---:|---:|---|---|
";

/// Plays what is named, or everything; the tables are made from all that was ever played here.
pub(crate) fn run(names: &[String]) -> Result<()> {
    if let Some(name) = names.iter().find(|n| PLAYED.iter().all(|(played, ..)| played != n)) {
        bail!("`{name}` is none of the scenarios that are played");
    }
    let kept = root().join("docs/pictures");
    let scratch = root().join("evidence");
    fs::create_dir_all(&kept)?;
    fs::create_dir_all(&scratch)?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let chosen: Vec<_> = PLAYED.iter().filter(|(name, ..)| wanted(name)).collect();
    for (n, (scenario, controls, picture)) in chosen.iter().enumerate() {
        eprintln!("[{}/{}] {scenario}: {}", n + 1, chosen.len(), controls.join(", "));
        play(scenario, controls, &scratch)?;
        if *picture {
            let name = format!("{scenario}.svg");
            fs::copy(scratch.join(&name), kept.join(&name)).context("keeping the picture")?;
        }
        // After each scenario, so that what was played is not lost with what was not.
        write_table(&scratch)?;
    }
    Ok(())
}

fn play(scenario: &str, controls: &[&str], scratch: &Path) -> Result<()> {
    let mut command = Command::new(root().join("target/release/fairweir"));
    command.args(["lab", "run", "--out"]).arg(scratch);
    command.arg(root().join(format!("scenarios/{scenario}.toml")));
    for control in controls {
        command.args(["--control", control]);
    }
    let status = command.status();
    if !status.context("starting target/release/fairweir; `make build` makes it")?.success() {
        bail!("{scenario}: the lab failed");
    }
    Ok(())
}

fn write_table(scratch: &Path) -> Result<()> {
    let mut rows = String::new();
    for (scenario, ..) in PLAYED {
        let Ok(text) = fs::read_to_string(scratch.join(format!("{scenario}.json"))) else {
            continue;
        };
        for report in serde_json::from_str::<Vec<Value>>(&text)? {
            row(&report, &mut rows)?;
        }
    }
    fs::write(
        root().join("docs/measured.md"),
        format!("{HEAD}{rows}\n{}", machine("make evidence")?),
    )?;
    Ok(())
}

fn row(report: &Value, rows: &mut String) -> Result<()> {
    let summary = &report["summary"];
    let list = |key: &str| summary[key].as_array().cloned().unwrap_or_default();
    let groups: Vec<String> = list("groups")
        .iter()
        .map(|g| {
            let mbit = |key: &str| g[key].as_f64().map(|bps| format!("{:.2}", bps / 1e6));
            let name = g["name"].as_str().unwrap_or_default();
            let rate = mbit("rate_bps").unwrap_or_default();
            format!("{name} {rate} ({})", mbit("fair_bps").unwrap_or("–".into()))
        })
        .collect();
    let right: Vec<String> = list("right_after_s")
        .iter()
        .map(|r| r["seconds"].as_f64().map_or("–".into(), |s| format!("{s:.1}")))
        .collect();
    let number = |value: &Value, decimals: usize| {
        value.as_f64().map_or("–".to_owned(), |v| format!("{v:.decimals$}"))
    };
    let queue = &summary["isp_queue_ms"];
    writeln!(
        rows,
        "| {} | {}{} | {} | {} | {} | {} / {} | {} | {} | {} |",
        report["scenario"].as_str().unwrap_or_default(),
        report["control"].as_str().unwrap_or_default(),
        if report["valid"] == true { "" } else { " (late)" },
        number(&summary["allocation_error"], 3),
        number(&summary["transient_error"], 3),
        number(&summary["utilization"], 3),
        number(&queue["mean"], 1),
        number(&queue["p99"], 1),
        summary["isp_drops"],
        groups.join(", "),
        right.join(", "),
    )?;
    Ok(())
}

/// Where and how the numbers were made.
pub(crate) fn machine(command: &str) -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = cpu.matches("processor\t").count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!(
        "Made by `{command}` on {cores} cores of {}, Linux {}. A run marked *(late)* was one in \
         which the emulated link kept time badly (p99 over 1 ms), twice.\n",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    ))
}
