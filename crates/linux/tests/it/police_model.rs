//! The kernel's policer against the specification, `fairweir_core::phantom`: the same packets at the
//! same times get the same verdicts and leave the same state.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::packet::{Side, Transport};
use fairweir_core::phantom::aggregate::{
    Aggregate, BundleState, Counts, State, decide, decide_in_bundle,
};
use fairweir_core::phantom::segment::Segment;
use fairweir_core::phantom::{
    Arrival, Bundle, BundleSpec, Class, Criterion, Flow, Plan, PlanSpec, Share, Signal, Verdict,
};
use fairweir_core::policy::PortMatch;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::police::{
    Algorithm, Direction, Frame, Hook, PlanId, Police, PoliceSpec, SegmentId, SubscriberId,
    SubscriberSpec, Trial,
};
use fairweir_testing::{privileged, share};

use fairweir_linux::{link, monotonic_now};

use crate::common::frames::{Random, TCP, UDP, Wire};
use crate::common::path::{Path, PathSpec, packet_socket, receive};

const HEAD_BYTES: usize = 32;
pub(crate) const SUBSCRIBER: &str = "192.0.2.1";
pub(crate) const SUBSCRIBER_6: &str = "2001:db8::1";
/// The DSCP of a bundle's free class.
const FREE_DSCP: u8 = 46;
pub(crate) const PLAN: PlanId = PlanId(1);

fn class(name: &str, weight: u16, matches: Vec<Criterion>, share: Share) -> Class {
    Class { name: name.to_owned(), weight, matches, share }
}

fn port(first: u16, last: u16) -> Criterion {
    Criterion::Port(PortMatch { transport: Some(Transport::Udp), side: Side::Remote, first, last })
}

/// Trees: flat, weighted, by priority, and nested combinations, three deep.
fn shares() -> Vec<(&'static str, Share)> {
    let voice = || vec![Criterion::Dscp(46), port(5_060, 5_063)];
    let far = || vec![Criterion::Ip("198.51.100.0/25".parse().unwrap())];
    let flows = Share::Flows;
    let weighted = Share::Weighted(vec![
        class("a", 7, voice(), flows(1)),
        class("b", 200, far(), flows(1)),
        class("c", 1, vec![], flows(2)),
    ]);
    let priority = Share::Priority(vec![
        class("first", 1, voice(), flows(1)),
        class("second", 1, far(), flows(4)),
        class("rest", 1, vec![], flows(8)),
    ]);
    let nested = Share::Weighted(vec![
        class("voice", 3, voice(), flows(1)),
        class(
            "family",
            5,
            vec![],
            Share::Priority(vec![
                class("work", 1, far(), flows(2)),
                class("rest", 1, vec![], flows(3)),
            ]),
        ),
    ]);
    let deep = Share::Priority(vec![
        class("voice", 1, voice(), flows(1)),
        class(
            "others",
            1,
            vec![],
            Share::Weighted(vec![
                class("far", 9, far(), flows(16)),
                class("rest", 4, vec![], flows(40)),
            ]),
        ),
    ]);
    vec![
        ("1 queue", flows(1)),
        ("3 queues", flows(3)),
        ("4 queues", flows(4)),
        ("16 queues", flows(16)),
        ("64 queues", flows(64)),
        ("weighted", weighted),
        ("priority", priority),
        ("weighted over priority", nested),
        ("priority over weighted", deep),
    ]
}

/// A kernel's policer, whose programs take a second to load.
struct Kernel {
    police: Police,
    trial: Trial,
}

/// A subscriber of the kernel's policer, with its model.
struct Pair<'k> {
    kernel: &'k mut Kernel,
    plan: Plan,
    id: SubscriberId,
    model: Aggregate,
    bundle: Option<(Bundle, BundleState)>,
}

impl Kernel {
    fn new() -> Kernel {
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let trial = police.trial(Direction::Download, true, 0).unwrap();
        Kernel { police, trial }
    }

