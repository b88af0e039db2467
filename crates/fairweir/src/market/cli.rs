//! The command line of `fairweir market`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use fairweir_core::units::Rate;
use fairweir_daemon::StateDir;
use fairweir_market::store::{Database, StoreError};

use crate::daemon_args::{AskArgs, OffArgs, RunDir, ServiceArgs, whole};
use crate::exit::Usage;

/// What gateways without a bid have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Absent {
    Equal,
    Floor,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum MarketCommand {
    /// Found a market in a state directory.
    #[command(
        after_help = "Examples:\n  sudo fairweir market init --capacity 160mbit\n  sudo fairweir market init --capacity 1gbit --share 10 --floor 20"
    )]
    Init(InitArgs),
    /// Run the market's server.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Issue a one-time code with which a household's gateway enrols.
    #[command(
        after_help = "Examples:\n  sudo fairweir market code contract-17 --peak 50mbit\n  sudo fairweir market code contract-17 --hours 24"
    )]
    Code(CodeArgs),
    /// Print the codes that are not used yet.
    #[command(
        after_help = "Examples:\n  sudo fairweir market codes\n  sudo fairweir market codes --json"
    )]
    Codes(AskArgs),
    /// Stop the market: no slot is closed and no bid is taken. Leases that run end with their slots; then
    /// members of a segment share it equally, and other gateways hold themselves to nothing.
    #[command(after_help = "Examples:\n  sudo fairweir market pause")]
    Pause(AskArgs),
    /// Go on after `pause` with the next slot. Balances are as they were; bids for slots that passed are void.
    #[command(after_help = "Examples:\n  sudo fairweir market resume")]
    Resume(AskArgs),
    /// Remove the events and statements of old slots, also while the server runs. The hash of each slot is
    /// kept, and `verify` goes on from there. The file does not shrink: a backup of it is smaller.
    #[command(after_help = "Examples:\n  sudo fairweir market prune --before 17520")]
    Prune(PruneArgs),
    /// End the codes of a household that are not used yet.
    #[command(after_help = "Examples:\n  sudo fairweir market revoke contract-17")]
    Revoke(RevokeArgs),
    /// Print the households of the market.
    #[command(
        after_help = "Examples:\n  sudo fairweir market households\n  sudo fairweir market households --json"
    )]
    Households(AskArgs),
    /// Print a household's account.
    #[command(after_help = "Examples:\n  sudo fairweir market show contract-17")]
    Show(NamedArgs),
    /// Remove a household. Its balance is kept for 7 days, if it enrols again.
    #[command(after_help = "Examples:\n  sudo fairweir market remove contract-17")]
    Remove(NamedArgs),
    /// Change the rules of the market, or a household's plan, from the open slot on.
    #[command(
        after_help = "Examples:\n  sudo fairweir market change --capacity 320mbit\n  sudo fairweir market change --household contract-17 --peak 100mbit"
    )]
    Change(ChangeArgs),
    /// Copy a market in a file, with its keys, into a new directory. It may be run while the server runs.
    #[command(after_help = "Examples:\n  sudo fairweir market backup /var/backups/market-1")]
    Backup(BackupArgs),
    /// Put a backup into a state directory without a market.
    #[command(after_help = "Examples:\n  sudo fairweir market restore /var/backups/market-1")]
    Restore(RestoreArgs),
    /// Print the state of the running server.
    #[command(
        after_help = "Examples:\n  sudo fairweir market status\n  sudo fairweir market status --json"
    )]
    Status(AskArgs),
    /// Stop the running server.
    #[command(after_help = "Examples:\n  sudo fairweir market off")]
    Off(OffArgs),
    /// Compute all statements and roots again from what happened, and compare. It may be run while the
    /// server runs.
    #[command(after_help = "Examples:\n  sudo fairweir market verify")]
    Verify(VerifyArgs),
    /// Print all that happened, one event a line, as JSON.
    #[command(after_help = "Examples:\n  sudo fairweir market log | tail")]
    Log(VerifyArgs),
    /// Enrol this gateway with a one-time code.
    #[command(after_help = ENROL_EXAMPLES)]
    Enrol(EnrolArgs),
    /// Leave the market, and give up this gateway's enrolment. The agent has to be stopped.
    #[command(after_help = "Examples:\n  sudo fairweir market leave")]
    Leave(LeaveArgs),
    /// Run the daemon that bids for this household.
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(AgentArgs),
    /// Print what the agent has decided, and why.
    #[command(
        after_help = "Examples:\n  sudo fairweir market why\n  sudo fairweir market why --json"
    )]
    Why(AskArgs),
    /// Put a kind of use above all others for a while.
    #[command(
        after_help = "Examples:\n  sudo fairweir market boost streaming --minutes 90\n  sudo fairweir market boost streaming --off"
    )]
    Boost(BoostArgs),
    /// Spend nothing for some days.
    #[command(
        after_help = "Examples:\n  sudo fairweir market holiday --days 14\n  sudo fairweir market holiday --off"
    )]
    Holiday(HolidayArgs),
}

