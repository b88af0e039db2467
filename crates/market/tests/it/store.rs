//! The market's database: the same tests on SQLite and on a dedicated PostgreSQL server.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::market::ledger::Credits;
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::units::Rate;
use fairweir_daemon::StateDir;
use fairweir_market::book::{AHEAD, Book, Event, Rules};
use fairweir_market::keeper::{Gone, Keeper};
use fairweir_market::store::{Database, events, prune, verify};
use fairweir_testing::{Postgres, can_run};
use tempfile::TempDir;

/// A database with which a test can tamper.
struct Place {
    database: Database,
    dir: TempDir,
    server: Option<Postgres>,
}

impl Place {
    fn sqlite() -> Place {
        Place::sqlite_in(tempfile::tempdir().unwrap())
    }

    fn sqlite_in(dir: TempDir) -> Place {
        let database = Database::of(&StateDir::new(dir.path()), None).unwrap();
        Place { database, dir, server: None }
    }

    fn postgres() -> Option<Place> {
        let is_built = can_run(cfg!(feature = "postgres"), "the feature `postgres`");
        is_built.then(Postgres::start).flatten().map(Place::postgres_at)
    }

    fn postgres_at(server: Postgres) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::of(&StateDir::new(dir.path()), Some(&server.url())).unwrap();
        Place { database, dir, server: Some(server) }
    }

    fn all() -> impl Iterator<Item = Place> {
        [Some(Place::sqlite()), Place::postgres()].into_iter().flatten()
    }

    /// The path of the SQLite file.
    fn file(&self) -> PathBuf {
        self.dir.path().join("market.db")
    }

    /// Executes a statement that no server would execute.
    fn tamper(&self, sql: &str) -> Result<(), String> {
        match &self.server {
            Some(server) => server.sql(sql).map(drop),
            None => {
                let file = rusqlite::Connection::open(self.file()).unwrap();
                file.execute_batch(sql).map_err(|e| e.to_string())
            }
        }
    }

    /// All columns in the database, as `table.column`.
    fn columns(&self) -> BTreeSet<String> {
        match &self.server {
            Some(server) => {
                let sql = "select table_name || '.' || column_name from information_schema.columns \
                           where table_schema = 'public'";
                server.sql(sql).unwrap().lines().map(str::to_owned).collect()
            }
            None => {
                let sql = "select m.name || '.' || c.name from sqlite_master m, \
                           pragma_table_info(m.name) c where m.type = 'table'";
                let file = rusqlite::Connection::open(self.file()).unwrap();
                let mut columns = file.prepare(sql).unwrap();
                columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
        }
    }
}

fn start(place: &Place) -> (Keeper, thread::JoinHandle<()>) {
    Keeper::start(place.database.clone()).unwrap()
}

fn stop((keeper, thread): (Keeper, thread::JoinHandle<()>)) {
    drop(keeper);
    thread.join().unwrap();
}

fn apply(keeper: &Keeper, event: Event) {
    keeper.ask(move |session| session.apply(event)).unwrap().unwrap();
}

fn book(keeper: &Keeper) -> Book {
    keeper.ask(|session| session.book().clone()).unwrap()
}

fn found(keeper: &Keeper, gateways: usize) {
    apply(
        keeper,
        Event::Found(Rules {
            terms: Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 },
            share: Credits::whole(10),
            cap: Credits::whole(32),
            slot_s: 1_800,
            close_before_s: 30,
            epoch_s: 0,
        }),
    );
    for i in 0..gateways {
        let (hash, contract) = (format!("h{i}"), format!("c{i}"));
        apply(keeper, Event::Code { hash: hash.clone(), contract, peak: None, until_s: 9 });
        apply(keeper, Event::Join { hash, certificate: format!("f{i}"), at_s: 0 });
    }
}