    /// A new subscriber, the only one, with an empty state.
    fn subscriber(&mut self, plan: Plan, bundle: Option<Bundle>) -> Pair<'_> {
        self.police.remove_all().unwrap();
        let algorithm = match &bundle {
            Some(bundle) => Algorithm::Bundled(&plan, bundle),
            None => Algorithm::Phantom(&plan),
        };
        self.police.set_plan(PLAN, &algorithm).unwrap();
        let addresses =
            [SUBSCRIBER, SUBSCRIBER_6].map(|text| text.parse::<IpAddr>().unwrap().into());
        let addresses = addresses.to_vec().into();
        let spec = SubscriberSpec { addresses, download: Some(PLAN), upload: None };
        let id = self.police.add(&spec).unwrap();
        let model = Aggregate::new(&plan);
        let bundle = bundle.map(|bundle| (bundle.clone(), BundleState::new(&bundle)));
        Pair { kernel: self, plan, id, model, bundle }
    }
}

impl Pair<'_> {
    /// The verdicts of the kernel and of the model.
    fn judge(&mut self, hook: Hook, bytes: &[u8], flow: &Flow, ecn: u8, now: Time) -> [Verdict; 2] {
        let frame = Frame { bytes, ..Frame::default() };
        let kernel = self.kernel.trial.run(hook, &frame, now, 1).unwrap().verdict;
        let arrival = Arrival {
            leaf: self.plan.leaf_of(flow),
            flow: flow.hash(),
            size: Bytes::new(bytes.len() as u64),
            can_be_marked: ecn != 0,
        };
        let Pair { plan, model, .. } = self;
        let model = match &mut self.bundle {
            Some((bundle, lent)) => {
                decide_in_bundle(plan, bundle, &mut model.state(), lent, now, arrival)
            }
            None => decide(plan, &mut model.state(), now, arrival),
        };
        // A packet that is already marked does not change.
        let seen = if model == Verdict::Mark && ecn == 3 { Verdict::Pass } else { model };
        [kernel, seen]
    }

    fn assert_same_state(&mut self, context: &str) {
        let kernel = self.kernel.police.state(self.id, Direction::Download).unwrap();
        let (inners, leaves) = match kernel.len() {
            120 => (1, 1),
            384 => (4, 4),
            768 => (4, 16),
            2_360 | 2_752 => (5, 64),
            bytes => panic!("no size class has {bytes} bytes"),
        };
        let mut model = state_bytes(&self.model.state(), inners, leaves);
        if let Some((_, lent)) = &mut self.bundle {
            model.extend(lent_bytes(lent));
        }
        assert!(kernel == model, "{context}: the kernel has {kernel:?}, the model {model:?}");
    }
}

/// The model's state in the form of a slot.
pub(crate) fn state_bytes(state: &State<'_>, inners: usize, leaves: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(state.head.at.to_ne_bytes());
    bytes.extend(state.head.window_at.to_ne_bytes());
    bytes.extend(state.head.gate_at.to_ne_bytes());
    bytes.extend(state.head.window_bytes.to_ne_bytes());
    bytes.extend(state.head.spare.to_ne_bytes());
    for inner in &*state.inners {
        let words = [inner.v, inner.busy, inner.nearest, inner.finish, inner.seen];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(inner.v_window.to_ne_bytes());
        bytes.extend(inner.carry.to_ne_bytes());
        bytes.extend(inner.weight.to_ne_bytes());
        bytes.extend(inner.used.to_ne_bytes());
        bytes.extend(inner.used_last.to_ne_bytes());
    }
    bytes.resize(HEAD_BYTES + inners * 56, 0);
    for leaf in &*state.leaves {
        bytes.extend(leaf.finish.to_ne_bytes());
        let words = [leaf.accepted, leaf.magic, leaf.after, leaf.mark.0];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(leaf.flows.0.to_ne_bytes());
    }
    bytes.resize(HEAD_BYTES + inners * 56 + leaves * 32, 0);
    bytes
}

/// The state of a bundle in the form of a slot.
fn lent_bytes(lent: &mut BundleState) -> Vec<u8> {
    let mut bytes = lent.window_at.to_ne_bytes().to_vec();
    bytes.extend((lent.turn as u64).to_ne_bytes());
    bytes.extend(lent.lent.iter().flat_map(|bytes| bytes.to_ne_bytes()));
    bytes.resize(16 + 64 * 4, 0);
    bytes.extend(state_bytes(&lent.aim.state(), 1, 1));
    bytes
}

