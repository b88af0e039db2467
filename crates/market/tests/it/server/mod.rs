//! A market on loopback: gateways enrol, bid and read over mutual TLS, and other clients try what they
//! must not be able to do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairweir_core::market::ledger::Credits;
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::units::Rate;
use fairweir_daemon::StateDir;
use fairweir_market::api::{handle, now_s};
use fairweir_market::book::{Event, Rules};
use fairweir_market::client::{Client, ClientError};
use fairweir_market::code_hash;
use fairweir_market::http::{CONNECTIONS_MAX, OF_CLIENT_MAX, PATIENCE, Request, Server};
use fairweir_market::identity::{Authority, Identity, new_code};
use fairweir_market::keeper::{Keeper, Session};
use fairweir_market::store::Database;
use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

mod flood;
mod fuzz;
mod week;

struct Market {
    dir: TempDir,
    keeper: Keeper,
    server: Server,
    authority: Vec<u8>,
}

impl Market {
    fn start() -> Market {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(&dir.path().join("state"));
        let (keeper, _) = Keeper::start(Database::of(&state, None).unwrap()).unwrap();
        let rules = Rules {
            terms: Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 },
            share: Credits::whole(10),
            cap: Credits::whole(32),
            slot_s: 1_800,
            close_before_s: 30,
            epoch_s: now_s() + 3_600,
        };
        keeper.ask(|session| session.apply(Event::Found(rules))).unwrap().unwrap();
        let authority = Authority::create(&state).unwrap();
        let certificate = authority.certificate().to_vec();
        let tls = authority.server_config("localhost").unwrap();
        let asked = keeper.clone();
        let handler = move |request| handle(request, &asked, &authority);
        let server = Server::start("127.0.0.1:0".parse().unwrap(), tls, Arc::new(handler)).unwrap();
        Market { dir, keeper, server, authority: certificate }
    }

    fn code(&self, contract: &str) -> String {
        let (code, contract) = (new_code().unwrap(), contract.to_owned());
        let event =
            Event::Code { hash: code_hash(&code), contract, peak: None, until_s: now_s() + 60 };
        self.keeper.ask(|session| session.apply(event)).unwrap().unwrap();
        code
    }

    fn client(&self, identity: &Identity) -> Client {
        let tls = identity.client_config(&self.authority).unwrap();
        Client::new(self.server.address(), "localhost", tls).unwrap()
    }

    fn enrol(&self, contract: &str) -> (Client, String) {
        let (identity, name) = self.enrol_as(contract);
        (self.client(&identity), name)
    }

    fn enrol_as(&self, contract: &str) -> (Identity, String) {
        let mut identity = Identity::generate().unwrap();
        let name = self.client(&identity).enrol(&mut identity, &self.code(contract)).unwrap();
        (identity, name)
    }

    /// A connection on which a test can send arbitrary bytes.
    fn connect(&self, identity: &Identity) -> Raw {
        let tls = identity.client_config(&self.authority).unwrap();
        let stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        let connection = ClientConnection::new(tls, "localhost".try_into().unwrap()).unwrap();
        Raw(BufReader::new(StreamOwned::new(connection, stream)))
    }

    fn close(&self) {
        let closed = self.keeper.ask(|session| {
            let event = session.book().closing().unwrap();
            session.apply(event)
        });
        closed.unwrap().unwrap();
    }

    fn credits(&self) -> u64 {
        self.keeper.ask(|session| session.book().credits()).unwrap()
    }
}

/// Arbitrary bytes over mutual TLS, which our own client would never send.
struct Raw(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Raw {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The status and body of the next answer.
    fn receive(&mut self) -> (u16, Vec<u8>) {
        let (mut status, mut length) = (None, 0);
        for line in (&mut self.0).lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
            status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
            let said = line.strip_prefix("content-length: ");
            length = said.map_or(length, |word| word.parse().unwrap());
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status.expect("an answer"), body)
    }

    fn exchange(mut self, bytes: &[u8]) -> (u16, Vec<u8>) {
        self.send(bytes);
        self.receive()
    }
}

