//! Checks (purely) whether the final database agrees with what clients observed.
//!
//! Properties, for any number of servers and clients, whatever was killed or cut off:
//! - An acknowledged bid is what its gateway spent in that slot, unless a later bid replaced it. A refused bid
//!   is nowhere in the log, and no bid is in it twice.
//! - If a call returned before another one began, its event comes first in the log.
//! - Slots are closed in order, each once, and by at most one client. All servers report the same division.
//! - Each slot conserves credits and opens with the balances that the previous one left.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A client's call and its outcome.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// When the call began, on a clock that all clients share.
    pub(super) invoked: u64,
    pub(super) returned: u64,
    pub(super) call: Call,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Bid(Bid),
    /// Closes a slot if it is the first open one.
    Close(u64),
    /// Asks for the last closed slot.
    Read,
}

/// A bid. All bids of a history have different sequence numbers and spends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bid {
    pub(super) gateway: String,
    pub(super) slot: u64,
    pub(super) sequence: u64,
    pub(super) spend: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// The server acknowledged the call.
    Done,
    /// The server answered that the call was not carried out, and will not be.
    Refused,
    /// The client received no answer.
    Unknown,
    /// The result of a read; `None` before the first close.
    Seen(Option<Division>),
}

/// A closed slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) slot: u64,
    pub(super) root: String,
    /// The statements by seat.
    pub(super) statements: Vec<Row>,
}

/// A gateway's statement, in micro-credits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) gateway: String,
    pub(super) opening: i64,
    pub(super) spent: i64,
    pub(super) received: i64,
    pub(super) moved: i64,
    pub(super) closing: i64,
}

/// The contents of the tables after everything has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    /// Event numbers and bodies.
    pub(super) events: Vec<(i64, Value)>,
    pub(super) divisions: Vec<Division>,
}

/// All violations in a history; `credits` is the sum of all balances in micro-credits.
pub(super) fn check(history: &[Entry], end: &End, credits: i64) -> Vec<String> {
    let mut wrong = Vec::new();
    let log = Log::read(end, &mut wrong);
    check_bids(history, end, &log, &mut wrong);
    check_order(history, &log, &mut wrong);
    check_closes(history, end, &log, &mut wrong);
    check_credits(end, credits, &mut wrong);
    wrong
}

/// The bids and closes in the log, with their event numbers.
struct Log {
    bids: BTreeMap<Bid, i64>,
    closes: BTreeMap<u64, i64>,
}

impl Log {
    fn read(end: &End, wrong: &mut Vec<String>) -> Log {
        let mut log = Log { bids: BTreeMap::new(), closes: BTreeMap::new() };
        for (i, (number, event)) in end.events.iter().enumerate() {
            if *number != i as i64 + 1 {
                wrong.push(format!("event {} is missing", i + 1));
                break;
            }
            let (bid, close) = (&event["bid"], &event["close"]);
            if let (Some(gateway), Some(slot)) = (bid["gateway"].as_str(), bid["slot"].as_u64()) {
                let spend = bid["spend"].as_str().and_then(|text| text.parse().ok());
                let bid = Bid {
                    gateway: gateway.to_owned(),
                    slot,
                    sequence: bid["sequence"].as_u64().unwrap_or_default(),
                    spend: spend.unwrap_or_default(),
                };
                if log.bids.insert(bid.clone(), *number).is_some() {
                    wrong.push(format!("{bid:?} is in the log twice"));
                }
            }
            if let Some(slot) = close["slot"].as_u64() {
                if slot != log.closes.len() as u64 {
                    wrong.push(format!("event {number} closes slot {slot}"));
                }
                log.closes.insert(slot, *number);
            }
        }
        log
    }
}

/// Outcome of each bid as clients know it: acknowledged if any call was, unknown if a call may have succeeded.
fn known(history: &[Entry]) -> BTreeMap<&Bid, &Outcome> {
    let mut known = BTreeMap::new();
    for Entry { call, outcome, .. } in history {
        let Call::Bid(bid) = call else { continue };
        let before = known.entry(bid).or_insert(outcome);
        if matches!((&**before, outcome), (_, Outcome::Done) | (Outcome::Refused, Outcome::Unknown))
        {
            *before = outcome;
        }
    }
    known
}

