//! What a subscriber used of each class of its plan, counted in the real kernel: exact to the byte,
//! whatever happens to its plan.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fairweir_core::packet::Side;
use fairweir_core::phantom::{
    Bundle, BundleSpec, Class, Criterion, Plan, PlanSpec, Share, Signal, Verdict,
};
use fairweir_core::policy::PortMatch;
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_linux::police::{
    Algorithm, Counters, Direction, Frame, Hook, PlanId, Police, PoliceSpec, SubscriberId,
    SubscriberSpec, Trial,
};
use fairweir_testing::privileged;

use crate::common::flat;
use crate::common::frames::{Random, Wire};

/// Remote ports: of the first classes, and one that belongs to no class.
const PORTS: [u16; 3] = [5_001, 5_002, 7_000];
const DOWN: Direction = Direction::Download;
const ID: PlanId = PlanId(1);

/// A plan of 2 Mbit/s with a class for each of the first `ports` ports, and one for other packets.
fn divided(ports: usize, queues: u8) -> PlanSpec {
    let class = |(at, port): (usize, Option<u16>)| {
        let (transport, side) = (None, Side::Remote);
        let port = port.map(|port| PortMatch { transport, side, first: port, last: port });
        Class {
            name: format!("class-{at}"),
            weight: 1 + at as u16,
            matches: port.into_iter().map(Criterion::Port).collect(),
            share: Share::Flows(if at == 0 { 1 } else { queues }),
        }
    };
    let all = PORTS.into_iter().take(ports).map(Some).chain([None]);
    PlanSpec {
        rate: Rate::mbit(2),
        rtt_max: Span::millis(20),
        signal: Signal::Soft,
        share: Share::Weighted(all.enumerate().map(class).collect()),
    }
}

/// All kinds of plans, with the number of their classes.
fn plans() -> Vec<(Plan, Option<Bundle>, usize)> {
    let of = |ports, queues| (Plan::new(&divided(ports, queues)).unwrap(), None, ports + 1);
    let spec = divided(2, 4);
    let plan = Plan::new(&spec).unwrap();
    let (free, stunts) = ("class-0".to_owned(), "class-1".to_owned());
    let bundle = BundleSpec { free, target: Rate::kbit(800), stunts };
    let bundle = Bundle::new(&bundle, &spec, &plan).unwrap();
    vec![
        (flat(Rate::mbit(2), 1, Signal::Soft), None, 1),
        (flat(Rate::mbit(2), 16, Signal::Hard), None, 1),
        of(1, 1),
        of(2, 1),
        of(1, 8),
        of(2, 5),
        of(2, 20),
        (plan, Some(bundle), 3),
    ]
}

fn set(police: &mut Police, id: PlanId, (plan, bundle, _): &(Plan, Option<Bundle>, usize)) {
    let algorithm = match bundle {
        Some(bundle) => Algorithm::Bundled(plan, bundle),
        None => Algorithm::Phantom(plan),
    };
    police.set_plan(id, &algorithm).unwrap();
}

fn alice(plan: PlanId) -> SubscriberSpec {
    let addresses = vec!["192.0.2.1/32".parse().unwrap()].into();
    SubscriberSpec { addresses, download: Some(plan), upload: None }
}

/// Sends a packet of the class, and counts it by its verdict.
fn send(trial: &Trial, random: &mut Random, now: u64, class: usize, counted: &mut Counters) {
    let ports = (PORTS[class], 6_000 + random.below(40) as u16);
    let length = 60 + random.below(1_455) as usize;
    let ecn = u8::from(random.one_in(2));
    let wire = Wire { ports, length, ecn, ..Wire::udp("203.0.113.7", "192.0.2.1") };
    let frame = Frame { bytes: &wire.bytes(), ..Frame::default() };
    let hook = [Hook::Xdp, Hook::TcxEgress][random.below(2) as usize];
    let now = fairweir_core::units::Time::from_nanos(now);
    match trial.run(hook, &frame, now, 1).unwrap().verdict {
        Verdict::Drop => counted.dropped_packets += 1,
        verdict => {
            counted.passed += Bytes::new(length as u64);
            counted.marked_packets += u64::from(verdict == Verdict::Mark);
        }
    }
}

fn by_class(police: &Police, id: SubscriberId) -> Vec<Counters> {
    let mut counters = police.counters_by_class(id, DOWN).unwrap();
    counters.resize(64, Counters::default());
    let sum = counters.iter().fold(Counters::default(), |sum, one| sum + *one);
    assert_eq!(sum, police.counters(id, DOWN).unwrap());
    counters
}