fn status(done: Result<Value, ClientError>) -> u16 {
    match done {
        Ok(_) => 200,
        Err(ClientError::Refused { status, title }) => {
            assert!(!title.is_empty());
            status
        }
        Err(e) => panic!("{e}"),
    }
}

fn bid(client: &Client, name: &str, slot: u64, body: &Value) -> u16 {
    status(client.ask("PUT", &format!("/v1/gateways/{name}/bids/{slot}"), Some(body)))
}

#[test]
fn who_joins_in_a_slot_has_the_floor_at_once_and_the_link_carries_all_leases() {
    let market = Market::start();
    let mut homes: Vec<(Client, String)> = (0..2).map(|i| market.enrol(&format!("c{i}"))).collect();
    let body = json!({ "spend": Credits::whole(10), "sequence": 1 });
    assert_eq!(bid(&homes[0].0, &homes[0].1, 0, &body), 200);
    market.close();
    homes.extend((2..4).map(|i| market.enrol(&format!("c{i}"))));
    let lease = |(client, name): &(Client, String)| {
        client.ask("GET", &format!("/v1/gateways/{name}/lease"), None).unwrap()["rate_bps"].clone()
    };
    // 4 of the 40 Mbit/s are divided evenly: 2 for each of two, then 1 for each of four.
    let rates: Vec<Value> = homes.iter().map(lease).collect();
    assert_eq!(rates, [37_000_000, 1_000_000, 1_000_000, 1_000_000]);
}

