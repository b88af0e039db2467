//! `fairweir boost` and `fairweir pause`: change a group of a running daemon for a time ([`super::timed`]);
//! `fairweir reset-quota`.

use std::io::Write;

use fairweir_config::host::Role;
use fairweir_config::text;
use fairweir_daemon::Access;

use super::cli::{BoostArgs, ResetQuotaArgs, TimedArgs};
use super::client;
use crate::daemon_args::RunDir;

use super::wire::{HostRequest, TimedChange};

pub(crate) fn boost(role: Option<Role>, args: &BoostArgs) -> anyhow::Result<()> {
    change(role, &args.timed, TimedChange::Boost { weight: args.weight })
}

pub(crate) fn pause(role: Option<Role>, args: &TimedArgs) -> anyhow::Result<()> {
    change(role, args, TimedChange::Pause)
}

pub(crate) fn reset_quota(role: Option<Role>, args: &ResetQuotaArgs) -> anyhow::Result<()> {
    let request = HostRequest::ResetQuota { group: args.group.clone() };
    tell(role, args.dev.as_deref(), &args.run_dir, &request)
}

fn change(role: Option<Role>, args: &TimedArgs, change: TimedChange) -> anyhow::Result<()> {
    let group = args.group.clone();
    let request = match args.span.filter(|_| !args.end) {
        Some(span) => HostRequest::Timed { group, change, for_s: span.as_secs_f64() as u64 },
        None => HostRequest::EndTimed { group },
    };
    tell(role, args.dev.as_deref(), &args.run_dir, &request)
}

fn tell(
    role: Option<Role>,
    dev: Option<&str>,
    run_dir: &RunDir,
    request: &HostRequest,
) -> anyhow::Result<()> {
    let mut client = client::find(&run_dir.run_dir, role, dev, Access::Change)?;
    Ok(writeln!(text::stdout(), "{}", client.tell(request, &mut |_, _| ())?)?)
}
