//! The command line of `fairweir sender`.

use std::path::PathBuf;

use clap::Args;
use fairweir_config::sender::DEFAULT_PATH;

use crate::daemon_args::{AskArgs, OffArgs, ReloadArgs, ServiceArgs};

/// `fairweir sender`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SenderArgs {
    #[command(subcommand)]
    pub(super) command: Option<SenderCommand>,
    #[command(flatten)]
    pub(super) daemon: DaemonArgs,
}

/// The daemon.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The configuration: bundles, with their targets and rules (docs/experiments/sender.md).
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub(super) config: PathBuf,
    /// Switch no connection; print which ones would be in which bundle.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print the dry run as JSON.
    #[arg(long, requires = "dry_run")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

/// The commands to the daemon.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SenderCommand {
    /// Print the state of each bundle.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(AskArgs),
    /// Show rates beside their targets, updated live.
    #[cfg(feature = "top")]
    #[command(after_help = TOP_EXAMPLES)]
    Top(AskArgs),
    /// Read the configuration again and apply the differences.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Stop the daemon; each connection has its congestion control again.
    #[command(
        after_help = "Examples:\n  sudo fairweir sender off\n  sudo fairweir sender off --force     kill it if it does not answer"
    )]
    Off(OffArgs),
}

pub(crate) const EXAMPLES: &str = "Examples:
  sudo fairweir sender
  sudo fairweir sender --dry-run
  sudo fairweir sender status
  sudo fairweir sender top

`fairweir off` stops the daemon; each connection then has again the congestion control that it had.
SIGHUP or a changed file reloads the configuration.";

const STATUS_EXAMPLES: &str = "Examples:
  sudo fairweir sender status
  sudo fairweir sender status --json";

#[cfg(feature = "top")]
const TOP_EXAMPLES: &str = "Examples:
  sudo fairweir sender top

Without a terminal, and with --json, it prints the status once.";

const RELOAD_EXAMPLES: &str = "Examples:
  sudo fairweir sender reload
  sudo fairweir sender reload --dry-run

It fails, and nothing changes, if the configuration is wrong.";
