//! What a daemon of the lab says while it runs, read off its socket by a thread.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

/// The request for a daemon's status.
pub(crate) const STATUS: &str = "{\"request\":\"status\"}";

/// A thread that reads until it is told to stop.
pub(crate) struct Watch<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<T>>>,
}

impl<T: Send + 'static> Watch<T> {
    /// Starts the thread; `read` returns when what it is given is true.
    pub(crate) fn start(
        read: impl FnOnce(&AtomicBool) -> io::Result<Vec<T>> + Send + 'static,
    ) -> Watch<T> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_too = Arc::clone(&stop);
        Watch { stop, thread: thread::spawn(move || read(&stop_too)) }
    }

    /// Ends it; what it read.
    ///
    /// # Errors
    /// If the daemon did not answer.
    pub(crate) fn finish(self) -> io::Result<Vec<T>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Asks a daemon something.
///
/// # Errors
/// If it does not answer within a second, or not in JSON.
pub(crate) fn ask(socket: &Path, request: &str) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut reply: Value = serde_json::from_str(&line)?;
    Ok(reply["value"].take())
}
