//! Histories of concurrent clients at two servers of one database, while connections break or are slow, other
//! programs lock the database and the network is cut. Each history is checked ([`check`]).
//!
//! `cargo test -p fairweir-market --features postgres --lib two_hundred_histories -- --ignored --nocapture`

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::market::ledger::{Credits, Statement};
use fairweir_daemon::StateDir;
use tempfile::TempDir;

use super::rows::{Rows, Value};
use super::sqlite::Sqlite;
use super::{Database, Settled, Store, failed_to, micro, number, text, verify};
use crate::book::{Event, Rules};
use crate::keeper::{Gone, Keeper, Session};

mod check;
mod faults;
#[cfg(feature = "postgres")]
mod relay;
use check::{Bid, Call, Division, End, Entry, Outcome, Row, check};
use faults::{Broken, Dice, Fate, Faulty};

const GATEWAYS: usize = 3;
/// Number of threads that bid and read, several for each gateway.
const CLIENTS: usize = 6;
/// Number of calls of each client.
const CALLS: usize = 40;
/// A client gives up after this number of consecutive calls without an answer: the store is then unreadable.
const UNANSWERED_MAX: usize = 8;
const CREDITS: i64 = 10_000_000 * GATEWAYS as i64;
/// Time limit of a step of the database in these tests: some cuts last longer.
const PATIENCE: Duration = Duration::from_millis(250);

type Open = Arc<dyn Fn() -> Result<Box<dyn Rows>, super::Failed> + Send + Sync>;

/// A separate database, and how two servers reach it.
struct Place {
    database: Database,
    servers: [Open; 2],
    /// Cuts one server, or both, off from the database for a while.
    disturb: Box<dyn Fn(&mut Dice) + Send + Sync>,
    _dir: Option<TempDir>,
}

impl Place {
    fn sqlite() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::of(&StateDir::new(dir.path()), None).unwrap();
        let path = dir.path().join(super::FILE);
        let file = path.clone();
        let open: Open = Arc::new(move || {
            let rows: Box<dyn Rows> = Box::new(Sqlite::open(&file, true, PATIENCE)?);
            Ok(rows)
        });
        let disturb = move |dice: &mut Dice| lock(&path, dice);
        let servers = [Arc::clone(&open), open];
        Place { database, servers, disturb: Box::new(disturb), _dir: Some(dir) }
    }
}

/// Locks the file as another program would.
fn lock(path: &Path, dice: &mut Dice) {
    let other = rusqlite::Connection::open(path).unwrap();
    if other.execute_batch("begin immediate").is_ok() {
        dice.pause(400);
        other.execute_batch("rollback").unwrap();
    }
}

/// One PostgreSQL server for all histories; each history has its own schema.
#[cfg(feature = "postgres")]
struct Server {
    server: fairweir_testing::Postgres,
    schemas: AtomicU64,
}

#[cfg(feature = "postgres")]
impl Server {
    fn start() -> Option<Server> {
        Some(Server { server: fairweir_testing::Postgres::start()?, schemas: AtomicU64::new(0) })
    }

    fn place(&self) -> Place {
        use crate::store::postgres::Postgres;
        let schema = format!("history{}", self.schemas.fetch_add(1, Ordering::Relaxed));
        self.server.sql(&format!("create schema {schema}")).unwrap();
        let options = format!("options=-csearch_path%3D{schema}");
        let url = format!("{}&{options}", self.server.url());
        let database = Database::of(&StateDir::new(Path::new("/")), Some(&url)).unwrap();
        let relays = [0, 1].map(|_| Arc::new(relay::Relay::start(self.server.socket())));
        let servers = relays.clone().map(|relay| -> Open {
            let url = format!("postgres://market@{}/postgres?{options}", relay.address);
            Arc::new(move || {
                // The relay is not used here, but must live as long as the server.
                let _relay = &relay;
                let rows: Box<dyn Rows> = Box::new(Postgres::connect(&url, PATIENCE)?);
                Ok(rows)
            })
        });
        let disturb = move |dice: &mut Dice| {
            let relay = &relays[dice.below(2) as usize];
            relay.cut(true);
            dice.pause(400);
            relay.cut(false);
        };
        Place { database, servers, disturb: Box::new(disturb), _dir: None }
    }
}

