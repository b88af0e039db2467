//! The commands' way to a running `fairweir host`.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use fairweir_daemon::{Access, Client, Error, instances};

use super::PREFIX;
use crate::isp;
use fairweir_config::nearest;

/// A daemon answers within a tick; one that does not in this time hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The devices that daemons run for, sorted.
pub(crate) fn devices(run_dir: &Path) -> Result<Vec<String>, Error> {
    let names = instances(run_dir)?;
    Ok(names.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect())
}

/// Connects to the daemon of `dev`, or to the only one that runs.
///
/// # Errors
/// If there is none, or if there are several: says which.
pub(crate) fn find(run_dir: &Path, dev: Option<&str>, access: Access) -> anyhow::Result<Client> {
    let running = devices(run_dir)?;
    let dev = match (dev, running.as_slice()) {
        (Some(dev), _) => dev,
        (None, [dev]) => dev,
        (None, []) if instances(run_dir)?.iter().any(|name| name == isp::NAME) => bail!(
            "no `fairweir host` runs here, but `fairweir isp` does: see `fairweir isp status`"
        ),
        (None, []) => bail!(
            "no `fairweir host` runs here (no socket in {}); start one with `sudo fairweir host \
             --dev DEV` or `sudo systemctl start fairweir@DEV`",
            run_dir.display()
        ),
        (None, many) => bail!("daemons run for {}; choose one with --dev", many.join(", ")),
    };
    match Client::connect(run_dir, &format!("{PREFIX}{dev}"), access, PATIENCE) {
        Ok(client) => Ok(client),
        Err(Error::NotRunning { source, .. }) => {
            let near = nearest(dev, running.iter().map(String::as_str));
            let hint = near.filter(|&n| n != dev).map(|n| format!("; one runs for `{n}`"));
            bail!("no daemon answers for `{dev}`: {source}{}", hint.unwrap_or_default())
        }
        Err(e) => Err(e.into()),
    }
}
