//! What a daemon of the lab reports while it runs; a thread reads it from its socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fairweir_core::units::{Span, Time};
use serde_json::Value;

use crate::clock::Clock;

/// The request for a daemon's status.
pub(crate) const STATUS: &str = "{\"request\":\"status\"}";

/// How long a daemon may leave all questions unanswered. A machine in use sometimes stalls for a second; the
/// daemon's next answer includes what it did in that time.
const SILENCE_MAX: Span = Span::secs(5);

/// A thread that repeats a request until it is told to stop.
pub(crate) struct Watch<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<(Time, T)>>>,
}

impl<T: Send + 'static> Watch<T> {
    /// Sends the request from the clock's zero on, once per `period`; `read` extracts from an answer what is kept.
    pub(crate) fn start(
        clock: Clock,
        period: Span,
        socket: &Path,
        request: &str,
        read: impl Fn(Value) -> T + Send + 'static,
    ) -> Watch<T> {
        let (socket, request) = (socket.to_owned(), request.to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let stop_too = Arc::clone(&stop);
        let asked = move || ask(&socket, &request).map(&read);
        let thread =
            thread::spawn(move || read_until(&stop_too, clock, [period, SILENCE_MAX], asked));
        Watch { stop, thread }
    }

    /// Ends the thread; returns what it read, and when.
    ///
    /// # Errors
    /// If the daemon was gone, or gave no answer for [`SILENCE_MAX`].
    pub(crate) fn finish(self) -> io::Result<Vec<(Time, T)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn read_until<T>(
    stop: &AtomicBool,
    clock: Clock,
    [period, silence_max]: [Span; 2],
    ask: impl Fn() -> io::Result<T>,
) -> io::Result<Vec<(Time, T)>> {
    let mut all = Vec::new();
    let (mut next, mut heard) = (Time::ZERO, Time::ZERO);
    clock.sleep_until(next);
    while !stop.load(Ordering::Relaxed) {
        let before = clock.now();
        match ask() {
            Ok(answer) => {
                heard = clock.now();
                // The answer was produced at some time between question and answer.
                all.push((before + heard.since(before) / 2, answer));
            }
            Err(e) if is_late(&e) && clock.now().since(heard) < silence_max => {}
            Err(e) => return Err(e),
        }
        next = (next + period).max(before);
        clock.sleep_until(next);
    }
    Ok(all)
}

/// Whether the error means that there was no answer in time.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends a request to a daemon and returns its answer.
///
/// # Errors
/// If there is no answer within a second, or it is not JSON.
pub(crate) fn ask(socket: &Path, request: &str) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut reply: Value = serde_json::from_str(&line)?;
    Ok(reply["value"].take())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const PERIOD: Span = Span::millis(100);

    /// Watches a daemon that answers, leaves a question unanswered, and answers again if it `recovers`.
    fn watched(recovers: bool, silence_max: Span) -> io::Result<usize> {
        let dir = tempfile::TempDir::new()?;
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stop_too = Arc::clone(&stop);
        let daemon = thread::spawn(move || -> io::Result<()> {
            let mut kept = Vec::new();
            for (nth, stream) in listener.incoming().enumerate().take(6) {
                let mut stream = stream?;
                if nth == 2 {
                    kept.push(stream);
                    if recovers {
                        continue;
                    }
                    break;
                }
                BufReader::new(&stream).read_line(&mut String::new())?;
                stop_too.store(nth == 5, Ordering::Relaxed);
                stream.write_all(b"{\"value\":1}\n")?;
            }
            thread::sleep(Duration::from_millis(if recovers { 0 } else { 1_200 }));
            Ok(())
        });
        let clock = Clock::starting_in(Span::ZERO);
        let read = read_until(&stop, clock, [PERIOD, silence_max], || ask(&socket, STATUS));
        daemon.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        read.map(|all| all.len())
    }

    #[test]
    fn one_late_answer_does_not_end_a_run() {
        assert_eq!(watched(true, SILENCE_MAX).map_err(|e| e.to_string()), Ok(5));
    }

    #[test]
    fn a_daemon_that_is_silent_for_too_long_does() {
        assert!(watched(false, Span::millis(500)).is_err_and(|e| is_late(&e)));
    }

    #[test]
    fn a_daemon_that_is_gone_does_at_once() {
        let gone = || ask(Path::new("/nonexistent/socket"), STATUS);
        let begun = std::time::Instant::now();
        let clock = Clock::starting_in(Span::ZERO);
        assert!(read_until(&AtomicBool::new(false), clock, [PERIOD, SILENCE_MAX], gone).is_err());
        assert!(begun.elapsed() < Duration::from_secs(3));
    }
}
