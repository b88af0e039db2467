//! `fairweir reload`: a running daemon reads its configuration again.

use std::io::Write;

use anyhow::bail;

use crate::cli::ReloadArgs;
use crate::client::Client;
use crate::text;
use crate::wire::{Outcome, Request};

/// Waits for the outcome, so that `systemctl reload` fails when the configuration is wrong.
///
/// # Errors
/// What is wrong with the configuration, or that no daemon answers.
pub(crate) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    let mut client = Client::find(&args.run_dir.run_dir, args.dev.as_deref())?;
    let outcome: Outcome = client.request(Request::Reload)?;
    if !outcome.ok {
        bail!("{}", outcome.message);
    }
    writeln!(text::stdout(), "{}", outcome.message)?;
    Ok(())
}