fn bid(keeper: &Keeper, gateway: usize, slot: u64, sequence: u64) -> Result<bool, Gone> {
    let spend = Credits::micro((slot * 7 + sequence * 3) % 11 * 300_000);
    let event = Event::Bid { gateway: format!("gw-{}", gateway + 1), slot, spend, sequence };
    keeper.ask(move |session| session.apply(event).is_ok())
}

/// Closes a slot unless another server has closed it.
fn close(keeper: &Keeper, slot: u64) -> Result<bool, Gone> {
    keeper.ask(move |session| {
        let is_open = session.book().open_slot() == slot;
        if is_open {
            let event = session.book().closing().unwrap();
            session.apply(event).unwrap();
        }
        is_open
    })
}

/// Collects every key in a document, except for keys that are data: hashes of codes, and contracts.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(members) => {
            for (key, value) in members {
                let is_data =
                    key.strip_prefix(['h', 'c']).is_some_and(|n| n.parse::<u64>().is_ok())
                        || key.parse::<u64>().is_ok();
                if !is_data {
                    found.insert(key.clone());
                }
                keys(value, found);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

/// This list is everything that can be stored: no address, application or personal name. `contract` is the
/// operator's name for a household, `name` and `gateway` are its pseudonym, `certificate` is a hash.
#[test]
fn tables_have_no_place_for_addresses_applications_and_names() {
    let columns = [
        "event.body",
        "event.number",
        "fairweir_market.version",
        "settlement.credits",
        "settlement.gateways",
        "settlement.moved",
        "settlement.received",
        "settlement.root",
        "settlement.slot",
        "settlement.spent",
        "snapshot.book",
        "snapshot.number",
        "statement.closing",
        "statement.gateway",
        "statement.moved",
        "statement.opening",
        "statement.received",
        "statement.seat",
        "statement.slot",
        "statement.spent",
    ];
    let of_events = [
        "absent",
        "at_s",
        "bid",
        "cap",
        "capacity",
        "certificate",
        "change",
        "close",
        "close_before_s",
        "code",
        "contract",
        "epoch_s",
        "floor_percent",
        "found",
        "gateway",
        "hash",
        "join",
        "leave",
        "mode",
        "open",
        "peak",
        "plan",
        "resume",
        "root",
        "sequence",
        "share",
        "slot",
        "slot_s",
        "spend",
        "terms",
        "until_s",
    ];
    let of_book = [
        "at_s",
        "balance",
        "balances",
        "bid_count",
        "bids",
        "cap",
        "capacity",
        "certificate",
        "close_before_s",
        "closed",
        "closing",
        "codes",
        "contract",
        "epoch_s",
        "floor_percent",
        "gateways",
        "is_paused",
        "left",
        "mode",
        "moved",
        "name",
        "names",
        "open",
        "opening",
        "peak",
        "price",
        "rate",
        "received",
        "root",
        "rules",
        "sequence",
        "share",
        "slot",
        "slot_s",
        "spend",
        "spent",
        "statements",
        "terms",
        "until_s",
    ];
    for place in Place::all() {
        let server = start(&place);
        found(&server.0, 4);
        let (hash, contract) = ("h9".to_owned(), "c9".to_owned());
        apply(&server.0, Event::Code { hash, contract, peak: None, until_s: 9 });
        for slot in [0, 1] {
            assert_eq!(bid(&server.0, 0, slot, 1), Ok(true));
        }
        apply(&server.0, Event::Absent { slot: 0, spend: Credits::micro(1) });
        let (capacity, floor_percent, cap) = (Some(Rate::mbit(50)), Some(20), None);
        apply(&server.0, Event::Change { capacity, floor_percent, cap });
        apply(&server.0, Event::Plan { gateway: "gw-1".to_owned(), peak: Some(Rate::mbit(5)) });
        close(&server.0, 0).unwrap();
        apply(&server.0, Event::Pause);
        apply(&server.0, Event::Resume { open: 1 });
        apply(&server.0, Event::Leave { gateway: "gw-2".to_owned(), at_s: 5 });
        let mut in_book = BTreeSet::new();
        keys(&serde_json::to_value(book(&server.0)).unwrap(), &mut in_book);
        stop(server);
        let mut in_events = BTreeSet::new();
        let each = |body: &str| keys(&serde_json::from_str(body).unwrap(), &mut in_events);
        events(&place.database, each).unwrap();
        let listed = |all: &[&str]| all.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(in_events, listed(&of_events));
        assert_eq!(in_book, listed(&of_book));
        assert_eq!(place.columns(), listed(&columns));
    }
}

#[test]
fn old_slots_are_pruned_and_the_rest_is_verified() {
    let count = |place: &Place| {
        let mut count = 0;
        events(&place.database, |_| count += 1).unwrap();
        count
    };
    for place in Place::all() {
        let server = start(&place);
        found(&server.0, 4);
        for slot in 0..6 {
            for gateway in 0..4 {
                assert_eq!(bid(&server.0, gateway, slot + 1, 1), Ok(true));
            }
            assert_eq!(close(&server.0, slot), Ok(true));
        }
        for before in [0, 6, 7, u64::MAX] {
            let error = prune(&place.database, before).unwrap_err().to_string();
            assert!(error.ends_with("1 to 5 are"), "{error}");
        }
        let all = count(&place);
        // Prunes while a server is running, which continues afterwards.
        let pruned = prune(&place.database, 3).unwrap();
        assert_eq!((pruned.statements, pruned.first_slot), (12, 3));
        assert_eq!(count(&place), all - pruned.events);
        assert!(pruned.events > 10, "{pruned:?}");
        assert_eq!(verify(&place.database).unwrap(), book(&server.0));
        assert_eq!(close(&server.0, 6), Ok(true));
        let error = prune(&place.database, 3).unwrap_err().to_string();
        assert!(error.ends_with("4 to 6 are"), "{error}");
        assert_eq!(prune(&place.database, 5).unwrap().statements, 8);
        let after = book(&server.0);
        stop(server);
        let again = start(&place);
        assert_eq!(book(&again.0), after);
        assert_eq!(close(&again.0, 7), Ok(true));
        stop(again);
        let book = verify(&place.database).unwrap();
        assert_eq!((book.open_slot(), book.root() == after.root()), (8, false));
        if place.server.is_none() {
            let copied = StateDir::new(&place.dir.path().join("copy"));
            assert_eq!(place.database.copy_to(&copied).unwrap(), book);
        }
        // The hash of each slot is still stored, and everything after the base must be consistent with it.
        let root = "update settlement set root = 'x' || root where slot = 2";
        let back = "update settlement set root = substr(root, 2) where slot = 2";
        for (wrong, right) in [
            (root, back),
            ("update snapshot set book = replace(book, 'gw-1', 'gw-0')", ""),
            ("delete from snapshot", ""),
        ] {
            place.tamper(wrong).unwrap();
            let error = verify(&place.database).unwrap_err().to_string();
            assert!(error.starts_with("event "), "{wrong}: {error}");
            if !right.is_empty() {
                place.tamper(right).unwrap();
                verify(&place.database).unwrap();
            }
        }
        assert!(Keeper::start(place.database.clone()).is_err(), "without its base it is no market");
    }
}

#[test]
fn what_happened_is_there_again_and_verified() {
    for place in Place::all() {
        let server = start(&place);
        found(&server.0, 4);
        for slot in 0..5 {
            for gateway in 0..4 {
                assert_eq!(bid(&server.0, gateway, slot, 1 + gateway as u64), Ok(true));
                // A repeated bid is not a new bid, and is not written.
                assert_eq!(bid(&server.0, gateway, slot, 1 + gateway as u64), Ok(true));
            }
            assert_eq!(close(&server.0, slot), Ok(true));
        }
        apply(&server.0, Event::Leave { gateway: "gw-2".to_owned(), at_s: 1 });
        let before = book(&server.0);
        assert_eq!(verify(&place.database).unwrap(), before);
        stop(server);
        let again = start(&place);
        assert_eq!(book(&again.0), before);
        assert_eq!(close(&again.0, 5), Ok(true));
        let after = book(&again.0);
        stop(again);
        assert_eq!(verify(&place.database).unwrap(), after);
        let mut count = 0;
        events(&place.database, |_| count += 1).unwrap();
        assert_eq!(count, 1 + 4 * 2 + 5 * 5 + 1 + 1);
    }
}

/// Tables written by the previous version, which used another database driver, are read, verified and extended.
#[test]
fn a_market_of_the_version_before_goes_on() {
    for place in Place::all() {
        place.tamper(include_str!("version-1.sql")).unwrap();
        let root = "9eef58f39282a0c5a4758bef669cafb7bc7b2c568b1b1f3d41d430d1d74e1dbc";
        let before = verify(&place.database).unwrap();
        assert_eq!((before.open_slot(), before.root()), (8, root));
        let server = start(&place);
        assert_eq!(book(&server.0), before);
        assert_eq!(bid(&server.0, 1, 8, 1), Ok(true));
        assert_eq!(close(&server.0, 8), Ok(true));
        let after = book(&server.0);
        stop(server);
        assert_eq!(verify(&place.database).unwrap(), after);
        assert_eq!((after.open_slot(), after.credits()), (9, 20_000_000));
    }
}

/// Four threads on two servers bid and close slots as fast as they can.
#[test]
fn two_servers_close_each_slot_once_and_agree() {
    const SLOTS: u64 = 40;
    for place in Place::all() {
        let servers = [start(&place), start(&place)];
        found(&servers[0].0, 4);
        let closed = AtomicU64::new(0);
        thread::scope(|scope| {
            for i in 0..4 {
                let (keeper, closed) = (&servers[i % 2].0, &closed);
                scope.spawn(move || {
                    for slot in 0..SLOTS {
                        // The bid is refused if another thread has closed the slot.
                        bid(keeper, i, slot, 1).unwrap();
                        closed.fetch_add(close(keeper, slot).unwrap().into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(closed.into_inner(), SLOTS);
        let [one, other] = [book(&servers[0].0), book(&servers[1].0)];
        assert_eq!(one, other);
        assert_eq!((one.open_slot(), one.credits()), (SLOTS, 40_000_000));
        servers.into_iter().for_each(stop);
        assert_eq!(verify(&place.database).unwrap(), one);
    }
}

#[test]
fn what_is_changed_in_the_tables_is_refused_or_found() {
    for place in Place::all() {
        let server = start(&place);
        found(&server.0, 3);
        for slot in 0..3 {
            (0..3).for_each(|gateway| assert_eq!(bid(&server.0, gateway, slot, 2), Ok(true)));
            close(&server.0, slot).unwrap();
        }
        stop(server);
        // The database itself refuses these statements.
        for sql in [
            "update statement set closing = closing + 1 where slot = 1 and seat = 0",
            "update statement set spent = opening + 1 where slot = 1 and seat = 0",
            "update settlement set received = received + 1 where slot = 1",
            "update settlement set moved = 1 where slot = 1",
            "insert into settlement select * from settlement where slot = 1",
            "insert into event select * from event where number = 3",
        ] {
            assert!(place.tamper(sql).is_err(), "{sql}");
        }
        let whole = verify(&place.database).unwrap();
        // The server detects these changes; each is undone by the next line.
        for (sql, undo) in [
            (
                "update statement set received = received + 1, closing = closing + 1 where slot = 1 and seat = 2",
                "update statement set received = received - 1, closing = closing - 1 where slot = 1 and seat = 2",
            ),
            (
                "update settlement set credits = credits + 1 where slot = 0",
                "update settlement set credits = credits - 1 where slot = 0",
            ),
            (
                "update event set body = replace(body, '\"sequence\":2', '\"sequence\":3') where number = 8; \
                 update event set number = 1000 where number = 9",
                "update event set number = 9 where number = 1000; \
                 update event set body = replace(body, '\"sequence\":3', '\"sequence\":2') where number = 8",
            ),
            (
                "update event set body = replace(body, '\"spend\":\"', '\"spend\":\"1') where number = 8",
                "update event set body = replace(body, '\"spend\":\"1', '\"spend\":\"') where number = 8",
            ),
            ("delete from event where number = (select max(number) from event)", ""),
        ] {
            place.tamper(sql).unwrap();
            let error = verify(&place.database).unwrap_err().to_string();
            assert!(error.starts_with("event "), "{sql}: {error}");
            if !undo.is_empty() {
                place.tamper(undo).unwrap();
                assert_eq!(verify(&place.database).unwrap(), whole, "{undo}");
            }
        }
        drop(place.dir);
    }
}

#[test]
fn a_file_that_is_removed_acknowledges_nothing() {
    let place = Place::sqlite();
    let (keeper, _thread) = start(&place);
    found(&keeper, 1);
    std::fs::remove_file(place.dir.path().join("market.db")).unwrap();
    // Reading also detects the removal, and no empty file replaces the database.
    assert_eq!(keeper.ask(|session| session.book().open_slot()), Err(Gone::Database));
    for _ in 0..3 {
        assert_eq!(bid(&keeper, 0, 0, 1), Err(Gone::Database));
        thread::sleep(Duration::from_millis(300));
    }
    assert!(!place.file().exists());
}

/// A snapshot contains nothing that does not follow from the events.
#[test]
fn a_snapshot_that_cannot_be_read_is_not_used() {
    for place in Place::all() {
        let server = start(&place);
        found(&server.0, 2);
        close(&server.0, 0).unwrap();
        let before = book(&server.0);
        stop(server);
        for text in ["{\"rules\":1}", "no JSON", ""] {
            place.tamper("delete from snapshot").unwrap();
            place.tamper(&format!("insert into snapshot values (3, '{text}')")).unwrap();
            let server = start(&place);
            assert_eq!(book(&server.0), before, "{text}");
            stop(server);
        }
    }
}

/// The database is killed while two servers bid. Everything that was acknowledged is there, and the servers
/// recover by themselves.
#[test]
fn a_database_that_is_killed_loses_nothing_that_was_acknowledged() {
    const KILLS: usize = 5;
    let Some(mut place) = Place::postgres() else { return };
    let servers = [start(&place), start(&place)];
    found(&servers[0].0, 2);
    let sequences = [0, 1].map(|_| AtomicU64::new(0));
    let stop_at = AtomicU64::new(0);
    thread::scope(|scope| {
        for (i, (keeper, _)) in servers.iter().enumerate() {
            let (acknowledged, stop_at) = (&sequences[i], &stop_at);
            scope.spawn(move || {
                let mut sequence = 1;
                while stop_at.load(Ordering::Relaxed) == 0 {
                    thread::sleep(Duration::from_millis(10));
                    if bid(keeper, i, AHEAD - 1, sequence) == Ok(true) {
                        acknowledged.store(sequence, Ordering::Relaxed);
                    }
                    sequence += 1;
                }
            });
        }
        for kill in 0..KILLS {
            thread::sleep(Duration::from_millis(150 + 97 * kill as u64 % 200));
            let before = [0, 1].map(|i| sequences[i].load(Ordering::Relaxed));
            // Closing the slot resets the count of bids.
            close(&servers[1].0, kill as u64).unwrap();
            let server = place.server.as_mut().unwrap();
            server.kill();
            server.run();
            let begun = Instant::now();
            while (0..2).any(|i| sequences[i].load(Ordering::Relaxed) <= before[i] + 1) {
                assert!(begun.elapsed() < Duration::from_secs(30), "the servers do not go on");
                thread::sleep(Duration::from_millis(20));
            }
        }
        stop_at.store(1, Ordering::Relaxed);
    });
    let now = book(&servers[0].0);
    for (i, gateway) in now.gateways().iter().enumerate() {
        let stands = gateway.bids().next().unwrap().sequence;
        assert!(stands >= sequences[i].load(Ordering::Relaxed), "{stands}");
    }
    assert_eq!(close(&servers[1].0, KILLS as u64), Ok(true));
    servers.into_iter().for_each(stop);
    assert_eq!(verify(&place.database).unwrap().credits(), 20_000_000);
}

/// A disk of a few MiB; unmounted when dropped.
struct Disk(TempDir);

impl Disk {
    /// `None` if the test may not mount file systems.
    fn new(mib: u32) -> Option<Disk> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]).arg(dir.path());
        let is_mounted = mount.output().is_ok_and(|done| done.status.success());
        can_run(is_mounted, "root, to mount a small disk").then_some(Disk(dir))
    }

    fn dir(&self) -> TempDir {
        let dir = tempfile::tempdir_in(self.0.path()).unwrap();
        std::fs::set_permissions(self.0.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    /// Fills the disk completely.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[0; 4_096]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_of_sqlite_loses_nothing_that_was_acknowledged() {
    let Some(disk) = Disk::new(4) else { return };
    survives_a_full_disk(Place::sqlite_in(disk.dir()), &disk);
}

#[test]
fn a_full_disk_of_postgres_loses_nothing_that_was_acknowledged() {
    let Some(disk) = Disk::new(160) else { return };
    let Some(server) = Postgres::start_in(disk.dir()) else { return };
    survives_a_full_disk(Place::postgres_at(server), &disk);
}

/// Two gateways bid and slots are closed while the disk fills up; they continue when there is space again. All
/// acknowledged changes are there, each slot was closed completely, and recomputing gives the same state.
fn survives_a_full_disk(mut place: Place, disk: &Disk) {
    let server = start(&place);
    found(&server.0, 2);
    let ballast = disk.fill();
    let (mut stands, mut closed, mut refused, mut sequence) = ([0; 2], 0, 0, 0);
    let begun = Instant::now();
    while refused < 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the disk does not fill");
        sequence += 1;
        for (gateway, stands) in stands.iter_mut().enumerate() {
            match bid(&server.0, gateway, closed + AHEAD / 2, sequence) {
                Ok(true) => *stands = sequence,
                Ok(false) => {}
                Err(_) => refused += 1,
            }
        }
        // The number of bids per slot is limited; a client without an answer asks again.
        if sequence % 50 == 0 {
            match close(&server.0, closed) {
                Ok(_) => (closed, stands) = (closed + 1, [0; 2]),
                Err(_) => refused += 1,
            }
        }
        if refused > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    std::fs::remove_file(ballast).unwrap();
    let begun = Instant::now();
    if let Some(database) = &mut place.server
        && database.has_ended()
    {
        database.run();
    }
    while close(&server.0, closed).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the server does not go on");
        std::thread::sleep(Duration::from_millis(50));
        if let Some(database) = &mut place.server
            && database.has_ended()
        {
            database.run();
        }
    }
    eprintln!(
        "{closed} slots closed before the disk was full, on again after {:?}",
        begun.elapsed()
    );
    let now = book(&server.0);
    assert!(
        [closed, closed + 1].contains(&(now.open_slot() - 1)),
        "{} after {closed}",
        now.open_slot()
    );
    for (gateway, stood) in now.gateways().iter().zip(stands) {
        let there = gateway.bids().find(|bid| bid.slot == closed + AHEAD / 2);
        assert!(there.map_or(0, |bid| bid.sequence) >= stood, "{there:?}, acknowledged {stood}");
    }
    stop(server);
    assert_eq!(verify(&place.database).unwrap(), now);
    assert_eq!(now.credits(), 20_000_000);
    drop(place);
}
