use fairweir_daemon::StateDir;

use std::time::{Duration, Instant};

use super::*;
use crate::book::Rules;
use crate::store::{events, verify};
use fairweir_core::market::ledger::Credits;
use fairweir_testing::Postgres;

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
    let (mut store, book) = Store::open(&database, false).unwrap();
    store.keep_now(&book).unwrap();
    drop(store);
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    close(&keeper);
    let now = keeper.ask(|session| session.book().clone()).unwrap();
    drop(keeper);
    thread.join().unwrap();
    assert_eq!(verify(&database).unwrap(), now);
    assert_eq!(Store::open(&database, false).unwrap().1, now);
    let mut count = 0;
    events(&database, |_| count += 1).unwrap();
    assert_eq!((count, now.open_slot()), (3, 2));
}

/// `cargo test --release -p fairweir-market --lib -- --ignored --nocapture how_long` prints Markdown tables; `make
/// bench` runs it.
#[test]
#[ignore = "long: 2 min; prints how long a slot takes to close"]
fn how_long_a_close_and_bids_take() {
    println!("\n### Closing a slot\n");
    println!(
        "| database | gateways | closed | of which computing | the database copies the rows | ratio |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (is_postgres, gateways) in [(false, 100_000), (true, 100_000), (true, 1_000_000)] {
        let mut fresh = Fresh::new(is_postgres);
        let mut book = Book::of_size(gateways, rules());
        let begun = Instant::now();
        fresh.store.begin().unwrap();
        let mut written = Written::default();
        let event = book.closing().unwrap();
        let (written_to, store, present) =
            (&mut written, &mut fresh.store, &mut Present::default());
        let mut session = Session { book: &mut book, written: written_to, store, present };
        session.apply(event).unwrap();
        let computed = begun.elapsed();
        fresh.store.commit(&written).unwrap();
        let all = begun.elapsed();
        let begun = Instant::now();
        fresh.store.execute("copy the rows", COPY).unwrap();
        let copied = begun.elapsed();
        println!(
            "| {} | {gateways} | {all:.2?} | {computed:.2?} | {copied:.2?} | {:.1} |",
            fresh.name,
            all.as_secs_f64() / copied.as_secs_f64()
        );
    }
    println!("\n### Bids that are committed before they are answered, 10,000 gateways\n");
    println!(
        "| database | of 64 gateways at once | of one after the other | ratio | 99 % of 1,000/s are answered within |"
    );
    println!("|---|---:|---:|---:|---:|");
    for is_postgres in [false, true] {
        let per_s = |clients, each| {
            let (took, waits) = bids(is_postgres, clients, each, Duration::ZERO);
            waits.len() as f64 / took.as_secs_f64()
        };
        let (many, one) = (per_s(64, 2_000), per_s(1, 500));
        let (_, waits) = bids(is_postgres, 64, 150, Duration::from_millis(64));
        println!(
            "| {} | {many:.0}/s | {one:.0}/s | {:.0} | {:.1?} |",
            if is_postgres { "PostgreSQL" } else { "SQLite" },
            many / one,
            waits[waits.len() * 99 / 100]
        );
    }
}

/// A table without the market's checks, to which the server copies rows without a client that sends them.
const COPY: &str = "create table copied (slot bigint, seat bigint, gateway text, opening bigint, \
    spent bigint, received bigint, moved bigint, closing bigint, primary key (slot, gateway)); \
    insert into copied select * from statement";

/// A separate database, because the events belong to a market that was not founded in it.
struct Fresh {
    name: &'static str,
    store: Store,
    database: Database,
    _dir: tempfile::TempDir,
    _server: Option<Postgres>,
}

impl Fresh {
    fn new(is_postgres: bool) -> Fresh {
        let dir = tempfile::tempdir().unwrap();
        let server = is_postgres.then(|| Postgres::start().unwrap());
        let url = server.as_ref().map(Postgres::url);
        let database = Database::of(&StateDir::new(dir.path()), url.as_deref()).unwrap();
        let store = Store::open(&database, false).unwrap().0;
        let name = if is_postgres { "PostgreSQL" } else { "SQLite" };
        Fresh { name, store, database, _dir: dir, _server: server }
    }
}

/// Total time for the bids of `clients`, and the waiting time of each bid in rising order. A client bids `each`
/// times, once per `every`, or as soon as its previous bid is answered if that is later.
fn bids(is_postgres: bool, clients: u64, each: u64, every: Duration) -> (Duration, Vec<Duration>) {
    let Fresh { store, database, _dir, _server, .. } = Fresh::new(is_postgres);
    let (tasks, waiting) = sync_channel(WAITING_MAX);
    let keeper = Keeper { tasks };
    let book = Book::of_size(10_000, rules());
    let thread =
        thread::spawn(move || keep(&|| Store::open(&database, false), (store, book), &waiting));
    let waits = std::sync::Mutex::new(Vec::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        for client in 0..clients {
            let (keeper, waits) = (keeper.clone(), &waits);
            scope.spawn(move || {
                // Clients that pause between bids start one after the other.
                let first = begun + every * client as u32 / clients as u32;
                for i in 0..each {
                    let due = first + every * i as u32;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let gateway = format!("gw-{}", 1 + client * 100 + i % 100);
                    let spend = Credits::micro(i);
                    let event =
                        Event::Bid { gateway, slot: 1, spend, sequence: 1 + client * each + i };
                    let asked = Instant::now();
                    keeper.ask(move |session| session.apply(event)).unwrap().unwrap();
                    waits.lock().unwrap().push(asked.elapsed());
                }
            });
        }
    });
    let took = begun.elapsed();
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    drop(keeper);
    thread.join().unwrap();
    (took, waits)
}
