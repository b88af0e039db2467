//! The operator's requests to a market: codes, households, rules, backups.

use std::ops::RangeBounds;
use std::path::Path;

use anyhow::{Context as _, bail};
use fairweir_config::text;
use fairweir_core::market::ledger::Credits;
use fairweir_core::units::Rate;
use fairweir_daemon::{Access, Peer, StateDir};
use fairweir_market::api::now_s;
use fairweir_market::book::{Book, Event, Refused};
use fairweir_market::identity::{Authority, new_code};
use fairweir_market::keeper::{Keeper, Session};
use fairweir_market::store::{self, Database, Pruned};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::info;

use super::cli::{
    BackupArgs, ChangeArgs, CodeArgs, HOURS_MAX, NamedArgs, PruneArgs, RestoreArgs, RevokeArgs,
};
use super::{NAME, PATIENCE, say};
use crate::daemon_args::{AskArgs, RunDir, connect_patiently};
use crate::exit::Usage;
use crate::table::{self, Align};
use crate::words::{count, mbit};

/// Requests other than status, reload, metrics and off.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// The reply is the code.
    Code { contract: String, peak: Option<Rate>, hours: u64 },
    /// The reply lists the open codes, without the codes themselves.
    Codes,
    /// Ends the open codes of a contract. The reply is their number.
    Revoke { contract: String },
    /// The reply has a row for each household.
    Households,
    /// The reply has the household's row, bids and statements.
    Show { name: String },
    /// Removes a household, by its contract or pseudonym. The reply is its row.
    Remove { name: String },
    /// Changes the rules from the open slot onwards.
    Change { capacity: Option<Rate>, floor: Option<u64>, cap: Option<Credits> },
    /// From now on closes no slot and accepts no bid. The reply says whether that changed anything, and the open slot.
    Pause,
    /// Continues with the first slot whose bids have not ended. The reply is as for `Pause`.
    Resume,
    /// Changes the rate of a household's plan from the open slot onwards; `None` means no bound.
    Plan { name: String, peak: Option<Rate> },
}

impl Request {
    pub(super) fn access(&self) -> Access {
        match self {
            Request::Codes | Request::Households | Request::Show { .. } => Access::Read,
            Request::Code { .. }
            | Request::Revoke { .. }
            | Request::Remove { .. }
            | Request::Change { .. }
            | Request::Pause
            | Request::Resume
            | Request::Plan { .. } => Access::Change,
        }
    }
}

/// Handles a request; the reply is JSON.
pub(super) fn answer(keeper: &Keeper, request: Request, peer: Peer) -> anyhow::Result<Value> {
    let change = (request.access() == Access::Change).then(|| format!("{request:?}"));
    let done = match request {
        Request::Code { contract, peak, hours } => issue(keeper, contract, peak, hours)?,
        Request::Codes => {
            keeper.ask(|session| json!(session.book().codes().collect::<Vec<_>>()))?
        }
        Request::Households => keeper.ask(|session| json!(rows(session, ..)))?,
        Request::Show { name } => keeper.ask(move |session| shown(session, &name))??,
        Request::Revoke { contract } => {
            let ended = keeper.ask(move |session| {
                let ended = session.book().revoking(|code| code.contract == contract);
                ended.iter().try_for_each(|e| session.apply(e.clone())).map(|()| ended.len())
            })??;
            json!(ended)
        }
        Request::Remove { name } => keeper.ask(move |session| -> anyhow::Result<Value> {
            let seat = session.book().seat_of(&name)?;
            let row = row(session, seat);
            let gateway = session.book().gateways()[seat].name.clone();
            session.apply(Event::Leave { gateway, at_s: now_s() })?;
            Ok(row)
        })??,
        Request::Change { capacity, floor, cap } => keeper.ask(move |session| {
            session.apply(Event::Change { capacity, floor_percent: floor, cap })?;
            session.book().rules().map(|rules| json!(rules))
        })??,
        Request::Pause => keeper.ask(|session| go(session, Event::Pause))??,
        Request::Resume => keeper.ask(|session| {
            let open = session.book().rules()?.open_at(now_s()).max(session.book().open_slot());
            go(session, Event::Resume { open })
        })??,
        Request::Plan { name, peak } => keeper.ask(move |session| -> anyhow::Result<Value> {
            check_peak(peak)?;
            let seat = session.book().seat_of(&name)?;
            let gateway = session.book().gateways()[seat].name.clone();
            session.apply(Event::Plan { gateway, peak })?;
            Ok(row(session, seat))
        })??,
    };
    if let Some(change) = change {
        info!(uid = peer.uid, "{change}");
    }
    Ok(done)
}