/// Plays the history of a seed, and returns it with the database's final contents.
fn play(place: &Place, seed: u64, broken: Option<Broken>) -> (Vec<Entry>, End) {
    let mut dice = Dice(seed);
    let fates = [0, 1].map(|_| {
        let dice = Mutex::new(Dice(dice.below(u64::MAX)));
        Arc::new(Fate { is_on: AtomicBool::new(false), dice, broken })
    });
    found(&place.database);
    let servers = [0, 1].map(|i| {
        let (open, fate) = (Arc::clone(&place.servers[i]), Arc::clone(&fates[i]));
        let open = move || {
            let rows = open().map_err(|failed| failed_to("open the database", failed))?;
            Store::over(Box::new(Faulty::new(rows, Arc::clone(&fate)))).read()
        };
        // The network may be slow on a busy machine, so starting a server is retried.
        let mut tries = 0;
        loop {
            tries += 1;
            match Keeper::of(open.clone()) {
                Ok(started) => break started,
                Err(e) => assert!(tries < 100, "{e}"),
            }
        }
    });
    let keepers = [&servers[0].0, &servers[1].0];
    let recorder = Recorder::default();
    let (sequences, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    fates.iter().for_each(|fate| fate.is_on.store(true, Ordering::Relaxed));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let gateway = format!("gw-{}", 1 + i % GATEWAYS);
                let mut client = Client {
                    keepers,
                    recorder: &recorder,
                    sequences: &sequences,
                    gateway,
                    dice: Dice(dice.below(u64::MAX)),
                    open: 0,
                    unanswered: Vec::new(),
                    silence: 0,
                };
                scope.spawn(move || {
                    for _ in 0..CALLS {
                        client.call();
                        if client.silence == UNANSWERED_MAX {
                            return;
                        }
                    }
                })
            })
            .collect();
        for keeper in keepers {
            let (recorder, stop, mut dice) = (&recorder, &stop, Dice(dice.below(u64::MAX)));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    dice.pause(40);
                    close(keeper, recorder);
                }
            });
        }
        let (stop_disturbing, mut dice) = (&stop, Dice(dice.below(u64::MAX)));
        scope.spawn(move || {
            while !stop_disturbing.load(Ordering::Relaxed) {
                dice.pause(600);
                (place.disturb)(&mut dice);
            }
        });
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    fates.iter().for_each(|fate| fate.is_on.store(false, Ordering::Relaxed));
    // Bids placed ahead also enter statements, if the store can still be read.
    for (keeper, thread) in servers {
        drop(keeper);
        thread.join().unwrap();
    }
    if let Ok((keeper, thread)) = Keeper::start(place.database.clone()) {
        (0..4).for_each(|_| close(&keeper, &recorder));
        drop(keeper);
        thread.join().unwrap();
    }
    (recorder.entries.into_inner().unwrap(), end(&place.database))
}

fn found(database: &Database) {
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    let rules: Rules = serde_json::from_value(serde_json::json!({
        "terms": { "mode": "float", "capacity": 40_000_000, "floor_percent": 10 },
        "share": "10000000", "cap": "32000000", "slot_s": 1_800, "close_before_s": 30, "epoch_s": 0,
    }))
    .unwrap();
    let apply = |event: Event| keeper.ask(|session| session.apply(event)).unwrap().unwrap();
    apply(Event::Found(rules));
    for i in 0..GATEWAYS {
        let (hash, contract) = (format!("h{i}"), format!("c{i}"));
        apply(Event::Code { hash: hash.clone(), contract, peak: None, until_s: 9 });
        apply(Event::Join { hash, certificate: format!("f{i}"), at_s: 0 });
    }
    drop(keeper);
    thread.join().unwrap();
}

#[derive(Default)]
struct Recorder {
    clock: AtomicU64,
    entries: Mutex<Vec<Entry>>,
}

