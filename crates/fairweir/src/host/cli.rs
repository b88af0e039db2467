//! The command line of `fairweir host` and `fairweir router`, and of the commands that ask them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use fairweir_config::host;
use fairweir_config::value::{parse_capacity, parse_control};
use fairweir_core::packet::Mac;
use fairweir_core::receiver::Control;
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};

use crate::daemon_args::{OFF_EXAMPLES, OffDevArgs, RunDir, ServiceArgs};
use crate::instance;

/// `fairweir host`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HostArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HostCommand>,
    /// The interface that faces the Internet.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// The configuration; conf.d/*.toml in the same directory is read too.
    #[arg(short, long, value_name = "FILE", default_value = host::DEFAULT_PATH)]
    pub(crate) config: PathBuf,
    /// Directory of the stored state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/host")]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) run: LoopArgs,
}

/// `fairweir router`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RouterArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RouterCommand>,
    /// The configuration, which names the interfaces and the devices; router.d/*.toml in the same
    /// directory is read too.
    #[arg(short, long, value_name = "FILE", default_value = host::ROUTER_PATH)]
    pub(crate) config: PathBuf,
    /// Directory of the stored state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fairweir/router")]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) run: LoopArgs,
}

/// The commands to the daemon of a host or a router.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum HostCommand {
    /// Print the state of the daemon.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show groups and connections, updated live.
    #[cfg(feature = "top")]
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Read the configuration again and apply the differences.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Change weights, the latency target, or pause.
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Give a group a larger weight for a time.
    #[command(after_help = BOOST_EXAMPLES)]
    Boost(BoostArgs),
    /// Leave a group next to nothing for a time.
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(TimedArgs),
    /// Begin the quota of a group anew.
    #[command(after_help = RESET_QUOTA_EXAMPLES)]
    ResetQuota(ResetQuotaArgs),
    /// Control for a time, then no more, and compare with how it is without.
    #[command(after_help = TRY_EXAMPLES)]
    Try(TryArgs),
    /// Measure this link for a minute, without control and with it, while downloads run.
    #[command(after_help = TRY_EXAMPLES)]
    Test(TestArgs),
    /// Stop the daemon and remove everything it attached.
    #[command(after_help = OFF_EXAMPLES)]
    Off(OffDevArgs),
}

/// `fairweir host try` and `fairweir router try`.
#[derive(Debug, Args)]
pub(crate) struct TryArgs {
    /// For how long, such as 90s, 10m or 2h; 30s to 1d.
    #[arg(value_name = "SPAN", value_parser = parse_trial)]
    pub(crate) span: Span,
    #[command(flatten)]
    pub(crate) at: TrialArgs,
}

/// `fairweir host test` and `fairweir router test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a picture, as SVG; it has the names of the devices.
    #[cfg(feature = "lab")]
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) at: TrialArgs,
}

/// Where control is tried.
#[derive(Debug, Args)]
pub(crate) struct TrialArgs {
    /// The interface that faces the Internet; a router's is in its configuration.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// The configuration; the default is that of the daemon.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of the stored state; the default is that of the daemon.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

fn parse_trial(text: &str) -> Result<Span, String> {
    const RANGE: std::ops::RangeInclusive<Span> = Span::secs(30)..=Span::secs(24 * 3_600);
    let span = parse_days(text)?;
    RANGE.contains(&span).then_some(span).ok_or_else(|| format!("`{text}` is not 30s to 1d"))
}

/// The commands to the daemon of a router.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum RouterCommand {
    #[command(flatten)]
    Common(HostCommand),
    /// List the devices behind the router: what each receives and sends, and since when it is there.
    #[command(after_help = DEVICES_EXAMPLES)]
    Devices(DevicesArgs),
}

/// `fairweir router devices`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DevicesCommand>,
    #[command(flatten)]
    pub(crate) ask: StatusArgs,
}

/// The commands about devices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DevicesCommand {
    /// Name a device: write it into the configuration, or change its name there.
    #[command(after_help = DEVICES_EXAMPLES)]
    Name(NameArgs),
}

