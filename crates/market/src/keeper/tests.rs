use super::*;
use crate::book::Rules;
use fairweir_core::market::ledger::Credits;
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::units::Rate;

fn rules() -> Rules {
    Rules {
        terms: Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 },
        share: Credits::whole(10),
        cap: Credits::whole(32),
        slot_s: 1_800,
        close_before_s: 30,
        epoch_s: 0,
    }
}

/// A market of some gateways that bid and close slots, and leave.
fn events(gateways: usize, slots: u64) -> Vec<Event> {
    let mut book = Book::default();
    let mut events = Vec::new();
    let mut add = |book: &mut Book, event: Event| {
        book.apply(&event).unwrap();
        events.push(event);
    };
    add(&mut book, Event::Found(rules()));
    for i in 0..gateways {
        let (hash, contract) = (format!("h{i}"), format!("c{i}"));
        add(&mut book, Event::Code { hash: hash.clone(), contract, peak: None, until_s: 9 });
        add(&mut book, Event::Join { hash, certificate: format!("f{i}"), at_s: 0 });
    }
    for slot in 0..slots {
        for i in 0..gateways {
            let balance = book.balances()[i].as_micro();
            let spend =
                Credits::micro(balance * ((i as u64 * 7 + slot * 3) % 11) / 10 % (balance + 1));
            let gateway = book.gateways()[i].name.clone();
            add(&mut book, Event::Bid { gateway, slot, spend, sequence: slot });
        }
        let closing = book.closing().unwrap();
        add(&mut book, closing);
    }
    let gateway = book.gateways()[1].name.clone();
    add(&mut book, Event::Leave { gateway, at_s: 1 });
    events
}

fn play(dir: &StateDir, events: &[Event]) -> Book {
    let (keeper, thread) = Keeper::start(dir.clone()).unwrap();
    for event in events.iter().cloned() {
        keeper.ask(move |session| session.apply(event)).unwrap().unwrap();
    }
    let book = keeper.ask(|session| session.book().clone()).unwrap();
    drop(keeper);
    thread.join().unwrap();
    book
}

#[test]
fn what_was_answered_is_there_wherever_the_journal_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path());
    let events = events(3, 2);
    let whole = play(&state, &events);
    assert_eq!(look(&state).unwrap(), whole);
    let bytes = state.read(FILE, FILE_SIZE_MAX).unwrap().unwrap();
    for cut in 0..=bytes.len() {
        state.write(FILE, &bytes[..cut]).unwrap();
        let lines = bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
        let mut book = Book::default();
        for event in &events[..lines.saturating_sub(1)] {
            book.apply(event).unwrap();
        }
        assert_eq!(look(&state).unwrap(), book, "cut at {cut}");
    }
    // It goes on after a cut.
    state.write(FILE, &bytes[..bytes.len() - 5]).unwrap();
    assert_eq!(play(&state, &events[events.len() - 1..]), whole);
}

#[test]
fn a_changed_journal_is_refused_and_a_second_keeper_too() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path());
    play(&state, &events(3, 2));
    let text = String::from_utf8(state.read(FILE, FILE_SIZE_MAX).unwrap().unwrap()).unwrap();
    let first = text.find("\"spend\":\"").unwrap() + 9;
    let mut changed = text.clone().into_bytes();
    changed[first] = if changed[first] == b'0' { b'1' } else { changed[first] ^ 1 };
    state.write(FILE, &changed).unwrap();
    let error = look(&state).unwrap_err().to_string();
    assert!(
        error.contains("does not follow, or its statements are not") || error.contains("is above"),
        "{error}"
    );
    state.write(FILE, text.as_bytes()).unwrap();
    let (keeper, _thread) = Keeper::start(state.clone()).unwrap();
    assert!(Keeper::start(state.clone()).is_err());
    // Removed under it: nothing is acknowledged any more.
    std::fs::remove_file(state.path_of(FILE)).unwrap();
    let gateway = "gw-1".to_owned();
    let gone = keeper.ask(move |session| session.apply(Event::Leave { gateway, at_s: 2 }));
    assert_eq!(gone, Err(Gone));
}

#[test]
fn the_book_in_one_line_is_the_book_of_all_lines() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path());
    let book = play(&state, &events(4, 5));
    let (mut store, read) = Store::open(state.clone()).unwrap();
    assert_eq!(read, book);
    store.replace(&book).unwrap();
    drop(store);
    assert_eq!(look(&state).unwrap(), book);
}
