//! Shows the progress of long operations on stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fairweir_core::units::{Span, Time};

/// The most runs that are shown by name; with more, only a count is shown.
const NAMED_MAX: usize = 6;
/// The number of log lines when runs are counted.
const LOG_LINES: u64 = 10;

/// The progress of runs, on one line of a terminal or on several lines of a log.
pub(crate) struct Progress {
    /// The label of each run, and its duration on the scenario's clock.
    runs: Vec<(String, Span)>,
    /// Nothing is printed before this time, so short operations print nothing.
    since: Instant,
    state: Mutex<State>,
}

struct State {
    /// The progress of each run in percent, once it has begun.
    percents: Vec<Option<u64>>,
    /// The last printed line.
    said: String,
}

impl Progress {
    /// Shows runs with these labels and durations; prints nothing before `quiet` has passed.
    pub(crate) fn new(runs: Vec<(String, Span)>, quiet: Duration) -> Progress {
        let percents = vec![None; runs.len()];
        let state = Mutex::new(State { percents, said: String::new() });
        Progress { runs, since: Instant::now() + quiet, state }
    }

    /// Reports that a run has reached `at` on the scenario's clock.
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

    /// Ends the display.
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

    /// The progress of all runs together, rounded to `step` percent.
    fn counted(&self, state: &State, step: u64) -> String {
        let sum: u64 = state.percents.iter().flatten().sum();
        let percent = sum / self.runs.len().max(1) as u64;
        format!("{} runs: {:>3} %", self.runs.len(), percent / step * step)
    }
}

/// Progress is reported only after this time: most work is done sooner.
const QUIET: Duration = Duration::from_secs(2);
/// How often a line is written to a log.
const LOG_PERIOD: Duration = Duration::from_secs(5);

/// How many items of a total are done, on one line of a terminal or on several lines of a log.
pub(crate) struct Count {
    /// The verb and the noun of the message, such as `loaded` and `subscribers`.
    words: [&'static str; 2],
    next_at: Mutex<(Instant, bool)>,
}

impl Count {
    /// Starts counting now.
    pub(crate) fn new(verb: &'static str, noun: &'static str) -> Count {
        Count { words: [verb, noun], next_at: Mutex::new((Instant::now() + QUIET, false)) }
    }

    /// Reports that `done` of `of` items are done.
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

    /// Ends the display.
    pub(crate) fn end(&self) {
        let state = self.next_at.lock().unwrap_or_else(|e| e.into_inner());
        if state.1 {
            let _ = writeln!(io::stderr());
        }
    }
}
