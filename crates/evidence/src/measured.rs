//! Plays every scenario in the lab and rewrites `docs/results/measured.md` and `docs/pictures/`.
//!
//! The document keeps the rows of scenarios that are not played again.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use fairweir_config::output;
use serde_json::Value;

use crate::root;

/// A scenario whose groups share a link.
struct Shared {
    scenario: &'static str,
    controls: &'static [&'static str],
    /// Whether its picture is kept in `docs/pictures/`.
    has_picture: bool,
}

const fn shared(scenario: &'static str, controls: &'static [&'static str]) -> Shared {
    Shared { scenario, controls, has_picture: false }
}

const fn pictured(scenario: &'static str, controls: &'static [&'static str]) -> Shared {
    Shared { scenario, controls, has_picture: true }
}

const ALL: &[&str] = &["none", "borrow", "static", "chokepoint", "rbm", "crab", "fairweir", "wfq"];
const SHARING: &[&str] = &["crab", "fairweir", "wfq"];
const RECEIVER: &[&str] = &["none", "crab", "fairweir"];

const SHARED: &[Shared] = &[
    pictured("demo", &["none", "crab", "fairweir", "wfq"]),
    pictured("crab-fig7-short", ALL),
    pictured("crab-fig8-short", ALL),
    shared("crab-fig3", &["none", "crab", "fairweir", "wfq"]),
    pictured("crab-fig7", SHARING),
    pictured("crab-fig8", SHARING),
    shared("weights-5-1", RECEIVER),
    shared("weights-1-5", RECEIVER),
    shared("weights-5-1-bbr", RECEIVER),
    shared("weights-1-5-bbr", RECEIVER),
    shared("weights-5-1-mixed", RECEIVER),
    shared("weights-1-5-mixed", RECEIVER),
    shared("weights-5-1-ipv6", RECEIVER),
    shared("weights-1-5-ipv6", RECEIVER),
    shared("weights-5-1-bbr-ipv6", RECEIVER),
    shared("weights-1-5-bbr-ipv6", RECEIVER),
    shared("weights-5-1-mixed-ipv6", RECEIVER),
    shared("weights-1-5-mixed-ipv6", RECEIVER),
    pictured("rtts", RECEIVER),
    shared("rtts-first-200", RECEIVER),
    shared("step-28.5", &["crab", "fairweir"]),
    shared("step-27", &["crab", "fairweir"]),
    shared("remembered-high", &["crab", "fairweir"]),
    shared("idle-then-load", &["crab", "fairweir"]),
    shared("by-app", RECEIVER),
    pictured("chain", &["none", "fairweir"]),
];

/// Scenarios in which a subscriber is limited to a rate, by the model in the lab and by the real
/// `fairweir isp`.
const POLICED: &[&str] = &["bcpqp-mix", "bcpqp-newcomer", "bcpqp-fig8-weights"];
/// The element that polices, and the overrides that select it.
const POLICED_BY: &[(&str, &[&str])] =
    &[("model", &[]), ("fairweir isp", &["police.home.by=daemon", "police.home.queue_by=hash"])];

/// A row: several runs of a scenario that is difficult for the default control.
struct Hard {
    /// Name of the row; different from all scenarios.
    name: &'static str,
    scenario: &'static str,
    set: &'static [&'static str],
    seeds: &'static str,
}

const fn hard(
    name: &'static str,
    scenario: &'static str,
    set: &'static [&'static str],
    seeds: &'static str,
) -> Hard {
    Hard { name, scenario, set, seeds }
}

