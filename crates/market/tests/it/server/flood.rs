//! Sends all kinds of requests that must be refused and must change nothing.

use std::collections::BTreeMap;

use super::*;

/// Number of requests sent before their answers are read.
const BATCH: usize = 50;

/// A status, and what the answer said.
type Answer = (u16, Value);

/// What an attacker sends, and the error that it gets. Gateway 1 has bid 5 with sequence number 5 for slot 1,
/// slot 0 is closed, and the certificate is that of gateway 2 unless stated otherwise.
fn attack(i: usize) -> (Request, u16) {
    let bid = |name: &str, slot: u64, spend: &str, sequence: u64| {
        let body = json!({ "spend": spend, "sequence": sequence }).to_string();
        ("PUT", format!("/v1/gateways/{name}/bids/{slot}"), body)
    };
    let (own, other, foreign) = (Some(1), Some(2), Some(99));
    let ((method, path, body), certificate, wanted) = match i % 12 {
        0 => (bid("gw-1", 1, "1", 9), None, 401),
        1 => (bid("gw-1", 1, "1", 9), foreign, 403),
        2 => (bid("gw-1", 1, "1", 9), other, 403),
        3 => (bid("gw-1", 1, "7", 5), own, 409),
        4 => (bid("gw-1", 1, "1", i as u64 % 5), own, 409),
        5 => (bid("gw-1", 0, "1", 9), own, 409),
        6 => (bid("gw-1", 1, "33000000", 9), own, 422),
        7 => (bid("gw-1", 1, "-1", 9), own, 422),
        8 => (bid("gw-1", 1, "NaN", 9), own, 422),
        9 => (bid("gw-1", 1, "9223372036854775808", 9), own, 422),
        10 => (bid("gw-1';drop table event;--", 1, "1", 9), own, 403),
        _ => (("GET", format!("/v1/gateways/gw-{i}/lease"), String::new()), None, 401),
    };
    let certificate = certificate.map(|number: usize| format!("{number:064x}"));
    (Request { method: method.to_owned(), path, body: body.into_bytes(), certificate }, wanted)
}

/// Sends all requests in batches from several threads. Each function takes a batch number and returns pairs of
/// expected error and answer. Meanwhile gateway 3 bids; nothing else may change.
fn flood<Send: FnMut(usize) -> Vec<(u16, Answer)>>(
    market: &Market,
    requests: usize,
    threads: usize,
    sender: impl Fn() -> Send + Sync,
    honest: impl Fn(u64) -> u16 + Sync,
) {
    let spend = Credits::micro(5);
    let bid = Event::Bid { gateway: "gw-1".to_owned(), slot: 1, spend, sequence: 5 };
    market.close();
    market.keeper.ask(|session| session.apply(bid)).unwrap().unwrap();
    let before = market.keeper.ask(|session| session.book().clone()).unwrap();
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let (waits, statuses, seconds) = std::thread::scope(|scope| {
        let attack = || {
            let mut send = sender();
            let mut statuses = BTreeMap::new();
            loop {
                let batch = next.fetch_add(1, Ordering::Relaxed) as usize;
                if batch >= requests / BATCH {
                    return statuses;
                }
                for (wanted, (status, body)) in send(batch) {
                    assert_eq!(status, wanted, "{batch}: {body}");
                    assert!(!body["title"].as_str().unwrap().is_empty(), "{batch}");
                    *statuses.entry(wanted).or_insert(0) += 1;
                }
            }
        };
        let attackers: Vec<_> = (0..threads).map(|_| scope.spawn(attack)).collect();
        let gateway = scope.spawn(|| {
            let mut waits = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let status = honest(1 + waits.len() as u64);
                assert!([200, 429].contains(&status), "{status}");
                waits.push(asked.elapsed());
                std::thread::sleep(Duration::from_millis(10));
            }
            waits
        });
        let attacks: Vec<_> = attackers.into_iter().map(|attacker| attacker.join()).collect();
        let seconds = begun.elapsed().as_secs_f64();
        // Set before a failed attack is reported, because reporting waits for the gateway.
        done.store(true, Ordering::Relaxed);
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for (status, count) in attacks.into_iter().flat_map(Result::unwrap) {
            *statuses.entry(status).or_default() += count;
        }
        (gateway.join().unwrap(), statuses, seconds)
    });
    assert_eq!(statuses.values().sum::<usize>(), requests);
    let slowest = waits.iter().max().unwrap();
    eprintln!(
        "{requests} requests in {seconds:.2} s, {:.0}/s: {statuses:?}; meanwhile {} bids of a gateway, the \
         slowest after {slowest:?}",
        requests as f64 / seconds,
        waits.len(),
    );
    let after = market.keeper.ask(|session| session.book().clone()).unwrap();
    assert_eq!(after.gateways()[..2], before.gateways()[..2]);
    assert_eq!((after.root(), after.balances()), (before.root(), before.balances()));
    assert!(*slowest < Duration::from_secs(5), "{slowest:?}");
}

