//! `fairweir off`: stops daemons and removes what they leave behind, or reports what still runs.
//!
//! It waits for a daemon that is slow or still starting. A daemon that does not answer for
//! [`PATIENCE`] is killed only with `--force`. Its heartbeat is too old by then, so its traffic
//! already passes unshaped.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use fairweir_daemon::{Access, Client, Error, Lock, Request, control_socket, instances};
use fairweir_linux::divert::Divert;
use fairweir_linux::{forget_connections, kept, leftovers, open_kept, sweep};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon_args::{OffArgs, OffDevArgs};
use crate::device::check_named;
use crate::exit::{Exit, reworded};
use crate::host::client::{device_of, devices_of, instance_of};
use crate::instance::{ISP, PROXY};
use crate::words::chained;
use fairweir_config::host::Role;
use fairweir_config::text;

/// How long a daemon may take to answer, and then to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same limit with `--force`.
const PATIENCE_FORCED: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &OffDevArgs) -> anyhow::Result<()> {
    let run_dir = &args.run_dir.run_dir;
    let mut done = Vec::new();
    let mut failures = Failures::default();
    let names = names(run_dir, args.dev.as_deref())?;
    for name in &names {
        match stop(run_dir, name, args.force) {
            Ok(lines) => done.extend(lines.into_iter().map(|line| format!("{name}: {line}"))),
            Err(e) => failures.add(name, &e),
        }
    }
    if args.dev.is_none()
        && let Err(e) = forget_connections(None)
    {
        failures.add("connections", &e.into());
    }
    let mut devs: Vec<_> = names.iter().filter_map(|name| device_of(name)).collect();
    let leftovers = if args.dev.is_none() { leftovers()? } else { Vec::new() };
    devs.extend(leftovers.iter().map(String::as_str));
    devs.sort_unstable();
    devs.dedup();
    for dev in devs {
        match clean(run_dir, dev) {
            Ok(lines) => done.extend(lines.into_iter().map(|line| format!("{dev}: {line}"))),
            Err(e) => failures.add(dev, &e),
        }
    }
    if args.dev.is_none() {
        match clean_proxy(run_dir) {
            Ok(lines) => done.extend(lines),
            Err(e) => failures.add(PROXY, &e),
        }
    }
    let out = &mut text::stdout();
    for line in &done {
        writeln!(out, "{line}")?;
    }
    failures.outcome()?;
    if done.is_empty() {
        match &args.dev {
            Some(dev) => {
                check_named(dev)?;
                writeln!(out, "fairweir is not attached to {dev}")?;
            }
            None => writeln!(out, "no daemon runs, and nothing was left behind")?,
        }
    }
    Ok(())
}

/// What could not be stopped, and why. The first error decides the exit code.
#[derive(Default)]
struct Failures {
    exit: Option<Exit>,
    texts: Vec<String>,
}

impl Failures {
    fn add(&mut self, of: &str, error: &anyhow::Error) {
        self.exit.get_or_insert(Exit::of(error));
        self.texts.push(format!("{of}: {}", chained(error)));
    }

    fn outcome(self) -> anyhow::Result<()> {
        let Some(exit) = self.exit else { return Ok(()) };
        Err(reworded(exit, format!("not everything is off: {}", self.texts.join("; "))))
    }
}

/// `fairweir DAEMON off`, for the instance `name`.
pub(crate) fn one(args: &OffArgs, name: &str) -> anyhow::Result<()> {
    each(&args.run_dir.run_dir, &[name.to_owned()], args.force)
}

/// `fairweir host off` and `fairweir router off`.
pub(crate) fn of_role(role: Role, args: &OffDevArgs) -> anyhow::Result<()> {
    let run_dir = &args.run_dir.run_dir;
    let devs = match &args.dev {
        Some(dev) => vec![dev.clone()],
        None => devices_of(run_dir, role)?,
    };
    let names: Vec<String> = devs.iter().map(|dev| format!("{}{dev}", role.prefix())).collect();
    each(run_dir, &names, args.force)
}

/// Stops these instances and removes what they left behind.
fn each(run_dir: &Path, names: &[String], force: bool) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    let mut is_done = false;
    for name in names {
        let mut done = stop(run_dir, name, force)?;
        if let Some(dev) = device_of(name) {
            done.extend(clean(run_dir, dev)?);
        }
        if name == PROXY {
            done.extend(clean_proxy(run_dir)?);
        }
        if name == ISP {
            for dev in kept()? {
                let _lock = Lock::device(run_dir, &dev)?;
                let is_open = open_kept(&dev)?;
                done.extend(is_open.then(|| format!("removed the policer that went on at {dev}")));
            }
        }
        for line in &done {
            writeln!(out, "{name}: {line}")?;
        }
        is_done |= !done.is_empty();
        if let (false, Some(dev)) = (is_done, device_of(name)) {
            check_named(dev)?;
        }
    }
    if !is_done {
        writeln!(out, "it does not run, and nothing was left behind")?;
    }
    Ok(())
}

