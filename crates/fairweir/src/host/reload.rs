//! `fairweir reload`: a running daemon reads its configuration again.

use std::io::Write;

use fairweir_daemon::{Access, Request};

use super::cli::ReloadArgs;
use super::client::find;
use fairweir_config::host::Role;
use fairweir_config::text;

/// Waits for the result, so that `systemctl reload` fails if the configuration is wrong.
///
/// # Errors
/// The mistake in the configuration, or that no daemon answers.
pub(crate) fn run(role: Option<Role>, args: &ReloadArgs) -> anyhow::Result<()> {
    let mut client = find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Change)?;
    let message =
        client.tell(&Request::Reload { dry_run: args.dry_run, force: false }, &mut |_, _| ())?;
    writeln!(text::stdout(), "{message}")?;
    Ok(())
}
