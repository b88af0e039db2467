//! The policer by test runs in the real kernel: the subscriber of a frame, its counted size and its
//! verdict; and subscribers that come, change and go.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fairweir_core::phantom::{
    Arrival, BcPqp, Flow, Plan, PlanSpec, Police as _, Share, Signal, Verdict,
};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::Error;
use fairweir_linux::police::{
    Algorithm, Direction, Frame, Hook, PlanId, Police, PoliceSpec, SubscriberId, SubscriberSpec,
    Trial,
};
use fairweir_testing::{once, privileged};
use ipnet::IpNet;

use crate::common::flat;
use crate::common::frames::{Random, TCP, UDP, Wire, checksum};

/// A plan that drops everything, so that a drop shows the subscriber of a frame.
const NOTHING: PlanId = PlanId(1);
/// A plan that passes everything.
const PLENTY: PlanId = PlanId(2);
const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::TcxEgress];
const NOW: Time = Time::from_nanos(5_000_000_000);

fn police() -> Police {
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let bucket = |burst| Algorithm::TokenBucket { rate: Rate::kbit(16), burst: Bytes::new(burst) };
    police.set_plan(NOTHING, &bucket(0)).unwrap();
    police.set_plan(PLENTY, &bucket(u32::MAX.into())).unwrap();
    police
}

fn nets(addresses: &[&str]) -> Vec<IpNet> {
    let parse = |text: &&str| {
        text.parse::<IpNet>().unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into())
    };
    addresses.iter().map(parse).collect()
}

fn download(addresses: &[&str], plan: PlanId) -> SubscriberSpec {
    SubscriberSpec { addresses: nets(addresses).into(), download: Some(plan), upload: None }
}

fn run(trial: &Trial, hook: Hook, bytes: &[u8]) -> Verdict {
    trial.run(hook, &Frame { bytes, ..Frame::default() }, NOW, 1).unwrap().verdict
}

/// Frames with every encapsulation that is understood, from and to these addresses.
fn encapsulated(source: &str, destination: &str) -> Vec<Wire> {
    let plain = Wire::udp(source, destination);
    let is_ip4 = plain.source.is_ipv4();
    let mut all = Vec::new();
    for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 9), (0x8100, 5)]] {
        for is_pppoe in [false, true] {
            let outside = Wire { tags: tags.clone(), is_pppoe, ..plain.clone() };
            all.push(outside.clone());
            all.push(Wire { protocol: TCP, length: 90, ..outside.clone() });
            all.push(Wire { protocol: 50, ..outside.clone() });
            if is_ip4 {
                all.push(Wire { options: 40, ..outside.clone() });
                all.push(Wire { fragment: 0x2000, ..outside.clone() });
                all.push(Wire { fragment: 0x0123, ..outside });
            } else {
                all.push(Wire { fragment: 0x0001, ..outside.clone() });
                all.push(Wire { fragment: 0x1230, ..outside.clone() });
                let (hop, long) = (vec![0; 7], [vec![1], vec![0; 14]].concat());
                let extensions = vec![(0, hop.clone()), (60, long), (43, hop.clone())];
                all.push(Wire { extensions, ..outside.clone() });
                all.push(Wire { extensions: vec![(60, hop.clone()); 9], ..outside.clone() });
                all.push(Wire {
                    extensions: vec![(51, [vec![4], vec![0; 22]].concat())],
                    ..outside
                });
            }
        }
    }
    all
}