const HARD: &[Hard] = &[
    hard("cold start, 1 and 1 connections", "cold-start", COLD[0], "1..10"),
    hard("cold start, 3 and 1", "cold-start", COLD[1], "1..10"),
    hard("cold start, 5 and 1", "cold-start", COLD[2], "1..10"),
    hard("cold start, 7 and 1", "cold-start", COLD[3], "1..10"),
    hard("cold start, 9 and 1", "cold-start", COLD[4], "1..10"),
    hard("no timestamps", "weights-5-1", NO_TIMESTAMPS, "1..3"),
    hard("no timestamps, an answer a second", "weights-5-1", SLOW_REFLECTOR, "1..3"),
    hard("applications", "by-app", &[], "1..3"),
    hard("requests beside a download", "requests-beside-bulk", &[], "1..3"),
    hard("half an hour", "half-hour", &[], "1"),
];
const COLD: [&[&str]; 5] = [
    &["duration=10s", "flow.0.connections=1"],
    &["duration=10s", "flow.0.connections=3"],
    &["duration=10s", "flow.0.connections=5"],
    &["duration=10s", "flow.0.connections=7"],
    &["duration=10s", "flow.0.connections=9"],
];
const NO_TIMESTAMPS: &[&str] = &["flow.0.timestamps=false", "flow.1.timestamps=false"];
const SLOW_REFLECTOR: &[&str] =
    &["flow.0.timestamps=false", "flow.1.timestamps=false", "probe.answer_interval=1s"];

const HEAD: &str = "# Measured in the lab

Real TCP stacks over the emulated link, one run each. What a scenario shows is in its file in
`scenarios/`.

## Shares of a link

*error* is half the L1 distance between the groups' rates and their weighted max-min fair shares, by
capacity, outside the settling time after each event; *in transients* the same inside it. *right
after* is, for each event, how many seconds it took until every group stayed within 10 % of its share
until the next event (`–`: never; one second outside is enough for that). `fairweir` is the default
control.

| scenario | control | error | in transients | utilisation | ISP queue mean / p99, ms | drops | rates, Mbit/s (fair) | right after, s |
|---|---|---:|---:|---:|---:|---:|---|---|
";

const POLICED_HEAD: &str = "
## Policed subscribers

A subscriber is limited to the rate of a plan by the model in the lab, or by the real `fairweir
isp`. *rate* is the mean rate relative to the plan; *250 ms* is the 99th percentile and the maximum of
the rate over windows of 250 ms relative to the plan, without the start-up; *Jain* is Jain's index of the
connections (`–`: the daemon counts subscribers, not connections).

| scenario | policed by | rate | 250 ms p99 / max | loss, % | Jain |
|---|---|---:|---:|---:|---:|
";

const HARD_HEAD: &str = "
## Where the default control has it hard

Several runs each, with the least and the greatest value of the runs. *Least in 3 s* is the least
utilisation over three seconds in a row, after the first three in which the link could be full; *queue* is
that at the ISP.

| what | scenario | runs | error | utilisation | least in 3 s | queue mean, ms | p99 | longest |
|---|---|---:|---|---|---|---|---|---|
";

/// Rows of the document by the scenario in their first cell.
type Rows = BTreeMap<String, String>;

/// Plays the named scenarios, or all.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let hard = || HARD.iter().map(|hard| hard.name);
    let shared = || SHARED.iter().map(|shared| shared.scenario);
    let known = || shared().chain(POLICED.iter().copied()).chain(hard());
    if let Some(name) = names.iter().find(|name| known().all(|known| known != name.as_str())) {
        let known: Vec<&str> = known().collect();
        bail!("unknown scenario `{name}`; allowed are {}", known.join(", "));
    }
    let root = root()?;
    let document = root.join("docs/results/measured.md");
    let mut rows = rows_of(&fs::read_to_string(&document)?);
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    for Shared { scenario, controls, has_picture } in SHARED.iter().filter(|s| wanted(s.scenario)) {
        eprintln!("{scenario}: {}", controls.join(", "));
        let scratch = root.join("evidence");
        let reports = play(&root, &scratch, scenario, controls, &[], "1")?;
        rows.insert((*scenario).to_owned(), reports.iter().map(shared_row).collect());
        if *has_picture {
            let name = format!("{scenario}.svg");
            let kept = root.join("docs/pictures").join(&name);
            let picture = fs::read(scratch.join(&name)).context("reading the picture")?;
            output::write(&kept, picture).context("keeping the picture")?;
        }
        // Written after each scenario, so that an interrupted command keeps its results.
        write(&document, &rows)?;
    }
    for scenario in POLICED.iter().filter(|name| wanted(name)) {
        let mut text = String::new();
        for (by, set) in POLICED_BY {
            eprintln!("{scenario}: policed by {by}");
            let scratch = root.join("evidence").join(by.replace(' ', "-"));
            let reports = play(&root, &scratch, scenario, &["none"], set, "1")?;
            text.extend(reports.iter().map(|report| policed_row(report, by)));
        }
        rows.insert((*scenario).to_owned(), text);
        write(&document, &rows)?;
    }
    for hard in HARD.iter().filter(|hard| wanted(hard.name)) {
        eprintln!("{}: {}", hard.name, hard.scenario);
        let scratch = root.join("evidence/hard");
        let reports = play(&root, &scratch, hard.scenario, &["fairweir"], hard.set, hard.seeds)?;
        rows.insert(hard.name.to_owned(), hard_row(hard, &reports));
        write(&document, &rows)?;
    }
    Ok(())
}

