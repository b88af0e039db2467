//! Fuzz targets: properties of the messages between a market and its gateways, and of the database's contents.

use std::collections::BTreeMap;
use std::fmt::Debug;

use fairweir_core::calendar::Window;
use fairweir_core::market::ledger::Credits;
use fairweir_core::market::preferences::{Preferences, Time};
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::units::Rate;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::book::{AHEAD, Book, Event, Rules};
use crate::household::{Answers, Calendar, HORIZON, Household, Memory};
use crate::messages::{
    Account, Bid, BidBody, Bids, Clock, EnrolBody, Enrolled, Leased, Left, Prices,
};

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

/// A name, and a function that takes an input and panics if a property does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// The fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("answers", answers), ("bids", bids), ("ledger", ledger)];

/// Parses a value, and checks that it stays the same when it is written and parsed again.
fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) -> Option<T> {
    let read: T = serde_json::from_str(text).ok()?;
    let written = serde_json::to_string(&read).expect("messages are JSON");
    let again: T = serde_json::from_str(&written).expect("what was written can be read");
    assert_eq!(again, read, "{written}");
    Some(read)
}

/// Each line of the input is an answer of a server: clock, account, prices and perhaps a lease. A household never
/// bids more than it has or for slots that are not open, has the same plan after a restart, and always has a rate.
fn answers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let (clock, account, prices) =
        (read::<Clock>(next()), read::<Account>(next()), read::<Prices>(next()));
    let lease = read::<Leased>(next());
    let _ = (read::<Enrolled>(next()), read::<Left>(next()));
    let (Some(clock), Some(account), Some(prices)) = (clock, account, prices) else { return };
    let answers = Answers { clock, account, prices, lease };
    let mut home = household(Memory::default());
    if home.handle_answers(answers.clone()).is_err() {
        assert!(home.bids().is_empty() && home.plan().is_empty());
        return;
    }
    let Answers { clock, account, .. } = &answers;
    let bids = home.bids();
    assert!(bids.len() <= HORIZON && bids.is_sorted_by(|a, b| a.slot <= b.slot));
    for bid in &bids {
        let ahead = bid.slot.checked_sub(clock.open_slot).expect("a slot that is closed");
        let most = if ahead == 0 { account.balance } else { clock.rules.cap };
        assert!(ahead < HORIZON as u64 && bid.spend <= most, "{bid:?}");
    }
    assert!(home.reasons().iter().all(|said| !said.is_empty()));
    for at_s in [0, clock.now_s, clock.open_until_s, u64::MAX] {
        home.now(at_s);
        home.guarantee(at_s);
    }
    let kept = serde_json::to_string(home.memory()).expect("it is JSON");
    serde_json::from_str::<Memory>(&kept).expect("what was kept can be read");
    let mut again = household(home.memory().clone());
    again.handle_answers(answers.clone()).expect("they were taken before");
    assert_eq!(again.plan(), home.plan(), "after a restart");
    home.handle_placed(&bids);
    assert!(home.bids().is_empty(), "a bid that was placed is not placed again");
}

fn household(memory: Memory) -> Household {
    let film = Time {
        name: "film night".to_owned(),
        window: Window { days: [true; 7], from: 4 * 60, to: 5 * 60 },
        importance: [Some(3), None, None, None],
    };
    let preferences = Preferences { always: [0, 0, 0, 1], times: vec![film] };
    Household::new(preferences, Calendar::Compressed { day_s: 86_400 }, memory)
}