#[test]
fn every_encapsulation_finds_the_subscriber_and_counts_what_is_on_the_wire() {
    if !privileged() {
        return;
    }
    let mut police = police();
    let id = police.add(&download(&["192.0.2.1", "2001:db8::1"], PLENTY)).unwrap();
    let both =
        SubscriberSpec { upload: Some(PLENTY), ..download(&["192.0.2.1", "2001:db8::1"], PLENTY) };
    police.change(id, &both).unwrap();
    let trials = Direction::ALL.map(|direction| police.trial(direction, true, 24).unwrap());
    for (local, remote) in [("192.0.2.1", "203.0.113.7"), ("2001:db8::1", "2001:db8:7::7")] {
        for hook in HOOKS {
            for (direction, trial) in Direction::ALL.into_iter().zip(&trials) {
                let frames = match direction {
                    Direction::Download => encapsulated(remote, local),
                    Direction::Upload => encapsulated(local, remote),
                };
                for wire in frames {
                    let before = police.counters(id, direction).unwrap().passed;
                    assert_eq!(run(trial, hook, &wire.bytes()), Verdict::Pass, "{wire:?}");
                    let passed = police.counters(id, direction).unwrap().passed;
                    let counted = passed.saturating_sub(before).as_u64();
                    assert_eq!(counted, wire.length as u64 + 24, "{hook:?} {wire:?}");
                }
                let wrong_way = match direction {
                    Direction::Download => Wire::udp(local, remote),
                    Direction::Upload => Wire::udp(remote, local),
                };
                let before = police.unknown(direction).unwrap().passed_packets;
                run(trial, hook, &wrong_way.bytes());
                let after = police.unknown(direction).unwrap().passed_packets;
                assert_eq!(after, before + 1, "{hook:?} {direction:?}: the other way is unknown");
            }
        }
    }
}

#[test]
fn frames_without_ethernet_and_super_packets_count_what_they_are_on_the_wire() {
    if !privileged() {
        return;
    }
    let mut police = police();
    let id = police.add(&download(&["192.0.2.1"], PLENTY)).unwrap();
    let passed =
        |police: &Police| police.counters(id, Direction::Download).unwrap().passed.as_u64();
    let raw = police.trial(Direction::Download, false, -4).unwrap();
    let wire = Wire { has_ethernet: false, length: 1_000, ..Wire::udp("203.0.113.7", "192.0.2.1") };
    assert_eq!(run(&raw, Hook::Xdp, &wire.bytes()), Verdict::Pass);
    assert_eq!(passed(&police), 1_000 + 14 - 4, "an Ethernet header is counted");
    let before = police.totals(PLENTY, Direction::Download).unwrap();

    let ethernet = police.trial(Direction::Download, true, 0).unwrap();
    let wire = Wire { protocol: TCP, length: 54 + 3_000, ..Wire::udp("203.0.113.7", "192.0.2.1") };
    let bytes = wire.bytes();
    let frame = Frame { bytes: &bytes, segments: 3, segment_size: 1_000 };
    ethernet.run(Hook::TcxIngress, &frame, NOW, 1).unwrap();
    assert_eq!(passed(&police), 1_010 + 3 * 1_054, "each segment has headers of its own");
    let after = police.totals(PLENTY, Direction::Download).unwrap();
    assert_eq!(after.passed_packets - before.passed_packets, 3);
}

#[test]
fn the_longest_prefix_wins_and_a_whole_address_before_all() {
    if !privileged() {
        return;
    }
    let mut police = police();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let dropped = |address: &str| {
        let remote = if address.contains(':') { "2001:db8:7::7" } else { "203.0.113.7" };
        let bytes = Wire::udp(remote, address).bytes();
        let verdicts = HOOKS.map(|hook| run(&trial, hook, &bytes));
        assert_eq!(verdicts[0], verdicts[1], "{address}");
        verdicts[0] == Verdict::Drop
    };
    assert!(!dropped("192.0.2.1"), "there is no subscriber");
    let wide = police.add(&download(&["192.0.2.0/24", "2001:db8::/48"], NOTHING)).unwrap();
    assert!(dropped("192.0.2.1") && dropped("192.0.2.255") && !dropped("192.0.3.1"));
    assert!(dropped("2001:db8:0:5::1") && !dropped("2001:db8:1::1"));
    let narrow = ["192.0.2.128/25", "2001:db8:0:5::/64"];
    let narrow = police.add(&download(&narrow, PLENTY)).unwrap();
    assert!(dropped("192.0.2.127") && !dropped("192.0.2.128"));
    assert!(dropped("2001:db8:0:4::1") && !dropped("2001:db8:0:5::1"));
    let whole = police.add(&download(&["192.0.2.129", "2001:db8:0:5::9"], NOTHING)).unwrap();
    assert!(dropped("192.0.2.129") && !dropped("192.0.2.130"));
    assert!(dropped("2001:db8:0:5::9") && !dropped("2001:db8:0:5::8"));
    police.remove(whole).unwrap();
    assert!(!dropped("192.0.2.129") && !dropped("2001:db8:0:5::9"));
    police.remove(narrow).unwrap();
    assert!(dropped("192.0.2.129") && dropped("2001:db8:0:5::9"));
    police.remove(wide).unwrap();
    assert!(!dropped("192.0.2.129") && !dropped("2001:db8:0:5::9"));
    let all = police.add(&download(&["0.0.0.0/0", "::/0"], NOTHING)).unwrap();
    assert!(dropped("8.8.8.8") && dropped("2a00::1"), "the prefix of length 0");
    police.remove(all).unwrap();
}

