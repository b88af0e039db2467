use super::*;
use crate::share::Weight;
use crate::units::{Bytes, Time};

/// A coarse model of responsive senders behind a FIFO: rates grow by 15 % a tick up to demand and
/// ceil, and what does not fit into the link is cut from all in proportion.
struct Senders {
    capacity: Rate,
    demands: Vec<Rate>,
    rates: Vec<Rate>,
    now: Time,
    controller: Controller,
    enforced: Option<Allocation>,
    acts: Vec<Act>,
}

const ENDLESS: Rate = Rate::mbit(1_000);

impl Senders {
    fn new(controller: Controller, capacity: Rate, demands: &[Rate]) -> Senders {
        Senders {
            capacity,
            demands: demands.to_vec(),
            rates: vec![Rate::kbit(100); demands.len()],
            now: Time::ZERO,
            controller,
            enforced: None,
            acts: Vec::new(),
        }
    }

    fn tick(&mut self) {
        let offered: Vec<Rate> = (0..self.demands.len())
            .map(|i| {
                let ceil = self.enforced.as_ref().map_or(ENDLESS, |a| a.classes[i].ceil);
                let grown = self.rates[i].scale(115, 100) + Rate::kbit(50);
                grown.min(self.demands[i]).min(ceil)
            })
            .collect();
        let sum: Rate = offered.iter().copied().sum();
        self.rates = offered
            .iter()
            .map(|rate| {
                if sum > self.capacity {
                    rate.scale(self.capacity.as_bps(), sum.as_bps())
                } else {
                    *rate
                }
            })
            .collect();
        self.now = self.now + TICK;
        let groups = self.rates.iter().map(|&rate| GroupSample {
            received: rate * TICK,
            packets: (rate * TICK).as_u64().div_ceil(1_500),
            ..GroupSample::default()
        });
        let groups = groups.collect();
        let observation =
            Observation { at: self.now, interval: TICK, groups, ..Observation::default() };
        self.controller.handle_observation(&observation);
        while let Some(command) = self.controller.poll_command() {
            match command {
                Command::SetRates(allocation) => self.enforced = Some(allocation),
                Command::Release => self.enforced = None,
                Command::SetWindows(_) => {}
            }
        }
        self.acts.push(self.controller.decision().act);
        self.assert_invariants();
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 5 {
            self.tick();
        }
    }

    fn assert_invariants(&self) {
        let decision = self.controller.decision();
        if let Some(capacity) = decision.capacity {
            let shares: Rate = decision.groups.iter().map(|g| g.share).sum();
            assert!(shares <= capacity, "shares {shares} exceed {capacity}");
        }
        for class in self.enforced.iter().flat_map(|a| &a.classes) {
            assert!(class.ceil >= Rate::kbit(100) && class.rate <= class.ceil);
        }
    }

    /// Whether each group has its share by weight and demand, within 15 %, on average over
    /// twelve windows, in which each has its turn to be probed.
    fn is_right(&mut self, weights: &[u32]) -> bool {
        let entries: Vec<crate::share::Entry> = weights
            .iter()
            .zip(&self.demands)
            .map(|(&w, &d)| crate::share::Entry {
                weight: Weight::new(w).unwrap(),
                demand: (d < ENDLESS).then_some(d),
            })
            .collect();
        let fair = crate::share::fair(self.capacity, &entries);
        let mut sums = vec![Rate::ZERO; fair.len()];
        for _ in 0..60 {
            self.tick();
            for (sum, rate) in sums.iter_mut().zip(&self.rates) {
                *sum += *rate / 60;
            }
        }
        let slack = self.capacity / 100;
        fair.iter().zip(&sums).all(|(fair, rate)| {
            rate.as_bps().abs_diff(fair.as_bps()) <= fair.scale(15, 100).max(slack).as_bps()
        })
    }
}

fn weights(of: &[u32]) -> Vec<Weight> {
    of.iter().map(|&w| Weight::new(w).unwrap()).collect()
}

fn crab(of: &[u32], remembered: Option<Rate>) -> Controller {
    let spec = ControllerSpec::new(Control::Crab, None).unwrap();
    Controller::new(&spec, weights(of), remembered).unwrap()
}

