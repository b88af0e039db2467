//! The command line of `fairweir isp`.

use std::path::PathBuf;

use clap::Args;
use fairweir_config::isp::DEFAULT_PATH;

use crate::daemon_args::{OffArgs, RunDir, ServiceArgs, whole_usize};

/// `fairweir isp`: the daemon, or a command to it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct IspArgs {
    #[command(flatten)]
    pub(super) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(super) command: Option<IspCommand>,
}

/// The daemon.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The configuration: interfaces, plans and subscribers (docs/isp/reference.md).
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub(super) config: PathBuf,
    /// Attach nothing; print what would be done.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Print the dry run as JSON.
    #[arg(long, requires = "dry_run")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) state: StateDir,
}

/// The directory of the journal.
#[derive(Debug, Args)]
pub(crate) struct StateDir {
    /// Directory of the stored state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/isp")]
    pub(super) state_dir: PathBuf,
}

/// The commands to the daemon.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum IspCommand {
    /// Add a subscriber.
    #[command(after_help = ADD_EXAMPLES)]
    Add(AddArgs),
    /// Change the plan or the addresses of a subscriber.
    #[command(after_help = CHANGE_EXAMPLES)]
    Change(ChangeArgs),
    /// Remove subscribers; their traffic then passes unpoliced.
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(NamesArgs),
    /// List the subscribers.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Print a subscriber and its counters.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// List the sessions and leases that are not policed, and why.
    #[command(after_help = UNPOLICED_EXAMPLES)]
    Unpoliced(UnpolicedArgs),
    /// Add or change the subscribers of a CSV table (name,addresses,plan).
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Add, change, remove or list plans.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Read the files again and apply the differences.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Undo changes made by commands; the configuration file applies again.
    #[command(after_help = REVERT_EXAMPLES)]
    Revert(RevertArgs),
    /// Stop the daemon, or the policing that goes on without it; all traffic then passes.
    #[command(
        after_help = "Examples:\n  sudo fairweir isp off\n  sudo fairweir isp off --force     kill it if it does not answer"
    )]
    Off(OffArgs),
    /// Print the daemon's state.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show the busiest subscribers, updated live.
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Print metrics in the Prometheus text format.
    #[command(after_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
    /// Write what subscribers used until now, and print where the files are.
    #[command(after_help = USAGE_EXAMPLES)]
    Usage(UsageArgs),
}

/// The subcommands of `plan`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PlanCommand {
    /// Add the plans of a file.
    #[command(after_help = PLAN_EXAMPLES)]
    Add(PlanFileArgs),
    /// Change plans as in a file; this applies to all of their subscribers at once.
    #[command(after_help = PLAN_EXAMPLES)]
    Change(PlanFileArgs),
    /// Remove plans that have no subscribers.
    #[command(after_help = PLAN_EXAMPLES)]
    Remove(NamesArgs),
    /// List the plans.
    #[command(after_help = PLAN_EXAMPLES)]
    List(StatusArgs),
}

/// `fairweir isp add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The subscriber's name.
    pub(super) name: String,
    /// The plan.
    #[arg(long)]
    pub(super) plan: String,
    /// An address or a prefix; repeatable.
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub(super) address: Vec<String>,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp change`.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// The subscriber's name.
    pub(super) name: String,
    /// The new plan.
    #[arg(long)]
    pub(super) plan: Option<String>,
    /// The new addresses, which replace all old ones; repeatable.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) address: Vec<String>,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// Commands for names.
#[derive(Debug, Args)]
pub(crate) struct NamesArgs {
    /// The names.
    #[arg(required = true)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only subscribers of this plan.
    #[arg(long)]
    pub(super) plan: Option<String>,
    /// Print one JSON object per line.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp unpoliced`.
