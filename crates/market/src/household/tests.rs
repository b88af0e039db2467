use super::*;
use crate::book::Rules;
use crate::book::{Book, Event};
use crate::messages::Dated;
use fairweir_core::calendar::Window;
use fairweir_core::market::preferences::Time;
use fairweir_core::market::rates::{Mode, Terms};

/// Slots of half an hour from Thursday, 1 January 1970, 0:00.
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
        window: Window { days: [true; 7], from: 4 * 60, to: 5 * 60 },
        importance: [Some(3), None, None, None],
    };
    Preferences { always: [0, 0, 0, 1], times: vec![film] }
}

fn household() -> Household {
    Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, Memory::default())
}

/// A market as the server keeps it, whose gateways all have the same agent.
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
                paused: self.book.is_paused(),
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
                hold: false,
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
    // A refusal of another slot than the running one.
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
    // At 4:00 and 4:30 the film is worth more than web pages are in any other half hour.
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
    // Bids that are on the server are not placed again, even by an agent that remembers nothing.
    market.place(0, &bids);
    home.handle_answers(market.answers(0)).unwrap();
    assert!(home.bids().is_empty());
    let mut forgetful = household();
    forgetful.handle_answers(market.answers(0)).unwrap();
    assert!(forgetful.bids().is_empty());
    // A boost takes effect from the next slot on, with the next sequence numbers.
    forgetful.boost(Kind::Downloads, 1_800);
    let boosted = forgetful.bids();
    assert_eq!((boosted[0].slot, boosted[0].sequence), (0, 2));
    assert!(boosted[0].spend.as_micro() > spend(0), "{boosted:?}");
    assert!(forgetful.reasons().join(" ").contains("downloads now"));
    forgetful.boost(Kind::Downloads, 0);
    assert!(forgetful.bids().is_empty());
    // During a holiday all bids are withdrawn.
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
    // Other daemons are told the rate for three seconds.
    let equal_bps = Rate::mbit(20);
    let rate_bps = home.now(1_800).rate_bps;
    let told = |for_ms| {
        let importance = home.guarantee(1_800_000).unwrap().importance;
        assert!(importance.is_some());
        Guarantee { rate_bps, equal_bps, for_ms, hold: false, importance }
    };
    assert_eq!(home.guarantee(1_800_000), Some(told(3_000)));
    // The rate stays known for a second after its slot, so that there is no gap until the next one is told.
    assert_eq!(home.guarantee(3_599_400), Some(told(1_600)));
    assert_eq!(home.guarantee(3_600_000), Some(told(1_000)));
    assert_eq!(home.guarantee(3_600_999), Some(told(1)));
    assert_eq!(home.guarantee(3_601_000), None);
    // The rate is known after a restart, without asking the server.
    let memory = serde_json::to_string(home.memory()).unwrap();
    let memory = serde_json::from_str(&memory).unwrap();
    let again = Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, memory);
    assert_eq!(again.now(1_800), home.now(1_800));
    assert_eq!(again.now(3_600), home.now(3_600));
}

#[test]
fn a_bound_is_the_lease_but_not_below_the_floor_nor_above_the_equal_share_once_its_slot_is_over() {
    let mut market = Market::new(2);
    let mut home = household();
    market.close();
    let mut answers = market.answers(0);
    let at = |home: &Household, ms| home.guarantee(ms).map(|told| (told.rate_bps, told.hold));
    for (leased, in_slot, after) in [(28, 28, 20), (12, 12, 12), (0, 2, 2), (1, 2, 2)] {
        let lease = answers.lease.as_mut().unwrap();
        (lease.rate_bps, lease.hold) = (Rate::mbit(leased), true);
        home.handle_answers(answers.clone()).unwrap();
        let bound = |mbit| Some((Rate::mbit(mbit), true));
        assert_eq!(at(&home, 60_000), bound(in_slot), "{leased}");
        assert_eq!(at(&home, 1_800_500), bound(after), "{leased}");
        assert_eq!(at(&home, 1_801_000), None, "the market is away: nothing is held");
    }
    // A server without a policer says so. An earlier version did not, and then no rate has to be held.
    let said = r#"{"slot":0,"until_s":1800,"rate_bps":1}"#;
    assert!(!serde_json::from_str::<Leased>(said).unwrap().hold);
}