/// `fairweir router devices name`.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Its MAC address, or an IP address that it has now.
    #[arg(value_name = "MAC|ADDRESS", value_parser = Target::parse)]
    pub(crate) target: Target,
    /// Its name from now on.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The WAN interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// How a device is told on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Mac(Mac),
    Address(IpAddr),
}

impl Target {
    fn parse(text: &str) -> Result<Target, String> {
        let address = text.parse().map(Target::Address);
        address.or_else(|_| text.parse().map(Target::Mac)).map_err(|_| {
            format!(
                "`{text}` is neither a MAC address, such as 02:00:5e:00:53:01, nor an IP address"
            )
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Mac(mac) => mac.fmt(f),
            Target::Address(address) => address.fmt(f),
        }
    }
}

/// What the daemons that shape a download have in common.
#[derive(Debug, Args)]
pub(crate) struct LoopArgs {
    /// The control: fairweir, rbm, crab, static, borrow, chokepoint or none; overrides the
    /// configuration.
    #[arg(long, value_parser = parse_control)]
    pub(crate) control: Option<Control>,
    /// Enforce nothing; print the decisions every second.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the dry run as JSON lines.
    #[arg(long, requires = "dry_run")]
    pub(crate) json: bool,
    /// In a dry run, probe the delay of the access link all the same.
    #[arg(long, requires = "dry_run")]
    pub(crate) probe: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// Exit after this time, for programs that start the daemon.
    #[arg(long, hide = true, value_name = "SPAN", value_parser = parse_days)]
    pub(crate) exit_after: Option<Span>,
    /// Start as if this capacity were stored for the network.
    #[arg(long, hide = true, value_name = "RATE", value_parser = parse_capacity)]
    pub(crate) remembered_capacity: Option<Rate>,
    /// Store a learned capacity after this many seconds of use without change.
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) confirmed_after_s: u64,
}

/// `fairweir set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The settings: weight.GROUP=N, latency=SPAN, paused=true; without a value, such as
    /// weight.GROUP=, the value of the configuration files is in force again.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir pause`, and what `fairweir boost` has in common with it.
