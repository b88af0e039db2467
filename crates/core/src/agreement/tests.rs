use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::bindings::{BINDINGS, Bindings, IDLE};
use super::client::{Client, SILENCE, Why, classes_of};
use super::cookie::{Key, PERIOD};
use super::divider::{CHANGES, Divider, Subscribers};
use super::message::{Agreed, Ask, MESSAGE_MAX, Message, Outcome, Seen};
use super::verify::{Fault, Received, Verifier};
use super::{CLASSES_MAX, Classes, LEASE, Together, class_of, mark_of};
use crate::policy::{Branch, Group, Policy};
use crate::share::{Claims, Tree, Weight};
use crate::units::{Rate, Span, Time};

const ALICE: &str = "192.0.2.1:40000";
const TICK: Span = Span::millis(200);

/// Subscribers 192.0.2.N, each of which is offered 20 Mbit/s except for the last two.
#[derive(Default)]
struct Access {
    divided: BTreeMap<u8, Classes>,
    is_full: bool,
    /// What the divider says it sees.
    marked: u16,
    held: u16,
    /// Whether it is a router, which does not state what it divides.
    is_router: bool,
}

impl Subscribers for Access {
    type Id = u8;

    fn owner(&self, address: IpAddr) -> Option<u8> {
        match address {
            IpAddr::V4(ip4) if ip4.octets()[..3] == [192, 0, 2] => Some(ip4.octets()[3]),
            _ => None,
        }
    }

    fn offer(&self, subscriber: &u8) -> Result<Rate, Outcome> {
        match subscriber {
            255 => Err(Outcome::NotOffered),
            254 => Err(Outcome::NotNow),
            _ if self.is_router => Ok(Rate::ZERO),
            _ => Ok(Rate::mbit(20)),
        }
    }

    fn divide(&mut self, subscriber: &u8, classes: &Classes) -> bool {
        if !self.is_full {
            self.divided.insert(*subscriber, classes.clone());
        }
        !self.is_full
    }

    fn undivide(&mut self, subscriber: &u8) {
        self.divided.remove(subscriber);
    }

    fn is_divided(&self, subscriber: &u8) -> bool {
        self.divided.contains_key(subscriber)
    }

    fn seen(&self, _: &u8, _: Time) -> Seen {
        Seen { refused: 7, marked: self.marked, held: self.held }
    }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::secs(1_000) + Span::millis(ms)
}

fn classes(weights: &[u16]) -> Classes {
    Classes::new(weights.to_vec(), 0).unwrap()
}

fn divider() -> Divider<u8> {
    Divider::new(Key([9; 16]), 41)
}

fn say(
    divider: &mut Divider<u8>,
    access: &mut Access,
    from: &str,
    message: &Message,
    now: Time,
) -> Option<Message> {
    let (from, bytes): (SocketAddr, _) = (from.parse().unwrap(), message.bytes());
    let answer = divider.handle_datagram(from, &bytes, now, access);
    let length = answer.as_ref().map_or(0, |answer| answer.bytes().len());
    assert!(length <= bytes.len(), "an answer of {length} bytes to {}", bytes.len());
    answer
}

/// Says hello, and asks for these weights.
fn ask(
    divider: &mut Divider<u8>,
    access: &mut Access,
    from: &str,
    weights: &[u16],
    now: Time,
) -> Agreed {
    let nonce = 5;
    let cookie = match say(divider, access, from, &Message::Hello { nonce }, now) {
        Some(Message::Cookie { nonce: 5, cookie }) => cookie,
        other => panic!("{other:?} is no cookie"),
    };
    let ask = Message::Ask(Ask { nonce, cookie, epoch: 0, classes: classes(weights) });
    match say(divider, access, from, &ask, now) {
        Some(Message::Agreed(agreed)) => agreed,
        other => panic!("{other:?} is no answer"),
    }
}

