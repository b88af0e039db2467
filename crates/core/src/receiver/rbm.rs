//! Receiver Based Management: windows that depend on what connections do, for a given capacity.
//!
//! The method, every tick: each connection is classed as interactive, short, long or idle by what it has
//! received. The short connections, or the long ones if there are no short ones, each get an equal part
//! of the link; the interactive ones may have as much, and the others get their least windows. Each
//! window is the connection's part times (RTT without the queue + the queue's target). Groups and weights
//! do not matter: the paper has neither.
//!
//! Nothing else is enforced, so UDP traffic is not limited.
//!
//! Source: Spring et al. §IV (docs/research/papers/rbm.md says where this departs from it).

use std::collections::BTreeMap;

use super::delay::{DelayEstimator, Queue, RTT_GUESS, RTT_MIN};
use super::{
    Act, Command, ConnectionSample, ConnectionWindow, Decision, DelaySample, GroupDecision,
    GroupState, Observation, Windows,
};
use crate::share::Weight;
use crate::units::{Bytes, Rate, Span, Time};
use crate::window::{Behaviour, Bounds, Class, Framing, Member, divide, floor_rate, window};

/// The control's state.
///
/// Invariant: a connection that was observed has a window.
#[derive(Clone, Debug)]
pub struct Rbm {
    capacity: Rate,
    latency: Span,
    groups: usize,
    connections: BTreeMap<u64, Connection>,
    delay: DelayEstimator,
    /// Whether almost nothing arrived in the last tick, so that the queue was empty.
    was_quiet: bool,
    command: Option<Command>,
    decision: Decision,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    behaviour: Behaviour,
    sample: ConnectionSample,
    class: Class,
    /// L2 rate in the last tick.
    rate: Rate,
    part: Rate,
    begun_at: Time,
    /// The connection's RTT in its first tick, without the time that its own first packets waited for each other.
    rtt_first: Option<Span>,
}

impl Rbm {
    /// Starts the control for a link of `capacity`, whose queue is kept at `latency`.
    pub(super) fn new(groups: usize, capacity: Rate, latency: Span) -> Rbm {
        let mut control = Rbm {
            capacity,
            latency,
            groups,
            connections: BTreeMap::new(),
            delay: DelayEstimator::default(),
            was_quiet: true,
            command: None,
            decision: Decision::initial(groups),
        };
        control.divide(Time::ZERO);
        control
    }

    pub(super) fn handle_observation(&mut self, observation: &Observation) {
        assert_eq!(observation.groups.len(), self.groups, "one sample for each group");
        let now = observation.at;
        let queue = if self.was_quiet { Queue::WasEmpty } else { Queue::Unknown };
        let delay = self.delay.handle_observation(observation, queue, false);
        self.see_connections(observation, delay.map_or(Span::ZERO, |d| d.value));
        let volume: Bytes = observation.groups.iter().map(|g| g.received).sum();
        let total = Rate::from_volume(volume, observation.interval);
        self.was_quiet = total <= self.capacity / 10;
        self.divide(now);
        self.conclude(observation, delay);
    }

    pub(super) fn poll_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(super) fn handle_policy(&mut self, kept: &[Option<usize>]) {
        self.groups = kept.len();
        self.connections.clear();
        self.divide(self.decision.at);
    }

    pub(super) fn handle_spec(&mut self, capacity: Rate, latency: Span) {
        (self.capacity, self.latency) = (capacity, latency);
        self.divide(self.decision.at);
    }

    /// How long the queue may be while a connection is interactive.
    pub(super) fn queue_target(&self) -> Span {
        self.latency
    }

    fn see_connections(&mut self, observation: &Observation, queue: Span) {
        let now = observation.at;
        let bounds = Bounds::for_capacity(Some(self.capacity));
        let mut seen = BTreeMap::new();
        for sample in &observation.connections {
            let known = self.connections.get(&sample.id).copied();
            let mut one = known.unwrap_or_else(|| Connection {
                behaviour: Behaviour::new(now, sample.port),
                sample: *sample,
                class: Class::Interactive,
                rate: Rate::ZERO,
                part: Rate::ZERO,
                begun_at: now,
                rtt_first: None,
            });
            one.behaviour.handle_tick(now, sample.has_sent, sample.received);
            one.class = one.behaviour.class(now, bounds);
            one.sample = *sample;
            let wire = sample.framing().wire(sample.received);
            one.rate = Rate::from_volume(wire, observation.interval);
            one.rtt_first = one.rtt_first.or_else(|| rtt_first(sample, queue));
            seen.insert(sample.id, one);
        }
        self.connections = seen;
    }