/// Pauses or resumes.
fn go(session: &mut Session<'_>, event: Event) -> Result<Value, Refused> {
    let was_paused = session.book().is_paused();
    session.apply(event)?;
    let book = session.book();
    let (slot, is_new) = (book.open_slot(), book.is_paused() != was_paused);
    let begins_s = book.rules()?.begins_s(slot);
    Ok(json!({ "changed": is_new, "open_slot": slot, "begins_s": begins_s }))
}

fn issue(
    keeper: &Keeper,
    contract: String,
    peak: Option<Rate>,
    hours: u64,
) -> anyhow::Result<Value> {
    if contract.chars().any(char::is_control) {
        bail!("a contract has no control characters");
    }
    check_peak(peak)?;
    if !(1..=HOURS_MAX).contains(&hours) {
        bail!("a code is valid for 1 to {HOURS_MAX} hours");
    }
    let code = new_code()?;
    let hash = fairweir_market::code_hash(&code);
    let now_s = now_s();
    let event = Event::Code { hash, contract, peak, until_s: now_s + hours * 3_600 };
    keeper.ask(move |session| {
        // Otherwise expired codes would eventually leave no room for new ones.
        for expired in session.book().revoking(|code| code.until_s < now_s) {
            session.apply(expired)?;
        }
        session.apply(event)
    })??;
    Ok(json!(code))
}

fn check_peak(peak: Option<Rate>) -> anyhow::Result<()> {
    if peak == Some(Rate::ZERO) {
        bail!("the plan's rate must be positive");
    }
    Ok(())
}

fn row(session: &Session<'_>, seat: usize) -> Value {
    rows(session, seat..=seat).remove(0)
}

/// The rows of the households with these seats.
fn rows(session: &Session<'_>, seats: impl RangeBounds<usize>) -> Vec<Value> {
    let book = session.book();
    let leases = book.leases();
    let row = |(seat, gateway): (usize, &fairweir_market::book::Gateway)| {
        json!({
            "contract": gateway.contract(),
            "gateway": gateway.name,
            "balance": book.balances()[seat],
            "rate_bps": leases.as_ref().map(|leases| leases.rates[seat].rate),
            "peak_bps": gateway.peak(),
            "bids_ahead": gateway.bids().count(),
            "heard_s": session.present.heard.get(&gateway.name),
        })
    };
    let all = book.gateways().iter().enumerate();
    all.filter(|(seat, _)| seats.contains(seat)).map(row).collect()
}

fn shown(session: &Session<'_>, name: &str) -> anyhow::Result<Value> {
    let seat = session.book().seat_of(name)?;
    let mut row = row(session, seat);
    let gateway = &session.book().gateways()[seat];
    row["bids"] = json!(gateway.bids().collect::<Vec<_>>());
    let dated = |(slot, statement)| json!({ "slot": slot, "statement": statement });
    row["statements"] = gateway.statements().copied().map(dated).collect();
    Ok(row)
}

pub(super) fn code(args: &CodeArgs) -> anyhow::Result<()> {
    let CodeArgs { contract, peak, hours, run_dir } = args;
    let request = Request::Code { contract: contract.clone(), peak: *peak, hours: *hours };
    say(&ask::<String>(run_dir, &request)?)
}