fn messages() -> impl Strategy<Value = Message> {
    let weights = vec(1..=256_u16, 1..=CLASSES_MAX);
    let of_device = (1..=256_u16, 0..16_u8, 1..5_u8);
    let of_device = of_device.prop_map(|(weight, first, count)| Together { weight, first, count });
    let classes = (weights, any::<prop::sample::Index>(), vec(of_device, 0..4)).prop_map(
        |(weights, default, mut together)| {
            let default = default.index(weights.len()) as u8;
            let flat = Classes::new(weights, default).unwrap();
            together.sort_unstable_by_key(|one| one.first);
            flat.clone().with(together).unwrap_or(flat)
        },
    );
    let ask =
        (any::<(u64, [u8; 16], u32)>(), classes).prop_map(|((nonce, cookie, epoch), classes)| {
            Message::Ask(Ask { nonce, cookie, epoch, classes })
        });
    let outcomes = Outcome::ALL;
    let agreed =
        (any::<(u64, u32, u16, u64, u64)>(), 0..outcomes.len(), vec(0..64_u8, 0..=CLASSES_MAX));
    let agreed = agreed.prop_map(move |((nonce, epoch, lease, rate, seen), outcome, marks)| {
        Message::Agreed(Agreed {
            nonce,
            epoch,
            lease: Span::millis(lease.into()),
            outcome: outcomes[outcome],
            rate: Rate::bps(rate),
            seen: Seen {
                refused: seen as u32,
                marked: (seen >> 32) as u16,
                held: (seen >> 48) as u16,
            },
            marks,
        })
    });
    prop_oneof![
        any::<u64>().prop_map(|nonce| Message::Hello { nonce }),
        any::<(u64, [u8; 16])>().prop_map(|(nonce, cookie)| Message::Cookie { nonce, cookie }),
        ask,
        agreed,
        any::<(u64, [u8; 16], u32)>().prop_map(|(nonce, cookie, epoch)| Message::End {
            nonce,
            cookie,
            epoch
        }),
    ]
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_was_written_and_no_other_length_is(message in messages()) {
        let bytes = message.bytes();
        prop_assert!(bytes.len() <= MESSAGE_MAX);
        prop_assert_eq!(Message::read(&bytes), Some(message));
        prop_assert_eq!(Message::read(&bytes[..bytes.len() - 1]), None);
        prop_assert_eq!(Message::read(&[&bytes[..], &[0]].concat()), None);
    }

    /// Whatever flows are marked, each is in its own class or was refused, and never in another flow's class.
    #[test]
    fn a_bound_flow_is_in_the_class_of_its_last_mark(
        marks in vec((any::<u32>(), 0..16_u8, 0..400_u64), 1..400)
    ) {
        let (mut bindings, mut last, mut now) = (Bindings::default(), BTreeMap::new(), at(0));
        for (hash, class, wait) in marks {
            now = now + Span::millis(wait);
            if bindings.bind(hash, class, now) {
                last.insert(hash, class);
            }
        }
        for (hash, class) in last {
            prop_assert!(bindings.class_of(hash).is_none_or(|bound| bound == class));
        }
    }
}

#[test]
fn half_as_many_flows_as_places_are_all_bound_and_then_the_idle_ones_go_first() {
    let mut bindings = Bindings::default();
    let hash = |nth: u32| nth.wrapping_mul(0x2545_f491) ^ 0x1234_5678;
    let flows = BINDINGS as u32 / 2;
    for nth in 0..flows {
        assert!(bindings.bind(hash(nth), 3, at(0)), "{nth}");
    }
    assert!((0..flows).all(|nth| bindings.class_of(hash(nth)) == Some(3)));
    // A flood of other flows displaces no flow that was marked recently.
    let flood = (flows..20 * flows).filter(|&nth| !bindings.bind(hash(nth), 1, at(9_000))).count();
    assert!(flood > 0 && bindings.refused() as usize == flood);
    assert!((0..flows).all(|nth| bindings.class_of(hash(nth)) == Some(3)));
    let late = at(0) + IDLE * 2;
    assert!((flows..2 * flows).all(|nth| bindings.bind(hash(nth), 2, late)));
}

#[test]
fn marks_are_of_pool_2_and_name_their_class() {
    let marks: BTreeSet<u8> = (0..CLASSES_MAX as u8).map(mark_of).collect();
    assert!(marks.len() == CLASSES_MAX && marks.iter().all(|mark| mark & 3 == 3 && *mark < 64));
    assert!((0..CLASSES_MAX as u8).all(|class| class_of(mark_of(class)) == Some(class)));
    assert_eq!((class_of(0), class_of(46), class_of(67)), (None, None, None));
}

