//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser};
use fairweir_config::host::DEFAULT_PATH;
use fairweir_core::units::{Bytes, Span};

use crate::daemon_args::{OFF_EXAMPLES, OffDevArgs, RunDir, port};
use crate::exit;
use crate::extension::{self, cli::ExtensionCommand};
use crate::host;
use crate::instance;
#[cfg(feature = "isp")]
use crate::isp::{self, cli::IspArgs};
#[cfg(feature = "market")]
use crate::market::{self, cli::MarketCommand};
#[cfg(feature = "proxy")]
use crate::proxy::{self, cli::ProxyArgs};
use crate::sender::{self, cli::SenderArgs};

pub(crate) mod mistakes;
#[cfg(feature = "lab")]
mod play;
#[cfg(feature = "lab")]
pub(crate) use play::*;

/// Share the download of an access link by weight, from the receiving host or the router.
///
/// The traffic that arrives over the link is divided among groups of applications, users,
/// addresses or ports, without configuring the queue at the ISP.
#[derive(Debug, Parser)]
#[command(name = "fairweir", version, propagate_version = true, after_help = first_screen())]
pub(crate) struct Cli {
    /// Log more to stderr (-v: debug, -vv: trace); RUST_LOG overrides it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Run the daemon that shares the download of an interface.
    #[command(after_help = host::cli::HOST_EXAMPLES)]
    Host(host::cli::HostArgs),
    /// Run the daemon that shares a router's download among the devices behind it.
    #[command(after_help = host::cli::ROUTER_EXAMPLES)]
    Router(host::cli::RouterArgs),
    /// Run the daemon that polices the subscribers of an access network, or send it a command.
    #[cfg(feature = "isp")]
    #[command(after_help = isp::cli::EXAMPLES)]
    Isp(IspArgs),
    /// Run the daemon that lets connections of a sender hold a rate, or send it a command.
    #[command(after_help = sender::cli::EXAMPLES)]
    Sender(SenderArgs),
    /// Run the daemon of a gateway that relays TCP connections at a rate, or send it a command.
    #[cfg(feature = "proxy")]
    #[command(after_help = proxy::cli::EXAMPLES)]
    Proxy(ProxyArgs),
    /// Trade credits for guaranteed rates among the households of a link: server and agent.
    #[cfg(feature = "market")]
    #[command(subcommand, after_help = market::cli::EXAMPLES)]
    Market(MarketCommand),
    /// Let the browser extension tell the daemon to which site a connection belongs.
    #[command(subcommand, after_help = extension::cli::EXAMPLES)]
    Extension(ExtensionCommand),
    /// Print a line for every daemon of this machine.
    #[command(after_help = OVERVIEW_EXAMPLES)]
    Status(OverviewArgs),
    /// Show the groups and connections of a running daemon, updated live.
    #[cfg(feature = "top")]
    #[command(after_help = host::cli::TOP_EXAMPLES)]
    Top(host::cli::TopArgs),
    /// Show in a browser how the links of this machine are shared, and change weights there.
    #[cfg(feature = "page")]
    #[command(after_help = PAGE_EXAMPLES)]
    Page(PageArgs),
    /// Print what groups received in the last hours or days.
    #[cfg(feature = "page")]
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryArgs),
    /// Print weights that would have helped in the last hour.
    #[cfg(feature = "page")]
    #[command(after_help = SUGGEST_EXAMPLES)]
    Suggest(SuggestArgs),
    /// Make a running daemon read its configuration again.
    #[command(after_help = host::cli::RELOAD_EXAMPLES)]
    Reload(host::cli::ReloadArgs),
    /// Change weights, the latency target, or pause a running daemon.
    #[command(after_help = host::cli::SET_EXAMPLES)]
    Set(host::cli::SetArgs),
    /// Give a group of a running daemon a larger weight for a time.
    #[command(after_help = host::cli::BOOST_EXAMPLES)]
    Boost(host::cli::BoostArgs),
    /// Leave a group of a running daemon next to nothing for a time.
    #[command(after_help = host::cli::PAUSE_EXAMPLES)]
    Pause(host::cli::TimedArgs),
    /// Begin the quota of a group of a running daemon anew.
    #[command(after_help = host::cli::RESET_QUOTA_EXAMPLES)]
    ResetQuota(host::cli::ResetQuotaArgs),
    /// Stop the daemons and remove everything they attached.
    #[command(after_help = OFF_EXAMPLES)]
    Off(OffDevArgs),
    /// Check a configuration and print how it is read.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Watch the traffic of an interface and write a first configuration.
    #[command(after_help = INIT_EXAMPLES)]
    Init(InitArgs),
    /// Find out what this machine is, write a first configuration, and start the daemon.
    #[cfg(feature = "page")]
    #[command(after_help = SETUP_EXAMPLES)]
    Setup(SetupArgs),
    /// List the required kernel features, which are missing, and what does not work without them.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Play a video beside downloads in network namespaces, with the page open on it (needs root).
    #[cfg(feature = "demo")]
    #[command(after_help = play::DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Play scenario files with real TCP in network namespaces (needs root).
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(LabCommand),
    /// Play scenario files in virtual time with models of TCP.
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Sim(SimCommand),
    /// Commands for developers.
    #[cfg(feature = "evidence")]
    #[command(flatten)]
    Evidence(fairweir_evidence::Command),
    /// Print shell completions, or write man pages.
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
}