#[derive(Debug, Args)]
pub(crate) struct UnpolicedArgs {
    /// Instead list sessions that are policed although no packet of them came for too long.
    #[arg(long)]
    pub(super) silent: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The subscriber's name, or one of its addresses.
    pub(super) name: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The table; `-` is stdin.
    pub(super) file: PathBuf,
    /// Change nothing; print what would change, and the bad rows.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Import the valid rows even if others are bad.
    #[arg(long)]
    pub(super) skip_bad: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp plan add` and `change`.
#[derive(Debug, Args)]
pub(crate) struct PlanFileArgs {
    /// A file with [[plan]] tables as in isp.toml; `-` is stdin.
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp reload`.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Change nothing; print what would change.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Also if more than a tenth of the subscribers, and more than ten, are missing from the files, or
    /// the end mark of the table.
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp revert`.
#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// Names of subscribers and plans.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(super) names: Vec<String>,
    /// All subscribers and plans.
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
    #[command(flatten)]
    pub(super) state: StateDir,
}

/// `fairweir isp status` and `plan list`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The number of subscribers.
    #[arg(short = 'n', long, value_name = "N", default_value = "20", value_parser = whole_usize::<1, 1000>)]
    pub(super) count: usize,
    /// Measure for a second, print once and exit.
    #[arg(long)]
    pub(super) once: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Include the N busiest subscribers by name.
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole_usize::<0, 1000>)]
    pub(super) top: usize,
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// `fairweir isp usage`.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(super) run_dir: RunDir,
}

/// Of `fairweir isp` itself.
pub(crate) const EXAMPLES: &str = "Examples:
  fairweir check /etc/fairweir/isp.toml      print how plans and subscribers are read
  sudo fairweir isp --dry-run                print what would be done
  sudo fairweir isp                          run the daemon
  sudo fairweir isp add alice --plan home-50 --address 192.0.2.1 --address 2001:db8:1::/56
  sudo fairweir isp top                      show the busiest subscribers

When the daemon ends by a signal or a crash, policing goes on until the next one is there, at most for `watchdog` (10 min).
`fairweir isp off` ends it at once; so does any end with `when_gone = \"open\"`. SIGHUP reads the files again.";

const ADD_EXAMPLES: &str = "Examples:
  sudo fairweir isp add alice --plan home-50 --address 192.0.2.1
  sudo fairweir isp add bob --plan home-50 --address 192.0.2.2 --address 2001:db8:2::/56

The change is in force when the command returns, and persists over restarts and reloads.";

const CHANGE_EXAMPLES: &str = "Examples:
  sudo fairweir isp change alice --plan home-100
  sudo fairweir isp change alice --address 192.0.2.7 --address 2001:db8:1::/56";

const REMOVE_EXAMPLES: &str = "Examples:
  sudo fairweir isp remove alice
  sudo fairweir isp remove alice bob

A subscriber of the configuration file stays removed until `fairweir isp revert` or `add`.";

const LIST_EXAMPLES: &str = "Examples:
  sudo fairweir isp list
  sudo fairweir isp list --plan home-50
  sudo fairweir isp list --json | jq -r 'select(.origin != \"file\").name'";

const SHOW_EXAMPLES: &str = "Examples:
  sudo fairweir isp show alice
  sudo fairweir isp show 192.0.2.1
  sudo fairweir isp show alice --json";

const UNPOLICED_EXAMPLES: &str = "Examples:
  sudo fairweir isp unpoliced
  sudo fairweir isp unpoliced --json | jq -r 'select(.kind == \"no_plan\").subscriber'
  sudo fairweir isp unpoliced --silent";

const IMPORT_EXAMPLES: &str = "Examples:
  sudo fairweir isp import new.csv --dry-run
  sudo fairweir isp import new.csv
  sudo fairweir isp import new.csv --skip-bad

new.csv:
  name,addresses,plan
  alice,192.0.2.1 2001:db8:1::/56,home-50

Existing subscribers are changed, none are removed. If a row is bad, nothing is imported.";

const PLAN_EXAMPLES: &str = "Examples:
  sudo fairweir isp plan add new-plans.toml
  sudo fairweir isp plan change faster.toml
  sudo fairweir isp plan remove home-10
  sudo fairweir isp plan list --json";

const RELOAD_EXAMPLES: &str = "Examples:
  sudo fairweir isp reload --dry-run
  sudo fairweir isp reload

Changes made by commands stay in force; `fairweir isp revert` undoes them.";

const REVERT_EXAMPLES: &str = "Examples:
  sudo fairweir isp revert alice
  sudo fairweir isp revert --all

If no daemon runs, the journal is edited and the next start uses it.";

const STATUS_EXAMPLES: &str = "Examples:
  sudo fairweir isp status
  sudo fairweir isp status --json";

const TOP_EXAMPLES: &str = "Examples:
  sudo fairweir isp top
  sudo fairweir isp top --count 5 --once
  sudo fairweir isp top --json

Press q to quit.";

const USAGE_EXAMPLES: &str = "Examples:
  sudo fairweir isp usage
  sudo awk -F, '$6 == \"download\" { sum[$3] += $7 } END { for (s in sum) print s, sum[s] }' \\
      /var/lib/fairweir/isp/usage/2026-11-*.csv

Needs a table [usage] in the configuration. Bytes are those that the counters have.";

const METRICS_EXAMPLES: &str = "Examples:
  sudo fairweir isp metrics
  sudo fairweir isp metrics --top 10

With `metrics = \"127.0.0.1:9115\"` in isp.toml the daemon serves them at
http://127.0.0.1:9115/metrics, and /metrics?top=10.";
