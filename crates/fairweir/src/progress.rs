//! How far things are that take long, on stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fairweir_core::units::{Span, Time};

/// The most runs that are named; more are counted.
const NAMED_MAX: usize = 6;
/// Lines of a log for runs that are counted.
const LOG_LINES: u64 = 10;

/// One line of a terminal, or some lines of a log.
pub(crate) struct Progress {
    /// The label of each run, and its duration on the scenario's clock.
    runs: Vec<(String, Span)>,
    /// Nothing is said of what ends before.
    since: Instant,
    state: Mutex<State>,
}

struct State {
    /// Of each run that has begun.
    percents: Vec<Option<u64>>,
    /// The last line.
    said: String,
}

impl Progress {
    /// Of runs with these labels and durations; prints nothing before `quiet` has passed.
    pub(crate) fn new(runs: Vec<(String, Span)>, quiet: Duration) -> Progress {
        let percents = vec![None; runs.len()];
        let state = Mutex::new(State { percents, said: String::new() });
        Progress { runs, since: Instant::now() + quiet, state }
    }

    /// A run is there on the scenario's clock.
    pub(crate) fn show(&self, run: usize, at: Time) {
        let percent = (100.0 * at.as_secs_f64() / self.runs[run].1.as_secs_f64()) as u64;
        let percent = percent.min(100);
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let before = state.percents[run].replace(percent);
        if Instant::now() < self.since {
            return;
        }
        let is_named = self.runs.len() <= NAMED_MAX;
        let line = match (io::stderr().is_terminal(), is_named) {
            (true, true) => format!("\r{}", self.named(&state)),
            (true, false) => format!("\r{}", self.counted(&state, 1)),
            // A log gets a line when a run begins and when it is done.
            (false, true) if before.is_some() && (percent < 100 || before == Some(100)) => return,
            (false, true) => format!("{}: {percent} %\n", self.runs[run].0),
            (false, false) => format!("{}\n", self.counted(&state, 100 / LOG_LINES)),
        };
        if line != state.said {
            let _ = write!(io::stderr(), "{line}");
            state.said = line;
        }
    }

    /// Nothing follows.
    pub(crate) fn end(&self) {
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.said.starts_with('\r') {
            let _ = writeln!(io::stderr());
        }
    }

    fn named(&self, state: &State) -> String {
        let begun = self.runs.iter().zip(&state.percents);
        let texts = begun.filter_map(|((label, _), p)| p.map(|p| format!("{label} {p:>3} %")));
        texts.collect::<Vec<_>>().join("  ")
    }

    /// All runs together, in steps of some percent.
    fn counted(&self, state: &State, step: u64) -> String {
        let sum: u64 = state.percents.iter().flatten().sum();
        let percent = sum / self.runs.len().max(1) as u64;
        format!("{} runs: {:>3} %", self.runs.len(), percent / step * step)
    }
}

/// Progress is reported only after this time: most work is done sooner.
const QUIET: Duration = Duration::from_secs(2);
/// How often a log gets a line.
const LOG_PERIOD: Duration = Duration::from_secs(5);

/// How many of many are done: one line of a terminal, or some lines of a log.
pub(crate) struct Count {
    /// What is done with what, such as `loaded` and `subscribers`.
    words: [&'static str; 2],
    next_at: Mutex<(Instant, bool)>,
}

impl Count {
    /// Of something that begins now.
    pub(crate) fn new(verb: &'static str, noun: &'static str) -> Count {
        Count { words: [verb, noun], next_at: Mutex::new((Instant::now() + QUIET, false)) }
    }

    /// `done` of `of` are done.
    pub(crate) fn show(&self, done: usize, of: usize) {
        let mut state = self.next_at.lock().unwrap_or_else(|e| e.into_inner());
        if Instant::now() < state.0 {
            return;
        }
        let [verb, noun] = self.words;
        let text = format!("{verb} {done} of {of} {noun}");
        let (period, line) = match io::stderr().is_terminal() {
            true => (Duration::from_millis(100), format!("\r{text}")),
            false => (LOG_PERIOD, format!("{text}\n")),
        };
        let _ = write!(io::stderr(), "{line}");
        *state = (Instant::now() + period, line.starts_with('\r'));
    }

    /// Nothing follows.
    pub(crate) fn end(&self) {
        let state = self.next_at.lock().unwrap_or_else(|e| e.into_inner());
        if state.1 {
            let _ = writeln!(io::stderr());
        }
    }
}