#[test]
fn probing_climbs_from_10_to_30_mbit_in_four_steps() {
    let spec = crab(&[1], Some(Rate::bps(11_111_112)));
    let mut link = Senders::new(spec, Rate::mbit(30), &[ENDLESS]);
    // The model's growth must not limit the climb.
    let mut capacities = Vec::new();
    for _ in 0..100 {
        link.rates = link.enforced.iter().map(|a| a.classes[0].ceil).collect();
        if link.rates.is_empty() {
            link.rates = vec![Rate::mbit(10)];
        }
        link.tick();
        let capacity = link.controller.decision().capacity.unwrap().as_mbit_f64();
        if capacities.last().is_none_or(|last: &f64| (last - capacity).abs() > 1e-3) {
            capacities.push(capacity);
        }
    }
    // Raises add a sixteenth, a quarter, then all of the divided 0.98 of the capacity.
    let expected = [10.0, 10.42, 12.796, 25.233, 30.0];
    assert_eq!(capacities.len(), expected.len(), "{capacities:?}");
    for (capacity, expected) in capacities.iter().zip(expected) {
        assert!((capacity - expected).abs() < 1e-3, "{capacities:?}");
    }
}

#[test]
fn backlogged_groups_share_by_weight_from_a_cold_start() {
    for of in [vec![5, 1], vec![1, 5], vec![1, 2, 3, 4], vec![7, 1, 1], vec![1; 24]] {
        let demands = vec![ENDLESS; of.len()];
        let mut link = Senders::new(crab(&of, None), Rate::mbit(30), &demands);
        link.run(30);
        assert!(link.is_right(&of), "{of:?}: {:?}", link.rates);
    }
}

#[test]
fn learning_the_capacity_throttles_nobody_who_is_alone() {
    let mut link = Senders::new(crab(&[5, 1], None), Rate::mbit(30), &[Rate::ZERO, ENDLESS]);
    while link.controller.decision().capacity.is_none() {
        link.rates[1] = Rate::mbit(30);
        link.tick();
    }
    assert!(link.enforced.unwrap().classes[1].ceil >= Rate::mbit(29));
}

#[test]
fn low_rates_are_learned_too() {
    for mbit in [4, 5, 7, 10] {
        let start = Rate::mbit(mbit - 1);
        let mut link =
            Senders::new(crab(&[2, 1], Some(start)), Rate::mbit(mbit), &[ENDLESS, ENDLESS]);
        link.run(40);
        let capacity = link.controller.decision().capacity.unwrap();
        assert!(capacity >= Rate::mbit(mbit).scale(95, 100), "{capacity} of {mbit} Mbit/s");
    }
}

#[test]
fn unused_share_is_lent_and_taken_back() {
    let spec = crab(&[5, 1], Some(Rate::mbit(33)));
    let mut link = Senders::new(spec, Rate::mbit(30), &[Rate::mbit(8), ENDLESS]);
    link.run(15);
    assert!(link.acts.iter().any(|a| matches!(a, Act::Lend { group: 0 })));
    assert!(link.is_right(&[5, 1]), "{:?}", link.rates);
    link.demands[0] = ENDLESS;
    link.acts.clear();
    link.run(1);
    assert!(link.acts.iter().any(|a| matches!(a, Act::Reclaim { group: 0 })), "{:?}", link.acts);
    link.run(14);
    assert!(link.is_right(&[5, 1]), "{:?}", link.rates);
}

#[test]
fn capacity_follows_a_drop_to_a_third_and_back() {
    let spec = crab(&[2, 1], None);
    let mut link = Senders::new(spec, Rate::mbit(30), &[ENDLESS, ENDLESS]);
    link.run(30);
    link.capacity = Rate::mbit(10);
    link.run(10);
    assert!(link.is_right(&[2, 1]), "{:?}", link.rates);
    link.capacity = Rate::mbit(30);
    link.run(12);
    assert!(link.is_right(&[2, 1]), "{:?}", link.rates);
}

