//! The command lines, as clap reads them.

use std::path::PathBuf;

use clap::Args;
use fairweir_config::Override;
use fairweir_scenario::Control;
use fairweir_scenario::play::Seeds;

use crate::campaign::{CampaignArgs, parallel};

/// The commands for developers.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Play a scenario in the lab and in the simulator and print the differences.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Simulate the experiments of a paper, or of the default control, and check their claims.
    #[command(subcommand)]
    Figures(FiguresCommand),
    /// Simulate random scenarios and score the controls against wfq, none and a physical bound.
    #[command(after_help = CAMPAIGN_EXAMPLES)]
    Campaign(CampaignArgs),
    /// Compare the simulator's results with those of a file, or write the file.
    #[command(after_help = GOLDEN_EXAMPLES)]
    Golden(GoldenArgs),
    /// Play every scenario in the lab and write docs/results/measured.md and its pictures (needs root).
    #[command(after_help = "Examples:\n  sudo fairweir evidence")]
    Evidence(EvidenceArgs),
    /// Play single downloads in the lab and in the simulator and write docs/results/validation.md (needs
    /// root).
    #[command(after_help = "Examples:\n  sudo fairweir validate-tcp")]
    ValidateTcp(ValidateArgs),
    /// Play random links with the default control in the lab and in the simulator and write
    /// docs/results/validation-control.md (needs root).
    #[command(after_help = "Examples:\n  sudo fairweir validate-control\n  \
                            sudo fairweir validate-control --seed 7001..7040")]
    ValidateControl(ValidateControlArgs),
}

/// The sets of figures.
#[derive(Debug, clap::Subcommand)]
pub enum FiguresCommand {
    /// Tahir and Mittal, Enabling Users to Control their Internet (NSDI 2023).
    #[command(after_help = FIGURES_EXAMPLES)]
    Crab(FiguresArgs),
    /// Spring et al., Receiver Based Management of Low Bandwidth Access Links (INFOCOM 2000).
    #[command(after_help = FIGURES_EXAMPLES)]
    Rbm(FiguresArgs),
    /// Tahir et al., Efficient Policy-Rich Rate Enforcement with Phantom Queues (SIGCOMM 2024), and
    /// the targets of `fairweir isp` beyond the paper.
    #[command(after_help = FIGURES_EXAMPLES)]
    Bcpqp(FiguresArgs),
    /// Guirguis and Valdez, Traffic Shaping via Congestion Signals Delegation (Free and Stunts).
    #[command(after_help = FIGURES_EXAMPLES)]
    Fs(FiguresArgs),
    /// Wong et al., Mind Your Own Bandwidth: the credit market, without a network.
    #[command(after_help = FIGURES_EXAMPLES)]
    Myob(FiguresArgs),
    /// The targets of the default control `fairweir`, compared with the other controls.
    #[command(after_help = FIGURES_EXAMPLES)]
    Control(FiguresArgs),
}

/// `fairweir compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The scenario file (docs/research/simulator.md).
    pub(crate) file: PathBuf,
    /// Set a key of the scenario, such as link.rate=47mbit, flow.0.rtt=100ms or
    /// group.video.weight=3; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Override>,
    /// The control; repeatable [default: none, static, wfq, crab and fairweir].
    #[arg(long, value_name = "CONTROL")]
    pub(crate) control: Vec<Control>,
    /// Seeds of the simulator: a number or an inclusive range.
    #[arg(long, value_name = "N", default_value = "1..5")]
    pub(crate) seed: Seeds,
    /// Print JSON: an array with an object for each control.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `fairweir figures`.
#[derive(Debug, Args)]
pub struct FiguresArgs {
    /// The figure by its number; repeatable. Without it, all figures.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) figure: Vec<String>,
    /// Seeds of the simulator: a number or an inclusive range.
    #[arg(long, value_name = "N", default_value = "1..5")]
    pub(crate) seed: Seeds,
    /// Directory of the pictures (SVG), numbers (CSV) and the table [default:
    /// evidence/figures/NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the table of all figures into this document, between its `figures` marks.
    #[arg(long, value_name = "FILE", conflicts_with = "figure")]
    pub(crate) write_docs: Option<PathBuf>,
}

/// `fairweir golden`.
#[derive(Debug, Args)]
pub struct GoldenArgs {
    /// A line for each run: what is played, a hash of its report, a summary.
    pub(crate) file: PathBuf,
    /// Write the results into the file, instead of comparing.
    #[arg(long)]
    pub(crate) write: bool,
    /// Write a file of these scenarios of the campaign, instead of the runs that it has.
    #[arg(long, value_name = "A..B", requires = "write")]
    pub(crate) seed: Option<Seeds>,
    /// The control of these scenarios; repeatable.
    #[arg(long, value_name = "CONTROL", requires = "seed", default_value = "fairweir")]
    pub(crate) control: Vec<Control>,
    /// Number of concurrent simulations [default: one per core].
    #[arg(long, value_name = "N", value_parser = parallel)]
    pub(crate) jobs: Option<usize>,
}

/// `fairweir evidence`.
#[derive(Debug, Args)]
pub struct EvidenceArgs {
    /// Play only this scenario; repeatable. The others keep their rows.
    pub(crate) scenario: Vec<String>,
}

/// `fairweir validate-tcp`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Play only this case in the lab, such as cubic-40ms or step-10; repeatable. Without it, every
    /// case that was not played yet.
    pub(crate) case: Vec<String>,
}

/// `fairweir validate-control`.
#[derive(Debug, Args)]
pub struct ValidateControlArgs {
    /// The scenarios of `fairweir campaign`: a number or an inclusive range. What was played is kept in evidence/.
    #[arg(long, value_name = "N", default_value = "70001..70046")]
    pub(crate) seed: Seeds,
}

const FIGURES_EXAMPLES: &str = "Examples:
  fairweir figures crab
  fairweir figures crab --figure 7 --figure 12 --out /tmp/figures
  fairweir figures crab --seed 1..20 --json
  fairweir figures rbm --figure 2
  fairweir figures bcpqp --figure losses
  fairweir figures fs --figure 3
  fairweir figures control --write-docs docs/control.md";

const CAMPAIGN_EXAMPLES: &str = "Examples:
  fairweir campaign --seed 1..400 --control fairweir --control crab
  fairweir campaign --seed 1..2000 --class jitter --class policed
  fairweir campaign --seed 1001..1400 --control fairweir --control crab \\
    --write-docs docs/campaign.md
  fairweir campaign --seed 1..1600 --class neighbours --duration 160s
  fairweir campaign --seed 1001..1400 --exact
  fairweir campaign --class far --out /tmp/campaign --minimise
  fairweir sim run /tmp/campaign/campaign-17.toml --control none --control fairweir";

const GOLDEN_EXAMPLES: &str = "Examples:
  fairweir golden crates/evidence/golden.txt
  fairweir golden crates/evidence/golden.txt --write
  fairweir golden target/before.txt --write --seed 1..1600
  fairweir golden target/before.txt";

const COMPARE_EXAMPLES: &str = "Examples:
  sudo fairweir compare scenarios/single.toml --control none
  sudo fairweir compare scenarios/crab-fig7-short.toml
  sudo fairweir compare scenarios/single.toml --set flow.0.congestion_control=bbr --json";
