use fairweir_daemon::StateDir;

use std::time::Instant;

use super::*;
use crate::book::Rules;
use crate::store::{events, verify};
use fairweir_core::market::ledger::Credits;

#[path = "../../tests/postgres/mod.rs"]
mod postgres;

fn rules() -> Rules {
    let rules = serde_json::json!({
        "terms": { "mode": "float", "capacity": 40_000_000, "floor_percent": 10 },
        "share": "10000000", "cap": "32000000", "slot_s": 1_800, "close_before_s": 30, "epoch_s": 0,
    });
    serde_json::from_value(rules).unwrap()
}

#[test]
fn the_book_that_was_written_is_the_book_of_all_events() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::of(&StateDir::new(dir.path()), None).unwrap();
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    keeper.ask(|session| session.apply(Event::Found(rules()))).unwrap().unwrap();
    let close = |keeper: &Keeper| {
        let done = keeper.ask(|session| session.apply(session.book().closing().unwrap()));
        done.unwrap().unwrap();
    };
    close(&keeper);
    drop(keeper);
    thread.join().unwrap();
    let (mut store, book) = Store::open(&database).unwrap();
    store.keep_now(&book).unwrap();
    drop(store);
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    close(&keeper);
    let now = keeper.ask(|session| session.book().clone()).unwrap();
    drop(keeper);
    thread.join().unwrap();
    assert_eq!(verify(&database).unwrap(), now);
    assert_eq!(Store::open(&database).unwrap().1, now);
    let mut count = 0;
    events(&database, |_| count += 1).unwrap();
    assert_eq!((count, now.open_slot()), (3, 2));
}

/// `cargo test -p fairweir-market --lib -- --ignored --nocapture how_long`
#[test]
#[ignore = "measures; takes a minute"]
fn how_long_a_close_and_bids_take() {
    for (is_postgres, gateways) in [(false, 100_000), (true, 100_000), (true, 1_000_000)] {
        // Each on its own, because the events are of no market that was founded there.
        let fresh = || {
            let dir = tempfile::tempdir().unwrap();
            let server = is_postgres.then(|| postgres::Postgres::start().unwrap());
            let url = server.as_ref().map(postgres::Postgres::url);
            let database = Database::of(&StateDir::new(dir.path()), url.as_deref()).unwrap();
            (Store::open(&database).unwrap().0, database, dir, server)
        };
        let name = if is_postgres { "PostgreSQL" } else { "SQLite" };
        let (mut store, _, _dir, _server) = fresh();
        let mut book = Book::of_size(gateways, rules());
        let begun = Instant::now();
        store.begin().unwrap();
        let mut written = Written::default();
        let event = book.closing().unwrap();
        Session { book: &mut book, written: &mut written }.apply(event).unwrap();
        let computed = begun.elapsed();
        store.commit(&written).unwrap();
        let all = begun.elapsed();
        eprintln!(
            "{name}: {gateways} gateways closed in {all:.2?}, of which computing {computed:.2?}"
        );
        if gateways <= 100_000 {
            let (store, database, _dir, _server) = fresh();
            bids(name, database, store, Book::of_size(10_000, rules()));
        }
    }
}

/// 20,000 bids of 64 clients.
fn bids(name: &str, database: Database, store: Store, book: Book) {
    let (tasks, waiting) = sync_channel(WAITING_MAX);
    let keeper = Keeper { tasks };
    let thread = thread::spawn(move || keep(&database, (store, book), &waiting));
    let waits = std::sync::Mutex::new(Vec::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        for client in 0..64_u64 {
            let (keeper, waits) = (keeper.clone(), &waits);
            scope.spawn(move || {
                for i in 0..312 {
                    let gateway = format!("gw-{}", 1 + client * 100 + i % 100);
                    let spend = Credits::micro(i);
                    let event =
                        Event::Bid { gateway, slot: 1, spend, sequence: 1 + client * 312 + i };
                    let asked = Instant::now();
                    keeper.ask(move |session| session.apply(event)).unwrap().unwrap();
                    waits.lock().unwrap().push(asked.elapsed());
                }
            });
        }
    });
    let took = begun.elapsed().as_secs_f64();
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    let (count, p99) = (waits.len(), waits[waits.len() * 99 / 100]);
    eprintln!("{name}: {count} bids in {took:.2} s, {:.0}/s, p99 {p99:.2?}", count as f64 / took);
    drop(keeper);
    thread.join().unwrap();
}