#[test]
fn a_mark_changes_nothing_but_the_mark_and_the_checksum() {
    if !privileged() {
        return;
    }
    let mut police = police();
    let soft = flat(Rate::kbit(100), 1, Signal::Soft);
    police.set_plan(PlanId(9), &Algorithm::Phantom(&soft)).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let mut marks = 0;
    for (remote, local) in [("203.0.113.7", "192.0.2.1"), ("2001:db8:7::7", "2001:db8::1")] {
        for (hook, ecn) in HOOKS.into_iter().flat_map(|hook| [(hook, 1), (hook, 2)]) {
            for wire in encapsulated(remote, local) {
                let wire = Wire { ecn, dscp: 46, ..wire };
                let (before, after) = marked(&mut police, &trial, hook, &wire, local);
                let marked = Wire { ecn: 3, ..wire.clone() }.bytes();
                assert!(after == marked, "{hook:?} {wire:?}: {after:?}");
                assert_ne!(before, after);
                if wire.source.is_ipv4() {
                    let start = 14 + 4 * wire.tags.len() + if wire.is_pppoe { 8 } else { 0 };
                    let header = &after[start..start + 20 + wire.options];
                    assert_eq!(checksum(header), 0, "{hook:?} {wire:?}");
                }
                marks += 1;
            }
        }
    }
    assert!(marks > 100);
}

/// A frame that is marked, before and after. Each call uses a new subscriber, which sends until its
/// queue is full.
fn marked(
    police: &mut Police,
    trial: &Trial,
    hook: Hook,
    wire: &Wire,
    local: &str,
) -> (Vec<u8>, Vec<u8>) {
    let id = police.add(&download(&[local], PlanId(9))).unwrap();
    let bytes = wire.bytes();
    let frame = Frame { bytes: &bytes, ..Frame::default() };
    let mut now = NOW.as_nanos();
    for _ in 0..2_000 {
        now += 2_000_000;
        let outcome = trial.run(hook, &frame, Time::from_nanos(now), 1).unwrap();
        if outcome.verdict == Verdict::Mark {
            assert_eq!(police.counters(id, Direction::Download).unwrap().marked_packets, 1);
            police.remove(id).unwrap();
            return (bytes, outcome.bytes);
        }
    }
    panic!("{hook:?} {wire:?}: no packet was ever marked");
}

