use proptest::prelude::*;

use super::said::SAID_MAX;
use super::*;
use crate::receiver::{DelaySample, DelaySource, GroupDecision, GroupState};

const TICK: Span = Span::millis(200);
const BUSY: AtLink = AtLink { is_idle: Some(false), drains: false };

fn at(ticks: u64) -> Time {
    Time::ZERO + TICK * (ticks + 1)
}

fn address(n: u64) -> Ipv6Addr {
    Ipv6Addr::from(0xfe80 << 112 | u128::from(n))
}

/// The decision of a host with one group that knows this capacity and wants all it can get.
fn decided(link: Option<Rate>, rate: Rate) -> Decision {
    let state = GroupState::Saturating;
    let group = GroupDecision { rate, share: rate, state, ..GroupDecision::default() };
    let delay = DelaySample {
        value: Span::millis(5),
        least: Span::millis(4),
        noise: Span::ZERO,
        source: DelaySource::Timestamps,
        samples: 9,
        sources: 2,
    };
    Decision { capacity: link, delay: Some(delay), groups: vec![group], ..Decision::initial(1) }
}

/// What a leader says: the link carries 20 Mbit/s, and the host with the id `to` may take `part`.
fn leads(id: u64, to: u64, part: Rate) -> Said {
    let rate = Rate::mbit(20).saturating_sub(part);
    let (link, carried) = (Some(Rate::mbit(20)), Rate::mbit(20));
    Said { id, rate, link, carried, parts: vec![(to, part)], ..Said::default() }
}

/// A host that knew a link of 20 Mbit/s and is told this part from then on; returns the tick in which belief ends.
fn believes(part: Rate, rate: Rate, is_idle: bool) -> Option<u64> {
    let mut host = Peers::new(9);
    host.say(&decided(Some(Rate::mbit(20)), rate), AtLink::default(), at(0));
    (0..100).find(|&tick| {
        host.handle_said(leads(1, 9, part), address(1), at(tick));
        let is_alone = *host.handle_tick(at(tick)) == Beside::Nobody;
        host.say(
            &decided(Some(part), rate),
            AtLink { is_idle: Some(is_idle), drains: false },
            at(tick),
        );
        is_alone
    })
}

#[test]
fn the_first_that_knows_the_link_leads_until_it_is_gone() {
    let mut hosts = [Peers::new(1), Peers::new(2), Peers::new(3)];
    let link = Rate::mbit(30);
    let mut play = |ticks: std::ops::Range<u64>, speak: [bool; 3]| {
        for tick in ticks {
            for n in 0..3 {
                hosts[n].handle_tick(at(tick));
                // The first host learns the link's capacity last.
                let known = (n > 0 || tick > 3).then_some(link);
                let said = hosts[n].say(&decided(known, Rate::mbit(10)), BUSY, at(tick));
                if let Some(said) = said.cloned().filter(|_| speak[n]) {
                    hosts.iter_mut().for_each(|host| {
                        host.handle_said(said.clone(), address(n as u64), at(tick))
                    });
                }
            }
        }
        hosts.each_ref().map(|host| match host.beside() {
            Beside::Nobody => "nobody".to_owned(),
            Beside::Led(others) => format!("leads {}", others.len()),
            Beside::Told(told) => format!("told {} of {}", told.part, told.link),
        })
    };
    let told = "told 10mbit of 30mbit";
    assert_eq!(play(0..20, [true; 3]), [told, "leads 2", told], "who leads goes on");
    let told = "told 15mbit of 30mbit";
    assert_eq!(
        play(20..40, [true, false, true])[..],
        ["leads 1", "nobody", told][..],
        "{}",
        "it is silent"
    );
}

#[test]
fn what_does_not_fit_is_believed_for_two_seconds() {
    let [half, part] = [Rate::mbit(10), Rate::mbit(1)];
    assert_eq!(believes(half, half, false), None, "as it should be");
    assert_eq!(believes(half, Rate::mbit(3), true), None, "it does not take its part yet");
    let soon = |tick: Option<u64>| tick.is_some_and(|tick| (10..=12).contains(&tick));
    assert!(soon(believes(part, part, false)), "less than an equal part");
    assert!(soon(believes(Rate::ZERO, Rate::ZERO, false)), "nothing");
    assert!(soon(believes(half, half, true)), "nobody takes what is kept for the leader");
}

#[test]
fn who_lies_again_is_believed_later() {
    let mut host = Peers::new(9);
    host.say(&decided(Some(Rate::mbit(20)), Rate::mbit(1)), AtLink::default(), at(0));
    let mut told = Vec::new();
    for tick in 0..3_000 {
        host.handle_said(leads(1, 9, Rate::ZERO), address(1), at(tick));
        told.push(matches!(host.handle_tick(at(tick)), Beside::Told(_)));
        let own = decided(Some(Rate::mbit(20)), Rate::mbit(1));
        host.say(&own, BUSY, at(tick));
    }
    // In 10 minutes: 2 s each time, after 10, 20, 40, 80, 160 and 320 s.
    let ticks = told.iter().filter(|told| **told).count();
    assert!((50..=80).contains(&ticks), "{ticks}");
}