    fn divide(&mut self, now: Time) {
        let queue = self.capacity.time_to_send(self.capacity * self.latency);
        let count = self.set_parts(now, queue);
        // A connection's first packets arrive at once and all of them wait; two connections may begin at once.
        let segments = self.connections.values().map(|c| c.sample.segment);
        let segment = segments.filter(|&s| s > Bytes::ZERO).min().unwrap_or(MODEM_SEGMENT);
        let guess = self.delay.rtt_base_max().unwrap_or(RTT_GUESS);
        let part = self.capacity / (count + u64::from(!self.connections.is_empty()));
        let burst = window(self.capacity, Span::ZERO, queue / 2, Framing::ipv4(segment));
        let initial = window(part, guess, queue, Framing::ipv4(segment)).min(burst);

        let windows = self.connections.iter().map(|(&id, connection)| {
            let Connection { sample, part, .. } = connection;
            let by_law = window(*part, self.rtt_base(connection, now), queue, sample.framing());
            let rests = connection.behaviour.is_quiet(now);
            ConnectionWindow { id, window: if rests { by_law.max(initial) } else { by_law } }
        });
        let connections = windows.collect();
        let initial = vec![Some(initial); self.groups];
        self.command = Some(Command::SetWindows(Windows { connections, initial }));
    }

    /// Divides the capacity; returns the number of connections among which it is divided.
    ///
    /// An active interactive connection does not count: it gets what it needs, which is twice its rate, so
    /// that it can grow. Its window may be as wide as if all interactive connections counted:
    /// when a page is requested on six connections at once, six whole windows would come back.
    fn set_parts(&mut self, now: Time, queue: Span) -> u64 {
        let member = |c: &Connection| Member {
            weight: Weight::ONE,
            class: c.class,
            demand: match c.class {
                _ if c.behaviour.is_quiet(now) => Some(Rate::ZERO),
                Class::Interactive => Some(c.rate * 2),
                Class::Short | Class::Long | Class::Idle => None,
            },
            floor: floor_rate(self.rtt_base(c, now), queue, c.sample.framing()),
        };
        let members: Vec<Member> = self.connections.values().map(member).collect();
        let active = |class| {
            let all = self.connections.values();
            all.filter(|c| c.class == class && !c.behaviour.is_quiet(now)).count() as u64
        };
        let short = active(Class::Short);
        let count = if short > 0 { short } else { active(Class::Long) };
        let begins = self.capacity / (count + active(Class::Interactive)).max(1);
        let parts = divide(self.capacity, &members);
        for (connection, part) in self.connections.values_mut().zip(parts) {
            let is_active = !connection.behaviour.is_quiet(now);
            let is_begun = connection.class == Class::Interactive && is_active;
            connection.part = if is_begun { part.max(begins) } else { part };
        }
        count.max(1)
    }

    /// A connection's RTT without the queue. The RTT includes the transmission of the connection's own packets,
    /// as it must: a packet in transmission no longer waits.
    fn rtt_base(&self, connection: &Connection, now: Time) -> Span {
        let sample = &connection.sample;
        let seen = self.delay.rtt_base(sample.id).or(sample.rtt).unwrap_or(RTT_GUESS);
        let is_new = now.since(connection.begun_at) < NEW_FOR;
        connection.rtt_first.filter(|_| is_new).map_or(seen, |first| first.min(seen))
    }

    fn conclude(&mut self, observation: &Observation, delay: Option<DelaySample>) {
        let groups = observation.groups.iter().enumerate().map(|(index, sample)| GroupDecision {
            rate: Rate::from_volume(sample.received, observation.interval),
            demand: None,
            share: self
                .connections
                .values()
                .filter(|c| c.sample.group == index)
                .map(|c| c.part)
                .sum::<Rate>()
                .min(self.capacity),
            ceil: None,
            state: if sample.packets == 0 { GroupState::Idle } else { GroupState::Unknown },
        });
        self.decision = Decision {
            at: observation.at,
            act: Act::Hold,
            capacity: Some(self.capacity),
            enforcing: true,
            delay,
            groups: groups.collect(),
        };
    }
}