fn check_bids(history: &[Entry], end: &End, log: &Log, wrong: &mut Vec<String>) {
    let known = known(history);
    for (bid, outcome) in &known {
        match (outcome, log.bids.contains_key(*bid)) {
            (Outcome::Done, false) => wrong.push(format!("{bid:?} was acknowledged and is lost")),
            (Outcome::Refused, true) => wrong.push(format!("{bid:?} was refused and is there")),
            _ => {}
        }
    }
    let unasked = log.bids.keys().filter(|bid| !known.contains_key(bid));
    wrong.extend(unasked.map(|bid| format!("no client asked for {bid:?}")));
    for Division { slot, statements, .. } in &end.divisions {
        for row in statements {
            let of = |wanted: Outcome| {
                let is_of = move |(bid, outcome): &(&&Bid, &&Outcome)| {
                    bid.slot == *slot && bid.gateway == row.gateway && ***outcome == wanted
                };
                known.iter().filter(is_of).map(|(bid, _)| *bid)
            };
            let stands = of(Outcome::Done).max_by_key(|bid| bid.sequence);
            let after = stands.map_or(0, |bid| bid.sequence);
            let later = of(Outcome::Unknown).filter(|bid| bid.sequence > after);
            let mut may_be: BTreeSet<i64> = later.map(|bid| bid.spend).collect();
            may_be.insert(stands.map_or(0, |bid| bid.spend));
            if !may_be.contains(&row.spent) {
                let Row { gateway, spent, .. } = row;
                wrong.push(format!(
                    "slot {slot}: {gateway} spent {spent}, but its bids allow {may_be:?}"
                ));
            }
        }
    }
}

fn check_order(history: &[Entry], log: &Log, wrong: &mut Vec<String>) {
    // For each event: the first call that may have caused it, and the first acknowledgement.
    let mut spans: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
    for Entry { invoked, returned, call, outcome } in history {
        let number = match call {
            Call::Bid(bid) => log.bids.get(bid),
            Call::Close(slot) if *outcome != Outcome::Refused => log.closes.get(slot),
            Call::Close(_) | Call::Read => None,
        };
        let Some(number) = number else { continue };
        let span = spans.entry(*number).or_insert((u64::MAX, u64::MAX));
        span.0 = span.0.min(*invoked);
        if *outcome == Outcome::Done {
            span.1 = span.1.min(*returned);
        }
    }
    let mut latest = 0;
    for (number, (invoked, returned)) in spans {
        if returned < latest {
            wrong.push(format!(
                "event {number} was acknowledged before one before it was asked for"
            ));
        }
        latest = latest.max(invoked);
    }
}

fn check_closes(history: &[Entry], end: &End, log: &Log, wrong: &mut Vec<String>) {
    let closed: Vec<u64> = end.divisions.iter().map(|division| division.slot).collect();
    if !closed.iter().eq(log.closes.keys()) {
        wrong.push(format!("settled are {closed:?}, closed by the log {:?}", log.closes.keys()));
    }
    let mut by_clients: BTreeMap<u64, usize> = BTreeMap::new();
    for Entry { invoked, call, outcome, .. } in history {
        match (call, outcome) {
            (Call::Close(slot), Outcome::Done) => *by_clients.entry(*slot).or_default() += 1,
            (Call::Read, Outcome::Seen(seen)) => {
                if let Some(seen) = seen
                    && !end.divisions.contains(seen)
                {
                    wrong.push(format!("a server reported another division of slot {}", seen.slot));
                }
                // All servers know of a close that was acknowledged earlier.
                let is_before =
                    |entry: &&Entry| entry.returned < *invoked && entry.outcome == Outcome::Done;
                let before =
                    history.iter().filter(is_before).filter_map(|entry| match entry.call {
                        Call::Close(slot) => Some(slot),
                        _ => None,
                    });
                if before.max() > seen.as_ref().map(|seen| seen.slot) {
                    wrong.push("a server did not know of a close that was acknowledged".to_owned());
                }
            }
            _ => {}
        }
    }
    for (slot, count) in by_clients {
        if count > 1 || !log.closes.contains_key(&slot) {
            wrong.push(format!("slot {slot}: {count} clients were told that they closed it"));
        }
    }
}

