//! The policing points of a scenario as elements on the way down, for both worlds.
//!
//! A world hands in packets before they come to the downlink and gets back what becomes of each: it
//! goes on, it goes on marked, it is dropped, or, at a shaper, it waits. The decision itself is made
//! by the algorithms of `fairweir_core::phantom`, the same that a daemon runs. What passes is counted
//! for the report ([`PoliceSamples`]).
//!
//! Terms: a *unit* is a connection of a flow by its number, counted from 0. Units are dealt out to
//! the queues of their class in turn, or by a hash of made-up addresses if the scenario wants that.

use std::net::{IpAddr, Ipv4Addr};

use fairweir_core::phantom::{Arrival, BcPqp, Flow, Plan, Police, Verdict};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Time};

use crate::link::{Buffer, Capacity, Discipline, Link, LinkSpec, Packet};
use crate::report::PoliceSamples;
use crate::scenario::{self, Algorithm, Scenario};

/// What becomes of a packet at a policing point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<T> {
    /// It goes on.
    Pass(T),
    /// It goes on with a mark.
    Mark(T),
    /// It goes nowhere.
    Drop(T),
    /// It waits, and comes out of [`Points::poll_departure`] or [`Points::poll_drop`].
    Waits,
}

/// All policing points of a scenario; `T` is what the world calls a packet.
#[derive(Debug)]
pub struct Points<T> {
    points: Vec<Point<T>>,
    /// For each flow its point and where it belongs there.
    seats: Vec<Option<Seat>>,
}

/// Where a flow belongs.
#[derive(Clone, Copy, Debug)]
struct Seat {
    point: usize,
    /// Its place among the flows of the point.
    member: usize,
    /// The leaves of its class.
    first: usize,
    count: usize,
    /// Which of them its first unit has.
    offset: usize,
    by_hash: bool,
}

#[derive(Debug)]
struct Point<T> {
    element: Element<T>,
    samples: PoliceSamples,
}

enum Element<T> {
    Police(Box<dyn Police + Send>),
    /// The body of its packets knows the flow's place among those of the point.
    Shaper(Link<(usize, T)>),
}

impl<T> std::fmt::Debug for Element<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Element::Police(_) => "Police",
            Element::Shaper(_) => "Shaper",
        })
    }
}

impl<T> Points<T> {
    /// The points of a scenario, through which nothing has come.
    pub fn new(scenario: &Scenario) -> Points<T> {
        let mut seats = vec![None; scenario.flows.len()];
        let mut points = Vec::new();
        for (index, police) in scenario.police.iter().enumerate() {
            let plan = police.plan();
            seat(scenario, index, &plan, &mut seats);
            points.push(Point {
                element: Element::new(police, plan),
                samples: PoliceSamples::new(scenario, index),
            });
        }
        Points { points, seats }
    }

    /// Whether there are none.
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
            Element::Police(police) => {
                match police.handle_packet(now, Arrival { leaf, size, can_be_marked }) {
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
            Element::Shaper(link) => {
                link.enqueue(now, Packet { class: leaf, size, body: (seat.member, body) });
                Fate::Waits
            }
        }
    }

    /// When the next packet leaves a shaper.
    pub fn next_departure(&self) -> Option<Time> {
        let shapers = self.points.iter().filter_map(|point| match &point.element {
            Element::Police(_) => None,
            Element::Shaper(link) => link.next_departure(),
        });
        shapers.min()
    }

    /// What has left a shaper up to now, and when.
    pub fn poll_departure(&mut self, now: Time) -> Option<(Time, T)> {
        self.points.iter_mut().find_map(|Point { element, samples }| {
            let Element::Shaper(link) = element else { return None };
            let departure = link.poll_departure(now)?;
            let Packet { size, body: (member, body), .. } = departure.packet;
            samples.record_pass(departure.at, member, size);
            Some((departure.at, body))
        })
    }

    /// What a shaper had no room for.
    pub fn poll_drop(&mut self) -> Option<T> {
        self.points.iter_mut().find_map(|Point { element, samples }| {
            let Element::Shaper(link) = element else { return None };
            let dropped = link.poll_drop()?;
            let Packet { size, body: (member, body), .. } = dropped.packet;
            samples.record_drop(dropped.at, member, size);
            Some(body)
        })
    }

    /// How many packets wait in shapers.
    pub fn len(&self) -> usize {
        let waiting = self.points.iter().map(|point| match &point.element {
            Element::Police(_) => 0,
            Element::Shaper(link) => link.len(),
        });
        waiting.sum()
    }

    /// What was counted, point by point.
    pub fn into_samples(self) -> Vec<PoliceSamples> {
        self.points.into_iter().map(|point| point.samples).collect()
    }
}

impl<T> Element<T> {
    fn new(police: &scenario::Police, plan: Plan) -> Element<T> {
        match police.algorithm {
            Algorithm::BcPqp => Element::Police(Box::new(BcPqp::new(plan))),
            Algorithm::Shaper => Element::Shaper(shaper(police, &plan)),
        }
    }
}

/// Real queues under the sim's own round robin.
fn shaper<T>(police: &scenario::Police, plan: &Plan) -> Link<T> {
    let weights: Vec<Weight> = plan
        .leaf_weights()
        .into_iter()
        .map(|w| Weight::new(w.into()).unwrap_or(Weight::ONE))
        .collect();
    Link::new(LinkSpec {
        queue: if weights.len() > 1 { Discipline::Drr } else { Discipline::Fifo },
        weights,
        ..LinkSpec::fifo(Capacity::constant(police.rate()), Buffer::Bytes(police.size()))
    })
}

/// Gives every flow of a point its seat.
fn seat(scenario: &Scenario, point: usize, plan: &Plan, seats: &mut [Option<Seat>]) {
    let police = &scenario.police[point];
    let choices = plan.choices();
    // How many units of each choice have a queue already.
    let mut dealt = vec![0; choices.len()];
    for (member, &flow) in police.flows.iter().enumerate() {
        let class = police.class_of.get(member);
        let choice = class.and_then(|class| choices.iter().position(|c| c.name == *class));
        let choice = choice.unwrap_or(0);
        let (first, count) = (choices[choice].first.into(), choices[choice].count.into());
        let (offset, by_hash) = (dealt[choice], police.by_hash);
        dealt[choice] += scenario.flows[flow].connections as usize;
        seats[flow] = Some(Seat { point, member, first, count, offset, by_hash });
    }
}

impl Seat {
    fn leaf(&self, flow: usize, unit: u32) -> usize {
        if self.by_hash {
            let hash = addresses(flow, unit).hash();
            return self.first + ((u64::from(hash) * self.count as u64) >> 32) as usize;
        }
        self.first + (self.offset + unit as usize) % self.count
    }
}

/// Addresses and ports of a unit, as they might be: a server for each flow, a port of the home for
/// each connection.
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
