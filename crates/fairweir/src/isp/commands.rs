//! The commands that send requests to the daemon.

use std::io::{self, Write};
use std::path::Path;

use anyhow::bail;
use fairweir_config::file::{Rules, Trust};
use fairweir_config::isp::{PlanEntry, SubscriberSpec};
use fairweir_config::{Text, mistakes};
use fairweir_daemon::{Access, Client, Error, Lock, StateDir};
use serde::Serialize;
use serde_json::Value;

use super::asker::{Asker, PATIENCE, is_absent};
use super::cli::{
    AddArgs, ChangeArgs, ImportArgs, IspCommand, ListArgs, MetricsArgs, PlanCommand, PlanFileArgs,
    RevertArgs,
};
use super::journal::{self, Journal};
use super::wire::{Addresses, Imported, Listing, Request};
use super::{NAME, show, top};
use crate::daemon_args::RunDir;
use crate::exit::Usage;
use crate::table::{self, Align};
use crate::words::count;
use fairweir_config::text;

pub(super) fn run(command: &IspCommand) -> anyhow::Result<()> {
    match command {
        IspCommand::Add(args) => add(args),
        IspCommand::Change(args) => change(args),
        IspCommand::Remove(args) => {
            each(&args.run_dir, &args.names, |name| Request::Remove { name })
        }
        IspCommand::List(args) => list(args),
        IspCommand::Show(args) => show::subscriber(args),
        IspCommand::Unpoliced(args) => show::unpoliced(args),
        IspCommand::Import(args) => import(args),
        IspCommand::Plan(PlanCommand::Add(args)) => plans(args, |plan| Request::AddPlan { plan }),
        IspCommand::Plan(PlanCommand::Change(args)) => {
            plans(args, |plan| Request::ChangePlan { plan })
        }
        IspCommand::Plan(PlanCommand::Remove(args)) => {
            each(&args.run_dir, &args.names, |name| Request::RemovePlan { name })
        }
        IspCommand::Plan(PlanCommand::List(args)) => show::plans(args),
        IspCommand::Reload(args) => {
            let (dry_run, force) = (args.dry_run, args.force);
            tell(&args.run_dir, &fairweir_daemon::Request::Reload { dry_run, force })
        }
        IspCommand::Revert(args) => revert(args),
        IspCommand::Off(args) => crate::off::one(args, NAME),
        IspCommand::Status(args) => show::status(args),
        IspCommand::Top(args) => top::run(args),
        IspCommand::Metrics(args) => metrics(args),
        IspCommand::Usage(args) => tell(&args.run_dir, &Request::Usage),
    }
}

fn tell(run_dir: &RunDir, request: &impl Serialize) -> anyhow::Result<()> {
    let message = Asker::connect(run_dir, Access::Change)?.tell(request)?;
    Ok(super::say(&message)?)
}

fn each(
    run_dir: &RunDir,
    names: &[String],
    request: impl Fn(String) -> Request,
) -> anyhow::Result<()> {
    let mut asker = Asker::connect(run_dir, Access::Change)?;
    for name in names {
        let message = asker.tell(&request(name.clone()))?;
        super::say(&format!("{name}: {message}"))?;
    }
    Ok(())
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let addresses =
        Addresses::parse(&args.address).map_err(|e| Usage(format!("--address: {e}")))?;
    let subscriber =
        SubscriberSpec { name: args.name.clone(), addresses: addresses.0, plan: args.plan.clone() };
    tell(&args.run_dir, &Request::Add { subscriber })
}

fn change(args: &ChangeArgs) -> anyhow::Result<()> {
    let addresses = match args.address.as_slice() {
        [] => None,
        texts => Some(Addresses::parse(texts).map_err(|e| Usage(format!("--address: {e}")))?),
    };
    let (name, plan) = (args.name.clone(), args.plan.clone());
    tell(&args.run_dir, &Request::Change { name, addresses, plan })
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let out = &mut io::BufWriter::new(text::stdout());
    let mut after = None;
    let mut is_first = true;
    loop {
        let request = Request::List { plan: args.plan.clone(), after, limit: None };
        let listing: Listing = asker.ask(&request)?;
        if args.json {
            for subscriber in &listing.subscribers {
                writeln!(out, "{subscriber}")?;
            }
        } else if is_first || !listing.subscribers.is_empty() {
            print_list(out, &listing.subscribers)?;
        }
        is_first = false;
        after = listing.after;
        if after.is_none() {
            return Ok(out.flush()?);
        }
    }
}

