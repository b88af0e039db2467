//! `fairweir boost` and `fairweir pause`: change a group of a running daemon for a time ([`super::timed`]).

use std::io::Write;

use fairweir_config::host::Role;
use fairweir_config::text;
use fairweir_daemon::Access;

use super::cli::{BoostArgs, TimedArgs};
use super::client;
use super::wire::{HostRequest, TimedChange};

pub(crate) fn boost(role: Option<Role>, args: &BoostArgs) -> anyhow::Result<()> {
    change(role, &args.timed, TimedChange::Boost { weight: args.weight })
}

pub(crate) fn pause(role: Option<Role>, args: &TimedArgs) -> anyhow::Result<()> {
    change(role, args, TimedChange::Pause)
}

fn change(role: Option<Role>, args: &TimedArgs, change: TimedChange) -> anyhow::Result<()> {
    let group = args.group.clone();
    let request = match args.span.filter(|_| !args.end) {
        Some(span) => HostRequest::Timed { group, change, for_s: span.as_secs_f64() as u64 },
        None => HostRequest::EndTimed { group },
    };
    let mut client =
        client::find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Change)?;
    Ok(writeln!(text::stdout(), "{}", client.tell(&request, &mut |_, _| ())?)?)
}