/// A connection's first RTT without the time that its packets waited, for each other or in the `queue`
/// that others see.
fn rtt_first(sample: &ConnectionSample, queue: Span) -> Option<Span> {
    let (rtt, transit) = (sample.rtt?, sample.transit?);
    let waited = ((transit.mean_ns - transit.min_ns).max(0) as u64).max(queue.as_nanos());
    Some(Span::nanos(rtt.as_nanos().saturating_sub(waited)).max(RTT_MIN))
}

/// Age up to which a connection's first RTT is more accurate than one derived from later RTTs.
const NEW_FOR: Span = Span::secs(2);
/// Payload of IPv4 packets of 576 bytes, which every host accepts; used until a connection shows its own.
const MODEM_SEGMENT: Bytes = Bytes::new(524);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{GroupSample, TICK};

    const MODEM: Rate = Rate::bps(28_800);

    fn sample(id: u64, received: u64) -> ConnectionSample {
        ConnectionSample {
            id,
            received: Bytes::new(received),
            segments: received.div_ceil(524),
            rtt: Some(Span::millis(288)),
            segment: Bytes::new(524),
            port: 80,
            ..ConnectionSample::default()
        }
    }

    /// Ticks the control with these connections; what their windows are, in segments.
    fn tick(rbm: &mut Rbm, n: u64, connections: Vec<ConnectionSample>) -> Vec<u64> {
        let packets = connections.iter().map(|c| c.segments).sum();
        let received = connections.iter().map(|c| c.received).sum();
        let group = GroupSample { received, packets, ..GroupSample::default() };
        rbm.handle_observation(&Observation {
            at: Time::ZERO + TICK * n,
            interval: TICK,
            groups: vec![group],
            connections,
            probe: None,
            exact: None,
            beside: Default::default(),
        });
        let Some(Command::SetWindows(windows)) = rbm.poll_command() else { panic!("no windows") };
        windows.connections.iter().map(|c| c.window.as_u64() / 524).collect()
    }

    #[test]
    fn a_download_has_the_papers_window() {
        let mut rbm = Rbm::new(1, MODEM, Span::millis(400));
        let mut last = vec![];
        for n in 1..100 {
            last = tick(&mut rbm, n, vec![sample(1, 720)]);
        }
        // 28.8 kbit/s · (288 + 400 ms) are 4.2 packets.
        assert_eq!(last, [4]);
    }

    #[test]
    fn a_short_answer_pushes_the_download_aside_and_gives_back_when_it_ends() {
        let mut rbm = Rbm::new(1, Rate::mbit(10), Span::millis(20));
        let long =
            |received| ConnectionSample { rtt: Some(Span::millis(40)), ..sample(1, received) };
        let web = |received| ConnectionSample {
            rtt: Some(Span::millis(40)),
            has_sent: received > 0,
            ..sample(2, received)
        };
        for n in 1..20 {
            tick(&mut rbm, n, vec![long(240_000)]);
        }
        let alone = tick(&mut rbm, 20, vec![long(240_000)]);
        let beside = tick(&mut rbm, 21, vec![long(100_000), web(50_000)]);
        // The answer has the link, but for what two segments of the download let through.
        assert_eq!(beside, [2, alone[0] - 2]);
        let after =
            (22..30).map(|n| tick(&mut rbm, n, vec![long(240_000), web(0)])[0]).collect::<Vec<_>>();
        assert_eq!((after[0], after[7]), (2, alone[0]), "{after:?}");
    }

    #[test]
    fn two_connections_that_begin_at_once_fill_the_queue_as_it_shall_be() {
        let mut rbm = Rbm::new(2, Rate::kbit(512), Span::millis(50));
        let Some(Command::SetWindows(windows)) = rbm.poll_command() else { panic!("no windows") };
        // Half of 3200 bytes on the wire are 2.7 packets.
        assert_eq!(windows.initial, vec![Some(Bytes::new(524 * 3)); 2]);
    }
}