#[test]
fn gateways_enrol_bid_and_read_what_it_came_to() {
    let market = Market::start();
    let homes: Vec<(Client, String)> = (0..4).map(|i| market.enrol(&format!("c{i}"))).collect();
    let spends = [10, 4, 0, 2];
    for ((client, name), spend) in homes.iter().zip(spends) {
        let body = json!({ "spend": Credits::whole(spend), "sequence": 1 });
        assert_eq!(bid(client, name, 0, &body), 200);
        // A repeated bid has no further effect.
        assert_eq!(bid(client, name, 0, &body), 200);
    }
    market.close();
    // The numbers of the worked example.
    let after = ["2000001", "10000000", "15333333", "12666666"];
    for ((client, name), balance) in homes.iter().zip(after) {
        let path = format!("/v1/gateways/{name}/statements");
        let statements = client.ask("GET", &path, None).unwrap();
        assert_eq!(statements["balance"], balance);
        assert_eq!(statements["statements"][0]["statement"]["closing"], balance);
    }
    // 4 Mbit/s are divided evenly, and 36 in the ratio 10 : 4 : 0 : 2.
    let lease = |i: usize| {
        let (client, name) = &homes[i];
        client.ask("GET", &format!("/v1/gateways/{name}/lease"), None).unwrap()["rate_bps"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(
        [lease(0), lease(1), lease(2), lease(3)],
        [23_500_000, 10_000_000, 1_000_000, 5_500_000]
    );
    // The answer to a late bid names the open slot.
    let late = homes[0].0.ask(
        "PUT",
        &format!("/v1/gateways/{}/bids/0", homes[0].1),
        Some(&json!({ "spend": "1", "sequence": 9 })),
    );
    assert_eq!(status(late), 409);
    assert_eq!(homes[0].0.ask("GET", "/v1/clock", None).unwrap()["open_slot"], 1);
    // In a small market prices would reveal what a single household did.
    assert_eq!(homes[0].0.ask("GET", "/v1/prices", None).unwrap()["slots"], json!([]));
    // A gateway that leaves is forgotten, and the others hold its credits.
    assert_eq!(status(homes[3].0.ask("POST", "/v1/leave", None)), 200);
    assert_eq!(status(homes[3].0.ask("POST", "/v1/leave", None)), 403);
    assert_eq!(market.credits(), 30_000_000);
    assert!(market.dir.path().join("state/market.db").exists());
}

/// A household that never bids gets its part of the floor in each slot, whatever others spend. A household that
/// leaves and comes back during the day, with a high or a low balance, has no more than one that stays.
#[test]
fn who_never_bids_has_the_floor_and_who_leaves_and_comes_back_gains_nothing() {
    let market = Market::start();
    let mut homes: Vec<(Client, String)> = (0..4).map(|i| market.enrol(&format!("c{i}"))).collect();
    let balance = |name: &str| {
        let name = name.to_owned();
        let of = move |s: &mut Session<'_>| s.book().balances()[s.book().seat(&name).unwrap()];
        market.keeper.ask(of).unwrap()
    };
    let mut gained = [0_i64; 2];
    for slot in 0..24 {
        let all = balance(&homes[0].1);
        let some = balance(&homes[1].1).min(Credits::whole(2));
        for (i, spend) in [all, some, Credits::micro(1)].into_iter().enumerate() {
            let body = json!({ "spend": spend, "sequence": 1 });
            assert_eq!(bid(&homes[i].0, &homes[i].1, slot, &body), 200);
        }
        market.close();
        // 10 % of 40 Mbit/s, divided by four.
        let (client, name) = &homes[3];
        let lease = client.ask("GET", &format!("/v1/gateways/{name}/lease"), None).unwrap();
        assert_eq!(lease["rate_bps"], 1_000_000, "slot {slot}");
        if slot % 3 == 2 {
            // The household that has spent everything, and the one that saves.
            for (j, i) in [0, 2].into_iter().enumerate() {
                let had = balance(&homes[i].1);
                assert_eq!(status(homes[i].0.ask("POST", "/v1/leave", None)), 200);
                assert_eq!(market.credits(), 30_000_000);
                homes[i] = market.enrol(&format!("c{i}"));
                let has = balance(&homes[i].1);
                gained[j] = gained[j].max(has.as_micro() as i64 - had.as_micro() as i64);
                assert_eq!(market.credits(), 40_000_000);
            }
        }
    }
    eprintln!("most that was gained by leaving and coming back: {gained:?} micro-credits");
    assert!(gained.iter().all(|gain| *gain <= 0), "{gained:?}");
    // The stored files contain no address of a gateway, and nothing about what the link is used for.
    for file in ["market.db", "market.db-wal"] {
        let bytes = std::fs::read(market.dir.path().join("state").join(file)).unwrap_or_default();
        for word in ["127.0.0", "streaming", "film"] {
            assert!(!bytes.windows(word.len()).any(|w| w == word.as_bytes()), "{word} in {file}");
        }
    }
    let (client, name) = &homes[0];
    let more = json!({ "spend": "1", "sequence": 9, "application": "film" });
    assert_eq!(bid(client, name, 24, &more), 422);
}

#[test]
fn strangers_others_and_absurd_bids_change_nothing() {
    let market = Market::start();
    let (client, name) = market.enrol("c");
    let (other, _) = market.enrol("d");
    let body = json!({ "spend": "1000000", "sequence": 5 });
    assert_eq!(bid(&client, &name, 0, &body), 200);
    let before = market.keeper.ask(|session| session.book().clone()).unwrap();
    // A request for another gateway's name; then one without a certificate.
    assert_eq!(bid(&other, &name, 0, &body), 403);
    let nobody = market.client(&Identity::generate().unwrap());
    assert_eq!(bid(&nobody, &name, 0, &body), 401);
    assert_eq!(status(nobody.ask("GET", "/v1/prices", None)), 401);
    // A certificate of another market is refused by TLS.
    let foreign = Market::start();
    let mut identity = Identity::generate().unwrap();
    foreign.client(&identity).enrol(&mut identity, &foreign.code("c")).unwrap();
    let answer = market.client(&identity).ask("GET", "/v1/prices", None);
    assert!(matches!(answer, Err(ClientError::Io(_))), "{answer:?}");
    // A code works once; a wrong code never works.
    let code = market.code("e");
    let mut third = Identity::generate().unwrap();
    let enrol = |body: Value| status(nobody.ask("POST", "/v1/enrolments", Some(&body)));
    assert_eq!(enrol(json!({ "code": "0".repeat(32), "public_key": third.public_key() })), 403);
    assert_eq!(enrol(json!({ "code": code, "public_key": "04" })), 422);
    let (replaced, _) = market.enrol("f");
    assert_eq!(status(replaced.ask("GET", "/v1/prices", None)), 200);
    let newer = market.code("f");
    market.client(&third).enrol(&mut third, &newer).unwrap();
    assert_eq!(enrol(json!({ "code": newer, "public_key": third.public_key() })), 403);
    // The key is not a point on the curve; the code stays usable after this request.
    let code = market.code("h");
    for point in ["04".to_owned() + &"00".repeat(64), "04".to_owned() + &"ff".repeat(64)] {
        assert_eq!(enrol(json!({ "code": code, "public_key": point })), 422);
    }
    let mut fourth = Identity::generate().unwrap();
    market.client(&fourth).enrol(&mut fourth, &code).unwrap();
    // Lost and revoked codes are void once another code of the contract is used.
    let (lost, used) = (market.code("g"), market.code("g"));
    let mut owner = Identity::generate().unwrap();
    market.client(&owner).enrol(&mut owner, &used).unwrap();
    assert_eq!(enrol(json!({ "code": lost, "public_key": third.public_key() })), 403);
    assert_eq!(status(market.client(&owner).ask("GET", "/v1/prices", None)), 200);
    // The gateway that the contract had before is no longer accepted.
    assert_eq!(status(replaced.ask("GET", "/v1/prices", None)), 403);
    // Invalid bids.
    for (slot, body, wanted) in [
        (0, json!({ "spend": "999", "sequence": 4 }), 409),
        (0, json!({ "spend": "999", "sequence": 5 }), 409),
        (0, json!({ "spend": "10000001", "sequence": 6 }), 422),
        (1, json!({ "spend": "32000001", "sequence": 6 }), 422),
        (48, json!({ "spend": "1", "sequence": 6 }), 422),
        (u64::MAX, json!({ "spend": "1", "sequence": 6 }), 422),
        (1, json!({ "spend": "-1", "sequence": 6 }), 422),
        (1, json!({ "spend": "NaN", "sequence": 6 }), 422),
        (1, json!({ "spend": "9223372036854775808", "sequence": 6 }), 422),
        (1, json!({ "spend": 1, "sequence": 6 }), 422),
        (1, json!({ "spend": "1", "sequence": -1 }), 422),
        (1, json!({ "spend": "1", "sequence": 6, "more": 1 }), 422),
        (1, json!([]), 422),
        (1, json!(["1", 9]), 422),
        (1, json!({ "spend": "01", "sequence": 9 }), 422),
        (1, json!({ "spend": "+1", "sequence": 9 }), 422),
    ] {
        assert_eq!(bid(&client, &name, slot, &body), wanted, "{slot} {body}");
    }
    // Several bids are placed together or not at all.
    let bids = |list: Value| {
        let path = format!("/v1/gateways/{name}/bids");
        status(client.ask("PUT", &path, Some(&json!({ "bids": list }))))
    };
    let one = |slot: u64, spend: &str, sequence: u64| json!({ "slot": slot, "spend": spend, "sequence": sequence });
    for (list, wanted) in [
        (json!([]), 422),
        (json!([one(1, "1", 1), one(0, "1", 9)]), 422),
        (json!([one(1, "1", 1), one(1, "2", 2)]), 422),
        (json!([one(1, "1", 1), one(2, "32000001", 1)]), 422),
        (json!([one(0, "1", 9), one(2, "1", 1), one(48, "1", 1)]), 422),
        (json!([one(0, "1", 4), one(2, "1", 1)]), 409),
        (json!([[1, "1", 9]]), 422),
        (Value::from((0..49).map(|slot| one(slot, "1", 9)).collect::<Vec<_>>()), 422),
    ] {
        assert_eq!(bids(list.clone()), wanted, "{list}");
    }
    for path in [
        "/v1/gateways/NAME/bids/+2",
        "/v1/gateways/NAME/bids/002",
        "/",
        "/v1/gateways/'; DROP TABLE bid;--/bids/1",
        "/v1/gateways/%00/bids/x",
        "/v2/clock",
    ] {
        let code =
            status(client.ask("PUT", &path.replace(' ', "+").replace("NAME", &name), Some(&body)));
        assert!([403, 404, 422].contains(&code), "{path} {code}");
    }
    let after = market.keeper.ask(|session| session.book().clone()).unwrap();
    assert_eq!(after.gateways()[0], before.gateways()[0]);
    assert_eq!(after.root(), before.root());
}

#[test]
fn a_gateway_that_bids_without_end_is_stopped_until_the_next_slot() {
    let market = Market::start();
    let (client, name) = market.enrol("c");
    let all = |sequence: u64| {
        let bid = |slot: u64| json!({ "slot": slot, "spend": sequence.to_string(), "sequence": sequence });
        let bids = json!({ "bids": (0..48).map(bid).collect::<Vec<_>>() });
        status(client.ask("PUT", &format!("/v1/gateways/{name}/bids"), Some(&bids)))
    };
    assert!((1..=10).all(|sequence| all(sequence) == 200));
    assert_eq!(bid(&client, &name, 7, &json!({ "spend": "1", "sequence": 11 })), 429);
    // Repeating a bid that is in place is allowed.
    assert_eq!(bid(&client, &name, 7, &json!({ "spend": "10", "sequence": 10 })), 200);
    market.close();
    assert_eq!(bid(&client, &name, 7, &json!({ "spend": "1", "sequence": 11 })), 200);
}

/// Connects from a given local address.
fn connect_from(address: &str, market: &Market) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&market.server.address().into()).unwrap();
    socket.into()
}

