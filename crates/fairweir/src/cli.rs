//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser};

use crate::config;

/// Share a download by weight, from the receiving end.
///
/// What arrives over the access link is divided among the groups that you name (applications,
/// users, addresses, ports), although its queue stands at the ISP.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Say more on stderr (-v: every tick, -vv: everything); RUST_LOG overrides it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

/// What can be done.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Check a configuration and say what was understood.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
}

/// `fairweir check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration; conf.d/*.toml beside it are merged.
    #[arg(default_value = config::DEFAULT_PATH)]
    pub(crate) file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "Examples:
  sudo fairweir init --dev eth0        watch for a minute, write a first configuration
  sudo fairweir host --dev eth0        share the download of eth0
  fairweir top                         watch it live
  sudo fairweir off                    stop, and leave nothing behind";

const CHECK_EXAMPLES: &str = "Examples:
  fairweir check
  fairweir check ./fairweir.toml --json";