pub(crate) fn flow_of(wire: &Wire) -> Flow {
    let is_fragment = match wire.source {
        IpAddr::V4(_) => wire.fragment & 0x3fff != 0,
        IpAddr::V6(_) => wire.fragment != 0,
    };
    let has_ports = (wire.protocol == TCP || wire.protocol == UDP) && !is_fragment;
    Flow {
        remote: wire.source,
        local: wire.destination,
        protocol: wire.protocol,
        ports: if has_ports { wire.ports } else { (0, 0) },
        dscp: wire.dscp,
    }
}

/// A packet of one of forty flows, some of which are more frequent.
pub(crate) fn packet(random: &mut Random) -> Wire {
    let flow = random.below(40) * random.below(40) / 40;
    let remote = match flow % 3 {
        0 => "198.51.100.9",
        1 => "198.51.100.200",
        _ => "203.0.113.7",
    };
    let mut wire = Wire::udp(remote, SUBSCRIBER);
    wire.protocol = [TCP, UDP, 1][flow as usize % 7 % 3];
    wire.ports = (5_058 + flow as u16 % 8, 40_000 + flow as u16);
    wire.dscp = if flow.is_multiple_of(5) { 46 } else { 0 };
    wire.ecn = random.below(4) as u8;
    wire.fragment = if random.one_in(50) { 0x2000 } else { 0 };
    wire.length = if random.one_in(3) { 60 + random.below(1_400) } else { 1_514 } as usize;
    wire
}

/// The time until the next packet, at `load` thirds of the rate on average; sometimes a pause.
pub(crate) fn gap(random: &mut Random, rate: Rate, load: u64) -> u64 {
    let packet = rate.time_to_send(Bytes::new(1_200)).as_nanos();
    match random.below(8_000) {
        0 => 200_000_000 + random.below(100_000_000),
        1 => random.below(120_000_000_000),
        2..6 => random.below(100_000_000),
        6..4_000 => random.below(packet / 9),
        _ => random.below(packet * 4 * 3 / load),
    }
}

fn play(kernel: &mut Kernel, name: &str, spec: PlanSpec, seed: u64, packets: u64) -> [u64; 3] {
    let plan = Plan::new(&spec).unwrap();
    let context = format!("{name} at {}, {}, seed {seed}", spec.rate, spec.signal);
    play_on(&mut kernel.subscriber(plan, None), &context, spec.rate, seed, packets)
}

/// As `play`, for a subscriber without packets since 2⁴² · (seed / 100) ns.
fn play_on(pair: &mut Pair<'_>, context: &str, rate: Rate, seed: u64, packets: u64) -> [u64; 3] {
    let mut random = Random(seed);
    let mut now = ((seed / 100) << 42) + 1_000_000_000 + random.below(1 << 40);
    let mut seen = [0; 3];
    let mut load = 6;
    for n in 0..packets {
        if random.one_in(1_000) {
            load = [1, 4, 6, 9, 30][random.below(5) as usize];
        }
        now += gap(&mut random, rate, load);
        // Another CPU's packet may have read the clock earlier.
        let at = if random.one_in(20) { now - random.below(3_000) } else { now };
        let hook = if random.one_in(2) { Hook::Xdp } else { Hook::TcxEgress };
        let mut wire = packet(&mut random);
        if pair.bundle.is_some() && random.one_in(3) {
            wire.dscp = FREE_DSCP;
        }
        let (flow, at) = (flow_of(&wire), Time::from_nanos(at));
        let [kernel, model] = pair.judge(hook, &wire.bytes(), &flow, wire.ecn, at);
        if kernel != model {
            pair.assert_same_state(context);
        }
        assert_eq!(kernel, model, "{context}: packet {n} at {at:?}: {wire:?}");
        seen[kernel as usize] += 1;
        if n % 500 == 0 {
            pair.assert_same_state(&format!("{context}: packet {n}"));
        }
    }
    pair.assert_same_state(context);
    seen
}

