//! `fairweir status`: the state of a running daemon as a table.

use std::io::Write;

use fairweir_daemon::{Access, Request};

use super::cli::StatusArgs;
use super::client::find;
use super::show::{headline, last_reason, notes, print_groups};
use super::wire::Status;
use fairweir_config::host::Role;
use fairweir_config::text;

pub(crate) fn run(role: Option<Role>, args: &StatusArgs) -> anyhow::Result<()> {
    let mut client = find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Read)?;
    let out = &mut text::stdout();
    if args.json {
        let status: serde_json::Value = client.ask(&Request::Status)?;
        writeln!(out, "{status}")?;
        return Ok(());
    }
    let status: Status = client.ask(&Request::Status)?;
    writeln!(out, "{}", headline(&status))?;
    writeln!(out, "{}\n", last_reason(&status))?;
    print_groups(out, &status)?;
    writeln!(out)?;
    for (label, text) in notes(&status) {
        writeln!(out, "{label}: {text}")?;
    }
    Ok(())
}
