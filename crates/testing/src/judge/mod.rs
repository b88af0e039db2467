//! Claims about real packets on a machine that others use too.
//!
//! A run of a claim is valid or void. Measurements beside the run decide that before its outcome is
//! considered: the machine stood still or was taken away, or the claim itself found its link late
//! ([`void`]). Only valid runs are judged; void runs are repeated. A claim without a valid run is
//! *not judged*, which fails under `FAIRWEIR_STRICT=1`. `make test` sets `FAIRWEIR_PASS=1`: such a
//! claim then gives up early, and `cargo xtask judge again` plays it in later passes, when the
//! other claims are done and the machine has no other work.
//!
//! # Errors of judgement
//! Let a claim hold in the part *p* of its valid runs. [`once`] passes it with probability *p*. [`two_of_three`] passes
//! it if the first run holds, or the first fails and the next two hold: P = p + (1 − p) p². A claim that always holds
//! always passes; one that holds in half of its runs passes in .63, one that holds in a tenth in .11. It is therefore
//! used only where real packets or statistics make a single run noisy, and every repeat is recorded: `make test` fails
//! if more than three claims of a suite were repeated without a disturbance beside them.
//!
//! # Record
//! Each judgement appends a line of JSON to `target/judge.jsonl`, or to the file that
//! `FAIRWEIR_JUDGE` names; `cargo xtask judge` prints them as a table. `FAIRWEIR_VOID=NAME` makes
//! all runs of claims whose names contain NAME void, to show how they are handled.

use std::any::{Any, type_name};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fairweir_linux::realtime;
use serde_json::json;

use crate::{is_strict, privileged, share};

/// A longer standstill of the machine makes a run void. A busy machine stays below this.
const STANDSTILL_MAX: Duration = Duration::from_millis(100);
/// Part of the machine's time that the hypervisor may take during a valid run.
const STEAL_MAX: f64 = 0.05;
/// Less stolen time than this says little: the kernel counts ticks of 10 ms, and a short run has few.
const STEAL_LEAST: Duration = Duration::from_millis(200);
/// The unit of /proc/stat, equal on every machine that Linux supports today.
const TICK: Duration = Duration::from_millis(10);
/// Maximum number of runs of a claim, void ones included.
const RUNS_MAX: usize = 8;
/// Maximum number of runs in one of several passes: the disturbance may be gone in the next pass.
const RUNS_OF_PASS: usize = 2;
/// Void runs are not repeated when the claim has taken longer than this.
const PATIENCE: Duration = Duration::from_secs(300);
/// Period at which the watch reads the clock.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Writes a line about the running test directly to stderr: the harness hides the output of
/// `eprintln!` in a test that passes.
pub fn note(line: &str) {
    let current = thread::current();
    let _ = writeln!(io::stderr(), "{}: {line}", current.name().unwrap_or("a test"));
}

/// Judges a claim by its first valid run.
///
/// # Panics
/// With the claim's own message if that run fails; under `FAIRWEIR_STRICT=1` also if there is no valid run.
pub fn once<F: Fn()>(claim: F) {
    judge(&name_of::<F>(), Rule::Once, claim);
}

/// Judges a claim by its valid runs: if the first fails, the next two must hold. For claims that are noisy
/// themselves: P = p + (1 − p) p² of them pass, see the [module](self).
///
/// # Panics
/// With the claim's own message if two runs of three fail; under `FAIRWEIR_STRICT=1` also if there is no valid run.
pub fn two_of_three<F: Fn()>(claim: F) {
    judge(&name_of::<F>(), Rule::TwoOfThree, claim);
}

/// Judges a claim by the best of four valid runs: P = 1 − (1 − p)⁴ of them pass. Only for claims about a minimum,
/// such as the shortest queue: a disturbance makes it larger and never smaller, so a wrong claim holds in no run.
///
/// # Panics
/// With the claim's own message if four runs fail; under `FAIRWEIR_STRICT=1` also if there is no valid run.
pub fn one_of_four<F: Fn()>(claim: F) {
    judge(&name_of::<F>(), Rule::OneOfFour, claim);
}

/// [`two_of_three`] for a claim about real traffic, if the tests may touch the kernel.
///
/// # Panics
/// As [`two_of_three`].
pub fn judged<F: Fn()>(claim: F) {
    if privileged() {
        two_of_three(claim);
    }
}

