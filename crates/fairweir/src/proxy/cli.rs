//! The command line of `fairweir proxy`.

use std::path::PathBuf;

use clap::Args;
use fairweir_config::proxy::DEFAULT_PATH;

use crate::daemon_args::{AskArgs, OffArgs, ReloadArgs, ServiceArgs};

/// `fairweir proxy`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ProxyArgs {
    #[command(subcommand)]
    pub(super) command: Option<ProxyCommand>,
    #[command(flatten)]
    pub(super) daemon: DaemonArgs,
}

/// The daemon.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The configuration: interfaces, classes and applications (docs/experiments/proxy.md).
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub(super) config: PathBuf,
    /// Relay nothing; print what would be taken, and what is missing.
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

/// The commands to the daemon.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ProxyCommand {
    /// Print the classes, and what devices and applications have transferred.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(AskArgs),
    /// Show the rates of classes, updated every second.
    #[command(after_help = TOP_EXAMPLES)]
    Top(AskArgs),
    /// Read the configuration again and apply the differences.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Stop the daemon; new connections then pass directly.
    #[command(
        after_help = "Examples:\n  sudo fairweir proxy off\n  sudo fairweir proxy off --force     kill it if it does not answer"
    )]
    Off(OffArgs),
}

pub(crate) const EXAMPLES: &str = "Examples:
  sudo fairweir proxy
  sudo fairweir proxy --dry-run
  sudo fairweir proxy status

`fairweir off` stops the daemon. Connections that it relays end with it; new ones pass directly. SIGHUP or
a changed file reloads the configuration, and open connections go on.";

const STATUS_EXAMPLES: &str = "Examples:
  sudo fairweir proxy status
  sudo fairweir proxy status --json";

const TOP_EXAMPLES: &str = "Examples:
  sudo fairweir proxy top
  sudo fairweir proxy top --json

It ends with its reader or by Ctrl-C. With --json it prints one line for each second.";

const RELOAD_EXAMPLES: &str = "Examples:
  sudo fairweir proxy reload
  sudo fairweir proxy reload --dry-run

It fails, and nothing changes, if the configuration is wrong.";
