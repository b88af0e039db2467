use super::*;
use crate::book::Rules;
use crate::book::{Book, Event};
use crate::messages::Dated;
use fairweir_core::market::preferences::Time;
use fairweir_core::market::rates::{Mode, Terms};

/// Half hours from Thursday, 1 January 1970, 0:00.
fn rules() -> Rules {
    Rules {
        terms: Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 },
        share: Credits::whole(10),
        cap: Credits::whole(32),
        slot_s: 1_800,
        close_before_s: 30,
        epoch_s: 0,
    }
}

fn preferences() -> Preferences {
    let film = Time {
        name: "film night".to_owned(),
        days: [true; 7],
        from: 4 * 60,
        to: 5 * 60,
        importance: [Some(3), None, None, None],
    };
    Preferences { always: [0, 0, 0, 1], times: vec![film] }
}

fn household() -> Household {
    Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, Memory::default())
}

/// A market whose gateways all have the same agent, as the server keeps it.
struct Market {
    book: Book,
    names: Vec<String>,
}

impl Market {
    fn new(gateways: usize) -> Market {
        let mut book = Book::default();
        book.apply(&Event::Found(rules())).unwrap();
        for i in 0..gateways {
            let (hash, contract) = (format!("h{i}"), format!("c{i}"));
            let peak = Some(Rate::mbit(32));
            book.apply(&Event::Code { hash: hash.clone(), contract, peak, until_s: 9 }).unwrap();
            book.apply(&Event::Join { hash, certificate: format!("f{i}"), at_s: 0 }).unwrap();
        }
        let names = book.gateways().iter().map(|g| g.name.clone()).collect();
        Market { book, names }
    }

    fn answers(&self, seat: usize) -> Answers {
        let gateway = &self.book.gateways()[seat];
        let leases = self.book.leases();
        Answers {
            clock: Clock {
                doubt: None,
                now_s: 0,
                now_ms: 0,
                open_slot: self.book.open_slot(),
                open_until_s: 0,
                gateways: self.names.len(),
                rules: rules(),
            },
            account: Account {
                gateway: gateway.name.clone(),
                balance: self.book.balances()[seat],
                peak_bps: gateway.peak(),
                bids: gateway.bids().collect(),
                statements: gateway
                    .statements()
                    .map(|&(slot, statement)| Dated { slot, statement })
                    .collect(),
            },
            prices: Prices { slots: Vec::new() },
            lease: leases.map(|leases| Leased {
                slot: leases.generation,
                until_s: leases.until,
                rate_bps: gateway.rate(),
                refused_slot: None,
            }),
        }
    }

    fn place(&mut self, seat: usize, bids: &[Bid]) {
        for &Bid { slot, spend, sequence } in bids {
            let gateway = self.names[seat].clone();
            self.book.apply(&Event::Bid { gateway, slot, spend, sequence }).unwrap();
        }
    }

    fn close(&mut self) {
        if let Some(event) = self.book.absent() {
            self.book.apply(&event).unwrap();
        }
        let event = self.book.closing().unwrap();
        self.book.apply(&event).unwrap();
    }
}

#[test]
fn what_the_policer_refuses_is_told_to_no_daemon() {
    let mut market = Market::new(2);
    let mut home = household();
    market.close();
    let mut answers = market.answers(0);
    // Of another slot than the one that runs.
    for (refused_slot, is_refused) in [(Some(0), true), (None, false), (Some(7), false)] {
        answers.lease.as_mut().unwrap().refused_slot = refused_slot;
        home.handle_answers(answers.clone()).unwrap();
        assert_eq!(home.now(60).is_refused, is_refused, "{refused_slot:?}");
        assert_eq!(home.guarantee(60_000).is_none(), is_refused, "{refused_slot:?}");
    }
}

