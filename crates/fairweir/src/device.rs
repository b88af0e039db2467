//! Interfaces by name.

use std::io::{self, Write};

use fairweir_linux::link;

use crate::exit::Usage;
use fairweir_config::nearest;

/// No interface has this name now.
#[derive(Debug, thiserror::Error)]
#[error("no interface `{dev}`{near}; available: {available}")]
pub(crate) struct NoInterface {
    dev: String,
    near: String,
    available: String,
}

/// Checks that there is an interface `dev`. A daemon may be started again until there is.
///
/// # Errors
/// [`NoInterface`], which lists those that exist.
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

/// The same for a name on the command line of a command that ends: it is wrong.
///
/// # Errors
/// [`Usage`].
pub(crate) fn check_named(dev: &str) -> anyhow::Result<()> {
    check_exists(dev).map_err(|e| match e.is::<NoInterface>() {
        true => Usage(e.to_string()).into(),
        false => e,
    })
}

/// Notes the interfaces that are not here: the file may be for another machine.
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

/// The most names in a message.
const SHOWN_MAX: usize = 20;
