//! The command line of `fairweir campaign`, as clap reads it.

use std::path::PathBuf;

use clap::Args;
use fairweir_core::units::Span;
use fairweir_scenario::Control;
use fairweir_scenario::play::Seeds;

use super::Class;

/// `fairweir campaign`.
#[derive(Debug, Args)]
pub struct CampaignArgs {
    /// The scenarios: a number or an inclusive range. A seed always gives the same scenario.
    #[arg(long, value_name = "N", default_value = "1..400")]
    pub(crate) seed: Seeds,
    /// The control; repeatable [default: fairweir]. wfq and none are always played.
    #[arg(long, value_name = "CONTROL")]
    pub(crate) control: Vec<Control>,
    /// Play only the seeds of this class; repeatable. docs/campaign.md lists the classes.
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Vec<Class>,
    /// Length of each run; without it a run carries at most 6 Gbit. A steady state shows only
    /// after minutes.
    #[arg(long, value_name = "TIME", conflicts_with = "write_docs")]
    pub(crate) duration: Option<Span>,
    /// Tell fairweir in each tick what the link carries and what RTTs are without queues, which no host can
    /// measure: what better measurements of these gain. Without policers, neighbours and second hosts.
    #[arg(long, conflicts_with_all = ["write_docs", "out"])]
    pub(crate) exact: bool,
    /// Number of concurrent simulations [default: one per core].
    #[arg(long, value_name = "N", value_parser = parallel)]
    pub(crate) jobs: Option<usize>,
    /// How many of the worst scenarios to list for each control.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) worst: usize,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the scenario files of failures, all numbers and a picture into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Reduce the worst scenario of each of the largest clusters of failures to the smallest file
    /// that still fails, and write it into the directory of --out.
    #[arg(long, requires = "out")]
    pub(crate) minimise: bool,
    /// Write the tables into this document, between its `figures` marks, and the picture next to it.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_docs: Option<PathBuf>,
}

/// A number of threads.
pub(crate) fn parallel(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number above 0".to_owned())
}