/// Plays a scenario by this binary's `lab run`; returns its reports.
fn play(
    root: &Path,
    scratch: &Path,
    scenario: &str,
    controls: &[&str],
    set: &[&str],
    seeds: &str,
) -> Result<Vec<Value>> {
    let mut command = Command::new(env::current_exe().context("cannot tell the executable")?);
    command.args(["lab", "run", "--seed", seeds, "--out"]).arg(scratch);
    command.arg(root.join(format!("scenarios/{scenario}.toml")));
    for control in controls {
        command.args(["--control", control]);
    }
    for change in set {
        command.args(["--set", change]);
    }
    if !command.status().context("cannot start `fairweir lab run`")?.success() {
        bail!("{scenario}: `fairweir lab run` failed");
    }
    let json = scratch.join(format!("{scenario}.json"));
    let text = fs::read_to_string(&json).with_context(|| format!("reading {}", json.display()))?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", json.display()))
}

/// The document's row of each scenario.
fn rows_of(document: &str) -> Rows {
    let mut rows = Rows::new();
    for line in document.lines() {
        let cell = line.strip_prefix("| ").and_then(|rest| rest.split(" | ").next());
        if let Some(scenario) = cell.filter(|&cell| cell != "scenario" && cell != "what") {
            let _ = writeln!(rows.entry(scenario.to_owned()).or_default(), "{line}");
        }
    }
    rows
}

fn write(document: &Path, rows: &Rows) -> Result<()> {
    let of = |scenario: &str| rows.get(scenario).map_or("", String::as_str);
    let shared: String = SHARED.iter().map(|shared| of(shared.scenario)).collect();
    let policed: String = POLICED.iter().map(|scenario| of(scenario)).collect();
    let hard: String = HARD.iter().map(|hard| of(hard.name)).collect();
    let made = machine("make evidence")?;
    let text = format!("{HEAD}{shared}{POLICED_HEAD}{policed}{HARD_HEAD}{hard}\n{made}");
    output::write(document, text).with_context(|| format!("writing {}", document.display()))
}

fn shared_row(report: &Value) -> String {
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
    let queue = &summary["isp_queue_ms"];
    format!(
        "| {} | {} | {} | {} | {} | {} / {} | {} | {} | {} |\n",
        report["scenario"].as_str().unwrap_or_default(),
        marked(report, report["control"].as_str().unwrap_or_default()),
        number(&summary["allocation_error"], 3),
        number(&summary["transient_error"], 3),
        number(&summary["utilization"], 3),
        number(&queue["mean"], 1),
        number(&queue["p99"], 1),
        summary["isp_drops"],
        groups.join(", "),
        right.join(", "),
    )
}

fn policed_row(report: &Value, by: &str) -> String {
    let policed = &report["summary"]["policed"][0];
    let loss = policed["loss"].as_f64().map_or(Value::Null, |ratio| (ratio * 100.0).into());
    format!(
        "| {} | {} | {} | {} / {} | {} | {} |\n",
        report["scenario"].as_str().unwrap_or_default(),
        marked(report, by),
        number(&policed["rate_ratio"], 3),
        number(&policed["steady"]["p99"], 2),
        number(&policed["steady"]["max"], 2),
        number(&loss, 2),
        number(&policed["jain"], 3),
    )
}