/// The address of the subscriber to whom a frame goes, by an independent reading of the headers.
fn destination_of(bytes: &[u8]) -> Option<IpAddr> {
    let half = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 12;
    let mut protocol = half(at)?;
    for _ in 0..2 {
        if protocol == 0x8100 || protocol == 0x88a8 {
            at += 4;
            protocol = half(at)?;
        }
    }
    at += 2;
    if protocol == 0x8864 {
        if half(at)? != 0x1100 {
            return None;
        }
        protocol = match half(at + 6)? {
            0x21 => 0x0800,
            0x57 => 0x86dd,
            _ => return None,
        };
        at += 8;
    }
    let first = bytes.get(at)?;
    match protocol {
        0x0800 if first >> 4 == 4 && first & 15 >= 5 => {
            let header: [u8; 20] = bytes.get(at..at + 20)?.try_into().ok()?;
            let octets: [u8; 4] = header[16..].try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        0x86dd if first >> 4 == 6 => {
            let header: [u8; 40] = bytes.get(at..at + 40)?.try_into().ok()?;
            let octets: [u8; 16] = header[24..].try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}

#[test]
fn garbage_passes_untouched_unless_it_has_a_subscribers_address() {
    if !privileged() {
        return;
    }
    let mut police = police();
    police.add(&download(&["192.0.2.1", "2001:db8::1"], NOTHING)).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let ours: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let mut seeds = encapsulated("203.0.113.7", "192.0.2.1");
    seeds.extend(encapsulated("2001:db8:7::7", "2001:db8::1"));
    let mut random = Random(42);
    let (mut passed, mut dropped) = (0, 0);
    for n in 0..60_000 {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].bytes();
        match random.below(4) {
            0 => bytes.truncate(14 + random.below(70) as usize),
            1 => bytes.iter_mut().for_each(|byte| *byte = random.next() as u8),
            _ => {}
        }
        for _ in 0..random.below(4) {
            let at = 12 + random.below(60) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = [random.next() as u8, 0, 255, 0x81, 0x86, 6, 44][random.below(7) as usize];
            }
        }
        let owner = destination_of(&bytes).filter(|address| ours.contains(address));
        let hook = HOOKS[n % 2];
        let frame = Frame { bytes: &bytes, ..Frame::default() };
        let Ok(outcome) = trial.run(hook, &frame, NOW, 1) else {
            assert_ne!(hook, Hook::Xdp, "only skbs need a whole IP header for a test run");
            continue;
        };
        match owner {
            Some(_) => dropped += 1,
            None => passed += 1,
        }
        let wanted = if owner.is_some() { Verdict::Drop } else { Verdict::Pass };
        assert_eq!(outcome.verdict, wanted, "frame {n} at {hook:?}: {bytes:02x?}");
    }
    assert!(passed > 10_000 && dropped > 10_000, "{passed} passed, {dropped} dropped");
}

#[test]
fn neighbour_discovery_and_what_is_not_ip_always_pass() {
    if !privileged() {
        return;
    }
    let mut police = police();
    police.add(&download(&["0.0.0.0/0", "::/0"], NOTHING)).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    for hook in HOOKS {
        for protocol in [0x0806_u16, 0x888e, 0x8863, 0x88cc, 0x0003] {
            let mut bytes = vec![0; 60];
            bytes[12..14].copy_from_slice(&protocol.to_be_bytes());
            assert_eq!(run(&trial, hook, &bytes), Verdict::Pass, "{protocol:04x}");
        }
        for kind in 130..140_u8 {
            let wire = Wire { protocol: 58, length: 100, ..Wire::udp("fe80::1", "fe80::2") };
            let mut bytes = wire.bytes();
            bytes[54] = kind;
            assert_eq!(run(&trial, hook, &bytes), Verdict::Drop, "it was forwarded");
            bytes[21] = 255;
            let wanted = if (133..=137).contains(&kind) { Verdict::Pass } else { Verdict::Drop };
            assert_eq!(run(&trial, hook, &bytes), wanted, "type {kind}");
        }
    }
}

#[test]
fn refusals_say_why_and_change_nothing() {
    if !privileged() {
        return;
    }
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let plan = flat(Rate::mbit(1), 4, Signal::Soft);
    police.set_plan(PLENTY, &Algorithm::Phantom(&plan)).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let a = police.add(&download(&["192.0.2.1", "192.0.2.2"], PLENTY)).unwrap();

    let taken = police.add(&download(&["192.0.2.9", "192.0.2.2", "192.0.2.8"], PLENTY));
    assert!(matches!(taken, Err(Error::AddressTaken(net)) if net == nets(&["192.0.2.2"])[0]));
    let unknown = police.add(&download(&["192.0.2.3"], PlanId(77)));
    assert!(matches!(unknown, Err(Error::UnknownPlan(77))));
    assert!(matches!(police.add(&download(&[], PLENTY)), Err(Error::NoAddress)));
    assert!(matches!(police.remove_plan(PLENTY), Err(Error::PlanInUse { users: 1, .. })));
    assert!(matches!(police.remove_plan(PlanId(3)), Err(Error::UnknownPlan(3))));
    let b = police.add(&download(&["192.0.2.3"], PLENTY)).unwrap();
    let stolen = police.change(b, &download(&["192.0.2.3", "192.0.2.4", "192.0.2.1"], PLENTY));
    assert!(matches!(stolen, Err(Error::AddressTaken(_))), "{stolen:?}");

    let seen = |police: &Police, id| police.counters(id, Direction::Download).unwrap().passed;
    for (last, owner) in [(1, Some(a)), (2, Some(a)), (3, Some(b)), (4, None), (8, None), (9, None)]
    {
        let before = [a, b].map(|id| seen(&police, id));
        run(&trial, Hook::Xdp, &Wire::udp("203.0.113.7", &format!("192.0.2.{last}")).bytes());
        let after = [a, b].map(|id| seen(&police, id));
        let grown = [before[0] < after[0], before[1] < after[1]];
        assert_eq!(grown, [owner == Some(a), owner == Some(b)], "192.0.2.{last}");
    }
    assert_eq!(police.subscriber_count(), 2);
    police.remove_all().unwrap();
    police.remove_plan(PLENTY).unwrap();
    assert!(matches!(police.remove(a), Err(Error::UnknownSubscriber)));
}

#[test]
fn room_for_addresses_grows_and_no_packet_misses_its_subscriber_meanwhile() {
    if !privileged() {
        return;
    }
    let mut police = Police::load(&PoliceSpec { addresses4: 4, addresses6: 2 }).unwrap();
    let plan = flat(Rate::mbit(1_000), 4, Signal::Soft);
    police.set_plan(PLENTY, &Algorithm::Phantom(&plan)).unwrap();
    let first = police.add(&download(&["192.0.2.1", "2001:db8::1"], PLENTY)).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let is_done = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let pairs = [("203.0.113.7", "192.0.2.1"), ("2001:db8:7::7", "2001:db8::1")];
            let wires = pairs.map(|(from, to)| Wire::udp(from, to).bytes());
            let mut sent = 0;
            while !is_done.load(Ordering::Relaxed) {
                sent += wires.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
                for bytes in &wires {
                    run_at(&trial, bytes, 1_000 * sent);
                }
            }
            sent
        });
        for at in 0..20_000_u32 {
            let v4 = std::net::Ipv4Addr::from(0x0a00_0000 + at).to_string();
            let v6 = std::net::Ipv6Addr::from((0x2001_0db8_u128 << 96) + 2 + u128::from(at));
            police.add(&download(&[&v4, &v6.to_string()], PLENTY)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    let passed = police.counters(first, Direction::Download).unwrap().passed.as_u64();
    assert!(sent > 100_000 && passed == sent, "{passed} of {sent} bytes were counted");
    assert_eq!(police.unknown(Direction::Download).unwrap().passed_packets, 0);
}

/// Runs a frame at the time `at`, ns.
fn run_at(trial: &Trial, bytes: &[u8], at: u64) -> Verdict {
    let frame = Frame { bytes, ..Frame::default() };
    trial.run(Hook::Xdp, &frame, Time::from_nanos(at), 1).unwrap().verdict
}

/// Sends `count` packets of 1514 bytes in 7 flows at intervals of 20 µs from `start` on; returns
/// the number that passed.
fn burst(trial: &Trial, address: &str, start: u64, count: u64) -> u64 {
    let mut passed = 0;
    for n in 0..count {
        let mut wire = Wire::udp("203.0.113.7", address);
        wire.ports.0 = (n % 7) as u16;
        let frame = Frame { bytes: &wire.bytes(), ..Frame::default() };
        let now = Time::from_nanos(start + n * 20_000);
        let verdict = trial.run(Hook::Xdp, &frame, now, 1).unwrap().verdict;
        passed += u64::from(verdict != Verdict::Drop);
    }
    passed
}

#[test]
fn a_changed_plan_keeps_the_state_of_the_same_tree_and_counters_in_any_case() {
    if !privileged() {
        return;
    }
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let [slow, fast] = [1, 2].map(|mbit| flat(Rate::mbit(mbit), 4, Signal::Hard));
    let [three, sixteen] = [3, 16].map(|queues| flat(Rate::mbit(1), queues, Signal::Hard));
    police.set_plan(PLENTY, &Algorithm::Phantom(&slow)).unwrap();
    let id = police.add(&download(&["192.0.2.1"], PLENTY)).unwrap();
    let state = |police: &Police| police.state(id, Direction::Download).unwrap();
    let counters = |police: &Police| police.counters(id, Direction::Download).unwrap();
    let start = NOW.as_nanos();
    assert!(burst(&trial, "192.0.2.1", start, 200) < 200);
    let (full, counted) = (state(&police), counters(&police));
    assert!(full.iter().any(|&byte| byte != 0) && counted.dropped_packets > 0);

    police.set_plan(PLENTY, &Algorithm::Phantom(&fast)).unwrap();
    assert_eq!((state(&police), counters(&police)), (full.clone(), counted), "another rate");
    police.set_plan(PlanId(3), &Algorithm::Phantom(&slow)).unwrap();
    police.change(id, &download(&["192.0.2.1"], PlanId(3))).unwrap();
    assert_eq!((state(&police), counters(&police)), (full.clone(), counted), "another plan");
    assert!(burst(&trial, "192.0.2.1", start + 4_000_000, 10) == 0, "it is still full");

    // Three queues fit the same slot, but form another tree; sixteen need another slot.
    for (plan, size) in [(&three, full.len()), (&sixteen, 768), (&slow, full.len())] {
        let before = counters(&police);
        police.set_plan(PlanId(3), &Algorithm::Phantom(plan)).unwrap();
        assert_eq!(counters(&police), before, "counters are kept");
        let passed = burst(&trial, "192.0.2.1", start + 4_000_000, 5);
        assert_eq!(passed, 5, "it begins empty");
        let gained = counters(&police).passed.saturating_sub(before.passed);
        assert_eq!(gained, Bytes::new(5 * 1_514));
        assert_eq!(state(&police).len(), size);
        let totals = police.totals(PlanId(3), Direction::Download).unwrap();
        let sum = before.passed + gained;
        assert_eq!(totals.passed + police.totals(PLENTY, Direction::Download).unwrap().passed, sum);
    }
    let all = police.counters_all(Direction::Download).unwrap();
    assert_eq!(all, [(id, counters(&police))]);
}

#[test]
fn a_new_subscriber_does_not_inherit_the_slot_of_one_that_left() {
    if !privileged() {
        return;
    }
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let trial = police.trial(Direction::Download, true, 0).unwrap();
    let plan = flat(Rate::mbit(1), 1, Signal::Hard);
    police.set_plan(PLENTY, &Algorithm::Phantom(&plan)).unwrap();
    let mut last = None;
    for round in 0..3 {
        let id = police.add(&download(&["192.0.2.1"], PLENTY)).unwrap();
        let counters = police.counters(id, Direction::Download).unwrap();
        assert_eq!(counters, Default::default(), "round {round}");
        let passed = burst(&trial, "192.0.2.1", NOW.as_nanos(), 60);
        assert!(passed > 0 && passed < 60, "round {round}: {passed}");
        assert!(last.is_none_or(|last| last == passed), "round {round}: {passed} and {last:?}");
        last = Some(passed);
        police.remove(id).unwrap();
        thread::sleep(std::time::Duration::from_millis(1_100));
    }
}

#[test]
fn changes_of_one_subscriber_touch_no_other_under_traffic() {
    if !privileged() {
        return;
    }
    once(|| {
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let plan = flat(Rate::mbit(5), 16, Signal::Soft);
        let small = flat(Rate::mbit(1), 1, Signal::Soft);
        police.set_plan(PLENTY, &Algorithm::Phantom(&plan)).unwrap();
        police.set_plan(NOTHING, &Algorithm::Phantom(&small)).unwrap();
        // The reference sends alone.
        let alone = {
            let trial = police.trial(Direction::Download, true, 0).unwrap();
            let id = police.add(&download(&["192.0.2.1", "192.0.2.64/26"], PLENTY)).unwrap();
            let passed = burst(&trial, "192.0.2.1", NOW.as_nanos(), 20_000);
            let state = police.state(id, Direction::Download).unwrap();
            police.remove(id).unwrap();
            (passed, state)
        };
        let trial = police.trial(Direction::Download, true, 0).unwrap();
        let id = police.add(&download(&["192.0.2.1", "192.0.2.64/26"], PLENTY)).unwrap();
        let is_done = AtomicBool::new(false);
        let (passed, changes) = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let passed = burst(&trial, "192.0.2.1", NOW.as_nanos(), 20_000);
                is_done.store(true, Ordering::Relaxed);
                passed
            });
            let mut changes = 0;
            while !is_done.load(Ordering::Relaxed) {
                let one = police.add(&download(&["192.0.2.2", "192.0.2.0/26"], PLENTY)).unwrap();
                police.change(one, &download(&["192.0.2.2", "192.0.2.128/26"], NOTHING)).unwrap();
                police.change(one, &download(&["192.0.2.3"], PLENTY)).unwrap();
                police.remove(one).unwrap();
                changes += 1;
            }
            (sender.join().unwrap(), changes)
        });
        assert!(changes > 100, "{changes} changes are no disturbance");
        assert_eq!((passed, police.state(id, Direction::Download).unwrap()), alone);
    });
}

