//! Requests that must change nothing, as many as the API answers.

use std::collections::BTreeMap;

use super::*;

const REQUESTS: usize = 100_000;
/// As many as the server has connections for.
const THREADS: usize = CONNECTIONS_MAX;

/// What an attacker sends, and the error that it gets. Gateway 1 has bid 5 with the sequence 5 for the
/// slot 1, the slot 0 is closed, and the certificate is of gateway 2 where nothing else is said.
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

/// `cargo test -p fairweir-market --test server -- --nocapture a_hundred_thousand_requests`
///
/// Requests go to the API without TLS, so that there are more than would come through it.
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
    market.close();
    let spend = Credits::micro(5);
    apply(Event::Bid { gateway: "gw-1".to_owned(), slot: 1, spend, sequence: 5 });
    let before = market.keeper.ask(|session| session.book().clone()).unwrap();
    let honest = |sequence: u64| Request {
        method: "PUT".to_owned(),
        path: "/v1/gateways/gw-3/bids/1".to_owned(),
        body: json!({ "spend": "1", "sequence": sequence }).to_string().into_bytes(),
        certificate: Some(format!("{:064x}", 3)),
    };
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let (waits, statuses, seconds) = std::thread::scope(|scope| {
        let send = || {
            let mut statuses = BTreeMap::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed) as usize;
                if i >= REQUESTS {
                    return statuses;
                }
                let (request, wanted) = attack(i);
                let answer = handle(request, &market.keeper, &authority);
                assert_eq!(answer.status, wanted, "{i}: {}", answer.body);
                assert!(!answer.body["title"].as_str().unwrap().is_empty(), "{i}");
                *statuses.entry(wanted).or_insert(0) += 1;
            }
        };
        let attackers: Vec<_> = (0..THREADS).map(|_| scope.spawn(send)).collect();
        let gateway = scope.spawn(|| {
            let mut waits = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let answer = handle(honest(1 + waits.len() as u64), &market.keeper, &authority);
                assert!([200, 429].contains(&answer.status), "{}", answer.body);
                waits.push(asked.elapsed());
                std::thread::sleep(Duration::from_millis(10));
            }
            waits
        });
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for attacker in attackers {
            for (status, count) in attacker.join().unwrap() {
                *statuses.entry(status).or_default() += count;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        (gateway.join().unwrap(), statuses, seconds)
    });
    let slowest = waits.iter().max().unwrap();
    eprintln!(
        "{REQUESTS} requests in {seconds:.2} s, {:.0}/s: {statuses:?}; meanwhile {} bids of a gateway, the \
         slowest after {slowest:?}",
        REQUESTS as f64 / seconds,
        waits.len(),
    );
    let after = market.keeper.ask(|session| session.book().clone()).unwrap();
    assert_eq!(after.gateways()[..2], before.gateways()[..2]);
    assert_eq!((after.root(), after.balances()), (before.root(), before.balances()));
    assert!(*slowest < Duration::from_secs(5), "{slowest:?}");
}
