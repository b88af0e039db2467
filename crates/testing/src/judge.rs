//! Claims about real packets on a machine that others use too.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fairweir_linux::realtime;

use crate::privileged;

/// Writes a line about the running test to stderr itself: the harness hides what `eprintln!` writes
/// in a test that passes.
pub fn note(line: &str) {
    let current = thread::current();
    let _ = writeln!(io::stderr(), "{}: {line}", current.name().unwrap_or("a test"));
}

/// Judges a claim: if one run fails, the next two must hold. A run that fails while the machine
/// stood still shows nothing and is played again, a few times. Both are noted.
///
/// # Panics
/// With the claim's own words, if two runs of three fail.
pub fn two_of_three(claim: impl Fn()) {
    let (mut void, mut failed, mut held) = (0, false, 0);
    loop {
        let watch = Watch::start();
        let result = catch_unwind(AssertUnwindSafe(&claim));
        let longest = watch.end();
        let Err(panic) = result else {
            held += 1;
            if !failed || held == 2 {
                return;
            }
            continue;
        };
        let why = panic.downcast_ref::<String>().map(String::as_str);
        let why = why.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        if longest > STANDSTILL_MAX && void < VOID_MAX {
            void += 1;
            note(&format!("PLAYED AGAIN, since the machine stood still for {longest:?}: {why}"));
        } else if failed {
            resume_unwind(panic);
        } else {
            failed = true;
            note(&format!("FAILED ONCE, played twice more: {why}"));
        }
    }
}

/// Judges a claim about real traffic, if the tests may touch the kernel; see [`two_of_three`].
///
/// # Panics
/// As that does.
pub fn judged(claim: impl Fn()) {
    if privileged() {
        two_of_three(claim);
    }
}

/// From this on a pause of the machine is more than what a busy one does.
const STANDSTILL_MAX: Duration = Duration::from_millis(100);
/// A machine that always stands still is to be seen.
const VOID_MAX: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Measures how long the machine stands still, by a thread that goes before all ordinary ones and
/// looks at the clock.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Watch {
    fn start() -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_too = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            // Without the right to that, a busy machine counts as one that stands still.
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
