//! Checks network interfaces by name.

use std::io::{self, Write};

use fairweir_linux::link;

use crate::exit::Usage;
use fairweir_config::nearest;

/// Error: no interface has this name now.
#[derive(Debug, thiserror::Error)]
#[error("no interface `{dev}`{near}; available: {available}")]
pub(crate) struct NoInterface {
    dev: String,
    near: String,
    available: String,
}

/// Checks that interface `dev` exists. A daemon can be restarted until it does.
///
/// # Errors
/// [`NoInterface`], which lists the existing interfaces.
pub(crate) fn check_exists(dev: &str) -> anyhow::Result<()> {
    let names: Vec<String> = link::all()?.into_iter().map(|link| link.name).collect();
    if names.iter().any(|name| name == dev) {
        return Ok(());
    }
    let near = nearest(dev, names.iter().map(String::as_str));
    let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    let mut available = names[..names.len().min(SHOWN_MAX)].join(", ");
    if let Some(more @ 1..) = names.len().checked_sub(SHOWN_MAX) {
        available.push_str(&format!(" and {more} more"));
    }
    Err(NoInterface { dev: dev.to_owned(), near, available }.into())
}

/// Like [`check_exists`], for a command that runs once: a missing interface is a usage error.
///
/// # Errors
/// [`Usage`].
pub(crate) fn check_named(dev: &str) -> anyhow::Result<()> {
    check_exists(dev).map_err(|e| match e.is::<NoInterface>() {
        true => Usage(e.to_string()).into(),
        false => e,
    })
}

/// Prints a note for each interface that does not exist here: the file may be for another machine.
pub(crate) fn note_missing<'d>(
    out: &mut impl Write,
    devices: impl IntoIterator<Item = &'d String>,
) -> io::Result<()> {
    for dev in devices {
        if let Err(e) = check_exists(dev) {
            writeln!(out, "note: {e}")?;
        }
    }
    Ok(())
}

/// The most interface names in an error message.
const SHOWN_MAX: usize = 20;
