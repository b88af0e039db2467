//! As `police_model`, for subscribers whose clients divide their downloads: the same flows are bound to the same
//! classes, and passed packets have no marks. Weights change, and agreements begin and end, while packets flow.

use std::net::IpAddr;

use fairweir_core::agreement::bindings::Bindings;
use fairweir_core::agreement::{Classes, TOGETHER_MAX, Together, WEIGHT_MAX, class_of};
use fairweir_core::phantom::aggregate::{Aggregate, decide};
use fairweir_core::phantom::{Arrival, Plan, PlanSpec, Share, Signal, Verdict};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::police::{
    Algorithm, Direction, Frame, Hook, Police, PoliceSpec, SubscriberId, SubscriberSpec, Trial,
};
use fairweir_testing::{privileged, share};

use crate::common::frames::Random;
use crate::police_model::{PLAN, SUBSCRIBER, SUBSCRIBER_6, flow_of, gap, packet, state_bytes};

/// Packets between two changes of weights, plans or clients.
const PACKETS: u64 = 2_500;

#[derive(Debug, Default)]
struct Counts {
    bound: u64,
    /// Downloads in a class to which their flow is bound.
    of_bound: u64,
    dropped: u64,
    /// Passed without the mark that they came with.
    unmarked: u64,
    refused: u64,
    replaced: u64,
    changes: u64,
}