/// What `make install` generates.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum GenerateCommand {
    /// Print a completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the configuration of `fairweir router` that a file of OpenWrt (UCI) describes; nothing if it
    /// is not enabled.
    Uci {
        /// The file, such as /etc/config/fairweir.
        file: PathBuf,
        /// The interfaces of the devices, with spaces between, unless the file names them.
        #[arg(long, value_name = "DEV")]
        lan: String,
        /// The interfaces that face the Internet, unless the file names them.
        #[arg(long, value_name = "DEV")]
        wan: String,
    },
    /// Print docs/reference/commands.md.
    Commands,
    /// Print docs/reference/json.schema.json: what commands print with --json.
    #[cfg(feature = "evidence")]
    Schemas,
    /// Write a man page for each command.
    Man {
        /// Directory of the pages.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// `fairweir page`.
#[cfg(feature = "page")]
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PageArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PageCommand>,
    /// The port on 127.0.0.1.
    #[arg(long, default_value_t = 8070, value_parser = port)]
    pub(crate) port: u16,
    /// Print a link to the page that runs; it works once, for five minutes.
    #[arg(long)]
    pub(crate) open: bool,
    /// Change nothing.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Exit when stdin closes, for programs that start the page.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// The unprivileged user to become if started by root.
    #[arg(long, value_name = "USER", default_value = "fairweir")]
    pub(crate) user: String,
    /// Directory of the page's own socket, for --open and `fairweir history`.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
    pub(crate) page_dir: PathBuf,
    /// Directory of the history.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir-page")]
    pub(crate) state_dir: PathBuf,
    /// The largest size of the history on disk; 0 records none.
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = parse_history_size)]
    pub(crate) history_size: u64,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// The commands to the page that runs.
#[cfg(feature = "page")]
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PageCommand {
    /// Print where the page listens.
    #[command(after_help = PAGE_EXAMPLES)]
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Directory of the page's own socket.
        #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
        page_dir: PathBuf,
    },
    /// Stop the page.
    #[command(after_help = PAGE_EXAMPLES)]
    Off {
        /// Directory of the page's own socket.
        #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
        page_dir: PathBuf,
    },
}