#[test]
fn an_agreement_holds_for_its_lease_and_a_renewal_extends_it() {
    let (mut divider, mut access) = (divider(), Access::default());
    let agreed = ask(&mut divider, &mut access, ALICE, &[5, 1], at(0));
    assert_eq!((agreed.outcome, agreed.lease, agreed.epoch), (Outcome::Divides, LEASE, 42));
    assert_eq!((agreed.marks, agreed.rate, agreed.seen.refused), (vec![3, 7], Rate::mbit(20), 7));
    assert_eq!(access.divided[&1], classes(&[5, 1]));
    let again = ask(&mut divider, &mut access, ALICE, &[5, 1], at(2_000));
    assert_eq!(again.epoch, 42, "nothing was forgotten");
    divider.handle_tick(at(4_900), &mut access);
    assert_eq!(access.divided.len(), 1);
    divider.handle_tick(at(5_000), &mut access);
    assert_eq!(access.divided.len(), 0, "no lease outlives its time");
    let anew = ask(&mut divider, &mut access, ALICE, &[5, 1], at(6_000));
    assert_eq!(anew.epoch, 43);
}

#[test]
fn who_has_not_proven_its_address_changes_nothing() {
    let (mut divider, mut access) = (divider(), Access::default());
    let mut forged = |cookie, from: &str, now| {
        let forged = Ask { nonce: 5, cookie, epoch: 0, classes: classes(&[9]) };
        let answer = say(&mut divider, &mut access, from, &Message::Ask(forged), now);
        assert!(access.divided.is_empty());
        answer
    };
    let Some(Message::Cookie { cookie, .. }) = forged([7; 16], ALICE, at(0)) else {
        panic!("the right cookie is told to who has the address");
    };
    // The cookie is as invalid as any other for a different address, port, nonce or time.
    for other in ["192.0.2.2:40000", "192.0.2.1:40001"] {
        assert!(matches!(forged(cookie, other, at(0)), Some(Message::Cookie { .. })), "{other}");
    }
    let late = at(0) + PERIOD * 2;
    assert!(matches!(forged(cookie, ALICE, late), Some(Message::Cookie { .. })));
    // Foreign addresses get no answer, and neither do datagrams that no client sends.
    assert_eq!(forged(cookie, "198.51.100.1:40000", at(0)), None);
    let hello = Message::Hello { nonce: 1 };
    assert_eq!(say(&mut divider, &mut access, "198.51.100.1:7", &hello, at(0)), None);
    let cookie = Message::Cookie { nonce: 1, cookie };
    assert_eq!(say(&mut divider, &mut access, ALICE, &cookie, at(0)), None);
    assert_eq!(divider.live(at(0)), 0);
}

#[test]
fn a_second_client_waits_until_the_lease_of_the_first_ends() {
    let (mut divider, mut access) = (divider(), Access::default());
    ask(&mut divider, &mut access, ALICE, &[5, 1], at(0));
    let other = "192.0.2.1:50000";
    let refused = ask(&mut divider, &mut access, other, &[1, 9], at(100));
    assert_eq!((refused.outcome, refused.lease), (Outcome::Taken, Span::ZERO));
    assert_eq!(access.divided[&1], classes(&[5, 1]));
    // A client cannot end another client's agreement.
    let cookie = Key([9; 16]).cookie(other.parse().unwrap(), 5, at(100));
    let end = Message::End { nonce: 5, cookie, epoch: 42 };
    say(&mut divider, &mut access, other, &end, at(100));
    assert_eq!(access.divided.len(), 1);
    divider.handle_tick(at(3_000), &mut access);
    let agreed = ask(&mut divider, &mut access, other, &[1, 9], at(3_100));
    assert_eq!(agreed.outcome, Outcome::Divides);
}

#[test]
fn weights_that_change_without_end_gain_nothing() {
    let (mut divider, mut access) = (divider(), Access::default());
    let mut changes = 0;
    for nth in 0..1_000_u64 {
        let weights = [1 + (nth % 200) as u16, 1];
        let agreed = ask(&mut divider, &mut access, ALICE, &weights, at(nth * 100));
        assert!(agreed.lease == LEASE, "{agreed:?}");
        changes += u32::from(agreed.outcome == Outcome::Divides);
        if agreed.outcome == Outcome::TooSoon {
            assert_ne!(access.divided[&1], classes(&weights));
        }
    }
    // Changes in 100 s.
    assert!((CHANGES..=CHANGES + 11).contains(&changes), "{changes}");
    // Nor does a client get more changes by ending and beginning agreements.
    let mut begun = 0;
    for nth in 0..100 {
        let now = at(101_000 + nth * 4_000);
        divider.handle_tick(now, &mut access);
        let agreed = ask(&mut divider, &mut access, ALICE, &[1, 1], now);
        begun += u32::from(agreed.outcome == Outcome::Divides);
    }
    assert!(begun <= 42, "{begun} in 400 s");
}

