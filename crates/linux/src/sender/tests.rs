//! Compares the programs' decisions with those of `core::delegate` on the same events.

use std::sync::{Mutex, PoisonError};

use fairweir_core::delegate::{
    Algorithm, Answer, Bundle, BundleSpec, Gain, MemberId, Role, Target, Trace,
};
use fairweir_core::units::Time;
use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use super::*;
use crate::bpf::abi::{BundleState, Replay};
use crate::bpf::tests::is_root;

const FREE: usize = 3;
const STUNTS: usize = 6;

/// Names belong to the machine: tests of this process use them one after the other.
static NAMES: Mutex<()> = Mutex::new(());

fn attach() -> Sender {
    Sender::attach(&Policy::new(Vec::new()).unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn congestion_controls_are_registered_until_the_end_under_names_that_are_free() {
    if !is_root() {
        return;
    }
    let _names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let available = || {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        text.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let first = attach();
    let names = [Kind::Reno, Kind::Cubic].map(|kind| first.name(kind).to_owned());
    assert!(names.iter().all(|name| available().contains(name)), "{names:?}");
    first.detach().unwrap();
    assert!(!names.iter().any(|name| available().contains(name)), "{names:?} stay registered");
}

/// An event of a member: an ACK that tells its window, perhaps followed by a signal; or a timeout.
#[derive(Clone, Debug)]
struct Event {
    member: usize,
    after: Span,
    sample: Sample,
    what: u32,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let phase = prop_oneof![8 => Just(Phase::Avoidance), 1 => Just(Phase::SlowStart),
        1 => Just(Phase::Recovery)];
    let one = (0..FREE + STUNTS, 1u64..30_000, 2u32..400, 5_000u64..300_000, 0..5usize, phase);
    let what = [
        header::EVENT_CUT,
        header::EVENT_CUT,
        header::EVENT_SIGNAL,
        header::EVENT_SIGNAL,
        header::EVENT_TIMEOUT,
    ];
    let event = move |(member, us, cwnd, rtt_us, nth, phase): (usize, u64, u32, u64, usize, _)| {
        let sample = Sample {
            cwnd,
            cwnd_cut: (cwnd / 2).max(2),
            packet: Bytes::new(1_514),
            rtts: Span::ZERO,
            rtt_count: 0,
            rtt: Span::micros(rtt_us),
            delivered: Bytes::kb(1_000),
            phase,
        };
        Event { member, after: Span::micros(us), sample, what: what[nth] }
    };
    prop::collection::vec(one.prop_map(event), 1..300)
}

/// The members of `core` and of the kernel, with the same indices.
struct Both {
    core: Bundle,
    ids: Vec<MemberId>,
    sender: Sender,
}

impl Both {
    fn begin(&mut self, algorithm: Algorithm, reverse: Reverse, floors: &[u64], weights: &[u32]) {
        self.core = Bundle::new(&BundleSpec { algorithm, reverse });
        let constant = |mbit| Target::Trace(Trace::constant(Rate::mbit(mbit)).unwrap());
        let free = [1, 8, 60].map(|mbit| Role::Free(constant(mbit)));
        let stunts: Vec<_> = floors.iter().zip(weights).collect();
        let stunts = stunts.iter().map(|&(&floor, &weight)| Role::Stunt {
            weight: Weight::new(weight).unwrap(),
            min_rate: Rate::bps(floor),
        });
        let roles: Vec<Role> = free.into_iter().chain(stunts).collect();
        self.ids = roles.iter().map(|role| self.core.join(role.clone()).unwrap()).collect();
        let sender = &self.sender;
        let states = sender.programs.map("bundle_states").unwrap();
        update(&states, &0u32.to_ne_bytes(), BundleState::default().as_bytes()).unwrap();
        for (index, role) in roles.iter().enumerate() {
            let index = index as u32;
            let nothing = Member::default();
            update(&sender.maps.members, &index.to_ne_bytes(), nothing.as_bytes()).unwrap();
            if let Role::Stunt { weight, min_rate } = *role {
                sender
                    .set_part(index, 0, Some(Part::Stunt { weight, min_rate, apart: 0 }))
                    .unwrap();
            }
        }
        let free = (0..FREE as u32).collect();
        let layout = Layout { free, stunts: (FREE as u32, (FREE + STUNTS) as u32), reverse };
        sender.set_layout(0, &layout).unwrap();
        self.give_orders();
    }

    fn give_orders(&self) {
        for index in 0..FREE {
            let order = self.core.order(self.ids[index]).unwrap();
            self.sender.set_part(index as u32, 0, Some(Part::Free(order))).unwrap();
        }
    }

    fn replay(&self, now: Time, event: &Event, what: u32) -> u32 {
        let sample = event.sample;
        let mut replay = Replay {
            now_ns: now.as_nanos(),
            delivered: sample.delivered.as_u64(),
            event: what,
            member: event.member as u32,
            cwnd: sample.cwnd,
            cwnd_cut: sample.cwnd_cut,
            packet: sample.packet.as_u64() as u32,
            rtt_us: (sample.rtt.as_nanos() / 1_000) as u32,
            phase: sample.phase as u32,
            answer: 0,
        };
        let bytes = (&raw mut replay).cast::<u8>();
        // SAFETY: the structure has no padding and takes every bit pattern; it lives while it is
        // borrowed here.
        let context = unsafe { std::slice::from_raw_parts_mut(bytes, size_of::<Replay>()) };
        let program = self.sender.programs.program("fairweir_replay").unwrap();
        let input = ProgramInput { context_in: Some(context), ..ProgramInput::default() };
        assert_eq!(program.test_run(input).unwrap().return_value, 0);
        replay.answer
    }

    fn play(&mut self, events: &[Event]) -> Result<(), TestCaseError> {
        let (mut now, mut ticked) = (Time::ZERO + Span::secs(1), Time::ZERO);
        let mut last = vec![None; self.ids.len()];
        let mut delivered = Bytes::kb(1_000);
        for event in events {
            now = now + event.after;
            let id = self.ids[event.member];
            if event.what != header::EVENT_TIMEOUT {
                delivered += event.sample.packet;
                let event = Event { sample: Sample { delivered, ..event.sample }, ..event.clone() };
                self.core.handle_sample(id, event.sample);
                self.replay(now, &event, header::EVENT_SAMPLE);
                last[event.member] = Some(event.sample.cwnd);
            }
            let Some(cwnd) = last[event.member] else { continue };
            if event.what != header::EVENT_CUT {
                let answer = match event.what {
                    header::EVENT_TIMEOUT => self.core.handle_timeout(now, id),
                    _ => self.core.handle_signal(now, id),
                };
                let wanted = match answer {
                    Answer::Own => 0,
                    Answer::Delegated => cwnd,
                    Answer::Shared(cwnd) => cwnd,
                };
                prop_assert_eq!(self.replay(now, event, event.what), wanted);
            } else {
                let wanted = self.core.take_cut(now, id).unwrap_or(0);
                prop_assert_eq!(self.replay(now, event, header::EVENT_CUT), wanted);
            }
            if now >= ticked {
                self.core.handle_tick(now);
                ticked = self.core.next_tick(now);
                self.give_orders();
            }
        }
        let members = self.sender.members((FREE + STUNTS) as u32).unwrap();
        for (id, member) in self.ids.iter().zip(&members) {
            let tally = member.map(|member| member.tally).unwrap_or_default();
            prop_assert_eq!(self.core.tally(*id), tally);
        }
        Ok(())
    }
}

#[test]
fn the_kernel_decides_as_the_model_does() {
    if !is_root() {
        return;
    }
    let _names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let spec = BundleSpec { algorithm: Algorithm::Track, reverse: Reverse::Exact };
    let both = Both { core: Bundle::new(&spec), ids: Vec::new(), sender: attach() };
    let both = std::cell::RefCell::new(both);
    let floors = prop::collection::vec(0u64..3_000_000, STUNTS);
    let weights = prop::collection::vec(1u32..4, STUNTS);
    let played = TestRunner::new(Cases::with_cases(64)).run(
        &(events(), floors, weights, 0..Algorithm::ALL.len(), any::<bool>()),
        |(events, floors, weights, algorithm, is_own)| {
            let mut both = both.borrow_mut();
            let reverse = if is_own { Reverse::Own } else { Reverse::Exact };
            both.begin(Algorithm::ALL[algorithm].1, reverse, &floors, &weights);
            both.play(&events)
        },
    );
    played.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_stunt_behind_another_bottleneck_is_not_asked_nor_answered_for() {
    if !is_root() {
        return;
    }
    let _names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let spec = BundleSpec { algorithm: Algorithm::OnOff, reverse: Reverse::Exact };
    let mut both = Both { core: Bundle::new(&spec), ids: Vec::new(), sender: attach() };
    both.begin(Algorithm::OnOff, Reverse::Exact, &[0; STUNTS], &[1; STUNTS]);
    let apart = |free: u32| {
        for index in FREE..FREE + STUNTS {
            let (weight, apart) = (Weight::ONE, bit_of_free(free));
            let part = Part::Stunt { weight, min_rate: Rate::ZERO, apart };
            both.sender.set_part(index as u32, 0, Some(part)).unwrap();
        }
    };
    let gain = |free: u32, gain: f64| {
        let order = Order { gain: Gain::from_f64(gain), aim: None };
        both.sender.set_part(free, 0, Some(Part::Free(order))).unwrap();
    };
    let event = |member: usize| Event {
        member,
        after: Span::ZERO,
        sample: Sample {
            cwnd: 20,
            cwnd_cut: 10,
            packet: Bytes::new(1_514),
            rtt: Span::millis(50),
            rtts: Span::ZERO,
            rtt_count: 0,
            delivered: Bytes::kb(1_000),
            phase: Phase::Avoidance,
        },
        what: header::EVENT_SIGNAL,
    };
    let at = |ms: u64| Time::ZERO + Span::millis(ms);
    let signal = |ms: u64, member: usize| {
        both.replay(at(ms), &event(member), header::EVENT_SAMPLE);
        both.replay(at(ms), &event(member), header::EVENT_SIGNAL)
    };
    for member in FREE..FREE + STUNTS {
        both.replay(at(1_000), &event(member), header::EVENT_SAMPLE);
    }
    // All stunts are apart from the first free connection, and none from the second.
    apart(0);
    gain(0, 1.0);
    gain(1, 1.0);
    assert_eq!(signal(1_100, 0), 0, "no other connection answers for it");
    assert_eq!(signal(1_200, 1), 20, "a stunt answers for the other one");
    // Both are above their targets; the second answers for a stunt and the first does not.
    gain(0, -1.0);
    gain(1, 0.0);
    assert_eq!(signal(2_000, FREE + 5), 0, "the first does not answer for it");
    gain(1, -1.0);
    assert_eq!(signal(3_000, FREE + 5), 20, "the second does");
}