#[test]
fn an_estimate_that_is_a_little_too_high_is_corrected() {
    for mbit_tenths in [285, 270, 255, 240] {
        let spec = crab(&[5, 1], Some(Rate::mbit(33)));
        let mut link = Senders::new(spec, Rate::mbit(30), &[ENDLESS, ENDLESS]);
        link.run(20);
        link.capacity = Rate::kbit(mbit_tenths * 100);
        link.run(15);
        assert!(link.is_right(&[5, 1]), "{mbit_tenths}: {:?}", link.rates);
        let believed = link.controller.decision().capacity.unwrap();
        assert!(believed <= link.capacity.scale(105, 100), "{believed} at {mbit_tenths}");
    }
}

#[test]
fn an_idle_link_keeps_its_capacity() {
    let spec = crab(&[2, 1], None);
    let mut link = Senders::new(spec, Rate::mbit(30), &[ENDLESS, ENDLESS]);
    link.run(30);
    let before = link.controller.decision().capacity.unwrap();
    link.demands = vec![Rate::ZERO, Rate::ZERO];
    link.run(60);
    assert_eq!(link.controller.decision().capacity.unwrap(), before);
    assert!(link.controller.decision().groups.iter().all(|g| g.state == GroupState::Idle));
    link.demands = vec![ENDLESS, ENDLESS];
    link.run(15);
    assert!(link.is_right(&[2, 1]), "{:?}", link.rates);
}

#[test]
fn low_demand_does_not_overwrite_the_remembered_capacity() {
    let mut link = Senders::new(crab(&[5, 1], None), Rate::mbit(30), &[ENDLESS, ENDLESS]);
    link.run(30);
    let learned = link.controller.learned_capacity().unwrap();
    assert!(learned >= Rate::mbit(28), "{learned}");
    link.demands = vec![Rate::mbit(9), Rate::ZERO];
    link.run(90);
    assert!(link.controller.decision().capacity.unwrap() < Rate::mbit(15));
    assert_eq!(link.controller.learned_capacity(), Some(learned));
    // But a link that became slower for good lowers the capacity.
    link.demands = vec![ENDLESS, ENDLESS];
    link.capacity = Rate::mbit(20);
    link.run(40);
    let learned = link.controller.learned_capacity().unwrap();
    assert!(learned <= Rate::mbit(21), "{learned}");
}

#[test]
fn without_an_estimate_the_capacity_is_what_is_remembered_whatever_arrives() {
    let spec = ControllerSpec::new(Control::Crab, None).unwrap();
    let spec = spec.with_tuning(CrabTuning { estimates: false, ..CrabTuning::HOST });
    let controller = Controller::new(&spec, weights(&[5, 1]), Some(Rate::mbit(30))).unwrap();
    let mut link = Senders::new(controller, Rate::mbit(30), &[ENDLESS, ENDLESS]);
    for (demands, capacity) in [
        ([ENDLESS, ENDLESS], Rate::mbit(30)),
        ([Rate::mbit(9), Rate::ZERO], Rate::mbit(30)),
        ([ENDLESS, ENDLESS], Rate::mbit(20)),
        ([ENDLESS, ENDLESS], Rate::mbit(40)),
    ] {
        (link.demands, link.capacity) = (demands.to_vec(), capacity);
        link.run(40);
        assert_eq!(link.controller.decision().capacity, Some(Rate::mbit(30)), "{demands:?}");
    }
}

#[test]
fn idle_groups_hold_no_share() {
    let mut of = vec![1; 24];
    of[0] = 3;
    let mut demands = vec![Rate::ZERO; 24];
    demands[0] = ENDLESS;
    demands[1] = ENDLESS;
    let mut link = Senders::new(crab(&of, Some(Rate::mbit(20))), Rate::mbit(20), &demands);
    link.run(20);
    assert!(link.is_right(&of), "{:?}", &link.rates[..2]);
}

#[test]
fn nothing_changes_under_constant_input_but_probes() {
    let mut link =
        Senders::new(crab(&[5, 1], Some(Rate::mbit(33))), Rate::mbit(30), &[ENDLESS, ENDLESS]);
    link.run(20);
    link.acts.clear();
    link.run(20);
    let routine = |act: &Act| {
        matches!(act, Act::Measure | Act::Rest | Act::Raise { .. } | Act::Increase { .. })
    };
    assert!(link.acts.iter().all(routine), "{:?}", link.acts);
}