/// Opens connections from one address for 2 s without a pause, as many as possible, and sends data on each that
/// are not TLS. Meanwhile a gateway's bids are accepted, and nothing else changes.
#[test]
fn a_flood_of_one_address_does_not_keep_a_gateway_from_bidding() {
    let market = Market::start();
    let (client, name) = market.enrol("c");
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut waits, mut sequence) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut stream = connect_from("127.0.0.2", &market);
                    let _ = stream.write_all(b"GET /v1/clock HTTP/1.1\r\n\r\n");
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            sequence += 1;
            let asked = Instant::now();
            let body = json!({ "spend": "1", "sequence": sequence });
            assert_eq!(bid(&client, &name, 1, &body), 200);
            waits.push(asked.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    waits.sort();
    let each_s = sent.into_inner() / 2;
    let worst = waits[waits.len() - 1];
    eprintln!("{each_s} connections/s refused; {sequence} bids, the slowest {worst:?}");
    assert!(worst < Duration::from_secs(5), "{worst:?}");
    let bids = market.keeper.ask(|session| session.book().gateways()[0].bids().count()).unwrap();
    assert_eq!((bids, market.credits()), (1, 10_000_000));
}

/// A certificate of the market's own authority that has expired is refused.
#[test]
fn an_expired_certificate_does_not_get_through_tls() {
    let market = Market::start();
    let key = std::fs::read_to_string(market.dir.path().join("state/ca-key.pem")).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "fairweir market");
    let issuer = rcgen::Issuer::new(params, rcgen::KeyPair::from_pem(&key).unwrap());
    let own = rcgen::KeyPair::generate().unwrap();
    let ask = |until: i32| {
        let mut params = rcgen::CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let chain = vec![params.signed_by(&own, &issuer).unwrap().der().clone()];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(market.authority.clone().into()).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.into())
            .unwrap();
        Client::new(market.server.address(), "localhost", Arc::new(tls)).unwrap().ask(
            "GET",
            "/v1/prices",
            None,
        )
    };
    // A valid certificate passes TLS, but belongs to no gateway.
    assert_eq!(status(ask(2_200)), 403);
    let expired = ask(2_002);
    assert!(matches!(expired, Err(ClientError::Io(_))), "{expired:?}");
}