#[test]
fn classes_are_counted_to_the_byte_whatever_becomes_of_the_plan() {
    if !privileged() {
        return;
    }
    let plans = plans();
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let trial = police.trial(DOWN, true, 0).unwrap();
    let mut random = Random(11);
    let mut now = 5_000_000_000;
    let mut at = 0;
    set(&mut police, ID, &plans[at]);
    let id = police.add(&alice(ID)).unwrap();
    let mut wanted = vec![Counters::default(); 64];
    for round in 0..120 {
        let classes = plans[at].2;
        for _ in 0..400 {
            now += random.below(4_000_000);
            // The first class of a plan belongs to the first port.
            let class = random.below(3) as usize;
            let counted = &mut wanted[class.min(classes - 1)];
            send(&trial, &mut random, now, class, counted);
        }
        assert_eq!(by_class(&police, id), wanted, "round {round}, plan {at}");
        at = random.below(plans.len() as u64) as usize;
        // Either the plan itself changes, or the subscriber gets another plan.
        let next = PlanId(if round % 2 == 0 { 1 } else { 2 + at as u16 });
        set(&mut police, next, &plans[at]);
        police.change(id, &alice(next)).unwrap();
        let mut told = Vec::new();
        police
            .counters_by_class_all(DOWN, &mut |id, counters| told.push((id, counters.to_vec())))
            .unwrap();
        told[0].1.resize(64, Counters::default());
        assert_eq!(told, [(id, wanted.clone())]);
    }
    assert!(
        wanted[..3].iter().all(|one| one.dropped_packets > 0 && one.marked_packets > 0),
        "{wanted:?}"
    );
    let mut left = police.remove(id).unwrap();
    left[0].resize(64, Counters::default());
    assert_eq!(left, [wanted, Vec::new()]);
    // The removed subscriber's slots, tallies included, are empty for the next one.
    thread::sleep(std::time::Duration::from_millis(1_100));
    for plan in &plans {
        set(&mut police, ID, plan);
        let id = police.add(&alice(ID)).unwrap();
        assert_eq!(by_class(&police, id), vec![Counters::default(); 64]);
        police.remove(id).unwrap();
    }
}

#[test]
fn two_cpus_and_a_plan_that_changes_lose_no_packet_of_a_class() {
    if !privileged() {
        return;
    }
    let plans = [divided(2, 5), divided(1, 14)].map(|spec| (Plan::new(&spec).unwrap(), None, 0));
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    set(&mut police, ID, &plans[0]);
    let id = police.add(&alice(ID)).unwrap();
    let trials = [0, 1].map(|_| police.trial(DOWN, true, 0).unwrap());
    let is_done = AtomicBool::new(false);
    let (counted, changes) = thread::scope(|scope| {
        let senders = trials.iter().enumerate().map(|(nth, trial)| {
            scope.spawn(move || {
                let mut random = Random(nth as u64);
                let mut counted = [Counters::default(); 3];
                for at in 0..40_000 {
                    let class = random.below(3) as usize;
                    let now = 5_000_000_000 + at * 2_000_000;
                    send(trial, &mut random, now, class, &mut counted[class]);
                }
                counted
            })
        });
        let senders: Vec<_> = senders.collect();
        let changer = scope.spawn(|| {
            let mut changes = 0;
            while !is_done.load(Ordering::Relaxed) {
                changes += 1;
                set(&mut police, ID, &plans[changes % 2]);
                thread::sleep(std::time::Duration::from_millis(1));
            }
            changes
        });
        let counted: Vec<_> = senders.into_iter().flat_map(|one| one.join().unwrap()).collect();
        is_done.store(true, Ordering::Relaxed);
        (counted, changer.join().unwrap())
    });
    assert!(changes > 100, "{changes} changes are no disturbance");
    let sum = counted.into_iter().fold(Counters::default(), |sum, one| sum + one);
    let counters = by_class(&police, id);
    let kept = counters.iter().fold(Counters::default(), |sum, one| sum + *one);
    assert_eq!(kept.dropped_packets, sum.dropped_packets);
    // A packet that meets another change on its second try passes, and counts for no subscriber.
    let missing = sum.passed.as_u64() - kept.passed.as_u64();
    assert!(missing <= 10 * 1_514, "{missing} bytes of {}", sum.passed);
    assert!(counters[..3].iter().all(|one| one.passed > Bytes::new(1_000_000)), "{counters:?}");
    assert!(counters[3..].iter().all(|one| *one == Counters::default()));
}