#[test]
fn without_an_offer_or_room_nothing_is_agreed() {
    let (mut divider, mut access) = (divider(), Access { is_full: true, ..Access::default() });
    let full = ask(&mut divider, &mut access, ALICE, &[5, 1], at(0));
    assert_eq!((full.outcome, full.lease), (Outcome::Full, Span::ZERO));
    let hello = Message::Hello { nonce: 1 };
    assert_eq!(say(&mut divider, &mut access, "192.0.2.255:9", &hello, at(0)), None);
    let later = ask(&mut divider, &mut access, "192.0.2.254:9", &[5, 1], at(0));
    assert_eq!((later.outcome, access.divided.len()), (Outcome::NotNow, 0));
}

/// A client, and a divider that may fall silent or lie.
struct Pair {
    client: Client,
    divider: Divider<u8>,
    access: Access,
    now: u64,
    is_silent: bool,
    is_tcp: bool,
}

impl Pair {
    fn new() -> Pair {
        let client = Client::new(classes(&[1, 5]), 3, at(0));
        let (divider, access) = (divider(), Access { marked: 3, ..Access::default() });
        Pair { client, divider, access, now: 0, is_silent: false, is_tcp: true }
    }

    /// Plays for this many ms, with these rates and losses of the classes.
    fn play(&mut self, ms: u64, mbit: [u64; 2], losses: [u64; 2]) {
        let end = self.now + ms;
        while self.now < end {
            self.now += TICK.as_nanos() / 1_000_000;
            let now = at(self.now);
            let received = [0, 1].map(|class| Received {
                bytes: Rate::mbit(mbit[class]) * TICK,
                acknowledged: Rate::mbit(mbit[class]) * TICK * u64::from(self.is_tcp),
                losses: losses[class],
            });
            self.client.handle_tick(&received, now);
            while let Some(message) = self.client.poll_datagram() {
                let answer = say(&mut self.divider, &mut self.access, ALICE, &message, now);
                if let Some(answer) = answer.filter(|_| !self.is_silent) {
                    self.client.handle_datagram(&answer.bytes(), now);
                }
            }
            self.divider.handle_tick(now, &mut self.access);
        }
    }

    fn is_delegated(&self) -> bool {
        self.client.agreement().is_some()
    }
}

#[test]
fn a_client_asks_renews_and_trusts_a_divider_that_does_as_agreed() {
    let mut pair = Pair::new();
    pair.play(400, [3, 15], [1, 1]);
    assert!(pair.is_delegated());
    assert_eq!(pair.access.divided[&1], classes(&[1, 5]));
    pair.play(120_000, [3, 15], [1, 1]);
    let agreement = pair.client.agreement().unwrap();
    assert!(at(pair.now).since(agreement.verified_at.unwrap()) <= Span::secs(2));
    assert_eq!(agreement.since, at(200), "never interrupted");
    pair.client.set_classes(classes(&[2, 1]), at(pair.now));
    pair.play(400, [12, 6], [1, 1]);
    assert_eq!(pair.access.divided[&1], classes(&[2, 1]));
    pair.play(10_000, [12, 6], [1, 1]);
    assert!(pair.is_delegated());
    pair.client.stop(at(pair.now));
    pair.play(200, [12, 6], [1, 1]);
    assert!(!pair.is_delegated() && pair.access.divided.is_empty(), "the divider was told");
}

#[test]
fn a_divider_that_falls_silent_is_left_within_three_seconds() {
    let mut pair = Pair::new();
    pair.play(5_000, [3, 15], [1, 1]);
    pair.is_silent = true;
    pair.play((SILENCE + Span::secs(1)).as_nanos() / 1_000_000, [3, 15], [1, 1]);
    assert!(matches!(pair.client.waits(), Some((Why::NotRenewed, _))));
    // The divider is asked again after a minute or somewhat later, and then after two.
    pair.play(58_000, [3, 15], [1, 1]);
    assert!(pair.client.waits().is_some());
    pair.is_silent = false;
    pair.play(33_000, [3, 15], [1, 1]);
    assert!(pair.is_delegated());
    pair.is_silent = true;
    pair.play(3_000, [3, 15], [1, 1]);
    let (_, until) = pair.client.waits().unwrap();
    assert!(until.since(at(pair.now)) > Span::secs(110), "{:?}", until.since(at(pair.now)));
}