/// Clients send a byte at a time, from the start of the head or of the body on.
#[test]
fn clients_that_are_slow_are_cut_off() {
    let market = Market::start();
    let (identity, name) = market.enrol_as("c");
    let head = format!("PUT /v1/gateways/{name}/bids HTTP/1.1\r\ncontent-length: 900\r\n\r\n");
    std::thread::scope(|scope| {
        for begin in ["", head.as_str()] {
            let mut slow = market.connect(&identity);
            scope.spawn(move || {
                let begun = Instant::now();
                slow.send(begin.as_bytes());
                while slow.0.get_mut().write_all(b"a").is_ok() {
                    assert!(begun.elapsed() < PATIENCE + Duration::from_secs(5));
                    std::thread::sleep(Duration::from_millis(50));
                }
                assert!(begun.elapsed() > PATIENCE - Duration::from_secs(1));
            });
        }
    });
}

#[test]
fn clients_that_send_too_much_or_nothing_do_not_keep_others_out() {
    let market = Market::start();
    let (identity, name) = market.enrol_as("c");
    let client = market.client(&identity);
    let bids = format!("PUT /v1/gateways/{name}/bids HTTP/1.1\r\n");
    let many = "a: b\r\n".repeat(65);
    let chunks = format!("{:x}\r\n{}\r\n", 9_000, "a".repeat(9_000)).repeat(2);
    for (text, wanted) in [
        (format!("GET /v1/clock HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(9_000)), 431),
        (format!("GET /v1/clock HTTP/1.1\r\n{many}\r\n"), 431),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(9_000)), 431),
        ("\r\n".repeat(9_000), 431),
        (format!("{bids}content-length: 1000000000\r\n\r\n"), 413),
        (format!("{bids}transfer-encoding: chunked\r\n\r\n{chunks}"), 413),
        (format!("{bids}content-length: -1\r\n\r\n"), 400),
        (format!("{bids}content-length: 1\r\ncontent-length: 2\r\n\r\n"), 400),
        ("no http\r\n\r\n".to_owned(), 400),
        ("GET  / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nx\r\n\r\n".to_owned(), 400),
    ] {
        let (status, body) = market.connect(&identity).exchange(text.as_bytes());
        assert_eq!(status, wanted, "{}", &text[..text.len().min(80)]);
        // A request that is not HTTP is answered by a status alone.
        assert!(body.is_empty() || serde_json::from_slice::<Value>(&body).is_ok());
    }
    // Connections on which nothing is sent end soon.
    let mut silent = TcpStream::connect(market.server.address()).unwrap();
    let begun = Instant::now();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    client.ask("GET", "/v1/clock", None).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    // A connection that does not use TLS is closed.
    let mut plain = TcpStream::connect(market.server.address()).unwrap();
    plain.write_all(b"GET /v1/clock HTTP/1.1\r\n\r\n").unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
}