#[test]
fn a_long_or_short_interval_is_not_judged() {
    let mut controller = crab(&[1], Some(Rate::mbit(30)));
    for interval in [Span::millis(5), Span::secs(3)] {
        let groups =
            vec![GroupSample { received: Bytes::kb(100), packets: 70, ..Default::default() }];
        let observation =
            Observation { at: Time::ZERO, interval, groups, ..Observation::default() };
        controller.handle_observation(&observation);
        assert_eq!(controller.decision().act, Act::Measure);
        assert_eq!(controller.decision().capacity, Some(Rate::mbit(27)));
    }
}

#[test]
fn a_policy_change_keeps_what_was_learned() {
    let mut link = Senders::new(crab(&[5, 1], None), Rate::mbit(30), &[ENDLESS, ENDLESS]);
    link.run(30);
    let before = link.controller.decision().capacity;
    link.controller.handle_policy(weights(&[1, 5]), &[Some(0), Some(1)]);
    link.run(10);
    assert!(link.controller.decision().capacity >= before.map(|c| c.scale(95, 100)));
    assert!(link.is_right(&[1, 5]), "{:?}", link.rates);
    // A third group in front, the others move up by one.
    link.controller.handle_policy(weights(&[2, 1, 1]), &[None, Some(0), Some(1)]);
    link.rates.insert(0, Rate::kbit(100));
    link.demands.insert(0, ENDLESS);
    link.enforced = None;
    link.run(20);
    assert!(link.is_right(&[2, 1, 1]), "{:?}", link.rates);
}

#[test]
fn who_ignores_its_drops_is_taken_as_given() {
    let mut controller = crab(&[1, 5, 1], Some(Rate::mbit(33)));
    for tick in 1..=60 {
        let sample = |mbit: u64, drops: u64| GroupSample {
            received: Rate::mbit(mbit) * TICK,
            packets: 100,
            drops,
            backlog: Bytes::ZERO,
        };
        let observation = Observation {
            at: Time::from_nanos(tick * TICK.as_nanos()),
            interval: TICK,
            groups: vec![sample(18, 40), sample(10, 0), sample(2, 0)],
            ..Observation::default()
        };
        controller.handle_observation(&observation);
    }
    let groups = &controller.decision().groups;
    assert_eq!(groups[0].state, GroupState::Unresponsive);
    assert_eq!((groups[1].share, groups[2].share), (Rate::mbit(10), Rate::mbit(2)));
}

#[test]
fn the_router_waits_three_times_as_long_as_the_host() {
    let (host, router) = (CrabTuning::HOST, CrabTuning::ROUTER);
    let window = |tuning: CrabTuning| tuning.tick * u64::from(tuning.window_ticks);
    assert!(window(router) >= window(host) * 3);
}

