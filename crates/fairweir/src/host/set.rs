//! `fairweir set`: changes settings of a running daemon, which stores them in a file of its own ([`super::stored`]).

use std::io::Write;

use fairweir_config::host::Role;
use fairweir_config::host::set::{self, Changes, Setting};
use fairweir_config::text;
use fairweir_daemon::Access;

use super::cli::SetArgs;
use super::client;
use super::wire::{Changed, HostRequest};
use crate::exit::Usage;

pub(crate) fn run(role: Option<Role>, args: &SetArgs) -> anyhow::Result<()> {
    let changes = args.settings.iter().map(|text| change(text)).collect::<Result<Changes, _>>()?;
    set::check(&changes).map_err(Usage)?;
    let mut client =
        client::find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Change)?;
    let changed: Changed = client.ask(&HostRequest::Set { changes })?;
    Ok(writeln!(text::stdout(), "{}", changed.message)?)
}

/// A key and its value in the form of `[set]`; without a value the key is removed.
pub(crate) fn change(text: &str) -> Result<(String, Option<Setting>), Usage> {
    let Some((key, value)) = text.split_once('=') else {
        let what = format!("found `{text}`, expected a key and a value such as weight.video=8");
        return Err(Usage(what));
    };
    let value = match (value, value.parse()) {
        ("", _) => None,
        ("true" | "false", _) => Some(Setting::Truth(value == "true")),
        (_, Ok(number)) => Some(Setting::Number(number)),
        (text, Err(_)) => Some(Setting::Text(text.to_owned())),
    };
    Ok((key.to_owned(), value))
}
