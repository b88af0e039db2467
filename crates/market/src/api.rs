//! Maps requests to operations on the book, and their results to responses.
//!
//! | request | body | who | answer |
//! |---|---|---|---|
//! | `GET /v1/clock` | | anyone | the time, the open slot, when its bidding ends, the rules |
//! | `GET /v1/prices` | | a gateway | prices and roots of the last 48 slots; empty below 8 gateways |
//! | `POST /v1/enrolments` | `code`, `public_key` | holder of a code | the gateway's name and certificate |
//! | `PUT /v1/gateways/NAME/bids/SLOT` | `spend`, `sequence` | that gateway | the bid in force |
//! | `PUT /v1/gateways/NAME/bids` | `bids` for some slots | that gateway | the bids in force; all or none are placed |
//! | `GET /v1/gateways/NAME/statements` | | that gateway | balance, bids and the last 48 statements |
//! | `GET /v1/gateways/NAME/lease` | | that gateway | the rate of the last closed slot |
//! | `POST /v1/leave` | | a gateway | that it left |
//!
//! Amounts are strings of micro-credits. Errors are `application/problem+json`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::book::{AHEAD, Event, Refused, Rules};
use crate::http::{Request, Response, problem};
use crate::identity::Authority;
use crate::keeper::{Gone, Keeper, Session};
use crate::messages::{
    Account, Bid, BidBody, Bids, Clock, Dated, EnrolBody, Enrolled, Leased, Left, Prices,
};
use crate::{code_hash, hex, sha256};

/// Minimum number of gateways for publishing prices. In a smaller market prices would reveal one household's bids.
const PUBLISHED_FROM: usize = 8;

/// The current Unix time in seconds.
pub fn now_s() -> u64 {
    now_ms() / 1_000
}

/// The current Unix time in milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Answers a request after its changes are committed.
pub fn handle(request: Request, keeper: &Keeper, authority: &Authority) -> Response {
    let path = request.path.clone();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let done = match (request.method.as_str(), &parts[..]) {
        ("GET", ["v1", "clock"]) => ask(keeper, clock),
        ("POST", ["v1", "enrolments"]) => enrol(&request, keeper, authority),
        ("GET", ["v1", "prices"]) => {
            of_gateway(request, None, keeper, |session, _| value(&prices(session)))
        }
        ("PUT", ["v1", "gateways", name, "bids", slot]) => {
            let body = read::<BidBody>(&request.body);
            let number = slot.parse::<u64>().ok().filter(|number| number.to_string() == *slot);
            let what = "a slot is a whole number without a sign and leading zeros";
            let slot = number.ok_or_else(|| problem(422, what, Some("slot")));
            match (body, slot) {
                (Err(e), _) | (_, Err(e)) => Err(e),
                (Ok(BidBody { spend, sequence }), Ok(slot)) => {
                    of_gateway(request, Some(name), keeper, move |session, name| {
                        let bid = Bid { slot, spend, sequence };
                        place(session, name, &[bid]).and_then(|()| value(&bid))
                    })
                }
            }
        }
        ("PUT", ["v1", "gateways", name, "bids"]) => match read::<Bids>(&request.body) {
            Err(e) => Err(e),
            Ok(bids) => of_gateway(request, Some(name), keeper, move |session, name| {
                place(session, name, &bids.bids).and_then(|()| value(&bids))
            }),
        },
        ("GET", ["v1", "gateways", name, "statements"]) => {
            of_gateway(request, Some(name), keeper, statements)
        }
        ("GET", ["v1", "gateways", name, "lease"]) => {
            of_gateway(request, Some(name), keeper, lease)
        }
        ("POST", ["v1", "leave"]) => of_gateway(request, None, keeper, |session, name| {
            let event = Event::Leave { gateway: name.to_owned(), at_s: now_s() };
            session.apply(event).map_err(|e| refused(&e))?;
            value(&Left { left: name.to_owned() })
        }),
        _ => Err(problem(404, "there is no such resource or method", None)),
    };
    done.map_or_else(|problem| problem, |body| Response { status: 200, body })
}

type Done = Result<Value, Response>;

