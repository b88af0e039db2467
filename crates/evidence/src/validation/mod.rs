//! Plays single downloads in both worlds and writes `docs/results/validation.md`: whether the
//! simulator's TCP behaves like the kernel's.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use fairweir_config::output;
use serde_json::Value;

use crate::measured::machine;
use crate::root;

pub(crate) mod control;
mod pair;

use pair::Pair;

const CONGESTION_CONTROLS: &[&str] = &["reno", "cubic", "bbr"];
/// Buffers of a quarter, one and four BDPs of `scenarios/single.toml`.
const BUFFERS: &[&str] = &["10ms", "40ms", "160ms"];
/// One minute plus the settling time.
const DURATION: &str = "66s";
const LAB_SEEDS: &str = "1..3";
const SIM_SEEDS: &str = "1..5";
/// Scenarios played by `fairweir compare` with every control that sets shares, and with none.
const COMPARED: &[&str] = &["mix-cubic-bbr", "step-10", "crab-fig7-short"];
/// The most runs that two cores can emulate at a time without being late.
const AT_A_TIME: usize = 2;

const HEAD: &str = "# The simulator against the kernel

For researchers: how near the simulator's TCP is to that of the kernel. `sudo fairweir validate-tcp` writes this file.

## One download alone

`scenarios/single.toml` for a minute after slow start: 30 Mbit/s, RTT 40 ms, a FIFO of a quarter, one
and four BDPs. *lab*: minimum, median and maximum of three or more runs with the kernel's TCP; runs in
which the emulated link was late are excluded. *sim*: mean over five seeds. The *band* is the allowed
deviation of the simulator from the median: 10 % of the utilisation, 15 % of the mean queue, and 25 % or
0.05 percentage points of the loss rate (over the whole run, with slow start).

| congestion control | buffer | measure | lab | sim | difference | in the band |
|---|---|---|---:|---:|---:|---|
";

const NOISE_HEAD: &str = "
### BBR's queue and noise

BBR uses the largest delivery rate of ten rounds. If packets are late and the following ones arrive
together, this rate is too high, BBR sends more, and the queue grows. On the emulated link this happens
when the machine is busy; in the simulator it does not. *late* is the 99th percentile of the time by
which packets left the emulated link later than the model says.

| buffer | late, ms | mean queue, ms |
|---|---:|---:|
";

const COMPARED_HEAD: &str = "
## Several flows under control

`fairweir compare`: one run in the lab, the mean over seeds in the simulator. Under a control that sets
the shares, allocation error and utilisation may differ by 0.02. Without one, the same group must have
the higher rate in both, or neither. On a busy machine BBR takes more beside CUBIC: without control
(`fairweir compare scenarios/mix-cubic-bbr.toml --control none`) it had 45 and 48 % of the link beside four
busy loops on two cores, and 40 to 43 % in five runs on a quiet machine.

| scenario | control | allocation error, lab / sim | utilisation, lab / sim | rates, lab / sim, Mbit/s | agree |
|---|---|---:|---:|---|---|
";

/// A single download.
#[derive(Clone, Copy)]
struct Case {
    congestion_control: &'static str,
    buffer: &'static str,
}

/// A number of the report, and how far the simulator's value may be off.
struct Measure {
    name: &'static str,
    of: fn(&Value) -> Option<f64>,
    decimals: usize,
    /// Tolerance as a part of the lab's median.
    relative: f64,
    /// Absolute tolerance; the larger of both counts.
    absolute: f64,
}

const MEASURES: &[Measure] = &[
    Measure {
        name: "utilisation, %",
        of: |summary| Some(summary["utilization"].as_f64()? * 100.0),
        decimals: 1,
        relative: 0.10,
        absolute: 0.0,
    },
    Measure {
        name: "mean queue, ms",
        of: |summary| summary["isp_queue_ms"]["mean"].as_f64(),
        decimals: 2,
        relative: 0.15,
        absolute: 0.0,
    },
    Measure {
        name: "loss, %",
        of: |summary| Some(summary["isp_loss"].as_f64()? * 100.0),
        decimals: 3,
        relative: 0.25,
        absolute: 0.05,
    },
];

