use proptest::prelude::*;

use super::super::{
    ConnectionSample, Control, ControlLoop, Controller, ControllerSpec, Enforcer, GroupSample,
    Observation, TICK, TransitSample, Windows,
};
use super::*;
use crate::receiver::{Act, Allocation};
use crate::share::{Cap, Tree, Weight};
use crate::units::Bytes;

const LINK: Rate = Rate::mbit(30);

/// Plays a control on a link of 30 Mbit/s that lets `with_control` pass, after it has let all pass for
/// 20 s; returns the verdicts of each tick.
fn play(seconds: u64, with_control: impl Fn(Time) -> Rate, has_room: Option<bool>) -> Vec<Verdict> {
    let mut supervisor = Supervisor::new();
    let mut verdicts = Vec::new();
    for i in 0..seconds * 5 {
        let at = Time::ZERO + TICK * (i + 1);
        let is_free = verdicts.last().is_some_and(|&v| v != Verdict::Enforce);
        let total = if is_free || i < 100 { LINK } else { with_control(at) };
        let tick = Tick { at, total, is_enforcing: !is_free, is_wanted: true, has_room };
        verdicts.push(supervisor.handle_tick(&tick));
    }
    verdicts
}

fn seconds_of(verdicts: &[Verdict], wanted: Verdict) -> u64 {
    verdicts.iter().filter(|&&v| v == wanted).count() as u64 / 5
}

#[test]
fn a_control_that_takes_half_of_the_link_lets_go_for_longer_and_longer() {
    let verdicts = play(1_200, |_| LINK / 2, Some(true));
    let first = verdicts.iter().position(|&v| v == Verdict::Compare).unwrap() as u64;
    assert!(TICK * first < Span::secs(28), "compared after {first} ticks, 100 of them healthy");
    let begins = verdicts.windows(2).enumerate();
    let begins: Vec<usize> =
        begins.filter(|(_, v)| v[0] != v[1] && v[1] == Verdict::LetGo).map(|(i, _)| i).collect();
    let ends = verdicts.windows(2).enumerate();
    let ends = ends.filter(|(_, v)| v[0] != v[1] && v[0] == Verdict::LetGo).map(|(i, _)| i);
    let stays: Vec<usize> = begins.iter().zip(ends).map(|(begin, end)| (end - begin) / 5).collect();
    assert_eq!(stays[..4], [30, 60, 120, 240]);
    // The cost of such a control over 20 minutes: half of the link in the ticks in which it is in force.
    let enforced = seconds_of(&verdicts[100..], Verdict::Enforce);
    assert!(enforced < 60, "{enforced} s of 1180");
}

#[test]
fn a_link_that_became_slower_is_compared_once_and_then_believed() {
    let mut supervisor = Supervisor::new();
    let compared = (0..3_000_u64).filter(|&i| {
        let total = if i < 100 { LINK } else { LINK / 3 };
        let at = Time::ZERO + TICK * (i + 1);
        let tick = Tick { at, total, is_enforcing: true, is_wanted: true, has_room: Some(true) };
        supervisor.handle_tick(&tick) == Verdict::Compare
    });
    assert_eq!(compared.count(), 15, "3 s");
}

#[test]
fn nothing_is_compared_while_the_link_is_full_or_no_group_wants_more() {
    assert_eq!(seconds_of(&play(600, |_| LINK / 2, Some(false)), Verdict::Enforce), 600);
    let mut supervisor = Supervisor::new();
    for i in 0..3_000_u64 {
        let total = if i < 100 { LINK } else { LINK / 3 };
        let at = Time::ZERO + TICK * (i + 1);
        let tick = Tick { at, total, is_enforcing: true, is_wanted: false, has_room: Some(true) };
        assert_eq!(supervisor.handle_tick(&tick), Verdict::Enforce);
    }
}

proptest! {
    #[test]
    fn comparing_takes_at_most_a_tenth_of_the_time_if_control_costs_nothing(
        rates in prop::collection::vec(1_u64..1_000, 500..3_000),
    ) {
        // What arrives is random; while everything passes it is the mean from before.
        let mut supervisor = Supervisor::new();
        let mut compared = 0_usize;
        for (i, &rate) in rates.iter().enumerate() {
            let at = Time::ZERO + TICK * (i as u64 + 1);
            let is_comparing = matches!(supervisor.state, State::Compare { .. });
            let had = match supervisor.state {
                State::Compare { had, .. } => had,
                _ => Rate::ZERO,
            };
            let total = if is_comparing { had } else { Rate::kbit(rate * 100) };
            let tick =
                Tick { at, total, is_enforcing: true, is_wanted: true, has_room: None };
            let verdict = supervisor.handle_tick(&tick);
            prop_assert_ne!(verdict, Verdict::LetGo);
            compared += usize::from(verdict == Verdict::Compare);
        }
        prop_assert!(compared <= rates.len() / 10 + 15, "{} of {}", compared, rates.len());
    }
}