/// A free class with one queue, stunts with several, and others: at the root, and below it.
fn bundled_shares() -> Vec<(&'static str, Share)> {
    let far = || vec![Criterion::Ip("198.51.100.0/25".parse().unwrap())];
    let free = || class("free", 2, vec![Criterion::Dscp(FREE_DSCP)], Share::Flows(1));
    let stunts = |queues| class("stunts", 5, far(), Share::Flows(queues));
    let rest = |queues| class("rest", 4, vec![], Share::Flows(queues));
    let ranked = Share::Priority(vec![
        class("first", 1, vec![port(5_060, 5_063)], Share::Flows(1)),
        class("later", 1, vec![], Share::Flows(2)),
    ]);
    let inner = Share::Weighted(vec![free(), stunts(6), rest(2)]);
    let inner = class("inner", 9, vec![], inner);
    let outer = class("outer", 3, vec![port(5_058, 5_060)], Share::Flows(2));
    vec![
        ("one stunt", Share::Weighted(vec![free(), stunts(1), rest(1)])),
        ("many stunts", Share::Weighted(vec![stunts(12), rest(16), free()])),
        ("beside priority", {
            let ranked = class("ranked", 4, vec![], ranked);
            Share::Weighted(vec![free(), stunts(7), ranked])
        }),
        ("below another", Share::Weighted(vec![inner, outer])),
    ]
}

#[test]
fn random_packets_of_bundles_get_the_specifications_verdicts() {
    if !privileged() {
        return;
    }
    let _share = share();
    let mut kernel = Kernel::new();
    let (mut all, mut refused_all) = ([0; 3], 0);
    for (nth, (name, share)) in bundled_shares().into_iter().enumerate() {
        for signal in [Signal::Hard, Signal::Soft] {
            let rate = [Rate::mbit(20), Rate::mbit(60)][nth % 2];
            let spec = PlanSpec { rate, rtt_max: Span::millis(20), signal, share: share.clone() };
            let plan = Plan::new(&spec).unwrap();
            let target = rate.scale(if signal == Signal::Soft { 30 } else { 60 }, 100);
            let (free, stunts) = ("free".to_owned(), "stunts".to_owned());
            let bundle = Bundle::new(&BundleSpec { free, target, stunts }, &spec, &plan).unwrap();
            let context = format!("{name} at {rate}, {signal}");
            let before = kernel.police.totals(PLAN, Direction::Download).unwrap_or_default();
            let mut pair = kernel.subscriber(plan, Some(bundle));
            let seen = play_on(&mut pair, &context, rate, 70 + nth as u64, 20_000);
            // Repeats this in a segment that gives less than the plan.
            let slower = PlanSpec { rate: rate.scale(2, 3), ..spec.clone() };
            pair.plan.pace = Plan::new(&slower).unwrap().pace;
            // Repeats this in a segment whose clock has not run.
            let id = SegmentId(2 * nth as u16 + u16::from(signal == Signal::Soft));
            let pace = pair.plan.pace;
            let police = &mut pair.kernel.police;
            police.set_segment(id, Rate::mbit(10_000));
            police.join(pair.id, Direction::Download, id, &pace).unwrap();
            police.extend(id, Time::from_nanos(u64::MAX >> 1));
            let more = play_on(&mut pair, &context, rate, 100 + nth as u64, 10_000);
            let seen: [u64; 3] = std::array::from_fn(|at| seen[at] + more[at]);
            let counts = pair.bundle.as_ref().unwrap().1.counts();
            let totals = kernel.police.totals(PLAN, Direction::Download).unwrap();
            println!("{context}: {seen:?} passed, marked, dropped, {counts:?}");
            let mine = [
                totals.delegated_packets - before.delegated_packets,
                totals.delegated.as_u64() - before.delegated.as_u64(),
                totals.refused_packets - before.refused_packets,
            ];
            let Counts { delegated, delegated_bytes, refused } = counts;
            assert_eq!(mine, [delegated, delegated_bytes.as_u64(), refused], "{context}");
            assert!(delegated > 100, "{context}: {counts:?} is too tame");
            all = std::array::from_fn(|at| all[at] + seen[at]);
            refused_all += refused;
        }
    }
    assert!(all[0] > 10_000 && all[1] > 30 && all[2] > 1_000, "{all:?} is too tame");
    assert!(refused_all > 1_000, "{refused_all} refused");
}

#[test]
fn random_packets_get_the_specifications_verdicts() {
    if !privileged() {
        return;
    }
    let _share = share();
    let mut kernel = Kernel::new();
    let mut all = [0; 3];
    for (nth, (name, share)) in shares().into_iter().enumerate() {
        for signal in [Signal::Hard, Signal::Soft] {
            let rates = [(Rate::kbit(1_500), 20), (Rate::mbit(20), 40), (Rate::mbit(60), 5)];
            let (rate, rtt) = rates[nth % 3];
            let rtt_max = Span::millis(rtt);
            let spec = PlanSpec { rate, rtt_max, signal, share: share.clone() };
            let seen = play(&mut kernel, name, spec, 7 + nth as u64, 30_000);
            println!("{name} {signal}: {seen:?} passed, marked, dropped");
            assert!(seen[0] > 1_000 && seen[2] > 100, "{name} {signal}: {seen:?} is too tame");
            all = std::array::from_fn(|at| all[at] + seen[at]);
        }
    }
    assert!(all[1] > 100, "{all:?}: packets are marked too");
}