/// Each line of the input is the body of a request; three gateways send them by turns. A refused request changes
/// nothing. An accepted one changes only the gateway's own bids, and no balance. Closing conserves all credits.
fn bids(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut book = founded();
    let names: Vec<String> = book.gateways().iter().map(|g| g.name.clone()).collect();
    for (line, name) in text.lines().zip(names.iter().cycle()) {
        let _ = (read::<EnrolBody>(line), read::<Event>(line));
        let slot = book.open_slot();
        let one = read::<BidBody>(line);
        let one = one.map(|BidBody { spend, sequence }| vec![Bid { slot, spend, sequence }]);
        let Some(bids) = one.or_else(|| read::<Bids>(line).map(|bids| bids.bids)) else { continue };
        let before = book.clone();
        let is_taken = book.check_bids(name, &bids).is_ok();
        for &Bid { slot, spend, sequence } in &bids {
            let event = Event::Bid { gateway: name.clone(), slot, spend, sequence };
            let done = book.apply(&event);
            // A list may contain two contradictory bids for one slot; the API refuses such a list beforehand.
            assert!(!is_taken || done.is_ok() || !bids.is_sorted_by(|a, b| a.slot < b.slot));
        }
        assert_eq!(book.balances(), before.balances());
        for (now, then) in book.gateways().iter().zip(before.gateways()) {
            assert!(now.name == *name || now == then, "another gateway's bids");
            assert!(now.bids().all(|bid| (slot..slot + AHEAD).contains(&bid.slot)));
        }
        if text.len().is_multiple_of(3) {
            close(&mut book);
        }
    }
    close(&mut book);
}

fn close(book: &mut Book) {
    let credits = book.credits();
    let event = book.closing().expect("it was founded");
    book.apply(&event).expect("the next slot, with its root");
    assert_eq!(book.credits(), credits, "credits are conserved");
}

fn founded() -> Book {
    let rules = Rules {
        terms: Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 },
        share: Credits::whole(10),
        cap: Credits::whole(32),
        slot_s: 1_800,
        close_before_s: 30,
        epoch_s: 0,
    };
    let mut book = Book::default();
    let mut happens = |event| book.apply(&event).expect("it can happen");
    happens(Event::Found(rules));
    for i in 0..3 {
        let (hash, contract) = (format!("h{i}"), format!("c{i}"));
        happens(Event::Code { hash: hash.clone(), contract, peak: None, until_s: 9 });
        happens(Event::Join { hash, certificate: format!("f{i}"), at_s: 0 });
    }
    book
}

/// Each line of the input is an event; the first may be a whole book, and the root `=` stands for the right one.
/// A refused event changes nothing. Balances sum to the shares. A stored book gives the same result as all events.
fn ledger(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines().peekable();
    let mut book = Book::default();
    if let Some(Ok(kept)) = lines.peek().map(|line| Book::read(line)) {
        book = kept;
        lines.next();
    }
    for line in lines {
        let Some(mut event) = read::<Event>(line) else { continue };
        // The fuzzer cannot guess a valid root.
        let is_next = matches!(&event, Event::Close { root, .. } if root == "=");
        if let Some(next) = book.closing().ok().filter(|_| is_next) {
            event = next;
        }
        let kept = serde_json::to_string(&book).expect("a book is JSON");
        let mut again = Book::read(&kept).expect("what was kept can be read");
        assert_eq!(again, book);
        let done = book.apply(&event);
        match &done {
            Ok(_) => assert_eq!(again.apply(&event), done),
            Err(_) => assert_eq!(again, book, "what is refused changes nothing"),
        }
        let gateways = book.gateways().len() as u128;
        if let Ok(rules) = book.rules() {
            let sum = u128::from(rules.share.as_micro()) * gateways;
            assert_eq!(u128::from(book.credits()), sum, "credits are conserved");
        }
        let names: BTreeMap<&str, usize> =
            book.gateways().iter().zip(0..).map(|(g, seat)| (g.name.as_str(), seat)).collect();
        for (name, seat) in names {
            assert_eq!(book.seat(name), Ok(seat));
        }
        if let Ok(event) = book.closing() {
            let mut closed = book.clone();
            closed.apply(&event).expect("the next slot, with its root");
            closed.leases().expect("a slot was closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_replayed() {
        corpus::replay("market", TARGETS);
    }
}
