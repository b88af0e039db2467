//! The commands' end of the daemon's socket.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::isp;
use fairweir_config::nearest;

/// A daemon that works answers within a tick; one that does not answer in this time is stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to a daemon.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon of `dev`.
    ///
    /// # Errors
    /// An [`io::Error`] if nobody listens there.
    pub(crate) fn connect(run_dir: &Path, dev: &str) -> io::Result<Client> {
        Client::connect_patiently(run_dir, dev, PATIENCE)
    }

    /// The same to a daemon that may take `patience` for each line of its answer.
    ///
    /// # Errors
    /// An [`io::Error`] if nobody listens there.
    pub(crate) fn connect_patiently(
        run_dir: &Path,
        dev: &str,
        patience: Duration,
    ) -> io::Result<Client> {
        let stream = UnixStream::connect(socket_path(run_dir, dev))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Connects to the daemon of `dev`, or to the only one that runs.
    pub(crate) fn find(run_dir: &Path, dev: Option<&str>) -> anyhow::Result<Client> {
        let running = devices(run_dir)?;
        let dev = match dev {
            Some(dev) => dev.to_owned(),
            None => match running.as_slice() {
                [] => bail!("no daemon of fairweir runs here (no socket in {})", run_dir.display()),
                [dev] => dev.clone(),
                many => bail!("daemons run for {}; choose one with --dev", many.join(", ")),
            },
        };
        Client::connect(run_dir, &dev).map_err(|e| {
            let near = nearest(&dev, running.iter().map(String::as_str));
            let hint = near.filter(|&n| n != dev).map(|n| format!("; one runs for `{n}`"));
            anyhow!("no daemon answers for `{dev}`: {e}{}", hint.unwrap_or_default())
        })
    }

    /// Asks, and understands the answer.
    pub(crate) fn request<T: DeserializeOwned>(
        &mut self,
        request: impl Serialize,
    ) -> anyhow::Result<T> {
        let answer = self.request_line(request)?;
        serde_json::from_str(&answer)
            .with_context(|| "the daemon's answer is not understood; is it of another version?")
    }

    /// Asks, and waits for the answer: one line of JSON.
    pub(crate) fn request_line(&mut self, request: impl Serialize) -> anyhow::Result<String> {
        self.send(request)?;
        self.receive()
    }

    /// Asks.
    pub(crate) fn send(&mut self, request: impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&request)?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).map_err(no_answer)
    }

    /// Waits for one line of an answer.
    pub(crate) fn receive(&mut self) -> anyhow::Result<String> {
        let mut answer = String::new();
        let read = self.stream.read_line(&mut answer).map_err(no_answer)?;
        if read == 0 {
            bail!("the daemon closed the connection");
        }
        Ok(answer)
    }

    /// The process that listens at the other end.
    pub(crate) fn daemon_pid(&self) -> io::Result<Pid> {
        let credentials = getsockopt(self.stream.get_ref(), PeerCredentials)?;
        Ok(Pid::from_raw(credentials.pid()))
    }
}

/// An end of the connection that is not the reader of our output is no broken pipe of ours, so it
/// is told in words.
fn no_answer(e: io::Error) -> anyhow::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            anyhow!("the daemon does not answer; `fairweir off` ends it")
        }
        _ => anyhow!("the connection to the daemon broke: {e}"),
    }
}

/// Where the daemon of `dev` listens.
pub(crate) fn socket_path(run_dir: &Path, dev: &str) -> PathBuf {
    run_dir.join(format!("{dev}.sock"))
}

/// The devices whose daemons have a socket in `run_dir`, sorted.
pub(crate) fn devices(run_dir: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(run_dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => bail!("cannot read {}: {e}", run_dir.display()),
    };
    let mut devices = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        match name.to_str().and_then(|n| n.strip_suffix(".sock")) {
            // That daemon is asked by `fairweir isp`.
            None | Some(isp::NAME) => {}
            Some(dev) => devices.push(dev.to_owned()),
        }
    }
    devices.sort();
    Ok(devices)
}