/// Where the market is kept.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// Directory of the database and the keys.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/market")]
    pub(super) state_dir: PathBuf,
    /// A PostgreSQL database, as postgres:///market?host=/run/postgresql [default: a file of the state
    /// directory].
    #[arg(long, value_name = "URL")]
    pub(super) database: Option<String>,
}

impl StateArgs {
    pub(super) fn database(&self) -> Result<Database, StoreError> {
        Database::of(&StateDir::new(&self.state_dir), self.database.as_deref())
    }

    /// The same of a market that was founded.
    ///
    /// # Errors
    /// [`Usage`] if there is none.
    pub(super) fn founded(&self) -> anyhow::Result<Database> {
        let database = self.database()?;
        if database.is_missing() {
            let dir = self.state_dir.display();
            return Err(
                Usage(format!("no market in {dir}; `fairweir market init` founds one")).into()
            );
        }
        Ok(database)
    }
}

/// `fairweir market init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// What the shared link carries.
    #[arg(long, value_name = "RATE")]
    pub(super) capacity: Rate,
    /// Credits of each household; one buys 1 Mbit/s for a slot in the paper's rule.
    #[arg(long, value_name = "CREDITS", default_value = "10", value_parser = whole::<1, 1_000_000>)]
    pub(super) share: u64,
    /// The most credits that a household may have.
    #[arg(long, value_name = "CREDITS", default_value = "32", value_parser = whole::<1, 1_000_000>)]
    pub(super) cap: u64,
    /// The part of the capacity that is divided evenly, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = whole::<0, 100>)]
    pub(super) floor: u64,
    /// The length of a slot, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = whole::<1, 86_400>)]
    pub(super) slot: u64,
    /// How long before their slot bids end, in seconds [default: a quarter of
    /// the slot, 1 to 30].
    #[arg(long, value_name = "SECONDS", value_parser = whole::<0, 86_400>)]
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
    /// by the contracts. Without it gateways whose agents tell a daemon at home hold themselves to their rates.
    #[arg(long, value_name = "NAME")]
    pub(super) segment: Option<String>,
    /// What gateways without a bid for a slot have of it: an equal share, for which they spend what the others
    /// spend on average, or the floor.
    #[arg(long, value_enum, default_value = "equal")]
    pub(super) absent: Absent,
    /// Believe this host's clock, although it differs from the database's or from the end of the last closed
    /// slot (over 48 slots ahead of it, or behind it). All slots that have ended by it are closed for good.
    #[arg(long)]
    pub(super) accept_clock: bool,
    #[command(flatten)]
    pub(super) state: StateArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
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
    #[arg(long, value_name = "HOURS", default_value = "72", value_parser = whole::<1, HOURS_MAX>)]
    pub(super) hours: u64,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// What the operator calls the household.
    pub(super) contract: String,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market show` and `remove`.
#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    /// What the operator calls the household, or its pseudonym.
    pub(super) name: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market change`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct ChangeArgs {
    /// What the shared link carries.
    #[arg(long, value_name = "RATE", group = "what")]
    pub(super) capacity: Option<Rate>,
    /// The part of the capacity that is divided evenly, in percent.
    #[arg(long, value_name = "PERCENT", group = "what", value_parser = whole::<0, 100>)]
    pub(super) floor: Option<u64>,
    /// The most credits that a household may have; not below any balance.
    #[arg(long, value_name = "CREDITS", group = "what", value_parser = whole::<1, 1_000_000>)]
    pub(super) cap: Option<u64>,
    /// The household whose plan changes, by its contract or pseudonym.
    #[arg(long, value_name = "NAME", group = "what", conflicts_with_all = ["capacity", "floor", "cap"])]
    pub(super) household: Option<String>,
    /// The rate of its plan [default: no bound].
    #[arg(long, value_name = "RATE", requires = "household")]
    pub(super) peak: Option<Rate>,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// A directory that has no market; it is made.
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) state: StateArgs,
}