/// Instances that are running or starting, or that left a socket behind.
fn names(run_dir: &Path, dev: Option<&str>) -> anyhow::Result<Vec<String>> {
    if let Some(dev) = dev {
        return Ok(vec![instance_of(run_dir, dev)?]);
    }
    let mut names = instances(run_dir)?;
    names.extend(Lock::held(run_dir)?.into_iter().map(|(name, _)| name));
    // A device's lock is held by `init` or by an instance whose own lock is also in the list.
    names.retain(|name| !Lock::is_device(name));
    names.sort();
    names.dedup();
    Ok(names)
}

/// Stops the instance if it is running, and describes what was done.
fn stop(run_dir: &Path, name: &str, force: bool) -> anyhow::Result<Vec<String>> {
    let patience = if force { PATIENCE_FORCED } else { PATIENCE };
    let deadline = Instant::now() + patience;
    loop {
        match Client::connect(run_dir, name, Access::Change, patience) {
            Ok(client) => return end(run_dir, name, client, force),
            Err(Error::NotRunning { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) => {}
            Err(e) => return Err(e.into()),
        }
        // Nothing listens: the daemon has ended, is starting, or is ending.
        match Lock::acquire(run_dir, name) {
            Ok(_lock) => return Ok(remove_socket(run_dir, name)?.into_iter().collect()),
            Err(Error::AlreadyRunning { pid, .. }) if Instant::now() >= deadline => {
                return kill_or_tell(pid, name, force, "holds its lock, but does not listen");
            }
            Err(Error::AlreadyRunning { .. }) => sleep(PAUSE),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Asks the daemon to end, and waits until it has.
fn end(run_dir: &Path, name: &str, mut client: Client, force: bool) -> anyhow::Result<Vec<String>> {
    if client.is_elsewhere() {
        bail!("the daemon runs in another network namespace; run `fairweir off` there");
    }
    let pid = client.daemon_pid()?;
    let said = match client.tell(&Request::Off, &mut |_, _| ()) {
        Ok(message) => message,
        Err(Error::NoAnswer { seconds, .. }) => {
            let why = format!("has not answered for {seconds} s");
            let lines = kill_or_tell(pid, name, force, &why)?;
            wait_for_end(run_dir, name, pid)?;
            remove_socket(run_dir, name)?;
            return Ok(lines);
        }
        // The reply may be lost because the daemon ended; the lock shows whether it did.
        Err(e @ Error::Broken { .. }) => e.to_string(),
        Err(e) => return Err(anyhow!(e).context(format!("the daemon (pid {pid})"))),
    };
    wait_for_end(run_dir, name, pid)?;
    Ok(vec![format!("the daemon (pid {pid}) {said}")])
}

fn kill_or_tell(pid: i32, name: &str, force: bool, why: &str) -> anyhow::Result<Vec<String>> {
    let shown = if pid > 0 { format!("pid {pid}") } else { "of another pid namespace".to_owned() };
    if !force {
        let meanwhile = match name {
            ISP => "subscribers may be policed",
            _ => "traffic passes unshaped",
        };
        bail!("the daemon ({shown}) {why}; {meanwhile} meanwhile; `fairweir off --force` kills it");
    }
    if pid <= 0 {
        bail!("the daemon of {name} runs in another pid namespace, so it cannot be killed here");
    }
    match kill(Pid::from_raw(pid), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(vec![format!("killed the daemon ({shown}), which {why}")]),
        Err(e) => bail!("cannot kill the daemon ({shown}): {e}"),
    }
}

/// Waits until the lock is free: a process that has ended holds no lock.
fn wait_for_end(run_dir: &Path, name: &str, pid: i32) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Lock::acquire(run_dir, name) {
            Ok(_) => return Ok(()),
            Err(Error::AlreadyRunning { .. }) if Instant::now() < deadline => sleep(PAUSE),
            Err(Error::AlreadyRunning { .. }) => {
                bail!("the daemon (pid {pid}) still runs {} s later", PATIENCE.as_secs())
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Removes a socket at which no process listens; returns a message if there was one.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn remove_socket(run_dir: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let path = control_socket(run_dir, name);
    match fs::remove_file(&path) {
        Ok(()) => Ok(Some("removed the socket of a daemon that is gone".to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// Removes what a killed proxy left behind. The lock keeps proxies from starting meanwhile.
fn clean_proxy(run_dir: &Path) -> anyhow::Result<Vec<String>> {
    let _lock = Lock::acquire(run_dir, PROXY)?;
    let removed = Divert::sweep()?;
    Ok(removed.into_iter().map(|removed| format!("{}: removed {removed}", PROXY)).collect())
}

/// Removes what a killed daemon left at the device. The lock keeps daemons from starting meanwhile.
///
/// # Errors
/// If a daemon controls the device, or the kernel refuses.
pub(crate) fn clean(run_dir: &Path, dev: &str) -> anyhow::Result<Vec<String>> {
    let _lock = Lock::device(run_dir, dev)?;
    let removed = sweep(dev)?;
    forget_connections(Some(dev))?;
    Ok(removed.into_iter().map(|removed| format!("removed {removed}")).collect())
}