fn check_credits(end: &End, credits: i64, wrong: &mut Vec<String>) {
    let mut before: Option<BTreeMap<&str, i64>> = None;
    for Division { slot, statements, .. } in &end.divisions {
        let sum = |of: fn(&Row) -> i64| statements.iter().map(of).sum::<i64>();
        let sums = [sum(|r| r.opening), sum(|r| r.closing), sum(|r| r.spent - r.received)];
        if sums != [credits, credits, 0] || sum(|r| r.moved) != 0 {
            wrong.push(format!("slot {slot}: opening, closing, spent without received: {sums:?}"));
        }
        let opening: BTreeMap<_, _> =
            statements.iter().map(|r| (r.gateway.as_str(), r.opening)).collect();
        if before.is_some_and(|before| before != opening) {
            wrong.push(format!("slot {slot} does not open with what the one before left"));
        }
        before = Some(statements.iter().map(|r| (r.gateway.as_str(), r.closing)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bid(sequence: u64) -> Bid {
        Bid { gateway: "gw-1".to_owned(), slot: 0, sequence, spend: sequence as i64 }
    }

    fn entry(at: u64, call: Call, outcome: Outcome) -> Entry {
        Entry { invoked: 2 * at, returned: 2 * at + 1, call, outcome }
    }

    fn division(spent: i64) -> Division {
        let row = |gateway: &str, spent, received| Row {
            gateway: gateway.to_owned(),
            opening: 10,
            spent,
            received,
            moved: 0,
            closing: 10 - spent + received,
        };
        let statements = vec![row("gw-1", spent, 0), row("gw-2", 0, spent)];
        Division { slot: 0, root: "r".to_owned(), statements }
    }

    fn end(sequences: &[u64], spent: i64) -> End {
        let event = |&sequence: &u64| {
            let Bid { gateway, slot, spend, .. } = bid(sequence);
            let spend = spend.to_string();
            serde_json::json!({ "bid": {
                "gateway": gateway, "slot": slot, "spend": spend, "sequence": sequence
            } })
        };
        let close = serde_json::json!({ "close": { "slot": 0, "root": "r" } });
        let events = sequences.iter().map(event).chain([close]);
        let events = (1..).zip(events).collect();
        End { events, divisions: vec![division(spent)] }
    }

    fn done(at: u64, sequence: u64) -> Entry {
        entry(at, Call::Bid(bid(sequence)), Outcome::Done)
    }

    fn close(at: u64) -> Entry {
        entry(at, Call::Close(0), Outcome::Done)
    }

    #[test]
    fn whole_histories_have_nothing_wrong() {
        let unknown = entry(1, Call::Bid(bid(4)), Outcome::Unknown);
        let refused = entry(2, Call::Bid(bid(2)), Outcome::Refused);
        let read = entry(9, Call::Read, Outcome::Seen(Some(division(4))));
        let history = [done(0, 3), unknown.clone(), refused, close(5), read];
        assert_eq!(check(&history, &end(&[3, 4], 4), 20), [""; 0]);
        // The bid without an answer may not have been placed.
        assert_eq!(check(&[done(0, 3), unknown, close(5)], &end(&[3], 3), 20), [""; 0]);
    }

    #[test]
    fn each_fault_is_found() {
        let history = [done(0, 3), close(5)];
        let of = |history: &[Entry], end: &End| check(history, end, 20).join("; ");
        assert!(of(&history, &end(&[], 0)).contains("is lost"));
        assert!(of(&history, &end(&[3], 0)).contains("its bids allow {3}"));
        assert!(of(&history, &end(&[3, 3], 3)).contains("twice"));
        assert!(of(&history, &end(&[3, 4], 4)).contains("no client asked"));
        let refused = [done(0, 3), entry(1, Call::Bid(bid(4)), Outcome::Refused), close(5)];
        assert!(of(&refused, &end(&[3, 4], 4)).contains("was refused"));
        assert!(of(&[done(6, 3), close(5)], &end(&[3], 3)).contains("before one before"));
        assert!(of(&[done(0, 3), close(5), close(6)], &end(&[3], 3)).contains("2 clients"));
        let other = entry(9, Call::Read, Outcome::Seen(Some(division(2))));
        assert!(of(&[done(0, 3), close(5), other], &end(&[3], 3)).contains("another division"));
        let old = entry(9, Call::Read, Outcome::Seen(None));
        assert!(of(&[done(0, 3), close(5), old], &end(&[3], 3)).contains("did not know"));
        let mut twice = end(&[3], 3);
        twice.events.push((3, serde_json::json!({ "close": { "slot": 0 } })));
        assert!(of(&history, &twice).contains("event 3 closes slot 0"));
        let mut gap = end(&[3], 3);
        gap.events.remove(0);
        assert!(of(&history, &gap).contains("event 1 is missing"));
        let mut more = end(&[3], 3);
        more.divisions[0].statements[1].received += 1;
        more.divisions[0].statements[1].closing += 1;
        assert!(of(&history, &more).contains("opening, closing"));
        let mut jump = end(&[3], 3);
        jump.divisions.push(Division { slot: 1, ..division(0) });
        assert!(of(&history, &jump).contains("does not open with"));
    }
}
