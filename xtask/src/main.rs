//! Project chores: `cargo xtask tidy`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod circles;
mod phrases;
mod tidy;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        other => Err(anyhow::anyhow!(
            "unknown chore `{}`; allowed is `tidy` (format, lints, architecture, circles, phrases)",
            other.unwrap_or("")
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("invariant: xtask lies in the checkout")
}

/// Runs a command in the checkout's root; its output goes where ours goes.
fn run(program: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(program).args(args).current_dir(root()).status();
    let status = status.with_context(|| format!("starting {program}"))?;
    if !status.success() {
        bail!("`{program} {}` failed", args.join(" "));
    }
    Ok(())
}