/// A bundle comes, changes and goes two thousand times; the kernel has places for three thousand plans.
#[test]
fn a_bundle_that_changes_often_takes_no_places() {
    if !privileged() {
        return;
    }
    let _share = share();
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let (_, share) = bundled_shares().remove(0);
    let (rate, rtt_max, signal) = (Rate::mbit(20), Span::millis(20), Signal::Soft);
    let spec = PlanSpec { rate, rtt_max, signal, share };
    let plan = Plan::new(&spec).unwrap();
    for nth in 0..2_000 {
        let (free, stunts) = ("free".to_owned(), "stunts".to_owned());
        let target = Rate::kbit(1_000 + nth);
        let bundle = Bundle::new(&BundleSpec { free, target, stunts }, &spec, &plan).unwrap();
        police.set_plan(PLAN, &Algorithm::Bundled(&plan, &bundle)).unwrap();
        if nth % 100 == 0 {
            police.set_plan(PLAN, &Algorithm::Phantom(&plan)).unwrap();
        }
    }
    police.remove_plan(PLAN).unwrap();
}

/// The flow and ECN bits of a TCP segment with a plain header to the home, as on Ethernet.
fn parse(bytes: &[u8]) -> Option<(Flow, u8)> {
    let octets = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
    let long = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap();
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let is_ip4 = bytes.len() >= 54 && bytes[12..15] == [8, 0, 0x45] && bytes[23] == TCP;
    let is_ip6 = bytes.len() >= 74 && bytes[12..14] == [0x86, 0xdd] && bytes[20] == TCP;
    let (remote, local, transport, class): (IpAddr, IpAddr, _, _) = match (is_ip4, is_ip6) {
        (true, _) => (octets(26).into(), octets(30).into(), 34, bytes[15]),
        (_, true) => (long(22).into(), long(38).into(), 54, bytes[14] << 4 | bytes[15] >> 4),
        _ => return None,
    };
    let is_home = [SUBSCRIBER, SUBSCRIBER_6].iter().any(|home| local.to_string() == *home);
    let ports = (port(transport), port(transport + 2));
    let flow = Flow { remote, local, protocol: TCP, ports, dscp: class >> 2 };
    is_home.then_some((flow, class & 3))
}

/// The frames that arrive at the home, with times, while four downloads run through the policer.
fn record() -> Vec<(Time, Vec<u8>)> {
    let rtt = Duration::from_millis(20);
    let path = Path::new(PathSpec { rtt, rate: Rate::mbit(200), queue_bytes: 500_000 });
    let pair = &path.pair;
    let _police = pair.home.run(|| crate::common::police("wan", Hook::TcxIngress));
    // The tap sees frames before the policer does.
    let tap = pair.home.run(|| packet_socket(link::index("wan").unwrap()));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            let mut frames = Vec::new();
            let mut buffer = [0; 2_048];
            while !is_done.load(Ordering::Relaxed) {
                while let Some(bytes) = receive(&tap, &mut buffer) {
                    frames.push((monotonic_now(), bytes.to_vec()));
                }
                thread::sleep(Duration::from_micros(100));
            }
            frames
        });
        let addresses = ["192.0.2.2", "2001:db8::2", "192.0.2.2", "192.0.2.3"];
        let mut streams = addresses.map(|address| pair.download(address));
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end {
            streams.iter_mut().for_each(|stream| {
                crate::common::read_for(stream, Duration::from_millis(1));
            });
        }
        is_done.store(true, Ordering::Relaxed);
        recorder.join().unwrap()
    })
}