fn print_list(out: &mut impl Write, subscribers: &[Value]) -> io::Result<()> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    let row = |s: &Value| {
        let origin = text(&s["origin"]).replace('_', " ");
        vec![text(&s["name"]), text(&s["plan"]), origin, text(&s["addresses"])]
    };
    let headings = [
        ("SUBSCRIBER", Align::Left),
        ("PLAN", Align::Left),
        ("SAID BY", Align::Left),
        ("ADDRESSES", Align::Left),
    ];
    table::print(out, &headings, &subscribers.iter().map(row).collect::<Vec<_>>())
}

fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let table = read_any(&args.file)?.as_str().to_owned();
    let (dry_run, skip_bad) = (args.dry_run, args.skip_bad);
    let access = if dry_run { Access::Read } else { Access::Change };
    let mut asker = Asker::connect(&args.run_dir, access)?;
    let imported: Imported = asker.ask(&Request::Import { table, dry_run, skip_bad })?;
    let out = &mut text::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&imported)?)?;
    } else {
        for bad in &imported.bad_rows {
            writeln!(out, "{}:{bad}", args.file.display())?;
        }
        let unsaid = imported.bad - imported.bad_rows.len();
        if unsaid > 0 {
            writeln!(out, "and {} more", count(unsaid, "bad row"))?;
        }
        if imported.ok {
            let bad = match imported.bad {
                0 => String::new(),
                n => format!(", {} left out", count(n, "bad row")),
            };
            writeln!(out, "{}{bad}", imported.message)?;
        }
    }
    if imported.ok { Ok(()) } else { bail!("{}", imported.message) }
}

fn plans(args: &PlanFileArgs, request: impl Fn(Value) -> Request) -> anyhow::Result<()> {
    let text = read_any(&args.file)?;
    let shown = args.file.display().to_string();
    let plans = mistakes::all(text.as_str().len(), |mends| {
        let mut top = text.source(&[]).mended(mends).top()?;
        let _ = top.integer("version", 1, 1)?;
        let mut plans = Vec::new();
        for mut table in top.tables("plan")? {
            plans.push(PlanEntry::read(&mut table)?);
            table.finish()?;
        }
        top.finish()?;
        Ok(plans)
    })?;
    if plans.is_empty() {
        bail!("{shown}: no [[plan]] table");
    }
    let mut asker = Asker::connect(&args.run_dir, Access::Change)?;
    for plan in plans {
        super::say(&asker.tell(&request(plan.to_json()))?)?;
    }
    Ok(())
}

fn revert(args: &RevertArgs) -> anyhow::Result<()> {
    let request = Request::Revert { names: args.names.clone(), all: args.all };
    let dir = &args.run_dir.run_dir;
    match Client::connect(dir, NAME, Access::Change, PATIENCE) {
        Ok(client) => Ok(super::say(&Asker { client }.tell(&request)?)?),
        Err(Error::NotRunning { source, .. }) if is_absent(&source) => {
            // A dry run creates neither a lock nor a journal.
            journal::look(&StateDir::new(&args.state.state_dir))?
                .0
                .revert(&args.names, args.all)?;
            // A daemon that starts now waits for this lock before it reads the journal.
            let _lock = Lock::acquire(dir, NAME)?;
            let (mut journal, mut overlay) = Journal::open(StateDir::new(&args.state.state_dir))?;
            overlay.revert(&args.names, args.all)?;
            journal.rewrite(&overlay.into_edits())?;
            Ok(super::say("no daemon runs; the next start reads the files alone")?)
        }
        Err(e) => Err(e.into()),
    }
}

fn metrics(args: &MetricsArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let text: String = asker.ask(&fairweir_daemon::Request::Metrics { top: args.top })?;
    Ok(text::stdout().write_all(text.as_bytes())?)
}

/// The largest table, in bytes: two million subscribers with two addresses each fit.
const FILE_BYTES_MAX: u64 = 256 << 20;

fn read_any(path: &Path) -> anyhow::Result<Text> {
    if path == Path::new("-") {
        return Ok(Text::read_stdin(FILE_BYTES_MAX)?);
    }
    let rules = Rules { bytes_max: FILE_BYTES_MAX, trust: Trust::ANYBODY, if_missing: "" };
    Ok(Text::read(path, &rules)?)
}