/// A kernel's policer with one subscriber, and its model.
struct Pair {
    police: Police,
    /// Of downloads and of uploads.
    trials: [Trial; 2],
    id: SubscriberId,
    /// The subscriber's plan, and the plan of its downloads.
    plans: [Plan; 2],
    rate: Rate,
    /// Of downloads and of uploads.
    models: [Aggregate; 2],
    /// The client's classes and bindings.
    client: Option<(Classes, Bindings)>,
    random: Random,
    now: u64,
    counts: Counts,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let trials = [Direction::Download, Direction::Upload]
            .map(|direction| police.trial(direction, true, 0).unwrap());
        let mut random = Random(seed);
        let (rate, base) = plan(&mut random);
        let id = subscriber(&mut police, &base);
        let models = [(); 2].map(|()| Aggregate::new(&base));
        let plans = [base.clone(), base];
        let (counts, now) = (Counts::default(), 1 << 40);
        Pair { police, trials, id, plans, rate, models, client: None, random, now, counts }
    }

    /// Another subscriber, with another plan and no client.
    fn replace_subscriber(&mut self) {
        let (rate, base) = plan(&mut self.random);
        self.police.remove_all().unwrap();
        self.id = subscriber(&mut self.police, &base);
        self.models = [(); 2].map(|()| Aggregate::new(&base));
        (self.rate, self.plans, self.client) = (rate, [base.clone(), base], None);
    }

    /// Another rate for the same subscriber: it has no client until one asks again.
    fn change_plan(&mut self) {
        let rate = rate(&mut self.random);
        let base = self.plans[0].clone().for_clients(rate).unwrap();
        self.police.set_plan(PLAN, &Algorithm::Phantom(&base)).unwrap();
        if self.client.take().is_some() {
            self.models[0] = Aggregate::new(&base);
        }
        (self.rate, self.plans) = (rate, [base.clone(), base]);
    }

    /// A client asks, or asks for something else: its bindings stay. The same weights again change nothing.
    fn ask(&mut self, classes: Classes) {
        let plan = self.plans[0].divided(&classes);
        self.police.divide(self.id, &plan).unwrap();
        let before = self.client.take();
        if before.as_ref().is_none_or(|(before, _)| *before != classes) {
            self.models[0] = Aggregate::new(&plan);
        }
        let bindings = before.map(|(_, bindings)| bindings).unwrap_or_default();
        (self.client, self.plans[1]) = (Some((classes, bindings)), plan);
    }

    fn end(&mut self) {
        self.police.undivide(self.id).unwrap();
        if self.client.take().is_some() {
            self.plans[1] = self.plans[0].clone();
            self.models[0] = Aggregate::new(&self.plans[0]);
        }
    }

    fn change(&mut self) {
        self.counts.changes += 1;
        match (self.random.below(16), self.client.clone()) {
            (0, _) => self.replace_subscriber(),
            (1, _) => self.change_plan(),
            (2 | 3, _) => self.end(),
            (4 | 5, Some((classes, _))) => self.ask(classes),
            // Another client begins without bindings.
            (6 | 7, Some((classes, _))) => {
                self.end();
                self.ask(classes);
            }
            _ => {
                let classes = classes(&mut self.random);
                self.ask(classes);
            }
        }
    }

    /// A packet, after a time that is `slowness` times as long as usual. In a flood most are marks of new flows.
    fn play(&mut self, is_flood: bool, slowness: u64) {
        let random = &mut self.random;
        self.now += gap(random, self.rate, 9) * slowness;
        let ports = if is_flood { 60_000 } else { 40 };
        let at = Time::from_nanos(self.now);
        let mut wire = packet(random);
        wire.fragment = 0;
        wire.ports = (wire.ports.0, 3_000 + random.below(ports) as u16);
        let is_upload = random.one_in(3) != is_flood;
        let mut flow = flow_of(&wire);
        if is_upload {
            (wire.source, wire.destination) = (wire.destination, wire.source);
            wire.ports = (wire.ports.1, wire.ports.0);
            wire.dscp = random.below(64) as u8;
            if is_flood || random.one_in(2) {
                wire.dscp |= 3;
            }
        } else if random.one_in(9) {
            // A mark from the Internet.
            wire.dscp = 7;
        }
        flow.dscp = wire.dscp;
        let hooks = [Hook::Xdp, Hook::TcxIngress];
        let hook = hooks[random.below(2) as usize];
        let mut choice = self.plans[1].choice_default;
        let mut is_marked = false;
        if let Some((classes, bindings)) = &mut self.client {
            if let Some(class) = class_of(wire.dscp).filter(|_| is_upload) {
                is_marked = true;
                let vacant = bindings.words().iter().filter(|word| **word == 0).count();
                let was_bound = bindings.class_of(flow.hash()).is_some();
                let has_room = bindings.bind(flow.hash(), class, at);
                let is_new = has_room && !was_bound;
                let left = bindings.words().iter().filter(|word| **word == 0).count();
                self.counts.bound += 1;
                self.counts.refused += u64::from(!has_room);
                self.counts.replaced += u64::from(is_new && left == vacant);
            }
            let bound = bindings.class_of(flow.hash()).map(usize::from);
            if let Some(class) = bound.filter(|class| *class < classes.weights().len()) {
                choice = class;
                self.counts.of_bound += u64::from(!is_upload);
            }
        }
        let (plan, model) = match is_upload {
            true => (&self.plans[0], &mut self.models[1]),
            false => (&self.plans[1], &mut self.models[0]),
        };
        let choice = if is_upload { plan.choice_default } else { choice };
        let bytes = wire.bytes();
        let arrival = Arrival {
            leaf: plan.leaf_in(choice, &flow),
            flow: flow.hash(),
            size: Bytes::new(bytes.len() as u64),
            can_be_marked: wire.ecn != 0,
        };
        let verdict = decide(plan, &mut model.state(), at, arrival);
        let frame = Frame { bytes: &bytes, ..Frame::default() };
        let outcome = self.trials[usize::from(is_upload)].run(hook, &frame, at, 1).unwrap();
        let classes = self.client.as_ref().map(|(classes, _)| classes);
        let context = || format!("{classes:?} at {at:?}: {wire:?}");
        if verdict == Verdict::Drop {
            assert_eq!(outcome.verdict, Verdict::Drop, "{}", context());
            self.counts.dropped += 1;
            return;
        }
        let mut wanted = wire.clone();
        if is_marked {
            wanted.dscp = 0;
            self.counts.unmarked += 1;
        }
        if verdict == Verdict::Mark {
            wanted.ecn = 3;
        }
        assert_eq!(outcome.bytes, wanted.bytes(), "{}", context());
    }

    fn assert_same_state(&mut self) {
        let bound = self.police.bindings(self.id).unwrap();
        let context = format!("{:?}", self.client.as_ref().map(|(classes, _)| classes));
        assert_eq!(bound.is_some(), self.client.is_some(), "{context}");
        if let (Some(bound), Some((_, bindings))) = (bound, &self.client) {
            assert!(bound.words == bindings.words(), "{context}: other bindings");
            assert_eq!(bound.marked, *bindings.marked(), "{context}");
            let now = Time::from_nanos(self.now);
            assert_eq!(self.police.seen(self.id, now), Some(bound.seen(now)), "{context}");
            assert_eq!(bound.refused, bindings.refused(), "{context}");
        }
        for (direction, model) in
            [Direction::Download, Direction::Upload].into_iter().zip(&mut self.models)
        {
            let kernel = self.police.state(self.id, direction).unwrap();
            assert!(
                kernel == state_bytes(&model.state(), 4, 16),
                "{context}: another {direction:?}"
            );
        }
    }
}

