//! The commands' way to a running `fairweir host` or `fairweir router`.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use fairweir_daemon::{Access, Client, Error, instances};

use super::PREFIXES;
#[cfg(feature = "isp")]
use crate::isp;
use fairweir_config::nearest;

/// How long an answer is waited for. A daemon answers within a tick; a later answer means that it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The devices that daemons run for, sorted.
pub(crate) fn devices(run_dir: &Path) -> Result<Vec<String>, Error> {
    let names = instances(run_dir)?;
    Ok(names.iter().filter_map(|name| device_of(name)).map(str::to_owned).collect())
}

/// The device of an instance of this service.
pub(crate) fn device_of(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// The instance that runs for `dev`, or would.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn instance_of(run_dir: &Path, dev: &str) -> Result<String, Error> {
    let running = instances(run_dir)?.into_iter().find(|name| device_of(name) == Some(dev));
    Ok(running.unwrap_or_else(|| format!("{}{dev}", PREFIXES[0])))
}

/// Connects to the daemon of `dev`, or to the only one that runs.
///
/// # Errors
/// If no daemon runs, or if several do; the message names them.
pub(crate) fn find(run_dir: &Path, dev: Option<&str>, access: Access) -> anyhow::Result<Client> {
    let running = devices(run_dir)?;
    let dev = match (dev, running.as_slice()) {
        (Some(dev), _) => dev,
        (None, [dev]) => dev,
        #[cfg(feature = "isp")]
        (None, []) if instances(run_dir)?.iter().any(|name| name == isp::NAME) => bail!(
            "no `fairweir host` runs here, but `fairweir isp` does: see `fairweir isp status`"
        ),
        (None, []) => bail!(
            "no `fairweir host` or `fairweir router` runs here (no socket in {}); start one with `sudo fairweir host \
             --dev DEV` or `sudo systemctl start fairweir@DEV`",
            run_dir.display()
        ),
        (None, many) => bail!("daemons run for {}; choose one with --dev", many.join(", ")),
    };
    match Client::connect(run_dir, &instance_of(run_dir, dev)?, access, PATIENCE) {
        Ok(client) => Ok(client),
        Err(Error::NotRunning { source, .. }) => {
            let near = nearest(dev, running.iter().map(String::as_str));
            let hint = near.filter(|&n| n != dev).map(|n| format!("; one runs for `{n}`"));
            bail!("no daemon answers for `{dev}`: {source}{}", hint.unwrap_or_default())
        }
        Err(e) => Err(e.into()),
    }
}