#[test]
fn packets_of_real_tcp_get_the_specifications_verdicts() {
    if !privileged() {
        return;
    }
    let frames = record();
    let mut kernel = Kernel::new();
    for hook in [Hook::Xdp, Hook::TcxIngress] {
        let mut pair = kernel.subscriber(crate::common::plan(Rate::mbit(10)), None);
        let mut seen = [0; 3];
        for (at, bytes) in &frames {
            let Some((flow, ecn)) = parse(bytes) else { continue };
            let [kernel, model] = pair.judge(hook, bytes, &flow, ecn, *at);
            assert_eq!(kernel, model, "{hook:?}: {seen:?} before, at {at:?}: {flow:?}");
            seen[kernel as usize] += 1;
        }
        println!("{hook:?}: {seen:?} passed, marked, dropped");
        assert!(seen[0] > 2_000 && seen[2] > 0, "{hook:?}: {seen:?} is too tame");
        pair.assert_same_state("recorded");
    }
}

/// Floods of members with and without guarantees; after the last division the paces expire.
#[test]
fn members_of_a_segment_get_the_specifications_verdicts() {
    if !privileged() {
        return;
    }
    let _share = share();
    let (rate, capacity, id) = (Rate::mbit(20), Rate::mbit(30), SegmentId(7));
    let spec =
        PlanSpec { rate, rtt_max: Span::millis(100), signal: Signal::Soft, share: Share::Flows(4) };
    let plan = Plan::new(&spec).unwrap();
    let Kernel { mut police, trial } = Kernel::new();
    police.set_plan(PLAN, &Algorithm::Phantom(&plan)).unwrap();
    police.set_segment(id, capacity);
    let mut model = Segment::new(capacity);
    let members: Vec<(SubscriberId, IpAddr)> = (1..=4)
        .map(|nth| {
            let address = IpAddr::from([192, 0, 2, nth]);
            let addresses = vec![address.into()].into();
            let spec = SubscriberSpec { addresses, download: Some(PLAN), upload: None };
            let member = police.add(&spec).unwrap();
            police.join(member, Direction::Download, id, &plan.pace).unwrap();
            model.join(plan.clone(), rate);
            (member, address)
        })
        .collect();
    for (member, mbit) in [(0, 2), (1, 12)] {
        police.set_guarantee(members[member].0, Direction::Download, Rate::mbit(mbit)).unwrap();
        model.guarantee(member, Rate::mbit(mbit));
    }
    let mut random = Random(7);
    let (mut now, mut divide_at) = (Time::from_nanos(1 << 40), Time::ZERO);
    let mut counts = [0; 3];
    for nth in 0..40_000 {
        now = now + Span::micros(random.below(500));
        if now >= divide_at && nth < 25_000 {
            model.divide(now);
            divide_at = now + Span::millis(100);
            for (at, (member, _)) in members.iter().enumerate() {
                let (pace, until) = model.pace(at);
                police.set_pace(*member, Direction::Download, &pace).unwrap();
                police.extend(id, until);
            }
        }
        // The last member is idle for a while.
        let at = random.below(if nth < 10_000 { 3 } else { 4 }) as usize;
        let (member, address) = &members[at];
        let wire = Wire { destination: *address, ..packet(&mut random) };
        let bytes = wire.bytes();
        let flow = flow_of(&wire);
        let frame = Frame { bytes: &bytes, ..Frame::default() };
        let kernel = trial.run(Hook::Xdp, &frame, now, 1).unwrap().verdict;
        let arrival = Arrival {
            leaf: plan.leaf_of(&flow),
            flow: flow.hash(),
            size: Bytes::new(bytes.len() as u64),
            can_be_marked: wire.ecn != 0,
        };
        let refused = model.refused;
        let verdict = model.handle_packet(now, at, arrival);
        counts[match verdict {
            Verdict::Pass | Verdict::Mark => 0,
            Verdict::Drop if model.refused == refused => 1,
            Verdict::Drop => 2,
        }] += 1;
        let seen = if verdict == Verdict::Mark && wire.ecn == 3 { Verdict::Pass } else { verdict };
        assert_eq!(kernel, seen, "packet {nth} of {member:?}");
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
    let used = |(member, _): &(SubscriberId, IpAddr)| {
        police.used(*member, Direction::Download).unwrap().unwrap().refused_packets
    };
    assert_eq!(members.iter().map(used).sum::<u64>(), model.refused);
    let (member, _) = members[0];
    police.part(member, Direction::Download).unwrap();
    assert_eq!(police.used(member, Direction::Download).unwrap(), None);
}