/// 64 addresses open connections and send nothing. A gateway in the same /24 is always served, and a new
/// household can enrol.
#[test]
fn silent_connections_of_64_addresses_keep_no_neighbour_out() {
    let market = Market::start();
    let (stop, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = std::collections::VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                for host in 2..66 {
                    open.push_back(connect_from(&format!("127.0.0.{host}"), &market));
                }
                opened.fetch_add(64, Ordering::Relaxed);
                let most = CONNECTIONS_MAX + 64;
                open.drain(..open.len().saturating_sub(most));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while opened.load(Ordering::Relaxed) < 2 * CONNECTIONS_MAX as u64 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // A household whose address is not known may have to retry.
        let begun = Instant::now();
        let (client, name) = loop {
            let mut identity = Identity::generate().unwrap();
            let code = market.code("c");
            match market.client(&identity).enrol(&mut identity, &code) {
                Ok(name) => break (market.client(&identity), name),
                Err(e) => assert!(begun.elapsed() < Duration::from_secs(60), "{e}"),
            }
        };
        let path = format!("/v1/gateways/{name}/statements");
        while let Err(e) = client.ask("GET", &path, None) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{e}");
        }
        for _ in 0..100 {
            client.ask("GET", &path, None).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    eprintln!("{} connections that said nothing", opened.into_inner());
}