/// `fairweir history`.
#[cfg(feature = "page")]
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// How long ago it begins, such as 90s, 2h or 31d.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = host::cli::parse_days)]
    pub(crate) since: Span,
    /// Only this group.
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Only the daemon of this interface.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// The length of a step; if it begins more than an hour ago, whole minutes.
    #[arg(long, value_name = "SPAN", value_parser = host::cli::parse_days)]
    pub(crate) step: Option<Span>,
    /// Print JSON (docs/host/history.md).
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print CSV (docs/host/history.md).
    #[arg(long)]
    pub(crate) csv: bool,
    /// Directory of the page's own socket.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
    pub(crate) page_dir: PathBuf,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir suggest`.
#[cfg(feature = "page")]
#[derive(Debug, Args)]
pub(crate) struct SuggestArgs {
    /// Only the daemon of this interface.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// Print JSON (docs/host/history.md).
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of the page's own socket.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
    pub(crate) page_dir: PathBuf,
}

/// 0, or what SQLite can work with.
fn parse_history_size(text: &str) -> Result<u64, String> {
    const RANGE: std::ops::RangeInclusive<u64> = 4_000_000..=100_000_000_000;
    if text == "0" {
        return Ok(0);
    }
    let size: Bytes = text.parse().map_err(|e| format!("{e}"))?;
    let size = size.as_u64();
    RANGE.contains(&size).then_some(size).ok_or("it is 0, or 4MB to 100GB".to_owned())
}

/// `fairweir status`.
#[derive(Debug, Args)]
pub(crate) struct OverviewArgs {
    /// The interface; `fairweir host status --dev` replaces it.
    #[arg(long, hide = true, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// Print JSON; `fairweir host status --json` replaces it.
    #[arg(long, hide = true)]
    pub(crate) json: bool,
    /// Directory of the page's own socket.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
    pub(crate) page_dir: PathBuf,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration of `host` (conf.d/*.toml in the same directory is read too), `router`,
    /// `isp` or `sender`.
    #[arg(default_value = DEFAULT_PATH)]
    pub(crate) file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `fairweir init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The interface that faces the Internet; a router's is that of the default route.
    #[arg(long, value_parser = instance::parse, required_unless_present = "router")]
    pub(crate) dev: Option<String>,
    /// Write the configuration of a router: its interfaces, and the devices that it knows.
    #[arg(long)]
    pub(crate) router: bool,
    /// The interface of the router's devices; without it, the bridge with the most of them.
    #[arg(long, value_parser = instance::parse, requires = "router")]
    pub(crate) lan: Option<String>,
    /// How long to watch.
    #[arg(long, default_value = "60s", value_parser = str::parse::<Span>, conflicts_with = "router")]
    pub(crate) duration: Span,
    /// The file to write; `-` is stdout. The default is that of `fairweir host` or `fairweir router`.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// What `fairweir setup` configures a machine as.
#[cfg(feature = "page")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SetupRole {
    /// This computer: `fairweir host`.
    Host,
    /// This router: `fairweir router`.
    Router,
    /// This access network: `fairweir isp`.
    Isp,
    /// This server: `fairweir sender`.
    Sender,
}

/// `fairweir setup`.
#[cfg(feature = "page")]
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// What this machine is; without it, what it looks like is suggested.
    #[arg(long)]
    pub(crate) role: Option<SetupRole>,
    /// The interface that faces the Internet; without it, that of the default route is suggested.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// The interface of a router's devices, or of an access network's subscribers.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) lan: Option<String>,
    /// Ask nothing: take what is suggested. A file that exists is kept, and what is new is added to it.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Return the machine to what it was before the first `fairweir setup`.
    #[arg(long, conflicts_with_all = ["role", "dev", "lan", "yes", "output"])]
    pub(crate) undo: bool,
    /// How long to watch the traffic of a computer.
    #[arg(long, default_value = "60s", value_parser = str::parse::<Span>)]
    pub(crate) duration: Span,
    /// The file to write; the default is that of the daemon.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Directory of the page's own socket.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir-page")]
    pub(crate) page_dir: PathBuf,
    /// Directory of the daemons' states, where --undo finds what was before.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also check this interface.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Correct what can be corrected, after a question each.
    #[arg(long, conflicts_with_all = ["json", "undo"])]
    pub(crate) fix: bool,
    /// Correct it without questions.
    #[arg(long, requires = "fix")]
    pub(crate) yes: bool,
    /// Restore the settings that --fix changed.
    #[arg(long, conflicts_with = "json")]
    pub(crate) undo: bool,
    /// Directory of sysctl.d and modules-load.d, where --fix stores settings.
    #[arg(long, value_name = "DIR", default_value = "/etc")]
    pub(crate) etc: PathBuf,
    /// Directory of the daemons' states.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// The commands of the first screen, by what they are for.
