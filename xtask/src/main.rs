//! Project chores: `cargo xtask tidy [no-lints]`, `cargo xtask judge [RECORD | again CARGO-ARGUMENTS]`,
//! `cargo xtask constants [NAME ...]`, `cargo xtask count`, `cargo xtask sbom DIR [static]`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod circles;
mod constants;
mod count;
mod documents;
mod judge;
mod named;
mod phrases;
mod sbom;
mod tidy;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["tidy"] => tidy::run(),
        ["tidy", "no-lints"] => tidy::run_without_lints(),
        ["judge"] => judge::run(None),
        ["judge", "again", ref tests @ ..] => judge::again(tests),
        ["judge", record] => judge::run(Some(record)),
        ["constants", ref only @ ..] => constants::run(only),
        ["count"] => count::run(),
        ["sbom", out] => sbom::run(Path::new(out), false),
        ["sbom", out, "static"] => sbom::run(Path::new(out), true),
        _ => Err(anyhow::anyhow!(
            "unknown chore `{}`; allowed are `tidy [no-lints]` (format, lints, architecture, circles, \
             phrases, paths, documents), `judge [RECORD | again CARGO-ARGUMENTS]` (the table of judgements), `count` \
             (lines and words), `constants [NAME ...]` (which constants of the control the golden \
             holds) and `sbom DIR [static]`",
            arguments.join(" ")
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
