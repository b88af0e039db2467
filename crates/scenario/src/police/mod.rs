//! The policing points of a scenario as elements on the way down, for the simulator and the lab.
//!
//! A world (simulator or lab) hands in packets before they come to the downlink and gets back the
//! fate of each: it goes on, goes on marked, is dropped, or, at a shaper, waits. The decision
//! itself is made by the algorithms of `fairweir_core::phantom`, which a daemon runs too, or by the
//! baselines that they are compared with (`fairweir_reference::phantom`). Packets that pass are
//! counted for the report ([`PoliceSamples`]).
//!
//! Terms: a *unit* is a connection of a flow by its number, counted from 0. Units are assigned to
//! the queues of their class in turn, or by a hash of made-up addresses if the scenario says so.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use fairweir_core::phantom::segment::{self, Segment};
use fairweir_core::phantom::{Arrival, BcPqp, Bundled, Flow, Plan, Police, Verdict};
use fairweir_core::units::{Bytes, Rate, Time};

use crate::report::PoliceSamples;
use crate::{Algorithm, By, QueueBy, Scenario};

#[cfg_attr(not(feature = "reference"), path = "no_baseline.rs")]
mod baseline;

/// The fate of a packet at a policing point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<T> {
    /// It goes on.
    Pass(T),
    /// It goes on with a mark.
    Mark(T),
    /// It is discarded.
    Drop(T),
    /// It waits and comes out of [`Points::poll_departure`] later.
    Waits,
}

/// All policing points of a scenario; `T` is the world's packet type.
#[derive(Debug)]
pub struct Points<T> {
    points: Vec<Point>,
    /// The segment whose members are the points, by their indices.
    segment: Option<Divided>,
    queues: baseline::Queues<T>,
    /// The point of each flow, and the flow's seat there.
    seats: Vec<Option<Seat>>,
}

/// Point, index and queues of a flow.
#[derive(Clone, Copy, Debug)]
struct Seat {
    point: usize,
    /// Its index among the flows of the point.
    member: usize,
    /// The leaves of its class.
    first: usize,
    count: usize,
    /// Which of these leaves its first unit has.
    offset: usize,
    queue_by: QueueBy,
}

/// A segment that is divided as time passes.
#[derive(Debug)]
struct Divided {
    segment: Segment,
    divide_at: Time,
    /// Future guarantees: when, member and rate; the latest one first.
    guarantees: Vec<(Time, usize, Rate)>,
}

#[derive(Debug)]
struct Point {
    element: Element,
    samples: PoliceSamples,
}

enum Element {
    /// The daemon decides later; here arrivals are only counted.
    Elsewhere,
    Police(Box<dyn Police + Send>),
    /// A member of [`Points::segment`].
    Member,
    /// One of [`Points::queues`], by its number there.
    Shaper(usize),
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::Elsewhere => "Elsewhere",
            Element::Police(_) => "Police",
            Element::Member => "Member",
            Element::Shaper(_) => "Shaper",
        })
    }
}

impl<T> Points<T> {
    /// The points of a scenario before the first packet. `has_daemon` says whether a daemon decides
    /// where the scenario wants one.
    pub fn new(scenario: &Scenario, has_daemon: bool) -> Points<T> {
        let mut seats = vec![None; scenario.flows.len()];
        let (mut points, mut shaped) = (Vec::new(), Vec::new());
        for (index, police) in scenario.police.iter().enumerate() {
            let plan = police.plan();
            seat(scenario, index, &plan, &mut seats);
            let element = match policer(police, plan) {
                _ if has_daemon && police.by != By::Model => Element::Elsewhere,
                _ if scenario.segment.is_some() => Element::Member,
                Some(policer) => Element::Police(policer),
                None => {
                    shaped.push(index);
                    Element::Shaper(shaped.len() - 1)
                }
            };
            points.push(Point { element, samples: PoliceSamples::new(scenario, index) });
        }
        let segment = scenario.segment.map(|rate| Divided::new(scenario, rate));
        Points { points, segment, queues: baseline::Queues::new(scenario, shaped), seats }
    }

    /// Whether the scenario has no points.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// A packet of a unit of a flow arrives. `can_be_marked` says whether its sender understands a
    /// mark.
    pub fn arrive(
        &mut self,
        now: Time,
        (flow, unit): (usize, u32),
        size: Bytes,
        can_be_marked: bool,
        body: T,
    ) -> Fate<T> {
        let Some(seat) = self.seats[flow] else { return Fate::Pass(body) };
        let Point { element, samples } = &mut self.points[seat.point];
        let leaf = seat.leaf(flow, unit);
        match element {
            Element::Elsewhere => {
                samples.record_offer(now, seat.member);
                Fate::Pass(body)
            }
            Element::Police(_) | Element::Member => {
                let arrival = Arrival { leaf, flow: seat.flow(flow, unit), size, can_be_marked };
                let verdict = match (element, &mut self.segment) {
                    (Element::Police(police), _) => police.handle_packet(now, arrival),
                    (_, Some(divided)) => divided.handle_packet(now, seat.point, arrival),
                    (_, None) => unreachable!("a member is one of a segment"),
                };
                match verdict {
                    Verdict::Pass => {
                        samples.record_pass(now, seat.member, size);
                        Fate::Pass(body)
                    }
                    Verdict::Mark => {
                        samples.record_mark(now, seat.member, size);
                        Fate::Mark(body)
                    }
                    Verdict::Drop => {
                        samples.record_drop(now, seat.member, size);
                        Fate::Drop(body)
                    }
                }
            }
            Element::Shaper(shaper) => {
                match self.queues.enqueue(now, (*shaper, leaf), size, (seat.member, body)) {
                    Some(body) => {
                        samples.record_drop(now, seat.member, size);
                        Fate::Drop(body)
                    }
                    None => Fate::Waits,
                }
            }
        }
    }

