//! `fairweir off`: stops daemons, by force if they do not answer, and removes what is left.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fairweir_linux::{Error, Lock, leftovers, sweep};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};

use crate::cli::OffArgs;
use crate::client::{Client, devices, socket_path};
use crate::isp;
use crate::text;
use crate::wire::{Outcome, Request};

/// How long a daemon may take to end after it has answered, or after it was killed.
const END_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &OffArgs) -> anyhow::Result<()> {
    let run_dir = &args.run_dir.run_dir;
    let devs = match &args.dev {
        Some(dev) => vec![dev.clone()],
        None => {
            let mut devs = devices(run_dir)?;
            devs.extend(leftovers()?);
            devs.sort();
            devs.dedup();
            devs
        }
    };
    let mut done = Vec::new();
    if args.dev.is_none() {
        // Its programs in the kernel go with it.
        done.extend(stop(run_dir, isp::NAME)?);
    }
    for dev in &devs {
        done.extend(stop(run_dir, dev)?);
        let _lock = wait_for_end(dev)?;
        done.extend(sweep(dev)?.into_iter().map(|removed| format!("{dev}: removed {removed}")));
    }
    let out = &mut text::stdout();
    for line in &done {
        writeln!(out, "{line}")?;
    }
    if done.is_empty() {
        match &args.dev {
            Some(dev) => writeln!(out, "nothing of fairweir is on {dev}")?,
            None => writeln!(out, "nothing of fairweir is here")?,
        }
    }
    Ok(())
}

/// Stops the daemon of `dev`, if there is one, and says how.
fn stop(run_dir: &Path, dev: &str) -> anyhow::Result<Vec<String>> {
    let mut client = match Client::connect(run_dir, dev) {
        Ok(client) => client,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // A killed daemon cannot remove its socket.
            let path = socket_path(run_dir, dev);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            return Ok(vec![format!("{dev}: removed the socket of a daemon that is gone")]);
        }
        Err(e) => return Err(e).with_context(|| format!("cannot reach the daemon of {dev}")),
    };
    let pid = client.daemon_pid().context("cannot tell the daemon's process")?;
    match client.request::<Outcome>(Request::Off) {
        Ok(outcome) => Ok(vec![format!("{dev}: the daemon (pid {pid}): {}", outcome.message)]),
        Err(why) => {
            // Zero is a process of another pid namespace: nobody who could be killed from here.
            if pid.as_raw() <= 0 {
                bail!("the daemon of {dev} does not answer and runs in another pid namespace");
            }
            match kill(pid, Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(e) => bail!("cannot kill the daemon of {dev} (pid {pid}): {e}"),
            }
            let _ = fs::remove_file(socket_path(run_dir, dev));
            Ok(vec![format!("{dev}: killed the daemon (pid {pid}), which did not answer: {why}")])
        }
    }
}

/// Whoever holds the lock is alone with the device: no daemon ends or begins meanwhile.
fn wait_for_end(dev: &str) -> anyhow::Result<Lock> {
    let deadline = Instant::now() + END_PATIENCE;
    loop {
        match Lock::acquire(dev) {
            Err(Error::AlreadyRunning { .. }) if Instant::now() < deadline => {
                sleep(Duration::from_millis(20));
            }
            locked => return locked.with_context(|| format!("{dev} is not off")),
        }
    }
}
