//! The commands that play scenario files: the lab, the simulator and the demonstration.

use std::path::PathBuf;

use clap::Args;
use fairweir_config::Override;
#[cfg(feature = "demo")]
use fairweir_core::units::Span;
use fairweir_scenario::Control;
use fairweir_scenario::play::Seeds;

/// The subcommands of `lab`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Play a scenario with one or more controls and seeds.
    #[command(after_help = LAB_RUN_EXAMPLES)]
    Run(LabRunArgs),
    /// Check a scenario and list its events.
    #[command(after_help = LAB_CHECK_EXAMPLES)]
    Check(ScenarioCheckArgs),
}

/// The subcommands of `sim`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SimCommand {
    /// Play a scenario with one or more controls and seeds.
    #[command(after_help = SIM_RUN_EXAMPLES)]
    Run(PlayArgs),
    /// Check a scenario and list its events.
    #[command(after_help = SIM_CHECK_EXAMPLES)]
    Check(ScenarioCheckArgs),
}

/// `fairweir demo`.
#[cfg(feature = "demo")]
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How long to play, 10s to 3600s.
    #[arg(long, default_value = "120s", value_parser = str::parse::<Span>)]
    pub(crate) duration: Span,
    /// The page's port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0, value_parser = crate::daemon_args::port)]
    pub(crate) port: u16,
    /// Print the link only.
    #[arg(long)]
    pub(crate) no_browser: bool,
}

/// `fairweir lab run`.
#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    #[command(flatten)]
    pub(crate) play: PlayArgs,
    /// Accept valid plays only: wait up to a minute until this machine is idle, repeat a void play up to 3 times,
    /// and fail without writing files if one stays void. A play is void if the machine was too slow for it.
    #[arg(long)]
    pub(crate) valid_only: bool,
}

/// `fairweir sim run`, and part of `fairweir lab run`.
#[derive(Debug, Args)]
pub(crate) struct PlayArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    /// The control: none, static, borrow, wfq, chokepoint, rbm, crab, crab-printed or fairweir;
    /// repeatable.
    #[arg(long, value_name = "CONTROL", default_value = "fairweir")]
    pub(crate) control: Vec<Control>,
    /// The seed instead of the scenario's: a number, or an inclusive range such as 1..20;
    /// repeatable.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Vec<Seeds>,
    /// Print JSON: an object, or an array for several controls or seeds.
    #[arg(long)]
    pub(crate) json: bool,
    /// Add the rates over time to the JSON.
    #[arg(long, requires = "json")]
    pub(crate) series: bool,
    /// Write a picture (SVG), the rates over time (CSV) and the reports (JSON) to this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The number of concurrent runs; by default chosen for this machine.
    #[arg(long, value_name = "N", value_parser = crate::daemon_args::whole_usize::<1, 1024>)]
    pub(crate) parallel: Option<usize>,
}

/// A scenario file and changes to it.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    /// The scenario file (docs/research/simulator.md).
    pub(crate) file: PathBuf,
    /// Set a key of the scenario, such as link.rate=47mbit, flow.0.rtt=100ms or
    /// group.video.weight=3; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Override>,
}

/// `fairweir sim check` and `fairweir lab check`.
#[derive(Debug, Args)]
pub(crate) struct ScenarioCheckArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "demo")]
pub(super) const DEMO_EXAMPLES: &str = "Examples:
  sudo fairweir demo
  sudo fairweir demo --duration 600s --no-browser

Nothing of this machine is changed, and nothing is left. Ctrl-C ends it.";

const LAB_RUN_EXAMPLES: &str = "Examples:
  sudo fairweir lab run scenarios/demo.toml --control none --control fairweir --control wfq
  sudo fairweir lab run scenarios/crab-fig7-short.toml --json --series
  sudo fairweir lab run scenarios/demo.toml --valid-only --out /tmp/demo";

const LAB_CHECK_EXAMPLES: &str = "Examples:
  fairweir lab check scenarios/demo.toml";

const SIM_RUN_EXAMPLES: &str = "Examples:
  fairweir sim run scenarios/demo.toml --control none --control fairweir --control wfq
  fairweir sim run scenarios/crab-fig7.toml --seed 1..20 --out /tmp/fig7
  fairweir sim run scenarios/demo.toml --set link.rate=47mbit --set group.video.weight=3 --json";

const SIM_CHECK_EXAMPLES: &str = "Examples:
  fairweir sim check scenarios/demo.toml
  fairweir sim check scenarios/demo.toml --set link.rate=47mbit";