#[test]
fn it_saves_for_the_film_bids_ahead_and_says_why() {
    let mut market = Market::new(4);
    let mut home = household();
    assert!(home.bids().is_empty());
    home.handle_answers(market.answers(0)).unwrap();
    let bids = home.bids();
    // At 4:00 and 4:30 the film is worth more than pages are in each other half hour.
    let spend =
        |slot: u64| bids.iter().find(|bid| bid.slot == slot).map_or(0, |b| b.spend.as_micro());
    assert!(spend(8) > 3 * spend(0) && spend(9) > 3 * spend(0), "{bids:?}");
    assert!(bids.len() >= 10, "{bids:?}");
    let said = home.reasons().join(" ");
    for part in
        ["10.00 credits of at most 32.00", "web 1", "04:", "film night", "floor of 1.0 Mbit/s"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    // What stands at the server is not bid again, also by an agent that remembers nothing.
    market.place(0, &bids);
    home.handle_answers(market.answers(0)).unwrap();
    assert!(home.bids().is_empty());
    let mut forgetful = household();
    forgetful.handle_answers(market.answers(0)).unwrap();
    assert!(forgetful.bids().is_empty());
    // A boost counts from the next slot on, with the next sequences.
    forgetful.boost(Kind::Downloads, 1_800);
    let boosted = forgetful.bids();
    assert_eq!((boosted[0].slot, boosted[0].sequence), (0, 2));
    assert!(boosted[0].spend.as_micro() > spend(0), "{boosted:?}");
    assert!(forgetful.reasons().join(" ").contains("downloads now"));
    forgetful.boost(Kind::Downloads, 0);
    assert!(forgetful.bids().is_empty());
    // On holiday all bids are withdrawn.
    forgetful.set_holiday(u64::MAX);
    let withdrawn = forgetful.bids();
    assert!(!withdrawn.is_empty() && withdrawn.iter().all(|bid| bid.spend == Credits::ZERO));
    assert!(forgetful.reasons().join(" ").contains("holiday"));
}

#[test]
fn a_lease_counts_in_its_slot_and_the_floor_outside_of_all() {
    let mut market = Market::new(2);
    let mut home = household();
    assert_eq!(home.now(0), Now { rate_bps: Rate::ZERO, until_s: None, is_refused: false });
    market.close();
    home.handle_answers(market.answers(0)).unwrap();
    market.close();
    home.handle_answers(market.answers(0)).unwrap();
    assert_eq!(home.now(1_799).until_s, Some(1_800));
    assert_eq!(home.now(1_800).until_s, Some(3_600));
    assert_eq!(home.now(3_600), Now { rate_bps: Rate::mbit(2), until_s: None, is_refused: false });
    // The others are told of it for three seconds, or what is left of the slot.
    let equal_bps = Rate::mbit(20);
    let rate_bps = home.now(1_800).rate_bps;
    let told = |for_ms| {
        let importance = home.guarantee(1_800_000).unwrap().importance;
        assert!(importance.is_some());
        Guarantee { rate_bps, equal_bps, for_ms, importance }
    };
    assert_eq!(home.guarantee(1_800_000), Some(told(3_000)));
    assert_eq!(home.guarantee(3_599_400), Some(told(600)));
    assert_eq!(home.guarantee(3_600_000), None);
    // It is known after a restart without the server.
    let memory = serde_json::to_string(home.memory()).unwrap();
    let memory = serde_json::from_str(&memory).unwrap();
    let again = Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, memory);
    assert_eq!(again.now(1_800), home.now(1_800));
    assert_eq!(again.now(3_600), home.now(3_600));
}

#[test]
fn what_slots_cost_is_learned_by_paying_and_remembered() {
    let mut market = Market::new(4);
    let mut homes: Vec<Household> = (0..4).map(|_| household()).collect();
    for _ in 0..48 {
        for (seat, home) in homes.iter_mut().enumerate() {
            home.handle_answers(market.answers(seat)).unwrap();
            market.place(seat, &home.bids());
        }
        market.close();
    }
    homes[0].handle_answers(market.answers(0)).unwrap();
    let price = |home: &Household, slot: usize| home.plan()[slot].price;
    // All want the film, so its half hours are dear.
    assert!(price(&homes[0], 8) > 2.0 * price(&homes[0], 2), "{:?}", homes[0].plan());
    let memory = homes[0].memory().clone();
    let mut again = Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, memory);
    again.handle_answers(market.answers(0)).unwrap();
    assert_eq!(again.plan(), homes[0].plan());
}

/// One home has no agent, and that of another one dies with its bids placed ahead.
#[test]
fn a_home_whose_agent_is_dead_has_an_equal_share() {
    const HOMES: usize = 8;
    const SLOTS: u64 = 48;
    let mut market = Market::new(HOMES);
    let mut homes: Vec<Household> = (0..HOMES).map(|_| household()).collect();
    let mut parts = [Vec::new(), Vec::new()];
    for slot in 0..SLOTS {
        let alive = if slot < 4 { HOMES - 1 } else { HOMES - 2 };
        for (seat, home) in homes.iter_mut().enumerate().take(alive) {
            home.handle_answers(market.answers(seat)).unwrap();
            market.place(seat, &home.bids());
        }
        market.close();
        let rates = market.book.leases().unwrap().rates;
        for (parts, seat) in parts.iter_mut().zip([HOMES - 1, HOMES - 2]) {
            parts.push(rates[seat].rate.as_mbit_f64() / (40.0 / HOMES as f64));
        }
    }
    for parts in parts {
        let mean = parts.iter().sum::<f64>() / SLOTS as f64;
        let least = parts.iter().copied().fold(f64::INFINITY, f64::min);
        eprintln!("of an equal share: {mean:.3} on average, {least:.3} at least");
        assert!(mean >= 0.9 && least >= 0.5, "{parts:.2?}");
    }
}

#[test]
fn answers_that_no_market_gives_are_refused_or_harmless() {
    let market = Market::new(2);
    let mut home = household();
    let mut odd = market.answers(0);
    odd.clock.rules.slot_s = 0;
    assert!(home.handle_answers(odd).is_err());
    assert!(home.bids().is_empty());
    let mut odd = market.answers(0);
    odd.clock.open_slot = u64::MAX;
    odd.clock.gateways = 0;
    odd.clock.rules.epoch_s = u64::MAX;
    odd.account.balance = Credits::MAX;
    odd.account.bids = vec![Bid { slot: u64::MAX, spend: Credits::MAX, sequence: u64::MAX }];
    odd.lease =
        Some(Leased { slot: u64::MAX, until_s: u64::MAX, rate_bps: Rate::MAX, refused_slot: None });
    home.handle_answers(odd).unwrap();
    assert!(home.bids().iter().all(|bid| bid.spend <= Credits::MAX));
    home.now(u64::MAX);
    home.reasons();
}