impl Recorder {
    fn record(&self, call: Call, of: impl FnOnce() -> Outcome) -> Outcome {
        let invoked = self.clock.fetch_add(1, Ordering::SeqCst);
        let outcome = of();
        let returned = self.clock.fetch_add(1, Ordering::SeqCst);
        let entry = Entry { invoked, returned, call, outcome: outcome.clone() };
        self.entries.lock().unwrap().push(entry);
        outcome
    }
}

/// A client that bids for a gateway, concurrently with other clients of it.
struct Client<'a> {
    keepers: [&'a Keeper; 2],
    recorder: &'a Recorder,
    sequences: &'a AtomicU64,
    gateway: String,
    dice: Dice,
    /// The first open slot according to the latest answer.
    open: u64,
    unanswered: Vec<Bid>,
    /// Number of consecutive calls without an answer.
    silence: usize,
}

impl Client<'_> {
    fn call(&mut self) {
        let keeper = self.keepers[self.dice.below(2) as usize];
        let what = self.dice.below(10);
        let again = if (2..5).contains(&what) { self.unanswered.pop() } else { None };
        let outcome = match (what, again) {
            (0, _) => {
                let read = || match keeper.ask(|session| last(session)) {
                    Ok(seen) => Outcome::Seen(seen),
                    Err(_) => Outcome::Unknown,
                };
                self.recorder.record(Call::Read, read)
            }
            (1, _) => return self.dice.pause(20),
            (_, Some(bid)) => self.bid(keeper, bid),
            _ => {
                let sequence = self.sequences.fetch_add(1, Ordering::SeqCst);
                // Less than any balance, and unique.
                let spend = 1_000 + sequence as i64;
                let slot = self.open + self.dice.below(3);
                self.bid(keeper, Bid { gateway: self.gateway.clone(), slot, sequence, spend })
            }
        };
        self.silence = if outcome == Outcome::Unknown { self.silence + 1 } else { 0 };
    }

    fn bid(&mut self, keeper: &Keeper, bid: Bid) -> Outcome {
        let Bid { gateway, slot, sequence, spend } = bid.clone();
        let event = Event::Bid { gateway, slot, spend: Credits::micro(spend as u64), sequence };
        let open = &mut self.open;
        let ask = || {
            let asked =
                keeper.ask(move |session| (session.apply(event), session.book().open_slot()));
            match asked {
                Ok((done, now)) => {
                    *open = now;
                    if done.is_ok() { Outcome::Done } else { Outcome::Refused }
                }
                Err(Gone::Database | Gone::Keeper) => Outcome::Unknown,
            }
        };
        let outcome = self.recorder.record(Call::Bid(bid.clone()), ask);
        if outcome == Outcome::Unknown {
            self.unanswered.push(bid);
        }
        outcome
    }
}

/// Closes the first open slot, as a server does that has read the book a moment before.
fn close(keeper: &Keeper, recorder: &Recorder) {
    let Ok(slot) = keeper.ask(|session| session.book().open_slot()) else { return };
    recorder.record(Call::Close(slot), || {
        let closed = keeper.ask(move |session| {
            let is_open = session.book().open_slot() == slot;
            is_open && session.book().closing().and_then(|event| session.apply(event)).is_ok()
        });
        match closed {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        }
    });
}

/// The last closed slot, as a server knows it.
fn last(session: &Session<'_>) -> Option<Division> {
    let Settled { slot, root, statements, .. } = Settled::last_of(session.book())?;
    let row = |(gateway, s): (String, Statement)| Row {
        gateway,
        opening: micro(s.opening),
        spent: micro(s.spent),
        received: micro(s.received),
        moved: s.moved,
        closing: micro(s.closing),
    };
    Some(Division { slot, root, statements: statements.into_iter().map(row).collect() })
}

