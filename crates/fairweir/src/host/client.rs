//! How commands find and connect to a running `fairweir host` or `fairweir router`.

use std::path::Path;
use std::time::Duration;

use fairweir_config::host::Role;
use fairweir_daemon::{Access, Client, Error, instances};

use super::PREFIXES;
use crate::daemon_args::not_running;
use crate::device::check_named;
use crate::exit::{Exit, Usage, reworded};

/// How long to wait for a reply. A daemon replies within a tick; if it does not within this time, it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The devices for which daemons run, sorted.
pub(crate) fn devices(run_dir: &Path) -> Result<Vec<String>, Error> {
    let names = instances(run_dir)?;
    Ok(names.iter().filter_map(|name| device_of(name)).map(str::to_owned).collect())
}

/// The device of an instance of this service.
pub(crate) fn device_of(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// The instance that runs for `dev`; if none runs, the name that it would have.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn instance_of(run_dir: &Path, dev: &str) -> Result<String, Error> {
    let running = instances(run_dir)?.into_iter().find(|name| device_of(name) == Some(dev));
    Ok(running.unwrap_or_else(|| format!("{}{dev}", PREFIXES[0])))
}

/// The devices for which daemons of this role run.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn devices_of(run_dir: &Path, role: Role) -> Result<Vec<String>, Error> {
    let names = instances(run_dir)?;
    Ok(names
        .iter()
        .filter_map(|name| name.strip_prefix(role.prefix()))
        .map(str::to_owned)
        .collect())
}

/// Connects to the daemon of `dev`, or to the only running one; `role` restricts this to hosts or routers.
///
/// # Errors
/// If no daemon runs, or if several do; the message names them.
pub(crate) fn find(
    run_dir: &Path,
    role: Option<Role>,
    dev: Option<&str>,
    access: Access,
) -> anyhow::Result<Client> {
    let running = match role {
        Some(role) => devices_of(run_dir, role)?,
        None => devices(run_dir)?,
    };
    let dev = match (dev, running.as_slice()) {
        (Some(dev), _) => dev,
        (None, [dev]) => dev,
        (None, []) if instances(run_dir)?.iter().any(|name| name == "isp") => {
            let what =
                "no `fairweir host` runs here, but `fairweir isp` does: see `fairweir isp status`";
            return Err(reworded(Exit::NotRunning, what));
        }
        (None, []) if role == Some(Role::Router) => return Err(not_running("router", run_dir)),
        (None, []) => {
            let what = format!(
                "no `fairweir host` or `fairweir router` runs here (no socket in {}); start one with `sudo fairweir \
                 host --dev DEV` or `sudo systemctl start fairweir@DEV`",
                run_dir.display()
            );
            return Err(reworded(Exit::NotRunning, what));
        }
        (None, many) => {
            let what = format!("daemons run for {}; choose one with --dev", many.join(", "));
            return Err(Usage(what).into());
        }
    };
    let name = match role {
        Some(role) => format!("{}{dev}", role.prefix()),
        None => instance_of(run_dir, dev)?,
    };
    match Client::connect(run_dir, &name, access, PATIENCE) {
        Ok(client) => Ok(client),
        Err(Error::NotRunning { .. }) => {
            let others: Vec<_> =
                running.iter().filter(|name| *name != dev).map(String::as_str).collect();
            if others.is_empty() {
                check_named(dev)?;
            }
            let hint = match others.as_slice() {
                [] => format!("start one with `sudo fairweir host --dev {dev}`"),
                others => format!("one runs for `{}`", others.join("`, `")),
            };
            let what = format!("no daemon answers for `{dev}` in {}; {hint}", run_dir.display());
            Err(reworded(Exit::NotRunning, what))
        }
        Err(e) => Err(e.into()),
    }
}
