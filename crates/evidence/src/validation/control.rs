//! The default control on random links of the campaign in both worlds:
//! `docs/results/validation-control.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use fairweir_config::output;
use fairweir_scenario::play::Seeds;
use serde_json::Value;

use super::pair::Pair;
use super::{SIM_SEEDS, fairweir, kept, read, scratch};
use crate::campaign::{Class, class, save_case};
use crate::measured::machine;
use crate::root;

/// The most times that a run is repeated while the emulated link is late.
const ATTEMPTS: usize = 2;
/// The largest differences of the worlds in the allocation error, and in the mean queue.
const ERROR: f64 = 0.02;
const QUEUE_MS: f64 = 3.0;

const HEAD: &str = "# The default control in the simulator and on real packets

For researchers: whether what the simulator says of the default control holds. `sudo fairweir validate-control`
writes this file: random links of the [campaign](../campaign.md), each played once in the lab with the daemon
and the kernel's TCP, and with five seeds in the simulator. *agree*: from the simulator's mean the allocation error
differs by at most 0.02 and the mean queue at the ISP by at most 3 ms; *as a seed*: not so, but what differs is between
the least and the greatest of the seeds. Classes with neighbours, and with a second host, are left out: the campaign
judges them by other scores.

";

const HEADINGS: &str = "\
| seed | class | allocation error, lab / sim | mean queue, lab / sim, ms | utilisation, lab / sim | agree |
|---:|---|---:|---:|---:|---|
";

/// Plays the seeds that were not played yet, and makes the table of all requested seeds.
pub(crate) fn run(seeds: &Seeds) -> Result<()> {
    // All paths are relative to the repository's root.
    root()?;
    output::make_dir(&scratch())?;
    let is_played = |seed: &u64| !matches!(class(*seed), Class::Neighbours | Class::Hosts);
    let seeds: Vec<u64> = seeds.all()?.filter(is_played).collect();
    for (i, &seed) in seeds.iter().enumerate() {
        if !kept(&name(seed), "both").exists() {
            eprintln!("seed {seed}, class {}: {} of {}", class(seed), i + 1, seeds.len());
            play(seed)?;
            write_table(&seeds[..=i])?;
        }
    }
    write_table(&seeds)
}

fn name(seed: u64) -> String {
    format!("campaign-{seed}")
}

/// Plays a seed until the emulated link was not late.
fn play(seed: u64) -> Result<()> {
    let file = format!("{}.toml", name(seed));
    save_case(seed, &scratch(), &file)?;
    for _ in 0..ATTEMPTS {
        let mut command = fairweir()?;
        command.arg("compare").arg(scratch().join(&file));
        command.args(["--control", "fairweir", "--seed", SIM_SEEDS, "--json"]);
        let output =
            command.stderr(Stdio::inherit()).output().context("cannot start `fairweir`")?;
        let said = serde_json::from_slice(&output.stdout);
        let said: Value = said.with_context(|| format!("reading what {} was", name(seed)))?;
        if said["error"] == "interrupted" {
            bail!("interrupted");
        }
        // A scenario that only the simulator can play gives an error, too.
        let said = if said.is_object() { Value::from(vec![said]) } else { said };
        output::write(&kept(&name(seed), "both"), said.to_string())?;
        if said[0]["valid"] != false {
            break;
        }
    }
    Ok(())
}

fn write_table(seeds: &[u64]) -> Result<()> {
    let (mut rows, mut refused, mut agree, mut judged) = (String::new(), String::new(), 0, 0);
    for &seed in seeds {
        let played = read(&kept(&name(seed), "both"))?;
        let comparison = played.first().unwrap_or(&Value::Null);
        if let Some(error) = comparison["error"].as_str() {
            writeln!(refused, "- {seed}, {}: {error}", class(seed))?;
            continue;
        }
        let [error, queue, used] = ["allocation error", "ISP queue mean, ms", "utilisation"]
            .map(|name| Pair::of(comparison, name));
        let judged_by = [(&error, ERROR), (&queue, QUEUE_MS)];
        let is_as_a_seed =
            |(pair, most): &(&Pair, f64)| pair.is_within(*most) || pair.is_as_a_seed();
        let verdict = if comparison["valid"] != true {
            "(late)"
        } else if judged_by.iter().all(|(pair, most)| pair.is_within(*most)) {
            "yes"
        } else if judged_by.iter().all(is_as_a_seed) {
            "as a seed"
        } else {
            "**no**"
        };
        judged += usize::from(comparison["valid"] == true);
        agree += usize::from(verdict == "yes");
        writeln!(
            rows,
            "| {seed} | {} | {} | {} | {} | {verdict} |",
            class(seed),
            error.shown(3),
            queue.shown(1),
            used.shown(3),
        )?;
    }
    let mut text = HEAD.to_owned();
    writeln!(text, "**{agree} of {judged} agree.**\n")?;
    text.push_str(HEADINGS);
    text.push_str(&rows);
    if !refused.is_empty() {
        write!(text, "\nNot played in the lab:\n\n{refused}")?;
    }
    writeln!(text, "\n{}", machine("fairweir validate-control")?)?;
    let file = Path::new("docs/results/validation-control.md");
    output::write(file, text.trim_end().to_owned() + "\n")?;
    Ok(())
}