#[test]
fn a_paused_market_gets_no_bids_and_goes_on_later() {
    let mut market = Market::new(2);
    let mut home = household();
    market.book.apply(&Event::Pause).unwrap();
    assert_eq!(market.book.apply(&Event::Pause), Ok(false), "once more");
    home.handle_answers(market.answers(0)).unwrap();
    assert!(home.bids().is_empty());
    assert!(home.reasons().join(" ").contains("paused"), "{:?}", home.reasons());
    let bid = |slot| Event::Bid {
        gateway: market.names[0].clone(),
        slot,
        spend: Credits::whole(1),
        sequence: 1,
    };
    let (soon, later) = (bid(3), bid(20));
    let paused = Err(crate::book::Refused::Paused);
    assert_eq!(market.book.apply(&soon), paused);
    assert_eq!(market.book.closing().err(), paused.err());
    market.book.apply(&Event::Resume { open: 0 }).unwrap();
    [soon, later].iter().for_each(|bid| assert_eq!(market.book.apply(bid), Ok(true)));
    // Slots that pass during the pause are not closed; bids for later slots stay.
    market.book.apply(&Event::Pause).unwrap();
    let before = market.book.balances().to_vec();
    market.book.apply(&Event::Resume { open: 10 }).unwrap();
    assert_eq!(market.book.apply(&Event::Resume { open: 11 }), Ok(false), "it runs");
    assert_eq!((market.book.open_slot(), market.book.balances()), (10, &before[..]));
    let bids: Vec<u64> = market.book.gateways()[0].bids().map(|bid| bid.slot).collect();
    assert_eq!(bids, [20]);
    market.close();
    home.handle_answers(market.answers(0)).unwrap();
    assert!(!home.bids().is_empty());
    let text = serde_json::to_string(&market.book).unwrap();
    assert_eq!(Book::read(&text).as_ref(), Ok(&market.book));
    market.book.apply(&Event::Pause).unwrap();
    let back = market.book.apply(&Event::Resume { open: 3 });
    assert!(back.is_err() && market.book.is_paused(), "time does not go back");
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
    // All households want the film, so its half hours are expensive.
    assert!(price(&homes[0], 8) > 2.0 * price(&homes[0], 2), "{:?}", homes[0].plan());
    let memory = homes[0].memory().clone();
    let mut again = Household::new(preferences(), Calendar::Compressed { day_s: 86_400 }, memory);
    again.handle_answers(market.answers(0)).unwrap();
    assert_eq!(again.plan(), homes[0].plan());
}

/// One home has no agent; the agent of another one dies after it has placed bids ahead.
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

/// When a household stops its agent, given its own bid, the others' average bid and whether it watches.
type Stops = fn(f64, f64, bool) -> bool;

/// The value of a household's rates over two days. It bids for one slot at a time; while its agent is
/// stopped, the market bids for it as for any absent gateway.
fn value_with(seed: u64, stops: Stops) -> f64 {
    const HOMES: usize = 8;
    let mut state = seed;
    let mut dice = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut evening = || {
        let mut film = preferences().times[0].clone();
        film.window.from = dice(46) as u16 * 30;
        film.window.to = film.window.from + 60;
        film
    };
    let mut home = || {
        let preferences = Preferences { times: vec![evening(), evening()], ..preferences() };
        let calendar = Calendar::Compressed { day_s: 86_400 };
        Household::new(preferences, calendar, Memory::default())
    };
    let mut homes: Vec<Household> = (0..HOMES).map(|_| home()).collect();
    let (mut market, mut value) = (Market::new(HOMES), 0.0);
    for slot in 0..96 {
        let mut bids = Vec::new();
        for (seat, home) in homes.iter_mut().enumerate() {
            home.handle_answers(market.answers(seat)).unwrap();
            let planned = &home.plan()[0];
            let balance = market.book.balances()[seat];
            bids.push(Bid { slot, spend: planned.spend.min(balance), sequence: 1 });
        }
        let others = bids[1..].iter().map(|bid| bid.spend.as_f64()).sum::<f64>() / 7.0;
        let wanted = homes[0].wanted(slot * 1_800, 1_800);
        let watches = wanted.importance.contains(&3);
        for (seat, bid) in bids.iter().enumerate() {
            if seat > 0 || !stops(bid.spend.as_f64(), others, watches) {
                market.place(seat, &[*bid]);
            }
        }
        market.close();
        let rate = market.book.leases().unwrap().rates[0].rate;
        value += wanted.utility().value(rate.as_mbit_f64());
    }
    value
}

#[test]
fn who_stops_its_agent_at_its_best_moments_gains_nothing() {
    const SEEDS: u64 = 6;
    let always: Vec<f64> = (0..SEEDS).map(|seed| value_with(seed, |_, _, _| false)).collect();
    let all: [(&str, Stops); 7] = [
        ("always", |_, _, _| true),
        ("when the others bid more", |own, others, _| others > own),
        ("when the others bid less", |own, others, _| others < own),
        ("for its films", |_, _, watches| watches),
        ("but for its films", |_, _, watches| !watches),
        ("for films that are dear", |own, others, watches| watches && others > own),
        ("when it wants little and that is cheap", |own, others, watches| !watches && others < own),
    ];
    for (when, stops) in all {
        let gain = |seed| value_with(seed, stops) / always[seed as usize] - 1.0;
        let gains: Vec<f64> = (0..SEEDS).map(gain).collect();
        let mean = gains.iter().sum::<f64>() / SEEDS as f64;
        let most = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        eprintln!("stopped {when}: {:+.2} % on average, {:+.2} % at most", mean * 1e2, most * 1e2);
        assert!(mean <= 0.01, "{when}: {gains:.4?}");
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
    odd.lease = Some(Leased {
        slot: u64::MAX,
        until_s: u64::MAX,
        rate_bps: Rate::MAX,
        refused_slot: None,
        hold: false,
    });
    home.handle_answers(odd).unwrap();
    assert!(home.bids().iter().all(|bid| bid.spend <= Credits::MAX));
    home.now(u64::MAX);
    home.reasons();
}