pub(super) fn codes(args: &AskArgs) -> anyhow::Result<()> {
    let codes: Vec<Value> = ask(&args.run_dir, &Request::Codes)?;
    if args.json {
        return say(&json!(codes).to_string());
    }
    let row = |code: &Value| {
        let left_s = code["until_s"].as_u64().unwrap_or_default().saturating_sub(now_s());
        vec![word(&code["contract"]), rate(&code["peak"]), format!("{} h", left_s.div_ceil(3_600))]
    };
    let headings = [("CONTRACT", Align::Left), ("PLAN", Align::Right), ("ENDS IN", Align::Right)];
    print(&headings, codes.iter().map(row).collect())
}

pub(super) fn revoke(args: &RevokeArgs) -> anyhow::Result<()> {
    let RevokeArgs { contract, run_dir } = args;
    match ask::<usize>(run_dir, &Request::Revoke { contract: contract.clone() })? {
        0 => bail!("there is no open code of `{contract}`; `fairweir market codes` lists them"),
        ended => say(&format!("{} ended", count(ended, "code"))),
    }
}

pub(super) fn households(args: &AskArgs) -> anyhow::Result<()> {
    let households: Vec<Value> = ask(&args.run_dir, &Request::Households)?;
    if args.json {
        return say(&json!(households).to_string());
    }
    let row = |h: &Value| {
        vec![
            word(&h["contract"]),
            word(&h["gateway"]),
            credits(&h["balance"]),
            rate(&h["rate_bps"]),
            rate(&h["peak_bps"]),
            h["bids_ahead"].to_string(),
            heard(h),
        ]
    };
    let headings = [
        ("CONTRACT", Align::Left),
        ("GATEWAY", Align::Left),
        ("CREDITS", Align::Right),
        ("RATE", Align::Right),
        ("PLAN", Align::Right),
        ("BIDS", Align::Right),
        ("HEARD", Align::Right),
    ];
    print(&headings, households.iter().map(row).collect())
}

pub(super) fn show(args: &NamedArgs) -> anyhow::Result<()> {
    let household: Value = ask(&args.run_dir, &Request::Show { name: args.name.clone() })?;
    if args.json {
        return say(&household.to_string());
    }
    say(&format!("{}; heard: {}", line(&household), heard(&household)))?;
    let row = |dated: &Value| {
        let s = &dated["statement"];
        let amounts = ["opening", "spent", "received", "closing"].map(|key| credits(&s[key]));
        [vec![dated["slot"].to_string()], amounts.to_vec()].concat()
    };
    let names = ["SLOT", "BEFORE", "SPENT", "RECEIVED", "AFTER"];
    let statements = household["statements"].as_array().into_iter().flatten();
    print(&names.map(|name| (name, Align::Right)), statements.map(row).collect())
}

pub(super) fn remove(args: &NamedArgs) -> anyhow::Result<()> {
    let household: Value = ask(&args.run_dir, &Request::Remove { name: args.name.clone() })?;
    if args.json {
        return say(&household.to_string());
    }
    say(&format!("removed {}", line(&household)))
}

pub(super) fn change(args: &ChangeArgs) -> anyhow::Result<()> {
    let ChangeArgs { capacity, floor, cap, household, peak, run_dir } = args;
    if let Some(name) = household {
        let request = Request::Plan { name: name.clone(), peak: *peak };
        return say(&line(&ask::<Value>(run_dir, &request)?));
    }
    let cap = cap.map(Credits::whole);
    let request = Request::Change { capacity: *capacity, floor: *floor, cap };
    let rules: Value = ask(run_dir, &request)?;
    say(&format!(
        "from the open slot on: capacity {}, floor {} %, cap {} credits",
        rate(&rules["terms"]["capacity"]),
        rules["terms"]["floor_percent"],
        credits(&rules["cap"])
    ))
}

pub(super) fn pause(args: &AskArgs) -> anyhow::Result<()> {
    let done: Value = ask(&args.run_dir, &Request::Pause)?;
    if args.json {
        return say(&done.to_string());
    }
    say(&format!(
        "paused before slot {}: no slot is closed, and no bid is taken",
        done["open_slot"]
    ))
}

