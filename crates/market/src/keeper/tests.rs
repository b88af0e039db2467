use fairweir_daemon::StateDir;

use super::*;
use crate::store::{events, verify};

#[test]
fn the_book_that_was_written_is_the_book_of_all_events() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::of(&StateDir::new(dir.path()), None).unwrap();
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    let rules = serde_json::json!({
        "terms": { "mode": "float", "capacity": 40_000_000, "floor_percent": 10 },
        "share": "10000000", "cap": "32000000", "slot_s": 1_800, "close_before_s": 30, "epoch_s": 0,
    });
    let rules = serde_json::from_value(rules).unwrap();
    keeper.ask(|session| session.apply(Event::Found(rules))).unwrap().unwrap();
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