/// Plays the simulator's part, and those lab runs that are named or were never played here; makes
/// the tables from all results.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let cases: Vec<Case> = CONGESTION_CONTROLS
        .iter()
        .flat_map(|congestion_control| {
            BUFFERS.iter().map(move |buffer| Case { congestion_control, buffer })
        })
        .collect();
    let is_known = |name: &str| cases.iter().any(|c| c.name() == name) || COMPARED.contains(&name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<String> = cases.iter().map(Case::name).collect();
        bail!("unknown case `{name}`; available: {}, {}", known.join(", "), COMPARED.join(", "));
    }
    // All paths are relative to the repository's root.
    root()?;
    output::make_dir(&scratch())?;
    for case in &cases {
        finish(&case.name(), case.play("sim", SIM_SEEDS)?)?;
    }
    let is_due = |name: &str, world: &str| {
        names.iter().any(|n| n == name) || (names.is_empty() && !kept(name, world).exists())
    };
    let due: Vec<&Case> = cases.iter().filter(|case| is_due(&case.name(), "lab")).collect();
    for together in due.chunks(AT_A_TIME) {
        let names: Vec<String> = together.iter().map(|case| case.name()).collect();
        eprintln!("in the lab: {}", names.join(", "));
        let playing: Vec<Playing> =
            together.iter().map(|case| case.play("lab", LAB_SEEDS)).collect::<Result<_>>()?;
        playing.into_iter().zip(&names).try_for_each(|(playing, name)| finish(name, playing))?;
        write_tables(&cases)?;
    }
    for scenario in COMPARED.iter().filter(|scenario| is_due(scenario, "both")) {
        eprintln!("in both worlds: {scenario}");
        finish(scenario, compare(scenario)?)?;
        write_tables(&cases)?;
    }
    write_tables(&cases)
}

impl Case {
    fn name(&self) -> String {
        format!("{}-{}", self.congestion_control, self.buffer)
    }

    fn play(&self, world: &str, seeds: &str) -> Result<Playing> {
        let mut command = fairweir()?;
        command.args([world, "run"]).arg(scenario("single"));
        command.args(["--control", "none", "--seed", seeds, "--json"]);
        command.args(["--set", &format!("duration={DURATION}")]);
        command.args(["--set", &format!("link.buffer={}", self.buffer)]);
        let set = format!("flow.0.congestion_control={}", self.congestion_control);
        command.args(["--set", &set]);
        play(command, kept(&self.name(), world))
    }

    fn rows(&self, rows: &mut String) -> Result<()> {
        let (lab, sim) = (summaries(&self.name(), "lab")?, summaries(&self.name(), "sim")?);
        for measure in MEASURES {
            let decimals = measure.decimals;
            let mut emulated: Vec<f64> = lab.iter().filter_map(measure.of).collect();
            emulated.sort_by(f64::total_cmp);
            let simulated: Vec<f64> = sim.iter().filter_map(measure.of).collect();
            let mean = simulated.iter().sum::<f64>() / simulated.len() as f64;
            let (told, difference, verdict) = match emulated.as_slice() {
                [] => ("–".into(), "–".into(), "–"),
                [least, .., most] => {
                    let middle = emulated.len() / 2;
                    let median = (emulated[middle] + emulated[(emulated.len() - 1) / 2]) / 2.0;
                    let off = mean - median;
                    let band = (measure.relative * median).max(measure.absolute);
                    (
                        format!("{least:.decimals$} / {median:.decimals$} / {most:.decimals$}"),
                        format!("{off:+.decimals$}"),
                        if off.abs() <= band { "yes" } else { "**no**" },
                    )
                }
                [only] => (format!("{only:.decimals$}"), "–".into(), "–"),
            };
            writeln!(
                rows,
                "| {} | {} | {} | {told} | {mean:.decimals$} | {difference} | {verdict} |",
                self.congestion_control, self.buffer, measure.name,
            )?;
        }
        Ok(())
    }

