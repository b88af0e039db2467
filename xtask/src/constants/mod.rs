//! `cargo xtask constants`: finds which constants of the default control the golden fixes.
//!
//! Each constant is changed by +5 % and by -5 %, and the golden is played until a run differs. In a
//! copy of the sources, constants are functions that read the environment, so one build serves all
//! changes. The rewriting is textual: a constant is a line `const NAME: TYPE = VALUE;`, and the
//! sources are formatted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::root;

mod rewrite;

use rewrite::{Constant, Sources};

const GOLDEN: &str = "crates/evidence/golden.txt";
/// The folders with the constants of the default control.
const FOLDERS: [&str; 4] = ["receiver/fairweir", "receiver/delay", "receiver/supervisor", "window"];
/// Constants that are not a choice: units, sizes of packets, memory.
const FACTS: [(&str, &str); 12] = [
    ("receiver/fairweir/group::NO_CORRECTION", "the unit: thousandths"),
    ("receiver/fairweir/contest::UNSTRETCHED", "the unit: thousandths"),
    ("receiver/fairweir/asked::EVEN", "the unit: thousandths"),
    ("receiver/fairweir::PACKET_GUESS", "an Ethernet frame"),
    ("receiver/fairweir/windows::INITIAL_WINDOW", "ten segments, RFC 6928"),
    ("receiver/delay/base::STAMP_ROUNDING", "half a millisecond: the resolution of timestamps"),
    ("receiver/delay::BASES_MAX", "a bound of memory"),
    ("window/class::FLIGHT", "ten segments, RFC 6928"),
    ("window/law::SEGMENTS_MIN", "what ACKs can clock"),
    ("window/law::HEADERS_V4", "sizes of headers"),
    ("window/law::HEADERS_V6", "sizes of headers"),
    ("window/law::SEGMENT_GUESS", "a segment of an Ethernet frame"),
];
/// The program that is built from the copy.
const RUNNER: &str = "target/release/runner";
const PERCENTS: [i32; 2] = [5, -5];
/// A change is caught as a hang if the golden takes this many times as long.
const PATIENCE: u32 = 10;

/// Prints the table for the constants whose names contain one of `only`.
///
/// # Errors
/// If the copy could not be built, or its results without a change differ from the golden.
pub(crate) fn run(only: &[&str]) -> Result<()> {
    let copy = root().join("target/mutants");
    let mut sources = sources()?;
    let all = rewrite::constants(&sources, &FOLDERS);
    let is_fact = |constant: &Constant| FACTS.iter().any(|(name, _)| *name == constant.name());
    if let Some((name, _)) = FACTS.iter().find(|(n, _)| all.iter().all(|c| c.name() != *n)) {
        bail!("there is no constant {name}: mend FACTS in xtask/src/constants/mod.rs");
    }
    let tuned: Vec<Constant> = all.into_iter().filter(|c| !is_fact(c)).collect();
    let skipped = rewrite::rewrite(&mut sources, &tuned);
    build(&copy, &sources)?;
    write_golden(&copy.join("golden.txt"))?;
    let is_asked = |c: &&Constant| {
        !skipped.contains_key(&c.name())
            && (only.is_empty() || only.iter().any(|part| c.name().contains(part)))
    };
    let mutants: Vec<(&Constant, i32)> =
        tuned.iter().filter(is_asked).flat_map(|c| PERCENTS.map(|percent| (c, percent))).collect();
    let begin = Instant::now();
    if let Caught::By(difference) = play(&copy, None, Duration::MAX)? {
        bail!("without a change: {difference}");
    }
    let patience = begin.elapsed() * PATIENCE;
    let caught = over_threads(&mutants, |(constant, percent)| {
        let change = format!("{}={percent}", constant.name());
        let caught = play(&copy, Some(&change), patience)?;
        println!("{:<48} {:<24} {percent:+} %  {caught}", constant.name(), constant.value);
        Ok(caught)
    })?;
    println!("\n{}", summary(&mutants, &caught, &skipped));
    Ok(())
}

/// How a change was noticed.
enum Caught {
    /// By the run that differs, with both results, or by a failure of the program.
    By(String),
    Not,
}

impl std::fmt::Display for Caught {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Caught::By(difference) => f.write_str(difference),
            Caught::Not => f.write_str("NOT CAUGHT"),
        }
    }
}

/// Every text file of the repository, by its path.
fn sources() -> Result<Sources> {
    let listed = ["ls-files", "-co", "--exclude-standard"];
    let output = Command::new("git").args(listed).current_dir(root()).output();
    let output = output.context("starting git")?;
    let mut sources = Sources::new();
    for path in String::from_utf8(output.stdout)?.lines() {
        // A removed file that is still in the index is not a source, nor is a file that is not text.
        if let Ok(text) = fs::read_to_string(root().join(path)) {
            sources.insert(path.to_owned(), text);
        }
    }
    Ok(sources)
}

