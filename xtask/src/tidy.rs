//! Checks style as a test: format, lints, phrases, and the dependencies between crates.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root;

/// The workspace crates on which each crate may depend. One-way: see docs/develop/architecture.md.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("fairweir-suffixes", &[]),
    ("fairweir-core", &["fairweir-suffixes"]),
    ("fairweir-config", &["fairweir-core"]),
    ("fairweir-daemon", &["fairweir-core", "fairweir-config"]),
    ("fairweir-market", &["fairweir-core", "fairweir-daemon"]),
    ("fairweir-proxy", &["fairweir-core"]),
    ("fairweir-reference", &["fairweir-core"]),
    ("fairweir-scenario", &["fairweir-core", "fairweir-config", "fairweir-reference"]),
    ("fairweir-sim", &["fairweir-core", "fairweir-reference", "fairweir-scenario"]),
    ("fairweir-linux", &["fairweir-core"]),
    ("fairweir-lab", &["fairweir-core", "fairweir-scenario", "fairweir-linux"]),
    (
        "fairweir-evidence",
        &["fairweir-core", "fairweir-config", "fairweir-reference", "fairweir-scenario"],
    ),
    (
        "fairweir",
        &[
            "fairweir-core",
            "fairweir-config",
            "fairweir-daemon",
            "fairweir-market",
            "fairweir-proxy",
            "fairweir-scenario",
            "fairweir-sim",
            "fairweir-linux",
            "fairweir-lab",
            "fairweir-evidence",
        ],
    ),
    // Only tests may depend on it.
    ("fairweir-testing", &["fairweir-linux"]),
    ("xtask", &[]),
];

/// The only crate with `unsafe`: the kernel boundary.
const MAY_BE_UNSAFE: &[&str] = &["fairweir-linux"];

/// Runs the checks of [`run_without_lints`], and the lints.
pub(crate) fn run() -> Result<()> {
    run_without_lints()?;
    crate::run_cargo(&[
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--features",
        "fairweir/evidence",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])
}

/// The checks that need no compiler. `make test` finds the lints while it compiles the tests.
pub(crate) fn run_without_lints() -> Result<()> {
    architecture()?;
    crate::circles::run()?;
    crate::phrases::run()?;
    ignored_tests()?;
    crate::named::run()?;
    crate::documents::run()?;
    crate::run_cargo(&["fmt", "--all", "--check"])
}

/// Tests that `make test` leaves out: `make test-long` runs them, and each says how long it takes.
fn ignored_tests() -> Result<()> {
    let mut faults = Vec::new();
    for path in crate::phrases::files(&root().join("crates"), "rs")? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        for (i, line) in text.lines().map(str::trim).enumerate() {
            if line.starts_with("#[ignore") && !line.starts_with("#[ignore = \"long: ") {
                faults.push(format!("{}:{}: {line}", path.display(), i + 1));
            }
        }
    }
    if !faults.is_empty() {
        bail!("ignored, but not as `long: …` with the time it takes:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn architecture() -> Result<()> {
    let output = crate::cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        check_package(package, &mut faults)?;
    }
    if !faults.is_empty() {
        bail!("architecture:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn check_package(package: &Value, faults: &mut Vec<String>) -> Result<()> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = MAY_DEPEND_ON.iter().find(|(known, _)| *known == name) else {
        faults.push(format!("{name}: say in xtask/src/tidy.rs whom it may depend on"));
        return Ok(());
    };
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["name"].as_str().unwrap_or_default();
        // Dependencies of tests only may point upwards.
        let of_tests = dependency["kind"].as_str() == Some("dev");
        let ours = MAY_DEPEND_ON.iter().any(|(known, _)| *known == on);
        if ours && !of_tests && !allowed.contains(&on) {
            faults.push(format!("{name} must not depend on {on}"));
        }
    }
    for target in package["targets"].as_array().into_iter().flatten() {
        let is_root = target["kind"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|kind| matches!(kind.as_str(), Some("lib" | "bin")));
        let path = target["src_path"].as_str().unwrap_or_default();
        if !is_root || MAY_BE_UNSAFE.contains(&name) {
            continue;
        }
        let source = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
        if !source.contains("#![forbid(unsafe_code)]") {
            faults.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
        }
    }
    Ok(())
}