/// Ends the run of a claim that has found itself void: the run does not count, whatever its outcome.
///
/// # Panics
/// Always; the judge catches it.
pub fn void(why: &str) -> ! {
    note(&format!("VOID: {why}"));
    resume_unwind(Box::new(Void(why.to_owned())));
}

/// Plays a part of a longer measurement. `None` if the part called [`void`].
///
/// # Panics
/// If the part panics for another reason.
pub fn valid<R>(part: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<Void>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Records how late the emulated link of the running claim was, in ms (p99).
pub fn record_lateness(ms: f64) {
    LATENESS_MS.set(Some(LATENESS_MS.get().map_or(ms, |before| before.max(ms))));
}

thread_local! {
    static LATENESS_MS: Cell<Option<f64>> = const { Cell::new(None) };
}

struct Void(String);

#[derive(Clone, Copy)]
enum Rule {
    Once,
    TwoOfThree,
    OneOfFour,
}

impl Rule {
    /// The verdict on the claim after the runs so far.
    fn verdict(self, runs: &[Run]) -> Verdict {
        let held = runs.iter().filter(|run| matches!(run.result, Outcome::Held)).count();
        let failed = runs.iter().filter(|run| matches!(run.result, Outcome::Failed(_))).count();
        match (self, held, failed) {
            (_, 0, 0) => Verdict::NotJudged,
            (_, _, 0) | (Rule::TwoOfThree, 2.., 1) | (Rule::OneOfFour, 1.., _) => Verdict::Held,
            (Rule::TwoOfThree, _, 1) | (Rule::OneOfFour, _, ..4) => Verdict::NotJudged,
            _ => Verdict::Failed,
        }
    }
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Held,
    Failed,
    NotJudged,
}

enum Outcome {
    Void,
    Held,
    Failed(Box<dyn Any + Send>),
}

/// One run of a claim.
struct Run {
    result: Outcome,
    /// Why the run is void, or what failed.
    why: String,
    seconds: f64,
    standstill: Duration,
    /// Stolen part of the machine's time, 0 to 1.
    steal: f64,
    lateness_ms: Option<f64>,
}

fn judge(claim: &str, rule: Rule, body: impl Fn()) {
    let _share = share();
    let begun = Instant::now();
    let is_forced = std::env::var("FAIRWEIR_VOID").is_ok_and(|name| claim.contains(&name));
    let pass = std::env::var("FAIRWEIR_PASS").ok().and_then(|pass| pass.parse().ok());
    // `cargo xtask judge` fails for claims that remain.
    let is_for_later = pass.is_some();
    let runs_max = if is_for_later { RUNS_OF_PASS } else { RUNS_MAX };
    let mut runs = Vec::new();
    let verdict = loop {
        let run = play(&body, is_forced);
        match &run.result {
            Outcome::Void => note(&format!("VOID: {}", run.why)),
            Outcome::Failed(_) => note(&format!("FAILED: {}", run.why)),
            Outcome::Held => {}
        }
        runs.push(run);
        let verdict = rule.verdict(&runs);
        let may_repeat = runs.len() < runs_max && begun.elapsed() < PATIENCE;
        let is_void = matches!(runs.last(), Some(Run { result: Outcome::Void, .. }));
        if verdict != Verdict::NotJudged || (is_void && !may_repeat) {
            break verdict;
        }
    };
    record(claim, pass.unwrap_or(1), verdict, begun.elapsed(), &runs);
    match verdict {
        Verdict::Held => {}
        Verdict::Failed => {
            let panics = runs.into_iter().filter_map(|run| match run.result {
                Outcome::Failed(panic) => Some(panic),
                _ => None,
            });
            resume_unwind(panics.last().unwrap());
        }
        Verdict::NotJudged => {
            let said = format!("NOT JUDGED: {claim}: void after {} runs", runs.len());
            note(&said);
            assert!(!is_strict() || is_for_later, "{said}");
        }
    }
}

/// Plays a claim once; the measurements beside it decide whether the run is valid.
fn play(body: impl Fn(), is_forced: bool) -> Run {
    LATENESS_MS.set(None);
    let (begun, cpu, watch) = (Instant::now(), Cpu::now(), Watch::start());
    let result = catch_unwind(AssertUnwindSafe(body));
    let standstill = watch.end();
    let (steal, stolen) = Cpu::now().steal_since(&cpu);
    let void = if is_forced {
        Some("forced by FAIRWEIR_VOID".to_owned())
    } else if standstill > STANDSTILL_MAX {
        Some(format!("the machine stood still for {standstill:.0?}"))
    } else if steal > STEAL_MAX && stolen > STEAL_LEAST {
        Some(format!("the hypervisor took {:.0} % of the machine", steal * 100.0))
    } else {
        let panic = result.as_ref().err();
        panic.and_then(|panic| panic.downcast_ref::<Void>()).map(|Void(why)| why.clone())
    };
    let (result, why) = match (void, result) {
        (Some(why), _) => (Outcome::Void, why),
        (None, Ok(())) => (Outcome::Held, String::new()),
        (None, Err(panic)) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
            let words = words.to_owned();
            (Outcome::Failed(panic), words)
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    Run { result, why, seconds, standstill, steal, lateness_ms: LATENESS_MS.get() }
}

fn record(claim: &str, pass: u32, verdict: Verdict, took: Duration, runs: &[Run]) {
    let runs = runs.iter().map(|run| {
        json!({
            "outcome": match run.result {
                Outcome::Void => "void",
                Outcome::Held => "held",
                Outcome::Failed(_) => "failed",
            },
            "why": run.why,
            "seconds": rounded(run.seconds),
            "standstill_ms": rounded(run.standstill.as_secs_f64() * 1e3),
            "steal_percent": rounded(run.steal * 100.0),
            "lateness_ms": run.lateness_ms.map(rounded),
        })
    });
    let line = json!({
        "claim": claim,
        "pass": pass,
        "verdict": match verdict {
            Verdict::Held => "held",
            Verdict::Failed => "failed",
            Verdict::NotJudged => "not judged",
        },
        "seconds": rounded(took.as_secs_f64()),
        "runs": runs.collect::<Vec<_>>(),
    });
    let file = File::options().create(true).append(true).open(file());
    // One write, so that the lines of several tests do not mix.
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|e| panic!("{}: {e}", self::file().display()));
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// The default is `target/judge.jsonl`; tests are in `target/debug/deps`.
fn file() -> PathBuf {
    std::env::var_os("FAIRWEIR_JUDGE").map_or_else(
        || std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("judge.jsonl"),
        PathBuf::from,
    )
}

/// The package and the running test; the function's name where the harness does not name its threads.
fn name_of<F>() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let current = thread::current();
    let test = current.name().filter(|name| *name != "main");
    format!("{package} {}", test.unwrap_or(type_name::<F>())).trim_start().to_owned()
}

/// Time of all CPUs since the start of the machine, in ticks.
struct Cpu {
    all: u64,
    stolen: u64,
}

impl Cpu {
    fn now() -> Cpu {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().next().unwrap();
        // user, nice, system, idle, iowait, irq, softirq, steal. Source: proc_stat(5).
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).map(|t| t.parse().unwrap()).collect();
        Cpu { all: ticks.iter().sum(), stolen: ticks[7] }
    }

    /// The time that the hypervisor took: as a part of the machine's time, 0 to 1, and as the sum over all CPUs.
    fn steal_since(&self, before: &Cpu) -> (f64, Duration) {
        let stolen = self.stolen.saturating_sub(before.stolen);
        let all = self.all.saturating_sub(before.all).max(1);
        (stolen as f64 / all as f64, TICK * stolen as u32)
    }
}

/// Measures how long the machine stands still: a thread with priority over all ordinary threads
/// reads the clock periodically.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Watch {
    fn start() -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_too = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            // Without the right to real-time priority, a busy machine counts as one that stands still.
            let _ = realtime::enter();
            let (mut longest, mut before) = (Duration::ZERO, Instant::now());
            while !stop_too.load(Ordering::Relaxed) {
                thread::sleep(LOOK_EVERY);
                longest = longest.max(before.elapsed().saturating_sub(LOOK_EVERY));
                before = Instant::now();
            }
            longest
        });
        Watch { stop, thread }
    }

    /// The longest standstill since the start.
    fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