fn ask(keeper: &Keeper, of: impl FnOnce(&mut Session<'_>) -> Done + Send + 'static) -> Done {
    keeper.ask(of).unwrap_or_else(|gone| Err(absent(gone)))
}

fn absent(gone: Gone) -> Response {
    problem(503, gone, None)
}

/// Runs `of` for the gateway to which the client's certificate belongs. If `name` is given, that must be its name.
fn of_gateway(
    request: Request,
    name: Option<&str>,
    keeper: &Keeper,
    of: impl FnOnce(&mut Session<'_>, &str) -> Done + Send + 'static,
) -> Done {
    let Some(certificate) = request.certificate else {
        return Err(problem(401, "a certificate of this market is needed", None));
    };
    let name = name.map(str::to_owned);
    ask(keeper, move |session| {
        let own = session.book().by_certificate(&certificate).map(|(g, _)| g.name.clone());
        match own {
            None => Err(problem(403, "the certificate is of no gateway of this market", None)),
            Some(own) if name.is_some_and(|name| name != own) => {
                Err(problem(403, "the certificate is of another gateway", Some("gateway")))
            }
            Some(own) => {
                session.present.heard.insert(own.clone(), now_s());
                of(session, &own)
            }
        }
    })
}

/// Parses a body, only in the form that the API describes: serde alone would also accept other forms, such
/// as a list of the values without their keys.
fn read<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<T, Response> {
    let invalid = |e: serde_json::Error| problem(422, e, Some("body"));
    let read: T = serde_json::from_slice(body).map_err(invalid)?;
    let written: Value = serde_json::from_slice(body).map_err(invalid)?;
    match serde_json::to_value(&read).map_err(invalid)? == written {
        true => Ok(read),
        false => Err(problem(422, "the body is not as the API describes it", Some("body"))),
    }
}

fn refused(why: &Refused) -> Response {
    let (status, field) = match why {
        Refused::Closed { .. } => (409, Some("slot")),
        Refused::TooFar { .. } => (422, Some("slot")),
        Refused::Overspent { .. } => (422, Some("spend")),
        Refused::Sequence { .. } => (409, Some("sequence")),
        Refused::Code => (403, Some("code")),
        Refused::NoGateway(_) => (404, Some("gateway")),
        Refused::TooOften(_) => (429, None),
        Refused::TooMany | Refused::Clock(_) | Refused::Paused => (503, None),
        Refused::Founded
        | Refused::Rules(_)
        | Refused::Text(_)
        | Refused::Chain(_)
        | Refused::Ledger(_) => (422, None),
    };
    let mut response = problem(status, why, field);
    if let Refused::Closed { open, .. } = why {
        response.body["kind"] = json!("slot_closed");
        response.body["open_slot"] = json!(open);
    }
    response
}

fn value(answer: &impl Serialize) -> Done {
    Ok(serde_json::to_value(answer).expect("invariant: messages are JSON"))
}

fn clock(session: &mut Session<'_>) -> Done {
    let book = session.book();
    let rules = book.rules().map_err(|e| refused(&e))?;
    let (open_slot, now_ms) = (book.open_slot(), now_ms());
    value(&Clock {
        now_s: now_ms / 1_000,
        now_ms,
        open_slot,
        open_until_s: rules.closes_s(open_slot),
        gateways: book.gateways().len(),
        rules: rules.clone(),
        doubt: session.present.clock.clone(),
        paused: book.is_paused(),
    })
}

fn prices(session: &mut Session<'_>) -> Prices {
    let book = session.book();
    match book.gateways().len() >= PUBLISHED_FROM {
        true => Prices { slots: book.closed().cloned().collect() },
        false => Prices { slots: Vec::new() },
    }
}

/// Places all bids, or none if one of them is refused.
fn place(session: &mut Session<'_>, name: &str, bids: &[Bid]) -> Result<(), Response> {
    if bids.is_empty() || bids.len() > AHEAD as usize || !bids.is_sorted_by(|a, b| a.slot < b.slot)
    {
        let what = format!("expected 1 to {AHEAD} bids in rising order of slots");
        return Err(problem(422, what, Some("bids")));
    }
    session.check_clock().map_err(|e| refused(&e))?;
    // Bids are late by the server's clock, even if the slot is not settled yet.
    let (book, slot) = (session.book(), bids[0].slot);
    let is_late = |rules: &Rules| now_s() >= rules.closes_s(slot);
    if slot == book.open_slot() && book.rules().is_ok_and(is_late) {
        return Err(refused(&Refused::Closed { slot, open: slot + 1 }));
    }
    book.check_bids(name, bids).map_err(|e| refused(&e))?;
    for &Bid { slot, spend, sequence } in bids {
        let event = Event::Bid { gateway: name.to_owned(), slot, spend, sequence };
        session.apply(event).map_err(|e| refused(&e))?;
    }
    Ok(())
}

fn statements(session: &mut Session<'_>, name: &str) -> Done {
    let book = session.book();
    let seat = book.seat(name).map_err(|e| refused(&e))?;
    let gateway = &book.gateways()[seat];
    let dated = |&(slot, statement)| Dated { slot, statement };
    value(&Account {
        gateway: name.to_owned(),
        balance: book.balances()[seat],
        peak_bps: gateway.peak(),
        bids: gateway.bids().collect(),
        statements: gateway.statements().map(dated).collect(),
    })
}

fn lease(session: &mut Session<'_>, name: &str) -> Done {
    let (refused_slot, hold) = (session.present.leases, session.present.hold);
    let leases = session.book().leases();
    let leases = leases.ok_or_else(|| problem(404, "no slot was closed yet", None))?;
    let rate = leases.rates.iter().find(|lease| lease.gateway == name).map(|lease| lease.rate);
    value(&Leased {
        slot: leases.generation,
        until_s: leases.until,
        rate_bps: rate.unwrap_or_default(),
        refused_slot,
        hold,
    })
}

fn enrol(request: &Request, keeper: &Keeper, authority: &Authority) -> Done {
    let EnrolBody { code, public_key } = read(&request.body)?;
    let hash = code_hash(&code);
    // Check the code first: signing a certificate costs more than looking the code up.
    let known = hash.clone();
    let has = keeper.ask(move |session| {
        session.check_clock()?;
        session.book().has_code(&known, now_s()).then_some(()).ok_or(Refused::Code)
    });
    has.map_err(absent)?.map_err(|e| refused(&e))?;
    let der = authority.certify(&public_key).map_err(|e| problem(422, e, Some("public_key")))?;
    let certificate = sha256(&der);
    ask(keeper, move |session| {
        let event = Event::Join { hash, certificate: certificate.clone(), at_s: now_s() };
        session.apply(event).map_err(|e| refused(&e))?;
        let book = session.book();
        let (gateway, _) = book.by_certificate(&certificate).expect("invariant: it has joined");
        let (gateway, contract) = (gateway.name.clone(), gateway.contract().to_owned());
        // Anyone with another code for this contract, such as one in a lost letter, could take over the account.
        for revoke in book.revoking(|code| code.contract == contract) {
            session.apply(revoke).map_err(|e| refused(&e))?;
        }
        value(&Enrolled { gateway, certificate: hex(&der) })
    })
}