    /// When the next packet leaves a shaper.
    pub fn next_departure(&self) -> Option<Time> {
        self.queues.next_departure()
    }

    /// The next packet that has left a shaper up to now, and when it left.
    pub fn poll_departure(&mut self, now: Time) -> Option<(Time, T)> {
        let (at, (point, member), size, body) = self.queues.poll_departure(now)?;
        self.points[point].samples.record_pass(at, member, size);
        Some((at, body))
    }

    /// Number of packets that wait in shapers.
    pub fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// The counts, point by point.
    pub fn into_samples(self) -> Vec<PoliceSamples> {
        self.points.into_iter().map(|point| point.samples).collect()
    }
}

impl Divided {
    fn new(scenario: &Scenario, capacity: Rate) -> Divided {
        let mut segment = Segment::new(capacity);
        let mut guarantees = Vec::new();
        for (index, police) in scenario.police.iter().enumerate() {
            segment.join(police.plan(), police.rate());
            guarantees.extend(police.guarantees.iter().map(|&(at, rate)| (at, index, rate)));
        }
        guarantees.sort_unstable();
        guarantees.reverse();
        Divided { segment, divide_at: Time::ZERO, guarantees }
    }

    fn handle_packet(&mut self, now: Time, member: usize, arrival: Arrival) -> Verdict {
        while let Some((_, member, rate)) = self.guarantees.pop_if(|(at, ..)| *at <= now) {
            self.segment.guarantee(member, rate);
        }
        if now >= self.divide_at {
            self.segment.divide(now);
            self.divide_at = now + segment::PERIOD;
        }
        self.segment.handle_packet(now, member, arrival)
    }
}

/// The algorithm that decides at a point; `None` if packets wait at it.
fn policer(police: &crate::Police, plan: Plan) -> Option<Box<dyn Police + Send>> {
    match (police.algorithm, police.bundle()) {
        (Algorithm::BcPqp, Some(bundle)) => Some(Box::new(Bundled::new(plan, bundle))),
        (Algorithm::BcPqp, None) => Some(Box::new(BcPqp::new(plan))),
        _ => baseline::policer(police, &plan),
    }
}

/// Gives every flow of a point its seat.
fn seat(scenario: &Scenario, point: usize, plan: &Plan, seats: &mut [Option<Seat>]) {
    let police = &scenario.police[point];
    let choices = plan.choices();
    // Number of units that already have a queue, for each choice.
    let mut dealt = vec![0; choices.len()];
    for (member, &flow) in police.flows.iter().enumerate() {
        let class = police.class_of.get(member);
        let choice = class.and_then(|class| choices.iter().position(|c| c.name == *class));
        let choice = choice.unwrap_or(0);
        let (first, count) = (choices[choice].first.into(), choices[choice].count.into());
        let (offset, queue_by) = (dealt[choice], police.queue_by);
        dealt[choice] += scenario.flows[flow].connections as usize;
        seats[flow] = Some(Seat { point, member, first, count, offset, queue_by });
    }
}

impl Seat {
    fn leaf(&self, flow: usize, unit: u32) -> usize {
        match self.queue_by {
            QueueBy::Flow => self.first + (self.offset + unit as usize) % self.count,
            QueueBy::Hash => {
                let hash = u64::from(addresses(flow, unit).hash());
                self.first + ((hash * self.count as u64) >> 32) as usize
            }
            QueueBy::One => 0,
        }
    }

    /// The number by which a policer recognises a flow.
    fn flow(&self, flow: usize, unit: u32) -> u32 {
        match self.queue_by {
            QueueBy::Flow | QueueBy::Hash => addresses(flow, unit).hash(),
            QueueBy::One => 0,
        }
    }
}

/// Plausible addresses and ports of a unit: a server for each flow, a port of the home for each
/// connection.
fn addresses(flow: usize, unit: u32) -> Flow {
    let server = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + flow as u32);
    Flow {
        remote: IpAddr::V4(server),
        local: IpAddr::V4(Ipv4Addr::new(198, 19, 0, 2)),
        protocol: 6,
        ports: (443, 32_768 + unit as u16),
        dscp: 0,
    }
}

#[cfg(test)]
mod tests;