/// `fairweir market prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The first slot that is kept; a closed one.
    #[arg(long, value_name = "SLOT")]
    pub(super) before: u64,
    /// Print what was removed as JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) state: StateArgs,
}

/// `fairweir market restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The directory of the backup.
    pub(super) dir: PathBuf,
    /// Directory of the database and the keys.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/market")]
    pub(super) state_dir: PathBuf,
}

/// `fairweir market leave`.
#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Directory of the gateway's key and of what the agent learned.
    #[arg(long, value_name = "DIR", default_value = AGENT_DIR)]
    pub(super) state_dir: PathBuf,
}

/// `fairweir market verify` and `log`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(super) state: StateArgs,
}

/// `fairweir market enrol`.
#[derive(Debug, Args)]
pub(crate) struct EnrolArgs {
    /// The one-time code, or - to read it from stdin.
    pub(super) code: String,
    /// Where the market's server listens.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: String,
    /// The name in the server's certificate [default: the host].
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// The certificate of the market's authority, as the operator gave it.
    #[arg(long, value_name = "FILE")]
    pub(super) authority: PathBuf,
    /// Directory of the gateway's key and of what the agent learned.
    #[arg(long, value_name = "DIR", default_value = AGENT_DIR)]
    pub(super) state_dir: PathBuf,
    /// Give up the enrolment that this gateway has.
    #[arg(long)]
    pub(super) replace: bool,
}

/// The commands to the agent.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum AgentCommand {
    /// Print what the agent has decided, and why.
    #[command(after_help = "Examples:\n  sudo fairweir market agent status")]
    Status(AskArgs),
    /// Stop the agent; nothing more is bid.
    #[command(after_help = "Examples:\n  sudo fairweir market agent off")]
    Off(OffArgs),
}

/// `fairweir market agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    pub(super) command: Option<AgentCommand>,
    /// The configuration: what the household wants (docs/experiments/market.md).
    #[arg(short, long, value_name = "FILE", default_value = fairweir_config::agent::DEFAULT_PATH)]
    pub(super) config: PathBuf,
    /// Directory of the gateway's key and of what the agent learned.
    #[arg(long, value_name = "DIR", default_value = AGENT_DIR)]
    pub(super) state_dir: PathBuf,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The length of a day in seconds, for trials; without it days are those of local time.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) day: Option<u64>,
}

/// `fairweir market boost`.
#[derive(Debug, Args)]
pub(crate) struct BoostArgs {
    /// The kind of use.
    #[arg(value_parser = fairweir_config::agent::KINDS)]
    pub(super) kind: String,
    /// For how long.
    #[arg(long, value_name = "MINUTES", default_value = "120", value_parser = whole::<1, BOOST_MINUTES_MAX>)]
    pub(super) minutes: u64,
    /// End it now.
    #[arg(long)]
    pub(super) off: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir market holiday`.
#[derive(Debug, Args)]
pub(crate) struct HolidayArgs {
    /// For how long.
    #[arg(long, value_name = "DAYS", default_value = "7", value_parser = whole::<1, HOLIDAY_DAYS_MAX>)]
    pub(super) days: u64,
    /// End it now.
    #[arg(long)]
    pub(super) off: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// For how long a code may be valid: a year.
pub(super) const HOURS_MAX: u64 = 8_760;
/// A day.
pub(super) const BOOST_MINUTES_MAX: u64 = 1_440;
/// A year.
pub(super) const HOLIDAY_DAYS_MAX: u64 = 366;

const AGENT_DIR: &str = "/var/lib/fairweir/agent";

/// Of `fairweir market` itself.
pub(crate) const EXAMPLES: &str = "Examples:
  sudo fairweir market init --capacity 160mbit
  sudo fairweir market serve --listen 0.0.0.0:7443 --name market.example.net
  sudo fairweir market code contract-17 --peak 50mbit
  sudo fairweir market verify
At a gateway:
  sudo fairweir market enrol CODE --server market.example.net:7443 --authority ca.der
  sudo fairweir market agent
  sudo fairweir market why
  sudo fairweir market boost streaming --minutes 90";

const ENROL_EXAMPLES: &str = "Examples:
  sudo fairweir market enrol CODE --server market.example.net:7443 --authority ca.der";

const AGENT_EXAMPLES: &str = "Examples:
  sudo fairweir market agent --config /etc/fairweir/agent.toml";

const SERVE_EXAMPLES: &str = "Examples:
  sudo fairweir market serve --listen 0.0.0.0:7443 --name market.example.net --segment pon-3";
