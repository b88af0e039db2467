//! Project chores: `cargo xtask tidy [no-lints]`, `cargo xtask judge [RECORD | again CARGO-ARGUMENTS]`,
//! `cargo xtask constants [NAME ...]`, `cargo xtask count`, `cargo xtask draw COUNT SEED`, `cargo xtask sbom DIR [static]`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod circles;
mod constants;
mod count;
mod documents;
mod draw;
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
        ["draw", count, seed] => count
            .parse()
            .context(count.to_owned())
            .and_then(|count| draw::run(count, seed.parse().context(seed.to_owned())?)),
        ["sbom", out] => sbom::run(Path::new(out), false),
        ["sbom", out, "static"] => sbom::run(Path::new(out), true),
        _ => Err(anyhow::anyhow!(
            "unknown chore `{}`; allowed are `tidy [no-lints]` (format, lints, architecture, circles, \
             phrases, paths, documents), `judge [RECORD | again CARGO-ARGUMENTS]` (the table of judgements), `count` \
             (lines and words), `draw COUNT SEED` (paragraphs to be restated), `constants [NAME ...]` (which constants of the control the golden \
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

/// Cargo in the checkout's root, without the variables that cargo sets for a program of a package:
/// build scripts that read them (ring's), and all that depends on them, would be built again.
fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root());
    let is_of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs cargo; its output goes to this process's output.
fn run_cargo(args: &[&str]) -> Result<()> {
    let status = cargo().args(args).status().context("starting cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed", args.join(" "));
    }
    Ok(())
}
