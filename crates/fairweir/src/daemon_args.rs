//! Arguments that the daemons, and the commands that ask them, have in common.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use nix::unistd::{Gid, Group};

/// The directory of the daemons' sockets.
#[derive(Debug, Args)]
pub(crate) struct RunDir {
    /// Directory of the daemons' sockets.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir")]
    pub(crate) run_dir: PathBuf,
}

/// Who may see what a daemon does.
#[derive(Debug, Args)]
pub(crate) struct UserGroup {
    /// Members of this group may read status and metrics.
    #[arg(long, value_name = "GROUP")]
    user_group: Option<String>,
}

impl UserGroup {
    /// The group's number.
    ///
    /// # Errors
    /// If the system has no such group.
    pub(crate) fn group(&self) -> anyhow::Result<Option<Gid>> {
        group_id("--user-group", self.user_group.as_deref())
    }
}

/// The number of the group that the option `option` names.
///
/// # Errors
/// If the system has no such group.
pub(crate) fn group_id(option: &str, name: Option<&str>) -> anyhow::Result<Option<Gid>> {
    let Some(name) = name else { return Ok(None) };
    match Group::from_name(name)? {
        Some(group) => Ok(Some(group.gid)),
        None => bail!("{option}: there is no group `{name}` on this system"),
    }
}