#[test]
fn who_is_not_there_is_asked_more_and_more_rarely() {
    let mut pair = Pair::new();
    pair.is_silent = true;
    let mut pauses = Vec::new();
    for _ in 0..10 {
        while pair.client.waits().is_none_or(|(why, _)| why != Why::NoAnswer) {
            pair.play(200, [3, 15], [1, 1]);
        }
        let (_, until) = pair.client.waits().unwrap();
        pauses.push(until.since(at(pair.now)));
        pair.play(until.since(at(pair.now)).as_nanos() / 1_000_000 + 200, [3, 15], [1, 1]);
    }
    for (pause, secs) in pauses.iter().zip([5, 10, 20, 40, 80, 160, 300, 300, 300, 300]) {
        let pause = *pause + Span::millis(400);
        assert!(pause >= Span::secs(secs) && pause <= Span::secs(secs * 3 / 2 + 1), "{pauses:?}");
    }
    pair.is_silent = false;
    let (_, until) = pair.client.waits().unwrap_or((Why::NoAnswer, at(pair.now)));
    pair.play(until.since(at(pair.now)).as_nanos() / 1_000_000 + 1_000, [3, 15], [1, 1]);
    assert!(pair.is_delegated());
}

#[test]
fn a_divider_that_lies_is_left_within_three_seconds() {
    for (mbit, losses, is_lie) in [
        // Weights inverted, and one class starved.
        ([15, 3], [1, 1], true),
        ([18, 0], [1, 1], true),
        // Half of what arrived before.
        ([1, 8], [1, 1], true),
        // A class that wants no more, or no class that wants more.
        ([15, 3], [1, 0], false),
        ([0, 18], [0, 1], false),
        ([1, 1], [0, 0], false),
    ] {
        let mut pair = Pair::new();
        pair.client.stop(at(0));
        pair.play(15_000, [9, 9], [1, 1]);
        pair.client.set_waiting(at(pair.now));
        pair.play(20_000, [3, 15], [1, 1]);
        assert!(pair.is_delegated());
        // Losses from before are forgotten.
        pair.play(6_000, [3, 15], [0, 0]);
        assert!(pair.is_delegated());
        pair.play(3_200, mbit, losses);
        assert_eq!(pair.is_delegated(), !is_lie, "{mbit:?} {losses:?}");
        if is_lie {
            let why = pair.client.waits().map(|(why, _)| why);
            assert!(matches!(why, Some(Why::Fault(Fault::Share { .. } | Fault::Total { .. }))));
            assert!(pair.access.divided.is_empty(), "the divider was told");
        }
    }
}

#[test]
fn marks_that_do_not_arrive_end_an_agreement_and_datagrams_need_none() {
    for (marked, is_tcp, ends) in [(1, true, true), (1, false, false), (3, true, false)] {
        let mut pair = Pair { is_tcp, ..Pair::new() };
        pair.play(10_000, [3, 15], [0, 0]);
        let verified = pair.client.agreement().unwrap().verified_at;
        assert_eq!(verified.is_some(), is_tcp, "without losses marks tell");
        pair.access.marked = marked;
        pair.play(4_000, [3, 15], [0, 0]);
        assert_eq!(pair.is_delegated(), !ends, "{marked} {is_tcp}");
    }
}

#[test]
fn of_a_router_the_classes_that_it_holds_are_judged_and_not_the_total() {
    // A television takes half of the link; then the classes are held in the inverse ratio.
    for (mbit, held, ends) in
        [([1, 5], 3, false), ([2, 8], 3, false), ([5, 1], 3, true), ([5, 1], 2, false)]
    {
        let mut pair = Pair::new();
        pair.access.is_router = true;
        pair.client.stop(at(0));
        pair.play(15_000, [9, 9], [1, 1]);
        pair.client.set_waiting(at(pair.now));
        pair.access.held = held;
        pair.play(3_000, [3, 15], [0, 0]);
        assert!(pair.is_delegated());
        pair.play(14_000, mbit, [0, 0]);
        assert_eq!(pair.is_delegated(), !ends, "{mbit:?} {held}");
    }
}