#[test]
fn packets_on_two_cpus_get_no_more_than_one_subscriber_has() {
    if !privileged() {
        return;
    }
    once(|| {
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let limit = 60_000_000;
        let bucket = Algorithm::TokenBucket { rate: Rate::mbit(8), burst: Bytes::new(limit) };
        let plan = Plan::new(&PlanSpec {
            rate: Rate::mbit(4_000),
            rtt_max: Span::millis(50),
            signal: Signal::Hard,
            share: Share::Flows(16),
        });
        let plan = plan.unwrap();
        police.set_plan(PlanId(1), &bucket).unwrap();
        police.set_plan(PlanId(2), &Algorithm::Phantom(&plan)).unwrap();
        let trials = [0, 1].map(|_| police.trial(Direction::Download, true, 0).unwrap());
        let bytes = Wire { protocol: UDP, ..Wire::udp("203.0.113.7", "192.0.2.1") }.bytes();
        // Time does not advance, so the number of passed packets is known exactly.
        let mut model = BcPqp::new(plan.clone());
        let flow = Flow {
            remote: "203.0.113.7".parse().unwrap(),
            local: "192.0.2.1".parse().unwrap(),
            protocol: UDP,
            ports: (5_000, 6_000),
            dscp: 0,
        };
        let leaf = plan.leaf_of(&flow);
        let arrival =
            Arrival { leaf, flow: flow.hash(), size: Bytes::new(1_514), can_be_marked: false };
        let sent = 0..2 * 40 * 2_000;
        let phantom = sent.filter(|_| model.handle_packet(NOW, arrival) == Verdict::Pass).count();
        for (id, room) in [(1, limit / 1_514), (2, phantom as u64)] {
            let subscriber = police.add(&download(&["192.0.2.1"], PlanId(id))).unwrap();
            thread::scope(|scope| {
                for (cpu, trial) in trials.iter().enumerate() {
                    let bytes = &bytes;
                    scope.spawn(move || {
                        pin(cpu);
                        let frame = Frame { bytes, ..Frame::default() };
                        for _ in 0..40 {
                            trial.run(Hook::Xdp, &frame, NOW, 2_000).unwrap();
                        }
                    });
                }
            });
            let counters = police.counters(subscriber, Direction::Download).unwrap();
            let passed = counters.passed.as_u64() / 1_514;
            assert_eq!(passed, room, "plan {id}");
            assert_eq!(passed + counters.dropped_packets, 2 * 40 * 2_000, "plan {id}");
            police.remove(subscriber).unwrap();
        }
    });
}