// ------------------------------------------------------------------------------------------------
// In the loop

/// The last commands of an enforcer.
#[derive(Debug, Default)]
struct Told {
    /// The ceil of the only group.
    ceil: Option<Rate>,
    has_windows: bool,
}

impl Enforcer for Told {
    type Error = ();
    fn apply(&mut self, allocation: &Allocation) -> Result<(), ()> {
        self.ceil = Some(allocation.classes[0].ceil);
        Ok(())
    }
    fn release(&mut self) -> Result<(), ()> {
        self.ceil = None;
        Ok(())
    }
    fn apply_windows(&mut self, _: &Windows) -> Result<(), ()> {
        self.has_windows = true;
        Ok(())
    }
    fn release_windows(&mut self) -> Result<(), ()> {
        self.has_windows = false;
        Ok(())
    }
}

/// An observation of one download of `rate` that fills its window, behind a queue of `queue`.
fn observe(at: Time, rate: Rate, queue: Span) -> Observation {
    const RTT: Span = Span::millis(20);
    let received = rate * TICK;
    let queued = (queue.as_nanos()) as i64;
    let packets = (received.as_u64() / 1_514).max(1);
    let transit = TransitSample {
        min_ns: 5_000_000 + queued,
        mean_ns: 5_000_000 + queued,
        samples: packets as u32,
    };
    let payload = Bytes::new(received.as_u64() * 1_448 / 1_514);
    let connection = ConnectionSample {
        id: 1,
        received: payload,
        segments: packets,
        rtt: Some(RTT + queue),
        transit: Some(transit),
        window: rate * (RTT + queue),
        segment: Bytes::new(1_448),
        port: 443,
        ..ConnectionSample::default()
    };
    let group = GroupSample { received, packets, ..GroupSample::default() };
    let groups = vec![group];
    Observation {
        at,
        interval: TICK,
        groups,
        connections: vec![connection],
        probe: None,
        exact: None,
        beside: Default::default(),
    }
}

/// Plays a broken control: it costs two thirds of the link whenever it is in force.
fn harmed(weights: impl Into<Tree>, mut see: impl FnMut(Act, &ControlLoop, &Told)) {
    let spec = ControllerSpec::new(Control::Fairweir, None).unwrap();
    let controller = Controller::new(&spec, weights, None).unwrap();
    let mut control = ControlLoop::new(controller, 1, Time::ZERO);
    let mut told = Told::default();
    let mut acts = Vec::new();
    for i in 0..2_000_u64 {
        let at = Time::ZERO + TICK * (i + 1);
        let decision = control.decision();
        let lets_go = matches!(decision.act, Act::Compare | Act::LetGo);
        let is_free = !decision.enforcing || lets_go || i < 100;
        let (rate, queue) = match is_free {
            true if i > 5 => (LINK, Span::millis(5)),
            true => (LINK / 50, Span::ZERO),
            false => (LINK / 3, Span::ZERO),
        };
        control.decide(&observe(at, rate, queue));
        control.enforce(&mut told).unwrap();
        see(control.decision().act, &control, &told);
        acts.push(control.decision().act);
    }
    let count = |wanted: Act| acts.iter().filter(|&&act| act == wanted).count();
    assert!(count(Act::Compare) >= 15, "{} ticks", count(Act::Compare));
    assert!(count(Act::LetGo) >= 30 * 5, "{} ticks", count(Act::LetGo));
}

#[test]
fn while_it_lets_go_nothing_is_enforced_and_the_decision_says_so() {
    harmed(vec![Weight::ONE], |act, control, told| {
        if matches!(act, Act::Compare | Act::LetGo) {
            assert!(!control.decision().enforcing && !control.is_enforcing());
            assert!(told.ceil.is_none() && !told.has_windows, "{act}");
        } else if control.decision().enforcing {
            assert!(told.ceil.is_some() && told.has_windows, "{act}");
        }
    });
}

#[test]
fn while_it_lets_go_a_cap_holds_and_the_decision_says_so() {
    let max = LINK * 2;
    let weights = Tree::from(vec![Weight::ONE]).with_caps(vec![Cap { leaves: 0..1, max }]);
    harmed(weights, |act, control, told| {
        assert!(control.decision().enforcing && control.is_enforcing());
        assert!(told.ceil.is_some_and(|ceil| ceil <= max) && told.has_windows, "{act}");
        if matches!(act, Act::Compare | Act::LetGo) {
            assert_eq!((told.ceil, control.decision().groups[0].ceil), (Some(max), Some(max)));
        }
    });
}