fn subscriber(police: &mut Police, base: &Plan) -> SubscriberId {
    police.set_plan(PLAN, &Algorithm::Phantom(base)).unwrap();
    let addresses = [SUBSCRIBER, SUBSCRIBER_6].map(|text| text.parse::<IpAddr>().unwrap().into());
    let addresses = addresses.to_vec().into();
    police.add(&SubscriberSpec { addresses, download: Some(PLAN), upload: Some(PLAN) }).unwrap()
}

fn rate(random: &mut Random) -> Rate {
    Rate::kbit([1_000, 8_000, 20_000, 100_000][random.below(4) as usize])
}

/// A plan for clients, and its rate.
fn plan(random: &mut Random) -> (Rate, Plan) {
    let (rate, rtt_max) = (rate(random), Span::millis(5 + random.below(95)));
    let signal = if random.one_in(3) { Signal::Hard } else { Signal::Soft };
    let share = Share::Flows(1 + random.below(16) as u8);
    let plan = Plan::new(&PlanSpec { rate, rtt_max, signal, share }).unwrap();
    (rate, plan.for_clients(rate).unwrap())
}

fn classes(random: &mut Random) -> Classes {
    let count = 1 + random.below(16);
    let most = [3, 10, u64::from(WEIGHT_MAX)][random.below(3) as usize];
    let mut weight = || 1 + random.below(most) as u16;
    let weights = (0..count).map(|_| weight()).collect();
    let runs = random.below(TOGETHER_MAX as u64 + 1);
    let classes = Classes::new(weights, random.below(count) as u8).unwrap();
    let mut together = Vec::new();
    for _ in 0..runs {
        let (first, most) = (random.below(count) as u8, count / 2 + 1);
        let count = 1 + random.below(most) as u8;
        together.push(Together { weight: 1 + random.below(256) as u16, first, count });
    }
    together.sort_by_key(|one| one.first);
    classes.clone().with(together).unwrap_or(classes)
}

fn play(seed: u64, packets: u64) {
    let _share = share();
    let mut pair = Pair::new(seed);
    for _ in 0..packets / PACKETS {
        pair.change();
        let is_flood = pair.random.one_in(5);
        // Slowly enough for bindings to become idle.
        let slowness = if pair.random.one_in(3) { 30 } else { 1 };
        for _ in 0..PACKETS {
            pair.play(is_flood, slowness);
        }
        pair.assert_same_state();
    }
    let counts = &pair.counts;
    println!("seed {seed}: {counts:?}");
    let Counts { bound, of_bound, dropped, unmarked, refused, replaced, .. } = counts;
    let tame = [(bound, 10), (of_bound, 100), (dropped, 20), (unmarked, 10)];
    assert!(tame.iter().all(|(count, part)| **count > packets / part), "{counts:?} is too tame");
    assert!(*refused > packets / 4_000 && *replaced > packets / 4_000, "{counts:?} is too tame");
}

#[test]
fn clients_get_the_specifications_verdicts_and_bindings() {
    if privileged() {
        play(5, 40_000);
    }
}

/// As the test above, with a million packets.
#[test]
#[ignore = "long: 70 s"]
fn clients_get_the_specifications_verdicts_and_bindings_a_million_times() {
    if privileged() {
        (1..=4).for_each(|seed| play(seed, 250_000));
    }
}