/// The contents of the tables, without computing anything.
fn end(database: &Database) -> End {
    let mut store = Store::connect(database, true).unwrap();
    let mut query = |sql| store.query("read", sql, &[]).unwrap();
    let events = query("select number, body from event order by number");
    let event = |row: &Vec<Value>| {
        let body = serde_json::from_str(text(row, 1).unwrap()).unwrap();
        (number(row, 0).unwrap(), body)
    };
    let slots = query("select slot, root from settlement order by slot");
    let rows = query(
        "select slot, gateway, opening, spent, received, moved, closing from statement \
         order by slot, seat",
    );
    let division = |slot: &Vec<Value>| {
        let at = number(slot, 0).unwrap();
        let row = |row: &Vec<Value>| {
            let [opening, spent, received, moved, closing] =
                [2, 3, 4, 5, 6].map(|i| number(row, i).unwrap());
            let gateway = text(row, 1).unwrap().to_owned();
            Row { gateway, opening, spent, received, moved, closing }
        };
        let of_slot = rows.iter().filter(|row| number(row, 0).unwrap() == at);
        let root = text(slot, 1).unwrap().to_owned();
        Division { slot: at as u64, root, statements: of_slot.map(row).collect() }
    };
    End {
        events: events.iter().map(event).collect(),
        divisions: slots.iter().map(division).collect(),
    }
}

/// Totals over all histories.
#[derive(Debug, Default)]
struct Sum {
    histories: usize,
    done: usize,
    refused: usize,
    unknown: usize,
    slots: usize,
}

/// Plays and checks histories, several at a time.
fn all_hold(name: &str, seeds: std::ops::Range<u64>, place: impl Fn() -> Place + Sync) {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Sum::default()));
    let begun = Instant::now();
    let one = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let place = place();
            let (history, end) = play(&place, seed, None);
            let wrong = check(&history, &end, CREDITS);
            assert!(wrong.is_empty(), "{name}, seed {seed}: {wrong:#?}");
            let book = verify(&place.database).unwrap();
            assert_eq!(book.open_slot(), end.divisions.len() as u64, "{name}, seed {seed}");
            let count = |wanted: Outcome| history.iter().filter(|e| e.outcome == wanted).count();
            let mut sum = sum.lock().unwrap();
            sum.histories += 1;
            sum.done += count(Outcome::Done);
            sum.refused += count(Outcome::Refused);
            sum.unknown += count(Outcome::Unknown);
            sum.slots += end.divisions.len();
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(one)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let sum = sum.into_inner().unwrap();
    eprintln!("{name}: {sum:?} in {:.1} s, nothing wrong", begun.elapsed().as_secs_f64());
    // Faults have happened, but most of the work was still done.
    assert!(sum.unknown >= sum.histories && sum.slots >= sum.histories, "{sum:?}");
}

/// Number of histories played at the same time.
const AT_A_TIME: usize = 3;

/// Checks that each defect is detected in at least one of several histories.
fn each_defect_is_found(place: impl Fn() -> Place) {
    for broken in Broken::ALL {
        let found = (0..20).find_map(|seed| {
            let (history, end) = play(&place(), seed, Some(broken));
            let wrong = check(&history, &end, CREDITS);
            wrong.first().map(|first| (seed, first.clone()))
        });
        let (seed, first) = found.unwrap_or_else(|| panic!("{broken:?} is not found"));
        eprintln!("{broken:?}, seed {seed}: {first}");
    }
}

#[test]
fn histories_at_sqlite_hold() {
    all_hold("SQLite", 0..6, Place::sqlite);
}

#[test]
fn defects_at_sqlite_are_found() {
    each_defect_is_found(Place::sqlite);
}

#[cfg(feature = "postgres")]
#[test]
fn histories_at_postgres_hold() {
    let Some(server) = Server::start() else { return };
    all_hold("PostgreSQL", 0..6, || server.place());
}

#[cfg(feature = "postgres")]
#[test]
fn defects_at_postgres_are_found() {
    let Some(server) = Server::start() else { return };
    each_defect_is_found(|| server.place());
}

#[cfg(feature = "postgres")]
#[test]
#[ignore = "long: some minutes"]
fn two_hundred_histories_hold() {
    all_hold("SQLite", 1_000..1_120, Place::sqlite);
    let server = Server::start().expect("PostgreSQL");
    all_hold("PostgreSQL", 1_000..1_120, || server.place());
}