    /// A row for each run in the lab, the least late first, after a row for the simulator's mean.
    fn noise_rows(&self, rows: &mut String) -> Result<()> {
        let queue = |summary: &Value| summary["isp_queue_ms"]["mean"].as_f64();
        let sim: Vec<f64> = summaries(&self.name(), "sim")?.iter().filter_map(queue).collect();
        let mean = sim.iter().sum::<f64>() / sim.len() as f64;
        writeln!(rows, "| {} | sim | {mean:.2} |", self.buffer)?;
        let lab = read(&kept(&self.name(), "lab"))?;
        let pair = |r: &Value| Some((r["lateness"]["p99_ms"].as_f64()?, queue(&r["summary"])?));
        let mut pairs: Vec<(f64, f64)> =
            lab.iter().filter(|r| r["valid"] == true).filter_map(pair).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (late, queue) in pairs {
            writeln!(rows, "| {} | {late:.2} | {queue:.2} |", self.buffer)?;
        }
        Ok(())
    }
}

fn compare(name: &str) -> Result<Playing> {
    let mut command = fairweir()?;
    command.arg("compare").arg(scenario(name)).args(["--seed", SIM_SEEDS, "--json"]);
    play(command, kept(name, "both"))
}

/// A running command, and the file to which its output is written at its end.
struct Playing {
    child: Child,
    kept: PathBuf,
}

fn play(mut command: Command, kept: PathBuf) -> Result<Playing> {
    let child = command.stdout(Stdio::piped()).spawn();
    let child = child.context("cannot start `fairweir`")?;
    Ok(Playing { child, kept })
}

fn finish(name: &str, playing: Playing) -> Result<()> {
    // The command writes all of its output at its end, so a full pipe delays no measurement.
    let output = playing.child.wait_with_output()?;
    if !output.status.success() {
        bail!("{name}: playing it failed");
    }
    let kept = &playing.kept;
    output::write(kept, output.stdout).with_context(|| format!("writing {}", kept.display()))
}

fn fairweir() -> Result<Command> {
    Ok(Command::new(env::current_exe().context("cannot tell the executable")?))
}

fn scenario(name: &str) -> PathBuf {
    format!("scenarios/{name}.toml").into()
}

fn scratch() -> PathBuf {
    "evidence/validation".into()
}

fn kept(name: &str, world: &str) -> PathBuf {
    scratch().join(format!("{name}.{world}.json"))
}

/// The reports that were kept; empty if there are none.
fn read(path: &Path) -> Result<Vec<Value>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path)?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

/// The summaries of all runs that can be trusted.
fn summaries(name: &str, world: &str) -> Result<Vec<Value>> {
    let reports = read(&kept(name, world))?;
    Ok(reports.into_iter().filter(|r| r["valid"] == true).map(|r| r["summary"].clone()).collect())
}

fn write_tables(cases: &[Case]) -> Result<()> {
    let mut text = HEAD.to_owned();
    for case in cases {
        case.rows(&mut text)?;
    }
    text.push_str(NOISE_HEAD);
    for case in cases.iter().filter(|case| case.congestion_control == "bbr") {
        case.noise_rows(&mut text)?;
    }
    text.push_str(COMPARED_HEAD);
    for scenario in COMPARED {
        for comparison in read(&kept(scenario, "both"))? {
            compared_row(&comparison, &mut text)?;
        }
    }
    writeln!(text, "\n{}", machine("fairweir validate-tcp")?)?;
    output::write(Path::new("docs/results/validation.md"), text.trim_end().to_owned() + "\n")?;
    Ok(())
}

fn compared_row(comparison: &Value, rows: &mut String) -> Result<()> {
    let named = |name: &str| Pair::of(comparison, name).shown(3);
    let names = comparison["measures"].as_array().into_iter().flatten();
    let rates: Vec<String> = names
        .filter_map(|measure| {
            let name = measure["name"].as_str()?;
            let group = name.strip_suffix(", Mbit/s")?;
            Some(format!("{group} {}", Pair::of(comparison, name).shown(2)))
        })
        .collect();
    let verdict = match (comparison["valid"] == true, comparison["agrees"] == true) {
        (false, _) => "(late)",
        (true, true) => "yes",
        (true, false) => "**no**",
    };
    writeln!(
        rows,
        "| {} | {} | {} | {} | {} | {verdict} |",
        comparison["scenario"].as_str().unwrap_or_default(),
        comparison["control"].as_str().unwrap_or_default(),
        named("allocation error"),
        named("utilisation"),
        rates.join(", "),
    )?;
    Ok(())
}
