//! Processes of the lab: they end when their standard input is closed, or else are killed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;

use crate::Error;

/// How long a process may take to end by itself before it is killed.
const END_WITHIN: Duration = Duration::from_secs(3);
const END_CHECK: Duration = Duration::from_millis(10);
/// Maximum bytes of a process's standard error that an error message shows.
const WORDS_MAX: usize = 1_000;

/// A running process; it is ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// The file with its standard error.
    log: PathBuf,
}

impl Process {
    /// Starts a process in a namespace, with its standard error in the file `log`.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        netns: &Netns,
        log: PathBuf,
    ) -> Result<Process, Error> {
        let file = File::create(&log).map_err(|e| Error::io("make a log file", e))?;
        // In its own process group, so that Ctrl-C reaches only the lab, which ends all in order.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).process_group(0);
        let child = netns.run(move || command.spawn());
        let mut child = child.map_err(|e| Error::io(format!("start {name}"), e))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("invariant: its standard output is a pipe");
        Ok(Process { name: name.to_owned(), child, stdin, stdout: BufReader::new(stdout), log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Error> {
        let stdin = self.stdin.as_mut().expect("invariant: it is open until the process ends");
        let told = stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdin.flush());
        told.map_err(|_| self.ended())
    }

    /// Reads a line from its standard output; blocks.
    pub(crate) fn hear(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(self.ended()),
        }
    }

    /// Returns an error if it has ended without success.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(Some(status)) if !status.success() => Err(self.ended()),
            _ => Ok(()),
        }
    }

    /// Whether it has ended, in whatever way.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The last output on its standard error.
    pub(crate) fn last_words(&self) -> String {
        let words = fs::read_to_string(&self.log).unwrap_or_default();
        let words = words.trim();
        let start = words.len().saturating_sub(WORDS_MAX);
        let start = (start..=words.len()).find(|&i| words.is_char_boundary(i)).unwrap_or(0);
        words[start..].to_owned()
    }

    /// The error to report when it has ended.
    pub(crate) fn ended(&mut self) -> Error {
        let status = self.end().map_or_else(|e| e.to_string(), |s| s.to_string());
        let words = self.last_words();
        let why = if words.is_empty() { status } else { format!("{status}: {words}") };
        Error::Ended { name: self.name.clone(), why }
    }

    /// Closes its standard input, waits for it to end, and kills it if that takes too long.
    fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        self.stdin = None;
        let begin = Instant::now();
        while begin.elapsed() < END_WITHIN {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(END_CHECK);
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that cannot be killed is left running.
        let _ = self.end();
    }
}