#[test]
fn identities_are_addresses_and_have_no_more_room_than_there_is() {
    let mut host = Peers::new(9);
    let says = |id| Said { id, rate: Rate::mbit(1), ..Said::default() };
    host.handle_said(says(1), address(1), at(0));
    // Its own messages from elsewhere, and another host's messages from a new address.
    host.handle_said(says(9), address(2), at(0));
    host.handle_said(Said { rate: Rate::mbit(900), ..says(1) }, address(3), at(0));
    // A hundred ids at one address, then a hundred addresses.
    (100..200).for_each(|id| host.handle_said(says(id), address(4), at(0)));
    assert_eq!(
        host.heard().map(|heard| (heard.said.id, heard.said.rate.as_bps())).collect::<Vec<_>>(),
        [(1, 1_000_000), (199, 1_000_000)]
    );
    (200..300).for_each(|id| host.handle_said(says(id), address(id), at(0)));
    assert_eq!(host.heard().len(), PEERS_MAX);
    host.handle_said(Said { rate: Rate::mbit(2), ..says(1) }, address(1), at(1));
    assert_eq!(host.heard().next().unwrap().said.rate, Rate::mbit(2), "who is known is heard");
    host.handle_tick(at(10));
    assert_eq!(host.heard().len(), 0);
}

#[test]
fn where_a_router_divides_hosts_do_not() {
    let mut host = Peers::new(9);
    let mut play = |tick, router| {
        host.handle_said(leads(1, 9, Rate::mbit(10)), address(1), at(tick));
        if router {
            let said = Said { is_router: true, ..Said::default() };
            let said = Said::read(&said.bytes(0), 77).expect("of every network");
            host.handle_said(said, address(2), at(tick));
        }
        let is_told = *host.handle_tick(at(tick)) != Beside::Nobody;
        let own = decided(Some(Rate::mbit(20)), Rate::mbit(10));
        assert_eq!(host.say(&own, BUSY, at(tick)).is_some(), is_told, "tick {tick}");
        is_told
    };
    assert!(play(0, false) && !play(1, true) && !play(20, false) && play(27, false));
}

#[test]
fn who_receives_hardly_anything_says_nothing() {
    let mut host = Peers::new(9);
    let mut says =
        |tick, rate| host.say(&decided(None, rate), AtLink::default(), at(tick)).is_some();
    assert!(!says(0, Rate::kbit(50)) && says(1, Rate::mbit(1)) && says(5, Rate::ZERO));
    assert!(!says(20, Rate::ZERO));
}

prop_compose! {
    fn any_said()(
        (id, rate, wants, link, carried, drains) in any::<(u64, u64, u64, u64, u64, bool)>(),
        queue in any::<u64>(),
        parts in prop::collection::vec(any::<(u64, u64)>(), 0..=PEERS_MAX),
    ) -> Said {
        let some = |bps: u64, none| Some(Rate::bps(bps)).filter(|rate| *rate != none);
        Said {
            id,
            rate: Rate::bps(rate),
            wants: some(wants, Rate::MAX),
            queue: Some(Span::nanos(queue)).filter(|queue| *queue != Span::MAX),
            link: some(link, Rate::ZERO),
            carried: Rate::bps(carried),
            drains,
            is_router: false,
            parts: parts.into_iter().map(|(id, bps)| (id, Rate::bps(bps))).collect(),
        }
    }
}

proptest! {
    #[test]
    fn what_is_said_is_read_as_it_was(said in any_said(), network: u64) {
        let bytes = said.bytes(network);
        prop_assert!(bytes.len() <= SAID_MAX);
        prop_assert_eq!(Said::read(&bytes, network ^ 1), None);
        prop_assert_eq!(Said::read(&bytes[1..], network), None);
        prop_assert_eq!(Said::read(&bytes[..bytes.len() - 1], network), None);
        prop_assert_eq!(Said::read(&bytes, network), Some(said));
    }

    /// Whatever others say, nothing breaks, and a host that wants more is not told less than its due for longer than it
    /// believes.
    #[test]
    fn nobody_is_kept_below_its_due(
        heard in prop::collection::vec(prop::collection::vec((any_said(), 0..4_u64), 0..4), 100),
    ) {
        let mut host = Peers::new(9);
        let link = Rate::mbit(20);
        host.say(&decided(Some(link), Rate::mbit(5)), AtLink::default(), at(0));
        let mut short = 0;
        for (tick, said) in heard.into_iter().enumerate() {
            let now = at(tick as u64);
            for (mut said, from) in said {
                said.parts.push((9, Rate::bps(said.rate.as_bps() % 3_000_000)));
                said.id %= 4;
                host.handle_said(said, address(from), now);
            }
            let is_short = matches!(host.handle_tick(now), Beside::Told(_));
            short = if is_short { short + 1 } else { 0 };
            prop_assert!(short <= 12, "told less for {} ticks", short);
            host.say(&decided(Some(link), Rate::mbit(1)), BUSY, now);
        }
    }
}