pub(super) fn resume(args: &AskArgs) -> anyhow::Result<()> {
    let done: Value = ask(&args.run_dir, &Request::Resume)?;
    if args.json {
        return say(&done.to_string());
    }
    let begins_s = done["begins_s"].as_u64().unwrap_or_default();
    let left_s = begins_s.saturating_sub(now_s());
    say(&format!("slot {} is open; it begins in {left_s} s", done["open_slot"]))
}

pub(super) fn prune(args: &PruneArgs) -> anyhow::Result<()> {
    let pruned = store::prune(&args.state.founded()?, args.before)?;
    if args.json {
        return say(&json!(pruned).to_string());
    }
    let Pruned { events, statements, first_slot } = pruned;
    say(&format!(
        "removed {events} events and {statements} statements; kept are the slots from {first_slot} on, and the hash \
         of each"
    ))
}

pub(super) fn backup(args: &BackupArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    let (from, to) = (StateDir::new(&args.state.state_dir), StateDir::new(dir));
    refuse_occupied(dir)?;
    let book = copy(&args.state.founded()?, &from, &to)?;
    say(&format!("copied to {}: {}", dir.display(), summary(&book)))
}

pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let (from, to) = (StateDir::new(&args.dir), StateDir::new(&args.state_dir));
    let database = Database::of(&from, None)?;
    if database.is_missing() {
        return Err(Usage(format!("no backup in {}", args.dir.display())).into());
    }
    refuse_occupied(&args.state_dir)?;
    store::verify(&database).context("the backup is not used")?;
    let book = copy(&database, &from, &to)?;
    say(&format!(
        "restored: {}; later bids and slots are lost, and who enrolled later needs a new code",
        summary(&book)
    ))
}

/// Copies the database and the authority to a directory that has neither. If it fails, it leaves no copy there.
fn copy(database: &Database, from: &StateDir, to: &StateDir) -> anyhow::Result<Book> {
    let copied = || -> anyhow::Result<Book> {
        Authority::copy(from, to)?;
        Ok(database.copy_to(to)?)
    };
    copied().inspect_err(|_| {
        let _ = Authority::remove(to);
        let _ = Database::of(to, None).and_then(|made| made.remove());
    })
}

/// Fails if the directory has a market or an authority, so that neither is overwritten.
fn refuse_occupied(dir: &Path) -> anyhow::Result<()> {
    let state = StateDir::new(dir);
    let database = Database::of(&state, None)?;
    if !database.is_missing() || Authority::exists(&state) {
        return Err(Usage(format!("{} has a market already", dir.display())).into());
    }
    Ok(())
}

/// A summary of a book, also printed by `verify`.
pub(super) fn summary(book: &Book) -> String {
    format!(
        "{} slots closed, {} gateways, {} micro-credits, root {}",
        book.open_slot(),
        book.gateways().len(),
        book.credits(),
        book.root()
    )
}

fn ask<T: serde::de::DeserializeOwned>(run_dir: &RunDir, request: &Request) -> anyhow::Result<T> {
    let mut client = connect_patiently(&run_dir.run_dir, NAME, request.access(), PATIENCE)?;
    Ok(client.ask(request)?)
}

fn print(headings: &[(&str, Align)], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    Ok(table::print(&mut text::stdout(), headings, &rows)?)
}

fn line(household: &Value) -> String {
    format!(
        "{} ({}): {} credits, {}, plan {}",
        text::escaped(&word(&household["contract"])),
        word(&household["gateway"]),
        credits(&household["balance"]),
        rate(&household["rate_bps"]),
        rate(&household["peak_bps"])
    )
}

fn heard(household: &Value) -> String {
    let at_s = household["heard_s"].as_u64();
    at_s.map_or_else(|| "-".to_owned(), |at_s| format!("{} s ago", now_s().saturating_sub(at_s)))
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn rate(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), mbit)
}

/// An amount, which JSON has as a string of micro-credits.
fn credits(value: &Value) -> String {
    let amount = value.as_str().and_then(|text| text.parse::<Credits>().ok());
    amount.map_or_else(|| "-".to_owned(), |amount| format!("{:.2}", amount.as_f64()))
}
