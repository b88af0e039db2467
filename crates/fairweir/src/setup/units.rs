//! The systemd units that `fairweir setup` starts.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use serde::{Deserialize, Serialize};

/// The recorded state of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnitBefore {
    pub(super) name: String,
    pub(super) was_enabled: bool,
    pub(super) was_active: bool,
}

/// This directory exists if systemd runs the machine. Source: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

/// Whether systemd runs this machine.
pub(super) fn are_here() -> bool {
    Path::new(SYSTEMD).exists()
}

/// The present state of a unit.
pub(super) fn look(name: &str) -> UnitBefore {
    let says = |verb: &str| {
        let mut command = Command::new("systemctl");
        command.args([verb, "--quiet", name]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let (was_enabled, was_active) = (says("is-enabled"), says("is-active"));
    UnitBefore { name: name.to_owned(), was_enabled, was_active }
}

/// Enables and starts units; running ones reload their configuration.
///
/// # Errors
/// If systemctl fails.
pub(super) fn start(units: &[UnitBefore]) -> anyhow::Result<()> {
    let names: Vec<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
    systemctl(&[&["enable", "--now"], names.as_slice()].concat())?;
    let running = units.iter().filter(|unit| unit.was_active).map(|unit| unit.name.as_str());
    match running.collect::<Vec<_>>().as_slice() {
        [] => Ok(()),
        running => systemctl(&[&["try-reload-or-restart"], running].concat()),
    }
}

/// Restores the recorded state of a unit, and describes what was done.
///
/// # Errors
/// If systemctl fails.
pub(super) fn restore(unit: &UnitBefore) -> anyhow::Result<Vec<String>> {
    let (now, name) = (look(&unit.name), unit.name.as_str());
    let mut done = Vec::new();
    if now.was_active && !unit.was_active {
        systemctl(&["stop", name])?;
        done.push(format!("stopped {name}"));
    }
    if now.was_enabled && !unit.was_enabled {
        systemctl(&["disable", name])?;
        done.push(format!("disabled {name}"));
    }
    Ok(done)
}

fn systemctl(args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("systemctl").args(args).status().context("cannot run systemctl")?;
    if !status.success() {
        bail!("`systemctl {}` failed", args.join(" "));
    }
    Ok(())
}