fn hard_row(hard: &Hard, reports: &[Value]) -> String {
    // Only runs in which the link kept time.
    let valid = || reports.iter().filter(|report| report["valid"] == true);
    let range = |key: &[&str], decimals: usize| {
        let of = |report: &Value| {
            key.iter().fold(&report["summary"], |value, key| &value[*key]).as_f64()
        };
        let values: Vec<f64> = valid().filter_map(of).collect();
        let least = values.iter().copied().reduce(f64::min);
        let most = values.iter().copied().reduce(f64::max);
        match (least, most) {
            (Some(least), Some(most)) if values.len() > 1 => {
                format!("{least:.decimals$} to {most:.decimals$}")
            }
            (Some(only), _) => format!("{only:.decimals$}"),
            _ => "–".to_owned(),
        }
    };
    let late = match reports.len() - valid().count() {
        0 => String::new(),
        late => format!(" ({late} late)"),
    };
    format!(
        "| {} | `{}` | {}{late} | {} | {} | {} | {} | {} | {} |\n",
        hard.name,
        hard.scenario,
        reports.len(),
        range(&["allocation_error"], 3),
        range(&["utilization"], 3),
        range(&["least_utilization"], 3),
        range(&["isp_queue_ms", "mean"], 1),
        range(&["isp_queue_ms", "p99"], 1),
        range(&["isp_queue_ms", "max"], 1),
    )
}

/// Adds a mark if the emulated link was late.
fn marked(report: &Value, what: &str) -> String {
    format!("{what}{}", if report["valid"] == true { "" } else { " (late)" })
}

fn number(value: &Value, decimals: usize) -> String {
    value.as_f64().map_or("–".to_owned(), |v| format!("{v:.decimals$}"))
}

/// The machine and command with which the numbers were made.
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use fairweir_config::Text;
    use fairweir_config::file::{SCENARIO, TRACE};
    use fairweir_scenario::Scenario;

    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn scenario(name: &str, set: &[&str]) -> Scenario {
        let file = repository().join(format!("scenarios/{name}.toml"));
        let text = Text::read(&file, &SCENARIO).unwrap_or_else(|e| panic!("{e}"));
        let set: Vec<_> = set.iter().map(|change| change.parse().unwrap()).collect();
        let load = |path: &Path| Text::read(path, &TRACE);
        Scenario::parse_with(&text, &set, &load).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn the_default_control_is_played_in_every_scenario() {
        for Shared { scenario, controls, .. } in SHARED {
            assert!(controls.contains(&"fairweir"), "{scenario}: {controls:?}");
        }
        assert!(POLICED_BY.iter().any(|(_, set)| set.contains(&"police.home.by=daemon")));
    }

    #[test]
    fn every_scenario_can_be_played_in_the_lab() {
        for shared in SHARED {
            let scenario = scenario(shared.scenario, &[]);
            assert!(scenario.police.is_empty() || scenario.agreed().is_some(), "no fair shares");
            for control in shared.controls {
                assert!(control.parse::<fairweir_scenario::Control>().is_ok(), "{control}");
            }
        }
        for Hard { name, scenario: file, set, seeds } in HARD {
            let scenario = scenario(file, set);
            fairweir_lab::refuse_unplayable(&scenario).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(seeds.parse::<fairweir_scenario::play::Seeds>().is_ok(), "{name}");
            assert!(SHARED.iter().all(|shared| shared.scenario != *name), "{name}");
        }
        for name in POLICED {
            for (_, set) in POLICED_BY {
                assert_eq!(scenario(name, set).police.len(), 1, "{name}");
            }
        }
    }

    #[test]
    fn a_document_keeps_the_rows_of_what_was_not_played_again() {
        let text = fs::read_to_string(repository().join("docs/results/measured.md")).unwrap();
        let mut rows = rows_of(&text);
        assert!(!rows.contains_key("scenario") && rows["demo"].lines().count() >= 3, "{rows:?}");
        let kept = rows["rtts"].clone();
        rows.insert("demo".into(), "| demo | fairweir | new |\n".into());
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), &rows).unwrap();
        let again = rows_of(&fs::read_to_string(file.path()).unwrap());
        assert_eq!(again["demo"], "| demo | fairweir | new |\n");
        assert_eq!(again["rtts"], kept);
    }
}