fn honest_bid(sequence: u64) -> Value {
    json!({ "spend": "1", "sequence": sequence })
}

/// `cargo test -p fairweir-market --test it -- --nocapture thousand_requests`
///
/// Calls the API without TLS, from as many threads as the server has connections for.
#[test]
fn a_hundred_thousand_requests_have_one_clear_error_each_and_change_nothing() {
    let market = Market::start();
    let state = StateDir::new(&market.dir.path().join("state"));
    let authority = Authority::open(&state).unwrap();
    let apply = |event: Event| market.keeper.ask(|s| s.apply(event)).unwrap().unwrap();
    for i in 1..=3 {
        let (hash, contract, certificate) = (format!("h{i}"), format!("c{i}"), format!("{i:064x}"));
        apply(Event::Code { hash: hash.clone(), contract, peak: None, until_s: 9 });
        apply(Event::Join { hash, certificate, at_s: 0 });
    }
    let sender = || {
        |batch: usize| {
            let sent = (batch * BATCH..(batch + 1) * BATCH).map(|i| {
                let (request, wanted) = attack(i);
                let answer = handle(request, &market.keeper, &authority);
                (wanted, (answer.status, answer.body))
            });
            sent.collect()
        }
    };
    let honest = |sequence: u64| {
        let request = Request {
            method: "PUT".to_owned(),
            path: "/v1/gateways/gw-3/bids/1".to_owned(),
            body: honest_bid(sequence).to_string().into_bytes(),
            certificate: Some(format!("{:064x}", 3)),
        };
        handle(request, &market.keeper, &authority).status
    };
    flood(&market, 100_000, CONNECTIONS_MAX, sender, honest);
}

/// An attacking client; it sends each batch on a separate connection.
struct Attacker<'a> {
    market: &'a Market,
    identity: &'a Identity,
    /// Indices, out of every twelve attacks, that a client with this certificate sends.
    attacks: &'static [usize],
}

impl Attacker<'_> {
    fn send(&self, batch: usize) -> Vec<(u16, Answer)> {
        let sent: Vec<_> =
            (0..BATCH).map(|i| attack(12 * batch + self.attacks[i % self.attacks.len()])).collect();
        let text: Vec<u8> = sent.iter().flat_map(|(request, _)| as_text(request)).collect();
        let mut connection = self.market.connect(self.identity);
        connection.send(&text);
        let answers = sent.iter().map(|(_, wanted)| {
            let (status, body) = connection.receive();
            (*wanted, (status, serde_json::from_slice(&body).unwrap()))
        });
        answers.collect()
    }
}

fn as_text(request: &Request) -> Vec<u8> {
    let Request { method, path, body, .. } = request;
    let path = path.replace(' ', "%20");
    let head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// `cargo test -p fairweir-market --test it -- --nocapture thousand_requests`
///
/// The same attacks over mutual TLS, with several requests on a connection before the first answer is read.
#[test]
fn twenty_thousand_requests_by_tls_change_nothing_either() {
    let market = Market::start();
    let [own, other, third] = ["c1", "c2", "c3"].map(|contract| market.enrol_as(contract).0);
    let (third, nobody) = (market.client(&third), Identity::generate().unwrap());
    let kinds: [(&Identity, &'static [usize]); 3] =
        [(&nobody, &[0, 11]), (&other, &[2, 10]), (&own, &[3, 4, 5, 6, 7, 8, 9])];
    let sender = || {
        let attacker = |(identity, attacks)| Attacker { market: &market, identity, attacks };
        let attackers = kinds.map(attacker);
        move |batch: usize| attackers[batch % 3].send(batch)
    };
    let honest = |sequence: u64| bid(&third, "gw-3", 1, &honest_bid(sequence));
    flood(&market, 20_000, OF_CLIENT_MAX / 2, sender, honest);
}
