//! fairweir: share a download by weight, from the receiving end.
//!
//! The one binary: the daemon of the receiving host, the commands that talk to it, and the lab.
#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

mod check;
mod cli;
mod config;
mod table;

use cli::{Cli, Subcommand};

/// What every failure exits with, like wrong usage.
const EXIT_FAILURE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.verbose);
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has seen enough.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fairweir: {e:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn run(command: Subcommand) -> anyhow::Result<()> {
    match command {
        Subcommand::Check(args) => check::run(&args),
    }
}

/// `RUST_LOG` decides; without it INFO, `-v` DEBUG, `-vv` TRACE.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