#[derive(Debug, Args)]
pub(crate) struct TimedArgs {
    /// The group; on a router a device, or a group within it as tv/video.
    #[arg(value_name = "GROUP")]
    pub(crate) group: String,
    /// For how long, such as 90s, 30m, 2h or 3d; 31 days at most.
    #[arg(value_name = "SPAN", value_parser = parse_days, required_unless_present = "end")]
    pub(crate) span: Option<Span>,
    /// End it now.
    #[arg(long, conflicts_with = "span")]
    pub(crate) end: bool,
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir boost`.
#[derive(Debug, Args)]
pub(crate) struct BoostArgs {
    #[command(flatten)]
    pub(crate) timed: TimedArgs,
    /// The weight meanwhile, larger than the configured one; without it four times that.
    #[arg(long, value_name = "N", value_parser = parse_weight, conflicts_with = "end")]
    pub(crate) weight: Option<Weight>,
}

/// `fairweir reset-quota`.
#[derive(Debug, Args)]
pub(crate) struct ResetQuotaArgs {
    /// The group; on a router a device, or a group within it as tv/video.
    #[arg(value_name = "GROUP")]
    pub(crate) group: String,
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

fn parse_weight(text: &str) -> Result<Weight, String> {
    let weight = text.parse().ok().and_then(Weight::new);
    weight.ok_or_else(|| format!("expected a whole number from 1 to {}", Weight::MAX))
}

/// A span, also in days, and with `m` for minutes.
pub(crate) fn parse_days(text: &str) -> Result<Span, String> {
    if let Some(Ok(minutes)) = text.strip_suffix('m').map(str::parse::<u32>) {
        return Ok(Span::secs(u64::from(minutes) * 60));
    }
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days @ 0..=366)) => Ok(Span::secs(days * 24 * 3_600)),
        Some(_) => Err("a number of days is from 0d to 366d".to_owned()),
        None => text.parse::<Span>().map_err(|e| format!("{e}, or days such as 31d")),
    }
}

/// `fairweir status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// Print JSON (docs/reference/status.md).
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir top`.
#[cfg(feature = "top")]
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// `fairweir reload`.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// The interface; required if several daemons run.
    #[arg(long, value_parser = instance::parse)]
    pub(crate) dev: Option<String>,
    /// Check the configuration and say whether anything would change.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

pub(crate) const HOST_EXAMPLES: &str = "Examples:
  sudo fairweir host --dev eth0
  sudo fairweir host --dev eth0 --dry-run
  sudo fairweir host --dev eth0 --config ./fairweir.toml --control static

SIGHUP or a changed file reloads the configuration without interrupting connections.";

pub(crate) const ROUTER_EXAMPLES: &str = "Examples:
  fairweir check /etc/fairweir/router.toml
  sudo fairweir router -c /etc/fairweir/router.toml --dry-run
  sudo fairweir router

A configuration (docs/home/router.md):
  version = 1
  [router]
  lan = \"br-lan\"
  wan = \"wan0\"
  [[device]]
  name = \"tv\"
  weight = 4
  match = [\"mac:02:00:5e:00:53:01\"]";

pub(crate) const STATUS_EXAMPLES: &str = "Examples:
  sudo fairweir host status
  sudo fairweir host status --dev eth0 --json
  sudo fairweir router status";

pub(crate) const TRY_EXAMPLES: &str = "Examples:
  sudo fairweir router try 10m
  sudo fairweir host try 5m --dev eth0
  sudo fairweir router test --json
  sudo fairweir router test --picture link.svg

It lets everything pass for 15 s, controls for the time given (`test`: 30 s), lets everything pass for 15 s again, ends
the control, and prints rates, shares and round trips with control and without. Let downloads run meanwhile: what an
idle link does is not compared. Ctrl-C, a closed terminal and a crash end it at once, and nothing is left. A daemon that
runs already goes on afterwards; it only pauses for the comparison.";

pub(crate) const DEVICES_EXAMPLES: &str = "Examples:
  sudo fairweir router devices
  sudo fairweir router devices --json
  sudo fairweir router devices name 02:00:5e:00:53:01 tv
  sudo fairweir router devices name 192.168.7.5 desk

A device that gets a name gets a share of its own, of weight 1; `fairweir set weight.tv=4` changes it.
Comments in the configuration stay.";

#[cfg(feature = "top")]
pub(crate) const TOP_EXAMPLES: &str = "Examples:
  sudo fairweir top
  sudo fairweir top --dev eth0

Keys: Tab switches between groups and connections, s sorts, arrows and PgUp/PgDn scroll, q quits.";

pub(crate) const RELOAD_EXAMPLES: &str = "Examples:
  sudo fairweir reload
  sudo fairweir reload --dev eth0

It fails, and nothing changes, if the configuration is wrong. `fairweir isp reload` is for the ISP's
daemon.";

pub(crate) const SET_EXAMPLES: &str = "Examples:
  sudo fairweir set weight.video=8
  sudo fairweir set latency=8ms weight.backup=1
  sudo fairweir set paused=true         let all traffic pass unshaped
  sudo fairweir set paused=             resume

The values take effect at once and are stored in conf.d/zz-set.toml.";

pub(crate) const BOOST_EXAMPLES: &str = "Examples:
  sudo fairweir boost video 2h
  sudo fairweir boost video 30m --weight 20
  sudo fairweir boost --end video

It ends by itself, also if the daemon or the machine starts again meanwhile.";

pub(crate) const RESET_QUOTA_EXAMPLES: &str = "Examples:
  sudo fairweir reset-quota tv

Nothing of the period that is counted, such as this month, counts as used any more.";

pub(crate) const PAUSE_EXAMPLES: &str = "Examples:
  sudo fairweir pause backup 30m
  sudo fairweir pause --end backup

A paused group keeps its connections and receives 100 kbit/s at most. It ends by itself.";
