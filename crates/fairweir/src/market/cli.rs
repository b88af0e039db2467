//! The command line of `fairweir market`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use fairweir_core::units::Rate;

use crate::daemon_args::{RunDir, UserGroup};

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum MarketCommand {
    /// Found a market in a state directory.
    Init(InitArgs),
    /// Run the market's server.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Issue a one-time code with which a household's gateway enrols.
    Code(CodeArgs),
    /// Print the state of the running server.
    Status(AskArgs),
    /// Compute all statements and roots of the journal again. It may be run while the server runs.
    Verify(VerifyArgs),
}

/// Where the market is kept.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// Directory of the journal and the keys.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/market")]
    pub(super) state_dir: PathBuf,
}

/// `fairweir market init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// What the shared link carries.
    #[arg(long, value_name = "RATE")]
    pub(super) capacity: Rate,
    /// Credits of each household; one buys 1 Mbit/s for a slot in the paper's rule.
    #[arg(long, value_name = "CREDITS", default_value = "10")]
    pub(super) share: u64,
    /// The most credits that a household may have.
    #[arg(long, value_name = "CREDITS", default_value = "32")]
    pub(super) cap: u64,
    /// The part of the capacity that is divided evenly, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "10")]
    pub(super) floor: u64,
    /// The length of a slot, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1800")]
    pub(super) slot: u64,
    /// How long before their slot bids end, in seconds [default: 30, or 0 for slots below 2 minutes].
    #[arg(long, value_name = "SECONDS")]
    pub(super) close_before: Option<u64>,
    #[command(flatten)]
    pub(super) state: StateArgs,
}

/// `fairweir market serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where gateways connect.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7443")]
    pub(super) listen: SocketAddr,
    /// The server's host name or address, as the gateways know it.
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub(super) name: String,
    /// The segment of `fairweir isp` on this host that guarantees the rates; its members are named
    /// by the contracts. Without it the gateways limit themselves.
    #[arg(long, value_name = "NAME")]
    pub(super) segment: Option<String>,
    #[command(flatten)]
    pub(super) state: StateArgs,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
    #[command(flatten)]
    pub(super) user_group: UserGroup,
    /// Exit when stdin closes, for programs that start the daemon.
    #[arg(long, hide = true)]
    pub(super) until_stdin_closes: bool,
}

/// `fairweir market code`.
#[derive(Debug, Args)]
pub(crate) struct CodeArgs {
    /// What the operator calls the household; a later code for it replaces its gateway.
    pub(super) contract: String,
    /// Its plan's rate.
    #[arg(long, value_name = "RATE")]
    pub(super) peak: Option<Rate>,
    /// Hours for which the code is valid.
    #[arg(long, value_name = "HOURS", default_value = "72")]
    pub(super) hours: u64,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market status`.
#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(super) state: StateArgs,
}

/// Of `fairweir market` itself.
pub(crate) const EXAMPLES: &str = "Examples:
  sudo fairweir market init --capacity 160mbit
  sudo fairweir market serve --listen 0.0.0.0:7443 --name market.example.net
  sudo fairweir market code contract-17 --peak 50mbit
  sudo fairweir market verify";

const SERVE_EXAMPLES: &str = "Examples:
  sudo fairweir market serve --listen 0.0.0.0:7443 --name market.example.net --segment pon-3";