#[test]
fn fixed_controls_say_their_rates_once() {
    let spec = |control, strict| {
        let spec = ControllerSpec::new(control, Some(Rate::mbit(30))).unwrap();
        spec.with_strict_priority(strict)
    };
    let command = |control, strict| {
        let mut controller =
            Controller::new(&spec(control, strict), weights(&[5, 1]), None).unwrap();
        let first = controller.poll_command();
        assert_eq!(controller.poll_command(), None);
        first
    };
    let rates = |command: Option<Command>| match command {
        Some(Command::SetRates(a)) => {
            (a.total, a.classes.iter().map(|c| (c.rate, c.ceil, c.priority)).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    let m = Rate::mbit;
    assert_eq!(command(Control::None, false), None);
    assert_eq!(
        rates(command(Control::Static, false)),
        (None, vec![(m(25), m(25), 0), (m(5), m(5), 0)])
    );
    assert_eq!(
        rates(command(Control::Borrow, false)),
        (Some(m(30)), vec![(m(25), m(30), 0), (m(5), m(30), 0)])
    );
    let (total, classes) = rates(command(Control::Chokepoint, false));
    assert_eq!((total, classes[0].1, classes[1].1), (Some(m(25)), m(25), m(25)));
    let (_, classes) = rates(command(Control::Chokepoint, true));
    assert_eq!((classes[0].2, classes[1].2), (0, 1));
    assert!(classes.iter().all(|c| c.0 < Rate::kbit(100)));
}

#[test]
fn a_spec_without_what_it_needs_is_refused() {
    let told = |capacity| ControllerSpec::new(Control::Static, capacity);
    assert_eq!(told(None).unwrap_err(), ControllerError::NoCapacity(Control::Static));
    let low = told(Some(Rate::kbit(50))).unwrap();
    let error = Controller::new(&low, weights(&[1]), None).unwrap_err();
    assert!(matches!(error, ControllerError::CapacityTooLow(..)));
    let crab = ControllerSpec::new(Control::Crab, None).unwrap();
    let error = Controller::new(&crab, weights(&[1]), Some(Rate::kbit(50))).unwrap_err();
    assert!(matches!(error, ControllerError::CapacityTooLow(..)), "remembered");
    assert_eq!(Controller::new(&crab, vec![], None).unwrap_err(), ControllerError::NoGroups);
}

/// Each control with its defaults.
fn specs() -> impl Iterator<Item = ControllerSpec> {
    Control::ALL.into_iter().map(|c| ControllerSpec::new(c, Some(Rate::mbit(30))).unwrap())
}

#[test]
fn a_spec_comes_back_from_json_as_it_was() {
    for spec in specs() {
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ControllerSpec>(&text).unwrap(), spec, "{text}");
    }
}

#[test]
fn a_controller_takes_over_every_change_but_another_way_of_learning() {
    for spec in specs() {
        let mut controller = Controller::new(&spec, weights(&[5, 1]), None).unwrap();
        for other in specs() {
            let learns = |s: &ControllerSpec| {
                use Control::{Crab, Fairweir, Rbm};
                matches!(s.control(), Rbm | Crab | Fairweir)
            };
            let same = spec == other || (!learns(&spec) && !learns(&other));
            assert_eq!(controller.can_take_over(&other), same, "{spec:?} -> {other:?}");
        }
        let changed = spec
            .with_latency(Span::millis(40))
            .with_enforce(Enforce::Htb)
            .with_strict_priority(true);
        assert!(controller.can_take_over(&changed), "{spec:?}");
        controller.handle_spec(&changed);
        if controller.queue_target().is_some() {
            assert_eq!(controller.queue_target(), Some(Span::millis(40)), "{spec:?}");
        }
        let shorter = CrabTuning { window_ticks: 3, ..CrabTuning::HOST };
        let tuned = spec.with_tuning(shorter);
        assert_eq!(controller.can_take_over(&tuned), spec.control() != Control::Crab);
    }
}

#[test]
fn another_latency_keeps_the_capacity_and_moves_the_windows() {
    let spec = ControllerSpec::new(Control::Fairweir, None).unwrap();
    let mut controller = Controller::new(&spec, weights(&[5, 1]), Some(Rate::mbit(30))).unwrap();
    let initial = |controller: &mut Controller| {
        let commands = std::iter::from_fn(|| controller.poll_command());
        let windows = commands.filter_map(|command| match command {
            Command::SetWindows(windows) => windows.initial[0],
            Command::SetRates(_) | Command::Release => None,
        });
        windows.last().unwrap()
    };
    let before = initial(&mut controller);
    controller.handle_spec(&spec.with_latency(Span::millis(100)));
    let after = initial(&mut controller);
    assert_eq!(controller.queue_target(), Some(Span::millis(100)));
    // 5/6 of the capacity for 95 ms more; the capacity is nine tenths of 30 Mbit/s.
    let more = Rate::mbit(27).scale(5, 6) * Span::millis(95);
    assert!(after.as_u64().abs_diff((before + more).as_u64()) < 3_000, "{before} -> {after}");
    controller.handle_spec(&spec.with_enforce(Enforce::Htb));
    let commands: Vec<Command> = std::iter::from_fn(|| controller.poll_command()).collect();
    let [Command::SetRates(allocation)] = &commands[..] else { panic!("{commands:?}") };
    let shares: Rate = allocation.classes.iter().map(|c| c.rate).sum();
    assert!(shares >= Rate::mbit(27), "{shares}");
}