#[test]
fn a_class_that_lacks_a_little_all_the_time_ends_an_agreement_and_one_that_swings_does_not() {
    for (first, second, ends) in [([3, 13], [3, 13], true), ([3, 15], [6, 12], false)] {
        let mut pair = Pair::new();
        pair.client = Client::new(classes(&[1, 3]), 3, at(0));
        for _ in 0..30 {
            pair.play(1_000, first, [1, 1]);
            pair.play(1_000, second, [1, 1]);
        }
        assert_eq!(pair.is_delegated(), !ends, "{first:?} {second:?}");
    }
}

#[test]
fn a_class_that_ends_while_it_loses_packets_ends_no_agreement() {
    let mut pair = Pair::new();
    pair.play(8_000, [3, 15], [1, 1]);
    pair.play(700, [3, 15], [1, 1]);
    pair.play(20_000, [18, 0], [1, 0]);
    assert!(pair.is_delegated(), "{:?}", pair.client.waits());
}

#[test]
fn an_answer_to_what_was_asked_before_renews_that() {
    let mut client = Client::new(classes(&[5, 1]), 3, at(0));
    client.handle_tick(&[], at(0));
    let Some(Message::Hello { nonce }) = client.poll_datagram() else { panic!("no hello") };
    client.handle_datagram(&Message::Cookie { nonce, cookie: [1; 16] }.bytes(), at(1));
    let agreed = |count: u8, outcome| {
        let (lease, rate, seen) = (LEASE, Rate::ZERO, Seen::default());
        let marks = (0..count).map(mark_of).collect();
        Message::Agreed(Agreed { nonce, epoch: 1, lease, outcome, rate, seen, marks }).bytes()
    };
    client.handle_datagram(&agreed(2, Outcome::Divides), at(2));
    assert!(client.is_as_asked());
    client.set_classes(classes(&[5, 1, 1]), at(3));
    for outcome in [Outcome::Divides, Outcome::TooSoon] {
        client.handle_datagram(&agreed(2, outcome), at(4));
        assert!(client.agreement().is_some() && !client.is_as_asked(), "{outcome:?}");
    }
    client.handle_datagram(&agreed(3, Outcome::Divides), at(5));
    assert!(client.is_as_asked());
    client.handle_datagram(&agreed(4, Outcome::Divides), at(6));
    assert!(client.agreement().is_none(), "it is no answer to anything that was asked");
}

#[test]
fn who_is_off_the_path_cannot_answer_for_a_divider() {
    let mut client = Client::new(classes(&[5, 1]), 3, at(0));
    client.handle_tick(&[Received::default(); 2], at(0));
    let Some(Message::Hello { nonce }) = client.poll_datagram() else { panic!("no hello") };
    let agreed = |nonce| {
        let (lease, outcome) = (LEASE, Outcome::Divides);
        let (rate, marks) = (Rate::ZERO, vec![3, 7]);
        Message::Agreed(Agreed {
            nonce,
            epoch: 1,
            lease,
            outcome,
            rate,
            seen: Seen::default(),
            marks,
        })
    };
    for forged in [
        Message::Cookie { nonce: nonce ^ 1, cookie: [1; 16] },
        agreed(nonce ^ 1),
        // No divider was asked yet.
        agreed(nonce),
        Message::Hello { nonce },
    ] {
        client.handle_datagram(&forged.bytes(), at(10));
        assert!(client.agreement().is_none() && client.poll_datagram().is_none(), "{forged:?}");
    }
    client.handle_datagram(b"FWAG\x01\x04", at(10));
    assert!(client.agreement().is_none());
}

/// Groups `g0`, ... and, beneath some of them, others; the default group has the last weight.
fn policy(weights: &[(u32, &[u32])]) -> Policy {
    let group = |name: String, weight| Branch {
        group: Group::new(name, Weight::new(weight).unwrap(), Vec::new()),
        beneath: Vec::new(),
    };
    let device = |(at, (weight, beneath)): (usize, &(u32, &[u32]))| {
        let name = if at + 1 == weights.len() { "default".to_owned() } else { format!("g{at}") };
        let inner = |(at, weight): (usize, &u32)| match at + 1 == beneath.len() {
            true => group("default".to_owned(), *weight),
            false => group(format!("i{at}"), *weight),
        };
        let beneath = beneath.iter().enumerate().map(inner).collect();
        Branch { beneath, ..group(name, *weight) }
    };
    Policy::nested(weights.iter().enumerate().map(device).collect()).unwrap()
}

