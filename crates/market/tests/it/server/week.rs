//! A simulated week with the agents of a thousand households, one server and its database.

use std::time::Instant;

use fairweir_core::calendar::Window;
use fairweir_core::market::preferences::{Preferences, Time};
use fairweir_market::household::{Answers, Calendar, Household, Memory};
use fairweir_market::messages::Bids;
use serde::de::DeserializeOwned;

use super::*;

const AGENTS: usize = 1_000;
const SLOTS: u64 = 7 * 48;
const THREADS: usize = 64;

struct Agent {
    household: Household,
    name: String,
    certificate: String,
}

impl Agent {
    /// The household watches films for two hours, starting at its own hour from 16:00 on.
    fn new(number: usize, name: String, certificate: String) -> Agent {
        let from = 16 * 60 + (number % 12) as u16 * 30;
        let film = Time {
            name: "film".to_owned(),
            window: Window { days: [true; 7], from, to: from + 120 },
            importance: [Some(3), None, None, None],
        };
        let preferences = Preferences { always: [1, 1, 0, 1], times: vec![film] };
        let calendar = Calendar::Compressed { day_s: 86_400 };
        let household = Household::new(preferences, calendar, Memory::default());
        Agent { household, name, certificate }
    }

    fn ask(&self, market: &Served, method: &str, path: &str, body: Vec<u8>) -> (u16, Value) {
        let certificate = Some(self.certificate.clone());
        let (method, path) = (method.to_owned(), path.to_owned());
        let request = Request { method, path, body, certificate };
        let answer = handle(request, &market.keeper, &market.authority);
        (answer.status, answer.body)
    }

    fn read<T: DeserializeOwned>(&self, market: &Served, path: &str) -> T {
        let (status, body) = self.ask(market, "GET", path, Vec::new());
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_value(body).unwrap()
    }

    /// Does what the agent's daemon does after a slot was closed.
    fn turn(&mut self, market: &Served) -> usize {
        let path = |what: &str| format!("/v1/gateways/{}/{what}", self.name);
        let lease = self.ask(market, "GET", &path("lease"), Vec::new());
        let answers = Answers {
            clock: self.read(market, "/v1/clock"),
            account: self.read(market, &path("statements")),
            prices: self.read(market, "/v1/prices"),
            lease: (lease.0 == 200).then(|| serde_json::from_value(lease.1).unwrap()),
        };
        self.household.handle_answers(answers).unwrap();
        let bids = self.household.bids();
        if !bids.is_empty() {
            let body = serde_json::to_vec(&Bids { bids: bids.clone() }).unwrap();
            let (status, answer) = self.ask(market, "PUT", &path("bids"), body);
            assert_eq!(status, 200, "{answer}");
            self.household.handle_placed(&bids);
        }
        bids.len()
    }
}

struct Served {
    keeper: Keeper,
    authority: Authority,
}

/// `cargo test -p fairweir-market --test it -- --ignored --nocapture a_thousand_agents`
///
/// Calls the API without TLS; each slot is closed as soon as all agents have bid for it.
#[test]
#[ignore = "long: some minutes"]
fn a_thousand_agents_bid_for_a_week() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(&dir.path().join("state"));
    let database = Database::of(&state, None).unwrap();
    let (keeper, thread) = Keeper::start(database.clone()).unwrap();
    let rules = Rules {
        terms: Terms { mode: Mode::Float, capacity: Rate::mbit(10_000), floor_percent: 10 },
        share: Credits::whole(10),
        cap: Credits::whole(32),
        slot_s: 1_800,
        close_before_s: 30,
        // Whole days, so that slots align with days; far enough ahead that no bid is late.
        epoch_s: (now_s() / 86_400 + 10) * 86_400,
    };
    let apply = |event: Event| keeper.ask(|session| session.apply(event)).unwrap().unwrap();
    apply(Event::Found(rules));
    let mut agents = Vec::new();
    for i in 0..AGENTS {
        let (hash, contract, certificate) = (format!("h{i}"), format!("c{i}"), format!("{i:064x}"));
        apply(Event::Code { hash: hash.clone(), contract, peak: Some(Rate::mbit(50)), until_s: 9 });
        apply(Event::Join { hash, certificate: certificate.clone(), at_s: 0 });
        agents.push(Agent::new(i, format!("gw-{}", i + 1), certificate));
    }
    let market = Served { keeper: keeper.clone(), authority: Authority::create(&state).unwrap() };
    let (begun, mut bids, mut rates) = (Instant::now(), 0, [(0.0, 0.0); 2]);
    for slot in 0..SLOTS {
        bids += std::thread::scope(|scope| {
            let parts = agents.chunks_mut(AGENTS.div_ceil(THREADS));
            let market = &market;
            let turn = move |agents: &mut [Agent]| -> usize {
                agents.iter_mut().map(|agent| agent.turn(market)).sum()
            };
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || turn(part))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        let leases = keeper.ask(|session| {
            let event = session.book().closing().unwrap();
            session.apply(event).unwrap();
            assert_eq!(session.book().credits(), 10_000_000 * AGENTS as u64);
            session.book().leases().unwrap()
        });
        // After two days all agents have learned the prices of evenings.
        let minute = slot % 48 * 30;
        for (i, lease) in leases.unwrap().rates.iter().enumerate().filter(|_| slot >= 96) {
            let from = 16 * 60 + (i as u64 % 12) * 30;
            let is_film = (from..from + 120).contains(&minute);
            let evening = (16 * 60..24 * 60).contains(&minute);
            if evening {
                let (sum, count) = &mut rates[usize::from(is_film)];
                (*sum, *count) = (*sum + lease.rate.as_mbit_f64(), *count + 1.0);
            }
        }
    }
    let [usual, film] = rates.map(|(sum, count)| sum / count);
    eprintln!(
        "{AGENTS} agents, {SLOTS} slots, {bids} bids in {:.0} s; {film:.1} Mbit/s while there is a film, \
         {usual:.1} in the rest of the evening; the equal share is 10",
        begun.elapsed().as_secs_f64()
    );
    assert!(film > 10.0 && film > 1.5 * usual, "{film} {usual}");
    drop((market, keeper));
    thread.join().unwrap();
    let book = fairweir_market::store::verify(&database).unwrap();
    assert_eq!((book.open_slot(), book.credits()), (SLOTS, 10_000_000 * AGENTS as u64));
}
