//! Interfaces by name.

use anyhow::bail;
use fairweir_linux::link;

use fairweir_config::nearest;

/// Checks that there is an interface `dev`.
///
/// # Errors
/// If there is no such interface; the message lists those that exist.
pub(crate) fn check_exists(dev: &str) -> anyhow::Result<()> {
    let names: Vec<String> = link::all()?.into_iter().map(|link| link.name).collect();
    if names.iter().any(|name| name == dev) {
        return Ok(());
    }
    let near = nearest(dev, names.iter().map(String::as_str));
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    bail!("no interface `{dev}`{hint}; available: {}", names.join(", "))
}