pub(crate) const GROUPS: &[(&str, &[&str])] = &[
    ("Daemons", &["host", "router", "isp", "sender", "proxy", "market", "page"]),
    (
        "Look and change",
        &[
            "status",
            "top",
            "set",
            "boost",
            "pause",
            "reset-quota",
            "reload",
            "off",
            "history",
            "suggest",
        ],
    ),
    ("Configure", &["setup", "init", "check", "doctor", "extension"]),
    (
        "Research",
        &[
            "demo",
            "sim",
            "lab",
            "compare",
            "figures",
            "campaign",
            "golden",
            "evidence",
            "validate-tcp",
            "validate-control",
        ],
    ),
];

/// The command line with its first screen.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut listed = String::new();
    for (title, names) in GROUPS {
        let commands = names.iter().filter_map(|name| command.find_subcommand(name));
        let lines = commands.map(|c| {
            let about = c.get_about().map(ToString::to_string).unwrap_or_default();
            format!("  {:<16} {about}\n", c.get_name())
        });
        let lines: String = lines.collect();
        if !lines.is_empty() {
            listed.push_str(&format!("{title}:\n{lines}\n"));
        }
    }
    let usage = "{about-with-newline}\n{usage-heading} {usage}\n\n";
    command.help_template(format!("{usage}{listed}Options:\n{{options}}{{after-help}}"))
}

/// Below the options of the first screen.
fn first_screen() -> String {
    format!("{EXAMPLES}\n\n{}", exit::sentence())
}

const EXAMPLES: &str = "Examples:
  sudo fairweir init --dev eth0        watch for a minute and write a first configuration
  sudo fairweir host --dev eth0        share the download of eth0
  sudo fairweir top                    show rates, shares and decisions live
  sudo fairweir off                    stop and remove everything";

#[cfg(feature = "page")]
const HISTORY_EXAMPLES: &str = "Examples:
  sudo fairweir history
  sudo fairweir history --since 2h --group video
  sudo fairweir history --since 31d --step 1d --csv > month.csv

`fairweir page` records it: sudo systemctl enable --now fairweir-page";

#[cfg(feature = "page")]
const SUGGEST_EXAMPLES: &str = "Examples:
  sudo fairweir suggest
  sudo fairweir suggest --dev eth0 --json

It replays what `fairweir page` recorded with other weights, and changes nothing.";

#[cfg(feature = "page")]
const SETUP_EXAMPLES: &str = "Examples:
  sudo fairweir setup
  sudo fairweir setup --yes --dev eth0
  sudo fairweir setup --role router
  sudo fairweir setup --undo

It shows a configuration before it writes one. Without systemd it prints the commands that start the
daemon.";

#[cfg(feature = "page")]
const PAGE_EXAMPLES: &str = "Examples:
  sudo systemctl enable --now fairweir-page
  sudo fairweir page --open             print a link to open in a browser
  sudo fairweir page status
  sudo fairweir page off

The page listens on 127.0.0.1 only. It shows what the sockets of the daemons let its user see: start
them with `--admin-group fairweir` to change weights there, or with `--user-group fairweir` to look.";

const OVERVIEW_EXAMPLES: &str = "Examples:
  sudo fairweir status
  sudo fairweir host status            the whole state of one daemon";

const CHECK_EXAMPLES: &str = "Examples:
  fairweir check
  fairweir check ./fairweir.toml --json
  fairweir check /etc/fairweir/isp.toml";

const INIT_EXAMPLES: &str = "Examples:
  sudo fairweir init --dev eth0
  sudo fairweir init --dev eth0 --duration 5min --output ./fairweir.toml
  sudo fairweir init --dev eth0 --output - | less
  sudo fairweir init --router --output -     (interfaces and devices as the router knows them)";

const DOCTOR_EXAMPLES: &str = "Examples:
  fairweir doctor
  sudo fairweir doctor --dev eth0 --json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_first_screen() {
        let command = command();
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        for name in shown.map(clap::Command::get_name) {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name));
            assert_eq!(groups.count(), 1, "{name}");
        }
        let help = command.clone().render_help().to_string();
        assert!(help.contains("\nDaemons:\n  host "), "{help}");
        assert!(
            help.contains("\nOptions:\n") && help.contains("Exit codes: 0 done, 1 failed, 2 "),
            "{help}"
        );
    }
}