/// Builds the copy.
fn build(copy: &Path, sources: &Sources) -> Result<()> {
    let (lib, part) = ("crates/core/src/lib.rs", "crates/core/src/units/part.rs");
    let of = |path: &str| sources.get(path).cloned().with_context(|| format!("no {path}"));
    let own = [
        (lib, of(lib)?.replacen("\npub mod ", "\npub mod mutant;\npub mod ", 1)),
        (part, of(part)? + include_str!("../../mutants/part.rs")),
        ("crates/core/src/mutant.rs", include_str!("../../mutants/mutant.rs").to_owned()),
        ("crates/runner/Cargo.toml", include_str!("../../mutants/Runner.toml").to_owned()),
        ("crates/runner/src/main.rs", include_str!("../../mutants/runner.rs").to_owned()),
    ];
    let mut files: BTreeMap<&str, &str> =
        sources.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    files.extend(own.iter().map(|(path, text)| (*path, text.as_str())));
    for (path, text) in &files {
        let path = copy.join(path);
        // An unchanged file keeps its time, so that cargo does not compile it again.
        if fs::read_to_string(&path).is_ok_and(|old| old == *text) {
            continue;
        }
        let dir = path.parent().context("a file has a folder")?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // A crate that was removed since the last build would still be a member.
    for entry in fs::read_dir(copy.join("crates"))? {
        let path = entry?.path();
        let manifest =
            format!("crates/{}/Cargo.toml", path.file_name().unwrap_or_default().display());
        if !files.contains_key(manifest.as_str()) {
            fs::remove_dir_all(&path)?;
        }
    }
    let status = crate::cargo()
        .args(["build", "--quiet", "--release", "-p", "runner", "--target-dir", "target"])
        .current_dir(copy)
        .env("RUSTFLAGS", "-Awarnings")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!(
            "the copy in {} does not compile: a use that the rewriting does not know",
            copy.display()
        );
    }
    Ok(())
}

/// Writes the runs of the golden that the default control plays.
fn write_golden(path: &Path) -> Result<()> {
    let golden = fs::read_to_string(root().join(GOLDEN)).context(GOLDEN)?;
    let plays = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], ["campaign", _, "fairweir", ..] | ["figures", "control", ..])
    };
    let lines: String = golden.lines().filter(plays).map(|line| format!("{line}\n")).collect();
    fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))
}

/// Plays the golden with a change.
fn play(copy: &Path, change: Option<&str>, patience: Duration) -> Result<Caught> {
    let begin = Instant::now();
    let log = copy.join(format!("{}.log", change.unwrap_or("unchanged").replace('/', ".")));
    let mut child = Command::new(copy.join(RUNNER))
        .args(["golden", "golden.txt", "--jobs", "1"])
        .envs(change.map(|change| ("FAIRWEIR_MUTANT", change)))
        .current_dir(copy)
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(Caught::By("it hangs".to_owned()));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let text = fs::read_to_string(&log)?;
    fs::remove_file(&log)?;
    Ok(if status.success() { Caught::Not } else { Caught::By(difference(&text)) })
}

/// The runner's message about a difference: the run and both results, or the place of a failure.
fn difference(log: &str) -> String {
    let said = log.split_once("Error: ").map(|(_, error)| error);
    let said = said.and_then(|error| error.split("\nIf the change").next());
    let failed = || log.split_once("panicked at ").map(|(_, at)| format!("panic: {at}"));
    said.map(str::to_owned).or_else(failed).unwrap_or_else(|| log.to_owned())
}

/// Calls a function for each item, on all cores; the results are in the order of the items.
fn over_threads<I: Sync, T: Send>(
    of: &[I],
    one: impl Fn(&I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = of.get(i) else { break };
            let one = one(item);
            found.lock().unwrap_or_else(|e| e.into_inner()).insert(i, one);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    found.into_inner().unwrap_or_else(|e| e.into_inner()).into_values().collect()
}

/// A summary of the caught changes, and all changes that were not caught.
fn summary(
    mutants: &[(&Constant, i32)],
    caught: &[Caught],
    skipped: &BTreeMap<String, &str>,
) -> String {
    let mut missed: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for ((constant, percent), caught) in mutants.iter().zip(caught) {
        if let Caught::Not = caught {
            missed.entry(constant.name()).or_default().push(*percent);
        }
    }
    let count = caught.iter().filter(|caught| matches!(caught, Caught::By(_))).count();
    let part = count as f64 / caught.len().max(1) as f64;
    let mut text = format!("{count} of {} changes are caught ({part:.2})\n", caught.len());
    let constants = caught.len() / PERCENTS.len();
    let _ = writeln!(text, "of {} of {constants} constants both are", constants - missed.len());
    let _ = writeln!(text, "\nnot caught:");
    for (name, percents) in &missed {
        let _ = writeln!(text, "  {name} {percents:+?} %");
    }
    let _ = writeln!(text, "\nnot changed:");
    for (name, why) in
        FACTS.iter().map(|(n, w)| (*n, *w)).chain(skipped.iter().map(|(n, w)| (n.as_str(), *w)))
    {
        let _ = writeln!(text, "  {name}: {why}");
    }
    text
}
