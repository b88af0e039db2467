//! The commands of a household: enrolment, and requests to the running agent.

use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use fairweir_config::file;
use fairweir_daemon::{Access, StateDir};
use fairweir_market::client::{Client, address_of};
use fairweir_market::identity::{Enrolment, Identity};
use serde_json::Value;

use super::{NAME, Request};
use crate::daemon_args::{AskArgs, connect};
use crate::exit::Usage;
use crate::market::cli::{BoostArgs, EnrolArgs, HolidayArgs, LeaveArgs};
use crate::market::say;

/// The size limit of an authority's certificate, in bytes.
const AUTHORITY_SIZE_MAX: u64 = 64 << 10;
/// The size limit of a code, in bytes.
const CODE_MAX: u64 = 256;

pub(in crate::market) fn enrol(args: &EnrolArgs) -> anyhow::Result<()> {
    let mut code = args.code.clone();
    if code == "-" {
        code.clear();
        io::stdin().lock().take(CODE_MAX).read_to_string(&mut code)?;
    }
    let (host, _) = args.server.rsplit_once(':').ok_or_else(|| {
        let server = &args.server;
        Usage(format!("--server: `{server}` has no port; expected HOST:PORT such as {server}:7443"))
    })?;
    let name = args.name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
    let authority = file::read_own(&args.authority, AUTHORITY_SIZE_MAX)?;
    let authority = authority.ok_or_else(|| {
        let path = args.authority.display();
        Usage(format!("--authority: no file {path}; the operator of the market gives it to you"))
    })?;
    let dir = StateDir::new(&args.state_dir);
    let _lock = dir.lock().context("an agent is running; stop it first")?;
    if let Some(had) = Enrolment::load(&dir)?
        && !args.replace
    {
        bail!(
            "this gateway is enrolled as {} at {}; with --replace it gives that up, and its key is lost",
            had.gateway,
            had.server
        );
    }
    let mut identity = Identity::generate()?;
    let client = Client::new(address_of(&args.server)?, name, identity.client_config(&authority)?)?;
    let gateway = client.enrol(&mut identity, code.trim())?;
    Enrolment::new(&args.server, name, &authority, &gateway, &identity).store(&dir)?;
    say(&format!("enrolled as {gateway}; start `fairweir market agent`"))
}

pub(in crate::market) fn leave(args: &LeaveArgs) -> anyhow::Result<()> {
    let dir = StateDir::new(&args.state_dir);
    let _lock = dir.lock().context("an agent is running; stop it first")?;
    let Some(enrolment) = Enrolment::load(&dir)? else {
        bail!("this gateway has not enrolled");
    };
    Client::of(&enrolment)?.ask("POST", "/v1/leave", None)?;
    Enrolment::remove(&dir)?;
    say(&format!("{} left {}", enrolment.gateway, enrolment.server))
}

pub(in crate::market) fn boost(args: &BoostArgs) -> anyhow::Result<()> {
    let minutes = if args.off { 0 } else { args.minutes as u32 };
    tell(&args.run_dir.run_dir, &Request::Boost { kind: args.kind.clone(), minutes })
}

pub(in crate::market) fn holiday(args: &HolidayArgs) -> anyhow::Result<()> {
    let days = if args.off { 0 } else { args.days as u32 };
    tell(&args.run_dir.run_dir, &Request::Holiday { days })
}

fn tell(run_dir: &Path, request: &Request) -> anyhow::Result<()> {
    let mut client = connect(run_dir, NAME, Access::Change)?;
    let message = client.tell(request, &mut |_, _| ())?;
    say(&message)
}

pub(in crate::market) fn why(args: &AskArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.run_dir.run_dir, NAME, Access::Read)?;
    let status: Value = client.ask(&fairweir_daemon::Request::Status)?;
    if args.json {
        return say(&serde_json::to_string_pretty(&status)?);
    }
    let sentences = status["why"].as_array().into_iter().flatten().filter_map(Value::as_str);
    say(&sentences.collect::<Vec<_>>().join("\n"))
}
