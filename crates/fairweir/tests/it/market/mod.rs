//! `fairweir market serve` as a process: 1,000 households, and `kill -9` while it works.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairweir_daemon::{Access, Request};
use fairweir_market::client::{Client, ClientError};
use fairweir_market::identity::Identity;
use fairweir_testing::{Postgres, note, one_at_a_time, privileged, two_of_three};
use serde_json::{Value, json};
use tempfile::TempDir;

mod agents;
mod browsers;
mod clock;
mod day;
mod home;
mod operator;
mod street;
use crate::common::access::{ALICE4, Access as Network, BOB4, SPAN};
use crate::common::{FAIRWEIR, fairweir};

/// A market whose server tests kill and restart.
struct Market {
    dir: Arc<TempDir>,
    run: PathBuf,
    segment: Option<&'static str>,
    database: Option<String>,
    /// Further options of `serve`.
    options: Vec<&'static str>,
    envs: Vec<(&'static str, String)>,
    process: Option<Child>,
    address: SocketAddr,
}

impl Market {
    /// A market whose first slot lasts throughout the test: it is about an hour long, with over ten minutes left.
    fn of_one_slot(database: Option<String>) -> Market {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let is_young = |slot_s: &u64| now % slot_s < slot_s - 600;
        let slot_s = (3_600..).step_by(60).find(is_young).unwrap();
        Market::found_in(database, slot_s, "10gbit")
    }

    fn found(slot_s: u64) -> Market {
        Market::found_at(slot_s, "10gbit")
    }

    fn found_at(slot_s: u64, capacity: &str) -> Market {
        Market::found_in(None, slot_s, capacity)
    }

    fn found_in(database: Option<String>, slot_s: u64, capacity: &str) -> Market {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let run = dir.path().join("run");
        let address = free_address();
        let (options, envs) = (Vec::new(), Vec::new());
        let market =
            Market { dir, run, segment: None, database, options, envs, process: None, address };
        market.tell("init", &["--capacity", capacity, "--slot", &slot_s.to_string()]);
        market
    }

    /// A second server for the same market.
    fn twin(&self) -> Market {
        let run = self.dir.path().join("run-of-twin");
        let (dir, database) = (Arc::clone(&self.dir), self.database.clone());
        let (options, envs) = (self.options.clone(), self.envs.clone());
        let address = free_address();
        Market { dir, run, database, options, envs, process: None, address, ..*self }
    }

    /// The options that say where the market is stored.
    fn place(&self) -> Vec<String> {
        let mut place = vec!["--state-dir".to_owned(), self.path("state")];
        place.extend(self.database.iter().flat_map(|url| ["--database".to_owned(), url.clone()]));
        place
    }