fn pin(cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
}

#[test]
fn a_handle_of_one_who_left_is_no_ones() {
    if !privileged() {
        return;
    }
    let mut police = police();
    let id: SubscriberId = police.add(&download(&["192.0.2.1"], PLENTY)).unwrap();
    police.remove(id).unwrap();
    assert!(matches!(police.counters(id, Direction::Download), Err(Error::UnknownSubscriber)));
    let wrong = police.change(id, &download(&["192.0.2.1"], PLENTY));
    assert!(matches!(wrong, Err(Error::UnknownSubscriber)));
}

#[test]
fn a_subscriber_takes_less_memory_than_promised() {
    if !privileged() {
        return;
    }
    const COUNT: u32 = 1 << 14;
    let empty = Police::load(&PoliceSpec::default()).unwrap().memory().unwrap();
    for (queues, most) in [(16, 896), (64, 2_560)] {
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let plan = flat(Rate::mbit(50), queues, Signal::Soft);
        police.set_plan(PLENTY, &Algorithm::Phantom(&plan)).unwrap();
        for at in 0..COUNT {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + at);
            police.add(&download(&[&address.to_string()], PLENTY)).unwrap();
        }
        let all = police.memory().unwrap().saturating_sub(empty).as_u64();
        let each = all.div_ceil(COUNT.into());
        println!("{queues} queues: {each} bytes");
        assert!(each <= most && each > 128, "{queues} queues: {each} bytes");
    }
}