#[test]
fn groups_have_classes_by_their_weights() {
    let flat = |weights: &[u32]| {
        policy(&weights.iter().map(|weight| (*weight, &[][..])).collect::<Vec<_>>())
    };
    let (few, of) = classes_of(&flat(&[5, 1, 2]));
    assert_eq!((few.weights(), few.default(), of), (&[5, 1, 2][..], 2, vec![0, 1, 2]));
    // The largest weights have classes, and the default group has the sum of the others.
    let many: Vec<u32> = (2..=40).chain([1]).collect();
    let (all, of) = classes_of(&flat(&many));
    assert_eq!(all.weights().len(), CLASSES_MAX);
    assert_eq!((of[39], of[4], of[38]), (all.default(), all.default(), 14));
    assert_eq!((all.weights()[15], all.weights()[14]), (256, 32), "325 and 40");
    let (scaled, _) = classes_of(&flat(&[10_000, 5_000, 1]));
    assert_eq!(scaled.weights(), [256, 128, 1]);
}

#[test]
fn devices_divide_what_they_have_and_the_smallest_parts_go_to_the_default_of_their_device() {
    let (classes, of) = classes_of(&policy(&[(2, &[4, 1]), (1, &[]), (3, &[1, 2]), (1, &[])]));
    assert_eq!(of, [0, 1, 2, 3, 4, 5]);
    assert_eq!((classes.weights(), classes.default()), (&[4, 1, 1, 1, 2, 1][..], 5));
    let together = |weight, first, count| Together { weight, first, count };
    assert_eq!(classes.together(), [together(2, 0, 2), together(3, 3, 2)]);
    // A class that wants nothing leaves its part to the other classes of its device.
    let demands = [None, Some(Rate::ZERO), None, Some(Rate::ZERO), Some(Rate::ZERO), None];
    let parts = classes.tree().divide(Rate::mbit(4), Claims { demands: &demands, taken: &[] });
    assert_eq!(parts, [2, 0, 1, 0, 0, 1].map(Rate::mbit));
    // Five devices of ten groups: the three largest are nested, and no device has more than its part.
    let ten = [9, 8, 7, 6, 5, 4, 3, 2, 1, 1];
    let devices = [50, 40, 30, 20, 10].map(|weight| (weight, &ten[..]));
    let home = policy(&[&devices[..], &[(10, &[])]].concat());
    let (classes, of) = classes_of(&home);
    assert_eq!((classes.weights().len(), classes.together().len()), (CLASSES_MAX, 3));
    let by_weight = |tree: Tree| tree.by_weight(Rate::mbit(160));
    let own = by_weight(classes.tree());
    for (device, weight) in [50, 40, 30, 20, 10, 10].into_iter().enumerate() {
        let groups = device * 10..(device * 10 + 10).min(of.len());
        let numbers: BTreeSet<u8> = of[groups].iter().copied().collect();
        let sum: Rate = numbers.iter().map(|number| own[usize::from(*number)]).sum();
        let exact = Rate::mbit(weight);
        assert!(sum <= exact.scale(103, 100) && sum >= exact.scale(97, 100), "{device}: {sum}");
    }
}

/// Two classes find their new shares after a third has ended; a divider that goes on like that is noticed.
#[test]
fn senders_may_find_their_shares_after_a_class_has_ended() {
    let classes = Classes::new(vec![10, 3, 1], 2).unwrap();
    let mut verifier = Verifier::new(&classes, None, Time::ZERO);
    let mut at = Time::ZERO;
    let mut span = |mbit: [u64; 3]| {
        at = at + Span::secs(1);
        let received = mbit.map(|rate| Received {
            bytes: Rate::mbit(rate) * Span::secs(1),
            losses: u64::from(rate > 0),
            ..Received::default()
        });
        verifier.handle_tick(&received, Seen::default(), at)
    };
    for _ in 0..5 {
        assert_ne!(span([14, 4, 2]).map(|judged| judged.is_err()), Some(true));
    }
    let judged = [(); 4].map(|()| span([0, 5, 14]).map(|judged| judged.is_err()));
    assert_eq!(judged.map(|is_fault| is_fault == Some(true)), [false, false, false, true]);
}