    fn tell(&self, what: &str, args: &[&str]) -> String {
        let place = self.place();
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let done = fairweir(&[&["market", what], args, &place].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn start(&mut self) {
        self.spawn();
        let begun = Instant::now();
        while self.status().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the server does not start");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn spawn(&mut self) {
        let process = Command::new(FAIRWEIR)
            .args(["market", "serve", "--until-stdin-closes"])
            .args(["--listen", &self.address.to_string()])
            .args(self.place())
            .args(["--run-dir", self.run.to_str().unwrap()])
            .args(self.segment.iter().flat_map(|segment| ["--segment", segment]))
            .args(&self.options)
            .envs(self.envs.iter().map(|(key, value)| (key, value)))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::piped())
            .spawn();
        self.process = Some(process.unwrap());
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, request: &impl serde::Serialize) -> Option<T> {
        let patience = Duration::from_secs(10);
        let client =
            fairweir_daemon::Client::connect(&self.run, "market", Access::Change, patience);
        client.ok()?.ask(request).ok()
    }

    fn status(&self) -> Option<Value> {
        self.ask(&Request::Status)
    }

    fn code(&self, contract: &str) -> String {
        let request =
            json!({ "request": "code", "contract": contract, "peak": 50_000_000, "hours": 1 });
        self.ask(&request).unwrap()
    }

    /// The market's events, in order.
    fn events(&self) -> Vec<Value> {
        let text = self.tell("log", &[]);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn client(&self, identity: &Identity) -> Client {
        let authority = fs::read(self.path("state/ca.der")).unwrap();
        Client::new(self.address, "localhost", identity.client_config(&authority).unwrap()).unwrap()
    }

    fn enrol(&self, contract: &str) -> (Client, String) {
        let (identity, name) = self.enrol_as(contract);
        (self.client(&identity), name)
    }

    fn enrol_as(&self, contract: &str) -> (Identity, String) {
        let mut identity = Identity::generate().unwrap();
        let code = self.code(contract);
        let name = self.client(&identity).enrol(&mut identity, &code).unwrap();
        (identity, name)
    }

    fn verify(&self) -> String {
        self.tell("verify", &[])
    }
}

impl Drop for Market {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn bid(client: &Client, name: &str, slot: u64, sequence: u64) -> Result<Value, ClientError> {
    let body = json!({ "spend": (1_000_000 + sequence).to_string(), "sequence": sequence });
    client.ask("PUT", &format!("/v1/gateways/{name}/bids/{slot}"), Some(&body))
}

#[test]
fn a_thousand_households_bid_and_every_slot_is_settled() {
    let mut market = Market::of_one_slot(None);
    market.start();
    let begun = Instant::now();
    let mut homes = Vec::new();
    for i in 0..1_000 {
        homes.push(market.enrol(&format!("contract-{i}")));
    }
    note(&format!("1,000 enrolments in {:.1} s", begun.elapsed().as_secs_f64()));
    let waits = Mutex::new(Vec::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        for part in homes.chunks(125) {
            let waits = &waits;
            scope.spawn(move || {
                for (client, name) in part {
                    let asked = Instant::now();
                    bid(client, name, 1, 1).unwrap();
                    waits.lock().unwrap().push(asked.elapsed());
                }
            });
        }
    });
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    note(&format!(
        "1,000 bids by 8 clients in {:.2} s, p50 {:?}, p99 {:?}",
        begun.elapsed().as_secs_f64(),
        waits[500],
        waits[990]
    ));
    let status = market.status().unwrap();
    assert_eq!(status["gateways"], 1_000);
    assert_eq!(status["credits_micro"], 10_000_000_000_u64);
    market.kill();
    assert!(market.verify().contains("1000 gateways"));
}

#[test]
fn a_hundred_kill_9_lose_no_acknowledged_bid_and_no_closed_slot_of_sqlite() {
    survives_kills(100, None);
}

#[test]
fn a_hundred_kill_9_lose_no_acknowledged_bid_and_no_closed_slot_of_postgres() {
    if let Some(server) = Postgres::start() {
        survives_kills(100, Some(server));
    }
}

/// `cargo test -p fairweir --features evidence --test it -- --ignored market::a_thousand`
#[test]
#[ignore = "long: some minutes"]
fn a_thousand_kill_9_lose_nothing() {
    survives_kills(500, None);
    survives_kills(500, Postgres::start());
}

/// Households bid without a pause at two servers of one database. Each server, and PostgreSQL, is killed at
/// random moments. Every acknowledged bid is in a statement as acknowledged; closed slots stay unchanged; no
/// credit is lost.
fn survives_kills(kills: usize, mut database: Option<Postgres>) {
    let url = database.as_ref().map(Postgres::url);
    let mut servers = vec![Market::found_in(url, 1, "10gbit")];
    servers.push(servers[0].twin());
    servers.iter_mut().for_each(Market::start);
    let homes: Vec<(Identity, String)> =
        (0..4).map(|i| servers[0].enrol_as(&format!("c{i}"))).collect();
    let clients = |identity: &Identity| [0, 1].map(|i| servers[i].client(identity));
    let clients: Vec<[Client; 2]> = homes.iter().map(|(identity, _)| clients(identity)).collect();
    let statements = |i: usize| {
        let path = format!("/v1/gateways/{}/statements", homes[i].1);
        let asked = clients[i].iter().find_map(|client| client.ask("GET", &path, None).ok());
        asked.map(|account| account["statements"].as_array().unwrap().clone())
    };
    let acknowledged: Mutex<BTreeMap<(usize, u64), u64>> = Mutex::new(BTreeMap::new());
    let (stop, sequence) = (AtomicBool::new(false), AtomicU64::new(1));
    let mut seen: Vec<(usize, Vec<Value>)> = Vec::new();
    let mut dice = agents::Dice(0x9e37_79b9_7f4a_7c15);
    let begun = Instant::now();
    thread::scope(|scope| {
        for (i, (_, name)) in homes.iter().enumerate() {
            let (clients, acknowledged, stop, sequence) =
                (&clients[i], &acknowledged, &stop, &sequence);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(5));
                    let sequence = sequence.fetch_add(1, Ordering::Relaxed);
                    let client = &clients[sequence as usize % 2];
                    let Ok(clock) = client.ask("GET", "/v1/clock", None) else { continue };
                    let slot = clock["open_slot"].as_u64().unwrap() + 1;
                    match bid(client, name, slot, sequence) {
                        Ok(_) => {
                            acknowledged.lock().unwrap().insert((i, slot), sequence);
                        }
                        // The bid may or may not be stored, so it is not checked.
                        Err(ClientError::Io(_) | ClientError::Refused { status: 503, .. }) => {
                            acknowledged.lock().unwrap().remove(&(i, slot));
                        }
                        Err(ClientError::Refused { status: 409 | 422 | 429, .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        for kill in 0..kills {
            thread::sleep(Duration::from_millis(50 + dice.below(150)));
            match (dice.below(10), &mut database) {
                (0, Some(database)) => {
                    database.kill();
                    database.run();
                }
                (n, _) => {
                    let server = &mut servers[n as usize % 2];
                    server.kill();
                    // The server may be killed while it starts.
                    server.spawn();
                }
            }
            if kill % 10 == 0 {
                seen.extend((0..4).filter_map(|i| Some((i, statements(i)?))));
            }
            if kill % 25 == 0 {
                let verified = servers[0].verify();
                assert!(verified.contains("4 gateways, 40000000 micro-credits"), "{verified}");
            }
        }
        thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
    });
    let mut compared = 0;
    let acknowledged = acknowledged.into_inner().unwrap();
    for home in 0..4 {
        let now = statements(home).unwrap();
        for (_, before) in seen.iter().filter(|(of, _)| *of == home) {
            let first = now[0]["slot"].as_u64();
            let kept = before.iter().filter(|statement| statement["slot"].as_u64() >= first);
            kept.for_each(|statement| assert!(now.contains(statement), "{statement}"));
        }
        for statement in &now {
            let slot = statement["slot"].as_u64().unwrap();
            let Some(sequence) = acknowledged.get(&(home, slot)) else { continue };
            let spent = (1_000_000 + sequence).to_string();
            assert_eq!(statement["statement"]["spent"], spent, "household {home}, slot {slot}");
            compared += 1;
        }
    }
    servers.iter_mut().for_each(Market::kill);
    servers[0].verify();
    note(&format!(
        "{kills} kills in {:.0} s, {compared} acknowledged bids compared with their statements, of {}",
        begun.elapsed().as_secs_f64(),
        sequence.into_inner()
    ));
    assert!(compared >= 20, "{compared}");
}

#[test]
fn a_market_is_founded_once_and_served_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    let run = dir.path().join("run");
    let serve =
        fairweir(&["market", "serve", "--state-dir", state, "--run-dir", run.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&serve.stderr).into_owned();
    assert!(!serve.status.success() && error.contains("market init"), "{error}");
    assert!(!fs::exists(state).unwrap());
    // A market that cannot be founded leaves no files.
    for wrong in [
        ["--share", "32"],
        ["--share", "0"],
        ["--cap", "1000001"],
        ["--floor", "101"],
        ["--slot", "0"],
        ["--slot", "86401"],
        ["--close-before", "1801"],
    ] {
        let args = ["market", "init", "--capacity", "160mbit", "--state-dir", state];
        assert!(!fairweir(&[&args[..], &wrong].concat()).status.success(), "{wrong:?}");
        assert!(!fs::exists(state).unwrap(), "{wrong:?}");
    }
    let init = || fairweir(&["market", "init", "--capacity", "160mbit", "--state-dir", state]);
    assert!(init().status.success());
    let again = String::from_utf8_lossy(&init().stderr).into_owned();
    assert!(again.contains("was founded already"), "{again}");
    let verify = fairweir(&["market", "verify", "--state-dir", state]);
    assert!(
        String::from_utf8_lossy(&verify.stdout).starts_with("valid: 0 slots closed, 0 gateways")
    );
}

/// A new authority would lock out all gateways.
#[test]
fn a_market_whose_authority_is_lost_is_not_served_until_it_is_there_again() {
    let mut market = Market::of_one_slot(None);
    market.start();
    let (client, name) = market.enrol("c");
    market.kill();
    let path = |name: &str| market.dir.path().join("state").join(name);
    let other = Market::of_one_slot(None);
    for (lost, replaced) in
        [("ca-key.pem", false), ("ca.der", false), ("ca-key.pem", true), ("ca.der", true)]
    {
        let kept = fs::read(path(lost)).unwrap();
        match replaced {
            true => drop(fs::copy(other.path(&format!("state/{lost}")), path(lost)).unwrap()),
            false => fs::remove_file(path(lost)).unwrap(),
        }
        let (state, run) = (market.path("state"), market.path("run"));
        let serve = fairweir(&["market", "serve", "--state-dir", &state, "--run-dir", &run]);
        let error = String::from_utf8_lossy(&serve.stderr).into_owned();
        assert!(!serve.status.success() && error.contains("from a backup"), "{lost}: {error}");
        assert_eq!(fs::exists(path(lost)).unwrap(), replaced, "{lost}");
        fs::write(path(lost), kept).unwrap();
    }
    market.start();
    bid(&client, &name, 2, 1).unwrap();
}

#[test]
fn codes_are_listed_and_revoked_and_numbers_are_bounded() {
    let mut market = Market::of_one_slot(None);
    market.start();
    let run = market.run.to_str().unwrap().to_owned();
    let tell = |args: &[&str]| {
        let done = fairweir(&[&["market"], args, &["--run-dir", &run]].concat());
        let text = String::from_utf8(if done.status.success() { done.stdout } else { done.stderr });
        (done.status.success(), text.unwrap())
    };
    let codes = ["a", "a", "b"].map(|contract| market.code(contract));
    let (_, listed) = tell(&["codes"]);
    assert_eq!(listed.matches("50.00 Mbit/s").count(), 3, "{listed}");
    assert!(codes.iter().all(|code| !listed.contains(code.as_str())), "{listed}");
    assert_eq!(tell(&["revoke", "a"]), (true, "2 codes ended\n".to_owned()));
    let mut identity = Identity::generate().unwrap();
    let client = market.client(&identity);
    for code in &codes[..2] {
        let refused = client.enrol(&mut identity, code);
        assert!(matches!(refused, Err(ClientError::Refused { status: 403, .. })), "{refused:?}");
    }
    client.enrol(&mut identity, &codes[2]).unwrap();
    let (done, text) = tell(&["revoke", "a"]);
    assert!(!done && text.contains("no open code"), "{text}");
    for args in [
        &["code", "a\nb"][..],
        &["code", "c", "--peak", "0mbit"],
        &["code", "c", "--hours", "0"],
        &["code", "c", "--hours", "8761"],
        &["boost", "web", "--minutes", "1441"],
        &["boost", "web", "--minutes", "99999999999999"],
        &["holiday", "--days", "367"],
    ] {
        assert!(!tell(args).0, "{args:?}");
    }
    let (_, listed) = tell(&["codes", "--json"]);
    assert_eq!(listed.trim(), "[]");
    market.kill();
    market.verify();
}

const ISP: &str = r#"version = 1
[isp]
device = "sub"
[[plan]]
name = "home"
download = "60mbit"
[[segment]]
name = "cable"
download = "30mbit"
members = ["home-*"]
[[subscriber]]
name = "home-1"
addresses = ["192.0.2.1"]
plan = "home"
[[subscriber]]
name = "home-2"
addresses = ["192.0.2.2"]
plan = "home"
"#;

/// The policer learns at once of a household that joins during a slot. Rates that exceed the link are not
/// reported as guaranteed until the policer accepts them.
#[test]
fn the_policer_has_who_joins_in_a_slot_and_what_it_refuses_is_told_as_such() {
    if !privileged() {
        return;
    }
    let network = Network::new();
    network.write("isp.toml", ISP);
    let isp = network.start();
    let mut market = Market::found_at(20, "30mbit");
    market.run = network.path("run");
    market.segment = Some("cable");
    market.start();
    let (_, mut homes) = (market.enrol("home-1"), Vec::new());
    let patience = Duration::from_secs(90);
    isp.wait_for("a lease", patience, |s| s["segments"][0]["lease"]["members"] == 1);
    let (client, name) = market.enrol("home-2");
    isp.wait_for("both", patience, |s| s["segments"][0]["lease"]["members"] == 2);
    let lease = client.ask("GET", &format!("/v1/gateways/{name}/lease"), None).unwrap();
    assert_eq!(lease["rate_bps"], 1_500_000, "{lease}");
    assert!(lease["refused_slot"].is_null(), "{lease}");
    market.kill();
    // Twice the segment's capacity.
    let mut market = Market::found_at(30, "60mbit");
    market.run = network.path("run");
    market.segment = Some("cable");
    market.start();
    for name in ["home-1", "home-2"] {
        let mut home = agents::Home::new(&market, name, "");
        home.start_with("240");
        homes.push(home);
    }
    let begun = Instant::now();
    let said = || market.status().unwrap()["enforcement"].to_string();
    while !said().contains("more than the segment carries") {
        assert!(begun.elapsed() < patience, "{}", said());
        thread::sleep(Duration::from_millis(100));
    }
    let refused = |s: &Value| s["is_refused"] == true;
    let until: Vec<Value> = homes
        .iter()
        .map(|home| {
            let status = home.wait_for("refusal", refused);
            assert!(agents::why(&status).contains("nothing is guaranteed"), "{status}");
            status["until_s"].clone()
        })
        .collect();
    network.write("isp.toml", &ISP.replace("30mbit", "60mbit"));
    network.isp("reload");
    isp.wait_for("both", patience, |s| s["segments"][0]["lease"]["members"] == 2);
    // Within the same slot.
    for (home, until) in homes.iter().zip(until) {
        let status = home.wait_for("lease", |s| s["until_s"].is_number() && !refused(s));
        assert_eq!(status["until_s"], until, "{status}");
        assert!(!agents::why(&status).contains("nothing is guaranteed"), "{status}");
    }
}

/// One household spends all it has on a slot: within a second of the slot's beginning the policer guarantees what
/// that buys, even after a restart. When the server is gone, the guarantees end.
#[test]
fn what_a_slot_costs_is_guaranteed_by_the_policer_until_the_slot_ends() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| two_of_three(enforces));
}

fn enforces() {
    const SLOT_S: u64 = 10;
    let network = Network::new();
    network.write("isp.toml", ISP);
    let mut isp = network.start();
    let mut market = Market::found_at(SLOT_S, "30mbit");
    market.run = network.path("run");
    market.segment = Some("cable");
    market.start();
    let (one, other) = (network.download(ALICE4), network.download(BOB4));
    let homes = [1, 2].map(|n| market.enrol(&format!("home-{n}")));
    let ask = |path: &str| homes[0].0.ask("GET", path, None).unwrap();
    let slot = ask("/v1/clock")["open_slot"].as_u64().unwrap() + 1;
    let spend = json!({ "spend": "10000000", "sequence": 1 });
    let (client, name) = &homes[0];
    for slot in [slot, slot + 1] {
        client.ask("PUT", &format!("/v1/gateways/{name}/bids/{slot}"), Some(&spend)).unwrap();
        let nothing = json!({ "spend": "0", "sequence": 1 });
        let path = format!("/v1/gateways/{}/bids/{slot}", homes[1].1);
        homes[1].0.ask("PUT", &path, Some(&nothing)).unwrap();
    }
    let rules = market.status().unwrap()["rules"].clone();
    let begins = Duration::from_secs(rules["epoch_s"].as_u64().unwrap() + slot * SLOT_S);
    let patience = begins.saturating_sub(UNIX_EPOCH.elapsed().unwrap()) + Duration::from_secs(5);
    let is_leased = |s: &Value| s["segments"][0]["lease"]["generation"] == slot;
    isp.wait_for("the lease of the slot", patience, is_leased);
    let late = UNIX_EPOCH.elapsed().unwrap().saturating_sub(begins);
    note(&format!("the lease was in force {:.2} s after its slot began", late.as_secs_f64()));
    assert!(late < Duration::from_secs(1), "{late:?}");
    // The floor is 1.5 Mbit/s for each household; payload is 5 % less than L2 bytes.
    let lease = ask(&format!("/v1/gateways/{name}/lease"));
    assert_eq!(lease["rate_bps"], 28_500_000, "{lease}");
    thread::sleep(SPAN);
    let both = || {
        thread::scope(|scope| {
            let other = scope.spawn(|| other.mbit_over(SPAN));
            (one.mbit_over(SPAN), other.join().unwrap())
        })
    };
    // What disturbs the machine only lowers the first rate.
    let (first, second) = [both(), both()].into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    note(&format!("28.5 and 1.5 Mbit/s were guaranteed, {first:.1} and {second:.1} passed"));
    assert!(first >= 26.0 && (1.2..2.5).contains(&second), "{first} and {second}");
    // A restarted policer is told the lease again.
    isp.signal(nix::sys::signal::Signal::SIGKILL);
    drop(isp);
    isp = network.start();
    isp.wait_for("the lease again", Duration::from_secs(5), |s| {
        s["segments"][0]["lease"]["members"] == 2
    });
    market.kill();
    let ends = |s: &Value| s["segments"][0]["lease"].is_null();
    isp.wait_for("the end of the lease", Duration::from_secs(2 * SLOT_S), ends);
    other.wait_for_rate(12.5..15.5, Duration::from_secs(15));
    one.wait_for_rate(12.5..15.5, Duration::from_secs(15));
    assert!(!one.is_broken() && !other.is_broken());
}
