//! Its arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::browsers::Browser;
use crate::daemon_args::RunDir;

/// Where the daemons' sockets are, if nothing else is said.
pub(crate) const RUN_DIR: &str = "/run/fairweir";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum ExtensionCommand {
    /// Let the extension of installed browsers find this program.
    #[command(
        after_help = "Examples:\n  sudo fairweir extension install\n  fairweir extension install --user --browser firefox"
    )]
    Install(PlaceArgs),
    /// Remove what `install` has written.
    #[command(after_help = "Examples:\n  sudo fairweir extension uninstall")]
    Uninstall(PlaceArgs),
    /// Print for each browser whether its extension finds this program.
    #[command(after_help = "Examples:\n  fairweir extension status")]
    Status(PlaceArgs),
    /// Pass messages between a browser's extension and the daemon; started by the browser.
    #[command(after_help = "Examples:\n  fairweir extension host < messages")]
    Host(HostArgs),
}

/// Which browsers, and for whom.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// For the calling user alone; without it, root installs for all users.
    #[arg(long)]
    pub(crate) user: bool,
    /// A browser; may be given several times.
    #[arg(long, value_name = "NAME", value_enum)]
    pub(crate) browser: Vec<Browser>,
    /// Write below this directory instead of /.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

/// `fairweir extension host`.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// Examples in the help.
pub(crate) const EXAMPLES: &str = "Examples:
  sudo fairweir extension install           for every user and every browser that is installed
  fairweir extension install --user --browser firefox
  fairweir extension status

The extension itself is installed in the browser: see docs/host/sites.md.";
